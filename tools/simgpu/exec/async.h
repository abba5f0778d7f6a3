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

/* The live mbarrier at this offset of a block's shared memory; faults for `lane` of `w` when there is none. */
struct mbarrier *async_mbarrier(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 offset);

#endif
