// Chapter 19, step 4: blocks stay, share A, store with TMA, and their tiles are as wide as the shape likes.
//
// Question: what chapter 14 found for bf16, it found for any product. What is different where a tile has scales?
//
// Grows from: step 3 (two_math_warpgroups).
// Its size. Two accumulators of 64 x BLOCK_N take BLOCK_N registers a thread: 256 columns are too many, 192 fit two warpgroups,
// 128 fit three. Or a warpgroup has two times 64 rows, which are multiplied one after the other in one accumulator: 192 registers
// for it and both sums. A tile of 256 x 128 is fetched and read with the fewest bytes a product. And clusters come in rounds: tiles of 128 x 256 (two blocks of 128 columns) of 4096 x 4096 fill 66 clusters 8 times, tiles of 256 x 256 do it 4 times. In
// a step of k the tensor cores work for 2 * BLOCK_N clocks for each 64 rows, and wait, for products to end, to be promoted and to
// begin, for some more: measured. The launcher takes the tile with the least rounds * (work + waiting).
//
//      BLOCK_N = 160:   columns 160 to 319 are in squares 1 and 2: 96 columns with one scale of B, 64 with the next
//
// So a tile has one or two scales of B, and where the second begins is one of four places: the loop over k is compiled for each.
// Nothing in it waits for global memory: a warp's lanes have 32 steps' scales of B, one each.
// A warpgroup's rows of D leave whole: its warps write them to shared memory, and each 64 columns of them are one TMA store. A store of a
// warp's 16 rows needs no barrier, but there would be four to sixteen of them for one of these. One for the rows of all warpgroups needs them
// all at a barrier, where the first to have its sums waits for the others' products, half a step, and all begin the next tile at once.
// The rest is chapter 14's: clusters of two blocks, side by side here, each of which fetches half of A's rows for both; numbers of
// tiles that walk down GROUP_M of them.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory: up to 216,128 bytes, 32,768 to 65,536 of them for D. Registers: as step 3, or 152.
// Run: make chapter-19 OP=gemm STEP=persistent_multicast
#include "../../common/device/launch.cuh"
#include "../../common/device/tensor_map.h"
#include "launchers.h"
#include "persistent.cuh"

#include <algorithm>

constexpr int BLOCK_K = GROUP;       // columns of A and B in shared memory at a time: the swizzle's 128 bytes
constexpr int MMA_M = 64;            // rows of a wgmma
constexpr int CLUSTER = 2;           // blocks side by side, which share their rows of A
constexpr int GROUP_M = 8;           // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int MAX_SMEM = 227 * 1024; // of a block

// A block's tile: WAVES times 64 rows for each of its CONSUMERS, the warpgroups that multiply, and BLOCK_N columns.
template <int CONSUMERS_, int WAVES_, int BLOCK_N_>
struct Shape : Warpgroups<CONSUMERS_> {
    static constexpr int WAVES = WAVES_, ROWS = WAVES * MMA_M; // of a consumer
    static constexpr int BLOCK_M = CONSUMERS_ * ROWS, BLOCK_N = BLOCK_N_;

    // As many stages as there is room for beside D's pieces and the barriers.
    static constexpr int PIECE_BYTES = BLOCK_M * STORE_ROW_BYTES;
    static constexpr int NUM_STAGES = (MAX_SMEM - STORE_PIECES<BLOCK_N> * PIECE_BYTES - 256) /
                                      ((BLOCK_M + BLOCK_N) * BLOCK_K + BLOCK_M * (int)sizeof(float));
};

template <typename SHAPE>
struct SharedStorage {
    static constexpr int NUM_STAGES = SHAPE::NUM_STAGES;
    uint8_t A_smem[NUM_STAGES][SHAPE::BLOCK_M][BLOCK_K];           // (stage, m, k)
    uint8_t B_smem[NUM_STAGES][SHAPE::BLOCK_N][BLOCK_K];           // (stage, n, k)
    char D_smem[STORE_PIECES<SHAPE::BLOCK_N>][SHAPE::PIECE_BYTES]; // (piece, m, 128 bytes)
    float scale_smem[NUM_STAGES][SHAPE::BLOCK_M];                  // (stage, m)
    uint64_t full[NUM_STAGES];                                     // the stage's tiles and scales have landed
    uint64_t empty[NUM_STAGES]; // every consumer of the cluster is done with them
};

