// Chapter 15, step 9: a block stays on its SM and takes tile after tile.
//
// Question: between two blocks an SM does nothing: barriers are made, the first K and Q are fetched, and nobody
// multiplies. With sequences of 512 keys, four tiles, that is a large part. What if the producer were a tile ahead?
//
// As many blocks as SMs. The producer takes the next tile from a counter as soon as it has asked for this one's last keys,
// while the consumers are a few tiles of keys behind. It hands the number on in shared memory, under Q's barrier, and fetches
// the next Q once the last scores of this tile have been computed: the next keys are there before O is stored.
//
//      producer     Q, K V of tile 0 ... | take 1 | Q, K V of tile 1 ... | take 2 | ...
//      consumers          | tile 0 ................ | store | tile 1 ................ | store | ...
//
// The counter comes back to 0 by itself: each of the tiles, and each block's last look, adds one, tiles in all beyond the
// first of each block; atomicInc wraps there. Two launches of this kernel must therefore not overlap: they would
// share the counter.
//
// Grows from: step 8 (longest_first).
// New instructions: atom.inc.
// Registers: as step 4, none spilled.
// Run: make chapter-15 STEP=persistent
#include <cfloat>
#include <climits>

#include "../../common/device/sm90_attention.cuh"
#include "../../common/device/mbarrier.cuh"
#include "../../common/device/tensor_map.h"
#include "../../common/device/tma.cuh"
#include "../../common/device/trace.cuh"
#include "../../common/device/wgmma.cuh"
#include "launchers.h"

constexpr int WG_Q = 64;                  // queries of a consumer, a warpgroup: the rows of a wgmma
constexpr int MMA_K = 16;                 // k of a wgmma
constexpr float RESCALE_LOG2 = 8;         // how far a score may be above m
constexpr int CAUSAL_L2_BYTES = 16 << 20; // what K and V of a group of heads may take of the L2,
constexpr int FULL_L2_BYTES = 8 << 20;    // with a causal mask and without

// The tiles of a block, by head dimension.
template <int D>
struct Tile {
    static constexpr int KV = D == 256 ? 64 : 128;        // keys in a stage
    static constexpr int STAGES = D == 64 ? 4 : 2;        // of K, and of V
    static constexpr int CONSUMERS = D == 64 ? 3 : 2;     // warpgroups that multiply
    static constexpr int Q = CONSUMERS * WG_Q;            // queries
    static constexpr int THREADS = (1 + CONSUMERS) * 128; // warpgroup 0 is the producer
    static constexpr int PRODUCER_REGS = D == 64 ? 32 : 24;
    static constexpr int CONSUMER_REGS = D == 64 ? 160 : 240;
    static constexpr int LAUNCH_REGS =
        65536 / THREADS / 8 * 8; // what __launch_bounds__ makes of 65,536 registers
    static_assert(PRODUCER_REGS + CONSUMERS * CONSUMER_REGS <= (1 + CONSUMERS) * LAUNCH_REGS,
                  "setmaxnreg moves registers of the block, it makes none");
    static constexpr bool OVERLAP = D > 64; // S and P V in flight together: registers for two P
};

enum NamedBarrier {
    TURN = 1, // + consumer: it may issue its products
};

// A box of 64 columns has rows of 128 bytes, the swizzle's width; a tile of D columns is D / 64 boxes.
template <typename T, int D>
struct SharedStorage {
    T Q_smem[Tile<D>::CONSUMERS][D / 64][WG_Q][64];
    T K_smem[Tile<D>::STAGES][D / 64][Tile<D>::KV][64];
    T V_smem[Tile<D>::STAGES][D / 64][Tile<D>::KV][64];
    int tile[Tile<D>::CONSUMERS];         // of the queries in Q_smem; none when there are no more
    uint64_t Q_full[Tile<D>::CONSUMERS];  // the queries have landed
    uint64_t Q_empty[Tile<D>::CONSUMERS]; // the consumer's warps are done with them
    uint64_t K_full[Tile<D>::STAGES], V_full[Tile<D>::STAGES];   // the stage has landed
    uint64_t K_empty[Tile<D>::STAGES], V_empty[Tile<D>::STAGES]; // every consumer is done with it
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

