// The kernel of this chapter from step 6 on: step 5's with tiles of several sizes and every variant.
//
// What costs registers or instructions in the loop over the queries is a parameter of the template: the head dimension, the queries
// of a tile, the softcap, whether the first to have a part of dQ stores it. What is looked at once a tile (windows, lengths, the order of
// the sums) is data.
//
//      work = a tile of keys of a sequence and a K/V head x the tiles of queries that see any of them
//
// A block has one work, but stays for more at D = 64: there the next one's K and V have a place as well, and what it needs lands while
// the last tiles of the one before are multiplied. Two ways to order the products, of which each of two consumers has half: multiply
// (D = 64, and softcap at D = 128) and multiply_ahead (D = 128). D = 256 has a kernel of its own, kernel_256.cuh.
//
// What it grows from is step5_in_registers.cu: diff -w shows what is new.
#pragma once
#include <climits>
#include <type_traits>

#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
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

// The tiles of a work.
template <int D_, int Q_, bool SOFTCAP_, bool FIRST_STORES_ = false>
struct Tile {
    static constexpr int D = D_, Q = Q_;
    static constexpr bool SOFTCAP = SOFTCAP_;
    static constexpr bool FIRST_STORES = FIRST_STORES_; // plan.first_stores
    static constexpr int KV = TILE_KEYS;
    static constexpr int BLOCKS = 1; // that share the tile of keys
    static constexpr int DQ_PARTS = CONSUMERS;
    static constexpr int STAGES = 2; // of Q, of dO, and of dS
    // Whose K and V have a place in shared memory. Where that is one, a block has no other.
    static constexpr int WORKS = D == 64 ? 2 : 1;
    // dQ of a tile behind S of the next. With D = 64 and its 128 queries that gains nothing, and with softcap it is too many registers.
    static constexpr bool AHEAD = is_ahead(D, SOFTCAP);
    // dV in flight while dS is computed: P is then there in 16 bits beside S and dP, and dK and dV have D registers.
    static constexpr bool EARLY_DV = D + Q + Q / 4 <= 208;
    static constexpr int DQ_REGS = Q * D / (CONSUMERS * 128);          // of a thread, for its part of dQ
    static constexpr int DQ_COLS = split_of_dQ(Q) == ROWS ? D : D / 2; // of a consumer's part
    static constexpr int HANDED = CONSUMERS * DQ_REGS / 4; // 16 bytes of a thread, see handed_smem
    static_assert(Q % MMA_K == 0, "queries are k of dV and dK");
    static_assert(!SOFTCAP || EARLY_DV, "P in 16 bits is there before dS");
    static_assert(split_of_dQ(Q) != TRANSPOSED || D == 128, "half of D is 64 rows");
};

enum NamedBarrier {
    CONSUMERS_ONLY = 1, // all threads of the consumers, who have stored dS
    ONE_CONSUMER = 2, // + consumer: its threads, whose turn it is to add to dQ; dK or dV is in shared memory
};

// --- Which work ---------------------------------------------------------------------------------------------------------

// What a block works on: keys [first_key, first_key + C::KV) of a sequence and a K/V head.
struct Work {
    int first_key, kv_head;
    int q_begin, q_len, k_begin, k_len; // the sequence's rows
    int shift;                          // query i is at place i + shift of the keys
    int first_row,
        end_row; // of the first tile of queries that see any of the keys; behind the last such query
    int first_head, last_head; // the query heads that read the K/V head, the last excluded
    int tiles;                 // of queries, of all heads; -1: there is no work
    int q_tile;                // the number of the sequence's first tile of queries
    int begin_row;             // FIRST_STORES: of the tile of queries that the work begins each head with
};

// The work at `place`, of plan.works: x counts tiles of keys, of each of heads_together K/V heads in turn; y groups of so many heads, z
// sequences, those of one length; of packed ones x counts the tiles of all. So blocks that run together have the heads of few sequences,
// whose rows are neighbours in memory. The first keys first: behind a causal mask more queries see them, and what takes long should begin
// early. Deterministic: the last first, see wait_for_turn.
template <class C>
static __device__ Work find_work(const attention_variant_backward &b, const BackwardPlan &plan, uint3 place)
{
    const attention_variant &v = b.forward;
    Work work;
    const int number = place.x >> plan.log2_heads_together; // of the tile of keys; of those of all, packed
    // Sequences of one length the last first: what preprocess cleared last is still in the L2.
    const int i = v.cu_k ? find_sequence(v.cu_k, v.batch, v.k_len, C::KV, number) : v.batch - 1 - place.z;
    const Sequence queries(v.cu_q, i, v.q_len), keys(v.cu_k, i, v.k_len);
    work.q_begin = queries.begin, work.q_len = queries.len;
    work.k_begin = keys.begin, work.k_len = keys.len;
    work.shift = keys.len - queries.len;
    work.q_tile = first_tile(v.cu_q, i, v.q_len, C::Q);
    const int tile = v.cu_k ? number - first_tile(v.cu_k, i, v.k_len, C::KV) : number;
    const int tiles = tiles_in(keys.len, C::KV);
    work.first_key = (b.deterministic && tile < tiles ? tiles - 1 - tile : tile) * C::KV;
    work.first_row = max(work.first_key - work.shift - v.right, 0) / C::Q * C::Q;
    work.end_row = min(min(work.first_key + C::KV, keys.len) - work.shift + v.left, queries.len);
    work.kv_head = (place.y << plan.log2_heads_together) + place.x % (1 << plan.log2_heads_together);
    work.first_head = work.kv_head * plan.sharing_heads;
    work.last_head = work.first_head + plan.sharing_heads;
    work.tiles = max(tiles_in(work.end_row - work.first_row, C::Q), 0) * plan.sharing_heads;
    return work;
}

