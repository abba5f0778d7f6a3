// Chapter 13, step 1: one thread starts every copy, and four warps multiply at once.
//
// Question: chapter 5 spends its instructions on addresses and fragments; what is left if the hardware fetches tiles
// and multiplies out of shared memory by itself?
//
//      thread 0     TMA copies a box of A and a box of B   ->  smem, swizzled by 128 bytes    bytes counted at `full`
//      all          wait for `full`
//      4 warps      wgmma: acc(64, 128) += A_smem(64, 16) · B_smem(128, 16)ᵀ, 2 x 4 of them   descriptors, no fragments
//
// Grows from: chapter 5, step 1 (two_stage).
// New instructions: cp.async.bulk.tensor (common/device/tma.cuh), mbarrier (common/device/mbarrier.cuh), wgmma
// (common/device/wgmma.cuh). Shared memory: 32,768 bytes and a barrier. Registers: 128 accumulators a thread.
// Run: make chapter-13 STEP=tma_wgmma
#include "../../common/device/matmul_types.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time: 128 bytes, the swizzle's width
constexpr int MMA_M = 64;    // rows of a wgmma
constexpr int MMA_K = 16;    // k of a wgmma
constexpr int NUM_THREADS = 128;
constexpr int ROW_BYTES = BLOCK_K * 2;
static_assert(ROW_BYTES == 128, "rows of the swizzle's width");

template <typename T>
struct SharedStorage {
    T A_smem[BLOCK_M][BLOCK_K]; // (m, k), 16,384 bytes
    T B_smem[BLOCK_N][BLOCK_K]; // (n, k), 16,384 bytes
    uint64_t full;              // the tiles have landed
};

// Starts the copies of a tile. One thread does.
template <typename T>
static __device__ void load_tile(SharedStorage<T> &smem, const CUtensorMap &A_map, const CUtensorMap &B_map,
                                 int row, int col, int k)
{
    trace(LOAD);
    // EXERCISE 13.2: say how many bytes will come, then ask for the box of A and the box of B (3 lines)
    mbarrier_arrive_expect_tx(&smem.full, sizeof smem.A_smem + sizeof smem.B_smem);
    cp_async_bulk_tensor_2d(smem.A_smem, A_map, &smem.full, k, row);
    cp_async_bulk_tensor_2d(smem.B_smem, B_map, &smem.full, k, col);
    // STUB mbarrier_arrive_expect_tx(&smem.full, sizeof smem.A_smem);
    // STUB cp_async_bulk_tensor_2d(smem.A_smem, A_map, &smem.full, k, row);
    // END
}

// Multiplies a tile: acc[i] are rows 64 i to 64 i + 63. A descriptor counts in units of 16 bytes.
template <typename T>
static __device__ void mma_tile(float (&acc)[BLOCK_M / MMA_M][BLOCK_N / 2], const T *A_smem, const T *B_smem,
                                bool accumulate)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int slice = 0; slice < BLOCK_K / MMA_K; slice++)
#pragma unroll
        for (int i = 0; i < BLOCK_M / MMA_M; i++)
            wgmma<BLOCK_N, T>(acc[i], A_desc + (i * MMA_M * ROW_BYTES + slice * MMA_K * 2) / 16,
                              B_desc + slice * MMA_K * 2 / 16, accumulate || slice > 0);
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

template <typename T, typename TC>
__global__ void __launch_bounds__(NUM_THREADS)
    tma_wgmma_kernel(const __grid_constant__ CUtensorMap A_map, // (M, K), boxes (BLOCK_M, BLOCK_K)
                     const __grid_constant__ CUtensorMap B_map, // (N, K), boxes (BLOCK_N, BLOCK_K)
                     const T *bias,                             // (N) or NULL
                     TC *C,                                     // (M, N)
                     int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T> &smem = *reinterpret_cast<SharedStorage<T> *>(smem_bytes);
    const int tid = threadIdx.x;
    const int tiles_n = (N - 1) / BLOCK_N + 1;
    const int k_tiles = (K - 1) / BLOCK_K + 1;
    const int row = blockIdx.x / tiles_n * BLOCK_M, col = blockIdx.x % tiles_n * BLOCK_N;

    // Setup. TMA counts at the barrier: it must see it initialised, as must the other threads.
    if (tid == 0) {
        mbarrier_init(&smem.full, 1); // thread 0's arrival, and the bytes it expects
        fence_mbarrier_init();
    }
    __syncthreads();

    // Mainloop.
    float acc[BLOCK_M / MMA_M][BLOCK_N / 2];
    // EXERCISE 13.3: for every tile: copy, wait, multiply, wait, and let nobody overwrite it too early (about 16 lines)
    uint32_t parity = 0;
    for (int tile = 0; tile < k_tiles; tile++) {
        if (tid == 0) load_tile(smem, A_map, B_map, row, col, tile * BLOCK_K);
        trace(WAIT_FULL);
        mbarrier_wait(&smem.full, parity);
        parity ^= 1;
        wgmma_touch(acc[0]);
        wgmma_touch(acc[1]);
        wgmma_fence();
        mma_tile(acc, smem.A_smem[0], smem.B_smem[0], tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_touch(acc[0]);
        wgmma_touch(acc[1]);
        __syncthreads(); // Every warp's products are done: the tile may be overwritten.
    }
    // STUB if (tid == 0) load_tile(smem, A_map, B_map, row, col, (k_tiles - 1) * BLOCK_K);
    // STUB mbarrier_wait(&smem.full, 0);
    // STUB mma_tile(acc, smem.A_smem[0], smem.B_smem[0], false);
    // END

    // Epilogue.
    trace(STORE);
#pragma unroll
    for (int i = 0; i < BLOCK_M / MMA_M; i++) store_tile(C, bias, acc[i], row + i * MMA_M, col, M, N, tid);
    trace(END);
}

template <typename T, typename TC>
static cudaError_t launch(const T *A, const T *B, const T *bias, TC *C, int M, int N, int K,
                          cudaStream_t stream)
{
    CUtensorMap A_map, B_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T>);
    const auto kernel = tma_wgmma_kernel<T, TC>;
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

extern "C" cudaError_t tma_wgmma(enum dtype dtype, enum dtype C_dtype, const void *A, const void *B,
                                 const void *bias, void *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0 || K % 8 != 0) return cudaErrorInvalidValue;
    return with_matmul_types(dtype, C_dtype, [&](auto t, auto tc) {
        using T = decltype(t);
        using TC = decltype(tc);
        return launch((const T *)A, (const T *)B, (const T *)bias, (TC *)C, M, N, K, stream);
    });
}
