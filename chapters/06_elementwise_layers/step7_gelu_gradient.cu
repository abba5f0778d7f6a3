// Chapter 6, step 7: the backward of GELU.
//
// Question: out = x s with s = 1 / (1 + e), e = exp(-2u); what is its slope, where s is 0 or 1 but for a rounding?
//
//      slope = s + x s (1 - s) 2u'        2u' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2)        dinp = dout slope
//
// Grows from: step 6 (gelu_exp2).
// 1 - s is wrong in all its digits where s is near 1, and x u' grows like x^3: at x = 4 that costs up to 20 units in the
// last place. But 1 - s = e s, a product, right to the last digits. It needs e below infinity, or where s is 0 it
// would be infinity * 0. And where x^2 is large, s x comes first: 0 times anything finite.
// (dout may be the array that dinp overwrites: a thread reads its pack before it writes it.)
//
// Launched early (chapter 6, step 3).
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=gelu_backward STEP=gelu_gradient
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "launchers.h"

#include <cuda_runtime.h>
#include <float.h>

constexpr int NUM_THREADS = 512;
constexpr float A = -2.30220819f; // -2 log2(e) sqrt(2 / pi): exp(-2u) = 2^(x (A + B x^2))
constexpr float B = A * 0.044715f;
constexpr float SLOPE_A = 1.59576912f; // 2u' = SLOPE_A + SLOPE_B x^2
constexpr float SLOPE_B = SLOPE_A * 3.0f * 0.044715f;

static __device__ float gelu_slope(float x)
{
    const float square = x * x;
    const float e = fminf(ex2_approx_ftz(x * (A + B * square)), FLT_MAX);
    const float s = rcp_approx_ftz(1.0f + e);
    return s + s * x * (e * s) * (SLOPE_A + SLOPE_B * square);
}

template <typename T>
static __device__ uint4 gradient_pack(uint4 inp_pack, uint4 dout_pack)
{
    float inp[PACK<T>], dout[PACK<T>];
    unpack(inp, inp_pack, T());
    unpack(dout, dout_pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) dout[k] *= gelu_slope(inp[k]);
    return make_pack(dout, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) gelu_gradient_kernel(const T *inp,  // (n)
                                                                    const T *dout, // (n)
                                                                    T *dinp,       // (n)
                                                                    size_t n)
{
    wait_for_kernels_before();
    const size_t packs = n / PACK<T>;
    const size_t p = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (p < packs) {
        const uint4 inp_pack = load_piece_streamed<PACK<T>>(inp + p * PACK<T>);
        const uint4 dout_pack = load_piece_streamed<PACK<T>>(dout + p * PACK<T>);
        ((uint4 *)dinp)[p] = gradient_pack<T>(inp_pack, dout_pack);
    } else if (p == packs)
        for (size_t i = p * PACK<T>; i < n; i++)
            from_float(&dinp[i], to_float(dout[i]) * gelu_slope(to_float(inp[i])));
}

template <typename T>
static cudaError_t launch(const void *inp, const void *dout, void *dinp, size_t n, cudaStream_t stream)
{
    if (!inp || !dout || !dinp || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)dout | (uintptr_t)dinp) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = n / (NUM_THREADS * PACK<T>)+1;
    return launch_early(gelu_gradient_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)inp,
                        (const T *)dout, (T *)dinp, n);
}

extern "C" cudaError_t gelu_gradient(enum dtype dtype, const void *inp, const void *dout, void *dinp,
                                     size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, dout, dinp, n, stream)
                         : launch<float>(inp, dout, dinp, n, stream);
}
