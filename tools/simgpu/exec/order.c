/* order.c: vector clocks: what a warp knows to have happened before, and what it would have to know. */
#include "order.h"

#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "async.h"
#include "proxy.h"
#include "race.h"
#include "warp.h"

/* Something that a warp of another block sent here. */
struct remote {
    struct warp *warp;
    const struct function *fn;
    const struct inst *in;
    u32 lane, time; /* by its block's clock */
    u32 mbarrier,
        phase; /* an arrival: the place of the mbarrier, and the phases completed with it; else NO_MBARRIER */
};
enum { SHARED_PLACE = TRACKED_MBARRIERS - 1, NO_MBARRIER = TRACKED_MBARRIERS };

/* ---- Start and end ---------------------------------------------------------------------------------------------------- */

void order_start_block(struct block *b)
{
    struct block_order *o = b->order;
    u32 pieces = b->shared_bytes / 16 + 2;
    if (!o) {
        if (!(o = b->order = calloc(1, sizeof *o))) abort();
        o->pieces = pieces;
        o->length = ACTORS * b->cluster->size + 1;
        o->clocks = calloc(CLOCKS * o->length, sizeof *o->clocks);
        o->landing = b->stamps ? malloc(pieces * sizeof *o->landing) : NULL;
        if (!o->clocks || (b->stamps && !o->landing)) abort();
    }
    for (u32 which = 0; which < CLOCK_BARRIER; which++)
        if (which % MAX_WARPS < b->warp_count)
            memset(order_clock(b, which), 0, o->length * sizeof *o->clocks);
    u32 rest = o->mbarriers ? CLOCK_BARRIER : CLOCK_LEFT; /* what no mbarrier has touched is 0 */
    memset(order_clock(b, rest), 0, (CLOCKS - rest) * o->length * sizeof *o->clocks);
    if (o->landing) memset(o->landing, 0, pieces * sizeof *o->landing);
    for (u32 k = 0; k < ACTOR_MBARRIER; k++)
        if (o->read[k]) memset(o->read[k], 0, pieces * sizeof *o->read[k]);
    memset(o->left, 0, sizeof o->left);
    o->mbarriers = o->remote_count = 0;
}

void order_free_block(struct block *b)
{
    struct block_order *o = b->order;
    if (!o) return;
    for (u32 k = 0; k < ACTOR_MBARRIER; k++) free(o->read[k]);
    free(o->clocks);
    free(o->landing);
    free(o->remotes);
    free(o);
}

u32 *order_new_reader(struct block_order *o, u32 actor)
{
    if (!(o->read[actor] = calloc(2 * o->pieces, sizeof **o->read))) abort();
    return o->read[actor];
}

/* ---- Edges ------------------------------------------------------------------------------------------------------------ */

static u32 *now(const struct warp *w)
{
    return order_clock(w->block, CLOCK_NOW + w->id);
}

/* So many actors of b's clocks have a time, the others' are 0: a block without tensor cores, copies and mbarriers has only its
 * warps. A multiple of EIGHT. */
enum { EIGHT = 8 };
_Static_assert(ACTORS % EIGHT == 0 && MAX_WARPS % EIGHT == 0, "clocks are read by eights");
static u32 actors(const struct block *b)
{
    bool warps_only = b->cluster->size == 1 && !b->stamps && !b->order->mbarriers;
    return warps_only ? (b->warp_count + EIGHT - 1) / EIGHT * EIGHT : b->order->length - 1;
}

static void join(const struct block *b, u32 *restrict to, const u32 *restrict from)
{
    u32 count = actors(b), last = b->order->length - 1;
    to[last] = to[last] > from[last] ? to[last] : from[last];
    for (const u32 *end = to + count; to < end; to += EIGHT, from += EIGHT)
        for (int n = 0; n < EIGHT; n++) to[n] = to[n] > from[n] ? to[n] : from[n];
}

