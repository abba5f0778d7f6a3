/* strong.h: strong accesses to global memory that nothing orders (exec/strong.c).
 *
 * Two strong accesses are no race, but a strong load need not see a strong store that nothing orders before it: who wrote the data
 * and then the flag, both volatile and without a fence, may be seen to do it the other way round. The latest strong store to a place
 * is kept with what had been there. With a seed a load is once shown that, if nobody has seen the store (each word's values are
 * seen in one order by all) and no two fence.sc order it. By name it is told where the value is only data (front/decision.c) and its
 * reader has seen, and compared, a later store of the same block's. */
#ifndef STRONG_H
#define STRONG_H

#include "known.h"

void strong_end_launch(void);
void strong_start_cluster(struct cluster *c);
void strong_free_cluster(struct cluster *c);

/* Before a strong store of these lanes, when it has been noted; and after a strong load, which has read `value`: what is not ordered
 * after a store may with a seed be read as it was before, once, if nobody has seen it yet. */
enum { MAX_STRONG = 32 };
void strong_store(struct warp *w, u32 mask, const u64 at[LANES], u32 bytes, enum order order);
void strong_load(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                 enum access how, enum order order, u8 value[LANES][MAX_STRONG]);

/* The cluster of w releases something, or one of its warps fences: what it has stored is released. */
void strong_released(struct warp *w, bool fence);
/* One of its warps may know of all fences so far. */
void strong_acquired(struct cluster *c);

#endif
