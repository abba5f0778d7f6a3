// The kernel of D = 256: a cluster of two blocks has a tile of 128 keys.
//
// What holds a block of 64 keys for itself is dQ: its `red` keeps the L2 busy. Here a block has the scores of its own 64 keys, and of
// all 128 keys its own half of the columns of dK, dV and dQ: so many bytes of dQ are added for twice the keys. Each needs P and dS of
// the other's keys, in 16 bits: 8 KB a tile and direction each.
//
//      scores      S: own keys, all columns   P   to the gradients and to the other block    dV: all keys, own columns   dQ
//      gradients   dP: the same               dS  to the scores and to the other block       dK: the same                dQ
//
// P goes as a thread's registers, which are A of the same thread there (st.async); dS as a tile of shared memory, keys as rows, A of
// dK as it is and of dQ transposed. Each consumer has 64 of dQ's 128 columns.
//
// P goes to the gradients in fp32; with softcap times the softcap's derivative. In 16 bits there would be room for a second stage of Q's other
// columns, which is 1 to 2 % faster, but dS would be rounded once more than it need be.
//
// In the order in which they are issued, and what happens beside them; "before" and "next" are tiles of queries:
//
//      scores       dQ of the one before  dV of own keys  dV of the other's    S of the next      |
//                                                         add dQ                                  | 2^S, hand over P, send P
//      gradients                        | dK of own keys       dP of the next            dK of the other's  dQ
//                   dS                  | store, send dS       add dQ of the one before
//
// A consumer's exponentials, or dS, are beside the other's products. What is sent is wanted one product later or more.
//
// kernel.cuh includes this before its table of launches: what is used here and not found here is there.
#pragma once

template <int Q_, bool SOFTCAP_>
struct ClusterTile {
    static constexpr int D = 256, Q = Q_;
    static constexpr bool SOFTCAP = SOFTCAP_, AHEAD = false;
    static constexpr int BLOCKS = 2;
    static constexpr int KEYS = 64;          // of a block
    static constexpr int KV = BLOCKS * KEYS; // of the cluster
    static constexpr int COLS = D / BLOCKS;  // of dK, dV and dQ, of a block
    static constexpr int BOXES = COLS / 64;  // of 64 columns, that is
    static constexpr int STAGES = 2;         // of the own columns of Q and dO; the others have one
    static constexpr int DQ_REGS = Q * COLS / (CONSUMERS * 128);
    static constexpr int DQ_PARTS = BLOCKS * CONSUMERS;
    static_assert(Q == 64, "rows of dQ, columns of a box of dS");
};

template <typename T, class C>
struct ClusterStorage {
    T K_smem[2][C::BOXES][C::KEYS][64], V_smem[2][C::BOXES][C::KEYS][64]; // own keys: own columns, the others
    T K_other_smem[C::BOXES][C::KEYS][64];                                // the other's keys: own columns
    T Q_smem[C::STAGES][C::BOXES][C::Q][64];
    T dO_smem[C::STAGES][C::BOXES][C::Q][64];
    T Q_other_smem[C::BOXES][C::Q][64];
    T dO_other_smem[C::BOXES][C::Q][64];
    T dS_smem[2][C::KEYS][C::Q];       // of own keys, of the other block's; rows are keys
    uint4 P_smem[C::Q / MMA_K][128];   // of the other block's keys, as threads have it
    float4 handed_smem[C::Q / 8][128]; // of own keys, for the gradients
    float LSE_log2_smem[C::STAGES][C::Q];
    float dPsum_smem[C::STAGES][C::Q];
    Work work;      // read where it is needed: registers are too few to keep it
    unsigned index; // in a fixed order, the cluster's
    uint64_t K_full, V_full;
    uint64_t Q_full[C::STAGES], dO_full[C::STAGES];           // the stage has landed, and its statistics
    uint64_t Q_other_full[C::BOXES], dO_other_full[C::BOXES]; // the box
    uint64_t Q_empty[C::STAGES], dO_empty[C::STAGES];         // every warp that reads it is done with it
    uint64_t Q_other_empty, dO_other_empty;
    uint64_t handed_full, handed_empty;
    uint64_t P_full, P_empty; // P of the other's keys is here; the other has read what came from here
    uint64_t dS_full;         // dS of all keys is here
    uint64_t dS_empty;        // nobody reads dS of own keys any more, here and there
};

