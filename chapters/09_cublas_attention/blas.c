#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>

#include <library_types.h>

#include "../../common/harness/cublas_baseline.h"
#include "../../common/harness/library.h"

// The few declarations of cublas_api.h and cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_GEMM_DEFAULT = -1 };
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum { CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_EPILOGUE = 7 };
enum { CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11 };
enum { CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12 };
enum { CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 4 | 32 | 128 };
enum { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };
enum { LT_WORKSPACE_BYTES = 32 << 20 };

struct lt_heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

static bool tf32_allowed;

void blas_allow_tf32(void)
{
    tf32_allowed = true;
}

static cudaDataType data_type(enum dtype dtype)
{
    return dtype == F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static int compute_type(enum dtype dtype)
{
    return dtype == F32 && tf32_allowed ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// cuBLAS counts columns first: what is a row-major C (M, N) to us is C^T (N, M) to it, and A and B are their transposes
// too. C^T = op(B)^T op(A)^T: so B comes first, and a matrix that we do not transpose it need not either.
cudaError_t blas_multiply(struct blas_matrix A, struct blas_matrix B, float alpha, float beta,
                          struct blas_matrix C, int M, int N, int K, int batches, cudaStream_t stream)
{
    static int (*gemm)(struct cublasContext *, int opa, int opb, int m, int n, int k, const void *alpha,
                       const void *A, cudaDataType, int lda, long long stride_a, const void *B, cudaDataType,
                       int ldb, long long stride_b, const void *beta, void *C, cudaDataType, int ldc,
                       long long stride_c, int batches, int compute_type, int algorithm);
    struct cublasContext *handle = cublas_open(stream);
    if (!handle ||
        (!gemm && !library_find(dlopen("libcublas.so.13", RTLD_NOW), "cublasGemmStridedBatchedEx", &gemm)))
        return cudaErrorSharedObjectInitFailed;
    const int status =
        gemm(handle, B.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, A.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, N, M,
             K, &alpha, B.data, data_type(B.dtype), B.ld, B.stride, A.data, data_type(A.dtype), A.ld,
             A.stride, &beta, (void *)C.data, data_type(C.dtype), C.ld, C.stride, batches,
             compute_type(A.dtype), CUBLAS_GEMM_DEFAULT);
    if (status != 0) fprintf(stderr, "cuBLAS: cublasGemmStridedBatchedEx: status %d\n", status);
    return status == 0 ? cudaSuccess : cudaErrorUnknown;
}

static struct {
    void *handle, *workspace, *preference;
    int (*create)(void **);
    int (*layout_create)(void **, cudaDataType, uint64_t rows, uint64_t columns, int64_t ld);
    int (*layout_destroy)(void *);
    int (*desc_create)(void **, int compute_type, cudaDataType scale_type);
    int (*desc_set)(void *, int attribute, const void *value, size_t bytes);
    int (*desc_destroy)(void *);
    int (*preference_create)(void **);
    int (*preference_set)(void *, int attribute, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *A, void *B, void *C, void *D, void *preference,
                     int wanted, struct lt_heuristic *, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *A, void *, const void *B, void *,
                  const void *beta, const void *C, void *, void *D, void *, const uint64_t *algorithm,
                  void *workspace, size_t workspace_bytes, cudaStream_t);
} lt;

static bool open_lt(void)
{
    const size_t workspace_bytes = LT_WORKSPACE_BYTES;
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

// As above: out^T (N, M) = B A^T. A row-major B (N, K) is a K x N matrix to cuBLASLt, to be transposed; A a K x M matrix
// as it is. Without pre there is no GELU.
static cudaError_t multiply_bias(enum dtype dtype, const void *A, const void *B, const void *bias, void *pre,
                                 void *out, int M, int N, int K, cudaStream_t stream)
{
    const cudaDataType type = data_type(dtype);
    const int transpose = CUBLAS_OP_T;
    const int epilogue = pre ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS;
    const int64_t pre_ld = N;
    const float one = 1, zero = 0;
    void *desc = NULL, *layout_A = NULL, *layout_B = NULL, *layout_out = NULL;
    struct lt_heuristic best;
    int found = 0;
    if (!open_lt()) return cudaErrorSharedObjectInitFailed;
    int status = lt.desc_create(&desc, compute_type(dtype), CUDA_R_32F);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!status) status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (!status && pre)
        status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre);
    if (!status && pre)
        status = lt.desc_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_ld, sizeof pre_ld);
    if (!status) status = lt.layout_create(&layout_B, type, (uint64_t)K, (uint64_t)N, K);
    if (!status) status = lt.layout_create(&layout_A, type, (uint64_t)K, (uint64_t)M, K);
    if (!status) status = lt.layout_create(&layout_out, type, (uint64_t)N, (uint64_t)M, N);
    if (!status)
        status = lt.heuristic(lt.handle, desc, layout_B, layout_A, layout_out, layout_out, lt.preference, 1,
                              &best, &found);
    if (!status && !found) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!status)
        status = lt.matmul(lt.handle, desc, &one, B, layout_B, A, layout_A, &zero, out, layout_out, out,
                           layout_out, best.algorithm, lt.workspace, LT_WORKSPACE_BYTES, stream);
    if (layout_out) lt.layout_destroy(layout_out);
    if (layout_A) lt.layout_destroy(layout_A);
    if (layout_B) lt.layout_destroy(layout_B);
    if (desc) lt.desc_destroy(desc);
    if (status != 0) fprintf(stderr, "cuBLASLt: cublasLtMatmul: status %d\n", status);
    return status == 0                             ? cudaSuccess
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? cudaErrorNotSupported
                                                   : cudaErrorUnknown;
}

cudaError_t blas_multiply_gelu(enum dtype dtype, const void *A, const void *B, const void *bias, void *pre,
                               void *out, int M, int N, int K, cudaStream_t stream)
{
    return multiply_bias(dtype, A, B, bias, pre, out, M, N, K, stream);
}

cudaError_t blas_multiply_bias(enum dtype dtype, const void *A, const void *B, const void *bias, void *out,
                               int M, int N, int K, cudaStream_t stream)
{
    return multiply_bias(dtype, A, B, bias, NULL, out, M, N, K, stream);
}
