// Barriers and fences: bar and barrier with names, counts, arrive and reductions, barriers of a warp, warps that have left,
// and messages between blocks that only fences and release/acquire make legal.
#include "../check.h"

// ---- A chain of named barriers ------------------------------------------------------------------------------------

// Warp w hands a token to warp w + 1 by arriving at barrier w + 1, which that warp alone waits at: 64 threads each.
enum { WARPS = 8 };
__global__ void chain_kernel(u32 *d)
{
    __shared__ volatile u32 token[WARPS + 1][32];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0)
        token[0][lane] = lane + 1;
    else
        asm volatile("barrier.sync %0, 64;" ::"r"(warp) : "memory");
    __syncwarp();
    token[warp + 1][lane] = token[warp][31 - lane] * 3 + warp;
    if (warp + 1 < WARPS) asm volatile("bar.arrive %0, 64;" ::"r"(warp + 1) : "memory");
    d[threadIdx.x] = token[warp + 1][lane];
}
static void check_chain(void)
{
    u32 *d, got[WARPS * 32], token[32];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    chain_kernel<<<1, WARPS * 32>>>(d);
    check_begin("bar.arrive and barrier.sync with a count");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 i = 0; i < 32; i++) token[i] = i + 1;
    for (u32 w = 0; w < WARPS; w++) {
        u32 next[32];
        for (u32 i = 0; i < 32; i++) next[i] = token[31 - i] * 3 + w;
        memcpy(token, next, sizeof token);
        for (u32 i = 0; i < 32; i++) check(w * 32 + i, got[w * 32 + i], token[i]);
    }
}

// ---- A ring of full and empty barriers: one producer warp, three consumers ----------------------------------------

enum { STAGES = 2, STEPS = 37, CONSUMERS = 3, RING_THREADS = (1 + CONSUMERS) * 32 };
enum { FULL = 1, EMPTY = FULL + STAGES };
__global__ void ring_kernel(u32 *d)
{
    __shared__ volatile u32 ring[STAGES][32];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        for (u32 step = 0; step < STEPS; step++) {
            const u32 stage = step % STAGES;
            if (step >= STAGES)
                asm volatile("bar.sync %0, %1;" ::"r"(EMPTY + stage), "r"((u32)RING_THREADS) : "memory");
            ring[stage][lane] = step * 100 + lane;
            asm volatile("bar.arrive %0, %1;" ::"r"(FULL + stage), "r"((u32)RING_THREADS) : "memory");
        }
        return;
    }
    u32 sum = 0;
    for (u32 step = 0; step < STEPS; step++) {
        const u32 stage = step % STAGES;
        asm volatile("bar.sync %0, %1;" ::"r"(FULL + stage), "r"((u32)RING_THREADS) : "memory");
        sum = sum * 7 + ring[stage][(lane + warp) % 32];
        if (step + STAGES < STEPS)
            asm volatile("bar.arrive %0, %1;" ::"r"(EMPTY + stage), "r"((u32)RING_THREADS) : "memory");
    }
    d[threadIdx.x - 32] = sum;
}
static void check_ring(void)
{
    u32 *d, got[CONSUMERS * 32];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    ring_kernel<<<1, RING_THREADS>>>(d);
    check_begin("full and empty named barriers");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < CONSUMERS * 32; t++) {
        u32 sum = 0;
        for (u32 step = 0; step < STEPS; step++) sum = sum * 7 + step * 100 + (t % 32 + t / 32 + 1) % 32;
        check(t, got[t], sum);
    }
}

// ---- Reductions ---------------------------------------------------------------------------------------------------