// Puts a work where others read it, and finds out with which tile it begins each head, for which find_work has too few registers: where
// the first to come stores, with that opposite the first key. Works of a head that run together then begin with different tiles, and
// each is the first at some.
template <class C>
static __device__ void put_work(Work &place_smem, const Work &work, const attention_variant_backward &b)
{
    place_smem = work;
    if (!C::FIRST_STORES) return;
    const Work &w = place_smem;
    const int opposite = (w.first_key - w.shift) / C::Q * C::Q, last_row = (w.end_row - 1) / C::Q * C::Q;
    place_smem.begin_row = b.deterministic ? w.first_row : max(w.first_row, min(opposite, last_row));
}

// The row of the tile of queries that a work begins each head with.
template <class C>
static __device__ int begin_row(const Work &work)
{
    return C::FIRST_STORES ? work.begin_row : work.first_row;
}

// Calls tile(head, row) for every tile of queries of a work in the order of all its roles: head by head, behind the last the first.
template <class C, class F>
static __device__ void for_each_tile(const Work &work, const F &tile)
{
    if constexpr (C::FIRST_STORES) {
        if (work.tiles == 0) return;
        for (int head = work.first_head; head < work.last_head; head++) {
            int row = work.begin_row;
            do {
                tile(head, row);
                row = row + C::Q < work.end_row ? row + C::Q : work.first_row;
            } while (row != work.begin_row);
        }
    } else {
        for (int head = work.first_head; head < work.last_head; head++)
            for (int row = work.first_row; row < work.end_row; row += C::Q) tile(head, row);
    }
}

// The number of the tile of queries at `row`, over all heads. Without a sign, which would be a register more.
template <class C>
static __device__ size_t tile_number(const BackwardPlan &plan, const Work &work, int head, int row)
{
    return (size_t)(unsigned)head * (unsigned)plan.q_tiles + (unsigned)(work.q_tile + row / C::Q);
}

// Where work number `number` is, x first.
static __device__ uint3 place_of(const BackwardPlan &plan, unsigned number)
{
    const unsigned across = plan.works.x;
    return make_uint3(number % across, number / across % plan.works.y, number / across / plan.works.y);
}

// A block's work: the next that no block has taken where blocks stay, or where one may wait for another (wait_for_turn), for they need
// not begin in the order of their numbers. A number may be nobody's: no work then, or the next where blocks stay.
template <class C>
static __device__ Work take_work(const attention_variant_backward &b, const BackwardPlan &plan)
{
    do {
        const unsigned number = C::WORKS > 1 || b.deterministic ? atomicAdd(plan.taken, 1) : blockIdx.x;
        if (number >= (unsigned)plan.num_works) break;
        const Work work = find_work<C>(b, plan, place_of(plan, number));
        if (work.first_key < work.k_len) return work;
    } while (C::WORKS > 1);
    Work none = {};
    none.tiles = -1;
    return none;
}

// A box of 64 columns has rows of 128 bytes, the swizzle's width; a tile of D columns is D / 64 boxes.
template <typename T, class C>
struct SharedStorage {
    T K_smem[C::WORKS][C::D / 64][C::KV][64];
    T V_smem[C::WORKS][C::D / 64][C::KV][64];
    T Q_smem[C::STAGES][C::D / 64][C::Q][64];
    T dO_smem[C::STAGES][C::D / 64][C::Q][64];
    T dS_smem[C::STAGES][C::KV / 64][C::Q][64]; // rows are queries
    float4 handed_smem[C::HANDED][128];         // dQ's parts, for the copy engine
    float LSE_log2_smem[C::STAGES][C::Q];
    float dPsum_smem[C::STAGES][C::Q];
    Work works[C::WORKS];        // read where they are needed: registers are too few to keep them
    uint64_t KV_full[C::WORKS];  // the work is there, its K and V have landed
    uint64_t KV_empty[C::WORKS]; // the consumers are done with it, and the warps that store dQ
    uint64_t Q_full[C::STAGES], dO_full[C::STAGES];           // the stage has landed, and its statistics
    uint64_t Q_empty[C::STAGES], dO_empty[C::STAGES];         // every warp of the consumers is done with it
    uint64_t dS_full[C::STAGES];                              // dS is stored
    uint64_t handed_full[CONSUMERS], handed_empty[CONSUMERS]; // handed_smem of a consumer
};

// --- The producer's warps -------------------------------------------------------------------------------------------------

// Starts the copies of a tile of Q or dO, and of its statistics, into their stage when that is empty: from row `first` of a sequence that
// ends before row `end`, past which there are zeros, as tensor_map_ragged counts. Nothing is read of the work or computed between the
// wait and the copies.
template <typename T, class C>
static __device__ void load_tile(T (&dst_smem)[C::D / 64][C::Q][64], const CUtensorMap &map,
                                 float (&rows_smem)[C::Q], const float *rows, uint64_t *full, uint64_t *empty,
                                 uint32_t parity, int end, int head, int first)
{
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    mbarrier_arrive_expect_tx(full, sizeof dst_smem + sizeof rows_smem);
    cp_async_bulk_tensor_5d(dst_smem, map, full, 0, first, head * (C::D / 64), end, RAGGED);
    cp_async_bulk(rows_smem, rows, sizeof rows_smem, full);
}

