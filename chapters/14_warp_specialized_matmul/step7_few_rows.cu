// Chapter 14, step 7: where C has few rows. Clusters of four share A and divide k.
//
// Question: with at most 128 rows, C is one row of tiles: 56 tiles for 132 multiprocessors, and nothing to share with a block
// below. The bytes of B take longer than the products. How do all of them get to fetch, and A not too often?
//
//      steps of k    tile n     tile n + 1
//      0, 2, 4 ...   block 0    block 1       each fetches half of A's tile for both (multicast), and its own B
//      1, 3, 5 ...   block 2    block 3       the same of the other steps
//
// Both consumers work on the same tile, 64 rows each, as in step 4. In the end block 0 has half of the sums and block 2 the
// other half: each sends one consumer's to the other, into its shared memory, and stores those of the other consumer.
//
// C with more rows is step 6's. Grows from: step 6, and step 4. New instructions: st.async. Shared memory: 229,376 bytes.
// Registers: as step 1.
#include "../../common/matmul_types.cuh"
#include "../../common/mbarrier.cuh"
#include "../../common/swizzle.cuh"
#include "../../common/tensor_map.h"
#include "../../common/tma.cuh"
#include "../../common/wgmma.cuh"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NUM_STAGES = 6;
constexpr int SHARING = 2; // blocks, side by side, that share their tiles of A
constexpr int HALVES = 2;  // of k, in blocks of their own
constexpr int CLUSTER = SHARING * HALVES;
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
    uint64_t empty[NUM_STAGES]; // every consumer of the blocks that share A is done with them
    uint64_t sums_full;         // C_smem has the other half's sums
    uint64_t sums_empty;        // the C_smem of the block with the other half may be written
};

// Starts the copies of a tile into a stage: of this block's B, and of its part of A for the blocks that share it. One thread
// does. The other part of A comes from the other block, and is counted here as well.
template <typename T>
static __device__ void load_tile(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 int col, int k, int stage, int rank)
{
    constexpr int PART = BLOCK_M / SHARING;
    const int part = rank % SHARING * PART;
    const uint16_t sharing = ((1 << SHARING) - 1) << (rank - rank % SHARING);
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage]);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, col);
    cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][part], A_map, full, k, part, sharing);
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

// Sends a warpgroup's sums to the same one of block `other`, into that block's C_smem.
template <typename T>
static __device__ void send_sums(const float (&acc)[BLOCK_N / 2], SharedStorage<T> &smem, uint32_t parity,
                                 int other, int tid)
{
    const uint32_t sums_addr = mapa(smem_addr(smem.C_smem), other) + tid * 16;
    const uint32_t full_addr = mapa(smem_addr(&smem.sums_full), other);
    mbarrier_wait(&smem.sums_empty, parity ^ 1); // The stores of the other block have left its C_smem.
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4)
        st_async(sums_addr + r / 4 * 128 * 16, make_float4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]),
                 full_addr);
}

// Adds the sums that the block with the other half has sent.
template <typename T>
static __device__ void add_sums(float (&acc)[BLOCK_N / 2], SharedStorage<T> &smem, uint32_t parity,
                                int barrier, int tid)
{
    static_assert(sizeof smem.C_smem == MMA_M * BLOCK_N * sizeof(float), "C_smem holds a warpgroup's sums");
    const float4 *sums = reinterpret_cast<const float4 *>(smem.C_smem) + tid;
    if (tid == 0) mbarrier_arrive_expect_tx(&smem.sums_full, sizeof smem.C_smem);
    mbarrier_wait(&smem.sums_full, parity);
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4) {
        const float4 four = sums[r / 4 * 128];
        acc[r] += four.x;
        acc[r + 1] += four.y;
        acc[r + 2] += four.z;
        acc[r + 3] += four.w;
    }
    named_barrier_sync(barrier, 128); // Everyone has read the sums: C_smem may be written.
}

// The tiles and steps of a block: every so many-th pair of tiles, every second step of BLOCK_K.
struct Tiles {
    int first, step,
        count; // columns of tiles: the first and the distance to the next, one for each block that shares A
    int half, k_tiles; // which steps: half, half + HALVES, ... below k_tiles

