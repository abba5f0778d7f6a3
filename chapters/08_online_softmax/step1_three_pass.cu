// Chapter 8, step 1: the softmax of every row, in three passes over it.
//
// Question: what does the formula cost as it stands?
//
//      y[j] = exp(x[j] - m) / s        m = max of x[k]        s = sum of exp(x[k] - m)
//
// Grows from: nothing.
// m keeps exp from overflowing: without it a logit of 89 is already infinite in fp32. But s needs m, and y
// needs s, so that the row is read three times: for m, for s, for y.
//
//      x  (rows, cols)   -> block 0: a row      thread t: columns t, t + 256, t + 512, ...
//                        -> block 1: a row
//
// A row of nothing but -infinity has no softmax (0 / 0). Here it becomes zeros, which is what attention wants
// of a query that may look at nothing.
//
// Registers: at most 32. Shared memory: 64 bytes.
// Run: make chapter-8 OP=forward STEP=three_pass
#include "../../common/device/ptx.cuh"
#include "launchers.h"
#include "row.cuh"

#include <cuda_runtime.h>
#include <math.h>

constexpr int NUM_THREADS = 256; // one block a row
constexpr int NUM_WARPS = NUM_THREADS / 32;
constexpr float LOG2E = 1.44269504f; // exp(x) = 2^(x * LOG2E)

struct Max {
    static __device__ float of(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
    static __device__ float of(float a, float b) { return a + b; }
};

// `value` of every thread of the block, combined; every thread gets it. Each Op has a warp_value of its own, so that
// sums may be written while somebody still reads maxima: one barrier is enough.
template <typename Op>
static __device__ float block_reduce(float value)
{
    __shared__ float warp_value[NUM_WARPS];
    for (int offset = 16; offset > 0; offset /= 2)
        value = Op::of(value, __shfl_xor_sync(0xffffffff, value, offset));
    if (threadIdx.x % 32 == 0) warp_value[threadIdx.x / 32] = value;
    __syncthreads(); // Every warp's value is there.
    value = warp_value[0];
    for (int w = 1; w < NUM_WARPS; w++) value = Op::of(value, warp_value[w]);
    return value;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) three_pass_kernel(const T *x, // (rows, cols)
                                                                 T *y,       // (rows, cols)
                                                                 int cols)
{
    const T *x_row = x + (size_t)blockIdx.x * cols;
    T *y_row = y + (size_t)blockIdx.x * cols;

    float max = -INFINITY;
    for (int col = threadIdx.x; col < cols; col += NUM_THREADS) max = fmaxf(max, to_float(x_row[col]));
    max = block_reduce<Max>(max);
    if (max == -INFINITY) max = 0.0f; // -infinity - -infinity would be NaN

    float sum = 0.0f;
    for (int col = threadIdx.x; col < cols; col += NUM_THREADS)
        sum += ex2_approx_ftz((to_float(x_row[col]) - max) * LOG2E);
    sum = block_reduce<Sum>(sum);

    const float norm = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int col = threadIdx.x; col < cols; col += NUM_THREADS)
        from_float(&y_row[col], ex2_approx_ftz((to_float(x_row[col]) - max) * LOG2E) * norm);
}

template <typename T>
static cudaError_t launch(const void *x, void *y, int rows, int cols, cudaStream_t stream)
{
    if (!x || !y || rows <= 0 || cols <= 0) return cudaErrorInvalidValue;
    three_pass_kernel<<<rows, NUM_THREADS, 0, stream>>>((const T *)x, (T *)y, cols);
    return cudaGetLastError();
}

extern "C" cudaError_t three_pass(enum dtype dtype, const void *x, void *y, int rows, int cols,
                                  cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(x, y, rows, cols, stream)
                         : launch<float>(x, y, rows, cols, stream);
}
