// Chapter 19, step 6: where D has few rows. Everyone fetches, and a cluster divides k.
//
// Question: a decoder multiplies a few tokens with all weights: the time is that of B's bytes. What is left of chapter 14's
// answer where sums have scales?
//
// Grows from: chapter 14, step 7 (few_rows).
// Its cluster that divides k. What the parts send each other are promoted sums, which need no scale any more. A step of k is a group
// of 128, whose row scales TMA brings with the stage; a part has every parts-th group.
//
//      k 0, 2, 4 ...    block 0: warpgroup 0 rows 0-63, 1 rows 64-127
//      k 1, 3, 5 ...    block 1                                         in the end each owns some rows, and gets the other's sums
//
// Up to 128 rows are one block's: two warpgroups, which multiply and promote in turns, and B is fetched once for both. Chapter 14 has
// two blocks for them, each of which fetches half of B for the other: no byte less comes into an SM's shared memory, and on an H200 it
// was slower for every shape. Slower, too, if blocks of neighbouring tiles fetch half of A each. D with more rows is step 4's. The L2 fetches
// a block's first weights while the kernel before still runs.
//
// New instructions: st.async, cp.async.bulk.prefetch.tensor. Shared memory: 232,448 bytes, all there is. Registers: twice BLOCK_N / 2 accumulators a thread.
// Run: make chapter-19 OP=gemm STEP=few_rows
#include "../../common/device/launch.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "gemm.cuh"
#include "launchers.h"

constexpr int MMA_M = 64;        // rows of a wgmma, a warpgroup's
constexpr int BLOCK_K = GROUP;   // columns of A and B in shared memory at a time: the swizzle's 128 bytes
constexpr int MMA_K = 32;        // k of a wgmma
constexpr int MAX_CONSUMERS = 2; // warpgroups that multiply
constexpr int num_threads(int consumers)
{
    return consumers * 128 + 32; // the last warp is the producer
}
constexpr int MAX_STAGES = 16;
constexpr int MAX_PARTS = 4;
constexpr int SMEM_BYTES = 232448; // all that a block can have

// What the blocks do, made by the host.
struct Plan {
    int consumers;  // warpgroups of a block, 64 rows each
    int parts;      // of k: 1, 2 or 4 blocks of a cluster
    int block_rows; // rows of A and D a block has, a multiple of 8: those that are fetched
    int num_stages;
    int clusters;
};

template <int CONSUMERS, int BLOCK_N>
struct Stage {
    uint8_t A_smem[CONSUMERS * MMA_M]
                  [BLOCK_K];          // (m, k), the first block_rows fetched; no other products are stored
    uint8_t B_smem[BLOCK_N][BLOCK_K]; // (n, k)
};

// Shared memory: this with the row scales, the stages, and the sums of other parts for the rows that this block owns.
struct alignas(1024) Barriers {
    float scale_smem[MAX_STAGES][MAX_CONSUMERS * MMA_M]; // (stage, m): of A's rows
    uint64_t full[MAX_STAGES];                           // the stage's tiles and scales have landed
    uint64_t empty[MAX_STAGES];                          // every warp that multiplies is done with them
    uint64_t sums_full;                                  // the other parts' sums are here
    uint64_t sums_empty;                                 // the other parts have read this block's sums
};

// Bytes of shared memory for the sums. A block owns the rows of one of `parts` of its consumers' warps, 16 rows a warp.
__host__ __device__ constexpr int sums_bytes(int parts, int consumers, int block_n)
{
    return (parts - 1) * (consumers * 4 / parts) * 16 * block_n * (int)sizeof(float);
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
    int part; // in the cluster
    int first_tile, tile_step, tiles;
    int k_tiles;

    __device__ Place(const Plan &plan, int tiles, int k_tiles) : tiles(tiles), k_tiles(k_tiles)
    {
        part = cluster_ctarank();
        first_tile = blockIdx.x / plan.parts;
        tile_step = plan.clusters;
    }
};

