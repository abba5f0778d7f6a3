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
enum { MOST_UNITS = 512, MOST_ACQUIRED = 32, FIRST_FLAGS = 256, RECENT = 8, NUMBERS = 256 };
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

/* What the warps of a cluster know of others. */
struct cluster_view {
    struct view known;         /* all of them */
    struct acquired *acquired; /* one of them, and who synchronises with it */
    u32 count, capacity;
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
    u8 how, bytes; /* enum access; which bytes of the word, 15: all */
};

struct warp_view {
    struct view fenced,
        seen; /* what it knew at its last fence; what its relaxed looks have seen, known at its next one */
    u32 fenced_at, seen_at; /* when; 0: the fence was none of ORDER_SC */
    bool seen_known;        /* it has fenced since: kept for the fences of others */
    struct recent {
        const struct inst *in;
        u32 time, number;
        u8 how, bytes;
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

void global_publish(struct warp *w, u32 mask, const u64 at[LANES], enum order order)
{
    struct view v = {0};
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
    grid.published = false;
}

void global_start_cluster(struct cluster *c)
{
    if (!c->view && !(c->view = calloc(1, sizeof *c->view))) abort();
    view_clear(&c->view->known);
    c->view->count = 0;
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

/* The number of a new record of what w does, known from `time` on; 0 when there are too many. */
static u32 new_record(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes)
{
    static _Thread_local u32 next, end;
    static _Thread_local u64 launch;
    if (next == end || launch != grid.launches) {
        launch = grid.launches;
        next = atomic_fetch_add(&grid.next, NUMBERS);
        end = next + NUMBERS;
    }
    if (end - grid.first >= MOST_RECORDS) return 0;
    grid.records[next - grid.first] = (struct record){
        w->frame->fn, in, w->block->cluster->number, time, (u16)actor_of(w), (u8)how, (u8)bytes};
    return next++;
}

/* The same of what it does here and now. */
static u32 record(struct warp *w, const struct inst *in, enum access how, u32 bytes)
{
    struct recent *r = &own(w)->recent[((uintptr_t)in / sizeof *in ^ bytes) % RECENT];
    if (r->in == in && r->time == w->time && r->how == (u8)how && r->bytes == bytes) return r->number;
    u32 number = new_record(w, in, w->time, how, bytes);
    if (number) *r = (struct recent){in, w->time, number, (u8)how, (u8)bytes};
    return number;
}

/* Whether w synchronises with what this record is of. */
static bool knows_record(const struct warp *w, const struct record *r)
{
    u32 time =
        __atomic_load_n(&r->time, __ATOMIC_RELAXED); /* another host thread may wait for the store just now */
    return time != NOT_WAITED && knows(w, r->unit, r->actor, time);
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
    char who[64], where[64] = "";
    struct allocation a = {0};
    u32 line = r->fn->lines[r->in - r->fn->code].line;
    describe(w, r, who, sizeof who);
    if (heap_find(at, &a) && a.name)
        snprintf(where, sizeof where, " (%s + %llu)", a.name, (unsigned long long)(at - a.address));
    else if (a.number)
        snprintf(where, sizeof where, " (allocation %u + %llu)", a.number,
                 (unsigned long long)(at - a.address));
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
        "race on global memory at 0x%llx%s: this %s is not ordered after the %s by %s at line %u: %s",
        (unsigned long long)at, where, how & ACCESS_WRITE ? "write" : "read",
        r->how & ACCESS_WRITE ? "write" : "read", who, line, what_is_missing(w, r, how));
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
    if ((how & strong && r->how & strong) || knows_record(w, r)) return;
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
                        enum access how, u32 floor, bool has_reads)
{
    u64 k = (at - grid.base) / 4;
    bool part = how & ACCESS_WRITE && bytes != 15; /* of a word, which takes longer: in one step */
    u32 wrote = part ? __atomic_exchange_n(own_number(&grid.writes, k), mine, __ATOMIC_ACQ_REL)
                     : word_number(&grid.writes, k),
        read = has_reads ? word_number(&grid.reads, k) : 0;
    const struct record *r = read >= grid.first ? record_of(read) : NULL;
    bool known = r && knows_record(w, r);
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
                mine = record(w, in, how, bytes | o->bytes);
        }
        set_number(&grid.writes, k, mine);
    } else if ((!r || known) && !(observed && !(how & ACCESS_STRONG))) {
        set_number(&grid.reads, k,
                   mine); /* one of others stays: what their own threads do later, is in order */
    }
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
    return r && !(r->how & ACCESS_STRONG) && knows_record(w, r);
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
                         enum access how, u32 floor, bool has_reads)
{
    u32 mine = bytes >= 4 ? record(w, in, how, 15) : 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        for (u64 a = at[i], end = at[i] + bytes; a < end; a = (a & ~3ull) + 4) {
            u32 from = (u32)a & 3, to = end - (a & ~3ull) < 4 ? (u32)(end & 3) : 4;
            u32 part = ((1u << to) - 1) & ~((1u << from) - 1);
            access_word(w, in, i, a, part, part == 15 ? mine : record(w, in, how, part), how, floor,
                        has_reads);
        }
    }
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
    if (how & ACCESS_WRITE && (low < written.low || high > written.high)) widen_written(low, high);
    if (!(how & ACCESS_WRITE) && (low < grid.read_low || high > grid.read_high))
        widen(&grid.read_low, &grid.read_high, low, high);
    bool has_reads = low < grid.read_high && high > grid.read_low;
    u32 first = first_lane(mask), lanes = (u32)__builtin_popcount(mask);
    u64 apart = 0, start = at[first] - (u64)first * bytes;
    for (u64 i = 0; i < LANES; i++) apart |= (at[i] - start - i * bytes) & (0 - (u64)(mask >> i & 1));
    if (!apart && !(how & ~(u32)ACCESS_WRITE) && mask >> first == ALL_LANES >> (LANES - lanes)) {
        if (bytes == 2 && at[first] % 4) first++, lanes--; /* half a word */
        if (bytes == 2 && lanes % 2) lanes--;
        if (lanes && at[first] % 4 == 0 && lanes * bytes % 4 == 0 &&
            access_line(w, at[first], lanes * bytes / 4, record(w, in, how, 15), how, floor, has_reads))
            mask &= ~((u32)((1ull << lanes) - 1) << first);
    }
    if (mask) access_lanes(w, in, mask, at, bytes, how, floor, has_reads);
}