// As warp_arrive, at the barrier of the same place in block `rank` of the cluster.
static __device__ void warp_arrive_cluster(uint64_t *bar, uint32_t rank, int lane)
{
    __syncwarp();
    if (lane == 0) mbarrier_arrive_cluster(bar, rank);
}

// --- The producer's warps -------------------------------------------------------------------------------------------------

// A thread for Q, one for dO: starts the copies of every tile, of every head, as soon as their places are empty, own columns and others
// apart: the others are done with after S or dP.
template <typename T, class C>
static __device__ void produce_tiles(T (&own_smem)[C::STAGES][C::BOXES][C::Q][64],
                                     T (&other_smem)[C::BOXES][C::Q][64], float (&rows_smem)[C::STAGES][C::Q],
                                     uint64_t *own_full, uint64_t *own_empty, uint64_t *other_full,
                                     uint64_t *other_empty, const CUtensorMap &map, const float *rows,
                                     const Work &work, const BackwardPlan &plan)
{
    const int end = work.q_begin + work.q_len;
    PipelineState<C::STAGES> own;
    uint32_t parity = 0; // of the others
    for (int head = work.first_head; head < work.last_head; head++)
        for (int row = work.first_row; row < work.end_row; row += C::Q, parity ^= 1) {
            const size_t i = ((size_t)head * plan.q_tiles + work.q_tile) * C::Q + row;
            const int first = RAGGED + work.q_begin + row - end;
            // The block's number is asked for again: kept, ptxas spills it.
            const int own_box = head * (C::D / 64) + (int)cluster_ctarank() * C::BOXES,
                      other_box = own_box ^ C::BOXES;
            uint64_t *full = &own_full[own.stage];
            trace(WAIT_EMPTY);
            mbarrier_wait(&own_empty[own.stage], own.parity ^ 1);
            trace(LOAD);
            mbarrier_arrive_expect_tx(full, sizeof own_smem[0] + sizeof rows_smem[0]);
            for (int j = 0; j < C::BOXES; j++)
                cp_async_bulk_tensor_5d(own_smem[own.stage][j], map, full, 0, first, own_box + j, end,
                                        RAGGED);
            cp_async_bulk(rows_smem[own.stage], rows + i, sizeof rows_smem[0], full);
            own.advance();
            trace(WAIT_EMPTY);
            mbarrier_wait(other_empty, parity ^ 1);
            trace(LOAD);
            for (int j = 0; j < C::BOXES; j++) {
                mbarrier_arrive_expect_tx(&other_full[j], sizeof other_smem[0]);
                cp_async_bulk_tensor_5d(other_smem[j], map, &other_full[j], 0, first, other_box + j, end,
                                        RAGGED);
            }
        }
}

// Starts the copy of a box of K or V: keys of block key_rank, columns of block col_rank.
template <typename T, class C>
static __device__ void load_keys(T (&dst_smem)[C::BOXES][C::KEYS][64], const CUtensorMap &map, uint64_t *full,
                                 const Work &work, int key_rank, int col_rank)
{
    const int end = work.k_begin + work.k_len;
    cp_async_bulk_tensor_5d(dst_smem, map, full, 0,
                            RAGGED + work.k_begin + work.first_key + key_rank * C::KEYS - end,
                            work.kv_head * (C::D / 64) + col_rank * C::BOXES, end, RAGGED);
}

template <typename T, class C>
static __device__ void produce_Q(ClusterStorage<T, C> &smem, const CUtensorMap &Q_map,
                                 const CUtensorMap &K_map, const BackwardPlan &plan, int rank)
{
    trace(LOAD);
    mbarrier_arrive_expect_tx(&smem.K_full, sizeof smem.K_smem + sizeof smem.K_other_smem);
    load_keys<T, C>(smem.K_smem[0], K_map, &smem.K_full, smem.work, rank, rank);
    load_keys<T, C>(smem.K_smem[1], K_map, &smem.K_full, smem.work, rank, rank ^ 1);
    load_keys<T, C>(smem.K_other_smem, K_map, &smem.K_full, smem.work, rank ^ 1, rank);
    produce_tiles<T, C>(smem.Q_smem, smem.Q_other_smem, smem.LSE_log2_smem, smem.Q_full, smem.Q_empty,
                        smem.Q_other_full, &smem.Q_other_empty, Q_map, plan.LSE_log2, smem.work, plan);
}

