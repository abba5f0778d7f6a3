// Chapter 17, step 5: scores are computed transposed, so that P and dS need not leave the registers.
//
// Question: P and dS go through shared memory, 32 KB a tile at D = 128, so that dV and dK read them transposed. Who could have them
// transposed from the start?
//
// Sᵀ = K Qᵀ: the same product with its operands exchanged. A consumer's 64 keys are then rows, and its accumulators of 16 queries,
// rounded and in pairs, are its part of A of the next product: dV += Pᵀ dO and dK += dSᵀ Q take A from registers, as P V does in the
// forward pass. dS alone is stored, for dQ, back in its old form by stmatrix with .trans.
//
//      issued     S  dP      dV            dQ  dK
//      waited for      S        dP                 dV, dQ: dO back    dK: Q back
//      beside them        2^S      dS, store          dQ to shared memory
//
// dV needs nobody else's P: it is issued before dS is known. P's place in shared memory goes to a second dS: who stores dS of a tile
// knows by the barrier of the tile before that nobody reads that of two tiles before, and one barrier a tile is left.
//
// A row of S is a key now: LSE_log2 and dPsum belong to columns, 16 of each a thread, read as they are needed.
//
// D = 256 stays as it is in step 4: its consumers share 64 keys, and each needs the P and dS of both.
//
// Grows from: step 4 (in_flight).
// New instructions: stmatrix with .trans.
// Registers: as step 2.
// Run: make chapter-17 OP=attention STEP=in_registers
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

constexpr int WG_KEYS = 64;                  // keys of a consumer: the rows of a wgmma
constexpr int TILE_KV = CONSUMERS * WG_KEYS; // keys of a block
constexpr int STAGES = 2;                    // of Q, of dO, and of dS

enum NamedBarrier {
    CONSUMERS_ONLY = 1,             // all threads of the consumers, who have stored dS
    DQ_EMPTY = 2,                   // + consumer: its threads and warp 1, who is done with dQ_smem
    DQ_FULL = DQ_EMPTY + CONSUMERS, // + consumer: they have filled it
};
constexpr int DQ_THREADS = 128 + 32; // of both

// What a block works on: TILE_KV keys of a K/V head.
struct Work {
    int first_key, kv_head, batch;
    int first_row;             // of the first tile of queries that see any of the keys
    int first_head, last_head; // the query heads that read the K/V head, the last excluded

    __device__ Work(const attention &a, int tile)
    {
        const int kv_tiles = (a.k_len - 1) / TILE_KV + 1;
        first_key = tile % kv_tiles * TILE_KV;
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
    T K_smem[D / 64][TILE_KV][64];
    T V_smem[D / 64][TILE_KV][64];
    T Q_smem[STAGES][D / 64][TILE_Q][64];
    T dO_smem[STAGES][D / 64][TILE_Q][64];
    float4 dQ_smem[CONSUMERS][D / 16][128];
    T dS_smem[STAGES][CONSUMERS][TILE_Q][WG_KEYS]; // rows are queries
    float LSE_log2_smem[STAGES][TILE_Q];
    float dPsum_smem[STAGES][TILE_Q];
    Work work;                                  // read where it is needed: registers are too few to keep it
    uint64_t KV_full;                           // K and V have landed
    uint64_t Q_full[STAGES], dO_full[STAGES];   // the stage has landed, and its statistics
    uint64_t Q_empty[STAGES], dO_empty[STAGES]; // every consumer is done with it
};

// Sᵀ = K Qᵀ or dPᵀ = V dOᵀ: 64 keys and 64 queries. A descriptor counts in units of 16 bytes; 16 columns are 32 bytes.
template <typename T, int D>
static __device__ void multiply_keys(float (&S)[TILE_Q / 2], const T (*K_smem)[TILE_KV][64], int first_key,
                                     const T (*Q_smem)[TILE_Q][64])
{
    const uint64_t K_desc = wgmma_descriptor(K_smem[0][first_key]), Q_desc = wgmma_descriptor(Q_smem);
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
        wgmma<TILE_Q, T>(S, K_desc + (k / 4 * sizeof K_smem[0] + k % 4 * 32) / 16,
                         Q_desc + (k / 4 * sizeof Q_smem[0] + k % 4 * 32) / 16, k > 0);
}

// dV += Pᵀ dO or dK += dSᵀ Q: 64 keys. 16 queries are 16 rows of dO.
template <typename T, int D>
static __device__ void multiply_gradient(float (&dV)[D / 2], const uint32_t (&P)[TILE_Q / MMA_K][4],
                                         const T (*dO_smem)[TILE_Q][64])
{
    const uint64_t dO_desc = wgmma_descriptor_mn(dO_smem, sizeof dO_smem[0]);
#pragma unroll
    for (int k = 0; k < TILE_Q / MMA_K; k++) wgmma_rs<D, T>(dV, P[k], dO_desc + k * MMA_K * 128 / 16, true);
}

// dQ = dS K: 64 queries, D / 2 columns of K from first_col on. 16 keys are 16 columns of dS and 16 rows of K.
template <typename T, int D>
static __device__ void multiply_dQ(float (&dQ)[D / 4], const T (*dS_smem)[TILE_Q][64],
                                   const T (*K_smem)[TILE_KV][64], int first_col)
{
    const uint64_t dS_desc = wgmma_descriptor(dS_smem),
                   K_desc = wgmma_descriptor_mn(K_smem[first_col / 64], sizeof K_smem[0]) +
                            first_col % 64 * 2 / 16;
#pragma unroll
    for (int k = 0; k < TILE_KV / MMA_K; k++)
        wgmma<D / 2, T, false, true>(dQ, dS_desc + (k / 4 * sizeof dS_smem[0] + k % 4 * 32) / 16,
                                     K_desc + k * MMA_K * 128 / 16, k > 0);
}

// Takes away the scores of queries that do not see a row's key, `key` and `key` + 8: first_row is the first column's.
static __device__ void mask_tile(float (&S)[TILE_Q / 2], int key, int first_row, int lane, const attention &a)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int sees =
            a.causal ? key + half * 8 + a.q_len - a.k_len - first_row : 0; // the first column that does
        const int first = (key + half * 8 < a.k_len ? sees : TILE_Q) - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < TILE_Q / 2; i += 4) {
            if (i * 2 < first) S[i + half * 2] = -INFINITY;
            if (i * 2 + 1 < first) S[i + half * 2 + 1] = -INFINITY;
        }
    }
}

