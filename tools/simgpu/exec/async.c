/* async.c: asynchronous copies and mbarriers (PTX ISA, "Asynchronous copy", "mbarrier").
 *
 * A copy is held to what PTX promises and no more. Its data is read when the instruction issues; its destination is
 * poison, 0xff bytes, from then until something legally waits for it, and only then does the data land:
 *
 *      cp.async            commit_group          wait_group N
 *         |  source read,      |  closes the        |  groups but the latest N of this thread land; the source must
 *         |  destination 0xff  |  thread's group    |  still hold what was read, the destination still be 0xff
 *      ---+--------------------+--------------------+------> this thread
 *
 * or, after cp.async.mbarrier.arrive, when somebody waits for the mbarrier's phase and nothing but such arrivals is
 * missing. So a wait that is missing or one group short reads NaN, every time. */
#include "async.h"
#include "bulk.h"

#include <stdlib.h>
#include <string.h>

#include "../front/lower.h"
#include "memory.h"
#include "order.h"
#include "proxy.h"
#include "undefined.h"
#include "warp.h"

enum { MAX_COUNT = (1 << 20) - 1 }; /* of arrivals, and of bytes outstanding either way */

/* ---- State -------------------------------------------------------------------------------------------------------- */

/* One cp.async of a warp. */
struct copy {
    struct copy *next;
    const struct function *fn; /* where it was issued */
    const struct inst *in;
    u64 number;       /* among the copies of the warp */
    u32 in_flight;    /* lanes whose data has not landed */
    u32 bytes;        /* 4, 8 or 16 a lane */
    u32 group[LANES]; /* of each lane */
    u32 taken[LANES]; /* bytes read from the source; zeros fill the rest */
    u64 source[LANES];
    u8 *destination[LANES];
    u8 data[LANES][16];
};

/* cp.async.mbarrier.arrive: lanes that arrive when their copies before number `before` have landed. */
struct arrival {
    u32 offset, lanes; /* the mbarrier, which is the warp's own block's */
    struct warp *warp;
    u64 before;
    u32 time; /* of the warp's arrival */
};

/* A parked split, and the first mbarrier it waits for. `mixed`: its lanes wait for different ones. */
struct waiter {
    struct warp *warp;
    s32 split;
    u32 offset, parity;
    bool mixed;
};

struct block_async {
    struct mbarrier *table; /* open addressing, by offset */
    u32 capacity, used;
    struct arrival *arrivals;
    u32 arrival_count, arrival_capacity;
    struct waiter *waiters;
    u32 waiter_count, waiter_capacity;
};

void async_start_block(struct block *b)
{
    struct block_async *a = b->async;
    if (!a) return;
    for (u32 i = 0; i < a->capacity && a->used; i++) bulk_free(a->table[i].loads);
    if (a->used) memset(a->table, 0, a->capacity * sizeof *a->table);
    a->used = a->arrival_count = a->waiter_count = 0;
}

static struct block_async *block_async(struct block *b)
{
    if (!b->async && !(b->async = calloc(1, sizeof *b->async))) abort();
    return b->async;
}

void async_free_block(struct block *b)
{
    if (!b->async) return;
    async_start_block(b);
    free(b->async->table);
    free(b->async->arrivals);
    free(b->async->waiters);
    free(b->async);
}

/* The copies of threads that have exited are never waited for: nobody sees them land. */
void async_start_warp(struct warp *w)
{
    struct async_state *a = w->async;
    if (!a) return;
    bulk_free(a->stores);
    if (a->first) {
        *a->last = a->spare;
        a->spare = a->first;
    }
    *a = (struct async_state){.spare = a->spare, .last = &a->first};
}

struct async_state *warp_async(struct warp *w)
{
    if (w->async) return w->async;
    if (!(w->async = calloc(1, sizeof *w->async))) abort();
    w->async->last = &w->async->first;
    return w->async;
}

