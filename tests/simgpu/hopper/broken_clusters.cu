// Kernels that break a rule of clusters: each must end with a fault that says which. broken NAME runs one; it prints the
// CUDA error it got.
#include "../check.h"

__device__ static u32 smem_addr(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
__device__ static u32 mapa(u32 addr, u32 rank)
{
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
__device__ static u32 remote_load(u32 addr)
{
    u32 r;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(r) : "r"(addr) : "memory");
    return r;
}
#define ARRIVE asm volatile("barrier.cluster.arrive.aligned;" ::: "memory")
#define WAIT   asm volatile("barrier.cluster.wait.aligned;" ::: "memory")

__shared__ u32 data[32];
__shared__ __align__(8) u64 bar;

// Nobody knows whether the other block runs already.
__global__ void __cluster_dims__(2, 1, 1) peer_not_started(u32 *out)
{
    out[threadIdx.x] = remote_load(mapa(smem_addr(data), 1 - blockIdx.x));
}

// Block 1 leaves at once, block 0 reads its memory.
__global__ void __cluster_dims__(2, 1, 1) peer_has_left(u32 *out)
{
    ARRIVE;
    WAIT;
    if (blockIdx.x == 1) return;
    for (int i = 0; i < 100000; i++) out[threadIdx.x] = i;
    out[threadIdx.x] = remote_load(mapa(smem_addr(data), 1));
}

// The same, but the read comes first here: on a GPU it may, or may not.
__global__ void __cluster_dims__(2, 1, 1) peer_leaves(u32 *out)
{
    ARRIVE;
    WAIT;
    if (blockIdx.x == 1) out[threadIdx.x] = remote_load(mapa(smem_addr(data), 0));
}

__global__ void __cluster_dims__(2, 1, 1) no_such_rank(u32 *out)
{
    out[threadIdx.x] = mapa(smem_addr(data), 2);
}

__global__ void __cluster_dims__(2, 1, 1) not_own_memory(u32 *out)
{
    ARRIVE;
    WAIT;
    u32 r;
    asm volatile("ld.shared::cta.u32 %0, [%1];"
                 : "=r"(r)
                 : "r"(mapa(smem_addr(data), 1 - blockIdx.x))
                 : "memory");
    out[threadIdx.x] = r;
}

__global__ void __cluster_dims__(2, 1, 1) arrive_twice(u32 *out)
{
    ARRIVE;
    ARRIVE;
}

__global__ void __cluster_dims__(2, 1, 1) wait_unarrived(u32 *out)
{
    WAIT;
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
    ARRIVE;
    WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) remote_state(u32 *out)
{
    u64 state;
    ARRIVE;
    WAIT;
    asm volatile("mbarrier.arrive.b64 %0, [%1];"
                 : "=l"(state)
                 : "l"(__cvta_shared_to_generic(mapa(smem_addr(&bar), 1 - blockIdx.x)))
                 : "memory");
    out[0] = (u32)state;
}

#define KERNEL(NAME) \
    {                \
#NAME, NAME  \
    }
static const struct {
    const char *name;
    void (*kernel)(u32 *);
} kernels[] = {KERNEL(peer_not_started), KERNEL(peer_has_left),    KERNEL(peer_leaves),
               KERNEL(no_such_rank),     KERNEL(not_own_memory),   KERNEL(arrive_twice),
               KERNEL(wait_unarrived),   KERNEL(cluster_deadlock), KERNEL(remote_state)};

int main(int argc, char **argv)
{
    u32 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, 4096));
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<2, 32>>>(device);
        return !launched(k.name);
    }
    printf("broken NAME\n");
    return 2;
}