// A thread's two neighbours of accumulators i to i + 3 in a row that all keys share: LSE_log2 or dPsum.
static __device__ float2 of_columns(const float (&rows_smem)[TILE_Q], int i, int lane)
{
    return *reinterpret_cast<const float2 *>(&rows_smem[i * 2 + lane % 4 * 2]);
}

// P = 2^(S c - LSE_log2), in the place of S, and rounded; c is scale log2(e).
template <typename T>
static __device__ void exponentials(float (&S)[TILE_Q / 2], uint32_t (&P)[TILE_Q / MMA_K][4],
                                    const float (&LSE_log2_smem)[TILE_Q], int lane, float c)
{
#pragma unroll
    for (int i = 0; i < TILE_Q / 2; i += 4) {
        const float2 LSE_log2 = of_columns(LSE_log2_smem, i, lane);
#pragma unroll
        for (int j = i; j < i + 4; j += 2) { // rows l / 4 and l / 4 + 8
            S[j] = ex2_approx_ftz(S[j] * c - LSE_log2.x);
            S[j + 1] = ex2_approx_ftz(S[j + 1] * c - LSE_log2.y);
            P[j / 8][j / 2 % 4] = pack_pair<T>(S[j], S[j + 1]);
        }
    }
}

// dS = P (dP - dPsum), rounded.
template <typename T>
static __device__ void softmax_gradient(const float (&dP)[TILE_Q / 2], const float (&P)[TILE_Q / 2],
                                        uint32_t (&dS)[TILE_Q / MMA_K][4], const float (&dPsum_smem)[TILE_Q],
                                        int lane)
{
#pragma unroll
    for (int i = 0; i < TILE_Q / 2; i += 4) {
        const float2 dPsum = of_columns(dPsum_smem, i, lane);
#pragma unroll
        for (int j = i; j < i + 4; j += 2)
            dS[j / 8][j / 2 % 4] = pack_pair<T>(P[j] * (dP[j] - dPsum.x), P[j + 1] * (dP[j + 1] - dPsum.y));
    }
}

