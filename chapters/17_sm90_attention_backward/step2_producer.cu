// Chapter 17, step 2: a producer fetches, and two consumers multiply.
//
// Question: step 1 waits for Q and dO when it has nothing else to do, tile after tile. Who could have fetched them before?
//
// A producer, as in chapter 15. K and V come once: their barrier ends one phase. Q and dO have rings of stages with barriers of
// their own, since dO's place is free after dV and Q's only after dK. LSE_log2 of a tile comes with Q and dPsum with dO, as bytes
// of the same phase: who has waited for Q has waited for LSE_log2.
//
//      producer, one thread   Q0 K V dO0 | Q1 dO1 | Q2 dO2 ...         each as soon as its place is empty
//      2 consumers            S | dP | dV | dQ | dK                    dO's stage is given back after dV, Q's after dK
//
//      shared memory, D = 128:  K 32,768 | V 32,768 | Q 2 x 16,384 | dO 2 x 16,384 | P 16,384 | dS 16,384 | rows 1,024 | barriers
//
// The registers come from the producer (setmaxnreg): 24 + 2 x 240 = 504 = 3 x 168 a thread.
//
// Grows from: step 1 (five_products).
// New instructions: cp.async.bulk without a tensor map.
// Registers: 240 a thread of the consumers.
// Run: make chapter-17 OP=attention STEP=producer
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

constexpr int MMA_K = 16;            // k of a wgmma
constexpr int CONSUMERS = 2;         // warpgroups that multiply
constexpr int NUM_THREADS = 3 * 128; // warpgroup 0 is the producer
constexpr int PRODUCER_REGS = 24, CONSUMER_REGS = 240;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <= 3 * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");

// The tiles of a block, by head dimension, and what one of its consumers has of them.
template <int D>
struct Tile {
    static constexpr int KV = D == 256 ? 64 : 128;     // keys
    static constexpr int WG_KEYS = KV / 2;             // columns of S and dP
    static constexpr int WG_COLS = D == 256 ? 128 : D; // columns of dK and dV, of 64 keys
    static constexpr int STAGES = D == 256 ? 1 : 2;    // of Q, and of dO
};