// The producer, one thread: of each work K and V once, then the queries of every head that reads this K/V head, tile after tile, each
// as soon as its place is empty. Nobody has used the places of the first round: a new barrier lets a wait for parity 1 pass. It takes
// another work when the last tile of this one is under way, and not before: until then a block that is done sooner should have it.
template <typename T, class C>
static __device__ void produce(SharedStorage<T, C> &smem, const CUtensorMap &Q_map, const CUtensorMap &dO_map,
                               const CUtensorMap &K_map, const CUtensorMap &V_map,
                               const attention_variant_backward &b, const BackwardPlan &plan)
{
    int tiles = 0;               // of all works so far
    for (unsigned n = 0;; n++) { // One register of the few there are here; PipelineState is two.
        const int place = n % C::WORKS;
        Work &work = smem.works[place];
        uint64_t *full = &smem.KV_full[place];
        if (n > 0) { // The first is there.
            const Work next = take_work<C>(b, plan);
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.KV_empty[place], n / C::WORKS % 2 ^ 1);
            put_work<C>(work, next, b);
        }
        if (C::WORKS > 1 && work.tiles < 0) {
            mbarrier_arrive(full);
            return;
        }
        const int end = work.k_begin + work.k_len, first = RAGGED + work.k_begin + work.first_key - end,
                  col = work.kv_head * (C::D / 64);
        trace(LOAD);
        mbarrier_arrive_expect_tx(full, sizeof smem.K_smem[0] + sizeof smem.V_smem[0]);
        cp_async_bulk_tensor_5d(smem.K_smem[place], K_map, full, 0, first, col, end, RAGGED);
        cp_async_bulk_tensor_5d(smem.V_smem[place], V_map, full, 0, first, col, end, RAGGED);
        const int q_end = work.q_begin + work.q_len, q_first = RAGGED - work.q_len;
        for_each_tile<C>(work, [&](int head, int row) {
            const size_t i = tile_number<C>(plan, work, head, row) * C::Q;
            const int stage = tiles % C::STAGES, parity = tiles / C::STAGES % 2;
            load_tile<T, C>(smem.Q_smem[stage], Q_map, smem.LSE_log2_smem[stage], plan.LSE_log2 + i,
                            &smem.Q_full[stage], &smem.Q_empty[stage], parity, q_end, head, q_first + row);
            load_tile<T, C>(smem.dO_smem[stage], dO_map, smem.dPsum_smem[stage], plan.dPsum + i,
                            &smem.dO_full[stage], &smem.dO_empty[stage], parity, q_end, head, q_first + row);
            tiles++;
        });
        if (C::WORKS == 1) return;
    }
}

