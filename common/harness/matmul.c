#include "matmul.h"

#include <limits.h>

#include "cublas_baseline.h"

enum { A, B, BIAS, C };
enum { M, N, K };

cudaError_t matmul_launch(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((matmul *)step->kernel)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                    (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

static cudaError_t launch_typed(const struct step *step, const struct run *run, bool f32_out,
                                cudaStream_t stream)
{
    return ((matmul_16bit *)step->kernel)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                          (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], run->f16,
                                          f32_out, stream);
}

cudaError_t matmul_launch_16bit(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_typed(step, run, false, stream);
}

cudaError_t matmul_launch_f32_out(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return launch_typed(step, run, true, stream);
}

static cudaError_t launch_cublas(enum dtype dtype, enum dtype C_dtype, const struct run *run,
                                 cudaStream_t stream)
{
    if (run->data[BIAS]) return cudaErrorNotSupported;
    return cublas_matmul(dtype, C_dtype, run->data[A], run->data[B], run->data[C], run->dim[M], run->dim[N],
                         run->dim[K], stream);
}

cudaError_t matmul_cublas_f32(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return launch_cublas(F32, F32, run, stream);
}

cudaError_t matmul_cublas_16bit(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return launch_cublas(run->f16 ? F16 : BF16, run->f16 ? F16 : BF16, run, stream);
}

cudaError_t matmul_cublas_f32_out(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    return launch_cublas(run->f16 ? F16 : BF16, F32, run, stream);
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
