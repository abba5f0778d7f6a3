// The kernel of this chapter: chapter 15's last step, with every variant in it.
//
// A variant costs registers or instructions in the loop over the keys, or it does not. What does is a parameter of the
// template: the head dimensions, how many queries a block takes, the softcap. What is looked at once a tile of queries or
// once a tile of keys (windows, lengths, pages, packed heads, parts, sinks) is data.
//
//      work of a block = a tile of queries (of `pack` heads) of a sequence x the keys that they see, or a part of them
//
// What it grows from is chapters/15_sm90_attention_forward/step10_tma_store.cu; it is said here what is new.
#pragma once
#include <cfloat>
#include <type_traits>

#include "../../common/device/launch.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/types.cuh"
#include "../../common/device/warp.cuh"
#include "../../common/device/wgmma.cuh"
#include "plan.h"

constexpr int MMA_K = 16;             // k of a wgmma
constexpr float RESCALE_LOG2 = 8;     // how far a score may be above m
constexpr int GATHER_WARPS = 3;       // of the producer's four; the last looks for work
constexpr int WORKS = 4;              // looked for, loaded, multiplied, stored
constexpr int LOOK_AHEAD = 3;         // tiles of keys from TMA before the last: the next work is looked for
constexpr int SMEM_BYTES = 227 << 10; // that a block may have
// What an SM asks for at a time of the K and V of few queries: enough that memory is always busy. More only waits there, and on some SMs a fifth
// longer than on others, which all wait for at the end (results/trials/16_decode_sms_h200.csv).
constexpr int BYTES_UNDER_WAY = 96 << 10;
constexpr int SMEM_BYTES_OF_WORK = 1 << 10; // kept for what is behind the tiles in SharedStorage

// The tiles of a block. FEW: one consumer, for no more rows than it has. Such a block waits for memory, and its tiles are small: the first is
// there sooner, and less is to be done when the last one is.
template <int D_, int DV_, bool FEW, bool SOFTCAP_>
struct Tile {
    static constexpr int D = D_, DV = DV_;
    static constexpr bool SOFTCAP = SOFTCAP_;
    static constexpr int KV = tile_keys(FEW, DV); // keys in a stage
    static constexpr int CONSUMERS = block_consumers(FEW, D, DV);
    static constexpr int THREADS = (1 + CONSUMERS) * 128; // warpgroup 0 is the producer
    static constexpr bool GATHER = FEW;                   // cp.async for pages that TMA does not serve
    // A launch gives each thread an SM's registers / MAX_THREADS; the producer leaves most of its own to the consumers. A block of one
    // consumer leaves a third of the SM's: combine_kernel's blocks have room beside it.
    static constexpr int MAX_THREADS = FEW ? 384 : THREADS;
    static constexpr int PRODUCER_REGS = FEW ? 88 : CONSUMERS == 3 ? 32 : D >= 192 ? 24 : 40;
    static constexpr int CONSUMER_REGS = FEW ? 248 : CONSUMERS == 3 ? 160 : D >= 192 ? 240 : 232;
    static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <=
                      (1 + CONSUMERS) * (65536 / MAX_THREADS / 8 * 8),
                  "setmaxnreg moves registers of the block, it makes none");
    static constexpr bool OVERLAP = D > 64 || DV > 64; // S and P V in flight together: registers for two P
    // Boxes of 64 columns of O that are stored at a time.
    static constexpr int O_BOXES = DV == 64 || (D == 192 && !FEW) ? 1 : 2;
    static constexpr int Q_PLACES = D == 64 && !FEW ? 2 : 1; // two: the next come while these are read
    static constexpr int Q_BYTES = Q_PLACES * CONSUMERS * WG_Q * D * 2,
                         O_BYTES = CONSUMERS * WG_Q * O_BOXES * 128;
    static constexpr int STAGE_BYTES = KV * (D + DV) * 2;
    static constexpr int STAGES = // of K, and of V
        (FEW ? BYTES_UNDER_WAY + STAGE_BYTES / 2 : SMEM_BYTES - SMEM_BYTES_OF_WORK - Q_BYTES - O_BYTES) /
        STAGE_BYTES;
    static_assert(STAGES >= 2, "one is filled while the other is read");
};

enum NamedBarrier {
    TURN = 1,         // + consumer: it may issue its products
    STORE = TURN + 3, // + consumer: its threads, when it stores O
};

// What a block works on.
struct Work {
    unsigned round;     // of the block: how many there were before
    int sequence;       // -1: there is no more
    int head, kv_head;  // the first query head, and the head of K and V that it reads
    int query;          // the first in the sequence
    int q_begin, q_len; // the sequence's rows in Q and O
    int k_begin, k_len; // and in K and V
    int shift;          // query i is at place i + shift of the keys
    int part, parts;    // the part of the keys, and how many they have:
    int tile, tile_end; // tiles [tile, tile_end), at least one
    int seen;           // keys from here on are nobody's: k_len, or 0 in a part that has none
};

// How far a block has looked for the sequence of a tile: 32 sequences at a time.
struct Looked {
    int sequence; // the first of the 32
    int before;   // tiles of the sequences before it
    int shares;   // of the launch
};

template <typename T, class C>
struct SharedStorage {
    T Q_smem[C::Q_PLACES][C::CONSUMERS][C::D / 64][WG_Q][64];
    // From pages by TMA a tile of K or V is laid out otherwise: load_pages.
    T K_smem[C::STAGES][C::D / 64][C::KV][64];
    T V_smem[C::STAGES][C::DV / 64][C::KV][64];
    T O_smem[C::CONSUMERS][C::O_BOXES][WG_Q][64];
    Looked looked;
    Work work[WORKS];
    uint64_t work_wanted;       // the loads of one, all of Q's and most of K's, are under way
    uint64_t work_found[WORKS]; // it is there: each its own, for the warps that load may be a work apart
    uint64_t Q_full[C::Q_PLACES][C::CONSUMERS]; // the queries have landed
    // The consumer's warps are done with them, and with the work before.
    uint64_t Q_empty[C::Q_PLACES][C::CONSUMERS];
    uint64_t K_full[C::STAGES], V_full[C::STAGES];   // the stage has landed
    uint64_t K_empty[C::STAGES], V_empty[C::STAGES]; // every consumer is done with it
};

// --- Which work ---------------------------------------------------------------------------------------------------------

// Row r of a consumer is query r / pack of head r % pack; a multiplication, exact for r < 128.
static __device__ int row_query(const Plan &plan, int row)
{
    return row * plan.pack_inverse >> 16;
}

static __device__ int row_head(const Plan &plan, const Work &work, int row)
{
    return work.head + row - row_query(plan, row) * plan.pack;
}

// Queries of a consumer: each takes a row for every head of the pack.
static __device__ int consumer_queries(const Plan &plan)
{
    return row_query(plan, WG_Q);
}

