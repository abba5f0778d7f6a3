// Chapter 14, step 6: stream-K. The last tiles are cut along k, so that every cluster gets the same amount of work.
//
// Question: 272 tiles on 66 clusters take as long as 330 would, and 28 tiles as long as 66. What if tiles could be cut?
//
//      step 5, 4 clusters, 5 tiles               step 6
//      cluster 0 | tile 0 | tile 4 |             | tile 0 | t1 |           every cluster walks over 5/4 of a tile
//      cluster 1 | tile 1 |                      | t1 | tile 2 .|          of k: a share may begin and end within a tile.
//      cluster 2 | tile 2 |                      | .t2 | tile 3 |          Who has a tile's first k gets the sums of the
//      cluster 3 | tile 3 |                      |t3 | tile 4 ...|         others from global memory, adds and stores them.
//
// Only the tiles of the last, unfinished round and one round more are cut, and only when that is less work. They come first:
// when a cluster ends a tile's first part, its other parts, the first thing their clusters did, have long been there. A
// cluster waits for clusters of lower block numbers only; those have started when it has.
//
// A tile has 128, 144, 160, 176 or 192 columns, what gives the busiest cluster the least to do: 4096 x 2112 is 272 tiles of 128, which
// must be cut, but 192 of 176, three rounds less six tiles. A wide tile also needs fewer bytes from the L2 for its products, which
// is what counts where rows of A and B are no multiple of 128 bytes: there each row of a box is in two lines. It counts also where
// k is deep and the memory slow: clusters drift apart, and what one has fetched has left the L2 when another wants it. There
// step 4's kernel, whose tile of 256 columns needs the fewest bytes, has the work if its rounds are not much longer.
//
// Grows from: step 5 (ping_pong).
// Launched early (chapter 6, step 3). Shared memory: at most 232,448 bytes. Registers: 192 accumulators a
// thread need 240. Global memory: 96 KB a block. The flags in it are shared by all launches: two must not overlap (one stream
// keeps them apart).
// Run: make chapter-14 STEP=stream_k
#include "../../common/device/launch.cuh"
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "stream_k.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = 2;                       // warpgroups that multiply, a tile each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NARROWEST = 128, WIDEST = 192;           // columns of C a block owns: BLOCK_N, a multiple of 16
constexpr int CLUSTER = 2;        // blocks, one above the other, that share their tiles of B
constexpr int MAX_BLOCKS = 144;   // of a Hopper GPU, one an SM; none has more
constexpr int GROUP_M = 4;        // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int DEEP_K = 8192;      // A's 1,024 rows and B's 2,112 that 66 clusters are at are more than the L2
constexpr int WIDE_COLUMNS = 256; // of step 4's tiles
constexpr double LONGER = 1.15;   // what rounds of those may take, if the tiles here took 1
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

// 6 of the narrowest tile, 5 from 144 to 176, 4 of the widest.
template <int BLOCK_N>
constexpr int NUM_STAGES = 196608 / ((BLOCK_M + BLOCK_N) * ROW_BYTES);

constexpr int PRODUCER_REGS = 24;
constexpr int CONSUMER_REGS = 240;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

constexpr int STORE_ROWS = 16;       // rows of C a warp stores, those it has in its accumulators
constexpr int STORE_ROW_BYTES = 128; // of each of them at a time

// Times that a warp stores for its rows of a tile.
template <int BLOCK_N, typename TC>
constexpr int PIECES = (BLOCK_N * (int)sizeof(TC) - 1) / STORE_ROW_BYTES + 1;

