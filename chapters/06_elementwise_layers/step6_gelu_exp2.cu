// Chapter 6, step 6: one ex2 and one rcp an element.
//
// Question: at 4.2 TB/s an SM finishes 4 bf16 in a cycle; how many instructions may each of them take?
//
// Grows from: step 5 (gelu).
// 128 lanes issue in a cycle, so some 30, and expf and a division with all its bits are most of that. The special function
// units have both nearly for nothing: ex2.approx, 2^x, and rcp.approx, 1 / x, each one instruction, 16 lanes a cycle, off
// by one or two units in the last place. -2u log2(e) is a polynomial like u, with other constants:
//
//      e = ex2(x (A + B x^2))        out = x rcp(1 + e)
//
// A thread has one pack: with two, as in step 5, the same instructions take 5 % longer (results/trials/06_gelu_packs.csv). In
// blocks of 256 threads they take half a per cent longer (06_block_sizes.csv).
//
// x -> infinity: e = 0, out = x.  x -> -infinity: e = infinity, rcp(e) = 0, out = -0; at -infinity itself NaN, as in PyTorch.
//
// New instruction: rcp.approx.ftz. Registers: at most 32. Shared memory: none.
// Launched early (chapter 6, step 3).
// Run: make chapter-6 OP=gelu_forward STEP=gelu_exp2
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr float A = -2.30220819f; // -2 log2(e) sqrt(2 / pi): exp(-2u) = 2^(x (A + B x^2))
constexpr float B = A * 0.044715f;

static __device__ float gelu_of(float x)
{
    // EXERCISE 6.2: GELU of x from one exp2 and one reciprocal, of any x (1 line)
    return x * rcp_approx_ftz(1.0f + ex2_approx_ftz(x * (A + B * (x * x))));
    // STUB return x * (A + B * x);
    // END
}

template <typename T>
static __device__ uint4 gelu_pack(uint4 pack)
{
    float values[PACK<T>];
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) values[k] = gelu_of(values[k]);
    return make_pack(values, T());
}

template <typename T>
__global__ void __launch_bounds__(NUM_THREADS) gelu_exp2_kernel(const T *inp, // (n)
                                                                T *out,       // (n)
                                                                size_t n)
{
    wait_for_kernels_before();
    const size_t packs = n / PACK<T>;
    const size_t p = (size_t)blockIdx.x * NUM_THREADS + threadIdx.x;
    if (p < packs) {
        const uint4 pack = load_piece_streamed<PACK<T>>(inp + p * PACK<T>);
        ((uint4 *)out)[p] = gelu_pack<T>(pack);
    } else if (p == packs) {
        for (size_t j = p * PACK<T>; j < n; j++) from_float(&out[j], gelu_of(to_float(inp[j])));
    }
}

template <typename T>
static cudaError_t launch(const void *inp, void *out, size_t n, cudaStream_t stream)
{
    if (!inp || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = n / (NUM_THREADS * PACK<T>)+1;
    return launch_early(gelu_exp2_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)inp, (T *)out, n);
}

extern "C" cudaError_t gelu_exp2(enum dtype dtype, const void *inp, void *out, size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, out, n, stream) : launch<float>(inp, out, n, stream);
}
