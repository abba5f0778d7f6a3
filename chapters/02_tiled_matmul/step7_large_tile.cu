// Chapter 2, step 7: a thread has 16 x 8 outputs.
//
// Question: step 6 reads 16 floats for 64 multiply-adds; a thread may have 255 registers: what do twice the
// accumulators save?
//
//                        step 6          here
//      outputs           8 x 8           16 x 8
//      wide loads a k    4 for 64        6 for 128 multiply-adds
//      a block of C      128 x 128       256 x 128
//      elements a k      256 for 16384   384 for 32768 multiply-adds
//
// One block of 8 warps is all that fits an SM now (the note counts): 2 warps a scheduler. What hides latency is no
// longer another block, but what is in flight for each thread.
//
// Grows from: step 6 (fragments_ahead).
// New instructions: none. Shared memory: 25,088 bytes. Registers: 128 accumulators, 48 fragments and 12 floats in
// flight of at most 255 a thread.
// Run: make chapter-2 STEP=large_tile
#include "launchers.h"

#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BLOCK_M = 256; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 8;   // columns of A and B in shared memory at a time
constexpr int THREAD_M = 16; // rows of C a thread owns
constexpr int THREAD_N = 8;  // columns of C a thread owns
constexpr int THREADS_M = BLOCK_M / THREAD_M;
constexpr int THREADS_N = BLOCK_N / THREAD_N;
constexpr int NUM_THREADS = THREADS_M * THREADS_N;
constexpr int WARP_THREADS_M = 4; // a warp is 4 x 8 threads
constexpr int WARP_THREADS_N = 32 / WARP_THREADS_M;
constexpr int WARPS_N = THREADS_N / WARP_THREADS_N;
constexpr int PADDING = 4;
constexpr int NUM_STAGES = 2;
constexpr int QUADS_K = BLOCK_K / 4;             // float4s in a row of a tile
constexpr int COPY_ROWS = NUM_THREADS / QUADS_K; // rows the block copies at a time
constexpr int A_COPIES = BLOCK_M / COPY_ROWS;    // float4s a thread copies
constexpr int B_COPIES = BLOCK_N / COPY_ROWS;
static_assert(THREADS_M % WARP_THREADS_M == 0 && THREADS_N % WARP_THREADS_N == 0, "whole warps");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread's outputs are quads");
static_assert(PADDING % 4 == 0, "rows of a tile stay multiples of 16 bytes");
static_assert(BLOCK_K % 4 == 0, "rows of a tile are whole float4s");
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    float A_smem[NUM_STAGES][BLOCK_K][BLOCK_M + PADDING]; // (stage, k, m)
    float B_smem[NUM_STAGES][BLOCK_K][BLOCK_N + PADDING]; // (stage, k, n)
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

// Global memory to registers: this thread's part of the tile at row0, k0.
template <bool ALIGNED, int COPIES>
static __device__ void fetch_tile(float4 (&quads)[COPIES], const float *matrix, int row0, int num_rows,
                                  int k0, int K, int tid)
{
    for (int i = 0; i < COPIES; i++)
        quads[i] = load_quad<ALIGNED>(matrix, row0 + tid / QUADS_K + i * COPY_ROWS, num_rows,
                                      k0 + tid % QUADS_K * 4, K);
}

// Registers to shared memory, transposed to (k, row).
template <int COPIES, int ROWS>
static __device__ void store_tile(float (&tile)[BLOCK_K][ROWS + PADDING], const float4 (&quads)[COPIES],
                                  int tid)
{
    const int k = tid % QUADS_K * 4;
    for (int i = 0; i < COPIES; i++) {
        const int row = tid / QUADS_K + i * COPY_ROWS;
        tile[k + 0][row] = quads[i].x;
        tile[k + 1][row] = quads[i].y;
        tile[k + 2][row] = quads[i].z;
        tile[k + 3][row] = quads[i].w;
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
__global__ void __launch_bounds__(NUM_THREADS) large_tile_kernel(const float *A,    // (M, K)
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

    // Prologue: the first tile.
    float4 A_quads[A_COPIES], B_quads[B_COPIES];
    fetch_tile<ALIGNED>(A_quads, A, block_row, M, 0, K, tid);
    fetch_tile<ALIGNED>(B_quads, B, block_col, N, 0, K, tid);
    store_tile<A_COPIES, BLOCK_M>(smem.A_smem[0], A_quads, tid);
    store_tile<B_COPIES, BLOCK_N>(smem.B_smem[0], B_quads, tid);
    __syncthreads(); // Stage 0 is complete before anyone reads it.

    // Mainloop. While a k is multiplied, the fragments of the next k are in flight from shared memory.
    float acc[THREAD_M][THREAD_N] = {};
    float A_frag[2][THREAD_M], B_frag[2][THREAD_N]; // (k % 2, ...)
    int stage = 0;
    load_frag(A_frag[0], smem.A_smem[0][0], y, THREADS_M);
    load_frag(B_frag[0], smem.B_smem[0][0], x, THREADS_N);
    for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
        if (k0 + BLOCK_K < K) {
            fetch_tile<ALIGNED>(A_quads, A, block_row, M, k0 + BLOCK_K, K, tid);
            fetch_tile<ALIGNED>(B_quads, B, block_col, N, k0 + BLOCK_K, K, tid);
        }

#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            if (k == BLOCK_K - 1) {
                stage ^= 1; // The barrier of the last round saw everyone leave this stage.
                store_tile<A_COPIES, BLOCK_M>(smem.A_smem[stage], A_quads, tid);
                store_tile<B_COPIES, BLOCK_N>(smem.B_smem[stage], B_quads, tid);
                __syncthreads(); // The new stage is complete, and everyone has read the old one.
            }
            load_frag(A_frag[(k + 1) % 2], smem.A_smem[stage][(k + 1) % BLOCK_K], y, THREADS_M);
            load_frag(B_frag[(k + 1) % 2], smem.B_smem[stage][(k + 1) % BLOCK_K], x, THREADS_N);
#pragma unroll
            for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) acc[i][j] += A_frag[k % 2][i] * B_frag[k % 2][j];
        }
    }

    // Epilogue.
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

extern "C" cudaError_t large_tile(const float *A, const float *B, const float *bias, float *C, int M, int N,
                                  int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    const bool C_aligned = N % 4 == 0 && (uintptr_t)C % 16 == 0;
    if (K % 4 == 0 && (uintptr_t)A % 16 == 0 && (uintptr_t)B % 16 == 0)
        large_tile_kernel<true><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K, C_aligned);
    else
        large_tile_kernel<false><<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K, C_aligned);
    return cudaGetLastError();
}