// The same number, of which the compiler no longer knows where it is from. Else, where registers are few, it reads the thread's number from
// a special register in every round of a loop, and waits for it; or it keeps what it computed of the number before.
static __device__ int kept(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// Waits until every work that comes before this one has added to a consumer's part of a tile of dQ.
//
// The order is from the last keys to the first. Behind a causal mask blocks then need not wait: the one with the tile of keys before
// begins earlier in the queries, and comes to each tile of them later. Without a mask each block comes a tile after the one before
// it. None waits for ever: works with later keys have been taken before (find_work, take_work), a block does what it has taken in
// that order, and the first work that is not done waits for nobody. Returns whether this is the first.
template <class C>
static __device__ bool wait_for_turn(const unsigned *arrived, const attention_variant &v, const Work &work,
                                     int row)
{
    const int last =
        min(row + C::Q, work.q_len) - 1; // of the tile's queries; the last tile of keys that it sees:
    const int last_tile = min(last + work.shift + v.right, work.k_len - 1) / C::KV;
    const unsigned before = last_tile - work.first_key / C::KV;
    trace(WAIT_TURN);
    while (ld_acquire_gpu(arrived) != before) {
    }
    return before == 0;
}

// In a part's counter: the first part is in memory; a block has asked whether it is the first. Deterministic: STORED of each block.
constexpr unsigned STORED = 1, CLAIM = 2;

// Whether this block is the first to have a part. If not, waits until the first part is in memory: who is the first has its part, and
// nothing else to wait for, so none waits for ever.
static __device__ bool is_first(unsigned *arrived)
{
    unsigned before = atom_acquire_gpu_add(arrived, CLAIM);
    if (before == 0) return true;
    trace(WAIT_TURN);
    while (!(before & STORED)) before = ld_acquire_gpu(arrived);
    return false;
}

// Part `number` of dQ of the tile at `row`, a consumer's, as threads have it in registers; and who has added to it.
template <class C>
static __device__ float4 *part_of_dQ(const BackwardPlan &plan, const Work &work, int head, int row,
                                     int number, unsigned **arrived)
{
    const size_t part = tile_number<C>(plan, work, head, row) * C::DQ_PARTS + number;
    *arrived = plan.arrived + part;
    return plan.dQ_sum + part * (C::DQ_REGS / 4 * 128);
}

// A warp for each consumer, of which one thread works: adds the consumer's part of every tile of dQ to memory. Where that was not cleared
// (FIRST_STORES) the first stores its part, and the others wait until it has. Most find that it has while theirs is being computed; the
// rest count, and who counts first is the first.
template <typename T, class C>
static __device__ void store_dQ(SharedStorage<T, C> &smem, const attention_variant_backward &b,
                                const BackwardPlan &plan, int consumer)
{
    uint32_t parity = 0;
    for (unsigned n = 0;; n++) {
        const int place = n % C::WORKS;
        const Work &work = smem.works[place];
        trace(WAIT_FULL);
        mbarrier_wait(&smem.KV_full[place], n / C::WORKS % 2);
        if (C::WORKS > 1 && work.tiles < 0) return;
        for_each_tile<C>(work, [&](int head, int row) {
            unsigned *arrived;
            float4 *dQ_sum = part_of_dQ<C>(plan, work, head, row, consumer, &arrived);
            // What this thread has seen in memory comes before what it adds there by the copy engine: hence the fences.
            const bool add = !C::FIRST_STORES || (!b.deterministic && ld_acquire_gpu(arrived) & STORED);
            if (C::FIRST_STORES && add) fence_proxy_async_global();
            trace(WAIT_FULL);
            mbarrier_wait(&smem.handed_full[consumer], parity);
            bool first = false;
            if (!add) {
                first = b.deterministic ? wait_for_turn<C>(arrived, b.forward, work, row) : is_first(arrived);
                fence_proxy_async_global();
            }
            trace(STORE);
            const float4 *const part_smem = smem.handed_smem[consumer * (C::DQ_REGS / 4)];
            constexpr int BYTES = C::DQ_REGS * 128 * sizeof(float);
            if (first)
                cp_async_bulk_store(dQ_sum, part_smem, BYTES);
            else
                cp_reduce_async_bulk_add(dQ_sum, part_smem, BYTES);
            cp_async_bulk_commit_group();
            cp_async_bulk_wait_group_read<0>();
            mbarrier_arrive(&smem.handed_empty[consumer]);
            if (C::FIRST_STORES && (first || b.deterministic)) {
                cp_async_bulk_wait_group<0>(); // It is there, not only read:
                fence_proxy_async_global();
                red_release_gpu_add(arrived, STORED); // all may add; deterministic: the next work's turn
            }
            parity ^= 1;
        });
        if (C::WORKS == 1) return;
        mbarrier_arrive(&smem.KV_empty[kept(n) % C::WORKS]);
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

// A consumer's 64 keys of a block, and who sees them.
template <class C>
struct Keys {
    int first; // in the sequence
    int from,
        until; // tiles of queries from the one at row `from` to that at row `until`: every query sees every key

    __device__ Keys(const attention_variant &v, const Work &work, int number)
        : first(work.first_key + number * 64)
    {
        const int last = first + 63, last_row = first - work.shift + v.left; // that sees the first
        from = last < work.k_len ? last - work.shift - v.right : INT_MAX;
        until = last_row < work.q_len - 1 ? last_row + 1 - C::Q : INT_MAX;
    }

    // Takes away scores of the tile at `row` whose key the query does not see: the thread's rows are keys l / 4 and l / 4 + 8 of
    // the warp's 16, its columns queries 8 j + 2 (l % 4) and the next.
    __device__ void mask(float (&S)[C::Q / 2], const attention_variant &v, const Work &work, int row,
                         int tid) const
    {
        if (from <= row && row <= until) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = first + tid / 32 * 16 + tid % 32 / 4 + half * 8;
            const int column = key - work.shift - row - tid % 4 * 2; // of the query at the key's place
            const int begin = column - v.right, end = key < work.k_len ? column + v.left + 1 : INT_MIN;
#pragma unroll
            for (int i = 0; i < C::Q / 2; i += 4) {
                if (i * 2 < begin || i * 2 >= end) S[i + half * 2] = -INFINITY;
                if (i * 2 + 1 < begin || i * 2 + 1 >= end) S[i + half * 2 + 1] = -INFINITY;
            }
        }
    }
};

// A tile's statistics by a thread's accumulators: of i and i + 1, neighbours in a row that all keys share.
template <class C>
struct OfColumns {
    const float *rows;

    __device__ OfColumns(const float (&rows_smem)[C::Q], int tid)
        : rows(rows_smem + tid % 4 * (C::AHEAD ? 4 : 2))
    {
    }
    __device__ float2 operator()(int i) const
    {
        if constexpr (!C::AHEAD) return *reinterpret_cast<const float2 *>(rows + i / 4 * 8);
        const float4 four = *reinterpret_cast<const float4 *>(rows + i / 8 * 16); // see column_place
        return i / 4 % 2 ? make_float2(four.z, four.w) : make_float2(four.x, four.y);
    }
};

// The same, all of them read at once.
template <class C>
struct ReadColumns {
    float2 values[C::Q / 8];

    __device__ ReadColumns(const float (&rows_smem)[C::Q], int tid)
    {
        const OfColumns<C> columns(rows_smem, tid);
#pragma unroll
        for (int i = 0; i < C::Q / 8; i++) values[i] = columns(i * 4);
    }
    __device__ float2 operator()(int i) const
    {
        return values[i / 4];
    }
};

// The same of rows in their own order, 8 bytes of every 64 rows a lane, which the warp's others are handed when they need them: 4
// registers where 128 columns would be 32, and shared memory, busy with products, is read twice and not 16 times.
template <class C>
struct ShuffledColumns {
    static_assert(C::Q % 64 == 0, "every lane has 8 bytes");
    float2 own[C::Q / 64]; // of columns 64 k + 2 lane and the next
    int column;            // of the thread's pairs

    __device__ ShuffledColumns(const float (&rows_smem)[C::Q], int tid) : column(tid % 4)
    {
#pragma unroll
        for (int k = 0; k < C::Q / 64; k++)
            own[k] = *reinterpret_cast<const float2 *>(rows_smem + k * 64 + tid % 32 * 2);
    }
    __device__ float2 operator()(int i) const
    {
        const float2 pair = own[i / 32];
        const int lane = i / 4 % 8 * 4 + column; // that has it
        return make_float2(__shfl_sync(0xffffffff, pair.x, lane), __shfl_sync(0xffffffff, pair.y, lane));
    }
};

// P = 2^(S c - LSE_log2), in the place of S; LSE_log2(i) is that of accumulators i and i + 1, and of i + 2 and i + 3, 8 keys on.
template <int N, class STATISTIC>
static __device__ void exponentials(float (&S)[N / 2], float c, STATISTIC LSE_log2)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
        const float2 LSE = LSE_log2(i);
        S[i] = ex2_approx_ftz(S[i] * c - LSE.x);
        S[i + 1] = ex2_approx_ftz(S[i + 1] * c - LSE.y);
        S[i + 2] = ex2_approx_ftz(S[i + 2] * c - LSE.x);
        S[i + 3] = ex2_approx_ftz(S[i + 3] * c - LSE.y);
    }
}

// The same of capped scores, tanh, rounded into P; in their place stays P times the softcap's derivative, 1 - tanh^2. What is masked
// is -infinity: its P is 0, and so is the product.
template <typename T, int N, class STATISTIC>
static __device__ void capped_exponentials(float (&S)[N / 2], uint32_t (&P)[N / MMA_K][4], float c,
                                           STATISTIC LSE_log2)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
        const float2 LSE = LSE_log2(i);
