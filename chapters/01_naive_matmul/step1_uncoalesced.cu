// Chapter 1, step 1: one thread computes one output, and walks its two rows alone.
//
// Question: what is the least code that multiplies two matrices on a GPU, and what does the memory system see
// of it?
//
// C[M,N] = A[M,K] * B[N,K]^T + bias[N], all row-major ("NT"): an output is the dot product of a row of A and
// a row of B, and in both of them consecutive k are consecutive addresses.
//
//            k -->                          k -->                       lane: 0 1 2 ... 31
//      A  [ a a a a a a ]  row        B  [ 0 . . . . . ]  col        C  [     0 1 2 ... 31 ]  row
//         all 32 lanes read              [ 1 . . . . . ]                one warp owns 32 neighbouring
//         the same element               [ 2 . . . . . ]  32 rows       outputs of one row
//
// At each k the 32 lanes of a warp read one element of A, which is broadcast (1 sector of 32 bytes), and 32
// elements of B that lie K floats apart: 32 sectors, 1024 bytes moved for 128 bytes used. The caches hold the
// rest of each sector for the next seven k, if it is not evicted first; the L1 still has to look up 32 lines
// for every load.
//
// Grows from: nothing.
// Shared memory: none. Registers: one accumulator a thread.
// Run: make chapter-1 STEP=uncoalesced
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int BLOCK_M = 8;  // rows of C a block owns: one a warp
constexpr int BLOCK_N = 32; // columns of C a block owns: one a lane
constexpr int NUM_THREADS = BLOCK_M * BLOCK_N;
static_assert(BLOCK_N == 32, "a warp is one row of outputs");

__global__ void __launch_bounds__(NUM_THREADS) uncoalesced_kernel(const float *A,    // (M, K)
                                                                  const float *B,    // (N, K)
                                                                  const float *bias, // (N) or NULL
                                                                  float *C,          // (M, N)
                                                                  int M, int N, int K)
{
    const int row = blockIdx.y * BLOCK_M + threadIdx.y;
    const int col = blockIdx.x * BLOCK_N + threadIdx.x;
    if (row >= M || col >= N) return;

    const float *A_row = A + (size_t)row * K;
    const float *B_row = B + (size_t)col * K;

    float acc = 0.0f;
    for (int k = 0; k < K; k++)
        acc += A_row[k] * B_row[k]; // A: broadcast, 1 sector a warp. B: stride K, 32 sectors a warp.

    C[(size_t)row * N + col] = acc + (bias ? bias[col] : 0.0f);
}

extern "C" cudaError_t uncoalesced(const float *A, const float *B, const float *bias, float *C, int M, int N,
                                   int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 block(BLOCK_N, BLOCK_M);
    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    uncoalesced_kernel<<<grid, block, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
