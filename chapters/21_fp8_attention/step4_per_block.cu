// Chapter 21, step 4: each 128 queries, and each 128 keys, have scales of their own.
//
// Question: a head's largest number sets the scale of all of it. One outlier, and everything else is rounded as small numbers
// are. Chapter 18 gives each 128 x 128 a scale. What does that cost here?
//
// A tile's keys are one group, a consumer's queries in another: c, which makes exponents of scores, is another number for each
// tile, and no instruction more. m, in powers of two, is common to all. And V's scale has a place since step 3, where parts are
// added:
//
//      step 3     O += part                     O scale_V / l at the end
//      step 4     O += scale_V[tile] part       O / l
//
// An addition becomes an FMA. Both scales are asked for before the tile's products, and used behind them.
//
// Grows from: step 3 (two_levels).
// New instructions: none. Registers: as step 3.
// Run: make chapter-21 OP=per_block STEP=per_block
#include <cfloat>
#include <climits>

#include "../../common/device/fp8.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/sm90_attention.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int WG_Q = 64;       // queries of a consumer, a warpgroup: the rows of a wgmma
constexpr int MMA_K = 32;      // k of a wgmma
constexpr int TRANSPOSERS = 3; // warps of the producer's
constexpr int TOP_LOG2 = 7;    // the largest P of a row, once m is known, is at most 2^TOP_LOG2
constexpr int AGAIN_AFTER = 3; // tiles of queries: then the block comes back to one in which a score was lost
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;
constexpr int CAUSAL_L2_BYTES = 16 << 20; // what K and V of a group of heads may take of the L2,
constexpr int FULL_L2_BYTES = 8 << 20;    // with a causal mask and without

enum NamedBarrier {
    STORE = 1, // + consumer: its threads, when it stores O
};

// The tiles of a block, by head dimension. A row of 128 bytes, the swizzle's width, has 128 columns; of 64 it is half empty.
template <int D>
struct Tile {
    static_assert(D <= 128, "registers for O and for a part of it");
    static constexpr int KV = 128;                        // keys in a stage
    static constexpr int CONSUMERS = D == 64 ? 3 : 2;     // warpgroups that multiply
    static constexpr int Q = CONSUMERS * WG_Q;            // queries
    static constexpr int THREADS = (1 + CONSUMERS) * 128; // warpgroup 0 is the producer's
    static constexpr int STAGES = 4;                      // of K, and of V transposed
    static constexpr int V_STAGES = 2;                    // of V: boxes
    static constexpr int COLS = D;                        // of a box of Q, K and V
    static constexpr int BOXES = 1;
    static constexpr int O_BOXES = D / 64; // of 64 columns of O
    static constexpr int PRODUCER_REGS = D == 64 ? 32 : 40;
    static constexpr int CONSUMER_REGS = D == 64 ? 160 : 232;
    static constexpr int LAUNCH_REGS =
        65536 / THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
    static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <= (1 + CONSUMERS) * LAUNCH_REGS,
                  "setmaxnreg moves registers of the block, it makes none");
    static_assert(KV == GROUP && GROUP % WG_Q == 0, "a tile has one scale, and so has a consumer");
    static constexpr int Q_BYTES = WG_Q * D, K_BYTES = KV * D, V_BYTES = KV * COLS; // what TMA counts
};

template <int D>
struct SharedStorage {
    uint8_t Q_smem[Tile<D>::CONSUMERS][Tile<D>::BOXES][WG_Q][128];     // (consumer, box, query, 128 of D)
    uint8_t K_smem[Tile<D>::STAGES][Tile<D>::BOXES][Tile<D>::KV][128]; // (stage, box, key, 128 of D)
    uint8_t V_smem[Tile<D>::V_STAGES][Tile<D>::KV][128];               // (stage, key, 128 of D)
    uint8_t Vt_smem[Tile<D>::STAGES][D][128];                          // (stage, D, key)
    __nv_bfloat16 O_smem[Tile<D>::CONSUMERS][Tile<D>::O_BOXES][WG_Q][64];
    int tile[AGAIN_AFTER + 1];      // the last tiles of queries; ~tile: again; none when there are no more
    int lost[AGAIN_AFTER + 1];      // whether a score of their queries was lost
    int V_there[Tile<D>::V_STAGES]; // whether the stage has keys; not when there are no more
    uint64_t Q_full[Tile<D>::CONSUMERS];                           // the queries have landed
    uint64_t Q_empty[Tile<D>::CONSUMERS];                          // the consumer's warps are done with them
    uint64_t K_full[Tile<D>::STAGES], V_full[Tile<D>::V_STAGES];   // the stage has landed
    uint64_t V_empty[Tile<D>::V_STAGES], Vt_full[Tile<D>::STAGES]; // it has been transposed
    uint64_t K_empty[Tile<D>::STAGES], Vt_empty[Tile<D>::STAGES];  // every consumer is done with it
};

