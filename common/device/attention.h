// What one attention is: the tensors and sizes that the launchers of the attention chapters and their baseline take.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "dtype.h"

// O = softmax(scale * Q Kᵀ) V for each head, scale = 1 / sqrt(head_dim). Query head h reads K/V head
// h / (heads / kv_heads). Causal: the last query sees every key, and each query before it one key less.
struct attention {
    enum dtype dtype; // BF16 or F16: of Q, K, V and O
    const void *Q;    // (batch, q_len, heads, head_dim)
    const void *K;    // (batch, k_len, kv_heads, head_dim)
    const void *V;    // (batch, k_len, kv_heads, head_dim)
    void *O;          // (batch, q_len, heads, head_dim); 0 in rows that see no key
    float *LSE;       // (batch, heads, q_len), natural log of the sum of exp; -inf in rows that see no key
    int batch, q_len, k_len, heads, kv_heads;
    int head_dim; // 64 or 128
    bool causal;
};

// A launcher: starts it in `stream` and returns the launch's error, cudaErrorInvalidValue for sizes that it refuses.
typedef cudaError_t attention_launcher(const struct attention *attention, cudaStream_t stream);
