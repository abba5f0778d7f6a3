// cuBLAS, the baseline of the matmul chapters. libcublas is opened when it is first called, so nothing of it is
// needed to build or to check a chapter.
#pragma once

#include <cuda_runtime_api.h>

#include "npy.h"

// C[M,N] = A[M,K] · B[N,K]ᵀ, all row-major in device memory, of dtype F32 (SGEMM, without TF32) or BF16 (fp32
// accumulation). Returns an error after printing one line when libcublas.so.13 cannot be opened or refuses.
cudaError_t cublas_matmul(enum dtype dtype, const void *A, const void *B, void *C, int64_t M, int64_t N,
                          int64_t K, cudaStream_t stream);
