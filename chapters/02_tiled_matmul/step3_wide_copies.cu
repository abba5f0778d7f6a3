// Chapter 2, step 3: a thread copies 16 bytes at a time from global memory.
//
// Question: step 2 copies each tile with 4 loads a thread, each with its own address and its own test for the
// edges; what does one load of four floats save?
//
// The floats of a row of A or B that lie side by side in global memory are four k of one row. One ld.global.v4
// brings them; in shared memory, whose tiles are (k, row), they go to four different rows.
//
//      global   row r:  | k k+1 k+2 k+3 |  one float4        shared   row k      [ . . r . . ]
//                                                                     row k + 1  [ . . r . . ]
//                                                                     row k + 2  [ . . r . . ]
//                                                                     row k + 3  [ . . r . . ]
//
// The lanes of a warp are 2 (k) x 16 (rows): a store goes to rows k and k + 4 of the tile, which are 4 * 132
// floats, 16 banks, apart, and there to 16 neighbours: 32 different banks.
//
// float4 wants an address that is a multiple of 16 bytes, and so do all rows when K % 4 == 0. The launcher
// decides once for all rows, and the kernel is compiled for both.
//
// Grows from: step 2 (register_tile).
// New instructions: ld.global.v4. Shared memory: 8,448 bytes. Registers: as step 2, about 100.
// Run: make chapter-2 STEP=wide_copies
#include "launchers.h"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 8;   // columns of A and B in shared memory at a time
constexpr int THREAD_M = 8;  // rows of C a thread owns
constexpr int THREAD_N = 8;  // columns of C a thread owns
constexpr int THREADS_M = BLOCK_M / THREAD_M;
constexpr int THREADS_N = BLOCK_N / THREAD_N;
constexpr int NUM_THREADS = THREADS_M * THREADS_N;
constexpr int PADDING = 4;
constexpr int QUADS_K = BLOCK_K / 4;             // float4s in a row of a tile
constexpr int COPY_ROWS = NUM_THREADS / QUADS_K; // rows the block copies at a time
static_assert(BLOCK_K % 4 == 0, "rows of a tile are whole float4s");
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    float A_smem[BLOCK_K][BLOCK_M + PADDING]; // (k, m)
    float B_smem[BLOCK_K][BLOCK_N + PADDING]; // (k, n)
};

// The four floats of a (num_rows, K) matrix at (row, k .. k + 3), zeros past the edges.
template <bool ALIGNED>
static __device__ float4 load_quad(const float *matrix, int row, int num_rows, int k, int K)
{
    float4 quad = {0.0f, 0.0f, 0.0f, 0.0f};
    if (row >= num_rows) return quad;
    const float *src = matrix + (size_t)row * K + k;
    if (ALIGNED) { // K % 4 == 0: all four are inside, or none
        if (k < K) quad = *reinterpret_cast<const float4 *>(src);
    } else {
        if (k + 0 < K) quad.x = src[0];
        if (k + 1 < K) quad.y = src[1];
        if (k + 2 < K) quad.z = src[2];
        if (k + 3 < K) quad.w = src[3];
    }
    return quad;
}

// Copies rows [row0, row0 + ROWS) and columns [k0, k0 + BLOCK_K) of a (num_rows, K) matrix into tile,
// transposed. Neighbouring threads read along k. Past every edge the tile gets zeros: they add nothing.
template <bool ALIGNED, int ROWS>
static __device__ void load_tile(float (&tile)[BLOCK_K][ROWS + PADDING], const float *matrix, int row0,
                                 int num_rows, int k0, int K, int tid)
{
    const int k = tid % QUADS_K * 4;
    for (int r = tid / QUADS_K; r < ROWS; r += COPY_ROWS) {
        const float4 quad = load_quad<ALIGNED>(matrix, row0 + r, num_rows, k0 + k, K);
        tile[k + 0][r] = quad.x;
        tile[k + 1][r] = quad.y;
        tile[k + 2][r] = quad.z;
        tile[k + 3][r] = quad.w;
    }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(NUM_THREADS) wide_copies_kernel(const float *A,    // (M, K)
                                                                  const float *B,    // (N, K)
                                                                  const float *bias, // (N) or NULL
                                                                  float *C,          // (M, N)
                                                                  int M, int N, int K)
{
    __shared__ SharedStorage smem;
    const int tid = threadIdx.x;
    const int x = tid % THREADS_N; // along n when computing
    const int y = tid / THREADS_N; // along m when computing
    const int block_row = blockIdx.y * BLOCK_M;
    const int block_col = blockIdx.x * BLOCK_N;

    float acc[THREAD_M][THREAD_N] = {};
    for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
        load_tile<ALIGNED, BLOCK_M>(smem.A_smem, A, block_row, M, k0, K, tid);
        load_tile<ALIGNED, BLOCK_N>(smem.B_smem, B, block_col, N, k0, K, tid);
        __syncthreads(); // The tiles are complete before anyone reads them.

        for (int k = 0; k < BLOCK_K; k++) {
            float A_frag[THREAD_M], B_frag[THREAD_N];
            for (int i = 0; i < THREAD_M; i++) A_frag[i] = smem.A_smem[k][y + i * THREADS_M];
            for (int j = 0; j < THREAD_N; j++) B_frag[j] = smem.B_smem[k][x + j * THREADS_N];
            for (int i = 0; i < THREAD_M; i++)
                for (int j = 0; j < THREAD_N; j++) acc[i][j] += A_frag[i] * B_frag[j];
        }
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

    for (int i = 0; i < THREAD_M; i++)
        for (int j = 0; j < THREAD_N; j++) {
            const int row = block_row + y + i * THREADS_M;
            const int col = block_col + x + j * THREADS_N;
            if (row < M && col < N) C[(size_t)row * N + col] = acc[i][j] + (bias ? bias[col] : 0.0f);
        }
}

extern "C" cudaError_t wide_copies(const float *A, const float *B, const float *bias, float *C, int M, int N,
                                   int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    if (K % 4 == 0 && (uintptr_t)A % 16 == 0 && (uintptr_t)B % 16 == 0)
        wide_copies_kernel<true><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K);
    else
        wide_copies_kernel<false><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
