// Chapter 19, step 6: where D has few rows. Everyone fetches, and a cluster divides rows and k.
//
// Question: a decoder multiplies a few tokens with all weights: the time is that of B's bytes. What is left of chapter 14's
// answer where sums have scales?
//
// Grows from: chapter 14, step 7 (few_rows).
// Its clusters: halves of the rows that share B, parts of k. What the parts send each other are promoted sums, which need no scale any
// more. Or a block has all 128 rows, two warpgroups': then B comes into one SM's shared memory and not into two, but half as many fetch.
// make_plan takes what leaves the busiest block the fewest bytes to fetch and to exchange.
//
//      warpgroup   products of group k        k + 1        k + 2       ...    in two accumulators, in turns
//                  promotes           k - 1         k            k + 1 ...
//
// In a kernel of microseconds nothing hides what a warp waits for: it is alone with its scheduler. So a warpgroup begins the products of
// the next group of 128 k before it promotes this one's, asks for this one's scales before that, and has the next 32 scales of B on their
// way. D's rows go through shared memory, so that a warp stores whole rows. Lanes initialise a stage's barriers each. The L2 fetches
// a block's first weights while the kernel before still runs.
//
// New instructions: st.async, cp.async.bulk.prefetch.tensor. Shared memory: up to 232,448 bytes, all there is. Registers: up to 248.
// Run: make chapter-19 OP=gemm STEP=few_rows
#include "../../common/device/launch.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "gemm.cuh"
#include "launchers.h"

constexpr int MMA_M = 64;      // rows of a wgmma, a warpgroup's
constexpr int BLOCK_K = GROUP; // columns of A and B in shared memory at a time: the swizzle's 128 bytes
constexpr int MMA_K = 32;      // k of a wgmma
constexpr int MAX_STAGES = 16;
constexpr int MAX_PARTS = 4;
constexpr int MAX_CLUSTER = 2 * MAX_PARTS;
constexpr int PREFETCHED = 3;      // boxes: more of them delay the copies that follow, on an H200
constexpr int SMEM_BYTES = 232448; // all that a block can have
constexpr int ROW_PAD = 16; // bytes behind a row of D in shared memory: eight rows begin in different banks

// Threads of a block: the warpgroups that multiply, and the producer. Two of them need more registers than 384 threads can all have, and a
// warpgroup to take them from.
constexpr int num_threads(int consumers)
{
    return consumers == 1 ? 128 + 32 : 3 * 128;
}
constexpr int PRODUCER_REGS = 40, CONSUMER_REGS = 232; // where there are two consumers
static_assert(PRODUCER_REGS + 2 * CONSUMER_REGS <= 3 * (65536 / num_threads(2) / 8 * 8),
              "setmaxnreg moves registers of the block, it makes none");

// What the blocks do, made by the host.
struct Plan {
    int consumers;  // warpgroups of a block, 64 rows each
    int halves;     // of 128 rows: 1 or 2 blocks of a cluster
    int parts;      // of k: 1, 2 or 4 blocks of a cluster
    int block_rows; // rows of A and D a block has, a multiple of 8: those that are fetched
    int num_stages; // even
    int clusters;
};

template <int CONSUMERS, int BLOCK_N>
struct Stage {
    uint8_t A_smem[CONSUMERS * MMA_M]
                  [BLOCK_K];          // (m, k), the first block_rows fetched; no other products are stored
    uint8_t B_smem[BLOCK_N][BLOCK_K]; // (n, k)
};

// Shared memory: this, the stages, their row scales, the sums of other parts for the rows that this block owns, and those rows of D.
struct alignas(1024) Barriers {
    uint64_t full[MAX_STAGES];  // the stage's tiles and scales have landed
    uint64_t empty[MAX_STAGES]; // every warp that multiplies is done with them, in the blocks that share B
    uint64_t sums_full;         // the other parts' sums are here
    uint64_t sums_empty;        // the other parts have read this block's sums
};

// Bytes of shared memory for the sums. A block owns the rows of one of `parts` of its consumers' warps, 16 rows a warp.
__host__ __device__ constexpr int sums_bytes(int parts, int consumers, int block_n)
{
    return (parts - 1) * (consumers * 4 / parts) * 16 * block_n * (int)sizeof(float);
}

