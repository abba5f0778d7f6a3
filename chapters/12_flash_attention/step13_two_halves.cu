// Chapter 12, step 13: a tile's keys in two halves. While one half multiplies, the same warp is at the other's exponentials.
//
// Question: a warp multiplies, then it is at its softmax: at d = 64 it keeps the tensor cores busy 60 % of the time (reckoned as
// in the note's section 6), and only the scheduler's other warp can fill the gap. What of its own could it do beside its products?
//
//      step 12    Q K                | softmax            | P V
//      step 13    Q K 0 | Q K 1      | P V 0      | P V 1          keys 0-31 and 32-63 of a tile
//                 copies| exp 0      | exp 1      |                beside them: the next tile's copies, exponentials
//
// The exponentials may not wait for a maximum, then: they take the old m. Only if a P came out above 2^8, which is seldom, is m
// raised and the half's P computed again. P is packed at once: what came of 32 scores a lane waits in 16 registers.
//
// Q would be read for each half. At d = 64 there are registers to keep it in; d = 128 has none to spare and takes step 12's kernel.
//
// Grows from: step 12 (one_barrier).
// New instructions: max.bf16x2, max.f16x2 (__hmax2). Shared memory: (128 + 4 x 64) x 64 x 2 bytes, 49,152. Registers: 242.
// Run: make chapter-12 STEP=two_halves
#include <cfloat>
#include <climits>
#include <type_traits>

#include "attention.cuh"
#include "launchers.h"

constexpr int BLOCK_Q = 128;          // queries of a block
constexpr int BLOCK_KV = 64;          // keys in shared memory at a time
constexpr int HALF_KV = BLOCK_KV / 2; // keys multiplied, or exponentiated, at a time
constexpr int WARP_Q = 32;            // queries of a warp
constexpr int NUM_THREADS = BLOCK_Q / WARP_Q * 32;
constexpr int NUM_STAGES = 2;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int CHUNK = 8; // elements in 16 bytes, what one copy moves
constexpr float RESCALE_LOG2 = 8;
constexpr int L2_BYTES = 16 << 20; // what K and V of a group of heads may take of the L2, 40 to 50 MB
static_assert(WARP_Q % MMA_M == 0 && HALF_KV % MMA_K == 0, "whole mma in every direction");

// What a warp's lane holds of half a tile.
using Scores = float[WARP_Q / MMA_M][HALF_KV / MMA_N][4];     // S
using Weights = uint32_t[WARP_Q / MMA_M][HALF_KV / MMA_K][4]; // P, packed: operand A of P V
using PerRow = float[WARP_Q / MMA_M][2];                      // rows l / 4 and l / 4 + 8
constexpr int WEIGHTS = sizeof(Weights) / sizeof(uint32_t);

template <typename T, int D>
struct SharedStorage {
    T Q_smem[BLOCK_Q][D];              // (query, d)
    T K_smem[NUM_STAGES][BLOCK_KV][D]; // (stage, key, d)
    T V_smem[NUM_STAGES][BLOCK_KV][D]; // (stage, key, d)
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

// A block copies so many rows of D elements at a time, a chunk each thread.
template <int D>
constexpr int COPY_ROWS = NUM_THREADS / (D / CHUNK);

// Starts to copy rows i * COPY_ROWS to (i + 1) * COPY_ROWS - 1 of a tile. src and tile_addr are the thread's chunk in row 0 to
// COPY_ROWS - 1. Past the last of rows_left rows the tile gets zeros, so that what is masked is 0 times a number.
template <int D, typename T>
static __device__ void load_rows(uint32_t tile_addr, const T *src, uint32_t row_stride, int rows_left,
                                 int tid, int i)
{
    static_assert(COPY_ROWS<D> % 8 == 0, "the swizzle is that of row 0 to COPY_ROWS - 1");
    const int row = tid / (D / CHUNK) + i * COPY_ROWS<D>;
    cp_async_cg_16(tile_addr + i * COPY_ROWS<D> * D * 2, src + (size_t)i * (COPY_ROWS<D> * row_stride),
                   row < rows_left ? 16 : 0);
}

// S = Q Kᵀ for a warp's queries and half the keys of a tile. K is stored as mma wants B: a column of B is a key. beside(k) is
// other work, which the products of slice k leave time for.
template <typename T, int D, typename Beside>
static __device__ void multiply_QK(Scores &S, const uint32_t (&Q_frag)[D / MMA_K][WARP_Q / MMA_M][4],
                                   uint32_t K_addr, Beside beside)
{
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++) {
#pragma unroll
        for (int j = 0; j < HALF_KV / MMA_N; j += 2) {
            uint32_t K_frag[4]; // keys j * 8 .. j * 8 + 15
            ldmatrix_x4(K_frag, move_right(K_addr, k * MMA_K) + j * MMA_N * D * 2);
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++) {
                mma_m16n8k16<T>(S[i][j], Q_frag[k][i], K_frag[0], K_frag[1]);
                mma_m16n8k16<T>(S[i][j + 1], Q_frag[k][i], K_frag[2], K_frag[3]);
            }
        }
        beside(k);
    }
}