void async_free_warp(struct warp *w)
{
    if (!w->async) return;
    async_start_warp(w);
    for (struct copy *c = w->async->spare, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(w->async);
}

/* ---- cp.async: issue ------------------------------------------------------------------------------------------------- */

struct copy_form {
    struct inst source; /* the source address, as memory_addresses reads it */
    operand size;       /* bytes to read, or NO_OPERAND: all */
    operand ignore;     /* predicate: read nothing, or NO_OPERAND */
    u32 ignore_flip;
};

static struct copy *new_copy(struct async_state *a)
{
    struct copy *c = a->spare;
    if (c)
        a->spare = c->next;
    else if (!(c = malloc(sizeof *c)))
        abort();
    c->next = NULL;
    c->number = a->issued++;
    *a->last = c;
    a->last = &c->next;
    return c;
}

/* How many bytes each lane reads: cp-size, src-size or, with a true ignore-src, none. */
static void source_sizes(struct warp *w, const struct inst *in, u32 mask, u32 taken[LANES])
{
    const struct copy_form *form = in->data;
    for (u32 i = 0; i < LANES; i++) taken[i] = in->bytes;
    if (form->size != NO_OPERAND) memcpy(taken, lanes_of(w, form->size), LANES * sizeof *taken);
    u32 ignored = form->ignore != NO_OPERAND ? predicate_of(w, form->ignore) ^ form->ignore_flip : 0;
    for (u32 i = 0; i < LANES; i++) {
        if (ignored >> i & 1) taken[i] = 0;
        if (mask >> i & 1 && taken[i] > in->bytes)
            fault(w, in, 1u << i, ERR_LAUNCH_FAILURE, "a source size of %u bytes in a copy of %u", taken[i],
                  in->bytes);
    }
}

/* Checks the source addresses of the lanes that read all or a part, and turns them into host addresses. Lanes that read
 * nothing may have any address. */
static void resolve_source(struct warp *w, const struct inst *in, u32 mask, const u32 taken[LANES],
                           u64 source[LANES])
{
    u32 whole = 0, part = 0;
    for (u32 i = 0; i < LANES; i++) {
        whole |= (u32)(taken[i] == in->bytes) << i;
        part |= (u32)(taken[i] && taken[i] < in->bytes) << i;
    }
    whole &= mask;
    part &= mask;
    for (u32 i = 0; i < LANES; i++)
        if (source[i] >= SHARED_WINDOW && (whole | part) >> i & 1)
            fault(w, in, 1u << i, ERR_INVALID_ADDRESS_SPACE, "the source 0x%llx is not in global memory",
                  (unsigned long long)source[i]);
    if (whole == ALL_LANES) {
        memory_resolve(w, in, ALL_LANES, source, in->bytes, in->bytes, ACCESS_READ);
        return;
    }
    u64 address[LANES];
    for (u32 left = whole | part; left;) {
        u32 lanes = whole ? whole : left & -left, lane = first_lane(lanes);
        for (u32 i = 0; i < LANES; i++) address[i] = lanes >> i & 1 ? source[i] : source[lane];
        memory_resolve(w, in, lanes, address, taken[lane], in->bytes, ACCESS_READ);
        for (u32 i = 0; i < LANES; i++) source[i] = lanes >> i & 1 ? address[i] : source[i];
        left &= ~lanes;
        whole = 0;
    }
}

static void exec_copy(struct warp *w, const struct inst *in, u32 mask)
{
    const struct copy_form *form = in->data;
    struct async_state *a = warp_async(w);
    u64 destination[LANES], source[LANES];
    u32 taken[LANES];
    note_change(w->block);
    memory_addresses(w, in, mask, destination);
    memory_addresses(w, &form->source, mask, source);
    source_sizes(w, in, mask, taken);
    for (u32 i = 0; i < LANES; i++)
        destination[i] += SHARED_WINDOW; /* both are generic addresses for memory_resolve */
    memory_resolve(w, in, mask, destination, in->bytes, in->bytes, ACCESS_WRITE | ACCESS_COPY);
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1 && destination[i] - (u64)(uintptr_t)w->block->shared >= w->block->shared_bytes)
            fault(w, in, 1u << i, ERR_ILLEGAL_ADDRESS,
                  "the destination is not in the block's own shared memory");
    resolve_source(w, in, mask, taken, source);

    struct copy *c = new_copy(a);
    c->fn = w->frame->fn;
    c->in = in;
    c->in_flight = mask;
    c->bytes = in->bytes;
    memcpy(c->group, a->committed, sizeof c->group);
    memcpy(c->taken, taken, sizeof c->taken);
    memcpy(c->source, source, sizeof c->source);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        c->destination[i] = (u8 *)(uintptr_t)destination[i];
        if (taken[i] == 16) {
            memcpy(c->data[i], (const void *)(uintptr_t)source[i], 16);
        } else {
            memset(c->data[i], 0, 16);
            memcpy(c->data[i], (const void *)(uintptr_t)source[i], taken[i]);
        }
    }
    for (u32 left = mask; left; left &= left - 1) memset(c->destination[first_lane(left)], 0xff, in->bytes);
}

/* ---- cp.async: landing ------------------------------------------------------------------------------------------------- */

static _Noreturn void copy_fault(struct warp *w, const struct inst *in, const struct copy *c, u32 lane,
                                 const char *what)
{
    u32 at = (u32)(c->in - c->fn->code);
    fault_against(w, in, 1u << lane, ERR_LAUNCH_FAILURE, c->fn, c->in,
                  "%s while the copy was in flight: '%s' at line %u, to shared offset %lld", what,
                  c->fn->text[at], c->fn->lines[at].line,
                  (long long)(c->destination[lane] - w->block->shared));
}

/* Data may only land where still nothing but poison is, or, when several threads copy the same, just that data. */
static void check_landing(struct warp *w, const struct inst *in, const struct copy *c, u32 lane)
{
    static const u8 poison[16] = {255, 255, 255, 255, 255, 255, 255, 255,
                                  255, 255, 255, 255, 255, 255, 255, 255};
    if (memcmp((const void *)(uintptr_t)c->source[lane], c->data[lane], c->taken[lane]) != 0)
        copy_fault(w, in, c, lane, "the source was changed");
    if (memcmp(c->destination[lane], poison, c->bytes) != 0 &&
        memcmp(c->destination[lane], c->data[lane], c->bytes) != 0)
        copy_fault(w, in, c, lane, "the destination was written");
}

