/* global.c: which accesses to global memory nothing orders, and what the blocks of a grid know of each other. */
#define _GNU_SOURCE
#include "global.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../report/report.h"
#include "../runtime/heap.h"
#include "footprint.h"
#include "order.h"
#include "undefined.h"

enum {
    BY_OTHERS = 1,
    FIRST_NUMBER
}; /* of a word's writes, besides numbers of records: by the host, or a bulk copy */
enum {
    MOST_UNITS = 512,
    MOST_ACQUIRED = 32,
    FIRST_FLAGS = 256,
    RECENT = 8,
    NUMBERS = 256,
    MOST_PARTED = 1 << 16,
    MOST_EARLY = 1 << 11,
    CHUNKS = 1 << 12, /* of 16 bytes, whose strong stores are kept */
    UNFENCED = 256,
    SAW = 8
};
#define MOST_RECORDS (1u << 27)
#define MOST_KEPT    (1ull << 30) /* bytes of written memory after which what is known of it is given back */
#define NOT_WAITED   UINT32_MAX

/* ---- Views ------------------------------------------------------------------------------------------------------------ */

/* Of some units, a unit being a cluster, most often of one block: the times that are known of its warps. Entries of 1 + width
 * numbers, by unit. */
struct view {
    u32 count, capacity;
    bool all;    /* of more units than are kept: taken to know everything */
    bool waited; /* the launch before is over */
    u32 *entries;
};

struct acquired {
    struct view view;
    u32 actor, time; /* by which warp of the cluster, and when */
};

/* The latest strong store to some bytes. */
struct stored {
    u64 at;               /* 0: none */
    u32 bytes, number;    /* its record */
    u32 store;            /* which strong store of its cluster's it is */
    u32 known[MAX_WARPS]; /* what its warp knew of the others of its block */
    u32 fenced; /* the number of the first fence after a release of its cluster; 0: there is no release */
    bool seen;  /* another thread has read it, or has once been shown what was there before: */
    u8 before[16];
};

/* A strong store of another cluster, or of this one, that a warp has seen: what it wrote was compared with something, as a flag is. */
struct saw {
    u32 unit, actor, store, known[MAX_WARPS];
    u32 by, time; /* by which warp, and when */
};

/* What the warps of a cluster know of others. */
struct cluster_view {
    struct view known;         /* all of them */
    struct acquired *acquired; /* one of them, and who synchronises with it */
    u32 count, capacity;
    u32 fences; /* how many there had been, of all, at the last that its warps may know of */
    u32 stores; /* strong ones, of its warps, so far */
    struct stored *unfenced[UNFENCED]; /* the latest of them since it has released anything */
    u32 unfenced_count;
    struct saw saw[SAW]; /* what its warps have compared with something */
    u32 saw_count;
};

struct flag {
    u64 address;
    struct view view;
};

struct record {
    const struct function *fn;
    const struct inst *in;
    u32 unit;
    u32 time; /* NOT_WAITED: a bulk store that its thread has not waited for */
    u16 actor;
    u8 how;       /* enum access */
    u8 bytes : 4; /* which bytes of the word, 15: all */
    u8 step : 4;  /* as in struct by_lanes */
    u32 lanes;
};

/* Which lanes did it. With a step, elements of 1 << (step - 1) bytes that lie in a row: `lanes` is the number of lane 0's, modulo 32.
 * Else all of `lanes`, which one accessed what is not told apart; 0: it is not known which. */
struct by_lanes {
    u32 step, lanes;
};

struct warp_view {
    struct view fenced,
        seen; /* what it knew at its last fence; what its relaxed looks have seen, known at its next one */
    u32 fenced_at, seen_at; /* when; 0: the fence was none of ORDER_SC */
    bool seen_known;        /* it has fenced since: kept for the fences of others */
    struct recent {
        const struct inst *in;
        u32 time, number;
        u8 how, bytes, step;
        u32 lanes;
    } recent[RECENT]; /* of its latest accesses: their records */
    struct suspect_write {
        bool set;
        u32 lane, bytes;
        u64 at;
        u8 before[8];
        struct record other;
    } suspect;
};

/* Numbers of records, by word. Most often the words of a line have the same: then it is the line's. */
enum { LINE = 16 };
struct numbers {
    u32 *lines, *words; /* NULL: no room for them */
};
#define BY_WORD UINT32_MAX       /* a line's: each word has its own */
#define BUSY    (UINT32_MAX - 1) /* ... another host thread is making it so */

/* Of a warp: its releases since some of its lanes have passed on what they did, and others have not. */
struct parted {
    u64 warp; /* unit << 16 | actor, and 1 << 63 */
    u32 count;
    struct passed passed[PASSED]; /* the latest; `met`: until then every lane had */
};

/* A host thread's first reads of memory that the launch had not written to, as it knew. */
struct early_reads {
    u64 low, high; /* `written`, when these were last looked at */
    u32 count;
    struct early_read {
        u64 at, end;
        struct record record;
    } read[MOST_EARLY];
};

static struct {
    u64 base, bytes; /* the device's addresses */
    struct numbers writes, reads;
    struct record *records; /* by number, from `first` of this launch on; of the launch before it: */
    struct record *before;
    u32 previous, first;
    _Atomic u32 next;
    u64 launches;
    u32 width; /* of an entry of a view: the warps of a cluster */
    _Atomic u64 read_low, read_high;
    pthread_mutex_t lock; /* of the flags */
    struct flag *flags;
    u32 flag_count, flag_capacity;
    struct stored (*stored)[4]; /* a hash table, of CHUNKS places: by word */
    _Atomic bool has_stored;
    _Atomic u32 fences;     /* how many there have been */
    u32 shown;              /* how often it was asked whether to show what had been there before */
    struct parted **parted; /* a hash table, of MOST_PARTED places */
    _Atomic u32 parted_count;
    _Atomic bool published;
    _Atomic bool launches_dependents; /* the launch has executed griddepcontrol.launch_dependents */
    bool forgotten;                   /* what was written before some launch is no longer known */
} grid = {.lock = PTHREAD_MUTEX_INITIALIZER, .next = FIRST_NUMBER};

struct written global_written;
static struct written written; /* the same, also while global_written is everything */

