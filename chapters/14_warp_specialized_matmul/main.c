// Chapter 14: some warps fetch, others multiply, blocks share what they fetch and stay.
#include "../../common/harness/matmul.h"
#include "launchers.h"

static const struct step steps[] = {
    STEP(1, matmul_16bit, producer_consumer),
    STEP(2, matmul_16bit, cluster_multicast),
    STEP(3, matmul_16bit, persistent),
    STEP(4, matmul_16bit, tma_store),
    STEP(5, matmul_16bit, ping_pong),
    STEP(6, matmul_16bit, stream_k),
    STEP(7, matmul_16bit, few_rows),
    STEP(8, matmul_16bit, few_tiles),
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
        .bench = {"m=2048,n=2048,k=2048", "m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192",
                  "m=16384,n=16384,k=16384", "m=4096,n=7168,k=2048", "m=4096,n=2112,k=7168",
                  "m=4096,n=24576,k=1536", "m=3000,n=3000,k=3000", "m=128,n=7168,k=2048",
                  "m=128,n=24576,k=1536", "m=128,n=32768,k=512", "m=64,n=7168,k=16384", "m=16,n=4096,k=4096",
                  "m=512,n=512,k=512", "m=768,n=768,k=768", "m=1024,n=1024,k=1024", "m=1536,n=1536,k=1536",
                  "m=256,n=4096,k=4096", "m=1,n=8192,k=8192"},
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
