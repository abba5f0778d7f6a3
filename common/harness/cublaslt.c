#include "cublaslt.h"

#include <stdint.h>
#include <stdio.h>

#include "library.h"

// The few declarations of cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_T = 1, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };
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

// Row-major D (M, N) is its D^T (N, M) = B A^T, with B (K x N as cuBLASLt sees it) transposed, and A (K x M) as it is.
cudaError_t cublaslt_matmul(const struct cublaslt_attribute *attributes, int count, int compute_type,
                            cudaDataType type, cudaDataType D_type, const void *A, const void *B, void *D,
                            int M, int N, int K, cudaStream_t stream)
{
    const int transpose = CUBLAS_OP_T;
    const float one = 1, zero = 0;
    void *desc = NULL, *layout_A = NULL, *layout_B = NULL, *layout_D = NULL;
    struct heuristic best;
    int found = 0;
    if (!open_lt()) return cudaErrorSharedObjectInitFailed;
    int status = lt.desc_create(&desc, compute_type, CUDA_R_32F);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    for (int i = 0; i < count && !status; i++)
        status = lt.desc_set(desc, attributes[i].name, attributes[i].value, attributes[i].bytes);
    if (!status) status = lt.layout_create(&layout_B, type, (uint64_t)K, (uint64_t)N, K);
    if (!status) status = lt.layout_create(&layout_A, type, (uint64_t)K, (uint64_t)M, K);
    if (!status) status = lt.layout_create(&layout_D, D_type, (uint64_t)N, (uint64_t)M, N);
    if (!status)
        status = lt.heuristic(lt.handle, desc, layout_B, layout_A, layout_D, layout_D, lt.preference, 1,
                              &best, &found);
    if (!status && !found) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!status)
        status = lt.matmul(lt.handle, desc, &one, B, layout_B, A, layout_A, &zero, D, layout_D, D, layout_D,
                           best.algorithm, lt.workspace, WORKSPACE_BYTES, stream);
    if (layout_D) lt.layout_destroy(layout_D);
    if (layout_A) lt.layout_destroy(layout_A);
    if (layout_B) lt.layout_destroy(layout_B);
    if (desc) lt.desc_destroy(desc);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
    if (status) fprintf(stderr, "cuBLASLt: cublasLtMatmul: status %d\n", status);
    return status ? cudaErrorUnknown : cudaSuccess;
}