// How many tiles sequence i of cu_q has, over all heads.
static __device__ int sequence_tiles(const attention_variant &v, const Plan &plan, int i)
{
    return (v.cu_q[i + 1] - v.cu_q[i] + plan.queries - 1) / plan.queries * plan.packs;
}

// Counts the shares of the tiles that cu_q makes: there each tile has as many.
static __device__ void count_shares(Looked &looked, const attention_variant &v, const Plan &plan, int lane)
{
    int sum = 0;
#pragma unroll 1
    for (int i = lane; i < v.batch; i += 32) sum += sequence_tiles(v, plan, i);
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    if (lane == 0) looked.shares = sum * plan.tile_units;
}

// Finds the sequence that `tile` is of, -1 behind the last; `tile` becomes its number there. Tiles come in rising order.
static __device__ int find_sequence(const attention_variant &v, const Plan &plan, Looked &looked, int &tile,
                                    int lane)
{
    if (!v.cu_q) {
        const int sequence = tile / plan.sequence_tiles;
        tile %= plan.sequence_tiles;
        return sequence < v.batch ? sequence : -1;
    }
    int first = looked.sequence, before = looked.before; // of 32 sequences, a lane each
    while (first < v.batch) {
        const int mine = first + lane < v.batch ? sequence_tiles(v, plan, first + lane) : 0;
        const int until = sum_up_to_lane(mine); // tiles
        const unsigned later = __ballot_sync(0xffffffff, tile < before + until);
        if (later) {
            const int source = __ffs(later) - 1;
            tile -= before + __shfl_sync(0xffffffff, until - mine, source);
            __syncwarp(); // Every lane has read it,
            if (lane == 0) looked.sequence = first, looked.before = before;
            __syncwarp(); // and will read this.
            return first + source;
        }
        before += __shfl_sync(0xffffffff, until, 31);
        first += 32;
    }
    return -1;
}

// What a share has of a tile. The keys of all tiles are cut into shares, all alike: in units of which a tile has plan.tile_units and a share
// plan.share_units, tile i begins at i * tile_units and share s at s * share_units.
struct Part {
    unsigned begin, end; // units of the tile
    int number, of;      // shares that have some of it: before this one, and in all

    __device__ Part(const Plan &plan, unsigned share, unsigned tile)
    {
        const unsigned tile_begin = tile * plan.tile_units, tile_end = tile_begin + plan.tile_units,
                       share_begin = share * plan.share_units, share_end = share_begin + plan.share_units;
        begin = max(share_begin, tile_begin) - tile_begin;
        end = min(share_end, tile_end) - tile_begin;
        const unsigned first = tile_begin / plan.share_units, last = (tile_end - 1) / plan.share_units;
        number = share - first;
        of = last - first + 1;
    }
};

// The work of a tile: its number among all, and `tile`, in its sequence; where tiles have parts, the one in a share. Group of packs by group
// of packs, in it the last queries first, of each pack in turn.
template <class C>
static __device__ void describe_work(Work &work, const attention_variant &v, const Plan &plan, int sequence,
                                     unsigned tile, unsigned share, unsigned number)
{
    work.sequence = sequence;
    work.q_begin = v.cu_q ? v.cu_q[sequence] : sequence * v.q_len;
    const int q_len = v.cu_q ? v.cu_q[sequence + 1] - work.q_begin : v.q_len;
    work.q_len = q_len;
    const unsigned q_tiles = (q_len - 1u) / plan.queries + 1;
    const unsigned group = tile / (plan.packs_in_group * q_tiles),
                   in_group = tile % (plan.packs_in_group * q_tiles);
    const unsigned packs_here = min(plan.packs_in_group, plan.packs - group * plan.packs_in_group);
    const int query = work.query = (q_tiles - 1 - in_group / packs_here) * plan.queries;
    const unsigned head = work.head = (group * plan.packs_in_group + in_group % packs_here) * plan.pack;
    work.kv_head = head / plan.kv_sharers;

    work.k_begin = v.cu_k ? v.cu_k[sequence] : v.page_table ? 0 : sequence * v.k_len;
    int k_len = v.cu_k ? v.cu_k[sequence + 1] - work.k_begin : v.used_k ? v.used_k[sequence] : v.k_len;
    k_len += v.new_len; // append_kv has put them there
    work.k_len = k_len;
    const int shift = work.shift = k_len - q_len;

    // The keys that some query of the tile sees, in tiles; of them the part.
    const int begin = max(query + shift - v.left, 0);
    const int end = min(min(query + (int)plan.queries, q_len) + shift + v.right, k_len);
    const int first_tile = begin / C::KV;
    const unsigned tiles = end > begin ? (end - 1) / C::KV + 1 - first_tile : 0;
    int part_begin = 0, part_end = tiles;
    work.part = 0;
    work.parts = 1;
    if (plan.parts > 1) { // divisions again
        const Part part(plan, share, number);
        part_begin = tiles * part.begin / plan.tile_units; // at most 2^23 tiles, and 2^8 units
        part_end = tiles * part.end / plan.tile_units;
        work.part = part.number;
        work.parts = part.of;
    }
    work.tile = first_tile + part_begin;
    work.tile_end = first_tile + max(part_end, part_begin + 1); // at least one, that its sums become 0
    work.seen = part_begin < part_end ? k_len : 0;
}

// Finds the work of a tile, sequence -1 behind the last or where tile is -1, and hands it on. Whether there is one.
template <typename T, class C>
static __device__ bool hand_on(SharedStorage<T, C> &smem, const attention_variant &v, const Plan &plan,
                               unsigned round, unsigned share, int tile, int lane)
{
    const int number = tile, sequence = tile < 0 ? -1 : find_sequence(v, plan, smem.looked, tile, lane);
    if (lane == 0) {
        Work &work = smem.work[round % WORKS];
        work.round = round;
        if (sequence < 0)
            work.sequence = -1;
        else
            describe_work<C>(work, v, plan, sequence, tile, share, number);
        mbarrier_arrive(&smem.work_found[round % WORKS]);
    }
    return sequence >= 0;
}

static __device__ unsigned next_share; // beyond the first of each block

// The first tile that a share has some of. Where it is one tile, as in most launches, nobody waits for a division.
static __device__ int first_of_share(const Plan &plan, unsigned share)
{
    return plan.parts == 1 ? share : share * plan.share_units / plan.tile_units;
}

// The tile after `tile`: the next of the share, or the first of the next share that nobody has; -1 where there is none.
static __device__ int tile_after(const Plan &plan, const Looked &looked, unsigned &share, unsigned tile)
{
    if ((tile + 1) * plan.tile_units < (share + 1) * plan.share_units) return tile + 1;
    share = gridDim.x + atomicInc(&next_share, looked.shares - 1);
    return share < (unsigned)looked.shares ? first_of_share(plan, share) : -1;
}

