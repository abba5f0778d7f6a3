/* record.c: who has last accessed each word of global memory. */
#define _GNU_SOURCE
#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../runtime/heap.h"
#include "undefined.h"

enum {
    BY_OTHERS = 1, /* of a word's writes, besides numbers of records: by the host, or a bulk copy */
    FIRST_NUMBER,
    RECENT = 8,
    NUMBERS = 256 /* that a host thread takes at once */
};
#define MOST_RECORDS (1u << 27)
#define MOST_KEPT    (1ull << 30) /* bytes of written memory after which what is known of it is given back */

/* A warp's latest records. */
struct recent {
    const struct inst *in;
    u32 time, number;
    u8 how, bytes, step;
    u32 lanes;
};

struct records records = {.next = FIRST_NUMBER};

/* ---- Numbers -------------------------------------------------------------------------------------------------------------- */

static void *address_space(u64 bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool reserve_numbers(struct numbers *n)
{
    n->words = address_space(records.bytes);
    n->lines = n->words ? address_space(records.bytes / LINE) : NULL;
    return n->lines;
}

static void forget_numbers(const struct numbers *n)
{
    madvise(n->words, records.bytes, MADV_DONTNEED);
    madvise(n->lines, records.bytes / LINE, MADV_DONTNEED);
}

static void reserve_all(void)
{
    heap_range(&records.base, &records.bytes);
    records.now = address_space(MOST_RECORDS * sizeof *records.now);
    records.before = address_space(MOST_RECORDS * sizeof *records.before);
    records.earlier = address_space(MOST_RECORDS * sizeof *records.earlier);
    if (records.now && records.before && records.earlier && reserve_numbers(&records.reads) &&
        reserve_numbers(&records.others))
        reserve_numbers(&records.writes);
}

static void reserve(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, reserve_all);
}

void numbers_set_all(const struct numbers *n, u64 word, u64 end, u32 number)
{
    for (; word < end && word % LINE; word++) numbers_set(n, word, number);
    for (; end - word >= LINE; word += LINE)
        for (u32 was = numbers_line(n, word / LINE);
             was != number && !__atomic_compare_exchange_n(&n->lines[word / LINE], &was, number, false,
                                                           __ATOMIC_RELEASE, __ATOMIC_RELAXED);)
            was = numbers_line(n, word / LINE);
    for (; word < end; word++) numbers_set(n, word, number);
}

__attribute__((no_sanitize("thread"))) bool numbers_same(const struct numbers *n, u64 word, u64 end,
                                                         u32 floor, u32 *number)
{
    u32 first = numbers_word(n, word), differ = 0;
    *number = first = first >= floor ? first : 0;
    while (word < end) {
        u64 stop = word / LINE * LINE + LINE < end ? word / LINE * LINE + LINE : end;
        u32 line = numbers_line(n, word / LINE);
        if (line != BY_WORD) differ |= (line >= floor ? line : 0) ^ first;
        for (u64 k = line == BY_WORD ? word : stop; k < stop; k++)
            differ |= (n->words[k] >= floor ? n->words[k] : 0) ^ first;
        word = stop;
    }
    return !differ;
}

void record_start_launch(const struct launch *l, u64 written)
{
    static u64 kept;
    reserve();
    if (!records.writes.lines) return;
    if (records.next > BUSY - MOST_RECORDS - NUMBERS * MAX_WORKERS || kept > MOST_KEPT) {
        forget_numbers(&records.writes);
        forget_numbers(&records.reads);
        forget_numbers(&records.others);
        records.next = FIRST_NUMBER;
        records.forgotten = true;
        kept = 0;
    }
    kept += written;
    struct record *oldest = records.earlier;
    records.earlier = records.before;
    records.before = records.now;
    records.now = oldest;
    u32 previous = l->dependent ? records.first : records.next;
    records.earliest = l->chained ? records.previous : previous;
    records.previous = previous;
    records.first = records.next;
    records.launches++;
}

void record_start_warp(struct warp *w)
{
    if (w->recent) memset(w->recent, 0, RECENT * sizeof *w->recent);
}

void record_free_warp(struct warp *w)
{
    free(w->recent);
}

/* ---- Records -------------------------------------------------------------------------------------------------------------- */