// And for a warp's rows of D in bf16.
__host__ __device__ constexpr int warp_rows_bytes(int block_n)
{
    return 16 * (block_n * 2 + ROW_PAD);
}

// Where a walk around the ring of stages is: PipelineState of a number of stages that is known when the kernel runs.
struct Ring {
    int num_stages;
    int stage = 0;
    uint32_t parity = 0;

    // The number of stages is a multiple of `stages`.
    __device__ void advance(int stages)
    {
        stage += stages;
        if (stage == num_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// This block's place: its tiles are every so many-th, its groups of k those of some neighbouring pairs.
struct Place {
    int half, part; // in the cluster
    int first_tile, tile_step, tiles;
    int first_k, groups;

    __device__ Place(const Plan &plan, int tiles, int k_tiles) : tiles(tiles)
    {
        const int rank = cluster_ctarank(), pairs = (k_tiles + 1) / 2;
        half = rank % plan.halves;
        part = rank / plan.halves;
        first_tile = blockIdx.x / (plan.halves * plan.parts);
        tile_step = plan.clusters;
        first_k = part * pairs / plan.parts * 2;
        groups = min(k_tiles, (part + 1) * pairs / plan.parts * 2) - first_k;
    }
};

// The L2 fetches the first of what the producer will fetch of B for its first tile, while the kernel before still runs, as in step 8 of
// chapter 14.
template <int BLOCK_N>
static __device__ void prefetch_B(const CUtensorMap &B_map, const Place &place)
{
    const int col = place.first_tile * BLOCK_N + place.half * (BLOCK_N / 2);
    for (int k = 0; k < min(PREFETCHED, place.groups); k++)
        cp_async_bulk_prefetch_tensor_2d(B_map, (place.first_k + k) * BLOCK_K, col);
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass. scales: (stage, CONSUMERS * MMA_M), of A's rows.
template <int CONSUMERS, int BLOCK_N>
static __device__ void produce(Barriers &bar, Stage<CONSUMERS, BLOCK_N> *stages, float *scales,
                               const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const CUtensorMap &scale_map, const Plan &plan, const Place &place)
{
    const int stage_bytes = plan.block_rows * (BLOCK_K + (int)sizeof(float)) + BLOCK_N * BLOCK_K;
    const int row = place.half * MMA_M;
    // The half of B's tile that this block fetches for both halves of the rows.
    const int first_col = place.half * (BLOCK_N / 2);
    const uint16_t sharing = 0b11 << (place.part * 2);
    Ring ring{plan.num_stages};
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step) {
        for (int k = place.first_k; k < place.first_k + place.groups; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
            trace(LOAD);
            uint64_t *full = &bar.full[ring.stage];
            Stage<CONSUMERS, BLOCK_N> &stage = stages[ring.stage];
            mbarrier_arrive_expect_tx(full, stage_bytes);
            if (plan.halves == 1)
                cp_async_bulk_tensor_2d(stage.B_smem, B_map, full, k * BLOCK_K, tile * BLOCK_N);
            else
                cp_async_bulk_tensor_2d_multicast(stage.B_smem[first_col], B_map, full, k * BLOCK_K,
                                                  tile * BLOCK_N + first_col, sharing);
            cp_async_bulk_tensor_2d(stage.A_smem, A_map, full, k * BLOCK_K, row);
            cp_async_bulk_tensor_2d(scales + ring.stage * CONSUMERS * MMA_M, scale_map, full, row, k);
            ring.advance(1);
        }
        if (place.groups % 2 != 0) {
            // The consumers take pairs of stages: the second of this one stays as it is.
            mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
            mbarrier_arrive(&bar.full[ring.stage]);
            ring.advance(1);
        }
    }
    trace(END);
    // Every stage is empty again: the other half has arrived here for the last time, and this block may leave.
    for (int n = 0; plan.halves == 2 && n < plan.num_stages; n++) {
        mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
        ring.advance(1);
    }
}

// LaneScales with the 32 steps behind those in use on their way, for steps that are shorter than a load.
struct ScalesAhead : LaneScales {
    float next;

    __device__ ScalesAhead(const float *scale, int count) : LaneScales(scale, count), next(load(32)) {}

    // Nobody asks for a step before k any more.
    __device__ void passed(int k)
    {
        if (k % 32 != 0) return;
        own = next;
        next = load(k + 32);
    }
};

// The descriptor of a tile that begins `offset` units of 16 bytes further. Shared memory has less than the 14 bits' worth of them: nothing
// is carried into the upper word, which stays the same constant for all.
static __device__ inline uint64_t moved(uint64_t descriptor, int offset)
{
    return descriptor >> 32 << 32 | ((uint32_t)descriptor + offset);
}

// Begins the products of a group: a group of wgmma.
template <int BLOCK_N>
static __device__ inline void begin_products(float (&acc)[BLOCK_N / 2], uint64_t A_desc, uint64_t B_desc)
{
    wgmma_touch(acc);
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma_e4m3<BLOCK_N>(acc, moved(A_desc, slice * MMA_K / 16), moved(B_desc, slice * MMA_K / 16),
                            slice > 0);
    wgmma_commit_group();
}

// The consumers' products for one tile and their sum. scales: of A's rows, as the producer has them. scale_B: of the first square of the
// tile's columns and this block's first group; next_square: from there to the second's; `first` columns are in the first. It is inlined
// whatever its size: ptxas lets no wgmma run across a call.
template <int CONSUMERS, int BLOCK_N>
static __device__ __forceinline__ void multiply(float (&sum)[BLOCK_N / 2], Barriers &bar,
                                                const Stage<CONSUMERS, BLOCK_N> *stages, const float *scales,
                                                Ring &ring, const float *scale_B, int next_square, int first,
                                                const Plan &plan, const Place &place)
{
    using Four = float[4]; // scales of two rows of A, of two squares of B
    using Acc = float[BLOCK_N / 2];
    constexpr int STAGE_UNITS = sizeof stages[0] / 16; // those of a descriptor
    const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
    const int row0 = threadIdx.x / 32 * 16 + lane / 4; // this thread's; the other is 8 further
    const uint64_t A_desc = uniform(wgmma_descriptor(stages[0].A_smem[consumer * MMA_M]));
    const uint64_t B_desc = uniform(wgmma_descriptor(stages[0].B_smem));
    ScalesAhead first_B(scale_B, place.groups), second_B(scale_B + next_square, place.groups);
    const auto release = [&](int stage) {
        __syncwarp(); // Every lane has read its scales.
        if (lane < plan.halves) mbarrier_arrive_cluster(&bar.empty[stage], place.part * plan.halves + lane);
    };
    with_first<BLOCK_N>(first, [&](auto in_first) {
        constexpr bool ONE_SQUARE = decltype(in_first)::value >= BLOCK_N;
        const auto begin = [&](Acc &acc, int stage) {
            begin_products<BLOCK_N>(acc, moved(A_desc, stage * STAGE_UNITS),
                                    moved(B_desc, stage * STAGE_UNITS));
        };
        const auto ask = [&](Four &four, int stage, int k) {
            four[0] = scales[stage * CONSUMERS * MMA_M + row0];
            four[1] = scales[stage * CONSUMERS * MMA_M + row0 + 8];
            four[2] = first_B.get(k);
            four[3] = ONE_SQUARE ? four[2] : second_B.get(k);
        };
        // The products have been waited for. The scales are touched with them: else they are multiplied ahead of the wgmma that follow
        // the question, which wait with them for the answer.
        const auto end = [&](Acc &acc, Four &four, int stage) {
            wgmma_touch(acc);
            wgmma_touch(four);
            release(stage);
            promote<in_first>(
                sum, acc, {{four[0] * four[2], four[1] * four[2]}, {four[0] * four[3], four[1] * four[3]}});
        };
        // Begins a group's products, and ends those of group k, the one before.
        const auto turn = [&](Acc &begun, int stage, Acc &ended, int stage_before, int k) {
            Four four;
            trace(WAIT_FULL);
            mbarrier_wait(&bar.full[stage], ring.parity);
            ask(four, stage_before, k);
            begin(begun, stage);
            wgmma_wait_group<1>();
            end(ended, four, stage_before);
        };
        Acc even, odd;
        Four four;
        trace(WAIT_FULL);
        mbarrier_wait(&bar.full[ring.stage], ring.parity);
        begin(even, ring.stage);
        int k = 0;
        for (; k + 2 < place.groups; k += 2) {
            turn(odd, ring.stage + 1, even, ring.stage, k);
            const int stage = ring.stage + 1;
            ring.advance(2);
            turn(even, ring.stage, odd, stage, k + 1);
            first_B.passed(k + 2);
            if (!ONE_SQUARE) second_B.passed(k + 2);
        }
        if (place.groups % 2 == 0) {
            turn(odd, ring.stage + 1, even, ring.stage, k);
            ask(four, ring.stage + 1, k + 1);
            wgmma_wait_group<0>();
            end(odd, four, ring.stage + 1);
        } else {
            ask(four, ring.stage, k);
            wgmma_wait_group<0>();
            end(even, four, ring.stage);
            // Nothing comes there. But who gave it back at once could be counted in place of a warp that still has what came before.
            mbarrier_wait(&bar.full[ring.stage + 1], ring.parity);
            release(ring.stage + 1);
        }
        ring.advance(2);
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

// Writes a warp's 16 rows of sums to D from (row0, col0) on; rows end before end_row. vector_store: D's rows are multiples of
// 16 bytes; those of bf16 go through rows_smem, from where a warp stores 512 bytes of whole rows at a time, as in step 8 of chapter 14.
template <int BLOCK_N, typename TD>
static __device__ inline void store_rows(TD *D, const float (&acc)[BLOCK_N / 2], char *rows_smem, int row0,
                                         int end_row, int col0, int N, bool vector_store, int lane)
{
    if constexpr (sizeof(TD) == 2) {
        if (vector_store) {
            constexpr int ROW_BYTES = BLOCK_N * 2 + ROW_PAD, CHUNKS = BLOCK_N / 8; // of 16 bytes, in a row
            // Matrices 0 to 3: rows 0-7 and 8-15 of 8 columns, then of 8 more.
#pragma unroll
            for (int r = 0; r < BLOCK_N / 2; r += 8) {
                const uint32_t pairs[4] = {
                    pack_pair<TD>(acc[r], acc[r + 1]), pack_pair<TD>(acc[r + 2], acc[r + 3]),
                    pack_pair<TD>(acc[r + 4], acc[r + 5]), pack_pair<TD>(acc[r + 6], acc[r + 7])};
                stmatrix_x4(smem_addr(rows_smem) + lane % 16 * ROW_BYTES + (r / 4 + lane / 16) * 16, pairs);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 16 * CHUNKS; i += 32) {
                const int row = (i + lane) / CHUNKS, chunk = (i + lane) % CHUNKS, col = col0 + chunk * 8;
                const uint4 eight =
                    *reinterpret_cast<const uint4 *>(rows_smem + row * ROW_BYTES + chunk * 16);
                if (row0 + row < end_row && col < N)
                    *reinterpret_cast<uint4 *>(D + (size_t)(row0 + row) * N + col) = eight;
            }
            __syncwarp(); // The next tile's may come.
            return;
        }
    }
    store_tile(D, acc, row0, col0, end_row, N, lane);
}

// The consumers: the block's rows of each tile. A warp sends its sums away or completes and stores them.
template <typename TD, int CONSUMERS, int BLOCK_N>
static __device__ __forceinline__ void consume(Barriers &bar, const Stage<CONSUMERS, BLOCK_N> *stages,
                                               const float *scales, float4 *sums, const float *scale_B, TD *D,
                                               bool vector_store, int M, int N, int k_tiles, const Plan &plan,
                                               const Place &place)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, owned_warps = CONSUMERS * 4 / plan.parts;
    const bool owned = warp / owned_warps == place.part;
    const int squares = (N - 1) / GROUP + 1;
    char *rows_smem = (char *)sums + sums_bytes(plan.parts, CONSUMERS, BLOCK_N) +
                      warp % owned_warps * warp_rows_bytes(BLOCK_N);
    Ring ring{plan.num_stages};
    uint32_t sums_parity = 0;
    for (int tile = place.first_tile; tile < place.tiles; tile += place.tile_step, sums_parity ^= 1) {
        const int col = tile * BLOCK_N, square = col / GROUP;
        float sum[BLOCK_N / 2] = {};
        multiply<CONSUMERS, BLOCK_N>(sum, bar, stages, scales, ring,
                                     scale_B + (size_t)square * k_tiles + place.first_k,
                                     square + 1 < squares ? k_tiles : 0, GROUP - col % GROUP, plan, place);
        if (!owned) {
            send_sums<CONSUMERS, BLOCK_N>(sum, bar, sums, sums_parity, plan, place, warp, lane);
            continue;
        }
        if (plan.parts > 1) {
            add_sums<CONSUMERS, BLOCK_N>(sum, bar, sums, sums_parity, plan, warp, lane);
            __syncwarp(); // All lanes have read them. Nobody waits for an arrival after the last tile.
            if (tile + place.tile_step < place.tiles && lane < plan.parts && lane != place.part)
                mbarrier_arrive_cluster(&bar.sums_empty, lane * plan.halves + place.half);
        }
        trace(STORE);
        store_rows<BLOCK_N>(D, sum, rows_smem, place.half * MMA_M + warp * 16, M, col, N, vector_store, lane);
    }
    trace(END);
}

template <typename TD, int CONSUMERS, int BLOCK_N>
__global__ void __launch_bounds__(num_threads(CONSUMERS), 1) few_rows_kernel(
    const __grid_constant__ CUtensorMap A_map,     // (M, K), boxes (block_rows, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,     // (N, K), boxes (BLOCK_N / halves, BLOCK_K)
    const __grid_constant__ CUtensorMap scale_map, // (k_tiles, scale_rows), boxes (1, block_rows)
    const float *scale_B,                          // (squares, k_tiles)
    TD *D,                                         // (M, N)
    bool vector_store,                             // D's rows are multiples of 16 bytes
    int M, int N, int K, Plan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    Barriers &bar = *reinterpret_cast<Barriers *>(smem_bytes);
    Stage<CONSUMERS, BLOCK_N> *stages = reinterpret_cast<Stage<CONSUMERS, BLOCK_N> *>(&bar + 1);
    float *scales = reinterpret_cast<float *>(stages + plan.num_stages); // (stage, CONSUMERS * MMA_M)
    // (sender, warp, BLOCK_N / 8, lane)
    float4 *sums = reinterpret_cast<float4 *>(scales + plan.num_stages * CONSUMERS * MMA_M);
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    const Place place(plan, (N - 1) / BLOCK_N + 1, k_tiles);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    constexpr int PRODUCER = CONSUMERS * 4; // the producer's warp

    // Setup, each warp's and lane's at the same time. TMA and the other blocks count at the barriers: they must see them initialised.
    if (threadIdx.x < plan.num_stages) {
        mbarrier_init(&bar.full[threadIdx.x], 1); // the producer's arrival, and the bytes it expects
        mbarrier_init(&bar.empty[threadIdx.x], CONSUMERS * 4 * plan.halves);
        fence_mbarrier_init();
    } else if (threadIdx.x == 32) {
        mbarrier_init(&bar.sums_full, 1); // one arrival, and the bytes it expects
        mbarrier_init(&bar.sums_empty,    // every warp that owns rows elsewhere
                      max(1, (plan.parts - 1) * (CONSUMERS * 4 / plan.parts)));
        fence_mbarrier_init();
    } else if (threadIdx.x == 64) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(scale_map);
    }
    cluster_arrive_relaxed();
    if (warp == PRODUCER && elect_one()) prefetch_B<BLOCK_N>(B_map, place);
    cluster_wait();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now.

    if (warp < PRODUCER) {
        if constexpr (CONSUMERS == 2) setmaxnreg_inc<CONSUMER_REGS>();
        consume<TD, CONSUMERS, BLOCK_N>(bar, stages, scales, sums, scale_B, D, vector_store, M, N, k_tiles,
                                        plan, place);
    } else {
        if constexpr (CONSUMERS == 2) setmaxnreg_dec<PRODUCER_REGS>();
        if (warp == PRODUCER && elect_one())
            produce<CONSUMERS, BLOCK_N>(bar, stages, scales, A_map, B_map, scale_map, plan, place);
    }
    // No block leaves before its consumers have seen the last sums.
}

// Asks once how many clusters of 1, 2, 4 and 8 blocks fit the GPU. Clusters stay within a part of the GPU: the larger they
// are, the more SMs are left over.
template <typename TD>
static cudaError_t ask_clusters(int (&fitting)[MAX_CLUSTER + 1])
{
    if (fitting[1] != 0) return cudaSuccess;
    const auto kernel = few_rows_kernel<TD, 1, 128>; // Each of them fills an SM.
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    for (int blocks = MAX_CLUSTER; blocks >= 1 && error == cudaSuccess; blocks /= 2) {
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
static Plan make_plan(int M, int N, int K, const int (&fitting)[MAX_CLUSTER + 1], int *width)
{
    constexpr int WIDTHS[] = {64, 96, 112, 128};
    // What could be fetched while a tile is stored (chapter 14's, from trials on an H200), and while a column of a warpgroup's sums is sent to
    // one of the other parts and added there (from trials on an H200).
    constexpr int TILE_BYTES = 65536, COLUMN_BYTES = 1536;
    const int rows = ((M - 1) / 8 + 1) * 8, k_tiles = (K - 1) / BLOCK_K + 1, pairs = (k_tiles + 1) / 2;
    Plan best = {};
    double least = INFINITY;
    for (int consumers = 1; consumers <= (rows - 1) / MMA_M + 1; consumers++)
        for (int parts = 1; parts <= min(MAX_PARTS, pairs); parts *= 2)
            for (const int block_n : WIDTHS) {
                const int halves = rows > consumers * MMA_M ? 2 : 1, block_rows = halves == 2 ? MMA_M : rows;
                const int tiles = (N - 1) / block_n + 1, clusters = min(tiles, fitting[halves * parts]);
                if (clusters == 0) continue;
                const double groups = min(k_tiles, ((pairs - 1) / parts + 1) * 2);
                const double bytes =
                    ((tiles - 1) / clusters + 1) * (groups * (block_rows + block_n) * BLOCK_K + TILE_BYTES +
                                                    (parts - 1) * consumers * block_n * COLUMN_BYTES);
                if (bytes >= least) continue;
                least = bytes;
                const int other_bytes = sizeof(Barriers) + sums_bytes(parts, consumers, block_n) +
                                        consumers * 4 / parts * warp_rows_bytes(block_n);
                const int stage_bytes = (consumers * MMA_M + block_n) * BLOCK_K + consumers * MMA_M * 4;
                const int num_stages = min(MAX_STAGES, (SMEM_BYTES - other_bytes) / stage_bytes / 2 * 2);
                best = {consumers, halves, parts, block_rows, num_stages, clusters};
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
        error =
            tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N / plan.halves, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&scale_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A,
                                   (K - 1) / BLOCK_K + 1, (M + 3) / 4 * 4, plan.block_rows);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (error != cudaSuccess) return error;
    const int cluster = plan.halves * plan.parts;
    return launch_early_clusters(kernel, plan.clusters * cluster, cluster, num_threads(CONSUMERS), SMEM_BYTES,
                                 stream, A_map, B_map, scale_map, scale_B, D, vector_store, M, N, K, plan);
}

extern "C" cudaError_t few_rows(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                                const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    if (M > 2 * MMA_M) return persistent_multicast(D_dtype, A, B, scale_A, scale_B, D, M, N, K, stream);
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    if ((uintptr_t)scale_A % 16 != 0) return cudaErrorInvalidValue;
    return with_D_type(D_dtype, [&](auto td) {
        using TD = decltype(td);
        static int fitting[MAX_CLUSTER + 1]; // clusters of so many blocks
        double gigabytes;                    // a second, of the memory
        cudaError_t error = ask_clusters<TD>(fitting);
        if (error == cudaSuccess) error = ask_bandwidth(&gigabytes);
        if (error != cudaSuccess) return error;
        // Where 128 columns come to every SM step 4 is 4 to 6 % faster on an H200, of k = 512 and 1,536; on an H100 it was slower.
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
        case 2064: return with_width(launch<2, 64, TD>);
        case 2096: return with_width(launch<2, 96, TD>);
        case 2112: return with_width(launch<2, 112, TD>);
        case 2128: return with_width(launch<2, 128, TD>);
        default: return cudaErrorLaunchOutOfResources; // not one cluster fits
        }
    });
}