/* `w` and `in` wait; the copy may be another warp's, which has arrived at an mbarrier for it at `time`. */
static void land(struct warp *w, const struct inst *in, struct warp *owner, struct copy *c, u32 lanes,
                 u32 time)
{
    for (u32 left = lanes; left; left &= left - 1) {
        u32 i = first_lane(left);
        if (c->taken[i] == 16) {
            u64 now[2], then[2], there[2];
            memcpy(now, (const void *)(uintptr_t)c->source[i], 16);
            memcpy(then, c->data[i], 16);
            memcpy(there, c->destination[i], 16);
            if ((now[0] ^ then[0]) | (now[1] ^ then[1]) | ~(there[0] & there[1])) check_landing(w, in, c, i);
            memcpy(c->destination[i], then, 16);
        } else {
            check_landing(w, in, c, i);
            memcpy(c->destination[i], c->data[i], c->bytes);
        }
    }
    for (u32 left = lanes; left && w->block->stamps; left &= left - 1) {
        u32 i = first_lane(left);
        proxy_wrote(w->block, (u32)(c->destination[i] - w->block->shared), c->bytes,
                    w == owner ? w->id : WRITER_COPY, 1u << i);
    }
    for (u32 left = lanes; left; left &= left - 1) {
        u32 i = first_lane(left);
        u32 at = (u32)(c->destination[i] - w->block->shared);
        race_landed(owner, c->in, i, at, c->bytes, time);
        undefined_copied(w, at, (const u8 *)(uintptr_t)c->source[i], c->taken[i]);
    }
    c->in_flight &= ~lanes;
}

/* Lets the copies of `owner` land that have a lane in `lanes`, a number below `before`, and a group older than the lane's
 * latest `pending` that are committed (-1: any group, the open one too). They count as written at `time`. */
static void land_copies(struct warp *w, const struct inst *in, struct warp *owner, u32 lanes, u64 before,
                        s32 pending, u32 time)
{
    struct async_state *a = owner->async;
    if (!a) return;
    for (struct copy **at = &a->first, *c; (c = *at) && c->number < before;) {
        u32 due = 0;
        for (u32 i = 0; i < LANES; i++) due |= (u32)((s32)(a->committed[i] - c->group[i]) > pending) << i;
        land(w, in, owner, c, due & lanes & c->in_flight, time);
        if (c->in_flight) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (!c->next) a->last = at;
        c->next = a->spare;
        a->spare = c;
    }
}

static void exec_commit(struct warp *w, const struct inst *in, u32 mask)
{
    (void)in;
    struct async_state *a = warp_async(w);
    FOR_LANES(mask, { a->committed[i]++; });
}

/* wait_group: imm groups may still be in flight. */
static void exec_wait_group(struct warp *w, const struct inst *in, u32 mask)
{
    land_copies(w, in, w, mask, UINT64_MAX, (s32)in->imm, w->time);
}

/* wait_all: whether committed or not. */
static void exec_wait_all(struct warp *w, const struct inst *in, u32 mask)
{
    exec_commit(w, in, mask);
    land_copies(w, in, w, mask, UINT64_MAX, 0, w->time);
}

