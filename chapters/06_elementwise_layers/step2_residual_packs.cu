// Chapter 6, step 2: 16 bytes a thread.
//
// Question: a warp of step 1 asks for 64 bytes of bf16 at a time; how many instructions does a byte cost?
//
// Grows from: step 1 (residual).
// The fewer the more bytes an instruction moves, and 16 are the most: 4 floats or 8 bf16, a pack. Two loads and a store
// then serve 4 or 8 elements, and a warp has 512 bytes in flight for each load. A pack must begin at a multiple of 16
// bytes, which arrays from cudaMalloc do; what is left of n behind the last whole pack, one thread adds element by element.
//
//      |0 1 2 3 4 5 6 7|8 9 …         |… 1015|1016 … 1020|        n = 1021 bf16
//       thread 0        thread 1       …      thread 127: 5 elements
//
// New: packs (pack.cuh).
// Registers: at most 24. Shared memory: none.
// Run: make chapter-6 OP=residual_forward STEP=residual_packs
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
static __device__ uint4 add_packs(uint4 pack1, uint4 pack2)
{
    float values1[PACK<T>], values2[PACK<T>];
    unpack(values1, pack1, T());
    unpack(values2, pack2, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values1[k] += values2[k];
    return make_pack(values1, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) residual_packs_kernel(const T *inp1, // (n)
                                                                     const T *inp2, // (n)
                                                                     T *out,        // (n)
                                                                     size_t n)
{
    const size_t packs = n / PACK<T>;
    const size_t p = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (p < packs)
        ((uint4 *)out)[p] = add_packs<T>(((const uint4 *)inp1)[p], ((const uint4 *)inp2)[p]);
    else if (p == packs)
        for (size_t i = p * PACK<T>; i < n; i++) from_float(&out[i], to_float(inp1[i]) + to_float(inp2[i]));
}

template <typename T>
static cudaError_t launch(const void *inp1, const void *inp2, void *out, size_t n, cudaStream_t stream)
{
    if (!inp1 || !inp2 || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp1 | (uintptr_t)inp2 | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = (n - 1) / (NUM_THREADS * PACK<T>)+1;
    residual_packs_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)inp1, (const T *)inp2, (T *)out, n);
    return cudaGetLastError();
}

extern "C" cudaError_t residual_packs(enum dtype dtype, const void *inp1, const void *inp2, void *out,
                                      size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp1, inp2, out, n, stream)
                         : launch<float>(inp1, inp2, out, n, stream);
}
