// The kernel of this chapter from step 6 on: step 5's, and step 4's for D = 256, in one, with tiles of several sizes and every
// variant.
//
// What costs registers or instructions in the loop over the queries is a parameter of the template: the head dimension, the queries
// of a tile, the softcap. What is looked at once a tile (windows, lengths, the order of the sums) is data.
//
//      block = a tile of keys of a sequence and a K/V head x the tiles of queries that see any of them
//
// What it grows from is step5_in_registers.cu: diff -w shows what is new.
#pragma once
#include <climits>
#include <type_traits>

#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/types.cuh"
#include "../../common/device/wgmma.cuh"
#include "instructions.cuh"
#include "plan.h"

constexpr int MMA_K = 16;            // k of a wgmma
constexpr int CONSUMERS = 2;         // warpgroups that multiply
constexpr int NUM_THREADS = 3 * 128; // warpgroup 0 is the producer
constexpr int PRODUCER_REGS = 24, CONSUMER_REGS = 240;
constexpr int LAUNCH_REGS = 65536 / NUM_THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <= 3 * LAUNCH_REGS,
              "setmaxnreg moves registers of the block, it makes none");
constexpr int SMEM_BYTES = 227 << 10; // that a block may have

// The tiles of a block. At D = 256 dK and dV are too many registers for 64 keys a consumer: both have the same 64 keys, and half
// the columns each.
template <int D_, int Q_, bool SOFTCAP_>
struct Tile {
    static constexpr int D = D_, Q = Q_;
    static constexpr bool SOFTCAP = SOFTCAP_;
    static constexpr bool SHARED_KEYS = D == 256;
    static constexpr int KV = SHARED_KEYS ? 64 : 128;
    static constexpr int STAGES = SHARED_KEYS ? 1 : 2; // of Q, of dO, and of dS
    // dV in flight while dS is computed: P is then there in 16 bits beside S and dP, and dK and dV have D registers.
    static constexpr bool EARLY_DV = D + Q + Q / 4 <= 208;
    static constexpr int DQ_REGS = Q * D / (CONSUMERS * 128);          // of a thread, for its part of dQ
    static constexpr int DQ_COLS = split_of_dQ(Q) == ROWS ? D : D / 2; // of a consumer's part
    static_assert(Q % MMA_K == 0 && (Q <= 64 || !SHARED_KEYS), "queries are k of dV and dK");
    static_assert(!SOFTCAP || SHARED_KEYS || EARLY_DV, "P in 16 bits is there before dS");
    static_assert(split_of_dQ(Q) != TRANSPOSED || D == 128, "half of D is 64 rows");
};

enum NamedBarrier {
    CONSUMERS_ONLY = 1,             // all threads of the consumers, who have stored dS
    DQ_EMPTY = 2,                   // + consumer: its threads and warp 1, who is done with dQ_smem
    DQ_FULL = DQ_EMPTY + CONSUMERS, // + consumer: they have filled it
};
constexpr int DQ_THREADS = 128 + 32; // of both

// --- Which work ---------------------------------------------------------------------------------------------------------

// What a block works on: keys [first_key, first_key + C::KV) of a sequence and a K/V head.
struct Work {
    int first_key, kv_head;
    int q_begin, q_len, k_begin, k_len; // the sequence's rows
    int shift;                          // query i is at place i + shift of the keys
    int first_row,
        end_row; // of the first tile of queries that see any of the keys; behind the last such query
    int first_head, last_head; // the query heads that read the K/V head, the last excluded
    int tiles;                 // of queries, of all heads
    int q_tile;                // the number of the sequence's first tile of queries
};

// The work of block `index`. K/V head by head, sequence by sequence. The first keys first: behind a causal mask more queries see
// them, and blocks that take long should begin early. Deterministic: the last first, see wait_for_turn.
template <class C>
static __device__ Work find_work(const attention_variant_backward &b, const BackwardPlan &plan, int index)
{
    const attention_variant &v = b.forward;
    Work work;
    const int number = index % plan.kv_tiles;
    const int i = find_sequence(v.cu_k, v.batch, v.k_len, C::KV, number);
    const Sequence queries(v.cu_q, i, v.q_len), keys(v.cu_k, i, v.k_len);
    work.q_begin = queries.begin, work.q_len = queries.len;
    work.k_begin = keys.begin, work.k_len = keys.len;
    work.shift = keys.len - queries.len;
    work.q_tile = first_tile(v.cu_q, i, v.q_len, C::Q);
    const int tile = number - first_tile(v.cu_k, i, v.k_len, C::KV), tiles = tiles_in(keys.len, C::KV);
    work.first_key = (b.deterministic && tile < tiles ? tiles - 1 - tile : tile) * C::KV;
    work.first_row = max(work.first_key - work.shift - v.right, 0) / C::Q * C::Q;
    work.end_row = min(min(work.first_key + C::KV, keys.len) - work.shift + v.left, queries.len);
    work.kv_head = index / plan.kv_tiles;
    work.first_head = work.kv_head * (v.heads / v.kv_heads);
    work.last_head = work.first_head + v.heads / v.kv_heads;
    work.tiles = max(tiles_in(work.end_row - work.first_row, C::Q), 0) * (v.heads / v.kv_heads);
    return work;
}