static const u32 *entry_for(const struct view *v, u32 unit)
{
    u32 low = 0, high = v->count, stride = 1 + grid.width;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (v->entries[middle * stride] < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low < v->count && v->entries[low * stride] == unit ? v->entries + low * stride : NULL;
}

static void view_clear(struct view *v)
{
    v->count = 0;
    v->all = v->waited = false;
}

static void view_join(struct view *to, const struct view *from)
{
    u32 stride = 1 + grid.width, missing = 0;
    to->all |= from->all;
    to->waited |= from->waited;
    for (u32 k = 0; k < from->count; k++) missing += !entry_for(to, from->entries[k * stride]);
    if (to->all || to->count + missing > MOST_UNITS) {
        to->all = true;
        return;
    }
    if (to->count + missing > to->capacity) {
        to->capacity = 2 * (to->count + missing);
        if (!(to->entries = realloc(to->entries, (size_t)to->capacity * stride * sizeof(u32)))) abort();
    }
    u32 a = to->count, b = from->count; /* merged from the end, into the room behind */
    for (u32 k = a + missing; k-- > 0 && b;) {
        const u32 *x = a ? to->entries + (a - 1) * stride : NULL, *y = from->entries + (b - 1) * stride;
        u32 *entry = to->entries + k * stride;
        if (x && *x > *y) {
            memmove(entry, x, stride * sizeof(u32));
            a--;
            continue;
        }
        if (!x || *x < *y) {
            memcpy(entry, y, stride * sizeof(u32));
        } else {
            if (entry != x) memmove(entry, x, stride * sizeof(u32));
            for (u32 n = 1; n < stride; n++) entry[n] = entry[n] > y[n] ? entry[n] : y[n];
            a--;
        }
        b--;
    }
    to->count += missing;
}

/* ---- What a warp knows -------------------------------------------------------------------------------------------------- */

static u32 actor_of(const struct warp *w)
{
    return w->block->cluster_rank * MAX_WARPS + w->id;
}

static struct warp_view *own(struct warp *w)
{
    if (!w->view && !(w->view = calloc(1, sizeof *w->view))) abort();
    return w->view;
}

/* Whether w synchronises with what `actor` of its cluster did at `time`. */
static bool knows_actor(const struct warp *w, u32 actor, u32 time)
{
    return actor == actor_of(w) || order_knows_actor(w, actor / MAX_WARPS * ACTORS + actor % MAX_WARPS, time);
}

static bool view_has(const struct view *v, u32 unit, u32 actor, u32 time)
{
    const u32 *entry = v->all ? NULL : entry_for(v, unit);
    return v->all || (entry && entry[1 + actor] >= time);
}

/* Where the times of an actor are in an entry. */
static u32 place_of(const struct warp *w, u32 actor)
{
    return actor / MAX_WARPS * w->block->warp_count + actor % MAX_WARPS;
}

static bool knows(const struct warp *w, u32 unit, u32 actor, u32 time)
{
    const struct cluster_view *c = w->block->cluster->view;
    if (unit == w->block->cluster->number) return knows_actor(w, actor, time);
    if (view_has(&c->known, unit, place_of(w, actor), time)) return true;
    for (u32 k = 0; k < c->count; k++) {
        const struct acquired *a = &c->acquired[k];
        if (view_has(&a->view, unit, place_of(w, actor), time) && knows_actor(w, a->actor, a->time))
            return true;
    }
    return false;
}

static bool knows_all_of(const struct warp *w, const struct view *v)
{
    if (v->all) return w->block->cluster->view->known.all;
    for (u32 k = 0; k < v->count; k++) {
        const u32 *entry = v->entries + k * (1 + grid.width);
        for (u32 n = 0; n < grid.width; n++) {
            u32 actor = n / w->block->warp_count * MAX_WARPS + n % w->block->warp_count;
            if (entry[0] != w->block->cluster->number && entry[1 + n] &&
                !knows(w, entry[0], actor, entry[1 + n]))
                return false;
        }
    }
    return true;
}

static void acquire(struct warp *w, const struct view *v)
{
    struct cluster_view *c = w->block->cluster->view;
    c->fences = grid.fences;
    if (!v->waited && knows_all_of(w, v)) return;
    if (c->count == MOST_ACQUIRED) { /* the oldest will do for all warps */
        struct acquired oldest = c->acquired[0];
        view_join(&c->known, &oldest.view);
        memmove(c->acquired, c->acquired + 1, --c->count * sizeof *c->acquired);
        c->acquired[c->count] = oldest;
    }
    if (c->count == c->capacity) {
        u32 more = c->capacity ? 2 * c->capacity : 4;
        if (!(c->acquired = realloc(c->acquired, more * sizeof *c->acquired))) abort();
        memset(c->acquired + c->capacity, 0, (more - c->capacity) * sizeof *c->acquired);
        c->capacity = more;
    }
    struct acquired *a = &c->acquired[c->count++];
    view_clear(&a->view);
    view_join(&a->view, v);
    a->actor = actor_of(w);
    a->time = w->time;
}

/* Everything that w knows: what a release of it passes on. */
static void collect(struct warp *w, struct view *to)
{
    struct cluster *cluster = w->block->cluster;
    const struct cluster_view *c = cluster->view;
    u32 entry[1 + MAX_CLUSTER * MAX_WARPS], warps = w->block->warp_count;
    struct view self = {.count = 1, .entries = entry};
    entry[0] = cluster->number;
    for (u32 n = 0; n < grid.width; n++) entry[1 + n] = order_known(w)[n / warps * ACTORS + n % warps];
    view_clear(to);
    view_join(to, &self);
    view_join(to, &c->known);
    for (u32 k = 0; k < c->count; k++)
        if (knows_actor(w, c->acquired[k].actor, c->acquired[k].time)) view_join(to, &c->acquired[k].view);
    to->waited = false;
}

void global_all_met(struct cluster *cluster)
{
    struct cluster_view *c = cluster->view;
    for (u32 k = 0; k < c->count; k++) view_join(&c->known, &c->acquired[k].view);
    c->count = 0;
}

/* Shared memory's flags are order.h's. */
static bool is_shared(const struct warp *w, u64 at)
{
    const struct cluster *c = w->block->cluster;
    for (u32 r = 0; r < c->size; r++)
        if (at - (u64)(uintptr_t)c->block[r]->shared < c->block[r]->shared_bytes) return true;
    return false;
}

/* ---- Flags -------------------------------------------------------------------------------------------------------------- */

static struct flag *flag_at(u64 address)
{
    u32 k = (u32)(address >> 2) * 2654435761u & (grid.flag_capacity - 1);
    while (grid.flags[k].address && grid.flags[k].address != address) k = (k + 1) & (grid.flag_capacity - 1);
    return &grid.flags[k];
}

static struct flag *new_flag(u64 address)
{
    if (2 * (grid.flag_count + 1) > grid.flag_capacity) {
        struct flag *old = grid.flags;
        u32 count = grid.flag_capacity;
        grid.flag_capacity = count ? 2 * count : FIRST_FLAGS;
        if (!(grid.flags = calloc(grid.flag_capacity, sizeof *grid.flags))) abort();
        for (u32 k = 0; k < count; k++)
            if (old[k].address) *flag_at(old[k].address) = old[k];
        free(old);
    }
    struct flag *f = flag_at(address);
    grid.flag_count += !f->address;
    f->address = address;
    return f;
}

/* The next warp of the cluster behind `k` that has a view, but for w; NULL if there is none. */
static struct warp *next_with_view(const struct warp *w, u32 *k)
{
    const struct cluster *c = w->block->cluster;
    for (; *k < c->size * w->block->warp_count; ++*k) {
        struct warp *x = &c->block[*k / w->block->warp_count]->warps[*k % w->block->warp_count];
        if (x != w && x->view) {
            ++*k;
            return x;
        }
    }
    return NULL;
}

/* The cluster of w releases something, or one of its warps fences: what it has stored is released. */
static void released(struct warp *w, bool fence)
{
    struct cluster_view *c = w->block->cluster->view;
    if (!grid.has_stored) return;
    pthread_mutex_lock(&grid.lock);
    if (fence) c->fences = ++grid.fences;
    for (u32 k = 0; k < c->unfenced_count; k++) c->unfenced[k]->fenced = grid.fences + 1;
    c->unfenced_count = 0;
    pthread_mutex_unlock(&grid.lock);
}

void global_publish(struct warp *w, u32 mask, const u64 at[LANES], enum order order)
{
    struct view v = {0};
    if (order & ORDER_RELEASE) released(w, false);
    if (!grid.writes.lines || order & ORDER_CTA) return;
    if (order & ORDER_RELEASE) {
        collect(w, &v);
    } else {
        struct warp *x;
        if (w->view) view_join(&v, &w->view->fenced);
        for (u32 k = 0; (x = next_with_view(w, &k));)
            if (x->view->fenced_at && knows_actor(w, actor_of(x), x->view->fenced_at))
                view_join(&v, &x->view->fenced);
        if (!v.count && !v.all) return;
    }
    pthread_mutex_lock(&grid.lock);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        if ((i && at[i] == at[i - 1] && mask >> (i - 1) & 1) || is_shared(w, at[i])) continue;
        view_join(&new_flag(at[i])->view, &v);
    }
    grid.published = true;
    pthread_mutex_unlock(&grid.lock);
    free(v.entries);
}