// The L2 fetches what the producer will fetch of B for its first tile, as many steps as there are stages, while the kernel before still
// runs, as in step 8 of chapter 14.
template <int BLOCK_N>
static __device__ void prefetch_B(const CUtensorMap &B_map, const Plan &plan, const Place &place)
{
    int k = place.part;
    for (int stage = 0; stage < plan.num_stages && k < place.k_tiles; stage++, k += plan.parts)
        cp_async_bulk_prefetch_tensor_2d(B_map, k * BLOCK_K, place.first_tile * BLOCK_N);
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <int CONSUMERS, int BLOCK_N>
static __device__ void produce(Barriers &bar, Stage<CONSUMERS, BLOCK_N> *stages, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const CUtensorMap &scale_map, const Plan &plan,
                               const Place &place)
{
    const int stage_bytes = plan.block_rows * (BLOCK_K + (int)sizeof(float)) + BLOCK_N * BLOCK_K;
    Ring ring{plan.num_stages};
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step)
        for (int k = place.part; k < place.k_tiles; k += plan.parts) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
            trace(LOAD);
            uint64_t *full = &bar.full[ring.stage];
            Stage<CONSUMERS, BLOCK_N> &stage = stages[ring.stage];
            mbarrier_arrive_expect_tx(full, stage_bytes);
            cp_async_bulk_tensor_2d(stage.B_smem, B_map, full, k * BLOCK_K, tile * BLOCK_N);
            cp_async_bulk_tensor_2d(stage.A_smem, A_map, full, k * BLOCK_K, 0);
            cp_async_bulk_tensor_2d(bar.scale_smem[ring.stage], scale_map, full, 0, k);
            ring.advance();
        }
    trace(END);
}

// The consumers' products for one tile and their sum. scale_B: of the first square of the tile's columns, (k_tiles);
// next_square: from there to the second's; `first` columns are in the first. A descriptor counts in units of 16 bytes.
template <int CONSUMERS, int BLOCK_N>
static __device__ void multiply(float (&sum)[BLOCK_N / 2], Barriers &bar,
                                const Stage<CONSUMERS, BLOCK_N> *stages, Ring &ring, const float *scale_B,
                                int next_square, int first, const Plan &plan, const Place &place)
{
    const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int row0 = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; // this thread's; the other is 8 further
    const uint64_t A_desc = uniform(wgmma_descriptor(stages[0].A_smem[consumer * MMA_M]));
    const uint64_t B_desc = uniform(wgmma_descriptor(stages[0].B_smem));
    const int steps = (place.k_tiles - 1 - place.part) / plan.parts + 1;
    LaneScales first_B(scale_B + place.part, plan.parts, steps);
    LaneScales second_B(scale_B + place.part + next_square, plan.parts, steps);
    with_first<BLOCK_N>(first, [&](auto in_first) {
        float acc[BLOCK_N / 2];
#pragma unroll 2
        for (int k = 0; k < steps; k++) {
            trace(WAIT_FULL);
            mbarrier_wait(&bar.full[ring.stage], ring.parity);
            const float scale0 = bar.scale_smem[ring.stage][row0];
            const float scale1 = bar.scale_smem[ring.stage][row0 + 8];
            const int stage_desc = ring.stage * (int)(sizeof stages[0] / 16);
            wgmma_touch(acc);
            wgmma_fence();
#pragma unroll
            for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
                wgmma_e4m3<BLOCK_N>(acc, A_desc + stage_desc + slice * MMA_K / 16,
                                    B_desc + stage_desc + slice * MMA_K / 16, slice > 0);
            wgmma_commit_group();
            const float B0 = first_B[k], B1 = second_B[k];
            const Scales scales = {{scale0 * B0, scale1 * B0}, {scale0 * B1, scale1 * B1}};
            wgmma_wait_group<0>();
            wgmma_touch(acc);
            __syncwarp(); // Every lane has read its scales.
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&bar.empty[ring.stage]);
            promote<in_first>(sum, acc, scales);
            ring.advance();
        }
    });
}

