// Chapter 1: one thread an output, uncoalesced and then coalesced.
#include "../../common/harness/matmul.h"
#include "launchers.h"

static const struct step steps[] = {
    STEP(1, matmul_f32, uncoalesced),
    STEP(2, matmul_f32, coalesced),
    {0},
};

static const struct operation operations[] = {{
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in fp32",
    .types = {F32},
    .dims = MATMUL_DIMS,
    .tensors = MATMUL_TENSORS(RUN_TYPE),
    .steps = steps,
    .launch = matmul_launch_f32,
    .baseline = {.name = "cuBLAS SGEMM", .launch = matmul_cublas},
    .flops = "2*m*n*k",
    .bytes = "size*(m*k+n*k+m*n)",
    .limit = LIMIT_FP32,
    .bench = {"m=4096,n=4096,k=4096"},
}};

CHAPTER(operations)
