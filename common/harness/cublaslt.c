#include "cublaslt.h"

#include <stdint.h>
#include <stdio.h>

#include "library.h"

// The few declarations of cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_T = 1, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3 };
enum { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3 };
enum { CUBLASLT_REDUCTION_SCHEME_INPLACE = 1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };
enum { CUBLASLT_REDUCTION_SCHEME_MASK = 7 };
enum { WORKSPACE_BYTES = 32 << 20 }; // what the cuBLAS documentation recommends for Hopper

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

// What cuBLASLt is told of a product.
struct product {
    void *desc, *A, *B, *D;
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

static void forget(struct product *product)
{
    if (product->D) lt.layout_destroy(product->D);
    if (product->A) lt.layout_destroy(product->A);
    if (product->B) lt.layout_destroy(product->B);
    if (product->desc) lt.desc_destroy(product->desc);
    *product = (struct product){0};
}

// Row-major D (M, N) is its D^T (N, M) = B A^T, with B (K x N as cuBLASLt sees it) transposed, and A (K x M) as it is.
static int describe(struct product *product, const struct cublaslt_attribute *attributes, int count,
                    int compute_type, cudaDataType type, cudaDataType D_type, int M, int N, int K)
{
    const int transpose = CUBLAS_OP_T;
    int status = lt.desc_create(&product->desc, compute_type, CUDA_R_32F);
    if (!status)
        status = lt.desc_set(product->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    for (int i = 0; i < count && !status; i++)
        status = lt.desc_set(product->desc, attributes[i].name, attributes[i].value, attributes[i].bytes);
    if (!status) status = lt.layout_create(&product->B, type, (uint64_t)K, (uint64_t)N, K);
    if (!status) status = lt.layout_create(&product->A, type, (uint64_t)K, (uint64_t)M, K);
    if (!status) status = lt.layout_create(&product->D, D_type, (uint64_t)N, (uint64_t)M, N);
    return status;
}

// The algorithms that cuBLASLt names first, at most so many, that add parts of k up in these ways.
static int propose(const struct product *product, int reductions, int wanted, struct heuristic *list,
                   int *found)
{
    int status = lt.preference_set(lt.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                   sizeof reductions);
    if (!status)
        status = lt.heuristic(lt.handle, product->desc, product->B, product->A, product->D, product->D,
                              lt.preference, wanted, list, found);
    return !status && !*found ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

static int multiply(const struct product *product, const struct heuristic *how, const void *A, const void *B,
                    void *D, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    return lt.matmul(lt.handle, product->desc, &one, B, product->B, A, product->A, &zero, D, product->D, D,
                     product->D, how->algorithm, lt.workspace, WORKSPACE_BYTES, stream);
}

static cudaError_t error_of(int status)
{
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
    if (status) fprintf(stderr, "cuBLASLt: cublasLtMatmul: status %d\n", status);
    return status ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cublaslt_matmul(const struct cublaslt_attribute *attributes, int count, int compute_type,
                            cudaDataType type, cudaDataType D_type, const void *A, const void *B, void *D,
                            int M, int N, int K, cudaStream_t stream)
{
    struct product product = {0};
    struct heuristic first;
    int found = 0;
    if (!open_lt()) return cudaErrorSharedObjectInitFailed;
    int status = describe(&product, attributes, count, compute_type, type, D_type, M, N, K);
    if (!status) status = propose(&product, CUBLASLT_REDUCTION_SCHEME_MASK, 1, &first, &found);
    if (!status) status = multiply(&product, &first, A, B, D, stream);
    forget(&product);
    return error_of(status);
}

static struct {
    struct product product;
    struct heuristic list[CUBLASLT_CANDIDATES];
} candidates;

int cublaslt_candidates(int compute_type, cudaDataType type, cudaDataType D_type, int M, int N, int K)
{
    // Parts of k may be added up in D itself only where D is as exact as the sums.
    const int reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                           (D_type == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0);
    int found = 0;
    if (!open_lt()) return 0;
    forget(&candidates.product);
    int status = describe(&candidates.product, NULL, 0, compute_type, type, D_type, M, N, K);
    if (!status)
        status = propose(&candidates.product, reductions, CUBLASLT_CANDIDATES, candidates.list, &found);
    return error_of(status) == cudaSuccess ? found : 0;
}

cudaError_t cublaslt_candidate(int i, const void *A, const void *B, void *D, cudaStream_t stream)
{
    return error_of(multiply(&candidates.product, &candidates.list[i], A, B, D, stream));
}
