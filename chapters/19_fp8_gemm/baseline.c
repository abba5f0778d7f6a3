#include "baseline.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <library_types.h>

#include "../../common/harness/library.h"

// The few declarations of cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_T = 1, CUBLAS_COMPUTE_32F = 68, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25 };
enum { CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18 };
enum { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };
enum { WORKSPACE_BYTES = 32 << 20 }; // what the cuBLAS documentation recommends for Hopper

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

static struct {
    void *handle, *preference, *workspace;
    int (*create)(void **handle);
    int (*layout_create)(void **layout, cudaDataType, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*desc_create)(void **desc, int compute_type, cudaDataType scale_type);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t size);
    int (*desc_destroy)(void *desc);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t size);
    int (*heuristic)(void *handle, void *desc, void *A, void *B, void *C, void *D, void *preference,
                     int wanted, struct heuristic *, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *A, void *, const void *B, void *,
                  const void *beta, const void *C, void *, void *D, void *, const uint64_t *algorithm,
                  void *workspace, size_t workspace_bytes, cudaStream_t);
} lt;

static bool open_lt(void)
{
    const size_t workspace_bytes = WORKSPACE_BYTES;
    if (lt.handle) return true;
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (!library) return fprintf(stderr, "cuBLASLt: %s\n", dlerror()), false;
    return library_find(library, "cublasLtCreate", &lt.create) &&
           library_find(library, "cublasLtMatrixLayoutCreate", &lt.layout_create) &&
           library_find(library, "cublasLtMatrixLayoutDestroy", &lt.layout_destroy) &&
           library_find(library, "cublasLtMatmulDescCreate", &lt.desc_create) &&
           library_find(library, "cublasLtMatmulDescSetAttribute", &lt.desc_set) &&
           library_find(library, "cublasLtMatmulDescDestroy", &lt.desc_destroy) &&
           library_find(library, "cublasLtMatmulPreferenceCreate", &lt.preference_create) &&
           library_find(library, "cublasLtMatmulPreferenceSetAttribute", &lt.preference_set) &&
           library_find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.heuristic) &&
           library_find(library, "cublasLtMatmul", &lt.matmul) &&
           cudaMalloc(&lt.workspace, workspace_bytes) == cudaSuccess &&
           lt.preference_create(&lt.preference) == 0 &&
           lt.preference_set(lt.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                             sizeof workspace_bytes) == 0 &&
           lt.create(&lt.handle) == 0;
}

// cuBLASLt counts columns first: row-major D (M, N) is its D^T (N, M) = B A^T, with B (K x N as it sees it) transposed, and A
// (K x M) as it is.
cudaError_t fp8_cublaslt(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                         const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    const cudaDataType D_type = D_dtype == F32 ? CUDA_R_32F : CUDA_R_16BF;
    const int transpose = CUBLAS_OP_T;
    const int8_t fast = 1;
    const float one = 1, zero = 0;
    void *desc = NULL, *layout_A = NULL, *layout_B = NULL, *layout_D = NULL;
    struct heuristic best;
    int found = 0;
    if (M % 16 || N % 16 || K % 16) return cudaErrorNotSupported;
    if (!open_lt()) return cudaErrorSharedObjectInitFailed;
    int status = lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_B, sizeof scale_B);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_A, sizeof scale_A);
    if (!status) status = lt.layout_create(&layout_B, CUDA_R_8F_E4M3, (uint64_t)K, (uint64_t)N, K);
    if (!status) status = lt.layout_create(&layout_A, CUDA_R_8F_E4M3, (uint64_t)K, (uint64_t)M, K);
    if (!status) status = lt.layout_create(&layout_D, D_type, (uint64_t)N, (uint64_t)M, N);
    if (!status)
        status = lt.heuristic(lt.handle, desc, layout_B, layout_A, layout_D, layout_D, lt.preference, 1,
                              &best, &found);
    if (!status && !found) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!status)
        status = lt.matmul(lt.handle, desc, &one, B, layout_B, A, layout_A, &zero, D, layout_D, D, layout_D,
                           best.algorithm, lt.workspace, WORKSPACE_BYTES, stream);
    lt.layout_destroy(layout_A);
    lt.layout_destroy(layout_B);
    lt.layout_destroy(layout_D);
    lt.desc_destroy(desc);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
    if (status) fprintf(stderr, "cuBLASLt: e4m3 product: status %d\n", status);
    return status ? cudaErrorUnknown : cudaSuccess;
}