// Sends a warp's sums to the block that owns its rows.
template <int CONSUMERS, int BLOCK_N>
static __device__ void send_sums(const float (&acc)[BLOCK_N / 2], Barriers &bar, float4 *sums,
                                 uint32_t parity, const Plan &plan, const Place &place, int warp, int lane)
{
    trace(EXCHANGE);
    const int owned_warps = CONSUMERS * 4 / plan.parts;
    const int owner = warp / owned_warps;
    // 0, 1 ... among the parts that send to the owner.
    const int sender = (place.part - owner - 1) & (plan.parts - 1);
    const uint32_t full_addr = mapa(smem_addr(&bar.sums_full), owner);
    const uint32_t sums_addr = mapa(
        smem_addr(sums + (sender * owned_warps + warp % owned_warps) * (BLOCK_N / 8 * 32) + lane), owner);
    mbarrier_wait(&bar.sums_empty, parity ^ 1); // Those of the tile before have been read.
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4)
        st_async(sums_addr + r / 4 * 32 * 16, make_float4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]),
                 full_addr);
}

// Adds what the other parts have sent for this warp's rows.
template <int CONSUMERS, int BLOCK_N>
static __device__ void add_sums(float (&acc)[BLOCK_N / 2], Barriers &bar, const float4 *sums, uint32_t parity,
                                const Plan &plan, int warp, int lane)
{
    trace(EXCHANGE);
    const int owned_warps = CONSUMERS * 4 / plan.parts;
    if (warp % owned_warps == 0 && lane == 0)
        mbarrier_arrive_expect_tx(&bar.sums_full, sums_bytes(plan.parts, CONSUMERS, BLOCK_N));
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

// Writes a warp's 16 rows of sums to D from (row0, col0) on; rows end before end_row. vector_store: D's rows are multiples of
// 16 bytes.
template <int BLOCK_N, typename TD>
static __device__ void store_rows(TD *D, const float (&acc)[BLOCK_N / 2], int row0, int end_row, int col0,
                                  int N, bool vector_store, int lane)
{
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 8) {
        float value[8]; // of 16 columns: rows l / 4 and + 8 of the left 8, then of the right 8
#pragma unroll
        for (int i = 0; i < 8; i++) value[i] = acc[r + i];
        if constexpr (sizeof(TD) == 2) {
            if (vector_store) { // A lane's two columns are half a sector with those of its quad. It gets eight of one row.
                uint32_t pairs[4] = {pack_pair<TD>(value[0], value[1]), pack_pair<TD>(value[4], value[5]),
                                     pack_pair<TD>(value[2], value[3]), pack_pair<TD>(value[6], value[7])};
                transpose_in_quad(pairs, lane);
                const int row = row0 + lane / 4 + lane % 4 / 2 * 8, col = col0 + r * 2 + lane % 2 * 8;
                if (row < end_row && col < N)
                    *reinterpret_cast<uint4 *>(D + (size_t)row * N + col) =
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                continue;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int row = row0 + lane / 4 + i % 4 / 2 * 8, col = col0 + (r + i) / 4 * 8 + lane % 4 * 2;
            if (row >= end_row || col >= N) continue;
            TD *dst = D + (size_t)row * N + col;
            if (N % 2 == 0) {
                store_pair(dst, value[i], value[i + 1]);
            } else {
                dst[0] = (TD)value[i];
                if (col + 1 < N) dst[1] = (TD)value[i + 1];
            }
        }
    }
}

// The consumers: the block's rows of each tile. A warp sends its sums away or completes and stores them.
template <typename TD, int CONSUMERS, int BLOCK_N>
static __device__ void consume(Barriers &bar, const Stage<CONSUMERS, BLOCK_N> *stages, float4 *sums,
                               const float *scale_B, TD *D, bool vector_store, int M, int N, const Plan &plan,
                               const Place &place)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool owned = warp / (CONSUMERS * 4 / plan.parts) == place.part;
    const int squares = (N - 1) / GROUP + 1;
    Ring ring{plan.num_stages};
    uint32_t sums_parity = 0;
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step, sums_parity ^= 1) {
        const int col = tile * BLOCK_N, square = col / GROUP;
        float sum[BLOCK_N / 2] = {};
        multiply<CONSUMERS, BLOCK_N>(sum, bar, stages, ring, scale_B + (size_t)square * place.k_tiles,
                                     square + 1 < squares ? place.k_tiles : 0, GROUP - col % GROUP, plan,
                                     place);
        if (!owned) {
            send_sums<CONSUMERS, BLOCK_N>(sum, bar, sums, sums_parity, plan, place, warp, lane);
            continue;
        }
        if (plan.parts > 1) {
            add_sums<CONSUMERS, BLOCK_N>(sum, bar, sums, sums_parity, plan, warp, lane);
            __syncwarp(); // All lanes have read them. Nobody waits for an arrival after the last tile.
            if (tile + place.tile_step < place.tiles && lane < plan.parts && lane != place.part)
                mbarrier_arrive_cluster(&bar.sums_empty, lane);
        }
        trace(STORE);
        store_rows<BLOCK_N>(D, sum, warp * 16, M, col, N, vector_store, lane);
    }
    trace(END);
}

