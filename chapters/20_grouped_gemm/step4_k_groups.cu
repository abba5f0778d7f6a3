// Chapter 20, step 4: the weights' gradients, a group of columns each.
//
// Question: dW of an expert sums up over that expert's tokens: the groups are along k now, and each has a D of its own. What is
// left of the walk over the groups?
//
// Grows from: chapter 19, step 5 (weight_gradient).
// Step 2's walk over the groups comes with it. The tiles of D are the same for every group; what differs is where its columns begin and how many there are. They begin at a
// multiple of 128, so that a group of 128 k, which shares scales, is one group's of experts; what a group has not of its last 128 is
// zeros in memory, and a product with zeros is none. A group without columns leaves its D as it is: nobody takes its tiles.
//
//      counts 200, 0, 60      columns 0 … 199 group 0, 200 … 255 zeros | 256 … 315 group 2, 316 … 383 zeros
//                             2 k tiles into D[0], none into D[1], 1 into D[2]
//
// A pair of blocks shares A, as before. Blocks stay: the next tile is fetched while D is added to. That TMA does, in the L2: the sums
// go to it as they go to be stored in step 1, and nobody waits for what D was. There is room for the whole tile: with half of it, and a
// fifth stage, the warpgroups would wait until TMA has read the first half.
// New instruction: cp.reduce.async.bulk.tensor. Shared memory: 200,768 bytes for 4 stages. Registers: 40 (producer) and 232.
// Launched early (chapter 6, step 3).
// Run: make chapter-20 OP=k_groups STEP=k_groups
#include "../../common/device/launch.cuh"
#include "../../common/device/tensor_map.h"
#include "../19_fp8_gemm/persistent.cuh"
#include "grouped.cuh"
#include "launchers.h"

using WARPGROUPS = Warpgroups<2>;
constexpr int BLOCK_M = WARPGROUPS::CONSUMERS * MMA_M, BLOCK_N = 128; // rows and columns of D a block owns
constexpr int PIECE_BYTES = BLOCK_M * STORE_ROW_BYTES;                // of D's tile
constexpr int PIECES = BLOCK_N / STORE_COLS<BLOCK_N, float>;          // all of it
constexpr int STAGES = 4;

struct SharedStorage {
    uint8_t A_smem[STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    uint8_t B_smem[STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 16,384 bytes a stage
    char D_smem[PIECES][PIECE_BYTES];         // (piece, m, 128 bytes)
    float scale_A_smem[STAGES][BLOCK_M];      // (stage, m), 512 bytes a stage
    float scale_B_smem[STAGES][BLOCK_N];      // (stage, n), 512 bytes a stage
    uint64_t full[STAGES];                    // the stage's tiles and scales have landed
    uint64_t empty[STAGES];                   // every consumer of the cluster is done with them
};

// What a tile takes from where.
struct Tile {
    int row, col; // of D[group], row of A and row of B
    int group;
    int first_k, end_k; // in tiles of 128 columns
};

// Where the work is: cluster tiles (BLOCK_M, CLUSTER * BLOCK_N), this block's part of them, group after group.
struct Tiles {
    const int *counts;
    int groups, tiles_m, tiles_n;
    int k_tiles;     // that there are
    int tile, step;  // this cluster's next tile, counted from the group's first, and from one to its next
    int rank;        // this block's number in its cluster
    int group = 0;   // the tile's, if it has one
    int first_k = 0; // of the group

    __device__ Tiles(const int *counts, int groups, int M, int N, int K)
        : counts(counts), groups(groups), tiles_m((M - 1) / BLOCK_M + 1),
          tiles_n((N - 1) / (CLUSTER * BLOCK_N) + 1), k_tiles(K / BLOCK_K), tile(blockIdx.x / CLUSTER),
          step(gridDim.x / CLUSTER), rank(cluster_ctarank())
    {
    }

    // This cluster's next tile; false if there are no more, or if a group's count cannot be.
    __device__ bool next(Tile &next)
    {
        for (; group < groups; group++) {
            const int columns = counts[group];
            if (columns < 0 || columns > (k_tiles - first_k) * BLOCK_K) return false; // They are not there.
            const int group_k = (columns + BLOCK_K - 1) / BLOCK_K;
            const int tiles = group_k > 0 ? tiles_m * tiles_n : 0;
            if (tile < tiles) {
                const TilePlace place = tile_place<GROUP_M>(tile, tiles_m, tiles_n);
                next = {place.m * BLOCK_M, (place.n * CLUSTER + rank) * BLOCK_N, group, first_k,
                        first_k + group_k};
                tile += step;
                return true;
            }
            tile -= tiles;
            first_k += group_k;
        }
        return false;
    }
};

// The next tile of `tiles` for a whole warp, whose lanes have all come to the same: by the vote and the shuffles the compiler knows it.
// Else it must think that counts from memory may lead them different ways, and keeps nothing in uniform registers.
static __device__ bool next_of_warp(Tiles &tiles, Tile &tile)
{
    if (!__any_sync(0xffffffff, tiles.next(tile))) return false;
    tile.row = __shfl_sync(0xffffffff, tile.row, 0);
    tile.col = __shfl_sync(0xffffffff, tile.col, 0);
    return true;
}

// Starts the copies of step k_tile into a stage, and of this block's part of A for the whole cluster. One thread does. The other part
// of A comes from the other block, and is counted here as well.
static __device__ void load_tile(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 const CUtensorMap &scale_A_map, const CUtensorMap &scale_B_map,
                                 const Tile &tile, int k_tile, int stage, int rank)
{
    trace(LOAD);
    constexpr int PART = BLOCK_M / CLUSTER;
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage] +
                                        sizeof smem.scale_A_smem[stage] + sizeof smem.scale_B_smem[stage]);
    cp_async_bulk_tensor_2d_multicast(smem.A_smem[stage][rank * PART], A_map, full, k_tile * BLOCK_K,
                                      tile.row + rank * PART, (1 << CLUSTER) - 1);
    cp_async_bulk_tensor_2d(smem.scale_A_smem[stage], scale_A_map, full, tile.row, k_tile);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k_tile * BLOCK_K, tile.col);
    cp_async_bulk_tensor_2d(smem.scale_B_smem[stage], scale_B_map, full, tile.col, k_tile);
}