__global__ void reduce_kernel(u32 *d, const u32 *a)
{
    const u32 x = a[blockIdx.x * blockDim.x + threadIdx.x];
    u32 r[8];
    r[0] = (u32)__syncthreads_count(x & 1);
    r[1] = __syncthreads_and(x > 2) != 0;
    r[2] = __syncthreads_or(x > 60) != 0;
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 30; barrier.red.popc.u32 %0, 3, p; }"
                 : "=r"(r[3])
                 : "r"(x)
                 : "memory");
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 30; bar.red.popc.u32 %0, 4, !p; }"
                 : "=r"(r[4])
                 : "r"(x)
                 : "memory");
    asm volatile("{ .reg .pred p, q; setp.lt.u32 p, %1, 63; bar.red.and.pred q, 5, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(r[5])
                 : "r"(x)
                 : "memory");
    asm volatile(
        "{ .reg .pred p, q; setp.lt.u32 p, %1, 2; barrier.red.or.pred q, 6, p; selp.u32 %0, 1, 0, q; }"
        : "=r"(r[6])
        : "r"(x)
        : "memory");
    r[7] = 0;
    if (threadIdx.x < 64) // two warps among themselves
        asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 31; bar.red.popc.u32 %0, 7, 64, p; }"
                     : "=r"(r[7])
                     : "r"(x)
                     : "memory");
    for (int i = 0; i < 8; i++) d[(blockIdx.x * blockDim.x + threadIdx.x) * 8 + i] = r[i];
}
static void check_reductions(void)
{
    enum { BLOCKS = 64, THREADS = 128 };
    static u32 a[BLOCKS][THREADS], got[BLOCKS][THREADS][8];
    for (int b = 0; b < BLOCKS; b++)
        for (int t = 0; t < THREADS; t++) {
            const u32 r = (u32)random_u64();
            a[b][t] = b % 4 == 0 ? r % 64 : b % 4 == 1 ? 3 + r % 50 : r % 1000 ? 10 + r % 20 : 63;
        }
    u32 *a_gmem, *d;
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
    reduce_kernel<<<BLOCKS, THREADS>>>(d, a_gmem);
    check_begin("bar.red");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (int b = 0; b < BLOCKS; b++) {
        u32 want[8] = {0, 1, 0, 0, 0, 1, 0, 0};
        for (int t = 0; t < THREADS; t++) {
            const u32 x = a[b][t];
            want[0] += x & 1, want[1] &= x > 2, want[2] |= x > 60, want[3] += x < 30, want[4] += x >= 30;
            want[5] &= x < 63, want[6] |= x < 2;
            if (t < 64) want[7] += x > 31;
        }
        for (u32 t = 0; t < THREADS; t++)
            for (u32 i = 0; i < 8; i++)
                check((u64)b << 32 | t << 8 | i, got[b][t][i], i == 7 && t >= 64 ? 0 : want[i]);
    }
}

// A reducing barrier in a function that the lanes of a warp call from two places: legal without .aligned.
__device__ __noinline__ static u32 count_all(bool what)
{
    u32 count;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, 9, p; }"
                 : "=r"(count)
                 : "r"((u32)what)
                 : "memory");
    return count;
}
__global__ void two_calls_kernel(u32 *d)
{
    const u32 t = threadIdx.x;
    if (t % 3)
        d[t] = count_all(t % 5 == 1) + 1000;
    else
        d[t] = count_all(t % 7 == 3) + 2000;
}
static void check_two_calls(void)
{
    enum { THREADS = 96 };
    u32 *d, got[THREADS], count = 0;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    two_calls_kernel<<<1, THREADS>>>(d);
    check_begin("barrier.red in a function, from two calls");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < THREADS; t++) count += t % 3 ? t % 5 == 1 : t % 7 == 3;
    for (u32 t = 0; t < THREADS; t++) check(t, got[t], count + (t % 3 ? 1000 : 2000));
}

// ---- Warps that leave, and blocks of odd sizes --------------------------------------------------------------------

