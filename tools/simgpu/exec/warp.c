/* warp.c: the instruction loop, and the tree of splits that a warp's lanes form when they go different ways. */
#include "warp.h"

#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "async.h"
#include "bulk.h"
#include "global.h"
#include "memory.h"
#include "order.h"
#include "undefined.h"
#include "wgmma.h"

/* ---- The current split ------------------------------------------------------------------------------------------------- */

static void save(struct warp *w)
{
    if (w->current < 0) return;
    struct split *s = &w->splits[w->current];
    if (s->state != SPLIT_READY) return; /* parked or dissolved: already written */
    s->pc = (u32)(w->pc - w->frame->fn->code);
    s->mask = w->active;
}

static void enter_frame(struct warp *w, struct frame *f)
{
    w->frame = f;
    w->regs = f->regs;
    w->counters = f->fn->counters ? f->fn->counters[w->block->worker->index] : NULL;
}

static void enter(struct warp *w, s32 index)
{
    struct split *s = &w->splits[index];
    w->current = index;
    enter_frame(w, s->frame);
    w->pc = s->frame->fn->code + s->pc;
    w->active = s->mask;
}

static void stop(struct warp *w)
{
    w->unused_budget = w->budget;
    w->budget = 0;
}

static s32 next_ready(const struct warp *w)
{
    for (s32 i = w->current + 1; i < w->split_count; i++)
        if (w->splits[i].state == SPLIT_READY) return i;
    for (s32 i = 0; i <= w->current; i++)
        if (w->splits[i].state == SPLIT_READY) return i;
    return -1;
}

static s32 new_split(struct warp *w)
{
    for (s32 i = 0; i < MAX_SPLITS; i++)
        if (w->splits[i].state == SPLIT_FREE) {
            if (i >= w->split_count) w->split_count = i + 1;
            return i;
        }
    abort(); /* cannot be: each leaf has a lane, each inner node two children or a waiting lane */
}

/* ---- The instruction loop ------------------------------------------------------------------------------------------------ */

/* The instructions from `in` to w->plain_end. */
static inline void run_plain(struct warp *w, const struct inst *in, u32 mask)
{
#if defined(SANITIZER) || !defined(__OPTIMIZE__)
    for (; in < w->plain_end; in++) in->exec(w, in, mask);
    w->plain_end = NULL;
#else
    in->exec(w, in, mask);
    if (w->plain_end) abort(); /* an executor of a plain instruction did not go on */
#endif
}

static void run(struct warp *w)
{
    while (w->budget > 0) {
        const struct inst *in = w->pc;
        u32 mask = w->active;
        if (in->plain) {
            u32 count = in->plain < (u32)w->budget ? in->plain : (u32)w->budget;
            w->pc = w->plain_end = in + count;
            w->budget -= (s32)count;
            run_plain(w, in, mask);
            continue;
        }
        w->budget--;
        w->pc++;
        if (in->guard != NO_OPERAND) {
            mask &= predicate_of(w, in->guard) ^ in->guard_flip;
            if (!mask) continue;
        }
        in->exec(w, in, mask);
    }
}

static void run_counting(struct warp *w)
{
    while (w->budget > 0) {
        w->budget--;
        const struct inst *in = w->pc++;
        u32 mask = w->active;
        if (in->guard != NO_OPERAND) mask &= predicate_of(w, in->guard) ^ in->guard_flip;
        struct counter *c = &w->counters[warp_index_of(w, in)];
        c->warps++;
        c->lanes += (u32)__builtin_popcount(mask);
        if (mask) in->exec(w, in, mask);
    }
}

void warp_leave_run(struct warp *w, const struct inst *in)
{
    if (!w->plain_end) return;
    w->budget += (s32)(w->plain_end - in) - 1;
    w->pc = in + 1;
    w->plain_end = NULL;
}

void warp_change_loop(struct warp *w, const struct inst *in)
{
    warp_leave_run(w, in);
    stop(w);
}

