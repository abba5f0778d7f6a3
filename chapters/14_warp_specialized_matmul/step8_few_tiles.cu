// Chapter 14, step 8: where C has few tiles. As small a tile as it takes to give nearly every SM one.
//
// Question: 1024 x 1024 is 32 cluster tiles of step 6 for 66 clusters, and with 16 steps of k there is nothing to cut. What else
// can be made smaller?
//
//      tiles of 128 x 128            of 64 x 128           128 SMs instead of 64, and each is done in half the time. It copies
//      +-------+-------+             +-------+-------+     three quarters as many bytes, for half the products: a tile as small
//      |  SM 0 | SM 8  |             | SM 0  | SM 16 |     as this is what the copies into shared memory are waited for, not
//      |       |       |             +-------+-------+     the products. The squarer, the better.
//      +-------+-------+             | SM 1  | SM 17 |
//
// A block has one to three consumer warpgroups, 64 rows of its tile each, and 32 to 128 columns. Step 7's clusters stay: two blocks, one
// above the other, that share B, and parts of k; and now two or four, side by side, share A. make_plan reckons what each costs; few
// rows are few tiles, too. Where not all tiles of more rows find an SM at once, step 6's kernel is better.
//
// Shared memory is asked for as far as it is used: the next launch's blocks get in beside these and set themselves up. They have the L2
// fetch their first boxes of B meanwhile (prefetch_B).
//
// Grows from: step 7 (few_rows).
// New instructions: cp.async.bulk.prefetch.tensor. Shared memory: at most 232,448 bytes. Registers: up to 64 accumulators a thread.
// Run: make chapter-14 STEP=few_tiles
#include "../../common/device/launch.cuh"
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int MMA_M = 64;   // rows of a wgmma: those of a consumer warpgroup
constexpr int MMA_K = 16;   // k of a wgmma
constexpr int BLOCK_K = 64; // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int ROW_BYTES = BLOCK_K * 2;
constexpr int MAX_STAGES = 16;
constexpr int MAX_HALVES = 2;
constexpr int MAX_ABREAST = 4;
constexpr int MAX_PARTS = 4;
constexpr int SHORT = 12;     // steps of k: in fewer, blocks that share gain nothing
constexpr int LONG = 32;      // in fewer the L2 does not get to be what everyone waits for
constexpr int FEW_ROWS = 128; // so few rows are not worth a tile of step 6, however many columns there are
constexpr int PREFETCHED = 3; // boxes: more of them delay the copies that follow, on an H200
constexpr int SMEM_BYTES = 232448; // all that a block can have

// What the blocks do, made by the host. The grid is C in blocks: its rows in x, in y as many columns as are at work at a time, and
// the parts of k in z. A cluster is halves x abreast x parts of it.
struct Plan {
    int warpgroups;       // that multiply, 64 rows of the block's tile each: 1 to 3
    int block_n;          // columns of the tile
    int halves;           // of the cluster's rows: 1 or 2 blocks, one above the other, share B
    int abreast;          // 1, 2 or 4 blocks, side by side, share A
    int parts;            // of k: 1, 2 or 4 blocks of a cluster
    int block_rows;       // rows of A and C a block has, a multiple of 8 * abreast: those that are fetched
    int tiles_m, tiles_n; // of a cluster's blocks
    int across;           // tiles of a row that are at work at a time, on clusters of their own
    int k_tiles;
    int fetch_rows, fetch_cols; // of A and B, that a block fetches for all who share them
    int share_A, share_B;       // who shares them with the cluster's first block, as masks of a multicast
    int stage_bytes;            // that arrive
    int owned_warps;            // of a block, whose sums it adds up
    int sums_bytes;
    int num_stages;
    int C_offset; // where C_smem is, from the stages on: in their place, or behind the sums
    int smem_bytes;
};

// Of a block's tile of C on its way through shared memory, in rows that are 16 bytes longer than they have to be.
__host__ __device__ constexpr int C_bytes(int rows, int cols)
{
    return rows * (cols + 8) * 2;
}

template <typename T, int WARPGROUPS, int BLOCK_N>
struct Stage {
    T A_smem[WARPGROUPS * MMA_M]
            [BLOCK_K];          // (m, k), the first block_rows fetched; no other products are stored
    T B_smem[BLOCK_N][BLOCK_K]; // (n, k)
};

