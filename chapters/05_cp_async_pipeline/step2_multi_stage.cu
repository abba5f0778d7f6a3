// Chapter 5, step 2: a ring of stages needs one barrier a tile, and copies start behind the products.
//
// Question: with two stages the copies of a tile start when everyone has met twice; can they start with one
// barrier, and out of the way of what a warp wants first?
//
// A round: wait for this tile, meet at the barrier, multiply, start the copy of the tile NUM_STAGES - 1 ahead.
// The copy comes last: what a warp wants first behind the barrier is its fragments, and ldmatrix would queue
// behind the copies.
//
//      stage    0     1     2        The stage of tile t + 2 is that of tile t - 1, and everyone who has
//      t = 0   mma    f     2        passed the barrier of round t has multiplied tile t - 1: the barrier that
//      t = 1    3    mma    f        shows the arrived tile also frees the old one.
//      t = 2    f     4    mma       (f: in flight during the mma; a number: that tile's copy starts after it)
//
// So NUM_STAGES - 2 tiles are in flight while one is multiplied: 32 KB of a block's 96 with three stages, none with two,
// which therefore overlap nothing and are refused. The note derives it, with Little's law for this GPU.
//
// Grows from: step 1 (two_stage).
// New instructions: none. Shared memory: 98,304 bytes, two blocks on an SM. Registers: as step 1.
// Run: make chapter-5 STEP=multi_stage
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "../../common/device/ptx.cuh"
#include "../../common/device/swizzle.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time
constexpr int WARP_M = 64;   // rows of C a warp owns
constexpr int WARP_N = 64;   // columns of C a warp owns
constexpr int NUM_STAGES = 3;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int CHUNK = 8; // elements in 16 bytes, what one copy moves
constexpr int ROW_BYTES = BLOCK_K * sizeof(__nv_bfloat16);
constexpr int CHUNKS_PER_ROW = BLOCK_K / CHUNK;
constexpr int SWIZZLE_BITS = 3;                         // 8 chunks a row
constexpr int COPY_ROWS = NUM_THREADS / CHUNKS_PER_ROW; // rows the block copies at a time
static_assert(CHUNKS_PER_ROW == 1 << SWIZZLE_BITS, "the swizzle permutes the chunks of a row");
static_assert(WARP_M % MMA_M == 0 && WARP_N % MMA_N == 0 && BLOCK_K % MMA_K == 0,
              "whole mma in every direction");
static_assert(NUM_STAGES >= 3, "with two stages no copy is in flight while a tile is multiplied");
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    __nv_bfloat16 A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 49,152 bytes
    __nv_bfloat16 B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 49,152 bytes
};

// Starts to copy rows [row0, row0 + ROWS) and columns [k0, k0 + BLOCK_K) of a (num_rows, K) matrix to the
// tile at tile_addr, 16 bytes a thread and turn. Past every edge the tile gets zeros: they add nothing. K % 8
// == 0: a chunk is inside or outside.
template <int ROWS>
static __device__ void load_tile(uint32_t tile_addr, const __nv_bfloat16 *matrix, int row0, int num_rows,
                                 int k0, int K, int tid)
{
    const int col = tid % CHUNKS_PER_ROW * CHUNK;
#pragma unroll
    for (int i = 0; i < ROWS / COPY_ROWS; i++) {
        const int row = tid / CHUNKS_PER_ROW + i * COPY_ROWS;
        const bool inside = row0 + row < num_rows && k0 + col < K;
        const __nv_bfloat16 *src = matrix + (size_t)(row0 + row) * K + k0 + col;
        const uint32_t dst_addr =
            tile_addr + swizzle(row * ROW_BYTES + col * sizeof(__nv_bfloat16), SWIZZLE_BITS);
        cp_async_cg_16(dst_addr, src, inside ? 16 : 0);
    }
}

// Adds the products of one pair of tiles to a warp's accumulators. A_addr and B_addr are this lane's ldmatrix
// rows.
static __device__ void mma_tile(float (&acc)[WARP_M / MMA_M][WARP_N / MMA_N][4], uint32_t A_addr,
                                uint32_t B_addr)
{
#pragma unroll
    for (int k = 0; k < BLOCK_K / MMA_K; k++) {
        const uint32_t k_bytes = k * MMA_K * sizeof(__nv_bfloat16);
        uint32_t A_frag[WARP_M / MMA_M][4], B_frag[WARP_N / MMA_N][2];
        for (int i = 0; i < WARP_M / MMA_M; i++)
            ldmatrix_x4(A_frag[i], (A_addr ^ k_bytes) + i * MMA_M * ROW_BYTES);
        for (int j = 0; j < WARP_N / MMA_N; j++)
            ldmatrix_x2(B_frag[j], (B_addr ^ k_bytes) + j * MMA_N * ROW_BYTES);
        for (int i = 0; i < WARP_M / MMA_M; i++)
            for (int j = 0; j < WARP_N / MMA_N; j++) mma_m16n8k16_bf16(acc[i][j], A_frag[i], B_frag[j]);
    }
}

