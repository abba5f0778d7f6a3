// What step 4 has in common with chapter 20: a warpgroup's products, their promotion, and D's way out by TMA, in blocks that stay.
#pragma once
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tile_order.cuh"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "gemm.cuh"

constexpr int MMA_K = 32;            // k of a wgmma
constexpr int STORE_ROW_BYTES = 128; // of shared memory, for a row of a piece of D's tile

enum NamedBarrier {
    STORE = 1, // 0 is __syncthreads(); of warpgroups that store their own rows each, the next has the next
};

// A block's warpgroups, the producer and those that multiply, and a thread's registers in each.
template <int CONSUMERS_>
struct Warpgroups {
    static constexpr int CONSUMERS = CONSUMERS_,
                         NUM_THREADS = (1 + CONSUMERS) * 128; // the first is the producer
    static constexpr int PRODUCER_REGS = 40, CONSUMER_REGS = CONSUMERS == 2 ? 232 : 152;
    static constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536
    static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <= (1 + CONSUMERS) * LAUNCH_REGS,
                  "setmaxnreg moves registers of the block, it makes none");
};

// Columns of D in a piece, at most a row of shared memory.
template <int BLOCK_N, typename TD>
constexpr int STORE_COLS = sizeof(TD) == 2 && BLOCK_N % 64 == 0 ? 64 : 32;

// Pieces there is room for: of 64 columns the whole tile.
template <int BLOCK_N>
constexpr int STORE_PIECES = (BLOCK_N + 63) / 64;

// About how many clocks a block spends on a step of k: those that the tensor cores work, and those that they wait for products to
// end, to be promoted and to begin, which hardly depend on the tile (from trials on an H200, notes/19_fp8_gemm.md). `waves`: times
// 64 rows that a warpgroup has.
constexpr int step_clocks(int consumers, int waves, int block_n)
{
    return consumers * waves * 2 * block_n + (waves == 2 ? 380 : consumers == 2 ? 300 : 250);
}

// Multiplies a warpgroup's 64 rows of a tile. A descriptor counts in units of 16 bytes.
template <int BLOCK_N>
__device__ inline void mma_tile(float (&acc)[BLOCK_N / 2], uint64_t A_desc, uint64_t B_desc)
{
#pragma unroll
    for (int slice = 0; slice < GROUP / MMA_K; slice++)
        wgmma_e4m3<BLOCK_N>(acc, A_desc + slice * MMA_K / 16, B_desc + slice * MMA_K / 16, slice > 0);
}

// A consumer warpgroup's products for one tile and their sum: WAVES times 64 rows, one time after the other in the same
// accumulators. smem has full and empty barriers, A_smem, B_smem and scale_smem of each stage: the warpgroup's rows of A begin at
// warpgroup_row, their scales at scale_row. scale_B: of the first square of the tile's columns, (k_tiles); next_square: from there
// to the second's; `first` columns are in the first. A stage is given back to all CLUSTER blocks.
template <int BLOCK_N, int CLUSTER, int WAVES, typename STORAGE, int NUM_STAGES>
__device__ inline void consume(float (&sum)[WAVES][BLOCK_N / 2], STORAGE &smem,
                               PipelineState<NUM_STAGES> &state, const float *scale_B, int next_square,
                               int first, int warpgroup_row, int scale_row, int k_tiles, int tid)
{
    const int row0 = scale_row + tid / 32 * 16 + tid % 32 / 4; // this thread's; the other is 8 further
    const uint64_t A_desc = uniform(wgmma_descriptor(smem.A_smem[0][warpgroup_row]));
    const uint64_t B_desc = uniform(wgmma_descriptor(smem.B_smem[0][0]));
    LaneScales first_B(scale_B, k_tiles), second_B(scale_B + next_square, k_tiles);
    with_first<BLOCK_N>(first, [&](auto in_first) {
        float acc[BLOCK_N / 2];
        __builtin_assume(k_tiles > 0); // Else the compiler puts zeros into the sums twice.
#pragma unroll 4 // So that the next stage is waited for in the midst of this one's promotion.
        for (int k = 0; k < k_tiles; k++) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.full[state.stage], state.parity);
            float B0, B1;
#pragma unroll
            for (int wave = 0; wave < WAVES; wave++) {
                const float scale0 = smem.scale_smem[state.stage][row0 + wave * 64];
                const float scale1 = smem.scale_smem[state.stage][row0 + wave * 64 + 8];
                wgmma_touch(acc);
                wgmma_fence();
                mma_tile<BLOCK_N>(
                    acc, A_desc + (state.stage * (int)sizeof smem.A_smem[0] + wave * 64 * GROUP) / 16,
                    B_desc + state.stage * (int)(sizeof smem.B_smem[0] / 16));
                wgmma_commit_group();
                if (wave == 0) B0 = first_B[k], B1 = second_B[k];
                const Scales scales = {{scale0 * B0, scale1 * B0}, {scale0 * B1, scale1 * B1}};
                wgmma_wait_group<0>();
                wgmma_touch(acc);
                if (wave == WAVES - 1) {
                    __syncwarp(); // Every lane has read its scales.
                    if (tid % 32 < CLUSTER) mbarrier_arrive_cluster(&smem.empty[state.stage], tid % 32);
                }
                promote<in_first>(sum[wave], acc, scales);
            }
            state.advance();
        }
    });
}