// sum += scale * acc. acc[r] is of this thread's first row if r / 2 is even, and of its column r / 4 * 2 + r % 2.
static __device__ void promote(float (&sum)[BLOCK_N / 2], const float (&acc)[BLOCK_N / 2], float scale0,
                               float scale1, const float (&scale_B)[BLOCK_N / 4])
{
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++)
        sum[r] += (r / 2 % 2 ? scale1 : scale0) * scale_B[r / 4 * 2 + r % 2] * acc[r];
}

// Adds 64 rows of sums to D from (row0, col0) on.
static __device__ void add_tile(float *D, float (&sum)[BLOCK_N / 2], int row0, int col0, int M, int N,
                                int tid)
{
    const int row = row0 + tid / 32 * 16 + tid % 32 / 4, col = col0 + tid % 4 * 2;
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++) {
        const int r_row = row + r / 2 % 2 * 8, r_col = col + r / 4 * 8 + r % 2;
        if (r_row < M && r_col < N) sum[r] += D[(size_t)r_row * N + r_col];
    }
    store_tile(D, sum, row0, col0, M, N, tid);
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
static __device__ void produce(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const CUtensorMap &scale_A_map, const CUtensorMap &scale_B_map, Tiles &tiles)
{
    PipelineState<STAGES> state;
    Tile tile;
    while (tiles.next(tile))
        for (int k = tile.first_k; k < tile.end_k; k++) {
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
            load_tile(smem, A_map, B_map, scale_A_map, scale_B_map, tile, k, state.stage, tiles.rank);
            state.advance();
        }
    if (tiles.group < tiles.groups) __trap(); // It was such a count that ended the walk.
    trace(END);
    // Every stage is empty again: the other block has arrived here for the last time, and this one may leave.
    for (int n = 0; n < STAGES; n++) {
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        state.advance();
    }
}

// A consumer warpgroup's products and their sum.
static __device__ void consume(float (&sum)[BLOCK_N / 2], SharedStorage &smem, PipelineState<STAGES> &state,
                               int warpgroup_row, int k_tiles, int tid)
{
    const int row0 = warpgroup_row + tid / 32 * 16 + tid % 32 / 4; // this thread's; the other is 8 further
    const uint64_t A_desc = uniform(wgmma_descriptor(smem.A_smem[0][warpgroup_row]));
    const uint64_t B_desc = uniform(wgmma_descriptor(smem.B_smem[0][0]));
    float acc[BLOCK_N / 2], scale_B[BLOCK_N / 4];
#pragma unroll 4 // As in chapter 19's consume.
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        // Before the products begin: read beside them they cost 15 % on an H100 (notes/20_grouped_gemm.md, section 6).
        const float scale0 = smem.scale_A_smem[state.stage][row0];
        const float scale1 = smem.scale_A_smem[state.stage][row0 + 8];
#pragma unroll
        for (int c = 0; c < BLOCK_N / 4; c += 2) { // columns come in pairs, eight apart
            const float2 pair = *(const float2 *)&smem.scale_B_smem[state.stage][c * 4 + tid % 4 * 2];
            scale_B[c] = pair.x;
            scale_B[c + 1] = pair.y;
        }
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile<BLOCK_N>(acc, A_desc + state.stage * (int)(sizeof smem.A_smem[0] / 16),
                          B_desc + state.stage * (int)(sizeof smem.B_smem[0] / 16));
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc);
        __syncwarp(); // Every lane has read its scales.
        if (tid % 32 < CLUSTER) mbarrier_arrive_cluster(&smem.empty[state.stage], tid % 32);
        promote(sum, acc, scale0, scale1, scale_B);
        state.advance();
    }
}