// Writes a warp's accumulators, with the bias, to the rows and columns from (row0, col0) on. A lane holds
// pairs of neighbouring columns; they are one 4-byte store when N is even, which keeps every pair of every
// row aligned.
static __device__ void store_tile(__nv_bfloat16 *C, const __nv_bfloat16 *bias,
                                  const float (&acc)[WARP_M / MMA_M][WARP_N / MMA_N][4], int row0, int col0,
                                  int M, int N, int lane)
{
#pragma unroll
    for (int j = 0; j < WARP_N / MMA_N; j++) {
        const int col = col0 + j * MMA_N + lane % 4 * 2;
        const float bias_0 = bias && col < N ? __bfloat162float(bias[col]) : 0.0f;
        const float bias_1 = bias && col + 1 < N ? __bfloat162float(bias[col + 1]) : 0.0f;
#pragma unroll
        for (int i = 0; i < WARP_M / MMA_M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8 of a piece
                const int row = row0 + i * MMA_M + half * 8 + lane / 4;
                if (row >= M) continue;
                const __nv_bfloat162 pair =
                    __floats2bfloat162_rn(acc[i][j][half * 2] + bias_0, acc[i][j][half * 2 + 1] + bias_1);
                __nv_bfloat16 *dst = C + (size_t)row * N + col;
                if (N % 2 == 0) {
                    if (col < N) *reinterpret_cast<__nv_bfloat162 *>(dst) = pair;
                } else {
                    if (col < N) dst[0] = pair.x;
                    if (col + 1 < N) dst[1] = pair.y;
                }
            }
    }
}

__global__ void __launch_bounds__(NUM_THREADS, 2) multi_stage_kernel(const __nv_bfloat16 *A,    // (M, K)
                                                                     const __nv_bfloat16 *B,    // (N, K)
                                                                     const __nv_bfloat16 *bias, // (N) or NULL
                                                                     __nv_bfloat16 *C,          // (M, N)
                                                                     int M, int N, int K)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage &smem = *reinterpret_cast<SharedStorage *>(smem_bytes);
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_col = warp % WARPS_N * WARP_N;
    const int block_row = blockIdx.y * BLOCK_M;
    const int block_col = blockIdx.x * BLOCK_N;

    // Lanes 0-15 give rows 0-15 of A's left half, 16-31 of its right half; lanes 0-7 and 8-15 the same of B's
    // 8 rows (lanes 16-31 repeat them: ldmatrix.x2 does not look).
    const uint32_t A_addr = smem_addr(smem.A_smem[0]) +
                            swizzle((warp_row + lane % 16) * ROW_BYTES + lane / 16 * 16, SWIZZLE_BITS);
    const uint32_t B_addr = smem_addr(smem.B_smem[0]) +
                            swizzle((warp_col + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16, SWIZZLE_BITS);

    const int num_tiles = (K - 1) / BLOCK_K + 1;
    const auto load_stage = [&](int tile, int stage) {
        if (tile < num_tiles) {
            load_tile<BLOCK_M>(smem_addr(smem.A_smem[stage]), A, block_row, M, tile * BLOCK_K, K, tid);
            load_tile<BLOCK_N>(smem_addr(smem.B_smem[stage]), B, block_col, N, tile * BLOCK_K, K, tid);
        }
        cp_async_commit_group();
    };

    // Prologue: all stages but one are in flight.
    for (int stage = 0; stage < NUM_STAGES - 1; stage++) load_stage(stage, stage);

    // Mainloop.
    float acc[WARP_M / MMA_M][WARP_N / MMA_N][4] = {};
    for (int tile = 0; tile < num_tiles; tile++) {
        const int stage = tile % NUM_STAGES;
        // EXERCISE 5.3: one turn of the loop: wait for this tile, multiply it, fill the stage that is free (about 4 lines)
        cp_async_wait_group<NUM_STAGES - 2>(); // This tile has arrived; those after it may be in flight.
        __syncthreads(); // And so has every other thread's part of it. All have read the stage filled below.

        mma_tile(acc, A_addr + stage * BLOCK_M * ROW_BYTES, B_addr + stage * BLOCK_N * ROW_BYTES);
        load_stage(tile + NUM_STAGES - 1, (tile + NUM_STAGES - 1) % NUM_STAGES);
        // STUB mma_tile(acc, A_addr + stage * BLOCK_M * ROW_BYTES, B_addr + stage * BLOCK_N * ROW_BYTES);
        // END
    }

    // Epilogue.
    store_tile(C, bias, acc, block_row + warp_row, block_col + warp_col, M, N, lane);
}

extern "C" cudaError_t multi_stage(const __nv_bfloat16 *A, const __nv_bfloat16 *B, const __nv_bfloat16 *bias,
                                   __nv_bfloat16 *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;
    if (K % CHUNK != 0 || ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C) % 16 != 0)
        return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    const cudaError_t error = cudaFuncSetAttribute(
        multi_stage_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedStorage));
    if (error != cudaSuccess) return error;
    multi_stage_kernel<<<grid, NUM_THREADS, sizeof(SharedStorage), stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