void global_fence(struct warp *w, enum order order)
{
    released(w, true);
    if (!grid.writes.lines || order & ORDER_CTA) return;
    struct warp_view *v = own(w);
    if (!v->seen_known && (v->seen.count || v->seen.all)) acquire(w, &v->seen);
    v->seen_known = true;
    struct warp *x;
    for (u32 k = 0; order & ORDER_SC && (x = next_with_view(w, &k));)
        if ((x->view->seen.count || x->view->seen.all) && knows_actor(w, actor_of(x), x->view->seen_at))
            acquire(w, &x->view->seen);
    collect(w, &v->fenced);
    v->fenced_at = order & ORDER_SC ? w->time : 0;
}

/* ---- Lanes that release alone --------------------------------------------------------------------------------------------- */

/* Where the releases of this warp are, or would be. */
static struct parted **parted_of(u32 unit, u32 actor)
{
    u64 warp = (u64)unit << 16 | actor | 1ull << 63;
    u32 k = (u32)(warp * 0x9e3779b97f4a7c15u >> 40) % MOST_PARTED;
    while (grid.parted[k] && grid.parted[k]->warp != warp) k = (k + 1) % MOST_PARTED;
    return &grid.parted[k];
}

void global_passed(struct warp *w, u32 time, u32 lanes)
{
    bool first = !w->parted && w->passed_count > 1;
    w->parted = w->global_lanes;
    if (!grid.writes.lines) return;
    pthread_mutex_lock(&grid.lock);
    if (!grid.parted && !(grid.parted = calloc(MOST_PARTED, sizeof *grid.parted))) abort();
    struct parted **place = parted_of(w->block->cluster->number, actor_of(w)), *p = *place;
    if (!p && grid.parted_count < MOST_PARTED / 2) {
        if (!(p = *place = calloc(1, sizeof *p))) abort();
        p->warp = (u64)w->block->cluster->number << 16 | actor_of(w) | 1ull << 63;
        grid.parted_count++;
    }
    if (p && first)
        p->passed[p->count++ % PASSED] =
            (struct passed){w->passed[(w->passed_count - 2) % PASSED].time, ALL_LANES, true};
    if (p) p->passed[p->count++ % PASSED] = (struct passed){time, lanes, false};
    pthread_mutex_unlock(&grid.lock);
}

/* Until when w knows of an actor. */
static u32 known_until(const struct warp *w, u32 unit, u32 actor)
{
    const struct cluster_view *c = w->block->cluster->view;
    if (unit == w->block->cluster->number)
        return order_known(w)[actor / MAX_WARPS * ACTORS + actor % MAX_WARPS];
    u32 until = 0, place = 1 + place_of(w, actor);
    for (u32 k = 0; k <= c->count; k++) {
        const struct acquired *a = k < c->count ? &c->acquired[k] : NULL;
        if (a && !knows_actor(w, a->actor, a->time)) continue;
        const struct view *v = a ? &a->view : &c->known;
        const u32 *entry = v->all ? NULL : entry_for(v, unit);
        if (v->all) return UINT32_MAX;
        if (entry && entry[place] > until) until = entry[place];
    }
    return until;
}

/* Of these lanes of a warp, past `time` as w knows, those which have not passed on what they did then, as far as w can know. What
 * was long ago is forgotten, and taken to be known. */
static u32 not_passed(const struct warp *w, u32 unit, u32 actor, u32 time, u32 lanes)
{
    if (!grid.parted_count || !lanes || (unit == w->block->cluster->number && actor == actor_of(w))) return 0;
    u32 known = known_until(w, unit, actor), k = 0;
    pthread_mutex_lock(&grid.lock);
    const struct parted *p = *parted_of(unit, actor);
    if (p && p->count >= PASSED) k = p->count - PASSED;
    bool forgotten = k && p->passed[k % PASSED].time > time;
    while (p && k < p->count && p->passed[k % PASSED].time < time) k++;
    if (!p || forgotten || k == p->count || p->passed[k % PASSED].met) lanes = 0;
    for (; lanes && k < p->count && p->passed[k % PASSED].time <= known; k++)
        lanes &= ~p->passed[k % PASSED].lanes;
    pthread_mutex_unlock(&grid.lock);
    return lanes;
}

/* ---- Launches that begin early ----------------------------------------------------------------------------------------------- */

void global_wait_for_launch(struct warp *w)
{
    acquire(w, &(struct view){.waited = true});
}

void global_launches_dependents(void)
{
    grid.launches_dependents = true;
}

/* ---- Start and end -------------------------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT; /* of reserve() */

