/* strong.c: strong stores to global memory, and who may not have seen them yet. */
#include "strong.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "global.h"
#include "order.h"
#include "undefined.h"

enum {
    CHUNKS = 1 << 12, /* of 16 bytes, whose strong stores are kept */
    UNFENCED = 256,
    SAW = 8
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

/* Of a cluster. */
struct cluster_stores {
    u32 fences; /* how many there had been, of all, at the last that its warps may know of */
    u32 count;  /* of strong stores by its warps, so far */
    struct stored *unfenced[UNFENCED]; /* the latest of them since it has released anything */
    u32 unfenced_count;
    struct saw saw[SAW]; /* what its warps have compared with something */
    u32 saw_count;
};

static struct {
    pthread_mutex_t lock;
    struct stored (*stored)[4]; /* a hash table, of CHUNKS places: by word */
    _Atomic bool has_stored;
    _Atomic u32 fences; /* how many there have been */
    u32 shown;          /* how often it was asked whether to show what had been there before */
} grid = {.lock = PTHREAD_MUTEX_INITIALIZER};

void strong_released(struct warp *w, bool fence)
{
    struct cluster_stores *c = w->block->cluster->stores;
    if (!grid.has_stored) return;
    pthread_mutex_lock(&grid.lock);
    if (fence) c->fences = ++grid.fences;
    for (u32 k = 0; k < c->unfenced_count; k++) c->unfenced[k]->fenced = grid.fences + 1;
    c->unfenced_count = 0;
    pthread_mutex_unlock(&grid.lock);
}

void strong_acquired(struct cluster *c)
{
    c->stores->fences = grid.fences;
}

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

void strong_store(struct warp *w, u32 mask, const u64 at[LANES], u32 bytes, enum order order)
{
    struct cluster_stores *c = w->block->cluster->stores;
    if (!records.writes.lines || order & ORDER_CTA || bytes > 16) return;
    pthread_mutex_lock(&grid.lock);
    if (!grid.stored && !(grid.stored = calloc(CHUNKS, sizeof *grid.stored))) abort();
    grid.has_stored = true;
    c->count++;
    for (u32 left = mask; left; left &= left - 1) {
        u64 a = at[first_lane(left)];
        if (a - records.base >= records.bytes) continue;
        struct stored *chunk = chunk_of(a), *s = &chunk[a % 16 / 4];
        forget_stored(chunk, a, bytes);
        s->at = a;
        s->bytes = bytes;
        s->number = numbers_word(&records.writes, (a - records.base) / 4);
        s->store = c->count;
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
    const struct cluster_stores *c = w->block->cluster->stores;
    for (u32 k = 0; k < c->saw_count && k < SAW; k++) {
        const struct saw *saw = &c->saw[k];
        bool same = saw->actor == r->actor, block = saw->actor / MAX_WARPS == r->actor / MAX_WARPS;
        if (saw->unit == r->unit &&
            (same ? saw->store > s->store : block && saw->known[r->actor % MAX_WARPS] >= r->time) &&
            known_actor(w, saw->by, saw->time))
            return true;
    }
    return false;
}

static void note_saw(struct warp *w, const struct stored *s, const struct record *r)
{
    struct cluster_stores *c = w->block->cluster->stores;
    const struct saw *last = &c->saw[(c->saw_count - 1) % SAW];
    if (c->saw_count && last->unit == r->unit && last->store == s->store && last->by == actor_of(w)) return;
    struct saw *saw = &c->saw[c->saw_count++ % SAW];
    *saw = (struct saw){
        .unit = r->unit, .actor = r->actor, .store = s->store, .by = actor_of(w), .time = w->time};
    memcpy(saw->known, s->known, sizeof saw->known);
}

void strong_load(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES], u32 bytes,
                 enum access how, enum order order, u8 value[LANES][MAX_STRONG])
{
    const struct cluster_stores *c = w->block->cluster->stores;
    struct record told = {0};
    u32 lane = LANES;
    if (!grid.has_stored) return;
    pthread_mutex_lock(&grid.lock);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        if (at[i] - records.base >= records.bytes) continue;
        struct stored *chunk = chunk_of(at[i]), *s = &chunk[at[i] % 16 / 4];
        if (s->at != at[i] || s->bytes != bytes) {
            for (u64 a = at[i]; a < at[i] + bytes; a += 16)
                forget_stored(chunk_of(a), a, bytes < 16 ? bytes : 16);
            continue;
        }
        const struct record *r = record_of(s->number);
        u32 newest;
        if (s->number < records.first ||
            !numbers_same(&records.writes, (at[i] - records.base) / 4, (at[i] - records.base + bytes + 3) / 4,
                          0, &newest) ||
            newest != s->number) {
            s->at = 0;
            continue;
        }
        if ((r->unit == w->block->cluster->number && r->actor == actor_of(w)) ||
            memcmp(value[i], s->before, bytes) == 0)
            continue;
        bool known = known_warp(w, 0, r);
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
    if (lane < LANES) global_tell_unordered(w, in, lane, at[lane], &told);
}

void strong_end_launch(void)
{
    if (grid.has_stored) memset(grid.stored, 0, CHUNKS * sizeof *grid.stored);
    grid.has_stored = false;
}

void strong_start_cluster(struct cluster *c)
{
    if (!c->stores && !(c->stores = calloc(1, sizeof *c->stores))) abort();
    c->stores->fences = c->stores->count = c->stores->unfenced_count = c->stores->saw_count = 0;
}

void strong_free_cluster(struct cluster *c)
{
    free(c->stores);
}
