// What one attention is: the tensors and sizes that the launchers of the attention chapters and their baseline take.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

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
    int head_dim; // each chapter says which it takes
    bool causal;
};

// Whether the sizes are what every launcher takes, and the rows begin at multiples of 16 bytes.
static inline bool attention_sizes_valid(const struct attention *a)
{
    const uintptr_t bits = (uintptr_t)a->Q | (uintptr_t)a->K | (uintptr_t)a->V | (uintptr_t)a->O;
    return a->Q && a->K && a->V && a->O && a->LSE && bits % 16 == 0 && a->q_len > 0 && a->k_len > 0 &&
           a->q_len <= 1 << 30 && a->k_len <= 1 << 30 && a->batch > 0 && a->heads > 0 && a->kv_heads > 0 &&
           a->heads % a->kv_heads == 0 && a->batch <= 65535 && a->heads <= 65535;
}

// A launcher: starts it in `stream` and returns the launch's error, cudaErrorInvalidValue for sizes that it refuses.
typedef cudaError_t attention_launcher(const struct attention *attention, cudaStream_t stream);
