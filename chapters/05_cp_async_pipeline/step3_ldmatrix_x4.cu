// Chapter 5, step 3: the fragments of the next slice are always on their way, and fewer instructions lie
// between two mma.
//
// Question: the tiles arrive in time; what keeps the tensor cores waiting now?
//
// 1. A warp waits for its fragments at every slice of 16 k. So it loads those of the next slice while it
//    multiplies this one, into a second set of registers, and goes on across the stage boundary: wait and
//    barrier come before the last slice of a tile, whose fragments are in registers already.
//
//      slice    0           1           2           3           0 of the next tile
//      load     frag 1      frag 2      frag 3      wait, frag 0'   frag 1'
//      mma      frag 0      frag 1      frag 2      frag 3          frag 0'
//
// 2. A scheduler issues one instruction a cycle, and what is not an mma delays the next one. ldmatrix.x4
// brings two B
//    fragments; pointers advance instead of being computed; a block without edges does not look for them.
// 3. Each byte from the L2 is used more often in a block of 256 x 128 (8 warps, still 64 x 64 a warp), and
// blocks that
//    run together share rows. 4. C goes through shared memory and leaves in rows of 128 bytes.
//
// Grows from: step 2. New instructions: none (ldmatrix.x4 now for B too). Shared memory: 165,888 bytes.
// Registers: 128 accumulators and 64 fragments of about 240 a thread, one block a multiprocessor.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "../../common/ptx.cuh"
#include "../../common/swizzle.cuh"

constexpr int BLOCK_M = 256; // rows of C a block owns
constexpr int BLOCK_N = 128; // columns of C a block owns
constexpr int BLOCK_K = 64;  // columns of A and B in shared memory at a time
constexpr int WARP_M = 64;   // rows of C a warp owns
constexpr int WARP_N = 64;   // columns of C a warp owns
constexpr int NUM_STAGES = 3;
constexpr int GROUP_M = 8; // rows of tiles that blocks of neighbouring numbers share
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
static_assert(BLOCK_M % COPY_ROWS == 0 && BLOCK_N % COPY_ROWS == 0, "every thread copies alike");

struct SharedStorage {
    __nv_bfloat16 A_smem[NUM_STAGES][BLOCK_M][BLOCK_K];            // (stage, m, k), 98,304 bytes
    __nv_bfloat16 B_smem[NUM_STAGES][BLOCK_N][BLOCK_K];            // (stage, n, k), 49,152 bytes
    __nv_bfloat16 C_smem[NUM_THREADS / 32][MMA_M][WARP_N + CHUNK]; // (warp, m, n), 18,432 bytes
};

// Starts this thread's copies of a tile, 16 bytes each, every COPY_ROWS rows: to dst_addr on, from src on.
// Past every edge the tile gets zeros: they add nothing. INSIDE: the block has no row past the edge, and
// nobody has to look.
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

// The product of the block's rows of A and rows of B, in the accumulators of its warps. INSIDE: no row is
// past the edge.
template <bool INSIDE>
static __device__ void mainloop(float (&acc)[WARP_M / MMA_M][WARP_N / MMA_N][4], SharedStorage &smem,
                                const __nv_bfloat16 *A, const __nv_bfloat16 *B, int block_row, int block_col,
                                int M, int N, int K, int tid)
{
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_col = warp % WARPS_N * WARP_N;

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
    const __nv_bfloat16 *A_src = A + (size_t)(block_row + copy_row) * K + copy_col;
    const __nv_bfloat16 *B_src = B + (size_t)(block_col + copy_row) * K + copy_col;
    const size_t src_step = (size_t)COPY_ROWS * K;
    int k_left = K - copy_col; // columns from A_src and B_src to the edge
    const auto load_stage = [&](int stage) {
        load_tile<INSIDE, BLOCK_M>(A_dst + stage * BLOCK_M * ROW_BYTES, A_src, src_step,
                                   M - block_row - copy_row, k_left > 0);
        load_tile<INSIDE, BLOCK_N>(B_dst + stage * BLOCK_N * ROW_BYTES, B_src, src_step,
                                   N - block_col - copy_row, k_left > 0);
        A_src += BLOCK_K;
        B_src += BLOCK_K;
        k_left -= BLOCK_K;
    };

    // Prologue: all stages but one are on their way, and the fragments of the first slice are in registers.
    const int num_tiles = (K - 1) / BLOCK_K + 1;
#pragma unroll
    for (int stage = 0; stage < NUM_STAGES - 1; stage++) {
        if (stage < num_tiles) load_stage(stage);
        cp_async_commit_group();
    }
    cp_async_wait_group<NUM_STAGES - 2>();
    __syncthreads();
    uint32_t A_frag[2][WARP_M / MMA_M][4], B_frag[2][WARP_N / MMA_N][2]; // (slice % 2, ...)
    load_frags(A_frag[0], B_frag[0], A_addr, B_addr, 0, 0);

    // Mainloop. While one slice is multiplied, the fragments of the next are on their way from shared memory.
    int stage = 0, free_stage = NUM_STAGES - 1;
    for (int tile = 0; tile < num_tiles; tile++) {
        const int next_stage = stage + 1 == NUM_STAGES ? 0 : stage + 1;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const bool last = slice == SLICES - 1;
            if (last) {
                cp_async_wait_group<NUM_STAGES - 2>(); // The next tile has arrived,
                __syncthreads(); // every thread's part. Everyone has read this tile's last fragments.
            }
            load_frags(A_frag[(slice + 1) % 2], B_frag[(slice + 1) % 2], A_addr, B_addr,
                       last ? next_stage : stage, (slice + 1) % SLICES);
            if (slice == 0) {
                if (tile + NUM_STAGES - 1 < num_tiles) load_stage(free_stage);
                cp_async_commit_group();
            }
            mma_slice(acc, A_frag[slice % 2], B_frag[slice % 2]);
        }
        free_stage = stage;
        stage = next_stage;
    }
}