enum NamedBarrier {
    CONSUMERS_ONLY = 1, // all threads of the consumers
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
    T Q_smem[Tile<D>::STAGES][D / 64][TILE_Q][64];
    T dO_smem[Tile<D>::STAGES][D / 64][TILE_Q][64];
    T P_smem[Tile<D>::KV / 64][TILE_Q][64]; // rows are queries
    T dS_smem[Tile<D>::KV / 64][TILE_Q][64];
    float LSE_log2_smem[Tile<D>::STAGES][TILE_Q];
    float dPsum_smem[Tile<D>::STAGES][TILE_Q];
    Work<D> work;     // read where it is needed: registers are too few to keep it
    uint64_t KV_full; // K and V have landed
    uint64_t Q_full[Tile<D>::STAGES], dO_full[Tile<D>::STAGES];   // the stage has landed, and its statistics
    uint64_t Q_empty[Tile<D>::STAGES], dO_empty[Tile<D>::STAGES]; // every consumer is done with it
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
#pragma unroll
    for (int i = 0; i < N / 2; i++) dP[i] = P[i] * (dP[i] - dPsum[i / 2 % 2]);
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

// Starts the copies of a tile of Q or dO, and of its statistics, into their stage when that is empty. Past the last query there are
// zeros.
template <typename T, int D>
static __device__ void load_tile(T (&dst_smem)[D / 64][TILE_Q][64], const CUtensorMap &map,
                                 float (&rows_smem)[TILE_Q], const float *rows, uint64_t *full,
                                 uint64_t *empty, uint32_t parity, int head, int first_row, int batch)
{
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    mbarrier_arrive_expect_tx(full, sizeof dst_smem + sizeof rows_smem);
    cp_async_bulk_tensor_5d(dst_smem, map, full, 0, head, first_row, 0, batch);
    cp_async_bulk(rows_smem, rows, sizeof rows_smem, full);
}

// The producer, one thread: K and V once, then the queries of every head that reads this K/V head, tile after tile, each as soon as
// its place is empty. Nobody has used the places of the first round: a new barrier lets a wait for parity 1 pass.
template <typename T, int D>
static __device__ void produce(SharedStorage<T, D> &smem, const CUtensorMap &Q_map, const CUtensorMap &dO_map,
                               const CUtensorMap &K_map, const CUtensorMap &V_map,
                               const attention_backward &backward)
{
    const attention &a = backward.forward;
    const Workspace workspace(backward);
    const Work<D> &work = smem.work;
    trace(LOAD);
    mbarrier_arrive_expect_tx(&smem.KV_full, sizeof smem.K_smem + sizeof smem.V_smem);
    cp_async_bulk_tensor_5d(smem.K_smem, K_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                            work.batch);
    cp_async_bulk_tensor_5d(smem.V_smem, V_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                            work.batch);
    PipelineState<Tile<D>::STAGES> state;
    for (int head = work.first_head; head < work.last_head; head++)
        for (int first_row = work.first_row; first_row < a.q_len; first_row += TILE_Q) {
            const size_t row = workspace.row(work.batch, head, first_row);
            const int stage = state.stage;
            load_tile<T, D>(smem.Q_smem[stage], Q_map, smem.LSE_log2_smem[stage], workspace.LSE_log2 + row,
                            &smem.Q_full[stage], &smem.Q_empty[stage], state.parity, head, first_row,
                            work.batch);
            load_tile<T, D>(smem.dO_smem[stage], dO_map, smem.dPsum_smem[stage], workspace.dPsum + row,
                            &smem.dO_full[stage], &smem.dO_empty[stage], state.parity, head, first_row,
                            work.batch);
            state.advance();
        }
}

// A consumer: every tile of queries against the block's keys. One thread gives a stage back for its warpgroup.
template <typename T, int D>
static __device__ void consume(SharedStorage<T, D> &smem, const attention_backward &backward, int consumer)
{
    constexpr int WG_KEYS = Tile<D>::WG_KEYS, WG_COLS = Tile<D>::WG_COLS;
    const attention &a = backward.forward;
    const Workspace workspace(backward);
    const Work<D> &work = smem.work;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const int wg_key = consumer * WG_KEYS;                    // the first column of S and dP
    const int box = WG_COLS == D ? consumer : 0;              // the 64 keys of dK and dV,
    const int wg_col = WG_COLS == D ? 0 : consumer * WG_COLS; // and their first column
    const int wg_row = tid / 32 * 16 + lane / 4; // the thread's first row in a tile, the other is 8 more
    const float scale = rsqrtf(D), c = scale * 1.44269504f; // log2(e)
    PipelineState<Tile<D>::STAGES> state;
    float dK[WG_COLS / 2] = {}, dV[WG_COLS / 2] = {};
    trace(WAIT_FULL);
    mbarrier_wait(&smem.KV_full, 0);

    for (int head = work.first_head; head < work.last_head; head++)
        for (int first_row = work.first_row; first_row < a.q_len; first_row += TILE_Q) {
            const int stage = state.stage;
            float P[WG_KEYS / 2], dS[WG_KEYS / 2], dQ[D / 4];
            trace(WAIT_FULL);
            mbarrier_wait(&smem.Q_full[stage], state.parity);
            wgmma_fence();
            multiply_rows<T, D, WG_KEYS>(P, smem.Q_smem[stage], smem.K_smem, wg_key);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(P);
            trace(SOFTMAX);
            const float LSE_log2[2] = {smem.LSE_log2_smem[stage][wg_row],
                                       smem.LSE_log2_smem[stage][wg_row + 8]};
            if (work.first_key + Tile<D>::KV > keys_seen(a, first_row)) // A row does not see every key.
                mask_tile<WG_KEYS>(P, work.first_key + wg_key, first_row + wg_row, lane, a);
            exponentials<WG_KEYS>(P, LSE_log2, c);
            named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // Nobody reads the P and dS before any more.
            store_tile<T, WG_KEYS>(smem.P_smem[wg_key / 64], P, wg_key % 64, tid);

            trace(WAIT_FULL);
            mbarrier_wait(&smem.dO_full[stage], state.parity);
            wgmma_fence();
            multiply_rows<T, D, WG_KEYS>(dS, smem.dO_smem[stage], smem.V_smem, wg_key);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dS);
            trace(SOFTMAX);
            const float dPsum[2] = {smem.dPsum_smem[stage][wg_row], smem.dPsum_smem[stage][wg_row + 8]};
            softmax_gradient<WG_KEYS>(dS, P, dPsum);
            store_tile<T, WG_KEYS>(smem.dS_smem[wg_key / 64], dS, wg_key % 64, tid);
            fence_proxy_async();                                 // What this thread wrote is there for wgmma,
            named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // and what the others wrote.

            wgmma_touch(dV);
            wgmma_fence();
            multiply_transposed<T, WG_COLS>(dV, smem.P_smem[box], &smem.dO_smem[stage][wg_col / 64]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dV);
            if (tid == 0)
                mbarrier_arrive(
                    &smem.dO_empty[stage]); // At the barrier above all had read dPsum and LSE_log2.

            wgmma_fence();
            multiply_dQ<T, D>(dQ, smem.dS_smem, smem.K_smem, consumer * (D / 2));
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dQ);
            trace(STORE);
            float4 *dQ_sum = workspace.dQ_half<D>(work.batch, head, first_row, consumer) + tid;
#pragma unroll
            for (int i = 0; i < D / 4; i += 4)
                red_add_v4(&dQ_sum[i / 4 * 128], make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]));

            wgmma_touch(dK);
            wgmma_fence();
            multiply_transposed<T, WG_COLS>(dK, smem.dS_smem[box], &smem.Q_smem[stage][wg_col / 64]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(dK);
            if (tid == 0) mbarrier_arrive(&smem.Q_empty[stage]);
            state.advance();
        }

    trace(STORE);
    store_gradient<T, D>(backward.dK, dK, scale, a, work, work.first_key + box * 64, wg_col, tid);
    store_gradient<T, D>(backward.dV, dV, 1, a, work, work.first_key + box * 64, wg_col, tid);
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    producer_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of TILE_Q rows
                    const __grid_constant__ CUtensorMap dO_map, // the same
                    const __grid_constant__ CUtensorMap K_map,  // boxes of Tile<D>::KV rows
                    const __grid_constant__ CUtensorMap V_map,  // the same
                    const attention_backward backward)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        smem.work = Work<D>(backward.forward, blockIdx.x);
        mbarrier_init(&smem.KV_full, 1); // the producer's arrival, and the bytes it expects
        for (int stage = 0; stage < Tile<D>::STAGES; stage++) {
            mbarrier_init(&smem.Q_full[stage], 1);
            mbarrier_init(&smem.dO_full[stage], 1);
            mbarrier_init(&smem.Q_empty[stage], CONSUMERS);
            mbarrier_init(&smem.dO_empty[stage], CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x / 32 == 0 && elect_one()) produce<T, D>(smem, Q_map, dO_map, K_map, V_map, backward);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        consume<T, D>(smem, backward, consumer);
    }
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
        error = cudaFuncSetAttribute(producer_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error == cudaSuccess) error = backward_preprocess(&backward, stream);
    if (error != cudaSuccess) return error;
    producer_kernel<T, D>
        <<<(int)num_tiles, NUM_THREADS, smem_bytes, stream>>>(Q_map, dO_map, K_map, V_map, backward);
    error = cudaGetLastError();
    return error == cudaSuccess ? backward_postprocess(&backward, stream) : error;
}

extern "C" cudaError_t producer(const attention_backward *a, cudaStream_t stream)
{
    return with_attention_types(a->forward,
                                [&](auto t, auto d) { return launch<decltype(t), d.value>(*a, stream); });
}
