// Chapter 13: TMA brings the tiles, wgmma multiplies them.
#include "../../common/harness/matmul.h"
#include "launchers.h"

static const struct step steps[] = {
    STEP(1, matmul_16bit, tma_wgmma),
    STEP(2, matmul_16bit, multi_stage),
    STEP(3, matmul_16bit, large_tile),
    {0},
};

static const struct operation operations[] = {
    {
        .name = "matmul",
        .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16 or f16, accumulated in fp32",
        .types = {BF16, F16},
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS(RUN_TYPE),
        .steps = steps,
        .launch = matmul_launch_16bit,
        .baseline = {.name = "cuBLAS", .launch = matmul_cublas},
        .best = MATMUL_CUBLASLT_BEST,
        .check_shape = matmul_check_16bit_rows,
        .flops = "2*m*n*k",
        .bytes = "size*(m*k+n*k+m*n)",
        .limit = LIMIT_BF16_TENSOR,
        .bench = {"m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192"},
    },
    {
        .name = "matmul_f32",
        .title = "the same with C in fp32",
        .types = {BF16, F16},
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS(F32),
        .steps = steps,
        .launch = matmul_launch_16bit,
        .baseline = {.name = "cuBLAS to fp32", .launch = matmul_cublas},
        .best = MATMUL_CUBLASLT_BEST,
        .check_shape = matmul_check_16bit_rows,
        .flops = "2*m*n*k",
        .bytes = "size*(m*k+n*k)+4*m*n",
        .limit = LIMIT_BF16_TENSOR,
    },
};

CHAPTER(operations)
