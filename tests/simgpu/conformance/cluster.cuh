// Clusters: who is where, the shape of addresses, distributed shared memory, barriers, remote mbarriers, st.async; and what else
// Hopper added that is quickly told: elect.sync, setmaxnreg, fences, griddepcontrol, stmatrix's forms.

enum { CLUSTER = 4 };

__device__ static u32 mapa(u32 addr, u32 rank)
{
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
    return r;
}
#define SPECIAL(NAME)                                    \
    [] {                                                 \
        u32 r;                                           \
        asm volatile("mov.u32 %0, " NAME ";" : "=r"(r)); \
        return r;                                        \
    }()
// A predicate as 0 or 1; %1 is the address.
#define PREDICATE(PTX, TYPE, ADDRESS)                                                                     \
    [&] {                                                                                                 \
        u32 r;                                                                                            \
        asm volatile("{ .reg .pred p; " PTX " p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r) : TYPE(ADDRESS)); \
        return r;                                                                                         \
    }()

// ---- Where a block is -------------------------------------------------------------------------------------------------

enum { PLACE_VALUES = 32 };

__global__ void places_kernel(u32 *out)
{
    __shared__ u32 fixed[4];
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 *o = out + PLACE_VALUES * block, n = 0;
    o[n++] = SPECIAL("%%cluster_ctarank");
    o[n++] = SPECIAL("%%cluster_nctarank");
    o[n++] = SPECIAL("%%cluster_ctaid.x"), o[n++] = SPECIAL("%%cluster_ctaid.y");
    o[n++] = SPECIAL("%%cluster_ctaid.z");
    o[n++] = SPECIAL("%%cluster_nctaid.x"), o[n++] = SPECIAL("%%cluster_nctaid.y");
    o[n++] = SPECIAL("%%cluster_nctaid.z");
    o[n++] = SPECIAL("%%clusterid.x"), o[n++] = SPECIAL("%%clusterid.y"), o[n++] = SPECIAL("%%clusterid.z");
    o[n++] = SPECIAL("%%nclusterid.x"), o[n++] = SPECIAL("%%nclusterid.y"),
    o[n++] = SPECIAL("%%nclusterid.z");
    asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(o[n++]));
    // Addresses, but for their low 24 bits, which the compiler chooses
    const u32 own = smem_addr(fixed), count = o[1], rank = o[0];
    o[n++] = own >> 24;
    for (u32 r = 0; r < 4; r++) o[n++] = mapa(own, r % count) ^ (own & 0xffffff);
    o[n++] = mapa(mapa(own, (rank + 1) % count), (rank + 2) % count) ^ (own & 0xffffff);
    u64 generic;
    u32 r;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(fixed), "r"((rank + 1) % count));
    o[n++] = (u32)(generic - ((u64)fixed - own)) ^ (own & 0xffffff); // against the window's start
    asm volatile("getctarank.u64 %0, %1;" : "=r"(r) : "l"(generic));
    o[n++] = r;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(r) : "r"(mapa(own, (rank + 3) % count)));
    o[n++] = r;
    o[n++] = PREDICATE("isspacep.shared::cta", "l", generic);
    o[n++] = PREDICATE("isspacep.shared::cluster", "l", generic);
    o[n++] = PREDICATE("isspacep.shared::cta", "l", (u64)fixed);
    o[n++] = PREDICATE("isspacep.shared::cluster", "l", (u64)fixed);
    o[n++] = PREDICATE("isspacep.global", "l", generic);
}