// Shared memory: this, the stages, and the sums of other parts for the rows that this block owns.
struct alignas(1024) Barriers {
    uint64_t full[MAX_STAGES];  // the stage's tiles have landed
    uint64_t empty[MAX_STAGES]; // all who share A or B with this block are done with them
    uint64_t sums_full;         // the other parts' sums are here
    uint64_t sums_empty;        // the other parts have read this block's sums
};

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

// How many blocks share A or B with a block, itself among them.
static __device__ int sharers(const Plan &plan)
{
    return plan.halves + plan.abreast - 1;
}

// This block's place in its cluster. Blocks of one part of k are neighbours in rank,
// first down, then to the right:      rank  0  2  4  6
// (halves 2, abreast 4)                     1  3  5  7
struct Place {
    int half, column, part;
    int rank;

    __device__ Place(const Plan &plan)
        : half(blockIdx.x & (plan.halves - 1)), column(blockIdx.y & (plan.abreast - 1)), part(blockIdx.z),
          rank(cluster_ctarank())
    {
    }

    // The rank of the block in this one's place of another part of k.
    __device__ int rank_in(const Plan &plan, int other_part) const
    {
        return rank + (other_part - part) * plan.halves * plan.abreast;
    }

    // The rank of a block that shares A or B with this one, itself among them; i from 0 to sharers() - 1.
    __device__ int sharer(const Plan &plan, int i) const
    {
        if (i < plan.halves) return rank - half + i;
        i -= plan.halves; // among the others of this block's row
        return rank + (i + (i >= column) - column) * plan.halves;
    }
};

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T, int WARPGROUPS, int BLOCK_N>
static __device__ void produce(Barriers &bar, Stage<T, WARPGROUPS, BLOCK_N> *stages, const CUtensorMap &A_map,
                               const CUtensorMap &B_map, const Plan &plan, const Place &place)
{
    const int first_row = place.column * plan.fetch_rows, first_col = place.half * plan.fetch_cols;
    const uint16_t share_A = plan.share_A << (place.rank - place.column * plan.halves);
    const uint16_t share_B = plan.share_B << (place.rank - place.half);
    const int row = blockIdx.x * plan.block_rows;
    Ring ring{plan.num_stages};
    for (int tile = blockIdx.y; tile < plan.tiles_n * plan.abreast; tile += gridDim.y) {
        const int col = tile * BLOCK_N;
        for (int k = place.part; k < plan.k_tiles; k += plan.parts) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
            trace(LOAD);
            uint64_t *full = &bar.full[ring.stage];
            Stage<T, WARPGROUPS, BLOCK_N> &stage = stages[ring.stage];
            mbarrier_arrive_expect_tx(full, plan.stage_bytes);
            if (plan.halves == 1)
                cp_async_bulk_tensor_2d(stage.B_smem, B_map, full, k * BLOCK_K, col);
            else
                cp_async_bulk_tensor_2d_multicast(stage.B_smem[first_col], B_map, full, k * BLOCK_K,
                                                  col + first_col, share_B);
            if (plan.abreast == 1)
                cp_async_bulk_tensor_2d(stage.A_smem, A_map, full, k * BLOCK_K, row);
            else
                cp_async_bulk_tensor_2d_multicast(stage.A_smem[first_row], A_map, full, k * BLOCK_K,
                                                  row + first_row, share_A);
            ring.advance();
        }
    }
    trace(END);
    // Every stage is empty again: the other blocks have arrived here for the last time, and this one may leave.
    for (int n = 0; n < plan.num_stages; n++) {
        mbarrier_wait(&bar.empty[ring.stage], ring.parity ^ 1);
        ring.advance();
    }
}

// The L2 fetches the first of what the producer will fetch of B for its first tile, while the kernel before still runs: weights were
// there before it began. What it writes is in the L2 as well, so that it is no harm if it has yet to write B.
template <int BLOCK_N>
static __device__ void prefetch_B(const CUtensorMap &B_map, const Plan &plan, const Place &place)
{
    const int col = blockIdx.y * BLOCK_N + place.half * plan.fetch_cols;
    int k = place.part;
    for (int n = 0; n < PREFETCHED && k < plan.k_tiles; n++, k += plan.parts)
        cp_async_bulk_prefetch_tensor_2d(B_map, k * BLOCK_K, col);
}

