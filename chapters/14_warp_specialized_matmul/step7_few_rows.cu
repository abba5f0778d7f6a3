// Chapter 14, step 7: where C has few rows. Everyone fetches, and a cluster divides rows and k.
//
// Question: with at most 128 rows the bytes of B take longer than the products. Step 6 gives 7168 columns to 56 blocks on 132
// SMs. How do all of them get to fetch, each as much as its shared memory holds?
//
//                       rows 0-63     rows 64-127
//      k 0, 2, 4 ...    block 0       block 1        halves: each fetches one half of B's tile for both (multicast)
//      k 1, 3, 5 ...    block 2       block 3        parts: in the end each owns some of the rows, and gets the other's sums
//
// One such cluster of `halves` x `parts` blocks works on a tile of BLOCK_N columns. Up to 64 rows need no halves. make_plan
// takes the width and the number of parts with which the busiest block has the fewest bytes to fetch.
//
// A block has 64 rows at most, so one consumer warpgroup does: no registers need to move, and the shared memory that it saves
// holds more stages. C with more rows is step 6's.
//
// Grows from: step 6 (stream_k).
// New instructions: st.async. Shared memory: 232,448 bytes, all there is.
// Run: make chapter-14 STEP=few_rows
#include "../../common/device/launch.cuh"
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 64; // rows of C a block owns at most: those of a wgmma
constexpr int BLOCK_K = 64; // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_K = 16;   // k of a wgmma
constexpr int CONSUMER_WARPS = 4;
constexpr int NUM_THREADS = (CONSUMER_WARPS + 1) * 32; // the last warp is the producer
constexpr int MAX_STAGES = 16;
constexpr int MAX_PARTS = 4;
constexpr int SMEM_BYTES = 232448; // all that a block can have

// What the blocks do, made by the host.
struct Plan {
    int halves;     // of the rows: 1 or 2 blocks of a cluster
    int parts;      // of k: 1, 2 or 4 blocks of a cluster
    int block_rows; // rows of A and C a block has, a multiple of 8: those that are fetched
    int num_stages;
    int clusters;
};

template <typename T, int BLOCK_N>
struct Stage {
    T A_smem[BLOCK_M][BLOCK_K]; // (m, k), the first block_rows fetched; no other products are stored
    T B_smem[BLOCK_N][BLOCK_K]; // (n, k)
};

// Shared memory: this, the stages, and the sums of other parts for the rows that this block owns.
struct alignas(1024) Barriers {
    uint64_t full[MAX_STAGES];  // the stage's tiles have landed
    uint64_t empty[MAX_STAGES]; // the consumers of the halves that share B are done with them
    uint64_t sums_full;         // the other parts' sums are here
    uint64_t sums_empty;        // the other parts have read this block's sums
};

// Bytes of shared memory for the sums. A block owns 4 / parts warps' rows of the tile, 16 rows a warp.
__host__ __device__ constexpr int sums_bytes(int parts, int block_n)
{
    return (parts - 1) * (CONSUMER_WARPS / parts) * 16 * block_n * (int)sizeof(float);
}

// Where a walk around the ring of stages is: PipelineState of a number of stages that is known when the kernel runs.
struct Ring {
    int num_stages;
    int stage = 0;
    uint32_t parity = 0;

