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
// Where a group begins is the sum of the counts before it. A cluster takes pairs of rising numbers, so that the sum goes along: a
// walk over the groups, of which the empty ones are passed. A row's scale may be at any place now, but a bulk copy begins at a
// multiple of 16 bytes: up to three scales too many come first.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory, registers: as step 1.
// Run: make chapter-20 OP=ragged STEP=ragged_segments
#include "../../common/device/launch.cuh"
#include "launchers.h"
#include "row_groups.cuh"

// Where the work is: this block's tiles of the cluster's pairs, group after group.
template <typename SHAPE>
struct Tiles {
    const int *counts;
    int groups, tiles_n;
    int M, N;           // rows that there are, and columns of D
    int pair, step;     // this cluster's next pair, and from one to its next
    int rank;           // this block's number in its cluster
    int group = 0;      // the pair's, if it has one
    int first_row = 0;  // of the group
    int first_pair = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int M, int N)
        : counts(counts), groups(groups), tiles_n((N - 1) / SHAPE::BLOCK_N + 1), M(M), N(N),
          pair(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int rows = counts[group];
            if (rows < 0 || rows > M - first_row) return false; // They would be others' rows.
            const int tiles_m = (rows + SHAPE::BLOCK_M - 1) / SHAPE::BLOCK_M;
            const int pairs = pairs_of<SHAPE::STACKED>(tiles_m, tiles_n);
            if (pair < first_pair + pairs) {
                const Place place = pair_place<SHAPE::STACKED>(pair - first_pair, tiles_m, tiles_n, rank);
                const int row = place.m * SHAPE::BLOCK_M;
                const int col = place.n * SHAPE::BLOCK_N;
                const unsigned parts = col >= N ? 0 : parts_of<SHAPE>(rows - row);
                next = {first_row + row, col, first_row + rows, group, parts, place.stacked};
                pair += step;
                return true;
            }
            first_pair += pairs;
            first_row += rows;
        }
        return false;
    }

    __device__ bool at_end() const { return group == groups; }
};

template <typename SHAPE>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(SHAPE::NUM_THREADS, 1) ragged_segments_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (A_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (groups * N, K), boxes (B_BOX, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,     // (M, N), boxes (BLOCK_M, 32 or 64)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, SCALES)
    const float *scale_B,                          // (groups, squares, k_tiles)
    const int *counts,                             // (groups)
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
            Tiles<SHAPE> tiles(counts, groups, M, N);
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
                          const int *counts, __nv_bfloat16 *D, int M, int N, int K, int groups, int clusters,
                          cudaStream_t stream)
{
    Maps maps;
    constexpr int smem_bytes = sizeof(SharedStorage<SHAPE>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = ragged_segments_kernel<SHAPE>;
    cudaError_t error = make_maps<SHAPE>(maps, A, B, scale_A, D, M, N, K, groups);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(kernel, clusters * CLUSTER, SHAPE::NUM_THREADS, smem_bytes, stream, maps.A, maps.B,
                        maps.D, maps.scale_A, scale_B, counts, maps.tma_store, D, M, N, K, groups);
}

extern "C" cudaError_t ragged_segments(const void *A, const void *B, const float *scale_A,
                                       const float *scale_B, const int32_t *counts, void *D, int M, int N,
                                       int K, int groups, cudaStream_t stream)
{
    if (!can_multiply_groups(A, B, scale_A, scale_B, counts, D, M, N, K, groups))
        return cudaErrorInvalidValue;
    const auto likely_pairs = [&](auto shape) {
        const long long tiles_m = (M - 1) / shape.BLOCK_M + 1 + groups / 2;
        return (tiles_m * ((N - 1) / shape.BLOCK_N + 1) + CLUSTER - 1) / CLUSTER;
    };
    const auto most_pairs = [&](auto shape) {
        const long long tiles_m = (M - 1) / shape.BLOCK_M + 1LL + groups;
        return tiles_m * ((N - 1) / (CLUSTER * shape.BLOCK_N) + 1);
    };
    const auto run = [&](auto shape, int clusters) {
        return launch<decltype(shape)>(A, B, scale_A, scale_B, counts, (__nv_bfloat16 *)D, M, N, K, groups,
                                       clusters, stream);
    };
    return with_best(likely_pairs, WHOLE_STEP, most_pairs, run, Shape<2, 192, true, true>(),
                     Shape<2, 160, true, true>(), Shape<2, 128, true, true>(), Shape<2, 96, true, true>());
}