template <typename T, class C>
static __device__ void produce_dO(ClusterStorage<T, C> &smem, const CUtensorMap &dO_map,
                                  const CUtensorMap &V_map, const BackwardPlan &plan, int rank)
{
    trace(LOAD);
    mbarrier_arrive_expect_tx(&smem.V_full, sizeof smem.V_smem);
    load_keys<T, C>(smem.V_smem[0], V_map, &smem.V_full, smem.work, rank, rank);
    load_keys<T, C>(smem.V_smem[1], V_map, &smem.V_full, smem.work, rank, rank ^ 1);
    produce_tiles<T, C>(smem.dO_smem, smem.dO_other_smem, smem.dPsum_smem, smem.dO_full, smem.dO_empty,
                        smem.dO_other_full, &smem.dO_other_empty, dO_map, plan.dPsum, smem.work, plan);
}

// --- The products -----------------------------------------------------------------------------------------------------------

// S = K Qᵀ or dP = V dOᵀ of tile i: the own columns first, then the others, box by box as they land.
template <typename T, class C>
static __device__ void multiply_scores(float (&acc)[C::Q / 2], const T (&A_smem)[2][C::BOXES][C::KEYS][64],
                                       const T (&own_smem)[C::STAGES][C::BOXES][C::Q][64],
                                       const T (&other_smem)[C::BOXES][C::Q][64], uint64_t *own_full,
                                       uint64_t *other_full, int i)
{
    const uint64_t A_desc = wgmma_descriptor(A_smem), own_desc = wgmma_descriptor(own_smem[i % C::STAGES]),
                   other_desc = wgmma_descriptor(other_smem);
    constexpr int A_BOX = sizeof A_smem[0][0], BOX = sizeof other_smem[0];
    trace(WAIT_FULL);
    mbarrier_wait(&own_full[i % C::STAGES], i / C::STAGES % 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < C::COLS / MMA_K; k++)
        wgmma<C::Q, T>(acc, A_desc + (k / 4 * A_BOX + k % 4 * 32) / 16,
                       own_desc + (k / 4 * BOX + k % 4 * 32) / 16, k > 0);
#pragma unroll
    for (int j = 0; j < C::BOXES; j++) {
        trace(WAIT_FULL);
        mbarrier_wait(&other_full[j], i % 2);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 64 / MMA_K; k++)
            wgmma<C::Q, T>(acc, A_desc + ((C::BOXES + j) * A_BOX + k * 32) / 16,
                           other_desc + (j * BOX + k * 32) / 16, true);
    }
    wgmma_commit_group();
}

// dV += Pᵀ dO or dK += dSᵀ Q of 64 keys and the own columns: A from registers.
template <typename T, class C>
static __device__ void multiply_own(float (&dV)[C::COLS / 2], const uint32_t (&P)[C::Q / MMA_K][4],
                                    const T (*dO_smem)[C::Q][64])
{
    const uint64_t dO_desc = wgmma_descriptor_mn(dO_smem, sizeof dO_smem[0]);
#pragma unroll
    for (int k = 0; k < C::Q / MMA_K; k++)
        wgmma_rs<C::COLS, T>(dV, P[k], dO_desc + k * MMA_K * 128 / 16, true);
}

// The same of the other block's keys: A from its tile of dS.
template <typename T, class C>
static __device__ void multiply_others(float (&dK)[C::COLS / 2], const T (*dS_smem)[C::Q],
                                       const T (*Q_smem)[C::Q][64])
{
    const uint64_t dS_desc = wgmma_descriptor(dS_smem),
                   Q_desc = wgmma_descriptor_mn(Q_smem, sizeof Q_smem[0]);
#pragma unroll
    for (int k = 0; k < C::Q / MMA_K; k++)
        wgmma<C::COLS, T, false, true>(dK, dS_desc + k * 32 / 16, Q_desc + k * MMA_K * 128 / 16, true);
}

