// Chapter 20, step 1: rows of many groups, each with a B of its own, in one launch.
//
// Question: behind a router 8,192 rows of one expert are followed by 300 of the next. A launch for each expert needs counts on the
// host, and leaves SMs idle at the end of each. What must a product know to take them all?
//
// Grows from: chapter 19, step 4 (persistent_multicast).
// A group's number for each tile of rows. Segments begin at multiples of BLOCK_M, so that a tile's first row speaks for all; then
// B is `group` matrices further, and so are its scales.
//
//      rows   0 … 127   group 0      tiles of 128 rows
//           128 … 255   group 0          B's tile: rows group * N + col … of (groups * N, K)
//           256 … 383   group 1          -1: nobody's, whoever finds it goes on to its next tile
//
// The pair of a cluster stands one above the other and shares B, of which each fetches half for both: for 256 x 192 of D that is less than
// for the 128 x 384 that chapter 19's pair would have, side by side with a shared A. Two tiles of different groups share nothing, but keep
// step: a stage is refilled when all of the pair have done with it.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory: up to 215,168 bytes, 49,152 of them for D. Registers: 40 (producer) and 232.
// Run: make chapter-20 OP=aligned STEP=aligned_segments
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
    int group;    // negative: nobody's
    int other;    // the other block's group
    bool shared;  // the other block multiplies by the same rows of B
};

// Where the work is: this block's tiles of the cluster's pairs.
template <int BLOCK_N>
struct Tiles {
    int tiles_m, tiles_n;
    int first, step; // this cluster's first pair, and from one to its next
    int rank;        // this block's number in its cluster
    int groups;
    const int *row_group;

    __device__ Tiles(int M, int N, int groups, const int *row_group)
        : tiles_m((M - 1) / BLOCK_M + 1), tiles_n((N - 1) / BLOCK_N + 1), first(blockIdx.x / CLUSTER),
          step(gridDim.x / CLUSTER), rank(cluster_ctarank()), groups(groups), row_group(row_group)
    {
    }

    __device__ int count() const { return pairs_of(tiles_m, tiles_n); }

    __device__ Tile operator[](int pair) const
    {
        const Place place = pair_place(pair, tiles_m, tiles_n, rank);
        const int row = place.m * BLOCK_M, other_row = (place.stacked ? place.m ^ 1 : place.m) * BLOCK_M;
        const int group = row_group[row], other = row_group[other_row];
        return {row, place.n * BLOCK_N, group, other, place.stacked && group == other};
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <int BLOCK_N>
static __device__ void produce(SharedStorage<BLOCK_N> &smem, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const CUtensorMap &scale_map,
                               const Tiles<BLOCK_N> &tiles, int N, int k_tiles)
{
    PipelineState<NUM_STAGES<BLOCK_N>> state;
    for (int n = tiles.first; n < tiles.count(); n += tiles.step) {
        const Tile tile = tiles[n];
        if (tile.group >= tiles.groups) __trap(); // There is no such B.
        if (tile.group < 0 && tile.other < 0) continue;
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            if (tile.group < 0 || tile.col >= N)
                mbarrier_arrive(&smem.full[state.stage]); // Nothing comes, but the stage goes round.
            else
                load_tile(smem, A_map, B_map, scale_map, tile.row, tile.group * N + tile.col, tile.shared, k,
                          state.stage, tiles.rank);
            state.advance();
        }
    }
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < NUM_STAGES<BLOCK_N>; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

template <int BLOCK_N>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1) aligned_segments_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (BLOCK_M, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (groups * N, K), boxes (BLOCK_N / CLUSTER, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,     // (M, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *row_group,                          // (M)
    bool tma_store,                                // D's rows are multiples of 16 bytes
    __nv_bfloat16 *D,                              // (M, N)
    int M, int N, int K, int groups)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<BLOCK_N> &smem = *reinterpret_cast<SharedStorage<BLOCK_N> *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    const Tiles<BLOCK_N> tiles(M, N, groups, row_group);
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
        for (int n = tiles.first; n < tiles.count(); n += tiles.step) {
            const Tile tile = tiles[n];
            if ((tile.group < 0 && tile.other < 0) || tile.group >= groups) continue;
            if (tile.group < 0 || tile.col >= N) {
                pass_stages<CLUSTER>(smem, state, k_tiles, tid);
                continue;
            }
            const int square = tile.col / GROUP, next_square = square + 1 < squares ? k_tiles : 0;
            float sum[1][BLOCK_N / 2] = {};
            consume<BLOCK_N, CLUSTER>(
                sum, smem, state, scale_B + ((size_t)tile.group * squares + square) * k_tiles, next_square,
                GROUP - tile.col % GROUP, warpgroup_row, warpgroup_row, k_tiles, tid);
            trace(STORE);
            if (tma_store)
                store_tile_tma<BLOCK_N, __nv_bfloat16>(smem.D_smem, D_map, sum, tile.row, tile.col,
                                                       warpgroup_row);
            else
                store_tile(D, sum[0], tile.row + warpgroup_row, tile.col, M, N, tid);
        }
        cp_async_bulk_wait_group_read<0>(); // D_smem must outlive its readers.
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <int BLOCK_N>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B,
                          const int *row_group, __nv_bfloat16 *D, int M, int N, int K, int groups,
                          int clusters, cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<BLOCK_N>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = aligned_segments_kernel<BLOCK_N>;
    cudaError_t error =
        make_maps<BLOCK_N>(maps, BLOCK_M, BLOCK_N / CLUSTER, A, B, scale_A, D, M, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, NUM_THREADS, smem_bytes, stream, maps.A, maps.B, maps.D,
                        maps.scale_A, scale_B, row_group, maps.tma_store, D, M, N, K, groups);
}

extern "C" cudaError_t aligned_segments(const void *A, const void *B, const float *scale_A,
                                        const float *scale_B, const int32_t *row_group, void *D, int M, int N,
                                        int K, int groups, cudaStream_t stream)
{
    if (!can_multiply_groups(A, B, scale_A, scale_B, row_group, D, M, N, K, groups))
        return cudaErrorInvalidValue;
    const int tiles_m = (M - 1) / BLOCK_M + 1;
    return with_width([&](int tiles_n) { return (long long)pairs_of(tiles_m, tiles_n); }, tiles_m, N,
                      [&](auto width, int clusters) {
                          return launch<width>(A, B, scale_A, scale_B, row_group, (__nv_bfloat16 *)D, M, N, K,
                                               groups, clusters, stream);
                      });
}
