// Chapter 1: one thread an output, uncoalesced and then coalesced.
#include "../../common/harness/matmul.h"

matmul naive_uncoalesced, naive_coalesced;

static const struct chapter chapter = {
    .name = "01_naive_matmul",
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in fp32",
    .dims = MATMUL_DIMS,
    .tensors = MATMUL_TENSORS(F32),
    .steps =
        {
            MATMUL_STEP("uncoalesced", naive_uncoalesced),
            MATMUL_STEP("coalesced", naive_coalesced),
        },
    .baseline = {.name = "cuBLAS SGEMM", .launch = matmul_cublas_f32},
    .flops = "2*m*n*k",
    .bytes = "4*(m*k+n*k+m*n)",
    .limit = LIMIT_FP32,
    .bench = {"m=4096,n=4096,k=4096"},
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
