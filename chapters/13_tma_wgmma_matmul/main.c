// Chapter 13: TMA brings the tiles, wgmma multiplies them.
#include "../../common/harness/matmul.h"

matmul_16bit hopper_tma_wgmma, hopper_multi_stage, hopper_large_tile;

static const struct chapter operations[] = {
    {
        .name = "13_tma_wgmma_matmul",
        .operation = "matmul",
        .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16 or f16, accumulated in fp32",
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS(BF16),
        .steps =
            {
                MATMUL_16BIT_STEP("tma_wgmma", hopper_tma_wgmma),
                MATMUL_16BIT_STEP("multi_stage", hopper_multi_stage),
                MATMUL_16BIT_STEP("large_tile", hopper_large_tile),
            },
        .baseline = {.name = "cuBLAS bf16", .launch = matmul_cublas_16bit},
        .check_shape = matmul_check_16bit_rows,
        .flops = "2*m*n*k",
        .bytes = "2*(m*k+n*k+m*n)",
        .limit = LIMIT_BF16_TENSOR,
        .f16_too = true,
        .bench = {"m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192"},
    },
    {
        .name = "13_tma_wgmma_matmul",
        .operation = "matmul_f32",
        .title = "the same with C in fp32",
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS_TO(BF16, F32),
        .steps =
            {
                MATMUL_F32_OUT_STEP("tma_wgmma_f32", hopper_tma_wgmma),
                MATMUL_F32_OUT_STEP("multi_stage_f32", hopper_multi_stage),
                MATMUL_F32_OUT_STEP("large_tile_f32", hopper_large_tile),
            },
        .baseline = {.name = "cuBLAS bf16 to fp32", .launch = matmul_cublas_f32_out},
        .check_shape = matmul_check_16bit_rows,
        .flops = "2*m*n*k",
        .bytes = "2*(m*k+n*k)+4*m*n",
        .limit = LIMIT_BF16_TENSOR,
        .f16_too = true,
    },
};

int main(int argc, char **argv)
{
    return chapter_main_operations(operations, sizeof operations / sizeof *operations, argc, argv);
}
