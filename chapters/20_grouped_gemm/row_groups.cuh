// What steps 1 to 3 share: groups of rows, each with a B of its own. The tile and its room in shared memory, the producer, the consumers,
// tensor maps, and how large a tile is. Where the tiles are, the steps' Tiles say: next(tile) and at_end().
#pragma once
#include <algorithm>

#include "../../common/device/tensor_map.h"
#include "grouped.cuh"

// A block's tile: CONSUMERS parts of 64 rows, one for each warpgroup that multiplies, and BLOCK_N columns. STACKED: a cluster's blocks
// stand one above the other and share B if they can, else side by side and share A. Of what is shared each fetches half for both.
// TOGETHER: all rows of D's tile leave at once, else each warpgroup's when it has them.
template <int CONSUMERS_, int BLOCK_N_, bool STACKED_, bool TOGETHER_>
struct Shape : Warpgroups<CONSUMERS_> {
    static constexpr bool STACKED = STACKED_, TOGETHER = TOGETHER_;
    static constexpr int BLOCK_M = CONSUMERS_ * MMA_M, BLOCK_N = BLOCK_N_;
    static constexpr int STORE_ROWS = TOGETHER ? BLOCK_M : MMA_M; // of D, that leave at once
    static constexpr int A_BOX = BLOCK_M / CLUSTER, B_BOX = STACKED ? BLOCK_N / CLUSTER : BLOCK_N; // rows
    static constexpr unsigned ALL_PARTS = (1 << CONSUMERS_) - 1;

    // Scales of A's rows in a stage. TMA reads from a multiple of 4 on, up to 3 too many, and each stage's begin at a multiple of 32.
    static constexpr int SCALES = BLOCK_M + 32;
    static constexpr int PIECE_BYTES = BLOCK_M * STORE_ROW_BYTES; // of D's tile
    // As many stages as there is room for beside D's pieces and the barriers.
    static constexpr int NUM_STAGES = (MAX_SMEM - STORE_PIECES<BLOCK_N> * PIECE_BYTES - 256) /
                                      ((BLOCK_M + BLOCK_N) * BLOCK_K + SCALES * (int)sizeof(float));
};

// What a block's tile takes from where.
struct Tile {
    int row, col;   // of D, and row of A
    int end;        // rows from here on are not the group's
    int group;      // negative: there is no further tile
    unsigned parts; // bit p: part p has rows of the group
    bool shared;    // of a stacked pair: both blocks multiply by the same rows of B
};

template <typename SHAPE>
struct SharedStorage {
    static constexpr int NUM_STAGES = SHAPE::NUM_STAGES;
    uint8_t A_smem[NUM_STAGES][SHAPE::BLOCK_M][BLOCK_K];           // (stage, m, k)
    uint8_t B_smem[NUM_STAGES][SHAPE::BLOCK_N][BLOCK_K];           // (stage, n, k)
    char D_smem[STORE_PIECES<SHAPE::BLOCK_N>][SHAPE::PIECE_BYTES]; // (piece, m, 128 bytes)
    float scale_smem[NUM_STAGES][SHAPE::SCALES];                   // (stage, m)
    Tile tile[NUM_STAGES];                                         // whose first step the stage has
    uint64_t full[NUM_STAGES];                                     // the stage's tiles and scales have landed
    uint64_t empty[NUM_STAGES]; // every consumer of the cluster is done with them
};

// The parts that have some of this many rows.
template <typename SHAPE>
__device__ inline unsigned parts_of(int rows)
{
    return SHAPE::ALL_PARTS >> (SHAPE::CONSUMERS - min((rows - 1) / MMA_M + 1, SHAPE::CONSUMERS));
}

// A block's tile, by its number among those of the rows and among those of the columns.
struct Place {
    int m, n;
    bool stacked; // the cluster's other block has the one above it or below it
};

// Pairs of tiles that (tiles_m, tiles_n) tiles are taken in: see pair_place.
template <bool STACKED, typename INT>
__host__ __device__ constexpr INT pairs_of(INT tiles_m, INT tiles_n)
{
    const INT pairs_n = (tiles_n + CLUSTER - 1) / CLUSTER;
    return STACKED ? tiles_m / CLUSTER * tiles_n + tiles_m % CLUSTER * pairs_n : tiles_m * pairs_n;
}

