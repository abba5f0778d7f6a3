// Chapter 19, step 1: products of 8 bits, summed up where the tensor core keeps its sums.
//
// Question: wgmma takes e4m3 as it takes bf16: the same descriptors, 32 k for 16, twice as fast. One scale for A and one for B,
// multiplied with what comes out. Is that all?
//
// Grows from: chapter 13, step 3 (large_tile).
// A row of 128 bytes is 128 k now. Each wgmma adds 32 products and the accumulator, cuts all of them to 13 bits behind the
// leading one of the largest, and keeps 13 bits of the sum: always downwards. One such cut is 2^-14 of the sum, and a sum over
// k has k / 32 of them.
//
//      acc = cut(acc + 32 products),  k / 32 times          D = scale_A scale_B acc
//
// New instruction: wgmma m64nNk32 of e4m3. Shared memory: 131,072 bytes for 4 stages. Registers: 64 accumulators a thread.
// Run: make chapter-19 OP=per_tensor STEP=plain_sums
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
static __device__ void mma_tile(float (&acc)[BLOCK_N / 2], const uint8_t *A_smem, const uint8_t *B_smem,
                                bool accumulate)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma_e4m3<BLOCK_N>(acc, A_desc + slice * MMA_K / 16, B_desc + slice * MMA_K / 16,
                            accumulate || slice > 0);
}

template <typename TD>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    plain_sums_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                      const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                      const float *scale_A,                      // (1)
                      const float *scale_B,                      // (1)
                      TD *D,                                     // (M, N)
                      int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage &smem = *reinterpret_cast<SharedStorage *>(smem_bytes);
    const int tid = threadIdx.x;
    const int warpgroup_row = tid / 128 * MMA_M; // this warpgroup's rows of the tile
    const int tiles_n = (N - 1) / BLOCK_N + 1;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    const int row = blockIdx.x / tiles_n * BLOCK_M, col = blockIdx.x % tiles_n * BLOCK_N;

    // Setup. TMA counts at the barrier: it must see it initialised, as must the other threads.
    if (tid == 0) {
        for (int stage = 0; stage < NUM_STAGES; stage++)
            mbarrier_init(&smem.full[stage], 1); // thread 0's arrival, and the bytes it expects
        fence_mbarrier_init();
    }
    __syncthreads();

    // Prologue: all stages but one are in flight.
    if (tid == 0)
        for (int stage = 0; stage < NUM_STAGES - 1; stage++)
            if (stage < k_tiles) load_tile(smem, A_map, B_map, row, col, stage * BLOCK_K, stage);

    // Mainloop.
    float acc[BLOCK_N / 2];
    PipelineState<NUM_STAGES> full;
    int free_stage = NUM_STAGES - 1;
    for (int tile = 0; tile < k_tiles; tile++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[full.stage], full.parity);
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[full.stage][warpgroup_row], smem.B_smem[full.stage][0], tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the tile before are done,
        __syncthreads();       // in every warp: its stage may be overwritten.
        const int next = tile + NUM_STAGES - 1;
        if (tid == 0 && next < k_tiles) load_tile(smem, A_map, B_map, row, col, next * BLOCK_K, free_stage);
        free_stage = full.stage;
        full.advance();
    }
    wgmma_wait_group<0>();
    wgmma_touch(acc);

    // Epilogue.
    trace(STORE);
    const float scale = *scale_A * *scale_B;
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++) acc[r] *= scale;
    store_tile(D, acc, row + warpgroup_row, col, M, N, tid % 128);
    trace(END);
}

template <typename TD>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B, TD *D,
                          int M, int N, int K, cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage);
    const auto kernel = plain_sums_kernel<TD>;
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

extern "C" cudaError_t plain_sums(enum dtype D_dtype, const void *A, const void *B, const float *scale_A,
                                  const float *scale_B, void *D, int M, int N, int K, cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    return with_D_type(
        D_dtype, [&](auto td) { return launch(A, B, scale_A, scale_B, (decltype(td) *)D, M, N, K, stream); });
}
