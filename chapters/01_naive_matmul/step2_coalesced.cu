// Chapter 1, step 2: the same outputs, but the lanes of a warp walk along k together.
//
// Question: what must change for every load of a warp to be one contiguous piece of memory?
//
// Memory is contiguous along k in both A and B, so the lanes have to lie along k. The textbook cure, swapping
// row and column, is of no use here: it makes B the broadcast and A the strided one. A warp still owns 32
// neighbouring outputs of one row, but now all its lanes work on each of them: lane l adds up the products k
// = l, l + 32, l + 64, ...
//
//            k -->                          k -->
//      A  [ 0 1 2 ... 31 | 0 1 ... ]  row     B  [ 0 1 2 ... 31 | 0 1 ... ]  col 0     acc[0]
//         one load of A serves                   [ 0 1 2 ... 31 | 0 1 ... ]  col 1     acc[1]
//         32 products                            [ 0 1 2 ... 31 | 0 1 ... ]  col 31    acc[31]
//
// Every load is now 128 contiguous bytes: 4 sectors (5 when K does not keep rows aligned), all of them used.
// For 32 k and 32 outputs that is 4 + 32 * 4 = 132 sectors, where step 1 needed 32 * (1 + 32) = 1056. At the
// end each lane holds a 32nd of 32 outputs; a butterfly of shuffles adds them, and lane j keeps output j, so
// C is written as before.
//
// Grows from: step 1 (uncoalesced).
// New instruction: shfl.sync.bfly (__shfl_xor_sync). Shared memory: none. Registers: 32 accumulators a thread.
// Run: make chapter-1 STEP=coalesced
#include "launchers.h"

#include <cuda_runtime.h>

constexpr int BLOCK_M = 8;  // rows of C a block owns: one a warp
constexpr int BLOCK_N = 32; // columns of C a block owns: one a lane
constexpr int NUM_THREADS = BLOCK_M * BLOCK_N;
static_assert(BLOCK_N == 32, "a warp is one row of outputs");

// The sum of x over the 32 lanes, in every lane.
static __device__ float warp_sum(float x)
{
    // EXERCISE 1.3: add up the 32 lanes' x, so that every lane has the sum (1 line)
    for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
    // END
    return x;
}

__global__ void __launch_bounds__(NUM_THREADS) coalesced_kernel(const float *A,    // (M, K)
                                                                const float *B,    // (N, K)
                                                                const float *bias, // (N) or NULL
                                                                float *C,          // (M, N)
                                                                int M, int N, int K)
{
    const int row = blockIdx.y * BLOCK_M + threadIdx.y;
    const int col = blockIdx.x * BLOCK_N + threadIdx.x;
    const int lane = threadIdx.x;
    // The whole warp leaves or stays: the shuffles below need all of its lanes, also those with col >= N.
    if (row >= M) return;

    const float *A_row = A + (size_t)row * K;
    const int warp_col = blockIdx.x * BLOCK_N;

    float acc[BLOCK_N] = {};
    // EXERCISE 1.2: add this lane's share of the products to acc, each load of the warp one piece of memory (about 6 lines)
    for (int k = lane; k < K; k += 32) {
        const float a = A_row[k]; // 4 sectors a warp
        for (int j = 0; j < BLOCK_N; j++) {
            const int j_col = min(warp_col + j, N - 1); // Past the edge: the last row, never stored.
            acc[j] += a * B[(size_t)j_col * K + k];     // 4 sectors a warp
        }
    }
    // STUB acc[0] = A_row[0] + warp_col + lane;
    // END

    float sum = 0.0f;
    for (int j = 0; j < BLOCK_N; j++) {
        const float sum_j = warp_sum(acc[j]);
        sum = lane == j ? sum_j : sum;
    }

    if (col < N) C[(size_t)row * N + col] = sum + (bias ? bias[col] : 0.0f);
}

extern "C" cudaError_t coalesced(const float *A, const float *B, const float *bias, float *C, int M, int N,
                                 int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 block(BLOCK_N, BLOCK_M);
    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    coalesced_kernel<<<grid, block, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
