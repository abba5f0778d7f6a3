// Chapter 17, step 1: the gradients of attention: five products for each tile of queries and keys.
//
// Question: dK and dV are sums over queries, dQ is a sum over keys. A block that has all keys of a query sums up dQ alone, one that
// has all queries of a key dK and dV. Which of the three sums leaves the block?
//
// dQ: one against two. A block keeps K and V of 128 keys (D = 256: 64) and their dK and dV, queries come by, and what it adds to dQ
// it adds to memory, where other blocks add to it too. P is computed anew: of the forward pass only O and LSE are left.
//
//      S = Q Kᵀ | P = 2^(S c - LSE) | dP = dO Vᵀ | dS = P (dP - dPsum) | dV += Pᵀ dO | dQ += dS K | dK += dSᵀ Q
//
// P and dS, 16 bits of each, go through shared memory: dV and dK need them transposed, and dQ needs those of the other warpgroup.
// wgmma reads rows along m as well as along k, so one copy of dS serves dQ and dK.
//
//                   rows       columns, D <= 128      columns, D = 256
//      S, dP        queries    keys: half each        keys: half each
//      dV, dK       keys       D, of half the keys    D: half each, of all keys
//      dQ           queries    D: half each           D: half each
//
// Grows from: chapter 15, step 1 (producer_consumer).
// New instructions: wgmma with A transposed in shared memory, red.global.add.v4.
// Registers: at most 255 a thread; D = 128 keeps 64 of dK and 64 of dV, and 32 each of S, dP and dQ.
// Run: make chapter-17 OP=attention STEP=five_products
#include <climits>

#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "instructions.cuh"
#include "launchers.h"
#include "workspace.cuh"

constexpr int MMA_K = 16;        // k of a wgmma
constexpr int NUM_THREADS = 256; // two warpgroups

// The tiles of a block, by head dimension, and what one of its two warpgroups has of them.
template <int D>
struct Tile {
    static constexpr int KV = D == 256 ? 64 : 128;     // keys
    static constexpr int WG_KEYS = KV / 2;             // columns of S and dP
    static constexpr int WG_COLS = D == 256 ? 128 : D; // columns of dK and dV, of 64 keys
};

// What a block works on: Tile<D>::KV keys of a K/V head.
template <int D>
struct Work {
    int first_key, kv_head, batch;
    int first_row;             // of the first tile of queries that see any of the keys
    int first_head, last_head; // the query heads that read the K/V head, the last excluded

    __device__ Work(const attention &a, int tile)
    {
        const int kv_tiles = (a.k_len - 1) / Tile<D>::KV + 1;
        first_key = tile % kv_tiles * Tile<D>::KV;
        kv_head = tile / kv_tiles % a.kv_heads;
        batch = tile / kv_tiles / a.kv_heads;
        first_head = kv_head * (a.heads / a.kv_heads);
        last_head = first_head + a.heads / a.kv_heads;
        first_row = a.causal ? max(first_key + a.q_len - a.k_len, 0) / TILE_Q * TILE_Q : 0;
    }
};

// A box of 64 columns has rows of 128 bytes, the swizzle's width; a tile of D columns is D / 64 boxes.
template <typename T, int D>
struct SharedStorage {
    T K_smem[D / 64][Tile<D>::KV][64];
    T V_smem[D / 64][Tile<D>::KV][64];
    T Q_smem[D / 64][TILE_Q][64];
    T dO_smem[D / 64][TILE_Q][64];
    T P_smem[Tile<D>::KV / 64][TILE_Q][64]; // rows are queries
    T dS_smem[Tile<D>::KV / 64][TILE_Q][64];
    uint64_t KV_full; // K and V have landed
    uint64_t Q_full;  // Q and dO have landed
};

