// Chapter 6, step 10: the backward of the encoder, with atomics.
//
// Question: a token that comes five times gets five gradients. Who adds them up?
//
//      dwte[inp[b][t]] += dout[b][t]        dwpe[t] += dout[b][t]
//
// Grows from: step 8 (encoder).
// Here, everyone: a thread adds its element to both tables, and atomicAdd sees to it that nobody's addition is lost. It is
// the L2 that adds, so the thread need not wait. But in which order, no one knows; fp32 additions in another order
// round otherwise, and two runs of the same training differ.
//
// The tables are fp32 in bf16 runs, too: they are sums of many rows, and a bf16 sum stops growing at 256 times an addend.
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=encoder_backward STEP=encoder_atomics
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) encoder_atomics_kernel(const int *inp, // (rows)
                                                                      const T *dout,  // (rows, C)
                                                                      float *dwte,    // (V, C)
                                                                      float *dwpe,    // (positions, C)
                                                                      int rows, int positions, int C)
{
    const size_t i = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (i >= (size_t)rows * C) return;
    const size_t row = i / C;
    const int c = (int)(i % C);
    const size_t token = inp[row];
    const size_t position = row % positions;
    const float gradient = to_float(dout[i]);
    atomicAdd(&dwte[token * C + c], gradient);
    atomicAdd(&dwpe[position * C + c], gradient);
}

template <typename T>
static cudaError_t launch(const int *inp, const void *dout, float *dwte, float *dwpe, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !dout || !dwte || !dwpe || batch <= 0 || positions <= 0 || C <= 0)
        return cudaErrorInvalidValue;
    const int rows = batch * positions;
    const size_t grid = ((size_t)rows * C - 1) / NUM_THREADS + 1;
    if (grid > INT32_MAX) return cudaErrorInvalidValue;
    encoder_atomics_kernel<<<grid, NUM_THREADS, 0, stream>>>(inp, (const T *)dout, dwte, dwpe, rows,
                                                             positions, C);
    return cudaGetLastError();
}

extern "C" cudaError_t encoder_atomics(enum dtype dtype, const int *inp, const void *dout, float *dwte,
                                       float *dwpe, int B, int T, int C, int, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dwte, dwpe, B, T, C, stream)
                         : launch<float>(inp, dout, dwte, dwpe, B, T, C, stream);
}
