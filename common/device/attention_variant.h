// What one attention with variants is: the tensors and options that the launchers of chapters 16 and 17 take.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dtype.h"

enum { ATTENTION_UNBOUNDED = (1 << 30) - 1 };

// O = softmax(cap(scale * Q Kᵀ)) V for each head of each sequence, scale = 1 / sqrt(head_dim); query head h reads K/V head
// h / (heads / kv_heads). Query i of a sequence is at place p = i + k - q of its k keys (the last query at the last key), and
// sees the keys p - left to p + right: right = 0 is causal.
//
// A field that is 0 or NULL is a variant left out; what else NULL or 0 would mean is said there. Arrays are in device memory.
struct attention_variant {
    enum dtype dtype; // BF16 or F16: of Q, K, V, O, K_new, V_new
    int batch, heads, kv_heads;
    int head_dim, v_head_dim; // of Q and K; of V and O: a pair of ATTENTION_HEAD_DIMS
    int q_len, k_len;         // of each sequence; with cu_q, cu_k or used_k of the longest
    const void *Q;            // (batch, q_len, heads, head_dim); with cu_q (q_total, heads, head_dim)
    const void *K;            // (batch, k_len, kv_heads, head_dim); with cu_k (k_total, …), with page_table
                              // (pages, page_size, …)
    const void *V;            // as K, with v_head_dim
    void *O;                  // as Q, with v_head_dim; 0 in rows that see no key
    float *LSE; // (batch, heads, q_len), with cu_q (heads, q_total); -inf in rows that see no key

    int left, right; // the window; ATTENTION_UNBOUNDED: to the first, to the last key. 0: no further than p
    float softcap;   // c > 0: cap(s) = c tanh(s / c)
    const float *sinks; // (heads): a score of each head that has no value, only a place in the sum

    const int *cu_q, *cu_k; // (batch + 1): where each sequence begins in Q, in K, and where the last one ends
    int q_total, k_total;   // the rows of Q with cu_q, of K and V with cu_k
    const int *used_k;      // (batch): how many keys of k_len each sequence has
    const int *page_table;  // (batch, pages_per_sequence): which page has keys i * page_size and on
    int pages, page_size, pages_per_sequence;

    const void *K_new; // (batch, new_len, kv_heads, head_dim): go behind the used_k keys of K, which
                       // append_kv writes, as it does V
    const void *V_new; // (batch, new_len, kv_heads, v_head_dim)
    int new_len;
    const float *rotary_cos; // (rotary_len, rotary_dim / 2): K_new and Q are turned by their places,
    const float *rotary_sin; // which must be below rotary_len
    int rotary_dim, rotary_len;
    bool rotary_interleaved; // pairs (0, 1), (2, 3), …; else (0, rotary_dim / 2), (1, rotary_dim / 2 + 1), …

    void *workspace; // attention_workspace_bytes(), at a multiple of 16; NULL when that is 0
};
