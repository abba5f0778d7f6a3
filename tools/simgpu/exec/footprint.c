/* footprint.c: which bytes a task touches. */
#define _GNU_SOURCE
#include "footprint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../runtime/heap.h"

enum { PAGE = 4096, WORD = 64 };

bool footprint_wanted;

/* The device's memory: a bit for each byte, and which pages have any. */
static struct {
    u64 base, bytes;
    u64 *bits[TOUCHES]; /* NULL: no room for them */
    u8 *pages;
    _Atomic u64 first, last; /* page with marks */
} map;
static struct footprint now; /* what the host has touched itself */

/* ---- Extents ------------------------------------------------------------------------------------------------------------ */

static void add(struct extents *e, u64 start, u64 end)
{
    if (e->count && start >= e->at[e->count - 1].start && start <= e->at[e->count - 1].end) {
        if (end > e->at[e->count - 1].end) e->at[e->count - 1].end = end;
        return;
    }
    if (e->count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 4;
        if (!(e->at = realloc(e->at, e->capacity * sizeof *e->at))) abort();
    }
    e->at[e->count++] = (struct extent){start, end};
}

static int by_start(const void *a, const void *b)
{
    u64 x = ((const struct extent *)a)->start, y = ((const struct extent *)b)->start;
    return x < y ? -1 : x > y;
}

static void sort(struct extents *e)
{
    u64 count = e->count;
    if (count < 2) return;
    qsort(e->at, count, sizeof *e->at, by_start);
    e->count = 0;
    for (u64 k = 0; k < count; k++) add(e, e->at[k].start, e->at[k].end);
}

bool footprint_meet(const struct extents *a, const struct extents *b, struct meeting *m)
{
    while (m->i < a->count && m->k < b->count) {
        const struct extent *x = &a->at[m->i], *y = &b->at[m->k];
        m->both =
            (struct extent){x->start > y->start ? x->start : y->start, x->end < y->end ? x->end : y->end};
        if (x->end < y->end)
            m->i++;
        else
            m->k++;
        if (m->both.start < m->both.end) return true;
    }
    return false;
}

/* ---- Marks -------------------------------------------------------------------------------------------------------------- */

static void *address_space(u64 bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void reserve(void)
{
    heap_range(&map.base, &map.bytes);
    map.pages = address_space(map.bytes / PAGE);
    for (u32 how = 0; how < TOUCHES && map.pages; how++)
        if (!(map.bits[how] = address_space(map.bytes / 8))) map.pages = NULL;
}

static void mark_page(u64 page)
{
    if (__atomic_exchange_n(&map.pages[page], 1, __ATOMIC_RELAXED)) return;
    for (u64 p = map.first; page < p && !atomic_compare_exchange_weak(&map.first, &p, page);) {
    }
    for (u64 p = map.last; page > p && !atomic_compare_exchange_weak(&map.last, &p, page);) {
    }
}

void footprint_mark(enum touch how, u64 at, u64 bytes)
{
    u64 from = at - map.base, end = from + bytes;
    if (!map.pages || from >= map.bytes || !bytes) return;
    for (u64 page = from / PAGE; page <= (end - 1) / PAGE; page++)
        if (!__atomic_load_n(&map.pages[page], __ATOMIC_RELAXED)) mark_page(page);
    for (u64 next; from < end; from = next) {
        u64 *word = &map.bits[how][from / WORD], bits = ~0ull << from % WORD;
        next = from / WORD * WORD + WORD;
        if (next > end) bits &= ~0ull >> (next - end);
        if (bits & ~__atomic_load_n(word, __ATOMIC_RELAXED)) __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
    }
}

void footprint_access(u32 mask, const u64 at[LANES], u32 bytes, enum access how)
{
    bool strong = how & ACCESS_STRONG, writes = how & ACCESS_WRITE;
    enum touch touch = !writes ? TOUCH_READ : strong ? TOUCH_ATOMIC : TOUCH_WRITE;
    u64 start = 0, end = 0;
    if (strong && !writes) return;
    for (u32 left = mask; left; left &= left - 1) {
        u64 a = at[first_lane(left)];
        if (a >= start && a + bytes <= end) continue; /* the lanes before it have, too */
        if (a != end) {
            footprint_mark(touch, start, end - start);
            start = a;
        }
        end = a + bytes;
    }
    footprint_mark(touch, start, end - start);
}

/* The marks of a page become extents. */
static void collect(struct extents *e, u64 *bits, u64 address)
{
    for (u32 k = 0; k < PAGE / WORD; k++, address += WORD)
        for (u64 left = bits[k]; left;) {
            u64 first = (u64)__builtin_ctzll(left), others = ~(left >> first),
                length = others ? (u64)__builtin_ctzll(others) : WORD;
            add(e, address + first, address + first + length);
            left = first + length < WORD ? left & ~0ull << (first + length) : 0;
        }
    memset(bits, 0, PAGE / 8);
}

/* ---- A task ------------------------------------------------------------------------------------------------------------- */

void footprint_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, reserve);
    map.first = UINT64_MAX;
    map.last = 0;
    footprint_wanted = true;
}

void footprint_end(struct footprint *f)
{
    for (u64 page = map.first; page <= map.last; page++) {
        if (!map.pages[page]) continue;
        for (u32 how = 0; how < TOUCHES; how++)
            collect(&now.of[how], &map.bits[how][page * PAGE / WORD], map.base + page * PAGE);
        map.pages[page] = 0;
    }
    for (u32 how = 0; how < TOUCHES; how++) sort(&now.of[how]);
    *f = now;
    now = (struct footprint){0};
    footprint_wanted = false;
}

void footprint_free(struct footprint *f)
{
    for (u32 how = 0; how < TOUCHES; how++) free(f->of[how].at);
    *f = (struct footprint){0};
}

void footprint_touch(enum touch how, const void *at, u64 bytes)
{
    if (footprint_wanted && bytes) add(&now.of[how], (u64)(uintptr_t)at, (u64)(uintptr_t)at + bytes);
}