bool lower_copy(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    bool cg = false, hint = false;
    for (u32 k = 1; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        if (streq(m, "cg"))
            cg = true;
        else if (streq(m, "L2::cache_hint"))
            hint = true;
        else if (!streq(m, "ca") && !streq(m, "shared") && !streq(m, "shared::cta") && !streq(m, "global") &&
                 strncmp(m, "L2::", 4) != 0)
            return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    u32 operands = p->op_count - hint; /* a cache policy, at the end, changes no value */
    if (operands < 3 || operands > 4) return refuse(lo, p, "this form of cp.async");
    u64 bytes = p->op[2].imm;
    if (bytes != 16 && (cg || (bytes != 4 && bytes != 8)))
        return refuse(lo, p, "a copy of %llu bytes", (unsigned long long)bytes);
    struct copy_form *form = keep(sizeof *form);
    form->size = form->ignore = NO_OPERAND;
    if (operands == 4 && p->op[3].kind == OPERAND_REG && p->op[3].reg->type == T_PRED)
        form->ignore = lower_predicate(lo, &p->op[3], &form->ignore_flip);
    else if (operands == 4)
        form->size = lower_source(lo, &p->op[3], T_U32);
    in->exec = exec_copy;
    in->space = SPACE_GENERIC;
    in->bytes = (u8)bytes;
    in->data = form;
    if (!lower_address(lo, &p->op[1], &form->source) || !lower_address(lo, &p->op[0], in)) return false;
    in->base = form->source.base;
    return true;
}

bool lower_copy_commit(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_commit;
    return true;
}

bool lower_copy_wait(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo;
    in->exec = exec_wait_group;
    in->imm = (s64)p->op[0].imm;
    return true;
}

bool lower_copy_wait_all(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    (void)lo, (void)p;
    in->exec = exec_wait_all;
    return true;
}

/* flags of the instructions that take an mbarrier */
enum { DROPS = 1, EXPECTS = 2 }; /* arrive */
enum { PARITY = 1, BLOCKS = 2 }; /* wait */
enum { NO_INCREMENT = 1 };       /* cp.async.mbarrier.arrive */
enum { REMOTE = 1 << 8 };        /* it may lie in another block */
enum { RELAXED = 1 << 9 };       /* orders nothing */

/* ---- mbarrier: the object -------------------------------------------------------------------------------------------- */

/* An mbarrier is a 64-bit object in shared memory whose bits PTX does not define. Its state is kept beside the memory, and
 * its bytes there are poison while it is live: who loads them gets nothing, who stores to them is found out.
 *
 *      init(n)        pending = expected = n, tx = 0, phase 0
 *      arrive(c)      pending -= c            fewer than c pending: a fault, as on an H200
 *      arrive_drop(c) expected -= c, then arrive(c)
 *      expect_tx(b)   tx += b                 complete_tx(b)   tx -= b
 *      after each     pending == 0 and tx == 0: the next phase begins, with pending = expected
 *      wait.parity(P) true when (phase & 1) != P: the phase of parity P is over */

/* The word as an H200 has it: 63 phase, 62-43 -pending, 41-21 -tx, 20-1 -expected. */
static u64 mbarrier_word(const struct mbarrier *m)
{
    u64 pending = (u64)-m->pending & 0xfffff, expected = (u64)-m->expected & 0xfffff,
        tx = (u64)-m->tx & 0x1fffff;
    return (m->phase & 1) << 63 | pending << 43 | tx << 21 | expected << 1;
}

static struct mbarrier *slot(struct block_async *a, u32 offset)
{
    u32 at = (offset >> 3) * 0x9e3779b1u & (a->capacity - 1);
    while (a->table[at].used && a->table[at].offset != offset) at = (at + 1) & (a->capacity - 1);
    return &a->table[at];
}

static struct mbarrier *add_slot(struct block_async *a, u32 offset)
{
    if (2 * a->used >= a->capacity) {
        struct block_async grown = *a;
        grown.capacity = a->capacity ? 2 * a->capacity : 32;
        if (!(grown.table = calloc(grown.capacity, sizeof *grown.table))) abort();
        for (u32 i = 0; i < a->capacity; i++)
            if (a->table[i].used) *slot(&grown, a->table[i].offset) = a->table[i];
        free(a->table);
        *a = grown;
    }
    struct mbarrier *m = slot(a, offset);
    a->used += !m->used;
    return m;
}

/* Where the mbarriers lie that the lanes name. */
struct places {
    struct block *block[LANES];
    u32 offset[LANES];
};

static void mbarrier_places(struct warp *w, const struct inst *in, u32 mask, struct places *at)
{
    u64 address[LANES];
    memory_addresses(w, in, mask, address);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        u64 a = address[i] - (in->space == SPACE_GENERIC ? SHARED_WINDOW : 0);
        if (a >= WINDOW_BYTES)
            fault(w, in, 1u << i, ERR_INVALID_ADDRESS_SPACE,
                  "the generic address 0x%llx is not one of shared memory", (unsigned long long)address[i]);
        if (a & 7)
            fault(w, in, 1u << i, ERR_MISALIGNED, "misaligned mbarrier at 0x%llx: must be a multiple of 8",
                  (unsigned long long)a);
        at->offset[i] = shared_offset(w, in, in, i, a, 8, ACCESS_WRITE, &at->block[i]);
        if (at->block[i] != w->block && !(in->flags & REMOTE))
            fault(
                w, in, 1u << i, ERR_INVALID_ADDRESS_SPACE,
                "the mbarrier lies in block %u of the cluster: another block may arrive there and expect or complete bytes, "
                "but not wait, initialise or be told the state",
                at->block[i]->cluster_rank);
    }
}

/* Whose state it is, and that it may be used. */
struct mbarrier *async_mbarrier(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 offset)
{
    struct block_async *a = block_async(b);
    struct mbarrier *m = a->capacity ? slot(a, offset) : NULL;
    if (!m || !m->live)
        fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE, "no mbarrier has been initialised at shared offset %u%s",
              offset, b == w->block ? "" : " of the other block");
    u64 bytes;
    memcpy(&bytes, b->shared + offset, 8);
    if (~bytes)
        fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE,
              "the mbarrier at shared offset %u was overwritten by an ordinary store (0x%016llx)", offset,
              (unsigned long long)bytes);
    if (b != w->block ? b->cluster->phase <= m->init_phase
                      : w->id != m->init_warp && b->last_barrier <= m->init_time)
        fault(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE,
            "the mbarrier at shared offset %u is used before its mbarrier.init is visible here: no %s since",
            offset, b != w->block ? "barrier.cluster" : "barrier");
    if (b != w->block && b->init_fence <= m->init_time &&
        b->warps[m->init_warp].cluster_released <= m->init_time)
        breach(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE,
            "the mbarrier at shared offset %u is used before its mbarrier.init is visible here: no fence.mbarrier_init since, "
            "and a relaxed barrier.cluster.arrive orders nothing",
            offset);
    return m;
}

