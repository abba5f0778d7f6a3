// Chapter 16, step 1: a window of keys before and behind each query.
//
// Question: chapter 15 knows two masks, none and causal. A model with local attention sees `left` keys back: what of the
// kernel has to know?
//
// Three places, and none in the loop's products. describe_work: the tiles of keys that some query of the block sees, no
// others are loaded: work falls from q x k to q x (left + right). mask_tile: two limits instead of one. consume: which tiles
// every row sees whole, so that they are not masked. Causal is right = 0. All of it is data, looked at once a tile.
//
// Grows from: nothing.
// Code: kernel.cuh, keys_from, keys_until, mask_tile, and tile, tile_end in describe_work. The kernel itself is a changed copy of
// chapters/15_sm90_attention_forward/step10_tma_store.cu: diff -w shows what is new.
// Run: make chapter-16 OP=window
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t window(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, WINDOW, stream);
}