// The consumers' products for one tile. One group of wgmma is always running: a stage is given back when the group after
// the one that reads it has been issued. A descriptor counts in units of 16 bytes.
template <typename T, int WARPGROUPS, int BLOCK_N>
static __device__ void multiply(float (&acc)[BLOCK_N / 2], Barriers &bar,
                                const Stage<T, WARPGROUPS, BLOCK_N> *stages, Ring &ring, const Plan &plan,
                                const Place &place)
{
    const int warpgroup = threadIdx.x / 128, tid = threadIdx.x % 128;
    const int fills = sharers(plan), filler = place.sharer(plan, tid);
    const auto release = [&](int stage) { // to the blocks that fill it
        if (tid < fills) mbarrier_arrive_cluster(&bar.empty[stage], filler);
    };
    int last_stage = 0;
    for (int k = place.part; k < plan.k_tiles; k += plan.parts) {
        trace(WAIT_FULL);
        mbarrier_wait(&bar.full[ring.stage], ring.parity);
        wgmma_touch(acc);
        wgmma_fence();
        const uint64_t A_desc = wgmma_descriptor(stages[ring.stage].A_smem[warpgroup * MMA_M]);
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
template <int WARPGROUPS, int BLOCK_N>
static __device__ void send_sums(const float (&acc)[BLOCK_N / 2], Barriers &bar, float4 *sums,
                                 uint32_t parity, const Plan &plan, const Place &place, int warp, int lane)
{
    trace(EXCHANGE);
    const int owner = warp * plan.parts / (WARPGROUPS * 4), owned = warp - owner * plan.owned_warps;
    const int owner_rank = place.rank_in(plan, owner);
    // 0, 1 ... among the parts that send to the owner.
    const int sender = (place.part - owner - 1) & (plan.parts - 1);
    const uint32_t full_addr = mapa(smem_addr(&bar.sums_full), owner_rank);
    const uint32_t sums_addr =
        mapa(smem_addr(sums + (sender * plan.owned_warps + owned) * (BLOCK_N / 8 * 32) + lane), owner_rank);
    mbarrier_wait(&bar.sums_empty, parity ^ 1); // Those of the tile before have been read.
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 4)
        st_async(sums_addr + r / 4 * 32 * 16, make_float4(acc[r], acc[r + 1], acc[r + 2], acc[r + 3]),
                 full_addr);
}

// Adds what the other parts have sent for this warp's rows.
template <int BLOCK_N>
static __device__ void add_sums(float (&acc)[BLOCK_N / 2], Barriers &bar, const float4 *sums, uint32_t parity,
                                const Plan &plan, const Place &place, int warp, int lane)
{
    trace(EXCHANGE);
    const int owned = warp - place.part * plan.owned_warps;
    if (owned == 0 && lane == 0) mbarrier_arrive_expect_tx(&bar.sums_full, plan.sums_bytes);
    mbarrier_wait(&bar.sums_full, parity);
    for (int sender = 0; sender < plan.parts - 1; sender++) {
        const float4 *from = sums + (sender * plan.owned_warps + owned) * (BLOCK_N / 8 * 32) + lane;
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

// Adds the bias to a warp's accumulators of 16 rows, from column col0 on.
template <int BLOCK_N, typename T>
static __device__ void add_bias(float (&acc)[BLOCK_N / 2], const T *bias, int col0, int N, int lane)
{
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++) {
        const int col = col0 + r / 4 * 8 + lane % 4 * 2 + r % 2;
        if (col < N) acc[r] += (float)bias[col];
    }
}

// Writes a warp's 16 rows of accumulators to C from (row0, col0) on, by way of C_smem, which is the warp's: 16 bytes a lane, lanes
// along the rows, which are 16 bytes longer there than they have to be, so that eight of them are in all banks. Rows of C end before
// end_row and are multiples of 16 bytes.
template <int WARPGROUPS, int BLOCK_N, typename TC>
static __device__ void store_rows_staged(TC *C, TC *C_smem, const float (&acc)[BLOCK_N / 2], int row0,
                                         int end_row, int col0, int N, int lane)
{
    constexpr int PITCH = BLOCK_N + 8, EIGHTS = BLOCK_N / 8; // eight columns, of a row
    const uint32_t to_addr = smem_addr(C_smem + lane % 16 * PITCH + lane / 16 * 8);
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 8) {
        uint32_t frag[4];
#pragma unroll
        for (int i = 0; i < 4; i++) frag[i] = pack_pair<TC>(acc[r + i * 2], acc[r + i * 2 + 1]);
        stmatrix_x4(to_addr + r * 2 * sizeof(TC), frag);
    }
    __syncwarp();
#pragma unroll(WARPGROUPS == 3 ? 1 : 4) // Three have no more registers.
    for (int i = lane; i < 16 * EIGHTS; i += 32) {
        const int row = i / EIGHTS, col = i % EIGHTS * 8;
        const uint4 eight = *reinterpret_cast<const uint4 *>(C_smem + row * PITCH + col);
        if (row0 + row < end_row && col0 + col < N)
            *reinterpret_cast<uint4 *>(C + (size_t)(row0 + row) * N + col0 + col) = eight;
    }
    __syncwarp(); // The next tile's may be written there.
}

// Writes them in pairs, from anywhere to anywhere.
template <int BLOCK_N, typename TC>
static __device__ void store_rows(TC *C, const float (&acc)[BLOCK_N / 2], int row0, int end_row, int col0,
                                  int N, int lane)
{
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r += 2) {
        const int row = row0 + lane / 4 + r % 4 / 2 * 8, col = col0 + r / 4 * 8 + lane % 4 * 2;
        if (row >= end_row || col >= N) continue;
        TC *dst = C + (size_t)row * N + col;
        if (N % 2 == 0) {
            store_pair(dst, acc[r], acc[r + 1]);
        } else {
            dst[0] = (TC)acc[r];
            if (col + 1 < N) dst[1] = (TC)acc[r + 1];
        }
    }
}

