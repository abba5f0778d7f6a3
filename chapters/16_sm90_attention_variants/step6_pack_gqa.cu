// Chapter 16, step 6: the query heads that share K and V share a block.
//
// Question: a server generates one token at a time: one query a head, and 64 rows of a wgmma, of which 63 multiply nothing.
// With 8 query heads for each head of K and V, what fills 8 of them, and reads K and V once instead of 8 times?
//
// The heads themselves: row r of a block is query r / pack of head r % pack. TMA lays it down so by itself: a box of 64 / pack
// queries of `pack` heads arrives head by head within query by query, in rows of 128 bytes, and O leaves the same way. Only
// who asks which query a row is (mask_tile, LSE_place) divides.
//
// heads_in_pack: as many as make the fewest blocks, and none where that gains nothing. One consumer (Tile, FEW) is enough for
// 64 rows; K and V's bytes are what a decode waits for, and it takes them by tiles that are half as long.
//
// Grows from: step 5 (varlen).
// Code: here, and kernel.cuh, consumer_queries.
// Run: make chapter-16 OP=pack_gqa
#include "launchers.h"
#include "plan.h"

int heads_in_pack(const attention_variant &v)
{
    const int ratio = v.heads / v.kv_heads;
    int best = 1;
    int64_t fewest = INT64_MAX;
    for (int pack = 1; pack <= ratio && pack <= 64; pack++) {
        if (ratio % pack) continue;
        const int queries = 64 / pack;
        const int64_t consumers = (int64_t)(v.heads / pack) * ((v.q_len - 1) / queries + 1);
        if (consumers < fewest) {
            fewest = consumers;
            best = pack;
        }
    }
    return best;
}

extern "C" cudaError_t pack_gqa(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, PACK_GQA, stream);
}
