/* known.c: what the blocks of a grid know of each other. */
#include "known.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "strong.h"

enum { MOST_UNITS = 512, MOST_ACQUIRED = 32, FIRST_FLAGS = 256, MOST_PARTED = 1 << 16, KEPT = 8 };

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
    u32 actor, lanes, time; /* by which warp of the cluster, which of its lanes, and when */
};

/* What the warps of a cluster know of others. */
struct cluster_view {
    struct view known;         /* all of them */
    struct acquired *acquired; /* one of them, and who synchronises with it */
    u32 count, capacity;
};

/* What a warp knew at a fence, or what its relaxed looks had seen at one. Others may be behind it, and know of that moment, but not of later
 * ones: so the latest are kept. Of moments between which nothing tells others how far the warp has come, the last will do. */
struct moment {
    struct view view;
    u32 at;
    bool sc;   /* a fence, for others, too: ORDER_SC */
    bool over; /* of looks: the warp has fenced since */
};
struct moments {
    u32 count; /* the last one is moment[(count - 1) % KEPT] */
    struct moment moment[KEPT];
};

struct warp_view {
    struct moments fenced, seen;
};

struct flag {
    u64 address;
    struct view view;
};

/* Of a warp: its releases since some of its lanes have passed on what they did, and others have not. */
struct parted {
    u64 warp; /* unit << 16 | actor, and 1 << 63 */
    u32 count;
    struct passed passed[PASSED]; /* the latest; `met`: until then every lane had */
};

static struct {
    u32 width;            /* of an entry of a view: the warps of a cluster */
    pthread_mutex_t lock; /* of the flags and what is parted */
    struct flag *flags;
    u32 flag_count, flag_capacity;
    struct parted **parted; /* a hash table, of MOST_PARTED places */
    _Atomic u32 parted_count;
    _Atomic bool published;
    _Atomic bool launches_dependents; /* the launch has executed griddepcontrol.launch_dependents */
    _Atomic bool waits;               /* ... griddepcontrol.wait */
    bool dependent;                   /* as the launch is */
} grid = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

static struct warp_view *own(struct warp *w)
{
    if (!w->view && !(w->view = calloc(1, sizeof *w->view))) abort();
    return w->view;
}

bool known_actor(const struct warp *w, u32 actor, u32 time)
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

/* The latest; NULL: there is none. */
static struct moment *latest(struct moments *m)
{
    return m->count ? &m->moment[(m->count - 1) % KEPT] : NULL;
}

/* Whether others may know how far w was at `at`: it has arrived somewhere since. */
static bool told_since(const struct warp *w, u32 at)
{
    return order_knows_actor(w, w->block->cluster_rank * ACTORS + w->id, at);
}

/* One more, of now. */
static struct moment *next_moment(const struct warp *w, struct moments *m)
{
    struct moment *next = &m->moment[m->count++ % KEPT];
    view_clear(&next->view);
    next->at = w->time;
    next->sc = next->over = false;
    return next;
}

/* Whether these lanes of w synchronise with those that have acquired this. */
static bool has_acquired(const struct warp *w, u32 lanes, const struct acquired *a)
{
    if (!known_actor(w, a->actor, a->time)) return false;
    if (a->actor != actor_of(w) || a->time < w->lanes_met) return true;
    for (u32 left = lanes & ~a->lanes; left; left &= left - 1)
        if (!order_met(w, a->time, a->lanes, left & -left)) return false;
    return true;
}

bool known_at(const struct warp *w, u32 lanes, u32 unit, u32 actor, u32 time)
{
    const struct cluster_view *c = w->block->cluster->view;
    if (unit == w->block->cluster->number) return known_actor(w, actor, time);
    if (view_has(&c->known, unit, place_of(w, actor), time)) return true;
    for (u32 k = 0; k < c->count; k++) {
        const struct acquired *a = &c->acquired[k];
        if (view_has(&a->view, unit, place_of(w, actor), time) && has_acquired(w, lanes, a)) return true;
    }
    return false;
}