// A warp of the producer finds the work of the block, first this one: no tiles have been counted, for all wait for it.
template <typename T, class C>
static __device__ bool find_first_work(SharedStorage<T, C> &smem, const attention_variant &v,
                                       const Plan &plan, int lane)
{
    if (lane == 0) smem.looked = {0, 0, plan.shares};
    __syncwarp();
    return hand_on<T, C>(smem, v, plan, 0, blockIdx.x, first_of_share(plan, blockIdx.x), lane);
}

// Then the next one when those that load want it: late, so that all blocks end together. Who loads Q has then waited for the consumers
// to be done with the work whose place this takes.
template <typename T, class C>
static __device__ void find_work(SharedStorage<T, C> &smem, const attention_variant &v, const Plan &plan,
                                 bool found, int lane)
{
    unsigned share = blockIdx.x;
    int tile = first_of_share(plan, share);
    if (v.cu_q) count_shares(smem.looked, v, plan, lane);
    for (unsigned round = 1; found; round++) {
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.work_wanted, round % 2 ^ 1);
        trace(LOAD); // what memory says of the next work
        if (lane == 0) tile = tile_after(plan, smem.looked, share, tile);
        tile = __shfl_sync(0xffffffff, tile, 0);
        found = hand_on<T, C>(smem, v, plan, round, share, tile, lane);
    }
}

// --- The producer ---------------------------------------------------------------------------------------------------------

// The row of K and V, in memory, that has key `key` of the sequence.
static __device__ int key_row(const attention_variant &v, const Work &work, int key)
{
    const int *pages = v.page_table + (size_t)work.sequence * v.pages_per_sequence;
    return pages[key / v.page_size] * v.page_size + key % v.page_size;
}

// A warp starts the copy of tile kv of K or V into its stage when that is empty. Past the last key there are zeros.
template <typename T, int D, int KV>
static __device__ void load_tile(T (&dst_smem)[D / 64][KV][64], const CUtensorMap &map, uint64_t *full,
                                 uint64_t *empty, uint32_t parity, const Work &work, int kv, uint64_t policy,
                                 int lane)
{
    const int end = work.k_begin + work.k_len, first = work.k_begin + kv * KV; // read before it has to wait
    const int column = work.kv_head * (D / 64);
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    if (lane > 0) return;
    mbarrier_arrive_expect_tx(full, sizeof dst_smem);
    griddepcontrol_wait(); // attention_kernel says why here.
    cp_async_bulk_tensor_5d_cache_hint(dst_smem, map, full, 0, RAGGED + first - end, column, end, RAGGED,
                                       policy);
}

// The same from pages: several copies, a lane each, of plan.box keys and all columns, none of which crosses the end of a page. They land
// one behind the other, and so the tile is laid out otherwise than without pages (place_tiles): V, cut where the sequence ends, is
// (KV / box, D / 64, box, 64). K is (KV / 8, D / 64, 8, 64) for every box, since wgmma has one distance from eight keys to the next eight; its
// map (WHOLE, tensor_map_eights) knows no end of a sequence, and what a page holds behind that is masked. The barrier learns last how many
// bytes it is to expect: a copy that has landed before is counted all the same, and no phase ends without that arrival.
template <typename T, int D, int KV, bool WHOLE>
static __device__ void load_pages(T (&dst_smem)[D / 64][KV][64], const CUtensorMap &map, uint64_t *full,
                                  uint64_t *empty, uint32_t parity, const attention_variant &v,
                                  const Plan &plan, const Work &work, int kv, uint64_t policy, int lane)
{
    const int in_tile = lane * plan.box, key = kv * KV + in_tile, column = work.kv_head * (D / 64);
    const int keys = max(min(work.k_len - key, plan.box), 0);
    int first = plan.k_rows; // outside, where there are zeros
    if (in_tile < KV && keys > 0) {
        const int page = __umulhi(key, plan.page_inverse) >> plan.page_shift;
        first = v.page_table[work.sequence * v.pages_per_sequence + page] * v.page_size + key -
                page * v.page_size;
    }
    // All that before it has to wait: from "empty" to the copies every cycle counts.
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    if (in_tile < KV) {
        T *dst = &dst_smem[0][0][0] + in_tile * D;
        if (WHOLE)
            cp_async_bulk_tensor_5d_cache_hint(dst, map, full, 0, 0, column, first / 8, 0, policy);
        else
            cp_async_bulk_tensor_5d_cache_hint(dst, map, full, 0, RAGGED - keys, column, first + keys, RAGGED,
                                               policy);
    }
    if (lane == 0) mbarrier_arrive_expect_tx(full, sizeof dst_smem);
}

// The first tile of a work comes into the L2 while the kernel before still runs: but for their last rows, a cache's K and V were there
// before it began. Rows that it has yet to write are no harm: it writes into the L2 as well. More tiles than one delay what combine_kernel
// reads, and are not there sooner: from the L2 an SM is not served much faster than from memory.
template <class C>
static __device__ void prefetch_tile(const CUtensorMap &K_map, const CUtensorMap &V_map, const Work &work)
{
    const int end = work.k_begin + work.k_len, first = work.k_begin + work.tile * C::KV;
    cp_async_bulk_prefetch_tensor_5d(K_map, 0, RAGGED + first - end, work.kv_head * (C::D / 64), end, RAGGED);
    cp_async_bulk_prefetch_tensor_5d(V_map, 0, RAGGED + first - end, work.kv_head * (C::DV / 64), end,
                                     RAGGED);
}

// The tiles of a work: what no other block reads is the first to leave the L2. The warp that has `wanted` asks for the next work at the tile
// that LOOK_AHEAD others follow, or at the first.
template <typename T, int D, int KV, bool WHOLE, int STAGES>
static __device__ void load_tiles(T (&dst_smem)[STAGES][D / 64][KV][64], const CUtensorMap &map,
                                  uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES],
                                  PipelineState<STAGES> &state, const attention_variant &v, const Plan &plan,
                                  const Work &work, uint64_t *wanted, int lane)
{
    const int end = work.tile_end, asks = max(work.tile, end - 1 - LOOK_AHEAD);
    const uint64_t policy = plan.read_once ? createpolicy_evict_first() : createpolicy_evict_normal();
    if (v.page_table) {
#pragma unroll 1 // and below: the producer has few registers, and each loop has its own
        for (int kv = work.tile; kv < end; kv++) {
            if (lane == 0 && wanted && kv == asks) mbarrier_arrive(wanted);
            load_pages<T, D, KV, WHOLE>(dst_smem[state.stage], map, &full[state.stage], &empty[state.stage],
                                        state.parity, v, plan, work, kv, policy, lane);
            state.advance();
        }
    } else {
#pragma unroll 1
        for (int kv = work.tile; kv < end; kv++) {
            if (lane == 0 && wanted && kv == asks) mbarrier_arrive(wanted);
            load_tile<T, D, KV>(dst_smem[state.stage], map, &full[state.stage], &empty[state.stage],
                                state.parity, work, kv, policy, lane);
            state.advance();
        }
    }
}