template <typename T, int BLOCK_N>
struct SharedStorage {
    static constexpr int STAGES = NUM_STAGES<BLOCK_N>;
    T A_smem[STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    T B_smem[STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 16,384 or 24,576 bytes a stage
    char C_smem[NUM_CONSUMERS * 4][2][STORE_ROWS * STORE_ROW_BYTES]; // (warp, buffer), 2,048 bytes a buffer
    uint64_t full[STAGES];                                           // the stage's tiles have landed
    uint64_t empty[STAGES];       // the tile's consumer in every block is done with them
    uint64_t turn[NUM_CONSUMERS]; // this consumer's tile is next in the ring
};

// What a block hands to the cluster that has the rest of its tile: the accumulators as they lie in the registers, and
// whether they are there. Whoever takes them resets the flag for the next launch.
static __device__ float4 partial_sums[MAX_BLOCKS][BLOCK_M * WIDEST / 4];
static __device__ unsigned partial_ready[MAX_BLOCKS];

// Where this block's part of a cluster tile is. The numbers walk down GROUP_M tiles, then one to the right, and so on to the
// edge before the next GROUP_M.
template <int BLOCK_N>
static __device__ void tile_origin(const Schedule &schedule, int tile, int rank, int &row, int &col)
{
    const int group = tile / (GROUP_M * schedule.tiles_n);
    const int rows = min(GROUP_M, schedule.tiles_m - group * GROUP_M);
    const int in_group = tile - group * GROUP_M * schedule.tiles_n;
    row = ((group * GROUP_M + in_group % rows) * CLUSTER + rank) * BLOCK_M;
    col = in_group / rows * BLOCK_N;
}

// Starts the copies of a tile into a stage, and of this block's part of B for the whole cluster. One thread does. The other
// parts of B come from the other blocks, and are counted here as well.
template <typename T, int BLOCK_N>
static __device__ void load_tile(SharedStorage<T, BLOCK_N> &smem, const CUtensorMap &A_map,
                                 const CUtensorMap &B_map, int row, int col, int k, int stage, int rank)
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
template <typename T, int BLOCK_N>
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

// Writes a warp's 16 rows of accumulators, with the bias, to C from (row0, col0) on, through its two buffers. `odd` says that
// an odd number of pieces has gone before.
template <int BLOCK_N, typename T, typename TC>
static __device__ void
store_tile_tma(char (&C_smem)[2][STORE_ROWS * STORE_ROW_BYTES], const CUtensorMap &C_map, const T *bias,
               const float (&acc)[BLOCK_N / 2], int row0, int col0, int N, bool odd, int lane)
{
    constexpr int COLS = STORE_ROW_BYTES / sizeof(TC); // stored at a time
#pragma unroll
    for (int piece = 0; piece < PIECES<BLOCK_N, TC>; piece++) {
        // The last piece ends where the tile ends: what it has of the one before is written twice.
        const int first = piece * COLS < BLOCK_N - COLS ? piece * COLS : BLOCK_N - COLS;
        char *buffer = C_smem[(piece + odd) % 2];
        const uint32_t C_addr = smem_addr(buffer);
        if (lane == 0) cp_async_bulk_wait_group_read<1>(); // This buffer has left; the other may be leaving.
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLS / 8; j += 2) { // 16 columns: two times four accumulators
            float value[8];
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const int col = col0 + first + (j + r / 4) * 8 + lane % 4 * 2 + r % 2;
                value[r] = acc[(first / 8 + j) * 4 + r] + (bias && col < N ? (float)bias[col] : 0.0f);
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
                    store_pair(reinterpret_cast<TC *>(buffer + swizzle(offset, 3)), value[r], value[r + 1]);
                }
            }
        }
        fence_proxy_async(); // What this thread wrote is there for TMA,
        __syncwarp();        // and what the others wrote.
        if (lane == 0) {
            cp_async_bulk_tensor_2d_store(C_map, buffer, col0 + first, row0);
            cp_async_bulk_commit_group();
        }
    }
}

// Writes 64 rows of accumulators, with the bias, to C from (row0, col0) on. This thread's columns come in pairs.
template <int BLOCK_N, typename T, typename TC>
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