// The consumer warpgroup: the block's rows of each tile. A warp sends its sums away or completes and stores them.
template <typename T, typename TC, int WARPGROUPS, int BLOCK_N>
static __device__ void consume(Barriers &bar, Stage<T, WARPGROUPS, BLOCK_N> *stages, float4 *sums,
                               const T *bias, TC *C, bool staged, int M, int N, const Plan &plan,
                               const Place &place)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool owned = warp * plan.parts / (WARPGROUPS * 4) == place.part;
    const int row = blockIdx.x * plan.block_rows, end_tile = plan.tiles_n * plan.abreast;
    Ring ring{plan.num_stages};
    uint32_t sums_parity = 0;
    for (int tile = blockIdx.y; tile < end_tile; tile += gridDim.y, sums_parity ^= 1) {
        float acc[BLOCK_N / 2];
        multiply<T, WARPGROUPS, BLOCK_N>(acc, bar, stages, ring, plan, place);
        if (staged && plan.C_offset == 0)
            named_barrier_sync(1, WARPGROUPS * 128); // Nobody reads the stages any more.
        if (!owned) {
            send_sums<WARPGROUPS, BLOCK_N>(acc, bar, sums, sums_parity, plan, place, warp, lane);
            continue;
        }
        if (plan.parts > 1) {
            add_sums<BLOCK_N>(acc, bar, sums, sums_parity, plan, place, warp, lane);
            __syncwarp(); // All lanes have read them. Nobody waits for an arrival after the last tile.
            if (tile + gridDim.y < end_tile && lane < plan.parts && lane != place.part)
                mbarrier_arrive_cluster(&bar.sums_empty, place.rank_in(plan, lane));
        }
        trace(STORE);
        const int col = tile * BLOCK_N;
        if (bias) add_bias<BLOCK_N>(acc, bias, col, N, lane);
        const int row0 = row + warp * 16, end_row = min(M, row + plan.block_rows);
        if constexpr (sizeof(TC) == 2)
            if (staged) {
                char *C_smem = reinterpret_cast<char *>(stages) + plan.C_offset + warp * C_bytes(16, BLOCK_N);
                store_rows_staged<WARPGROUPS, BLOCK_N>(C, reinterpret_cast<TC *>(C_smem), acc, row0, end_row,
                                                       col, N, lane);
                continue;
            }
        store_rows<BLOCK_N>(C, acc, row0, end_row, col, N, lane);
    }
    trace(END);
}