// PLACES(name, cluster, grid): (0, ...): no cluster asked for
#define PLACES(NAME, X, Y, Z, GX, GY, GZ)                                       \
    static void NAME##_places(u32 *out)                                         \
    {                                                                           \
        cudaLaunchAttribute a = {};                                             \
        a.id = cudaLaunchAttributeClusterDimension;                             \
        a.val.clusterDim.x = X, a.val.clusterDim.y = Y, a.val.clusterDim.z = Z; \
        cudaLaunchConfig_t c = {};                                              \
        c.gridDim = dim3(GX, GY, GZ), c.blockDim = dim3(1);                     \
        c.attrs = &a, c.numAttrs = X > 0;                                       \
        CUDA_CHECK(cudaLaunchKernelEx(&c, places_kernel, out));                 \
    }                                                                           \
    PLAIN(NAME, 0, PLACE_VALUES * 4 * (GX) * (GY) * (GZ), NAME##_places((u32 *)out))
PLACES(cluster_places_none, 0, 0, 0, 3, 2, 1)
PLACES(cluster_places_1, 1, 1, 1, 3, 2, 2)
PLACES(cluster_places_2, 2, 1, 1, 6, 2, 2)
PLACES(cluster_places_8, 8, 1, 1, 16, 2, 1)
PLACES(cluster_places_2x2, 2, 2, 1, 4, 6, 1)
PLACES(cluster_places_1x4, 1, 4, 1, 3, 8, 1)
PLACES(cluster_places_2x1x3, 2, 1, 3, 4, 2, 6)
PLACES(cluster_places_1x2x4, 1, 2, 4, 2, 4, 4)

// ---- Distributed shared memory ----------------------------------------------------------------------------------------

// Every thread reads what its counterpart in the next block wrote, in every width, and writes into the one after that.
__global__ void __cluster_dims__(CLUSTER, 1, 1) distributed_kernel(u32 *out, const u32 *in)
{
    __shared__ __align__(16) u32 data[128], box[128];
    const u32 t = threadIdx.x, rank = blockIdx.x % CLUSTER, from = (rank + 1) % CLUSTER,
              to = (rank + 2) % CLUSTER;
    for (u32 i = t; i < 128; i += 32) data[i] = in[(blockIdx.x * 128 + i) % 1024], box[i] = 0;
    cluster_sync();
    const u32 at = mapa(smem_addr(data), from);
    u64 generic, big;
    u32 r[8];
    u16 half;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at + 16 * (31 - t))
                 : "memory");
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(big) : "r"(at + 8 * t) : "memory");
    asm volatile("ld.shared::cluster.s8 %0, [%1];" : "=r"(r[4]) : "r"(at + t) : "memory");
    asm volatile("ld.relaxed.cluster.shared::cluster.u16 %0, [%1];"
                 : "=h"(half)
                 : "r"(at + 2 * t)
                 : "memory");
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&data[t]), "r"(from));
    r[5] = *(volatile u32 *)generic;
    asm volatile("ld.acquire.cluster.u32 %0, [%1];" : "=r"(r[6]) : "l"(generic + 256) : "memory");
    const u32 there = mapa(smem_addr(box), to);
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there + 4 * t), "r"(r[0]) : "memory");
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(there + 128 + 8 * (t ^ 3)), "r"(r[1]),
                 "r"(r[2])
                 : "memory");
    asm volatile("st.release.cluster.shared::cluster.u8 [%0], %1;" ::"r"(there + 384 + t), "r"(r[3])
                 : "memory");
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&box[104 + t % 24]), "r"(to));
    if (t < 24) *(volatile u32 *)generic = r[4];
    cluster_sync();
    u32 *const o = out + blockIdx.x * 32 * 16 + t * 16;
    for (int i = 0; i < 7; i++) o[i] = r[i];
    o[7] = half, o[8] = (u32)big, o[9] = (u32)(big >> 32);
    for (int i = 0; i < 4; i++) o[10 + i] = box[4 * t + i];
    o[14] = o[15] = 0;
}
PLAIN(cluster_shared_memory, 4096, 8 * 32 * 16 * 4, distributed_kernel<<<8, 32>>>((u32 *)out, (u32 *)in[0]))

// Atomics on a word of another block that no other thread touches: what they return and what they leave.
#define REMOTE_ATOM(K, PTX)                                      \
    asm volatile("atom." PTX " %0, [%1], %2;"                    \
                 : "=r"(o[K])                                    \
                 : "r"(at + 4 * K), "r"(in[(t * 16 + K) % 1024]) \
                 : "memory");