    __device__ Tiles(int N, int K, int rank)
        : first(blockIdx.x / CLUSTER * SHARING + rank % SHARING), step(gridDim.x / CLUSTER * SHARING),
          count(((N - 1) / (SHARING * BLOCK_N) + 1) * SHARING), half(rank / SHARING),
          k_tiles((K - 1) / BLOCK_K + 1)
    {
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T>
static __device__ void produce(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const Tiles &tiles, int rank)
{
    PipelineState<NUM_STAGES> state;
    for (int tile = tiles.first; tile < tiles.count; tile += tiles.step)
        for (int k = tiles.half; k < tiles.k_tiles; k += HALVES) {
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, tile * BLOCK_N, k * BLOCK_K, state.stage, rank);
            state.advance();
        }
    griddepcontrol_launch_dependents(); // This block leaves soon: the next kernel may set itself up.
    // Every stage is empty again: the other blocks have arrived here for the last time, and this one may leave.
    for (int n = 0; n < NUM_STAGES; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

// A consumer warpgroup's products for one tile. One group of wgmma is always running: a stage is given back when the group
// after the one that reads it has been issued.
template <typename T>
static __device__ void multiply(float (&acc)[BLOCK_N / 2], SharedStorage<T> &smem,
                                PipelineState<NUM_STAGES> &state, const Tiles &tiles, int warpgroup_row,
                                int rank, int tid)
{
    const auto release = [&](int stage) { // to the blocks that fill it
        if (tid < SHARING) mbarrier_arrive_cluster(&smem.empty[stage], rank - rank % SHARING + tid);
    };
    int last_stage = 0;
    for (int k = tiles.half; k < tiles.k_tiles; k += HALVES) {
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[state.stage][warpgroup_row], smem.B_smem[state.stage][0], k > tiles.half);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the step before are done.
        if (k > tiles.half) release(last_stage);
        last_stage = state.stage;
        state.advance();
    }
    wgmma_wait_group<0>();
    wgmma_touch(acc);
    release(last_stage);
}

// A consumer warpgroup: its rows of each tile, whose sums it sends away or completes and stores.
template <typename T, typename TC>
static __device__ void consume(SharedStorage<T> &smem, const CUtensorMap &C_map, const T *bias,
                               bool tma_store, TC *C, int M, int N, const Tiles &tiles, int rank,
                               int consumer, int tid)
{
    const int barrier = 1 + consumer; // 0 is __syncthreads
    const int warp = tid / 32, lane = tid % 32;
    const int row = consumer * MMA_M;
    const int other = rank ^ SHARING; // the block with the other half of k
    PipelineState<NUM_STAGES> state;
    uint32_t sums_parity = 0;
    for (int tile = tiles.first; tile < tiles.count; tile += tiles.step, sums_parity ^= 1) {
        const int col = tile * BLOCK_N;
        float acc[BLOCK_N / 2];
        multiply(acc, smem, state, tiles, row, rank, tid);
        if (consumer != tiles.half) {
            send_sums(acc, smem, sums_parity, other, tid);
            continue;
        }
        add_sums(acc, smem, sums_parity, barrier, tid);
        if (tma_store)
            store_tile_tma<T, TC>(smem.C_smem[consumer * 4 + warp], C_map, bias, acc, row + warp * STORE_ROWS,
                                  col, N, lane);
        else
            store_tile(C, bias, acc, row, col, M, N, tid);
        if (lane == 0) {
            cp_async_bulk_wait_group_read<0>(); // This warp's part of C_smem has left.
            if (tile + tiles.step < tiles.count) mbarrier_arrive_cluster(&smem.sums_empty, other);
        }
    }
}

template <typename T, typename TC>
__global__ void __launch_bounds__(NUM_THREADS, 1) hopper_few_rows_kernel(
    const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M / SHARING, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
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
    const int rank = cluster_ctarank();
    const Tiles tiles(N, K, rank);

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        for (int stage = 0; stage < NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], SHARING * NUM_CONSUMERS);
        }
        mbarrier_init(&smem.sums_full, 1);  // the receiver's arrival, and the bytes it expects
        mbarrier_init(&smem.sums_empty, 4); // a thread of each warp
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    griddepcontrol_wait(); // The kernel before may still have been running: what it wrote is there now.

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, tiles, rank);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume(smem, C_map, bias, tma_store, C, M, N, tiles, rank, warpgroup - 1, tid);
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
    const auto kernel = hopper_few_rows_kernel<T, TC>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, BLOCK_M / SHARING, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess && tma_store)
        error = tensor_map_matrix(&C_map, tensor_map_type<TC>(), C, M, N, STORE_ROWS,
                                  STORE_ROW_BYTES / sizeof(TC));
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {CLUSTER, 1, 1};
    attributes[1].id =
        cudaLaunchAttributeProgrammaticStreamSerialization; // griddepcontrol.wait waits, not the launch
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER);
    config.blockDim = dim3(NUM_THREADS);
    config.dynamicSmemBytes = smem_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    static int clusters; // that fit the GPU, asked for once; clusters of four leave some multiprocessors out
    if (clusters == 0) error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess) return error;
    if (clusters == 0) return cudaErrorLaunchOutOfResources;

    config.gridDim = dim3(min(clusters, (N - 1) / (SHARING * BLOCK_N) + 1) * CLUSTER);
    return cudaLaunchKernelEx(&config, kernel, A_map, B_map, C_map, bias, tma_store, C, M, N, K);
}

extern "C" cudaError_t hopper_stream_k(const void *A, const void *B, const void *bias, void *C, int M, int N,
                                       int K, bool f16, bool f32_out, cudaStream_t stream);

extern "C" cudaError_t hopper_few_rows(const void *A, const void *B, const void *bias, void *C, int M, int N,
                                       int K, bool f16, bool f32_out, cudaStream_t stream)
{
    // One row of tiles, and a step for each half of k; the rest is for the step before.
    if (M > BLOCK_M || K <= BLOCK_K) return hopper_stream_k(A, B, bias, C, M, N, K, f16, f32_out, stream);
    if (!A || !B || !C || M <= 0 || N <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(f16, f32_out, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return launch((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
