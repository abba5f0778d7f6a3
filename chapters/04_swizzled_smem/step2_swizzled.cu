// Chapter 4, step 2: XOR swizzle. The chunks of each row change places, and no byte is wasted.
//
// Question: can the 8 rows of an 8 x 8 piece lie in different banks without padding?
//
// A row is 8 chunks of 16 bytes. Chunk c of row r is kept in place c ^ (r % 8) of that row
// (common/device/swizzle.cuh). A column of chunks, which ldmatrix reads, then has one chunk in each of the 8 places;
// a row, which the copy writes, has them all, in another order. Both take one wavefront. Within a row the map is a
// permutation: XOR with r undoes itself.
//
//      place    0  1  2  3  4  5  6  7
//      row 0    0  1  2  3  4  5  6  7
//      row 1    1  0  3  2  5  4  7  6        chunk 0 of rows 0-7: places 0 1 2 3 4 5 6 7
//      row 2    2  3  0  1  6  7  4  5
//      row 3    3  2  1  0  7  6  5  4
//
// A lane swizzles its ldmatrix address once. 16 k further on is chunk c ^ 2, 4 or 6 for its even or odd c, so
// the next addresses are the first one ^ 32, 64, 96: (c ^ step) ^ r == (c ^ r) ^ step. Rows 16 further on
// have the same r % 8, and are an ordinary addition. Tiles start at a multiple of 1,024 bytes, so the bits
// that XOR changes are the chunk's.
//
// Grows from: step 1 (padded).
// New instructions: none. Shared memory: 32,768 bytes. Registers: as chapter 3.
// Run: make chapter-4 STEP=swizzled
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
        // EXERCISE 4.2: where in the tile this chunk is kept, so that ldmatrix meets no bank conflict (about 2 lines)
        char *dst = reinterpret_cast<char *>(tile) +
                    swizzle(row * ROW_BYTES + col * sizeof(__nv_bfloat16), SWIZZLE_BITS);
        // STUB __nv_bfloat16 *dst = &tile[row][col];
        // END
        *reinterpret_cast<uint4 *>(dst) =
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
        // EXERCISE 4.3: these are chapter 3's addresses: what must they be in swizzled tiles? (4 lines)
        for (int i = 0; i < WARP_M / MMA_M; i++)
            ldmatrix_x4(A_frag[i], (A_addr ^ k_bytes) + i * MMA_M * ROW_BYTES);
        for (int j = 0; j < WARP_N / MMA_N; j++)
            ldmatrix_x2(B_frag[j], (B_addr ^ k_bytes) + j * MMA_N * ROW_BYTES);
        // STUB for (int i = 0; i < WARP_M / MMA_M; i++)
        // STUB     ldmatrix_x4(A_frag[i], A_addr + k_bytes + i * MMA_M * ROW_BYTES);
        // STUB for (int j = 0; j < WARP_N / MMA_N; j++)
        // STUB     ldmatrix_x2(B_frag[j], B_addr + k_bytes + j * MMA_N * ROW_BYTES);
        // END
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

__global__ void __launch_bounds__(NUM_THREADS, 2) swizzled_kernel(const __nv_bfloat16 *A,    // (M, K)
                                                                  const __nv_bfloat16 *B,    // (N, K)
                                                                  const __nv_bfloat16 *bias, // (N) or NULL
                                                                  __nv_bfloat16 *C,          // (M, N)
                                                                  int M, int N, int K)
{
    __shared__ __align__(1024) SharedStorage smem;
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_col = warp % WARPS_N * WARP_N;
    const int block_row = blockIdx.y * BLOCK_M;
    const int block_col = blockIdx.x * BLOCK_N;

    // Lanes 0-15 give rows 0-15 of A's left half, 16-31 of its right half; lanes 0-7 and 8-15 the same of B's
    // 8 rows (lanes 16-31 repeat them: ldmatrix.x2 does not look).
    const uint32_t A_addr =
        smem_addr(smem.A_smem) + swizzle((warp_row + lane % 16) * ROW_BYTES + lane / 16 * 16, SWIZZLE_BITS);
    const uint32_t B_addr =
        smem_addr(smem.B_smem) + swizzle((warp_col + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16, SWIZZLE_BITS);

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

extern "C" cudaError_t swizzled(const __nv_bfloat16 *A, const __nv_bfloat16 *B, const __nv_bfloat16 *bias,
                                __nv_bfloat16 *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;
    if (K % CHUNK != 0 || ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C) % 16 != 0)
        return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    swizzled_kernel<<<grid, NUM_THREADS, 0, stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