__global__ void __cluster_dims__(CLUSTER) __launch_bounds__(WARPGROUPS::NUM_THREADS, 1) k_groups_kernel(
    const __grid_constant__ CUtensorMap A_map,       // (M, K), boxes (BLOCK_M / CLUSTER, BLOCK_K)
    const __grid_constant__ CUtensorMap B_map,       // (N, K), boxes (BLOCK_N, BLOCK_K)
    const __grid_constant__ CUtensorMap D_map,       // (groups * M, N), boxes (BLOCK_M, 32)
    const __grid_constant__ CUtensorMap scale_A_map, // (K / 128, scale_rows), boxes (1, BLOCK_M)
    const __grid_constant__ CUtensorMap scale_B_map, // (K / 128, scale_cols), boxes (1, BLOCK_N)
    const int *counts,                               // (groups)
    bool tma_add,                                    // D's rows are multiples of 16 bytes
    float *D,                                        // (groups, M, N)
    int M, int N, int K, int groups)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage &smem = *reinterpret_cast<SharedStorage *>(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    const int tid = threadIdx.x % 128; // in the warpgroup
    Tiles tiles(counts, groups, M, N, K);

    // Setup. TMA and the other block count at the barriers: they must see them initialised.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        prefetch_tensormap(scale_A_map);
        prefetch_tensormap(scale_B_map);
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage],
                          CLUSTER * WARPGROUPS::CONSUMERS * 4); // every warp that multiplies
        }
        fence_mbarrier_init();
    }
    cluster_sync_relaxed();
    wait_for_kernels_before();

    if (warpgroup == 0) {
        setmaxnreg_dec<WARPGROUPS::PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, scale_A_map, scale_B_map, tiles);
    } else {
        setmaxnreg_inc<WARPGROUPS::CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        PipelineState<STAGES> state;
        Tile tile;
        while (next_of_warp(tiles, tile)) {
            const int k_tiles = __shfl_sync(0xffffffff, tile.end_k - tile.first_k, 0);
            if (tile.col >= N || tile.row + warpgroup_row >= M) {
                pass_stages<CLUSTER>(smem, state, k_tiles, tid);
                continue;
            }
            float sum[1][BLOCK_N / 2] = {};
            consume(sum[0], smem, state, warpgroup_row, k_tiles, tid);
            trace(STORE);
            if (tma_add && tile.row + BLOCK_M <= M)
                store_tile_tma<BLOCK_N, float, true, true>(smem.D_smem, D_map, sum, tile.group * M + tile.row,
                                                           tile.col, warpgroup_row);
            else
                add_tile(D + (size_t)tile.group * M * N, sum[0], tile.row + warpgroup_row, tile.col, M, N,
                         tid);
        }
        cp_async_bulk_wait_group_read<0>(); // D_smem must outlive its readers.
        trace(END);
    }
    cluster_sync_relaxed(); // The other block's copies and arrivals have all come.
}

extern "C" cudaError_t k_groups(const void *A, const void *B, const float *scale_A, const float *scale_B,
                                const int32_t *counts, float *D, int M, int N, int K, int groups,
                                cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K) || !counts || groups <= 0 || K % BLOCK_K != 0)
        return cudaErrorInvalidValue;
    if (((uintptr_t)scale_A | (uintptr_t)scale_B) % 16 != 0) return cudaErrorInvalidValue;
    CUtensorMap A_map, B_map, scale_A_map, scale_B_map, D_map = {};
    const bool tma_add = N % 4 == 0 && (uintptr_t)D % 16 == 0 && (long long)groups * M <= INT32_MAX;
    constexpr int smem_bytes = sizeof(SharedStorage);
    cudaError_t error =
        tensor_map_matrix(&A_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, BLOCK_M / CLUSTER, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&scale_A_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_A, K / BLOCK_K,
                                   (M + 3) / 4 * 4, BLOCK_M);
    if (error == cudaSuccess)
        error = tensor_map_vectors(&scale_B_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, scale_B, K / BLOCK_K,
                                   (N + 3) / 4 * 4, BLOCK_N);
    if (error == cudaSuccess && tma_add)
        error = tensor_map_matrix(&D_map, tensor_map_type<float>(), D, groups * M, N, BLOCK_M,
                                  STORE_COLS<BLOCK_N, float>);
    int device, sms;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error =
            cudaFuncSetAttribute(k_groups_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const long long tiles = ((M - 1) / BLOCK_M + 1LL) * ((N - 1) / (CLUSTER * BLOCK_N) + 1LL);
    if (tiles > INT32_MAX / 2) return cudaErrorInvalidConfiguration;
    const int clusters = (int)std::min(tiles * groups, (long long)(sms / CLUSTER));
    return launch_early(k_groups_kernel, clusters * CLUSTER, WARPGROUPS::NUM_THREADS, smem_bytes, stream,
                        A_map, B_map, D_map, scale_A_map, scale_B_map, counts, tma_add, D, M, N, K, groups);
}