// A box of 64 columns has rows of 128 bytes, the swizzle's width; a tile of D columns is D / 64 boxes.
template <typename T, class C>
struct SharedStorage {
    T K_smem[C::D / 64][C::KV][64];
    T V_smem[C::D / 64][C::KV][64];
    T Q_smem[C::STAGES][C::D / 64][C::Q][64];
    T dO_smem[C::STAGES][C::D / 64][C::Q][64];
    float4 dQ_smem[CONSUMERS][C::DQ_REGS / 4][128];
    T dS_smem[C::STAGES][C::KV / 64][C::Q][64]; // rows are queries
    T P_smem[C::SHARED_KEYS ? C::Q : 1][64];    // the same; not used else
    float LSE_log2_smem[C::STAGES][C::Q];
    float dPsum_smem[C::STAGES][C::Q];
    int row[C::STAGES]; // the first query of the tile of Q
    Work work;          // read where it is needed, as row is: registers are too few to keep it
    uint64_t KV_full;   // K and V have landed
    uint64_t Q_full[C::STAGES], dO_full[C::STAGES];   // the stage has landed, and its statistics
    uint64_t Q_empty[C::STAGES], dO_empty[C::STAGES]; // every consumer is done with it
};

// --- The producer's warps -------------------------------------------------------------------------------------------------

// Starts the copies of a tile of Q or dO, and of its statistics, into their stage when that is empty. Past the sequence's last
// query there are zeros.
template <typename T, class C>
static __device__ void load_tile(T (&dst_smem)[C::D / 64][C::Q][64], const CUtensorMap &map,
                                 float (&rows_smem)[C::Q], const float *rows, uint64_t *full, uint64_t *empty,
                                 uint32_t parity, int *row_smem, const Work &work, int head, int row)
{
    const int end = work.q_begin + work.q_len;
    mbarrier_wait(empty, parity ^ 1);
    if (row_smem) *row_smem = row; // The arrival hands it over, too.
    mbarrier_arrive_expect_tx(full, sizeof dst_smem + sizeof rows_smem);
    cp_async_bulk_tensor_5d(dst_smem, map, full, 0, RAGGED + work.q_begin + row - end, head * (C::D / 64),
                            end, RAGGED);
    cp_async_bulk(rows_smem, rows, sizeof rows_smem, full);
}

// The producer, one thread: K and V once, then the queries of every head that reads this K/V head, tile after tile, each as soon as
// its place is empty. Nobody has used the places of the first round: a new barrier lets a wait for parity 1 pass.
template <typename T, class C>
static __device__ void produce(SharedStorage<T, C> &smem, const CUtensorMap &Q_map, const CUtensorMap &dO_map,
                               const CUtensorMap &K_map, const CUtensorMap &V_map, const BackwardPlan &plan)
{
    const Work &work = smem.work;
    const int end = work.k_begin + work.k_len, first = RAGGED + work.k_begin + work.first_key - end,
              col = work.kv_head * (C::D / 64);
    mbarrier_arrive_expect_tx(&smem.KV_full, sizeof smem.K_smem + sizeof smem.V_smem);
    cp_async_bulk_tensor_5d(smem.K_smem, K_map, &smem.KV_full, 0, first, col, end, RAGGED);
    cp_async_bulk_tensor_5d(smem.V_smem, V_map, &smem.KV_full, 0, first, col, end, RAGGED);
    PipelineState<C::STAGES> state;
    for (int head = work.first_head; head < work.last_head; head++)
        for (int row = work.first_row; row < work.end_row; row += C::Q) {
            const size_t i = ((size_t)head * plan.q_tiles + work.q_tile) * C::Q + row;
            const int stage = state.stage;
            load_tile<T, C>(smem.Q_smem[stage], Q_map, smem.LSE_log2_smem[stage], plan.LSE_log2 + i,
                            &smem.Q_full[stage], &smem.Q_empty[stage], state.parity, &smem.row[stage], work,
                            head, row);
            load_tile<T, C>(smem.dO_smem[stage], dO_map, smem.dPsum_smem[stage], plan.dPsum + i,
                            &smem.dO_full[stage], &smem.dO_empty[stage], state.parity, nullptr, work, head,
                            row);
            state.advance();
        }
}