#pragma unroll
        for (int j = i; j < i + 4; j += 2) {
            const float x = ex2_approx_ftz(S[j] * c - LSE.x), y = ex2_approx_ftz(S[j + 1] * c - LSE.y);
            const float t = fmaxf(S[j], -1), u = fmaxf(S[j + 1], -1);
            P[j / 8][j / 2 % 4] = pack_pair<T>(x, y);
            S[j] = x * (1 - t * t);
            S[j + 1] = y * (1 - u * u);
        }
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
    trace(SOFTMAX);
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
        const float2 sum = dPsum(i);
        dS[i / 8][i / 2 % 4] = pack_pair<T>(P[i] * (dP[i] - sum.x), P[i + 1] * (dP[i + 1] - sum.y));
        dS[i / 8][i / 2 % 4 + 1] =
            pack_pair<T>(P[i + 2] * (dP[i + 2] - sum.x), P[i + 3] * (dP[i + 3] - sum.y));
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

// A warp arrives, one lane for all: what they have read is read, and what they wrote is there.
static __device__ void warp_arrive(uint64_t *bar, int lane)
{
    __syncwarp();
    if (lane == 0) mbarrier_arrive(bar);
}

// Hands a consumer's part of dQ to the warp that stores it.
template <typename T, class C>
static __device__ void hand_over_dQ(SharedStorage<T, C> &smem, const float (&dQ)[C::DQ_REGS], int consumer,
                                    int tid)
{
    trace(STORE);
#pragma unroll
    for (int i = 0; i < C::DQ_REGS; i += 4)
        smem.handed_smem[consumer * (C::DQ_REGS / 4) + i / 4][tid] =
            make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]);
    fence_proxy_async(); // What this thread wrote is there for the copy engine.
    warp_arrive(&smem.handed_full[consumer], tid % 32);
}

// A consumer's turn to add to its part of a tile of dQ, where the order is fixed.
template <class C>
static __device__ void begin_turn(unsigned *arrived, const attention_variant_backward &b, const Work &work,
                                  int row, int consumer, int tid)
{
    if (!b.deterministic) return;
    if (tid == 0) wait_for_turn<C>(arrived, b.forward, work, row);
    named_barrier_sync(ONE_CONSUMER + consumer, 128);
}

static __device__ void end_turn(unsigned *arrived, const attention_variant_backward &b, int consumer, int tid)
{
    if (!b.deterministic) return;
    named_barrier_sync(ONE_CONSUMER + consumer, 128); // All have added,
    if (tid == 0) red_release_gpu_add(arrived, 1);    // and whoever sees this sees that.
}

// Adds a consumer's part of dQ to memory.
template <int REGS>
static __device__ void add_dQ(float4 *dQ_sum, const float (&dQ)[REGS], int tid)
{
    trace(STORE);
    // One address that the compiler does not see through: else it keeps one for each i, for which there are too few registers.
    float4 *own = dQ_sum + tid;
    asm volatile("" : "+l"(own));
#pragma unroll
    for (int i = 0; i < REGS; i += 4)
        red_add_v4(own + i / 4 * 128, make_float4(dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]));
}

// Rounds a consumer's 64 rows of dK or dV, puts them where nobody reads any more, in boxes of 64 columns that are BOX rows apart, and
// has the copy engine store them: it leaves out rows past the sequence's last.
template <typename T, class C, int BOX>
static __device__ void store_gradient(const CUtensorMap &map, T *place_smem, const float (&dK)[C::D / 2],
                                      float scale, const Work &work, int first_key, int consumer, int tid)
{
    trace(STORE);
    const int row = tid / 32 * 16 + tid % 16;
#pragma unroll
    for (int i = 0; i < C::D / 2; i += 8) {
        // Matrices 0 to 3: the upper and the lower 8 keys of 8 columns, then of the next 8 columns.
        const uint32_t frag[4] = {pack_pair<T>(dK[i] * scale, dK[i + 1] * scale),
                                  pack_pair<T>(dK[i + 2] * scale, dK[i + 3] * scale),
                                  pack_pair<T>(dK[i + 4] * scale, dK[i + 5] * scale),
                                  pack_pair<T>(dK[i + 6] * scale, dK[i + 7] * scale)};
        const int chunk = i / 4 % 8 + tid % 32 / 16; // of 8 columns
        stmatrix_x4(smem_addr(place_smem + i / 32 * BOX * 64) + swizzle(row * 128 + chunk * 16, 3), frag);
    }
    fence_proxy_async();                              // What this thread wrote is there for the copy engine,
    named_barrier_sync(ONE_CONSUMER + consumer, 128); // and what the others wrote.
    if (tid > 0) return;
    const int end = work.k_begin + work.k_len;
#pragma unroll
    for (int box = 0; box < C::D / 64; box++)
        cp_async_bulk_tensor_5d_store(map, place_smem + box * BOX * 64, 0,
                                      RAGGED + work.k_begin + first_key - end,
                                      work.kv_head * (C::D / 64) + box, end, RAGGED);
    cp_async_bulk_commit_group();
}

// Stores dV and dK of a consumer with 64 keys of its own: V's rows of these keys are its alone, and so is its place for dQ once the
// last part has been read, that of tile `tiles` - 1 of all works.
template <typename T, class C>
static __device__ void store_gradients(SharedStorage<T, C> &smem, const CUtensorMap &dK_map,
                                       const CUtensorMap &dV_map, const float (&dK)[C::D / 2],
                                       const float (&dV)[C::D / 2], int place, const Work &work,
                                       int first_key, int tiles, int consumer, int tid)
{
    T *const dQ_place = reinterpret_cast<T *>(smem.handed_smem[consumer * (C::DQ_REGS / 4)]);
    store_gradient<T, C, C::KV>(dV_map, smem.V_smem[place][0][consumer * 64], dV, 1, work, first_key,
                                consumer, tid);
    trace(WAIT_EMPTY);
    mbarrier_wait(&smem.handed_empty[consumer], tiles % 2 ^ 1);
    store_gradient<T, C, 64>(dK_map, dQ_place, dK, rsqrtf(C::D), work, first_key, consumer, tid);
}