// What a block works on: Tile<D>::Q queries of a head.
template <int D>
struct Work {
    int row, head, batch; // the first query

    // Group of heads by group of heads, in it the last queries first, of each head in turn.
    __device__ Work(const attention &a, int heads_in_group, int tile)
    {
        const int q_tiles = (a.q_len - 1) / Tile<D>::Q + 1;
        const int group = tile / (heads_in_group * q_tiles);
        const int in_group = tile % (heads_in_group * q_tiles);
        const int heads_here = min(heads_in_group, a.batch * a.heads - group * heads_in_group);
        row = (q_tiles - 1 - in_group / heads_here) * Tile<D>::Q;
        head = (group * heads_in_group + in_group % heads_here) % a.heads;
        batch = (group * heads_in_group + in_group % heads_here) / a.heads;
    }

    // Which head of K and V.
    __device__ int kv_head(const attention &a) const { return head / (a.heads / a.kv_heads); }

    // Tiles of keys that queries up to `last` see; at least one, that its sums become 0.
    static __device__ int tiles(const attention &a, int last)
    {
        return (max(keys_seen(a, last), 1) - 1) / Tile<D>::KV + 1;
    }
};

static __device__ unsigned next_tile; // beyond the first of each block

// The loader, one thread: takes tile after tile, and fills place after place, each as soon as it is empty. Nobody has used
// the places of the first round: a new barrier lets a wait for parity 1 pass.
//
// A tile in which a score was lost comes again, and nobody waits for that to be known: now that every consumer has the queries of
// tile n - 1, each has given back those of n - 2, and said before that what it lost of n - 3. So a block that found nothing to do
// AGAIN_AFTER times, one behind the other, is done.
template <int D>
static __device__ void load(SharedStorage<D> &smem, const CUtensorMap &Q_map, const CUtensorMap &K_map,
                            const CUtensorMap &V_map, const attention &a, int heads_in_group, int num_tiles)
{
    PipelineState<Tile<D>::STAGES> K_state;
    PipelineState<Tile<D>::V_STAGES> V_state;
    int next = blockIdx.x;
    for (int n = 0, idle = 0; idle < AGAIN_AFTER; n++) {
        const int slot = n % (AGAIN_AFTER + 1), before = (n + 1) % (AGAIN_AFTER + 1); // of n - AGAIN_AFTER
        const bool again = smem.lost[before];
        const int tile = again ? smem.tile[before] : next;
        smem.tile[slot] = again ? ~tile : tile; // The arrivals make it visible.
        smem.lost[slot] = 0;
        const Work<D> work(a, heads_in_group, min(tile, num_tiles - 1));
        for (int consumer = 0; consumer < Tile<D>::CONSUMERS; consumer++) {
            uint64_t *full = &smem.Q_full[consumer];
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.Q_empty[consumer], (n + 1) % 2);
            trace(LOAD);
            if (tile < num_tiles) {
                mbarrier_arrive_expect_tx(full, Tile<D>::Q_BYTES);
                cp_async_bulk_tensor_5d(smem.Q_smem[consumer], Q_map, full, 0, work.head,
                                        work.row + consumer * WG_Q, 0, work.batch);
            } else {
                mbarrier_arrive(full);
            }
        }
        idle = tile < num_tiles ? 0 : idle + 1;
        if (idle > 0) continue;

        const int kv_head = work.kv_head(a);
        const int kv_tiles = work.tiles(a, work.row + Tile<D>::Q - 1);
        for (int kv = 0; kv < kv_tiles; kv++) { // Past the last key there are zeros.
            uint64_t *K_full = &smem.K_full[K_state.stage];
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.K_empty[K_state.stage], K_state.parity ^ 1);
            trace(LOAD);
            mbarrier_arrive_expect_tx(K_full, Tile<D>::K_BYTES);
            cp_async_bulk_tensor_5d(smem.K_smem[K_state.stage], K_map, K_full, 0, kv_head, kv * Tile<D>::KV,
                                    0, work.batch);
            K_state.advance();
            for (int box = 0; box < Tile<D>::BOXES; box++) {
                uint64_t *V_full = &smem.V_full[V_state.stage];
                trace(WAIT_EMPTY);
                mbarrier_wait(&smem.V_empty[V_state.stage], V_state.parity ^ 1);
                trace(LOAD);
                smem.V_there[V_state.stage] = true;
                mbarrier_arrive_expect_tx(V_full, Tile<D>::V_BYTES);
                cp_async_bulk_tensor_5d(smem.V_smem[V_state.stage], V_map, V_full, 0, kv_head,
                                        kv * Tile<D>::KV, box, work.batch);
                V_state.advance();
            }
        }
        if (!again) next = gridDim.x + atomicInc(&next_tile, num_tiles - 1);
    }
    trace(WAIT_EMPTY);
    mbarrier_wait(&smem.V_empty[V_state.stage], V_state.parity ^ 1);
    smem.V_there[V_state.stage] = false;
    mbarrier_arrive(&smem.V_full[V_state.stage]);
}