// Waits until every block that comes before this one has added its part to a tile of dQ.
//
// The order is from the last keys to the first. Behind a causal mask blocks then need not wait: the one with the tile of keys before
// begins earlier in the queries, and comes to each tile of them later. Without a mask each block comes a tile after the one before
// it. None waits for a block that has not begun: those with later keys have begun before (find_work, and the setup of backward_kernel).
template <class C>
static __device__ void wait_for_turn(const unsigned *arrived, const attention_variant &v, const Work &work,
                                     int row)
{
    const int last =
        min(row + C::Q, work.q_len) - 1; // of the tile's queries; the last tile of keys that it sees:
    const int last_tile = min(last + work.shift + v.right, work.k_len - 1) / C::KV;
    const unsigned before = last_tile - work.first_key / C::KV;
    while (ld_acquire_gpu(arrived) != before) {
    }
    fence_proxy_async_global(); // What this thread has seen added comes before what it has added by the copy engine.
}

// The second producer, a warp: adds every tile of dQ to memory, a part from each consumer.
template <typename T, class C>
static __device__ void store_dQ(SharedStorage<T, C> &smem, const attention_variant_backward &b,
                                const BackwardPlan &plan)
{
    const Work &work = smem.work;
    const int lane = threadIdx.x % 32;
    for (int head = work.first_head; head < work.last_head; head++)
        for (int row = work.first_row; row < work.end_row; row += C::Q) {
            const size_t tile = (size_t)head * plan.q_tiles + work.q_tile + row / C::Q;
            float4 *dQ_sum = plan.dQ_sum + tile * (C::Q * C::D / 4);
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                named_barrier_arrive(DQ_EMPTY + consumer, DQ_THREADS);
            if (b.deterministic && lane == 0) wait_for_turn<C>(plan.arrived + tile, b.forward, work, row);
            __syncwarp();
            for (int consumer = 0; consumer < CONSUMERS; consumer++) {
                named_barrier_sync(DQ_FULL + consumer, DQ_THREADS);
                if (lane == 0) {
                    cp_reduce_async_bulk_add(dQ_sum, smem.dQ_smem[consumer][0],
                                             sizeof smem.dQ_smem[consumer]);
                    cp_async_bulk_commit_group();
                }
                dQ_sum += C::DQ_REGS / 4 * 128;
            }
            if (lane == 0) {
                if (b.deterministic) {
                    cp_async_bulk_wait_group<0>(); // It has been added, not only read:
                    fence_proxy_async_global();
                    red_release_gpu_add(plan.arrived + tile, 1); // the next block's turn.
                } else {
                    cp_async_bulk_wait_group_read<0>();
                }
            }
            __syncwarp(); // Nobody says that it is empty before lane 0 knows.
        }
}

// --- The products -----------------------------------------------------------------------------------------------------------

// acc = A Bᵀ, over D columns of both: 64 rows from A_smem on, N from B_smem on; boxes of A_BOX and B_BOX rows. S = K Qᵀ, dP = dO Vᵀ
// and the like. A descriptor counts in units of 16 bytes; 16 columns are 32 bytes.
template <typename T, int D, int N, int A_BOX, int B_BOX>
static __device__ void multiply_rows(float (&acc)[N / 2], const T *A_smem, const T *B_smem)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), B_desc = wgmma_descriptor(B_smem);
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
        wgmma<N, T>(acc, A_desc + (k / 4 * A_BOX * 128 + k % 4 * 32) / 16,
                    B_desc + (k / 4 * B_BOX * 128 + k % 4 * 32) / 16, k > 0);
}

// dV += Pᵀ dO or dK += dSᵀ Q: 64 keys, P in registers. 16 queries are 16 rows of dO.
template <typename T, class C>
static __device__ void multiply_gradient(float (&dV)[C::D / 2], const uint32_t (&P)[C::Q / MMA_K][4],
                                         const T (*dO_smem)[C::Q][64])
{
    const uint64_t dO_desc = wgmma_descriptor_mn(dO_smem, sizeof dO_smem[0]);
#pragma unroll
    for (int k = 0; k < C::Q / MMA_K; k++) wgmma_rs<C::D, T>(dV, P[k], dO_desc + k * MMA_K * 128 / 16, true);
}