// The same by cp.async, for pages that no box fits: each of GATHER_WARPS warps copies four rows at a time. Returns
// without waiting; finish_copies does.
template <typename T, int D, int KV>
static __device__ void gather_tile(T (&dst_smem)[D / 64][KV][64], const void *src, uint64_t *empty,
                                   uint32_t parity, const attention_variant &v, const Work &work, int kv,
                                   int tid)
{
    const int chunk = tid % 8;
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    for (int in_tile = tid / 8; in_tile < KV; in_tile += GATHER_WARPS * 4) {
        const int key = kv * KV + in_tile;
        const bool inside = key < work.k_len;
        const int row = inside ? key_row(v, work, key) : 0;
        const T *row_src = (const T *)src + ((size_t)row * v.kv_heads + work.kv_head) * D + chunk * 8;
#pragma unroll
        for (int col = 0; col < D / 64; col++)
            cp_async_cg_16(smem_addr(dst_smem[col]) + swizzle(in_tile * 128 + chunk * 16, 3),
                           row_src + col * 64, inside ? 16 : 0);
    }
    cp_async_commit_group();
}

// This thread's copies but the latest PENDING have landed: wgmma may read the K and V that they brought, who waits learns.
template <int PENDING>
static __device__ void finish_copies(uint64_t *K_full, uint64_t *V_full)
{
    trace(WAIT_FULL);
    cp_async_wait_group<PENDING>();
    trace(LOAD);
    fence_proxy_async(); // cp.async writes as ordinary stores do, wgmma reads by the asynchronous proxy
    mbarrier_arrive(K_full);
    mbarrier_arrive(V_full);
}

// The work of a round, once it has been found.
template <typename T, class C>
static __device__ const Work &wait_for_work(SharedStorage<T, C> &smem, unsigned round)
{
    trace(WAIT_TURN); // the finder's
    mbarrier_wait(&smem.work_found[round % WORKS], round / WORKS % 2);
    return smem.work[round % WORKS];
}

// One thread fills the queries' places, each as soon as it is empty, or says that there is no more work.
template <typename T, class C>
static __device__ void load_queries(SharedStorage<T, C> &smem, const CUtensorMap &Q_map, const Plan &plan,
                                    const Work &work, unsigned round)
{
    const int queries = consumer_queries(plan), place = round % C::Q_PLACES;
#pragma unroll 1
    for (int consumer = 0; consumer < C::CONSUMERS; consumer++) {
        uint64_t *full = &smem.Q_full[place][consumer]; // Its arrival hands the work on, too.
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.Q_empty[place][consumer], round / C::Q_PLACES % 2 ^ 1);
        trace(LOAD);
        if (work.sequence < 0) {
            mbarrier_arrive(full);
            continue;
        }
        const int end = work.q_begin + work.q_len;
        const int first = min(work.q_begin + work.query + consumer * queries, end);
        mbarrier_arrive_expect_tx(full, queries * plan.pack * C::D * sizeof(T));
        griddepcontrol_wait(); // as load_tile
#pragma unroll 1
        for (int col = 0; col < C::D / 64; col++)
            cp_async_bulk_tensor_5d(smem.Q_smem[place][consumer][col], Q_map, full, col * 64, work.head,
                                    RAGGED + first - end, end, RAGGED);
    }
}

// Q, K and V have a warp of the producer each: none waits for a place of another's.
template <typename T, class C>
static __device__ void load_Q(SharedStorage<T, C> &smem, const CUtensorMap &Q_map, const Plan &plan, int lane)
{
    if (lane > 0) return;
    for (unsigned round = 0;; round++) {
        const Work &work = wait_for_work(smem, round);
        load_queries<T, C>(smem, Q_map, plan, work, round);
        if (work.sequence < 0) return;
        mbarrier_arrive(&smem.work_wanted);
    }
}

template <typename T, class C>
static __device__ void load_K(SharedStorage<T, C> &smem, const CUtensorMap &K_map, const attention_variant &v,
                              const Plan &plan, int lane)
{
    PipelineState<C::STAGES> state;
    for (unsigned round = 0;; round++) {
        const Work &work = wait_for_work(smem, round);
        if (work.sequence < 0) return;
        load_tiles<T, C::D, C::KV, true>(smem.K_smem, K_map, smem.K_full, smem.K_empty, state, v, plan, work,
                                         &smem.work_wanted, lane);
    }
}

template <typename T, class C>
static __device__ void load_V(SharedStorage<T, C> &smem, const CUtensorMap &V_map, const attention_variant &v,
                              const Plan &plan, int lane)
{
    PipelineState<C::STAGES> state;
    for (unsigned round = 0;; round++) {
        const Work &work = wait_for_work(smem, round);
        if (work.sequence < 0) return;
        load_tiles<T, C::DV, C::KV, false>(smem.V_smem, V_map, smem.V_full, smem.V_empty, state, v, plan,
                                           work, nullptr, lane);
    }
}

// The same where pages are gathered, by GATHER_WARPS warps together. tid is the thread's number among them.
template <typename T, class C>
static __device__ void gather_work(SharedStorage<T, C> &smem, const CUtensorMap &Q_map,
                                   const attention_variant &v, const Plan &plan, int tid)
{
    PipelineState<C::STAGES> state;
    for (unsigned round = 0;; round++) {
        const Work &work = wait_for_work(smem, round);
        if (tid == 0) load_queries<T, C>(smem, Q_map, plan, work, round);
        if (work.sequence < 0) return;
        const int begin = work.tile, end = work.tile_end;
        for (int kv = begin; kv < end; kv++) {
            const int stage = state.stage, before = (stage + C::STAGES - 1) % C::STAGES;
            if (tid == 0 && kv == end - 1) mbarrier_arrive(&smem.work_wanted);
            gather_tile<T, C::D, C::KV>(smem.K_smem[stage], v.K, &smem.K_empty[stage], state.parity, v, work,
                                        kv, tid);
            // The tile before, now: its K is what a consumer wants before it gives back the V whose place is next.
            if (kv > begin) finish_copies<1>(&smem.K_full[before], &smem.V_full[before]);
            gather_tile<T, C::DV, C::KV>(smem.V_smem[stage], v.V, &smem.V_empty[stage], state.parity, v, work,
                                         kv, tid);
            if (kv == end - 1) finish_copies<0>(&smem.K_full[stage], &smem.V_full[stage]);
            state.advance();
        }
    }
}

// --- The products -----------------------------------------------------------------------------------------------------------

// A descriptor of what begins so much further: no carry leaves its lower half.
static __device__ uint64_t further(uint64_t desc, int distance)
{
    return (desc >> 32 << 32) | (uint32_t)((uint32_t)desc + distance);
}

