/* global.c: which accesses to global memory nothing orders. */
#include "global.h"

#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "../runtime/heap.h"
#include "async.h"
#include "footprint.h"
#include "order.h"
#include "strong.h"

enum { MOST_EARLY = 1 << 11 };

/* A write that is a race, but perhaps of the value that is there. */
struct suspect_write {
    u32 lane, bytes;
    u64 at;
    u8 before[8];
    struct record other;
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

/* The part of global memory that has been read, where reads are looked at; and by two that do not know of each other. */
static _Atomic u64 read_low = UINT64_MAX, read_high, others_low = UINT64_MAX, others_high;

struct written global_written;
static struct written written; /* the same, also while global_written is everything */

/* Of each block of the launch, records.fences behind its last fence.proxy.async of global memory; NULL: there was none. */
static u32 *_Atomic fenced;
static u64 blocks;

/* ---- Start and end -------------------------------------------------------------------------------------------------------- */

/* Reads of what the launch has not written are not looked at, unless somebody wants to know of all. */
static void look_at_reads(void)
{
    global_written.low = footprint_wanted ? 0 : written.low;
    global_written.high = footprint_wanted ? UINT64_MAX : written.high;
}

void global_start_launch(struct launch *l)
{
    known_start_launch(l);
    record_start_launch(l, written.high > written.low ? written.high - written.low : 0);
    free(atomic_exchange(&fenced, NULL));
    blocks = (u64)l->grid[0] * l->grid[1] * l->grid[2];
    records.fences = 0;
    if (!records.writes.lines) return;
    if (!l->dependent) {
        written.low = UINT64_MAX;
        written.high = 0;
    }
    look_at_reads();
}

void global_end_launch(void)
{
    known_end_launch();
    strong_end_launch();
}

void global_start_cluster(struct cluster *c)
{
    known_start_cluster(c);
    strong_start_cluster(c);
}

void global_start_warp(struct warp *w)
{
    known_start_warp(w);
    record_start_warp(w);
}

void global_free_cluster(struct cluster *c)
{
    known_free_cluster(c);
    strong_free_cluster(c);
}

void global_free_warp(struct warp *w)
{
    known_free_warp(w);
    record_free_warp(w);
    free(w->suspects_global);
}

void global_free_worker(struct worker *worker)
{
    free(worker->early);
}

/* ---- Faults ----------------------------------------------------------------------------------------------------------------- */

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

/* Whether it is a write of w's own warp since its lanes met last. (Of what they only read before one writes there nothing is said:
 * loads that a warp executes together are over when it comes to the store.) */
static bool by_own_warp(const struct warp *w, const struct record *r)
{
    return r->unit == w->block->cluster->number && r->actor == actor_of(w) && r->how & ACCESS_WRITE &&
           r->time >= w->lanes_met;
}

/* Then, the lanes which have written these bytes, if this one has neither done so itself nor met them since. */
static u32 lanes_not_met(const struct warp *w, u32 lane, const struct record *r, u64 at, u32 bytes)
{
    u32 by = by_own_warp(w, r) ? record_lanes(r, at, bytes) : 0;
    return !by || by >> lane & 1 || order_met(w, r->time, by, 1u << lane) ? 0 : by;
}

static const char *what_is_missing(const struct warp *w, u32 lane, const struct record *r, enum access how)
{
    if (by_own_warp(w, r)) return race_missing_syncwarp(w);
    bool strong = how & ACCESS_STRONG, other = r->how & ACCESS_STRONG;
    if (known_warp(w, 0, r) && !known_warp(w, 1u << lane, r))
        return "another lane of this warp has acquired it, by a look at the flag, which says nothing to this one: __syncwarp() "
               "behind that look and its fence";
    if (known_warp(w, 0, r))
        return "another lane of that warp has released since, by a fence and a flag or an arrival at a barrier, which says "
               "nothing of what this lane did: __syncwarp() before it";
    if (r->how & ACCESS_BULK && r->time == NOT_WAITED)
        return "that is a bulk store: the thread that issued it must wait for it, by cp.async.bulk.wait_group without .read (with .read "
               "only its source is free again), and then pass __threadfence() and set a flag, or pass a barrier";
    if ((strong || how & ACCESS_CTA) && (other || r->how & ACCESS_CTA))
        return "the scope of one is .cta, its own block: it must be .gpu where blocks meet";
    if (r->unit == w->block->cluster->number) {
        return r->actor / MAX_WARPS == w->block->cluster_rank
                   ? "a barrier that both pass between them is missing, such as __syncthreads()"
                   : "a barrier that both pass between them is missing, such as barrier.cluster";
    }
    if ((strong || other || how & ACCESS_CTA || r->how & ACCESS_CTA) && !known_released(w, r))
        return "where blocks meet, both must be atomic or volatile; or a flag must order them";
    if (known_released(w, r))
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
    u32 lanes = by_own_warp(w, r) ? lanes_not_met(w, lane, r, at, 1u << at % 4)
                                  : known_not_passed(w, r, record_lanes(r, at, 1u << at % 4));
    if (lanes && known_warp(w, 1u << lane, r))
        length = snprintf(who, sizeof who, "lane %u of ", first_lane(lanes));
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
        r->how & ACCESS_WRITE ? "write" : "read", who, line, what_is_missing(w, lane, r, how),
        race_update(w->frame->fn, in, r->fn, r->in));
}