// Takes away the scores of keys that a row does not see. first_row and first_col are those of the lane's S[0][0][0].
static __device__ void mask_half(Scores &S, int first_row, int first_col, const attention &a)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) { // a lane's elements: rows l / 4 and l / 4 + 8, two columns each
            const int row = first_row + i * MMA_M + e / 2 * 8;
            const int keys_seen = a.causal ? min(a.k_len, row + 1 + a.k_len - a.q_len) : a.k_len;
#pragma unroll
            for (int j = 0; j < HALF_KV / MMA_N; j++)
                if (first_col + j * MMA_N + e % 2 >= keys_seen) S[i][j][e] = -INFINITY;
        }
}

// One of `parts` equal parts of P = 2^(c S - c m), rounded and packed: the accumulators of two neighbouring 16 x 8 pieces are a
// 16 x 16 piece as operand A. m is in units of S; c is scale log2(e). m starts at -FLT_MAX, not -inf: a row that sees no key
// then has P = 2^-inf = 0 rather than 2^(-inf + inf). sum gets this lane's part of the rows.
template <typename T>
static __device__ void exponentials(Weights &P, PerRow &sum, const Scores &S, const PerRow &m, float c,
                                    int part, int parts)
{
#pragma unroll
    for (int n = part * WEIGHTS / parts; n < (part + 1) * WEIGHTS / parts; n++) {
        const int k = n / (WARP_Q / MMA_M * 4), i = n / 4 % (WARP_Q / MMA_M), r = n % 4;
        // r: rows 0-7 and 8-15 of the left piece, then of the right one
        const float *s = &S[i][k * 2 + r / 2][r % 2 * 2];
        const float left = ex2_approx_ftz(s[0] * c - m[i][r % 2] * c);
        const float right = ex2_approx_ftz(s[1] * c - m[i][r % 2] * c);
        if (k == 0 && r / 2 == 0) sum[i][r % 2] = 0;
        sum[i][r % 2] += left;
        sum[i][r % 2] += right;
        P[i][k][r] = pack_pair<T>(left, right);
    }
}

// Whether any P of the warp's is above 2^RESCALE_LOG2. Two chains of maxima, of pairs.
template <typename T>
static __device__ bool any_above(const Weights &P)
{
    using T2 = typename std::conditional<std::is_same<T, __half>::value, __half2, __nv_bfloat162>::type;
    const T2 *pairs = reinterpret_cast<const T2 *>(P);
    T2 top[2] = {pairs[0], pairs[1]};
#pragma unroll
    for (int n = 2; n < WEIGHTS; n++) top[n % 2] = __hmax2(top[n % 2], pairs[n]);
    const T2 most = __hmax2(top[0], top[1]);
    return __any_sync(0xffffffff, fmaxf((float)most.x, (float)most.y) > (1 << (int)RESCALE_LOG2));
}