// Writes a warp's accumulators, with the bias, to the rows and columns from (row0, col0) on: 16 rows at a
// time go through shared memory, where lanes exchange pairs for rows of 16 bytes. N % 8 == 0 keeps those
// aligned in C.
static __device__ void store_tile(__nv_bfloat16 *C, const __nv_bfloat16 *bias,
                                  const float (&acc)[WARP_M / MMA_M][WARP_N / MMA_N][4],
                                  __nv_bfloat16 (&C_smem)[MMA_M][WARP_N + CHUNK], int row0, int col0, int M,
                                  int N, int lane)
{
    float bias_frag[WARP_N / MMA_N][2];
#pragma unroll
    for (int j = 0; j < WARP_N / MMA_N; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int col = col0 + j * MMA_N + lane % 4 * 2 + e;
            bias_frag[j][e] = bias && col < N ? __bfloat162float(bias[col]) : 0.0f;
        }

#pragma unroll
    for (int i = 0; i < WARP_M / MMA_M; i++) {
#pragma unroll
        for (int j = 0; j < WARP_N / MMA_N; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) // rows l / 4 and l / 4 + 8 of a piece
                *reinterpret_cast<__nv_bfloat162 *>(&C_smem[half * 8 + lane / 4][j * MMA_N + lane % 4 * 2]) =
                    __floats2bfloat162_rn(acc[i][j][half * 2] + bias_frag[j][0],
                                          acc[i][j][half * 2 + 1] + bias_frag[j][1]);
        __syncwarp(); // The 16 rows are complete before any lane reads them.

        if (N % CHUNK == 0) {
#pragma unroll
            for (int c = lane; c < MMA_M * WARP_N / CHUNK; c += 32) {
                const int row = c / (WARP_N / CHUNK), col = c % (WARP_N / CHUNK) * CHUNK;
                if (row0 + i * MMA_M + row < M && col0 + col < N)
                    *reinterpret_cast<uint4 *>(C + (size_t)(row0 + i * MMA_M + row) * N + col0 + col) =
                        *reinterpret_cast<const uint4 *>(&C_smem[row][col]);
            }
        } else {
            for (int e = lane; e < MMA_M * WARP_N; e += 32) {
                const int row = e / WARP_N, col = e % WARP_N;
                if (row0 + i * MMA_M + row < M && col0 + col < N)
                    C[(size_t)(row0 + i * MMA_M + row) * N + col0 + col] = C_smem[row][col];
            }
        }
        __syncwarp(); // Every lane has read them before the next 16 take their place.
    }
}

__global__ void __launch_bounds__(NUM_THREADS, 1)
    pipeline_ldmatrix_x4_kernel(const __nv_bfloat16 *A,    // (M, K)
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

    // Blocks start in the order x, y, z. Those that run together should share rows of A and B in the L2: they
    // walk down GROUP_M tiles (x), then one to the right (y), and so on to the edge before the next GROUP_M
    // (z).
    const int block_row = (blockIdx.z * GROUP_M + blockIdx.x) * BLOCK_M;
    const int block_col = blockIdx.y * BLOCK_N;
    if (block_row >= M) return;

    float acc[WARP_M / MMA_M][WARP_N / MMA_N][4] = {};
    if (block_row + BLOCK_M <= M && block_col + BLOCK_N <= N)
        mainloop<true>(acc, smem, A, B, block_row, block_col, M, N, K, tid);
    else
        mainloop<false>(acc, smem, A, B, block_row, block_col, M, N, K, tid);

    // Epilogue. Each warp has its own C_smem, and need not wait for the others.
    store_tile(C, bias, acc, smem.C_smem[warp], block_row + warp / WARPS_N * WARP_M,
               block_col + warp % WARPS_N * WARP_N, M, N, lane);
}

extern "C" cudaError_t pipeline_ldmatrix_x4(const __nv_bfloat16 *A, const __nv_bfloat16 *B,
                                            const __nv_bfloat16 *bias, __nv_bfloat16 *C, int M, int N, int K,
                                            cudaStream_t stream)
{
    if (!A || !B || !C || M <= 0 || N <= 0 || K <= 0) return cudaErrorInvalidValue;
    if (K % CHUNK != 0 || ((uintptr_t)A | (uintptr_t)B | (uintptr_t)C) % 16 != 0)
        return cudaErrorInvalidValue;

    const int tiles_m = (M - 1) / BLOCK_M + 1;
    const dim3 grid(GROUP_M, (N - 1) / BLOCK_N + 1, (tiles_m - 1) / GROUP_M + 1);
    const cudaError_t error = cudaFuncSetAttribute(
        pipeline_ldmatrix_x4_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedStorage));
    if (error != cudaSuccess) return error;
    pipeline_ldmatrix_x4_kernel<<<grid, NUM_THREADS, sizeof(SharedStorage), stream>>>(A, B, bias, C, M, N, K);
    return cudaGetLastError();
}
