// The launchers of this chapter's steps: defined in the .cu files, called by main.c.
#pragma once

#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// Products of e4m3 with chapter 19's scales, row-major in device memory: each row of A with the B of its group. Only the device
// knows which that is: nobody waits for it.
//
//      D[r] = A[r] · B[group of r]ᵀ       A (M, K), B (groups, N, K), D (M, N) in bf16
//      scale_A (K / 128 rounded up, M rounded up to a multiple of 4), scale_B (groups, N / 128 and K / 128 rounded up)
//
// K is a multiple of 16; A, B and scale_A begin at a multiple of 16 bytes, as TMA needs; else cudaErrorInvalidValue. Rows of D that
// are no group's are not written. What a kernel finds in device memory and must not follow stops it, with cudaErrorLaunchFailure: a
// group that is not there, a negative count, counts that are more than the rows.

// row_group (M): the group of each row, that of a tile's first row for all of its 128; negative: the tile is nobody's.
typedef cudaError_t grouped_rows(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                 const int32_t *row_group, void *D, int M, int N, int K, int groups,
                                 cudaStream_t stream);
grouped_rows aligned_segments;

// counts (groups), each of at least 0: the first counts[0] rows are group 0's, the next counts[1] group 1's, and so on.
typedef cudaError_t counted_rows(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                 const int32_t *counts, void *D, int M, int N, int K, int groups,
                                 cudaStream_t stream);
counted_rows ragged_segments;

// Each group has room for `capacity` rows, M = groups * capacity; the first counts[g] of them are there. `expected`: about how many
// that will be, on which only the tiles' width depends.
typedef cudaError_t masked_rows(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                const int32_t *counts, void *D, int capacity, int expected, int N, int K,
                                int groups, cudaStream_t stream);
masked_rows masked;

// The weights' gradients: D[g] += A[:, g's columns] · B[:, g's columns]ᵀ, D (groups, M, N) in fp32, A (M, K), B (N, K). Group g has
// counts[g] columns, rounded up to a multiple of 128 with zeros; the first group's are the first, and K is a multiple of 128.
// scale_A (K / 128, M rounded up to a multiple of 4), scale_B the same with N, which begins at a multiple of 16 bytes too.
typedef cudaError_t grouped_columns(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                    const int32_t *counts, float *D, int M, int N, int K, int groups,
                                    cudaStream_t stream);
grouped_columns k_groups;

// A layer of a mixture of experts: each token goes to `top` of the experts, each of which is a feed-forward layer with SwiGLU. Row-major
// in device memory, every array at a multiple of 16 bytes; rows = tokens * top, a copy of a token for each of its experts, sorted by
// expert, then by token. hidden and inner are multiples of 16, top is at most 32. Weights are e4m3 with a scale for each square.
struct moe_layer {
    int tokens, hidden, inner, experts, top;
    const void *x;       // (tokens, hidden) bf16
    const float *logits; // (tokens, experts), the router's; none is NaN
    const void *W1,
        *W2; // (experts, 2 inner, hidden), the gate's inner rows first, and (experts, hidden, inner)
    const float *scale_W1, *scale_W2;
    void *y; // (tokens, hidden) bf16

    // What the forward leaves for the backward.
    int32_t *
        expert; // (tokens, top): those with the largest logits, largest first; of equal ones the lower number
    float *weight;   // (tokens, top): softmax over these logits
    int32_t *counts; // (experts): rows
    int32_t *place;  // (tokens, top): the copy's row
    int32_t *source; // (rows): token * top + which of its copies
    void *gate_up;   // (rows, 2 inner) bf16: the first product
    void *out;       // (rows, hidden) bf16: the second product

    // The backward's own.
    const void *dy;          // (tokens, hidden) bf16
    const void *W1_t, *W2_t; // W1 and W2 transposed: (experts, hidden, 2 inner), (experts, inner, hidden)
    const float *scale_W1_t, *scale_W2_t;
    void *dx;         // (tokens, hidden) bf16, without what comes by way of the logits
    float *dlogits;   // (tokens, experts)
    float *dW1, *dW2; // as W1 and W2, fp32: added to
};

// y[t] = sum over t's experts e of weight * W2[e] · SwiGLU(W1[e] · x[t]), with x and what SwiGLU gives in e4m3.
typedef cudaError_t moe_forward(const struct moe_layer *layer, cudaStream_t stream);
moe_forward moe;

// Its gradients. The gradients that are multiplied are e4m3 too, with a scale for each 128 neighbours along what is summed up.
typedef cudaError_t moe_backward(const struct moe_layer *layer, cudaStream_t stream);
moe_backward moe_gradient;

#ifdef __cplusplus
}
#endif