// S = Q Kᵀ, 64 rows and a tile of keys. A descriptor counts in units of 16 bytes; 16 columns are 32 bytes.
template <typename T, class C>
static __device__ void multiply_QK(float (&S)[C::KV / 2], const T (*Q_smem)[WG_Q][64],
                                   const T (*K_smem)[C::KV][64], const Plan &plan)
{
    const uint64_t Q_desc = wgmma_descriptor(Q_smem),
                   K_desc = wgmma_descriptor(K_smem) + ((uint64_t)plan.K_eights << 32);
#pragma unroll
    for (int k = 0; k < C::D / MMA_K; k++)
        wgmma<C::KV, T>(S, Q_desc + (k / 4 * sizeof Q_smem[0] + k % 4 * 32) / 16,
                        further(K_desc, k / 4 * plan.K_columns + k % 4 * 2), k > 0);
}

// O += P V, 16 keys at a time.
template <typename T, class C>
static __device__ void multiply_PV(float (&O)[C::DV / 2], const uint32_t (&P)[C::KV / MMA_K][4],
                                   const T (*V_smem)[C::KV][64], const Plan &plan)
{
    const uint64_t V_desc =
        wgmma_descriptor_mn(V_smem, plan.V_columns * 16) + ((uint64_t)plan.V_eights << 32);
#pragma unroll
    for (int k = 0; k < C::KV / MMA_K; k++)
        wgmma_rs<C::DV, T>(O, P[k], further(V_desc, plan.V_keys[k]), true);
}

// --- The softmax ------------------------------------------------------------------------------------------------------------

// S becomes cap tanh(S / cap), cap = plan.cap in the units of S. tanh(x) = 1 - 2 / (1 + e^(2x)): two units in the last place of 1,
// where tanh.approx is off by 2^-11.
template <int KV>
static __device__ void cap_scores(float (&S)[KV / 2], const Plan &plan)
{
#pragma unroll
    for (int i = 0; i < KV / 2; i++)
        S[i] = plan.cap - 2 * plan.cap * rcp_approx_ftz(1 + ex2_approx_ftz(S[i] * plan.cap_log2));
}

// The keys [keys_from, keys_until) that query `query` of the sequence sees; those past the end see what the last one does.
static __device__ int keys_from(const attention_variant &v, const Work &work, int query)
{
    return max(min(query, work.q_len - 1) + work.shift - v.left, 0);
}
static __device__ int keys_until(const attention_variant &v, const Work &work, int query)
{
    return min(min(query, work.q_len - 1) + work.shift + v.right + 1, work.seen);
}

// Takes away the scores of keys that a row does not see: first_key is the tile's, first_query the consumer's, row the thread's.
template <int KV>
static __device__ void mask_tile(float (&S)[KV / 2], const attention_variant &v, const Plan &plan,
                                 const Work &work, int first_key, int first_query, int row, int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
        const int query = first_query + row_query(plan, row + half * 8);
        const int first = first_key + lane % 4 * 2; // the thread's first column
        const int from = keys_from(v, work, query) - first, until = keys_until(v, work, query) - first;
#pragma unroll
        for (int i = 0; i < KV / 2; i += 4) {
            if (i * 2 < from || i * 2 >= until) S[i + half * 2] = -INFINITY;
            if (i * 2 + 1 < from || i * 2 + 1 >= until) S[i + half * 2 + 1] = -INFINITY;
        }
    }
}

// The state of a thread's two rows. m is in units of S, and the same in the four lanes of a row; l is this lane's part. m
// starts at -FLT_MAX, not -inf: a row that sees no key then has P = 2^-inf = 0 rather than 2^(-inf + inf).
struct Rows {
    float m[2] = {-FLT_MAX, -FLT_MAX};
    float l[2] = {0, 0};
    float rescale[2]; // what O must be multiplied with for the last m
};

// The largest score of each row that this lane has, and m.
template <int KV>
static __device__ void lane_maximum(float (&maximum)[2], const float (&S)[KV / 2], const float (&m)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        maximum[half] = m[half];
#pragma unroll
        for (int i = half * 2; i < KV / 2; i += 4)
            maximum[half] = fmaxf(maximum[half], fmaxf(S[i], S[i + 1]));
    }
}

// m becomes the largest of the quad's maxima; l follows.
static __device__ void raise_maximum(Rows &rows, const float (&maximum)[2], float c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = maximum[half];
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1)); // the quad has the row
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
        rows.rescale[half] = ex2_approx_ftz((rows.m[half] - m) * c);
        rows.l[half] *= rows.rescale[half];
        rows.m[half] = m;
    }
}

// P = 2^((S - m) c), rounded, and its sums before that; c is scale log2(e).
template <typename T, int KV>
static __device__ void exponentials(const float (&S)[KV / 2], uint32_t (&P)[KV / MMA_K][4],
                                    const float (&m)[2], float (&sum)[2], float c)
{
    float part[2][2] = {}; // two chains of additions a row
#pragma unroll
    for (int i = 0; i < KV / 2; i += 2) {
        const int half = i / 2 % 2;
        const float x = ex2_approx_ftz(S[i] * c - m[half] * c),
                    y = ex2_approx_ftz(S[i + 1] * c - m[half] * c);
        part[half][0] += x;
        part[half][1] += y;
        P[i / 8][i / 2 % 4] = pack_pair<T>(x, y);
    }
    sum[0] = part[0][0] + part[0][1];
    sum[1] = part[1][0] + part[1][1];
}

// Whether any P of the warp's is above 2^RESCALE_LOG2.
template <typename T, int KV>
static __device__ bool any_above(const uint32_t (&P)[KV / MMA_K][4])
{
    using T2 = typename std::conditional<std::is_same<T, __half>::value, __half2, __nv_bfloat162>::type;
    const T2 *pairs = reinterpret_cast<const T2 *>(P);
    T2 top[2] = {pairs[0], pairs[1]}; // two chains
#pragma unroll
    for (int i = 2; i < KV / 4; i++) top[i % 2] = __hmax2(top[i % 2], pairs[i]);
    const float2 most = to_float2(__hmax2(top[0], top[1]));
    return __any_sync(0xffffffff, fmaxf(most.x, most.y) > (1 << (int)RESCALE_LOG2));
}

// The online softmax of a tile; first: nothing is known of m yet. Returns whether O must be multiplied with rows.rescale.
template <typename T, int KV>
static __device__ bool softmax_tile(const float (&S)[KV / 2], uint32_t (&P)[KV / MMA_K][4], Rows &rows,
                                    float c, bool first)
{
    float maximum[2], sum[2];
    if (!first) exponentials<T, KV>(S, P, rows.m, sum, c);
    const bool grown = first || any_above<T, KV>(P);
    if (grown) {
        lane_maximum<KV>(maximum, S, rows.m);
        raise_maximum(rows, maximum, c);
        exponentials<T, KV>(S, P, rows.m, sum, c);
    }
    rows.l[0] += sum[0];
    rows.l[1] += sum[1];
    return grown;
}

template <int DV>
static __device__ void rescale_rows(float (&O)[DV / 2], const Rows &rows)
{
#pragma unroll
    for (int i = 0; i < DV / 2; i++) O[i] *= rows.rescale[i / 2 % 2];
}

