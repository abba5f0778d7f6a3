/* known.h: what the warps of a grid know of each other through global memory (exec/known.c): the rule is in global.h.
 *
 *      a view          how far each warp of other clusters has come, as far as somebody knows: times of their blocks' clocks
 *      a flag's view   what has been released there; an atomic leaves it, a store adds to it as well: nothing is ever forgotten, so
 *                      that what is told is a race
 *      parted          of a warp: which lanes released when, while others had not: what a lane did is passed on by a release of its
 *                      own, or of another's after __syncwarp() or a barrier. Which lane did it is known of accesses by one lane, by
 *                      all to one address, and of those that lie in a row
 *      acquired        by some lanes of a warp, is known to its others when they have met one of these */
#ifndef KNOWN_H
#define KNOWN_H

#include "record.h"

/* The scope and order of an atomic, a fence or a strong access. */
enum order {
    ORDER_ACQUIRE = 1,
    ORDER_RELEASE = 2,
    ORDER_CTA = 4, /* its scope is the block's */
    ORDER_SC = 16  /* of a fence: in one order with all others, as __threadfence() */
};

void known_start_launch(struct launch *l);
void known_end_launch(void);
void known_start_cluster(struct cluster *c);
void known_start_warp(struct warp *w);
void known_free_cluster(struct cluster *c);
void known_free_warp(struct warp *w);

/* Before a strong write or an atomic of these lanes, and after a strong read or an atomic. */
void known_publish(struct warp *w, u32 mask, const u64 at[LANES], enum order order);
void known_observe(struct warp *w, u32 mask, const u64 at[LANES], enum order order);
void known_fence(struct warp *w, u32 mask, enum order order);
/* Whether this launch has released anything. */
bool known_published(void);

/* All of the cluster's threads know what its warps have acquired until now. */
void known_all_met(struct cluster *c);

/* What these lanes of w did until `time` is passed on by a release, or all lanes have met; others have accessed global memory and
 * not passed it on. */
void known_passed(struct warp *w, u32 time, u32 lanes);

/* griddepcontrol.wait; and griddepcontrol.launch_dependents: before a launch that executes none has ended no other begins. A launch
 * that begins early and executes no griddepcontrol.wait may end before the one ahead of it: who waits for it knows nothing of that. */
void known_wait_for_launch(struct warp *w);
void known_launches_dependents(void);
/* Whether w knows that the launch before is over. */
bool known_waited(const struct warp *w);

/* Whether w synchronises with what `actor` of its cluster did at `time`; and whether these lanes of it do with what one of any cluster,
 * `unit`, did, 0: whether any does. */
bool known_actor(const struct warp *w, u32 actor, u32 time);
bool known_at(const struct warp *w, u32 lanes, u32 unit, u32 actor, u32 time);

/* Whether these lanes of w synchronise with what this record is of: its warp did it. 0: whether any does. */
static inline bool known_warp(const struct warp *w, u32 lanes, const struct record *r)
{
    u32 time =
        __atomic_load_n(&r->time, __ATOMIC_RELAXED); /* another host thread may wait for the store just now */
    return time != NOT_WAITED && known_at(w, lanes, r->unit, r->actor, time);
}
/* The same of these bytes of the word at `at`, and the lanes that accessed them. */
bool known_record(const struct warp *w, u32 lanes, const struct record *r, u64 at, u32 bytes);
/* Of these lanes of the record's warp, which w knows to be past it, those which have not passed on what they did then, as far as w
 * can know. What was long ago is forgotten, and taken to be known. */
u32 known_not_passed(const struct warp *w, const struct record *r, u32 lanes);
/* Whether somebody has released what this record is of, for whoever would look. */
bool known_released(const struct warp *w, const struct record *r);

#endif
