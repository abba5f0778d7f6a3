// Chapter 5, step 5: fewer instructions between two mma.
//
// Question: step 4 computes, for each of its 16 copies a tile, an address, a swizzle and two tests for the edges; a
// scheduler that issues those issues no mma. What need not be computed in the loop?
//
//      was                                      is
//      address of each copy: row * K + k        pointers that advance by BLOCK_K, a step of COPY_ROWS rows
//      swizzle of each copy                     one: rows COPY_ROWS apart have the same
//      address of each fragment                 XOR first (the same in all rounds), then the stage (in all lanes)
//      tile % NUM_STAGES                        two counters that wrap
//      is the row inside?                       INSIDE: compiled without the question where tiles are whole
//      is there a tile to copy?                 no question: past the end a copy reads 0 bytes
//      mma in any order                         neighbours share a fragment
//
// One step and not seven: all are the same idea, and most need another. A copy has one swizzle because a thread keeps to
// one column and advances; its pointers may go past the end because nothing is read there; the edge leaves the loop with both.
//
// Grows from: step 4 (wide_loads).
// New instructions: none. Shared memory: 98,304 bytes, two blocks on an SM. Registers: about 250 a thread.
// Run: make chapter-5 STEP=lean_loop
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
constexpr int SLICES = BLOCK_K / MMA_K;
constexpr int SWIZZLE_BITS = 3;                         // 8 chunks a row
constexpr int COPY_ROWS = NUM_THREADS / CHUNKS_PER_ROW; // rows the block copies at a time
static_assert(CHUNKS_PER_ROW == 1 << SWIZZLE_BITS, "the swizzle permutes the chunks of a row");
static_assert(WARP_M % MMA_M == 0 && WARP_N % MMA_N == 0 && BLOCK_K % MMA_K == 0,
              "whole mma in every direction");
static_assert(NUM_STAGES >= 2, "a tile is multiplied while the next one is copied");
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    __nv_bfloat16 A_smem[NUM_STAGES][BLOCK_M][BLOCK_K]; // (stage, m, k), 49,152 bytes
    __nv_bfloat16 B_smem[NUM_STAGES][BLOCK_N][BLOCK_K]; // (stage, n, k), 49,152 bytes
};

// Starts this thread's copies of a tile, 16 bytes each, every COPY_ROWS rows: to dst_addr on, from src on.
// Past every edge the tile gets zeros: they add nothing. INSIDE: no tile has a row past the edge, and nobody
// has to look.
template <bool INSIDE, int ROWS>
static __device__ void load_tile(uint32_t dst_addr, const __nv_bfloat16 *src, size_t src_step, int rows_left,
                                 bool k_inside)
{
#pragma unroll
    for (int i = 0; i < ROWS / COPY_ROWS; i++) {
        const bool inside = k_inside && (INSIDE || i * COPY_ROWS < rows_left);
        cp_async_cg_16(dst_addr + i * COPY_ROWS * ROW_BYTES, src + i * src_step, inside ? 16 : 0);
    }
}

// Reads the fragments of one k slice of a stage. A_addr and B_addr are this lane's ldmatrix rows in stage 0.
// XOR comes first: what it gives for each slice is the same in all rounds, and the stage's offset the same in
// all lanes.
static __device__ void load_frags(uint32_t (&A_frag)[WARP_M / MMA_M][4],
                                  uint32_t (&B_frag)[WARP_N / MMA_N][2], uint32_t A_addr, uint32_t B_addr,
                                  int stage, int slice)
{
    const uint32_t k_bytes = slice * MMA_K * sizeof(__nv_bfloat16);
#pragma unroll
    for (int i = 0; i < WARP_M / MMA_M; i++)
        ldmatrix_x4(A_frag[i], (A_addr ^ k_bytes) + (stage * BLOCK_M + i * MMA_M) * ROW_BYTES);
#pragma unroll
    for (int j = 0; j < WARP_N / MMA_N; j += 2) {
        uint32_t pair[4]; // two neighbouring B fragments
        ldmatrix_x4(pair, (B_addr ^ k_bytes) + (stage * BLOCK_N + j * MMA_N) * ROW_BYTES);
        B_frag[j][0] = pair[0];
        B_frag[j][1] = pair[1];
        B_frag[j + 1][0] = pair[2];
        B_frag[j + 1][1] = pair[3];
    }
}

