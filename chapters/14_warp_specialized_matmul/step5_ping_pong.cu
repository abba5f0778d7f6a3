// Chapter 14, step 5: ping-pong. The two consumers work on different tiles, one multiplies while the other stores.
//
// Question: in step 4 both consumers store at about the same time, and the tensor cores have nothing to do. And if they
// took turns?
//
//      consumer 0   mainloop tile 0 | store 0      | mainloop tile 2 | store 2      |
//      consumer 1                   | mainloop tile 1 | store 1      | mainloop tile 3 | ...
//
// The producer fills the ring with all of tile 0, then all of tile 1; a consumer leaves out the stages of the other. It must
// not even ask for its own too early: parity tells a phase from its neighbour only, and a wait for one further ahead may
// return at once. So `turn` lets a consumer begin when the other has got its last stage.
//
// The price: 128 accumulators a thread are a tile of 128 x 128 now, which for each FLOP needs a third more bytes in shared
// memory than one of 128 x 256, and half more from the L2.
//
// Grows from: step 4 (tma_store).
// New instructions: none. Shared memory: 229,376 bytes, now 6 stages of 32,768. Registers: as step 1.
// Run: make chapter-14 STEP=ping_pong
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = 2;                       // warpgroups that multiply, a tile each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NUM_STAGES = 6;
constexpr int CLUSTER = 2; // blocks, one above the other, that share their tiles of B
constexpr int GROUP_M = 4; // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

constexpr int STORE_ROWS = 16;       // rows of C a warp stores, those it has in its accumulators
constexpr int STORE_ROW_BYTES = 128; // of each of them at a time

template <typename T>
struct SharedStorage {
    T A_smem[NUM_STAGES][BLOCK_M][BLOCK_K];                          // (stage, m, k), 16,384 bytes a stage
    T B_smem[NUM_STAGES][BLOCK_N][BLOCK_K];                          // (stage, n, k), 16,384 bytes a stage
    char C_smem[NUM_CONSUMERS * 4][2][STORE_ROWS * STORE_ROW_BYTES]; // (warp, buffer), 2,048 bytes a buffer
    uint64_t full[NUM_STAGES];                                       // the stage's tiles have landed
    uint64_t empty[NUM_STAGES];   // the tile's consumer in every block is done with them
    uint64_t turn[NUM_CONSUMERS]; // this consumer's tile is next in the ring
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

// Multiplies a tile: acc[i] are rows 64 i to 64 i + 63. A descriptor counts in units of 16 bytes.
template <typename T>
static __device__ void mma_tile(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], const T *A_smem, const T *B_smem,
                                bool accumulate)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
#pragma unroll
        for (int i = 0; i < BLOCK_M / MMA_M; i++)
            wgmma<BLOCK_N, T>(acc[i], A_desc + (i * MMA_M * ROW_BYTES + slice * MMA_K * 2) / 16,
                              B_desc + slice * MMA_K * 2 / 16, accumulate || slice > 0);
}

// Writes a warp's 16 rows of accumulators, with the bias, to C from (row0, col0) on, through its two buffers.
template <typename T, typename TC>
static __device__ void store_tile_tma(char (&C_smem)[2][STORE_ROWS * STORE_ROW_BYTES],
                                      const CUtensorMap &C_map, const T *bias,
                                      const float (&acc)[BLOCK_N / 2], int row0, int col0, int N, int lane)
{
    constexpr int COLS = STORE_ROW_BYTES / sizeof(TC); // stored at a time
#pragma unroll
    for (int piece = 0; piece < BLOCK_N / COLS; piece++) {
        const uint32_t C_addr = smem_addr(C_smem[piece % 2]);
        if (lane == 0) cp_async_bulk_wait_group_read<1>(); // This buffer has left; the other may be leaving.
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLS / 8; j += 2) { // 16 columns: two times four accumulators
            float value[8];
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const int col = col0 + piece * COLS + (j + r / 4) * 8 + lane % 4 * 2 + r % 2;
                value[r] = acc[(piece * COLS / 8 + j) * 4 + r] + (bias && col < N ? (float)bias[col] : 0.0f);
            }
            if constexpr (sizeof(TC) == 2) {
                // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
                const uint32_t pairs[4] = {
                    pack_pair<TC>(value[0], value[1]), pack_pair<TC>(value[2], value[3]),
                    pack_pair<TC>(value[4], value[5]), pack_pair<TC>(value[6], value[7])};
                const uint32_t offset = lane % 16 * STORE_ROW_BYTES + (j + lane / 16) * 16;
                stmatrix_x4(C_addr + swizzle(offset, 3), pairs);
            } else {
#pragma unroll
                for (int r = 0; r < 8; r += 2) { // rows l / 4 and + 8, columns in pairs of 8 bytes
                    const uint32_t offset = (lane / 4 + r % 4 / 2 * 8) * STORE_ROW_BYTES +
                                            ((j + r / 4) * 8 + lane % 4 * 2) * sizeof(TC);
                    store_pair(reinterpret_cast<TC *>(C_smem[piece % 2] + swizzle(offset, 3)), value[r],
                               value[r + 1]);
                }
            }
        }
        fence_proxy_async(); // What this thread wrote is there for TMA,
        __syncwarp();        // and what the others wrote.
        if (lane == 0) {
            cp_async_bulk_tensor_2d_store(C_map, C_smem[piece % 2], col0 + piece * COLS, row0);
            cp_async_bulk_commit_group();
        }
    }
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
static __device__ void consume(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], SharedStorage<T> &smem,
                               PipelineState<NUM_STAGES> &state, int k_tiles, uint64_t *next_turn, int tid)
{
    int last_stage = 0;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc[0]);
        wgmma_touch(acc[1]);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[state.stage][0], smem.B_smem[state.stage][0], k > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the tile before are done.
        if (k > 0 && tid < CLUSTER) mbarrier_arrive_cluster(&smem.empty[last_stage], tid);
        last_stage = state.stage;
        state.advance();
    }
    if (tid == 0) mbarrier_arrive(next_turn);
    wgmma_wait_group<0>();
    wgmma_touch(acc[0]);
    wgmma_touch(acc[1]);
    if (tid < CLUSTER) mbarrier_arrive_cluster(&smem.empty[last_stage], tid);
}