static void tell_of_launch(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 number,
                           enum access how)
{
    const struct record *r = record_of(number);
    const char *what = how & ACCESS_WRITE ? "written" : "read";
    u32 line = r->fn->lines[r->in - r->fn->code].line;
    if (number >= records.previous)
        breach_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
            "global memory at 0x%llx is %s before griddepcontrol.wait (cudaGridDependencySynchronize), but the launch before "
            "writes it, at line %u: this one was launched to begin before that ends",
            (unsigned long long)at, what, line);
    else
        breach_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
            "global memory at 0x%llx is %s, but the launch two before this one writes it, at line %u, and may still run: the one "
            "between them was launched to begin before that ends and executes no griddepcontrol.wait "
            "(cudaGridDependencySynchronize), so that it may be over first, and waiting for it is not enough",
            (unsigned long long)at, what, line);
}

void global_tell_unordered(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r)
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
        what_is_missing(w, lane, &plain, ACCESS_READ));
}

void global_settle_now(struct warp *w, const struct inst *in)
{
    const struct suspect_write s = *w->suspects_global;
    free(w->suspects_global);
    w->suspects_global = NULL;
    if (memcmp(s.before, (const u8 *)(uintptr_t)s.at, s.bytes) != 0)
        tell_race(w, in, s.lane, s.at, &s.other, ACCESS_WRITE);
    else
        remark(
            w, in, 1u << s.lane,
            "the same value is written to global memory at 0x%llx by several threads, which nothing orders",
            (unsigned long long)s.at);
}

/* ---- Accesses --------------------------------------------------------------------------------------------------------------- */