// Raises m to the rows' maxima; l and O follow.
template <int D>
static __device__ void raise_maximum(PerRow &m, PerRow &l, float (&O)[WARP_Q / MMA_M][D / MMA_N][4],
                                     const Scores &S, float c)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
            float m_new = m[i][half];
#pragma unroll
            for (int j = 0; j < HALF_KV / MMA_N; j++)
                m_new = fmaxf(m_new, fmaxf(S[i][j][half * 2], S[i][j][half * 2 + 1]));
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

// Ends the online softmax of half a tile, whose P was computed with the m there was: if that does not serve, again with a new one.
template <typename T, int D>
static __device__ void finish_softmax(Weights &P, PerRow &sum, PerRow &m, PerRow &l,
                                      float (&O)[WARP_Q / MMA_M][D / MMA_N][4], const Scores &S, float c)
{
    if (any_above<T>(P)) {
        raise_maximum<D>(m, l, O, S, c);
        exponentials<T>(P, sum, S, m, c, 0, 1);
    }
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
        for (int half = 0; half < 2; half++) l[i][half] += sum[i][half];
}

// O += P V for half a tile, with beside(step) beside its PV_STEPS steps.
template <int D>
constexpr int PV_STEPS = HALF_KV / MMA_K *(D / MMA_N / 2);

template <typename T, int D, typename Beside>
static __device__ void multiply_PV(float (&O)[WARP_Q / MMA_M][D / MMA_N][4], const Weights &P,
                                   uint32_t V_addr, Beside beside)
{
#pragma unroll
    for (int step = 0; step < PV_STEPS<D>; step++) {
        const int k = step / (D / MMA_N / 2), j = step % (D / MMA_N / 2) * 2;
        uint32_t V_frag[4]; // columns j * 8 .. j * 8 + 15
        ldmatrix_x4_trans(V_frag, move_right(V_addr, j * MMA_N) + k * MMA_K * D * 2);
#pragma unroll
        for (int i = 0; i < WARP_Q / MMA_M; i++) {
            mma_m16n8k16<T>(O[i][j], P[i][k], V_frag[0], V_frag[1]);
            mma_m16n8k16<T>(O[i][j + 1], P[i][k], V_frag[2], V_frag[3]);
        }
        beside(step);
    }
}

