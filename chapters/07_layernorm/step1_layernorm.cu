// Chapter 7, step 1: a warp a row, in three passes over it.
//
// Question: what must be known of a row before its first output?
//
//      mean = sum of x / C    rstd = 1 / sqrt(sum of (x - mean)^2 / C + EPSILON)    out = (x - mean) rstd weight + bias
//
// Grows from: nothing.
// All of it, twice: the variance needs the mean. (One pass over x and x^2 would do, but sum of x^2 / C - mean^2 cancels:
// with a mean of 100 and a variance of 1, fp32 is left with three digits.) So the row is read three times.
//
//      lane l: columns l, l + 32, …        mean and rstd are saved for the backward
//
// EPSILON keeps a row of equal elements, whose variance is 0, from dividing by 0.
// Registers: at most 40. Shared memory: none.
// Run: make chapter-7 OP=layernorm_forward STEP=layernorm
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32; // rows of a block
constexpr float EPSILON = 1e-5f;

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) layernorm_kernel(const T *inp,    // (rows, C)
                                                                const T *weight, // (C)
                                                                const T *bias,   // (C)
                                                                T *out,          // (rows, C)
                                                                float *mean,     // (rows)
                                                                float *rstd,     // (rows)
                                                                int rows, int C)
{
    const int row = blockIdx.x * NUM_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (row >= rows) return; // a whole warp
    const T *x = inp + (size_t)row * C;

    float sum = 0.0f;
    for (unsigned c = lane; c < C; c += 32) sum += to_float(x[c]);
    const float row_mean = warp_sum(sum) / C;

    float squares = 0.0f;
    for (unsigned c = lane; c < C; c += 32) {
        const float difference = to_float(x[c]) - row_mean;
        squares += difference * difference;
    }
    const float row_rstd = rsqrtf(warp_sum(squares) / C + EPSILON);

    if (lane == 0) {
        mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
    for (unsigned c = lane; c < C; c += 32)
        from_float(&out[(size_t)row * C + c],
                   (to_float(x[c]) - row_mean) * row_rstd * to_float(weight[c]) + to_float(bias[c]));
}

template <typename T>
static cudaError_t launch(const void *inp, const void *weight, const void *bias, void *out, float *mean,
                          float *rstd, int rows, int C, cudaStream_t stream)
{
    if (!inp || !weight || !bias || !out || !mean || !rstd || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    layernorm_kernel<<<(rows - 1) / NUM_WARPS + 1, NUM_THREADS, 0, stream>>>(
        (const T *)inp, (const T *)weight, (const T *)bias, (T *)out, mean, rstd, rows, C);
    return cudaGetLastError();
}

extern "C" cudaError_t layernorm(enum dtype dtype, const void *inp, const void *weight, const void *bias,
                                 void *out, float *mean, float *rstd, int rows, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, weight, bias, out, mean, rstd, rows, C, stream)
                         : launch<float>(inp, weight, bias, out, mean, rstd, rows, C, stream);
}