/* cuda::memcpy_async of a cuda::barrier does without these fences (CCCL 3.0), and does not ask the program for them;
 * cuda::device::memcpy_async_tx does. */
bool async_of_library(const struct warp *w, const struct inst *in)
{
    return warp_inlined_from(w, in, "/cuda/__memcpy_async/dispatch_memcpy_async.h");
}

struct mbarrier *async_mbarrier_of_copy(struct warp *w, const struct inst *in, u32 lane, struct block *b,
                                        u32 offset)
{
    struct mbarrier *m = async_mbarrier(w, in, lane, b, offset);
    if (b->init_fence <= m->init_time && !async_of_library(w, in))
        breach(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE,
            "the mbarrier at shared offset %u is used by a copy before its mbarrier.init is visible to the async proxy: no "
            "fence.mbarrier_init or fence.proxy.async since",
            offset);
    return m;
}

/* ---- mbarrier: phases -------------------------------------------------------------------------------------------------- */

static bool awaited(const struct block_async *a, u32 offset)
{
    for (u32 i = 0; i < a->waiter_count; i++)
        if (a->waiters[i].mixed || a->waiters[i].offset == offset) return true;
    return false;
}

/* Those who wait for this mbarrier try again. */
static void wake(struct block_async *a, u32 offset)
{
    u32 kept = 0;
    for (u32 i = 0; i < a->waiter_count; i++) {
        struct waiter *t = &a->waiters[i];
        if (t->mixed || t->offset == offset)
            t->warp->splits[t->split].state = SPLIT_READY;
        else
            a->waiters[kept++] = *t;
    }
    a->waiter_count = kept;
}

static void phase_check(struct mbarrier *m)
{
    if (m->pending || m->tx || m->on_way) return;
    m->phase++;
    m->pending = m->expected;
    order_mbarrier_complete(m);
    proxy_synced(m->block);
    wake(m->block->async, m->offset);
}

static void arrive(struct warp *w, const struct inst *in, u32 lane, struct mbarrier *m, u32 count)
{
    if (count > (u32)m->pending)
        fault(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE,
            "over-arrival: %u arrivals at the mbarrier at shared offset %u, where phase %llu lacks only %d of %d (and %d bytes)",
            count, m->offset, (unsigned long long)m->phase, m->pending, m->expected, m->tx);
    m->pending -= (s32)count;
    m->block->visitors &= ~(1u << w->block->cluster_rank); /* what it read there, it has read */
    phase_check(m);
}

static void add_tx(struct warp *w, const struct inst *in, u32 lane, struct mbarrier *m, s64 bytes)
{
    s64 tx = m->tx + bytes;
    if (bytes > MAX_COUNT || bytes < -MAX_COUNT || tx > MAX_COUNT || tx < -MAX_COUNT)
        fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE,
              "%lld bytes make the tx-count of the mbarrier at shared offset %u %lld: beyond 2^20 - 1",
              (long long)bytes, m->offset, (long long)tx);
    m->tx = (s32)tx;
    phase_check(m);
}

/* Somebody waits for this mbarrier. When nothing is missing but arrivals that follow copies, and bulk copies that bring all
 * the bytes expected, the copies land now. */
static void settle(struct warp *w, const struct inst *in, struct mbarrier *m)
{
    struct block_async *a = m->block->async;
    if (m->pending > m->deferred || m->tx != m->on_way) return;
    while (m->loads) {
        struct bulk *load = m->loads;
        m->loads = load->next;
        m->tx -= (s32)load->bytes;
        m->on_way -= (s32)load->bytes;
        bulk_land(w, in, load);
    }
    phase_check(m);
    while (m->deferred && m->deferred >= m->pending && !m->tx) {
        u32 at = 0;
        while (a->arrivals[at].offset != m->offset) at++;
        struct arrival next = a->arrivals[at];
        memmove(&a->arrivals[at], &a->arrivals[at + 1], (--a->arrival_count - at) * sizeof next);
        land_copies(w, in, next.warp, next.lanes, next.before, -1, next.time);
        for (u32 left = next.lanes; left; left &= left - 1) {
            m->deferred--;
            arrive(w, in, first_lane(left), m, 1);
        }
    }
}

static void settle_if_awaited(struct warp *w, const struct inst *in, struct mbarrier *m)
{
    if ((m->deferred || m->loads) && awaited(m->block->async, m->offset)) settle(w, in, m);
}

void async_attach(struct warp *w, const struct inst *in, struct mbarrier *m, struct bulk *load)
{
    struct bulk **last = &m->loads;
    while (*last) last = &(*last)->next;
    *last = load;
    m->on_way += (s32)load->bytes;
    settle_if_awaited(w, in, m);
}

/* ---- mbarrier: instructions -------------------------------------------------------------------------------------------- */

static u32 count_of(struct warp *w, const struct inst *in, u32 lane)
{
    u32 count = in->b == NO_OPERAND ? 1 : ((u32 *)lanes_of(w, in->b))[lane];
    if (!count || count > MAX_COUNT)
        fault(w, in, 1u << lane, ERR_LAUNCH_FAILURE, "a count of %u arrivals: it must be 1 to 2^20 - 1",
              count);
    return count;
}

