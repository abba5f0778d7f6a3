// Kernels that are right in one order of their warps and wrong in another: what must come first is not made to. Each must end
// with a fault that says which, in any order; those named right_ do what theirs forget. broken_order NAME runs one.
#include "hopper.cuh"

constexpr int STAGES = 2, STEPS = 8; // of a pipeline; a stage is 64 x 16 elements of A and 8 x 16 of B
constexpr int A_BYTES = 64 * 16 * 2, B_BYTES = 8 * 16 * 2, STAGE_BYTES = A_BYTES + B_BYTES;

__shared__ __align__(1024) u8 tile[STAGES][4096];
__shared__ __align__(8) u64 full[STAGES], empty[STAGES], bar;
__shared__ u32 data[32], flag;
#define BAR smem_addr(&bar)

__device__ static void init_pipeline(u32 releases)
{
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; stage++) {
            bar_init(smem_addr(&full[stage]), 1);
            bar_init(smem_addr(&empty[stage]), releases);
        }
    if (threadIdx.x == 0) bar_init(BAR, 1);
    if (threadIdx.x == 0) INIT_FENCE;
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

// ---- Stages of a pipeline: four warps multiply, the fifth fetches ----------------------------------------------------------

// Who reads the stage says so after the product has been waited for, or (EARLY) before.
template <bool EARLY>
__device__ static void multiply_stages()
{
    float d[4] = {};
    for (int k = 0; k < STEPS; k++) {
        const int stage = k % STAGES;
        bar_wait(smem_addr(&full[stage]), k / STAGES & 1);
        WGMMA_FENCE;
        WGMMA_AT(d, tile_desc(tile[stage]), tile_desc(tile[stage] + A_BYTES));
        WGMMA_COMMIT;
        if (EARLY && threadIdx.x == 0) bar_arrive(smem_addr(&empty[stage]));
        WGMMA_WAIT;
        if (!EARLY && threadIdx.x == 0) bar_arrive(smem_addr(&empty[stage]));
    }
}

__global__ void right_released_late(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x < 128) multiply_stages<false>();
    for (int k = 0; k < STEPS && threadIdx.x == 128; k++) {
        bar_wait(smem_addr(&empty[k % STAGES]), (k / STAGES & 1) ^ 1);
        bar_expect(smem_addr(&full[k % STAGES]), STAGE_BYTES);
        copy_in(tile[k % STAGES], out, STAGE_BYTES, smem_addr(&full[k % STAGES]));
    }
}

__global__ void released_early(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x < 128) multiply_stages<true>();
    for (int k = 0; k < STEPS && threadIdx.x == 128; k++) {
        bar_wait(smem_addr(&empty[k % STAGES]), (k / STAGES & 1) ^ 1);
        bar_expect(smem_addr(&full[k % STAGES]), STAGE_BYTES);
        copy_in(tile[k % STAGES], out, STAGE_BYTES, smem_addr(&full[k % STAGES])); // fault: released_early
    }
}

// A warp stores where four others multiply, when they have said at a barrier that they are done, or (EARLY) that they have issued.
template <bool EARLY>
__device__ static void store_behind_product()
{
    float d[4] = {};
    for (u32 i = threadIdx.x; i < STAGE_BYTES / 4; i += blockDim.x) ((u32 *)tile[0])[i] = 0;
    PROXY_FENCE;
    __syncthreads();
    if (threadIdx.x < 128) {
        WGMMA_FENCE;
        WGMMA_AT(d, tile_desc(tile[0]), tile_desc(tile[0] + A_BYTES));
        WGMMA_COMMIT;
        if (!EARLY) WGMMA_WAIT;
        asm volatile("bar.arrive 1, 160;" ::: "memory");
        WGMMA_WAIT;
    } else {
        asm volatile("bar.sync 1, 160;" ::: "memory");
        ((u32 *)tile[0])[threadIdx.x - 128] = 1; // fault: store_over_wgmma
    }
}

__global__ void right_store_after_wgmma(u32 *)
{
    store_behind_product<false>();
}

__global__ void store_over_wgmma(u32 *)
{
    store_behind_product<true>();
}

// Each block fetches half of the stage for both, and so needs both blocks' consumers to be done with it.
#define FETCH_HALF(STAGE)                                                               \
    copy_in_multicast(tile[STAGE] + blockIdx.x * STAGE_BYTES / 2, out, STAGE_BYTES / 2, \
                      smem_addr(&full[STAGE]), 3)