static void *address_space(u64 bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool reserve_numbers(struct numbers *n)
{
    n->words = address_space(grid.bytes);
    n->lines = n->words ? address_space(grid.bytes / LINE) : NULL;
    return n->lines;
}

static void forget_numbers(const struct numbers *n)
{
    madvise(n->words, grid.bytes, MADV_DONTNEED);
    madvise(n->lines, grid.bytes / LINE, MADV_DONTNEED);
}

static void reserve(void)
{
    heap_range(&grid.base, &grid.bytes);
    grid.records = address_space(MOST_RECORDS * sizeof *grid.records);
    grid.before = address_space(MOST_RECORDS * sizeof *grid.before);
    if (grid.records && grid.before && reserve_numbers(&grid.reads)) reserve_numbers(&grid.writes);
}

/* Reads of what the launch has not written are not looked at, unless somebody wants to know of all. */
static void look_at_reads(void)
{
    global_written.low = footprint_wanted ? 0 : written.low;
    global_written.high = footprint_wanted ? UINT64_MAX : written.high;
}

void global_start_launch(struct launch *l)
{
    static u64 kept;
    pthread_once(&once, reserve);
    l->dependent &= atomic_exchange(&grid.launches_dependents, false);
    if (!grid.writes.lines) return;
    if (grid.next > BUSY - MOST_RECORDS - NUMBERS * MAX_WORKERS || kept > MOST_KEPT) {
        forget_numbers(&grid.writes);
        forget_numbers(&grid.reads);
        grid.next = FIRST_NUMBER;
        grid.forgotten = true;
        kept = 0;
    }
    kept += written.high > written.low ? written.high - written.low : 0;
    if (!l->dependent) {
        written.low = UINT64_MAX;
        written.high = 0;
    }
    look_at_reads();
    struct record *swap = grid.records;
    grid.records = grid.before;
    grid.before = swap;
    grid.previous = l->dependent ? grid.first : grid.next;
    grid.first = grid.next;
    grid.launches++;
    grid.width = l->cluster[0] * l->cluster[1] * l->cluster[2] *
                 ((l->block[0] * l->block[1] * l->block[2] + LANES - 1) / LANES);
}

void global_end_launch(void)
{
    for (u32 k = 0; k < grid.flag_capacity; k++) free(grid.flags[k].view.entries);
    free(grid.flags);
    grid.flags = NULL;
    grid.flag_count = grid.flag_capacity = 0;
    if (grid.has_stored) memset(grid.stored, 0, CHUNKS * sizeof *grid.stored);
    grid.has_stored = false;
    for (u32 k = 0; grid.parted_count && k < MOST_PARTED; k++) {
        free(grid.parted[k]);
        grid.parted[k] = NULL;
    }
    grid.parted_count = 0;
    grid.published = false;
}

void global_start_cluster(struct cluster *c)
{
    if (!c->view && !(c->view = calloc(1, sizeof *c->view))) abort();
    view_clear(&c->view->known);
    c->view->count = c->view->fences = c->view->stores = c->view->unfenced_count = c->view->saw_count = 0;
}

void global_start_warp(struct warp *w)
{
    if (!w->view) return;
    view_clear(&w->view->fenced);
    view_clear(&w->view->seen);
    w->view->fenced_at = w->view->seen_at = 0;
    w->view->seen_known = false;
    memset(w->view->recent, 0, sizeof w->view->recent);
}

void global_free_cluster(struct cluster *c)
{
    for (u32 k = 0; c->view && k < c->view->capacity; k++) free(c->view->acquired[k].view.entries);
    if (c->view) free(c->view->acquired);
    if (c->view) free(c->view->known.entries);
    free(c->view);
}

void global_free_warp(struct warp *w)
{
    if (w->view) free(w->view->fenced.entries);
    if (w->view) free(w->view->seen.entries);
    free(w->view);
}

/* ---- Records -------------------------------------------------------------------------------------------------------------- */

/* A line's number, when no other host thread is at it. */
static u32 line_number(const struct numbers *n, u64 line)
{
    u32 number;
    while ((number = __atomic_load_n(&n->lines[line], __ATOMIC_ACQUIRE)) == BUSY) {
    }
    return number;
}

static u32 word_number(const struct numbers *n, u64 word)
{
    u32 number = line_number(n, word / LINE);
    return number == BY_WORD ? __atomic_load_n(&n->words[word], __ATOMIC_ACQUIRE) : number;
}

/* Where this word has a number of its own from now on, which is its line's at first. */
__attribute__((no_sanitize("thread"))) static u32 *own_number(const struct numbers *n, u64 word)
{
    u32 *line = &n->lines[word / LINE], number;
    while ((number = line_number(n, word / LINE)) != BY_WORD) {
        if (!__atomic_compare_exchange_n(line, &number, BUSY, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        for (u64 k = word / LINE * LINE, end = k + LINE; k < end; k++) n->words[k] = number;
        __atomic_store_n(line, BY_WORD, __ATOMIC_RELEASE);
    }
    return &n->words[word];
}

/* What this number is of has been written down before. */
static void set_number(const struct numbers *n, u64 word, u32 number)
{
    __atomic_store_n(own_number(n, word), number, __ATOMIC_RELEASE);
}

static void set_numbers(const struct numbers *n, u64 word, u64 end, u32 number)
{
    for (; word < end && word % LINE; word++) set_number(n, word, number);
    for (; end - word >= LINE; word += LINE)
        for (u32 was = line_number(n, word / LINE);
             was != number && !__atomic_compare_exchange_n(&n->lines[word / LINE], &was, number, false,
                                                           __ATOMIC_RELEASE, __ATOMIC_RELAXED);)
            was = line_number(n, word / LINE);
    for (; word < end; word++) set_number(n, word, number);
}

/* Whether these words have the same number, of those below `floor` taken as 0: *number. */
__attribute__((no_sanitize("thread"))) static bool same_number(const struct numbers *n, u64 word, u64 end,
                                                               u32 floor, u32 *number)
{
    u32 first = word_number(n, word), differ = 0;
    *number = first = first >= floor ? first : 0;
    while (word < end) {
        u64 stop = word / LINE * LINE + LINE < end ? word / LINE * LINE + LINE : end;
        u32 line = line_number(n, word / LINE);
        if (line != BY_WORD) differ |= (line >= floor ? line : 0) ^ first;
        for (u64 k = line == BY_WORD ? word : stop; k < stop; k++)
            differ |= (n->words[k] >= floor ? n->words[k] : 0) ^ first;
        word = stop;
    }
    return !differ;
}

/* Of what w does, known from `time` on. */
static struct record make_record(const struct warp *w, const struct inst *in, u32 time, enum access how,
                                 u32 bytes, struct by_lanes by)
{
    return (struct record){.fn = w->frame->fn,
                           .in = in,
                           .unit = w->block->cluster->number,
                           .time = time,
                           .actor = (u16)actor_of(w),
                           .how = (u8)how,
                           .bytes = bytes & 15,
                           .step = by.step & 15,
                           .lanes = by.lanes};
}

/* The number of a new record; 0 when there are too many. */
static u32 number_of(const struct record *r)
{
    static _Thread_local u32 next, end;
    static _Thread_local u64 launch;
    if (next == end || launch != grid.launches) {
        launch = grid.launches;
        next = atomic_fetch_add(&grid.next, NUMBERS);
        end = next + NUMBERS;
    }
    if (end - grid.first >= MOST_RECORDS) return 0;
    grid.records[next - grid.first] = *r;
    return next++;
}

static u32 new_record(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes,
                      struct by_lanes by)
{
    struct record r = make_record(w, in, time, how, bytes, by);
    return number_of(&r);
}

/* The same of what it does here and now. */
static u32 record(struct warp *w, const struct inst *in, enum access how, u32 bytes, struct by_lanes by)
{
    struct recent *r = &own(w)->recent[((uintptr_t)in / sizeof *in ^ bytes) % RECENT];
    if (r->in == in && r->time == w->time && r->how == (u8)how && r->bytes == bytes && r->step == by.step &&
        r->lanes == by.lanes)
        return r->number;
    u32 number = new_record(w, in, w->time, how, bytes, by);
    if (number) *r = (struct recent){in, w->time, number, (u8)how, (u8)bytes, (u8)by.step, by.lanes};
    return number;
}

/* Which of these lanes accesses what. */
static struct by_lanes lanes_of_access(u32 mask, const u64 at[LANES], u32 bytes)
{
    u32 first = first_lane(mask), step = (u32)__builtin_ctz(bytes);
    u64 start = at[first] - (u64)first * bytes, apart = 0, differ = 0;
    if (!(mask & (mask - 1))) return (struct by_lanes){0, mask};
    for (u64 i = 0; i < LANES; i++) {
        u64 on = 0 - (u64)(mask >> i & 1);
        apart |= (at[i] - start - i * bytes) & on;
        differ |= (at[i] ^ at[first]) & on;
    }
    if (!apart) return (struct by_lanes){step + 1, (u32)(start >> step) % LANES};
    return (struct by_lanes){0, differ ? 0 : mask};
}

/* The lanes that have accessed these bytes of the word at `at`, of a record's; 0: not known. */
static u32 lanes_at(const struct record *r, u64 at, u32 bytes)
{
    u32 lanes = 0;
    if (!r->step) return r->lanes;
    for (u32 left = bytes; left; left &= left - 1)
        lanes |= 1u << ((((at & ~3ull) + first_lane(left)) >> (r->step - 1)) - r->lanes) % LANES;
    return lanes;
}

/* Whether w synchronises with what this record is of: its warp did it. */
static bool knows_warp(const struct warp *w, const struct record *r)
{
    u32 time =
        __atomic_load_n(&r->time, __ATOMIC_RELAXED); /* another host thread may wait for the store just now */
    return time != NOT_WAITED && knows(w, r->unit, r->actor, time);
}

/* The same of these bytes of the word at `at`, and the lanes that accessed them. */
static bool knows_record(const struct warp *w, const struct record *r, u64 at, u32 bytes)
{
    return knows_warp(w, r) && !not_passed(w, r->unit, r->actor, r->time, lanes_at(r, at, bytes));
}

static const struct record *record_of(u32 number)
{
    return number >= grid.first ? &grid.records[number - grid.first] : &grid.before[number - grid.previous];
}

/* ---- Faults ----------------------------------------------------------------------------------------------------------------- */

/* Whether somebody has released what this record is of, for whoever would look. */
static bool was_released(const struct warp *w, const struct record *r)
{
    bool found = false;
    pthread_mutex_lock(&grid.lock);
    for (u32 k = 0; k < grid.flag_capacity && !found; k++)
        found =
            grid.flags[k].address && view_has(&grid.flags[k].view, r->unit, place_of(w, r->actor), r->time);
    pthread_mutex_unlock(&grid.lock);
    return found;
}

/* Who did it, as "by warp 3 of block (1,0,0)". */
static void describe(const struct warp *w, const struct record *r, char *text, size_t size)
{
    const struct launch *l = w->block->launch;
    u32 unit = r->unit, rank = r->actor / MAX_WARPS, at[3];
    if (r->unit == w->block->cluster->number && rank == w->block->cluster_rank) {
        snprintf(text, size, "warp %u", (u32)(r->actor % MAX_WARPS));
        return;
    }
    for (u32 d = 0; d < 3; d++) {
        u32 clusters = l->grid[d] / l->cluster[d];
        at[d] = unit % clusters * l->cluster[d] + rank % l->cluster[d];
        unit /= clusters;
        rank /= l->cluster[d];
    }
    snprintf(text, size, "warp %u of block (%u,%u,%u)", (u32)(r->actor % MAX_WARPS), at[0], at[1], at[2]);
}

static const char *what_is_missing(const struct warp *w, const struct record *r, enum access how)
{
    bool strong = how & ACCESS_STRONG, other = r->how & ACCESS_STRONG;
    if (knows_warp(w, r))
        return "another lane of that warp has released since, by a fence and a flag or an arrival at a barrier, which says "
               "nothing of what this lane did: __syncwarp() before it";
    if (r->how & ACCESS_BULK)
        return "that is a bulk store: the thread that issued it must wait for it, by cp.async.bulk.wait_group without .read (with .read "
               "only its source is free again), and then pass __threadfence() and set a flag, or pass a barrier";
    if ((strong || how & ACCESS_CTA) && (other || r->how & ACCESS_CTA))
        return "the scope of one is .cta, its own block: it must be .gpu where blocks meet";
    if (r->unit == w->block->cluster->number) {
        return r->actor / MAX_WARPS == w->block->cluster_rank
                   ? "a barrier that both pass between them is missing, such as __syncthreads()"
                   : "a barrier that both pass between them is missing, such as barrier.cluster";
    }
    if ((strong || other || how & ACCESS_CTA || r->how & ACCESS_CTA) && !was_released(w, r))
        return "where blocks meet, both must be atomic or volatile; or a flag must order them";
    if (was_released(w, r))
        return "it has been released since, but this thread has not acquired it: it must look at the flag (volatile, "
               "relaxed or an atomic) and then pass __threadfence(), or look with .acquire, both of .gpu scope; other threads "
               "of its block then __syncthreads()";
    return "nothing has released it: its thread, or one that passed a barrier with it since, must pass __threadfence() "
           "and then set the flag (volatile, relaxed or an atomic), or set it with .release, both of .gpu scope";
}

static void tell_race(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r,
                      enum access how)
{
    char who[80], where[64] = "";
    int length = 0;
    struct allocation a = {0};
    u32 line = r->fn->lines[r->in - r->fn->code].line;
    u32 lanes = not_passed(w, r->unit, r->actor, r->time, lanes_at(r, at, 1u << at % 4));
    if (lanes && knows_warp(w, r)) length = snprintf(who, sizeof who, "lane %u of ", first_lane(lanes));
    describe(w, r, who + length, sizeof who - (size_t)length);
    if (heap_find(at, &a) && a.name)
        snprintf(where, sizeof where, " (%s + %llu)", a.name, (unsigned long long)(at - a.address));
    else if (a.number)
        snprintf(where, sizeof where, " (allocation %u + %llu)", a.number,
                 (unsigned long long)(at - a.address));
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
        "race on global memory at 0x%llx%s: this %s is not ordered after the %s by %s at line %u: %s%s",
        (unsigned long long)at, where, how & ACCESS_WRITE ? "write" : "read",
        r->how & ACCESS_WRITE ? "write" : "read", who, line, what_is_missing(w, r, how),
        race_update(w->frame->fn, in, r->fn, r->in));
}

static void tell_of_launch(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r,
                           enum access how)
{
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
        "global memory at 0x%llx is %s before griddepcontrol.wait (cudaGridDependencySynchronize), but the launch before "
        "writes it, at line %u: this one was launched to begin before that ends",
        (unsigned long long)at, how & ACCESS_WRITE ? "written" : "read",
        r->fn->lines[r->in - r->fn->code].line);
}

/* A strong load of data that a flag did not order. */
static void tell_unordered(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r)
{
    char who[64];
    struct record plain = *r; /* volatile or not makes no difference */
    plain.how &= (u8)~ACCESS_STRONG;
    describe(w, r, who, sizeof who);
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
        "global memory at 0x%llx may be read as it was before the write by %s at line %u, though this block has seen what "
        "that one wrote later: volatile and relaxed accesses are in no order. %s",
        (unsigned long long)at, who, r->fn->lines[r->in - r->fn->code].line,
        what_is_missing(w, &plain, ACCESS_READ));
}