/* While wgmma products are in flight, every instruction is held against their registers; while a register holds what nobody has
 * written, against that. */
static void run_watching(struct warp *w)
{
    bool undefined = undefined_watching(w);
    while (w->budget > 0) {
        w->budget--;
        const struct inst *in = w->pc++;
        u32 mask = w->active;
        if (in->guard != NO_OPERAND) mask &= predicate_of(w, in->guard) ^ in->guard_flip;
        if (w->counters) {
            struct counter *c = &w->counters[warp_index_of(w, in)];
            c->warps++;
            c->lanes += (u32)__builtin_popcount(mask);
        }
        if (undefined) undefined_step(w, in, mask);
        if (!mask) continue;
        wgmma_watch(w, in);
        in->exec(w, in, mask);
        if (undefined && !undefined_watching(w) && w->budget > 0) return stop(w); /* another loop runs it */
    }
}

bool warp_inlined_from(const struct warp *w, const struct inst *in, const char *path)
{
    for (const struct inlined *at = w->frame->fn->lines[warp_index_of(w, in)].inlined; at; at = at->up)
        if (strstr(at->file, path)) return true;
    return false;
}

/* ---- Waiting for memory ------------------------------------------------------------------------------------------------- */

void warp_poll(struct warp *w, const struct inst *in, u32 lanes, const u64 at[LANES], u32 bytes, u64 saw)
{
    struct poll *p = &w->poll;
    bool again = p->in == in && p->lanes == lanes && p->saw == saw;
    for (u32 left = again ? lanes : 0; left; left &= left - 1)
        again &= p->at[first_lane(left)] == at[first_lane(left)];
    w->polled = true;
    if (again) {
        w->waits = true;
        warp_give_way(w);
        return;
    }
    *p = (struct poll){.in = in, .lanes = lanes, .bytes = bytes, .saw = saw};
    for (u32 left = lanes; left; left &= left - 1) p->at[first_lane(left)] = at[first_lane(left)];
}

bool warp_waits(struct warp *w)
{
    const struct poll *p = &w->poll;
    u64 saw = 0;
    if (!w->waits) return false;
    for (s32 i = 0; i < w->split_count; i++) /* or has others to run, or is waited for by its own lanes */
        if (i != w->current && w->splits[i].state == SPLIT_READY) return false;
    for (u32 left = p->lanes; left; left &= left - 1) {
        _Alignas(16) u8 now[MAX_ACCESS];
        memory_copy(now, (const void *)(uintptr_t)p->at[first_lane(left)], p->bytes);
        saw = warp_saw(saw, now, p->bytes);
    }
    return saw == p->saw;
}

/* A leaf that has waited long for memory may be spinning on what a lane does that already waits to meet it: a lock's
 * holder, say. Lanes that wait are then let go on alone, so that every lane makes progress. */
static void release_waiting(struct warp *w)
{
    for (s32 i = 0; i < w->split_count; i++) {
        struct split *inner = &w->splits[i];
        if (inner->state != SPLIT_INNER || !inner->arrived) continue;
        s32 k = new_split(w);
        w->splits[k] = *inner;
        w->splits[k].state = SPLIT_READY;
        w->splits[k].mask = inner->arrived;
        w->splits[k].arrived = w->splits[k].children = 0;
        inner->mask &= ~inner->arrived;
        inner->arrived = 0;
        if (inner->parent >= 0) w->splits[inner->parent].children++;
        inner->frame->refs++;
    }
}

bool warp_release(struct warp *w)
{
    bool waits = false;
    for (s32 i = 0; i < w->split_count; i++) waits |= w->splits[i].state == SPLIT_WAIT_OTHER;
    if (waits) release_waiting(w);
    return waits && next_ready(w) >= 0;
}

