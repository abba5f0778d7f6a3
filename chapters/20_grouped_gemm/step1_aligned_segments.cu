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
// Whose a tile is, memory says, and all would wait for it between two tiles. So only the producer, which is ahead, looks; the consumers
// find the tile in shared memory, beside the stage with its first step.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory: up to 215,712 bytes, 49,152 of them for D. Registers: 40 (producer) and 232.
// Run: make chapter-20 OP=aligned STEP=aligned_segments
#include "../../common/device/launch.cuh"
#include "launchers.h"
#include "row_groups.cuh"

// Where the work is: this block's tiles of the cluster's pairs.
template <typename SHAPE>
struct Tiles {
    const int *row_group;
    int groups, M, N, tiles_m, tiles_n;
    int pair, step; // this cluster's next pair, and from one to its next
    int rank;       // this block's number in its cluster

    __device__ Tiles(const int *row_group, int groups, int M, int N)
        : row_group(row_group), groups(groups), M(M), N(N), tiles_m((M - 1) / SHAPE::BLOCK_M + 1),
          tiles_n((N - 1) / SHAPE::BLOCK_N + 1), pair(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER),
          rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if there is no such group. Where only the other block has a tile, this
    // one's has no parts.
    __device__ bool next(Tile &next)
    {
        for (; !at_end(); pair += step) {
            const Place place = pair_place<SHAPE::STACKED>(pair, tiles_m, tiles_n, rank);
            const int row = place.m * SHAPE::BLOCK_M;
            const int group = row_group[row];
            const int other = place.stacked ? row_group[(place.m ^ 1) * SHAPE::BLOCK_M] : group;
            if (group >= groups) return false;
            if (group < 0 && other < 0) continue;
            const int col = place.n * SHAPE::BLOCK_N;
            const unsigned parts = group < 0 || col >= N ? 0 : SHAPE::ALL_PARTS;
            next = {row, col, M, max(group, 0), parts, place.stacked && group == other};
            pair += step;
            return true;
        }
        return false;
    }

    __device__ bool at_end() const { return pair >= pairs_of<SHAPE::STACKED>(tiles_m, tiles_n); }
};

template <typename SHAPE>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(SHAPE::NUM_THREADS, 1) aligned_segments_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (A_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (groups * N, K), boxes (B_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,     // (M, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *row_group,                          // (M)
    bool tma_store,                                // D's rows are multiples of 16 bytes
    __nv_bfloat16 *D,                              // (M, N)
    int M, int N, int K, int groups)
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
    wait_for_kernels_before();

    if (warpgroup == 0) {
        setmaxnreg_dec<SHAPE::PRODUCER_REGS>();
        if (tid == 0) {
            Tiles<SHAPE> tiles(row_group, groups, M, N);
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
                          const int *row_group, __nv_bfloat16 *D, int M, int N, int K, int groups,
                          int clusters, cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<SHAPE>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = aligned_segments_kernel<SHAPE>;
    cudaError_t error = make_maps<SHAPE>(maps, A, B, scale_A, D, M, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, SHAPE::NUM_THREADS, smem_bytes, stream, maps.A, maps.B,
                        maps.D, maps.scale_A, scale_B, row_group, maps.tma_store, D, M, N, K, groups);
}

extern "C" cudaError_t aligned_segments(const void *A, const void *B, const float *scale_A,
                                        const float *scale_B, const int32_t *row_group, void *D, int M, int N,
                                        int K, int groups, cudaStream_t stream)
{
    if (!can_multiply_groups(A, B, scale_A, scale_B, row_group, D, M, N, K, groups))
        return cudaErrorInvalidValue;
    const auto pairs = [&](auto shape) {
        return pairs_of<true>((M - 1) / shape.BLOCK_M + 1LL, (N - 1) / shape.BLOCK_N + 1LL);
    };
    const auto run = [&](auto shape, int clusters) {
        return launch<decltype(shape)>(A, B, scale_A, scale_B, row_group, (__nv_bfloat16 *)D, M, N, K, groups,
                                       clusters, stream);
    };
    return with_best(pairs, WHOLE_STEP, pairs, run, Shape<2, 192, true, true>(), Shape<2, 160, true, true>(),
                     Shape<2, 128, true, true>(), Shape<2, 96, true, true>());
}
