// What both directions of the layer share: rows that go back to their tokens.
#pragma once
#include "../../common/device/pack.cuh"
#include "launchers.h"

static inline bool moe_sizes_fit(const moe_layer &layer)
{
    return layer.tokens > 0 && layer.experts > 0 && layer.top > 0 && layer.top <= 32 &&
           layer.top <= layer.experts && layer.hidden > 0 && layer.hidden % 16 == 0 && layer.inner > 0 &&
           layer.inner % 16 == 0 && (long long)layer.tokens * layer.top <= INT32_MAX - 1024LL * layer.experts;
}

// Memory that is handed out piece by piece; from NULL, only counted.
struct Arena {
    char *memory;
    size_t used = 0;

    template <typename T>
    T *take(size_t count)
    {
        T *piece = reinterpret_cast<T *>(memory + used);
        used += (count * sizeof(T) + 255) / 256 * 256;
        return piece;
    }
};

constexpr int UNPERMUTE_THREADS = 256;

// out[t] = the sum of t's rows, each times its weight, or times 1 if there are none: in the order of its experts, so that the same
// rows give the same bits. A thread has 8 columns.
static __global__ void __launch_bounds__(UNPERMUTE_THREADS)
    unpermute_kernel(const __nv_bfloat16 *rows, // (tokens * top, hidden)
                     const int *place,          // (tokens, top)
                     const float *weight,       // (tokens, top) or NULL
                     __nv_bfloat16 *out,        // (tokens, hidden)
                     int tokens, int hidden, int top)
{
    const int packs = hidden / PACK<__nv_bfloat16>;
    const size_t i = (size_t)blockIdx.x * UNPERMUTE_THREADS + threadIdx.x;
    const size_t token = i / packs;
    const int col = (int)(i % packs) * PACK<__nv_bfloat16>;
    if (token >= (size_t)tokens) return;
    float sum[8] = {};
    for (int copy = 0; copy < top; copy++) {
        const float w = weight ? weight[token * top + copy] : 1.0f;
        float value[8];
        unpack(value, *(const uint4 *)(rows + (size_t)place[token * top + copy] * hidden + col),
               __nv_bfloat16());
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += w * value[j];
    }
    *(uint4 *)(out + token * hidden + col) = make_pack(sum, __nv_bfloat16());
}

static inline cudaError_t unpermute(const moe_layer &layer, const void *rows, const float *weight, void *out,
                                    cudaStream_t stream)
{
    const long long packs = (long long)layer.tokens * (layer.hidden / PACK<__nv_bfloat16>);
    unpermute_kernel<<<(unsigned)((packs - 1) / UNPERMUTE_THREADS + 1), UNPERMUTE_THREADS, 0, stream>>>(
        (const __nv_bfloat16 *)rows, layer.place, weight, (__nv_bfloat16 *)out, layer.tokens, layer.hidden,
        layer.top);
    return cudaGetLastError();
}
