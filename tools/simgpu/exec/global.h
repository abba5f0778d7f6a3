/* global.h: accesses to global memory that nothing orders (exec/global.c).
 *
 * The rule is race.h's: two accesses to a byte, one of them a write, must be ordered by what the program does, or both be strong
 * with a scope that includes the other. Within a cluster, order.h's clocks say what is ordered. Between clusters only global
 * memory can order, by PTX's patterns:
 *
 *      writer                                          reader
 *      data = ...        (any thread of the block)     look at the flag: volatile, relaxed, an atomic
 *      __syncthreads()   if that was not this one      fence.acq_rel.gpu, as __threadfence()
 *      fence.acq_rel.gpu, as __threadfence()           __syncthreads()   for the other threads
 *      flag = ...: volatile, relaxed, an atomic        ... = data
 *
 * .release on the flag does for the writer's fence, .acquire for the reader's. A scope of .cta does for nothing here. What a
 * writer has acquired itself it passes on with what it wrote.
 *
 * fence.sc, which __threadfence() is, may change places with __syncthreads() on either side: every writer's fence, then the flag of
 * one of them; one reader's look, then the fence of each. Two such fences have an order, and were the reader's the first, its look,
 * which is before it, would be before the flag that it has seen.
 *
 * What is known of each other through flags and fences is known.h's, who has accessed a word last record.h's, and what a strong load
 * may see strong.h's.
 *
 * Only allocations that the launch has written to have cells; reads of others cost nothing. Of those from before the first write
 * only each instruction's first by each warp is known, and that to those blocks that run on the same host thread; of several readers
 * one is: so not each race is told. A bulk store counts as a write of the lane that issues it, from then on, a bulk load as
 * a read, of a box of its first row: who waits for its mbarrier knows of it. Of a warp's before the first write only the first by each of
 * four instructions is known. Two bulk stores of one warp are exec/bulk.c's.
 *
 * Between an ordinary write and a bulk copy of what it wrote, or to there, belongs fence.proxy.async, for global memory: whether the block
 * of one of them has executed one since the write is known. */
#ifndef GLOBAL_H
#define GLOBAL_H

#include <pthread.h>

#include "known.h"

void global_start_launch(struct launch *l);
void global_end_launch(void);
void global_start_cluster(struct cluster *c);
void global_start_warp(struct warp *w);
void global_free_cluster(struct cluster *c);
void global_free_warp(struct warp *w);
void global_free_worker(struct worker *worker);

/* The part of global memory that this launch has written to lies between these addresses, or that where reads are looked at for
 * other reasons: footprint.h. */
extern struct written {
    _Atomic u64 low, high;
} global_written;

/* These lanes access `bytes` bytes each of global memory in [low, high), which is an allocation; before a store writes. */
void global_access_now(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how, u64 low, u64 high);
static inline void global_access(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES],
                                 u32 bytes, enum access how, u64 low, u64 high)
{
    if (how & ACCESS_CTA) how &= ~(u32)ACCESS_STRONG;
    if (how & ACCESS_WRITE || (low < global_written.high && high > global_written.low))
        global_access_now(w, in, mask, at, bytes, how, low, high);
}

/* A read, likewise, of an allocation that the launch has not written to: an instruction's first in a block is written down, for when
 * it is. False when it is not: it has been written to, or there is no room for more. */
bool global_read_early(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how);

/* The same for a store of all lanes, one after the other from `at` on. */
void global_write_line(struct warp *w, const struct inst *in, u64 at, u32 bytes, u64 low, u64 high);

/* A bulk store of this lane of w will write these bytes: of `number`, which is 0 at first. From when it has been waited for others may
 * know of it. `reduces`: it adds to what is there, or the like. */
void global_bulk_store(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes, bool reduces,
                       u32 *number);
void global_bulk_waited(const struct warp *w, u32 number);

/* w executes fence.proxy.async, for global memory. */
void global_proxy_fence(const struct warp *w);

/* A bulk load of this lane of w reads these bytes. */
void global_bulk_load(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes);

/* A store of w has been executed: a write that races, but of the value that is there, is only remarked on. */
void global_settle_now(struct warp *w, const struct inst *in);
static inline void global_settle(struct warp *w, const struct inst *in)
{
    if (w->suspects_global) global_settle_now(w, in);
}

/* Around a lane's atomic operation on `bytes` bytes. Who sees what it has left there may know that it is over, and write there as it
 * likes: so that it is the last that has written, as far as is noted, is one step with it for other host threads. */
pthread_mutex_t *global_hold(u64 at, enum order order);
void global_done(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, pthread_mutex_t *held);

/* After a strong read or an atomic of these lanes. */
void global_observe(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                    enum access how, enum order order);

/* Tells of a strong load that no flag orders after what this record is of. */
void global_tell_unordered(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r);

#endif