// A consumer's 64 columns of dQ = dS K: 64 keys of this block, 64 of the other.
template <typename T, class C>
static __device__ void multiply_dQ_columns(float (&dQ)[C::DQ_REGS], const ClusterStorage<T, C> &smem,
                                           int consumer)
{
#pragma unroll
    for (int block = 0; block < 2; block++) {
        const uint64_t dS_desc = wgmma_descriptor_mn(smem.dS_smem[block], sizeof smem.dS_smem[0]),
                       K_desc =
                           wgmma_descriptor_mn(block ? smem.K_other_smem[consumer] : smem.K_smem[0][consumer],
                                               sizeof smem.K_other_smem[0]);
#pragma unroll
        for (int k = 0; k < C::KEYS / MMA_K; k++)
            wgmma<64, T, true, true>(dQ, dS_desc + k * MMA_K * 128 / 16, K_desc + k * MMA_K * 128 / 16,
                                     block + k > 0);
    }
}

// --- Between the products -----------------------------------------------------------------------------------------------------

// Sends a warp's 16 keys of dS to the other block from where they are stored here.
template <typename T, class C>
static __device__ void send_dS(ClusterStorage<T, C> &smem, const uint32_t (&dS)[C::Q / MMA_K][4], int other,
                               int tid)
{
    const int warp = tid / 32, key = warp * 16 + tid % 16;
    T(*const own_smem)[C::Q] = smem.dS_smem[0];
#pragma unroll
    for (int k = 0; k < C::Q / MMA_K; k++) {
        // Matrices 0 to 3: the upper and the lower 8 keys of 8 queries, then of the next 8 queries.
        const int chunk = k * 2 + tid % 32 / 16;
        stmatrix_x4(smem_addr(own_smem) + swizzle(key * 128 + chunk * 16, 3), dS[k]);
    }
    fence_proxy_async(); // What this thread wrote is there for wgmma and for the copy engine,
    __syncwarp();        // and what the warp's others wrote.
    if (tid % 32 > 0) return;
    constexpr uint32_t BYTES = 16 * sizeof own_smem[0];
    cp_async_bulk_to_block(smem.dS_smem[1][warp * 16], own_smem[warp * 16], BYTES, &smem.dS_full, other);
    mbarrier_arrive_expect_tx(&smem.dS_full, BYTES); // from the other's warp of this number
}

// Rounds 128 keys and the own columns of dK or dV, puts them where nobody reads any more, and has the copy engine store them: it
// leaves out rows past the sequence's last.
template <typename T, class C>
static __device__ void store_columns(const CUtensorMap &map, T (*place_smem)[C::BOXES][64][64],
                                     const float (&dK)[2][C::COLS / 2], float scale, const Work &work,
                                     int rank, int consumer, int tid)
{
    trace(STORE);
    const int row = tid / 32 * 16 + tid % 16;
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
        for (int i = 0; i < C::COLS / 2; i += 8) {
            const float *d = dK[block] + i;
            // Matrices 0 to 3: the upper and the lower 8 keys of 8 columns, then of the next 8 columns.
            const uint32_t frag[4] = {
                pack_pair<T>(d[0] * scale, d[1] * scale), pack_pair<T>(d[2] * scale, d[3] * scale),
                pack_pair<T>(d[4] * scale, d[5] * scale), pack_pair<T>(d[6] * scale, d[7] * scale)};
            const int chunk = i / 4 % 8 + tid % 32 / 16; // of 8 columns
            stmatrix_x4(smem_addr(place_smem[block][i / 32]) + swizzle(row * 128 + chunk * 16, 3), frag);
        }
    fence_proxy_async();                              // What this thread wrote is there for the copy engine,
    named_barrier_sync(ONE_CONSUMER + consumer, 128); // and what the others wrote.
    if (tid > 0) return;
    const int end = work.k_begin + work.k_len;
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
        for (int box = 0; box < C::BOXES; box++)
            cp_async_bulk_tensor_5d_store(map, place_smem[block][box], 0,
                                          RAGGED + work.k_begin + work.first_key + (rank ^ block) * C::KEYS -
                                              end,
                                          work.kv_head * (C::D / 64) + rank * C::BOXES + box, end, RAGGED);
    cp_async_bulk_commit_group();
}

