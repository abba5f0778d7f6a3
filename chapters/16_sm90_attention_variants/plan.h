// How a launch cuts the work up, and what it may ask of the kernel.
#pragma once

#include "variants.h"

constexpr int CAUSAL_L2_BYTES = 16 << 20; // what K and V of a group of heads may take of the L2,
constexpr int FULL_L2_BYTES = 8 << 20;    // where queries see few keys behind them, and where they see all

// The variants, in the order of the steps that bring them.
enum Variant {
    WINDOW,
    SOFTCAP,
    SINKS,
    HEAD_DIMS,
    VARLEN,
    PACK_GQA,
    SPLIT_KV,
    PAGED_KV,
    APPEND_KV,
};

constexpr int WG_Q = 64; // rows of a consumer, a warpgroup: the rows of a wgmma

// Consumers of a block; few: one, for no more rows than it has.
constexpr int block_consumers(bool few, int head_dim, int v_head_dim)
{
    return few ? 1 : head_dim == 64 && v_head_dim == 64 ? 3 : 2;
}

// Keys of a tile.
constexpr int tile_keys(bool few, int v_head_dim)
{
    return few || v_head_dim == 256 ? 64 : 128;
}

struct Plan {
    int pack;             // query heads of a K/V head that share a block: each query has `pack` rows in it
    int shares;           // of the keys of all tiles, all alike: the work of a block
    unsigned tile_units;  // a tile is as long as tile_units / share_units shares
    unsigned share_units; // 1 with cu_q
    int parts;            // of a tile, at most: the shares that have some of it; O and LSE of each:
    float *O_parts;       // (q_rows, heads, parts, v_head_dim)
    float *LSE_parts;     // (q_rows, heads, parts)
    int box;              // keys that TMA copies at a time; 0: cp.async copies
    bool few;             // the tile with one consumer
    bool read_once;     // by one block alone each tile of K and V is read, but for pages that sequences share
    int q_rows, k_rows; // rows of Q and O, of K and V, in memory
    int pack_inverse;   // 2^16 / pack, rounded up
    unsigned page_inverse; // find_page_inverse
    int page_shift;
    // Tiles in shared memory, in the units of wgmma's descriptors, 16 bytes: from 64 columns of K or V to the next; how much further
    // eight keys are from the next eight than without pages; where every 16 keys of V begin.
    int K_columns, K_eights, V_columns, V_eights, V_keys[8];
    float cap, cap_log2;     // softcap in the units of S; 2 log2(e) / cap: 2^(S cap_log2) = e^(2 S / cap)
    unsigned queries;        // of a tile
    unsigned packs;          // of heads
    unsigned kv_sharers;     // query heads of a head of K and V
    unsigned packs_in_group; // packs of heads whose tiles come in turn
    int sequence_tiles;      // of a sequence,
    int num_tiles;           // and of all: with cu_q the most that there can be
};

// Launches attention_kernel with the rules of the steps up to `last`: cudaErrorInvalidValue for what a later one brings.
cudaError_t launch_attention(const attention_variant &v, Variant last, cudaStream_t stream);

// The kernels of a type, by head dimensions: kernel_bf16.cu and kernel_f16.cu.
cudaError_t launch_bf16(const attention_variant &v, const Plan &plan, cudaStream_t stream);
cudaError_t launch_f16(const attention_variant &v, const Plan &plan, cudaStream_t stream);

// The rules of the steps: how many heads share a block (step6_pack_gqa.cu), in how many shares the keys are and what puts a
// tile's parts together (step7_split_kv.cu), how many keys a copy takes (step8_paged_kv.cu).
int heads_in_pack(const attention_variant &v);
int shares_of_keys(const attention_variant &v, const Plan &plan);
cudaError_t combine_parts(const attention_variant &v, const Plan &plan, cudaStream_t stream);
int keys_in_box(const attention_variant &v, int tile_keys);

// Where append_kv (step9_append_kv.cu) puts Q, turned: the workspace begins with it. Its bytes, 0 when it is not turned.
size_t turned_bytes(const attention_variant &v);
