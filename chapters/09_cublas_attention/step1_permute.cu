// Chapter 9, step 1: heads beside heads become matrices, one element a thread.
//
// Question: a layer leaves queries, keys and values of all heads side by side, row after row. cuBLAS multiplies matrices
// that lie at a fixed distance from each other. Who moves the numbers there?
//
// Grows from: chapter 6, step 8 (encoder).
// A permutation: no arithmetic but that of the indices, which is four divisions an element.
//
//      inp (B, T, S, H, D)    b t s h d  ->  out (S, B, H, T, D)    s b h t d
//
//      row t:   Q0 Q1 … K0 K1 … V0 V1 …           Q0: rows 0, 1, 2, …    Q1: rows 0, 1, 2, …    …
//
// Threads are numbered as out is: neighbouring lanes write neighbours, and read neighbours as long as a head lasts.
// Registers: at most 40. Shared memory: none.
// Run: make chapter-9 OP=permute STEP=permute
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) permute_kernel(const T *inp, // (batch, positions, S, H, D)
                                                              T *out,       // (S, batch, H, positions, D)
                                                              int batch, int positions, int S, int H, int D)
{
    const size_t i = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (i >= (size_t)S * batch * H * positions * D) return;
    const size_t d = i % D, t = i / D % positions, head = i / D / positions; // head: of all S * batch * H
    const size_t h = head % H, b = head / H % batch, s = head / H / batch;
    out[i] = inp[(((b * positions + t) * S + s) * H + h) * D + d];
}

template <typename T>
static cudaError_t launch(const void *inp, void *out, int batch, int positions, int S, int H, int D,
                          cudaStream_t stream)
{
    if (!inp || !out || batch <= 0 || positions <= 0 || S <= 0 || H <= 0 || D <= 0)
        return cudaErrorInvalidValue;
    const size_t grid = ((size_t)S * batch * H * positions * D - 1) / NUM_THREADS + 1;
    permute_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)inp, (T *)out, batch, positions, S, H, D);
    return cudaGetLastError();
}

extern "C" cudaError_t permute(enum dtype dtype, const void *inp, void *out, int B, int T, int S, int H,
                               int D, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, out, B, T, S, H, D, stream)
                         : launch<float>(inp, out, B, T, S, H, D, stream);
}