// Which part of dQ a consumer adds to next: tile after tile, head after head.
template <class C>
struct PartOfDQ {
    int head, row;

    __device__ PartOfDQ(const Work &work) : head(work.first_head), row(work.first_row) {}
    __device__ void add(const float (&dQ)[C::DQ_REGS], const attention_variant_backward &b,
                        const BackwardPlan &plan, const Work &work, int rank, int consumer, int tid)
    {
        unsigned *arrived;
        float4 *dQ_sum = part_of_dQ<C>(plan, work, head, row, rank * CONSUMERS + consumer, &arrived);
        begin_turn<C>(arrived, b, work, row, consumer, tid);
        add_dQ(dQ_sum, dQ, tid);
        end_turn(arrived, b, consumer, tid);
        row += C::Q;
        if (row >= work.end_row) row = work.first_row, head++;
    }
};

// --- The consumers ------------------------------------------------------------------------------------------------------------

template <typename T, class C>
static __device__ void consume_scores(ClusterStorage<T, C> &smem, const CUtensorMap &dV_map,
                                      const attention_variant_backward &b, const BackwardPlan &plan, int rank)
{
    const attention_variant &v = b.forward;
    const Work &work = smem.work;
    const Keys<C> keys(v, work, rank);
    const int tid = threadIdx.x % 128, lane = tid % 32, other = rank ^ 1;
    const int tiles = work.tiles, first_row = work.first_row, end_row = work.end_row;
    float dV[2][C::COLS / 2] = {}, S[C::Q / 2], dQ[C::DQ_REGS] = {}; // dV of own keys, of the other's
    uint32_t P[C::Q / MMA_K][4];
    PartOfDQ<C> part(work);
    int row = first_row; // of P's tile
    const auto multiply_S = [&](int i) {
        multiply_scores<T, C>(S, smem.K_smem, smem.Q_smem, smem.Q_other_smem, smem.Q_full, smem.Q_other_full,
                              i);
    };
    const auto probabilities_of = [&](int i) {
        const OfColumns<C> LSE_log2(smem.LSE_log2_smem[i % C::STAGES], tid);
        probabilities<T, C>(S, P, LSE_log2, keys, v, plan, work, row, tid);
    };
    const auto send_P = [&](int i) {
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.handed_empty, i % 2 ^ 1);
        trace(STORE);
#pragma unroll
        for (int j = 0; j < C::Q / 2; j += 4)
            smem.handed_smem[j / 4][tid] = make_float4(S[j], S[j + 1], S[j + 2], S[j + 3]);
        mbarrier_arrive(&smem.handed_full);
        if (!C::SOFTCAP) round_tile<T, C::Q>(S, P); // Nobody waits for it as the gradients do for theirs.
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.P_empty, i % 2 ^ 1);
        trace(STORE);
        const uint32_t to = mapa(smem_addr(&smem.P_smem[0][tid]), other),
                       full = mapa(smem_addr(&smem.P_full), other);
