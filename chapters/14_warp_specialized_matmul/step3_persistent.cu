// Chapter 14, step 3: blocks stay, and walk over the tiles of C in an order that the L2 likes.
//
// Question: between two tiles an SM ends a block, starts one, sets up barriers and waits for the first copies. And
// which tiles should be worked on at the same time?
//
//      tile order, GROUP_M = 2        0 2 4 6 8            66 clusters work on neighbours: about
//      (cluster tiles of 256 x 256)   1 3 5 7 9            8 x 8 of them share 8 rows of A and 8 of B,
//                                    10 12 14 ...          which stay in the L2 while they do
//
// As many clusters as fit the GPU; each takes every so many-th tile. The producer does not stop between tiles: while the
// consumers store one, the first stages of the next are in flight.
//
// Grows from: step 2 (cluster_multicast).
// New instructions: none. Shared memory and registers: as step 1.
// Run: make chapter-14 STEP=persistent
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 256; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NUM_STAGES = 4;
constexpr int CLUSTER = 2; // blocks, one above the other, that share their tiles of B
constexpr int GROUP_M = 8; // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

template <typename T>
struct SharedStorage {
    T A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    T B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 32,768 bytes a stage
    uint64_t full[NUM_STAGES];              // the stage's tiles have landed
    uint64_t empty[NUM_STAGES];             // every consumer of the cluster is done with them
};

// Starts the copies of a tile into a stage, and of this block's part of B for the whole cluster. One thread does. The other
// parts of B come from the other blocks, and are counted here as well.
template <typename T>
static __device__ void load_tile(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 int row, int col, int k, int stage, int rank)
{
    trace(LOAD);
    constexpr int PART = BLOCK_N / CLUSTER;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage]);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
    cp_async_bulk_tensor_2d_multicast(smem.B_smem[stage][rank * PART], B_map, full, k, col + rank * PART,
                                      (1 << CLUSTER) - 1);
}

// Multiplies a warpgroup's 64 rows of a tile. A descriptor counts in units of 16 bytes.
template <typename T>
static __device__ void mma_tile(float (&acc)[BLOCK_N / 2], const T *A_smem, const T *B_smem, bool accumulate)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma<BLOCK_N, T>(acc, A_desc + slice * MMA_K * 2 / 16, B_desc + slice * MMA_K * 2 / 16,
                          accumulate || slice > 0);
}

// Writes 64 rows of accumulators, with the bias, to C from (row0, col0) on. This thread's columns come in pairs.
template <typename T, typename TC>
static __device__ void store_tile(TC *C, const T *bias, const float (&acc)[BLOCK_N / 2], int row0, int col0,
                                  int M, int N, int tid)
{
    const int row = row0 + tid / 32 * 16 + tid % 32 / 4;
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4) { // acc[r], acc[r + 1]: row; acc[r + 2], acc[r + 3]: row + 8
        const int col = col0 + r / 4 * 8 + tid % 4 * 2;
        const float bias0 = bias && col < N ? (float)bias[col] : 0.0f;
        const float bias1 = bias && col + 1 < N ? (float)bias[col + 1] : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + half * 8 >= M || col >= N) continue;
            TC *dst = C + (size_t)(row + half * 8) * N + col;
            const float x = acc[r + half * 2] + bias0, y = acc[r + half * 2 + 1] + bias1;
            if (N % 2 == 0) {
                store_pair(dst, x, y);
            } else {
                dst[0] = (TC)x;
                if (col + 1 < N) dst[1] = (TC)y;
            }
        }
    }
}

// Where the work is: `tile` of a cluster, this block's part of it.
struct Tiles {
    int tiles_m, tiles_n; // in cluster tiles of (CLUSTER * BLOCK_M, BLOCK_N)
    int first, step;      // this cluster's first tile, and from one to its next
    int rank;             // this block's number in its cluster