// Where block `rank` of a cluster is whose pair has this number. Where pairs are STACKED, two blocks stand one above the other. Of an odd
// number of rows of tiles the last is left: there they stand side by side, and share nothing. Of two side by side the right one may be
// beyond the right edge, where it has nothing to do.
template <bool STACKED>
__device__ inline Place pair_place(int pair, int tiles_m, int tiles_n, int rank)
{
    if (!STACKED) {
        const TilePlace place = tile_place<GROUP_M>(pair, tiles_m, (tiles_n + CLUSTER - 1) / CLUSTER);
        return {place.m, place.n * CLUSTER + rank, false};
    }
    const int stacked = tiles_m / CLUSTER * tiles_n;
    if (pair >= stacked) return {tiles_m - 1, (pair - stacked) * CLUSTER + rank, false};
    const TilePlace place = tile_place<GROUP_M>(pair, tiles_m / CLUSTER, tiles_n);
    return {place.m * CLUSTER + rank, place.n, true};
}

// Starts the copies of step k_tile into a stage. One thread does. A half of what is shared comes from the other block, and is counted here
// as well. `halves`: bit h: half h of A has rows of the group.
template <typename SHAPE>
__device__ inline void load_tile(SharedStorage<SHAPE> &smem, const CUtensorMap &A_map,
                                 const CUtensorMap &B_map, const CUtensorMap &scale_map, const Tile &tile,
                                 unsigned halves, int B_row, int k_tile, int stage, int rank)
{
    trace(LOAD);
    constexpr int A_BOX = SHAPE::A_BOX, B_BOX = SHAPE::B_BOX;
    constexpr uint16_t BOTH = (1 << CLUSTER) - 1;
    const int k = k_tile * BLOCK_K, part = rank * (SHAPE::STACKED ? B_BOX : A_BOX);
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, __popc(halves) * A_BOX * BLOCK_K + sizeof smem.B_smem[stage] +
                                        sizeof smem.scale_smem[stage]);
    if (SHAPE::STACKED && tile.shared) {
        cp_async_bulk_tensor_2d_multicast(smem.B_smem[stage][part], B_map, full, k, B_row + part, BOTH);
    } else if (SHAPE::STACKED) {
        cp_async_bulk_tensor_2d(smem.B_smem[stage][0], B_map, full, k, B_row);
        cp_async_bulk_tensor_2d(smem.B_smem[stage][B_BOX], B_map, full, k, B_row + B_BOX);
    } else if (halves >> rank & 1) {
        cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][part], A_map, full, k, tile.row + part, BOTH);
    }
    cp_async_bulk_tensor_2d(smem.scale_smem[stage], scale_map, full, tile.row / 4 * 4, k_tile);
    if (!SHAPE::STACKED) {
        cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, B_row);
        return;
    }
    if (halves & 1) cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, tile.row);
    if (halves & 2) cp_async_bulk_tensor_2d(smem.A_smem[stage][A_BOX], A_map, full, k, tile.row + A_BOX);
}

// The producer, one thread: fills stage after stage, each as soon as it is empty, and says in the first of each tile which it is. Nobody
// has used the stages of the first round: a new barrier lets a wait for parity 1 pass. A walk over the tiles that ends too early met a
// number that cannot be.
template <typename SHAPE, typename TILES>
__device__ inline void produce(SharedStorage<SHAPE> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const CUtensorMap &scale_map, TILES &tiles, int N, int k_tiles)
{
    PipelineState<SHAPE::NUM_STAGES> state;
    Tile tile;
    while (tiles.next(tile)) {
        // Of three parts the middle one is half in each half.
        constexpr unsigned UPPER = (1 << (SHAPE::CONSUMERS + 1) / 2) - 1,
                           LOWER = UPPER << SHAPE::CONSUMERS / 2;
        const unsigned halves = (tile.parts & UPPER ? 1 : 0) | (tile.parts & LOWER ? 2 : 0);
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            if (k == 0) smem.tile[state.stage] = tile;
            if (tile.parts == 0)
                mbarrier_arrive(&smem.full[state.stage]); // Nothing comes, but the stage goes round.
            else
                load_tile(smem, A_map, B_map, scale_map, tile, halves, tile.group * N + tile.col, k,
                          state.stage, tiles.rank);
            state.advance();
        }
    }
    if (!tiles.at_end()) __trap();
    mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
    smem.tile[state.stage].group = -1;
    mbarrier_arrive(&smem.full[state.stage]);
    state.advance();
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < SHAPE::NUM_STAGES; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

