// Chapter 5: cp.async fills the next stages while this one is multiplied.
#include "../../common/harness/matmul.h"

matmul pipeline_two_stage, pipeline_multi_stage, fragments_ahead, wide_loads, lean_loop, wide_block,
    grouped_tiles, wide_stores, persistent;

static const struct chapter chapter = {
    .name = "05_cp_async_pipeline",
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16, accumulated in fp32",
    .dims = MATMUL_DIMS,
    .tensors = MATMUL_TENSORS(BF16),
    .steps =
        {
            MATMUL_STEP("two_stage", pipeline_two_stage),
            MATMUL_STEP("multi_stage", pipeline_multi_stage),
            MATMUL_STEP("fragments_ahead", fragments_ahead),
            MATMUL_STEP("wide_loads", wide_loads),
            MATMUL_STEP("lean_loop", lean_loop),
            MATMUL_STEP("wide_block", wide_block),
            MATMUL_STEP("grouped_tiles", grouped_tiles),
            MATMUL_STEP("wide_stores", wide_stores),
            MATMUL_STEP("persistent", persistent),
        },
    .baseline = {.name = "cuBLAS bf16", .launch = matmul_cublas_16bit},
    .check_shape = matmul_check_16bit_rows,
    .flops = "2*m*n*k",
    .bytes = "2*(m*k+n*k+m*n)",
    .limit = LIMIT_BF16_TENSOR,
    .bench = {"m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192"},
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