void global_settle_now(struct warp *w, const struct inst *in)
{
    struct suspect_write *s = &w->view->suspect;
    s->set = false;
    if (memcmp(s->before, (const u8 *)(uintptr_t)s->at, s->bytes) != 0)
        tell_race(w, in, s->lane, s->at, &s->other, ACCESS_WRITE);
    else
        remark(
            w, in, 1u << s->lane,
            "the same value is written to global memory at 0x%llx by several threads, which nothing orders",
            (unsigned long long)s->at);
}

/* ---- Accesses --------------------------------------------------------------------------------------------------------------- */

/* What `lane` of w does to these bytes of the word at `at` collides with what this record is of. */
static void check(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, u32 number,
                  enum access how, bool same)
{
    const struct record *r = record_of(number);
    u32 both = bytes & r->bytes;
    if (!both) return;
    if (number < grid.first) {
        if (how & r->how & ACCESS_STRONG) return;
        tell_of_launch(w, in, lane, at, r, how);
        return;
    }
    if (how & ACCESS_CONSTANT) {
        breach_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
            "ld.global.nc reads what this launch has written, at line %u: it may only read what nobody writes "
            "while the kernel runs (__ldg, or const and __restrict__, made it so)",
            r->fn->lines[r->in - r->fn->code].line);
        return;
    }
    bool same_block = r->unit == w->block->cluster->number && r->actor / MAX_WARPS == w->block->cluster_rank;
    u32 strong = same_block ? ACCESS_STRONG | ACCESS_CTA : ACCESS_STRONG;
    if ((how & strong && r->how & strong) || knows_record(w, r, at, both)) return;
    if (how == ACCESS_WRITE && r->how == ACCESS_WRITE && same) {
        struct suspect_write *s = &own(w)->suspect;
        if (s->set) return;
        *s = (struct suspect_write){.set = true, .lane = lane, .bytes = 4, .at = at & ~3ull, .other = *r};
        memcpy(s->before, (const u8 *)(uintptr_t)s->at, s->bytes);
        w->suspects_global = true;
        return;
    }
    tell_race(w, in, lane, (at & ~3ull) + first_lane(both), r, how);
}