    // Tiles of keys that queries up to `last` see; at least one, that its sums become 0.
    static __device__ int tiles(const attention &a, int last)
    {
        return (max(keys_seen(a, last), 1) - 1) / Tile<D>::KV + 1;
    }
};

// Starts the copy of tile kv of K or V into its stage when that is empty. Past the last key there are zeros.
template <typename T, int D>
static __device__ void load_tile(T (&dst_smem)[D / 64][Tile<D>::KV][64], const CUtensorMap &map,
                                 uint64_t *full, uint64_t *empty, uint32_t parity, int kv_head, int kv,
                                 int batch)
{
    trace(WAIT_EMPTY);
    mbarrier_wait(empty, parity ^ 1);
    trace(LOAD);
    mbarrier_arrive_expect_tx(full, sizeof dst_smem);
    cp_async_bulk_tensor_5d(dst_smem, map, full, 0, kv_head, kv * Tile<D>::KV, 0, batch);
}

static __device__ unsigned next_tile; // beyond the first of each block

// The producer, one thread: takes tile after tile, and fills place after place, each as soon as it is empty. Nobody has used
// the places of the first round: a new barrier lets a wait for parity 1 pass.
template <typename T, int D>
static __device__ void produce(SharedStorage<T, D> &smem, const CUtensorMap &Q_map, const CUtensorMap &K_map,
                               const CUtensorMap &V_map, const attention &a, int heads_in_group,
                               int num_tiles)
{
    PipelineState<Tile<D>::STAGES> state;
    uint32_t Q_parity = 1;
    int tile = blockIdx.x;
    while (true) {
        const Work<D> work(a, heads_in_group, min(tile, num_tiles - 1));
        const int kv_head = work.head / (a.heads / a.kv_heads);
        const int kv_tiles = work.tiles(a, work.row + Tile<D>::Q - 1);
        const auto load_K = [&](int kv) {
            load_tile<T, D>(smem.K_smem[state.stage], K_map, &smem.K_full[state.stage],
                            &smem.K_empty[state.stage], state.parity, kv_head, kv, work.batch);
        };
        if (tile < num_tiles) load_K(0); // before the queries, which wait for the last consumer
        for (int consumer = 0; consumer < Tile<D>::CONSUMERS; consumer++) {
            uint64_t *full = &smem.Q_full[consumer];
            trace(WAIT_EMPTY);
            mbarrier_wait(&smem.Q_empty[consumer], Q_parity);
            trace(LOAD);
            smem.tile[consumer] = tile; // The arrival makes it visible.
            if (tile < num_tiles) {
                mbarrier_arrive_expect_tx(full, sizeof smem.Q_smem[consumer]);
                cp_async_bulk_tensor_5d(smem.Q_smem[consumer], Q_map, full, 0, work.head,
                                        work.row + consumer * WG_Q, 0, work.batch);
            } else {
                mbarrier_arrive(full);
            }
        }
        Q_parity ^= 1;
        if (tile >= num_tiles) return;

        for (int kv = 0; kv < kv_tiles; kv++) {
            if (kv > 0) load_K(kv);
            load_tile<T, D>(smem.V_smem[state.stage], V_map, &smem.V_full[state.stage],
                            &smem.V_empty[state.stage], state.parity, kv_head, kv, work.batch);
            state.advance();
        }
        tile = gridDim.x + atomicInc(&next_tile, num_tiles - 1);
    }
}

// S = Q Kᵀ, 64 queries and a tile of keys. A descriptor counts in units of 16 bytes; 16 columns are 32 bytes.
template <typename T, int D>
static __device__ void multiply_QK(float (&S)[Tile<D>::KV / 2], const T (*Q_smem)[WG_Q][64],
                                   const T (*K_smem)[Tile<D>::KV][64])
{
    const uint64_t Q_desc = wgmma_descriptor(Q_smem), K_desc = wgmma_descriptor(K_smem);
#pragma unroll
    for (int k = 0; k < D / MMA_K; k++)
        wgmma<Tile<D>::KV, T>(S, Q_desc + (k / 4 * sizeof Q_smem[0] + k % 4 * 32) / 16,
                              K_desc + (k / 4 * sizeof K_smem[0] + k % 4 * 32) / 16, k > 0);
}