// Starts the copies of step k_tile into a stage, and of this block's part of A for the whole cluster. One thread does. The other part
// of A comes from the other block, and is counted here as well.
template <typename SHAPE>
static __device__ void load_tile(SharedStorage<SHAPE> &smem, const CUtensorMap &A_map,
                                 const CUtensorMap &B_map, const CUtensorMap &scale_map, int row, int col,
                                 int k_tile, int stage, int rank)
{
    trace(LOAD);
    constexpr int PART = SHAPE::BLOCK_M / CLUSTER;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage] +
                                        sizeof smem.scale_smem[stage]);
    cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][rank * PART], A_map, full, k_tile * BLOCK_K,
                                      row + rank * PART, (1 << CLUSTER) - 1);
    cp_async_bulk_tensor_2d(smem.scale_smem[stage], scale_map, full, row, k_tile);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k_tile * BLOCK_K, col);
}

// Where the work is: `tile` of a cluster, this block's part of it.
template <typename SHAPE>
struct Tiles {
    static constexpr int BLOCK_M = SHAPE::BLOCK_M, BLOCK_N = SHAPE::BLOCK_N;
    int tiles_m, tiles_n; // in cluster tiles of (BLOCK_M, CLUSTER * BLOCK_N)
    int first, step;      // this cluster's first tile, and from one to its next
    int rank;             // this block's number in its cluster

    __device__ Tiles(int M, int N)
        : tiles_m((M - 1) / BLOCK_M + 1), tiles_n((N - 1) / (CLUSTER * BLOCK_N) + 1),
          first(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    __device__ int count() const { return tiles_m * tiles_n; }

    __device__ void origin(int tile, int &row, int &col) const
    {
        const TilePlace place = tile_place<GROUP_M>(tile, tiles_m, tiles_n);
        row = place.m * BLOCK_M;
        col = (place.n * CLUSTER + rank) * BLOCK_N;
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename SHAPE>
static __device__ void produce(SharedStorage<SHAPE> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const CUtensorMap &scale_map, const Tiles<SHAPE> &tiles, int k_tiles)
{
    PipelineState<SHAPE::NUM_STAGES> state;
    for (int tile = tiles.first; tile < tiles.count(); tile += tiles.step) {
        int row, col;
        tiles.origin(tile, row, col);
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, scale_map, row, col, k, state.stage, tiles.rank);
            state.advance();
        }
    }
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < SHAPE::NUM_STAGES; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

template <int CONSUMERS, int WAVES, int BLOCK_N, typename TD>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(Shape<CONSUMERS, WAVES, BLOCK_N>::NUM_THREADS, 1)
    persistent_multicast_kernel(
        const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (BLOCK_M / CLUSTER, BLOCK_K)
        const __grid_constant__ CUtensorMap B_map,     // (N, K), boxes (BLOCK_N, BLOCK_K)
        const __grid_constant__ CUtensorMap D_map,     // (M, N), boxes (BLOCK_M, 32 or 64)
        const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, BLOCK_M)
        const float *scale_B,                          // (squares, k_tiles)
        bool tma_store,                                // D's rows are multiples of 16 bytes
        TD *D,                                         // (M, N)
        int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    using SHAPE = Shape<CONSUMERS, WAVES, BLOCK_N>;
    SharedStorage<SHAPE> &smem = *reinterpret_cast<SharedStorage<SHAPE> *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    const Tiles<SHAPE> tiles(M, N);
    const int k_tiles = (K - 1) / BLOCK_K + 1, squares = (N - 1) / GROUP + 1;

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        prefetch_tensormap(scale_map);
        for (int stage = 0; stage < SHAPE::NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER * CONSUMERS * 4); // every warp that multiplies
        }
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    wait_for_kernels_before();