// The same with P in shared memory and N columns of dO. 16 queries are 16 rows of either.
template <typename T, class C, int N>
static __device__ void multiply_transposed(float (&dV)[N / 2], const T (&P_smem)[C::Q][64],
                                           const T (*dO_smem)[C::Q][64])
{
    const uint64_t P_desc = wgmma_descriptor_mn(P_smem, sizeof P_smem),
                   dO_desc = wgmma_descriptor_mn(dO_smem, sizeof dO_smem[0]);
#pragma unroll
    for (int k = 0; k < C::Q / MMA_K; k++)
        wgmma<N, T, true, true>(dV, P_desc + k * MMA_K * 128 / 16, dO_desc + k * MMA_K * 128 / 16, true);
}

// A consumer's part of dQ = dS K, or dQᵀ = Kᵀ dSᵀ. 16 keys are 16 columns of dS and 16 rows of K.
template <typename T, class C>
static __device__ void multiply_dQ(float (&dQ)[C::DQ_REGS], const T (*dS_smem)[C::Q][64],
                                   const T (*K_smem)[C::KV][64], int consumer)
{
    constexpr DQ SPLIT = split_of_dQ(C::Q);
    const int first_row = SPLIT == ROWS ? consumer * 64 : 0,
              first_col = SPLIT == ROWS ? 0 : consumer * (C::D / 2);
    const uint64_t dS_desc = wgmma_descriptor(dS_smem[0][first_row]),
                   K_desc = wgmma_descriptor_mn(K_smem[first_col / 64], sizeof K_smem[0]) +
                            first_col % 64 * 2 / 16;
#pragma unroll
    for (int k = 0; k < C::KV / MMA_K; k++) {
        const uint64_t dS_k = dS_desc + (k / 4 * sizeof dS_smem[0] + k % 4 * 32) / 16,
                       K_k = K_desc + k * MMA_K * 128 / 16;
        if constexpr (SPLIT == TRANSPOSED)
            wgmma<C::Q, T, true, false>(dQ, K_k, dS_k, k > 0);
        else
            wgmma<C::DQ_COLS, T, false, true>(dQ, dS_k, K_k, k > 0);
    }
}

// --- Between the products -----------------------------------------------------------------------------------------------------

// S becomes tanh(x), x = S c / (2 log2(e)). tanh(x) = 1 - 2 / (1 + e^(2x)): two units in the last place of 1, where tanh.approx is off
// by 2^-11.
template <int N>
static __device__ void cap_scores(float (&S)[N / 2], float c)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) S[i] = 1 - 2 * rcp_approx_ftz(1 + ex2_approx_ftz(S[i] * c));
}

// Takes away what is not in columns [from, until) of the thread's two rows, l / 4 and l / 4 + 8.
template <int N>
static __device__ void mask_tile(float (&S)[N / 2], const int (&from)[2], const int (&until)[2], int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int first = from[half] - lane % 4 * 2,
                  end = until[half] - lane % 4 * 2; // from its first column on
#pragma unroll
        for (int i = 0; i < N / 2; i += 4) {
            if (i * 2 < first || i * 2 >= end) S[i + half * 2] = -INFINITY;
            if (i * 2 + 1 < first || i * 2 + 1 >= end) S[i + half * 2 + 1] = -INFINITY;
        }
    }
}

// P = 2^(S c - LSE_log2), in the place of S; LSE_log2(i) is that of accumulators i and i + 1.
template <int N, class STATISTIC>
static __device__ void exponentials(float (&S)[N / 2], float c, STATISTIC LSE_log2)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const float2 LSE = LSE_log2(i);
        S[i] = ex2_approx_ftz(S[i] * c - LSE.x);
        S[i + 1] = ex2_approx_ftz(S[i + 1] * c - LSE.y);
    }
}

// The same of capped scores, tanh, rounded into P; in their place stays P times the softcap's derivative, 1 - tanh^2. What is masked
// is -infinity: its P is 0, and so is the product.
template <typename T, int N, class STATISTIC>
static __device__ void capped_exponentials(float (&S)[N / 2], uint32_t (&P)[N / MMA_K][4], float c,
                                           STATISTIC LSE_log2)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const float2 LSE = LSE_log2(i);
        const float x = ex2_approx_ftz(S[i] * c - LSE.x), y = ex2_approx_ftz(S[i + 1] * c - LSE.y);
        const float t = fmaxf(S[i], -1), u = fmaxf(S[i + 1], -1);
        P[i / 8][i / 2 % 4] = pack_pair<T>(x, y);
        S[i] = x * (1 - t * t);
        S[i + 1] = y * (1 - u * u);
    }
}

