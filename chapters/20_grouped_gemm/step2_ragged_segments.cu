// Chapter 20, step 2: segments of any length.
//
// Question: rounding every segment up to 128 rows makes up to 127 that nobody wants, and somebody has to lay them out so. Rows
// that stand behind each other without gaps are just sorted. What may a tile do at a segment's end?
//
// Grows from: step 1 (aligned_segments).
// Load and multiply as if nothing were there: its last rows are the next group's, and so are sums that are wrong, but nobody
// keeps them. A tile whose rows are all the group's leaves by TMA, one in which the group ends row by row, up to it.
//
//      counts 200, 0, 60      rows   0 … 127   group 0        tile 0
//                                  128 … 255   group 0, 2     tile 1: 128 … 199 stored
//                                  200 … 327   group 2        tile 2: 200 … 259 stored
//
// Pairs are made inside a group, so that two tiles one above the other always share B; a last single row of tiles is taken side by side.
// Where a group begins is the sum of the counts before it. Everybody takes pairs of rising numbers, so that the sum goes along: a
// walk over the groups, of which the empty ones are passed. A row's scale may be at any place now, but a bulk copy begins at a
// multiple of 16 bytes: up to three scales too many come first.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory, registers: as step 1.
// Run: make chapter-20 OP=ragged STEP=ragged_segments
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
    bool shared; // the other block multiplies by the same rows of B
};

// Where the work is: this block's tiles of the cluster's pairs, group after group.
template <int BLOCK_N>
struct Tiles {
    const int *counts;
    int groups, tiles_n;
    int M;              // rows that there are
    int pair, step;     // this cluster's next pair, and from one to its next
    int rank;           // this block's number in its cluster
    int group = 0;      // the pair's, if it has one
    int first_row = 0;  // of the group
    int first_pair = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int M, int N)
        : counts(counts), groups(groups), tiles_n((N - 1) / BLOCK_N + 1), M(M), pair(blockIdx.x / CLUSTER),
          step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int rows = counts[group];
            if (rows < 0 || rows > M - first_row) return false; // They would be others' rows.
            const int tiles_m = (rows + BLOCK_M - 1) / BLOCK_M;
            const int pairs = pairs_of(tiles_m, tiles_n);
            if (pair < first_pair + pairs) {
                const Place place = pair_place(pair - first_pair, tiles_m, tiles_n, rank);
                next = {first_row + place.m * BLOCK_M, place.n * BLOCK_N, first_row + rows, group,
                        place.stacked};
                pair += step;
                return true;
            }
            first_pair += pairs;
            first_row += rows;
        }
        return false;
    }
};

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
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            if (tile.col >= N)
                mbarrier_arrive(&smem.full[state.stage]); // Nothing comes, but the stage goes round.
            else
                load_tile(smem, A_map, B_map, scale_map, tile.row, tile.group * N + tile.col, tile.shared, k,
                          state.stage, tiles.rank);
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
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1) ragged_segments_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (BLOCK_M, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (groups * N, K), boxes (BLOCK_N / CLUSTER, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,     // (M, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *counts,                             // (groups)
    bool tma_store,                                // D's rows are multiples of 16 bytes
    __nv_bfloat16 *D,                              // (M, N)
    int M, int N, int K, int groups)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<BLOCK_N> &smem = *reinterpret_cast<SharedStorage<BLOCK_N> *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    Tiles<BLOCK_N> tiles(counts, groups, M, N);
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
    wait_for_kernels_before();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, scale_map, tiles, N, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        PipelineState<NUM_STAGES<BLOCK_N>> state;
        Tile tile;
        while (next_of_warp(tiles, tile)) {
            if (tile.col >= N) {
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
                          const int *counts, __nv_bfloat16 *D, int M, int N, int K, int groups, int clusters,
                          cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<BLOCK_N>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = ragged_segments_kernel<BLOCK_N>;
    cudaError_t error =
        make_maps<BLOCK_N>(maps, BLOCK_M, BLOCK_N / CLUSTER, A, B, scale_A, D, M, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, NUM_THREADS, smem_bytes, stream, maps.A, maps.B, maps.D,
                        maps.scale_A, scale_B, counts, maps.tma_store, D, M, N, K, groups);
}

extern "C" cudaError_t ragged_segments(const void *A, const void *B, const float *scale_A,
                                       const float *scale_B, const int32_t *counts, void *D, int M, int N,
                                       int K, int groups, cudaStream_t stream)
{
    if (!can_multiply_groups(A, B, scale_A, scale_B, counts, D, M, N, K, groups))
        return cudaErrorInvalidValue;
    const long long likely_m = (M - 1) / BLOCK_M + 1 + groups / 2;
    return with_width([&](int tiles_n) { return (likely_m * tiles_n + CLUSTER - 1) / CLUSTER; },
                      (M - 1) / BLOCK_M + 1LL + groups, N,
                      [&](auto width, int clusters) {
                          return launch<width>(A, B, scale_A, scale_B, counts, (__nv_bfloat16 *)D, M, N, K,
                                               groups, clusters, stream);
                      });
}