__global__ void __cluster_dims__(CLUSTER, 1, 1) remote_atomics_kernel(u32 *out, const u32 *in)
{
    __shared__ __align__(16) u32 data[32 * 16];
    const u32 t = threadIdx.x, rank = blockIdx.x % CLUSTER;
    for (u32 i = t; i < 32 * 16; i += 32) data[i] = in[(blockIdx.x * 64 + i) % 1024];
    cluster_sync();
    const u32 at = mapa(smem_addr(data + 16 * t), (rank + 1) % CLUSTER);
    u32 *const o = out + (blockIdx.x * 32 + t) * 32;
    REMOTE_ATOM(0, "shared::cluster.add.u32")
    REMOTE_ATOM(1, "relaxed.cluster.shared::cluster.min.s32")
    REMOTE_ATOM(2, "acq_rel.cluster.shared::cluster.max.u32")
    REMOTE_ATOM(3, "shared::cluster.and.b32")
    REMOTE_ATOM(4, "shared::cluster.or.b32")
    REMOTE_ATOM(5, "shared::cluster.xor.b32")
    REMOTE_ATOM(6, "shared::cluster.exch.b32")
    REMOTE_ATOM(7, "shared::cluster.inc.u32")
    REMOTE_ATOM(8, "shared::cluster.dec.u32")
    asm volatile(
        "atom.shared::cluster.cas.b32 %0, [%1], %2, %3;"
        : "=r"(o[9])
        : "r"(at + 36),
          "r"(t % 2 ? 0
                    : in[((blockIdx.x / CLUSTER * CLUSTER + (rank + 1) % CLUSTER) * 64 + 16 * t + 9) % 1024]),
          "r"(77)
        : "memory");
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(at + 40), "r"(t) : "memory");
    asm volatile("red.shared::cluster.max.s32 [%0], %1;" ::"r"(at + 44), "r"(in[t]) : "memory");
    o[10] = o[11] = 0;
    u64 generic, old;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(data + 16 * t + 12), "r"((rank + 1) % CLUSTER));
    asm volatile("atom.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(generic), "l"(0x1234567890ull * t)
                 : "memory");
    o[12] = (u32)old, o[13] = (u32)(old >> 32);
    asm volatile("atom.exch.b32 %0, [%1], %2;" : "=r"(o[14]) : "l"(generic + 8), "r"(t) : "memory");
    o[15] = 0;
    cluster_sync();
    for (int i = 0; i < 16; i++) o[16 + i] = data[16 * t + i];
}
PLAIN(cluster_atomics, 4096, 8 * 32 * 32 * 4, remote_atomics_kernel<<<8, 32>>>((u32 *)out, (u32 *)in[0]))

// All blocks add to one word of block 0 and take the maximum of another; the order cannot be seen in the result.
__global__ void __cluster_dims__(CLUSTER, 1, 1) gathered_kernel(u32 *out, const u32 *in)
{
    __shared__ u32 word[2];
    const u32 t = threadIdx.x, at = mapa(smem_addr(word), 0), x = in[(blockIdx.x * 64 + t) % 1024];
    if (t < 2) word[t] = 0;
    cluster_sync();
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
    asm volatile("red.relaxed.cluster.shared::cluster.max.u32 [%0], %1;" ::"r"(at + 4), "r"(x) : "memory");
    cluster_sync();
    if (t < 2) out[blockIdx.x * 2 + t] = word[t];
}
PLAIN(cluster_gathered, 4096, 8 * 2 * 4, gathered_kernel<<<8, 64>>>((u32 *)out, (u32 *)in[0]))

// ---- barrier.cluster and remote mbarriers -----------------------------------------------------------------------------

// Four turns of handing numbers round, each behind another form of the barrier.
__global__ void __cluster_dims__(CLUSTER, 1, 1) cluster_barriers_kernel(u32 *out)
{
    __shared__ u32 box[2][64];
    const u32 t = threadIdx.x, rank = blockIdx.x % CLUSTER;
    u32 value = blockIdx.x * 1000 + t;
    for (u32 turn = 0; turn < 8; turn++) {
        const u32 to = mapa(smem_addr(&box[turn % 2][(t + turn) % 64]), (rank + 1 + turn) % CLUSTER);
        if (turn == 0) cluster_sync(); // all have started
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
        switch (turn % 4) {
        case 0:
            asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
            break;
        case 1:
            asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                             : "memory");
            break;
        case 2:
            asm volatile("fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::
                             : "memory");
            break;
        default: asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait.aligned;" ::: "memory");
        }
        value = value * 5 + box[turn % 2][t];
    }
    cluster_sync();
    out[blockIdx.x * 64 + t] = value;
}
PLAIN(cluster_barriers, 0, 8 * 64 * 4, cluster_barriers_kernel<<<8, 64>>>((u32 *)out))