static void exec_init(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        u32 offset = at.offset[i];
        struct mbarrier *m = add_slot(block_async(w->block), offset);
        if (m->live && m->on_way)
            fault(
                w, in, 1u << i, ERR_LAUNCH_FAILURE,
                "mbarrier.init of a live mbarrier, at shared offset %u, while %d bytes are in flight to complete at it",
                offset, m->on_way);
        if (m->live)
            breach(w, in, 1u << i, ERR_LAUNCH_FAILURE,
                   "mbarrier.init of a live mbarrier, at shared offset %u: mbarrier.inval must come first",
                   offset);
        s32 count = (s32)count_of(w, in, i);
        const struct cluster *c = w->block->cluster;
        /* Who has arrived already tells of this no sooner than with the next phase. */
        bool arrived = w->cluster_arrived >> i & 1 && w->cluster_phase[i] == c->phase;
        *m = (struct mbarrier){.block = w->block,
                               .offset = offset,
                               .used = true,
                               .live = true,
                               .pending = count,
                               .expected = count,
                               .init_warp = w->id,
                               .init_time = w->block->clock++,
                               .init_phase = c->phase + arrived};
        order_mbarrier_init(m);
        memset(w->block->shared + offset, 0xff, 8);
    }
}

static void exec_inval(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        struct mbarrier *m = async_mbarrier(w, in, i, at.block[i], at.offset[i]);
        u64 word = mbarrier_word(m); /* as on an H200, the state is found in the memory now */
        memcpy(w->block->shared + at.offset[i], &word, 8);
        if (m->loads)
            fault(w, in, 1u << i, ERR_LAUNCH_FAILURE,
                  "mbarrier.inval while %d bytes are in flight to complete at it", m->on_way);
        m->live = false;
    }
}

/* d: the state before, or NO_OPERAND; b: count, or bytes with EXPECTS. An arrival .noComplete that completes the phase all
 * the same, which PTX leaves undefined, does so on an H200 and here. */
static void exec_arrive(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    u64 state[LANES];
    note_change(w->block);
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left), count = in->flags & EXPECTS ? 1 : count_of(w, in, i);
        struct mbarrier *m = async_mbarrier(w, in, i, at.block[i], at.offset[i]);
        u32 bytes = in->flags & EXPECTS ? ((u32 *)lanes_of(w, in->b))[i] : 0;
        state[i] = (mbarrier_word(m) & ~0xffffffffull) |
                   (in->flags & EXPECTS ? bytes : count); /* the low word, as on an H200 */
        order_mbarrier_arrive(w, left == mask ? mask : 0, m, in->flags & RELAXED); /* as one */
        if (at.block[i] != w->block) order_remote(w, in, i, at.block[i], m);
        if (in->flags & EXPECTS) add_tx(w, in, i, m, bytes);
        if (in->flags & DROPS) m->expected -= (s32)count;
        arrive(w, in, i, m, count);
        settle_if_awaited(w, in, m);
    }
    warp_published(w);
    if (in->d == NO_OPERAND) return;
    u64 *d = lanes_of(w, in->d);
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) d[i] = state[i];
}

/* aux: 1 for complete_tx */
static void exec_tx(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    const u32 *bytes = lanes_of(w, in->b);
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        struct mbarrier *m = async_mbarrier(w, in, i, at.block[i], at.offset[i]);
        if (at.block[i] != w->block) order_remote(w, in, i, at.block[i], m);
        add_tx(w, in, i, m, in->aux ? -(s64)bytes[i] : (s64)bytes[i]);
        settle_if_awaited(w, in, m);
    }
}

static void park(struct warp *w, const struct inst *in, u32 offset, u32 parity, bool mixed)
{
    struct block_async *a = w->block->async;
    GROW(a->waiters, a->waiter_count, a->waiter_capacity);
    a->waiters[a->waiter_count++] = (struct waiter){w, w->current, offset, parity, mixed};
    warp_park(w, SPLIT_WAIT_OTHER, warp_index_of(w, in)); /* tries again when it is woken: */
    w->ahead--; /* by its clock, however often, it is one instruction */
}

/* test_wait only looks, and leaves their turn to others when it sees nothing. One that does so endlessly is taken for a
 * try_wait in the end, so that a wait for what never comes is found out. */
static void give_way(struct warp *w, const struct inst *in, u32 offset, u32 parity, bool mixed)
{
    enum { ENDLESS = 1 << 20 };
    struct async_state *a = warp_async(w);
    if (++a->failed_tests >= ENDLESS) {
        a->failed_tests = 0;
        park(w, in, offset, parity, mixed);
        return;
    }
    warp_give_way(w);
}

/* Whether a try_wait of a phase that is not over answers so, as it may when its time is up: with a seed each one does the first
 * time that a warp comes there, and every now and then. It is to come round again. */
static bool times_out(struct warp *w, const struct inst *in)
{
    if (!options.seed || !(in->flags & BLOCKS)) return false;
    struct async_state *a = warp_async(w);
    u64 here = 1ull << in->site % 64;
    bool again = a->timed_out & here;
    a->timed_out |= here;
    a->gave_up = !a->gave_up && (!again || ((++a->tries ^ (u32)options.seed) * 2654435761u) >> 28 == 0);
    return a->gave_up;
}

