// Chapter 16, step 9: the new keys move into the cache first, turned to their places.
//
// Question: each token that is generated brings a key and a value of its own. They belong into the cache, and with rotary
// embeddings the key must be turned by its place there, the query likewise. Whose work is that?
//
// A small kernel's, before the attention: it moves some KB where the attention reads MB. A warp takes a head of a row: of K_new
// and V_new to its place in K and V, through the page table where there is one, and of Q, turned, into the workspace. In the
// attention kernel itself (as FlashAttention-3 has it) the new keys would be read by the consumers while other blocks still
// want the same cache: between two kernels of a stream nobody has to wait for anybody.
//
// Grows from: step 8 (paged_kv).
// Run: make chapter-16 OP=append_kv
#include <climits>

#include "../../common/device/types.cuh"
#include "launchers.h"
#include "plan.h"

constexpr int APPEND_WARPS = 4; // of a block

// A row's head of `dim` numbers from src to dst, its first rotary_dim turned by its place: pairs (x, y) become
// (x cos - y sin, x sin + y cos).
template <typename T>
static __device__ void turn_head(const attention_variant &v, const T *src, T *dst, int dim, int place,
                                 int lane)
{
    const int turned = v.rotary_cos ? v.rotary_dim : 0, half = turned / 2;
    for (int i = lane; i < half; i += 32) {
        const int x = v.rotary_interleaved ? 2 * i : i, y = v.rotary_interleaved ? 2 * i + 1 : i + half;
        const float cos = v.rotary_cos[(size_t)place * half + i],
                    sin = v.rotary_sin[(size_t)place * half + i];
        const float src_x = src[x], src_y = src[y];
        dst[x] = T(__fmaf_rn(src_x, cos, -__fmul_rn(src_y, sin))); // spelled out: the result is then one, not
        dst[y] = T(__fmaf_rn(src_x, sin, __fmul_rn(src_y, cos)));  // whichever the compiler makes of it
    }
    for (int i = turned + lane; i < dim; i += 32) dst[i] = src[i];
}

template <typename T>
static __global__ void __launch_bounds__(APPEND_WARPS * 32)
    append_kernel(const __grid_constant__ attention_variant v, T *Q_turned)
{
    const int lane = threadIdx.x % 32;
    const int64_t new_heads = (int64_t)v.batch * v.new_len * v.kv_heads;
    const int64_t q_heads = v.rotary_cos ? (int64_t)v.batch * v.q_len * v.heads : 0;
    int64_t i = (int64_t)blockIdx.x * APPEND_WARPS + threadIdx.x / 32;
    if (i < new_heads) {
        const int head = i % v.kv_heads, row = i / v.kv_heads % v.new_len,
                  sequence = i / v.kv_heads / v.new_len;
        const int place = v.used_k[sequence] + row;
        int64_t key = (int64_t)sequence * v.k_len + place;
        if (v.page_table) {
            const int page = v.page_table[(size_t)sequence * v.pages_per_sequence + place / v.page_size];
            key = (int64_t)page * v.page_size + place % v.page_size;
        }
        turn_head(v, (const T *)v.K_new + i * v.head_dim, (T *)v.K + (key * v.kv_heads + head) * v.head_dim,
                  v.head_dim, place, lane);
        T *V = (T *)v.V + (key * v.kv_heads + head) * v.v_head_dim;
        for (int j = lane; j < v.v_head_dim; j += 32) V[j] = ((const T *)v.V_new)[i * v.v_head_dim + j];
        return;
    }
    i -= new_heads;
    if (i >= q_heads) return;
    const int query = i / v.heads % v.q_len, sequence = i / v.heads / v.q_len;
    const int place = max(v.used_k[sequence] + v.new_len - v.q_len + query, 0);
    turn_head(v, (const T *)v.Q + i * v.head_dim, Q_turned + i * v.head_dim, v.head_dim, place, lane);
}

size_t turned_bytes(const attention_variant &v)
{
    return v.rotary_cos ? (size_t)v.batch * v.q_len * v.heads * v.head_dim * 2 : 0;
}

extern "C" cudaError_t append_kv(const struct attention_variant *v, cudaStream_t stream)
{
    if (attention_refused(v) || (v->rotary_cos && !v->workspace)) return cudaErrorInvalidValue;
    if (v->K_new) {
        const int64_t heads = (int64_t)v->batch * v->new_len * v->kv_heads +
                              (v->rotary_cos ? (int64_t)v->batch * v->q_len * v->heads : 0);
        const int64_t blocks = (heads - 1) / APPEND_WARPS + 1;
        if (blocks > INT_MAX) return cudaErrorInvalidValue;
        if (v->dtype == F16)
            append_kernel<<<(int)blocks, APPEND_WARPS * 32, 0, stream>>>(*v, (__half *)v->workspace);
        else
            append_kernel<<<(int)blocks, APPEND_WARPS * 32, 0, stream>>>(*v, (__nv_bfloat16 *)v->workspace);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess) return error;
    }
    return launch_attention(*v, APPEND_KV, stream);
}