// O += P V. 16 keys are 16 rows of V.
template <typename T, int D>
static __device__ void multiply_PV(float (&O)[D / 2], const uint32_t (&P)[Tile<D>::KV / MMA_K][4],
                                   const T (*V_smem)[Tile<D>::KV][64])
{
    const uint64_t V_desc = wgmma_descriptor_mn(V_smem, sizeof V_smem[0]);
#pragma unroll
    for (int k = 0; k < Tile<D>::KV / MMA_K; k++)
        wgmma_rs<D, T>(O, P[k], V_desc + k * MMA_K * 128 / 16, true);
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
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < KV / 2; i += 2) {
        const int half = i / 2 % 2;
        const float x = ex2_approx_ftz(S[i] * c - m[half] * c),
                    y = ex2_approx_ftz(S[i + 1] * c - m[half] * c);
        sum[half] += x + y; // a chain half as long as if they were added one by one
        P[i / 8][i / 2 % 4] = pack_pair<T>(x, y);
    }
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
    const float scale = rsqrtf(D);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float l = rows.l[half];
        l += __shfl_xor_sync(0xffffffff, l, 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        if (lane % 4 == 0 && row + half * 8 < a.q_len)
            a.LSE[((size_t)work.batch * a.heads + work.head) * a.q_len + row + half * 8] =
                l > 0 ? rows.m[half] * scale + logf(l) : -INFINITY;
        const float inverse = l > 0 ? 1 / l : 0;
#pragma unroll
        for (int i = half * 2; i < D / 2; i += 4) {
            O[i] *= inverse;
            O[i + 1] *= inverse;
        }
    }
}

// Writes O, a pair of columns at a time.
template <typename T, int D>
static __device__ void store_rows(const float (&O)[D / 2], const attention &a, const Work<D> &work, int row,
                                  int lane)
{
    T *dst = (T *)a.O + (((size_t)work.batch * a.q_len + row) * a.heads + work.head) * D + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row + half * 8 < a.q_len)
#pragma unroll
            for (int i = half * 2; i < D / 2; i += 4)
                store_pair(dst + (size_t)half * 8 * a.heads * D + i * 2 - half * 4, O[i], O[i + 1]);
}

