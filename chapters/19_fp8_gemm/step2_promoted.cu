// Chapter 19, step 2: each 128 of k has its scales, and its sum is added up in fp32.
//
// Question: step 1 loses more the longer k is. Chapter 18 divides each 128 neighbours by a scale of their own. Is that one
// problem or two?
//
// Grows from: step 1 (plain_sums).
// One answer. The products of 128 k, four wgmma, start from 0; their sum is multiplied by the scales of its row and of its
// column, and added to a second accumulator by an FMA, which rounds at 24 bits. The cuts of four wgmma are all there is,
// however long k.
//
//      for each 128 of k:   acc = four wgmma            tensor cores, 14 bits
//                           sum += (scale_A scale_B) acc    FP32 pipe, 24 bits: 64 FMAs a thread ("promotion")
//
// The tile is 128 columns wide and begins at a multiple of 128: it has one scale of B at a time. A thread has two rows.
// New instructions: none. Shared memory: as step 1. Registers: twice 64 accumulators a thread.
// Run: make chapter-19 OP=gemm STEP=promoted
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
constexpr int NUM_THREADS = BLOCK_M / MMA_M * 128; // a warpgroup for every 64 rows
constexpr int NUM_STAGES = 4;
static_assert(BLOCK_N == GROUP, "one scale of B for the tile");

struct SharedStorage {
    uint8_t A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    uint8_t B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 16,384 bytes a stage
    uint64_t full[NUM_STAGES];                    // the stage's tiles have landed
};

// Starts the copies of a tile into a stage. One thread does.
static __device__ void load_tile(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 int row, int col, int k, int stage)
{
    trace(LOAD);
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage]);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, col);
}

// Multiplies a warpgroup's 64 rows of a tile. A descriptor counts in units of 16 bytes.
static __device__ void mma_tile(float (&acc)[BLOCK_N / 2], const uint8_t *A_smem, const uint8_t *B_smem)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma_e4m3<BLOCK_N>(acc, A_desc + slice * MMA_K / 16, B_desc + slice * MMA_K / 16, slice > 0);
}

// sum += scale * acc, by rows: acc[r] is of this thread's first row if r / 2 is even, else of its second.
static __device__ void promote(float (&sum)[BLOCK_N / 2], const float (&acc)[BLOCK_N / 2], float scale0,
                               float scale1)
{
    // EXERCISE 19.2: each sum gets its row's share (2 lines)
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++) sum[r] += (r / 2 % 2 ? scale1 : scale0) * acc[r];
    // STUB sum[0] += (scale0 + scale1) * acc[0];
    // END
}

template <typename TD>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    promoted_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                    const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                    const float *scale_A,                      // (k_tiles, scale_rows)
                    const float *scale_B,                      // (N / 128, k_tiles)
                    TD *D,                                     // (M, N)
                    int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage &smem = *reinterpret_cast<SharedStorage *>(smem_bytes);
    const int tid = threadIdx.x;
    const int warpgroup_row = tid / 128 * MMA_M; // this warpgroup's rows of the tile
    const int tiles_n = (N - 1) / BLOCK_N + 1;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    const int scale_rows = (M + 3) / 4 * 4;
    const int row = blockIdx.x / tiles_n * BLOCK_M, col = blockIdx.x % tiles_n * BLOCK_N;
    const int row0 = row + warpgroup_row + tid % 128 / 32 * 16 + tid % 32 / 4,
              row1 = row0 + 8; // of this thread

    // Setup. TMA counts at the barrier: it must see it initialised, as must the other threads.
    if (tid == 0) {
        for (int stage = 0; stage < NUM_STAGES; stage++)
            mbarrier_init(&smem.full[stage], 1); // thread 0's arrival, and the bytes it expects
        fence_mbarrier_init();
    }
    __syncthreads();

    // Prologue: all stages are in flight.
    if (tid == 0)
        for (int stage = 0; stage < NUM_STAGES; stage++)
            if (stage < k_tiles) load_tile(smem, A_map, B_map, row, col, stage * BLOCK_K, stage);

    // Mainloop.
    float acc[BLOCK_N / 2], sum[BLOCK_N / 2] = {};
    PipelineState<NUM_STAGES> full;
    for (int tile = 0; tile < k_tiles; tile++) {
        // EXERCISE 19.3: what the tile's products of either row are multiplied with; no row behind the last (about 4 lines)
        const float *tile_scale_A = scale_A + (size_t)tile * scale_rows;
        const float tile_scale_B = scale_B[(size_t)(col / GROUP) * k_tiles + tile];
        const float scale0 = row0 < M ? tile_scale_A[row0] * tile_scale_B : 0.0f;
        const float scale1 = row1 < M ? tile_scale_A[row1] * tile_scale_B : 0.0f;
        // STUB const float scale0 = row0 < scale_rows ? scale_A[0] : 0.0f, scale1 = row1 < M ? scale_B[0] : 0.0f;
        // END
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[full.stage], full.parity);
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[full.stage][warpgroup_row], smem.B_smem[full.stage][0]);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc);
        promote(sum, acc, scale0, scale1);
        __syncthreads(); // Every warp is done with the stage: it may be overwritten.
        const int next = tile + NUM_STAGES;
        if (tid == 0 && next < k_tiles) load_tile(smem, A_map, B_map, row, col, next * BLOCK_K, full.stage);
        full.advance();
    }

    // Epilogue.
    trace(STORE);
    store_tile(D, sum, row + warpgroup_row, col, M, N, tid % 128);
    trace(END);
}

template <typename TD>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B, TD *D,
                          int M, int N, int K, cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage);
    const auto kernel = promoted_kernel<TD>;
    cudaError_t error = tensor_map_matrix(&A_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const long long num_tiles = ((M - 1) / BLOCK_M + 1LL) * ((N - 1) / BLOCK_N + 1LL);
    if (num_tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
    kernel<<<(unsigned)num_tiles, NUM_THREADS, smem_bytes, stream>>>(A_map, B_map, scale_A, scale_B, D, M, N,
                                                                     K);
    return cudaGetLastError();
}

extern "C" cudaError_t promoted(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                                const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    return with_D_type(
        D_dtype, [&](auto td) { return launch(A, B, scale_A, scale_B, (decltype(td) *)D, M, N, K, stream); });
}
