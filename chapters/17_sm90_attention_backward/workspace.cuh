// What the three kernels of a backward pass hand each other in steps 1 to 5: statistics of rows, and dQ while it is summed up.
#pragma once
#include "../../common/device/sm90_attention.cuh"
#include "plan.h"

constexpr int TILE_Q = 64; // queries in a tile: the rows of a wgmma

// What BackwardPlan says of a workspace with tiles of TILE_Q rows and sequences of equal lengths.
//
// dQ_sum is summed up in the order in which wgmma leaves it in registers, for nobody but the postprocess reads it: a tile is two halves of
// D / 2 columns, one for each consumer, and of a half, thread t has 16 bytes at [0][t], [1][t], ...: 512 bytes a warp, in one piece.
struct Workspace {
    float *LSE_log2; // (heads, batch, q_padded): LSE log2(e)
    float *dPsum;    // (heads, batch, q_padded): the sum of dO O over a row
    float4 *dQ_sum;  // (heads, batch, q_padded / TILE_Q, 2, D / 16, 128): dQ / scale
    int batches, q_padded;

    __device__ Workspace(const attention_backward &a)
    {
        batches = a.forward.batch;
        q_padded = tiles_in(a.forward.q_len, TILE_Q) * TILE_Q;
        const size_t rows = (size_t)batches * a.forward.heads * q_padded;
        LSE_log2 = (float *)a.workspace;
        dPsum = LSE_log2 + rows;
        dQ_sum = (float4 *)(dPsum + rows);
    }

    // The place of a row.
    __device__ size_t row(int batch, int head, int row) const
    {
        return ((size_t)head * batches + batch) * q_padded + row;
    }

    // Where thread 0 has the first 16 bytes of a half of the tile that begins at first_row.
    template <int D>
    __device__ float4 *dQ_half(int batch, int head, int first_row, int half) const
    {
        return dQ_sum + row(batch, head, first_row) * (D / 4) + half * (TILE_Q * D / 8);
    }
};

#ifdef __cplusplus
extern "C" {
#endif

// The kernels before and after the products, preprocess and postprocess of plan.h. Each is started in `stream` and returns the
// launch's error, cudaErrorInvalidValue for sizes that it refuses.
cudaError_t backward_preprocess(const struct attention_backward *a, cudaStream_t stream);
cudaError_t backward_postprocess(const struct attention_backward *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