template <typename T, typename TC>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1)
    ping_pong_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                     const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N / CLUSTER, BLOCK_K)
                     const __grid_constant__ CUtensorMap C_map, // (M, N), boxes (16, 128 bytes)
                     const T *bias,                             // (N) or NULL
                     bool tma_store,                            // C's rows are multiples of 16 bytes
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
            mbarrier_init(&smem.empty[stage], CLUSTER);
        }
        for (int consumer = 0; consumer < NUM_CONSUMERS; consumer++) mbarrier_init(&smem.turn[consumer], 1);
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid / 32 == 0 && elect_one()) produce(smem, A_map, B_map, tiles, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        PipelineState<NUM_STAGES> state;
        const int consumer = warpgroup - 1;
        uint32_t turn_parity = consumer == 0; // The first turn is consumer 0's: it passes.
        if (consumer == 1) state.advance(k_tiles);
        for (int tile = tiles.first + consumer * tiles.step; tile < tiles.count();
             tile += NUM_CONSUMERS * tiles.step) {
            int row, col;
            tiles.origin(tile, row, col);
            float acc[BLOCK_M / MMA_M][BLOCK_N / 2];
            trace(WAIT_TURN);
            mbarrier_wait(&smem.turn[consumer], turn_parity);
            turn_parity ^= 1;
            consume(acc, smem, state, k_tiles, &smem.turn[1 - consumer], tid);
            state.advance(k_tiles); // the other consumer's tile
            trace(STORE);
#pragma unroll
            for (int i = 0; i < BLOCK_M / MMA_M; i++)
                if (tma_store)
                    store_tile_tma<T, TC>(smem.C_smem[threadIdx.x / 32 - 4], C_map, bias, acc[i],
                                          row + i * MMA_M + tid / 32 * STORE_ROWS, col, N, tid % 32);
                else
                    store_tile(C, bias, acc[i], row + i * MMA_M, col, M, N, tid);
        }
        if (tid % 32 == 0) cp_async_bulk_wait_group_read<0>(); // C_smem must outlive its readers.
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <typename T, typename TC>
static cudaError_t launch(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map, C_map = {};
    const bool tma_store = (size_t)N * sizeof(TC) % 16 == 0 && (uintptr_t)C % 16 == 0;
    constexpr int smem_bytes = sizeof(SharedStorage<T>);
    const auto kernel = ping_pong_kernel<T, TC>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N / CLUSTER, BLOCK_K);
    if (error == cudaSuccess && tma_store)
        error = tensor_map_matrix(&C_map, tensor_map_type<TC>(), C, M, N, STORE_ROWS,
                                  STORE_ROW_BYTES / sizeof(TC));
    int device, sms;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const long long num_tiles = ((M - 1) / (CLUSTER * BLOCK_M) + 1LL) * ((N - 1) / BLOCK_N + 1LL);
    if (num_tiles > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
    const int num_clusters = min((int)num_tiles, sms / CLUSTER);
    kernel<<<num_clusters * CLUSTER, NUM_THREADS, smem_bytes, stream>>>(A_map, B_map, C_map, bias, tma_store,
                                                                        C, M, N, K);
    return cudaGetLastError();
}

extern "C" cudaError_t ping_pong(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                 const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return launch((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
