// Chapter 2, step 4: a thread reads its fragments and writes its outputs 16 bytes at a time.
//
// Question: 16 loads from shared memory for 64 multiply-adds are a fifth of step 3's inner loop; how few can
// they be?
//
// One ld.shared.v4 brings four neighbouring floats, so a thread's outputs become 2 x 2 quads of 4 x 4: 4 loads
// for a k instead of 16. A row of a quad is one st.global.v4 into C.
//
//      a thread's outputs                          a warp's 32 lanes (y, x)
//                    n = 4 x      n = 4 x + 64        0  1  2  3  4  5  6  7
//      m = 4 y      [4 x 4]      [4 x 4]              8  9 10 11 12 13 14 15
//      m = 4 y + 64 [4 x 4]      [4 x 4]             16 17 18 19 20 21 22 23
//                                                    24 25 26 27 28 29 30 31
//
// A warp is a patch of 4 x 8 threads, so that a load touches 4 quads of A or 8 of B: 128 bytes at most.
//
// Less is issued, not less read: a wide load takes 4 wavefronts, one for each 8 lanes.
//
// float4 wants rows of C that are multiples of 16 bytes: N % 4 == 0. A thread decides that once, at its end.
//
// Grows from: step 3 (wide_copies).
// New instructions: ld.shared.v4, st.global.v4. Shared memory: 8,448 bytes. Registers: as step 3.
// Run: make chapter-2 STEP=wide_fragments
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
constexpr int WARP_THREADS_M = 4; // a warp is 4 x 8 threads
constexpr int WARP_THREADS_N = 32 / WARP_THREADS_M;
constexpr int WARPS_N = THREADS_N / WARP_THREADS_N;
constexpr int PADDING = 4;
constexpr int QUADS_K = BLOCK_K / 4;             // float4s in a row of a tile
constexpr int COPY_ROWS = NUM_THREADS / QUADS_K; // rows the block copies at a time
static_assert(THREADS_M % WARP_THREADS_M == 0 && THREADS_N % WARP_THREADS_N == 0, "whole warps");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread's outputs are quads");
static_assert(PADDING % 4 == 0, "rows of a tile stay multiples of 16 bytes");
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

// Shared memory to registers: elements 4 t .. 4 t + 3, and the same again every 4 * threads.
template <int COUNT>
static __device__ void load_frag(float (&frag)[COUNT], const float *smem_row, int t, int threads)
{
    for (int q = 0; q < COUNT / 4; q++)
        *reinterpret_cast<float4 *>(&frag[q * 4]) =
            *reinterpret_cast<const float4 *>(&smem_row[(q * threads + t) * 4]);
}

template <bool ALIGNED>
__global__ void __launch_bounds__(NUM_THREADS) wide_fragments_kernel(const float *A,    // (M, K)
                                                                     const float *B,    // (N, K)
                                                                     const float *bias, // (N) or NULL
                                                                     float *C,          // (M, N)
                                                                     int M, int N, int K, bool C_aligned)
{
    __shared__ __align__(16) SharedStorage smem;
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int x = warp % WARPS_N * WARP_THREADS_N + lane % WARP_THREADS_N; // along n when computing
    const int y = warp / WARPS_N * WARP_THREADS_M + lane / WARP_THREADS_N; // along m when computing
    const int block_row = blockIdx.y * BLOCK_M;
    const int block_col = blockIdx.x * BLOCK_N;

    float acc[THREAD_M][THREAD_N] = {};
    for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
        load_tile<ALIGNED, BLOCK_M>(smem.A_smem, A, block_row, M, k0, K, tid);
        load_tile<ALIGNED, BLOCK_N>(smem.B_smem, B, block_col, N, k0, K, tid);
        __syncthreads(); // The tiles are complete before anyone reads them.

        for (int k = 0; k < BLOCK_K; k++) {
            float A_frag[THREAD_M], B_frag[THREAD_N];
            load_frag(A_frag, smem.A_smem[k], y, THREADS_M);
            load_frag(B_frag, smem.B_smem[k], x, THREADS_N);
            for (int i = 0; i < THREAD_M; i++)
                for (int j = 0; j < THREAD_N; j++) acc[i][j] += A_frag[i] * B_frag[j];
        }
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; i++) {
        const int row = block_row + (i / 4 * THREADS_M + y) * 4 + i % 4;
        if (row >= M) break;
#pragma unroll
        for (int q = 0; q < THREAD_N / 4; q++) {
            const int col = block_col + (q * THREADS_N + x) * 4;
            float *dst = C + (size_t)row * N + col;
            float quad[4];
            for (int j = 0; j < 4; j++)
                quad[j] = acc[i][q * 4 + j] + (bias && col + j < N ? bias[col + j] : 0.0f);
            if (C_aligned) { // N % 4 == 0: all four are inside, or none
                if (col < N)
                    *reinterpret_cast<float4 *>(dst) = make_float4(quad[0], quad[1], quad[2], quad[3]);
            } else {
                for (int j = 0; j < 4; j++)
                    if (col + j < N) dst[j] = quad[j];
            }
        }
    }
}

extern "C" cudaError_t wide_fragments(const float *A, const float *B, const float *bias, float *C, int M,
                                      int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    const bool C_aligned = N % 4 == 0 && (uintptr_t)C % 16 == 0;
    if (K % 4 == 0 && (uintptr_t)A % 16 == 0 && (uintptr_t)B % 16 == 0)
        wide_fragments_kernel<true><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K, C_aligned);
    else
        wide_fragments_kernel<false><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K, C_aligned);
    return cudaGetLastError();
}