    __device__ void advance()
    {
        if (++stage == num_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// This block's place: its tiles are every so many-th, its steps of k every parts-th.
struct Place {
    int half, part; // in the cluster
    int first_tile, tile_step, tiles;
    int k_tiles;

    __device__ Place(const Plan &plan, int tiles, int k_tiles) : tiles(tiles), k_tiles(k_tiles)
    {
        const int rank = cluster_ctarank();
        half = rank % plan.halves;
        part = rank / plan.halves;
        first_tile = blockIdx.x / (plan.halves * plan.parts);
        tile_step = plan.clusters;
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T, int BLOCK_N>
static __device__ void produce(Barriers &bar, Stage<T, BLOCK_N> *stages, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const Plan &plan, const Place &place)
{
    const int row = place.half * plan.block_rows;
    const int cols = BLOCK_N / plan.halves; // of B's tile that this block fetches
    const int first_col = place.half * cols;
    const uint16_t sharing = ((1 << plan.halves) - 1) << (place.part * plan.halves);
    const int stage_bytes = (plan.block_rows + BLOCK_N) * BLOCK_K * sizeof(T);
    Ring ring{plan.num_stages};
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step)
        for (int k = place.part; k < place.k_tiles; k += plan.parts) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
            trace(LOAD);
            uint64_t *full = &bar.full[ring.stage];
            Stage<T, BLOCK_N> &stage = stages[ring.stage];
            mbarrier_arrive_expect_tx(full, stage_bytes);
            if (plan.halves == 1)
                cp_async_bulk_tensor_2d(stage.B_smem, B_map, full, k * BLOCK_K, tile * BLOCK_N);
            else
                cp_async_bulk_tensor_2d_multicast(stage.B_smem[first_col], B_map, full, k * BLOCK_K,
                                                  tile * BLOCK_N + first_col, sharing);
            cp_async_bulk_tensor_2d(stage.A_smem, A_map, full, k * BLOCK_K, row);
            ring.advance();
        }
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < plan.num_stages; n++) {
        mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
        ring.advance();
    }
}

// The consumers' products for one tile. One group of wgmma is always running: a stage is given back when the group after
// the one that reads it has been issued. A descriptor counts in units of 16 bytes.
template <typename T, int BLOCK_N>
static __device__ void multiply(float (&acc)[BLOCK_N / 2], Barriers &bar, const Stage<T, BLOCK_N> *stages,
                                Ring &ring, const Plan &plan, const Place &place)
{
    const auto release = [&](int stage) { // to the blocks that fill it
        if (threadIdx.x < plan.halves)
            mbarrier_arrive_cluster(&bar.empty[stage], place.part * plan.halves + threadIdx.x);
    };
    int last_stage = 0;
    for (int k = place.part; k < place.k_tiles; k += plan.parts) {
        trace(WAIT_FULL);
        mbarrier_wait(&bar.full[ring.stage], ring.parity);
        wgmma_touch(acc);
        wgmma_fence();
        const uint64_t A_desc = wgmma_descriptor(stages[ring.stage].A_smem);
        const uint64_t B_desc = wgmma_descriptor(stages[ring.stage].B_smem);
#pragma unroll
        for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
            wgmma<BLOCK_N, T>(acc, A_desc + slice * MMA_K * 2 / 16, B_desc + slice * MMA_K * 2 / 16,
                              k > place.part || slice > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the step before are done.
        if (k > place.part) release(last_stage);
        last_stage = ring.stage;
        ring.advance();
    }
    wgmma_wait_group<0>();
    wgmma_touch(acc);
    release(last_stage);
}

// Sends a warp's sums to the block that owns its rows.
template <int BLOCK_N>
static __device__ void send_sums(const float (&acc)[BLOCK_N / 2], Barriers &bar, float4 *sums,
                                 uint32_t parity, const Plan &plan, const Place &place, int warp, int lane)
{
    trace(EXCHANGE);
    const int owned_warps = CONSUMER_WARPS / plan.parts;
    const int owner = warp / owned_warps;
    const int owner_rank = owner * plan.halves + place.half;
    // 0, 1 ... among the parts that send to the owner.
    const int sender = (place.part - owner - 1) & (plan.parts - 1);
    const uint32_t full_addr = mapa(smem_addr(&bar.sums_full), owner_rank);
    const uint32_t sums_addr =
        mapa(smem_addr(sums + (sender * owned_warps + warp % owned_warps) * (BLOCK_N / 8 * 32) + lane),
             owner_rank);
    mbarrier_wait(&bar.sums_empty, parity ^ 1); // Those of the tile before have been read.
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4)
        st_async(sums_addr + r / 4 * 32 * 16, make_float4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]),
                 full_addr);
}

// Adds what the other parts have sent for this warp's rows.
template <int BLOCK_N>
static __device__ void add_sums(float (&acc)[BLOCK_N / 2], Barriers &bar, const float4 *sums, uint32_t parity,
                                const Plan &plan, int warp, int lane)
{
    trace(EXCHANGE);
    const int owned_warps = CONSUMER_WARPS / plan.parts;
    if (warp % owned_warps == 0 && lane == 0)
        mbarrier_arrive_expect_tx(&bar.sums_full, sums_bytes(plan.parts, BLOCK_N));
    mbarrier_wait(&bar.sums_full, parity);
    for (int sender = 0; sender < plan.parts - 1; sender++) {
        const float4 *from = sums + (sender * owned_warps + warp % owned_warps) * (BLOCK_N / 8 * 32) + lane;
#pragma unroll
        for (int r = 0; r < BLOCK_N / 2; r += 4) {
            const float4 four = from[r / 4 * 32];
            acc[r] += four.x;
            acc[r + 1] += four.y;
            acc[r + 2] += four.z;
            acc[r + 3] += four.w;
        }
    }
}

// Four lanes in a row hold four words each: transposes them, so that lane l has all four words l.
static __device__ void transpose_in_quad(uint32_t (&word)[4], int lane)
{
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance) continue;
            const bool upper = lane & distance;
            const uint32_t received =
                __shfl_xor_sync(0xffffffff, upper ? word[i] : word[i + distance], distance);
            if (upper)
                word[i] = received;
            else
                word[i + distance] = received;
        }
}

