#include "baseline.h"

#include <cuda_fp8.h>

#include "../../common/device/scratch.h"
#include "../../common/device/types.cuh"
#include "../15_sm90_attention_forward/launchers.h"

static __global__ void widen(const __nv_fp8_e4m3 *src, __nv_bfloat16 *dst, size_t count)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) dst[i] = __nv_bfloat16(float(src[i]));
}

static cudaError_t widened(const void *src, __nv_bfloat16 *dst, size_t count, cudaStream_t stream)
{
    widen<<<(unsigned)((count - 1) / 256 + 1), 256, 0, stream>>>((const __nv_fp8_e4m3 *)src, dst, count);
    return cudaGetLastError();
}

extern "C" cudaError_t attention_in_bf16(const struct attention *e4m3, cudaStream_t stream)
{
    static struct attention kept; // sizes 0: nothing is
    struct attention a = *e4m3;
    a.dtype = BF16;
    const bool same = a.batch == kept.batch && a.q_len == kept.q_len && a.k_len == kept.k_len &&
                      a.heads == kept.heads && a.kv_heads == kept.kv_heads && a.head_dim == kept.head_dim;
    if (!same) {
        // Multiples of 64 elements, 128 bytes: every part begins where TMA may load it.
        const size_t q_count = (size_t)a.batch * a.q_len * a.heads * a.head_dim,
                     kv_count = (size_t)a.batch * a.k_len * a.kv_heads * a.head_dim;
        void *scratch;
        kept = {};
        cudaError_t error = get_scratch(sizeof(__nv_bfloat16) * 2 * (q_count + kv_count) +
                                            sizeof(float) * a.batch * a.heads * (size_t)a.q_len,
                                        &scratch);
        __nv_bfloat16 *Q = (__nv_bfloat16 *)scratch, *O = Q + q_count, *K = O + q_count, *V = K + kv_count;
        if (error == cudaSuccess) error = widened(a.Q, Q, q_count, stream);
        if (error == cudaSuccess) error = widened(a.K, K, kv_count, stream);
        if (error == cudaSuccess) error = widened(a.V, V, kv_count, stream);
        if (error != cudaSuccess) return error;
        a.Q = Q;
        a.K = K;
        a.V = V;
        a.O = O;
        a.LSE = (float *)(V + kv_count);
        kept = a;
    }
    kept.causal = a.causal;
    return tma_store(&kept, stream);
}
