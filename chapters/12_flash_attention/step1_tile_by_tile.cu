// Chapter 12, step 1: attention tile by tile, without tensor cores. The algorithm alone, before anything makes it fast.
//
// Question: S = Q Kᵀ is (q_len, k_len), 512 MB a head at 16384 tokens; can O = softmax(S) V be had without writing it?
//
// A row of S is computed and used up 32 keys at a time. What is known of it so far is the state of chapter 8, the
// maximum m and the sum l of exp(S - m), and one thing more: O, the sum of each exp(S - m) times its key's row of V.
// A tile of keys has such a state as well, and two states are merged by bringing both to the larger maximum:
//
//      m_new = max(m, maximum of S)                 of a tile's scores S
//      P     = exp(S - m_new)                       so the tile's state is (m_new, sum of P, P V)
//      l     = l exp(m - m_new) + sum of P
//      O     = O exp(m - m_new) + P V               at the end: O / l, and LSE = m + log(l)
//
// A block owns BLOCK_Q queries of one head and walks along the keys; each of its warps has WARP_Q of the queries:
//
//      S (WARP_Q, 32): a lane has one key        O (WARP_Q, D): a lane has the columns lane, lane + 32, ...
//
// Grows from: nothing.
// The names are those of tile_by_tile in reference/attention.py, line for line the same. New instructions: none. Shared
// memory: 3 tiles of 32 x D floats, 49,280 bytes at D = 128. Registers: O D/4, 144 in all at D = 128 (on sm_80 162).
// Run: make chapter-12 STEP=tile_by_tile
#include <cfloat>

#include "attention.cuh"
#include "launchers.h"

constexpr int BLOCK_Q = 32;  // queries of a block
constexpr int BLOCK_KV = 32; // keys in shared memory at a time
constexpr int WARP_Q = 8;    // queries of a warp
constexpr int NUM_THREADS = BLOCK_Q / WARP_Q * 32;
static_assert(BLOCK_KV == 32, "a key for each lane");

template <int D>
struct SharedStorage {
    float Q_smem[BLOCK_Q][D]; // (query, d)
    float K_smem[BLOCK_KV]
                [D + 1]; // (key, d); lanes read down a column, which one word a row spreads over the banks
    float V_smem[BLOCK_KV][D]; // (key, d)
};

static __device__ float warp_max(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    return value;
}

static __device__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// Copies ROWS rows of D elements from src on, row_stride apart, to a tile of floats. Past the last of rows_left
// rows the tile gets zeros, so that what is masked is 0 times a number.
template <int D, int ROWS, int WIDTH, typename T>
static __device__ void load_tile(float (&tile)[ROWS][WIDTH], const T *src, int row_stride, int rows_left,
                                 int tid)
{
    static_assert(NUM_THREADS % D == 0, "a thread stays in its column");
    const int col = tid % D;
#pragma unroll 8
    for (int row = tid / D; row < ROWS; row += NUM_THREADS / D)
        tile[row][col] = row < rows_left ? (float)src[(size_t)row * row_stride + col] : 0;
}

// S = Q Kᵀ for a warp's queries and the lane's key.
template <int D>
static __device__ void multiply_QK(float (&S)[WARP_Q], const SharedStorage<D> &smem, int warp, int lane)
{
#pragma unroll 8
    for (int d = 0; d < D; d++)
#pragma unroll
        for (int i = 0; i < WARP_Q; i++) S[i] += smem.Q_smem[warp * WARP_Q + i][d] * smem.K_smem[lane][d];
}

// Takes away the scores of keys that a row does not see. first_row is that of S[0], col the lane's key.
static __device__ void mask_tile(float (&S)[WARP_Q], int first_row, int col, const attention &a)
{
#pragma unroll
    for (int i = 0; i < WARP_Q; i++) {
        const int row = first_row + i;
        const int keys_seen = a.causal ? min(a.k_len, row + 1 + a.k_len - a.q_len) : a.k_len;
        if (col >= keys_seen) S[i] = -INFINITY;
    }
}

// The online softmax: S becomes P, whose rows are relative to the maximum so far; m, l and O follow it. m starts
// at -FLT_MAX, not -inf: a row that sees no key then has P = exp(-inf) = 0 rather than exp(-inf + inf).
template <int D>
static __device__ void softmax_tile(float (&S)[WARP_Q], float (&m)[WARP_Q], float (&l)[WARP_Q],
                                    float (&O)[WARP_Q][D / 32], float scale)
{
#pragma unroll
    for (int i = 0; i < WARP_Q; i++) {
        // EXERCISE 12.2: P of this tile, and what was computed for the tiles before, relative to the new m (about 7 lines)
        const float m_new = fmaxf(m[i], warp_max(S[i]) * scale);
        const float rescale = __expf(m[i] - m_new);
        S[i] = __expf(S[i] * scale - m_new);
        m[i] = m_new;
        l[i] = l[i] * rescale + warp_sum(S[i]);
#pragma unroll
        for (int j = 0; j < D / 32; j++) O[i][j] *= rescale;
        // STUB m[i] = fmaxf(m[i], warp_max(S[i]) * scale);
        // STUB S[i] = __expf(S[i] * scale - m[i]);
        // STUB l[i] += warp_sum(S[i]);
        // END
    }
}

