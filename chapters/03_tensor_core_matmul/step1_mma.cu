// Chapter 3, step 1: tensor cores multiply 16 x 8 x 16 pieces, a warp at a time.
//
// Question: how do the operands of a tensor core get from shared memory into the registers it reads?
//
// mma.m16n8k16 multiplies A(16,16) with B(16,8) and adds to C(16,8). A warp holds all three in registers, and
// the instruction fixes which lane holds what. ldmatrix fills those registers: it reads 8 x 8 pieces of bf16
// from shared memory, whose 8 rows are 16 bytes each at any 8 addresses, and leaves in lane l the two
// elements (l / 4, l % 4 * 2).
//
//      block 128 x 128            warp 64 x 64                 A(16,16)            B(8,16): row n holds k
//      +-------+-------+      4 x 8 pieces of 16 x 8       k 0-7   k 8-15          k 0-7   k 8-15
//      | warp0 | warp1 |      a k of 16 takes 4 A and    +-------+-------+        +-------+-------+
//      +-------+-------+      8 B fragments for 32 mma   | reg 0 | reg 2 | m 0-7  | reg 0 | reg 1 | n 0-7
//      | warp2 | warp3 |                                 | reg 1 | reg 3 | m 8-15 +-------+-------+
//      +-------+-------+                                 +-------+-------+
//
// B(16,8) is wanted with k contiguous, and in "NT" it is: rows of B are columns of the mma, nothing is transposed.
//
// What is wrong with it: a row of a tile is 128 bytes, all 32 banks. The 8 rows of an 8 x 8 piece start in
// the same bank: a bank conflict, every ldmatrix takes 8 wavefronts where 1 would do. Chapter 4 cures that.
//
// Grows from: chapter 2, step 2 (register_tile).
// New instructions: ldmatrix, mma. Shared memory: 32,768 bytes. Registers: 128 accumulators and 32 fragments a thread.
// Run: make chapter-3 STEP=mma
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "../../common/device/ptx.cuh"
#include "launchers.h"

constexpr int BLOCK_M = 128; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time
constexpr int WARP_M = 64;   // rows of C a warp owns
constexpr int WARP_N = 64;   // columns of C a warp owns
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int NUM_THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int CHUNK = 8; // elements in 16 bytes, what one copy moves
constexpr int ROW_BYTES = BLOCK_K * sizeof(__nv_bfloat16);
constexpr int CHUNKS_PER_ROW = BLOCK_K / CHUNK;
constexpr int COPY_ROWS = NUM_THREADS / CHUNKS_PER_ROW; // rows the block copies at a time
static_assert(WARP_M % MMA_M == 0 && WARP_N % MMA_N == 0 && BLOCK_K % MMA_K == 0,
              "whole mma in every direction");
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    __nv_bfloat16 A_smem[BLOCK_M][BLOCK_K]; // (m, k), 16,384 bytes
    __nv_bfloat16 B_smem[BLOCK_N][BLOCK_K]; // (n, k), 16,384 bytes
};

// Copies rows [row0, row0 + ROWS) and columns [k0, k0 + BLOCK_K) of a (num_rows, K) matrix into tile, 16
// bytes a thread and turn. Past every edge the tile gets zeros: they add nothing. K % 8 == 0: a chunk is
// inside or outside.
template <int ROWS>
static __device__ void load_tile(__nv_bfloat16 (&tile)[ROWS][BLOCK_K], const __nv_bfloat16 *matrix, int row0,
                                 int num_rows, int k0, int K, int tid)
{
    const int col = tid % CHUNKS_PER_ROW * CHUNK;
#pragma unroll
    for (int i = 0; i < ROWS / COPY_ROWS; i++) {
        const int row = tid / CHUNKS_PER_ROW + i * COPY_ROWS;
        const bool inside = row0 + row < num_rows && k0 + col < K;
        const __nv_bfloat16 *src = matrix + (size_t)(row0 + row) * K + k0 + col;
        *reinterpret_cast<uint4 *>(&tile[row][col]) =
            inside ? *reinterpret_cast<const uint4 *>(src) : make_uint4(0, 0, 0, 0);
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
        // EXERCISE 3.3: all of A's fragments of this slice of k, and all of B's, and all of their products (about 6 lines)
        for (int i = 0; i < WARP_M / MMA_M; i++)
            ldmatrix_x4(A_frag[i], A_addr + k_bytes + i * MMA_M * ROW_BYTES);
        for (int j = 0; j < WARP_N / MMA_N; j++)
            ldmatrix_x2(B_frag[j], B_addr + k_bytes + j * MMA_N * ROW_BYTES);
        for (int i = 0; i < WARP_M / MMA_M; i++)
            for (int j = 0; j < WARP_N / MMA_N; j++) mma_m16n8k16_bf16(acc[i][j], A_frag[i], B_frag[j]);
        // STUB ldmatrix_x4(A_frag[0], A_addr + k_bytes + 0 * MMA_M * ROW_BYTES);
        // STUB ldmatrix_x2(B_frag[0], B_addr + k_bytes);
        // STUB mma_m16n8k16_bf16(acc[0][0], A_frag[0], B_frag[0]);
        // END
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

__global__ void __launch_bounds__(NUM_THREADS, 2) mma_kernel(const __nv_bfloat16 *A,    // (M, K)
                                                             const __nv_bfloat16 *B,    // (N, K)
                                                             const __nv_bfloat16 *bias, // (N) or NULL
                                                             __nv_bfloat16 *C,          // (M, N)
                                                             int M, int N, int K)
{
    __shared__ __align__(128) SharedStorage smem;
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_col = warp % WARPS_N * WARP_N;
    const int block_row = blockIdx.y * BLOCK_M;
    const int block_col = blockIdx.x * BLOCK_N;

    // Lanes 0-15 give rows 0-15 of A's left half, 16-31 of its right half; lanes 0-7 and 8-15 the same of B's
    // 8 rows (lanes 16-31 repeat them: ldmatrix.x2 does not look).
    // EXERCISE 3.2: the row of 16 bytes that this lane gives to ldmatrix, of A's pieces and of B's (2 lines)
    const uint32_t A_addr = smem_addr(&smem.A_smem[warp_row + lane % 16][lane / 16 * 8]);
    const uint32_t B_addr = smem_addr(&smem.B_smem[warp_col + lane % 8][lane / 8 % 2 * 8]);
    // STUB const uint32_t A_addr = smem_addr(&smem.A_smem[warp_row][0]), B_addr = smem_addr(&smem.B_smem[warp_col][0]);
    // END

    // Mainloop.
    float acc[WARP_M / MMA_M][WARP_N / MMA_N][4] = {};
    for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
        load_tile(smem.A_smem, A, block_row, M, k0, K, tid);
        load_tile(smem.B_smem, B, block_col, N, k0, K, tid);
        __syncthreads(); // The tiles are complete before anyone reads them.

        mma_tile(acc, A_addr, B_addr);
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

    // Epilogue.
    store_tile(C, bias, acc, block_row + warp_row, block_col + warp_col, M, N, lane);
}

extern "C" cudaError_t mma(const __nv_bfloat16 *A, const __nv_bfloat16 *B, const __nv_bfloat16 *bias,
                           __nv_bfloat16 *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;
    if (K % CHUNK != 0 || ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C) % 16 != 0)
        return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    mma_kernel<<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