template <typename T, typename TC, int WARPGROUPS, int BLOCK_N>
__global__ void __launch_bounds__(WARPGROUPS * 128 + 32, 1)
    few_tiles_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (fetch_rows, BLOCK_K)
                     const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (fetch_cols, BLOCK_K)
                     const T *bias,                             // (N) or NULL
                     TC *C,                                     // (M, N)
                     bool staged,                               // C leaves through shared memory
                     int M, int N, Plan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    Barriers &bar = *reinterpret_cast<Barriers *>(smem_bytes);
    auto *stages = reinterpret_cast<Stage<T, WARPGROUPS, BLOCK_N> *>(&bar + 1);
    float4 *sums = reinterpret_cast<float4 *>(stages + plan.num_stages); // (sender, warp, BLOCK_N / 8, lane)
    const Place place(plan);
    const bool producer = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) == WARPGROUPS * 4; // its warp

    // Setup. TMA and the other blocks count at the barriers: they must see them initialised. All of them are, those of stages that
    // there are not, too: their addresses are constants, nothing loops, and in a launch this short it is felt.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
#pragma unroll
        for (int stage = 0; stage < MAX_STAGES; stage++) {
            mbarrier_init(&bar.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&bar.empty[stage], sharers(plan) * WARPGROUPS);
        }
        mbarrier_init(&bar.sums_full, 1); // one arrival, and the bytes it expects
        mbarrier_init(&bar.sums_empty,    // every warp that owns rows elsewhere
                      max(1, (plan.parts - 1) * plan.owned_warps));
        fence_mbarrier_init();
    }
    if (producer && elect_one()) prefetch_B<BLOCK_N>(B_map, plan, place);
    cluster_sync_relaxed();
    wait_for_kernels_before(); // The kernel before may still have been running: what it wrote is there now.

    if (threadIdx.x < WARPGROUPS * 128)
        consume<T, TC, WARPGROUPS, BLOCK_N>(bar, stages, sums, bias, C, staged, M, N, plan, place);
    else if (producer && elect_one())
        produce<T, WARPGROUPS, BLOCK_N>(bar, stages, A_map, B_map, plan, place);
    // No block leaves before its producer has seen the last arrival, and its consumers the last sums.
}

constexpr int MAX_CLUSTER = 8; // blocks; every GPU that has clusters takes so many

// Tiles that a cluster works on, one after the other.
static int rounds(const Plan &plan)
{
    return (plan.tiles_n - 1) / plan.across + 1;
}

template <int WARPGROUPS, int BLOCK_N, typename T, typename TC>
static cudaError_t launch(const Plan &plan, const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    const bool staged = sizeof(TC) == 2 && N % 8 == 0 && (uintptr_t)C % 16 == 0; // rows of whole 16 bytes
    const auto kernel = few_tiles_kernel<T, TC, WARPGROUPS, BLOCK_N>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, plan.fetch_rows, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, plan.fetch_cols, BLOCK_K);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.smem_bytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(plan.tiles_m * plan.halves, plan.across * plan.abreast, plan.parts),
        cluster(plan.halves, plan.abreast, plan.parts);
    return launch_early_clusters(kernel, grid, cluster, WARPGROUPS * 128 + 32, plan.smem_bytes, stream, A_map,
                                 B_map, bias, C, staged, M, N, plan);
}