// S = Q Kᵀ or dP = dO Vᵀ: 64 queries, and N keys from K_smem on. A descriptor counts in units of 16 bytes; 16 columns are 32 bytes.
template <typename T, int D, int N>
static __device__ void multiply_rows(float (&S)[N / 2], const T (*Q_smem)[TILE_Q][64],
                                     const T (*K_smem)[Tile<D>::KV][64], int first_key)
{
    const uint64_t Q_desc = wgmma_descriptor(Q_smem), K_desc = wgmma_descriptor(K_smem[0][first_key]);
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
        wgmma<N, T>(S, Q_desc + (k / 4 * sizeof Q_smem[0] + k % 4 * 32) / 16,
                    K_desc + (k / 4 * sizeof K_smem[0] + k % 4 * 32) / 16, k > 0);
}

// dV += Pᵀ dO or dK += dSᵀ Q: 64 keys, N columns of dO from dO_smem on. 16 queries are 16 rows of either.
template <typename T, int N>
static __device__ void multiply_transposed(float (&dV)[N / 2], const T (&P_smem)[TILE_Q][64],
                                           const T (*dO_smem)[TILE_Q][64])
{
    const uint64_t P_desc = wgmma_descriptor_mn(P_smem, sizeof P_smem),
                   dO_desc = wgmma_descriptor_mn(dO_smem, sizeof dO_smem[0]);
#pragma unroll
    for (int k = 0; k < TILE_Q / MMA_K; k++)
        wgmma<N, T, true, true>(dV, P_desc + k * MMA_K * 128 / 16, dO_desc + k * MMA_K * 128 / 16, true);
}

// dQ = dS K: 64 queries, D / 2 columns of K from first_col on. 16 keys are 16 columns of dS and 16 rows of K.
template <typename T, int D>
static __device__ void multiply_dQ(float (&dQ)[D / 4], const T (*dS_smem)[TILE_Q][64],
                                   const T (*K_smem)[Tile<D>::KV][64], int first_col)
{
    const uint64_t dS_desc = wgmma_descriptor(dS_smem),
                   K_desc = wgmma_descriptor_mn(K_smem[first_col / 64], sizeof K_smem[0]) +
                            first_col % 64 * 2 / 16;
#pragma unroll
    for (int k = 0; k < Tile<D>::KV / MMA_K; k++)
        wgmma<D / 2, T, false, true>(dQ, dS_desc + (k / 4 * sizeof dS_smem[0] + k % 4 * 32) / 16,
                                     K_desc + k * MMA_K * 128 / 16, k > 0);
}

// Takes away the scores of keys that a row does not see: first_key is the first column's, row the thread's first.
template <int N>
static __device__ void mask_tile(float (&S)[N / 2], int first_key, int row, int lane, const attention &a)
{
#pragma unroll
    for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
        const int seen =
            keys_seen(a, row + half * 8) - first_key - lane % 4 * 2; // from the thread's first column on
#pragma unroll
        for (int i = 0; i < N / 2; i += 4) {
            if (i * 2 >= seen) S[i + half * 2] = -INFINITY;
            if (i * 2 + 1 >= seen) S[i + half * 2 + 1] = -INFINITY;
        }
    }
}

// P = 2^(S c - LSE_log2); c is scale log2(e).
template <int N>
static __device__ void exponentials(float (&S)[N / 2], const float (&LSE_log2)[2], float c)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) S[i] = ex2_approx_ftz(S[i] * c - LSE_log2[i / 2 % 2]);
}

// dS = P (dP - dPsum), in the place of dP.
template <int N>
static __device__ void softmax_gradient(float (&dP)[N / 2], const float (&P)[N / 2], const float (&dPsum)[2])
{
    // EXERCISE 17.2: dS of the thread's two rows (2 lines)
#pragma unroll
    for (int i = 0; i < N / 2; i++) dP[i] = P[i] * (dP[i] - dPsum[i / 2 % 2]);
    // STUB dP[0] *= P[0] - dPsum[0];
    // END
}

// Writes 64 queries and N keys, the first of which is column first_col, in 16 bits. tid is the thread's number in its warpgroup.
template <typename T, int N>
static __device__ void store_tile(T (&dst_smem)[TILE_Q][64], const float (&S)[N / 2], int first_col, int tid)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 8) { // 16 columns: two times four accumulators
        // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
        const uint32_t pairs[4] = {pack_pair<T>(S[i], S[i + 1]), pack_pair<T>(S[i + 2], S[i + 3]),
                                   pack_pair<T>(S[i + 4], S[i + 5]), pack_pair<T>(S[i + 6], S[i + 7])};
        const int chunk = first_col / 8 + i / 4 + tid % 32 / 16;
        stmatrix_x4(smem_addr(dst_smem) + swizzle((tid / 32 * 16 + tid % 16) * 128 + chunk * 16, 3), pairs);
    }
}