// Writes a warp's 16 rows of accumulators, with the bias, to C from (row0, col0) on; rows end before end_row. vector_store:
// C's rows are multiples of 16 bytes.
template <int BLOCK_N, typename T, typename TC>
static __device__ void store_rows(TC *C, const T *bias, const float (&acc)[BLOCK_N / 2], int row0,
                                  int end_row, int col0, int N, bool vector_store, int lane)
{
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 8) {
        float value[8]; // of 16 columns: rows l / 4 and + 8 of the left 8, then of the right 8
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int col = col0 + (r + i) / 4 * 8 + lane % 4 * 2 + i % 2;
            value[i] = acc[r + i] + (bias && col < N ? (float)bias[col] : 0.0f);
        }
        if constexpr (sizeof(TC) == 2) {
            if (vector_store) { // A lane's two columns are half a sector with those of its quad. It gets eight of one row.
                uint32_t pairs[4] = {pack_pair<TC>(value[0], value[1]), pack_pair<TC>(value[4], value[5]),
                                     pack_pair<TC>(value[2], value[3]), pack_pair<TC>(value[6], value[7])};
                transpose_in_quad(pairs, lane);
                const int row = row0 + lane / 4 + lane % 4 / 2 * 8, col = col0 + r * 2 + lane % 2 * 8;
                if (row < end_row && col < N)
                    *reinterpret_cast<uint4 *>(C + (size_t)row * N + col) =
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                continue;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int row = row0 + lane / 4 + i % 4 / 2 * 8, col = col0 + (r + i) / 4 * 8 + lane % 4 * 2;
            if (row >= end_row || col >= N) continue;
            TC *dst = C + (size_t)row * N + col;
            if (N % 2 == 0) {
                store_pair(dst, value[i], value[i + 1]);
            } else {
                dst[0] = (TC)value[i];
                if (col + 1 < N) dst[1] = (TC)value[i + 1];
            }
        }
    }
}

// The consumer warpgroup: the block's rows of each tile. A warp sends its sums away or completes and stores them.
template <typename T, typename TC, int BLOCK_N>
static __device__ void consume(Barriers &bar, const Stage<T, BLOCK_N> *stages, float4 *sums, const T *bias,
                               TC *C, bool vector_store, int M, int N, const Plan &plan, const Place &place)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool owned = warp / (CONSUMER_WARPS / plan.parts) == place.part;
    const int row0 = place.half * plan.block_rows;
    Ring ring{plan.num_stages};
    uint32_t sums_parity = 0;
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step, sums_parity ^= 1) {
        float acc[BLOCK_N / 2];
        multiply<T, BLOCK_N>(acc, bar, stages, ring, plan, place);
        if (!owned) {
            send_sums<BLOCK_N>(acc, bar, sums, sums_parity, plan, place, warp, lane);
            continue;
        }
        if (plan.parts > 1) {
            add_sums<BLOCK_N>(acc, bar, sums, sums_parity, plan, warp, lane);
            __syncwarp(); // All lanes have read them. Nobody waits for an arrival after the last tile.
            if (tile + place.tile_step < place.tiles && lane < plan.parts && lane != place.part)
                mbarrier_arrive_cluster(&bar.sums_empty, lane * plan.halves + place.half);
        }
        trace(STORE);
        store_rows<BLOCK_N>(C, bias, acc, row0 + warp * 16, min(M, row0 + plan.block_rows), tile * BLOCK_N, N,
                            vector_store, lane);
    }
    trace(END);
}

template <typename T, typename TC, int BLOCK_N>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    few_rows_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (block_rows, BLOCK_K)
                    const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N / halves, BLOCK_K)
                    const T *bias,                             // (N) or NULL
                    TC *C,                                     // (M, N)
                    bool vector_store,                         // C's rows are multiples of 16 bytes
                    int M, int N, int K, Plan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    Barriers &bar = *reinterpret_cast<Barriers *>(smem_bytes);
    Stage<T, BLOCK_N> *stages = reinterpret_cast<Stage<T, BLOCK_N> *>(&bar + 1);
    float4 *sums = reinterpret_cast<float4 *>(stages + plan.num_stages); // (sender, warp, BLOCK_N / 8, lane)
    const Place place(plan, (N - 1) / BLOCK_N + 1, (K - 1) / BLOCK_K + 1);

    // Setup. TMA and the other blocks count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        for (int stage = 0; stage < plan.num_stages; stage++) {
            mbarrier_init(&bar.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&bar.empty[stage], plan.halves);
        }
        mbarrier_init(&bar.sums_full, 1); // one arrival, and the bytes it expects
        mbarrier_init(&bar.sums_empty,    // every warp that owns rows elsewhere
                      max(1, (plan.parts - 1) * (CONSUMER_WARPS / plan.parts)));
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now.

    if (threadIdx.x < CONSUMER_WARPS * 32)
        consume<T, TC, BLOCK_N>(bar, stages, sums, bias, C, vector_store, M, N, plan, place);
    else if (elect_one()) // of the one warp that is left
        produce<T, BLOCK_N>(bar, stages, A_map, B_map, plan, place);
    // No block leaves before its producer has seen the last arrival, and its consumers the last sums.
}

