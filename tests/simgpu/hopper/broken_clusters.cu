// Kernels that break a rule of clusters: each must end with a fault that says which. broken NAME runs one; it prints the
// CUDA error it got.
#include "hopper.cuh"

__shared__ u32 data[32];
__shared__ __align__(8) u64 bar;

// Nobody knows whether the other block runs already.
__global__ void __cluster_dims__(2, 1, 1) peer_not_started(u32 *out)
{
    out[threadIdx.x] = remote_load(mapa(data, 1 - blockIdx.x)); // fault: peer_not_started
}

// Block 1 leaves at once, block 0 reads its memory.
__global__ void __cluster_dims__(2, 1, 1) peer_has_left(u32 *out)
{
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    if (blockIdx.x == 1) return;
    for (int i = 0; i < 100000; i++) out[threadIdx.x] = i;
    out[threadIdx.x] = remote_load(mapa(data, 1)); // fault: peer_has_left
}

// The same, but the read comes first here: on a GPU it may, or may not.
__global__ void __cluster_dims__(2, 1, 1) peer_leaves(u32 *out)
{
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    if (blockIdx.x == 1) out[threadIdx.x] = remote_load(mapa(data, 0));
} // fault: peer_leaves

__global__ void __cluster_dims__(2, 1, 1) no_such_rank(u32 *out)
{
    out[threadIdx.x] = mapa(data, 2); // fault: no_such_rank
}

__global__ void __cluster_dims__(2, 1, 1) not_own_memory(u32 *out)
{
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    const u32 peer = mapa(data, 1 - blockIdx.x);
    u32 r;
    asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(r) : "r"(peer) : "memory"); // fault: not_own_memory
    out[threadIdx.x] = r;
}

__global__ void __cluster_dims__(2, 1, 1) arrive_twice(u32 *out)
{
    CLUSTER_ARRIVE;
    CLUSTER_ARRIVE; // fault: arrive_twice
}

__global__ void __cluster_dims__(2, 1, 1) wait_unarrived(u32 *out)
{
    CLUSTER_WAIT; // fault: wait_unarrived
}

// Block 1 waits for an mbarrier where block 0 never arrives.
__global__ void __cluster_dims__(2, 1, 1) cluster_deadlock(u32 *out)
{
    if (threadIdx.x == 0 && blockIdx.x == 1) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(smem_addr(&bar)) : "memory");
        asm volatile(
            "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" ::"r"(
                smem_addr(&bar))
            : "memory");
    }
    __syncwarp();
    CLUSTER_ARRIVE;
    CLUSTER_WAIT; // fault: cluster_deadlock
}

__global__ void __cluster_dims__(2, 1, 1) remote_state(u32 *out)
{
    u64 state;
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    asm volatile("mbarrier.arrive.b64 %0, [%1];"
                 : "=l"(state)
                 : "l"(__cvta_shared_to_generic(mapa(&bar, 1 - blockIdx.x))) // fault: remote_state
                 : "memory");
    out[0] = (u32)state;
}

// Both blocks' threads 0 arrive at block 0's mbarrier, which expects one.
__global__ void __cluster_dims__(2, 1, 1) remote_over_arrival(u32 *out)
{
    if (threadIdx.x == 0) {
        bar_init(smem_addr(&bar), 1);
        INIT_FENCE;
        bar_expect(smem_addr(&bar), 16); // the phase stays incomplete
    }
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    if (threadIdx.x == 0 && blockIdx.x == 1) bar_arrive(mapa(&bar, 0)); // fault: remote_over_arrival
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

// The cluster's barrier came before the init, and that block 0 says in global memory that it is done is luck.
__global__ void __cluster_dims__(2, 1, 1) remote_init_not_visible(u32 *out)
{
    volatile u32 *flag = out;
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        bar_init(smem_addr(&bar), 2);
        INIT_FENCE;
        *flag = 7;
    }
    if (threadIdx.x == 0 && blockIdx.x == 1) {
        while (*flag != 7) {
        }
        bar_arrive(mapa(&bar, 0)); // fault: remote_init_not_visible
    }
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

// The barrier comes after, but its relaxed arrival orders nothing and there is no fence.mbarrier_init.
__global__ void __cluster_dims__(2, 1, 1) remote_init_not_fenced(u32 *out)
{
    if (threadIdx.x == 0) bar_init(smem_addr(&bar), 1);
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
    if (threadIdx.x == 0) bar_arrive(mapa(&bar, 1 - blockIdx.x)); // fault: remote_init_not_fenced
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

// A copy for a block that has left.
__global__ void __cluster_dims__(2, 1, 1) copy_to_the_departed(u32 *out)
{
    __shared__ __align__(128) u32 to[32];
    if (threadIdx.x == 0) bar_init(smem_addr(&bar), 1);
    INIT_FENCE;
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
    if (blockIdx.x == 1) return;
    for (int i = 0; i < 100000; i++) out[threadIdx.x] = i;
    if (threadIdx.x) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" // to block 1
        ::"r"(mapa(to, 1)),
        "l"(out), "r"(mapa(&bar, 1)) // fault: copy_to_the_departed
        : "memory");
}

#define KERNEL(NAME) \
    {                \
#NAME, NAME  \
    }
static const struct {
    const char *name;
    void (*kernel)(u32 *);
} kernels[] = {KERNEL(peer_not_started),    KERNEL(peer_has_left),           KERNEL(peer_leaves),
               KERNEL(no_such_rank),        KERNEL(not_own_memory),          KERNEL(arrive_twice),
               KERNEL(wait_unarrived),      KERNEL(cluster_deadlock),        KERNEL(remote_state),
               KERNEL(remote_over_arrival), KERNEL(remote_init_not_visible), KERNEL(remote_init_not_fenced),
               KERNEL(copy_to_the_departed)};

int main(int argc, char **argv)
{
    u32 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, 4096));
    CUDA_CHECK(cudaMemset(device, 0, 4096));
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<2, 32>>>(device);
        return !launched(k.name);
    }
    printf("broken NAME\n");
    return 2;
}