// --- The consumers ------------------------------------------------------------------------------------------------------------

// S becomes P, in its place, and with softcap P times the softcap's derivative. Where dV begins before dS is known P in 16 bits is
// there besides.
template <typename T, class C, class STATISTIC>
static __device__ void probabilities(float (&S)[C::Q / 2], uint32_t (&P)[C::Q / MMA_K][4], STATISTIC LSE_log2,
                                     const Keys<C> &keys, const attention_variant &v,
                                     const BackwardPlan &plan, const Work &work, int row, int tid)
{
    trace(SOFTMAX);
    if (C::SOFTCAP) cap_scores<C::Q>(S, plan.cap_c);
    keys.mask(S, v, work, row, tid);
    if constexpr (C::SOFTCAP)
        capped_exponentials<T, C::Q>(S, P, plan.c, LSE_log2);
    else
        exponentials<C::Q>(S, plan.c, LSE_log2);
}

// The products of a work, of a consumer with 64 keys of its own: every tile of queries against them, as in step 5. D = 64, and softcap
// at D = 128. The first tile is number `begin` of all works.
template <typename T, class C>
static __device__ void multiply(float (&dK)[C::D / 2], float (&dV)[C::D / 2], SharedStorage<T, C> &smem,
                                int place, const Work &work, const Keys<C> &keys, int begin,
                                const attention_variant &v, const BackwardPlan &plan, int consumer, int tid)
{
    const T(&K_smem)[C::D / 64][C::KV][64] = smem.K_smem[place],
                            (&V_smem)[C::D / 64][C::KV][64] = smem.V_smem[place];
    const int lane = tid % 32;
    const int end = begin + work.tiles, first_row = work.first_row, end_row = work.end_row;
    int row = begin_row<C>(work);

    for (int i = begin; i < end; i++) {
        const int stage = i % C::STAGES, parity = i / C::STAGES % 2;
        float S[C::Q / 2], dP[C::Q / 2], dQ[C::DQ_REGS];
        uint32_t P[C::Q / MMA_K][4], dS[C::Q / MMA_K][4];
        trace(WAIT_FULL);
        mbarrier_wait(&smem.Q_full[stage], parity);
        // Before S is issued: its products then keep shared memory busy.
        const ShuffledColumns<C> LSE_log2(smem.LSE_log2_smem[stage], tid);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(S, K_smem[0][consumer * 64], smem.Q_smem[stage][0][0]);
        wgmma_commit_group();
        trace(WAIT_FULL);
        mbarrier_wait(&smem.dO_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(dP, V_smem[0][consumer * 64], smem.dO_smem[stage][0][0]);
        wgmma_commit_group();

        wgmma_wait_group<1>();
        wgmma_touch(S);
        probabilities<T, C>(S, P, LSE_log2, keys, v, plan, work, row, tid);
        const ShuffledColumns<C> dPsum(smem.dPsum_smem[stage], tid);
        const auto multiply_dV = [&] {
            if (!C::SOFTCAP) round_tile<T, C::Q>(S, P);
            wgmma_touch(dV);
            wgmma_touch(P);
            wgmma_fence();
            multiply_gradient<T, C>(dV, P, smem.dO_smem[stage]);
            wgmma_commit_group();
        };

        if constexpr (C::EARLY_DV) multiply_dV();
        wgmma_wait_group<C::EARLY_DV>();
        wgmma_touch(dP);
        softmax_gradient<T, C::Q>(dP, S, dS, dPsum);
        trace(STORE);
        store_transposed<T, C::Q>(smem.dS_smem[stage][consumer], dS, tid);
        // Behind the stores: its reads of shared memory would hold up what the other waits for.
        if constexpr (!C::EARLY_DV) multiply_dV();
        fence_proxy_async(); // What this thread wrote is there for wgmma,
        trace(WAIT_TURN);
        named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // and what the others wrote.

        wgmma_touch(dK);
        wgmma_touch(dS);
        wgmma_fence();
        multiply_dQ<T, C>(dQ, smem.dS_smem[stage], K_smem, consumer);
        wgmma_commit_group();
        multiply_gradient<T, C>(dK, dS, smem.Q_smem[stage]);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        wgmma_touch(dV);
        wgmma_touch(P); // wgmma has read it.
        warp_arrive(&smem.dO_empty[stage], lane);
        wgmma_touch(dQ);
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.handed_empty[consumer], i % 2 ^ 1);
        hand_over_dQ<T, C>(smem, dQ, consumer, tid);

        wgmma_wait_group<0>();
        wgmma_touch(dK);
        wgmma_touch(dS);
        warp_arrive(&smem.Q_empty[stage], lane);
        row += C::Q;
        if (row >= end_row) row = first_row; // of the next head
    }
}