bool warp_run(struct warp *w, s32 quantum)
{
    enum { VERY_LONG = 64 };
    w->budget = w->turn = quantum;
    w->unused_budget = -1;
    w->polled = w->waits = false;
    memory_refresh(w);
    for (;;) {
        s32 i = w->current >= 0 && w->splits[w->current].state == SPLIT_READY ? w->current : next_ready(w);
        if (i < 0) return false;
        enter(w, i);
        s32 before = w->budget;
        if (wgmma_watching(w) || undefined_watching(w))
            run_watching(w);
        else if (w->counters)
            run_counting(w);
        else
            run(w);
        if (w->unused_budget < 0) { /* the quantum is over: other splits and warps have their turn */
            w->executed += (u64)before;
            w->turn = w->budget = 0;
            save(w);
            w->lost_turns = w->polled ? w->lost_turns + 1 : 0;
            if (w->lost_turns >= VERY_LONG) release_waiting(w);
            w->block->worker->busy |= !w->polled;
            w->current = next_ready(w);
            return true;
        }
        w->turn = w->budget = w->unused_budget;
        w->unused_budget = -1;
        w->executed += (u64)(before - w->budget);
        save(w);
        if (w->budget <= 0) return next_ready(w) >= 0;
    }
}

void warp_park(struct warp *w, enum split_state state, u32 pc)
{
    struct split *s = &w->splits[w->current];
    s->state = state;
    s->pc = pc;
    s->mask = w->active;
    stop(w);
}

/* ---- Parting and meeting ----------------------------------------------------------------------------------------------- */

void warp_diverge(struct warp *w, u32 taken, u32 target, s32 meet)
{
    struct split *s = &w->splits[w->current];
    u32 stay = w->active & ~taken;
    save(w);
    if (w->counters) w->counters[s->pc - 1].diverged++;
    if (meet >= 0 && meet != s->reconverge) { /* the split becomes the parent of the lanes that go on */
        s32 leaf = new_split(w);
        w->splits[leaf] = (struct split){.state = SPLIT_READY,
                                         .pc = s->pc,
                                         .mask = stay,
                                         .reconverge = meet,
                                         .parent = w->current,
                                         .frame = s->frame};
        s->frame->refs++;
        s->state = SPLIT_INNER;
        s->children = 1;
        s->arrived = 0;
        s->pc = (u32)meet + 1;
        w->current = leaf;
        s = &w->splits[leaf];
    } else {
        s->mask = stay;
    }
    s32 other = new_split(w);
    w->splits[other] = (struct split){.state = SPLIT_READY,
                                      .pc = target,
                                      .mask = taken,
                                      .reconverge = s->reconverge,
                                      .parent = s->parent,
                                      .frame = s->frame};
    s->frame->refs++;
    if (s->parent >= 0) w->splits[s->parent].children++;
    w->active = stay;
}

/* The lanes that stay execute the instructions here and now; all go on behind the join, which each of the two splits would have
 * executed. An instruction after which another loop has to run the warp leaves them where splits come in after all. */
void warp_skip(struct warp *w, const struct inst *in, u32 taken)
{
    u32 all = w->active, count = in->aux;
    bool here = (u32)w->budget >= count + 2 && !w->counters && !wgmma_watching(w) && !undefined_watching(w);
    if (here) {
        w->active = all & ~taken;
        w->pc = w->plain_end = in + 1 + count;
        w->budget -= (s32)count;
        run_plain(w, in + 1, w->active);
        w->active = all;
    }
    if (!here || w->unused_budget >= 0) {
        warp_diverge(w, taken, (u32)in->target, in->reconverge);
    } else if (w->splits[w->current].reconverge == in->reconverge) { /* it has to meet others there itself */
        w->budget--;
    } else {
        w->pc++;
        w->budget -= 2;
    }
}

static void free_frame(struct frame *f)
{
    free(f->regs - SPECIAL_BYTES - f->fn->consts_bytes);
    free(f->args);
    free(f);
}