// A plan for tiles of these sizes; across is 0 if there is none.
static Plan plan_of(int M, int N, int K, int warpgroups, int block_n, int halves, int abreast, int parts,
                    const int (&fitting)[MAX_CLUSTER + 1])
{
    const int block_m = warpgroups * MMA_M, cluster_blocks = halves * abreast * parts;
    Plan plan = {};
    plan.warpgroups = warpgroups;
    plan.block_n = block_n;
    plan.halves = halves;
    plan.abreast = abreast;
    plan.parts = parts;
    plan.block_rows = min(block_m, ((M - 1) / halves / (8 * abreast) + 1) * 8 * abreast);
    plan.tiles_m = (M - 1) / (halves * plan.block_rows) + 1;
    plan.tiles_n = (N - 1) / (abreast * block_n) + 1;
    plan.k_tiles = (K - 1) / BLOCK_K + 1;
    if (parts > plan.k_tiles || cluster_blocks > MAX_CLUSTER) return plan;
    plan.across = min(plan.tiles_n, fitting[cluster_blocks] / plan.tiles_m);
    if (plan.across == 0) return plan;
    plan.fetch_rows = plan.block_rows / abreast;
    plan.fetch_cols = block_n / halves;
    for (int column = 0; column < abreast; column++) plan.share_A |= 1 << column * halves;
    plan.share_B = (1 << halves) - 1;
    plan.stage_bytes = (plan.block_rows + block_n) * ROW_BYTES;
    plan.owned_warps = warpgroups * 4 / parts;
    plan.sums_bytes = (parts - 1) * plan.owned_warps * 16 * block_n * (int)sizeof(float);
    // C leaves by way of the stages, for which a block that has its only tile has no more use, or of a place of its own.
    const bool alone = rounds(plan) == 1;
    const int stage = (block_m + block_n) * ROW_BYTES, C_tile = C_bytes(block_m, block_n);
    const int room = SMEM_BYTES - (int)sizeof(Barriers) - plan.sums_bytes - (alone ? 0 : C_tile);
    const int steps = ((plan.k_tiles - 1) / parts + 1) * rounds(plan); // of a block, in all
    plan.num_stages = min(min(MAX_STAGES, steps), room / stage);
    const int stages_bytes = plan.num_stages * stage;
    plan.C_offset = alone && C_tile <= stages_bytes ? 0 : stages_bytes + plan.sums_bytes;
    plan.smem_bytes =
        (int)sizeof(Barriers) + stages_bytes + plan.sums_bytes + (plan.C_offset == 0 ? 0 : C_tile);
    return plan;
}

// Asks once how many clusters of 1, 2, 4 and 8 blocks fit the GPU when each block has an SM. Clusters stay within a part of
// the GPU: the larger they are, the more SMs are left over.
template <typename T, typename TC>
static cudaError_t ask_clusters(int (&fitting)[MAX_CLUSTER + 1])
{
    if (fitting[1] != 0) return cudaSuccess;
    const auto kernel = few_tiles_kernel<T, TC, 1, 128>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    for (int blocks = MAX_CLUSTER; blocks >= 1 && error == cudaSuccess; blocks /= 2) {
        cudaLaunchAttribute cluster = {};
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {(unsigned)blocks, 1, 1};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(160);
        config.dynamicSmemBytes = SMEM_BYTES;
        config.attrs = &cluster;
        config.numAttrs = 1;
        error = cudaOccupancyMaxActiveClusters(&fitting[blocks], kernel, &config);
    }
    return error;
}

// The block tiles that there are: warpgroups, columns, the blocks that are to share B and A where k is neither short nor long, and
// what launches them. Pairs share what their tiles have fewer rows of; what is best was found in trials on an H100.
template <typename T, typename TC>
struct Tile {
    int warpgroups, block_n;
    int halves, abreast;
    cudaError_t (*launch)(const Plan &, const T *, const T *, const T *, TC *, int, int, int, cudaStream_t);
};
template <typename T, typename TC>
static constexpr Tile<T, TC> TILES[] = {
    {1, 32, 1, 1, launch<1, 32, T, TC>},   {1, 64, 1, 1, launch<1, 64, T, TC>},
    {1, 80, 1, 1, launch<1, 80, T, TC>},   {1, 96, 1, 2, launch<1, 96, T, TC>},
    {1, 112, 1, 1, launch<1, 112, T, TC>}, {1, 128, 1, 2, launch<1, 128, T, TC>},
    {2, 64, 1, 1, launch<2, 64, T, TC>},   {2, 96, 1, 4, launch<2, 96, T, TC>},
    {2, 112, 2, 4, launch<2, 112, T, TC>}, {2, 128, 1, 1, launch<2, 128, T, TC>},
    {3, 96, 2, 1, launch<3, 96, T, TC>},
};