    __device__ Tiles(int M, int N)
        : tiles_m((M - 1) / (CLUSTER * BLOCK_M) + 1), tiles_n((N - 1) / BLOCK_N + 1),
          first(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    __device__ int count() const { return tiles_m * tiles_n; }

    // The numbers walk down GROUP_M tiles, then one to the right, and so on to the edge before the next GROUP_M.
    __device__ void origin(int tile, int &row, int &col) const
    {
        const int group = tile / (GROUP_M * tiles_n);
        const int rows = min(GROUP_M, tiles_m - group * GROUP_M);
        const int in_group = tile - group * GROUP_M * tiles_n;
        row = ((group * GROUP_M + in_group % rows) * CLUSTER + rank) * BLOCK_M;
        col = in_group / rows * BLOCK_N;
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T>
static __device__ void produce(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const Tiles &tiles, int k_tiles)
{
    PipelineState<NUM_STAGES> state;
    for (int tile = tiles.first; tile < tiles.count(); tile += tiles.step) {
        int row, col;
        tiles.origin(tile, row, col);
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, row, col, k * BLOCK_K, state.stage, tiles.rank);
            state.advance();
        }
    }
    trace(END);
    // Every stage is empty again: the other blocks have arrived here for the last time, and this one may leave.
    for (int n = 0; n < NUM_STAGES; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

// A consumer warpgroup's products for one tile. One group of wgmma is always running: a stage is given back when the group
// after the one that reads it has been issued.
template <typename T>
static __device__ void consume(float (&acc)[BLOCK_N / 2], SharedStorage<T> &smem,
                               PipelineState<NUM_STAGES> &state, int warpgroup_row, int k_tiles, int tid)
{
    int last_stage = 0;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[state.stage][warpgroup_row], smem.B_smem[state.stage][0], k > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the tile before are done.
        if (k > 0 && tid < CLUSTER) mbarrier_arrive_cluster(&smem.empty[last_stage], tid);
        last_stage = state.stage;
        state.advance();
    }
    wgmma_wait_group<0>();
    wgmma_touch(acc);
    if (tid < CLUSTER) mbarrier_arrive_cluster(&smem.empty[last_stage], tid);
}

template <typename T, typename TC>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1)
    persistent_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                      const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N / CLUSTER, BLOCK_K)
                      const T *bias,                             // (N) or NULL
                      TC *C,                                     // (M, N)
                      int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T> &smem = *reinterpret_cast<SharedStorage<T> *>(smem_bytes);
    const int warpgroup = threadIdx.x / 128;
    const int tid = threadIdx.x % 128; // in the warpgroup
    const Tiles tiles(M, N);
    const int k_tiles = (K - 1) / BLOCK_K + 1;

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        for (int stage = 0; stage < NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER * NUM_CONSUMERS);
        }
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid / 32 == 0 && elect_one()) produce(smem, A_map, B_map, tiles, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        PipelineState<NUM_STAGES> state;
        for (int tile = tiles.first; tile < tiles.count(); tile += tiles.step) {
            int row, col;
            tiles.origin(tile, row, col);
            float acc[BLOCK_N / 2];
            consume(acc, smem, state, warpgroup_row, k_tiles, tid);
            trace(STORE);
            store_tile(C, bias, acc, row + warpgroup_row, col, M, N, tid);
        }
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <typename T, typename TC>
static cudaError_t launch(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T>);
    const auto kernel = persistent_kernel<T, TC>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N / CLUSTER, BLOCK_K);
    int device, sms;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const long long num_tiles = ((M - 1) / (CLUSTER * BLOCK_M) + 1LL) * ((N - 1) / BLOCK_N + 1LL);
    if (num_tiles > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
    const int num_clusters = min((int)num_tiles, sms / CLUSTER);
    kernel<<<num_clusters * CLUSTER, NUM_THREADS, smem_bytes, stream>>>(A_map, B_map, bias, C, M, N, K);
    return cudaGetLastError();
}

extern "C" cudaError_t persistent(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                  const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return launch((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