// --- The end of a tile --------------------------------------------------------------------------------------------------------

// Where LSE of a consumer's row is, among v.LSE, or, where a tile may have several parts, that of this one among plan.LSE_parts; -1 for a row that
// is no query's. first_query is the consumer's.
static __device__ int64_t LSE_place(const attention_variant &v, const Plan &plan, const Work &work,
                                    int first_query, int row)
{
    const int query = first_query + row_query(plan, row), head = row_head(plan, work, row);
    if (query >= work.q_len || row >= consumer_queries(plan) * plan.pack) return -1;
    if (plan.parts > 1) return (((int64_t)work.q_begin + query) * v.heads + head) * plan.parts + work.part;
    return v.cu_q ? (int64_t)head * v.q_total + work.q_begin + query
                  : ((int64_t)work.sequence * v.heads + head) * v.q_len + query;
}

// Adds up l over a row's lanes and the sink, and writes LSE at `place`; rows.rescale becomes 1 / l, for O. O itself is not needed: its last
// product is still under way. row is the thread's first in the consumer.
template <class C>
static __device__ void finish_sums(Rows &rows, const attention_variant &v, const Plan &plan, const Work &work,
                                   const int64_t (&place)[2], int row, int lane)
{
    float LSE[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float l = rows.l[half], m = rows.m[half] * rsqrtf(C::D), weight = 1;
        l += __shfl_xor_sync(0xffffffff, l, 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        if (v.sinks && work.part == 0) { // a score of each row like any other, without a value
            const float sink = v.sinks[row_head(plan, work, row + half * 8)], top = fmaxf(m, sink);
            weight = __expf(m - top);
            l = l * weight + __expf(sink - top);
            m = top;
        }
        LSE[half] = l > 0 ? m + __logf(l) : -INFINITY;
        rows.rescale[half] = l > 0 ? weight * rcp_approx_ftz(l) : 0;
    }
    if (lane % 4 > 0) return;
    float *dst = plan.parts > 1 ? plan.LSE_parts : v.LSE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (place[half] < 0) continue;
        dst[place[half]] = LSE[half];
        if (work.part > 0) continue;
#pragma unroll 1 // Other tiles have more parts: here they weigh nothing.
        for (int i = work.parts; i < plan.parts; i++) dst[place[half] + i] = -INFINITY;
    }
}

// Writes the rows of O of a part, in fp32: combine_parts makes one of them.
template <int DV>
static __device__ void store_part(float *O_parts, const int64_t (&place)[2], const float (&O)[DV / 2],
                                  int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (place[half] < 0) continue;
        float *dst = O_parts + place[half] * DV + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < DV / 2; i += 4) store_pair(dst + i * 2, O[i + half * 2], O[i + half * 2 + 1]);
    }
}

// Writes a consumer's rows of O by way of O_smem. tid is the thread's number in its warpgroup.
template <typename T, class C>
static __device__ void store_rows(T (&O_smem)[C::O_BOXES][WG_Q][64], const CUtensorMap &O_map,
                                  const float (&O)[C::DV / 2], const Plan &plan, const Work &work,
                                  int first_query, int consumer, int tid)
{
    const int end = work.q_begin + work.q_len, first = work.q_begin + first_query;
#pragma unroll
    for (int box = 0; box < C::DV / 64; box += C::O_BOXES) {
        if (tid == 0) cp_async_bulk_wait_group_read<0>();
        named_barrier_sync(STORE + consumer, 128); // What was stored from here before has left.
#pragma unroll
        for (int i = 0; i < C::O_BOXES * 32; i += 8) { // 16 columns: two times four accumulators
            const float *o = &O[box * 32 + i];
            // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
            const uint32_t pairs[4] = {pack_pair<T>(o[0], o[1]), pack_pair<T>(o[2], o[3]),
                                       pack_pair<T>(o[4], o[5]), pack_pair<T>(o[6], o[7])};
            const uint32_t offset = (tid / 32 * 16 + tid % 16) * 128 + (i % 32 / 4 + tid % 32 / 16) * 16;
            stmatrix_x4(smem_addr(O_smem[i / 32]) + swizzle(offset, 3), pairs);
        }
        fence_proxy_async();                       // What this thread wrote is there for TMA,
        named_barrier_sync(STORE + consumer, 128); // and what the others wrote.
        if (tid == 0) {
            for (int i = 0; i < C::O_BOXES && first < end; i++)
                cp_async_bulk_tensor_5d_store(O_map, O_smem[i], (box + i) * 64, work.head,
                                              RAGGED + first - end, end, RAGGED);
            cp_async_bulk_commit_group();
        }
    }
}

// --- The consumers ------------------------------------------------------------------------------------------------------------

