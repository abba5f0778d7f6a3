// Chapter 12, step 9: lazy rescaling. O is multiplied only when a maximum has grown by more than 2^RESCALE_LOG2.
//
// Question: for each tile a lane multiplies its D numbers of O, and exchanges maxima with its quad. After the first tiles
// of a row the factor is 1 or close to it. Must m be the maximum?
//
// No. The state (m, l, O) stands for 2^(c m) l and 2^(c m) O, and O / l is the same for any m. m is there for the range
// of numbers, not for the result: while c s exceeds c m by at most RESCALE_LOG2 = 8, P is at most 256, for which f16
// (up to 65504), bf16 and float have room, at the same relative precision as below 1. So m stays until a score passes it
// by more:
//
//      tile            1      2      3      4
//      maximum of c s  3      5      4      14
//      c m             3      3      3      14         the first tile's; 14 is more than 8 above it
//      largest P       1      4      2      1
//
// Whether it must grow, each lane tells from its own scores; only if one lane of the warp says so do the lanes of a row
// exchange their maxima, and rescale.
//
// Grows from: step 8 (folded_scale).
// New instructions: vote (__any_sync). Shared memory, registers: as step 8.
// spills: allowed, at D = 128 2 registers (on sm_80 3), addresses, read back once a tile.
// Run: make chapter-12 STEP=lazy_rescale
#include <cfloat>

#include "attention.cuh"
#include "launchers.h"

constexpr int BLOCK_Q = 128; // queries of a block
constexpr int BLOCK_KV = 64; // keys in shared memory at a time
constexpr int WARP_Q = 32;   // queries of a warp
constexpr int NUM_THREADS = BLOCK_Q / WARP_Q * 32;
constexpr int NUM_STAGES = 2; // of K
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int CHUNK = 8; // elements in 16 bytes, what one copy moves
constexpr float RESCALE_LOG2 = 8;
static_assert(WARP_Q % MMA_M == 0 && BLOCK_KV % MMA_K == 0, "whole mma in every direction");

template <typename T, int D>
struct SharedStorage {
    T Q_smem[BLOCK_Q][D];              // (query, d)
    T K_smem[NUM_STAGES][BLOCK_KV][D]; // (stage, key, d)
    T V_smem[BLOCK_KV][D];             // (key, d)
};

// Where the element (row, col) of a tile lies, in bytes from its start: chunks of 8 columns are swizzled.
template <int D>
static __device__ uint32_t smem_offset(int row, int col)
{
    return (row * D + (col ^ row % 8 * CHUNK)) * 2;
}

// The address `cols` columns to the right of an address in the first 64: an XOR within 128 bytes, then an addition.
static __device__ uint32_t move_right(uint32_t addr, int cols)
{
    return (addr ^ cols % 64 * 2) + cols / 64 * 128;
}

// Starts to copy ROWS rows of D elements from src on, row_stride apart, to the tile at tile_addr. Past the last
// of rows_left rows the tile gets zeros, so that what is masked is 0 times a number.
template <int ROWS, int D, typename T>
static __device__ void load_tile(uint32_t tile_addr, const T *src, int row_stride, int rows_left, int tid)
{
    constexpr int CHUNKS_PER_ROW = D / CHUNK;
    constexpr int COPY_ROWS = NUM_THREADS / CHUNKS_PER_ROW; // rows the block copies at a time
    static_assert(ROWS % COPY_ROWS == 0 && COPY_ROWS % 8 == 0, "every thread copies alike");
    const int row = tid / CHUNKS_PER_ROW;
    const int col = tid % CHUNKS_PER_ROW * CHUNK;
    src += (size_t)row * row_stride + col;
    tile_addr += smem_offset<D>(row, col);
#pragma unroll
    for (int i = 0; i < ROWS / COPY_ROWS; i++) {
        cp_async_cg_16(tile_addr + i * COPY_ROWS * D * 2, src, row + i * COPY_ROWS < rows_left ? 16 : 0);
        src += (size_t)COPY_ROWS * row_stride;
    }
}

