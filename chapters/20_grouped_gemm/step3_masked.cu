// Chapter 20, step 3: room for every group, and counts that only the device knows.
//
// Question: a decoder has some 20 tokens for an expert, a hundred times a second, and a CUDA graph that repeats launches as they were
// recorded. Then no size may depend on the counts. And what do 20 rows need of a tile of 128?
//
// Grows from: step 2 (ragged_segments).
// Each group's rows begin at a multiple of `capacity`, whatever the counts; they are read when the kernel runs, so that a launch is
// right again with others. A tile of at most 64 rows is half a tile: the pair's second block has no rows of A to fetch, and the
// second warpgroup nothing to multiply. What remains is the time of B's bytes.
//
//      rows <= 64:   block 0 fetches 64 rows of A for both      rows > 64:   block 0: rows 0-63, block 1: rows 64-127
//                    warpgroup 1 passes                                      both warpgroups multiply
//
// A product of some 20 microseconds is over before the next is set up: as in chapter 19's step 6, the next one's blocks may come while
// this one's last are busy, and wait for its end before they read anything.
// New instructions: none. Shared memory, registers: as step 1.
// Run: make chapter-20 OP=masked STEP=masked
#include "../../common/device/launch.cuh"
#include "../../common/device/tensor_map.h"
#include "../19_fp8_gemm/persistent.cuh"
#include "grouped.cuh"
#include "launchers.h"

template <int BLOCK_N>
struct SharedStorage {
    uint8_t A_smem[NUM_STAGES<BLOCK_N>][BLOCK_M][BLOCK_K]; // (stage, m, k)
    uint8_t B_smem[NUM_STAGES<BLOCK_N>][BLOCK_N][BLOCK_K]; // (stage, n, k)
    char D_smem[STORE_PIECES<BLOCK_N>][PIECE_BYTES];       // (piece, m, 128 bytes)
    float scale_smem[NUM_STAGES<BLOCK_N>][SCALES];         // (stage, m)
    uint64_t full[NUM_STAGES<BLOCK_N>];                    // the stage's tiles and scales have landed
    uint64_t empty[NUM_STAGES<BLOCK_N>];                   // every consumer of the cluster is done with them
};

// What a tile takes from where.
struct Tile {
    int row, col; // of D, and row of A
    int end;      // of the group's rows
    int group;
};

// Where the work is: tiles of cluster tiles (BLOCK_M, CLUSTER * BLOCK_N), this block's part of them, group after group.
template <int BLOCK_N>
struct Tiles {
    const int *counts;
    int groups, tiles_n;
    int capacity;       // rows that a group has room for
    int tile, step;     // this cluster's next tile, and from one to its next
    int rank;           // this block's number in its cluster
    int group = 0;      // the tile's, if it has one
    int first_tile = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int capacity, int N)
        : counts(counts), groups(groups), tiles_n((N - 1) / (CLUSTER * BLOCK_N) + 1), capacity(capacity),
          tile(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int rows = counts[group];
            if (rows < 0 || rows > capacity) return false; // They would be the next group's.
            const int tiles_m = (rows + BLOCK_M - 1) / BLOCK_M;
            if (tile < first_tile + tiles_m * tiles_n) {
                const TilePlace place = tile_place<GROUP_M>(tile - first_tile, tiles_m, tiles_n);
                const int first_row = group * capacity;
                next = {first_row + place.m * BLOCK_M, (place.n * CLUSTER + rank) * BLOCK_N, first_row + rows,
                        group};
                tile += step;
                return true;
            }
            first_tile += tiles_m * tiles_n;
        }
        return false;
    }
};

// Starts the copies of step k_tile into a stage, and of this block's part of A for the whole cluster. One thread does. The other part
// of A comes from the other block, and is counted here as well. `parts`: how many of A have rows.
template <int BLOCK_N>
static __device__ void load_tile(SharedStorage<BLOCK_N> &smem, const CUtensorMap &A_map,
                                 const CUtensorMap &B_map, const CUtensorMap &scale_map, int row, int B_row,
                                 int k_tile, int stage, int rank, int parts)
{
    trace(LOAD);
    constexpr int PART = BLOCK_M / CLUSTER;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, parts * PART * BLOCK_K + sizeof smem.B_smem[stage] +
                                        sizeof smem.scale_smem[stage]);
    if (rank < parts)
        cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][rank * PART], A_map, full, k_tile * BLOCK_K,
                                          row + rank * PART, (1 << CLUSTER) - 1);
    cp_async_bulk_tensor_2d(smem.scale_smem[stage], scale_map, full, row / 4 * 4, k_tile);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k_tile * BLOCK_K, B_row);
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <int BLOCK_N>
static __device__ void produce(SharedStorage<BLOCK_N> &smem, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const CUtensorMap &scale_map, Tiles<BLOCK_N> &tiles,
                               int N, int k_tiles)
{
    PipelineState<NUM_STAGES<BLOCK_N>> state;
    Tile tile;
    while (tiles.next(tile)) {
        const int parts = tile.end - tile.row > MMA_M ? 2 : 1;
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, scale_map, tile.row, tile.group * N + tile.col, k, state.stage,
                      tiles.rank, parts);
            state.advance();
        }
    }
    if (tiles.group < tiles.groups) __trap(); // It was such a count that ended the walk.
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < NUM_STAGES<BLOCK_N>; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