// O += P V, key by key: a column of P comes from the lane that has the key.
template <int D>
static __device__ void multiply_PV(float (&O)[WARP_Q][D / 32], const float (&P)[WARP_Q],
                                   const SharedStorage<D> &smem, int lane)
{
    // EXERCISE 12.3: the lane's columns of O, from all lanes' P (about 9 lines)
#pragma unroll 4
    for (int key = 0; key < BLOCK_KV; key++) {
        float P_col[WARP_Q];
#pragma unroll
        for (int i = 0; i < WARP_Q; i++) P_col[i] = __shfl_sync(0xffffffff, P[i], key);
#pragma unroll
        for (int j = 0; j < D / 32; j++)
#pragma unroll
            for (int i = 0; i < WARP_Q; i++) O[i][j] += P_col[i] * smem.V_smem[key][j * 32 + lane];
    }
    // STUB for (int j = 0; j < D / 32; j++)
    // STUB     for (int i = 0; i < WARP_Q; i++) O[i][j] += P[i] * smem.V_smem[0][j * 32 + lane];
    // END
}

// Divides by the sums and writes a warp's rows of O and LSE. O_gmem and LSE begin at row 0.
template <typename T, int D>
static __device__ void store_rows(T *O_gmem, float *LSE, const float (&O)[WARP_Q][D / 32],
                                  const float (&m)[WARP_Q], const float (&l)[WARP_Q], int first_row,
                                  const attention &a, int lane)
{
#pragma unroll
    for (int i = 0; i < WARP_Q; i++) {
        const int row = first_row + i;
        if (row >= a.q_len) continue;
        const float inverse = l[i] > 0 ? 1 / l[i] : 0;
        if (lane == 0) LSE[row] = l[i] > 0 ? m[i] + logf(l[i]) : -INFINITY;
#pragma unroll
        for (int j = 0; j < D / 32; j++)
            O_gmem[(size_t)row * a.heads * D + j * 32 + lane] = (T)(O[i][j] * inverse);
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS) tile_by_tile_kernel(const attention a)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<D> &smem = *reinterpret_cast<SharedStorage<D> *>(smem_bytes);
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

    // Prologue: Q stays in shared memory.
    load_tile<D>(smem.Q_smem, Q + (size_t)block_row * a.heads * D, a.heads * D, a.q_len - block_row, tid);

    // Mainloop.
    const float scale = rsqrtf(D);
    const int first_row = block_row + warp * WARP_Q;
    float O[WARP_Q][D / 32] = {};
    float m[WARP_Q], l[WARP_Q];
    for (int i = 0; i < WARP_Q; i++) m[i] = -FLT_MAX, l[i] = 0;
    const int num_tiles = (a.k_len - 1) / BLOCK_KV + 1;
    for (int tile = 0; tile < num_tiles; tile++) {
        const int col = tile * BLOCK_KV;
        load_tile<D>(smem.K_smem, K + (size_t)col * a.kv_heads * D, a.kv_heads * D, a.k_len - col, tid);
        load_tile<D>(smem.V_smem, V + (size_t)col * a.kv_heads * D, a.kv_heads * D, a.k_len - col, tid);
        __syncthreads(); // Every thread's part of the tiles, and of Q, has arrived.

        float S[WARP_Q] = {};
        multiply_QK<D>(S, smem, warp, lane);
        mask_tile(S, first_row, col + lane, a);
        softmax_tile<D>(S, m, l, O, scale);
        multiply_PV<D>(O, S, smem, lane);
        __syncthreads(); // Everyone has read the tiles before anyone overwrites them.
    }

    // Epilogue.
    store_rows<T, D>((T *)a.O + ((size_t)batch * a.q_len * a.heads + head) * D,
                     a.LSE + ((size_t)batch * a.heads + head) * a.q_len, O, m, l, first_row, a, lane);
}

template <typename T, int D>
static cudaError_t launch(const attention &a, cudaStream_t stream)
{
    const int smem_size = sizeof(SharedStorage<D>);
    const dim3 grid((a.q_len - 1) / BLOCK_Q + 1, a.heads, a.batch);
    const cudaError_t error = cudaFuncSetAttribute(tile_by_tile_kernel<T, D>,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size);
    if (error != cudaSuccess) return error;
    tile_by_tile_kernel<T, D><<<grid, NUM_THREADS, smem_size, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t tile_by_tile(const struct attention *a, cudaStream_t stream)
{
    if (!attention_valid(*a)) return cudaErrorInvalidValue;
    if (a->head_dim == 64)
        return a->dtype == F16 ? launch<__half, 64>(*a, stream) : launch<__nv_bfloat16, 64>(*a, stream);
    return a->dtype == F16 ? launch<__half, 128>(*a, stream) : launch<__nv_bfloat16, 128>(*a, stream);
}
