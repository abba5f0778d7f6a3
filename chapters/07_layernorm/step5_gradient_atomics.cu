// Chapter 7, step 5: the backward, with atomics.
//
// Question: what does a row's gradient need, and what do weight and bias need of all rows?
//
//      n = (x - mean) rstd    d = weight dout    dinp = rstd (d - mean of d - n mean of d n)
//      dweight += sum over rows of dout n        dbias += sum over rows of dout
//
// Grows from: step 1 (layernorm).
// Along a row two sums, which can be had in one pass; the second pass makes dinp. Down a column two others: every row adds
// its elements to dweight and dbias by atomicAdd, in whatever order.
//
//                columns →
//      rows  ↓   x dout | x dout | x dout      → two sums a row, then dinp
//                   ↓        ↓        ↓
//                dweight, dbias                  2 atomics an element
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-7 OP=layernorm_backward STEP=gradient_atomics
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr int NUM_WARPS = NUM_THREADS / 32; // rows of a block

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) gradient_atomics_kernel(const T *inp,      // (rows, C)
                                                                       const T *dout,     // (rows, C)
                                                                       const T *weight,   // (C)
                                                                       const float *mean, // (rows)
                                                                       const float *rstd, // (rows)
                                                                       T *dinp,           // (rows, C)
                                                                       float *dweight,    // (C)
                                                                       float *dbias,      // (C)
                                                                       int rows, int C)
{
    const int row = blockIdx.x * NUM_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (row >= rows) return; // a whole warp
    const T *x = inp + (size_t)row * C;
    const T *dy = dout + (size_t)row * C;
    const float row_mean = mean[row], row_rstd = rstd[row];

    float sum = 0.0f, dot = 0.0f; // of d, of d n
    // EXERCISE 7.2: this lane's shares of both sums of the row (about 6 lines)
    for (unsigned c = lane; c < C; c += 32) {
        const float n = (to_float(x[c]) - row_mean) * row_rstd;
        const float d = to_float(weight[c]) * to_float(dy[c]);
        sum += d;
        dot += d * n;
    }
    // STUB sum = to_float(weight[lane % C]), dot = sum * row_mean;
    // END
    const float d_mean = warp_sum(sum) / C;
    const float dn_mean = warp_sum(dot) / C;

    // EXERCISE 7.3: dinp of the row, and what it adds to dweight and dbias (about 8 lines)
    for (unsigned c = lane; c < C; c += 32) {
        const float n = (to_float(x[c]) - row_mean) * row_rstd;
        const float gradient = to_float(dy[c]);
        const float d = to_float(weight[c]) * gradient;
        from_float(&dinp[(size_t)row * C + c], (d - d_mean - n * dn_mean) * row_rstd);
        atomicAdd(&dweight[c], gradient * n);
        atomicAdd(&dbias[c], gradient);
    }
    // STUB if (lane < C) from_float(&dinp[(size_t)row * C + lane], d_mean + dn_mean * row_rstd);
    // END
}

template <typename T>
static cudaError_t launch(const void *inp, const void *dout, const void *weight, const float *mean,
                          const float *rstd, void *dinp, float *dweight, float *dbias, int rows, int C,
                          cudaStream_t stream)
{
    if (!inp || !dout || !weight || !mean || !rstd || !dinp || !dweight || !dbias || rows <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    gradient_atomics_kernel<<<(rows - 1) / NUM_WARPS + 1, NUM_THREADS, 0, stream>>>(
        (const T *)inp, (const T *)dout, (const T *)weight, mean, rstd, (T *)dinp, dweight, dbias, rows, C);
    return cudaGetLastError();
}

extern "C" cudaError_t gradient_atomics(enum dtype dtype, const void *inp, const void *dout,
                                        const void *weight, const float *mean, const float *rstd, void *dinp,
                                        float *dweight, float *dbias, int rows, int C, cudaStream_t stream)
{
    return dtype == BF16
               ? launch<__nv_bfloat16>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream)
               : launch<float>(inp, dout, weight, mean, rstd, dinp, dweight, dbias, rows, C, stream);
}
