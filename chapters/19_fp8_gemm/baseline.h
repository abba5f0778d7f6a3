// cuBLASLt's product of e4m3 matrices, which has one scale for each of them.
#pragma once

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"

// D[M,N] = *scale_A *scale_B A[M,K] · B[N,K]ᵀ, as fp8_gemm has it, by the first algorithm that cuBLASLt's heuristic names, with its
// fast accumulation: all sums where the tensor cores keep them. cudaErrorNotSupported where cuBLASLt has none, as for sizes that are
// not multiples of 16; cudaErrorSharedObjectInitFailed where the library is not here.
cudaError_t fp8_cublaslt(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                         const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream);