// Warp w returns after w rounds; the barrier goes on with those that are left.
__global__ void leaving_kernel(u32 *d)
{
    __shared__ u32 sum[WARPS];
    const u32 warp = threadIdx.x / 32;
    if (threadIdx.x < WARPS) sum[threadIdx.x] = 0;
    __syncthreads();
    for (u32 round = 0; round < WARPS; round++) {
        if (warp < round) return;
        atomicAdd(&sum[round], threadIdx.x);
        __syncthreads();
        d[round * blockDim.x + threadIdx.x] = sum[round];
    }
}
// Threads beyond the data return at once, in the midst of a warp, as the bounds check at the top of many kernels has it.
__global__ void bounded_kernel(u32 *d, u32 count)
{
    __shared__ u32 sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (threadIdx.x >= count) return;
    atomicAdd(&sum, threadIdx.x + 1);
    __syncthreads();
    d[threadIdx.x] = sum;
}
// Half-empty last warp: a tree sum over a block of any size.
__global__ void tree_kernel(u32 *d, const u32 *a)
{
    extern __shared__ u32 part[];
    const u32 t = threadIdx.x;
    part[t] = a[t];
    for (u32 count = blockDim.x; count > 1;) {
        __syncthreads();
        const u32 half = (count + 1) / 2;
        if (t < count / 2) part[t] += part[t + half];
        count = half;
    }
    __syncthreads();
    d[t] = part[0];
}
static void check_shapes(void)
{
    static u32 got[WARPS][WARPS * 32], a[1024], sums[1024];
    u32 *d, *a_gmem;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMemset(d, 0, sizeof got));
    leaving_kernel<<<1, WARPS * 32>>>(d);
    check_begin("__syncthreads after warps have left");
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 round = 0; round < WARPS; round++) {
            u32 sum = 0;
            for (u32 t = round * 32; t < WARPS * 32; t++) sum += t;
            for (u32 t = 0; t < WARPS * 32; t++)
                check(round << 16 | t, got[round][t], t / 32 < round ? 0 : sum);
        }
    }
    check_begin("__syncthreads after lanes have left");
    for (u32 count : {1u, 20u, 32u, 77u, 255u}) {
        bounded_kernel<<<1, 256>>>(d, count);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(sums, d, count * 4, cudaMemcpyDeviceToHost));
        for (u32 i = 0; i < count; i++) check((u64)count << 32 | i, sums[i], count * (count + 1) / 2);
    }
    check_begin("__syncthreads in blocks of odd sizes");
    const u32 sizes[] = {1, 2, 31, 33, 63, 100, 257, 1000, 1024};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        u32 sum = 0;
        for (u32 i = 0; i < sizes[k]; i++) sum += a[i] = (u32)random_u64();
        CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
        tree_kernel<<<1, sizes[k], sizes[k] * 4>>>(d, a_gmem);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(sums, d, sizes[k] * 4, cudaMemcpyDeviceToHost));
        for (u32 i = 0; i < sizes[k]; i++) check((u64)sizes[k] << 32 | i, sums[i], sum);
    }
}

// ---- Inside a warp ------------------------------------------------------------------------------------------------

// The halves of a warp go different ways and meet in __syncwarp again and again: one writes what the other reads. No lane
// can go on unless the other side of the branch runs while it waits.
__global__ void syncwarp_kernel(u32 *d)
{
    __shared__ volatile u32 box[32];
    const u32 lane = threadIdx.x;
    u32 sum = 0;
    if (lane < 16) {
        for (u32 step = 0; step < 20; step++) {
            box[lane] = step * 50 + lane;
            __syncwarp();
            __syncwarp();
            sum += box[lane + 16];
        }
    } else {
        for (u32 step = 0; step < 20; step++) {
            __syncwarp();
            sum = sum * 3 + box[lane - 16];
            box[lane] = sum;
            __syncwarp();
        }
    }
    d[lane] = sum;
}
// Pairs of lanes among themselves, with masks of two.
__global__ void pairs_kernel(u32 *d)
{
    __shared__ volatile u32 box[32];
    const u32 lane = threadIdx.x, mask = 3u << (lane & ~1u);
    for (u32 step = 0; step <= lane / 2; step++) { // each pair as often as it likes
        box[lane] = lane * 10 + step;
        __syncwarp(mask);
        d[lane] = box[lane ^ 1];
        __syncwarp(mask);
    }
}
// A lane spins on a flag that another lane of the warp sets later: independent thread scheduling.
__global__ void spin_kernel(u32 *d)
{
    __shared__ volatile u32 flag;
    flag = 0;
    __syncwarp();
    if (threadIdx.x == 5) {
        while (!flag) {
        }
        d[5] = flag;
    } else if (threadIdx.x == 9) {
        for (int i = 0; i < 10; i++) __nanosleep(100);
        flag = 77;
    }
}
static void check_warps(void)
{
    u32 *d, got[32];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    check_begin("__syncwarp across a branch");
    syncwarp_kernel<<<1, 32>>>(d);
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 lane = 0; lane < 16; lane++) {
            u32 low = 0, high = 0;
            for (u32 step = 0; step < 20; step++) high = high * 3 + step * 50 + lane, low += high;
            check(lane, got[lane], low);
            check(lane + 16, got[lane + 16], high);
        }
    }
    check_begin("__syncwarp with a mask of two");
    pairs_kernel<<<1, 32>>>(d);
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 lane = 0; lane < 32; lane++) check(lane, got[lane], (lane ^ 1) * 10 + lane / 2);
    }
    check_begin("a lane that waits for another");
    spin_kernel<<<1, 32>>>(d);
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        check(5, got[5], 77);
    }
}