static void leave_frame(struct frame *f)
{
    while (f && --f->refs == 0) {
        struct frame *up = f->up;
        if (up) free_frame(f); /* a kernel's own frame belongs to the warp and is kept */
        f = up;
    }
}

/* A child of `parent` is gone. The last one makes the lanes that wait there run again, or the node vanish as well. */
static void child_done(struct warp *w, s32 parent)
{
    while (parent >= 0) {
        struct split *p = &w->splits[parent];
        if (--p->children > 0) return;
        if (p->arrived) {
            p->mask = p->arrived;
            p->arrived = 0;
            p->state = SPLIT_READY;
            return;
        }
        p->state = SPLIT_FREE;
        leave_frame(p->frame);
        parent = p->parent;
    }
}

static void dissolve(struct warp *w)
{
    struct split *s = &w->splits[w->current];
    s->state = SPLIT_FREE;
    leave_frame(s->frame);
    stop(w);
    child_done(w, s->parent);
}

void warp_arrive(struct warp *w, u32 index)
{
    struct split *s = &w->splits[w->current];
    if (s->reconverge != (s32)index) return;
    struct split *p = &w->splits[s->parent];
    p->arrived |= w->active;
    if (p->children == 1) { /* the last one home: carry on as the parent at once */
        s32 parent = s->parent;
        s->state = SPLIT_FREE;
        s->frame->refs--; /* the parent holds it too */
        p->children = 0;
        p->mask = p->arrived;
        p->arrived = 0;
        p->state = SPLIT_READY;
        w->current = parent;
        w->active = p->mask;
        return warp_arrive(w, index); /* the parent may be due here as well */
    }
    dissolve(w);
}

void warp_exit(struct warp *w, u32 lanes)
{
    struct block *b = w->block;
    w->live &= ~lanes;
    w->active &= ~lanes;
    b->live_threads -= (u32)__builtin_popcount(lanes);
    b->cluster->live_threads -= (u32)__builtin_popcount(lanes);
    cluster_leave(w, lanes);
    bulk_leave(w, lanes);
    order_leave(w);
    if (!b->live_threads && b->visitors)
        fault(
            w, w->pc - 1, lanes, ERR_LAUNCH_FAILURE,
            "the block leaves, but block %u of its cluster has read its shared memory and no barrier.cluster (or arrival at an "
            "mbarrier of this block) says that it is done",
            first_lane(b->visitors));
    if (!b->live_threads) undefined_end_block(b);
    if (!w->live) b->live_warps--;
    if (!w->live) wgmma_leave(w);
    if (!w->live) registers_leave(w);
    if (!w->active) dissolve(w);
    for (u32 id = 0; id < NUM_BARRIERS; id++)
        if (b->barriers[id].arrived) barrier_check(b, id);
    cluster_check(b->cluster);
    /* Lanes that wait for the ones that just left need wait no longer. */
    for (s32 i = 0; i < w->split_count; i++)
        if (w->splits[i].state == SPLIT_WAIT_LANES) w->splits[i].state = SPLIT_READY;
}

/* Copies the registers of `lanes` from one frame of a function to another. */
static void copy_lanes(const struct function *fn, u8 *to, const u8 *from, u32 lanes)
{
    for (u32 r = 0; r < fn->range_count; r++) {
        const struct register_range *range = &fn->ranges[r];
        u32 bytes = range->lane_bytes;
        for (u32 k = 0; k < range->count; k++) {
            u32 at = range->offset + k * (bytes ? bytes * LANES : 4);
            if (!bytes) {
                u32 *p = (u32 *)(to + at);
                *p = (*p & ~lanes) | (*(const u32 *)(from + at) & lanes);
            }
            for (u32 left = bytes ? lanes : 0; left; left &= left - 1)
                memcpy(to + at + first_lane(left) * bytes, from + at + first_lane(left) * bytes, bytes);
        }
    }
}

