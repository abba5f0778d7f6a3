// Chapter 17, step 8: a window of keys before and behind each query.
//
// Question: chapter 16 let a block of queries load the tiles of keys that they see. Here a block has keys. Which queries see them?
//
// Query i sees the keys from i + shift - left to i + shift + right, so key j is seen by the queries from j - shift - right to
// j - shift + left: the same window, its sides exchanged. find_work takes the tiles of queries from the first of the block's keys to
// the last; sees_all says which of them need no mask. Causal is right = 0.
//
// With `left` the tiles of dQ no longer begin with the first keys, but the order of the sums (step 7) only asks for the last.
//
// Grows from: step 7 (deterministic).
// Code: kernel.cuh, find_work, sees_all and Keys' masks.
// Run: make chapter-17 OP=window STEP=window
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t window(const attention_variant_backward *b, cudaStream_t stream)
{
    return launch_backward(*b, WINDOW, stream);
}