// Transposes a box of V, as one of TRANSPOSERS warps: strip by strip of 16 columns, 32 keys at a time. Vt_smem begins with the box's
// first column. 32 keys on are 32 rows of V, and 32 bytes of Vt's rows: two bits of the swizzled address.
template <int D>
static __device__ void transpose_box(uint8_t (*Vt_smem)[128], const uint8_t (&V_smem)[Tile<D>::KV][128],
                                     int warp, int lane)
{
    constexpr int UNITS = Tile<D>::KV / 32;             // of 32 keys
    const uint32_t bytes = lane < 16 ? 0x6420 : 0x7531; // of the lower of two columns, or of the upper
    const int row = lane % 8 * 2 + (lane / 8 % 2 ^ lane / 4 % 2); // of Vt, of 16: where this lane's row goes
    const uint32_t V_addr = smem_addr(V_smem),
                   Vt_addr = smem_addr(Vt_smem) + swizzle(row * 128 + lane / 16 * 16, 3);
#pragma unroll 1 // Else the addresses of all strips take more registers than there are.
    for (int strip = warp; strip < Tile<D>::COLS / 16; strip += TRANSPOSERS) {
        uint32_t V_frag[UNITS][4]; // 8 keys each
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
            ldmatrix_x4_trans(V_frag[unit], V_addr + swizzle(lane * 128 + strip * 16, 3) + unit * 32 * 128);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const uint32_t *V = V_frag[unit];
            const uint32_t Vt_frag[4] = {
                // One column and the other of 16 keys, and of 16 keys.
                __byte_perm(V[0], V[1], bytes), __byte_perm(V[0], V[1], bytes ^ 0x1111),
                __byte_perm(V[2], V[3], bytes), __byte_perm(V[2], V[3], bytes ^ 0x1111)};
            stmatrix_x4((Vt_addr + strip * 16 * 128) ^ unit * 32, Vt_frag);
        }
    }
}