// S = Q Kᵀ for a warp's queries and the keys of a tile. K is stored as mma wants B: a column of B is a key.
template <typename T, int D>
static __device__ void multiply_QK(float (&S)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4], uint32_t Q_addr,
                                   uint32_t K_addr)
{
#pragma unroll 4 // 8 at D = 128 is where ptxas runs out of registers
    for (int k = 0; k < D / MMA_K; k++) {
        uint32_t Q_frag[WARP_Q / MMA_M][4];
#pragma unroll
        for (int i = 0; i < WARP_Q / MMA_M; i++)
            ldmatrix_x4(Q_frag[i], move_right(Q_addr, k * MMA_K) + i * MMA_M * D * 2);
#pragma unroll
        for (int j = 0; j < BLOCK_KV / MMA_N; j += 2) {
            uint32_t K_frag[4]; // keys j * 8 .. j * 8 + 15
            ldmatrix_x4(K_frag, move_right(K_addr, k * MMA_K) + j * MMA_N * D * 2);
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++) {
                mma_m16n8k16<T>(S[i][j], Q_frag[i], K_frag[0], K_frag[1]);
                mma_m16n8k16<T>(S[i][j + 1], Q_frag[i], K_frag[2], K_frag[3]);
            }
        }
    }
}

// Takes away the scores of keys that a row does not see. first_row and first_col are those of the lane's S[0][0][0].
static __device__ void mask_tile(float (&S)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4], int first_row,
                                 int first_col, const attention &a)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) { // a lane's elements: rows l / 4 and l / 4 + 8, two columns each
            const int row = first_row + i * MMA_M + e / 2 * 8;
            const int keys_seen = a.causal ? min(a.k_len, row + 1 + a.k_len - a.q_len) : a.k_len;
#pragma unroll
            for (int j = 0; j < BLOCK_KV / MMA_N; j++)
                if (first_col + j * MMA_N + e % 2 >= keys_seen) S[i][j][e] = -INFINITY;
        }
}

// The online softmax: S becomes P, relative to m, and l and O follow. m is in units of S; c is scale log2(e). m starts
// at -FLT_MAX, not -inf: a row that sees no key then has P = 2^-inf = 0 rather than 2^(-inf + inf). Whether a row's m
// must grow, its lanes tell each from its own scores; they exchange their maxima only if it must.
template <int D>
static __device__ void softmax_tile(float (&S)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4],
                                    float (&m)[WARP_Q / MMA_M][2], float (&l)[WARP_Q / MMA_M][2],
                                    float (&O)[WARP_Q / MMA_M][D / MMA_N][4], float c)
{
    float lane_max[WARP_Q / MMA_M][2];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
            lane_max[i][half] = m[i][half];
#pragma unroll
            for (int j = 0; j < BLOCK_KV / MMA_N; j++)
                lane_max[i][half] = fmaxf(lane_max[i][half], fmaxf(S[i][j][half * 2], S[i][j][half * 2 + 1]));
            grown |= (lane_max[i][half] - m[i][half]) * c > RESCALE_LOG2;
        }
    if (__any_sync(0xffffffff, grown)) {
#pragma unroll
        for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float m_new = lane_max[i][half];
                m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 1)); // the quad has the row
                m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, 2));
                const float rescale = ex2_approx_ftz((m[i][half] - m_new) * c);
                m[i][half] = m_new;
                l[i][half] *= rescale;
#pragma unroll
                for (int j = 0; j < D / MMA_N; j++) {
                    O[i][j][half * 2] *= rescale;
                    O[i][j][half * 2 + 1] *= rescale;
                }
            }
    }
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCK_KV / MMA_N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[i][j][e] = ex2_approx_ftz(S[i][j][e] * c - m[i][e / 2] * c);
                l[i][e / 2] += S[i][j][e]; // this lane's part of the row; the quad's are added at the end
            }
}

