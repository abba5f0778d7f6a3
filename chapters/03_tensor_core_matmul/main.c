// Chapter 3: tensor cores, with ldmatrix and mma.m16n8k16.
#include "../../common/chapter.h"
#include "../../common/cublas_baseline.h"

enum { A, B, BIAS, C };
enum { M, N, K };

// The launchers in the .cu files. A is (M, K), B is (N, K), bias is (N) or NULL, C is (M, N), bf16 in device memory.
typedef cudaError_t matmul(const void *A, const void *B, const void *bias, void *C, int M, int N, int K,
                           cudaStream_t stream);
matmul tensor_core_mma;

static cudaError_t launch(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((matmul *)step->kernel)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                    (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

static cudaError_t launch_cublas(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    if (run->data[BIAS]) return cudaErrorNotSupported;
    return cublas_matmul(BF16, run->data[A], run->data[B], run->data[C], run->dim[M], run->dim[N],
                         run->dim[K], stream);
}

static const char *check_shape(const int64_t *dim)
{
    return dim[K] % 8
               ? "k must be a multiple of 8, so that every row of A and B begins at a multiple of 16 bytes"
               : NULL;
}

static const struct chapter chapter = {
    .name = "03_tensor_core_matmul",
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16, accumulated in fp32",
    .dims = {"m", "n", "k"},
    .tensors =
        {
            [A] = {"A", BF16, IN, "m,k"},
            [B] = {"B", BF16, IN, "n,k"},
            [BIAS] = {"bias", BF16, IN_OPTIONAL, "n"},
            [C] = {"C", BF16, OUT, "m,n"},
        },
    .steps =
        {
            {"mma", launch, (void (*)(void))tensor_core_mma},
        },
    .baseline = {.name = "cuBLAS bf16", .launch = launch_cublas},
    .check_shape = check_shape,
    .flops = "2*m*n*k",
    .bytes = "2*(m*k+n*k+m*n)",
    .limit = LIMIT_BF16_TENSOR,
    .bench = {"m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192"},
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