// The same with dQ of a tile behind S of the next: nobody waits for the other's dS before there is something to multiply, and the
// consumers need not keep step. Behind the last tile S is computed once more, for nobody: with a branch there ptxas would wait for
// every product.
//
//      issued     dP  dV       dK  S of the next   dQ
//      waited for         dP           dV      dK        S    dQ
//      beside them        dS, store                      2^S      dQ to shared memory
template <typename T, class C>
static __device__ void multiply_ahead(float (&dK)[C::D / 2], float (&dV)[C::D / 2], SharedStorage<T, C> &smem,
                                      const Work &work, const Keys<C> &keys, const attention_variant &v,
                                      const BackwardPlan &plan, int consumer)
{
    static_assert(C::WORKS == 1, "nobody loads into the place that S of the last tile reads again");
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const int tiles = work.tiles, first_row = work.first_row, end_row = work.end_row;
    float S[C::Q / 2];
    int row = begin_row<C>(work);
    const auto multiply_S = [&](int i) {
        const int stage = i % C::STAGES;
        trace(WAIT_FULL);
        mbarrier_wait(&smem.Q_full[stage], i / C::STAGES % 2);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(S, smem.K_smem[0][0][consumer * 64],
                                                  smem.Q_smem[stage][0][0]);
        wgmma_commit_group();
    };
    const auto exponentials_of_S = [&](const ReadColumns<C> &LSE_log2) {
        uint32_t P[C::Q / MMA_K][4]; // is for softcap
        wgmma_touch(S);
        probabilities<T, C>(S, P, LSE_log2, keys, v, plan, work, row, tid);
        wgmma_touch(S);
    };
    if (tiles > 0) {
        multiply_S(0);
        const ReadColumns<C> LSE_log2(smem.LSE_log2_smem[0], tid);
        wgmma_wait_group<0>();
        exponentials_of_S(LSE_log2);
    }

    for (int i = 0; i < tiles; i++) { // S is P of tile i.
        const int stage = i % C::STAGES, parity = i / C::STAGES % 2;
        float dP[C::Q / 2], dQ[C::DQ_REGS];
        uint32_t P[C::Q / MMA_K][4], dS[C::Q / MMA_K][4];
        trace(WAIT_FULL);
        mbarrier_wait(&smem.dO_full[stage], parity);
        wgmma_fence();
        multiply_rows<T, C::D, C::Q, C::KV, C::Q>(dP, smem.V_smem[0][0][consumer * 64],
                                                  smem.dO_smem[stage][0][0]);
        wgmma_commit_group();
        const ReadColumns<C> dPsum(smem.dPsum_smem[stage], tid);
        const auto multiply_dV = [&] {
            round_tile<T, C::Q>(S, P);
            wgmma_touch(dV);
            wgmma_touch(P);
            wgmma_fence();
            multiply_gradient<T, C>(dV, P, smem.dO_smem[stage]);
            wgmma_commit_group();
        };
        if constexpr (C::EARLY_DV) multiply_dV();
        wgmma_wait_group<C::EARLY_DV>();
        wgmma_touch(dP);
        softmax_gradient<T, C::Q>(dP, S, dS, dPsum);
        if constexpr (!C::EARLY_DV) multiply_dV();
        wgmma_touch(dK);
        wgmma_touch(dS);
        wgmma_fence();
        multiply_gradient<T, C>(dK, dS, smem.Q_smem[stage]);
        wgmma_commit_group();
        trace(STORE);
        store_transposed<T, C::Q>(smem.dS_smem[stage][consumer], dS, tid);
        fence_proxy_async(); // What this thread wrote is there for wgmma.
        warp_arrive(&smem.dS_full[stage], lane);
        trace(MULTIPLY);
        wgmma_wait_group<1>();
        wgmma_touch(dV);
        wgmma_touch(P); // wgmma has read it.
        warp_arrive(&smem.dO_empty[stage], lane);

        const int next = min(i + 1, tiles - 1);
        multiply_S(next);
        row = row + C::Q < end_row ? row + C::Q : first_row; // of the next head
        const ReadColumns<C> LSE_log2(smem.LSE_log2_smem[next % C::STAGES], tid);
        wgmma_wait_group<1>();
        wgmma_touch(dK);
        wgmma_touch(dS);
        warp_arrive(&smem.Q_empty[stage],
                    lane); // S of the last tile still reads it; nothing comes there any more.
        // Two places for dS: who stores the next has multiplied the one before, and so has, by this barrier, the other.
        trace(WAIT_TURN);
        mbarrier_wait(&smem.dS_full[stage], parity);
        wgmma_fence();
        multiply_dQ<T, C>(dQ, smem.dS_smem[stage], smem.K_smem[0], consumer);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        exponentials_of_S(LSE_log2);
        // A place for dQ; also keeps the exponentials before the next wait.
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.handed_empty[consumer], i % 2 ^ 1);
        trace(MULTIPLY);
        wgmma_wait_group<0>();
        wgmma_touch(dQ);
        hand_over_dQ<T, C>(smem, dQ, consumer, tid);
    }
}

// A consumer: of each work its part of the products, then its rows of dK and dV.
template <typename T, class C>
static __device__ void consume(SharedStorage<T, C> &smem, const CUtensorMap &dK_map,
                               const CUtensorMap &dV_map, const attention_variant_backward &b,
                               const BackwardPlan &plan, int consumer)
{
    const int tid = kept(threadIdx.x % 128);
    int tiles = 0; // of all works so far
    for (PipelineState<C::WORKS> state;; state.advance()) {
        const int place = state.stage;
        const Work &work = smem.works[place];
        trace(WAIT_FULL);
        mbarrier_wait(&smem.KV_full[place], state.parity);
        if (C::WORKS > 1 && work.tiles < 0) break;
        const Keys<C> keys(b.forward, work, consumer);
        float dK[C::D / 2] = {}, dV[C::D / 2] = {};
        if constexpr (C::AHEAD)
            multiply_ahead<T, C>(dK, dV, smem, work, keys, b.forward, plan, consumer);
        else
            multiply<T, C>(dK, dV, smem, place, work, keys, tiles, b.forward, plan, consumer, tid);
        tiles += work.tiles;
        store_gradients<T, C>(smem, dK_map, dV_map, dK, dV, place, work, keys.first, tiles, consumer, tid);
        // The copy engine has read V's place and dQ's before anyone writes there, and before the block ends.
        if (tid == 0) cp_async_bulk_wait_group_read<0>();
        if (C::WORKS == 1) break;
        if (tid == 0) mbarrier_arrive(&smem.KV_empty[place]);
        named_barrier_sync(ONE_CONSUMER + consumer, 128);
    }
}