// A warp that transposes box after box, as they land. Stages and parities are in the box's number: a register, not four.
template <int D>
static __device__ void transpose(SharedStorage<D> &smem, int warp, int lane)
{
    constexpr int STAGES = Tile<D>::STAGES, V_STAGES = Tile<D>::V_STAGES, BOXES = Tile<D>::BOXES;
    for (uint32_t box = 0;; box++) {
        const uint32_t V_stage = box % V_STAGES, Vt_stage = box / BOXES % STAGES;
        trace(WAIT_FULL);
        mbarrier_wait(&smem.V_full[V_stage], box / V_STAGES % 2);
        if (!smem.V_there[V_stage]) return;
        trace(WAIT_EMPTY);
        if (box % BOXES == 0) mbarrier_wait(&smem.Vt_empty[Vt_stage], box / BOXES / STAGES % 2 ^ 1);
        trace(LOAD); // of Vt
        transpose_box<D>(&smem.Vt_smem[Vt_stage][box % BOXES * 128], smem.V_smem[V_stage], warp, lane);
        fence_proxy_async(); // What this thread wrote is there for wgmma,
        __syncwarp();        // and what the warp's others wrote.
        // Each lane for itself, as compute-sanitizer can follow it.
        mbarrier_arrive(&smem.V_empty[V_stage]);
        if (lane == 0 && box % BOXES == BOXES - 1) mbarrier_arrive(&smem.Vt_full[Vt_stage]);
    }
}

// S = Q Kᵀ, 64 queries and a tile of keys. A descriptor counts in units of 16 bytes; 32 columns are 32 bytes.
template <int D>
static __device__ void multiply_QK(float (&S)[Tile<D>::KV / 2], const uint8_t (*Q_smem)[WG_Q][128],
                                   const uint8_t (*K_smem)[Tile<D>::KV][128])
{
    const uint64_t Q_desc = wgmma_descriptor(Q_smem), K_desc = wgmma_descriptor(K_smem);
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
        wgmma_e4m3<Tile<D>::KV>(S, Q_desc + (k / 4 * sizeof Q_smem[0] + k % 4 * 32) / 16,
                                K_desc + (k / 4 * sizeof K_smem[0] + k % 4 * 32) / 16, k > 0);
}

// part = P V. 32 keys are 32 bytes of each of Vt's rows, in the order of P.
template <int D>
static __device__ void multiply_PV(float (&part)[D / 2], const uint32_t (&P)[Tile<D>::KV / MMA_K][4],
                                   const uint8_t (&Vt_smem)[D][128])
{
    const uint64_t V_desc = wgmma_descriptor(Vt_smem);
#pragma unroll
    for (int k = 0; k < Tile<D>::KV / MMA_K; k++) wgmma_rs_e4m3<D>(part, P[k], V_desc + k * 32 / 16, k > 0);
}

// Takes away the scores of keys that a row does not see: first_key is the tile's, row the thread's first.
template <int KV>
static __device__ void mask_tile(float (&S)[KV / 2], int first_key, int row, int lane, const attention &a)
{
#pragma unroll
    for (int half = 0; half < 2; half++) { // rows l / 4 and l / 4 + 8
        const int seen =
            keys_seen(a, row + half * 8) - first_key - lane % 4 * 2; // from the thread's first column on
#pragma unroll
        for (int i = 0; i < KV / 2; i += 4) {
            if (i * 2 >= seen) S[i + half * 2] = -INFINITY;
            if (i * 2 + 1 >= seen) S[i + half * 2 + 1] = -INFINITY;
        }
    }
}

// The state of a thread's two rows. P = 2^(c S - m), m is a whole number and the same in the four lanes of a row; l is this lane's
// part. m starts at -FLT_MAX, not -inf: a row that sees no key then has P = 2^-inf = 0 rather than 2^(-inf + inf).
struct Rows {
    float m[2] = {-FLT_MAX, -FLT_MAX};
    float l[2] = {0, 0};
    float rescale[2]; // what O must be multiplied with for the last m
};

static __device__ float quad_maximum(float top) // The quad has the row.
{
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
}

// m becomes what makes the largest P of each row at most 2^TOP_LOG2, if it is not that already; l follows.
template <int KV>
static __device__ void raise_maximum(Rows &rows, const float (&S)[KV / 2], float c)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY;
#pragma unroll
        for (int i = half * 2; i < KV / 2; i += 4) top = fmaxf(top, fmaxf(S[i], S[i + 1]));
        const float m = fmaxf(rows.m[half], ceilf(quad_maximum(top) * c) - TOP_LOG2);
        rows.rescale[half] = ex2_approx_ftz(rows.m[half] - m);
        rows.l[half] *= rows.rescale[half];
        rows.m[half] = m;
    }
}

