// What one attention is: the tensors and sizes that every step's launcher takes.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>

// O = softmax(scale * Q Kᵀ) V for each head, scale = 1 / sqrt(head_dim). Query head h reads K/V head
// h / (heads / kv_heads). Causal: the last query sees every key, and each query before it one key less.
struct attention {
    const void *Q; // (batch, q_len, heads, head_dim), bf16 or f16, as K, V and O
    const void *K; // (batch, k_len, kv_heads, head_dim)
    const void *V; // (batch, k_len, kv_heads, head_dim)
    void *O;       // (batch, q_len, heads, head_dim); 0 in rows that see no key
    float *LSE;    // (batch, heads, q_len), natural log of the sum of exp; -inf in rows that see no key
    int batch, q_len, k_len, heads, kv_heads;
    int head_dim; // 64 or 128
    bool causal, f16;
};
