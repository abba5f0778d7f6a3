// Chapter 16, step 5: sequences of different lengths, one behind the other.
//
// Question: a batch of sequences padded to the longest multiplies zeros. Packed, sequence i is rows cu[i] to cu[i + 1] of Q,
// K and V. But a box of TMA ends where the tensor ends, not where a sequence does: who keeps a tile from the neighbour's
// rows?
//
// The tensor map, by a trick (tensor_map_rows): two of its dimensions count rows, one of them is bounded, and the coordinates
// shift that bound to the sequence's end. Past it zeros are read, so that what the neighbour has there (a NaN, even) never
// meets P = 0, and nothing is written. One map serves every sequence, and so does it the pages and caches of the steps below.
//
// find_sequence: which sequence has tile t? A warp adds up the tiles of 32 sequences at a time, a lane each, from where
// it was. It is done by a warp of its own, one tile ahead.
//
// Grows from: step 4 (head_dims).
// Code: kernel.cuh, find_sequence and find_work; common/device/tensor_map.h, tensor_map_rows.
// Run: make chapter-16 OP=varlen
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t varlen(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, VARLEN, stream);
}
