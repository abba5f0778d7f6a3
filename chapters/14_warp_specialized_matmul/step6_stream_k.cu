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
// And if C has at most 128 rows, two blocks one above the other have nothing to share: they stand side by side then, and
// share A.
//
// Grows from: step 5. New instructions: none. Shared memory: 229,376 bytes. Registers: as step 1. Global memory: 64 KB a
// block. The flags in it are shared by all launches: two of this kernel must not overlap.
#include "../../common/matmul_types.cuh"
#include "../../common/mbarrier.cuh"
#include "../../common/swizzle.cuh"
#include "../../common/tensor_map.h"
#include "../../common/tma.cuh"
#include "../../common/wgmma.cuh"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = 2;                       // warpgroups that multiply, a tile each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int CLUSTER = 2;                             // blocks that share what they fetch
constexpr int MAX_BLOCKS = 144;                        // of a Hopper GPU, one a multiprocessor; none has more
constexpr int GROUP_M = 8; // rows of cluster tiles that clusters of neighbouring numbers share
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

constexpr int STORE_ROWS = 16;       // rows of C a warp stores, those it has in its accumulators
constexpr int STORE_ROW_BYTES = 128; // of each of them at a time

// A block's tile is (BLOCK_M, BLOCK_N). SHARE_A: the blocks of a cluster stand side by side and share A, else B.
template <typename T, int BLOCK_N, bool SHARE_A>
struct SharedStorage {
    static constexpr int NUM_STAGES = BLOCK_N == 64 ? 8 : 6;
    T A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    T B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 128 BLOCK_N bytes a stage
    char C_smem[NUM_CONSUMERS * 4][2][STORE_ROWS * STORE_ROW_BYTES]; // (warp, buffer), 2,048 bytes a buffer
    uint64_t full[NUM_STAGES];                                       // the stage's tiles have landed
    uint64_t empty[NUM_STAGES];   // the tile's consumer in every block is done with them
    uint64_t turn[NUM_CONSUMERS]; // this consumer's tile is next in the ring
};
static_assert(sizeof(SharedStorage<__half, 128, false>) <= 232448, "227 KB");

// What a block hands to the cluster that has the rest of its tile: the accumulators as they lie in the registers, and
// whether they are there. Whoever takes them resets the flag for the next launch.
static __device__ float4 partial_sums[MAX_BLOCKS][BLOCK_M * 128 / 4];
static __device__ unsigned partial_ready[MAX_BLOCKS];

// How the work is divided, in cluster tiles and steps of BLOCK_K; the same for all blocks.
struct Schedule {
    int tiles_m, tiles_n; // cluster tiles in C
    int k_tiles;          // steps of BLOCK_K in a tile
    int split_tiles;      // so many tiles, the first, are cut; the others are whole
    int clusters;         // that work

    // Where the share of a cluster begins, in steps over all the tiles that are cut.
    __device__ long long share(int cluster) const
    {
        return (long long)split_tiles * k_tiles * cluster / clusters;
    }
};

// A part of a tile, or all of it.
struct Segment {
    int tile, k_begin, k_end; // in steps of BLOCK_K
};

// Walks over a cluster's segments: its share of the tiles that are cut, then whole tiles.
struct Segments {
    const Schedule &schedule;
    int cluster;       // 0 is the one that started last
    long long at, end; // of the share, in steps
    int next_tile;     // of the whole ones

    __device__ Segments(const Schedule &schedule)
        : schedule(schedule), cluster(schedule.clusters - 1 - blockIdx.x / CLUSTER),
          at(schedule.share(cluster)), end(schedule.share(cluster + 1)),
          next_tile(schedule.split_tiles + cluster)
    {
    }

    __device__ bool next(Segment &segment)
    {
        const int k_tiles = schedule.k_tiles;
        if (at < end) {
            segment.tile = (int)(at / k_tiles);
            segment.k_begin = (int)(at % k_tiles);
            segment.k_end = (int)min((long long)k_tiles, segment.k_begin + end - at);
            at += segment.k_end - segment.k_begin;
            return true;
        }
        segment = {next_tile, 0, k_tiles};
        next_tile += schedule.clusters;
        return segment.tile < schedule.tiles_m * schedule.tiles_n;
    }
};

// Where this block's part of a cluster tile is. The numbers walk down GROUP_M tiles, then one to the right, and so on to the
// edge before the next GROUP_M.
template <int BLOCK_N, bool SHARE_A>
static __device__ void tile_origin(const Schedule &schedule, int tile, int rank, int &row, int &col)
{
    const int group = tile / (GROUP_M * schedule.tiles_n);
    const int rows = min(GROUP_M, schedule.tiles_m - group * GROUP_M);
    const int in_group = tile - group * GROUP_M * schedule.tiles_n;
    const int tile_m = group * GROUP_M + in_group % rows, tile_n = in_group / rows;
    row = (SHARE_A ? tile_m : tile_m * CLUSTER + rank) * BLOCK_M;
    col = (SHARE_A ? tile_n * CLUSTER + rank : tile_n) * BLOCK_N;
}

