// Chapter 1: one thread an output, uncoalesced and then coalesced.
#include "../../common/chapter.h"
#include "../../common/cublas_baseline.h"

enum { A, B, BIAS, C };
enum { M, N, K };

// The launchers in the .cu files. A is (M, K), B is (N, K), bias is (N) or NULL, C is (M, N), all in device memory.
typedef cudaError_t matmul(const float *A, const float *B, const float *bias, float *C, int M, int N, int K,
                           cudaStream_t stream);
matmul naive_uncoalesced, naive_coalesced;

static cudaError_t launch(const struct step *step, const struct run *run, cudaStream_t stream)
{
    return ((matmul *)step->kernel)(run->data[A], run->data[B], run->data[BIAS], run->data[C],
                                    (int)run->dim[M], (int)run->dim[N], (int)run->dim[K], stream);
}

static cudaError_t launch_cublas(const struct step *step, const struct run *run, cudaStream_t stream)
{
    (void)step;
    if (run->data[BIAS]) return cudaErrorNotSupported;
    return cublas_matmul(F32, run->data[A], run->data[B], run->data[C], run->dim[M], run->dim[N], run->dim[K],
                         stream);
}

static const struct chapter chapter = {
    .name = "01_naive_matmul",
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in fp32",
    .dims = {"m", "n", "k"},
    .tensors =
        {
            [A] = {"A", F32, IN, "m,k"},
            [B] = {"B", F32, IN, "n,k"},
            [BIAS] = {"bias", F32, IN_OPTIONAL, "n"},
            [C] = {"C", F32, OUT, "m,n"},
        },
    .steps =
        {
            {"uncoalesced", launch, (void (*)(void))naive_uncoalesced},
            {"coalesced", launch, (void (*)(void))naive_coalesced},
        },
    .baseline = {.name = "cuBLAS SGEMM", .launch = launch_cublas},
    .flops = "2*m*n*k",
    .bytes = "4*(m*k+n*k+m*n)",
    .limit = LIMIT_FP32,
    .bench = {"m=4096,n=4096,k=4096"},
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