constexpr int MAX_CLUSTER = 2 * MAX_PARTS;

// Asks once how many clusters of 1, 2, 4 and 8 blocks fit the GPU. Clusters stay within a part of the GPU: the larger they
// are, the more SMs are left over.
template <typename T, typename TC>
static cudaError_t ask_clusters(int (&fitting)[MAX_CLUSTER + 1])
{
    if (fitting[1] != 0) return cudaSuccess;
    const auto kernel = few_rows_kernel<T, TC, 128>; // Each of them fills an SM.
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    for (int blocks = MAX_CLUSTER; blocks >= 1 && error == cudaSuccess; blocks /= 2) {
        cudaLaunchAttribute cluster = {};
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {(unsigned)blocks, 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(NUM_THREADS);
        config.dynamicSmemBytes = SMEM_BYTES;
        config.attrs = &cluster;
        config.numAttrs = 1;
        error = cudaOccupancyMaxActiveClusters(&fitting[blocks], kernel, &config);
    }
    return error;
}

// The plan with which the busiest block has the fewest bytes to fetch, and the tile's width; plan.clusters is 0 if none fits.
static Plan make_plan(int M, int N, int K, const int (&fitting)[MAX_CLUSTER + 1], int *width)
{
    constexpr int WIDTHS[] = {96, 112, 128, 144, 192};
    constexpr int ROW_BYTES = BLOCK_K * 2;
    // What could be fetched while a tile is stored, or its sums are sent (from trials on an H200).
    constexpr int TILE_BYTES = 65536;
    const int halves = M > BLOCK_M ? 2 : 1, block_rows = ((M - 1) / halves / 8 + 1) * 8;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    Plan best = {};
    double least = INFINITY;
    for (int parts = 1; parts <= min(MAX_PARTS, k_tiles); parts *= 2)
        for (const int block_n : WIDTHS) {
            const int tiles = (N - 1) / block_n + 1, clusters = min(tiles, fitting[halves * parts]);
            if (clusters == 0) continue;
            const double steps = (k_tiles - 1) / parts + 1,
                         step_bytes = (block_rows + block_n / halves) * ROW_BYTES;
            const double bytes =
                ((tiles - 1) / clusters + 1) * (steps * step_bytes + (parts > 1 ? 2 : 1) * TILE_BYTES);
            if (bytes >= least) continue;
            const int stages_bytes = SMEM_BYTES - (int)sizeof(Barriers) - sums_bytes(parts, block_n);
            least = bytes;
            best = {halves, parts, block_rows,
                    min(MAX_STAGES, stages_bytes / ((BLOCK_M + block_n) * ROW_BYTES)), clusters};
            *width = block_n;
        }
    return best;
}

template <int BLOCK_N, typename T, typename TC>
static cudaError_t launch(const Plan &plan, const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    const bool vector_store = (size_t)N * sizeof(TC) % 16 == 0 && (uintptr_t)C % 16 == 0;
    const auto kernel = few_rows_kernel<T, TC, BLOCK_N>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, plan.block_rows, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N / plan.halves, BLOCK_K);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (error != cudaSuccess) return error;
    const int cluster = plan.halves * plan.parts;
    return launch_early_clusters(kernel, plan.clusters * cluster, cluster, NUM_THREADS, SMEM_BYTES, stream,
                                 A_map, B_map, bias, C, vector_store, M, N, K, plan);
}

extern "C" cudaError_t few_rows(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (M > 2 * BLOCK_M) return stream_k(dtype, C_dtype, A, B, bias, C, M, N, K, stream);
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        static int fitting[MAX_CLUSTER + 1]; // clusters of so many blocks
        cudaError_t error = ask_clusters<T, TC>(fitting);
        if (error != cudaSuccess) return error;
        int width = 0;
        const Plan plan = make_plan(M, N, K, fitting, &width);
        const auto with_width = [&](auto launch_width) {
            return launch_width(plan, (const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
        };
        switch (width) {
        case 96: return with_width(launch<96, T, TC>);
        case 112: return with_width(launch<112, T, TC>);
        case 128: return with_width(launch<128, T, TC>);
        case 144: return with_width(launch<144, T, TC>);
        case 192: return with_width(launch<192, T, TC>);
        default: return cudaErrorLaunchOutOfResources; // not one cluster fits
        }
    });
}