struct record record_make(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes,
                          struct by_lanes by)
{
    return (struct record){.fn = w->frame->fn,
                           .in = in,
                           .unit = w->block->cluster->number,
                           .time = time,
                           .actor = (u16)actor_of(w),
                           .how = (u8)how,
                           .bytes = bytes & 15,
                           .step = by.step & 15,
                           .lanes = by.lanes,
                           .fences = atomic_load_explicit(&records.fences, memory_order_relaxed)};
}

u32 record_keep(const struct record *r)
{
    static _Thread_local u32 next, end;
    static _Thread_local u64 launch;
    if (next == end || launch != records.launches) {
        launch = records.launches;
        next = atomic_fetch_add(&records.next, NUMBERS);
        end = next + NUMBERS;
    }
    if (end - records.first >= MOST_RECORDS) return 0;
    records.now[next - records.first] = *r;
    return next++;
}

u32 record_new(const struct warp *w, const struct inst *in, u32 time, enum access how, u32 bytes,
               struct by_lanes by)
{
    struct record r = record_make(w, in, time, how, bytes, by);
    return record_keep(&r);
}

u32 record_here(struct warp *w, const struct inst *in, enum access how, u32 bytes, struct by_lanes by)
{
    if (!w->recent && !(w->recent = calloc(RECENT, sizeof *w->recent))) abort();
    struct recent *r = &w->recent[((uintptr_t)in / sizeof *in ^ bytes) % RECENT];
    if (r->in == in && r->time == w->time && r->how == (u8)how && r->bytes == bytes && r->step == by.step &&
        r->lanes == by.lanes)
        return r->number;
    u32 number = record_new(w, in, w->time, how, bytes, by);
    if (number) *r = (struct recent){in, w->time, number, (u8)how, (u8)bytes, (u8)by.step, by.lanes};
    return number;
}

struct by_lanes record_lanes_of(u32 mask, const u64 at[LANES], u32 bytes)
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

u32 record_lanes(const struct record *r, u64 at, u32 bytes)
{
    u32 lanes = 0;
    if (!r->step) return r->lanes;
    for (u32 left = bytes; left; left &= left - 1)
        lanes |= 1u << ((((at & ~3ull) + first_lane(left)) >> (r->step - 1)) - r->lanes) % LANES;
    return lanes;
}

/* ---- What nobody has written ---------------------------------------------------------------------------------------------- */

bool record_never_written(u64 at)
{
    return records.writes.lines && !records.forgotten && at - records.base < records.bytes &&
           !numbers_word(&records.writes, (at - records.base) / 4);
}

void record_wrote(const void *to, const void *from, u64 bytes)
{
    u64 at = ((u64)(uintptr_t)to + 1) & ~1ull, end = (u64)(uintptr_t)to + bytes,
        source = (u64)(uintptr_t)from - (u64)(uintptr_t)to;
    if (!heap_is_device(at)) return;
    reserve();
    if (!records.writes.lines) return;
    for (; at + 1 < end; at += 2) {
        while (end - at > 4 * LANES && !undefined_maybe((const void *)(uintptr_t)at)) at += 4 * LANES;
        if (*(const u16 *)(uintptr_t)at == UNWRITTEN_HALF && !(from && record_never_written(at + source)))
            numbers_set(&records.writes, (at - records.base) / 4, BY_OTHERS);
    }
}

void record_will_be_written(const void *to, u64 bytes)
{
    u64 at = (u64)(uintptr_t)to;
    if (!heap_is_device(at)) return;
    reserve();
    if (!records.writes.lines || !bytes) return;
    for (u64 word = (at - records.base) / 4, end = (at - records.base + bytes + 3) / 4, next; word < end;
         word = next) {
        next = word / LINE * LINE + LINE < end ? word / LINE * LINE + LINE : end;
        u32 line = numbers_line(&records.writes, word / LINE);
        if (!line && next - word == LINE)
            numbers_set_all(&records.writes, word, next, BY_OTHERS);
        else if (!line || line == BY_WORD)
            for (; word < next; word++)
                if (!numbers_word(&records.writes, word)) numbers_set(&records.writes, word, BY_OTHERS);
    }
}