// Leaves a warpgroup's accumulators for the block that has the tile's first k.
template <int BLOCK_N>
static __device__ void give_partial(const float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], int barrier, int tid)
{
    trace(EXCHANGE);
    float4 *partial = partial_sums[blockIdx.x] + tid;
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_M; i++)
#pragma unroll
        for (int r = 0; r < BLOCK_N / 2; r += 4)
            partial[(i * BLOCK_N / 8 + r / 4) * 128] =
                make_float4(acc[i][r], acc[i][r + 1], acc[i][r + 2], acc[i][r + 3]);
    named_barrier_sync(barrier, 128); // Every thread's are there.
    if (tid == 0) red_release_gpu_add(&partial_ready[blockIdx.x], 1);
}

// acc += what another thread left, four accumulators at a time.
static __device__ void add_four(float *acc, float4 more)
{
    acc[0] += more.x;
    acc[1] += more.y;
    acc[2] += more.z;
    acc[3] += more.w;
}

// Adds what the other clusters have of the tile whose first k the segment is.
template <int BLOCK_N>
static __device__ void take_partials(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], const Segments &segments,
                                     const Segment &segment, int rank, int barrier, int tid)
{
    trace(EXCHANGE);
    const Schedule &schedule = segments.schedule;
    const int tile_end = (segment.tile + 1) * schedule.k_tiles;
    for (int other = segments.cluster + 1; schedule.share_begin(other) < tile_end; other++) {
        const int block = (schedule.clusters - 1 - other) * CLUSTER + rank;
        if (tid == 0)
            while (!ld_acquire_gpu(&partial_ready[block])) {
            }
        named_barrier_sync(barrier, 128); // They are there, for every thread.
        const float4 *partial = partial_sums[block] + tid;
#pragma unroll
        for (int i = 0; i < BLOCK_M / MMA_M; i++)
#pragma unroll
            for (int r = 0; r < BLOCK_N / 2; r += 4)
                add_four(&acc[i][r], __ldcg(partial + (i * BLOCK_N / 8 + r / 4) * 128));
        if (tid == 0) partial_ready[block] = 0;
    }
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T, int BLOCK_N>
static __device__ void produce(SharedStorage<T, BLOCK_N> &smem, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const Schedule &schedule, int rank)
{
    PipelineState<NUM_STAGES<BLOCK_N>> state;
    Segments segments(schedule, schedule.clusters - 1 - blockIdx.x / CLUSTER); // The last to start is 0.
    for (Segment segment; segments.next(segment);) {
        int row, col;
        tile_origin<BLOCK_N>(schedule, segment.tile, rank, row, col);
        for (int k = segment.k_begin; k < segment.k_end; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, row, col, k * BLOCK_K, state.stage, rank);
            state.advance();
        }
    }
    trace(END);
    griddepcontrol_launch_dependents(); // This block leaves soon: the next kernel may set itself up.
    // Every stage is empty again: the other blocks have arrived here for the last time, and this one may leave.
    for (int n = 0; n < NUM_STAGES<BLOCK_N>; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

// A consumer warpgroup's products for so many steps. One group of wgmma is always running: a stage is given back when the
// group after the one that reads it has been issued.
template <typename T, int BLOCK_N>
static __device__ void multiply(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], SharedStorage<T, BLOCK_N> &smem,
                                PipelineState<NUM_STAGES<BLOCK_N>> &state, int steps, uint64_t *next_turn,
                                int tid)
{
    int last_stage = 0;
    for (int k = 0; k < steps; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc[0]);
        wgmma_touch(acc[1]);
        wgmma_fence();
        mma_tile<T, BLOCK_N>(acc, smem.A_smem[state.stage][0], smem.B_smem[state.stage][0], k > 0);
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

// A consumer warpgroup. The two take turns.
template <typename T, typename TC, int BLOCK_N>
static __device__ void consume(SharedStorage<T, BLOCK_N> &smem, const CUtensorMap &C_map, const T *bias,
                               bool tma_store, TC *C, int M, int N, const Schedule &schedule, int rank,
                               int consumer, int tid)
{
    const int barrier = 1 + consumer; // 0 is __syncthreads
    const int warp = tid / 32, lane = tid % 32;
    PipelineState<NUM_STAGES<BLOCK_N>> state;
    uint32_t turn_parity = consumer == 0; // The first turn is consumer 0's: it passes.
    Segments segments(schedule, schedule.clusters - 1 - blockIdx.x / CLUSTER); // The last to start is 0.
    Segment segment;
    for (int n = 0; segments.next(segment); n++) {
        if (n % NUM_CONSUMERS != consumer) {
            state.advance(segment.steps()); // the other consumer's segment
            continue;
        }
        trace(WAIT_TURN);
        mbarrier_wait(&smem.turn[consumer], turn_parity);
        turn_parity ^= 1;
        float acc[BLOCK_M / MMA_M][BLOCK_N / 2];
        multiply<T, BLOCK_N>(acc, smem, state, segment.steps(), &smem.turn[1 - consumer], tid);
        if (segment.k_begin > 0) {
            give_partial<BLOCK_N>(acc, barrier, tid);
            continue;
        }
        if (segment.k_end < schedule.k_tiles)
            take_partials<BLOCK_N>(acc, segments, segment, rank, barrier, tid);
        trace(STORE);
        int row, col;
        tile_origin<BLOCK_N>(schedule, segment.tile, rank, row, col);
#pragma unroll
        for (int i = 0; i < BLOCK_M / MMA_M; i++)
            if (tma_store)
                store_tile_tma<BLOCK_N, T, TC>(smem.C_smem[consumer * 4 + warp], C_map, bias, acc[i],
                                               row + i * MMA_M + warp * STORE_ROWS, col, N,
                                               i * PIECES<BLOCK_N, TC> % 2, lane);
            else
                store_tile<BLOCK_N>(C, bias, acc[i], row + i * MMA_M, col, M, N, tid);
    }
    if (lane == 0) cp_async_bulk_wait_group_read<0>(); // C_smem must outlive its readers.
    trace(END);
}

template <typename T, typename TC, int BLOCK_N>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    stream_k_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                    const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N / CLUSTER, BLOCK_K)
                    const __grid_constant__ CUtensorMap C_map, // (M, N), boxes (16, 128 bytes)
                    const T *bias,                             // (N) or NULL
                    bool tma_store,                            // C's rows are multiples of 16 bytes
                    TC *C,                                     // (M, N)
                    int M, int N, const __grid_constant__ Schedule schedule)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, BLOCK_N> &smem = *reinterpret_cast<SharedStorage<T, BLOCK_N> *>(smem_bytes);
    const int warpgroup = threadIdx.x / 128;
    const int tid = threadIdx.x % 128; // in the warpgroup
    const int rank = cluster_ctarank();

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        for (int stage = 0; stage < NUM_STAGES<BLOCK_N>; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER);
        }
        for (int consumer = 0; consumer < NUM_CONSUMERS; consumer++) mbarrier_init(&smem.turn[consumer], 1);
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    griddepcontrol_wait(); // The kernel before may still have been running: what it wrote is there now.

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid / 32 == 0 && elect_one()) produce<T, BLOCK_N>(smem, A_map, B_map, schedule, rank);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        consume<T, TC, BLOCK_N>(smem, C_map, bias, tma_store, C, M, N, schedule, rank, warpgroup - 1, tid);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