/* What these lanes of w have done until now is before whatever acquires this clock. */
static void release(struct warp *w, u32 *to, u32 lanes, bool relaxed)
{
    struct block *b = w->block;
    join(b, to, relaxed ? order_clock(b, CLOCK_FENCED + w->id) : now(w));
    if (!relaxed) order_pass(w, b->clock, lanes == w->live ? ALL_LANES : lanes, false);
    if (!relaxed) { /* after the join: the host waits for a number just stored before it reads the eight around it */
        u32 self = b->cluster_rank * ACTORS + w->id;
        now(w)[self] = to[self] = b->clock++;
        w->time = b->clock;
    }
    u32 *latest = &to[b->order->length - 1], time = (u32)warp_clock(w);
    if (*latest < time) *latest = time;
}

/* A fence or an acquiring access of some lanes. What others of the warp did before may be ordered for these, by a flag between
 * lanes: that is not followed, and taken to be so. But only a release of their own passes it on. */
static void acquire(struct warp *w, const u32 *from)
{
    join(w->block, now(w), from);
    w->lanes_met = w->time = ++w->block->clock;
}

/* A wait: the warp's clock goes on from the last release that it waited for. */
static void acquire_after_wait(struct warp *w, const u32 *from, bool relaxed)
{
    join(w->block, relaxed ? order_clock(w->block, CLOCK_SEEN + w->id) : now(w), from);
    if (!relaxed) order_lanes_met(w);
    warp_waited(w, from[w->block->order->length - 1]);
}

/* ---- Some lanes of a warp -------------------------------------------------------------------------------------------------------- */

/* __syncwarp with a mask. The latest are kept; what was before them is taken to be in order. */
enum { MEETINGS = 16 };
struct meeting {
    u32 time, with[LANES];
};

void order_some_met(struct warp *w, const u32 with[LANES])
{
    struct meeting *m = w->meetings;
    if (!m && !(m = w->meetings = calloc(MEETINGS, sizeof *m))) abort();
    if (w->meeting_count && m[w->meeting_count - 1].time < w->lanes_met) w->meeting_count = 0;
    if (w->meeting_count == MEETINGS) {
        if (m[0].time > w->lanes_met) w->lanes_met = m[0].time;
        memmove(m, m + 1, --w->meeting_count * sizeof *m);
    }
    order_pass(w, w->block->clock, ALL_LANES, true);
    w->time = ++w->block->clock;
    m += w->meeting_count++;
    m->time = w->time;
    memcpy(m->with, with, sizeof m->with);
}

bool order_met(const struct warp *w, u32 when, u32 writers, u32 readers)
{
    if (!w->meeting_count || w->meetings[w->meeting_count - 1].time <= when) return false;
    for (u32 k = 0; k < w->meeting_count; k++) {
        u32 more = 0;
        if (w->meetings[k].time <= when) continue;
        for (u32 left = writers; left; left &= left - 1) more |= w->meetings[k].with[first_lane(left)];
        writers |= more;
    }
    return !writers || !readers || writers & readers;
}

u32 order_met_until(const struct warp *w, u32 lane, u32 lanes)
{
    for (u32 k = w->meeting_count; k > 0; k--)
        if (order_met(w, w->meetings[k - 1].time - 1, 1u << lane, lanes)) return w->meetings[k - 1].time;
    return 0;
}

void order_barrier_arrive(struct warp *w, u32 id, u32 lanes)
{
    if (w->block->order) release(w, order_clock(w->block, CLOCK_BARRIER + id), lanes, false);
}

void order_barrier_complete(struct block *b, u32 id)
{
    if (b->order) memset(b->order->left[id], 0, sizeof b->order->left[id]);
}

void order_barrier_leave(struct warp *w, u32 id)
{
    struct block *b = w->block;
    if (!b->order) return;
    if (!b->barriers[id].expected && b->live_threads < b->threads)
        join(b, now(w), order_clock(b, CLOCK_LEFT)); /* it waits for all */
    acquire_after_wait(w, order_clock(b, CLOCK_BARRIER + id), false);
    b->order->left[id][w->id] = w->lanes_met;
}

