// What the launchers of the matmul chapters take: C[M,N] = A[M,K] · B[N,K]ᵀ (+ bias[N]), row-major in device memory; bias is
// NULL where there is none. Each returns the launch's error, or cudaErrorInvalidValue for sizes that its chapter refuses.
#pragma once

#include <cuda_runtime_api.h>

#include "dtype.h"

#ifdef __cplusplus
#include <cuda_bf16.h>
#else
typedef struct __nv_bfloat16 __nv_bfloat16; // C only passes the pointers on
#endif

typedef cudaError_t matmul_f32(const float *A, const float *B, const float *bias, float *C, int M, int N,
                               int K, cudaStream_t stream);
typedef cudaError_t matmul_bf16(const __nv_bfloat16 *A, const __nv_bfloat16 *B, const __nv_bfloat16 *bias,
                                __nv_bfloat16 *C, int M, int N, int K, cudaStream_t stream);

// For kernels of several types: A, B and bias are BF16 or F16 (`dtype`), C is of the same type or F32.
typedef cudaError_t matmul_16bit(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                 const void *bias, void *C, int M, int N, int K, cudaStream_t stream);