template <typename T, int N>
static __device__ void round_tile(const float (&S)[N / 2], uint32_t (&P)[N / MMA_K][4])
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) P[i / 8][i / 2 % 4] = pack_pair<T>(S[i], S[i + 1]);
}

// dS = P (dP - dPsum), rounded.
template <typename T, int N, class STATISTIC>
static __device__ void softmax_gradient(const float (&dP)[N / 2], const float (&P)[N / 2],
                                        uint32_t (&dS)[N / MMA_K][4], STATISTIC dPsum)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const float2 sum = dPsum(i);
        dS[i / 8][i / 2 % 4] = pack_pair<T>(P[i] * (dP[i] - sum.x), P[i + 1] * (dP[i + 1] - sum.y));
    }
}

// Writes 64 keys and N queries with queries as rows, what was computed with keys as rows. tid is the thread's number in its
// warpgroup.
template <typename T, int N>
static __device__ void store_transposed(T (&dst_smem)[N][64], const uint32_t (&dS)[N / MMA_K][4], int tid)
{
#pragma unroll
    for (int k = 0; k < N / MMA_K; k++) {
        // Matrices 0 to 3: the upper and the lower 8 keys of 8 queries, then of the next 8 queries.
        const int query = k * MMA_K + tid % 8 + tid / 16 % 2 * 8, chunk = tid / 32 * 2 + tid / 8 % 2;
        stmatrix_x4_trans(smem_addr(dst_smem) + swizzle(query * 128 + chunk * 16, 3), dS[k]);
    }
}

// Writes 64 queries and N keys, the first of which is column first_col.
template <typename T, int N>
static __device__ void store_tile(T (&dst_smem)[64][64], const uint32_t (&S)[N / MMA_K][4], int first_col,
                                  int tid)
{
#pragma unroll
    for (int k = 0; k < N / MMA_K; k++) {
        // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
        const int chunk = first_col / 8 + k * 2 + tid % 32 / 16;
        stmatrix_x4(smem_addr(dst_smem) + swizzle((tid / 32 * 16 + tid % 16) * 128 + chunk * 16, 3), S[k]);
    }
}

// Hands a consumer's part of dQ to warp 1.
template <typename T, class C>
static __device__ void hand_over_dQ(SharedStorage<T, C> &smem, const float (&dQ)[C::DQ_REGS], int consumer,
                                    int tid)
{
    named_barrier_sync(DQ_EMPTY + consumer, DQ_THREADS);
#pragma unroll
    for (int i = 0; i < C::DQ_REGS; i += 4)
        smem.dQ_smem[consumer][i / 4][tid] = make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]);
    fence_proxy_async(); // What this thread wrote is there for the copy engine.
    named_barrier_arrive(DQ_FULL + consumer, DQ_THREADS);
}

// Writes a consumer's 64 rows and COLS columns of dK or dV, a pair of columns at a time; first_key is in the sequence.
template <typename T, class C, int COLS>
static __device__ void store_gradient(void *dst, const float (&dK)[COLS / 2], float scale, int kv_heads,
                                      const Work &work, int first_key, int first_col, int tid)
{
    const int key = first_key + tid / 32 * 16 + tid % 32 / 4; // and key + 8
    T *rows =
        (T *)dst + (((size_t)work.k_begin + key) * kv_heads + work.kv_head) * C::D + first_col + tid % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (key + half * 8 < work.k_len)
#pragma unroll
            for (int i = half * 2; i < COLS / 2; i += 4)
                store_pair(rows + (size_t)half * 8 * kv_heads * C::D + i * 2 - half * 4, dK[i] * scale,
                           dK[i + 1] * scale);
}

// --- The consumers ------------------------------------------------------------------------------------------------------------

// Whether every query of the tile at `row` sees every one of `keys` keys from `first_key` on; queries past the last do not count.
template <class C>
static __device__ bool sees_all(const attention_variant &v, const Work &work, int row, int first_key,
                                int keys)
{
    const int last_row = min(row + C::Q, work.q_len) - 1, last_key = first_key + keys - 1;
    return last_key < work.k_len && last_key <= row + work.shift + v.right &&
           first_key >= last_row + work.shift - v.left;
}