// Starts the copies of a tile into a stage: of the block's own operand, and of this block's part of the shared one for the
// whole cluster. One thread does. The other parts come from the other blocks, and are counted here as well.
template <typename T, int BLOCK_N, bool SHARE_A>
static __device__ void load_tile(SharedStorage<T, BLOCK_N, SHARE_A> &smem, const CUtensorMap &A_map,
                                 const CUtensorMap &B_map, int row, int col, int k, int stage, int rank)
{
    constexpr int PART = (SHARE_A ? BLOCK_M : BLOCK_N) / CLUSTER;
    constexpr uint16_t EVERYONE = (1 << CLUSTER) - 1;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage]);
    if (SHARE_A) {
        cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, col);
        cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][rank * PART], A_map, full, k, row + rank * PART,
                                          EVERYONE);
    } else {
        cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
        cp_async_bulk_tensor_2d_multicast(smem.B_smem[stage][rank * PART], B_map, full, k, col + rank * PART,
                                          EVERYONE);
    }
}

// Multiplies a tile: acc[i] are rows 64 i to 64 i + 63. A descriptor counts in units of 16 bytes.
template <int BLOCK_N, typename T>
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

// Writes a warp's 16 rows of each half of the tile, with the bias, to C from (row0, col0) on, through its two buffers.
template <int BLOCK_N, typename T, typename TC>
static __device__ void
store_tile_tma(char (&C_smem)[2][STORE_ROWS * STORE_ROW_BYTES], const CUtensorMap &C_map, const T *bias,
               const float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], int row0, int col0, int N, int lane)
{
    constexpr int COLS = STORE_ROW_BYTES / sizeof(TC); // stored at a time
    constexpr int PIECES = BLOCK_N / COLS;
#pragma unroll
    for (int n = 0; n < BLOCK_M / MMA_M * PIECES; n++) {
        const int i = n / PIECES, piece = n % PIECES;
        const uint32_t C_addr = smem_addr(C_smem[n % 2]);
        if (lane == 0) cp_async_bulk_wait_group_read<1>(); // This buffer has left; the other may be leaving.
        __syncwarp();
#pragma unroll
        for (int j = 0; j < COLS / 8; j += 2) { // 16 columns: two times four accumulators
            float value[8];
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const int col = col0 + piece * COLS + (j + r / 4) * 8 + lane % 4 * 2 + r % 2;
                value[r] =
                    acc[i][(piece * COLS / 8 + j) * 4 + r] + (bias && col < N ? (float)bias[col] : 0.0f);
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
                    store_pair(reinterpret_cast<TC *>(C_smem[n % 2] + swizzle(offset, 3)), value[r],
                               value[r + 1]);
                }
            }
        }
        fence_proxy_async(); // What this thread wrote is there for TMA,
        __syncwarp();        // and what the others wrote.
        if (lane == 0) {
            cp_async_bulk_tensor_2d_store(C_map, C_smem[n % 2], col0 + piece * COLS, row0 + i * MMA_M);
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
template <int COUNT>
static __device__ void give_partial(const float (&acc)[BLOCK_M / MMA_M][COUNT], int barrier, int tid)
{
    float4 *partial = partial_sums[blockIdx.x] + tid;
#pragma unroll
    for (int n = 0; n < BLOCK_M / MMA_M * COUNT / 4; n++) {
        const float *four = &acc[n / (COUNT / 4)][n % (COUNT / 4) * 4];
        partial[n * 128] = make_float4(four[0], four[1], four[2], four[3]);
    }
    named_barrier_sync(barrier, 128); // Every thread's are there.
    if (tid == 0) red_release_gpu_add(&partial_ready[blockIdx.x], 1);
}

// Adds what the other clusters have of the tile whose first k the segment is.
template <int COUNT>
static __device__ void take_partials(float (&acc)[BLOCK_M / MMA_M][COUNT], const Segments &segments,
                                     const Segment &segment, int rank, int barrier, int tid)
{
    const Schedule &schedule = segments.schedule;
    const long long tile_end = (segment.tile + 1LL) * schedule.k_tiles;
    for (int other = segments.cluster + 1; schedule.share(other) < tile_end; other++) {
        const int block = (schedule.clusters - 1 - other) * CLUSTER + rank;
        if (tid == 0)
            while (!ld_acquire_gpu(&partial_ready[block])) {
            }
        named_barrier_sync(barrier, 128); // They are there, for every thread.
        const float4 *partial = partial_sums[block] + tid;
#pragma unroll
        for (int n = 0; n < BLOCK_M / MMA_M * COUNT / 4; n++) {
            float *four = &acc[n / (COUNT / 4)][n % (COUNT / 4) * 4];
            const float4 more = __ldcg(partial + n * 128);
            four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
        }
        if (tid == 0) partial_ready[block] = 0;
    }
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T, int BLOCK_N, bool SHARE_A>
static __device__ void produce(SharedStorage<T, BLOCK_N, SHARE_A> &smem, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const Schedule &schedule, int rank)
{
    PipelineState<smem.NUM_STAGES> state;
    Segments segments(schedule);
    for (Segment segment; segments.next(segment);) {
        int row, col;
        tile_origin<BLOCK_N, SHARE_A>(schedule, segment.tile, rank, row, col);
        for (int k = segment.k_begin; k < segment.k_end; k++) {
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, row, col, k * BLOCK_K, state.stage, rank);
            state.advance();
        }
    }
}

// A consumer warpgroup's products for k_tiles steps. One group of wgmma is always running: a stage is given back when the
// group after the one that reads it has been issued.
template <typename T, int BLOCK_N, bool SHARE_A, typename STATE>
static __device__ void consume(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2],
                               SharedStorage<T, BLOCK_N, SHARE_A> &smem, STATE &state, int k_tiles,
                               uint64_t *next_turn, int tid)
{
    int last_stage = 0;
    for (int k = 0; k < k_tiles; k++) {
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc[0]);
        wgmma_touch(acc[1]);
        wgmma_fence();
        mma_tile<BLOCK_N>(acc, smem.A_smem[state.stage][0], smem.B_smem[state.stage][0], k > 0);
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

template <typename T, typename TC, int BLOCK_N, bool SHARE_A>
__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(NUM_THREADS, 1)
    hopper_stream_k_kernel(const __grid_constant__ CUtensorMap
                               A_map, // (M, K), boxes (BLOCK_M, BLOCK_K), halved along M if it is shared
                           const __grid_constant__ CUtensorMap
                               B_map, // (N, K), boxes (BLOCK_N, BLOCK_K), halved along N if it is shared
                           const __grid_constant__ CUtensorMap C_map, // (M, N), boxes (16, 128 bytes)
                           const T *bias,                             // (N) or NULL
                           bool tma_store,                            // C's rows are multiples of 16 bytes
                           TC *C,                                     // (M, N)
                           int M, int N, const __grid_constant__ Schedule schedule)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    using Storage = SharedStorage<T, BLOCK_N, SHARE_A>;
    Storage &smem = *reinterpret_cast<Storage *>(smem_bytes);
    const int warpgroup = threadIdx.x / 128;
    const int tid = threadIdx.x % 128; // in the warpgroup
    const int rank = cluster_ctarank();

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < Storage::NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], CLUSTER);
        }
        for (int consumer = 0; consumer < NUM_CONSUMERS; consumer++) mbarrier_init(&smem.turn[consumer], 1);
        fence_mbarrier_init();
    }
    cluster_sync();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, schedule, rank);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int consumer = warpgroup - 1;
        const int barrier = warpgroup; // 0 is __syncthreads
        PipelineState<Storage::NUM_STAGES> state;
        uint32_t turn_parity = consumer == 0; // The first turn is consumer 0's: it passes.
        Segments segments(schedule);
        Segment segment;
        for (int n = 0; segments.next(segment); n++) {
            const int steps = segment.k_end - segment.k_begin;
            if (n % NUM_CONSUMERS != consumer) {
                state.advance(steps); // the other consumer's segment
                continue;
            }
            float acc[BLOCK_M / MMA_M][BLOCK_N / 2];
            mbarrier_wait(&smem.turn[consumer], turn_parity);
            turn_parity ^= 1;
            consume(acc, smem, state, steps, &smem.turn[1 - consumer], tid);

            if (segment.k_begin > 0) {
                give_partial(acc, barrier, tid);
                continue;
            }
            if (segment.k_end < schedule.k_tiles) take_partials(acc, segments, segment, rank, barrier, tid);
            int row, col;
            tile_origin<BLOCK_N, SHARE_A>(schedule, segment.tile, rank, row, col);
            if (tma_store)
                store_tile_tma<BLOCK_N, T, TC>(smem.C_smem[threadIdx.x / 32 - 4], C_map, bias, acc,
                                               row + tid / 32 * STORE_ROWS, col, N, tid % 32);
            else
#pragma unroll
                for (int i = 0; i < BLOCK_M / MMA_M; i++)
                    store_tile<BLOCK_N>(C, bias, acc[i], row + i * MMA_M, col, M, N, tid);
        }
        if (tid % 32 == 0) cp_async_bulk_wait_group_read<0>(); // C_smem must outlive its readers.
    }
    cluster_sync(); // The other block's copies and arrivals have all come.
}

