// Chapter 3: tensor cores, with ldmatrix and mma.m16n8k16.
#include "../../common/harness/matmul.h"
#include "launchers.h"

static const struct step steps[] = {
    STEP(1, matmul_bf16, mma),
    {0},
};

static const struct operation operations[] = {{
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16, accumulated in fp32",
    .types = {BF16},
    .dims = MATMUL_DIMS,
    .tensors = MATMUL_TENSORS(RUN_TYPE),
    .steps = steps,
    .launch = matmul_launch_bf16,
    .baseline = {.name = "cuBLAS bf16", .launch = matmul_cublas},
    .check_shape = matmul_check_16bit_rows,
    .flops = "2*m*n*k",
    .bytes = "size*(m*k+n*k+m*n)",
    .limit = LIMIT_BF16_TENSOR,
    .bench = {"m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192"},
}};

CHAPTER(operations)
