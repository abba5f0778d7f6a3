// cuBLAS, the baseline of the matmul chapters. libcublas is opened when it is first called, so nothing of it is
// needed to build or to check a chapter.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include "npy.h"

// The handle, its work going to `stream` from now on; NULL, after a line on stderr, when libcublas.so.13 cannot be opened.
struct cublasContext *cublas_open(cudaStream_t stream);

// What cuBLAS calls F32, F16, BF16.
cudaDataType cublas_type(enum dtype dtype);

// C[M,N] = A[M,K] · B[N,K]ᵀ, all row-major in device memory. A and B are F32 (SGEMM, without TF32), BF16 or F16 (fp32
// accumulation); C is of the same dtype or F32. Returns an error after printing one line when libcublas.so.13 cannot be
// opened or refuses.
cudaError_t cublas_matmul(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B, void *C,
                          int64_t M, int64_t N, int64_t K, cudaStream_t stream);
