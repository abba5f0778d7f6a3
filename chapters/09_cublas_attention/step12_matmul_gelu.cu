// Chapter 9, step 12: a product, and a kernel behind it for bias and GELU.
//
// Question: the wide layer of GPT-2 is a product, a bias and a GELU, whose backward wants what was before it. What do the
// last two cost?
//
// Grows from: chapter 6, step 6 (gelu_exp2).
// Bytes: cuBLAS writes the product, a kernel reads it, adds the bias, writes it back, and writes GELU: 4 passes over
// (rows, OC) where 2 would do. In bf16 it also rounds once more, before the bias.
//
//      inp, weight --cuBLAS--> pre      pre + bias -> pre, GELU(pre) -> out
//
// Registers: at most 40. Shared memory: none.
// Run: make chapter-9 OP=matmul_gelu STEP=matmul_gelu
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"
#include "blas.h"
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int NUM_THREADS = 256;
constexpr float A = -2.30220819f; // -2 log2(e) sqrt(2 / pi): exp(-2u) = 2^(x (A + B x^2))
constexpr float B = A * 0.044715f;

static __device__ float gelu_of(float x)
{
    return x * rcp_approx_ftz(1.0f + ex2_approx_ftz(x * (A + B * (x * x))));
}

template <typename T, int N>
__global__ void __launch_bounds__(NUM_THREADS) bias_gelu_kernel(T *pre,        // (rows, OC)
                                                                const T *bias, // (OC)
                                                                T *out,        // (rows, OC)
                                                                int OC)
{
    const unsigned c = (blockIdx.y * NUM_THREADS + threadIdx.x) * N;
    if (c >= OC) return;
    const size_t i = (size_t)blockIdx.x * OC + c;
    float x[N], b[N];
    load_values(x, pre + i);
    load_values(b, bias + c);
#pragma unroll
    for (int k = 0; k < N; k++) x[k] += b[k];
    store_values(pre + i, x);
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = gelu_of(x[k]);
    store_values(out + i, x);
}

template <typename T>
static cudaError_t launch(void *pre, const void *bias, void *out, int rows, int OC, cudaStream_t stream)
{
    constexpr int MOST_COLUMNS = 65535 * NUM_THREADS; // of a grid's second dimension
    if (OC > MOST_COLUMNS || ((uintptr_t)pre | (uintptr_t)bias | (uintptr_t)out) % PACK_BYTES != 0)
        return cudaErrorInvalidValue;
    const bool packs = OC % PACK<T> == 0;
    const dim3 grid(rows, (OC - 1) / (NUM_THREADS * (packs ? PACK<T> : 1)) + 1);
    const auto kernel = packs ? bias_gelu_kernel<T, PACK<T>> : bias_gelu_kernel<T, 1>;
    kernel<<<grid, NUM_THREADS, 0, stream>>>((T *)pre, (const T *)bias, (T *)out, OC);
    return cudaGetLastError();
}

extern "C" cudaError_t matmul_gelu(enum dtype dtype, const void *inp, const void *weight, const void *bias,
                                   void *pre, void *out, int rows, int C, int OC, cudaStream_t stream)
{
    if (!inp || !weight || !bias || !pre || !out || rows <= 0 || C <= 0 || OC <= 0)
        return cudaErrorInvalidValue;
    const blas_matrix X = {inp, dtype, C, 0, false}, W = {weight, dtype, C, 0, true},
                      product = {pre, dtype, OC, 0, false};
    const cudaError_t error = blas_multiply(X, W, 1, 0, product, rows, OC, C, 1, stream);
    if (error != cudaSuccess) return error;
    return dtype == BF16 ? launch<__nv_bfloat16>(pre, bias, out, rows, OC, stream)
                         : launch<float>(pre, bias, out, rows, OC, stream);
}