// Whether blocks of this tile are to share so. Who shares waits for the slower of two: that gains nothing in a short k, but for tiles of
// three warpgroups, all of which B serves.
template <typename T, typename TC>
static bool worth_trying(const Tile<T, TC> &tile, int halves, int abreast, int k_tiles)
{
    const bool alone = halves == 1 && abreast == 1, tried = halves == tile.halves && abreast == tile.abreast;
    if (tile.warpgroups == 3) return tried;
    if (k_tiles >= LONG) return abreast == 1;
    return alone || (k_tiles >= SHORT && tried);
}

// Nanoseconds that the busiest block takes, but for what all plans take: by rates and times from trials on an H200, and for a k
// between short and long on an H100.
static double plan_time(const Plan &plan)
{
    constexpr double MHZ = 1755, ARRIVING = 110, L2 = 9000,
                     MEMORY = 5200; // the last three in bytes a nanosecond
    const bool between = plan.k_tiles >= SHORT && plan.k_tiles < LONG;
    const double steps = (plan.k_tiles - 1) / plan.parts + 1, clusters = plan.tiles_m * plan.across;
    const double blocks = clusters * plan.halves * plan.abreast * plan.parts;
    const double rows = plan.block_rows, cols = plan.block_n;
    // Of one step: the products, which one warpgroup alone does not issue without gaps, the bytes that a block gets, those that
    // the L2 sends, and those that it has to fetch for all tiles that are worked on.
    const double products = 2 * cols * plan.warpgroups * (plan.warpgroups == 1 ? 1.2 : 1) * 1000 / MHZ;
    const double arriving = (rows + cols) * ROW_BYTES / ARRIVING;
    const double sent = (rows / plan.abreast + cols / plan.halves) * ROW_BYTES * blocks;
    const double fetched = (cols * plan.abreast / plan.tiles_m + rows * plan.halves / plan.across) *
                           ROW_BYTES * plan.parts * clusters / MEMORY;
    const double copies = between ? arriving + sent / 27000 // There they add up.
                                  : max(arriving, plan.k_tiles >= LONG ? sent / L2 : 0);
    const double step = max(max(products, copies), max(fetched, 120.0));
    // Of one tile: until the first products, later where more blocks and warpgroups are waited for; the exchange of sums; the stores.
    const double start = between ? 300 * plan.warpgroups + 125 * max(0, plan.abreast - 2) : 200;
    const double exchange = plan.parts == 1 ? 0 : cols * 10 + (between ? 500 : 0);
    return rounds(plan) * (steps * step + start + exchange + cols * 3);
}

// The plan that takes the least time, and the tile's launcher; NULL if nothing fits.
template <typename T, typename TC>
static const Tile<T, TC> *make_plan(Plan &best, int M, int N, int K, const int (&fitting)[MAX_CLUSTER + 1])
{
    const Tile<T, TC> *best_tile = NULL;
    for (const Tile<T, TC> &tile : TILES<T, TC>)
        for (int halves = 1; halves <= MAX_HALVES; halves++)
            for (int abreast = 1; abreast <= MAX_ABREAST; abreast *= 2)
                for (int parts = 1; parts <= MAX_PARTS; parts *= 2) {
                    if (!worth_trying(tile, halves, abreast, (K - 1) / BLOCK_K + 1)) continue;
                    const Plan plan =
                        plan_of(M, N, K, tile.warpgroups, tile.block_n, halves, abreast, parts, fitting);
                    if (plan.across == 0) continue;
                    if (best_tile && plan_time(plan) >= plan_time(best)) continue;
                    best = plan;
                    best_tile = &tile;
                }
    return best_tile;
}

extern "C" cudaError_t few_tiles(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                 const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        static int fitting[MAX_CLUSTER + 1]; // clusters of so many blocks
        const cudaError_t error = ask_clusters<T, TC>(fitting);
        if (error != cudaSuccess) return error;
        Plan plan;
        const Tile<T, TC> *tile = make_plan<T, TC>(plan, M, N, K, fitting);
        if (!tile || (M > FEW_ROWS && rounds(plan) > 1))
            return stream_k(dtype, C_dtype, A, B, bias, C, M, N, K, stream);
        return tile->launch(plan, (const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
