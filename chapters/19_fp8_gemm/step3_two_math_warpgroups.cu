// Chapter 19, step 3: one fetches, and two multiply and add up in turns.
//
// Question: while a warpgroup promotes, its tensor cores have nothing to do: step 2 stops them for 64 FMAs after every 128 of
// k, and all threads for a barrier. What can the tensor cores do meanwhile?
//
// Grows from: step 2 (promoted).
// The other warpgroup's products. Nothing but `full` and `empty` ties the two together, so that they drift apart until one
// multiplies while the other adds up. Chapter 14's producer fetches for both, and with A and B the 128 scales of A's rows,
// neighbours in memory: a bulk copy of at most 512 bytes. B's scale is asked for a step ahead.
//
//      consumer 0    | wgmma k0 | promote k0 | wgmma k1 | promote k1 |
//      consumer 1               | wgmma k0   | promote k0 | wgmma k1 | …
//
// Every thread reads scales from the stage, so every warp arrives at `empty`, not one thread of a warpgroup.
// A promotion is one run of 64 FMAs, each of a sum of its own, and nothing is set between them: they may take tensor time from the
// products beside them (the note's second exercise).
// New instruction: cp.async.bulk. Shared memory: 199,680 bytes for 6 stages. Registers: 40 (producer) and 232.
// Run: make chapter-19 OP=gemm STEP=two_math_warpgroups
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
static_assert(BLOCK_N == GROUP, "one scale of B for the tile");

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

struct SharedStorage {
    uint8_t A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    uint8_t B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 16,384 bytes a stage
    float scale_smem[NUM_STAGES][BLOCK_M];        // (stage, m), 512 bytes a stage
    uint64_t full[NUM_STAGES];                    // the stage's tiles and scales have landed
    uint64_t empty[NUM_STAGES];                   // every consumer is done with them
};

// Starts the copies of a tile into a stage. One thread does. `scales` of the tile's rows have scales in memory.
static __device__ void load_tile(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 const float *tile_scale_A, int scales, int row, int col, int k, int stage)
{
    trace(LOAD);
    uint64_t *full = &smem.full[stage];
    const int scale_bytes = scales * (int)sizeof(float);
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage] + scale_bytes);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, col);
    cp_async_bulk(smem.scale_smem[stage], tile_scale_A + row, scale_bytes, full);
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
#pragma unroll
    for (int r = 0; r < BLOCK_N / 2; r++) sum[r] += (r / 2 % 2 ? scale1 : scale0) * acc[r];
}

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
static __device__ void produce(SharedStorage &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               const float *scale_A, int scale_rows, int row, int col, int k_tiles)
{
    const int scales = min(BLOCK_M, scale_rows - row); // a multiple of 4: 16 bytes
    PipelineState<NUM_STAGES> state;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        load_tile(smem, A_map, B_map, scale_A + (size_t)k * scale_rows, scales, row, col, k * BLOCK_K,
                  state.stage);
        state.advance();
    }
    trace(END);
}

// A consumer warpgroup's products and their sum. scale_B: of the tile's columns, (k_tiles).
static __device__ void consume(float (&sum)[BLOCK_N / 2], SharedStorage &smem, const float *scale_B,
                               int warpgroup_row, int k_tiles, int tid)
{
    const int row0 = warpgroup_row + tid / 32 * 16 + tid % 32 / 4; // this thread's; the other is 8 further
    float acc[BLOCK_N / 2], next_scale_B = scale_B[0];
    PipelineState<NUM_STAGES> state;
    for (int k = 0; k < k_tiles; k++) {
        const float tile_scale_B = next_scale_B;
        if (k + 1 < k_tiles) next_scale_B = scale_B[k + 1];
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        const float scale0 = smem.scale_smem[state.stage][row0] * tile_scale_B;
        const float scale1 = smem.scale_smem[state.stage][row0 + 8] * tile_scale_B;
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[state.stage][warpgroup_row], smem.B_smem[state.stage][0]);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc);
        __syncwarp(); // Every lane has read its scales.
        if (tid % 32 == 0) mbarrier_arrive(&smem.empty[state.stage]);
        promote(sum, acc, scale0, scale1);
        state.advance();
    }
}

template <typename TD>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    two_math_warpgroups_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                               const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                               const float *scale_A,                      // (k_tiles, scale_rows)
                               const float *scale_B,                      // (N / 128, k_tiles)
                               TD *D,                                     // (M, N)
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

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid == 0) produce(smem, A_map, B_map, scale_A, (M + 3) / 4 * 4, row, col, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        float sum[BLOCK_N / 2] = {};
        consume(sum, smem, scale_B + (size_t)(col / GROUP) * k_tiles, warpgroup_row, k_tiles, tid);
        trace(STORE);
        store_tile(D, sum, row + warpgroup_row, col, M, N, tid);
        trace(END);
    }
}

template <typename TD>
static cudaError_t launch(const void *A, const void *B, const float *scale_A, const float *scale_B, TD *D,
                          int M, int N, int K, cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage);
    const auto kernel = two_math_warpgroups_kernel<TD>;
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

extern "C" cudaError_t two_math_warpgroups(enum dtype D_dtype, const void *A, const void *B,
                                           const float *scale_A, const float *scale_B, void *D, int M, int N,
                                           int K, cudaStream_t stream)
{
    if (!can_multiply(A, B, scale_A, scale_B, D, M, N, K)) return cudaErrorInvalidValue;
    if ((uintptr_t)scale_A % 16 != 0) return cudaErrorInvalidValue;
    return with_D_type(
        D_dtype, [&](auto td) { return launch(A, B, scale_A, scale_B, (decltype(td) *)D, M, N, K, stream); });
}
