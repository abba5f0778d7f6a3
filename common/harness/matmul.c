#include "matmul.h"

#include <limits.h>

#include "cublas_baseline.h"
#include "cublaslt.h"

enum { A, B, BIAS, C };
enum { M, N, K };

cudaError_t matmul_launch_f32(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((matmul_f32 *)launcher)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                    (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

cudaError_t matmul_launch_bf16(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((matmul_bf16 *)launcher)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                     (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

cudaError_t matmul_launch_16bit(any_launcher *launcher, const struct run *run, cudaStream_t stream)
{
    return ((matmul_16bit *)launcher)(run->dtype[A], run->dtype[C], run->data[A], run->data[B],
                                      run->data[BIAS], run->data[C], (int)run->dim[M], (int)run->dim[N],
                                      (int)run->dim[K], stream);
}

cudaError_t matmul_cublas(const struct run *run, cudaStream_t stream)
{
    if (run->data[BIAS]) return cudaErrorNotSupported;
    return cublas_matmul(run->dtype[A], run->dtype[C], run->data[A], run->data[B], run->data[C], run->dim[M],
                         run->dim[N], run->dim[K], stream);
}

int matmul_cublaslt_candidates(const struct run *run)
{
    enum { CUBLAS_COMPUTE_32F = 68 };
    return cublaslt_candidates(&(struct cublaslt_product){
        .compute_type = CUBLAS_COMPUTE_32F,
        .type = cublas_type(run->dtype[A]),
        .D_type = cublas_type(run->dtype[C]),
        .M = (int)run->dim[M],
        .N = (int)run->dim[N],
        .K = (int)run->dim[K],
        .B_transposed = true,
    });
}

cudaError_t matmul_cublaslt(const struct run *run, int candidate, cudaStream_t stream)
{
    return cublaslt_candidate(candidate, run->data[A], run->data[B], run->data[C], stream);
}

const char *matmul_check_16bit_rows(const int64_t *dim)
{
    enum { MOST = INT_MAX - 511 }; // the last tile may go beyond the matrix, by less than 512 rows or columns
    if (dim[M] > MOST || dim[N] > MOST || dim[K] > MOST)
        return "m, n and k must be at most 2147483136, so that every row and column of a tile is an int";
    if (dim[K] % 8)
        return "k must be a multiple of 8, so that every row of A and B begins at a multiple of 16 bytes";
    return NULL;
}