// P = 2^(c S - m) in the place of S, and its sums; c is the scales' product, and log2(e).
template <int KV>
static __device__ void exponentials(float (&S)[KV / 2], const float (&m)[2], float (&sum)[2], float c)
{
    float part[2][2] = {}; // two chains of additions a row
#pragma unroll
    for (int i = 0; i < KV / 2; i++) {
        S[i] = ex2_approx_ftz(fmaf(S[i], c, -m[i / 2 % 2]));
        part[i / 2 % 2][i % 2] += S[i];
    }
    sum[0] = part[0][0] + part[0][1];
    sum[1] = part[1][0] + part[1][1];
}

// P in 8 bits. A word has the thread's four of a row and 16 keys: two columns, and two that are 8 further.
template <int KV>
static __device__ void round_tile(const float (&P)[KV / 2], uint32_t (&P_frag)[KV / MMA_K][4])
{
#pragma unroll
    for (int i = 0; i < KV / 8; i++) {
        const float *p = &P[i / 2 * 8 + i % 2 * 2];
        P_frag[i / 4][i % 4] = quantise_four<E4m3>(p[0], p[1], p[4], p[5]);
    }
}

// Whether any P of the warp's is 448, the byte 0x7e: it was that or more. 2 more make the byte's sign bit.
template <int KV>
static __device__ bool any_saturated(const uint32_t (&P_frag)[KV / MMA_K][4])
{
    uint32_t signs = 0;
#pragma unroll
    for (int i = 0; i < KV / 8; i++) signs |= P_frag[i / 4][i % 4] + 0x02020202;
    return __any_sync(0xffffffff, signs & 0x80808080);
}

// m rises until the largest P of each row is at most 2^TOP_LOG2; P, its sums and l follow, by powers of two: exactly.
template <int KV>
static __device__ void lower_tile(float (&P)[KV / 2], Rows &rows, float (&sum)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = 0;
#pragma unroll
        for (int i = half * 2; i < KV / 2; i += 4) top = fmaxf(top, fmaxf(P[i], P[i + 1]));
        top = quad_maximum(top);
        // Any bit of the fraction carries into the exponent: log2, rounded up.
        const int log2 = (int)((__float_as_uint(top) + 0x7fffff) >> 23) - 127;
        const float rise = max(log2 - TOP_LOG2, 0);
        rows.rescale[half] = ex2_approx_ftz(-rise);
        rows.l[half] *= rows.rescale[half];
        rows.m[half] += rise;
        sum[half] *= rows.rescale[half];
#pragma unroll
        for (int i = half * 2; i < KV / 2; i += 4) {
            P[i] *= rows.rescale[half];
            P[i + 1] *= rows.rescale[half];
        }
    }
}

template <int D>
static __device__ void rescale_rows(float (&O)[D / 2], const Rows &rows)
{
    trace(SOFTMAX);
#pragma unroll
    for (int i = 0; i < D / 2; i++) O[i] *= rows.rescale[i / 2 % 2];
}

// Adds up l over a row's lanes, writes LSE, and divides O by l. row is the thread's first.
template <int D>
static __device__ void finish_rows(float (&O)[D / 2], const Rows &rows, const attention &a,
                                   const Work<D> &work, int row, int lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float l = rows.l[half];
        l += __shfl_xor_sync(0xffffffff, l, 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        if (lane % 4 == 0 && row + half * 8 < a.q_len)
            a.LSE[((size_t)work.batch * a.heads + work.head) * a.q_len + row + half * 8] =
                l > 0 ? rows.m[half] * LN_2 + logf(l) : -INFINITY;
        const float inverse = l > 0 ? 1 / l : 0;
#pragma unroll
        for (int i = half * 2; i < D / 2; i += 4) {
            O[i] *= inverse;
            O[i + 1] *= inverse;
        }
    }
}

