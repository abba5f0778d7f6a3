// Chapter 2: a tile in shared memory, then in registers, then moved 16 bytes at a time.
#include "../../common/harness/matmul.h"
#include "launchers.h"

static const struct step steps[] = {
    STEP(1, matmul_f32, smem_tile),   STEP(2, matmul_f32, register_tile),
    STEP(3, matmul_f32, wide_copies), STEP(4, matmul_f32, wide_fragments),
    STEP(5, matmul_f32, prefetch),    STEP(6, matmul_f32, fragments_ahead),
    STEP(7, matmul_f32, large_tile),  {0},
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
    .bench = {"m=4096,n=4096,k=4096", "m=4096,n=4096,k=1024"},
}};

CHAPTER(operations)