/* What `lane` of w does to these bytes of the word at `at` collides with what this record is of. */
static void check(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, u32 number,
                  enum access how, bool same)
{
    const struct record *r = record_of(number);
    u32 both = bytes & r->bytes;
    if (!both) return;
    if (number < records.first) {
        bool over = number >= records.previous && known_waited(w);
        if (!over && !(how & r->how & ACCESS_STRONG)) tell_of_launch(w, in, lane, at, number, how);
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
    bool met = how & ACCESS_TOGETHER || !lanes_not_met(w, lane, r, at, both);
    if ((how & strong && r->how & strong) || (met && known_record(w, 1u << lane, r, at, both))) return;
    if (how == ACCESS_WRITE && r->how == ACCESS_WRITE && same) {
        if (w->suspects_global) return;
        struct suspect_write *s = w->suspects_global = malloc(sizeof *s);
        if (!s) abort();
        *s = (struct suspect_write){.lane = lane, .bytes = 4, .at = at & ~3ull, .other = *r};
        memcpy(s->before, (const u8 *)(uintptr_t)s->at, s->bytes);
        return;
    }
    tell_race(w, in, lane, (at & ~3ull) + first_lane(both), r, how);
}

static void widen(_Atomic u64 *low, _Atomic u64 *high, u64 from, u64 to)
{
    for (u64 l = *low; from < l && !atomic_compare_exchange_weak(low, &l, from);) {
    }
    for (u64 h = *high; to > h && !atomic_compare_exchange_weak(high, &h, to);) {
    }
}

static bool of_one_block(const struct record *r, const struct record *o)
{
    return r->unit == o->unit && r->actor / MAX_WARPS == o->actor / MAX_WARPS;
}

/* How many readers of a word there may be in this part of memory. */
static u32 readers_between(u64 low, u64 high)
{
    return (low < read_high && high > read_low) + (low < others_high && high > others_low);
}

/* A reader of a word: the number of its record, 0 if there is none, and whether it is known to these lanes of a warp. */
struct reader {
    u32 number;
    const struct record *record;
    bool known;
};

static struct reader reader_of(const struct warp *w, u32 lanes, const struct numbers *n, u64 k)
{
    u32 number = numbers_word(n, k);
    if (number < records.first) return (struct reader){0};
    const struct record *r = record_of(number);
    return (struct reader){number, r, known_record(w, lanes, r, records.base + 4 * k, r->bytes)};
}

/* `mine` reads the words from k to `end`, which have had the same readers. Two are kept that do not know of each other, of two blocks if
 * there are such. Who knows of a reader takes its place: whoever comes after the one comes after the other. */
static void keep_reader(u64 k, u64 end, u32 mine, const struct reader *r, const struct reader *other)
{
    if (!mine) return; /* there are too many records */
    if (!r->number || r->known) {
        numbers_set_all(&records.reads, k, end, mine);
        if (other->number && other->known) numbers_set_all(&records.others, k, end, 0);
    } else if (!other->number || other->known ||
               (of_one_block(other->record, r->record) && !of_one_block(record_of(mine), r->record))) {
        numbers_set_all(&records.others, k, end, mine);
        widen(&others_low, &others_high, records.base + 4 * k, records.base + 4 * end);
    }
}

/* These lanes of w read the words from k to `end`. */
static void note_read(const struct warp *w, u32 lanes, u64 k, u64 end, u32 mine)
{
    for (u64 next; k < end; k = next) {
        const bool by_line = k % LINE == 0 && end - k >= LINE &&
                             numbers_line(&records.reads, k / LINE) != BY_WORD &&
                             numbers_line(&records.others, k / LINE) != BY_WORD;
        const struct reader r = reader_of(w, lanes, &records.reads, k),
                            other = reader_of(w, lanes, &records.others, k);
        next = by_line ? k + LINE : k + 1;
        keep_reader(k, next, mine, &r, &other);
    }
}

/* Another host thread may be at the same word: then what is lost is a race less told. */
static void access_word(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, u32 mine,
                        enum access how, u32 floor, u32 readers, struct by_lanes by)
{
    u64 k = (at - records.base) / 4;
    bool part = how & ACCESS_WRITE && bytes != 15; /* of a word, which takes longer: in one step */
    u32 wrote = part ? __atomic_exchange_n(numbers_own(&records.writes, k), mine, __ATOMIC_ACQ_REL)
                     : numbers_word(&records.writes, k);
    const struct reader none = {0}, r = readers > 0 ? reader_of(w, 1u << lane, &records.reads, k) : none,
                        other = readers > 1 ? reader_of(w, 1u << lane, &records.others, k) : none;
    /* A strong write that a strong read has seen is before what follows that read. */
    bool observed =
        ((r.known && r.record->how & ACCESS_STRONG) || (other.known && other.record->how & ACCESS_STRONG)) &&
        wrote >= records.first && record_of(wrote)->how & ACCESS_STRONG;
    if (wrote >= floor && wrote != mine && !observed) check(w, in, lane, at, bytes, wrote, how, true);
    if (how & ACCESS_WRITE) {
        if (r.number) check(w, in, lane, at, bytes, r.number, how, false);
        if (other.number) check(w, in, lane, at, bytes, other.number, how, false);
        if (r.number) numbers_set(&records.reads, k, 0);
        if (other.number) numbers_set(&records.others, k, 0);
        if (bytes != 15 &&
            wrote >= records.first) { /* a part of the word, and that of the same threads' before */
            const struct record *o = record_of(wrote);
            if (o->unit == w->block->cluster->number && o->actor == actor_of(w) && o->time == w->time)
                mine = record_here(w, in, how | (o->how & ACCESS_STRONG), bytes | o->bytes,
                                   by.step == o->step && by.lanes == o->lanes ? by : (struct by_lanes){0, 0});
        }
        numbers_set(&records.writes, k, mine);
    } else if (!(observed && !(how & ACCESS_STRONG))) {
        keep_reader(k, k + 1, mine, &r, &other);
    }
}

/* race.c's check_step, of global memory. */
static void check_step(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes)
{
    u32 readers = 0, writers = 0, lane = 0, found = 0;
    if (!race_is_volatile(w->frame->fn, in)) return;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left), number = numbers_word(&records.writes, (at[i] - records.base) / 4);
        if (number < records.first || (found && found != number)) continue;
        const struct record *r = record_of(number);
        u32 by = record_lanes(r, at[i], bytes < 4 ? ((1u << bytes) - 1) << at[i] % 4 : 15);
        if (r->unit != w->block->cluster->number || r->actor != actor_of(w) || r->time < w->lanes_met ||
            !by || by & (by - 1) || by >> i & 1 || order_met(w, r->time, by, 1u << i) ||
            !race_is_volatile(r->fn, r->in))
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
    race_tell_volatile(w, in, lane, where, first_lane(record_lanes(r, at[lane], 1u << at[lane] % 4)), r->fn,
                       r->in);
}