void order_barrier_end(struct block *b, u32 id)
{
    if (!b->order) return;
    u32 *clock = order_clock(b, CLOCK_BARRIER + id);
    memset(clock, 0, actors(b) * sizeof *clock);
    clock[b->order->length - 1] = 0;
}

s32 order_barrier_open(const struct warp *w, u32 id)
{
    const struct block *b = w->block;
    s32 open = -1;
    if (!b->order || b->order->left[id][w->id]) return -1;
    for (u32 k = 0; k < b->warp_count; k++) {
        u32 left = b->order->left[id][k];
        if (left && order_knows_warp(w, b, k, left)) return -1;
        if (left) open = (s32)k;
    }
    return open;
}

void order_cluster_arrive(struct warp *w, u32 lanes, bool relaxed)
{
    if (w->block->order)
        release(w, order_clock(w->block->cluster->block[0], CLOCK_CLUSTER_ARRIVED), lanes, relaxed);
}

void order_cluster_complete(struct cluster *c)
{
    struct block *b = c->block[0];
    if (!b->order) return;
    u32 *arrived = order_clock(b, CLOCK_CLUSTER_ARRIVED);
    memcpy(order_clock(b, CLOCK_CLUSTER_COMPLETED), arrived, b->order->length * sizeof *arrived);
    memset(arrived, 0, b->order->length * sizeof *arrived);
}

void order_cluster_wait(struct warp *w)
{
    if (w->block->order)
        acquire_after_wait(w, order_clock(w->block->cluster->block[0], CLOCK_CLUSTER_COMPLETED), false);
}

void order_mbarrier_init(struct mbarrier *m)
{
    struct block_order *o = m->block->order;
    if (!o) return;
    m->place = o->mbarriers < SHARED_PLACE ? o->mbarriers++ : SHARED_PLACE;
}

void order_mbarrier_arrive(struct warp *w, u32 lanes, const struct mbarrier *m, bool relaxed)
{
    if (w->block->order) release(w, order_clock(m->block, CLOCK_ARRIVED + m->place), lanes, relaxed);
}

/* What was left at the mbarrier stays there: a later arrival continues the release sequence of those before. */
void order_mbarrier_complete(const struct mbarrier *m)
{
    struct block *b = m->block;
    if (!b->order) return;
    u32 *arrived = order_clock(b, CLOCK_ARRIVED + m->place);
    if (m->place != SHARED_PLACE)
        arrived[b->cluster_rank * ACTORS + ACTOR_MBARRIER + m->place] = (u32)m->phase;
    join(b, order_clock(b, CLOCK_COMPLETED + m->place), arrived);
}

void order_mbarrier_wait(struct warp *w, const struct mbarrier *m, bool relaxed)
{
    if (w->block->order) acquire_after_wait(w, order_clock(m->block, CLOCK_COMPLETED + m->place), relaxed);
}

void order_publish(struct warp *w, u32 lanes)
{
    if (w->block->order) release(w, order_clock(w->block->cluster->block[0], CLOCK_MEMORY), lanes, false);
}

void order_observe(struct warp *w)
{
    if (w->block->order) acquire(w, order_clock(w->block->cluster->block[0], CLOCK_MEMORY));
}

void order_fence(struct warp *w, u32 lanes)
{
    if (!w->block->order) return;
    order_publish(w, lanes);
    order_observe(w);
    acquire(w, order_clock(w->block, CLOCK_SEEN + w->id));
    memcpy(order_clock(w->block, CLOCK_FENCED + w->id), now(w), w->block->order->length * sizeof(u32));
}

void order_product(struct warp *w, const struct inst *in, u64 number)
{
    w->block->order->products[w->id / 4][number % KEPT_PRODUCTS] =
        (struct product_place){w->frame->fn, in, (u32)number};
}

