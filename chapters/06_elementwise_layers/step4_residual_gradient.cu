// Chapter 6, step 4: the backward of the residual.
//
// Question: out = inp1 + inp2; what does each of the two get of dout?
//
//      dinp1 += dout        dinp2 += dout
//
// Grows from: step 3 (residual_stream).
// All of it. A value that two layers use gets a gradient from both, so gradients are added to what is there: 5 arrays
// move for 2 additions. (A training loop that lets dinp1 and dout be one array moves none of them, as llm.c does.)
// dout is read once for both.
//
// Registers: at most 50. Shared memory: none.
// Run: make chapter-6 OP=residual_backward STEP=residual_gradient
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int PACKS = 2; // of each array, a thread has in flight

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
__global__ void __launch_bounds__(NUM_THREADS) residual_gradient_kernel(const T *dout, // (n)
                                                                        T *dinp1,      // (n)
                                                                        T *dinp2,      // (n)
                                                                        size_t n)
{
    const size_t packs = n / PACK<T>;
    const size_t first = (size_t)blockIdx.x * (NUM_THREADS * PACKS) + threadIdx.x;
    uint4 dout_frag[PACKS], frag1[PACKS], frag2[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p >= packs) continue;
        dout_frag[i] = ((const uint4 *)dout)[p];
        frag1[i] = ((const uint4 *)dinp1)[p];
        frag2[i] = ((const uint4 *)dinp2)[p];
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p < packs) {
            ((uint4 *)dinp1)[p] = add_packs<T>(frag1[i], dout_frag[i]);
            ((uint4 *)dinp2)[p] = add_packs<T>(frag2[i], dout_frag[i]);
        } else if (p == packs)
            for (size_t j = p * PACK<T>; j < n; j++) {
                from_float(&dinp1[j], to_float(dinp1[j]) + to_float(dout[j]));
                from_float(&dinp2[j], to_float(dinp2[j]) + to_float(dout[j]));
            }
    }
}

template <typename T>
static cudaError_t launch(const void *dout, void *dinp1, void *dinp2, size_t n, cudaStream_t stream)
{
    if (!dout || !dinp1 || !dinp2 || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dinp1 | (uintptr_t)dinp2) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const size_t grid = (n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1;
    residual_gradient_kernel<<<grid, NUM_THREADS, 0, stream>>>((const T *)dout, (T *)dinp1, (T *)dinp2, n);
    return cudaGetLastError();
}

extern "C" cudaError_t residual_gradient(enum dtype dtype, const void *dout, void *dinp1, void *dinp2,
                                         size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(dout, dinp1, dinp2, n, stream)
                         : launch<float>(dout, dinp1, dinp2, n, stream);
}