    if (warpgroup == 0) {
        setmaxnreg_dec<SHAPE::PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, scale_map, tiles, k_tiles);
    } else {
        setmaxnreg_inc<SHAPE::CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * SHAPE::ROWS; // this warpgroup's rows of the tile
        PipelineState<SHAPE::NUM_STAGES> state;
        for (int tile = tiles.first; tile < tiles.count(); tile += tiles.step) {
            int row, col;
            tiles.origin(tile, row, col);
            if (col >= N) { // Beyond the right edge there is nothing to multiply.
                pass_stages<CLUSTER>(smem, state, k_tiles, tid);
                continue;
            }
            const int square = col / GROUP, next_square = square + 1 < squares ? k_tiles : 0;
            float sum[WAVES][BLOCK_N / 2] = {};
            consume<BLOCK_N, CLUSTER>(sum, smem, state, scale_B + (size_t)square * k_tiles, next_square,
                                      GROUP - col % GROUP, warpgroup_row, warpgroup_row, k_tiles, tid);
            trace(STORE);
            if (tma_store) {
                store_tile_tma<BLOCK_N, TD, false>(smem.D_smem, D_map, sum, row, col, warpgroup_row);
                continue;
            }
#pragma unroll
            for (int wave = 0; wave < WAVES; wave++)
                store_tile(D, sum[wave], row + warpgroup_row + wave * MMA_M, col, M, N, tid);
        }
        cp_async_bulk_wait_group_read<0>(); // D_smem must outlive its readers.
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

// Cluster tiles of (M, N) of blocks that are that high and wide.
static long long cluster_tiles(int M, int N, int block_m, int block_n)
{
    return ((M - 1) / block_m + 1LL) * ((N - 1) / (CLUSTER * block_n) + 1LL);
}

struct Choice {
    int consumers, waves, block_n;
};

// The tile with which the clusters are done first, if a round takes as long as its steps of k; the larger of two.
static Choice choose(int M, int N, int sms)
{
    constexpr Choice CHOICES[] = {{2, 1, 96},  {2, 1, 128}, {2, 1, 160},
                                  {2, 1, 192}, {3, 1, 128}, {2, 2, 128}};
    Choice best = {};
    long long best_time = INT64_MAX;
    for (const Choice choice : CHOICES) {
        const long long tiles = cluster_tiles(M, N, choice.consumers * choice.waves * MMA_M, choice.block_n);
        const long long time =
            ((tiles - 1) / (sms / CLUSTER) + 1) * step_clocks(choice.consumers, choice.waves, choice.block_n);
        if (time <= best_time) {
            best = choice;
            best_time = time;
        }
    }
    return best;
}

template <int CONSUMERS, int WAVES, int BLOCK_N, typename TD>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B, TD *D,
                          int M, int N, int K, int sms, cudaStream_t stream)
{
    using SHAPE = Shape<CONSUMERS, WAVES, BLOCK_N>;
    constexpr int BLOCK_M = SHAPE::BLOCK_M;
    CUtensorMap A_map, B_map, scale_map, D_map = {};
    const bool tma_store = (size_t)N * sizeof(TD) % 16 == 0 && (uintptr_t)D % 16 == 0;
    constexpr int smem_bytes = sizeof(SharedStorage<SHAPE>);
    static_assert(smem_bytes <= MAX_SMEM, "there is room");
    const auto kernel = persistent_multicast_kernel<CONSUMERS, WAVES, BLOCK_N, TD>;
    cudaError_t error =
        tensor_map_matrix(&A_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, BLOCK_M / CLUSTER, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&scale_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, BLOCK_M);
    if (error == cudaSuccess && tma_store)
        error =
            tensor_map_matrix(&D_map, tensor_map_type<TD>(), D, M, N, SHAPE::ROWS, STORE_COLS<BLOCK_N, TD>);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const int num_clusters = (int)std::min(cluster_tiles(M, N, BLOCK_M, BLOCK_N), (long long)(sms / CLUSTER));
    return launch_early(kernel, num_clusters * CLUSTER, SHAPE::NUM_THREADS, smem_bytes, stream, A_map, B_map,
                        D_map, scale_map, scale_B, tma_store, D, M, N, K);
}

extern "C" cudaError_t persistent_multicast(enum dtype D_dtype, const void *A, const void *B,
                                            const float *scale_A, const float *scale_B, void *D, int M, int N,
                                            int K, cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    if ((uintptr_t)scale_A % 16 != 0) return cudaErrorInvalidValue;
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    if (cluster_tiles(M, N, 2 * MMA_M, 96) > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
    const Choice choice = choose(M, N, sms);
    return with_D_type(D_dtype, [&](auto td) {
        using TD = decltype(td);
        const auto with_tile = [&](auto launch_tile) {
            return launch_tile(A, B, scale_A, scale_B, (TD *)D, M, N, K, sms, stream);
        };
        if (choice.consumers == 3) return with_tile(launch<3, 1, 128, TD>);
        if (choice.waves == 2) return with_tile(launch<2, 2, 128, TD>);
        switch (choice.block_n) {
        case 96: return with_tile(launch<2, 1, 96, TD>);
        case 128: return with_tile(launch<2, 1, 128, TD>);
        case 160: return with_tile(launch<2, 1, 160, TD>);
        default: return with_tile(launch<2, 1, 192, TD>);
        }
    });
}
