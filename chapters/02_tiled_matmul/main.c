// Chapter 2: a tile in shared memory, then in registers, then moved 16 bytes at a time.
#include "../../common/harness/matmul.h"

matmul tiled_smem, tiled_registers, wide_copies, wide_fragments, prefetch, fragments_ahead, large_tile;

static const struct chapter chapter = {
    .name = "02_tiled_matmul",
    .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in fp32",
    .dims = MATMUL_DIMS,
    .tensors = MATMUL_TENSORS(F32),
    .steps =
        {
            MATMUL_STEP("smem_tile", tiled_smem),
            MATMUL_STEP("register_tile", tiled_registers),
            MATMUL_STEP("wide_copies", wide_copies),
            MATMUL_STEP("wide_fragments", wide_fragments),
            MATMUL_STEP("prefetch", prefetch),
            MATMUL_STEP("fragments_ahead", fragments_ahead),
            MATMUL_STEP("large_tile", large_tile),
        },
    .baseline = {.name = "cuBLAS SGEMM", .launch = matmul_cublas_f32},
    .flops = "2*m*n*k",
    .bytes = "4*(m*k+n*k+m*n)",
    .limit = LIMIT_FP32,
    .bench = {"m=4096,n=4096,k=4096", "m=4096,n=4096,k=1024"},
};

int main(int argc, char **argv)
{
    return chapter_main(&chapter, argc, argv);
}
