// Chapter 10, step 7: one kernel; the block that ends last does what is left.
//
// Question: the second kernel of step 6 adds 396 numbers. It begins when the last block of the first has ended: a launch,
// and on an H200 some microseconds in which 131 SMs do nothing. Must it be a kernel?
//
// Grows from: step 6 (norm_partials).
// A counter in device memory tells a block how many have ended before it, and so one of them that it is the last. The
// fence between its partial sum and its count, and the one behind the count, make whoever has counted all blocks see all
// their sums.
//
//      block:   partials[b] = sum | fence | count += 1 -> was it the last?  no: ends
//                                                                           yes: fence | adds all partials, in their order
//
// Which block is the last is chance, what it adds is not: the bits are those of step 6.
// Registers: at most 42. Shared memory: 65 bytes.
// Run: make chapter-10 OP=grad_norm STEP=norm_last_block
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PACKS = 4;            // a thread has in flight
constexpr int BLOCKS_PER_SM = 3;    // 1,536 threads, 96 KB in flight
constexpr int MAX_BLOCKS = 132 * 3; // what an H200 holds at a time; elsewhere the same, for the same bits

static_assert(MAX_BLOCKS <= NUM_THREADS, "a thread has one partial sum");

// Of the launch at work: launches of this step come one after the other.
static __device__ float partials[MAX_BLOCKS];
static __device__ unsigned blocks_done;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// The sum over the block's threads, in thread 0.
static __device__ float block_sum(float value)
{
    __shared__ float warp_sums[NUM_WARPS];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's sum is there.
    return threadIdx.x < 32 ? warp_sum(threadIdx.x < NUM_WARPS ? warp_sums[threadIdx.x] : 0.0f) : 0.0f;
}

// The squares that fall to this thread.
template <typename T>
static __device__ float thread_squares(const T *grad, size_t n)
{
    const size_t packs = n / PACK<T>;
    float sum = 0.0f;
    for (size_t first = (size_t)blockIdx.x * (NUM_THREADS * PACKS) + threadIdx.x; first < packs;
         first += (size_t)gridDim.x * (NUM_THREADS * PACKS)) {
        uint4 frag[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const size_t p = first + i * NUM_THREADS;
            frag[i] = p < packs ? ((const uint4 *)grad)[p] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            float values[PACK<T>];
            unpack(values, frag[i], T());
#pragma unroll
            for (int k = 0; k < PACK<T>; k++) sum += values[k] * values[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < n % PACK<T>) {
        const float value = to_float(grad[packs * PACK<T> + threadIdx.x]);
        sum += value * value;
    }
    return sum;
}

// Whether this block is the last that comes here; then its threads see what the others' thread 0 wrote before.
static __device__ bool is_last_block()
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence(); // What was written is seen before the count is.
        last = atomicAdd(&blocks_done, 1) == gridDim.x - 1;
        __threadfence(); // What is read from here on is no older than the count.
    }
    __syncthreads(); // last is there, and the warps' sums have been read.
    return last;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM) norm_last_block_kernel(const T *grad, // (n)
                                                                                     float *norm,   // (1)
                                                                                     float *factor, // (1)
                                                                                     size_t n, float max_norm)
{
    float sum = block_sum(thread_squares(grad, n));
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
    if (!is_last_block()) return;
    sum = block_sum(threadIdx.x < gridDim.x ? __ldcg(&partials[threadIdx.x]) : 0.0f);
    if (threadIdx.x != 0) return;
    *norm = sqrtf(sum);
    const float wanted = max_norm / (*norm + 1e-6f);
    *factor = wanted >= 1.0f ? 1.0f : wanted; // and NaN stays NaN
    blocks_done = 0;                          // for the next launch
}

template <typename T>
static cudaError_t launch(const void *grad, float *norm, float *factor, size_t n, float max_norm,
                          cudaStream_t stream)
{
    if (!grad || !norm || !factor || n == 0 || !(max_norm > 0)) return cudaErrorInvalidValue;
    if ((uintptr_t)grad % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = min((n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1, (size_t)MAX_BLOCKS);
    norm_last_block_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, norm, factor, n, max_norm);
    return cudaGetLastError();
}

extern "C" cudaError_t norm_last_block(enum dtype dtype, const void *grad, float *norm, float *factor,
                                       size_t n, float max_norm, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, norm, factor, n, max_norm, stream)
                         : launch<float>(grad, norm, factor, n, max_norm, stream);
}
