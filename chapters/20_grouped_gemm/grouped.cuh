// What the steps of this chapter share: the tile and its room in shared memory, how the blocks of a pair stand, tensor maps, and how wide
// a tile is.
#pragma once
#include <algorithm>
#include <type_traits>

#include "../../common/device/tensor_map.h"
#include "../19_fp8_gemm/persistent.cuh"

constexpr int BLOCK_M = 128;                           // rows of D a block owns
constexpr int BLOCK_K = GROUP;                         // columns of A and B in shared memory at a time
constexpr int MMA_M = 64;                              // rows of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int CLUSTER = 2;                             // blocks that share rows of A or of B
constexpr int GROUP_M = 8; // rows of cluster tiles that clusters of neighbouring numbers share

// Scales of A's rows in a stage. TMA reads from a multiple of 4 on, up to 3 too many, and each stage's begin at a multiple of 32.
constexpr int SCALES = BLOCK_M + 32;

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

constexpr int PIECE_BYTES = BLOCK_M * STORE_ROW_BYTES; // of D's tile
constexpr int MAX_SMEM = 227 * 1024;                   // of a block

// As many stages as there is room for beside D's pieces and the barriers.
template <int BLOCK_N>
constexpr int NUM_STAGES = (MAX_SMEM - STORE_PIECES<BLOCK_N> * PIECE_BYTES - 256) /
                           ((BLOCK_M + BLOCK_N) * BLOCK_K + SCALES * (int)sizeof(float));

// A block's tile, by its number among those of the rows and among those of the columns. stacked: the cluster's other block has the one
// above it or below it.
struct Place {
    int m, n;
    bool stacked;
};

// Pairs of tiles that (tiles_m, tiles_n) tiles are taken in: see pair_place.
__host__ __device__ constexpr int pairs_of(int tiles_m, int tiles_n)
{
    return tiles_m / CLUSTER * tiles_n + tiles_m % CLUSTER * ((tiles_n + CLUSTER - 1) / CLUSTER);
}

// Where block `rank` of a cluster is whose pair has this number. Two blocks stand one above the other and can share B. Of an odd number of
// rows of tiles the last is left: there they stand side by side and share nothing; the right one may be beyond the right edge, where it
// has nothing to do.
__device__ inline Place pair_place(int pair, int tiles_m, int tiles_n, int rank)
{
    const int stacked = tiles_m / CLUSTER * tiles_n;
    if (pair >= stacked) return {tiles_m - 1, (pair - stacked) * CLUSTER + rank, false};
    const TilePlace place = tile_place<GROUP_M>(pair, tiles_m / CLUSTER, tiles_n);
    return {place.m * CLUSTER + rank, place.n, true};
}

// Starts the copies of step k_tile into a stage: rows of A from `row` on, their scales, rows of B from B_row on. One thread does. Of B that
// is shared each block fetches half for both, and counts all of it.
template <typename STORAGE>
__device__ inline void load_tile(STORAGE &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 const CUtensorMap &scale_map, int row, int B_row, bool shared, int k_tile,
                                 int stage, int rank)
{
    trace(LOAD);
    constexpr int PART = sizeof smem.B_smem[0] / BLOCK_K / CLUSTER;
    const int k = k_tile * BLOCK_K;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage] +
                                        sizeof smem.scale_smem[stage]);
    if (shared) {
        cp_async_bulk_tensor_2d_multicast(smem.B_smem[stage][rank * PART], B_map, full, k,
                                          B_row + rank * PART, (1 << CLUSTER) - 1);
    } else {
        cp_async_bulk_tensor_2d(smem.B_smem[stage][0], B_map, full, k, B_row);
        cp_async_bulk_tensor_2d(smem.B_smem[stage][PART], B_map, full, k, B_row + PART);
    }
    cp_async_bulk_tensor_2d(smem.scale_smem[stage], scale_map, full, row / 4 * 4, k_tile);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
}

// The next tile of `tiles` for a whole warp, whose lanes have all come to the same: by the vote and the shuffles the compiler knows it.
// Else it must think that counts from memory may lead them different ways, and keeps nothing in uniform registers.
template <typename TILES, typename TILE>
__device__ inline bool next_of_warp(TILES &tiles, TILE &tile)
{
    if (!__any_sync(0xffffffff, tiles.next(tile))) return false;
    tile.row = __shfl_sync(0xffffffff, tile.row, 0);
    tile.col = __shfl_sync(0xffffffff, tile.col, 0);
    return true;
}

// Whether TMA can load these matrices, and the arguments are there.
static inline bool can_multiply_groups(const void *A, const void *B, const float *scale_A,
                                       const float *scale_B, const int *of_groups, const void *D, int M,
                                       int N, int K, int groups)
{
    return can_multiply(A, B, scale_A, scale_B, D, M, N, K) && (uintptr_t)scale_A % 16 == 0 && of_groups &&
           groups > 0 && N <= INT32_MAX / groups - 1024;
}

struct Maps {
    CUtensorMap A, B, scale_A, D;
    bool tma_store; // D's rows are multiples of 16 bytes
};

// A_rows, B_rows: of the boxes in which A and B come.
template <int BLOCK_N>
static cudaError_t make_maps(Maps &maps, int A_rows, int B_rows, const void *A, const void *B,
                             const float *scale_A, __nv_bfloat16 *D, int M, int N, int K, int groups)
{
    maps = {};
    maps.tma_store = N % 8 == 0 && (uintptr_t)D % 16 == 0;
    cudaError_t error = tensor_map_matrix(&maps.A, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, A_rows, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&maps.B, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, groups * N, K, B_rows, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&maps.scale_A, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, SCALES);
    if (error == cudaSuccess && maps.tma_store)
        error = tensor_map_matrix(&maps.D, tensor_map_type<__nv_bfloat16>(), D, M, N, BLOCK_M,
                                  STORE_COLS<BLOCK_N, __nv_bfloat16>);
    return error;
}

// Calls launch(width, clusters) with the width of a block's tile with which the pairs are done first, if a round of the clusters takes as
// long as its steps of k; the wider of two. As chapter 19's step 4, but always 128 rows. likely_pairs(tiles_n): how many pairs there will
// about be with so many tiles of columns. Clusters for as many as most_m tiles of rows.
template <typename LIKELY, typename LAUNCH>
static cudaError_t with_width(LIKELY likely_pairs, long long most_m, int N, LAUNCH launch)
{
    int device, sms, best = 0;
    long long best_time = INT64_MAX, clusters = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    for (const int block_n : {96, 128, 160, 192}) {
        const int tiles_n = (N - 1) / block_n + 1;
        if (most_m * tiles_n > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
        const long long rounds = (likely_pairs(tiles_n) - 1) / (sms / CLUSTER) + 1;
        const long long time = rounds * step_clocks(NUM_CONSUMERS, 1, block_n);
        if (time > best_time) continue;
        best = block_n;
        best_time = time;
        clusters = std::min(most_m * ((tiles_n - 1) / CLUSTER + 1), (long long)(sms / CLUSTER));
    }
    switch (best) {
    case 96: return launch(std::integral_constant<int, 96>(), (int)clusters);
    case 128: return launch(std::integral_constant<int, 128>(), (int)clusters);
    case 160: return launch(std::integral_constant<int, 160>(), (int)clusters);
    default: return launch(std::integral_constant<int, 192>(), (int)clusters);
    }
}
