// How a backward pass from step 6 on is cut up: what its three kernels agree on.
#pragma once
#include "variants.h"

// In the order of the steps: each serves what those before it do.
enum BackwardVariant { TILES, DETERMINISTIC, WINDOW, SOFTCAP, VARLEN };

// Queries in a tile. nvcc -D TILE_Q_128=80 tries another: FlashAttention-3 has 128 at head dimension 64, and 80 at 128, 64 where not
// every query sees every key. 80 are slower here than 64 on an H200 (results/trials/17_orders.csv).
#ifndef TILE_Q_64
#define TILE_Q_64 128
#endif
#ifndef TILE_Q_128
#define TILE_Q_128 64
#endif
#ifndef TILE_Q_128_BOUNDED // where not every query sees every key: causal, windows
#define TILE_Q_128_BOUNDED 64
#endif
#ifndef TILE_Q_256
#define TILE_Q_256 64
#endif
#ifndef TILE_Q_SOFTCAP // at any head dimension
#define TILE_Q_SOFTCAP 64
#endif

constexpr int TILE_KEYS = 128; // keys in a tile, at any head dimension

// What a consumer, one of two, has of dQ: half the tile's rows; half the columns, of 64 rows; or half the columns as the rows of
// a transposed product, which then takes any number of queries as its columns.
enum DQ { ROWS, COLUMNS, TRANSPOSED };
__host__ __device__ constexpr DQ split_of_dQ(int q_tile)
{
    return q_tile == 128 ? ROWS : q_tile == 64 ? COLUMNS : TRANSPOSED;
}

constexpr int DQ_PARTS = 4; // of a tile, at most: two consumers of each of two blocks

// Sequences are cut into tiles of `tile` rows, those of all of them numbered through. Of sequences one behind the other, the first
// row of sequence i is in all rows row cu[i], and its first tile tile cu[i] / tile + i: one more than it need be for every sequence
// before it, so that no tile of two sequences has one number, and nobody adds lengths up. Some numbers are then nobody's.
__host__ __device__ inline int tiles_in(int rows, int tile)
{
    return (rows + tile - 1) / tile;
}
__host__ __device__ inline int first_tile(const int *cu, int sequence, int len, int tile)
{
    return cu ? cu[sequence] / tile + sequence : sequence * tiles_in(len, tile);
}
__host__ __device__ inline int64_t all_tiles(bool packed, int64_t rows, int batch, int len, int tile)
{
    return packed ? rows / tile + batch : (int64_t)batch * tiles_in(len, tile);
}

// The sequence that tile number `number` is of: the last whose first tile is not behind it.
__device__ inline int find_sequence(const int *cu, int batch, int len, int tile, int number)
{
    if (!cu) return number / tiles_in(len, tile);
    int low = 0, high = batch; // it is in [low, high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_tile(cu, middle, len, tile) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Where a sequence is: rows [begin, begin + len) of all rows.
struct Sequence {
    int begin, len;

    __device__ Sequence(const int *cu, int i, int len)
        : begin(cu ? cu[i] : i * len), len(cu ? cu[i + 1] - cu[i] : len)
    {
    }
};

// Where dQ of a tile waits for S of the next: multiply_ahead.
__host__ __device__ constexpr bool is_ahead(int head_dim, bool softcap)
{
    return head_dim == 128 && !softcap;
}

// Where, for multiply_ahead, the statistics of the tile's query `row` are when queries are columns of the scores: those of the four columns of 16 that a
// thread has (8 h + 2 (lane % 4) + e) are 16 bytes.
__host__ __device__ constexpr int column_place(int row)
{
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// Rows of Q are padded to whole tiles, so that the kernels need not ask where the last one ends: a padded row has LSE_log2 =
// infinity, and so has one that sees no key, for P = 2^(S - infinity) = 0 without a mask.
struct BackwardPlan {
    int q_tile;              // queries in a tile
    bool first_stores;       // dQ_sum is not cleared: who is the first to have a part of it stores that
    bool by_columns;         // statistics are in the order of column_place
    int q_tiles, kv_tiles;   // of all sequences, for each head
    int q_rows, k_rows;      // of Q, of K
    int sharing_heads;       // query heads that read a K/V head
    int log2_heads_together; // K/V heads, whose tiles of keys are worked on in turn
    uint3 works;             // of blocks, or clusters of two, in the order of their numbers: see find_work
    int num_works;           // works.x works.y works.z
    float c, cap_c; // P = 2^(S c - LSE_log2); with softcap S is first tanh, of S times half cap_c to base e
    float *LSE_log2, *dPsum; // (heads, q_tiles, q_tile): LSE log2(e), the sum of dO O over a row
    // dQ / scale, as threads have it: (heads, q_tiles, 2, q_tile * D / 1024, 128) of two consumers, or, of two blocks',
    // (heads, q_tiles, 4, q_tile * D / 2048, 128).
    float4 *dQ_sum;
    // (heads, q_tiles, 2 or 4), of the parts of dQ_sum: how many blocks have added; see store_dQ.
    unsigned *arrived;
    unsigned *taken; // how many works have been
};

// The kernel before the products: LSE_log2, dPsum, and zeros in the counters, and in the sums unless the first stores. The products, by
// type. The one after them: dQ = scale dQ_sum, in the type of Q. Each is started in `stream` and returns the launch's error.
cudaError_t preprocess(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream);
cudaError_t products_bf16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream);
cudaError_t products_f16(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream);
cudaError_t postprocess(const attention_variant_backward &b, const BackwardPlan &plan, cudaStream_t stream);

// All three; cudaErrorInvalidValue for a variant that a later step than `last` brings.
cudaError_t launch_backward(const attention_variant_backward &b, BackwardVariant last, cudaStream_t stream);

// Attention without variants, the tensors of the steps before.
attention_variant_backward without_variants(const attention_backward &a);
