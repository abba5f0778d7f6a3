/* order.h: what has happened before what, in a cluster (exec/order.c).
 *
 * Which warp runs first here is chance, and says nothing about a GPU. So what must not overlap is not held against the order
 * in which it happened, but against the one that the program enforces: PTX's causality order (PTX ISA, "Memory Consistency
 * Model"). Every warp has a vector clock: for each actor of the cluster, how far that has come as far as the warp knows. A
 * release (an arrival at a barrier or an mbarrier, barrier.cluster.arrive, a fence) leaves what the warp knows at the
 * barrier, an acquire (the wait there) takes it up:
 *
 *      consumer                                  producer                          knows of the consumer's wgmma
 *      wgmma 7 reads the stage                                                     6
 *      wgmma.wait_group    knows that 7 is done                                    6
 *      mbarrier.arrive     leaves that at `empty`                                  6
 *                                                waits for `empty`                 7
 *                                                cp.async.bulk into the stage      7: right; with 6 a fault, whenever it ran
 *
 * What is ordered by what, and where it is held:
 *
 *      ordinary accesses to shared memory      by all that passes such lists on; race.h. Lanes of one warp, which are not told
 *                                              apart in the lists, by __syncwarp or a barrier (PTX: bar.warp.sync)
 *      ordinary stores, then the async proxy   by fence.proxy.async and the same; proxy.h
 *      bulk copies, products, remote arrivals  by the mbarrier they complete at, by wgmma.wait_group; below
 *
 * Shuffles, votes, ldmatrix, mma and that lanes run together order no memory: none of them synchronises in that model.
 *
 * Three kinds of actors in each block, and what their time counts:
 *
 *      a warp              the block's clock, at its releases; what it did before is known with them
 *      a warpgroup's       its products; it is known which of them are done
 *      tensor core
 *      an mbarrier         its completed phases; the copies that complete there have landed, remote arrivals have come */
#ifndef ORDER_H
#define ORDER_H

#include "../sim.h"

struct mbarrier;

/* The actors of a block. mbarriers initialised after the first 31 share the last place, and are told apart no more. */
enum {
    TRACKED_MBARRIERS = 32,
    ACTOR_WARPGROUP = MAX_WARPS,
    ACTOR_MBARRIER = ACTOR_WARPGROUP + MAX_WARPS / 4,
    ACTORS = ACTOR_MBARRIER + TRACKED_MBARRIERS,
    KEPT_PRODUCTS = 256
};

/* A piece is 16 bytes of shared memory. */
struct block_order {
    u32 length; /* of a clock: ACTORS for each block of the cluster, and the latest warp_clock of a release */
    u32 *clocks;               /* enum clock_of of them */
    u32 *read[ACTOR_MBARRIER]; /* by warp and warpgroup: when it last read each piece; NULL: never any */
    u32 *landing;              /* the copy that brings each piece: its mbarrier | phases by then << 5; or 0 */
    u32 mbarriers;             /* initialised so far */
    struct product_place {
        const struct function *fn;
        const struct inst *in;
        u32 number;
    } products[MAX_WARPS / 4][KEPT_PRODUCTS]; /* the latest of each warpgroup */
    u32 left[NUM_BARRIERS]
            [MAX_WARPS];    /* when each warp that waited left the last phase of each barrier, or 0 */
    struct remote *remotes; /* what other blocks sent here: each warp's latest to each mbarrier */
    u32 remote_count, remote_capacity;
};

/* The clocks of a block: three of each warp, its barriers', and the cluster's, which are those of rank 0. */
enum clock_of {
    CLOCK_NOW,                             /* what the warp knows */
    CLOCK_FENCED = CLOCK_NOW + MAX_WARPS,  /* ... knew at its last fence: what its relaxed arrivals release */
    CLOCK_SEEN = CLOCK_FENCED + MAX_WARPS, /* what its relaxed waits have seen: known at its next fence */
    CLOCK_BARRIER = CLOCK_SEEN + MAX_WARPS,
    CLOCK_ARRIVED = CLOCK_BARRIER + NUM_BARRIERS,        /* left at an mbarrier */
    CLOCK_COMPLETED = CLOCK_ARRIVED + TRACKED_MBARRIERS, /* ... when its last phase was completed */
    CLOCK_LEFT = CLOCK_COMPLETED + TRACKED_MBARRIERS,    /* what the threads that have exited knew */
    CLOCK_CLUSTER_ARRIVED,
    CLOCK_CLUSTER_COMPLETED,
    CLOCK_MEMORY, /* left by fences and releasing stores, wherever they stored */
    CLOCKS
};

void order_start_block(struct block *b);
void order_free_block(struct block *b);

static inline u32 *order_clock(const struct block *b, u32 which)
{
    return b->order->clocks + which * b->order->length;
}