// A consumer: tile after tile, 64 queries against every key that they see. One thread gives a stage back for its warpgroup.
template <typename T, int D>
static __device__ void consume(SharedStorage<T, D> &smem, const attention &a, int heads_in_group,
                               int num_tiles, int consumer)
{
    constexpr int KV = Tile<D>::KV;
    const int tid = threadIdx.x % 128, lane = tid % 32;
    const float c = rsqrtf(D) * 1.44269504f; // log2(e)
    PipelineState<Tile<D>::STAGES> K_state, V_state;
    uint32_t Q_parity = 0;
    const int next_consumer = (consumer + 1) % Tile<D>::CONSUMERS;
    if (next_consumer == 0) named_barrier_arrive(TURN, 256); // Consumer 0 begins.
    while (true) {
        trace(WAIT_FULL);
        mbarrier_wait(&smem.Q_full[consumer], Q_parity);
        Q_parity ^= 1;
        int tile = 0;
        if (lane == 0) tile = smem.tile[consumer]; // Who arrives at Q_empty has read it.
        tile = __shfl_sync(0xffffffff, tile, 0);
        if (tile >= num_tiles) break;
        const Work<D> work(a, heads_in_group, tile);
        const int first_row = work.row + consumer * WG_Q;
        const int row = first_row + tid / 32 * 16 + lane / 4; // and row + 8
        const int full_keys = keys_seen(a, first_row);        // that every row sees
        const int kv_tiles = work.tiles(a, first_row + WG_Q - 1);
        const int block_tiles = work.tiles(a, work.row + Tile<D>::Q - 1);
        float S[KV / 2], O[D / 2] = {};
        uint32_t P[2][KV / MMA_K][4];
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
        const auto multiply_S = [&](int kv) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            trace(WAIT_TURN);
            named_barrier_sync(TURN + consumer, 256);
            wgmma_touch(S);
            wgmma_fence();
            multiply_QK<T, D>(S, smem.Q_smem[consumer], smem.K_smem[K_state.stage]);
            wgmma_commit_group();
            named_barrier_arrive(TURN + next_consumer, 256);
            wgmma_wait_group<0>();
            receive_S(kv);
        };
        const auto multiply_O = [&](const uint32_t(&P_tile)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            wgmma_touch(O);
            wgmma_fence();
            multiply_PV<T, D>(O, P_tile, smem.V_smem[V_state.stage]);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            wgmma_touch(O);
            if (tid == 0) mbarrier_arrive(&smem.V_empty[V_state.stage]);
            V_state.advance();
        };

        // S of tile kv and P V of the tile before are in flight together; the softmax begins when S is there.
        const auto multiply_both = [&](int kv, const uint32_t(&P_old)[KV / MMA_K][4],
                                       uint32_t(&P_new)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            trace(WAIT_TURN);
            named_barrier_sync(TURN + consumer, 256);
            wgmma_touch(S);
            wgmma_touch(O);
            wgmma_fence();
            multiply_QK<T, D>(S, smem.Q_smem[consumer], smem.K_smem[K_state.stage]);
            wgmma_commit_group();
            multiply_PV<T, D>(O, P_old, smem.V_smem[V_state.stage]);
            wgmma_commit_group();
            named_barrier_arrive(TURN + next_consumer, 256);
            wgmma_wait_group<1>();
            receive_S(kv);
            const bool grown = softmax_tile<T, KV>(S, P_new, rows, c, false);
            trace(MULTIPLY);
            wgmma_wait_group<0>();
            wgmma_touch(O);
            wgmma_touch(P_old); // wgmma has read it.
            if (tid == 0) mbarrier_arrive(&smem.V_empty[V_state.stage]);
            V_state.advance();
            if (grown) rescale_rows<D>(O, rows);
        };
        // P V of the tile before and S of tile kv, one behind the other.
        const auto multiply_next = [&](int kv, const uint32_t(&P_old)[KV / MMA_K][4]) {
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            trace(WAIT_TURN);
            named_barrier_sync(TURN + consumer, 256);
            wgmma_touch(S);
            wgmma_touch(O);
            wgmma_fence();
            multiply_PV<T, D>(O, P_old, smem.V_smem[V_state.stage]);
            multiply_QK<T, D>(S, smem.Q_smem[consumer], smem.K_smem[K_state.stage]);
            wgmma_commit_group();
            named_barrier_arrive(TURN + next_consumer, 256);
            wgmma_wait_group<0>();
            wgmma_touch(O);
            if (tid == 0) mbarrier_arrive(&smem.V_empty[V_state.stage]);
            V_state.advance();
            receive_S(kv);
        };

        if constexpr (Tile<D>::OVERLAP) {
            multiply_S(0);
            int kv = 1;
            if (kv_tiles % 2 == 0) {
                softmax_tile<T, KV>(S, P[1], rows, c, true);
                multiply_both(kv++, P[1], P[0]);
            } else {
                softmax_tile<T, KV>(S, P[0], rows, c, true);
            }
            for (; kv < kv_tiles; kv += 2) {
                multiply_both(kv, P[0], P[1]);
                multiply_both(kv + 1, P[1], P[0]);
            }
            multiply_O(P[0]);
        } else {
            multiply_S(0);
            softmax_tile<T, KV>(S, P[0], rows, c, true);
            for (int kv = 1; kv < kv_tiles; kv++) {
                multiply_next(kv, P[0]);
                if (softmax_tile<T, KV>(S, P[0], rows, c, false)) rescale_rows<D>(O, rows);
            }
            multiply_O(P[0]);
        }

        for (int kv = kv_tiles; kv < block_tiles; kv++) { // keys that only the later consumers see
            trace(WAIT_FULL);
            mbarrier_wait(&smem.K_full[K_state.stage], K_state.parity);
            named_barrier_sync(TURN + consumer, 256);
            named_barrier_arrive(TURN + next_consumer, 256);
            if (tid == 0) mbarrier_arrive(&smem.K_empty[K_state.stage]);
            K_state.advance();
            mbarrier_wait(&smem.V_full[V_state.stage], V_state.parity);
            if (tid == 0) mbarrier_arrive(&smem.V_empty[V_state.stage]);
            V_state.advance();
        }

        trace(STORE);
        finish_rows<D>(O, rows, a, work, row, lane);
        store_rows<T, D>(O, a, work, row, lane);
    }
    if (consumer == 0) named_barrier_sync(TURN, 256); // The last turn is nobody's.
}

