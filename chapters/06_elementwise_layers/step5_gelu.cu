// Chapter 6, step 5: GELU as C would write it.
//
// Question: a layer with a function in it: is it still a copy?
//
//      out = 0.5 x (1 + tanh u) = x / (1 + exp(-2u))        u = sqrt(2 / pi) (x + 0.044715 x^3)
//
// Grows from: step 3 (residual_stream).
// The two forms are one function, since 1 + tanh u = 2 / (1 + exp(-2u)). The left one is what llm.c and PyTorch compute;
// it loses its digits where x is negative: at x = -5, tanh u is -1 but for 10^-7, which fp32 hardly has. The right one
// has no difference in it. expf and / are exact to the last bit or two, and take instructions for that.
//
// Launched early (chapter 6, step 3).
// Registers: at most 40. Shared memory: none.
// Run: make chapter-6 OP=gelu_forward STEP=gelu
#include "../../common/device/launch.cuh"
#include "../../common/device/pack.cuh"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 512;
constexpr int PACKS = 2;              // a thread has in flight
constexpr float SCALE = 0.797884561f; // sqrt(2 / pi)
constexpr float CUBE = 0.044715f;

static __device__ float gelu_of(float x)
{
    const float u = SCALE * x * (1.0f + CUBE * x * x);
    return x / (1.0f + expf(-2.0f * u));
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
__global__ void __launch_bounds__(NUM_THREADS) gelu_kernel(const T *inp, // (n)
                                                           T *out,       // (n)
                                                           size_t n)
{
    wait_for_kernels_before();
    const size_t packs = n / PACK<T>;
    const size_t first = (size_t)blockIdx.x * (NUM_THREADS * PACKS) + threadIdx.x;
    uint4 frag[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p < packs) frag[i] = ((const uint4 *)inp)[p];
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const size_t p = first + i * NUM_THREADS;
        if (p < packs)
            ((uint4 *)out)[p] = gelu_pack<T>(frag[i]);
        else if (p == packs)
            for (size_t j = p * PACK<T>; j < n; j++) from_float(&out[j], gelu_of(to_float(inp[j])));
    }
}

template <typename T>
static cudaError_t launch(const void *inp, void *out, size_t n, cudaStream_t stream)
{
    if (!inp || !out || n == 0) return cudaErrorInvalidValue;
    if (((uintptr_t)inp | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const size_t grid = (n - 1) / (NUM_THREADS * PACKS * PACK<T>)+1;
    return launch_early(gelu_kernel<T>, grid, NUM_THREADS, 0, stream, (const T *)inp, (T *)out, n);
}

extern "C" cudaError_t gelu(enum dtype dtype, const void *inp, void *out, size_t n, cudaStream_t stream)
{
    return dtype == BF16 ? launch<__nv_bfloat16>(inp, out, n, stream) : launch<float>(inp, out, n, stream);
}