// Block 0 collects arrivals, with their counts and bytes, and writes what the barrier then holds.
__global__ void __cluster_dims__(CLUSTER, 1, 1) remote_arrivals_kernel(u32 *out)
{
    __shared__ __align__(8) u64 barrier;
    __shared__ u32 box[CLUSTER];
    const u32 rank = blockIdx.x % CLUSTER, bar = smem_addr(&barrier);
    if (threadIdx.x == 0) bar_init(&barrier, 1 + 2 + 3 + 4 + CLUSTER + 3);
    cluster_sync();
    const u32 to = mapa(bar, 0);
    if (threadIdx.x == 0) {
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(mapa(smem_addr(&box[rank]), 0)),
                     "r"(7 + blockIdx.x)
                     : "memory");
        asm volatile("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(to),
                     "r"(24 + rank)
                     : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(to),
                     "r"(1 + rank)
                     : "memory");
        asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 16;" ::"r"(to)
                     : "memory");
        asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(to),
                     "r"(40 + rank)
                     : "memory");
        if (rank == 1)
            asm volatile("mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%0], 3;" ::"r"(to)
                         : "memory");
    }
    if (rank == 0) {
        while (!MB_WAIT("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", "r", 0)) {
        }
        if (threadIdx.x < CLUSTER) out[blockIdx.x + threadIdx.x] = box[threadIdx.x];
    }
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
        *(u64 *)(out + 8 + blockIdx.x / 2) = *(volatile u64 *)&barrier;
    }
}

PLAIN(cluster_remote_mbarrier, 0, 12 * 4, remote_arrivals_kernel<<<8, 32>>>((u32 *)out))

// ---- st.async ---------------------------------------------------------------------------------------------------------

// Half of the lanes of each block send to their own block and to the next one, whose mbarrier counts the bytes of both.
enum { SENDERS = 0x6b1d83c5 };
#define SEND_VALUES_1 "%2"
#define SEND_VALUES_2 "{%2, %3}"
#define SEND_VALUES_4 "{%2, %3, %4, %5}"
#define ST_ASYNC(NAME, PTX, T, LETTER, COUNT, ADDRESS)                                             \
    __global__ void __cluster_dims__(CLUSTER, 1, 1) NAME##_kernel(u32 *out, const u32 *in)         \
    {                                                                                              \
        enum { WORDS = 32 * COUNT * sizeof(T) / 4 };                                               \
        __shared__ __align__(16) T box[2][32 * COUNT];                                             \
        __shared__ __align__(8) u64 bar;                                                           \
        const u32 t = threadIdx.x, rank = blockIdx.x;                                              \
        T v[4] = {};                                                                               \
        for (u32 i = t; i < 2 * WORDS; i += 32) ((u32 *)box)[i] = 0xabababab;                      \
        memcpy(v, in + (rank * 32 + t) * COUNT * sizeof(T) / 4, COUNT * sizeof(T));                \
        if (t == 0) {                                                                              \
            bar_init(&bar, 1);                                                                     \
            bar_expect(&bar, 2 * 16 * COUNT * sizeof(T));                                          \
        }                                                                                          \
        cluster_sync();                                                                            \
        for (u32 other = 0; other < 2 && (SENDERS >> t & 1); other++) {                            \
            const u32 to = (rank + other) % CLUSTER;                                               \
            asm volatile(PTX " [%0], " SEND_VALUES_##COUNT                                         \
                         ", [%1];" ::ADDRESS(&box[other][(5 * t + 3) % 32 * COUNT], to),           \
                         ADDRESS(&bar, to), LETTER(v[0]), LETTER(v[1]), LETTER(v[2]), LETTER(v[3]) \
                         : "memory");                                                              \
        }                                                                                          \
        const bool done = bar_wait(&bar, 0);                                                       \
        for (u32 i = t; i < 2 * WORDS; i += 32)                                                    \
            out[rank * 2 * WORDS + i] = done ? ((volatile u32 *)box)[i] : 0xee;                    \
        cluster_sync();                                                                            \
    }                                                                                              \
    PLAIN(NAME, CLUSTER * 32 * COUNT * sizeof(T), CLUSTER * 2 * 32 * COUNT * sizeof(T),            \
          NAME##_kernel<<<CLUSTER, 32>>>((u32 *)out, (u32 *)in[0]))
#define SEND_CLUSTER(P, RANK) "r"(mapa(smem_addr(P), RANK))
#define SEND_GENERIC(P, RANK) "l"(mapa_generic(P, RANK))
__device__ static u64 mapa_generic(const void *p, u32 rank)
{
    u64 r;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(p), "r"(rank));
    return r;
}
#define ST_ASYNC_SINGLE_AND_PAIR(TYPE, T, LETTER)                                                           \
    ST_ASYNC(st_async_##TYPE, "st.async.shared::cluster.mbarrier::complete_tx::bytes." #TYPE, T, LETTER, 1, \
             SEND_CLUSTER)                                                                                  \
    ST_ASYNC(st_async_v2_##TYPE, "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2." #TYPE, T, \
             LETTER, 2, SEND_CLUSTER)