template <typename T, int D>
__global__ void __launch_bounds__(Tile<D>::THREADS, 1)
    persistent_kernel(const __grid_constant__ CUtensorMap Q_map, // boxes of WG_Q rows
                      const __grid_constant__ CUtensorMap K_map, // boxes of Tile<D>::KV rows
                      const __grid_constant__ CUtensorMap V_map, // the same

                      const attention a, int heads_in_group, int num_tiles)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    SharedStorage<T, D> &smem = *reinterpret_cast<SharedStorage<T, D> *>(smem_bytes);

    // Setup. TMA counts at the barriers: it must see them initialised.
    if (threadIdx.x == 0) {
        for (int consumer = 0; consumer < Tile<D>::CONSUMERS; consumer++) {
            mbarrier_init(&smem.Q_full[consumer], 1);  // the producer's arrival, and the bytes it expects
            mbarrier_init(&smem.Q_empty[consumer], 4); // its warps
        }
        for (int stage = 0; stage < Tile<D>::STAGES; stage++) {
            mbarrier_init(&smem.K_full[stage], 1);
            mbarrier_init(&smem.V_full[stage], 1);
            mbarrier_init(&smem.K_empty[stage], Tile<D>::CONSUMERS);
            mbarrier_init(&smem.V_empty[stage], Tile<D>::CONSUMERS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        setmaxnreg_dec<Tile<D>::PRODUCER_REGS>();
        if (threadIdx.x / 32 == 0 && elect_one())
            produce<T, D>(smem, Q_map, K_map, V_map, a, heads_in_group, num_tiles);
    } else {
        setmaxnreg_inc<Tile<D>::CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        consume<T, D>(smem, a, heads_in_group, num_tiles, consumer);
    }
    trace(END);
}

template <typename T, int D>
static cudaError_t launch(const attention &a, cudaStream_t stream)
{
    CUtensorMap Q_map, K_map, V_map;
    constexpr int smem_bytes = sizeof(SharedStorage<T, D>);
    constexpr CUtensorMapDataType type = tensor_map_type<T>();
    const int64_t heads = (int64_t)a.batch * a.heads;
    const int64_t num_tiles = heads * ((a.q_len - 1) / Tile<D>::Q + 1);
    if (num_tiles > INT_MAX) return cudaErrorInvalidValue;
    cudaError_t error = tensor_map_heads(&Q_map, type, a.Q, a.batch, a.q_len, a.heads, D, WG_Q, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&K_map, type, a.K, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, D);
    if (error == cudaSuccess)
        error = tensor_map_heads(&V_map, type, a.V, a.batch, a.k_len, a.kv_heads, D, Tile<D>::KV, D);
    int device, sms;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(persistent_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     smem_bytes);
    if (error != cudaSuccess) return error;

    const int64_t fitting =
        (a.causal ? CAUSAL_L2_BYTES : FULL_L2_BYTES) / ((int64_t)a.k_len * D * 2 * sizeof(T));
    const int heads_in_group = (int)(fitting < 1 ? 1 : fitting < a.heads ? fitting : a.heads);
    persistent_kernel<T, D>
        <<<(int)(num_tiles < sms ? num_tiles : sms), Tile<D>::THREADS, smem_bytes, stream>>>(
            Q_map, K_map, V_map, a, heads_in_group, (int)num_tiles);
    return cudaGetLastError();
}

extern "C" cudaError_t persistent(const struct attention *a, cudaStream_t stream)
{
    return with_attention_types(*a, [&](auto t, auto d) { return launch<decltype(t), d.value>(*a, stream); });
}
