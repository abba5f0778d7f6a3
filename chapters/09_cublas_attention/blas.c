#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>

#include <library_types.h>

#include "../../common/harness/cublas_baseline.h"
#include "../../common/harness/cublaslt.h"
#include "../../common/harness/library.h"

// The few declarations of cublas_api.h and cublasLt.h (CUDA 13) that are used here.
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_GEMM_DEFAULT = -1 };
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum { CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10 };
enum { CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12 };
enum { CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 4 | 32 | 128 };
enum { CUBLASLT_EPILOGUE_DGELU = 64 | 128 };

static bool tf32_allowed, remembered;

void blas_allow_tf32(void)
{
    tf32_allowed = true;
}

bool blas_remember(const char *path, struct error *error)
{
    remembered = cublaslt_remember(path, error);
    return remembered;
}

static cudaDataType data_type(enum dtype dtype)
{
    return dtype == F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static int compute_type(enum dtype dtype)
{
    return dtype == F32 && tf32_allowed ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Without gaps, as cuBLASLt's products are here.
static bool dense(struct blas_matrix m, int rows, int cols)
{
    return m.ld == (m.transposed ? rows : cols);
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
    if (remembered && alpha == 1 && dense(A, M, K) && dense(B, K, N) && dense(C, M, N)) {
        const struct cublaslt_product product = {
            .compute_type = compute_type(A.dtype),
            .type = data_type(A.dtype),
            .D_type = data_type(C.dtype),
            .M = M,
            .N = N,
            .K = K,
            .A_transposed = A.transposed,
            .B_transposed = B.transposed,
            .batches = batches,
            .A_stride = A.stride,
            .B_stride = B.stride,
            .D_stride = C.stride,
            .beta = beta,
        };
        return cublaslt_matmul(&product, A.data, B.data, (void *)C.data, stream);
    }
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

// Of `batches` B where there is no GELU.
static struct cublaslt_product with_bias(enum dtype dtype, int M, int N, int K, int batches)
{
    return (struct cublaslt_product){
        .compute_type = compute_type(dtype),
        .type = data_type(dtype),
        .D_type = data_type(dtype),
        .M = M,
        .N = N,
        .K = K,
        .B_transposed = true,
        .batches = batches,
        .B_stride = (int64_t)N * K,
        .D_stride = (int64_t)M * N,
    };
}

cudaError_t blas_multiply_gelu(enum dtype dtype, const void *A, const void *B, const void *bias, void *pre,
                               void *out, int M, int N, int K, cudaStream_t stream)
{
    const int64_t pre_ld = N;
    const struct cublaslt_attribute attributes[] = {
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_ld, sizeof pre_ld},
    };
    struct cublaslt_product product = with_bias(dtype, M, N, K, 1);
    product.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    product.attributes = attributes, product.attribute_count = 3;
    return cublaslt_matmul(&product, A, B, out, stream);
}

cudaError_t blas_multiply_bias(enum dtype dtype, const void *A, const void *B, const void *bias, void *out,
                               int M, int N, int K, int batches, cudaStream_t stream)
{
    const int64_t bias_stride = N;
    const struct cublaslt_attribute attributes[] = {
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias},
        {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &bias_stride, sizeof bias_stride},
    };
    struct cublaslt_product product = with_bias(dtype, M, N, K, batches);
    product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    product.attributes = attributes, product.attribute_count = batches > 1 ? 2 : 1;
    return cublaslt_matmul(&product, A, B, out, stream);
}

cudaError_t blas_multiply_gelu_backward(enum dtype dtype, const void *A, const void *B, const void *pre,
                                        void *out, int M, int N, int K, cudaStream_t stream)
{
    const int64_t pre_ld = N;
    const struct cublaslt_attribute attributes[] = {
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_ld, sizeof pre_ld},
    };
    const struct cublaslt_product product = {
        .compute_type = compute_type(dtype),
        .type = data_type(dtype),
        .D_type = data_type(dtype),
        .M = M,
        .N = N,
        .K = K,
        .epilogue = CUBLASLT_EPILOGUE_DGELU,
        .attributes = attributes,
        .attribute_count = 2,
    };
    return cublaslt_matmul(&product, A, B, out, stream);
}
