// Chapter 6, step 8: the encoder, one element a thread.
//
// Question: what does a transformer begin with?
//
//      out[b][t] = wte[inp[b][t]] + wpe[t]        inp: the token at each position; every row has C elements
//
// Grows from: step 1 (residual).
// With a residual whose first array is not read in order: a table has a row for each token, and the text says which. A
// thread has to find out where it is, by two divisions.
//
//      i = (b T + t) C + c:    token = inp[i / C]    t = i / C % T    c = i % C
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=encoder_forward STEP=encoder
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) encoder_kernel(const int *inp, // (rows)
                                                              const T *wte,   // (V, C)
                                                              const T *wpe,   // (positions, C)
                                                              T *out,         // (rows, C)
                                                              int rows, int positions, int C)
{
    const size_t i = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (i >= (size_t)rows * C) return;
    const size_t row = i / C;
    const int c = (int)(i % C);
    const size_t token = inp[row];
    const size_t position = row % positions;
    from_float(&out[i], to_float(wte[token * C + c]) + to_float(wpe[position * C + c]));
}

template <typename T>
static cudaError_t launch(const int *inp, const void *wte, const void *wpe, void *out, int batch,
                          int positions, int C, cudaStream_t stream)
{
    if (!inp || !wte || !wpe || !out || batch <= 0 || positions <= 0 || C <= 0) return cudaErrorInvalidValue;
    const int rows = batch * positions;
    const size_t grid = ((size_t)rows * C - 1) / NUM_THREADS + 1;
    if (grid > INT32_MAX) return cudaErrorInvalidValue;
    encoder_kernel<<<grid, NUM_THREADS, 0, stream>>>(inp, (const T *)wte, (const T *)wpe, (T *)out, rows,
                                                     positions, C);
    return cudaGetLastError();
}

extern "C" cudaError_t encoder(enum dtype dtype, const int *inp, const void *wte, const void *wpe, void *out,
                               int B, int T, int C, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, wte, wpe, out, B, T, C, stream)
                         : launch<float>(inp, wte, wpe, out, B, T, C, stream);
}
