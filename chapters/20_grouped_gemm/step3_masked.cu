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
// A tile may have 192 rows, for three warpgroups: each of the pair's blocks fetches 96.
// New instructions: none. Shared memory: up to 216,736 bytes. Registers: as step 1, or 40 and 152.
// Run: make chapter-20 OP=masked STEP=masked
#include "../../common/device/launch.cuh"
#include "launchers.h"
#include "row_groups.cuh"

// Where the work is: tiles of cluster tiles (BLOCK_M, CLUSTER * BLOCK_N), this block's part of them, group after group.
template <typename SHAPE>
struct Tiles {
    const int *counts;
    int groups, tiles_n;
    int capacity;       // rows that a group has room for
    int tile, step;     // this cluster's next tile, and from one to its next
    int rank;           // this block's number in its cluster
    int group = 0;      // the tile's, if it has one
    int first_tile = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int capacity, int N)
        : counts(counts), groups(groups), tiles_n((N - 1) / (CLUSTER * SHAPE::BLOCK_N) + 1),
          capacity(capacity), tile(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int rows = counts[group];
            if (rows < 0 || rows > capacity) return false; // They would be the next group's.
            const int tiles_m = (rows + SHAPE::BLOCK_M - 1) / SHAPE::BLOCK_M;
            if (tile < first_tile + tiles_m * tiles_n) {
                const TilePlace place = tile_place<GROUP_M>(tile - first_tile, tiles_m, tiles_n);
                const int first_row = group * capacity;
                const int row = place.m * SHAPE::BLOCK_M, col = (place.n * CLUSTER + rank) * SHAPE::BLOCK_N;
                next = {first_row + row, col, first_row + rows, group, parts_of<SHAPE>(rows - row), false};
                tile += step;
                return true;
            }
            first_tile += tiles_m * tiles_n;
        }
        return false;
    }

    __device__ bool at_end() const { return group == groups; }
};

template <typename SHAPE>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(SHAPE::NUM_THREADS, 1) masked_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (groups * capacity, K), boxes (A_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (groups * N, K), boxes (B_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,     // (groups * capacity, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *counts,                             // (groups)
    bool tma_store,                                // D's rows are multiples of 16 bytes
    __nv_bfloat16 *D,                              // (groups * capacity, N)
    int capacity, int N, int K, int groups)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<SHAPE> &smem = *reinterpret_cast<SharedStorage<SHAPE> *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    const int k_tiles = (K - 1) / BLOCK_K + 1;

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        prefetch_tensormap(scale_map);
        for (int stage = 0; stage < SHAPE::NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER * SHAPE::CONSUMERS * 4); // every warp that multiplies
        }
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now, counts too.

    if (warpgroup == 0) {
        setmaxnreg_dec<SHAPE::PRODUCER_REGS>();
        if (tid == 0) {
            Tiles<SHAPE> tiles(counts, groups, capacity, N);
            produce(smem, A_map, B_map, scale_map, tiles, N, k_tiles);
        }
    } else {
        setmaxnreg_inc<SHAPE::CONSUMER_REGS>();
        multiply_tiles(smem, D_map, scale_B, tma_store, D, N, k_tiles, warpgroup - 1, tid);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <typename SHAPE>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B,
                          const int *counts, __nv_bfloat16 *D, int capacity, int N, int K, int groups,
                          int clusters, cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<SHAPE>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = masked_kernel<SHAPE>;
    cudaError_t error = make_maps<SHAPE>(maps, A, B, scale_A, D, groups * capacity, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, SHAPE::NUM_THREADS, smem_bytes, stream, maps.A, maps.B,
                        maps.D, maps.scale_A, scale_B, counts, maps.tma_store, D, capacity, N, K, groups);
}

extern "C" cudaError_t masked(const void *A, const void *B, const float *scale_A, const float *scale_B,
                              const int32_t *counts, void *D, int capacity, int expected, int N, int K,
                              int groups, cudaStream_t stream)
{
    if (groups <= 0 || capacity <= 0 || capacity > (INT32_MAX - 1024) / groups) return cudaErrorInvalidValue;
    if (!can_multiply_groups(A, B, scale_A, scale_B, counts, D, groups * capacity, N, K, groups))
        return cudaErrorInvalidValue;
    const long long rows = std::max(1, std::min(expected, capacity));
    const auto tiles_n = [&](auto shape) { return (N - 1) / (CLUSTER * shape.BLOCK_N) + 1LL; };
    // Half a tile more than the rows fill, for the groups differ.
    const auto likely_tiles = [&](auto shape) {
        const long long twice = std::max(2LL * shape.BLOCK_M, 2 * rows + shape.BLOCK_M);
        return groups * twice / (2 * shape.BLOCK_M) * tiles_n(shape);
    };
    const auto most_tiles = [&](auto shape) {
        return groups * ((capacity - 1LL) / shape.BLOCK_M + 1) * tiles_n(shape);
    };
    const auto run = [&](auto shape, int clusters) {
        return launch<decltype(shape)>(A, B, scale_A, scale_B, counts, (__nv_bfloat16 *)D, capacity, N, K,
                                       groups, clusters, stream);
    };
    return with_best(likely_tiles, most_tiles, run, Shape<3, 128, false>(), Shape<2, 192, false>(),
                     Shape<2, 160, false>(), Shape<2, 128, false>(), Shape<2, 96, false>());
}
