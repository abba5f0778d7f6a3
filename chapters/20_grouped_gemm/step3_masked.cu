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
// A tile may have 192 rows, for three warpgroups: each of the pair's blocks fetches 96. And pairs stand one above the other, as step 2's,
// where a group's two tiles would drift apart, and the L2 cannot keep for the one what the other has fetched. A warpgroup stores its
// rows when it has them: of a tile where a group ends those that are whole leave by TMA.
// New instructions: none. Shared memory: up to 216,736 bytes. Registers: as step 1, or 40 and 152.
// Run: make chapter-20 OP=masked STEP=masked
#include "../../common/device/launch.cuh"
#include "launchers.h"
#include "row_groups.cuh"

constexpr int COLUMN_CLOCKS = 6; // in which an H200's memory has 128 bytes for every SM

// Where the work is: this block's tiles of the cluster's pairs, group after group.
template <typename SHAPE>
struct Tiles {
    const int *counts;
    int groups, tiles_n;
    int capacity, N;    // rows that a group has room for, and columns of D
    int pair, step;     // this cluster's next pair, and from one to its next
    int rank;           // this block's number in its cluster
    int group = 0;      // the pair's, if it has one
    int first_pair = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int capacity, int N)
        : counts(counts), groups(groups), tiles_n((N - 1) / SHAPE::BLOCK_N + 1), capacity(capacity), N(N),
          pair(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int rows = counts[group];
            if (rows < 0 || rows > capacity) return false; // They would be the next group's.
            const int tiles_m = (rows + SHAPE::BLOCK_M - 1) / SHAPE::BLOCK_M;
            const int pairs = pairs_of<SHAPE::STACKED>(tiles_m, tiles_n);
            if (pair < first_pair + pairs) {
                const Place place = pair_place<SHAPE::STACKED>(pair - first_pair, tiles_m, tiles_n, rank);
                const int first_row = group * capacity;
                const int row = place.m * SHAPE::BLOCK_M, col = place.n * SHAPE::BLOCK_N;
                // Beyond the right edge a block still has half of A to fetch, if it shares it.
                const unsigned parts = SHAPE::STACKED && col >= N ? 0 : parts_of<SHAPE>(rows - row);
                next = {first_row + row, col, first_row + rows, group, parts, place.stacked};
                pair += step;
                return true;
            }
            first_pair += pairs;
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
    int device, sms, L2_bytes;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&L2_bytes, cudaDevAttrL2CacheSize, device);
    if (error != cudaSuccess) return error;

    const long long rows = std::max(1, std::min(expected, capacity));
    const auto pairs_n = [&](auto shape) { return (N - 1) / (CLUSTER * shape.BLOCK_N) + 1LL; };
    // Half a tile more than the rows fill, for the groups differ; twice that.
    const auto twice_tiles_m = [&](auto shape) {
        return std::max(2.0, (2.0 * rows + shape.BLOCK_M) / shape.BLOCK_M);
    };
    const auto likely_pairs = [&](auto shape) {
        return (long long)(groups * twice_tiles_m(shape) / 2) * pairs_n(shape);
    };
    const auto most_pairs = [&](auto shape) {
        return groups * ((capacity - 1LL) / shape.BLOCK_M + 1) * pairs_n(shape);
    };
    // A step's products, or its columns of B from memory, if they take longer. A group's tiles, one above the other, take these columns in
    // the same round; but they drift apart, and what the one has fetched is gone when the other comes, if the L2 has no room for all that
    // is fetched in a round. Not so in a pair.
    const auto clocks = [&](auto shape) {
        const double tiles_m = twice_tiles_m(shape) / 2, fetched = (double)sms * shape.BLOCK_N * K / tiles_m;
        const double sharing = fetched <= L2_bytes ? tiles_m : shape.STACKED ? CLUSTER : 1;
        const int parts = (int)std::min<long long>(shape.CONSUMERS, (rows - 1) / MMA_M + 1);
        return std::max<double>(step_clocks(parts, 1, shape.BLOCK_N),
                                COLUMN_CLOCKS * shape.BLOCK_N / std::min(sharing, tiles_m));
    };
    const auto run = [&](auto shape, int clusters) {
        return launch<decltype(shape)>(A, B, scale_A, scale_B, counts, (__nv_bfloat16 *)D, capacity, N, K,
                                       groups, clusters, stream);
    };
    return with_best(likely_pairs, clocks, most_pairs, run, Shape<2, 192, false, false>(),
                     Shape<2, 160, false, false>(), Shape<2, 128, false, false>(),
                     Shape<3, 128, false, false>(), Shape<2, 192, true, false>(),
                     Shape<2, 96, false, false>());
}
