/* wgmma.h: what the instruction loop must know of asynchronous matrix products (exec/wgmma.c). */
#ifndef WGMMA_H
#define WGMMA_H

#include "../sim.h"

/* The registers that an instruction touches, so that a product in flight can be held against them. */
struct touched {
    u32 count;
    bool copies; /* mov, unguarded: the second takes over what the first is */
    bool moves;  /* mov: no access; the last takes over what the first is, if there are two */
    struct touched_register {
        const char *name;
        u32 slot; /* its place in the frame, in units of 64 bytes */
        bool written;
    } reg[];
};

/* Faults when `in`, the next instruction, touches a register of a product that has not been waited for; notes what it touches
 * where a wgmma.fence may be missing. */
void wgmma_watch(struct warp *w, const struct inst *in);
static inline bool wgmma_watching(const struct warp *w)
{
    return w->wgmma_in_flight != 0 || w->frame->fn->watches_fences;
}

void wgmma_start_warp(struct warp *w);
void wgmma_free_warp(struct warp *w);
/* All lanes of w have exited. */
void wgmma_leave(struct warp *w);

/* Of a wgmma.mma_async: only such instructions write its accumulators. */
enum { PRODUCT_UNSET = 1 };

#endif