template <int BLOCK_N, typename T, typename TC>
static cudaError_t launch(const Schedule &schedule, const T *A, const T *B, const T *bias, TC *C, int M,
                          int N, int K, cudaStream_t stream)
{
    CUtensorMap A_map, B_map, C_map = {};
    const bool tma_store = (size_t)N * sizeof(TC) % 16 == 0 && (uintptr_t)C % 16 == 0;
    constexpr int smem_bytes = sizeof(SharedStorage<T, BLOCK_N>);
    const auto kernel = stream_k_kernel<T, TC, BLOCK_N>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N / CLUSTER, BLOCK_K);
    if (error == cudaSuccess && tma_store)
        error = tensor_map_matrix(&C_map, tensor_map_type<TC>(), C, M, N, STORE_ROWS,
                                  STORE_ROW_BYTES / sizeof(TC));
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early_clusters(kernel, schedule.clusters * CLUSTER, CLUSTER, NUM_THREADS, smem_bytes,
                                 stream, A_map, B_map, C_map, bias, tma_store, C, M, N, schedule);
}

// Asks how many clusters fit the GPU, a block to an SM.
template <typename T, typename TC>
static cudaError_t ask_clusters(int *clusters)
{
    constexpr int smem_bytes = sizeof(SharedStorage<T, NARROWEST>);
    const auto kernel = stream_k_kernel<T, TC, NARROWEST>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER);
    config.blockDim = dim3(NUM_THREADS);
    config.dynamicSmemBytes = smem_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
}