// Divides by the sums and writes a warp's rows of O and LSE. The rows pass through O_smem, where the warp's rows of Q
// were, from pairs of columns into chunks of 16 bytes. first_row is the warp's; O_gmem begins at row 0.
template <typename T, int D>
static __device__ void store_rows(T *O_gmem, float *LSE, const float (&O)[WARP_Q / MMA_M][D / MMA_N][4],
                                  const PerRow &m, const PerRow &l, char *O_smem, int first_row, float scale,
                                  const attention &a, int lane)
{
#pragma unroll
    for (int i = 0; i < WARP_Q / MMA_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = l[i][half];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float inverse = sum > 0 ? 1 / sum : 0;
            const int row = first_row + i * MMA_M + half * 8 + lane / 4;
            if (lane % 4 == 0 && row < a.q_len)
                LSE[row] = sum > 0 ? m[i][half] * scale + logf(sum) : -INFINITY;
            const uint32_t offset = smem_offset<D>(lane / 4, lane % 4 * 2) + (i * MMA_M + half * 8) * D * 2;
#pragma unroll
            for (int j = 0; j < D / MMA_N; j++)
                *reinterpret_cast<uint32_t *>(O_smem + move_right(offset, j * MMA_N)) =
                    pack_pair<T>(O[i][j][half * 2] * inverse, O[i][j][half * 2 + 1] * inverse);
        }
    __syncwarp(); // The warp's rows are complete before any lane reads them.

    constexpr int STORE_ROWS = 32 / (D / CHUNK); // rows the warp stores at a time
    const int row = first_row + lane / (D / CHUNK), col = lane % (D / CHUNK) * CHUNK;
    const uint32_t row_stride = a.heads * D;
    O_gmem += (size_t)row * row_stride + col;
#pragma unroll
    for (int i = 0; i < WARP_Q / STORE_ROWS; i++) {
        const uint32_t offset = smem_offset<D>(lane / (D / CHUNK) + i * STORE_ROWS, col);
        const uint4 chunk = *reinterpret_cast<const uint4 *>(O_smem + offset);
        if (row + i * STORE_ROWS < a.q_len) *reinterpret_cast<uint4 *>(O_gmem) = chunk;
        O_gmem += STORE_ROWS * row_stride;
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 2) two_halves_kernel(const attention a, int heads_in_group)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);
    const int tid = threadIdx.x;
    const int lane = tid % 32;
    const int warp = tid / 32;

    // Blocks start in the order of their numbers: group by group, in it the last queries first, of each head in turn.
    const int q_tiles = (a.q_len - 1) / BLOCK_Q + 1;
    const int group = blockIdx.x / (heads_in_group * q_tiles);
    const int in_group = blockIdx.x % (heads_in_group * q_tiles);
    const int heads_here = min(heads_in_group, a.batch * a.heads - group * heads_in_group);
    const int block_row = (q_tiles - 1 - in_group / heads_here) * BLOCK_Q;
    const int head = (group * heads_in_group + in_group % heads_here) % a.heads;
    const int batch = (group * heads_in_group + in_group % heads_here) / a.heads;
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

    // Prologue: Q and the first K and V are one group.
    const int copy_row = tid / (D / CHUNK),
              copy_col = tid % (D / CHUNK) * CHUNK; // of the thread's first chunk
    const uint32_t copy_offset = smem_offset<D>(copy_row, copy_col), row_stride = a.kv_heads * D;
    if (num_tiles > 0)
        for (int i = 0; i < BLOCK_Q / COPY_ROWS<D>; i++)
            load_rows<D>(Q_smem + copy_offset, Q + (size_t)(block_row + copy_row) * a.heads * D + copy_col,
                         a.heads * D, a.q_len - block_row, tid, i);
    // Rows i * COPY_ROWS on of a tile's K and V. Behind the last tile there are none left.
    const T *K_src = K + (size_t)copy_row * row_stride + copy_col;
    const T *V_src = V + (size_t)copy_row * row_stride + copy_col;
    const int end = min(a.k_len, num_tiles * BLOCK_KV);
    const auto load = [&](int tile, int i) {
        const uint32_t to = tile % NUM_STAGES * TILE_BYTES + copy_offset;
        // Unsigned: a product with a sign takes more registers.
        const size_t offset = (size_t)tile * (uint32_t)(BLOCK_KV * a.kv_heads * D);
        load_rows<D>(K_smem + to, K_src + offset, row_stride, end - tile * BLOCK_KV, tid, i);
        load_rows<D>(V_smem + to, V_src + offset, row_stride, end - tile * BLOCK_KV, tid, i);
    };
    static_assert(D / MMA_K == BLOCK_KV / COPY_ROWS<D>, "some rows are copied beside each slice of Q K");
    const auto load_all = [&](int tile) {
        for (int i = 0; i < BLOCK_KV / COPY_ROWS<D>; i++) load(tile, i);
        cp_async_commit_group();
    };
    load_all(0);

    uint32_t Q_frag[D / MMA_K][WARP_Q / MMA_M][4];
    if (num_tiles > 0) {
        cp_async_wait_group<0>(); // This thread's part of Q has arrived.
        __syncthreads();          // Every thread's part has.
#pragma unroll
        for (int k = 0; k < D / MMA_K; k++)
#pragma unroll
            for (int i = 0; i < WARP_Q / MMA_M; i++)
                ldmatrix_x4(Q_frag[k][i], move_right(Q_addr, k * MMA_K) + i * MMA_M * D * 2);
    }

    // Mainloop.
    const float scale = rsqrtf(D);
    const float c = scale * 1.44269504f; // log2(e)
    float O[WARP_Q / MMA_M][D / MMA_N][4] = {};
    PerRow m, l;
    for (int i = 0; i < WARP_Q / MMA_M; i++)
        for (int half = 0; half < 2; half++) m[i][half] = -FLT_MAX, l[i][half] = 0;
    for (int tile = 0; tile < num_tiles; tile++) {
        const uint32_t K_tile = K_addr + tile % NUM_STAGES * TILE_BYTES;
        const uint32_t V_tile = V_addr + tile % NUM_STAGES * TILE_BYTES;
        cp_async_wait_group<0>(); // This thread's part of K and V has arrived.
        __syncthreads();          // Every thread's part has. Everyone has read the tile before,
                                  // and the next one may take its place.
        const int col = tile * BLOCK_KV;
        if (col >= warp_keys) { // This warp only copies, for those with later rows.
            load_all(tile + 1);
            continue;
        }
        const auto mask = [&](Scores &S, int col) {
            if (col + HALF_KV > full_keys) mask_half(S, warp_row + lane / 4, col + lane % 4 * 2, a);
        };
        Scores S0 = {}, S1 = {};
        Weights P0, P1;
        PerRow sum;
        multiply_QK<T, D>(S0, Q_frag, K_tile, [&](int k) { load(tile + 1, k); });
        cp_async_commit_group();
        mask(S0, col);
        multiply_QK<T, D>(S1, Q_frag, K_tile + TILE_BYTES / 2,
                          [&](int k) { exponentials<T>(P0, sum, S0, m, c, k, D / MMA_K); });
        finish_softmax<T, D>(P0, sum, m, l, O, S0, c);
        mask(S1, col + HALF_KV);
        multiply_PV<T, D>(O, P0, V_tile,
                          [&](int step) { exponentials<T>(P1, sum, S1, m, c, step, PV_STEPS<D>); });
        finish_softmax<T, D>(P1, sum, m, l, O, S1, c);
        multiply_PV<T, D>(O, P1, V_tile + TILE_BYTES / 2, [](int) {});
    }
    cp_async_wait_group<0>(); // The copies of no rows behind the last tile.

    // Epilogue. A warp writes where only it has read, after its last lane has: no barrier lies in between any more.
    __syncwarp();
    store_rows<T, D>((T *)a.O + ((size_t)batch * a.q_len * a.heads + head) * D,
                     a.LSE + ((size_t)batch * a.heads + head) * a.q_len, O, m, l,
                     (char *)&smem.Q_smem[warp * WARP_Q], warp_row, scale, a, lane);
}

