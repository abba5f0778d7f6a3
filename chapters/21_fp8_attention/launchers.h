// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stdbool.h>

#include "../../common/device/attention.h"

// O = softmax(scale_Q scale_K scale * Q Kᵀ) scale_V V, in numbers of 8 bits and what they are multiplied by.
struct fp8_attention {
    struct attention a;                       // dtype E4M3: of Q, K and V; O is in bf16
    const float *scale_Q, *scale_K, *scale_V; // above 0, of the shapes below
};

// x, in 8 bits and a scale for each 128 rows of a head; with `rotate` first each row times signs and a Hadamard matrix
// (Sylvester's: + where row and column number have an even number of bits in common) / sqrt(head_dim).
struct rotation {
    const void *x;      // (batch, len, heads, head_dim), bf16
    const float *signs; // (head_dim), each 1 or -1
    void *out;          // (batch, len, heads, head_dim), e4m3
    float *scale;       // (batch, heads, len / 128 rounded up)
    int batch, len, heads, head_dim;
    bool rotate;
};

#ifdef __cplusplus
extern "C" {
#endif

// head_dim is 64, 128 or 256, for two_levels and per_block 64 or 128; else cudaErrorInvalidValue.
//
//      transposed_v          V is (batch, kv_heads, head_dim, k_len rounded up to a multiple of 16), zeros behind k_len;
//                            scales (batch, kv_heads)
//      transposed_inside,    V as in common/device/attention.h; scales (batch, kv_heads)
//      two_levels
//      per_block             scale_Q (batch, heads, q_len / 128 rounded up), scale_K and scale_V (batch, kv_heads, k_len / 128
//                            rounded up): one for each 128 rows
typedef cudaError_t fp8_attention_launcher(const struct fp8_attention *, cudaStream_t stream);
fp8_attention_launcher transposed_v, transposed_inside, two_levels, per_block;

// head_dim is 64, 128 or 256; x, signs and out begin at multiples of 16 bytes; else cudaErrorInvalidValue.
typedef cudaError_t rotation_launcher(const struct rotation *, cudaStream_t stream);
rotation_launcher rotated;

#ifdef __cplusplus
}
#endif