// A consumer with 64 keys of its own: every tile of queries against them, as in step 5. One thread gives a stage back for its
// warpgroup.
template <typename T, class C>
static __device__ void consume(SharedStorage<T, C> &smem, const attention_variant_backward &b,
                               const BackwardPlan &plan, int consumer)
{
    const attention_variant &v = b.forward;
    const Work &work = smem.work;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const float scale = rsqrtf(C::D);
    float dK[C::D / 2] = {}, dV[C::D / 2] = {};
    mbarrier_wait(&smem.KV_full, 0);

    for (int i = 0; i < work.tiles; i++) {
        const int stage = i % C::STAGES, parity = i / C::STAGES % 2;
        float S[C::Q / 2], dP[C::Q / 2], dQ[C::DQ_REGS];
        uint32_t P[C::Q / MMA_K][4], dS[C::Q / MMA_K][4];
        // The two neighbours of accumulators i and i + 1, columns of Sᵀ, among a tile's statistics.
        const auto of_columns = [&](const float(&rows_smem)[C::Q]) {
            return [&rows_smem, lane](int i) {
                return *reinterpret_cast<const float2 *>(&rows_smem[i / 4 * 8 + lane % 4 * 2]);
            };
        };
        mbarrier_wait(&smem.Q_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(S, smem.K_smem[0][consumer * 64], smem.Q_smem[stage][0][0]);
        wgmma_commit_group();
        mbarrier_wait(&smem.dO_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(dP, smem.V_smem[0][consumer * 64],
                                                  smem.dO_smem[stage][0][0]);
        wgmma_commit_group();

        wgmma_wait_group<1>();
        wgmma_touch(S);
        if (C::SOFTCAP) cap_scores<C::Q>(S, plan.cap_c);
        if (const int first_key = work.first_key + consumer * 64;
            !sees_all<C>(v, work, smem.row[stage], first_key, 64)) {
            const int key = first_key + tid / 32 * 16 + lane / 4;
            int from[2], until[2]; // queries that see the key, from this row on
            for (int half = 0; half < 2; half++) {
                const int place = key + half * 8 - work.shift;
                from[half] = place - v.right - smem.row[stage];
                until[half] = key + half * 8 < work.k_len ? place + v.left + 1 - smem.row[stage] : 0;
            }
            mask_tile<C::Q>(S, from, until, lane);
        }
        const auto LSE_log2 = of_columns(smem.LSE_log2_smem[stage]);
        if constexpr (C::SOFTCAP) {
            capped_exponentials<T, C::Q>(S, P, plan.c, LSE_log2);
        } else {
            exponentials<C::Q>(S, plan.c, LSE_log2);
            if (C::EARLY_DV) round_tile<T, C::Q>(S, P);
        }
        const auto multiply_dV = [&] {
            wgmma_touch(dV);
            wgmma_touch(P);
            wgmma_fence();
            multiply_gradient<T, C>(dV, P, smem.dO_smem[stage]);
            wgmma_commit_group();
        };

        if (C::EARLY_DV) multiply_dV();
        wgmma_wait_group<C::EARLY_DV>();
        wgmma_touch(dP);
        softmax_gradient<T, C::Q>(dP, S, dS, of_columns(smem.dPsum_smem[stage]));
        if constexpr (!C::EARLY_DV) {
            round_tile<T, C::Q>(S, P);
            multiply_dV();
        }
        store_transposed<T, C::Q>(smem.dS_smem[stage][consumer], dS, tid);
        fence_proxy_async();                                 // What this thread wrote is there for wgmma,
        named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // and what the others wrote.

        wgmma_touch(dK);
        wgmma_touch(dS);
        wgmma_fence();
        multiply_dQ<T, C>(dQ, smem.dS_smem[stage], smem.K_smem, consumer);
        wgmma_commit_group();
        multiply_gradient<T, C>(dK, dS, smem.Q_smem[stage]);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        wgmma_touch(dV);
        wgmma_touch(P); // wgmma has read it.
        // At the barrier above all had read dPsum and LSE_log2.
        if (tid == 0) mbarrier_arrive(&smem.dO_empty[stage]);
        wgmma_touch(dQ);
        hand_over_dQ<T, C>(smem, dQ, consumer, tid);

        wgmma_wait_group<0>();
        wgmma_touch(dK);
        wgmma_touch(dS);
        if (tid == 0) mbarrier_arrive(&smem.Q_empty[stage]);
    }

    const int first_key = work.first_key + consumer * 64;
    store_gradient<T, C, C::D>(b.dK, dK, scale, v.kv_heads, work, first_key, 0, tid);
    store_gradient<T, C, C::D>(b.dV, dV, 1, v.kv_heads, work, first_key, 0, tid);
}

// A consumer that shares 64 keys with the other, as in step 4: scores of half the keys, half the columns of dK and dV. Queries are
// rows, and P and dS go through shared memory.
template <typename T, class C>
static __device__ void consume_shared(SharedStorage<T, C> &smem, const attention_variant_backward &b,
                                      const BackwardPlan &plan, int consumer)
{
    constexpr int WG_KEYS = C::KV / 2, COLS = C::D / 2;
    const attention_variant &v = b.forward;
    const Work &work = smem.work;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const int wg_key = consumer * WG_KEYS, wg_col = consumer * COLS; // the consumer's first key and column
    const int wg_row = tid / 32 * 16 + lane / 4; // the thread's first row in a tile, the other is 8 more
    const float scale = rsqrtf(C::D);
    float dK[COLS / 2] = {}, dV[COLS / 2] = {};
    mbarrier_wait(&smem.KV_full, 0);

    for (int i = 0; i < work.tiles; i++) {
        const int stage = i % C::STAGES, parity = i / C::STAGES % 2;
        float S[WG_KEYS / 2], dP[WG_KEYS / 2], dQ[C::DQ_REGS];
        uint32_t P[WG_KEYS / MMA_K][4], dS[WG_KEYS / MMA_K][4];
        // The statistic of the row of accumulators i and i + 1.
        const auto of_rows = [&](const float(&rows_smem)[C::Q]) {
            return [rows = make_float2(rows_smem[wg_row], rows_smem[wg_row + 8])](int i) {
                return i / 2 % 2 ? make_float2(rows.y, rows.y) : make_float2(rows.x, rows.x);
            };
        };
        mbarrier_wait(&smem.Q_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, WG_KEYS, C::Q, C::KV>(S, smem.Q_smem[stage][0][0], smem.K_smem[0][wg_key]);
        wgmma_commit_group();
        mbarrier_wait(&smem.dO_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, WG_KEYS, C::Q, C::KV>(dP, smem.dO_smem[stage][0][0], smem.V_smem[0][wg_key]);
        wgmma_commit_group();

        wgmma_wait_group<1>();
        wgmma_touch(S);
        if (C::SOFTCAP) cap_scores<WG_KEYS>(S, plan.cap_c);
        if (const int first_key = work.first_key + wg_key;
            !sees_all<C>(v, work, smem.row[stage], first_key, WG_KEYS)) {
            int from[2], until[2]; // keys that the query sees, from this one on
            for (int half = 0; half < 2; half++) {
                const int place = smem.row[stage] + wg_row + half * 8 + work.shift;
                from[half] = place - v.left - first_key;
                until[half] = min(place + v.right + 1, work.k_len) - first_key;
            }
            mask_tile<WG_KEYS>(S, from, until, lane);
        }
        const auto LSE_log2 = of_rows(smem.LSE_log2_smem[stage]);
        if constexpr (C::SOFTCAP) {
            capped_exponentials<T, WG_KEYS>(S, P, plan.c, LSE_log2);
        } else {
            exponentials<WG_KEYS>(S, plan.c, LSE_log2);
            round_tile<T, WG_KEYS>(S, P);
        }
        named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // Nobody reads the P and dS before any more.
        store_tile<T, WG_KEYS>(smem.P_smem, P, wg_key, tid);
        wgmma_wait_group<0>();
        wgmma_touch(dP);
        softmax_gradient<T, WG_KEYS>(dP, S, dS, of_rows(smem.dPsum_smem[stage]));
        store_tile<T, WG_KEYS>(smem.dS_smem[stage][0], dS, wg_key, tid);
        fence_proxy_async();                                 // What this thread wrote is there for wgmma,
        named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // and what the others wrote.

        wgmma_touch(dV);
        wgmma_fence();
        multiply_transposed<T, C, COLS>(dV, smem.P_smem, &smem.dO_smem[stage][wg_col / 64]);
        wgmma_commit_group();
        multiply_dQ<T, C>(dQ, smem.dS_smem[stage], smem.K_smem, consumer);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        wgmma_touch(dV);
        // At the barrier above all had read dPsum and LSE_log2.
        if (tid == 0) mbarrier_arrive(&smem.dO_empty[stage]);

        wgmma_touch(dK);
        wgmma_fence();
        multiply_transposed<T, C, COLS>(dK, smem.dS_smem[stage][0], &smem.Q_smem[stage][wg_col / 64]);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        wgmma_touch(dQ);
        hand_over_dQ<T, C>(smem, dQ, consumer, tid);

        wgmma_wait_group<0>();
        wgmma_touch(dK);
        if (tid == 0) mbarrier_arrive(&smem.Q_empty[stage]);
    }

    store_gradient<T, C, COLS>(b.dK, dK, scale, v.kv_heads, work, work.first_key, wg_col, tid);
    store_gradient<T, C, COLS>(b.dV, dV, 1, v.kv_heads, work, work.first_key, wg_col, tid);
}

template <typename T, class C>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    backward_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of C::Q rows
                    const __grid_constant__ CUtensorMap dO_map, // the same
                    const __grid_constant__ CUtensorMap K_map,  // boxes of C::KV rows
                    const __grid_constant__ CUtensorMap V_map,  // the same
                    const __grid_constant__ attention_variant_backward b,
                    const __grid_constant__ BackwardPlan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, C> &smem = *reinterpret_cast<SharedStorage<T, C> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised. In a fixed order blocks are numbered as they begin.
    if (threadIdx.x == 0) {
        smem.work = find_work<C>(b, plan, b.deterministic ? atomicAdd(plan.blocks, 1) : blockIdx.x);
        mbarrier_init(&smem.KV_full, 1); // the producer's arrival, and the bytes it expects
        for (int stage = 0; stage < C::STAGES; stage++) {
            mbarrier_init(&smem.Q_full[stage], 1);
            mbarrier_init(&smem.dO_full[stage], 1);
            mbarrier_init(&smem.Q_empty[stage], CONSUMERS);
            mbarrier_init(&smem.dO_empty[stage], CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (smem.work.first_key >= smem.work.k_len) return; // a number that is nobody's

    if (threadIdx.x < 128) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x == 0) produce<T, C>(smem, Q_map, dO_map, K_map, V_map, plan);
        if (threadIdx.x / 32 == 1) store_dQ<T, C>(smem, b, plan);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        if constexpr (C::SHARED_KEYS)
            consume_shared<T, C>(smem, b, plan, consumer);
        else
            consume<T, C>(smem, b, plan, consumer);
    }
}

template <typename T, class C>
static cudaError_t launch_tile(const attention_variant_backward &b, const BackwardPlan &plan,
                               cudaStream_t stream)
{
    const attention_variant &v = b.forward;
    CUtensorMap Q_map, dO_map, K_map, V_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T, C>);
    static_assert(smem_bytes <= SMEM_BYTES, "what a block may have");
    constexpr CUtensorMapDataType type = tensor_map_type<T>();
    const int64_t blocks = (int64_t)plan.kv_tiles * v.kv_heads;
    if (blocks > INT_MAX) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_ragged(&Q_map, type, v.Q, plan.q_rows, v.heads, C::D, C::Q, C::D);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&dO_map, type, b.dO, plan.q_rows, v.heads, C::D, C::Q, C::D);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&K_map, type, v.K, plan.k_rows, v.kv_heads, C::D, C::KV, C::D);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&V_map, type, v.V, plan.k_rows, v.kv_heads, C::D, C::KV, C::D);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(backward_kernel<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error != cudaSuccess) return error;
    backward_kernel<T, C>
        <<<(int)blocks, NUM_THREADS, smem_bytes, stream>>>(Q_map, dO_map, K_map, V_map, b, plan);
    return cudaGetLastError();
}