static bool knows_all_of(const struct warp *w, u32 lanes, const struct view *v)
{
    if (v->all) return w->block->cluster->view->known.all;
    for (u32 k = 0; k < v->count; k++) {
        const u32 *entry = v->entries + k * (1 + grid.width);
        for (u32 n = 0; n < grid.width; n++) {
            u32 actor = n / w->block->warp_count * MAX_WARPS + n % w->block->warp_count;
            if (entry[0] != w->block->cluster->number && entry[1 + n] &&
                !known_at(w, lanes, entry[0], actor, entry[1 + n]))
                return false;
        }
    }
    return true;
}

static void acquire(struct warp *w, u32 lanes, const struct view *v)
{
    struct cluster_view *c = w->block->cluster->view;
    strong_acquired(w->block->cluster);
    if (!v->waited && knows_all_of(w, lanes, v)) return;
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
    a->lanes = lanes;
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
        if (known_actor(w, c->acquired[k].actor, c->acquired[k].time)) view_join(to, &c->acquired[k].view);
    to->waited = false;
}

void known_all_met(struct cluster *cluster)
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

void known_publish(struct warp *w, u32 mask, const u64 at[LANES], enum order order)
{
    struct view v = {0};
    if (order & ORDER_RELEASE) strong_released(w, false);
    if (!records.writes.lines || order & ORDER_CTA) return;
    if (order & ORDER_RELEASE) {
        collect(w, &v);
    } else {
        struct warp *x;
        if (w->view && latest(&w->view->fenced)) view_join(&v, &latest(&w->view->fenced)->view);
        for (u32 k = 0; (x = next_with_view(w, &k));)
            for (u32 n = 0; n < KEPT && n < x->view->fenced.count; n++) {
                const struct moment *m = &x->view->fenced.moment[n];
                if (m->sc && known_actor(w, actor_of(x), m->at)) view_join(&v, &m->view);
            }
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

void known_observe(struct warp *w, u32 mask, const u64 at[LANES], enum order order)
{
    struct view now = {0};
    pthread_mutex_lock(&grid.lock);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        if ((i && at[i] == at[i - 1] && mask >> (i - 1) & 1) || is_shared(w, at[i])) continue;
        if (grid.flag_capacity) view_join(&now, &flag_at(at[i])->view);
    }
    pthread_mutex_unlock(&grid.lock);
    if (order & ORDER_ACQUIRE) {
        acquire(w, mask, &now);
    } else if (now.count || now.all) {
        struct moments *seen = &own(w)->seen;
        struct moment *before = latest(seen), *m = before;
        if (!before || told_since(w, before->at)) m = next_moment(w, seen);
        if (before && before->over) view_clear(&m->view);
        if (before && !before->over && m != before) view_join(&m->view, &before->view);
        m->over = false;
        m->at = w->time;
        view_join(&m->view, &now);
    }
    free(now.entries);
}

bool known_published(void)
{
    return grid.published;
}

void known_fence(struct warp *w, u32 mask, enum order order)
{
    strong_released(w, true);
    if (!records.writes.lines || order & ORDER_CTA) return;
    struct warp_view *v = own(w);
    struct moment *seen = latest(&v->seen), *fenced = latest(&v->fenced);
    const bool sc = order & ORDER_SC;
    if (seen) {
        acquire(w, mask, &seen->view); /* or other lanes have, at their fence */
        seen->over = true;
    }
    struct warp *x;
    for (u32 k = 0; sc && (x = next_with_view(w, &k));)
        for (u32 n = 0; n < KEPT && n < x->view->seen.count; n++) {
            const struct moment *m = &x->view->seen.moment[n];
            if (known_actor(w, actor_of(x), m->at)) acquire(w, mask, &m->view);
        }
    if (!fenced || told_since(w, fenced->at) || (fenced->sc && !sc)) fenced = next_moment(w, &v->fenced);
    collect(w, &fenced->view);
    fenced->at = w->time;
    fenced->sc = sc;
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

void known_passed(struct warp *w, u32 time, u32 lanes)
{
    bool first = !w->parted && w->passed_count > 1;
    w->parted = w->global_lanes;
    if (!records.writes.lines) return;
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
        if (a && !known_actor(w, a->actor, a->time)) continue;
        const struct view *v = a ? &a->view : &c->known;
        const u32 *entry = v->all ? NULL : entry_for(v, unit);
        if (v->all) return UINT32_MAX;
        if (entry && entry[place] > until) until = entry[place];
    }
    return until;
}

u32 known_not_passed(const struct warp *w, const struct record *r, u32 lanes)
{
    u32 unit = r->unit, actor = r->actor, time = r->time;
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

bool known_record(const struct warp *w, u32 lanes, const struct record *r, u64 at, u32 bytes)
{
    return known_warp(w, lanes, r) && !known_not_passed(w, r, record_lanes(r, at, bytes));
}

bool known_released(const struct warp *w, const struct record *r)
{
    bool found = false;
    pthread_mutex_lock(&grid.lock);
    for (u32 k = 0; k < grid.flag_capacity && !found; k++)
        found =
            grid.flags[k].address && view_has(&grid.flags[k].view, r->unit, place_of(w, r->actor), r->time);
    pthread_mutex_unlock(&grid.lock);
    return found;
}

/* ---- Launches that begin early ----------------------------------------------------------------------------------------------- */

void known_wait_for_launch(struct warp *w)
{
    grid.waits = true;
    acquire(w, ALL_LANES, &(struct view){.waited = true});
}

void known_launches_dependents(void)
{
    grid.launches_dependents = true;
}

bool known_waited(const struct warp *w)
{
    const struct cluster_view *c = w->block->cluster->view;
    bool yes = c->known.waited;
    for (u32 k = 0; k < c->count; k++)
        yes |= c->acquired[k].view.waited && known_actor(w, c->acquired[k].actor, c->acquired[k].time);
    return yes;
}

/* ---- Start and end -------------------------------------------------------------------------------------------------------- */

void known_start_launch(struct launch *l)
{
    l->dependent &= atomic_exchange(&grid.launches_dependents, false);
    l->chained = l->dependent && grid.dependent && !grid.waits;
    grid.dependent = l->dependent;
    grid.waits = false;
    grid.width = l->cluster[0] * l->cluster[1] * l->cluster[2] *
                 ((l->block[0] * l->block[1] * l->block[2] + LANES - 1) / LANES);
}

void known_end_launch(void)
{
    for (u32 k = 0; k < grid.flag_capacity; k++) free(grid.flags[k].view.entries);
    free(grid.flags);
    grid.flags = NULL;
    grid.flag_count = grid.flag_capacity = 0;
    for (u32 k = 0; grid.parted_count && k < MOST_PARTED; k++) {
        free(grid.parted[k]);
        grid.parted[k] = NULL;
    }
    grid.parted_count = 0;
    grid.published = false;
}

void known_start_cluster(struct cluster *c)
{
    if (!c->view && !(c->view = calloc(1, sizeof *c->view))) abort();
    view_clear(&c->view->known);
    c->view->count = 0;
}

void known_start_warp(struct warp *w)
{
    if (!w->view) return;
    w->view->fenced.count = w->view->seen.count = 0;
}

void known_free_cluster(struct cluster *c)
{
    for (u32 k = 0; c->view && k < c->view->capacity; k++) free(c->view->acquired[k].view.entries);
    if (c->view) free(c->view->acquired);
    if (c->view) free(c->view->known.entries);
    free(c->view);
}

void known_free_warp(struct warp *w)
{
    for (u32 k = 0; w->view && k < KEPT; k++) {
        free(w->view->fenced.moment[k].view.entries);
        free(w->view->seen.moment[k].view.entries);
    }
    free(w->view);
}