static void execute_across_frames(struct warp *w, const struct inst *in, u64 found, u32 together)
{
    u32 own = w->active;
    for (u64 left = found; left; left &= left - 1) {
        struct split *s = &w->splits[__builtin_ctzll(left)];
        if (s->frame != w->frame) copy_lanes(w->frame->fn, w->frame->regs, s->frame->regs, s->mask);
    }
    w->active = together;
    in->exec(w, in, together);
    w->active = own;
    for (u64 left = found; left; left &= left - 1) {
        struct split *s = &w->splits[__builtin_ctzll(left)];
        if (s->frame != w->frame) copy_lanes(w->frame->fn, s->frame->regs, w->frame->regs, s->mask);
    }
}

bool warp_join(struct warp *w, s32 into, s32 other)
{
    struct split *a = &w->splits[into], *b = &w->splits[other];
    if (a->pc != b->pc || a->frame != b->frame || a->parent != b->parent || a->reconverge != b->reconverge)
        return false;
    a->mask |= b->mask;
    if (into == w->current) w->active = a->mask;
    b->state = SPLIT_FREE;
    leave_frame(b->frame);
    if (b->parent >= 0) w->splits[b->parent].children--;
    return true;
}

u32 warp_gather(struct warp *w, const struct inst *in, u32 mask, u32 want, enum gather how)
{
    w->gathered = 0;
    want &= w->live;
    if ((mask & want) == want) return mask;
    if (want & w->active & ~mask)
        fault(
            w, in, mask, ERR_LAUNCH_FAILURE,
            "the member mask 0x%08x names lanes whose predicate is off here (executing: 0x%08x): they never take part",
            want, mask);
    u32 index = warp_index_of(w, in), together = mask;
    bool elsewhere = false;
    u64 found = 0;
    for (s32 i = 0; i < w->split_count; i++) {
        struct split *s = &w->splits[i];
        if (s->state != SPLIT_WAIT_LANES || s->frame->fn->code[s->pc].exec != in->exec) continue;
        if ((s->wait_mask & w->live) != want) continue; /* it is ahead, or behind, by a turn of a loop */
        if (how == ANYWHERE || (s->pc == index && s->frame->fn == w->frame->fn)) {
            elsewhere |= s->frame != w->frame;
            together |= s->mask;
            found |= 1ull << i;
        }
    }
    if ((together & want) != want) {
        w->splits[w->current].wait_mask = want;
        warp_park(w, SPLIT_WAIT_LANES, index);
        return 0;
    }
    save(w);
    for (u64 left = found; left; left &= left - 1) {
        s32 i = __builtin_ctzll(left);
        w->splits[i].state = SPLIT_READY;
        w->splits[i].pc++;
        if (warp_join(w, w->current, i)) found &= ~(1ull << i);
    }
    if (elsewhere && how == EXCHANGE) {
        execute_across_frames(w, in, found, together);
        return 0;
    }
    w->gathered = found;
    return together;
}

/* ---- Calls ---------------------------------------------------------------------------------------------------------------- */

static void *frame_memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p) abort();
    return p;
}

/* A frame's registers, with the function's constants below; the special registers between them are the caller's to fill. */
static u8 *new_registers(const struct warp *w, const struct function *fn)
{
    u8 *start = frame_memory((size_t)fn->consts_bytes + SPECIAL_BYTES + fn->reg_bytes);
    if (fn->consts_bytes)
        memcpy(start, fn->rank_consts[w->block->cluster_rank] - fn->consts_bytes, fn->consts_bytes);
    return start + fn->consts_bytes + SPECIAL_BYTES;
}