// Writes a warpgroup's part of dK or dV, a pair of columns at a time.
template <typename T, int D>
static __device__ void store_gradient(void *dst, const float (&dK)[Tile<D>::WG_COLS / 2], float scale,
                                      const attention &a, const Work<D> &work, int first_key, int first_col,
                                      int tid)
{
    const int key = first_key + tid / 32 * 16 + tid % 32 / 4; // and key + 8
    T *rows = (T *)dst + (((size_t)work.batch * a.k_len + key) * a.kv_heads + work.kv_head) * D + first_col +
              tid % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (key + half * 8 < a.k_len)
#pragma unroll
            for (int i = half * 2; i < Tile<D>::WG_COLS / 2; i += 4)
                store_pair(rows + (size_t)half * 8 * a.kv_heads * D + i * 2 - half * 4, dK[i] * scale,
                           dK[i + 1] * scale);
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    five_products_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of TILE_Q rows
                         const __grid_constant__ CUtensorMap dO_map, // the same
                         const __grid_constant__ CUtensorMap K_map,  // boxes of Tile<D>::KV rows
                         const __grid_constant__ CUtensorMap V_map,  // the same
                         const attention_backward backward)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);
    constexpr int WG_KEYS = Tile<D>::WG_KEYS, WG_COLS = Tile<D>::WG_COLS;

    // Indices.
    const attention &a = backward.forward;
    const Workspace workspace(backward);
    const Work<D> work(a, blockIdx.x);
    const int warpgroup = threadIdx.x / 128, tid = threadIdx.x % 128, lane = tid % 32;
    const int wg_key = warpgroup * WG_KEYS;                    // the first column of S and dP
    const int box = WG_COLS == D ? warpgroup : 0;              // the 64 keys of dK and dV,
    const int wg_col = WG_COLS == D ? 0 : warpgroup * WG_COLS; // and their first column
    const float scale = rsqrtf(D), c = scale * 1.44269504f;    // log2(e)

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        mbarrier_init(&smem.KV_full, 1);
        mbarrier_init(&smem.Q_full, 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    // Prologue. Past the last key or query there are zeros.
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(&smem.KV_full, sizeof smem.K_smem + sizeof smem.V_smem);
        cp_async_bulk_tensor_5d(smem.K_smem, K_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                                work.batch);
        cp_async_bulk_tensor_5d(smem.V_smem, V_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                                work.batch);
    }
    float dK[WG_COLS / 2] = {}, dV[WG_COLS / 2] = {};
    uint32_t parity = 0;
    mbarrier_wait(&smem.KV_full, 0);

    // Mainloop: the queries of every head that reads this K/V head.
    for (int head = work.first_head; head < work.last_head; head++)
        for (int first_row = work.first_row; first_row < a.q_len; first_row += TILE_Q) {
            if (threadIdx.x == 0) {
                mbarrier_arrive_expect_tx(&smem.Q_full, sizeof smem.Q_smem + sizeof smem.dO_smem);
                cp_async_bulk_tensor_5d(smem.Q_smem, Q_map, &smem.Q_full, 0, head, first_row, 0, work.batch);
                cp_async_bulk_tensor_5d(smem.dO_smem, dO_map, &smem.Q_full, 0, head, first_row, 0,
                                        work.batch);
            }
            const int row = first_row + tid / 32 * 16 + lane / 4; // and row + 8
            const size_t row_index = workspace.row(work.batch, head, row);
            const float *LSE_log2 = workspace.LSE_log2 + row_index, *dPsum = workspace.dPsum + row_index;
            const float row_LSE_log2[2] = {LSE_log2[0], LSE_log2[8]}, row_dPsum[2] = {dPsum[0], dPsum[8]};
            float P[WG_KEYS / 2], dS[WG_KEYS / 2], dQ[D / 4];
            mbarrier_wait(&smem.Q_full, parity);
            parity ^= 1;

            wgmma_fence();
            multiply_rows<T, D, WG_KEYS>(P, smem.Q_smem, smem.K_smem, wg_key);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(P);
            if (work.first_key + Tile<D>::KV > keys_seen(a, first_row)) // A row does not see every key.
                mask_tile<WG_KEYS>(P, work.first_key + wg_key, row, lane, a);
            exponentials<WG_KEYS>(P, row_LSE_log2, c);
            store_tile<T, WG_KEYS>(smem.P_smem[wg_key / 64], P, wg_key % 64, tid);

            wgmma_fence();
            multiply_rows<T, D, WG_KEYS>(dS, smem.dO_smem, smem.V_smem, wg_key);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dS);
            softmax_gradient<WG_KEYS>(dS, P, row_dPsum);
            store_tile<T, WG_KEYS>(smem.dS_smem[wg_key / 64], dS, wg_key % 64, tid);
            fence_proxy_async(); // What this thread wrote is there for wgmma,
            __syncthreads();     // and what the others wrote.

            // EXERCISE 17.3: dV += Pᵀ dO; dQ = dS K, added to its sum in memory; dK += dSᵀ Q (about 24 lines)
            wgmma_touch(dV);
            wgmma_fence();
            multiply_transposed<T, WG_COLS>(dV, smem.P_smem[box], &smem.dO_smem[wg_col / 64]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dV);

            wgmma_fence();
            multiply_dQ<T, D>(dQ, smem.dS_smem, smem.K_smem, warpgroup * (D / 2));
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dQ);
            float4 *dQ_sum = workspace.dQ_half<D>(work.batch, head, first_row, warpgroup) + tid;
