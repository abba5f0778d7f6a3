// Chapter 12, step 2: the two products on tensor cores. The scores never leave the registers of the warp that made them.
//
// Question: an mma wants its operands spread over the lanes in fragments. Can S go from the first product through the
// softmax into the second without passing through shared memory?
//
// A block owns BLOCK_Q queries of one head and walks along the keys, BLOCK_KV at a time. Each warp owns
// WARP_Q queries and sees all keys, so that a row of S lies within one warp, in the 4 lanes of a quad:
//
//              K tile (64 keys)            V tile (64 keys x D)
//              +--------------+            +--------+
//      warp 0  |  S 16 x 64   |  softmax   |        |   O 16 x D, float, in registers
//      warp 1  |      ..      |  ------>   |  P V   |   m, l: each row's maximum and sum so far
//      warp 2  |      ..      |  P = 16bit |        |
//      warp 3  +--------------+            +--------+
//
// The accumulators of S have the layout of an A operand half as wide: two of them, rounded, are one of P.
//
// Grows from: step 1 (tile_by_tile).
// Copies are chapter 5's cp.async, waited for at once, without its swizzle. New instructions: ldmatrix.trans, for V,
// whose rows run along k. Shared memory: 2 x 64 x D x 2 bytes. Registers: O D/2, Q D/4, S 32 of 200 at D = 128.
// Run: make chapter-12 STEP=basic
#include <cfloat>

#include "attention.cuh"
#include "launchers.h"

constexpr int BLOCK_Q = 64;  // queries of a block
constexpr int BLOCK_KV = 64; // keys in shared memory at a time
constexpr int WARP_Q = 16;   // queries of a warp
constexpr int NUM_THREADS = BLOCK_Q / WARP_Q * 32;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int CHUNK = 8; // elements in 16 bytes, what one copy moves
static_assert(BLOCK_Q == BLOCK_KV, "Q passes through K's place in shared memory");
static_assert(WARP_Q % MMA_M == 0 && BLOCK_KV % MMA_K == 0, "whole mma in every direction");

template <typename T, int D>
struct SharedStorage {
    T K_smem[BLOCK_KV][D]; // (key, d)
    T V_smem[BLOCK_KV][D]; // (key, d)
};

// Where the element (row, col) of a tile lies, in bytes from its start.
template <int D>
static __device__ uint32_t smem_offset(int row, int col)
{
    return (row * D + col) * 2;
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
static __device__ void multiply_QK(float (&S)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4],
                                   const uint32_t (&Q_frag)[WARP_Q / MMA_M][D / MMA_K][4], uint32_t K_addr)
{
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
#pragma unroll
        for (int j = 0; j < BLOCK_KV / MMA_N; j++) {
            uint32_t K_frag[2];
            ldmatrix_x2(K_frag, K_addr + smem_offset<D>(j * MMA_N, k * MMA_K));
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++)
                mma_m16n8k16<T>(S[i][j], Q_frag[i][k], K_frag[0], K_frag[1]);
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

// The online softmax: S becomes P, whose rows are relative to the maximum so far; m, l and O follow it. m starts
// at -FLT_MAX, not -inf: a row that sees no key then has P = exp(-inf) = 0 rather than exp(-inf + inf).
template <int D>
static __device__ void softmax_tile(float (&S)[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4],
                                    float (&m)[WARP_Q / MMA_M][2], float (&l)[WARP_Q / MMA_M][2],
                                    float (&O)[WARP_Q / MMA_M][D / MMA_N][4], float scale)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
            float tile_max = -INFINITY;
#pragma unroll
            for (int j = 0; j < BLOCK_KV / MMA_N; j++)
                tile_max = fmaxf(tile_max, fmaxf(S[i][j][half * 2], S[i][j][half * 2 + 1]));
            tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, 1)); // the quad has the row
            tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, 2));

            const float m_new = fmaxf(m[i][half], tile_max * scale);
            const float rescale = __expf(m[i][half] - m_new);
            m[i][half] = m_new;
            l[i][half] *= rescale;
#pragma unroll
            for (int j = 0; j < D / MMA_N; j++) {
                O[i][j][half * 2] *= rescale;
                O[i][j][half * 2 + 1] *= rescale;
            }
#pragma unroll
            for (int j = 0; j < BLOCK_KV / MMA_N; j++)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; e++) {
                    S[i][j][e] = __expf(S[i][j][e] * scale - m_new);
                    l[i][half] += S[i][j][e]; // this lane's part of the row; the quad's are added at the end
                }
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
        for (int j = 0; j < D / MMA_N; j++) {
            uint32_t V_frag[2];
            ldmatrix_x2_trans(V_frag, V_addr + smem_offset<D>(k * MMA_K, j * MMA_N));
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++)
                mma_m16n8k16<T>(O[i][j], P_frag[i], V_frag[0], V_frag[1]);
        }
    }
}