/* Another host thread may be at the same word: then what is lost is a race less told. */
static void access_word(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, u32 mine,
                        enum access how, u32 floor, bool has_reads, struct by_lanes by)
{
    u64 k = (at - grid.base) / 4;
    bool part = how & ACCESS_WRITE && bytes != 15; /* of a word, which takes longer: in one step */
    u32 wrote = part ? __atomic_exchange_n(own_number(&grid.writes, k), mine, __ATOMIC_ACQ_REL)
                     : word_number(&grid.writes, k),
        read = has_reads ? word_number(&grid.reads, k) : 0;
    const struct record *r = read >= grid.first ? record_of(read) : NULL;
    bool known = r && knows_record(w, r, at, r->bytes);
    /* A strong write that a strong read has seen is before what follows that read. */
    bool observed =
        known && r->how & ACCESS_STRONG && wrote >= grid.first && record_of(wrote)->how & ACCESS_STRONG;
    if (wrote >= floor && wrote != mine && !observed) check(w, in, lane, at, bytes, wrote, how, true);
    if (how & ACCESS_WRITE) {
        if (r) check(w, in, lane, at, bytes, read, how, false);
        if (r) set_number(&grid.reads, k, 0);
        if (bytes != 15 &&
            wrote >= grid.first) { /* a part of the word, and that of the same threads' before */
            const struct record *o = record_of(wrote);
            if (o->unit == w->block->cluster->number && o->actor == actor_of(w) && o->time == w->time)
                mine = record(w, in, how, bytes | o->bytes,
                              by.step == o->step && by.lanes == o->lanes ? by : (struct by_lanes){0, 0});
        }
        set_number(&grid.writes, k, mine);
    } else if ((!r || known) && !(observed && !(how & ACCESS_STRONG))) {
        set_number(&grid.reads, k,
                   mine); /* one of others stays: what their own threads do later, is in order */
    }
}

/* race.c's check_step, of global memory. */
static void check_step(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes)
{
    u32 readers = 0, writers = 0, lane = 0, found = 0;
    if (!race_is_volatile(w->frame->fn, in)) return;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left), number = word_number(&grid.writes, (at[i] - grid.base) / 4);
        if (number < grid.first || (found && found != number)) continue;
        const struct record *r = record_of(number);
        u32 by = lanes_at(r, at[i], bytes < 4 ? ((1u << bytes) - 1) << at[i] % 4 : 15);
        if (r->unit != w->block->cluster->number || r->actor != actor_of(w) || r->time < w->lanes_met ||
            !by || by & (by - 1) || by >> i & 1 || !race_is_volatile(r->fn, r->in))
            continue;
        found = number;
        lane = i;
        readers++;
        writers |= by;
    }
    if (readers < 2 || !(writers & (writers - 1))) return;
    const struct record *r = record_of(found);
    char where[64];
    snprintf(where, sizeof where, "global memory at 0x%llx", (unsigned long long)at[lane]);
    race_tell_volatile(w, in, lane, where, first_lane(lanes_at(r, at[lane], 1u << at[lane] % 4)), r->fn,
                       r->in);
}

static void widen(_Atomic u64 *low, _Atomic u64 *high, u64 from, u64 to)
{
    for (u64 l = *low; from < l && !atomic_compare_exchange_weak(low, &l, from);) {
    }
    for (u64 h = *high; to > h && !atomic_compare_exchange_weak(high, &h, to);) {
    }
}

static void widen_written(u64 from, u64 to)
{
    widen(&written.low, &written.high, from, to);
    widen(&global_written.low, &global_written.high, from, to);
}

static bool waited(const struct warp *w)
{
    const struct cluster_view *c = w->block->cluster->view;
    bool yes = c->known.waited;
    for (u32 k = 0; k < c->count; k++)
        yes |= c->acquired[k].view.waited && knows_actor(w, c->acquired[k].actor, c->acquired[k].time);
    return yes;
}

/* Whether w synchronises with this record's access, which is not a strong one. */
static bool is_before(const struct warp *w, u32 number)
{
    const struct record *r = number >= grid.first ? record_of(number) : NULL;
    return r && !(r->how & ACCESS_STRONG) && knows_warp(w, r) &&
           !not_passed(w, r->unit, r->actor, r->time, ALL_LANES);
}

/* The same as access_word of words that follow each other and have all been written, and read, by the same instruction of the same
 * warp before, or not at all in this launch, with what w knows of. Else false, and nothing is done. */
static bool access_line(struct warp *w, u64 at, u32 words, u32 mine, enum access how, u32 floor,
                        bool has_reads)
{
    u64 word = (at - grid.base) / 4, end = word + words;
    u32 wrote, read = 0;
    if (!same_number(&grid.writes, word, end, floor, &wrote) ||
        (has_reads && !same_number(&grid.reads, word, end, grid.first, &read)) ||
        (wrote && wrote != mine && !is_before(w, wrote)) || (read && !is_before(w, read)))
        return false;
    set_numbers(how == ACCESS_READ ? &grid.reads : &grid.writes, word, end, mine);
    if (how != ACCESS_READ && read) set_numbers(&grid.reads, word, end, 0);
    return true;
}

static void access_lanes(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                         enum access how, u32 floor, bool has_reads, struct by_lanes by)
{
    u32 mine = bytes >= 4 ? record(w, in, how, 15, by) : 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        for (u64 a = at[i], end = at[i] + bytes; a < end; a = (a & ~3ull) + 4) {
            u32 from = (u32)a & 3, to = end - (a & ~3ull) < 4 ? (u32)(end & 3) : 4;
            u32 part = ((1u << to) - 1) & ~((1u << from) - 1);
            access_word(w, in, i, a, part, part == 15 ? mine : record(w, in, how, part, by), how, floor,
                        has_reads, by);
        }
    }
}

static void note_early(struct warp *w, const struct inst *in, u64 at, u64 end, enum access how,
                       struct by_lanes by)
{
    struct early_reads **e = &w->block->worker->early;
    if (at % 4 || end % 4) return; /* parts of words: not known */
    if (!*e && !(*e = calloc(1, sizeof **e))) abort();
    if (!(*e)->count) (*e)->low = UINT64_MAX;
    if ((*e)->count < MOST_EARLY)
        (*e)->read[(*e)->count++] =
            (struct early_read){at, end, make_record(w, in, w->time, how & ~(u32)ACCESS_DATA, 15, by)};
}