template <typename TD, int CONSUMERS, int BLOCK_N>
__global__ void __launch_bounds__(num_threads(CONSUMERS), 1) few_rows_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (block_rows, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (N, K), boxes (BLOCK_N, BLOCK_K)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, block_rows)
    const float *scale_B,                          // (squares, k_tiles)
    TD *D,                                         // (M, N)
    bool vector_store,                             // D's rows are multiples of 16 bytes
    int M, int N, int K, Plan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    Barriers &bar = *reinterpret_cast<Barriers *>(smem_bytes);
    Stage<CONSUMERS, BLOCK_N> *stages = reinterpret_cast<Stage<CONSUMERS, BLOCK_N> *>(&bar + 1);
    float4 *sums = reinterpret_cast<float4 *>(stages + plan.num_stages); // (sender, warp, BLOCK_N / 8, lane)
    const Place place(plan, (N - 1) / BLOCK_N + 1, (K - 1) / BLOCK_K + 1);

    // Setup. TMA and the other blocks count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        prefetch_tensormap(scale_map);
        for (int stage = 0; stage < plan.num_stages; stage++) {
            mbarrier_init(&bar.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&bar.empty[stage], CONSUMERS * 4);
        }
        mbarrier_init(&bar.sums_full, 1); // one arrival, and the bytes it expects
        mbarrier_init(&bar.sums_empty,    // every warp that owns rows elsewhere
                      max(1, (plan.parts - 1) * (CONSUMERS * 4 / plan.parts)));
        fence_mbarrier_init();
    }
    if (threadIdx.x == CONSUMERS * 128) prefetch_B<BLOCK_N>(B_map, plan, place);
    cluster_sync_relaxed();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now.

    if (threadIdx.x < CONSUMERS * 128)
        consume<TD, CONSUMERS, BLOCK_N>(bar, stages, sums, scale_B, D, vector_store, M, N, plan, place);
    else if (threadIdx.x == CONSUMERS * 128)
        produce<CONSUMERS, BLOCK_N>(bar, stages, A_map, B_map, scale_map, plan, place);
    // No block leaves before its consumers have seen the last sums.
}

