// Chapter 6, step 4: the backward of the residual.
//
// Question: out = inp1 + inp2; what does each of the two get of dout?
//
//      dinp1 += dout        dinp2 += dout
//
// Grows from: step 3 (residual_stream).
// All of it. A value that two layers use gets a gradient from both, so gradients are added to what is there: 5 arrays
// move for 2 additions. (A training loop that lets dinp1 and dout be one array moves none of them, as llm.c does.)
// dout is read once for both. Three loads of 16 bytes a thread would be 96 KB under way; of half packs they are 48.
//
// Launched early (chapter 6, step 3). New: half packs (pack.cuh).
// Registers: at most 26. Shared memory: none.
// Run: make chapter-6 OP=residual_backward STEP=residual_gradient
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;

template <typename T>
static __device__ uint2 add_halves(uint2 half1, uint2 half2)
{
    float values1[HALF_PACK<T>], values2[HALF_PACK<T>];
    unpack(values1, half1, T());
    unpack(values2, half2, T());
#pragma unroll
    for (int k = 0; k < HALF_PACK<T>; k++) values1[k] += values2[k];
    return make_pack(values1, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) residual_gradient_kernel(const T *dout, // (n)
                                                                        T *dinp1,      // (n)
                                                                        T *dinp2,      // (n)
                                                                        size_t n)
{
    wait_for_kernels_before();
    const size_t halves = n / HALF_PACK<T>;
    const size_t h = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (h < halves) {
        const uint2 dout_half = ((const uint2 *)dout)[h];
        const uint2 half1 = ((const uint2 *)dinp1)[h], half2 = ((const uint2 *)dinp2)[h];
        ((uint2 *)dinp1)[h] = add_halves<T>(half1, dout_half);
        ((uint2 *)dinp2)[h] = add_halves<T>(half2, dout_half);
    } else if (h == halves) {
        for (size_t i = h * HALF_PACK<T>; i < n; i++) {
            from_float(&dinp1[i], to_float(dinp1[i]) + to_float(dout[i]));
            from_float(&dinp2[i], to_float(dinp2[i]) + to_float(dout[i]));
        }
    }
}

template <typename T>
static cudaError_t launch(const void *dout, void *dinp1, void *dinp2, size_t n, cudaStream_t stream)
{
    if (!dout || !dinp1 || !dinp2 || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)dout | (uintptr_t)dinp1 | (uintptr_t)dinp2) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const size_t grid = n / (NUM_THREADS * HALF_PACK<T>)+1;
    return launch_early(residual_gradient_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)dout,
                        (T *)dinp1, (T *)dinp2, n);
}

extern "C" cudaError_t residual_gradient(enum dtype dtype, const void *dout, void *dinp1, void *dinp2,
                                         size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(dout, dinp1, dinp2, n, stream)
                         : launch<float>(dout, dinp1, dinp2, n, stream);
}