void order_products_done(struct warp *w, u64 number)
{
    u32 *known = &now(w)[w->block->cluster_rank * ACTORS + ACTOR_WARPGROUP + w->id / 4];
    if (*known < number) *known = (u32)number;
}

/* ---- Checks ----------------------------------------------------------------------------------------------------------- */

u32 order_not_passed(const struct warp *w, const struct block *b, u32 other, u32 when, u32 lanes)
{
    const struct warp *x = &b->warps[other];
    u32 known = order_known(w)[b->cluster_rank * ACTORS + other];
    if (x == w) return 0;
    for (u32 k = x->passed_count; k > 0 && lanes; k--) {
        const struct passed *p = &x->passed[(k - 1) % PASSED];
        if (x->passed_count - k == PASSED) return 0;
        if (p->time < when) break;
        if (p->time <= known) lanes &= ~p->lanes;
    }
    return lanes;
}

void order_not_landed(struct warp *w, const struct inst *in, u32 lanes, u32 piece)
{
    fault(
        w, in, lanes, ERR_LAUNCH_FAILURE,
        "shared offset %u is read by a warp that does not know that the copy which brings it has landed: it has neither "
        "waited for its mbarrier nor been told by a warp that has, through a barrier or another mbarrier%s",
        16 * piece, async_gave_up(w));
}

/* By lanes of a warp of which another has arrived; 0: nothing is known since the read. */
_Noreturn void order_still_read(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 actor,
                                u32 lanes, u32 piece, const char *access)
{
    char who[64];
    u32 group = actor - ACTOR_WARPGROUP, number = b->order->read[actor][piece];
    const struct function *fn = NULL;
    const struct inst *with = NULL;
    if (actor < ACTOR_WARPGROUP) {
        with = race_reader(b, actor, 16 * piece, &fn);
        snprintf(who, sizeof who, "warp %u", actor);
        if (lanes) snprintf(who, sizeof who, "lane %u of warp %u", first_lane(lanes), actor);
    } else {
        const struct product_place *p = &b->order->products[group][number % KEPT_PRODUCTS];
        char line[24] = ""; /* one of long ago has been forgotten */
        if (p->number == number)
            snprintf(line, sizeof line, " at line %u", p->fn->lines[p->in - p->fn->code].line);
        if (p->number == number) fn = p->fn, with = p->in;
        snprintf(who, sizeof who, "the wgmma%s (warps %u to %u)", line, 4 * group, 4 * group + 3);
    }
    fault_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, with,
        "this %s writes shared offset %u of block (%u,%u,%u) where %s may still read: nothing that this thread has "
        "waited for says that it is done%s",
        access, 16 * piece, b->ctaid[0], b->ctaid[1], b->ctaid[2], who,
        lanes                     ? ORDER_OTHER_LANE
        : actor < ACTOR_WARPGROUP ? ""
                                  : " (only an arrival after its wgmma.wait_group does)");
}