__global__ void __cluster_dims__(2, 1, 1) right_multicast(u32 *out)
{
    init_pipeline(2);
    float d[4] = {};
    for (int k = 0; k < STEPS && threadIdx.x < 128; k++) {
        const int stage = k % STAGES;
        bar_wait(smem_addr(&full[stage]), k / STAGES & 1);
        WGMMA_FENCE;
        WGMMA_AT(d, tile_desc(tile[stage]), tile_desc(tile[stage] + A_BYTES));
        WGMMA_COMMIT;
        WGMMA_WAIT;
        if (threadIdx.x < 2) bar_arrive(mapa(&empty[stage], threadIdx.x));
    }
    for (int k = 0; k < STEPS && threadIdx.x == 128; k++) {
        bar_wait(smem_addr(&empty[k % STAGES]), (k / STAGES & 1) ^ 1);
        bar_expect(smem_addr(&full[k % STAGES]), STAGE_BYTES);
        FETCH_HALF(k % STAGES);
    }
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) multicast_over_wgmma(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x < 128) multiply_stages<false>(); // tells its own block only
    for (int k = 0; k < STEPS && threadIdx.x == 128; k++) {
        bar_wait(smem_addr(&empty[k % STAGES]), (k / STAGES & 1) ^ 1);
        bar_expect(smem_addr(&full[k % STAGES]), STAGE_BYTES);
        FETCH_HALF(k % STAGES); // fault: multicast_over_wgmma
    }
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) multicast_over_loads(u32 *out)
{
    init_pipeline(1);
    for (int k = 0; k < STEPS && threadIdx.x < 32; k++) {
        bar_wait(smem_addr(&full[k % STAGES]), k / STAGES & 1);
        out[512 + 32 * blockIdx.x + threadIdx.x] += ((volatile u32 *)tile[k % STAGES])[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) bar_arrive(smem_addr(&empty[k % STAGES]));
    }
    for (int k = 0; k < STEPS && threadIdx.x == 128; k++) {
        bar_wait(smem_addr(&empty[k % STAGES]), (k / STAGES & 1) ^ 1);
        bar_expect(smem_addr(&full[k % STAGES]), STAGE_BYTES);
        FETCH_HALF(k % STAGES); // fault: multicast_over_loads
    }
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

// The first thread waits for the copy, but what it knows the others do not.
__global__ void waited_by_one(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0) {
        bar_expect(BAR, 128);
        copy_in(tile, out, 128, BAR);
    }
    __syncthreads();
    if (threadIdx.x == 0) bar_wait(BAR, 0);
    if (threadIdx.x >= 32 && threadIdx.x < 64)
        out[512 + threadIdx.x] = ((volatile u32 *)tile)[threadIdx.x - 32]; // fault: waited_by_one
}

// A flag that is neither released nor acquired orders nothing.
__global__ void flag_is_no_barrier(u32 *out)
{
    volatile u32 *ready = &flag;
    init_pipeline(1);
    *ready = 0;
    __syncthreads();
    if (threadIdx.x == 32) {
        tile[0][5] = 1;
        *ready = 1;
    }
    if (threadIdx.x) return;
    while (!*ready) {
    }
    PROXY_FENCE;
    bar_expect(BAR, 128);
    copy_in(tile, out, 128, BAR); // fault: flag_is_no_barrier
    bar_wait(BAR, 0);
}

// ---- What a bulk store reads -----------------------------------------------------------------------------------------------

__global__ void right_store(u32 *out)
{
    if (threadIdx.x >= 32) return;
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x == 0) WAIT_READ;
        __syncwarp();
        tile[0][threadIdx.x] = (u8)i;
        PROXY_FENCE;
        __syncwarp();
        if (threadIdx.x == 0) copy_out(out + i * 8, tile, 32);
    }
    if (threadIdx.x == 0) WAIT_READ;
}

// Every lane fences what it wrote, but nothing makes the first wait for the others.
__global__ void no_syncwarp(u32 *out)
{
    if (threadIdx.x >= 32) return;
    tile[0][threadIdx.x] = 1;
    PROXY_FENCE;
    if (threadIdx.x) return;
    copy_out(out, tile, 32); // fault: no_syncwarp
    WAIT_READ;
}