// Writes a consumer's rows of O by way of O_smem. tid is the thread's number in its warpgroup.
template <int D>
static __device__ void store_rows(__nv_bfloat16 (&O_smem)[Tile<D>::O_BOXES][WG_Q][64],
                                  const CUtensorMap &O_map, const float (&O)[D / 2], const Work<D> &work,
                                  int row, bool inside, int consumer, int tid)
{
#pragma unroll
    for (int box = 0; box < D / 64; box += Tile<D>::O_BOXES) {
        if (tid == 0) cp_async_bulk_wait_group_read<0>();
        named_barrier_sync(STORE + consumer, 128); // What was stored from here before has left.
#pragma unroll
        for (int i = 0; i < Tile<D>::O_BOXES * 32; i += 8) { // 16 columns: two times four accumulators
            const float *o = &O[box * 32 + i];
            // Matrices 0 to 3: rows 0-7 and 8-15 of the left 8 columns, then of the right ones.
            const uint32_t pairs[4] = {
                pack_pair<__nv_bfloat16>(o[0], o[1]), pack_pair<__nv_bfloat16>(o[2], o[3]),
                pack_pair<__nv_bfloat16>(o[4], o[5]), pack_pair<__nv_bfloat16>(o[6], o[7])};
            const uint32_t offset = (tid / 32 * 16 + tid % 16) * 128 + (i % 32 / 4 + tid % 32 / 16) * 16;
            stmatrix_x4(smem_addr(O_smem[i / 32]) + swizzle(offset, 3), pairs);
        }
        fence_proxy_async();                       // What this thread wrote is there for TMA,
        named_barrier_sync(STORE + consumer, 128); // and what the others wrote.
        if (tid == 0) {
            if (inside) cp_async_bulk_tensor_5d_store(O_map, O_smem, 0, work.head, row, box, work.batch);
            cp_async_bulk_commit_group();
        }
    }
}