// O += P V. The accumulators of two neighbouring 16 x 8 pieces of P, rounded, are a 16 x 16 piece as operand A.
template <typename T, int D>
static __device__ void multiply_PV(float (&O)[WARP_Q / MMA_M][D / MMA_N][4],
                                   const float (&P)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4], uint32_t V_addr)
{
#pragma unroll
    for (int k = 0; k < BLOCK_KV / MMA_K; k++) {
        uint32_t P_frag[WARP_Q / MMA_M][4];
#pragma unroll
        for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
            for (int r = 0; r < 4; r++) // rows 0-7 and 8-15 of the left piece, then of the right one
                P_frag[i][r] =
                    pack_pair<T>(P[i][k * 2 + r / 2][r % 2 * 2], P[i][k * 2 + r / 2][r % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < D / MMA_N; j += 2) {
            uint32_t V_frag[4]; // columns j * 8 .. j * 8 + 15
            ldmatrix_x4_trans(V_frag, move_right(V_addr, j * MMA_N) + k * MMA_K * D * 2);
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++) {
                mma_m16n8k16<T>(O[i][j], P_frag[i], V_frag[0], V_frag[1]);
                mma_m16n8k16<T>(O[i][j + 1], P_frag[i], V_frag[2], V_frag[3]);
            }
        }
    }
}

