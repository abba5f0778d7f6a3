/* barrier.c: bar, barrier, fences (PTX ISA, "Parallel Synchronization and Communication Instructions"). */
#include <string.h>

#include "bulk.h"
#include "global.h"
#include "known.h"
#include "order.h"
#include "proxy.h"
#include "race.h"
#include "warp.h"

enum barrier_action { BAR_SYNC, BAR_ARRIVE, BAR_POPC, BAR_AND, BAR_OR };

/* A barrier without a thread count is for all threads that have not exited. */
static bool complete(const struct block *b, const struct barrier *bar)
{
    return bar->arrived >= (bar->expected ? bar->expected : b->live_threads);
}

static u32 reduction(const struct barrier *bar, enum barrier_action action)
{
    return action == BAR_POPC ? bar->popc : action == BAR_AND ? bar->all : bar->any;
}

/* bar.red: its result, for a split that the barrier lets go. */
static void write_reduction(const struct barrier *bar, const struct split *s)
{
    const struct inst *in = &s->frame->fn->code[s->pc - 1];
    if (in->flags < BAR_POPC) return;
    u32 value = reduction(bar, in->flags), *d = (u32 *)(s->frame->regs + in->d);
    if (in->flags != BAR_POPC)
        *d = value ? *d | s->mask : *d & ~s->mask;
    else
        for (u32 lane = 0; lane < LANES; lane++)
            if (s->mask >> lane & 1) d[lane] = value;
}

void barrier_check(struct block *b, u32 id)
{
    struct barrier *bar = &b->barriers[id];
    if (!bar->arrived || !complete(b, bar)) return;
    if (bar->waiting == b->threads) {
        race_all_met(b);
        if (b->cluster->size == 1) known_all_met(b->cluster);
    }
    order_barrier_complete(b, id);
    for (u32 k = 0; k < b->warp_count; k++) {
        struct warp *w = &b->warps[k];
        u64 released = 0;
        for (s32 i = 0; i < w->split_count; i++) {
            struct split *s = &w->splits[i];
            if (s->state != SPLIT_WAIT_BARRIER || s->barrier != id) continue;
            s->state = SPLIT_READY;
            order_barrier_leave(w, id);
            write_reduction(bar, s);
            released |= 1ull << i;
            for (u64 before = released & ~(1ull << i); before; before &= before - 1)
                if (warp_join(w, __builtin_ctzll(before), i)) {
                    released &= ~(1ull << i);
                    break;
                }
        }
    }
    *bar = (struct barrier){0};
    order_barrier_end(b, id);
    proxy_synced(b);
    b->last_barrier = b->clock;
}

/* a: barrier number; b: thread count or NO_OPERAND; c: predicate of a reduction (aux: flip); flags: action; count: aligned. */
static void exec_barrier(struct warp *w, const struct inst *in, u32 mask)
{
    struct block *b = w->block;
    u32 lane = first_lane(mask), id = ((u32 *)lanes_of(w, in->a))[lane];
    u32 expected = in->b == NO_OPERAND ? 0 : ((u32 *)lanes_of(w, in->b))[lane];
    if (id >= NUM_BARRIERS)
        fault(w, in, mask, ERR_ILLEGAL_INSTRUCTION, "barrier number %u; there are 0 to %d", id,
              NUM_BARRIERS - 1);
    if (expected % LANES)
        fault(w, in, mask, ERR_ILLEGAL_INSTRUCTION, "barrier %u with %u threads: not a multiple of %d", id,
              expected, LANES);
    if (in->count) { /* .aligned: all threads of the warp must execute the same barrier together */
        if (mask != w->active)
            fault(w, in, mask, ERR_LAUNCH_FAILURE,
                  "divergent barrier: lanes 0x%08x of the warp reach barrier %u, lanes 0x%08x skip it", mask,
                  id, w->active & ~mask);
        mask = warp_gather(w, in, mask, ALL_LANES, TOGETHER);
        if (!mask) return;
    } else {
        w->gathered = 0;
    }
    struct barrier *bar = &b->barriers[id];
    s32 open = in->count && bar->warps >> w->id & 1 ? (s32)w->id : order_barrier_open(w, id);
    if (open >= 0)
        fault(
            w, in, mask, ERR_LAUNCH_FAILURE,
            "barrier %u is used again by a warp that cannot know that its last phase is over: warp %d %s, and nothing that "
            "this warp has waited for since says that those who wait there have gone on; so this arrival may count for the "
            "old phase. Use another number, or wait at a barrier that comes after it",
            id, open, open == (s32)w->id ? "has arrived" : "waited there");
    if (!bar->arrived) {
        bar->all = 1;
        bar->expected = expected;
        bar->first_text = w->frame->fn->text[warp_index_of(w, in)];
    } else if (bar->expected != expected) {
        fault(w, in, mask, ERR_LAUNCH_FAILURE,
              "barrier %u is used with %u threads here, but with %u by the warp that came first ('%s')", id,
              expected, bar->expected, bar->first_text);
    }
    if (in->c != NO_OPERAND) {
        u32 truth = predicate_of(w, in->c) & w->active;
        for (u64 left = w->gathered; left;
             left &= left - 1) { /* through another call: registers of their own */
            const struct split *s = &w->splits[__builtin_ctzll(left)];
            truth |= s->mask & *(u32 *)(s->frame->regs + in->c);
        }
        truth = (truth ^ (in->aux ? ~0u : 0)) & mask;
        bar->popc += (u32)__builtin_popcount(truth);
        bar->all &= truth == mask;
        bar->any |= truth != 0;
    }
    order_barrier_arrive(w, id, mask);
    /* With a count, a warp's arrival counts as all its 32 threads, as on hardware. */
    if (in->count) bar->warps |= 1u << w->id;
    bar->arrived += expected && mask == w->live ? LANES : (u32)__builtin_popcount(mask);
    if (in->flags != BAR_ARRIVE) {
        bar->waiting += (u32)__builtin_popcount(mask);
        for (u64 left = w->gathered; left; left &= left - 1) {
            struct split *s = &w->splits[__builtin_ctzll(left)];
            s->state = SPLIT_WAIT_BARRIER;
            s->barrier = id;
        }
        w->splits[w->current].barrier = id;
        warp_park(w, SPLIT_WAIT_BARRIER, warp_index_of(w, in) + 1);
    }
    barrier_check(b, id);
}