// ---- Between blocks -----------------------------------------------------------------------------------------------

// Block b waits for block b - 1, which ran before it: by fence and flag, or by st.release and ld.acquire.
__global__ void relay_kernel(u32 *data, u32 *flags)
{
    const u32 b = blockIdx.x, t = threadIdx.x;
    __shared__ u32 ready;
    if (b) {
        if (t == 0) {
            u32 seen;
            do {
                if (b % 2)
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                                 : "=r"(seen)
                                 : "l"(flags + b - 1)
                                 : "memory");
                else {
                    seen = *(volatile u32 *)(flags + b - 1);
                    asm volatile("fence.acq_rel.gpu;" ::: "memory");
                }
            } while (!seen);
            ready = seen;
        }
        __syncthreads();
        data[b * 64 + t] = data[(b - 1) * 64 + (t + 1) % 64] * 3 + ready;
    } else {
        data[t] = t;
    }
    asm volatile("membar.gl;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        if (b % 3)
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + b), "r"(b + 1) : "memory");
        else {
            asm volatile("fence.sc.gpu;" ::: "memory");
            *(volatile u32 *)(flags + b) = b + 1;
        }
    }
    asm volatile("membar.cta; membar.sys; fence.acq_rel.cta; fence.sc.sys;" ::: "memory");
}
// The last block to finish sums up what all have written (the sample threadFenceReduction).
__global__ void last_block_kernel(u32 *sums, u32 *counter, u32 *total)
{
    __shared__ u32 ticket;
    if (threadIdx.x == 0) {
        *(volatile u32 *)&sums[blockIdx.x] = blockIdx.x * blockIdx.x;
        __threadfence();
        ticket = atomicInc(counter, gridDim.x - 1);
    }
    __syncthreads();
    if (ticket != gridDim.x - 1) return;
    __threadfence();
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += *(volatile u32 *)&sums[i];
    atomicAdd(total, sum);
}
static void check_blocks(void)
{
    enum { BLOCKS = 40 };
    static u32 got[BLOCKS][64];
    u32 *d, *flags, total, previous[64];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMalloc((void **)&flags, 4096));
    CUDA_CHECK(cudaMemset(flags, 0, 4096));
    check_begin("messages from block to block");
    relay_kernel<<<BLOCKS, 64>>>(d, flags);
    if (launched(check_name)) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 b = 0; b < BLOCKS; b++) {
            u32 want[64];
            for (u32 t = 0; t < 64; t++) {
                want[t] = b ? previous[(t + 1) % 64] * 3 + b : t;
                check(b << 8 | t, got[b][t], want[t]);
            }
            memcpy(previous, want, sizeof want);
        }
    }
    check_begin("the last block sums up");
    CUDA_CHECK(cudaMemset(flags, 0, 4096));
    for (u32 round = 1; round <= 2; round++) {
        last_block_kernel<<<300, 64>>>(d, flags, flags + 1);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(&total, flags + 1, 4, cudaMemcpyDeviceToHost));
        u32 want = 0;
        for (u32 i = 0; i < 300; i++) want += i * i;
        check(round, total, round * want);
    }
}

int main(void)
{
    check_chain();
    check_ring();
    check_reductions();
    check_two_calls();
    check_shapes();
    check_warps();
    check_blocks();
    return check_end("barrier");
}