#define ST_ASYNC_WORDS(TYPE, T, LETTER)                                                                \
    ST_ASYNC_SINGLE_AND_PAIR(TYPE, T, LETTER)                                                          \
    ST_ASYNC(st_async_v4_##TYPE, "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4." #TYPE, T, \
             LETTER, 4, SEND_CLUSTER)
ST_ASYNC_WORDS(b32, u32, "r")
ST_ASYNC_WORDS(u32, u32, "r")
ST_ASYNC_WORDS(s32, s32, "r")
ST_ASYNC_WORDS(f32, float, "f")
ST_ASYNC_SINGLE_AND_PAIR(b64, u64, "l")
ST_ASYNC_SINGLE_AND_PAIR(u64, u64, "l")
ST_ASYNC_SINGLE_AND_PAIR(s64, s64, "l")
ST_ASYNC_SINGLE_AND_PAIR(f64, double, "d")
ST_ASYNC(st_async_generic_u32, "st.async.mbarrier::complete_tx::bytes.u32", u32, "r", 1, SEND_GENERIC)
ST_ASYNC(st_async_generic_v2_b64, "st.async.weak.mbarrier::complete_tx::bytes.v2.b64", u64, "l", 2,
         SEND_GENERIC)

// Everybody sends to everybody, eight times, through two boxes.
__global__ void __cluster_dims__(CLUSTER, 1, 1) st_async_rounds_kernel(u32 *out)
{
    __shared__ u32 box[2][32];
    __shared__ __align__(8) u64 bar[2];
    const u32 t = threadIdx.x, rank = blockIdx.x % CLUSTER, to = t / 8;
    u32 value = blockIdx.x * 1000 + t;
    for (u32 i = 0; i < 2 && t == 0; i++) {
        bar_init(&bar[i], 1);
        bar_expect(&bar[i], 128);
    }
    cluster_sync();
    for (u32 turn = 0; turn < 8; turn++) {
        const u32 i = turn % 2;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                         mapa(smem_addr(&box[i][rank * 8 + t % 8]), to)),
                     "r"(value), "r"(mapa(smem_addr(&bar[i]), to))
                     : "memory");
        const bool done = bar_wait(&bar[i], turn / 2 & 1);
        value = done ? value * 5 + ((volatile u32 *)box[i])[t] : 0xee;
        if (t == 0 && turn < 6) bar_expect(&bar[i], 128);
        __syncwarp();
    }
    out[blockIdx.x * 32 + t] = value;
    cluster_sync();
}
PLAIN(st_async_rounds, 0, 2 * CLUSTER * 32 * 4, st_async_rounds_kernel<<<2 * CLUSTER, 32>>>((u32 *)out))

// ---- elect.sync, setmaxnreg, fences, griddepcontrol -------------------------------------------------------------------

enum { MASKS = 128 };
static void draw_masks(const struct variant *v, u8 **inputs)
{
    (void)v;
    u32 *const mask = (u32 *)inputs[0];
    for (u32 i = 0; i < MASKS; i++) {
        const u64 r = random_u64();
        switch (i % 4) {
        case 0: mask[i] = i / 4 < LANES ? 1u << i / 4 : ~0u; break;
        case 1: mask[i] = ~0u << r % LANES; break;
        case 2: mask[i] = (u32)(r & r >> 32); break;
        default: mask[i] = (u32)r;
        }
        if (i == 127) mask[i] = ~0u;
        if (!mask[i]) mask[i] = 1u << r % LANES;
    }
}
__global__ void elect_kernel(u32 *out, const u32 *masks)
{
    const u32 mask = masks[blockIdx.x];
    u32 lane = 99, chosen = 99;
    if (mask >> threadIdx.x & 1)
        asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }"
                     : "=r"(lane), "=r"(chosen)
                     : "r"(mask)
                     : "memory");
    out[(blockIdx.x * LANES + threadIdx.x) * 2] = lane;
    out[(blockIdx.x * LANES + threadIdx.x) * 2 + 1] = chosen;
}
static void elect_launch(u8 *out, u8 *const *in)
{
    elect_kernel<<<MASKS, LANES>>>((u32 *)out, (u32 *)in[0]);
}
VARIANT(elect_sync, draw_masks, elect_launch, NULL, MASKS *LANES * 8, 8, MASKS * 4)