void warp_call(struct warp *w, const struct inst *in, const struct function *callee)
{
    struct frame *up = w->frame, *f = malloc(sizeof *f);
    if (!f) abort();
    struct split *s = &w->splits[w->current];
    u32 top = (up->local_base + up->fn->local_bytes + 15) & ~15u;
    if (top + callee->local_bytes + 16 > w->block->launch->local_bytes) {
        free(f);
        fault(
            w, in, w->active, ERR_ILLEGAL_ADDRESS,
            "device stack overflow: the call to %s needs more than the %u bytes a thread has (endless recursion, or raise "
            "cudaDeviceSetLimit(cudaLimitStackSize, …))",
            readable_name(callee->name), w->block->launch->local_bytes);
    }
    *f = (struct frame){.up = up,
                        .fn = callee,
                        .regs = new_registers(w, callee),
                        .args = frame_memory((size_t)callee->arg_bytes * LANES),
                        .local_base = top,
                        .return_pc = (u32)(w->pc - up->fn->code),
                        .return_reconverge = s->reconverge,
                        .call = in,
                        .refs = 1};
    memcpy(f->regs - SPECIAL_BYTES, up->regs - SPECIAL_BYTES, SPECIAL_BYTES);
    /* The caller's .param variables named in the call become the callee's formal ones. in->more: result offsets, then
     * argument offsets. */
    for (u32 k = 0; k < callee->param_count; k++)
        for (u32 lane = 0; lane < LANES; lane++)
            if (w->active >> lane & 1)
                memcpy(f->args + lane * callee->arg_bytes + callee->params[k].offset,
                       up->args + lane * up->fn->arg_bytes + in->more[callee->result_count + k],
                       callee->params[k].bytes);
    s->frame = f; /* what this split held of its caller's frame, the new frame holds now */
    s->reconverge = -1;
    enter_frame(w, f);
    w->pc = callee->code;
    if (callee->watches_fences != up->fn->watches_fences) stop(w); /* another loop runs it */
    /* A call costs the stack 16 bytes even when the callee has no .local variables, so that recursion ends. */
    f->local_base = top + 16;
    undefined_fill_local(w, f->local_base, callee->local_bytes);
}

void warp_return(struct warp *w)
{
    struct frame *f = w->frame, *up = f->up;
    struct split *s = &w->splits[w->current];
    for (u32 k = 0; k < f->fn->result_count; k++)
        for (u32 lane = 0; lane < LANES; lane++)
            if (w->active >> lane & 1)
                memcpy(up->args + lane * up->fn->arg_bytes + f->call->more[k],
                       f->args + lane * f->fn->arg_bytes + f->fn->results[k].offset, f->fn->results[k].bytes);
    s->frame = up;
    s->reconverge = f->return_reconverge;
    up->refs++;
    w->pc = up->fn->code + f->return_pc;
    if (up->fn->watches_fences != f->fn->watches_fences) stop(w); /* another loop runs it */
    leave_frame(f);
    enter_frame(w, up);
}

/* ---- Start ---------------------------------------------------------------------------------------------------------------- */

static void fill(u32 *lane, u32 value)
{
    for (int i = 0; i < LANES; i++) lane[i] = value;
}

