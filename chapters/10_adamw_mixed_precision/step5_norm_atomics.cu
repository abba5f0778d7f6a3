// Chapter 10, step 5: the norm of the gradient, and the factor that clips it, without a word to the host.
//
// Question: one batch of strange text, and the gradient is a hundred times as long as ever. Clipping keeps its direction
// and cuts its length to max_norm. It needs the sum of all squares before the first parameter moves. Who adds, who waits?
//
// Grows from: chapter 6, step 3 (residual_stream).
// Blocks that stay, so that each has one sum at the end, and one atomic for it. The stream is what waits: a second
// kernel, of one thread, begins when all blocks of the first have ended, and writes the factor to device memory, where
// the update will read it. Were it read by the host, the GPU would idle from then until the next launch arrives.
//
//      block 0:  packs 0 to 2047, then those MAX_BLOCKS * 2048 further on, …     sum -> atomicAdd
//
// Registers: at most 42. Shared memory: 64 bytes.
// Run: make chapter-10 OP=grad_norm STEP=norm_atomics
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr int PACKS = 4;            // a thread has in flight
constexpr int BLOCKS_PER_SM = 3;    // 1,536 threads, 96 KB in flight
constexpr int MAX_BLOCKS = 132 * 3; // what an H200 holds at a time; elsewhere the same, for the same bits

static __device__ float
    sum_of_squares; // of the launch at work: launches of this step come one after the other

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

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM) norm_atomics_kernel(const T *grad, // (n)
                                                                                  size_t n)
{
    const float sum = block_sum(thread_squares(grad, n));
    if (threadIdx.x == 0) atomicAdd(&sum_of_squares, sum);
}

// One thread: the norm, the factor, and a sum of 0 for the next launch.
__global__ void norm_factor_kernel(float *norm,   // (1)
                                   float *factor, // (1)
                                   float max_norm)
{
    *norm = sqrtf(sum_of_squares);
    const float wanted = max_norm / (*norm + 1e-6f);
    *factor = wanted >= 1.0f ? 1.0f : wanted; // and NaN stays NaN
    sum_of_squares = 0.0f;
}

template <typename T>
static cudaError_t launch(const void *grad, float *norm, float *factor, size_t n, float max_norm,
                          cudaStream_t stream)
{
    if (!grad || !norm || !factor || n == 0 || !(max_norm > 0)) return cudaErrorInvalidValue;
    if ((uintptr_t)grad % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = min((n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1, (size_t)MAX_BLOCKS);
    norm_atomics_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)grad, n);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    norm_factor_kernel<<<1, 1, 0, stream>>>(norm, factor, max_norm);
    return cudaGetLastError();
}

extern "C" cudaError_t norm_atomics(enum dtype dtype, const void *grad, float *norm, float *factor, size_t n,
                                    float max_norm, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(grad, norm, factor, n, max_norm, stream)
                         : launch<float>(grad, norm, factor, n, max_norm, stream);
}