// Divides by the sums and writes a warp's rows of O and LSE. first_row is the lane's; O_gmem begins at row 0.
template <typename T, int D>
static __device__ void store_rows(T *O_gmem, float *LSE, const float (&O)[WARP_Q / MMA_M][D / MMA_N][4],
                                  const float (&m)[WARP_Q / MMA_M][2], const float (&l)[WARP_Q / MMA_M][2],
                                  int first_row, const attention &a, int lane)
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
            if (lane % 4 == 0) LSE[row] = sum > 0 ? m[i][half] + logf(sum) : -INFINITY;
            T *dst = O_gmem + (size_t)row * a.heads * D + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < D / MMA_N; j++)
                *reinterpret_cast<uint32_t *>(dst + j * MMA_N) =
                    pack_pair<T>(O[i][j][half * 2] * inverse, O[i][j][half * 2 + 1] * inverse);
        }
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 2) basic_kernel(const attention a)
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

    // A lane's ldmatrix rows. Q: lanes 0-15 give rows 0-15 of the left half, 16-31 of the right half. K: lanes 0-7
    // and 8-15 the halves of 8 keys. V: lanes 0-15 give 16 keys. (ldmatrix.x2 does not look at lanes 16-31.)
    const uint32_t K_smem = smem_addr(smem.K_smem), V_smem = smem_addr(smem.V_smem);
    const uint32_t Q_addr = K_smem + smem_offset<D>(warp * WARP_Q + lane % 16, lane / 16 * 8);
    const uint32_t K_addr = K_smem + smem_offset<D>(lane % 8, lane / 8 % 2 * 8);
    const uint32_t V_addr = V_smem + smem_offset<D>(lane % 16, 0);

    // Prologue: Q goes through shared memory into registers and stays there.
    uint32_t Q_frag[WARP_Q / MMA_M][D / MMA_K][4];
    load_tile<BLOCK_Q, D>(K_smem, Q + (size_t)block_row * a.heads * D, a.heads * D, a.q_len - block_row, tid);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads(); // Every thread's part of Q has arrived.
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int k = 0; k < D / MMA_K; k++)
            ldmatrix_x4(Q_frag[i][k], Q_addr + smem_offset<D>(i * MMA_M, k * MMA_K));
    __syncthreads(); // Everyone has Q before anyone writes K over it.

    // Mainloop.
    const float scale = rsqrtf(D);
    const int first_row = block_row + warp * WARP_Q + lane / 4;
    float O[WARP_Q / MMA_M][D / MMA_N][4] = {};
    float m[WARP_Q / MMA_M][2], l[WARP_Q / MMA_M][2];
    for (int i = 0; i < WARP_Q / MMA_M; i++)
        for (int half = 0; half < 2; half++) m[i][half] = -FLT_MAX, l[i][half] = 0;
    const int num_tiles = (a.k_len - 1) / BLOCK_KV + 1;
    for (int tile = 0; tile < num_tiles; tile++) {
        const int col = tile * BLOCK_KV;
        load_tile<BLOCK_KV, D>(K_smem, K + (size_t)col * a.kv_heads * D, a.kv_heads * D, a.k_len - col, tid);
        load_tile<BLOCK_KV, D>(V_smem, V + (size_t)col * a.kv_heads * D, a.kv_heads * D, a.k_len - col, tid);
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads(); // Every thread's part of the tiles has arrived.

        float S[WARP_Q / MMA_M][BLOCK_KV / MMA_N][4] = {};
        multiply_QK<T, D>(S, Q_frag, K_addr);
        mask_tile(S, first_row, col + lane % 4 * 2, a);
        softmax_tile<D>(S, m, l, O, scale);
        multiply_PV<T, D>(O, S, V_addr);
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

    // Epilogue.
    store_rows<T, D>((T *)a.O + ((size_t)batch * a.q_len * a.heads + head) * D,
                     a.LSE + ((size_t)batch * a.heads + head) * a.q_len, O, m, l, first_row, a, lane);
}

template <typename T, int D>
static cudaError_t launch(const attention &a, cudaStream_t stream)
{
    const int smem_size = sizeof(SharedStorage<T, D>);
    const dim3 grid((a.q_len - 1) / BLOCK_Q + 1, a.heads, a.batch);
    const cudaError_t error =
        cudaFuncSetAttribute(basic_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
    if (error != cudaSuccess) return error;
    basic_kernel<T, D><<<grid, NUM_THREADS, smem_size, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t basic(const struct attention *a, cudaStream_t stream)
{
    if (!attention_valid(*a)) return cudaErrorInvalidValue;
    if (a->head_dim == 64)
        return a->dtype == F16 ? launch<__half, 64>(*a, stream) : launch<__nv_bfloat16, 64>(*a, stream);
    return a->dtype == F16 ? launch<__half, 128>(*a, stream) : launch<__nv_bfloat16, 128>(*a, stream);
}