static void widen_written(u64 from, u64 to)
{
    widen(&written.low, &written.high, from, to);
    widen(&global_written.low, &global_written.high, from, to);
}

/* Whether these lanes of w, `by` that access, synchronise with this record's access, which is not a strong one. */
static bool is_before(const struct warp *w, u32 lanes, u32 number, struct by_lanes by)
{
    const struct record *r = number >= records.first ? record_of(number) : NULL;
    if (!r || r->how & ACCESS_STRONG || !known_warp(w, lanes, r) || known_not_passed(w, r, ALL_LANES))
        return false;
    return !by_own_warp(w, r) || (r->step == by.step && r->lanes == by.lanes);
}

/* The same as access_word of words that follow each other and have all been written, and read, by the same instruction of the same
 * warp before, or not at all in this launch, with what w knows of. Else false, and nothing is done. */
static bool access_line(struct warp *w, u32 lanes, u64 at, u32 words, u32 mine, enum access how, u32 floor,
                        u32 readers, struct by_lanes by)
{
    u64 word = (at - records.base) / 4, end = word + words;
    u32 wrote, read = 0, other = 0;
    if (!numbers_same(&records.writes, word, end, floor, &wrote) ||
        (readers > 0 && !numbers_same(&records.reads, word, end, records.first, &read)) ||
        (readers > 1 && (!numbers_same(&records.others, word, end, records.first, &other) || other)) ||
        (wrote && wrote != mine && !is_before(w, lanes, wrote, by)) ||
        (read && !is_before(w, lanes, read, by)))
        return false;
    numbers_set_all(how == ACCESS_READ ? &records.reads : &records.writes, word, end, mine);
    if (how != ACCESS_READ && read) numbers_set_all(&records.reads, word, end, 0);
    return true;
}

