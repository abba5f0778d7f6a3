// Chapter 14, step 1: one warpgroup fetches, two multiply, and no __syncthreads stops them all.
//
// Question: in chapter 13 every warp of the block stops at every tile, for thread 0 to send the next copy. Who needs that?
//
//      producer    wait empty[s]   TMA -> stage s ...............................  next stage
//                       ^             counted at full[s]
//      consumers   arrive when their products of stage s are done  <-  wgmma  <-  wait full[s]
//
// Two barriers a stage: `full` says that the tiles have landed, `empty` that every consumer is done with them. The producer
// is one thread; it runs as far ahead as there are empty stages. Its warpgroup gives registers it does not need to the others.
//
// Grows from: chapter 13, step 3 (large_tile).
// New instructions: setmaxnreg, elect.sync. Shared memory: 196,608 bytes for 4 stages, one block an SM. Registers: 40 for the
// producer, 232 for a consumer thread, 128 of them accumulators.
// Run: make chapter-14 STEP=producer_consumer
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 256; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_CONSUMERS = BLOCK_M / MMA_M;         // warpgroups that multiply, 64 rows each
constexpr int NUM_THREADS = (1 + NUM_CONSUMERS) * 128; // warpgroup 0 is the producer
constexpr int NUM_STAGES = 4;
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

constexpr int PRODUCER_REGS = 40;
constexpr int CONSUMER_REGS = 232;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + NUM_CONSUMERS * CONSUMER_REGS <= (1 + NUM_CONSUMERS) * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

template <typename T>
struct SharedStorage {
    T A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 16,384 bytes a stage
    T B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 32,768 bytes a stage
    uint64_t full[NUM_STAGES];              // the stage's tiles have landed
    uint64_t empty[NUM_STAGES];             // every consumer is done with them
};

// Starts the copies of a tile into a stage. One thread does.
template <typename T>
static __device__ void load_tile(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 int row, int col, int k, int stage)
{
    trace(LOAD);
    uint64_t *full = &smem.full[stage];
    mbarrier_arrive_expect_tx(full, sizeof smem.A_smem[stage] + sizeof smem.B_smem[stage]);
    cp_async_bulk_tensor_2d(smem.A_smem[stage], A_map, full, k, row);
    cp_async_bulk_tensor_2d(smem.B_smem[stage], B_map, full, k, col);
}

// Multiplies a warpgroup's 64 rows of a tile. A descriptor counts in units of 16 bytes.
template <typename T>
static __device__ void mma_tile(float (&acc)[BLOCK_N / 2], const T *A_smem, const T *B_smem, bool accumulate)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
        wgmma<BLOCK_N, T>(acc, A_desc + slice * MMA_K * 2 / 16, B_desc + slice * MMA_K * 2 / 16,
                          accumulate || slice > 0);
}

// Writes 64 rows of accumulators, with the bias, to C from (row0, col0) on. This thread's columns come in pairs.
template <typename T, typename TC>
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

// The producer, one thread: fills stage after stage, each as soon as it is empty. Nobody has used the stages of the first
// round: a new barrier lets a wait for parity 1 pass.
template <typename T>
static __device__ void produce(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                               int row, int col, int k_tiles)
{
    // EXERCISE 14.2: a tile of k after the other, each into the next stage as soon as that is empty (about 6 lines)
    PipelineState<NUM_STAGES> state;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
        load_tile(smem, A_map, B_map, row, col, k * BLOCK_K, state.stage);
        state.advance();
    }
    // STUB for (int k = 0; k < k_tiles; k++) load_tile(smem, A_map, B_map, row, col, k * BLOCK_K, k % NUM_STAGES);
    // END
    trace(END);
}

// A consumer warpgroup's products. One group of wgmma is always running: a stage is given back when the group after the one
// that reads it has been issued.
template <typename T>
static __device__ void consume(float (&acc)[BLOCK_N / 2], SharedStorage<T> &smem, int warpgroup_row,
                               int k_tiles, int tid)
{
    // EXERCISE 14.3: wait for a stage, multiply it, give back the one before it (about 15 lines)
    PipelineState<NUM_STAGES> state;
    int last_stage = 0;
    for (int k = 0; k < k_tiles; k++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full[state.stage], state.parity);
        wgmma_touch(acc);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[state.stage][warpgroup_row], smem.B_smem[state.stage][0], k > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>(); // The products of the tile before are done.
        if (k > 0 && tid == 0) mbarrier_arrive(&smem.empty[last_stage]);
        last_stage = state.stage;
        state.advance();
    }
    wgmma_wait_group<0>();
    wgmma_touch(acc);
    // STUB mma_tile(acc, smem.A_smem[tid / 128][warpgroup_row], smem.B_smem[0][0], k_tiles > 1);
    // END
}

template <typename T, typename TC>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    producer_consumer_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                             const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                             const T *bias,                             // (N) or NULL
                             TC *C,                                     // (M, N)
                             int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T> &smem = *reinterpret_cast<SharedStorage<T> *>(smem_bytes);
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
            mbarrier_init(&smem.empty[stage], NUM_CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (warpgroup == 0) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (tid / 32 == 0 && elect_one()) produce(smem, A_map, B_map, row, col, k_tiles);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        const int warpgroup_row = (warpgroup - 1) * MMA_M; // this warpgroup's rows of the tile
        float acc[BLOCK_N / 2];
        consume(acc, smem, warpgroup_row, k_tiles, tid);
        trace(STORE);
        store_tile(C, bias, acc, row + warpgroup_row, col, M, N, tid);
        trace(END);
    }
}

template <typename T, typename TC>
static cudaError_t launch(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T>);
    const auto kernel = producer_consumer_kernel<T, TC>;
    cudaError_t error = tensor_map_matrix(&A_map, tensor_map_type<T>(), A, M, K, BLOCK_M, BLOCK_K);
    if (error == cudaSuccess)
        error = tensor_map_matrix(&B_map, tensor_map_type<T>(), B, N, K, BLOCK_N, BLOCK_K);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;

    const long long num_tiles = ((M - 1) / BLOCK_M + 1LL) * ((N - 1) / BLOCK_N + 1LL);
    if (num_tiles > INT32_MAX) return cudaErrorInvalidConfiguration;
    kernel<<<(unsigned)num_tiles, NUM_THREADS, smem_bytes, stream>>>(A_map, B_map, bias, C, M, N, K);
    return cudaGetLastError();
}

extern "C" cudaError_t producer_consumer(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                         const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return launch((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
