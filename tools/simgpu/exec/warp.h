/* warp.h: how a warp runs, and how its lanes part and meet (exec/warp.c). */
#ifndef WARP_H
#define WARP_H

#include "../sim.h"

/* Sets up a block's warps at the kernel's entry. */
void warp_start(struct warp *w, struct block *b, u32 id);
void warp_free_frames(struct warp *w);

/* Runs up to `quantum` instructions. False when no split of the warp can go on: all wait, or all lanes have exited. */
bool warp_run(struct warp *w, s32 quantum);

/* The last resort before a deadlock is reported: lets lanes go on that wait to meet one that waits for an mbarrier, since
 * they may be the ones to arrive there. False when that makes no split ready. */
bool warp_release(struct warp *w);

/* `in`, the instruction that is being executed, is the last of its run of plain ones: what follows is looked at anew. */
void warp_leave_run(struct warp *w, const struct inst *in);

/* `in`, the instruction that is being executed, has changed what decides about the loop that runs the warp. */
void warp_change_loop(struct warp *w, const struct inst *in);

/* Parks the current split at `pc` (an instruction index) until somebody makes it ready again. */
void warp_park(struct warp *w, enum split_state state, u32 pc);

/* Sends the lanes `taken` of the current split to instruction `target`; its other lanes go on. They meet at `meet`. */
void warp_diverge(struct warp *w, u32 taken, u32 target, s32 meet);

/* The same for a branch over `in->aux` plain instructions, to where its lanes meet: mostly without making splits of them. */
void warp_skip(struct warp *w, const struct inst *in, u32 taken);

/* Called by the current split at instruction `index`: dissolves it into its parent when it was to meet the others here. */
void warp_arrive(struct warp *w, u32 index);

/* Ends lanes of the current split. */
void warp_exit(struct warp *w, u32 lanes);

/* Makes sure that all live lanes in `want` stand at this instruction, or, for ANYWHERE, at one with the same executor.
 * Returns the lanes to execute for, those of the splits in w->gathered included, which have been moved past it. Returns 0
 * when there is nothing left to do: the current split was parked to wait for the others; or lanes had come through another
 * call of this function, with registers of their own, and the instruction has been executed for all of them (EXCHANGE, for
 * instructions that read other lanes' registers). */
enum gather { TOGETHER, ANYWHERE, EXCHANGE };
u32 warp_gather(struct warp *w, const struct inst *in, u32 mask, u32 want, enum gather how);

/* Makes one split of two that stand at the same instruction and have the same way ahead, as after a barrier: lanes that were
 * let go alone (warp_release) are no longer apart then. False when their ways differ. */
bool warp_join(struct warp *w, s32 into, s32 other);

/* Calls and returns. */
void warp_call(struct warp *w, const struct inst *in, const struct function *callee);
void warp_return(struct warp *w);

/* All lanes of w have exited: its warpgroup must have executed as many setmaxnreg (exec/control.c). */
void registers_leave(struct warp *w);

/* Whether the barrier is complete now that a thread arrived or exited; if so its waiters become ready. */
void barrier_check(struct block *b, u32 id);

/* The same for barrier.cluster. */
void cluster_check(struct cluster *c);
/* These lanes exit: those that have arrived at barrier.cluster count no more. */
void cluster_leave(struct warp *w, u32 lanes);

/* Ends the warp's turn: others come sooner. */
static inline void warp_give_way(struct warp *w)
{
    w->executed -= (u64)(s64)w->budget; /* what is left of the turn counts as executed otherwise */
    w->budget = 0;
}

/* What %clock reads: warp instructions since the block began, along the longest chain that ends here. The warp's own are on
 * it; where it has waited at a barrier, those of the warp whose arrival it waited for (exec/order.c). As if all warps ran side
 * by side and each instruction took as long: what runs beside what, and who waits for whom, but no time. */
static inline u64 warp_clock(const struct warp *w)
{
    return w->ahead + w->executed + (u64)(w->turn - (w->unused_budget < 0 ? w->budget : w->unused_budget));
}

/* The warp has waited for something that happened at this time. */
static inline void warp_waited(struct warp *w, u32 until)
{
    u64 now = warp_clock(w);
    if (until > now) w->ahead += until - now;
}

/* `in` has looked, for these lanes, at memory that others change, `bytes` bytes at each address. One that sees there what it
 * saw the last time waits for it to change, and gives up its turn. `saw`: the lanes' bytes through warp_saw, from 0. */
void warp_poll(struct warp *w, const struct inst *in, u32 lanes, const u64 at[LANES], u32 bytes, u64 saw);
static inline u64 warp_saw(u64 saw, const u8 *at, u32 bytes)
{
    for (u32 k = 0; k < bytes; k++) saw = (saw ^ at[k]) * 1099511628211u;
    return saw;
}

/* Whether the warp does nothing but wait for memory that is still what it saw. */
bool warp_waits(struct warp *w);

/* After what other warps may wait for, an atomic, a strong store or an arrival, a seed has the warp lose its turn every other
 * time: so what must not come in between does. */
static inline void warp_published(struct warp *w)
{
    if (options.seed && w->budget > 0 && ((u32)w->budget * 2654435761u) >> 31) warp_give_way(w);
}

static inline u32 warp_index_of(const struct warp *w, const struct inst *in)
{
    return (u32)(in - w->frame->fn->code);
}

/* Whether `in` is inlined from a file whose path holds this. */
bool warp_inlined_from(const struct warp *w, const struct inst *in, const char *path);

/* The lanes that each lane reads from in this shfl (exec/exchange.c). */
void exchange_sources(struct warp *w, const struct inst *in, s32 lane[LANES]);

#endif
