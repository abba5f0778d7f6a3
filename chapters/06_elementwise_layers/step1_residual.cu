// Chapter 6, step 1: out = inp1 + inp2, one element a thread.
//
// Question: what does a kernel cost that computes next to nothing?
//
// Grows from: nothing.
// What it moves: 12 bytes for one addition in fp32, 6 in bf16. An H200 adds some 33,000 billion times a second and moves
// 4,800 billion bytes, so the addition is free and the layer is a copy. All that follows is about moving bytes.
//
//      thread i:   inp1[i] -> |
//                             + -> out[i]        neighbouring lanes, neighbouring elements
//                  inp2[i] -> |
//
// Sums are computed in fp32 and rounded once, whatever the type in memory.
// Registers: at most 16. Shared memory: none.
// Run: make chapter-6 OP=residual_forward STEP=residual
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) residual_kernel(const T *inp1, // (n)
                                                               const T *inp2, // (n)
                                                               T *out,        // (n)
                                                               size_t n)
{
    const size_t i = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (i >= n) return;
    from_float(&out[i], to_float(inp1[i]) + to_float(inp2[i]));
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, void *out, size_t n, cudaStream_t stream)
{
    if (!inp1 || !inp2 || !out || n == 0) return cudaErrorInvalidValue;
    const size_t grid = (n - 1) / NUM_THREADS + 1;
    residual_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)inp1, (const T *)inp2, (T *)out, n);
    return cudaGetLastError();
}

extern "C" cudaError_t residual(enum dtype dtype, const void *inp1, const void *inp2, void *out, size_t n,
                                cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp1, inp2, out, n, stream)
                         : launch<float>(inp1, inp2, out, n, stream);
}