#pragma unroll
            for (int i = 0; i < D / 4; i += 4)
                red_add_v4(&dQ_sum[i / 4 * 128], make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]));

            wgmma_touch(dK);
            wgmma_fence();
            multiply_transposed<T, WG_COLS>(dK, smem.dS_smem[box], &smem.Q_smem[wg_col / 64]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dK);
            // STUB multiply_transposed<T, WG_COLS>(dV, smem.P_smem[box], &smem.dO_smem[wg_col / 64]);
            // STUB multiply_dQ<T, D>(dQ, smem.dS_smem, smem.K_smem, warpgroup * (D / 2));
            // END
            __syncthreads(); // Nobody reads Q, dO, P or dS any more.
        }

    // Epilogue.
    store_gradient<T, D>(backward.dK, dK, scale, a, work, work.first_key + box * 64, wg_col, tid);
    store_gradient<T, D>(backward.dV, dV, 1, a, work, work.first_key + box * 64, wg_col, tid);
    trace(END);
}

template <typename T, int D>
static cudaError_t launch(const attention_backward &backward, cudaStream_t stream)
{
    const attention &a = backward.forward;
    CUtensorMap Q_map, dO_map, K_map, V_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T, D>);
    constexpr CUtensorMapDataType type = tensor_map_type<T>();
    const int64_t num_tiles = (int64_t)a.batch * a.kv_heads * ((a.k_len - 1) / Tile<D>::KV + 1);
    if (num_tiles > INT_MAX) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_heads(&Q_map, type, a.Q, a.batch, a.q_len, a.heads, D, TILE_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&dO_map, type, backward.dO, a.batch, a.q_len, a.heads, D, TILE_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&K_map, type, a.K, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&V_map, type, a.V, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, D);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(five_products_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error == cudaSuccess) error = backward_preprocess(&backward, stream);
    if (error != cudaSuccess) return error;
    five_products_kernel<T, D>
        <<<(int)num_tiles, NUM_THREADS, smem_bytes, stream>>>(Q_map, dO_map, K_map, V_map, backward);
    error = cudaGetLastError();
    return error == cudaSuccess ? backward_postprocess(&backward, stream) : error;
}

extern "C" cudaError_t five_products(const attention_backward *a, cudaStream_t stream)
{
    return with_attention_types(a->forward,
                                [&](auto t, auto d) { return launch<decltype(t), d.value>(*a, stream); });
}