static void access_lanes(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                         enum access how, u32 floor, u32 readers, struct by_lanes by)
{
    u32 mine = bytes >= 4 ? record_here(w, in, how, 15, by) : 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        for (u64 a = at[i], end = at[i] + bytes; a < end; a = (a & ~3ull) + 4) {
            u32 from = (u32)a & 3, to = end - (a & ~3ull) < 4 ? (u32)(end & 3) : 4;
            u32 part = ((1u << to) - 1) & ~((1u << from) - 1);
            access_word(w, in, i, a, part, part == 15 ? mine : record_here(w, in, how, part, by), how, floor,
                        readers, by);
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
            (struct early_read){at, end, record_make(w, in, w->time, how & ~(u32)ACCESS_DATA, 15, by)};
}

bool global_read_early(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how)
{
    const struct early_reads *early = w->block->worker->early;
    u32 first = first_lane(mask), lanes = (u32)__builtin_popcount(mask);
    if (early && early->count == MOST_EARLY) return false;
    struct by_lanes by = how & ACCESS_TOGETHER ? (struct by_lanes){0, 0} : record_lanes_of(mask, at, bytes);
    if (!records.writes.lines || at[first] - records.base >= records.bytes ||
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

/* The launch has written to more memory than when this host thread last looked: what has been read there before. */
static void look_at_early(const struct warp *w)
{
    struct early_reads *e = w->block->worker->early;
    u64 low = written.low, high = written.high;
    if (!e || (low >= e->low && high <= e->high)) return;
    for (u32 n = 0; n < e->count; n++) {
        const struct early_read *read = &e->read[n];
        bool now = read->at < high && read->end > low, before = read->at < e->high && read->end > e->low;
        u32 number = now && !before ? record_keep(&read->record) : 0;
        if (!number) continue;
        note_read(w, 0, (read->at - records.base) / 4, (read->end - records.base) / 4, number);
        widen(&read_low, &read_high, read->at, read->end);
    }
    e->low = low;
    e->high = high;
}

/* The first of the records that an access of w may collide with. */
static u32 floor_of(const struct warp *w)
{
    const struct launch *l = w->block->launch;
    return l->chained                         ? records.earliest
           : l->dependent && !known_waited(w) ? records.previous
                                              : records.first;
}

void global_access_now(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                       enum access how, u64 low, u64 high)
{
    if (!records.writes.lines || low - records.base >= records.bytes) return;
    if (__builtin_expect(footprint_wanted, false)) {
        footprint_access(mask, at, bytes, how);
        if (!(how & ACCESS_WRITE) && (low >= written.high || high <= written.low)) return;
    }
    u32 floor = floor_of(w);
    if (how & ACCESS_WRITE && (low < written.low || high > written.high)) widen_written(low, high);
    look_at_early(w);
    if (!(how & ACCESS_WRITE) && (low < read_low || high > read_high))
        widen(&read_low, &read_high, low, high);
    u32 readers = readers_between(low, high), first = first_lane(mask), lanes = (u32)__builtin_popcount(mask);
    struct by_lanes by = how & ACCESS_TOGETHER ? (struct by_lanes){0, 0} : record_lanes_of(mask, at, bytes);
    w->global_lanes |= mask;
    if (how & ACCESS_DATA) check_step(w, in, mask, at, bytes);
    how &= ~(u32)ACCESS_DATA;
    if ((by.step || lanes == 1) && !(how & ~(u32)ACCESS_WRITE) &&
        mask >> first == ALL_LANES >> (LANES - lanes)) {
        if (bytes == 2 && at[first] % 4) first++, lanes--; /* half a word */
        if (bytes == 2 && lanes % 2) lanes--;
        if (lanes && at[first] % 4 == 0 && lanes * bytes % 4 == 0 &&
            access_line(w, mask, at[first], lanes * bytes / 4, record_here(w, in, how, 15, by), how, floor,
                        readers, by))
            mask &= ~((u32)((1ull << lanes) - 1) << first);
    }
    if (mask) access_lanes(w, in, mask, at, bytes, how, floor, readers, by);
}

/* Whether it is of a bulk store of this warp: of two of those exec/bulk.c tells. */
static bool is_own_bulk(const struct warp *w, u32 number)
{
    const struct record *r = record_of(number);
    return r->how & ACCESS_BULK && r->unit == w->block->cluster->number && r->actor == actor_of(w);
}

/* The number in the grid of the block of this rank of a cluster. */
static u64 block_number(const struct cluster *any, u32 cluster, u32 rank)
{
    return (u64)cluster * any->size + rank;
}

void global_proxy_fence(const struct warp *w)
{
    const struct cluster *c = w->block->cluster;
    if (!fenced) {
        u32 *none = NULL, *own = calloc(blocks, sizeof *own);
        if (!own) abort();
        if (!atomic_compare_exchange_strong(&fenced, &none, own)) free(own);
    }
    __atomic_store_n(&fenced[block_number(c, c->number, w->block->cluster_rank)], ++records.fences,
                     __ATOMIC_RELAXED);
}

/* Whether this record's block, or w's, has executed fence.proxy.async since. */
static bool is_fenced(const struct warp *w, const struct record *r)
{
    const struct cluster *c = w->block->cluster;
    const u64 here = block_number(c, c->number, w->block->cluster_rank),
              there = block_number(c, r->unit, r->actor / MAX_WARPS);
    const u32 *last = fenced;
    return last && (__atomic_load_n(&last[here], __ATOMIC_RELAXED) > r->fences ||
                    __atomic_load_n(&last[there], __ATOMIC_RELAXED) > r->fences);
}

/* What a bulk copy reads or overwrites has been written by an ordinary instruction of this launch; not both adding to it. */
static void check_proxy(struct warp *w, const struct inst *in, u32 lane, u64 at, const struct record *r,
                        enum access how)
{
    char who[80];
    if (r->how & ACCESS_BULK || how & r->how & ACCESS_STRONG || is_fenced(w, r) || async_of_library(w, in))
        return;
    describe(w, r, who, sizeof who);
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, r->fn, r->in,
        "fence.proxy.async is missing: %s wrote global memory at 0x%llx with an ordinary instruction, at line %u, and this one %s it "
        "through the async proxy: fence.proxy.async.global belongs behind the write, or here behind the flag or barrier between them",
        who, (unsigned long long)at, r->fn->lines[r->in - r->fn->code].line,
        how & ACCESS_WRITE ? "overwrites" : "reads");
}

/* Who has written these words before, and which readers there are. */
static void check_bulk(struct warp *w, const struct inst *in, u32 lane, u64 first, u64 end, enum access how,
                       u32 readers)
{
    const struct numbers *const of_readers[] = {&records.reads, &records.others};
    const u32 floor = floor_of(w);
    u32 wrote = 0, read[2] = {0}; /* of the word before: neighbours mostly have the same */
    for (u64 k = first, next; k < end; k = next) {
        const u32 before = wrote;
        bool by_line = numbers_line(&records.writes, k / LINE) != BY_WORD;
        for (u32 i = 0; i < readers; i++) by_line &= numbers_line(of_readers[i], k / LINE) != BY_WORD;
        next = by_line ? (k / LINE + 1) * LINE : k + 1;
        wrote = numbers_word(&records.writes, k);
        if (wrote != before && wrote >= floor && !(how & ACCESS_WRITE && is_own_bulk(w, wrote))) {
            check(w, in, lane, records.base + 4 * k, 15, wrote, how, false);
            if (wrote >= records.first) check_proxy(w, in, lane, records.base + 4 * k, record_of(wrote), how);
        }
        for (u32 i = 0; i < readers; i++) {
            const u32 number = numbers_word(of_readers[i], k);
            if (number != read[i] && number >= records.first)
                check(w, in, lane, records.base + 4 * k, 15, number, how, false);
            read[i] = number;
        }
    }
}

void global_bulk_store(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes, bool reduces,
                       u32 *number)
{
    const enum access how = ACCESS_WRITE | ACCESS_BULK | (reduces ? ACCESS_STRONG : 0);
    if (!records.writes.lines || at - records.base >= records.bytes) return;
    if (!*number) *number = record_new(w, in, NOT_WAITED, how, 15, (struct by_lanes){0, 0});
    if (!*number || !bytes) return;
    widen_written(at, at + bytes);
    look_at_early(w);
    if (footprint_wanted) footprint_mark(reduces ? TOUCH_ATOMIC : TOUCH_WRITE, at, bytes);
    const u64 first = (at - records.base) / 4, end = first + bytes / 4;
    const u32 readers = readers_between(at, at + bytes);
    check_bulk(w, in, lane, first, end, how, readers);
    numbers_set_all(&records.writes, first, end, *number);
    if (readers > 0) numbers_set_all(&records.reads, first, end, 0);
    if (readers > 1) numbers_set_all(&records.others, first, end, 0);
}

/* The same as global_read_early, of a warp's first bulk load by each of a few instructions. */
static void note_early_bulk(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes)
{
    for (u32 i = 0; i < w->bulk_reads; i++)
        if (w->bulk_read[i] == in) return;
    if (w->bulk_reads == BULK_READS) return;
    w->bulk_read[w->bulk_reads++] = in;
    note_early(w, in, at, at + bytes, ACCESS_BULK, (struct by_lanes){0, 1u << lane});
}

void global_bulk_load(struct warp *w, const struct inst *in, u32 lane, u64 at, u64 bytes)
{
    if (!records.writes.lines || at - records.base >= records.bytes || !bytes) return;
    if (at >= written.high || at + bytes <= written.low) {
        note_early_bulk(w, in, lane, at, bytes);
        return;
    }
    const u64 first = (at - records.base) / 4, end = first + bytes / 4;
    look_at_early(w);
    check_bulk(w, in, lane, first, end, ACCESS_READ, 0);
    widen(&read_low, &read_high, at, at + bytes);
    note_read(w, 1u << lane, first, end,
              record_here(w, in, ACCESS_BULK, 15, (struct by_lanes){0, 1u << lane}));
}

void global_bulk_waited(const struct warp *w, u32 number)
{
    if (number >= records.first)
        __atomic_store_n(&records.now[number - records.first].time, w->time, __ATOMIC_RELAXED);
}

void global_write_line(struct warp *w, const struct inst *in, u64 at, u32 bytes, u64 low, u64 high)
{
    u64 address[LANES];
    for (u32 i = 0; i < LANES; i++) address[i] = at + (u64)i * bytes / LANES;
    global_access_now(w, in, ALL_LANES, address, bytes / LANES, ACCESS_WRITE, low, high);
}

/* ---- Atomics and looks at flags --------------------------------------------------------------------------------------------- */

pthread_mutex_t *global_hold(u64 at, enum order order)
{
    enum { LOCKS = 64 };
    static pthread_mutex_t locks[LOCKS] = {[0 ... LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};
    if (!known_published() || order & ORDER_CTA || at - records.base >= records.bytes) return NULL;
    pthread_mutex_t *held = &locks[(at >> 4) % LOCKS]; /* of the largest atomic's bytes */
    pthread_mutex_lock(held);
    return held;
}

void global_done(struct warp *w, const struct inst *in, u32 lane, u64 at, u32 bytes, pthread_mutex_t *held)
{
    if (!held) return;
    u32 part = ((1u << (bytes < 4 ? bytes : 4)) - 1) << (at & 3);
    u32 mine = record_here(w, in, ACCESS_WRITE | ACCESS_STRONG, part, (struct by_lanes){0, 1u << lane});
    for (u64 k = (at - records.base) / 4; k < (at - records.base + bytes + 3) / 4; k++)
        numbers_set(&records.writes, k, mine);
    pthread_mutex_unlock(held);
}

void global_observe(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                    enum access how, enum order order)
{
    if (!known_published() || order & ORDER_CTA) return;
    how &= ~(u32)ACCESS_DATA;
    /* What another host thread has written just before the look was noted as after it. (Of an atomic global_done has.) */
    u32 here = 0;
    for (u32 left = how & ACCESS_WRITE ? 0 : mask; left; left &= left - 1)
        if (at[first_lane(left)] - records.base < records.bytes) here |= left & -left;
    if (here) access_lanes(w, in, here, at, bytes, how, records.first, 2, record_lanes_of(here, at, bytes));
    known_observe(w, mask, at, order);
}