template <int BLOCK_N>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1) masked_kernel(
    const __grid_constant__ CUtensorMap A_map, // (groups * capacity, K), boxes (BLOCK_M / CLUSTER, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map, // (groups * N, K), boxes (BLOCK_N, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map, // (groups * capacity, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *counts,                             // (groups)
    bool tma_store,                                // D's rows are multiples of 16 bytes
    __nv_bfloat16 *D,                              // (groups * capacity, N)
    int capacity, int N, int K, int groups)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<BLOCK_N> &smem = *reinterpret_cast<SharedStorage<BLOCK_N> *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    Tiles<BLOCK_N> tiles(counts, groups, capacity, N);
    const int k_tiles = (K - 1) / BLOCK_K + 1, squares = (N - 1) / GROUP + 1;

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        prefetch_tensormap(scale_map);
        for (int stage = 0; stage < NUM_STAGES<BLOCK_N>; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER * NUM_CONSUMERS * 4); // every warp that multiplies
        }
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now, counts too.

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, scale_map, tiles, N, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        PipelineState<NUM_STAGES<BLOCK_N>> state;
        Tile tile;
        while (next_of_warp(tiles, tile)) {
            const int rows = __shfl_sync(0xffffffff, tile.end - tile.row, 0);
            if (tile.col >= N || warpgroup_row >= rows) {
                pass_stages<CLUSTER>(smem, state, k_tiles, tid);
                continue;
            }
            const int square = tile.col / GROUP, next_square = square + 1 < squares ? k_tiles : 0;
            float sum[1][BLOCK_N / 2] = {};
            consume<BLOCK_N, CLUSTER>(
                sum, smem, state, scale_B + ((size_t)tile.group * squares + square) * k_tiles, next_square,
                GROUP - tile.col % GROUP, warpgroup_row, tile.row % 4 + warpgroup_row, k_tiles, tid);
            trace(STORE);
            if (tma_store && tile.row + BLOCK_M <= tile.end)
                store_tile_tma<BLOCK_N, __nv_bfloat16>(smem.D_smem, D_map, sum, tile.row, tile.col,
                                                       warpgroup_row);
            else
                store_tile(D, sum[0], tile.row + warpgroup_row, tile.col, tile.end, N, tid);
        }
        cp_async_bulk_wait_group_read<0>(); // D_smem must outlive its readers.
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <int BLOCK_N>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B,
                          const int *counts, __nv_bfloat16 *D, int capacity, int N, int K, int groups,
                          int clusters, cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<BLOCK_N>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = masked_kernel<BLOCK_N>;
    cudaError_t error = make_maps<BLOCK_N>(maps, BLOCK_M / CLUSTER, BLOCK_N, A, B, scale_A, D,
                                           groups * capacity, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, NUM_THREADS, smem_bytes, stream, maps.A, maps.B, maps.D,
                        maps.scale_A, scale_B, counts, maps.tma_store, D, capacity, N, K, groups);
}

extern "C" cudaError_t masked(const void *A, const void *B, const float *scale_A, const float *scale_B,
                              const int32_t *counts, void *D, int capacity, int expected, int N, int K,
                              int groups, cudaStream_t stream)
{
    if (groups <= 0 || capacity <= 0 || capacity > (INT32_MAX - 1024) / groups) return cudaErrorInvalidValue;
    if (!can_multiply_groups(A, B, scale_A, scale_B, counts, D, groups * capacity, N, K, groups))
        return cudaErrorInvalidValue;
    const long long rows = std::max(1, std::min(expected, capacity));
    const long long likely_m = groups * ((rows - 1) / BLOCK_M + 1);
    return with_width([&](int tiles_n) { return likely_m * ((tiles_n - 1) / CLUSTER + 1); },
                      groups * ((capacity - 1LL) / BLOCK_M + 1), N,
                      [&](auto width, int clusters) {
                          return launch<width>(A, B, scale_A, scale_B, counts, (__nv_bfloat16 *)D, capacity,
                                               N, K, groups, clusters, stream);
                      });
}
