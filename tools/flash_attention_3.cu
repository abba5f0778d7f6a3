// FlashAttention-3's kernels (github.com/Dao-AILab/flash-attention, hopper/) behind two C functions, for bench_attention.py: what its
// flash_api.cpp does around a launch, without PyTorch. Tensors are as in common/device/attention.h, with as many heads of K and V as of Q and
// as many keys as queries.
#include <cmath>

#include <cuda_runtime.h>
#include <cutlass/numeric_types.h>

#include "flash.h"

// What all its kernels are told: dense tensors, and no tile of keys in parts.
static void set_sizes(Flash_fwd_params &p, int batch, int len, int heads, int head_dim, bool causal)
{
    p.b = p.b_k = batch;
    p.h = p.h_k = heads;
    p.seqlen_q = p.seqlen_k = p.seqlen_q_rounded = p.seqlen_k_rounded = len;
    p.total_q = p.total_k = batch * len;
    p.d = p.d_rounded = p.dv = p.dv_rounded = head_dim;
    p.scale_softmax = 1 / std::sqrt((float)head_dim);
    p.p_dropout = p.rp_dropout = 1;
    p.p_dropout_in_uint8_t = 255;
    p.is_causal = causal;
    p.window_size_left = len - 1;
    p.window_size_right = causal ? 0 : len - 1;
    p.num_splits = 1;
    p.arch = 90;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = head_dim;
    p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = (int64_t)heads * head_dim;
    p.q_batch_stride = p.k_batch_stride = p.v_batch_stride = p.o_batch_stride =
        (int64_t)len * heads * head_dim;
    p.v_dim_stride = 1;
    int device;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&p.num_sm, cudaDevAttrMultiProcessorCount, device);
}

template <typename T>
static void run_forward(Flash_fwd_params &p, cudaStream_t stream)
{
    if (p.d == 64) run_mha_fwd_<90, T, 64, 64, false, false, false, false>(p, stream);
    if (p.d == 128) run_mha_fwd_<90, T, 128, 128, false, false, false, false>(p, stream);
    if (p.d == 256) run_mha_fwd_<90, T, 256, 256, false, false, false, false>(p, stream);
}

// scale_Q, scale_K, scale_V: (batch, heads), or NULL in bf16. counter: one int in device memory, of tiles; the causal kernels begin it at 0.
extern "C" int fa3_forward(bool e4m3, bool causal, int batch, int len, int heads, int head_dim, void *Q,
                           void *K, void *V, void *O, float *LSE, float *scale_Q, float *scale_K,
                           float *scale_V, int *counter, cudaStream_t stream)
{
    Flash_fwd_params p = {};
    set_sizes(p, batch, len, heads, head_dim, causal);
    p.is_e4m3 = e4m3;
    p.is_bf16 = !e4m3;
    p.q_ptr = Q, p.k_ptr = K, p.v_ptr = V, p.o_ptr = O, p.softmax_lse_ptr = LSE;
    p.q_descale_ptr = scale_Q, p.k_descale_ptr = scale_K, p.v_descale_ptr = scale_V;
    p.q_descale_batch_stride = p.k_descale_batch_stride = p.v_descale_batch_stride = heads;
    p.q_descale_head_stride = p.k_descale_head_stride = p.v_descale_head_stride = 1;
    p.tile_count_semaphore = counter;
    if (causal) cudaMemsetAsync(counter, 0, sizeof *counter, stream);
    if (e4m3)
        run_forward<cutlass::float_e4m3_t>(p, stream);
    else
        run_forward<cutlass::bfloat16_t>(p, stream);
    return cudaGetLastError();
}

// In bf16. dQ_sum: (batch, heads, rows, head_dim) in fp32, statistics: 2 times (batch, heads, rows), with rows = len and up to 127 more.
// counters: an int for each 64 queries of each head.
extern "C" int fa3_backward(bool causal, int batch, int len, int heads, int head_dim, void *Q, void *K,
                            void *V, void *O, float *LSE, void *dO, void *dQ, void *dK, void *dV,
                            float *dQ_sum, float *statistics, int *counters, cudaStream_t stream)
{
    Flash_bwd_params p = {};
    set_sizes(p, batch, len, heads, head_dim, causal);
    // The kernels' tiles: as flash_api.cpp knows them.
    const int block_m = head_dim == 64 ? 128 : head_dim == 128 && !causal ? 80 : 64;
    const int block_n = head_dim == 256 ? 80 : 128;
    p.seqlen_q_rounded = (len + block_m - 1) / block_m * block_m;
    p.seqlen_k_rounded = (len + block_n - 1) / block_n * block_n;
    p.is_bf16 = true;
    p.q_ptr = Q, p.k_ptr = K, p.v_ptr = V, p.o_ptr = O, p.softmax_lse_ptr = LSE;
    p.do_ptr = dO, p.dq_ptr = dQ, p.dk_ptr = dK, p.dv_ptr = dV;
    p.do_head_stride = p.dq_head_stride = p.dk_head_stride = p.dv_head_stride = p.q_head_stride;
    p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = p.q_row_stride;
    p.do_batch_stride = p.dq_batch_stride = p.dk_batch_stride = p.dv_batch_stride = p.q_batch_stride;
    p.dq_accum_ptr = dQ_sum;
    p.dsoftmax_sum = statistics;
    p.softmax_lse_log2_ptr = statistics + (size_t)batch * heads * p.seqlen_q_rounded;
    p.dq_semaphore = counters;
    if (head_dim == 64) run_mha_bwd_<90, cutlass::bfloat16_t, 64, false>(p, stream);
    if (head_dim == 128) run_mha_bwd_<90, cutlass::bfloat16_t, 128, false>(p, stream);
    if (head_dim == 256) run_mha_bwd_<90, cutlass::bfloat16_t, 256, false>(p, stream);
    return cudaGetLastError();
}