/* ---- barrier.cluster ------------------------------------------------------------------------------------------------ */

void cluster_check(struct cluster *c)
{
    if (!c->arrived || c->arrived < c->live_threads) return;
    c->arrived = 0;
    c->phase++;
    order_cluster_complete(c);
    known_all_met(c);
    for (u32 r = 0; r < c->size; r++) {
        struct block *b = c->block[r];
        b->visitors = 0;
        proxy_synced(b);
        b->last_barrier = b->clock;
        for (u32 k = 0; k < b->warp_count; k++)
            for (s32 i = 0; i < b->warps[k].split_count; i++)
                if (b->warps[k].splits[i].state == SPLIT_WAIT_CLUSTER)
                    b->warps[k].splits[i].state = SPLIT_READY;
    }
}

void cluster_leave(struct warp *w, u32 lanes)
{
    struct cluster *c = w->block->cluster;
    for (u32 left = lanes & w->cluster_arrived; left; left &= left - 1)
        c->arrived -= w->cluster_phase[first_lane(left)] == c->phase;
    w->cluster_arrived &= ~lanes;
}

/* Each thread arrives once a phase, and waits before it arrives again. flags: .relaxed; count: .aligned. */
static void exec_cluster_arrive(struct warp *w, const struct inst *in, u32 mask)
{
    struct cluster *c = w->block->cluster;
    if (in->count && mask != w->live) {
        mask = warp_gather(w, in, mask, ALL_LANES, false);
        if (!mask) return;
    }
    if (mask & w->cluster_arrived)
        fault(w, in, mask & w->cluster_arrived, ERR_LAUNCH_FAILURE,
              "a second barrier.cluster.arrive without a barrier.cluster.wait between");
    w->cluster_arrived |= mask;
    if (!in->flags) w->cluster_released = ++w->block->clock;
    order_cluster_arrive(w, mask, in->flags);
    for (u32 left = mask; left; left &= left - 1) w->cluster_phase[first_lane(left)] = c->phase;
    c->arrived += (u32)__builtin_popcount(mask);
    cluster_check(c);
}

static void exec_cluster_wait(struct warp *w, const struct inst *in, u32 mask)
{
    struct cluster *c = w->block->cluster;
    if (mask & ~w->cluster_arrived)
        fault(w, in, mask & ~w->cluster_arrived, ERR_LAUNCH_FAILURE,
              "barrier.cluster.wait without a barrier.cluster.arrive before");
    if (w->cluster_phase[first_lane(mask)] == c->phase) {
        warp_park(w, SPLIT_WAIT_CLUSTER, warp_index_of(w, in)); /* tries again when the phase is over */
        return;
    }
    order_cluster_wait(w);
    w->cluster_arrived &= ~mask;
}