// A consumer: tile after tile, 64 rows against the keys of the part. One thread gives a stage back for its warpgroup.
template <typename T, class C>
static __device__ void consume(SharedStorage<T, C> &smem, const CUtensorMap &O_map,
                               const attention_variant &v, const Plan &plan, int consumer)
{
    constexpr int KV = C::KV;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const int row = tid / 32 * 16 + lane / 4;   // and row + 8
    const float c = rsqrtf(C::D) * 1.44269504f; // log2(e)
    PipelineState<C::STAGES> K_state, V_state;
    const int next_consumer = (consumer + 1) % C::CONSUMERS;
    const auto take_turn = [&] {
        trace(WAIT_TURN);
        if (C::CONSUMERS > 1) named_barrier_sync(TURN + consumer, 256);
    };
    const auto give_turn = [&] {
        if (C::CONSUMERS > 1) named_barrier_arrive(TURN + next_consumer, 256);
    };
    const auto give_K_back = [&] {
        if (tid == 0) mbarrier_arrive(&smem.K_empty[K_state.stage]);
        K_state.advance();
    };
    const auto give_V_back = [&] {
        if (tid == 0) mbarrier_arrive(&smem.V_empty[V_state.stage]);
        V_state.advance();
    };

    if (next_consumer == 0) give_turn(); // Consumer 0 begins.
    unsigned round = 0;
    while (true) {
        const int place = round % C::Q_PLACES;
        trace(WAIT_FULL);
        mbarrier_wait(&smem.Q_full[place][consumer], round / C::Q_PLACES % 2);
        const Work &work = smem.work[round % WORKS];
        if (work.sequence < 0) break;
        const int queries = consumer_queries(plan), first_query = work.query + consumer * queries;
        // Tiles that some row sees, at least one, and among them those that every row sees whole.
        const int begin = work.tile, last_until = keys_until(v, work, first_query + queries - 1);
        const int end = max(min((last_until + KV - 1) / KV, work.tile_end), begin + 1);
        const int whole_begin = (keys_from(v, work, first_query + queries - 1) + KV - 1) / KV;
        const int whole_end = keys_until(v, work, first_query) / KV;
        float S[KV / 2], O[C::DV / 2] = {};
        uint32_t P[2][KV / MMA_K][4];
        Rows rows;
        const int64_t LSE_places[2] = {LSE_place(v, plan, work, first_query, row),
                                       LSE_place(v, plan, work, first_query, row + 8)};

        // What follows the products S of a tile: K is given back, and the tile masked where it crosses an edge.
        const auto receive_S = [&](int kv) {
            trace(SOFTMAX);
            wgmma_touch(S);
            give_K_back();
            if (kv + 1 == end) {
                __syncwarp(); // Every lane has read the work before.
                if (lane == 0) mbarrier_arrive(&smem.Q_empty[place][consumer]);
            }
            if (C::SOFTCAP) cap_scores<KV>(S, plan);
            if (kv < whole_begin || kv >= whole_end)
                mask_tile<KV>(S, v, plan, work, kv * KV, first_query, row, lane);
        };
        const auto multiply_S = [&](int kv) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            take_turn();
            wgmma_touch(S);
            wgmma_fence();
            multiply_QK<T, C>(S, smem.Q_smem[place][consumer], smem.K_smem[K_state.stage], plan);
            wgmma_commit_group();
            give_turn();
            wgmma_wait_group<0>();
            receive_S(kv);
        };
        // The last product; what follows it begins meanwhile.
        const auto multiply_O = [&](const uint32_t(&P_tile)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            wgmma_touch(O);
            wgmma_fence();
            multiply_PV<T, C>(O, P_tile, smem.V_smem[V_state.stage], plan);
            wgmma_commit_group();
            finish_sums<C>(rows, v, plan, work, LSE_places, row, lane);
            wgmma_wait_group<0>();
            wgmma_touch(O);
            give_V_back();
        };

        // S of tile kv and P V of the tile before are in flight together; the softmax begins when S is there.
        const auto multiply_both = [&](int kv, const uint32_t(&P_old)[KV / MMA_K][4],
                                       uint32_t(&P_new)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            take_turn();
            wgmma_touch(S);
            wgmma_touch(O);
            wgmma_fence();
            multiply_QK<T, C>(S, smem.Q_smem[place][consumer], smem.K_smem[K_state.stage], plan);
            wgmma_commit_group();
            multiply_PV<T, C>(O, P_old, smem.V_smem[V_state.stage], plan);
            wgmma_commit_group();
            give_turn();
            wgmma_wait_group<1>();
            receive_S(kv);
            const bool grown = softmax_tile<T, KV>(S, P_new, rows, c, false);
            trace(MULTIPLY);
            wgmma_wait_group<0>();
            wgmma_touch(O);
            wgmma_touch(P_old); // wgmma has read it.
            give_V_back();
            if (grown) rescale_rows<C::DV>(O, rows);
        };
        // P V of the tile before and S of tile kv, one behind the other.
        const auto multiply_next = [&](int kv, const uint32_t(&P_old)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            take_turn();
            wgmma_touch(S);
            wgmma_touch(O);
            wgmma_fence();
            multiply_PV<T, C>(O, P_old, smem.V_smem[V_state.stage], plan);
            multiply_QK<T, C>(S, smem.Q_smem[place][consumer], smem.K_smem[K_state.stage], plan);
            wgmma_commit_group();
            give_turn();
            wgmma_wait_group<0>();
            wgmma_touch(O);
            give_V_back();
            receive_S(kv);
        };

        multiply_S(begin);
        if constexpr (C::OVERLAP) {
            int kv = begin + 1;
            if ((end - begin) % 2 == 0) {
                softmax_tile<T, KV>(S, P[1], rows, c, true);
                multiply_both(kv++, P[1], P[0]);
            } else {
                softmax_tile<T, KV>(S, P[0], rows, c, true);
            }
            for (; kv < end; kv += 2) {
                multiply_both(kv, P[0], P[1]);
                multiply_both(kv + 1, P[1], P[0]);
            }
        } else {
            softmax_tile<T, KV>(S, P[0], rows, c, true);
            for (int kv = begin + 1; kv < end; kv++) {
                multiply_next(kv, P[0]);
                if (softmax_tile<T, KV>(S, P[0], rows, c, false)) rescale_rows<C::DV>(O, rows);
            }
        }
        multiply_O(P[0]);

        for (int kv = end; kv < work.tile_end; kv++) { // keys that only the later consumers see
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            take_turn();
            give_turn();
            give_K_back();
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            give_V_back();
        }

        trace(STORE);
        rescale_rows<C::DV>(O, rows);
        if (plan.parts > 1)
            store_part<C::DV>(plan.O_parts, LSE_places, O, lane);
        else
            store_rows<T, C>(smem.O_smem[consumer], O_map, O, plan, work, first_query, consumer, tid);
        round = work.round + 1; // read, that it need not be kept in a register meanwhile
    }
    if (consumer == 0) take_turn();                   // The last turn is nobody's.
    if (tid == 0) cp_async_bulk_wait_group_read<0>(); // O_smem must outlive its reader.
}

template <typename T, class C>
__global__ void __launch_bounds__(C::MAX_THREADS, 1) attention_kernel(
    const __grid_constant__ CUtensorMap Q_map, // boxes of consumer_queries rows of `pack` heads
    const __grid_constant__ CUtensorMap K_map, // boxes of plan.box rows, all columns of a head
    const __grid_constant__ CUtensorMap V_map, // the same
    const __grid_constant__ CUtensorMap O_map, // as Q_map
    const __grid_constant__ attention_variant v, const __grid_constant__ Plan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, C> &smem = *reinterpret_cast<SharedStorage<T, C> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        const bool gather = C::GATHER && plan.box == 0;
        const int arrivals = gather ? GATHER_WARPS * 32 : 1; // every thread's, or one and the bytes expected
        for (int place = 0; place < C::Q_PLACES; place++)
            for (int consumer = 0; consumer < C::CONSUMERS; consumer++) {
                mbarrier_init(&smem.Q_full[place][consumer], 1);
                mbarrier_init(&smem.Q_empty[place][consumer], 4); // its warps
            }
        mbarrier_init(&smem.work_wanted, gather ? 1 : 2); // by who loads Q, and who loads K
        for (int i = 0; i < WORKS; i++) mbarrier_init(&smem.work_found[i], 1);
        for (int stage = 0; stage < C::STAGES; stage++) {
            mbarrier_init(&smem.K_full[stage], arrivals);
            mbarrier_init(&smem.V_full[stage], arrivals);
            mbarrier_init(&smem.K_empty[stage], C::CONSUMERS);
            mbarrier_init(&smem.V_empty[stage], C::CONSUMERS);
        }
        fence_mbarrier_init();
    }
    if (WG_Q % plan.pack) { // rows that belong to no query: no copy will write them
        for (int i = threadIdx.x; i < C::Q_BYTES / 16; i += C::THREADS)
            reinterpret_cast<uint4 *>(smem.Q_smem)[i] = make_uint4(0, 0, 0, 0);
        fence_proxy_async();
    }
    __syncthreads();
    // Where memory says which work there is, the kernel before could be writing that, as it could a page table.
    const bool finder = threadIdx.x / 32 == GATHER_WARPS, known = !v.cu_q && !v.used_k;
    const int lane = threadIdx.x % 32;
    bool found = false;
    if (finder && known) {
        found = find_first_work<T, C>(smem, v, plan, lane);
        if (C::CONSUMERS == 1 && !v.page_table) {
            __syncwarp();
            if (lane == 0) prefetch_tile<C>(K_map, V_map, smem.work[0]);
        }
    }
    // Behind this kernel combine_kernel may come, which waits as well. A warp that loads waits only ahead of its copies, unless it has to read
    // a page table before: its way there takes some 0.5 us (instructions have to come for the first time, it seems), and is behind it then.
    griddepcontrol_launch_dependents();
    const bool loads = threadIdx.x < GATHER_WARPS * 32 && !v.page_table;
    if (!loads) griddepcontrol_wait();
    if (finder && !known) found = find_first_work<T, C>(smem, v, plan, lane);

    if (threadIdx.x < 128) {
        setmaxnreg_dec<C::PRODUCER_REGS>();
        const int warp = threadIdx.x / 32;
        if (finder)
            find_work<T, C>(smem, v, plan, found, lane);
        else if (C::GATHER && plan.box == 0)
            gather_work<T, C>(smem, Q_map, v, plan, threadIdx.x);
        else if (warp == 0)
            load_K<T, C>(smem, K_map, v, plan, lane);
        else if (warp == 1)
            load_V<T, C>(smem, V_map, v, plan, lane);
        else
            load_Q<T, C>(smem, Q_map, plan, lane);
    } else {
        setmaxnreg_inc<C::CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = C::CONSUMERS > 1 ? __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1 : 0;
        consume<T, C>(smem, O_map, v, plan, consumer);
    }
    trace(END);
}