bool global_read_early(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how)
{
    const struct early_reads *early = w->block->worker->early;
    u32 first = first_lane(mask), lanes = (u32)__builtin_popcount(mask);
    if (early && early->count == MOST_EARLY) return false;
    struct by_lanes by = how & ACCESS_TOGETHER ? (struct by_lanes){0, 0} : lanes_of_access(mask, at, bytes);
    if (!grid.writes.lines || at[first] - grid.base >= grid.bytes ||
        (at[first] < written.high && at[first] >= written.low))
        return false;
    w->global_lanes |= mask;
    if (by.step && mask >> first == ALL_LANES >> (LANES - lanes))
        note_early(w, in, at[first], at[first] + (u64)lanes * bytes, how, by);
    else if (!by.step && by.lanes)
        note_early(w, in, at[first], at[first] + bytes, how, by);
    for (u32 left = by.step || by.lanes ? 0 : mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        note_early(w, in, at[i], at[i] + bytes, how,
                   (struct by_lanes){0, how & ACCESS_TOGETHER ? 0 : 1u << i});
    }
    return true;
}

/* The launch has written to more memory than when this host thread last looked: what has been read there before. Of a word's readers
 * one stays: of those that w does not know of, if there are such. */
static void look_at_early(const struct warp *w, struct early_reads *e)
{
    u64 low = written.low, high = written.high;
    for (u32 n = 0; n < 2 * e->count; n++) {
        const struct early_read *read = &e->read[n % e->count];
        bool now = read->at < high && read->end > low, before = read->at < e->high && read->end > e->low;
        u32 number =
            now && !before && knows_warp(w, &read->record) == (n < e->count) ? number_of(&read->record) : 0;
        if (!number) continue;
        set_numbers(&grid.reads, (read->at - grid.base) / 4, (read->end - grid.base) / 4, number);
        widen(&grid.read_low, &grid.read_high, read->at, read->end);
    }
    e->low = low;
    e->high = high;
}

void global_free_worker(struct worker *worker)
{
    free(worker->early);
}

void global_access_now(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how, u64 low, u64 high)
{
    if (!grid.writes.lines || low - grid.base >= grid.bytes) return;
    if (__builtin_expect(footprint_wanted, false)) {
        footprint_access(mask, at, bytes, how);
        if (!(how & ACCESS_WRITE) && (low >= written.high || high <= written.low)) return;
    }
    u32 floor = w->block->launch->dependent && !waited(w) ? grid.previous : grid.first;
    struct early_reads *early = w->block->worker->early;
    if (how & ACCESS_WRITE && (low < written.low || high > written.high)) widen_written(low, high);
    if (early && (written.low < early->low || written.high > early->high)) look_at_early(w, early);
    if (!(how & ACCESS_WRITE) && (low < grid.read_low || high > grid.read_high))
        widen(&grid.read_low, &grid.read_high, low, high);
    bool has_reads = low < grid.read_high && high > grid.read_low;
    u32 first = first_lane(mask), lanes = (u32)__builtin_popcount(mask);
    struct by_lanes by = how & ACCESS_TOGETHER ? (struct by_lanes){0, 0} : lanes_of_access(mask, at, bytes);
    w->global_lanes |= mask;
    if (how & ACCESS_DATA) check_step(w, in, mask, at, bytes);
    how &= ~(u32)ACCESS_DATA;
    if ((by.step || lanes == 1) && !(how & ~(u32)ACCESS_WRITE) &&
        mask >> first == ALL_LANES >> (LANES - lanes)) {
        if (bytes == 2 && at[first] % 4) first++, lanes--; /* half a word */
        if (bytes == 2 && lanes % 2) lanes--;
        if (lanes && at[first] % 4 == 0 && lanes * bytes % 4 == 0 &&
            access_line(w, at[first], lanes * bytes / 4, record(w, in, how, 15, by), how, floor, has_reads))
            mask &= ~((u32)((1ull << lanes) - 1) << first);
    }
    if (mask) access_lanes(w, in, mask, at, bytes, how, floor, has_reads, by);
}

void global_bulk_store(struct warp *w, const struct inst *in, u64 at, u64 bytes, bool reduces, u32 *number)
{
    if (!grid.writes.lines || at - grid.base >= grid.bytes) return;
    if (!*number)
        *number = new_record(w, in, NOT_WAITED, ACCESS_WRITE | ACCESS_BULK | (reduces ? ACCESS_STRONG : 0),
                             15, (struct by_lanes){0, 0});
    if (!*number || !bytes) return;
    widen_written(at, at + bytes);
    if (footprint_wanted) footprint_mark(reduces ? TOUCH_ATOMIC : TOUCH_WRITE, at, bytes);
    set_numbers(&grid.writes, (at - grid.base) / 4, (at - grid.base + bytes) / 4, *number);
}

void global_bulk_waited(const struct warp *w, u32 number)
{
    if (number >= grid.first)
        __atomic_store_n(&grid.records[number - grid.first].time, w->time, __ATOMIC_RELAXED);
}

void global_write_line(struct warp *w, const struct inst *in, u64 at, u32 bytes, u64 low, u64 high)
{
    u64 address[LANES];
    for (u32 i = 0; i < LANES; i++) address[i] = at + (u64)i * bytes / LANES;
    global_access_now(w, in, ALL_LANES, address, bytes / LANES, ACCESS_WRITE, low, high);
}

/* ---- Strong loads of what is not ordered ------------------------------------------------------------------------------------- */

/* The four words' stores of the 16 bytes that hold this address. */
static struct stored *chunk_of(u64 at)
{
    return grid.stored[(u32)(at >> 4) * 2654435761u >> 20 & (CHUNKS - 1)];
}

/* Bytes of the 16 around it, by words. */
static u32 words_of(u64 at, u32 bytes)
{
    u32 first = at % 16 / 4, last = (at % 16 + bytes - 1) / 4;
    return (2u << last) - (1u << first);
}

static void forget_stored(struct stored chunk[4], u64 at, u32 bytes)
{
    for (u32 k = 0; k < 4; k++) {
        struct stored *s = &chunk[k];
        if (s->at && s->at / 16 == at / 16 && words_of(s->at, s->bytes) & words_of(at, bytes)) s->at = 0;
    }
}

void global_stored(struct warp *w, u32 mask, const u64 at[LANES], u32 bytes, enum order order)
{
    struct cluster_view *c = w->block->cluster->view;
    if (!grid.writes.lines || order & ORDER_CTA || bytes > 16) return;
    pthread_mutex_lock(&grid.lock);
    if (!grid.stored && !(grid.stored = calloc(CHUNKS, sizeof *grid.stored))) abort();
    grid.has_stored = true;
    c->stores++;
    for (u32 left = mask; left; left &= left - 1) {
        u64 a = at[first_lane(left)];
        if (a - grid.base >= grid.bytes) continue;
        struct stored *chunk = chunk_of(a), *s = &chunk[a % 16 / 4];
        forget_stored(chunk, a, bytes);
        s->at = a;
        s->bytes = bytes;
        s->number = word_number(&grid.writes, (a - grid.base) / 4);
        s->store = c->stores;
        s->fenced = 0;
        s->seen = c->unfenced_count == UNFENCED; /* too many to know when they are released */
        for (u32 k = 0; k < w->block->warp_count; k++)
            s->known[k] = order_known(w)[w->block->cluster_rank * ACTORS + k];
        memcpy(s->before, (const void *)(uintptr_t)a, bytes);
        for (u32 k = 0; k < bytes / 2; k++) { /* that is not shown as if it were written */
            u16 half;
            memcpy(&half, s->before + 2 * k, sizeof half);
            s->seen |= half == UNWRITTEN_HALF;
        }
        if (!s->seen) c->unfenced[c->unfenced_count++] = s;
    }
    pthread_mutex_unlock(&grid.lock);
}