/* ---- Edges; without effect in blocks that have no order ---------------------------------------------------------------------- */

void order_barrier_arrive(struct warp *w, u32 id);
void order_barrier_complete(struct block *b, u32 id);
void order_barrier_leave(struct warp *w, u32 id);
void order_barrier_end(struct block *b, u32 id);
/* A warp that waited for the last phase of the barrier, when w neither did nor knows of any that has left it; else -1. */
s32 order_barrier_open(const struct warp *w, u32 id);

void order_cluster_arrive(struct warp *w, bool relaxed);
void order_cluster_complete(struct cluster *c);
void order_cluster_wait(struct warp *w);

void order_mbarrier_init(struct mbarrier *m);
void order_mbarrier_arrive(struct warp *w, const struct mbarrier *m, bool relaxed);
void order_mbarrier_complete(const struct mbarrier *m);
void order_mbarrier_wait(struct warp *w, const struct mbarrier *m, bool relaxed);

/* A fence; an atomic operation or a store with .release, a load with .acquire. */
void order_fence(struct warp *w);
void order_publish(struct warp *w);
void order_observe(struct warp *w);

/* The lanes of w have synchronised with each other. */
static inline void order_lanes_met(struct warp *w)
{
    w->lanes_met = w->time = ++w->block->clock;
}

/* Product `number` of w's warpgroup is issued; it and those before have been waited for, by w. */
void order_product(struct warp *w, const struct inst *in, u64 number);
void order_products_done(struct warp *w, u64 number);

/* ---- Checks -------------------------------------------------------------------------------------------------------------------- */

/* What w knows, by actor: rank in the cluster x ACTORS + warp. */
static inline const u32 *order_known(const struct warp *w)
{
    return order_clock(w->block, CLOCK_NOW + w->id);
}
static inline bool order_knows_actor(const struct warp *w, u32 actor, u32 when)
{
    return order_known(w)[actor] >= when;
}

/* Whether w knows that warp `writer` of block b is past `when`. */
static inline bool order_knows_warp(const struct warp *w, const struct block *b, u32 writer, u32 when)
{
    return (b == w->block && writer == w->id) ||
           order_knows_actor(w, b->cluster_rank * ACTORS + writer, when);
}

/* An instruction of w reads a piece, 16 bytes, of b's shared memory that a copy has brought: faults when w does not know that
 * it has landed. */
_Noreturn void order_not_landed(struct warp *w, const struct inst *in, u32 lanes, u32 piece);
static inline void order_landed(struct warp *w, const struct inst *in, u32 lanes, const struct block *b,
                                u32 piece)
{
    u32 mark = b->order->landing[piece], actor = b->cluster_rank * ACTORS + ACTOR_MBARRIER;
    if (order_clock(w->block, CLOCK_NOW + w->id)[actor + mark % TRACKED_MBARRIERS] < mark / TRACKED_MBARRIERS)
        order_not_landed(w, in, lanes, piece);
}

/* Where an actor of b notes for each piece when it has read it last, by its own time. */
u32 *order_new_reader(struct block_order *o, u32 actor, u32 shared_bytes);
static inline u32 *order_reader(struct block *b, u32 actor)
{
    u32 *read = b->order->read[actor];
    return read ? read : order_new_reader(b->order, actor, b->shared_bytes);
}

/* An ordinary store of w to b's shared memory: the products of other warpgroups that read these bytes must be done as far as w
 * knows. (Those of its own warpgroup are looked at when they end: exec/wgmma.c.) */
_Noreturn void order_still_read(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 actor,
                                u32 piece, const char *access);
static inline void order_store(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 at,
                               u32 bytes)
{
    const u32 *known = order_known(w) + b->cluster_rank * ACTORS;
    for (u32 actor = ACTOR_WARPGROUP; actor < ACTOR_MBARRIER; actor++) {
        const u32 *read = b->order->read[actor];
        if (!read || (b == w->block && actor == ACTOR_WARPGROUP + w->id / 4)) continue;
        for (u32 k = at / 16; k <= (at + bytes - 1) / 16; k++)
            if (read[k] > known[actor]) order_still_read(w, in, lane, b, actor, k, "store");
    }
}

/* A copy that w issues for `lane` will write these pieces of b's shared memory: everybody who read them, and what was to be
 * written there before, must be done as far as w knows. It completes at m. */
void order_copy(struct warp *w, const struct inst *in, u32 lane, struct block *b, const struct mbarrier *m,
                u32 at, u32 bytes);

/* w has stored to, or arrived at m of (else NULL), shared memory of another block. */
void order_remote(struct warp *w, const struct inst *in, u32 lane, struct block *b, const struct mbarrier *m);

/* Threads of w exit. The last of the block must know that everything which others sent there has come. */
void order_leave(struct warp *w);

#endif
