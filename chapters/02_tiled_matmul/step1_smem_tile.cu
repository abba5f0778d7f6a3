// Chapter 2, step 1: a block stages tiles of A and B in shared memory, and every element is used 32 times.
//
// Question: how does a block stop reading the same rows of A and B from global memory over and over?
//
//             k0            one step along k             k0
//      A  [ . |####| . ]  32 rows             B  [ . |####| . ]  32 rows
//              |                                      |
//              v  1024 threads copy one float each    v           each thread then adds
//           A_smem (32, 32)                        B_smem (32, 32)    32 products to its output
//
// A 32 x 32 block of outputs needs 32 rows of A and 32 rows of B: each element comes once from global memory
// and is read 32 times from shared memory. Copying, the lanes of a warp lie along k (coalesced, as in chapter
// 1, step 2); computing, they lie along n (one output a thread, as in chapter 1, step 1). Shared memory is
// where they change over.
//
// Computing, the lanes read a column of B_smem. With rows of 32 floats the whole column is in one of the 32
// banks: a bank conflict of 32 wavefronts; one unused float a row shifts each row by one bank, and it takes
// one wavefront (chapter 4 has more).
//
// Grows from: chapter 1, step 2 (coalesced).
// New: __shared__, __syncthreads. Shared memory: 8,320 bytes. Registers: 32.
// Run: make chapter-2 STEP=smem_tile
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int BLOCK_M = 32;      // rows of C a block owns
constexpr int BLOCK_N = BLOCK_M; // columns of C a block owns
constexpr int BLOCK_K = BLOCK_M; // columns of A and B in shared memory at a time: a thread copies one of each
constexpr int NUM_THREADS = BLOCK_M * BLOCK_N;
static_assert(NUM_THREADS <= 1024, "one thread an output");

struct SharedStorage {
    float A_smem[BLOCK_M][BLOCK_K];     // (m, k): the warp reads one element, which is broadcast
    float B_smem[BLOCK_N][BLOCK_K + 1]; // (n, k): the warp reads a column; + 1 spreads it over the banks
};

__global__ void __launch_bounds__(NUM_THREADS) smem_tile_kernel(const float *A,    // (M, K)
                                                                const float *B,    // (N, K)
                                                                const float *bias, // (N) or NULL
                                                                float *C,          // (M, N)
                                                                int M, int N, int K)
{
    __shared__ SharedStorage smem;
    const int x = threadIdx.x; // along k when copying, along n when computing
    const int y = threadIdx.y; // a row of A and a row of B when copying, along m when computing
    const int row = blockIdx.y * BLOCK_M + y;
    const int col = blockIdx.x * BLOCK_N + x;
    const int B_row = blockIdx.x * BLOCK_N + y;

    float acc = 0.0f;
    for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
        const bool k_inside = k0 + x < K; // Zeros past every edge: they add nothing.
        smem.A_smem[y][x] = row < M && k_inside ? A[(size_t)row * K + k0 + x] : 0.0f;
        smem.B_smem[y][x] = B_row < N && k_inside ? B[(size_t)B_row * K + k0 + x] : 0.0f;
        __syncthreads(); // The tiles are complete before anyone reads them.

        // All 32 would take more than the 32 registers that let two blocks share an SM.
#pragma unroll 16
        for (int k = 0; k < BLOCK_K; k++) acc += smem.A_smem[y][k] * smem.B_smem[x][k];
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

    if (row < M && col < N) C[(size_t)row * N + col] = acc + (bias ? bias[col] : 0.0f);
}

extern "C" cudaError_t smem_tile(const float *A, const float *B, const float *bias, float *C, int M, int N,
                                 int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 block(BLOCK_N, BLOCK_M);
    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    smem_tile_kernel<<<grid, block, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
