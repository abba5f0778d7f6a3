#include "baseline.h"

#include <stdint.h>

#include "../../common/harness/cublaslt.h"

// The few declarations of cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_COMPUTE_32F = 68, CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25 };
enum { CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18 };

cudaError_t fp8_cublaslt(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                         const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    const int8_t fast = 1;
    const struct cublaslt_attribute attributes[] = {
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_B, sizeof scale_B},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_A, sizeof scale_A},
    };
    if (M % 16 || N % 16 || K % 16) return cudaErrorNotSupported;
    const struct cublaslt_product product = {
        .compute_type = CUBLAS_COMPUTE_32F,
        .type = CUDA_R_8F_E4M3,
        .D_type = D_dtype == F32 ? CUDA_R_32F : CUDA_R_16BF,
        .M = M,
        .N = N,
        .K = K,
        .B_transposed = true,
        .attributes = attributes,
        .attribute_count = 3,
    };
    return cublaslt_matmul(&product, A, B, D, stream);
}