// The second warp writes and fences; that it has is seen, but a flag orders nothing.
__global__ void no_barrier(u32 *out)
{
    volatile u32 *ready = &flag;
    *ready = 0;
    __syncthreads();
    if (threadIdx.x == 32) {
        tile[0][0] = 1;
        PROXY_FENCE;
        *ready = 1;
    }
    if (threadIdx.x) return;
    while (!*ready) {
    }
    copy_out(out, tile, 32); // fault: no_barrier
    WAIT_READ;
}

// ---- What reaches another block -------------------------------------------------------------------------------------------

// Nobody waits for the arrival, and the relaxed barrier does not either. On an H200 it has mostly come by then; a longer kernel's
// launch failed (notes/14_warp_specialized_matmul.md).
__global__ void __cluster_dims__(2, 1, 1) arrival_on_its_way(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0) bar_arrive(mapa(&bar, 1 - blockIdx.x)); // fault: arrival_on_its_way
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) right_arrival_released(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0) bar_arrive(mapa(&bar, 1 - blockIdx.x));
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) right_arrival_awaited(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0) bar_arrive(mapa(&bar, 1 - blockIdx.x));
    if (threadIdx.x == 64) bar_wait(BAR, 0);
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) store_on_its_way(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0)
        asm volatile(
            "st.shared::cluster.u32 [%0], 1;" ::"r"(mapa(data, 1 - blockIdx.x)) // fault: store_on_its_way
            : "memory");
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
}

__global__ void __cluster_dims__(2, 1, 1) addition_on_its_way(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0)
        asm volatile("red.shared::cluster.add.u32 [%0], 1;" ::"r"(
                         mapa(data, 1 - blockIdx.x)) // fault: addition_on_its_way
                     : "memory");
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
}

// Copies for the other block: nobody there waits for them, and so no barrier helps.
__global__ void __cluster_dims__(2, 1, 1) multicast_on_its_way(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0 && blockIdx.x == 0) copy_in_multicast(tile, out, 128, BAR, 2);
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
} // fault: multicast_on_its_way

__global__ void __cluster_dims__(2, 1, 1) async_store_on_its_way(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0 && blockIdx.x == 0)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], 1, [%1];" ::"r"(
                         mapa(data, 1)),
                     "r"(mapa(&bar, 1))
                     : "memory");
    CLUSTER_ARRIVE;
    CLUSTER_WAIT;
} // fault: async_store_on_its_way

// The arrival that follows the store is waited for, and so the store has come.
__global__ void __cluster_dims__(2, 1, 1) right_store_then_arrival(u32 *out)
{
    init_pipeline(1);
    if (threadIdx.x == 0) {
        asm volatile("st.shared::cluster.u32 [%0], 1;" ::"r"(mapa(data, 1 - blockIdx.x)) : "memory");
        bar_arrive(mapa(&bar, 1 - blockIdx.x));
    }
    if (threadIdx.x == 64) bar_wait(BAR, 0);
    CLUSTER_ARRIVE_RELAXED;
    CLUSTER_WAIT;
}

#define KERNEL(NAME, BLOCKS) \
    {                        \
#NAME, NAME, BLOCKS  \
    }
static const struct {
    const char *name;
    void (*kernel)(u32 *);
    int blocks;
} kernels[] = {KERNEL(right_released_late, 1),
               KERNEL(released_early, 1),
               KERNEL(right_store_after_wgmma, 1),
               KERNEL(store_over_wgmma, 1),
               KERNEL(right_multicast, 2),
               KERNEL(multicast_over_wgmma, 2),
               KERNEL(multicast_over_loads, 2),
               KERNEL(waited_by_one, 1),
               KERNEL(flag_is_no_barrier, 1),
               KERNEL(right_store, 1),
               KERNEL(no_syncwarp, 1),
               KERNEL(no_barrier, 1),
               KERNEL(arrival_on_its_way, 2),
               KERNEL(right_arrival_released, 2),
               KERNEL(right_arrival_awaited, 2),
               KERNEL(store_on_its_way, 2),
               KERNEL(addition_on_its_way, 2),
               KERNEL(multicast_on_its_way, 2),
               KERNEL(async_store_on_its_way, 2),
               KERNEL(right_store_then_arrival, 2)};

int main(int argc, char **argv)
{
    u32 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, 4096));
    CUDA_CHECK(cudaMemset(device, 0, 4096));
    for (auto &k : kernels) {
        if (argc < 2 || strcmp(argv[1], k.name)) continue;
        k.kernel<<<k.blocks, 160>>>(device);
        return !launched(k.name);
    }
    printf("broken_order NAME\n");
    return 2;
}