#pragma unroll
        for (int k = 0; k < C::Q / MMA_K; k++)
            st_async(to + k * sizeof smem.P_smem[0],
                     make_float4(__uint_as_float(P[k][0]), __uint_as_float(P[k][1]), __uint_as_float(P[k][2]),
                                 __uint_as_float(P[k][3])),
                     full);
    };
    const auto multiply_dQ = [&](int i) {
        trace(WAIT_TURN);
        mbarrier_wait(&smem.dS_full, i % 2);
        wgmma_fence();
        multiply_dQ_columns<T, C>(dQ, smem, 0);
        wgmma_commit_group();
    };
    trace(WAIT_FULL);
    mbarrier_wait(&smem.K_full, 0);

    // P of tile i has been sent.
    const auto work_on = [&](int i, auto is_first) {
        constexpr bool FIRST = decltype(is_first)::value; // there is no tile before
        const int stage = i % C::STAGES;
        const int next = min(i + 1, tiles - 1); // Behind the last tile: S and P once more, for nobody.
        uint32_t P_other[C::Q / MMA_K][4];
        if constexpr (!FIRST) multiply_dQ(i - 1);
        trace(WAIT_FULL);
        mbarrier_wait(&smem.dO_full[stage], i / C::STAGES % 2);
        wgmma_touch(dV[0]);
        wgmma_touch(P);
        wgmma_fence();
        multiply_own<T, C>(dV[0], P, smem.dO_smem[stage]);
        wgmma_commit_group();

        trace(WAIT_TURN);
        mbarrier_wait(&smem.P_full, i % 2);
#pragma unroll
        for (int k = 0; k < C::Q / MMA_K; k++) {
            const uint4 four = smem.P_smem[k][tid];
            P_other[k][0] = four.x, P_other[k][1] = four.y, P_other[k][2] = four.z, P_other[k][3] = four.w;
        }
        if (tid == 0 && i + 1 < tiles) mbarrier_arrive_expect_tx(&smem.P_full, sizeof smem.P_smem);
        wgmma_touch(dV[1]);
        wgmma_touch(P_other);
        wgmma_fence();
        multiply_own<T, C>(dV[1], P_other, smem.dO_smem[stage]);
        wgmma_commit_group();
        warp_arrive_cluster(&smem.P_empty, other, lane);
        if constexpr (!FIRST) { // Behind the products of dV: the adding is beside them.
            wgmma_wait_group<2>();
            wgmma_touch(dQ);
            warp_arrive(&smem.dS_empty, lane);
            warp_arrive_cluster(&smem.dS_empty, other, lane);
            part.add(dQ, b, plan, work, rank, 0, tid);
        }
        multiply_S(next);
        wgmma_wait_group<1>();
        wgmma_touch(dV[0]);
        wgmma_touch(P);
        wgmma_touch(dV[1]);
        wgmma_touch(P_other);
        warp_arrive(&smem.dO_empty[stage], lane);
        wgmma_wait_group<0>();
        wgmma_touch(S);
        if (i + 1 < tiles) warp_arrive(&smem.Q_other_empty, lane);
        row = row + C::Q < end_row ? row + C::Q : first_row;
        probabilities_of(next);
        if (i + 1 < tiles) send_P(i + 1);
    };
    if (tiles > 0) {
        multiply_S(0);
        wgmma_wait_group<0>();
        wgmma_touch(S);
        warp_arrive(&smem.Q_other_empty, lane);
        probabilities_of(0);
        send_P(0);
        work_on(0, std::true_type());
        for (int i = 1; i < tiles; i++) work_on(i, std::false_type());
        multiply_dQ(tiles - 1);
        wgmma_wait_group<0>();
        wgmma_touch(dQ);
        part.add(dQ, b, plan, work, rank, 0, tid);
    }

    named_barrier_sync(CONSUMERS_ONLY, CONSUMERS * 128); // The other has multiplied dO as well.
    store_columns<T, C>(dV_map, smem.dO_smem, dV, 1, work, rank, 0, tid);
}

