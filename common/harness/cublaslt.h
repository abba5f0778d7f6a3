// cuBLASLt: a product by the first algorithm that its heuristic names, or by any of the first ones. libcublasLt is opened when it is first
// called, so nothing of it is needed to build or to check a chapter.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>
#include <library_types.h>

#include "error.h"

// What a product does besides, one of cublasLtMatmulDescAttributes_t (cublasLt.h): its number and its value.
struct cublaslt_attribute {
    int name;
    const void *value;
    size_t bytes;
};

// D[M,N] = op(A) op(B) + beta D, all row-major in device memory and without gaps, A and B of `type`, D of D_type: op(A) is (M, K), and A
// lies there as (K, M) where it is transposed; op(B) is (K, N), B transposed (N, K).
struct cublaslt_product {
    int compute_type; // a cublasComputeType_t
    cudaDataType type, D_type;
    int M, N, K;
    bool A_transposed, B_transposed;
    int batches;                          // 0 or 1: one
    int64_t A_stride, B_stride, D_stride; // elements from one matrix of a batch to the next
    float beta;
    int epilogue; // a cublasLtEpilogue_t; 0: none
    const struct cublaslt_attribute *
        attributes; // what else; to cuBLASLt, which counts columns first, B is the first matrix: attributes of
    int attribute_count; // its A are B's
};

// Multiplies. cudaErrorNotSupported where cuBLASLt has no algorithm, cudaErrorSharedObjectInitFailed, after a line on stderr, where the
// library is not here; cudaErrorUnknown, after a line, for the rest.
cudaError_t cublaslt_matmul(const struct cublaslt_product *product, const void *A, const void *B, void *D,
                            cudaStream_t stream);

// The same by each of the algorithms that cuBLASLt's heuristic names first, but for those that add parts of k up in a
// type of 16 bits: returns how many there are, 0 after a line on stderr where there is no library, and remembers them until the
// next call. cublaslt_candidate multiplies by one of them; errors as above.
enum { CUBLASLT_CANDIDATES = 64 };
int cublaslt_candidates(const struct cublaslt_product *product);
cudaError_t cublaslt_candidate(int i, const void *A, const void *B, void *D, cudaStream_t stream);

// From now on cublaslt_matmul takes the fastest of these candidates: the one that the file names for products of this kind and size, and
// where it names none, the fastest of a few launches here and now, with D's place taken by memory that is freed again; which is added to
// the file. With one file products have the same bits in every process. A product that a CUDA graph records first is not timed.
// Returns false with the reason in *error for a file that cannot be opened, or was made by another cuBLASLt or on another GPU.
bool cublaslt_remember(const char *path, struct error *error);