static void set_special_registers(struct warp *w)
{
    const struct block *b = w->block;
    const struct launch *l = b->launch;
    u32(*sr)[LANES] = (void *)(w->root->regs - SPECIAL_BYTES);
    memset(sr, 0, NUM_SPECIAL * sizeof *sr);
    for (u32 i = 0; i < LANES; i++) {
        u32 t = w->id * LANES + i;
        sr[SR_TID_X][i] = t % l->block[0];
        sr[SR_TID_Y][i] = t / l->block[0] % l->block[1];
        sr[SR_TID_Z][i] = t / l->block[0] / l->block[1];
        sr[SR_LANEID][i] = i;
        sr[SR_LANEMASK_EQ][i] = 1u << i;
        sr[SR_LANEMASK_LT][i] = (1u << i) - 1;
        sr[SR_LANEMASK_LE][i] = (2u << i) - 1;
        sr[SR_LANEMASK_GE][i] = ~((1u << i) - 1);
        sr[SR_LANEMASK_GT][i] = ~((2u << i) - 1);
    }
    fill(sr[SR_WARPID], w->id);
    fill(sr[SR_NWARPID], 64);
    fill(sr[SR_SMID], b->index % options.sms);
    fill(sr[SR_NSMID], options.sms);
    fill(sr[SR_DYNAMIC_SMEM], l->dynamic_bytes);
    fill(sr[SR_TOTAL_SMEM], l->shared_bytes);
    fill(sr[SR_GRIDID], (u32)l->grid_id);
    fill(sr[SR_WORKSPACE_HIGH], (u32)(l->workspace >> 32));
    fill(sr[SR_WORKSPACE_LOW], (u32)l->workspace);
    u32 rank_size = 1;
    for (int d = 0; d < 3; d++) {
        u32 c = l->cluster[d] ? l->cluster[d] : 1;
        fill(sr[SR_NTID_X + d], l->block[d]);
        fill(sr[SR_CTAID_X + d], b->ctaid[d]);
        fill(sr[SR_NCTAID_X + d], l->grid[d]);
        fill(sr[SR_CLUSTERID_X + d], b->ctaid[d] / c);
        fill(sr[SR_NCLUSTERID_X + d], l->grid[d] / c);
        fill(sr[SR_CLUSTER_CTAID_X + d], b->ctaid[d] % c);
        fill(sr[SR_CLUSTER_NCTAID_X + d], c);
        rank_size *= c;
    }
    fill(sr[SR_CLUSTER_CTARANK], b->cluster_rank);
    fill(sr[SR_CLUSTER_NCTARANK], rank_size);
}

/* The kernel's frame, registers, local memory and special registers stay with the warp structure when it is reused for
 * another block of the same launch. */
void warp_start(struct warp *w, struct block *b, u32 id)
{
    const struct function *fn = b->launch->kernel;
    struct frame *root = w->root;
    u32 first = id * LANES, left = b->threads - first;
    w->block = b;
    w->id = id;
    w->cluster_arrived = 0;
    w->cluster_released = 0;
    w->lanes_met = w->passed_count = w->meeting_count = 0;
    while (w->early_count) w->heap[w->early[--w->early_count]] = (struct bounds){0};
    w->bulk_reads = 0;
    w->global_lanes = 0;
    w->parted = false;
    w->time = b->clock;
    w->ahead = 0 - w->executed;
    w->turn = w->budget = 0;
    w->unused_budget = -1;
    w->registers = w->register_changes = 0;
    w->lost_turns = 0;
    w->waits = false;
    w->poll.in = NULL;
    if (!root) {
        root = w->root = calloc(1, sizeof *root);
        w->local = frame_memory((size_t)b->launch->local_bytes * LANES);
        if (!root) abort();
        root->fn = fn;
        root->regs = new_registers(w, fn);
        root->args = frame_memory((size_t)fn->arg_bytes * LANES);
    }
    root->refs = 1;
    w->live = w->active = left >= LANES ? ALL_LANES : (1u << left) - 1;
    memset(w->splits, 0, sizeof w->splits);
    w->split_count = 1;
    w->splits[0] =
        (struct split){.state = SPLIT_READY, .mask = w->live, .reconverge = -1, .parent = -1, .frame = root};
    w->current = 0;
    async_start_warp(w);
    undefined_start_warp(w);
    wgmma_start_warp(w);
    global_start_warp(w);
    set_special_registers(w);
}

void warp_free_frames(struct warp *w)
{
    for (s32 i = 0; i < w->split_count; i++) /* a fault may leave calls unfinished */
        if (w->splits[i].state != SPLIT_FREE) leave_frame(w->splits[i].frame);
    if (w->root) free_frame(w->root);
    free(w->suspects);
    free(w->meetings);
    global_free_warp(w);
    async_free_warp(w);
    undefined_free_warp(w);
    wgmma_free_warp(w);
    free(w->local);
}