// A consumer's part of all tiles, which the producer names: multiplied, and stored. `part`: this warpgroup's. By __syncwarp and the shuffles
// the compiler knows that a warp's lanes go the same way. Else it must think that what they read may lead them different ways, and keeps
// nothing in uniform registers.
template <typename SHAPE>
__device__ inline void multiply_tiles(SharedStorage<SHAPE> &smem, const CUtensorMap &D_map,
                                      const float *scale_B, bool tma_store, __nv_bfloat16 *D, int N,
                                      int k_tiles, int part, int tid)
{
    constexpr int BLOCK_N = SHAPE::BLOCK_N;
    const int part_row = part * MMA_M, squares = (N - 1) / GROUP + 1;
    PipelineState<SHAPE::NUM_STAGES> state;
    for (;;) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        __syncwarp();
        const Tile &tile = smem.tile[state.stage];
        const int row = __shfl_sync(0xffffffff, tile.row, 0), col = __shfl_sync(0xffffffff, tile.col, 0);
        const int end = __shfl_sync(0xffffffff, tile.end, 0), group = __shfl_sync(0xffffffff, tile.group, 0);
        const unsigned parts = __shfl_sync(0xffffffff, tile.parts, 0);
        if (group < 0) break;
        if (col >= N || !(parts >> part & 1)) {
            pass_stages<CLUSTER>(smem, state, k_tiles, tid);
            continue;
        }
        const int square = col / GROUP, next_square = square + 1 < squares ? k_tiles : 0;
        float sum[1][BLOCK_N / 2] = {};
        consume<BLOCK_N, CLUSTER>(sum, smem, state, scale_B + ((size_t)group * squares + square) * k_tiles,
                                  next_square, GROUP - col % GROUP, part_row, row % 4 + part_row, k_tiles,
                                  tid);
        trace(STORE);
        if (tma_store && row + (SHAPE::TOGETHER ? 0 : part_row) + SHAPE::STORE_ROWS <= end)
            store_tile_tma<BLOCK_N, __nv_bfloat16, SHAPE::TOGETHER>(smem.D_smem, D_map, sum, row, col,
                                                                    part_row);
        else
            store_tile(D, sum[0], row + part_row, col, end, N, tid);
    }
    pass_stages<CLUSTER>(smem, state, 1, tid);
    cp_async_bulk_wait_group_read<0>(); // D_smem must outlive its readers.
    trace(END);
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

template <typename SHAPE>
static cudaError_t make_maps(Maps &maps, const void *A, const void *B, const float *scale_A, __nv_bfloat16 *D,
                             int M, int N, int K, int groups)
{
    maps = {};
    maps.tma_store = N % 8 == 0 && (uintptr_t)D % 16 == 0;
    cudaError_t error =
        tensor_map_matrix(&maps.A, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, SHAPE::A_BOX, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&maps.B, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, groups * N, K, SHAPE::B_BOX,
                                  BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&maps.scale_A, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, SHAPE::SCALES);
    if (error == cudaSuccess && maps.tma_store)
        error = tensor_map_matrix(&maps.D, tensor_map_type<__nv_bfloat16>(), D, M, N, SHAPE::STORE_ROWS,
                                  STORE_COLS<SHAPE::BLOCK_N, __nv_bfloat16>);
    return error;
}

// A step of k where the products take the time.
constexpr auto WHOLE_STEP = [](auto shape) { return step_clocks(shape.CONSUMERS, 1, shape.BLOCK_N); };

// Calls launch(shape, clusters) with that of the shapes with which the clusters are done first, if a round of theirs takes as long as its
// steps of k; of equals the first. likely_pairs(shape), most_pairs(shape): how many tiles there will about be for clusters, and at most;
// clocks(shape): of a step.
template <typename PAIRS, typename CLOCKS, typename MOST, typename LAUNCH, typename... SHAPES>
static cudaError_t with_best(PAIRS likely_pairs, CLOCKS clocks, MOST most_pairs, LAUNCH launch,
                             SHAPES... shapes)
{
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    const auto time = [&](auto shape) {
        const long long rounds = (likely_pairs(shape) - 1) / (sms / CLUSTER) + 1;
        return rounds * clocks(shape);
    };
    const auto best = std::min({time(shapes)...});
    const auto launch_best = [&](auto shape) {
        if (time(shape) > best) return false;
        const long long most = most_pairs(shape);
        error = most > INT32_MAX / 2 ? cudaErrorInvalidConfiguration
                                     : launch(shape, (int)std::min(most, (long long)(sms / CLUSTER)));
        return true;
    };
    (launch_best(shapes) || ...);
    return error;
}
