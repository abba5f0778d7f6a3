// Chapter 17, step 10: sequences of different lengths, one behind the other.
//
// Question: chapter 16's blocks add up the tiles of the sequences before to find their own. Blocks of this kernel have one tile each and
// end: can they find it without adding up, and can the statistics of rows, padded to tiles, find their place too?
//
// Sequence i, whose rows begin at cu[i], begins with tile cu[i] / tile + i (plan.h): as many tiles as the rows before it fill, and one
// more for every sequence that could have left one half full. That never falls behind the true count, nor ahead of it by more than a
// tile a sequence, needs no sum, and rises: a block finds its sequence by bisection. Numbers between two sequences are nobody's, and
// their blocks end at once. The same numbers give a sequence's padded rows their place in the workspace.
//
// Tensor maps end where a sequence does, by chapter 16's trick (tensor_map_ragged).
//
// Grows from: step 9 (softcap).
// Code: plan.h, first_tile, find_sequence; kernel.cuh, find_work.
// Run: make chapter-17 OP=varlen STEP=varlen
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t varlen(const attention_variant_backward *b, cudaStream_t stream)
{
    return launch_backward(*b, VARLEN, stream);
}
