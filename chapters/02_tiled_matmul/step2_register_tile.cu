// Chapter 2, step 2: a thread computes 8 x 8 outputs, and uses what it reads from shared memory 8 times.
//
// Question: step 1 reads two floats from shared memory for each multiply-add; how do registers take over?
//
// A thread reads 8 elements of A and 8 of B into registers and multiplies each with each: 64 multiply-adds
// for 16 reads, where step 1 makes 128. Its 64 outputs are not neighbours: they lie 16 apart, so that the 16
// threads along n read 16 neighbouring floats of B_smem (no bank conflict) and write 16 neighbouring floats
// of C.
//
//                     B_frag[8]  n = x, x + 16, ..., x + 112
//      A_frag[8]   +--------------------------------+
//      m = y,      |  o       o       o   ...       |      o: the outputs of thread (x, y)
//      y + 16,     |  o       o       o             |      a block is 16 x 16 threads
//      ...         |  ...                           |      and 128 x 128 outputs
//      y + 112     +--------------------------------+
//
// The tiles lie in shared memory as (k, m) and (k, n): what one k needs is one row. The copy transposes; its
// 4 floats of padding send the 8 (k) x 4 (m) elements that a warp stores to 32 different banks.
//
// Grows from: step 1 (smem_tile).
// Shared memory: 8,448 bytes. Registers: 64 accumulators and 16 fragments of about 100 a thread.
// Run: make chapter-2 STEP=register_tile
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 8;   // columns of A and B in shared memory at a time
constexpr int THREAD_M = 8;  // rows of C a thread owns
constexpr int THREAD_N = 8;  // columns of C a thread owns
constexpr int THREADS_M = BLOCK_M / THREAD_M;
constexpr int THREADS_N = BLOCK_N / THREAD_N;
constexpr int NUM_THREADS = THREADS_M * THREADS_N;
constexpr int PADDING = 4;
static_assert(BLOCK_M * BLOCK_K % NUM_THREADS == 0 && BLOCK_N * BLOCK_K % NUM_THREADS == 0,
              "every thread copies alike");
static_assert(NUM_THREADS % BLOCK_K == 0, "a thread keeps its k from one row to the next");

struct SharedStorage {
    float A_smem[BLOCK_K][BLOCK_M + PADDING]; // (k, m)
    float B_smem[BLOCK_K][BLOCK_N + PADDING]; // (k, n)
};

// Copies rows [row0, row0 + ROWS) and columns [k0, k0 + BLOCK_K) of a (num_rows, K) matrix into tile,
// transposed. Neighbouring threads read along k. Past every edge the tile gets zeros: they add nothing.
template <int ROWS>
static __device__ void load_tile(float (&tile)[BLOCK_K][ROWS + PADDING], const float *matrix, int row0,
                                 int num_rows, int k0, int K, int tid)
{
    // EXERCISE 2.2: copy the tile, transposed, neighbouring threads along k, zeros past the edges (about 5 lines)
    const int k = tid % BLOCK_K;
    for (int r = tid / BLOCK_K; r < ROWS; r += NUM_THREADS / BLOCK_K) {
        const bool inside = row0 + r < num_rows && k0 + k < K;
        tile[k][r] = inside ? matrix[(size_t)(row0 + r) * K + k0 + k] : 0.0f;
    }
    // END
}

__global__ void __launch_bounds__(NUM_THREADS) register_tile_kernel(const float *A,    // (M, K)
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
        load_tile<BLOCK_M>(smem.A_smem, A, block_row, M, k0, K, tid);
        load_tile<BLOCK_N>(smem.B_smem, B, block_col, N, k0, K, tid);
        __syncthreads(); // The tiles are complete before anyone reads them.

        for (int k = 0; k < BLOCK_K; k++) {
            // EXERCISE 2.3: 8 values of A and 8 of B into registers, and their 64 products into acc (about 5 lines)
            float A_frag[THREAD_M], B_frag[THREAD_N];
            for (int i = 0; i < THREAD_M; i++) A_frag[i] = smem.A_smem[k][y + i * THREADS_M];
            for (int j = 0; j < THREAD_N; j++) B_frag[j] = smem.B_smem[k][x + j * THREADS_N];
            for (int i = 0; i < THREAD_M; i++)
                for (int j = 0; j < THREAD_N; j++) acc[i][j] += A_frag[i] * B_frag[j];
            // END
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

extern "C" cudaError_t register_tile(const float *A, const float *B, const float *bias, float *C, int M,
                                     int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    register_tile_kernel<<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
