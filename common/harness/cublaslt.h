// cuBLASLt: a product by the first algorithm that its heuristic names, or by any of the first ones. libcublasLt is opened when it is first called, so nothing
// of it is needed to build or to check a chapter.
#pragma once

#include <stddef.h>

#include <cuda_runtime_api.h>
#include <library_types.h>

// What a product does besides, one of cublasLtMatmulDescAttributes_t (cublasLt.h): its number and its value.
struct cublaslt_attribute {
    int name;
    const void *value;
    size_t bytes;
};

// D[M,N] = A[M,K] · B[N,K]ᵀ, all row-major in device memory and without gaps, A and B of `type`, D of D_type, with these attributes.
// compute_type is a cublasComputeType_t; alpha is 1, beta 0. To cuBLASLt, which counts columns first, the first matrix is B, and
// attributes of its A are B's. cudaErrorNotSupported where it has no algorithm, cudaErrorSharedObjectInitFailed, after a line on
// stderr, where the library is not here; cudaErrorUnknown, after a line, for the rest.
cudaError_t cublaslt_matmul(const struct cublaslt_attribute *attributes, int count, int compute_type,
                            cudaDataType type, cudaDataType D_type, const void *A, const void *B, void *D,
                            int M, int N, int K, cudaStream_t stream);

// The same product by each of the algorithms that cuBLASLt's heuristic names first, but for those that add parts of k up in a
// type of 16 bits: returns how many there are, 0 after a line on stderr where there is no library, and remembers them until the
// next call. cublaslt_candidate multiplies by one of them; errors as above.
enum { CUBLASLT_CANDIDATES = 64 };
int cublaslt_candidates(int compute_type, cudaDataType type, cudaDataType D_type, int M, int N, int K);
cudaError_t cublaslt_candidate(int i, const void *A, const void *B, void *D, cudaStream_t stream);
