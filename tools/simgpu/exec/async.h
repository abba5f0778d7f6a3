/* async.h: what the rest of the machine must know of asynchronous copies and mbarriers (exec/async.c). */
#ifndef ASYNC_H
#define ASYNC_H

#include "../sim.h"

/* Forgets what an earlier block left: no mbarrier is live, no copy in flight. */
void async_start_block(struct block *b);
void async_start_warp(struct warp *w);
void async_free_block(struct block *b);
void async_free_warp(struct warp *w);

/* What a split in SPLIT_WAIT_OTHER waits for: "the mbarrier at ...". */
void async_describe_wait(const struct warp *w, const struct split *s, char *out, size_t size);

struct copy;
struct bulk;

/* What a warp has in flight. */
struct async_state {
    struct copy *first, **last; /* cp.async, in the order of issue */
    struct copy *spare;
    u64 issued;                /* copies so far */
    u32 committed[LANES];      /* groups that each lane has closed: the number of the one that is open */
    u32 failed_tests;          /* test_waits in a row that found nothing */
    u64 timed_out;             /* try_waits, by a part of their site, that have done so: only with a seed; */
    u32 tries;                 /* ... those that could have; */
    bool gave_up;              /* ... the last one did, and has not come round again */
    struct bulk *stores;       /* bulk copies from shared memory, in the order of issue: exec/bulk.c */
    u32 bulk_committed[LANES]; /* their groups */
};
struct async_state *warp_async(struct warp *w);

/* For a message on what should have been waited for: it has been, but not to the end. */
const char *async_gave_up(const struct warp *w);

struct mbarrier {
    struct block *block;
    u32 offset; /* in the block's shared memory */
    bool used, live;
    u32 init_warp, init_time; /* who initialised it, and when by the block's clock (exec/proxy.h) */
    u64 init_phase;           /* the cluster's phase that tells the other blocks */
    u64 phase;                /* completed phases */
    u64 seen, missed;         /* ... when a wait last found one over; those that none did */
    s32 pending;              /* arrivals that this phase still needs */
    s32 expected;             /* arrivals that a phase needs */
    s32 tx;                   /* bytes expected and not yet complete */
    s32 deferred;             /* arrivals by cp.async.mbarrier.arrive that have not happened */
    u32 place;                /* among its block's: exec/order.h */
    struct bulk *loads;       /* bulk copies that complete here and have not landed */
    s32 on_way;               /* their bytes */
};

/* The live mbarrier at this offset of a block's shared memory; faults for `lane` of `w` when there is none, or it is not yet
 * visible. `of_copy`: for one that a bulk copy completes, through the async proxy. */
struct mbarrier *async_mbarrier(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 offset);
struct mbarrier *async_mbarrier_of_copy(struct warp *w, const struct inst *in, u32 lane, struct block *b,
                                        u32 offset);

/* Whether this is a copy of NVIDIA's library, which lacks a proxy fence that nobody else could add. */
bool async_of_library(const struct warp *w, const struct inst *in);

/* A bulk copy into the block's shared memory, to this offset of it, that has not landed, or NULL. */
enum { ANYWHERE_IN_BLOCK = 0xffffffff };
const struct bulk *async_open_load(const struct block *b, u32 at);

/* A bulk copy that completes at m is in flight. */
void async_attach(struct warp *w, const struct inst *in, struct mbarrier *m, struct bulk *load);

#endif