// Divides by the sums and writes a warp's rows of O and LSE. first_row is the lane's; O_gmem begins at row 0.
template <typename T, int D>
static __device__ void store_rows(T *O_gmem, float *LSE, const float (&O)[WARP_Q / MMA_M][D / MMA_N][4],
                                  const float (&m)[WARP_Q / MMA_M][2], const float (&l)[WARP_Q / MMA_M][2],
                                  int first_row, float scale, const attention &a, int lane)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = l[i][half];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float inverse = sum > 0 ? 1 / sum : 0;
            const int row = first_row + i * MMA_M + half * 8;
            if (row >= a.q_len) continue;
            if (lane % 4 == 0) LSE[row] = sum > 0 ? m[i][half] * scale + logf(sum) : -INFINITY;
            T *dst = O_gmem + (size_t)row * a.heads * D + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < D / MMA_N; j++)
                *reinterpret_cast<uint32_t *>(dst + j * MMA_N) =
                    pack_pair<T>(O[i][j][half * 2] * inverse, O[i][j][half * 2 + 1] * inverse);
        }
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 2) lazy_rescale_kernel(const attention a)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;
    const int block_row = blockIdx.x * BLOCK_Q;
    const int head = blockIdx.y;
    const int batch = blockIdx.z;
    const int kv_head = head / (a.heads / a.kv_heads);

    // Row 0 of this head; a row is heads * D or kv_heads * D elements from the next.
    const T *Q = (const T *)a.Q + ((size_t)batch * a.q_len * a.heads + head) * D;
    const T *K = (const T *)a.K + ((size_t)batch * a.k_len * a.kv_heads + kv_head) * D;
    const T *V = (const T *)a.V + ((size_t)batch * a.k_len * a.kv_heads + kv_head) * D;

    constexpr uint32_t TILE_BYTES = sizeof(smem.K_smem[0]);

    // A lane's ldmatrix rows. Q: lanes 0-15 give rows 0-15 of the left half, 16-31 of the right half. K: lanes 0-7
    // and 8-15 the halves of 8 keys, 16-31 those of the next 8. V: lanes 0-15 give 16 keys, 16-31 their next columns.
    const uint32_t Q_smem = smem_addr(smem.Q_smem);
    const uint32_t K_smem = smem_addr(smem.K_smem), V_smem = smem_addr(smem.V_smem);
    const uint32_t Q_addr = Q_smem + smem_offset<D>(warp * WARP_Q + lane % 16, lane / 16 * 8);
    const uint32_t K_addr = K_smem + smem_offset<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    const uint32_t V_addr = V_smem + smem_offset<D>(lane % 16, lane / 16 * 8);

    // Keys seen by any row of the block, by any row of the warp, and by all rows of the warp.
    const int warp_row = block_row + warp * WARP_Q;
    const auto keys_seen = [&](int row) {
        return a.causal ? min(a.k_len, min(row, a.q_len - 1) + 1 + a.k_len - a.q_len) : a.k_len;
    };
    const int block_keys = keys_seen(block_row + BLOCK_Q - 1);
    const int warp_keys = keys_seen(warp_row + WARP_Q - 1);
    const int full_keys = keys_seen(warp_row);
    const int num_tiles = block_keys > 0 ? (block_keys - 1) / BLOCK_KV + 1 : 0;

    // Prologue: Q and the first K are one group.
    if (num_tiles > 0)
        load_tile<BLOCK_Q, D>(Q_smem, Q + (size_t)block_row * a.heads * D, a.heads * D, a.q_len - block_row,
                              tid);
    const auto load = [&](uint32_t tile_addr, const T *src, int tile) {
        // Unsigned: a product with a sign takes more registers.
        const size_t offset = (size_t)tile * (uint32_t)(BLOCK_KV * a.kv_heads * D);
        if (tile < num_tiles)
            load_tile<BLOCK_KV, D>(tile_addr, src + offset, a.kv_heads * D, a.k_len - tile * BLOCK_KV, tid);
        cp_async_commit_group();
    };
    load(K_smem, K, 0);

    // Mainloop.
    const float scale = rsqrtf(D);
    const float c = scale * 1.44269504f; // log2(e)
    const int first_row = warp_row + lane / 4;
    float O[WARP_Q / MMA_M][D / MMA_N][4] = {};
    float m[WARP_Q / MMA_M][2], l[WARP_Q / MMA_M][2];
    for (int i = 0; i < WARP_Q / MMA_M; i++)
        for (int half = 0; half < 2; half++) m[i][half] = -FLT_MAX, l[i][half] = 0;
    for (int tile = 0; tile < num_tiles; tile++) {
        const uint32_t stage_bytes = tile % NUM_STAGES * TILE_BYTES;
        const uint32_t next_bytes = (tile + 1) % NUM_STAGES * TILE_BYTES;
        cp_async_wait_group<0>(); // This thread's part of K has arrived.
        __syncthreads();          // Every thread's part has. Everyone has read V of tile - 1,
        load(V_smem, V, tile);    // and V of this tile may take its place.

        const int col = tile * BLOCK_KV;
        const bool active = col < warp_keys; // else this warp only copies, for those with later rows
        float S[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4] = {};
        if (active) multiply_QK<T, D>(S, Q_addr, K_addr + stage_bytes);

        // The next stage held K of tile - 1; everyone had read it before this tile's first barrier.
        load(K_smem + next_bytes, K, tile + 1);
        if (active && col + BLOCK_KV > full_keys) mask_tile(S, first_row, col + lane % 4 * 2, a);
        if (active) softmax_tile<D>(S, m, l, O, c);
        cp_async_wait_group<1>(); // This thread's part of V has arrived; the next K may be in flight.
        __syncthreads();          // Every thread's part of V has arrived.

        if (active) multiply_PV<T, D>(O, S, V_addr);
    }

    // Epilogue.
    store_rows<T, D>((T *)a.O + ((size_t)batch * a.q_len * a.heads + head) * D,
                     a.LSE + ((size_t)batch * a.heads + head) * a.q_len, O, m, l, first_row, scale, a, lane);
}

template <typename T, int D>
static cudaError_t launch(const attention &a, cudaStream_t stream)
{
    const int smem_size = sizeof(SharedStorage<T, D>);
    const dim3 grid((a.q_len - 1) / BLOCK_Q + 1, a.heads, a.batch);
    const cudaError_t error = cudaFuncSetAttribute(lazy_rescale_kernel<T, D>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
    if (error != cudaSuccess) return error;
    lazy_rescale_kernel<T, D><<<grid, NUM_THREADS, smem_size, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t lazy_rescale(const struct attention *a, cudaStream_t stream)
{
    if (!attention_valid(*a)) return cudaErrorInvalidValue;
    if (a->head_dim == 64)
        return a->dtype == F16 ? launch<__half, 64>(*a, stream) : launch<__nv_bfloat16, 64>(*a, stream);
    return a->dtype == F16 ? launch<__half, 128>(*a, stream) : launch<__nv_bfloat16, 128>(*a, stream);
}