/* barrier.cluster.arrive{.release, .relaxed}{.aligned};  barrier.cluster.wait{.acquire}{.aligned} */
bool lower_cluster(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    for (u32 k = 1; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (streq(m, "arrive"))
            in->exec = exec_cluster_arrive;
        else if (streq(m, "wait"))
            in->exec = exec_cluster_wait;
        else if (streq(m, "aligned"))
            in->count = 1;
        else if (streq(m, "relaxed"))
            in->flags = 1;
        else if (!streq(m, "release") && !streq(m, "acquire"))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    return in->exec ? true : refuse(lo, p, "this form of barrier.cluster");
}

/* ---- Lowering ---------------------------------------------------------------------------------------------------------- */

static void exec_warp_sync(struct warp *w, const struct inst *in, u32 mask)
{
    const u32 *member = lanes_of(w, in->a);
    u32 want = 0, with[LANES], each = ALL_LANES;
    for (u32 i = 0; i < LANES; i++) want |= mask >> i & 1 ? member[i] : 0;
    if (!warp_gather(w, in, mask, want, ANYWHERE)) return;
    for (u32 i = 0; i < LANES; i++) {
        with[i] = mask >> i & 1 ? member[i] : want >> i & 1 ? want : 0;
        each &= w->live >> i & 1 ? with[i] : ALL_LANES;
    }
    if (w->live & ~each)
        order_some_met(w, with);
    else
        order_lanes_met(w);
}

/* bar.warp.sync membermask */
bool lower_warp_sync(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_warp_sync;
    in->a = lower_source(lo, &p->op[0], T_U32);
    return true;
}

/* bar{.cta}.sync a{, b};  bar.arrive a, b;  bar.red.popc.u32 d, a{, b}, p;  barrier: the same, `aligned` only if it says so. */
bool lower_bar(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    s32 action = -1;
    bool aligned = streq(p->opcode, "bar"), reduces = is_written(&p->op[0]);
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (streq(m, "sync"))
            action = BAR_SYNC;
        else if (streq(m, "arrive"))
            action = BAR_ARRIVE;
        else if (reduces && streq(m, "popc"))
            action = BAR_POPC;
        else if (reduces && streq(m, "and"))
            action = BAR_AND;
        else if (reduces && streq(m, "or"))
            action = BAR_OR;
        else if (streq(m, "aligned"))
            aligned = true;
        else if (!streq(m, "red") && !streq(m, "cta") && !streq(m, "u32") && !streq(m, "pred"))
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    u32 at = reduces, operands = p->op_count;
    if (action < 0) return refuse(lo, p, "this form of barrier");
    in->exec = exec_barrier;
    in->flags = (u16)action;
    in->count = aligned;
    if (reduces) in->d = lower_dest(lo, &p->op[0], action == BAR_POPC ? T_U32 : T_PRED);
    in->a = lower_source(lo, &p->op[at], T_U32);
    if (operands > at + 1 + reduces) in->b = lower_source(lo, &p->op[at + 1], T_U32);
    if (reduces) {
        u32 flip;
        in->c = lower_predicate(lo, &p->op[operands - 1], &flip);
        in->aux = flip != 0;
    }
    return true;
}

/* Every access is visible to all threads as soon as it executes, but other host threads need the fence. */
static void exec_fence(struct warp *w, const struct inst *in, u32 mask)
{
    order_fence(w, mask);
    known_fence(w, mask, in->flags);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* fence.proxy.async: for which memory. */
enum { FENCE_SHARED = 1, FENCE_GLOBAL = 2 };

static void exec_proxy_fence(struct warp *w, const struct inst *in, u32 mask)
{
    if (in->flags & FENCE_GLOBAL) global_proxy_fence(w);
    if (in->flags & FENCE_SHARED) {
        proxy_fence(w, mask);
        w->block->init_fence = w->block->clock;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* fence.mbarrier_init.release.cluster: after it, others and the async proxy may use the mbarriers initialised before. */
static void exec_init_fence(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in, (void)mask;
    w->block->init_fence = ++w->block->clock;
}

/* fence.proxy.alias;  fence.proxy.async{.global, .shared::cta, .shared::cluster} */
bool lower_proxy_fence(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    const char *kind = p->mod_count > 1 ? p->mod[1] : "", *space = p->mod_count > 2 ? p->mod[2] : "";
    if (streq(kind, "alias")) {
        in->exec = exec_proxy_fence;
        return true;
    }
    if (strncmp(kind, "async", 5) != 0) return refuse(lo, p, "the modifier .%s is not supported", kind);
    in->exec = exec_proxy_fence;
    in->flags =
        (streq(space, "global") ? 0 : FENCE_SHARED) | (strncmp(space, "shared", 6) ? FENCE_GLOBAL : 0);
    return true;
}

bool lower_init_fence(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_init_fence;
    return true;
}

bool lower_fence(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const char *const known[] = {"sc",      "acq_rel", "acquire", "release", "cta",
                                        "cluster", "gpu",     "sys",     "gl",      "level"};
    bool weaker = false;
    for (u32 k = 0; k < p->mod_count; k++) {
        bool ok = false;
        for (u32 q = 0; q < sizeof known / sizeof *known; q++) ok |= streq(known[q], p->mod[k]);
        if (!ok) return refuse(lo, p, "the modifier .%s is not supported", p->mod[k]);
        if (streq(p->mod[k], "cta")) in->flags |= ORDER_CTA;
        weaker |= streq(p->mod[k], "acq_rel") || streq(p->mod[k], "acquire") || streq(p->mod[k], "release");
    }
    if (!weaker) in->flags |= ORDER_SC; /* membar as well */
    in->exec = exec_fence;
    return true;
}