// key / page_size = key * page_inverse / 2^(32 + page_shift) for keys below 2^30: with 2^L at least page_size, and
// page_inverse the next whole number from 2^(30 + L) / page_size on, the product is too large by less than 1 / page_size.
static void find_page_inverse(int page_size, Plan &plan)
{
    int L = 3; // a page that a box fits has 8 keys at least
    while (1 << L < page_size) L++;
    plan.page_shift = L - 2;
    plan.page_inverse = (unsigned)((((uint64_t)1 << (30 + L)) + page_size - 1) / page_size);
}

// How tiles of K and V lie in shared memory, without pages or as load_pages brings them.
template <class C>
static void place_tiles(bool paged, Plan &plan)
{
    constexpr int ROW = 128 / 16; // 64 numbers
    static_assert(C::KV / MMA_K <= sizeof plan.V_keys / sizeof plan.V_keys[0], "16 keys each");
    const int box = paged ? plan.box : C::KV;
    plan.K_columns = (paged ? 8 : C::KV) * ROW;
    plan.K_eights = paged ? (C::D / 64 - 1) * 8 * ROW : 0;
    plan.V_columns = box * ROW;
    plan.V_eights = box == 8 ? (C::DV / 64 - 1) * 8 * ROW : 0;
    for (int k = 0; k < C::KV; k += MMA_K) // All columns of the boxes before lie ahead.
        plan.V_keys[k / MMA_K] = (k / box * box * (C::DV / 64) + k % box) * ROW;
}

template <typename T, class C>
static cudaError_t launch_tile(const attention_variant &v, Plan plan, cudaStream_t stream)
{
    CUtensorMap Q_map, K_map, V_map, O_map;
    constexpr CUtensorMapDataType type = tensor_map_type<T>();
    constexpr int smem_bytes = sizeof(SharedStorage<T, C>);
    static_assert(smem_bytes <= SMEM_BYTES, "what a block may have");
    const int queries = WG_Q / plan.pack, box = plan.box ? plan.box : C::KV;
    plan.kv_sharers = v.heads / v.kv_heads;
    const bool paged = v.page_table && plan.box;
    if (paged) find_page_inverse(v.page_size, plan);
    place_tiles<C>(paged, plan);
    plan.pack_inverse = 65536 / plan.pack + (65536 % plan.pack > 0);
    plan.cap = v.softcap * sqrtf(C::D);
    plan.cap_log2 = 2 * 1.44269504f / plan.cap; // 2 log2(e)
    // Packs whose K and V, each shared by some packs, stay in the L2 together.
    const int64_t fitting = (v.right + 1 < v.k_len ? CAUSAL_L2_BYTES : FULL_L2_BYTES) /
                            ((int64_t)v.k_len * (C::D + C::DV) * sizeof(T)) *
                            (v.heads / v.kv_heads / plan.pack);
    plan.packs_in_group = fitting < 1 ? 1 : fitting < plan.packs ? (unsigned)fitting : plan.packs;

    int device, sms;
    cudaError_t error =
        tensor_map_ragged_heads(&Q_map, type, v.Q, plan.q_rows, v.heads, C::D, queries, plan.pack);
    if (error == cudaSuccess)
        error = tensor_map_ragged_heads(&O_map, type, v.O, plan.q_rows, v.heads, C::DV, queries, plan.pack);
    if (error == cudaSuccess)
        error = paged ? tensor_map_eights(&K_map, type, v.K, plan.k_rows, v.kv_heads, C::D, box)
                      : tensor_map_ragged(&K_map, type, v.K, plan.k_rows, v.kv_heads, C::D, box, C::D);
    if (error == cudaSuccess)
        error = tensor_map_ragged(&V_map, type, v.V, plan.k_rows, v.kv_heads, C::DV, box, C::DV);
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(attention_kernel<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error != cudaSuccess) return error;
    return launch_early(attention_kernel<T, C>, plan.shares < sms ? plan.shares : sms, C::THREADS, smem_bytes,
                        stream, Q_map, K_map, V_map, O_map, v, plan);
}

// The table of what can be launched: pairs of head dimensions, each with one consumer or more, without and with softcap.
template <typename T>
static cudaError_t launch_type(const attention_variant &v, const Plan &plan, cudaStream_t stream)
{
    using launcher = cudaError_t(const attention_variant &, Plan, cudaStream_t);
    static const struct {
        int head_dim, v_head_dim;
        launcher *launch[2][2]; // [few][softcap]
    } TABLE[] = {
#define ROW(D, DV)                                                                           \
    {D,                                                                                      \
     DV,                                                                                     \
     {{launch_tile<T, Tile<D, DV, false, false>>, launch_tile<T, Tile<D, DV, false, true>>}, \
      {launch_tile<T, Tile<D, DV, true, false>>, launch_tile<T, Tile<D, DV, true, true>>}}},
        ATTENTION_HEAD_DIMS(ROW)
#undef ROW
    };
    for (const auto &row : TABLE)
        if (row.head_dim == v.head_dim && row.v_head_dim == v.v_head_dim)
            return row.launch[plan.few][v.softcap > 0](v, plan, stream);
    return cudaErrorInvalidValue;
}