void global_bulk_store(struct warp *w, const struct inst *in, u64 at, u64 bytes, bool reduces, u32 *number)
{
    if (!grid.writes.lines || at - grid.base >= grid.bytes) return;
    if (!*number)
        *number =
            new_record(w, in, NOT_WAITED, ACCESS_WRITE | ACCESS_BULK | (reduces ? ACCESS_STRONG : 0), 15);
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

void global_done(struct warp *w, const struct inst *in, u64 at, u32 bytes, pthread_mutex_t *held)
{
    if (!held) return;
    u32 part = ((1u << (bytes < 4 ? bytes : 4)) - 1) << (at & 3);
    u32 mine = record(w, in, ACCESS_WRITE | ACCESS_STRONG, part);
    for (u64 k = (at - grid.base) / 4; k < (at - grid.base + bytes + 3) / 4; k++)
        set_number(&grid.writes, k, mine);
    pthread_mutex_unlock(held);
}

void global_observe(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                    enum access how, enum order order)
{
    struct view now = {0};
    if (!grid.published || order & ORDER_CTA) return;
    /* What another host thread has written just before the look was noted as after it. (Of an atomic global_done has.) */
    u32 here = 0;
    for (u32 left = how & ACCESS_WRITE ? 0 : mask; left; left &= left - 1)
        if (at[first_lane(left)] - grid.base < grid.bytes) here |= left & -left;
    access_lanes(w, in, here, at, bytes, how, grid.first, true);
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
