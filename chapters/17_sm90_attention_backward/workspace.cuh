// What the three kernels of a backward pass hand each other: statistics of rows, and dQ while it is summed up.
#pragma once
#include "../../common/device/sm90_attention.cuh"
#include "backward.h"

constexpr int TILE_Q = 64; // queries in a tile: the rows of a wgmma

// Rows are padded to whole tiles, so that no kernel need ask where the last one ends: a padded row has LSE_log2 = infinity, and so
// has one that sees no key, for P = 2^(S - infinity) = 0 without a mask.
//
// dQ_sum is summed up in the order in which wgmma leaves it in registers, for nobody but the postprocess reads it: a tile is two halves of
// D / 2 columns, one for each consumer, and of a half, thread t has 16 bytes at [0][t], [1][t], ...: 512 bytes a warp, in one piece.
struct Workspace {
    float *LSE_log2; // (batch, heads, q_padded): LSE log2(e)
    float *dPsum;    // (batch, heads, q_padded): the sum of dO O over a row
    float4 *dQ_sum;  // (batch, heads, q_padded / TILE_Q, 2, D / 16, 128): dQ / scale
    int q_padded;

    __host__ __device__ Workspace(const attention_backward &a)
    {
        q_padded = ((a.forward.q_len - 1) / TILE_Q + 1) * TILE_Q;
        LSE_log2 = (float *)a.workspace;
        dPsum = LSE_log2 + rows(a.forward);
        dQ_sum = (float4 *)(dPsum + rows(a.forward));
    }

    __host__ __device__ size_t rows(const attention &a) const { return (size_t)a.batch * a.heads * q_padded; }

    // The place of a row; head counts over the batch.
    __device__ size_t row(size_t head, int row) const { return head * q_padded + row; }

    // Where thread 0 has the first 16 bytes of a half of the tile that begins at first_row.
    template <int D>
    __device__ float4 *dQ_half(size_t head, int first_row, int half) const
    {
        return dQ_sum + row(head, first_row) * (D / 4) + half * (TILE_Q * D / 8);
    }
};

#ifdef __cplusplus
extern "C" {
#endif

// The kernel before the products: LSE_log2, dPsum, and zeros in dQ_sum. The one after them: dQ = scale dQ_sum, in the type of Q.
// Each is started in `stream` and returns the launch's error, cudaErrorInvalidValue for sizes that it refuses.
cudaError_t backward_preprocess(const struct attention_backward *a, cudaStream_t stream);
cudaError_t backward_postprocess(const struct attention_backward *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
