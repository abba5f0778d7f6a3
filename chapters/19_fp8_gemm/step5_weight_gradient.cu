// Chapter 19, step 5: the weights' gradient. Both matrices have a scale for each 128 of a row, and D is added to.
//
// Question: dW = dYᵀ X sums up over the tokens, and chapter 18's transposed squares have a scale for each 128 tokens of a row:
// of dYᵀ and of Xᵀ alike. A tile has 128 scales of B then, where it had one. What is a column's own scale worth?
//
// Grows from: step 3 (two_math_warpgroups).
// A thread's 64 sums have 2 rows and 32 columns: 32 scales of B, which TMA brings with the stage and which are read while the
// products run. Each sum takes a multiplication and an FMA, where an FMA was enough.
//
//      sum[r] += (scale_A[row] * scale_B[col]) * acc[r]
//
// The gradients of a step's micro-batches are summed up in fp32: D is read, added to and written back, once for a tile.
// Launched early (chapter 6, step 3).
// New instructions: none. Shared memory: 202,752 bytes for 6 stages. Registers: 40 (producer) and 232.
// Run: make chapter-19 OP=weight_gradient STEP=weight_gradient
#include "../../common/device/launch.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "gemm.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128;   // rows of D a block owns
constexpr int BLOCK_N = 128;   // columns of D a block owns
constexpr int BLOCK_K = GROUP; // columns of A and B in shared memory at a time: the swizzle's 128 bytes
constexpr int MMA_M = 64;      // rows of a wgmma
constexpr int MMA_K = 32;      // k of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NUM_STAGES = 6;

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

struct SharedStorage {
    uint8_t A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    uint8_t B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 16,384 bytes a stage
    float scale_A_smem[NUM_STAGES][BLOCK_M];      // (stage, m), 512 bytes a stage
    float scale_B_smem[NUM_STAGES][BLOCK_N];      // (stage, n), 512 bytes a stage
    uint64_t full[NUM_STAGES];                    // the stage's tiles and scales have landed
    uint64_t empty[NUM_STAGES];                   // every consumer is done with them
};

// A matrix whose rows have a scale for each 128: where the scales of the next k are, and how many of the tile's rows have one.
struct RowScales {
    const float *scale; // of the tile's first row
    int rows;           // of scales, a row of them
    int in_tile;        // a multiple of 4: 16 bytes
};

// Starts the copies of a tile into a stage. One thread does.
static __device__ void load_tile(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 const RowScales &A, const RowScales &B, int row, int col, int k_tile,
                                 int stage)
{
    trace(LOAD);
    uint64_t *full = &smem.full[stage];
    const uint32_t A_bytes = A.in_tile * sizeof(float), B_bytes = B.in_tile * sizeof(float);
    mbarrier_arrive_expect_tx(full,
                              sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage] + A_bytes + B_bytes);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k_tile * BLOCK_K, row);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k_tile * BLOCK_K, col);
    cp_async_bulk(smem.scale_A_smem[stage], A.scale + (size_t)k_tile * A.rows, A_bytes, full);
    cp_async_bulk(smem.scale_B_smem[stage], B.scale + (size_t)k_tile * B.rows, B_bytes, full);
}

// Multiplies a warpgroup's 64 rows of a tile. A descriptor counts in units of 16 bytes.
static __device__ void mma_tile(float (&acc)[BLOCK_N / 2], const uint8_t *A_smem, const uint8_t *B_smem)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma_e4m3<BLOCK_N>(acc, A_desc + slice * MMA_K / 16, B_desc + slice * MMA_K / 16, slice > 0);
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
                               const RowScales &A, const RowScales &B, int row, int col, int k_tiles)
{
    PipelineState<NUM_STAGES> state;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        load_tile(smem, A_map, B_map, A, B, row, col, k, state.stage);
        state.advance();
    }
    trace(END);
}

// A consumer warpgroup's products and their sum.
static __device__ void consume(float (&sum)[BLOCK_N / 2], SharedStorage &smem, int warpgroup_row, int k_tiles,
                               int tid)
{
    const int row0 = warpgroup_row + tid / 32 * 16 + tid % 32 / 4; // this thread's; the other is 8 further
    float acc[BLOCK_N / 2], scale_B[BLOCK_N / 4];
    PipelineState<NUM_STAGES> state;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        // Before the products begin: read beside them they cost 8 % on an H100.
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
        mma_tile(acc, smem.A_smem[state.stage][warpgroup_row], smem.B_smem[state.stage][0]);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc);
        __syncwarp(); // Every lane has read its scales.
        if (tid % 32 == 0) mbarrier_arrive(&smem.empty[state.stage]);
        promote(sum, acc, scale0, scale1, scale_B);
        state.advance();
    }
}

__global__ void __launch_bounds__(NUM_THREADS, 1)
    weight_gradient_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                           const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                           const float *scale_A,                      // (k_tiles, scale_rows)
                           const float *scale_B,                      // (k_tiles, scale_cols)
                           float *D,                                  // (M, N)
                           int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage &smem = *reinterpret_cast<SharedStorage *>(smem_bytes);
    const int warpgroup = threadIdx.x / 128;
    const int tid = threadIdx.x % 128; // in the warpgroup
    const int tiles_n = (N - 1) / BLOCK_N + 1;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    const int row = blockIdx.x / tiles_n * BLOCK_M, col = blockIdx.x % tiles_n * BLOCK_N;

    // Setup. TMA counts at the barriers: it must see them initialised, as must the other threads.
    if (threadIdx.x == 0) {
        prefetch_tensormap(A_map);
        prefetch_tensormap(B_map);
        for (int stage = 0; stage < NUM_STAGES; stage++) {
            mbarrier_init(&smem.full[stage], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.empty[stage], NUM_CONSUMERS * 4); // every warp that multiplies
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    wait_for_kernels_before();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        const int scale_rows = (M + 3) / 4 * 4, scale_cols = (N + 3) / 4 * 4;
        const RowScales A = {scale_A + row, scale_rows, min(BLOCK_M, scale_rows - row)};
        const RowScales B = {scale_B + col, scale_cols, min(BLOCK_N, scale_cols - col)};
        if (tid == 0) produce(smem, A_map, B_map, A, B, row, col, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        float sum[BLOCK_N / 2] = {};
        consume(sum, smem, warpgroup_row, k_tiles, tid);
        trace(STORE);
        add_tile(D, sum, row + warpgroup_row, col, M, N, tid);
        trace(END);
    }
}

extern "C" cudaError_t weight_gradient(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                                       const float *scale_B, void *D, int M, int N, int K,
                                       cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K) || D_dtype != F32) return cudaErrorInvalidValue;
    if (((uintptr_t)scale_A | (uintptr_t)scale_B) % 16 != 0) return cudaErrorInvalidValue;
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage);
    cudaError_t error = tensor_map_matrix(&A_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(weight_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error != cudaSuccess) return error;

    const long long num_tiles = ((M - 1) / BLOCK_M + 1LL) * ((N - 1) / BLOCK_N + 1LL);
    if (num_tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
    return launch_early(weight_gradient_kernel, (unsigned)num_tiles, NUM_THREADS, smem_bytes, stream, A_map,
                        B_map, scale_A, scale_B, (float *)D, M, N, K);
}