// Writes dS with queries as rows. tid is the thread's number in its warpgroup.
template <typename T>
static __device__ void store_tile(T (&dst_smem)[TILE_Q][WG_KEYS], const uint32_t (&dS)[TILE_Q / MMA_K][4],
                                  int tid)
{
#pragma unroll
    for (int k = 0; k < TILE_Q / MMA_K; k++) {
        // Matrices 0 to 3: the upper and the lower 8 keys of 8 queries, then of the next 8 queries.
        const int query = k * MMA_K + tid % 8 + tid / 16 % 2 * 8, chunk = tid / 32 * 2 + tid / 8 % 2;
        stmatrix_x4_trans(smem_addr(dst_smem) + swizzle(query * 128 + chunk * 16, 3), dS[k]);
    }
}

// Writes a consumer's 64 rows of dK or dV, a pair of columns at a time.
template <typename T, int D>
static __device__ void store_gradient(void *dst, const float (&dK)[D / 2], float scale, const attention &a,
                                      const Work &work, int first_key, int tid)
{
    const int key = first_key + tid / 32 * 16 + tid % 32 / 4; // and key + 8
    T *rows = (T *)dst + (((size_t)work.batch * a.k_len + key) * a.kv_heads + work.kv_head) * D + tid % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (key + half * 8 < a.k_len)
#pragma unroll
            for (int i = half * 2; i < D / 2; i += 4)
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
    const Work &work = smem.work;
    trace(LOAD);
    mbarrier_arrive_expect_tx(&smem.KV_full, sizeof smem.K_smem + sizeof smem.V_smem);
    cp_async_bulk_tensor_5d(smem.K_smem, K_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                            work.batch);
    cp_async_bulk_tensor_5d(smem.V_smem, V_map, &smem.KV_full, 0, work.kv_head, work.first_key, 0,
                            work.batch);
    PipelineState<STAGES> state;
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

// The second producer, a warp: adds every tile of dQ to memory, a half from each consumer.
template <typename T, int D>
static __device__ void store_dQ(SharedStorage<T, D> &smem, const attention_backward &backward)
{
    const attention &a = backward.forward;
    const Workspace workspace(backward);
    const Work work(a, blockIdx.x);
    const int lane = threadIdx.x % 32;
    for (int head = work.first_head; head < work.last_head; head++) {
        float4 *dQ_sum = workspace.dQ_half<D>(work.batch, head, work.first_row, 0); // The others follow.
        for (int first_row = work.first_row; first_row < a.q_len; first_row += TILE_Q) {
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                named_barrier_arrive(DQ_EMPTY + consumer, DQ_THREADS);
            for (int consumer = 0; consumer < CONSUMERS; consumer++) {
                trace(WAIT_FULL);
                named_barrier_sync(DQ_FULL + consumer, DQ_THREADS);
                trace(STORE);
                if (lane == 0) {
                    cp_reduce_async_bulk_add(dQ_sum, smem.dQ_smem[consumer][0],
                                             sizeof smem.dQ_smem[consumer]);
                    cp_async_bulk_commit_group();
                }
                dQ_sum += D / 16 * 128;
            }
            if (lane == 0) cp_async_bulk_wait_group_read<0>();
            __syncwarp(); // Nobody says that it is empty before lane 0 knows.
        }
    }
}

// A consumer: every tile of queries against the block's keys. One thread gives a stage back for its warpgroup.
template <typename T, int D>
static __device__ void consume(SharedStorage<T, D> &smem, const attention_backward &backward, int consumer)
{
    const attention &a = backward.forward;
    const Work &work = smem.work;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const int wg_key = consumer * WG_KEYS;                  // the consumer's first key in the tile
    const float scale = rsqrtf(D), c = scale * 1.44269504f; // log2(e)
    PipelineState<STAGES> state;
    float dK[D / 2] = {}, dV[D / 2] = {};
    trace(WAIT_FULL);
    mbarrier_wait(&smem.KV_full, 0);

    for (int head = work.first_head; head < work.last_head; head++)
        for (int first_row = work.first_row; first_row < a.q_len; first_row += TILE_Q) {
            const int stage = state.stage;
            float S[TILE_Q / 2], dP[TILE_Q / 2], dQ[D / 4];
            uint32_t P[TILE_Q / MMA_K][4], dS[TILE_Q / MMA_K][4];
            trace(WAIT_FULL);
            mbarrier_wait(&smem.Q_full[stage], state.parity);
            wgmma_fence();
            multiply_keys<T, D>(S, smem.K_smem, wg_key, smem.Q_smem[stage]);
            wgmma_commit_group();
            trace(WAIT_FULL);
            mbarrier_wait(&smem.dO_full[stage], state.parity);
            wgmma_fence();
            multiply_keys<T, D>(dP, smem.V_smem, wg_key, smem.dO_smem[stage]);
            wgmma_commit_group();

            wgmma_wait_group<1>();
            wgmma_touch(S);
            trace(SOFTMAX);
            if (work.first_key + TILE_KV > keys_seen(a, first_row)) // A query does not see every key.
                mask_tile(S, work.first_key + wg_key + tid / 32 * 16 + lane / 4, first_row, lane, a);
            exponentials<T>(S, P, smem.LSE_log2_smem[stage], lane, c);

            wgmma_touch(dV);
            wgmma_touch(P);
            wgmma_fence();
            multiply_gradient<T, D>(dV, P, smem.dO_smem[stage]);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            wgmma_touch(dP);
            softmax_gradient<T>(dP, S, dS, smem.dPsum_smem[stage], lane);
            store_tile<T>(smem.dS_smem[stage][consumer], dS, tid);
            fence_proxy_async();                                 // What this thread wrote is there for wgmma,
            named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // and what the others wrote.

            wgmma_touch(dK);
            wgmma_touch(dS);
            wgmma_fence();
            multiply_dQ<T, D>(dQ, smem.dS_smem[stage], smem.K_smem, consumer * (D / 2));
            wgmma_commit_group();
            multiply_gradient<T, D>(dK, dS, smem.Q_smem[stage]);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            wgmma_touch(dV);
            wgmma_touch(P); // wgmma has read it.
            if (tid == 0)
                mbarrier_arrive(
                    &smem.dO_empty[stage]); // At the barrier above all had read dPsum and LSE_log2.
            wgmma_touch(dQ);
            trace(STORE);
            named_barrier_sync(DQ_EMPTY + consumer, DQ_THREADS);
#pragma unroll
            for (int i = 0; i < D / 4; i += 4)
                smem.dQ_smem[consumer][i / 4][tid] = make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]);
            fence_proxy_async(); // What this thread wrote is there for the copy engine.
            named_barrier_arrive(DQ_FULL + consumer, DQ_THREADS);

            wgmma_wait_group<0>();
            wgmma_touch(dK);
            wgmma_touch(dS);
            if (tid == 0) mbarrier_arrive(&smem.Q_empty[stage]);
            state.advance();
        }

    trace(STORE);
    store_gradient<T, D>(backward.dK, dK, scale, a, work, work.first_key + wg_key, tid);
    store_gradient<T, D>(backward.dV, dV, 1, a, work, work.first_key + wg_key, tid);
}