// Asks once how many clusters of 1, 2 and 4 blocks fit the GPU. Clusters stay within a part of the GPU: the larger they
// are, the more SMs are left over.
template <typename TD>
static cudaError_t ask_clusters(int (&fitting)[MAX_PARTS + 1])
{
    if (fitting[1] != 0) return cudaSuccess;
    const auto kernel = few_rows_kernel<TD, 1, 128>; // Each of them fills an SM.
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    for (int blocks = MAX_PARTS; blocks >= 1 && error == cudaSuccess; blocks /= 2) {
        cudaLaunchAttribute cluster = {};
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {(unsigned)blocks, 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(num_threads(1));
        config.dynamicSmemBytes = SMEM_BYTES;
        config.attrs = &cluster;
        config.numAttrs = 1;
        error = cudaOccupancyMaxActiveClusters(&fitting[blocks], kernel, &config);
    }
    return error;
}

// The plan with which the busiest block has the fewest bytes to fetch, and the tile's width; plan.clusters is 0 if none fits.
static Plan make_plan(int M, int N, int K, const int (&fitting)[MAX_PARTS + 1], int *width)
{
    constexpr int WIDTHS[] = {64, 96, 112, 128, 192};
    constexpr int ROW_BYTES = BLOCK_K;
    // What could be fetched while a tile is stored (chapter 14's, from trials on an H200), and while a warpgroup's sums are sent and
    // added (from trials on an H100).
    constexpr int TILE_BYTES = 65536, SUMS_BYTES = 131072;
    const int block_rows = ((M - 1) / 8 + 1) * 8, consumers = (block_rows - 1) / MMA_M + 1;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    Plan best = {};
    double least = INFINITY;
    for (int parts = 1; parts <= min(MAX_PARTS, k_tiles); parts *= 2)
        for (const int block_n : WIDTHS) {
            if (consumers == 2 && block_n > 128) continue; // There are 168 registers a thread.
            const int tiles = (N - 1) / block_n + 1, clusters = min(tiles, fitting[parts]);
            if (clusters == 0) continue;
            const double steps = (k_tiles - 1) / parts + 1, step_bytes = (block_rows + block_n) * ROW_BYTES;
            const double bytes = ((tiles - 1) / clusters + 1) *
                                 (steps * step_bytes + TILE_BYTES + (parts > 1 ? consumers * SUMS_BYTES : 0));
            if (bytes >= least) continue;
            const int stages_bytes =
                SMEM_BYTES - (int)sizeof(Barriers) - sums_bytes(parts, consumers, block_n);
            least = bytes;
            best = {consumers, parts, block_rows,
                    min(MAX_STAGES, stages_bytes / ((consumers * MMA_M + block_n) * ROW_BYTES)), clusters};
            *width = block_n;
        }
    return best;
}

template <int CONSUMERS, int BLOCK_N, typename TD>
static cudaError_t launch(const Plan &plan, const void *A, const void *B, const float *scale_A,
                          const float *scale_B, TD *D, int M, int N, int K, cudaStream_t stream)
{
    CUtensorMap A_map, B_map, scale_map;
    const bool vector_store = (size_t)N * sizeof(TD) % 16 == 0 && (uintptr_t)D % 16 == 0;
    const auto kernel = few_rows_kernel<TD, CONSUMERS, BLOCK_N>;
    cudaError_t error =
        tensor_map_matrix(&A_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, plan.block_rows, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&scale_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, plan.block_rows);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (error != cudaSuccess) return error;
    return launch_early_clusters(kernel, plan.clusters * plan.parts, plan.parts, num_threads(CONSUMERS),
                                 SMEM_BYTES, stream, A_map, B_map, scale_map, scale_B, D, vector_store, M, N,
                                 K, plan);
}

extern "C" cudaError_t few_rows(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                                const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    if (M > 2 * MMA_M) return persistent_multicast(D_dtype, A, B, scale_A, scale_B, D, M, N, K, stream);
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    if ((uintptr_t)scale_A % 16 != 0) return cudaErrorInvalidValue;
    return with_D_type(D_dtype, [&](auto td) {
        using TD = decltype(td);
        static int fitting[MAX_PARTS + 1]; // clusters of so many blocks
        double gigabytes;                  // a second, of the memory
        cudaError_t error = ask_clusters<TD>(fitting);
        if (error == cudaSuccess) error = ask_bandwidth(&gigabytes);
        if (error != cudaSuccess) return error;
        // Where 128 columns come to every SM step 4 is 4 to 7 % faster on an H200, of k = 512 and 1,536; on an H100 it is slower.
        if (M > MMA_M && N / 128 >= fitting[1] && gigabytes > SLOW_MEMORY)
            return persistent_multicast(D_dtype, A, B, scale_A, scale_B, D, M, N, K, stream);
        int width = 0;
        const Plan plan = make_plan(M, N, K, fitting, &width);
        const auto with_width = [&](auto launch_width) {
            return launch_width(plan, A, B, scale_A, scale_B, (TD *)D, M, N, K, stream);
        };
        switch (plan.consumers * 1000 + width) {
        case 1064: return with_width(launch<1, 64, TD>);
        case 1096: return with_width(launch<1, 96, TD>);
        case 1112: return with_width(launch<1, 112, TD>);
        case 1128: return with_width(launch<1, 128, TD>);
        case 1192: return with_width(launch<1, 192, TD>);
        case 2064: return with_width(launch<2, 64, TD>);
        case 2096: return with_width(launch<2, 96, TD>);
        case 2112: return with_width(launch<2, 112, TD>);
        case 2128: return with_width(launch<2, 128, TD>);
        default: return cudaErrorLaunchOutOfResources; // not one cluster fits
        }
    });
}