template <typename T, int D>
static cudaError_t launch(const attention &a, cudaStream_t stream)
{
    const int smem_size = sizeof(SharedStorage<T, D>);
    const int64_t heads = (int64_t)a.batch * a.heads, head_bytes = (int64_t)a.k_len * D * 2 * sizeof(T);
    const int64_t blocks = heads * ((a.q_len - 1) / BLOCK_Q + 1);
    const int64_t fitting = L2_BYTES / head_bytes;
    const int heads_in_group = (int)(fitting < 1 ? 1 : fitting < heads ? fitting : heads);
    if (blocks > INT_MAX) return cudaErrorInvalidValue;
    const cudaError_t error =
        cudaFuncSetAttribute(two_halves_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
    if (error != cudaSuccess) return error;
    two_halves_kernel<T, D><<<(int)blocks, NUM_THREADS, smem_size, stream>>>(a, heads_in_group);
    return cudaGetLastError();
}

extern "C" cudaError_t two_halves(const struct attention *a, cudaStream_t stream)
{
    if (!attention_valid(*a)) return cudaErrorInvalidValue;
    if (a->head_dim != 64) return one_barrier(a, stream);
    return a->dtype == F16 ? launch<__half, 64>(*a, stream) : launch<__nv_bfloat16, 64>(*a, stream);
}