// Divides the work among at most `clusters` clusters. Returns the steps of BLOCK_K that the busiest one has to make.
static long long make_schedule(Schedule &schedule, int M, int N, int K, int cluster_m, int cluster_n,
                               int clusters)
{
    constexpr int HAND_OVER = 8; // steps that giving and taking sums costs, about
    schedule.tiles_m = (M - 1) / cluster_m + 1;
    schedule.tiles_n = (N - 1) / cluster_n + 1;
    schedule.k_tiles = (K - 1) / BLOCK_K + 1;
    const long long tiles = (long long)schedule.tiles_m * schedule.tiles_n;
    const long long whole = ((tiles - 1) / clusters + 1) * schedule.k_tiles;
    const long long cut = (tiles * schedule.k_tiles - 1) / clusters + 1 + HAND_OVER;
    if (cut >= whole) {
        schedule.split_tiles = 0;
        schedule.clusters = (int)min((long long)clusters, tiles);
        return whole;
    }
    // With few tiles, not so many clusters that a share takes less time than handing it over.
    schedule.split_tiles = (int)(tiles < clusters ? tiles : tiles % clusters + clusters);
    schedule.clusters = (int)min((long long)clusters, tiles * schedule.k_tiles / HAND_OVER);
    return cut;
}

template <int BLOCK_N, bool SHARE_A, typename T, typename TC>
static cudaError_t launch(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K, int clusters,
                          cudaStream_t stream)
{
    constexpr int CLUSTER_M = SHARE_A ? BLOCK_M : CLUSTER * BLOCK_M;
    constexpr int CLUSTER_N = SHARE_A ? CLUSTER * BLOCK_N : BLOCK_N;
    CUtensorMap A_map, B_map, C_map = {};
    const bool tma_store = (size_t)N * sizeof(TC) % 16 == 0 && (uintptr_t)C % 16 == 0;
    constexpr int smem_bytes = sizeof(SharedStorage<T, BLOCK_N, SHARE_A>);
    const auto kernel = hopper_stream_k_kernel<T, TC, BLOCK_N, SHARE_A>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K,
                                          SHARE_A ? BLOCK_M / CLUSTER : BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K,
                                  SHARE_A ? BLOCK_N : BLOCK_N / CLUSTER, BLOCK_K);
    if (error == cudaSuccess && tma_store)
        error = tensor_map_matrix(&C_map, tensor_map_type<TC>(), C, M, N, STORE_ROWS,
                                  STORE_ROW_BYTES / sizeof(TC));
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    Schedule schedule;
    make_schedule(schedule, M, N, K, CLUSTER_M, CLUSTER_N, clusters);
    const long long tiles = (long long)schedule.tiles_m * schedule.tiles_n;
    if (tiles > INT32_MAX - MAX_BLOCKS) return cudaErrorInvalidConfiguration;
    kernel<<<schedule.clusters * CLUSTER, NUM_THREADS, smem_bytes, stream>>>(A_map, B_map, C_map, bias,
                                                                             tma_store, C, M, N, schedule);
    return cudaGetLastError();
}

// Chooses the tile. With more rows than a block's, 128 x 128 and B shared; else A shared, and what loads fewer rows in all.
template <typename T, typename TC>
static cudaError_t choose(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    const int clusters = min(multiprocessors, MAX_BLOCKS) / CLUSTER;
    if (M > BLOCK_M) return launch<128, false>(A, B, bias, C, M, N, K, clusters, stream);
    Schedule schedule;
    const long long narrow =
        make_schedule(schedule, M, N, K, BLOCK_M, CLUSTER * 64, clusters) * (BLOCK_M / CLUSTER + 64);
    const long long wide =
        make_schedule(schedule, M, N, K, BLOCK_M, CLUSTER * 128, clusters) * (BLOCK_M / CLUSTER + 128);
    return narrow <= wide ? launch<64, true>(A, B, bias, C, M, N, K, clusters, stream)
                          : launch<128, true>(A, B, bias, C, M, N, K, clusters, stream);
}

extern "C" cudaError_t hopper_stream_k(const void *A, const void *B, const void *bias, void *C, int M, int N,
                                       int K, bool f16, bool f32_out, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(f16, f32_out, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return choose((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