template <typename T, int D>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    in_registers_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of TILE_Q rows
                        const __grid_constant__ CUtensorMap dO_map, // the same
                        const __grid_constant__ CUtensorMap K_map,  // boxes of TILE_KV rows
                        const __grid_constant__ CUtensorMap V_map,  // the same
                        const attention_backward backward)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        smem.work = Work(backward.forward, blockIdx.x);
        mbarrier_init(&smem.KV_full, 1); // the producer's arrival, and the bytes it expects
        for (int stage = 0; stage < STAGES; stage++) {
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
        // The producer comes last: the warp's number, asked for behind it, would have to outlive it, and ptxas spills it.
        if (threadIdx.x / 32 == 1) store_dQ<T, D>(smem, backward);
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
    const int64_t num_tiles = (int64_t)a.batch * a.kv_heads * ((a.k_len - 1) / TILE_KV + 1);
    if (num_tiles > INT_MAX) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_heads(&Q_map, type, a.Q, a.batch, a.q_len, a.heads, D, TILE_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&dO_map, type, backward.dO, a.batch, a.q_len, a.heads, D, TILE_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&K_map, type, a.K, a.batch, a.k_len, a.kv_heads, D, TILE_KV, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&V_map, type, a.V, a.batch, a.k_len, a.kv_heads, D, TILE_KV, D);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(in_registers_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error == cudaSuccess) error = backward_preprocess(&backward, stream);
    if (error != cudaSuccess) return error;
    in_registers_kernel<T, D>
        <<<(int)num_tiles, NUM_THREADS, smem_bytes, stream>>>(Q_map, dO_map, K_map, V_map, backward);
    error = cudaGetLastError();
    return error == cudaSuccess ? backward_postprocess(&backward, stream) : error;
}

extern "C" cudaError_t in_registers(const attention_backward *a, cudaStream_t stream)
{
    return with_attention_types(a->forward, [&](auto t, auto d) {
        if constexpr (d.value == 256)
            return in_flight(a, stream);
        else
            return launch<decltype(t), d.value>(*a, stream);
    });
}
