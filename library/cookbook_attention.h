// Attention, forward and backward, from the kernels of chapters 12, 15, 16 and 17, for programs of one's own: this header and
// libcookbook_attention.a (make library); link with -lcudart -lstdc++ -lm. C and C++.
//
//      O = softmax(cap(scale Q Kᵀ)) V for each head of each sequence, scale = 1 / sqrt(head_dim)
//
// Query head h reads K/V head h / (heads / kv_heads). Query i of a sequence of q queries and k keys is at place p = i + k - q and sees the
// keys p - left to p + right: left = COOKBOOK_UNBOUNDED and right = 0 is causal, both COOKBOOK_UNBOUNDED no mask.
#pragma once
#include <cuda_runtime_api.h>

enum cookbook_type { COOKBOOK_BF16, COOKBOOK_F16 };
enum { COOKBOOK_UNBOUNDED = (1 << 30) - 1 };

// Arrays are in device memory and begin at multiples of 16 bytes. A field that is 0 or NULL is left out, where that is allowed.
struct cookbook_attention {
    enum cookbook_type type; // of Q, K, V, O and their gradients
    int batch, heads, kv_heads;
    int head_dim;     // 64, 128 or 256
    int q_len, k_len; // of each sequence; with cu_q and cu_k of the longest
    const void *Q;    // (batch, q_len, heads, head_dim); with cu_q (q_total, heads, head_dim)
    const void *K;    // (batch, k_len, kv_heads, head_dim); with cu_k (k_total, kv_heads, head_dim)
    const void *V;    // as K
    void *O;          // as Q: written by forward, read by backward; 0 in rows that see no key
    float *LSE; // (batch, heads, q_len), with cu_q (heads, q_total): the log of a row's sum of exp, likewise
    int left, right; // the window
    float softcap;   // c > 0: cap(s) = c tanh(s / c)
    const int *cu_q,
        *cu_k; // (batch + 1), both or neither: where each sequence begins, and where the last one ends
    int q_total, k_total; // the rows of Q and of K with them
    const void *dO;       // as Q; NULL where no backward pass is wanted
    void *dQ, *dK, *dV;   // as Q, K and V
    int deterministic;    // backward: the same bits in every run
    void *workspace;      // cookbook_attention_workspace_bytes(); NULL when that is 0
};

#ifdef __cplusplus
extern "C" {
#endif

// How many bytes of device memory the calls below take besides the arrays: with dO, enough for both. Everything but `workspace` is to
// be there; 0 for what they would refuse.
size_t cookbook_attention_workspace_bytes(const struct cookbook_attention *a);

// Starts the forward or the backward pass in `stream`. Returns NULL, or else, as a string that stays, what was wrong: an option
// or a size and what it would have to be, what this GPU has no kernel for, or CUDA's name of an error. Nothing ends the program.
//
// A GPU of compute capability 9.0 serves everything; others from 8.0 on the forward pass with head_dim 64 and 128, causal or not, of
// sequences of equal lengths. Calls with the same workspace, or at the same time in two streams, must not overlap.
const char *cookbook_attention_forward(const struct cookbook_attention *a, cudaStream_t stream);
const char *cookbook_attention_backward(const struct cookbook_attention *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