// A width that a tile can have, and what launches it.
template <typename T, typename TC>
struct Width {
    int columns;
    cudaError_t (*launch)(const Schedule &, const T *, const T *, const T *, TC *, int, int, int,
                          cudaStream_t);
};
template <typename T, typename TC>
static constexpr Width<T, TC> WIDTHS[] = {
    {128, launch<128, T, TC>}, {144, launch<144, T, TC>}, {160, launch<160, T, TC>},
    {176, launch<176, T, TC>}, {192, launch<192, T, TC>},
};

// What the busiest cluster's work takes, in columns of a step. Where each row of a box is in two lines of 128 bytes, the L2 is what
// a narrow tile waits for; how long is from trials on an H200.
static double work(const Schedule &schedule, int columns, int K)
{
    const bool in_lines = K % BLOCK_K == 0;
    const double waits = in_lines ? 0 : 0.15 * (WIDEST - columns) / (WIDEST - NARROWEST);
    return (double)schedule.busiest * columns * (1 + waits);
}

extern "C" cudaError_t stream_k(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        static int clusters; // that fit the GPU, asked for once
        double gigabytes;    // a second, of the memory
        cudaError_t error = ask_bandwidth(&gigabytes);
        if (error == cudaSuccess && clusters == 0) error = ask_clusters<T, TC>(&clusters);
        if (error != cudaSuccess) return error;
        if (clusters == 0) return cudaErrorLaunchOutOfResources;
        const int tiles_m = (M - 1) / (CLUSTER * BLOCK_M) + 1, k_tiles = (K - 1) / BLOCK_K + 1;
        const int at_most = min(clusters, MAX_BLOCKS / CLUSTER);
        Schedule best;
        const Width<T, TC> *best_width = NULL;
        for (const Width<T, TC> &width : WIDTHS<T, TC>) {
            Schedule schedule;
            if (!make_schedule(schedule, tiles_m, (N - 1) / width.columns + 1, k_tiles, at_most))
                return cudaErrorInvalidConfiguration;
            if (best_width && work(schedule, width.columns, K) >= work(best, best_width->columns, K))
                continue;
            best = schedule;
            best_width = &width;
        }
        const int64_t wide_tiles = (int64_t)tiles_m * ((N - 1) / WIDE_COLUMNS + 1);
        const double wide_work = (double)((wide_tiles - 1) / at_most + 1) * k_tiles * WIDE_COLUMNS;
        if (K >= DEEP_K && gigabytes < SLOW_MEMORY &&
            wide_work <= LONGER * work(best, best_width->columns, K))
            return tma_store(dtype, C_dtype, A, B, bias, C, M, N, K, stream);
        return best_width->launch(best, (const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K,
                                  stream);
    });
}
