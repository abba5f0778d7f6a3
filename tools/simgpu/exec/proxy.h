/* proxy.h: what the async proxy may read of shared memory, and what must not change under it (exec/proxy.c).
 *
 * Ordinary instructions reach memory through the generic proxy, wgmma and bulk copies through the async proxy, and a write
 * by one is seen by the other only after fence.proxy.async (PTX ISA, "Proxies"). Every 16 bytes of a block's shared memory
 * have a stamp: when they were last written, by the block's clock, and by whom. The clock ticks at every fence, at every
 * completed barrier and at every asynchronous read. A write is visible to the async proxy
 *
 *      when its thread has executed the fence since, or another lane of its warp has, and between the write and the fence the
 *      lanes have met; or
 *      when any warp has, and between the write and the fence a barrier of some kind was completed.
 *
 * And whoever reads through the async proxy must know of the write: through a barrier when it was another warp's (order.h),
 * through __syncwarp or a barrier when it was another lane's and one lane reads.
 *
 * What a bulk copy is to bring is stamped as in flight until the copy has been waited for: who reads it is too early.
 * And what an asynchronous operation reads has changed too early when at its end a stamp is later than its start. */
#ifndef PROXY_H
#define PROXY_H

#include "order.h"

enum {
    WRITER_BITS = 6,
    WRITER_COPY = 60,
    WRITER_IN_FLIGHT,
    WRITER_REMOTE,
    WRITER_ASYNC
}; /* below: the warp's number */

void proxy_start_block(struct block *b);
void proxy_free_block(struct block *b);

/* fence.proxy.async by these lanes of w. */
void proxy_fence(struct warp *w, u32 lanes);

/* A barrier of the block is complete. */
static inline void proxy_synced(struct block *b)
{
    b->last_sync = ++b->clock;
}

/* Bytes from shared offset `at` on were written, by these lanes of it when it is a warp. */
static inline void proxy_wrote(struct block *b, u32 at, u32 bytes, u32 writer, u32 lanes)
{
    u32 stamp = b->clock << WRITER_BITS | writer;
    if (!b->stamps) return;
    for (u32 k = at / 16; k <= (at + bytes - 1) / 16; k++) {
        if (lanes) b->lanes[k] = (b->stamps[k] == stamp ? b->lanes[k] : 0) | lanes;
        b->stamps[k] = stamp;
    }
}

/* The async proxy reads these bytes, for `in` of these lanes: faults when an ordinary write to them is not fenced, or they do
 * not know of a write or a copy to them. */
void proxy_check(struct warp *w, const struct inst *in, u32 lanes, const struct block *b, u32 piece);
static inline void proxy_reads(struct warp *w, const struct inst *in, u32 lanes, const struct block *b,
                               u32 at, u32 bytes)
{
    for (u32 k = at / 16; b->stamps && k <= (at + bytes - 1) / 16; k++)
        if ((b->stamps[k] & ((1 << WRITER_BITS) - 1)) != WRITER_ASYNC)
            proxy_check(w, in, lanes, b, k);
        else
            order_landed(w, in, lanes, b, k);
}

/* An ordinary instruction reads these bytes: faults when a bulk copy to them has not been waited for, or not by those whom w
 * knows of. */
_Noreturn void proxy_unwaited(struct warp *w, const struct inst *in, u32 lane, const struct block *b, u32 at);
static inline void proxy_loads(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 at,
                               u32 bytes)
{
    for (u32 k = at / 16; b->stamps && k <= (at + bytes - 1) / 16; k++) {
        u32 writer = b->stamps[k] & ((1 << WRITER_BITS) - 1);
        if (writer == WRITER_IN_FLIGHT) proxy_unwaited(w, in, lane, b, 16 * k);
        if (writer == WRITER_ASYNC) order_landed(w, in, 1u << lane, b, k);
        if (b == w->block) order_read(w, order_reader(b, w->id), k, 1u << lane);
    }
}

/* The same for 32 lanes that read a word of 4 bytes each of w's own block, but it says false where the other faults. */
static inline bool proxy_loads_words(struct warp *w, const u32 word[LANES])
{
    struct block *b = w->block;
    const u32 *landing = b->order->landing, *stamps = b->stamps,
              *phases = order_clock(b, CLOCK_NOW + w->id) + b->cluster_rank * ACTORS + ACTOR_MBARRIER;
    u32 *read = order_reader(b, w->id), bad = 0;
    for (u32 i = 0, next; i < LANES; i = next) {
        u32 piece = word[i] / 4, writer = stamps[piece] & ((1 << WRITER_BITS) - 1), mark = landing[piece];
        for (next = i + 1; next < LANES && word[next] / 4 == piece;) next++; /* as their neighbour */
        bad |=
            (u32)(writer == WRITER_IN_FLIGHT) |
            ((u32)(writer == WRITER_ASYNC) & (phases[mark % TRACKED_MBARRIERS] < mark / TRACKED_MBARRIERS));
        order_read(w, read, piece, (u32)((1ull << next) - (1ull << i)));
    }
    return !bad;
}

/* A bulk copy that w issues for `lane` will overwrite them: faults when an ordinary write to them is not fenced. */
void proxy_overwrites(struct warp *w, const struct inst *in, u32 lane, const struct block *b, u32 at,
                      u32 bytes);

/* Whether they were written at or after this time. */
static inline bool proxy_changed(const struct block *b, u32 at, u32 bytes, u32 since)
{
    for (u32 k = at / 16; b->stamps && k <= (at + bytes - 1) / 16; k++)
        if (b->stamps[k] >> WRITER_BITS >= since) return true;
    return false;
}

#endif