// Multiplies one k slice, down and up the columns in turn: neighbouring mma share a fragment.
static __device__ void mma_slice(float (&acc)[WARP_M / MMA_M][WARP_N / MMA_N][4],
                                 const uint32_t (&A_frag)[WARP_M / MMA_M][4],
                                 const uint32_t (&B_frag)[WARP_N / MMA_N][2])
{
#pragma unroll
    for (int j = 0; j < WARP_N / MMA_N; j++)
#pragma unroll
        for (int n = 0; n < WARP_M / MMA_M; n++) {
            const int i = j % 2 == 0 ? n : WARP_M / MMA_M - 1 - n;
            mma_m16n8k16_bf16(acc[i][j], A_frag[i], B_frag[j]);
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

template <bool INSIDE>
__global__ void __launch_bounds__(NUM_THREADS, 2) lean_loop_kernel(const __nv_bfloat16 *A,    // (M, K)
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

    // Lanes 0-15 give rows 0-15 of A's left half, 16-31 of its right half. B: lanes 0-7 and 8-15 give the
    // halves of one fragment's 8 rows, lanes 16-31 those of the next.
    const uint32_t A_addr = smem_addr(smem.A_smem[0]) +
                            swizzle((warp_row + lane % 16) * ROW_BYTES + lane / 16 * 16, SWIZZLE_BITS);
    const uint32_t B_addr =
        smem_addr(smem.B_smem[0]) +
        swizzle((warp_col + lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16, SWIZZLE_BITS);

    // This thread copies 16 bytes of every COPY_ROWS-th row: the swizzle is the same for all of them.
    const int copy_row = tid / CHUNKS_PER_ROW;
    const int copy_col = tid % CHUNKS_PER_ROW * CHUNK;
    const uint32_t copy_offset =
        swizzle(copy_row * ROW_BYTES + copy_col * sizeof(__nv_bfloat16), SWIZZLE_BITS);
    const uint32_t A_dst = smem_addr(smem.A_smem[0]) + copy_offset;
    const uint32_t B_dst = smem_addr(smem.B_smem[0]) + copy_offset;
    const size_t src_step = (size_t)COPY_ROWS * K;

    // The copies run ahead of the products. After the last tile k_left is at or below 0: a copy then reads nothing,
    // and the loop below needs no branch around it.
    const __nv_bfloat16 *A_src = A + (size_t)(block_row + copy_row) * K + copy_col;
    const __nv_bfloat16 *B_src = B + (size_t)(block_col + copy_row) * K + copy_col;
    const int A_left = M - block_row - copy_row; // rows and columns to the edge
    const int B_left = N - block_col - copy_row;
    int k_left = K;
    const auto load_stage = [&](int stage) {
        load_tile<INSIDE, BLOCK_M>(A_dst + stage * BLOCK_M * ROW_BYTES, A_src, src_step, A_left,
                                   copy_col < k_left);
        load_tile<INSIDE, BLOCK_N>(B_dst + stage * BLOCK_N * ROW_BYTES, B_src, src_step, B_left,
                                   copy_col < k_left);
    };
    const auto advance = [&]() {
        A_src += BLOCK_K;
        B_src += BLOCK_K;
        k_left -= BLOCK_K;
    };

    // Prologue: all stages but one are in flight, and the fragments of the first slice are in registers.
#pragma unroll
    for (int stage = 0; stage < NUM_STAGES - 1; stage++) {
        load_stage(stage);
        advance();
        cp_async_commit_group();
    }
    cp_async_wait_group<NUM_STAGES - 2>();
    __syncthreads();
    uint32_t A_frag[2][WARP_M / MMA_M][4], B_frag[2][WARP_N / MMA_N][2]; // (slice % 2, ...)
    load_frags(A_frag[0], B_frag[0], A_addr, B_addr, 0, 0);

    // Mainloop. While one slice is multiplied, the fragments of the next are in flight from shared memory.
    int stage = 0, free_stage = NUM_STAGES - 1;
    float acc[WARP_M / MMA_M][WARP_N / MMA_N][4] = {};
    for (unsigned k = 0; k < (unsigned)K; k += BLOCK_K) {
        const int next_stage = stage + 1 == NUM_STAGES ? 0 : stage + 1;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const bool last = slice == SLICES - 1;
            if (last) {
                cp_async_wait_group<NUM_STAGES - 2>(); // The next stage has arrived,
                __syncthreads(); // every thread's part. Everyone has read this stage's last fragments.
            }
            load_frags(A_frag[(slice + 1) % 2], B_frag[(slice + 1) % 2], A_addr, B_addr,
                       last ? next_stage : stage, (slice + 1) % SLICES);
            if (slice == 0) {
                load_stage(free_stage);
                cp_async_commit_group();
            }
            mma_slice(acc, A_frag[slice % 2], B_frag[slice % 2]);
        }
        free_stage = stage;
        stage = next_stage;
        advance();
    }

    // Epilogue. It touches no shared memory.
    store_tile(C, bias, acc, block_row + warp_row, block_col + warp_col, M, N, lane);
    cp_async_wait_group<0>(); // No copy outlives its block.
}

extern "C" cudaError_t lean_loop(const __nv_bfloat16 *A, const __nv_bfloat16 *B, const __nv_bfloat16 *bias,
                                 __nv_bfloat16 *C, int M, int N, int K, cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;
    if (K % CHUNK != 0 || ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C) % 16 != 0)
        return cudaErrorInvalidValue;

    const dim3 grid((N - 1) / BLOCK_N + 1, (M - 1) / BLOCK_M + 1);
    const bool inside = M % BLOCK_M == 0 && N % BLOCK_N == 0;
    const auto kernel = inside ? lean_loop_kernel<true> : lean_loop_kernel<false>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedStorage));
    if (error != cudaSuccess) return error;
    kernel<<<grid, NUM_THREADS, sizeof(SharedStorage), stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