template <typename T, class C>
__global__ void __launch_bounds__(NUM_THREADS, 1)
    backward_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of C::Q rows
                    const __grid_constant__ CUtensorMap dO_map, // the same
                    const __grid_constant__ CUtensorMap K_map,  // boxes of C::KV rows
                    const __grid_constant__ CUtensorMap V_map,  // the same
                    const __grid_constant__ CUtensorMap dK_map, // boxes of 64 rows and columns
                    const __grid_constant__ CUtensorMap dV_map, // the same
                    const __grid_constant__ attention_variant_backward b,
                    const __grid_constant__ BackwardPlan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, C> &smem = *reinterpret_cast<SharedStorage<T, C> *>(smem_bytes);

    // Setup, a thread of three warps each.
    if (threadIdx.x == 32) put_work<C>(smem.works[0], take_work<C>(b, plan), b);
    if (threadIdx.x == 64)
        for (const CUtensorMap *map : {&K_map, &V_map, &Q_map, &dO_map, &dK_map, &dV_map})
            prefetch_tensormap(*map);
    // TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        for (int place = 0; place < C::WORKS; place++) {
            mbarrier_init(&smem.KV_full[place], 1); // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.KV_empty[place],
                          2 * CONSUMERS); // a thread of each consumer, and each that adds dQ
        }
        for (int stage = 0; stage < C::STAGES; stage++) {
            mbarrier_init(&smem.Q_full[stage], 1);
            mbarrier_init(&smem.dO_full[stage], 1);
            mbarrier_init(&smem.Q_empty[stage], CONSUMERS * 4);
            mbarrier_init(&smem.dO_empty[stage], CONSUMERS * 4);
            mbarrier_init(&smem.dS_full[stage], CONSUMERS * 4);
        }
        for (int consumer = 0; consumer < CONSUMERS; consumer++) {
            mbarrier_init(&smem.handed_full[consumer], 4);
            mbarrier_init(&smem.handed_empty[consumer], 1); // the thread that stores dQ
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (C::WORKS == 1 && smem.works[0].tiles < 0) return; // a number that is nobody's

    if (threadIdx.x < 128) {
        setmaxnreg_dec<PRODUCER_REGS>();
        if (threadIdx.x / 32 == 0 && elect_one()) produce<T, C>(smem, Q_map, dO_map, K_map, V_map, b, plan);
        if (threadIdx.x == 32 || threadIdx.x == 64) store_dQ<T, C>(smem, b, plan, threadIdx.x / 32 - 1);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        consume<T, C>(smem, dK_map, dV_map, b, plan, consumer);
    }
    trace(END);
}

// What this kernel and that of kernel_256.cuh take.
using backward_launch = void(CUtensorMap Q_map, CUtensorMap dO_map, CUtensorMap K_map, CUtensorMap V_map,
                             CUtensorMap dK_map, CUtensorMap dV_map, attention_variant_backward b,
                             BackwardPlan plan);

// Makes the tensor maps and starts a kernel: boxes of Q and dO have C::Q rows and q_cols columns, those of K and V so many as well.
template <typename T, class C>
static cudaError_t launch_kernel(backward_launch *kernel, dim3 grid, int smem_bytes, int q_cols, int kv_rows,
                                 int kv_cols, const attention_variant_backward &b, const BackwardPlan &plan,
                                 cudaStream_t stream)
{
    const attention_variant &v = b.forward;
    CUtensorMap Q_map, dO_map, K_map, V_map, dK_map, dV_map;
    constexpr CUtensorMapDataType type = tensor_map_type<T>();
    if ((int64_t)plan.kv_tiles * v.kv_heads > INT_MAX / C::BLOCKS) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_ragged(&Q_map, type, v.Q, plan.q_rows, v.heads, C::D, C::Q, q_cols);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&dO_map, type, b.dO, plan.q_rows, v.heads, C::D, C::Q, q_cols);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&K_map, type, v.K, plan.k_rows, v.kv_heads, C::D, kv_rows, kv_cols);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&V_map, type, v.V, plan.k_rows, v.kv_heads, C::D, kv_rows, kv_cols);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&dK_map, type, b.dK, plan.k_rows, v.kv_heads, C::D, 64, 64);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&dV_map, type, b.dV, plan.k_rows, v.kv_heads, C::D, 64, 64);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return error;
    kernel<<<grid, NUM_THREADS, smem_bytes, stream>>>(Q_map, dO_map, K_map, V_map, dK_map, dV_map, b, plan);
    return cudaGetLastError();
}

template <typename T, class C>
static cudaError_t launch_blocks(const attention_variant_backward &b, const BackwardPlan &plan,
                                 cudaStream_t stream)
{
    constexpr int smem_bytes = sizeof(SharedStorage<T, C>);
    static_assert(smem_bytes <= SMEM_BYTES, "what a block may have");
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    const int blocks = C::WORKS > 1 ? min(plan.num_works, sms) : plan.num_works; // one fits on an SM
    return launch_kernel<T, C>(backward_kernel<T, C>, blocks, smem_bytes, C::D, C::KV, C::D, b, plan, stream);
}

// Starts the kernel for a sum of dQ that was cleared, or that in which the first stores.
template <typename T, class C>
static cudaError_t launch_tile(const attention_variant_backward &b, const BackwardPlan &plan,
                               cudaStream_t stream)
{
    using FirstStores = Tile<C::D, C::Q, C::SOFTCAP, true>;
    return (plan.first_stores ? launch_blocks<T, FirstStores> : launch_blocks<T, C>)(b, plan, stream);
}

#include "kernel_256.cuh"

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
        {256, TILE_Q_256, launch_cluster<T, ClusterTile<TILE_Q_256, false>>, nullptr},
        {256, TILE_Q_SOFTCAP, nullptr, launch_cluster<T, ClusterTile<TILE_Q_SOFTCAP, true>>},
    };
    for (const auto &row : TABLE) {
        launcher *launch = b.forward.softcap > 0 ? row.softcap : row.plain;
        if (launch && row.head_dim == b.forward.head_dim && row.q_tile == plan.q_tile)
            return launch(b, plan, stream);
    }
    return cudaErrorInvalidValue;
}