// The table of what can be launched: head dimensions and tiles, each without and with softcap.
template <typename T>
static cudaError_t launch_type(const attention_variant_backward &b, const BackwardPlan &plan,
                               cudaStream_t stream)
{
    using launcher = cudaError_t(const attention_variant_backward &, const BackwardPlan &, cudaStream_t);
    static const struct {
        int head_dim, q_tile;
        launcher *plain, *softcap;
    } TABLE[] = {
        {64, TILE_Q_64, launch_tile<T, Tile<64, TILE_Q_64, false>>, nullptr},
        {64, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<64, TILE_Q_SOFTCAP, true>>},
        {128, TILE_Q_128, launch_tile<T, Tile<128, TILE_Q_128, false>>, nullptr},
        {128, TILE_Q_128_BOUNDED, launch_tile<T, Tile<128, TILE_Q_128_BOUNDED, false>>, nullptr},
        {128, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<128, TILE_Q_SOFTCAP, true>>},
        {256, TILE_Q_256, launch_tile<T, Tile<256, TILE_Q_256, false>>, nullptr},
        {256, TILE_Q_SOFTCAP, nullptr, launch_tile<T, Tile<256, TILE_Q_SOFTCAP, true>>},
    };
    for (const auto &row : TABLE) {
        launcher *launch = b.forward.softcap > 0 ? row.softcap : row.plain;
        if (launch && row.head_dim == b.forward.head_dim && row.q_tile == plan.q_tile)
            return launch(b, plan, stream);
    }
    return cudaErrorInvalidValue;
}
