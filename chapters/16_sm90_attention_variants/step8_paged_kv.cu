// Chapter 16, step 8: keys that lie in pages, anywhere.
//
// Question: a server does not know how long a sequence will become, so it gives its K and V pages of 16 or 64 keys, as an
// operating system gives memory; a table says which. How does a tile of 128 keys come from 8 pages?
//
// By as many copies as pages (load_pages): a lane looks its page up and starts the copy of its part, all columns of it. The boxes
// are as high as the largest number of keys that divides the page and the tile; the swizzle does not mind, as long as they are
// multiples of 8 rows, 1,024 bytes. Where wgmma finds what they bring, its descriptors say (place_tiles). tensor_map_ragged ends a
// box of V where the sequence ends: what else a page holds could be NaN, and 0 x NaN is NaN. Of K it may come along, and is masked.
//
// Pages of 1 to 7 keys, and of what is no multiple of 8, no box serves: three warps copy 16 bytes at a time with cp.async
// (gather_tile), and say with fence.proxy.async that wgmma may read what they have written.
//
// Grows from: step 7 (split_kv).
// Code: here, and kernel.cuh, load_pages, place_tiles, key_row, gather_tile.
// Run: make chapter-16 OP=paged_kv
#include <numeric>

#include "launchers.h"
#include "plan.h"

int keys_in_box(const attention_variant &v, int tile_keys)
{
    const int box = v.page_table ? std::gcd(v.page_size, tile_keys) : tile_keys;
    return box % 8 == 0 ? box : 0;
}

extern "C" cudaError_t paged_kv(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, PAGED_KV, stream);
}