/* Whether w has seen a strong store that the warp of this one made later, or another of its block behind a barrier. */
static bool saw_later(const struct warp *w, const struct stored *s, const struct record *r)
{
    const struct cluster_view *c = w->block->cluster->view;
    for (u32 k = 0; k < c->saw_count && k < SAW; k++) {
        const struct saw *saw = &c->saw[k];
        bool same = saw->actor == r->actor, block = saw->actor / MAX_WARPS == r->actor / MAX_WARPS;
        if (saw->unit == r->unit &&
            (same ? saw->store > s->store : block && saw->known[r->actor % MAX_WARPS] >= r->time) &&
            knows_actor(w, saw->by, saw->time))
            return true;
    }
    return false;
}

static void note_saw(struct warp *w, const struct stored *s, const struct record *r)
{
    struct cluster_view *c = w->block->cluster->view;
    const struct saw *last = &c->saw[(c->saw_count - 1) % SAW];
    if (c->saw_count && last->unit == r->unit && last->store == s->store && last->by == actor_of(w)) return;
    struct saw *saw = &c->saw[c->saw_count++ % SAW];
    *saw = (struct saw){
        .unit = r->unit, .actor = r->actor, .store = s->store, .by = actor_of(w), .time = w->time};
    memcpy(saw->known, s->known, sizeof saw->known);
}

void global_look(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                 enum access how, enum order order, u8 value[LANES][MAX_STRONG])
{
    const struct cluster_view *c = w->block->cluster->view;
    struct record told = {0};
    u32 lane = LANES;
    if (!grid.has_stored) return;
    pthread_mutex_lock(&grid.lock);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        if (at[i] - grid.base >= grid.bytes) continue;
        struct stored *chunk = chunk_of(at[i]), *s = &chunk[at[i] % 16 / 4];
        if (s->at != at[i] || s->bytes != bytes) {
            for (u64 a = at[i]; a < at[i] + bytes; a += 16)
                forget_stored(chunk_of(a), a, bytes < 16 ? bytes : 16);
            continue;
        }
        const struct record *r = record_of(s->number);
        u32 newest;
        if (s->number < grid.first ||
            !same_number(&grid.writes, (at[i] - grid.base) / 4, (at[i] - grid.base + bytes + 3) / 4, 0,
                         &newest) ||
            newest != s->number) {
            s->at = 0;
            continue;
        }
        if ((r->unit == w->block->cluster->number && r->actor == actor_of(w)) ||
            memcmp(value[i], s->before, bytes) == 0)
            continue;
        bool known = knows_warp(w, r);
        if (how & ACCESS_DATA && !known && lane == LANES && saw_later(w, s, r)) told = *r, lane = i;
        if (!(order & ORDER_ACQUIRE) && !known && !s->seen && (!s->fenced || c->fences < s->fenced) &&
            options.seed) {
            s->seen = (grid.shown++ * 2654435761u ^ (u32)options.seed * 40503u) >> 13 & 1;
            if (s->seen) {
                memcpy(value[i], s->before, bytes);
                continue;
            }
        }
        s->seen = true;
        if (!(how & ACCESS_DATA)) note_saw(w, s, r);
    }
    pthread_mutex_unlock(&grid.lock);
    if (lane < LANES) tell_unordered(w, in, lane, at[lane], &told);
}

bool global_never_written(u64 at)
{
    return grid.writes.lines && !grid.forgotten && at - grid.base < grid.bytes &&
           !word_number(&grid.writes, (at - grid.base) / 4);
}

void global_wrote(const void *to, const void *from, u64 bytes)
{
    u64 at = ((u64)(uintptr_t)to + 1) & ~1ull, end = (u64)(uintptr_t)to + bytes,
        source = (u64)(uintptr_t)from - (u64)(uintptr_t)to;
    if (!heap_is_device(at)) return;
    pthread_once(&once, reserve);
    if (!grid.writes.lines) return;
    for (; at + 1 < end; at += 2) {
        while (end - at > 4 * LANES && !undefined_maybe((const void *)(uintptr_t)at)) at += 4 * LANES;
        if (*(const u16 *)(uintptr_t)at == UNWRITTEN_HALF && !(from && global_never_written(at + source)))
            set_number(&grid.writes, (at - grid.base) / 4, BY_OTHERS);
    }
}

void global_will_be_written(const void *to, u64 bytes)
{
    u64 at = (u64)(uintptr_t)to;
    if (!heap_is_device(at)) return;
    pthread_once(&once, reserve);
    if (!grid.writes.lines || !bytes) return;
    for (u64 word = (at - grid.base) / 4, end = (at - grid.base + bytes + 3) / 4, next; word < end;
         word = next) {
        next = word / LINE * LINE + LINE < end ? word / LINE * LINE + LINE : end;
        u32 line = line_number(&grid.writes, word / LINE);
        if (!line && next - word == LINE)
            set_numbers(&grid.writes, word, next, BY_OTHERS);
        else if (!line || line == BY_WORD)
            for (; word < next; word++)
                if (!word_number(&grid.writes, word)) set_number(&grid.writes, word, BY_OTHERS);
    }
}

pthread_mutex_t *global_hold(u64 at, enum order order)
{
    enum { LOCKS = 64 };
    static pthread_mutex_t locks[LOCKS] = {[0 ... LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};
    if (!grid.published || order & ORDER_CTA || at - grid.base >= grid.bytes) return NULL;
    pthread_mutex_t *held = &locks[(at >> 4) % LOCKS]; /* of the largest atomic's bytes */
    pthread_mutex_lock(held);
    return held;
}

void global_done(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, pthread_mutex_t *held)
{
    if (!held) return;
    u32 part = ((1u << (bytes < 4 ? bytes : 4)) - 1) << (at & 3);
    u32 mine = record(w, in, ACCESS_WRITE | ACCESS_STRONG, part, (struct by_lanes){0, 1u << lane});
    for (u64 k = (at - grid.base) / 4; k < (at - grid.base + bytes + 3) / 4; k++)
        set_number(&grid.writes, k, mine);
    pthread_mutex_unlock(held);
}

void global_observe(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                    enum access how, enum order order)
{
    struct view now = {0};
    if (!grid.published || order & ORDER_CTA) return;
    how &= ~(u32)ACCESS_DATA;
    /* What another host thread has written just before the look was noted as after it. (Of an atomic global_done has.) */
    u32 here = 0;
    for (u32 left = how & ACCESS_WRITE ? 0 : mask; left; left &= left - 1)
        if (at[first_lane(left)] - grid.base < grid.bytes) here |= left & -left;
    if (here) access_lanes(w, in, here, at, bytes, how, grid.first, true, lanes_of_access(here, at, bytes));
    pthread_mutex_lock(&grid.lock);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        if ((i && at[i] == at[i - 1] && mask >> (i - 1) & 1) || is_shared(w, at[i])) continue;
        if (grid.flag_capacity) view_join(&now, &flag_at(at[i])->view);
    }
    pthread_mutex_unlock(&grid.lock);
    if (order & ORDER_ACQUIRE) {
        acquire(w, &now);
    } else if (now.count || now.all) {
        struct warp_view *v = own(w);
        if (v->seen_known) view_clear(&v->seen);
        v->seen_known = false;
        view_join(&v->seen, &now);
        v->seen_at = w->time;
    }
    free(now.entries);
}