template <typename T, class C>
static __device__ void consume_gradients(ClusterStorage<T, C> &smem, const CUtensorMap &dK_map,
                                         const attention_variant_backward &b, const BackwardPlan &plan,
                                         int rank)
{
    const Work &work = smem.work;
    const int tid = threadIdx.x % 128, lane = tid % 32, other = rank ^ 1;
    const int tiles = work.tiles;
    float dK[2][C::COLS / 2] = {}, dP[C::Q / 2], dQ[C::DQ_REGS] = {}; // dK of own keys, of the other's
    uint32_t dS[C::Q / MMA_K][4] = {};
    PartOfDQ<C> part(work);
    const auto multiply_dP = [&](int i) {
        multiply_scores<T, C>(dP, smem.V_smem, smem.dO_smem, smem.dO_other_smem, smem.dO_full,
                              smem.dO_other_full, i);
    };
    const auto gradient_of_scores = [&](int stage) {
        float P[C::Q / 2];
#pragma unroll
        for (int j = 0; j < C::Q / 2; j += 4) {
            const float4 four = smem.handed_smem[j / 4][tid];
            P[j] = four.x, P[j + 1] = four.y, P[j + 2] = four.z, P[j + 3] = four.w;
        }
        softmax_gradient<T, C::Q>(dP, P, dS, OfColumns<C>(smem.dPsum_smem[stage], tid));
    };
    trace(WAIT_FULL);
    mbarrier_wait(&smem.V_full, 0);
    wgmma_touch(dK[0]); // Their zeros come before the product in flight.
    wgmma_touch(dK[1]);
    wgmma_touch(dQ);
    mbarrier_wait(&smem.K_full, 0);

    if (tiles > 0) {
        multiply_dP(0);
        wgmma_wait_group<0>();
        wgmma_touch(dP);
        warp_arrive(&smem.dO_other_empty, lane);
    }

    for (int i = 0; i < tiles; i++) { // dP of tile i is there, and dQ of the tile before.
        const int stage = i % C::STAGES;
        trace(WAIT_TURN);
        mbarrier_wait(&smem.handed_full, i % 2);
        gradient_of_scores(stage);
        warp_arrive(&smem.handed_empty, lane);
        warp_arrive(&smem.dO_empty[stage], lane);
        wgmma_touch(dK[0]);
        wgmma_touch(dS);
        wgmma_fence();
        multiply_own<T, C>(dK[0], dS, smem.Q_smem[stage]);
        wgmma_commit_group();
        trace(WAIT_EMPTY);
        mbarrier_wait(&smem.dS_empty, i % 2 ^ 1);
        trace(STORE);
        send_dS<T, C>(smem, dS, other, tid);
        multiply_dP(min(i + 1, tiles - 1)); // Behind the last tile once more, for nobody.
        if (i > 0) part.add(dQ, b, plan, work, rank, 1, tid);

        trace(WAIT_TURN);
        mbarrier_wait(&smem.dS_full, i % 2);
        wgmma_touch(dK[1]);
        wgmma_touch(dQ);
        wgmma_fence();
        multiply_others<T, C>(dK[1], smem.dS_smem[1], smem.Q_smem[stage]);
        wgmma_commit_group();
        multiply_dQ_columns<T, C>(dQ, smem, 1);
        wgmma_commit_group();
        wgmma_wait_group<2>();
        wgmma_touch(dP);
        wgmma_touch(dK[0]);
        wgmma_touch(dS);
        if (i + 1 < tiles) warp_arrive(&smem.dO_other_empty, lane);
        wgmma_wait_group<1>();
        wgmma_touch(dK[1]);
        warp_arrive(&smem.Q_empty[stage], lane);
        wgmma_wait_group<0>();
        wgmma_touch(dQ);
        warp_arrive_cluster(&smem.dS_empty, other, lane);
    }
    if (tiles > 0) part.add(dQ, b, plan, work, rank, 1, tid);

    // dV may take the place of dO, which is read here no more. V, dK's place, is read here alone.
    named_barrier_arrive(CONSUMERS_ONLY, CONSUMERS * 128);
    store_columns<T, C>(dK_map, smem.V_smem, dK, rsqrtf(C::D), work, rank, 1, tid);
}

