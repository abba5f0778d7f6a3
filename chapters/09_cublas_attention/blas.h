// Products by cuBLAS and cuBLASLt, of matrices as C sees them: row by row.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "../../common/device/dtype.h"
#include "../../common/harness/error.h"

#ifdef __cplusplus
extern "C" {
#endif

// A matrix of each member of a batch, in device memory.
struct blas_matrix {
    const void *data;
    enum dtype dtype;
    int ld;         // elements from one row to the next
    int64_t stride; // elements from one matrix of the batch to the next
    bool transposed;
};

// C (M, N) = alpha op(A) op(B) + beta C for each of `batches`; op(A) is (M, K) and op(B) (K, N), where op turns what is
// `transposed` and lies in memory the other way around. A and B are of one type, F32 (without TF32) or BF16, C of it or
// F32; sums are fp32. Returns an error, after a line on stderr, when libcublas.so.13 cannot be opened or refuses.
cudaError_t blas_multiply(struct blas_matrix A, struct blas_matrix B, float alpha, float beta,
                          struct blas_matrix C, int M, int N, int K, int batches, cudaStream_t stream);

// pre (M, N) = A (M, K) B (N, K)^T + bias (N), out (M, N) = GELU(pre), by one call of cuBLASLt: all of type dtype,
// without gaps, N a multiple of 8. The same errors; cudaErrorNotSupported where cuBLASLt has no kernel for it.
cudaError_t blas_multiply_gelu(enum dtype dtype, const void *A, const void *B, const void *bias, void *pre,
                               void *out, int M, int N, int K, cudaStream_t stream);

// The same without GELU, for each of `batches` B: out (batches, M, N) = A (M, K) B (batches, N, K)^T + bias (batches, N).
cudaError_t blas_multiply_bias(enum dtype dtype, const void *A, const void *B, const void *bias, void *out,
                               int M, int N, int K, int batches, cudaStream_t stream);

// out (M, N) = A (M, K) B (K, N), times the derivative of GELU at pre (M, N): what comes back through the GELU of blas_multiply_gelu,
// of the pre that it left. The same types, and the same errors.
cudaError_t blas_multiply_gelu_backward(enum dtype dtype, const void *A, const void *B, const void *pre,
                                        void *out, int M, int N, int K, cudaStream_t stream);

// From now on products of F32 may round A and B to TF32, 10 bits of fraction, for the tensor cores.
void blas_allow_tf32(void);

// From now on matrices without gaps are multiplied by the fastest of cuBLASLt's algorithms, which a file remembers: see
// cublaslt_remember in cublaslt.h, whose errors it has.
bool blas_remember(const char *path, struct error *error);

#ifdef __cplusplus
}
#endif
