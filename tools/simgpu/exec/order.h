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
 *                                              apart in the lists, by __syncwarp or a barrier (PTX: bar.warp.sync); and what
 *                                              a lane did by an arrival of its own, or of another's after one of these
 *      ordinary stores, then the async proxy   by fence.proxy.async and the same; proxy.h
 *      bulk copies, products, remote arrivals  by the mbarrier they complete at, by wgmma.wait_group; below
 *
 * Shuffles, votes, ldmatrix, mma and that lanes run together order no memory: none of them synchronises in that model. Two things that
 * libraries rely on are let pass all the same: order_executed_together, and stmatrix over what ldmatrix of the same warp has read
 * (race.c).
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
#include "known.h"

struct mbarrier;

/* The actors of a block. mbarriers initialised after the first 31 share the last place, and are told apart no more. */
enum {
    TRACKED_MBARRIERS = 32,
    ACTOR_WARPGROUP = MAX_WARPS,
    ACTOR_MBARRIER = ACTOR_WARPGROUP + MAX_WARPS / 4,
    ACTORS = ACTOR_MBARRIER + TRACKED_MBARRIERS,
    KEPT_PRODUCTS = 256
};

/* What is said where it is lanes that have not. */
#define ORDER_OTHER_LANE \
    " (another lane of that warp has arrived since, which says nothing of this one: __syncwarp() before the arrival)"

/* A piece is 16 bytes of shared memory. */
struct block_order {
    u32 length; /* of a clock: ACTORS for each block of the cluster, and the latest warp_clock of a release */
    u32 *clocks; /* enum clock_of of them */
    u32 pieces;  /* of shared memory */
    u32 *read
        [ACTOR_MBARRIER]; /* by warp and warpgroup: when it last read each piece; then, of a warp, by which lanes */
    u32 *landing;         /* the copy that brings each piece: its mbarrier | phases by then << 5; or 0 */
    u32 mbarriers;        /* initialised so far */
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

void order_barrier_arrive(struct warp *w, u32 id, u32 lanes);
void order_barrier_complete(struct block *b, u32 id);
void order_barrier_leave(struct warp *w, u32 id);
void order_barrier_end(struct block *b, u32 id);
/* A warp that waited for the last phase of the barrier, when w neither did nor knows of any that has left it; else -1. */
s32 order_barrier_open(const struct warp *w, u32 id);

void order_cluster_arrive(struct warp *w, u32 lanes, bool relaxed);
void order_cluster_complete(struct cluster *c);
void order_cluster_wait(struct warp *w);

void order_mbarrier_init(struct mbarrier *m);
void order_mbarrier_arrive(struct warp *w, u32 lanes, const struct mbarrier *m, bool relaxed);
void order_mbarrier_complete(const struct mbarrier *m);
void order_mbarrier_wait(struct warp *w, const struct mbarrier *m, bool relaxed);

/* A fence; an atomic operation or a store with .release, a load with .acquire. */
void order_fence(struct warp *w, u32 lanes);
void order_publish(struct warp *w, u32 lanes);
void order_observe(struct warp *w);

/* What these lanes of w did until `time` is passed on by a release, or all lanes have met. Meetings that follow each other are one. */
static inline void order_pass(struct warp *w, u32 time, u32 lanes, bool met)
{
    struct passed *last = &w->passed[(w->passed_count - 1) % PASSED];
    if (!lanes) return;
    if (!met || !w->passed_count || !last->met) last = &w->passed[w->passed_count++ % PASSED];
    *last = (struct passed){time, lanes, met};
    w->global_lanes &= ~lanes;
    if (w->global_lanes || w->parted) known_passed(w, time, lanes);
}

/* The lanes of w have synchronised with each other. */
static inline void order_lanes_met(struct warp *w)
{
    order_pass(w, w->block->clock, ALL_LANES, true);
    w->lanes_met = w->time = ++w->block->clock;
}

/* Lanes have met some others each, `with`; others may have met nobody. */
void order_some_met(struct warp *w, const u32 with[LANES]);
/* Whether one of `readers` has met one of `writers` so since `when`, or one that has; 0: it is not known which lanes they are. */
bool order_met(const struct warp *w, u32 when, u32 writers, u32 readers);
/* When a lane last met one of these, or one that has since; 0: not since all lanes met. */
u32 order_met_until(const struct warp *w, u32 lane, u32 lanes);

/* ... have executed an instruction for the whole warp. That orders no memory, but who has come so far has issued what stood before:
 * DeepGEMM lets one lane arrive for its warp behind wgmma.wait_group. */
static inline void order_executed_together(struct warp *w)
{
    order_pass(w, w->block->clock, ALL_LANES, true);
    w->time = ++w->block->clock;
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

/* Whether w knows that warp `other` of block b is past `when`. */
static inline bool order_knows_warp(const struct warp *w, const struct block *b, u32 other, u32 when)
{
    return (b == w->block && other == w->id) || order_knows_actor(w, b->cluster_rank * ACTORS + other, when);
}

/* Of these lanes of warp `other` of block b, past `when` as w knows, those which have themselves passed on what they did then, or
 * met one that has since. 0: there is none that w cannot know of. What was long ago is forgotten, and taken to be known. */
u32 order_not_passed(const struct warp *w, const struct block *b, u32 other, u32 when, u32 lanes);

/* Until when w knows of all lanes of warp `other` of block b. */
static inline u32 order_known_of_all(const struct warp *w, const struct block *b, u32 other)
{
    const struct warp *x = &b->warps[other];
    u32 known = order_known(w)[b->cluster_rank * ACTORS + other];
    for (u32 k = x->passed_count; k > 0 && x->passed_count - k < PASSED; k--) {
        const struct passed *p = &x->passed[(k - 1) % PASSED];
        if (p->time <= known && p->lanes == ALL_LANES) return p->time;
    }
    return 0;
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
u32 *order_new_reader(struct block_order *o, u32 actor);
static inline u32 *order_reader(struct block *b, u32 actor)
{
    u32 *read = b->order->read[actor];
    return read ? read : order_new_reader(b->order, actor);
}

/* These lanes of w read a piece of its block: `read` is the warp's. Lanes that have read it since the last release are kept. */
static inline void order_read(const struct warp *w, u32 *read, u32 piece, u32 lanes)
{
    u32 *by = &read[w->block->order->pieces + piece];
    u32 last = w->passed_count ? w->passed[(w->passed_count - 1) % PASSED].time : 0;
    *by = (read[piece] > last ? *by : 0) | lanes;
    read[piece] = w->block->clock;
}

/* An ordinary store of w to b's shared memory: the products of other warpgroups that read these bytes must be done as far as w
 * knows. (Those of its own warpgroup are looked at when they end: exec/wgmma.c.) */
_Noreturn void order_still_read(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 actor,
                                u32 lanes, u32 piece, const char *access);
static inline void order_store(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 at,
                               u32 bytes)
{
    const u32 *known = order_known(w) + b->cluster_rank * ACTORS;
    for (u32 actor = ACTOR_WARPGROUP; actor < ACTOR_MBARRIER; actor++) {
        const u32 *read = b->order->read[actor];
        if (!read || (b == w->block && actor == ACTOR_WARPGROUP + w->id / 4)) continue;
        for (u32 k = at / 16; k <= (at + bytes - 1) / 16; k++)
            if (read[k] > known[actor]) order_still_read(w, in, lane, b, actor, 0, k, "store");
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