template <typename T, class C>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(NUM_THREADS, 1)
    cluster_kernel(const __grid_constant__ CUtensorMap Q_map,  // boxes of C::Q rows and 64 columns
                   const __grid_constant__ CUtensorMap dO_map, // the same
                   const __grid_constant__ CUtensorMap K_map,  // boxes of C::KEYS rows and C::COLS columns
                   const __grid_constant__ CUtensorMap V_map,  // the same
                   const __grid_constant__ CUtensorMap dK_map, // boxes of 64 rows and columns
                   const __grid_constant__ CUtensorMap dV_map, // the same
                   const __grid_constant__ attention_variant_backward b,
                   const __grid_constant__ BackwardPlan plan)
{
    extern __shared__ __align__(1024) char smem_bytes[];
    ClusterStorage<T, C> &smem = *reinterpret_cast<ClusterStorage<T, C> *>(smem_bytes);
    const int rank = cluster_ctarank();

    // Setup, a thread of three warps each.
    if (threadIdx.x == 32 && !b.deterministic)
        smem.work = find_work<C>(b, plan, make_uint3(blockIdx.x / C::BLOCKS, blockIdx.y, blockIdx.z));
    if (threadIdx.x == 64)
        for (const CUtensorMap *map : {&K_map, &V_map, &Q_map, &dO_map, &dK_map, &dV_map})
            prefetch_tensormap(*map);
    // TMA counts at the barriers, and the other block: they must see them initialised.
    if (threadIdx.x == 0) {
        mbarrier_init(&smem.K_full, 1); // the producer's arrival, and the bytes it expects
        mbarrier_init(&smem.V_full, 1);
        for (int stage = 0; stage < C::STAGES; stage++) {
            mbarrier_init(&smem.Q_full[stage], 1);
            mbarrier_init(&smem.dO_full[stage], 1);
            mbarrier_init(&smem.Q_empty[stage], 4); // the gradients' warps: dK comes after S
            mbarrier_init(&smem.dO_empty[stage], CONSUMERS * 4);
        }
        for (int box = 0; box < C::BOXES; box++) {
            mbarrier_init(&smem.Q_other_full[box], 1);
            mbarrier_init(&smem.dO_other_full[box], 1);
        }
        mbarrier_init(&smem.Q_other_empty, 4);
        mbarrier_init(&smem.dO_other_empty, 4);
        mbarrier_init(&smem.handed_full, 128);
        mbarrier_init(&smem.handed_empty, 4);
        mbarrier_init(&smem.P_full, 1); // and the bytes that the other sends
        mbarrier_init(&smem.P_empty, 4);
        mbarrier_init(&smem.dS_full, 4);            // and the bytes that the other sends
        mbarrier_init(&smem.dS_empty, (1 + 2) * 4); // the scores here, both consumers there
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&smem.P_full, sizeof smem.P_smem);
    }
    cluster_arrive();
    cluster_wait();
    if (b.deterministic) { // Clusters take works as they begin.
        if (rank == 0 && threadIdx.x == 32) {
            const float index = __uint_as_float(atomicAdd(plan.taken, 1));
            for (int to = 0; to < C::BLOCKS; to++) st_shared_cluster(mapa(smem_addr(&smem.index), to), index);
        }
        cluster_arrive();
        cluster_wait();
        if (threadIdx.x == 32) smem.work = find_work<C>(b, plan, place_of(plan, smem.index));
        __syncthreads();
    }
    if (smem.work.first_key >= smem.work.k_len) return; // a number that is nobody's

    if (threadIdx.x < 128) {
        setmaxnreg_dec<PRODUCER_REGS>();
        // dO's first: the other way round ptxas spills two registers.
        if (threadIdx.x / 32 == 1 && elect_one()) produce_dO<T, C>(smem, dO_map, V_map, plan, rank);
        if (threadIdx.x / 32 == 0 && elect_one()) produce_Q<T, C>(smem, Q_map, K_map, plan, rank);
    } else {
        setmaxnreg_inc<CONSUMER_REGS>();
        // The shuffle tells the compiler that all lanes have the same: descriptors then take no registers of a thread.
        const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0) - 1;
        if (consumer == 0)
            consume_scores<T, C>(smem, dV_map, b, plan, rank);
        else
            consume_gradients<T, C>(smem, dK_map, b, plan, rank);
        if (threadIdx.x % 128 == 0) cp_async_bulk_wait_group_read<0>(); // Shared memory ends with the block.
    }
    __syncwarp();
    cluster_arrive(); // The other may still arrive at barriers here.
    cluster_wait();
    trace(END);
}

template <typename T, class C>
static cudaError_t launch_cluster(const attention_variant_backward &b, const BackwardPlan &plan,
                                  cudaStream_t stream)
{
    constexpr int smem_bytes = sizeof(ClusterStorage<T, C>);
    static_assert(smem_bytes <= SMEM_BYTES, "what a block may have");
    return launch_kernel<T, C>(cluster_kernel<T, C>,
                               dim3(plan.works.x * C::BLOCKS, plan.works.y, plan.works.z), smem_bytes, 64,
                               C::KEYS, C::COLS, b, plan, stream);
}