const char *async_gave_up(const struct warp *w)
{
    return w->async && w->async->gave_up
               ? " (the last mbarrier.try_wait answered false, as it may: repeat it until it is true)"
               : "";
}

/* d: predicate; b: state or parity. try_wait may block for a while; here it mostly does until the phase is over. */
static void exec_wait(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    const u32 *offset = at.offset;
    u32 parity[LANES], done = 0, lane = first_lane(mask), mixed = 0;
    struct mbarrier *barrier[LANES];
    const struct mbarrier *known = NULL;
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        barrier[i] = async_mbarrier(w, in, i, at.block[i], at.offset[i]);
        if (in->flags & PARITY)
            parity[i] = ((u32 *)lanes_of(w, in->b))[i];
        else
            parity[i] = (u32)(((u64 *)lanes_of(w, in->b))[i] >> 63);
        if (parity[i] > 1)
            fault(w, in, 1u << i, ERR_LAUNCH_FAILURE, "the phase parity is %u: it must be 0 or 1", parity[i]);
        mixed |= (offset[i] ^ offset[lane]) | (parity[i] ^ parity[lane]);
        done |= (u32)((barrier[i]->phase & 1) != parity[i]) << i;
    }
    if (!done && times_out(w, in)) {
        set_predicate(w, in->d, mask, 0);
        warp_give_way(w);
        return;
    }
    done = 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        struct mbarrier *m = barrier[i];
        if ((m->phase & 1) == parity[i]) settle(w, in, m);
        bool over = (m->phase & 1) != parity[i];
        if (over && m != known) order_mbarrier_wait(w, m, in->flags & RELAXED);
        if (over) {
            m->missed += m->phase > m->seen ? m->phase - m->seen - 1 : 0;
            m->seen = m->phase;
            known = m;
        }
        done |= (u32)over << i;
    }
    if (!done && in->flags & BLOCKS) {
        park(w, in, offset[lane], parity[lane], mixed);
        return;
    }
    set_predicate(w, in->d, mask, done);
    if (!done)
        give_way(w, in, offset[lane], parity[lane], mixed);
    else if (w->async)
        w->async->failed_tests = 0, w->async->gave_up = false;
}

static void exec_pending_count(struct warp *w, const struct inst *in, u32 mask)
{
    const u64 *state = lanes_of(w, in->a);
    u32 *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = (u32) - (s64)(state[i] >> 43) & 0xfffff; });
}

/* Lanes that name the same mbarrier arrive together, when their copies so far have landed. */
static void exec_copy_arrive(struct warp *w, const struct inst *in, u32 mask)
{
    struct places at;
    mbarrier_places(w, in, mask, &at);
    for (u32 left = mask; left;) {
        u32 i = first_lane(left), lanes = 0;
        struct mbarrier *m = async_mbarrier(w, in, i, at.block[i], at.offset[i]);
        struct block_async *a = w->block->async;
        for (u32 k = 0; k < LANES; k++) lanes |= (u32)(left >> k & 1 && at.offset[k] == at.offset[i]) << k;

        left &= ~lanes;
        s32 count = __builtin_popcount(lanes);
        u32 time = w->time;
        order_mbarrier_arrive(w, lanes, m, false);
        if (!(in->flags & NO_INCREMENT)) m->pending += count;
        if (m->pending > MAX_COUNT)
            fault(w, in, lanes, ERR_LAUNCH_FAILURE,
                  "the mbarrier at shared offset %u has 2^20 pending arrivals", at.offset[i]);
        m->deferred += count;
        GROW(a->arrivals, a->arrival_count, a->arrival_capacity);
        a->arrivals[a->arrival_count++] =
            (struct arrival){at.offset[i], lanes, w, warp_async(w)->issued, time};
        settle_if_awaited(w, in, m);
    }
}

const struct bulk *async_open_load(const struct block *b, u32 at)
{
    const struct block_async *a = b->async;
    for (u32 i = 0; a && i < a->capacity; i++)
        for (const struct bulk *c = a->table[i].loads; c; c = c->next)
            if (at == ANYWHERE_IN_BLOCK || bulk_covers(c, at)) return c;
    return NULL;
}

