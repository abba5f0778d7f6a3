#include "cublas_baseline.h"

#include <library_types.h>

#include "library.h"

// The few declarations of cublas_api.h and cublas_v2.h (CUDA 13) that are used here.
typedef struct cublasContext *cublas_handle;
enum { WORKSPACE_BYTES = 32 << 20 }; // what the cuBLAS documentation recommends for Hopper
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };
enum { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };

static struct {
    cublas_handle handle;
    int (*set_stream)(cublas_handle, cudaStream_t);
    int (*set_workspace)(cublas_handle, void *, size_t);
    void *workspace; // of its own: a CUDA graph would record an allocation for every call
    int (*sgemm)(cublas_handle, int opa, int opb, int m, int n, int k, const float *alpha, const float *A,
                 int lda, const float *B, int ldb, const float *beta, float *C, int ldc);
    int (*gemm_ex)(cublas_handle, int opa, int opb, int m, int n, int k, const void *alpha, const void *A,
                   cudaDataType, int lda, const void *B, cudaDataType, int ldb, const void *beta, void *C,
                   cudaDataType, int ldc, int compute_type, int algorithm);
} cublas;

static bool open_cublas(void)
{
    int (*create)(cublas_handle *), (*set_math_mode)(cublas_handle, int), status;
    if (cublas.handle) return true;
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "cuBLAS: cannot open the baseline's library: %s\n", dlerror());
        return false;
    }
    if (!library_find(library, "cublasCreate_v2", &create) ||
        !library_find(library, "cublasSetMathMode", &set_math_mode) ||
        !library_find(library, "cublasSetStream_v2", &cublas.set_stream) ||
        !library_find(library, "cublasSetWorkspace_v2", &cublas.set_workspace) ||
        !library_find(library, "cublasSgemm_v2", &cublas.sgemm) ||
        !library_find(library, "cublasGemmEx", &cublas.gemm_ex))
        return false;
    if (cudaMalloc(&cublas.workspace, WORKSPACE_BYTES) != cudaSuccess) {
        fprintf(stderr, "cuBLAS: no memory for its workspace of %d bytes\n", WORKSPACE_BYTES);
        return false;
    }
    if ((status = create(&cublas.handle)) != 0) fprintf(stderr, "cuBLAS: cublasCreate: status %d\n", status);
    // Otherwise parts of k may be added up in bf16.
    if (status == 0 &&
        (status = set_math_mode(cublas.handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)) != 0)
        fprintf(stderr, "cuBLAS: cublasSetMathMode: status %d\n", status);
    return status == 0;
}

struct cublasContext *cublas_open(cudaStream_t stream)
{
    if (!open_cublas()) return NULL;
    int status = cublas.set_stream(cublas.handle, stream); // which resets the workspace
    if (status == 0) status = cublas.set_workspace(cublas.handle, cublas.workspace, WORKSPACE_BYTES);
    if (status != 0) fprintf(stderr, "cuBLAS: cublasSetStream or cublasSetWorkspace: status %d\n", status);
    return status == 0 ? cublas.handle : NULL;
}

cudaDataType cublas_type(enum dtype dtype)
{
    return dtype == F32 ? CUDA_R_32F : dtype == F16 ? CUDA_R_16F : CUDA_R_16BF;
}

cudaError_t cublas_matmul(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B, void *C,
                          int64_t M, int64_t N, int64_t K, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    int m = (int)M, n = (int)N, k = (int)K, status = 0;
    if (!cublas_open(stream)) return cudaErrorSharedObjectInitFailed;
    // cuBLAS is column-major: row-major C[M,N] is its Cᵀ[N,M] = B · Aᵀ, with B and A as it sees them, K x N and K x M.
    if (dtype == F32)
        status =
            cublas.sgemm(cublas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, B, k, A, k, &zero, C, n);
    else
        status = cublas.gemm_ex(cublas.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, B, cublas_type(dtype),
                                k, A, cublas_type(dtype), k, &zero, C, cublas_type(C_dtype), n,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != 0) fprintf(stderr, "cuBLAS: matmul: status %d\n", status);
    return status == 0 ? cudaSuccess : cudaErrorUnknown;
}