void order_copy(struct warp *w, const struct inst *in, u32 lane, struct block *b, const struct mbarrier *m,
                u32 at, u32 bytes)
{
    struct block_order *o = b->order;
    const u32 *known = now(w) + b->cluster_rank * ACTORS;
    u32 mark = m->place == SHARED_PLACE ? 0 : m->place | ((u32)m->phase + 1) * TRACKED_MBARRIERS;
    for (u32 actor = 0; actor < ACTOR_MBARRIER; actor++) {
        const u32 *read = o->read[actor];
        if (!read || (b == w->block && actor == w->id)) continue;
        u32 latest = 0;
        for (u32 k = at / 16; k < (at + bytes) / 16; k++) latest = read[k] > latest ? read[k] : latest;
        for (u32 k = at / 16; latest > known[actor]; k++)
            if (read[k] > known[actor]) order_still_read(w, in, lane, b, actor, 0, k, "copy");
        u32 of_all = actor < MAX_WARPS && latest ? order_known_of_all(w, b, actor) : latest;
        for (u32 k = at / 16; latest > of_all && k < (at + bytes) / 16; k++) {
            u32 not_passed = read[k] ? order_not_passed(w, b, actor, read[k], read[o->pieces + k]) : 0;
            if (not_passed) order_still_read(w, in, lane, b, actor, not_passed, k, "copy");
        }
    }
    for (u32 k = at / 16; k < (at + bytes) / 16; k++) {
        u32 before = o->landing[k], writer = b->stamps[k] & ((1 << WRITER_BITS) - 1);
        u32 when = b->stamps[k] >> WRITER_BITS;
        bool unknown = writer < MAX_WARPS && !order_knows_warp(w, b, writer, when);
        if (unknown || (writer < MAX_WARPS && order_not_passed(w, b, writer, when, b->lanes[k]))) {
            const struct function *fn;
            const struct inst *store = race_writer(b, 16 * k, &fn);
            fault_against(
                w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, store,
                "this copy writes shared offset %u of block (%u,%u,%u), which warp %u has written: nothing that this "
                "thread has waited for says so%s",
                16 * k, b->ctaid[0], b->ctaid[1], b->ctaid[2], writer, unknown ? "" : ORDER_OTHER_LANE);
        }
        if ((writer == WRITER_ASYNC || writer == WRITER_IN_FLIGHT) &&
            known[ACTOR_MBARRIER + before % TRACKED_MBARRIERS] < before / TRACKED_MBARRIERS)
            fault(
                w, in, 1u << lane, ERR_LAUNCH_FAILURE,
                "this copy writes shared offset %u of block (%u,%u,%u) where an earlier one may not have landed, or may "
                "still be read: nothing that this thread has waited for says that it has been waited for",
                16 * k, b->ctaid[0], b->ctaid[1], b->ctaid[2]);
        o->landing[k] = mark;
    }
}

void order_remote(struct warp *w, const struct inst *in, u32 lane, struct block *b, const struct mbarrier *m)
{
    struct block_order *o = b->order;
    struct remote r = {
        w, w->frame->fn, in, lane, w->block->clock, m ? m->place : NO_MBARRIER, m ? (u32)m->phase + 1 : 0};
    if (r.mbarrier == SHARED_PLACE) return;
    for (u32 i = 0; i < o->remote_count; i++)
        if (o->remotes[i].warp == w && o->remotes[i].mbarrier == r.mbarrier) {
            o->remotes[i] = r;
            return;
        }
    if (o->remote_count == o->remote_capacity) {
        o->remote_capacity = o->remote_capacity ? 2 * o->remote_capacity : 16;
        if (!(o->remotes = realloc(o->remotes, o->remote_capacity * sizeof *o->remotes))) abort();
    }
    o->remotes[o->remote_count++] = r;
}

void order_leave(struct warp *w)
{
    struct block *b = w->block;
    if (!b->order) return;
    u32 *left = order_clock(b, CLOCK_LEFT);
    release(w, left, ALL_LANES, false);
    for (u32 i = 0; i < b->order->remote_count && !b->live_threads; i++) {
        const struct remote *r = &b->order->remotes[i];
        bool arrival = r->mbarrier != NO_MBARRIER;
        if (left[r->warp->block->cluster_rank * ACTORS + r->warp->id] >= r->time ||
            (arrival && left[b->cluster_rank * ACTORS + ACTOR_MBARRIER + r->mbarrier] >= r->phase))
            continue;
        fault_elsewhere(
            r->warp, r->fn, r->in, 1u << r->lane, ERR_LAUNCH_FAILURE,
            "this %s block (%u,%u,%u) may still be in flight when that block leaves: nobody there has waited for %s, and "
            "no barrier.cluster after it orders it before the block's end (barrier.cluster.arrive.relaxed does not, the "
            "default .release does)",
            arrival ? "arrival at" : "store to shared memory of", b->ctaid[0], b->ctaid[1], b->ctaid[2],
            arrival ? "its phase" : "an arrival that follows it");
    }
}