// A consumer: tile after tile, 64 queries against every key that they see. One thread gives a stage back for its warpgroup.
template <int D>
static __device__ void consume(SharedStorage<D> &smem, const CUtensorMap &O_map, const fp8_attention &f,
                               int heads_in_group, int num_tiles, int consumer)
{
    constexpr int KV = Tile<D>::KV;
    const attention &a = f.a;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    PipelineState<Tile<D>::STAGES> K_state, Vt_state;
    for (int n = 0, idle = 0; idle < AGAIN_AFTER; n++) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.Q_full[consumer], n % 2);
        int tile = 0;
        if (lane == 0) tile = smem.tile[n % (AGAIN_AFTER + 1)]; // Who arrives at Q_empty has read it.
        tile = __shfl_sync(0xffffffff, tile, 0);
        idle = tile < num_tiles ? 0 : idle + 1;
        if (idle > 0) {
            if (lane == 0) mbarrier_arrive(&smem.Q_empty[consumer]);
            continue;
        }
        const bool again = tile < 0;
        if (again) {
            tile = ~tile;
            if (tid == 0)
                cp_async_bulk_wait_group<0>(); // What was stored the first time must not come later.
        }
        const Work<D> work(a, heads_in_group, tile);
        const int first_row = work.row + consumer * WG_Q;
        const int row = first_row + tid / 32 * 16 + lane / 4; // and row + 8
        const int full_keys = keys_seen(a, first_row);        // that every row sees
        const int kv_tiles = work.tiles(a, first_row + WG_Q - 1);
        const int block_tiles = work.tiles(a, work.row + Tile<D>::Q - 1);
        const int kv_groups = (a.k_len - 1) / GROUP + 1, kv_head = work.batch * a.kv_heads + work.kv_head(a);
        const float *scale_K = f.scale_K + (size_t)kv_head * kv_groups;
        const float *scale_V = f.scale_V + (size_t)kv_head * kv_groups;
        const int q_groups = (a.q_len - 1) / GROUP + 1, q_group = min(first_row / GROUP, q_groups - 1);
        const float c =
            f.scale_Q[((size_t)work.batch * a.heads + work.head) * q_groups + q_group] * rsqrtf(D) * LOG2_E;
        float S[KV / 2], O[D / 2] = {}, part[D / 2], sum[2];
        uint32_t P[KV / MMA_K][4]; // rounded; before that it is where S was
        Rows rows;

        // What follows the products S of a tile: K is given back, and the tile masked where it crosses an edge.
        const auto receive_S = [&](int kv) {
            trace(SOFTMAX);
            wgmma_touch(S);
            if (tid == 0) mbarrier_arrive(&smem.K_empty[K_state.stage]);
            K_state.advance();
            if (lane == 0 && kv == kv_tiles - 1) mbarrier_arrive(&smem.Q_empty[consumer]);
            if ((kv + 1) * KV > full_keys) mask_tile<KV>(S, kv * KV, row, lane, a);
        };
        const auto receive_part = [&](float scale) {
            wgmma_touch(part);
            wgmma_touch(P); // wgmma has read it.
            if (tid == 0) mbarrier_arrive(&smem.Vt_empty[Vt_state.stage]);
            Vt_state.advance();
#pragma unroll
            for (int i = 0; i < D / 2; i++) O[i] += scale * part[i];
        };
        const auto multiply_S = [&](int kv) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            wgmma_touch(S);
            wgmma_fence();
            multiply_QK<D>(S, smem.Q_smem[consumer], smem.K_smem[K_state.stage]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            receive_S(kv);
        };
        // S of tile kv and P V of the tile before are in flight together; the exponentials begin when S is there, and take its place,
        // for P has wgmma's operand until P V is there too.
        const auto multiply_both = [&](int kv, float tile_c, float scale_before) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            mbarrier_wait(&smem.Vt_full[Vt_state.stage], Vt_state.parity);
            wgmma_touch(S);
            wgmma_touch(part);
            wgmma_fence();
            multiply_QK<D>(S, smem.Q_smem[consumer], smem.K_smem[K_state.stage]);
            wgmma_commit_group();
            multiply_PV<D>(part, P, smem.Vt_smem[Vt_state.stage]);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            receive_S(kv);
            if (again) raise_maximum<KV>(rows, S, tile_c);
            exponentials<KV>(S, rows.m, sum, tile_c);
            trace(MULTIPLY);
            wgmma_wait_group<0>();
            receive_part(scale_before);
            trace(SOFTMAX);
            round_tile<KV>(S, P);
            const bool grown = again || any_saturated<KV>(P);
            if (grown) {
                if (!again) {
                    lower_tile<KV>(S, rows, sum);
                    round_tile<KV>(S, P);
                }
                rescale_rows<D>(O, rows);
            }
            rows.l[0] += sum[0];
            rows.l[1] += sum[1];
        };
        const auto multiply_O = [&](float scale) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.Vt_full[Vt_state.stage], Vt_state.parity);
            wgmma_touch(part);
            wgmma_fence();
            multiply_PV<D>(part, P, smem.Vt_smem[Vt_state.stage]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            receive_part(scale);
        };

        float V_scale = scale_V[0];
        const float first_c = c * scale_K[0];
        multiply_S(0);
        raise_maximum<KV>(rows, S, first_c);
        exponentials<KV>(S, rows.m, rows.l, first_c);
        round_tile<KV>(S, P);
        for (int kv = 1; kv < kv_tiles; kv++) {
            const float V_scale_before = V_scale, tile_c = c * scale_K[kv];
            V_scale = scale_V[kv];
            multiply_both(kv, tile_c, V_scale_before);
        }
        multiply_O(V_scale);

        for (int kv = kv_tiles; kv < block_tiles; kv++) { // keys that only the later consumers see
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            if (tid == 0) mbarrier_arrive(&smem.K_empty[K_state.stage]);
            K_state.advance();
            mbarrier_wait(&smem.Vt_full[Vt_state.stage], Vt_state.parity);
            if (tid == 0) mbarrier_arrive(&smem.Vt_empty[Vt_state.stage]);
            Vt_state.advance();
        }

        trace(STORE);
        // A lost score was infinity, and l has it: no term is negative, and a factor makes of it infinity or NaN. Every thread says so
        // before its warp gives back the next Q: the barriers of store_rows are between.
        if (!again && !(rows.l[0] + rows.l[1] < INFINITY)) atomicOr(&smem.lost[n % (AGAIN_AFTER + 1)], 1);
        finish_rows<D>(O, rows, a, work, row, lane);
        store_rows<D>(smem.O_smem[consumer], O_map, O, work, first_row, first_row < a.q_len, consumer, tid);
    }
    if (tid == 0) cp_async_bulk_wait_group_read<0>(); // O_smem must outlive its reader.
}