// Warpgroup 0 gives registers up, the others take them, and all compute on.
#define SETMAXNREG(NAME, THREADS, BLOCKS, FEW, MANY)                                                    \
    __global__ void __launch_bounds__(THREADS, BLOCKS) NAME##_kernel(u32 *out, const u32 *in)           \
    {                                                                                                   \
        u32 x = in[threadIdx.x];                                                                        \
        if (threadIdx.x < 128) {                                                                        \
            asm volatile("setmaxnreg.dec.sync.aligned.u32 " #FEW ";");                                  \
            for (int i = 0; i < 10; i++) x = x * 3 + in[(x >> 8) % 512];                                \
        } else {                                                                                        \
            asm volatile("setmaxnreg.inc.sync.aligned.u32 " #MANY ";");                                 \
            u32 y[64];                                                                                  \
            _Pragma("unroll") for (int i = 0; i < 64; i++) y[i] = in[(threadIdx.x + 7 * i) % 512];      \
            for (int turn = 0; turn < 4; turn++)                                                        \
                _Pragma("unroll") for (int i = 0; i < 64; i++) y[i] = y[i] * 5 + (y[(i + 1) % 64] ^ x); \
            _Pragma("unroll") for (int i = 0; i < 64; i++) x += y[i];                                   \
        }                                                                                               \
        out[blockIdx.x * THREADS + threadIdx.x] = x;                                                    \
    }                                                                                                   \
    PLAIN(NAME, 2048, 4 * THREADS * 4, NAME##_kernel<<<4, THREADS>>>((u32 *)out, (u32 *)in[0]))
SETMAXNREG(setmaxnreg_3_warpgroups, 384, 1, 40, 232)
SETMAXNREG(setmaxnreg_2_blocks, 256, 2, 40, 208)

// A neighbour's number through global and shared memory, behind each fence in turn.
#define FENCE(PTX)                      \
    box[t] = x;                         \
    asm volatile(PTX ";" ::: "memory"); \
    __syncthreads();                    \
    x = x * 3 + box[t ^ 1];             \
    __syncthreads();
__global__ void fences_kernel(u32 *out, const u32 *in)
{
    __shared__ u32 box[64];
    const u32 t = threadIdx.x;
    u32 x = in[t];
    FENCE("fence.sc.cta")
    FENCE("fence.acq_rel.cta")
    FENCE("fence.sc.cluster")
    FENCE("fence.acq_rel.cluster")
    FENCE("fence.sc.gpu")
    FENCE("fence.acq_rel.gpu")
    FENCE("fence.acq_rel.sys")
    FENCE("fence.acquire.cluster")
    FENCE("fence.release.cluster")
    FENCE("fence.proxy.alias")
    FENCE("fence.proxy.async")
    FENCE("fence.proxy.async.global")
    FENCE("fence.proxy.async.shared::cta")
    FENCE("fence.proxy.async.shared::cluster")
    FENCE("fence.mbarrier_init.release.cluster")
    FENCE("fence.proxy.tensormap::generic.release.gpu")
    FENCE("fence.proxy.tensormap::generic.release.cta")
    FENCE("griddepcontrol.launch_dependents")
    FENCE("griddepcontrol.wait")
    out[t] = x;
}
PLAIN(fences_and_griddepcontrol, 256, 256, fences_kernel<<<1, 64>>>((u32 *)out, (u32 *)in[0]))

// ---- stmatrix, the rest of its forms ----------------------------------------------------------------------------------

STMATRIX(stmatrix_x1_cta, "stmatrix.sync.aligned.m8n8.x1.shared::cta.b16", "{%1}", "r"(r[0]))
STMATRIX(stmatrix_x4_trans_cta, "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16", "{%1, %2, %3, %4}",
         "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))