void async_describe_wait(const struct warp *w, const struct split *s, char *out, size_t size)
{
    const struct block_async *a = w->block->async;
    snprintf(out, size, "waits");
    for (u32 i = 0; a && i < a->waiter_count; i++) {
        const struct waiter *t = &a->waiters[i];
        if (t->warp != w || &w->splits[t->split] != s) continue;
        const struct mbarrier *m = slot(w->block->async, t->offset);
        int n = snprintf(
            out, size,
            "waits for the phase of parity %u of the mbarrier at shared offset %u%s, which is in phase %llu: %d of %d arrivals missing",
            t->parity, t->offset, t->mixed ? " (lanes for others)" : "", (unsigned long long)m->phase,
            m->pending, m->expected);
        u64 passed = m->missed + m->phase - m->seen;
        if (passed && n > 0 && (size_t)n < size)
            n += snprintf(out + n, size - (size_t)n, ", %llu phase%s passed with nobody waiting",
                          (unsigned long long)passed, passed > 1 ? "s have" : " has");
        if (m->deferred && n > 0 && (size_t)n < size)
            n += snprintf(out + n, size - (size_t)n, ", %d of them to follow copies", m->deferred);
        const struct bulk *cut = m->loads;
        while (cut && !cut->cut) cut = cut->next;
        if (m->on_way && m->on_way != m->tx && n > 0 && (size_t)n < size)
            n += snprintf(out + n, size - (size_t)n, ", %d bytes expected, but the copies in flight bring %d",
                          m->tx, m->on_way);
        else if (m->tx && n > 0 && (size_t)n < size)
            n += snprintf(out + n, size - (size_t)n, ", %d bytes outstanding", m->tx);
        if (cut && n > 0 && (size_t)n < size)
            snprintf(out + n, size - (size_t)n,
                     " (one of %u bytes is cut to %u: its size must be a multiple of 16)",
                     cut->bytes + cut->cut, cut->bytes);
    }
}

/* ---- Lowering ---------------------------------------------------------------------------------------------------------- */

/* Reads the modifiers after the first `skip`: the state space, memory order, which every access here has anyway, and those
 * that `flags` gives a meaning. */
struct flag {
    const char *name;
    u16 bit;
};
static bool read_modifiers(struct lowering *lo, const struct ptx_inst *p, struct inst *in, u32 skip,
                           const struct flag *flags)
{
    static const char *const plain[] = {"b64", "cta", "cluster", "release", "acquire"};
    in->space = SPACE_GENERIC;
    for (u32 k = skip; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        bool known = false;
        if (shared_space(m) != SPACE_GENERIC) in->space = shared_space(m), known = true;
        for (u32 q = 0; q < sizeof plain / sizeof *plain; q++) known |= streq(plain[q], m);
        if (streq(m, "relaxed")) in->flags |= RELAXED, known = true;
        for (const struct flag *f = flags; f && f->name; f++)
            if (streq(f->name, m)) in->flags |= f->bit, known = true;
        if (!known) return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    return true;
}

bool lower_copy_arrive(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct flag flags[] = {{"noinc", NO_INCREMENT}, {NULL, 0}};
    in->exec = exec_copy_arrive;
    return read_modifiers(lo, p, in, 3, flags) && lower_address(lo, &p->op[0], in);
}

/* mbarrier.arrive{_drop}{.expect_tx}{.noComplete}.b64 state, [addr]{, count} */
bool lower_arrive(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct flag flags[] = {{"expect_tx", EXPECTS}, {"noComplete", 0}, {NULL, 0}};
    if (!read_modifiers(lo, p, in, 1, flags)) return false;
    if (p->op_count > 3 || (in->flags & EXPECTS && p->op_count != 3))
        return refuse(lo, p, "this form of mbarrier");
    in->exec = exec_arrive;
    if (streq(p->mod[0], "arrive_drop")) in->flags |= DROPS;
    if (p->op[0].kind != OPERAND_SINK)
        in->d = lower_dest(lo, &p->op[0], T_B64);
    else
        in->flags |= REMOTE;
    if (p->op_count == 3) in->b = lower_source(lo, &p->op[2], T_U32);
    return lower_address(lo, &p->op[1], in);
}

/* mbarrier.test_wait{.parity}.b64 p, [addr], state;  try_wait likewise, and a time limit, which has no meaning here */
bool lower_wait(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const struct flag flags[] = {{"parity", PARITY}, {NULL, 0}};
    if (!read_modifiers(lo, p, in, 1, flags)) return false;
    if (p->op_count > 4) return refuse(lo, p, "this form of mbarrier");
    in->exec = exec_wait;
    if (streq(p->mod[0], "try_wait")) in->flags |= BLOCKS;
    in->d = lower_dest(lo, &p->op[0], T_PRED);
    in->b = lower_source(lo, &p->op[2], in->flags & PARITY ? T_U32 : T_B64);
    return lower_address(lo, &p->op[1], in);
}

bool lower_pending_count(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_pending_count;
    in->d = lower_dest(lo, &p->op[0], T_U32);
    in->a = lower_source(lo, &p->op[1], T_B64);
    return read_modifiers(lo, p, in, 1, NULL);
}

bool lower_init(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_init;
    in->b = lower_source(lo, &p->op[1], T_U32);
    return read_modifiers(lo, p, in, 1, NULL) && lower_address(lo, &p->op[0], in);
}

bool lower_inval(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_inval;
    return read_modifiers(lo, p, in, 1, NULL) && lower_address(lo, &p->op[0], in);
}

/* mbarrier.expect_tx, mbarrier.complete_tx */
bool lower_tx(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_tx;
    in->flags = REMOTE;
    in->aux = streq(p->mod[0], "complete_tx");
    in->b = lower_source(lo, &p->op[1], T_U32);
    return read_modifiers(lo, p, in, 1, NULL) && lower_address(lo, &p->op[0], in);
}
