// Chapter 14: some warps fetch, others multiply, blocks share what they fetch and stay.
#include "../../common/harness/matmul.h"

matmul_16bit hopper_producer_consumer, hopper_cluster_multicast, hopper_persistent, hopper_tma_store,
    hopper_ping_pong, hopper_stream_k, hopper_few_rows;

static const struct chapter operations[] = {
    {
        .name = "14_warp_specialized_matmul",
        .operation = "matmul",
        .title = "C[m,n] = A[m,k] · B[n,k]ᵀ (+ bias[n]) in bf16 or f16, accumulated in fp32",
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS(BF16),
        .steps =
            {
                MATMUL_16BIT_STEP("producer_consumer", hopper_producer_consumer),
                MATMUL_16BIT_STEP("cluster_multicast", hopper_cluster_multicast),
                MATMUL_16BIT_STEP("persistent", hopper_persistent),
                MATMUL_16BIT_STEP("tma_store", hopper_tma_store),
                MATMUL_16BIT_STEP("ping_pong", hopper_ping_pong),
                MATMUL_16BIT_STEP("stream_k", hopper_stream_k),
                MATMUL_16BIT_STEP("few_rows", hopper_few_rows),
            },
        .baseline = {.name = "cuBLAS bf16", .launch = matmul_cublas_16bit},
        .check_shape = matmul_check_16bit_rows,
        .flops = "2*m*n*k",
        .bytes = "2*(m*k+n*k+m*n)",
        .limit = LIMIT_BF16_TENSOR,
        .f16_too = true,
        .bench = {"m=2048,n=2048,k=2048", "m=4096,n=4096,k=4096", "m=8192,n=8192,k=8192",
                  "m=16384,n=16384,k=16384", "m=4096,n=7168,k=2048", "m=4096,n=2112,k=7168",
                  "m=4096,n=24576,k=1536", "m=3000,n=3000,k=3000", "m=128,n=7168,k=2048",
                  "m=128,n=24576,k=1536", "m=128,n=32768,k=512", "m=64,n=7168,k=16384", "m=16,n=4096,k=4096"},
    },
    {
        .name = "14_warp_specialized_matmul",
        .operation = "matmul_f32",
        .title = "the same with C in fp32",
        .dims = MATMUL_DIMS,
        .tensors = MATMUL_TENSORS_TO(BF16, F32),
        .steps =
            {
                MATMUL_F32_OUT_STEP("producer_consumer_f32", hopper_producer_consumer),
                MATMUL_F32_OUT_STEP("cluster_multicast_f32", hopper_cluster_multicast),
                MATMUL_F32_OUT_STEP("persistent_f32", hopper_persistent),
                MATMUL_F32_OUT_STEP("tma_store_f32", hopper_tma_store),
                MATMUL_F32_OUT_STEP("ping_pong_f32", hopper_ping_pong),
                MATMUL_F32_OUT_STEP("stream_k_f32", hopper_stream_k),
                MATMUL_F32_OUT_STEP("few_rows_f32", hopper_few_rows),
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