// A consumer warp that has nothing to multiply gives a tile's stages back as they come.
template <int CLUSTER, typename STORAGE, int NUM_STAGES>
__device__ inline void pass_stages(STORAGE &smem, PipelineState<NUM_STAGES> &state, int k_tiles, int tid)
{
    for (int k = 0; k < k_tiles; k++) {
        mbarrier_wait(&smem.full[state.stage], state.parity);
        if (tid % 32 < CLUSTER) mbarrier_arrive_cluster(&smem.empty[state.stage], tid % 32);
        state.advance();
    }
}

// Writes a warp's 16 rows of a piece's sums to shared memory, where the piece's rows begin at D_smem and the warp's at `row`.
template <int COLS, typename TD>
__device__ inline void write_piece(char *D_smem, const float *sum, int row, int lane)
{
#pragma unroll
    for (int j = 0; j < COLS / 8; j += 2) { // 16 columns: two times four accumulators
        const float *value = &sum[j * 4];
        if constexpr (sizeof(TD) == 2) {
            // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
            const uint32_t pairs[4] = {pack_pair<TD>(value[0], value[1]), pack_pair<TD>(value[2], value[3]),
                                       pack_pair<TD>(value[4], value[5]), pack_pair<TD>(value[6], value[7])};
            const uint32_t offset = (row + lane % 16) * STORE_ROW_BYTES + (j + lane / 16) * 16;
            stmatrix_x4(smem_addr(D_smem) + swizzle(offset, 3), pairs);
        } else {
#pragma unroll
            for (int r = 0; r < 8; r += 2) { // rows l / 4 and + 8, columns in pairs of 8 bytes
                const uint32_t offset = (row + lane / 4 + r % 4 / 2 * 8) * STORE_ROW_BYTES +
                                        ((j + r / 4) * 8 + lane % 4 * 2) * sizeof(TD);
                store_pair(reinterpret_cast<TD *>(D_smem + swizzle(offset, 3)), value[r], value[r + 1]);
            }
        }
    }
}

// Writes a tile's sums to D from (row, col) on, a TMA store for each piece of its columns: all rows at once, when all consumers are there
// (TOGETHER), or this warpgroup's, which begin at warpgroup_row of the tile. Pieces that there is no room for, of fp32 or of an odd width,
// go behind the first. ADD: it adds them to D.
template <int BLOCK_N, typename TD, bool TOGETHER, bool ADD = false, int WAVES, int PIECES, int PIECE_BYTES>
__device__ inline void store_tile_tma(char (&D_smem)[PIECES][PIECE_BYTES], const CUtensorMap &D_map,
                                      const float (&sum)[WAVES][BLOCK_N / 2], int row, int col,
                                      int warpgroup_row)
{
    constexpr int COLS = STORE_COLS<BLOCK_N, TD>, TILE_PIECES = BLOCK_N / COLS;
    constexpr int ROWS = WAVES * 64; // of a warpgroup
    constexpr int NUM_STORE_THREADS = TOGETHER ? PIECE_BYTES / STORE_ROW_BYTES / ROWS * 128 : 128;
    const int thread = TOGETHER ? threadIdx.x - 128 : threadIdx.x % 128; // behind the producer's
    const int lane = thread % 32, warp_row = warpgroup_row + thread / 32 % 4 * 16;
    const int store_row = TOGETHER ? 0 : warpgroup_row, barrier = STORE + store_row / ROWS;
#pragma unroll
    for (int first = 0; first < TILE_PIECES; first += PIECES) {
        const int pieces = min(PIECES, TILE_PIECES - first);
        if (thread < PIECES) cp_async_bulk_wait_group_read<0>(); // What it sent from here before has left,
        named_barrier_sync(barrier, NUM_STORE_THREADS);          // and all of it.
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
#pragma unroll
            for (int piece = 0; piece < pieces; piece++)
                write_piece<COLS, TD>(D_smem[piece], &sum[wave][(first + piece) * COLS / 2],
                                      warp_row + wave * 64, lane);
        fence_proxy_async();                            // What this thread wrote is there for TMA,
        named_barrier_sync(barrier, NUM_STORE_THREADS); // and what the others wrote.
        if (thread < pieces) {
            const int piece_col = col + (first + thread) * COLS;
            const char *rows = D_smem[thread] + store_row * STORE_ROW_BYTES;
            if (ADD)
                cp_reduce_async_bulk_tensor_2d_add(D_map, rows, piece_col, row + store_row);
            else
                cp_async_bulk_tensor_2d_store(D_map, rows, piece_col, row + store_row);
            cp_async_bulk_commit_group();
        }
    }
}