template <int D>
__global__ void __launch_bounds__(Tile<D>::THREADS, 1)
    per_block_kernel(const __grid_constant__ CUtensorMap Q_map, // boxes of WG_Q rows
                     const __grid_constant__ CUtensorMap K_map, // boxes of KV rows
                     const __grid_constant__ CUtensorMap V_map, // the same
                     const __grid_constant__ CUtensorMap O_map, // boxes of WG_Q rows, 64 O_BOXES columns
                     const fp8_attention f, int heads_in_group, int num_tiles)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<D> &smem = *reinterpret_cast<SharedStorage<D> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        for (int consumer = 0; consumer < Tile<D>::CONSUMERS; consumer++) {
            mbarrier_init(&smem.Q_full[consumer], 1);  // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.Q_empty[consumer], 4); // its warps
        }
        for (int stage = 0; stage < Tile<D>::STAGES; stage++) {
            mbarrier_init(&smem.K_full[stage], 1);
            mbarrier_init(&smem.K_empty[stage], Tile<D>::CONSUMERS);
            mbarrier_init(&smem.Vt_full[stage], TRANSPOSERS);
            mbarrier_init(&smem.Vt_empty[stage], Tile<D>::CONSUMERS);
        }
        for (int stage = 0; stage < Tile<D>::V_STAGES; stage++) {
            mbarrier_init(&smem.V_full[stage], 1);
            mbarrier_init(&smem.V_empty[stage], TRANSPOSERS * 32);
        }
        for (int &lost : smem.lost) lost = 0;
        fence_mbarrier_init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        setmaxnreg_dec<Tile<D>::PRODUCER_REGS>();
        if (threadIdx.x / 32 == 0 && elect_one())
            load<D>(smem, Q_map, K_map, V_map, f.a, heads_in_group, num_tiles);
        if (threadIdx.x >= 32) transpose<D>(smem, threadIdx.x / 32 - 1, threadIdx.x % 32);
    } else {
        setmaxnreg_inc<Tile<D>::CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        consume<D>(smem, O_map, f, heads_in_group, num_tiles, consumer);
    }
    trace(END);
}

template <int D>
static cudaError_t launch(const fp8_attention &f, cudaStream_t stream)
{
    const attention &a = f.a;
    CUtensorMap Q_map, K_map, V_map, O_map;
    constexpr int smem_bytes = sizeof(SharedStorage<D>);
    constexpr CUtensorMapDataType e4m3 = CU_TENSOR_MAP_DATA_TYPE_UINT8; // To TMA they are bytes.
    const int64_t heads = (int64_t)a.batch * a.heads;
    const int64_t num_tiles = heads * ((a.q_len - 1) / Tile<D>::Q + 1);
    if (num_tiles > INT_MAX) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_heads(&Q_map, e4m3, a.Q, a.batch, a.q_len, a.heads, D, WG_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&K_map, e4m3, a.K, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, D);
    if (error == cudaSuccess)
        error =
            tensor_map_heads(&V_map, e4m3, a.V, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, Tile<D>::COLS);
    if (error == cudaSuccess)
        error = tensor_map_heads(&O_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a.O, a.batch, a.q_len, a.heads, D,
                                 WG_Q, Tile<D>::O_BOXES * 64);
    int device, sms;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(per_block_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error != cudaSuccess) return error;

    const int64_t fitting = (a.causal ? CAUSAL_L2_BYTES : FULL_L2_BYTES) / ((int64_t)a.k_len * D * 2);
    const int heads_in_group = (int)(fitting < 1 ? 1 : fitting < a.heads ? fitting : a.heads);
    per_block_kernel<D><<<(int)(num_tiles < sms ? num_tiles : sms), Tile<D>::THREADS, smem_bytes, stream>>>(
        Q_map, K_map, V_map, O_map, f, heads_in_group, (int)num_tiles);
    return cudaGetLastError();
}

extern "C" cudaError_t per_block(const struct fp8_attention *f, cudaStream_t stream)
{
    if (!attention_sizes_valid(&f->a)) return cudaErrorInvalidValue;
    return with_types(BF16, f->a.head_dim, [&](auto, auto d) {
        if constexpr (d.value == 256)
            return cudaErrorInvalidValue;
        else
            return launch<d.value>(*f, stream);
    });
}
