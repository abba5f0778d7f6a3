/* race.c: which accesses to shared memory nothing orders. */
#include "race.h"

#include <stdlib.h>
#include <string.h>

#include "../report/report.h"
#include "order.h"

/* A write in a word's cell. */
enum {
    LANE_AT = 17, /* below: the site, a number of the instruction in its module */
    WARP_AT = 22,
    RANK_AT = 27,
    BYTES_AT = 31,
    TIME_AT = 41 /* from the first block of these structures on */
};
#define SITE_MASK     ((1ull << LANE_AT) - 1)
#define LANE_MASK     (31ull << LANE_AT)
#define WARP_MASK     (31ull << WARP_AT)
#define RANK_MASK     (15ull << RANK_AT)
#define TOGETHER_FLAG (1ull << 35) /* by all lanes as one */
#define MIXED_FLAG    (1ull << 36) /* its bytes by several lanes, which ones is not known */
#define PENDING_FLAG  (1ull << 37) /* cp.async, not yet waited for */
#define STRONG_FLAG   (1ull << 38)
#define WHO_MASK      (LANE_MASK | WARP_MASK | RANK_MASK | TOGETHER_FLAG | STRONG_FLAG | PENDING_FLAG | MIXED_FLAG)

/* A warp's reads of a piece: site, lane, STRONG_FLAG (all of them) and time as above; which bytes; and by which lanes:
 *
 *      BY_ONE      all by the lane
 *      IN_ORDER    the piece's first word by the lane, the next one by the next, ...
 *      BY_MANY     each by more than one
 *      UNKNOWN     in some other way */
enum { READ_AT = 22, ORDER_AT = 39 };
#define READ_MASK  (0xffffull << READ_AT)
#define ORDER_MASK (3ull << ORDER_AT)
enum { BY_ONE, IN_ORDER, BY_MANY, UNKNOWN };

enum { LIMIT = 1 << 23, LOOK_CLOSER = 0xffffffff };

struct races {
    u64 *cells;                            /* by word */
    u32 *wrote;                            /* by piece */
    u64 *readers[MAX_CLUSTER * MAX_WARPS]; /* by actor, by piece; NULL: it has read nothing */
    u32 latest[MAX_CLUSTER * MAX_WARPS];   /* by actor, when it has read anything */
    u16 active[MAX_CLUSTER * MAX_WARPS];   /* the actors that have */
    u32 active_count;
    u32 pieces;
    u32 base; /* times are the warps' clocks plus this, so that an earlier block's are the smaller ones */
    u32 met;  /* all know of what was not after this */
};

/* A write that may have been of the same value: decided when it is done. */
struct suspect {
    u64 cell;
    const struct block *block;
    u32 lane, at, bytes;
    u8 before[16];
};

/* ---- Start and end ---------------------------------------------------------------------------------------------------- */

/* That of the last block that this host thread has ended, for the next launch: fresh memory is slow. */
static _Thread_local struct races *spare;

static void clear(struct races *r)
{
    memset(r->cells, 0, r->pieces * (4 * sizeof *r->cells + sizeof *r->wrote));
    for (u32 k = 0; k < r->active_count; k++)
        memset(r->readers[r->active[k]], 0, r->pieces * sizeof **r->readers);
    r->base = 1;
}

static struct races *new_races(u32 pieces)
{
    struct races *r = spare;
    if (r && r->pieces >= pieces && r->pieces / 4 < pieces) {
        spare = NULL;
        return r;
    }
    if (!(r = calloc(1, sizeof *r)) || !(r->cells = calloc(pieces, 4 * sizeof *r->cells + sizeof *r->wrote)))
        abort();
    r->pieces = pieces;
    r->wrote = (u32 *)(r->cells + 4 * pieces);
    r->base = 1;
    return r;
}

void race_start_block(struct block *b)
{
    if (!b->shared_bytes) return;
    if (!b->races) b->races = new_races(b->shared_bytes / 16 + 1);
    struct races *r = b->races;
    if (b->cluster->size > 1 || r->base > LIMIT / 2)
        clear(r); /* the blocks of a cluster have clocks of their own */
    memset(r->latest, 0, sizeof r->latest);
    r->met = r->base;
}

void race_end_block(struct block *b)
{
    if (b->races) b->races->base += b->clock;
}

void race_free_block(struct block *b)
{
    struct races *r = spare;
    if (!b->races) return;
    race_end_block(b);
    spare = b->races;
    if (!r) return;
    for (u32 k = 0; k < r->active_count; k++) free(r->readers[r->active[k]]);
    free(r->cells);
    free(r);
}

void race_all_met(struct block *b)
{
    if (b->races && b->cluster->size == 1) b->races->met = b->races->base + b->clock;
}

static u64 *new_reader(struct races *r, u32 actor)
{
    if (!(r->readers[actor] = calloc(r->pieces, sizeof **r->readers))) abort();
    r->active[r->active_count++] = (u16)actor;
    return r->readers[actor];
}

static inline u64 *reader(struct races *r, u32 actor)
{
    return r->readers[actor] ? r->readers[actor] : new_reader(r, actor);
}

/* ---- Who did it -------------------------------------------------------------------------------------------------------- */

static inline u64 site_of(const struct warp *w, const struct inst *in)
{
    u64 site = w->frame->fn->first_site + (u64)(in - w->frame->fn->code);
    return site <= SITE_MASK ? site : 0;
}

static const struct function *function_at(const struct launch *l, u64 site)
{
    const struct module *m = l->kernel->module;
    for (u32 k = 0; k < m->function_count; k++) {
        const struct function *fn = m->functions[k];
        if (site >= fn->first_site && site - fn->first_site < fn->code_count) return fn;
    }
    return NULL;
}

static inline u64 me(const struct warp *w, const struct races *r, const struct inst *in, u32 lane,
                     enum access how)
{
    return site_of(w, in) | (u64)lane << LANE_AT | (u64)w->id << WARP_AT |
           (u64)w->block->cluster_rank << RANK_AT | (how & ACCESS_TOGETHER ? TOGETHER_FLAG : 0) |
           (how & ACCESS_STRONG ? STRONG_FLAG : 0) | (how & ACCESS_COPY ? PENDING_FLAG : 0) |
           (u64)(r->base + w->time) << TIME_AT;
}

/* ---- Faults ------------------------------------------------------------------------------------------------------------ */

enum verdict { ORDERED, BY_LANES, BY_WARPS, IN_FLIGHT };

static _Noreturn void race_fault(struct warp *w, const struct inst *in, u32 lane, const struct block *b,
                                 u32 at, enum verdict what, u64 other, bool other_wrote, enum access how)
{
    u64 site = other & SITE_MASK;
    const struct function *fn = function_at(w->block->launch, site);
    const struct inst *there = fn ? &fn->code[site - fn->first_site] : NULL;
    const char *does = how & ACCESS_WRITE ? "write" : "read", *did = other_wrote ? "write" : "read";
    u32 line = fn ? fn->lines[there - fn->code].line : 0;
    char where[48] = "", who[80];
    if (b->cluster->size > 1)
        snprintf(where, sizeof where, " of block (%u,%u,%u)", b->ctaid[0], b->ctaid[1], b->ctaid[2]);
    if (what == IN_FLIGHT)
        fault_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, there,
            "shared offset %u%s is %s before the cp.async at line %u that brings it has been waited for: wait_group "
            "or wait_all first, by the thread that issued it, and then a barrier for the others",
            at, where, how & ACCESS_WRITE ? "written" : "read", line);
    if (what == BY_LANES) {
        u32 l = (u32)(other >> LANE_AT) & 31;
        if (other & TOGETHER_FLAG)
            snprintf(who, sizeof who, "other lanes");
        else
            snprintf(who, sizeof who, "lane %u", l);
        fault_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, there,
            "race on shared offset %u%s: this %s is not ordered after the %s by %s of the same warp at line %u: "
            "__syncwarp() between them is missing (that lanes execute together, or shuffle, orders no memory)",
            at, where, does, did, who, line);
    }
    u32 rank = (u32)(other >> RANK_AT) & 15;
    snprintf(who, sizeof who, "warp %u", (u32)(other >> WARP_AT) & 31);
    if (rank != w->block->cluster_rank)
        snprintf(who + strlen(who), sizeof who - strlen(who), " of block %u of the cluster", rank);
    fault_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, there,
        "race on shared offset %u%s: this %s is not ordered after the %s by %s at line %u: a barrier that both pass "
        "between them is missing, such as %s",
        at, where, does, did, who, line,
        rank == w->block->cluster_rank ? "__syncthreads()" : "barrier.cluster");
}

/* ---- Verdicts ---------------------------------------------------------------------------------------------------------- */

static inline s64 since_start(const struct races *r, u64 entry)
{
    return (s64)(entry >> TIME_AT) - r->base;
}

/* What orders an access by `lane` of w to these bytes of a word after the write in its cell. */
static enum verdict after_write(const struct warp *w, const struct races *r, u64 cell, u32 lane, u32 bytes,
                                enum access how)
{
    s64 when = since_start(r, cell);
    u32 warp = (u32)(cell >> WARP_AT) & 31, rank = (u32)(cell >> RANK_AT) & 15;
    if (when <= 0 || !((u32)(cell >> BYTES_AT) & bytes)) return ORDERED;
    if (cell & STRONG_FLAG && how & ACCESS_STRONG) return ORDERED;
    if (cell & PENDING_FLAG) return how & ACCESS_COPY ? ORDERED : IN_FLIGHT;
    if (warp != w->id || rank != w->block->cluster_rank)
        return order_knows_actor(w, rank * ACTORS + warp, (u32)when) ? ORDERED : BY_WARPS;
    if (when < w->lanes_met || cell & MIXED_FLAG) return ORDERED;
    bool own = !(cell & TOGETHER_FLAG) && !(how & ACCESS_TOGETHER) && (u32)(cell >> LANE_AT & 31) == lane;
    return own ? ORDERED : BY_LANES;
}

/* Whether lanes of w's warp, other than the one that writes word `x` of the piece, have read it: as far as that is known. */
static bool read_by_others(u64 entry, u32 x, u32 lane, enum access how)
{
    u32 reader = (u32)(entry >> LANE_AT) & 31, order = (u32)(entry >> ORDER_AT) & 3;
    if (how & ACCESS_TOGETHER) return true;
    if (order == BY_ONE) return reader != lane;
    if (order == IN_ORDER) return (reader + x) % LANES != lane;
    return order == BY_MANY;
}

static void check_readers(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                          u32 bytes, enum access how)
{
    const struct races *r = b->races;
    for (u32 k = 0; k < r->active_count; k++) {
        u32 actor = r->active[k], rank = actor / MAX_WARPS, warp = actor % MAX_WARPS;
        u64 e = r->readers[actor][piece];
        u32 both = (u32)(e >> READ_AT) & bytes & 0xffff, order = (u32)(e >> ORDER_AT) & 3;
        s64 when = since_start(r, e);
        if (r->latest[actor] <= r->met || when <= 0 || !both || (e & STRONG_FLAG && how & ACCESS_STRONG))
            continue;
        u64 who = (e & (SITE_MASK | LANE_MASK)) | (u64)warp << WARP_AT | (u64)rank << RANK_AT;
        u32 at = 16 * piece + first_lane(both), x = first_lane(both) / 4;
        if (rank != w->block->cluster_rank || warp != w->id) {
            if (!order_knows_actor(w, rank * ACTORS + warp, (u32)when))
                race_fault(w, in, lane, b, at, BY_WARPS, who, false, how);
        } else if (when >= w->lanes_met && read_by_others(e, x, lane, how)) {
            if (order == BY_MANY) who |= TOGETHER_FLAG;
            if (order == IN_ORDER) who = (who & ~LANE_MASK) | ((who + ((u64)x << LANE_AT)) & LANE_MASK);
            race_fault(w, in, lane, b, at, BY_LANES, who, false, how);
        }
    }
}

/* A write that races with another one, or lanes that write the same bytes (`cell` 0). */
static void suspect(struct warp *w, u64 cell, u32 lane, const struct block *b, u32 at, u32 bytes)
{
    if (!w->suspects && !(w->suspects = malloc(sizeof *w->suspects))) abort();
    *w->suspects = (struct suspect){.cell = cell, .block = b, .lane = lane, .at = at, .bytes = bytes};
    memcpy(w->suspects->before, b->shared + at, bytes);
}

static void check_writes(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                         u32 bytes, enum access how)
{
    const struct races *r = b->races;
    for (u32 x = 0; x < 4; x++) {
        u64 cell = r->cells[4 * piece + x];
        u32 of = bytes >> 4 * x & 15;
        enum verdict what = of ? after_write(w, r, cell, lane, of, how) : ORDERED;
        if (what == ORDERED) continue;
        u32 at = 16 * piece + 4 * x + first_lane(of & (u32)(cell >> BYTES_AT));
        if (how & ACCESS_WRITE && !(how & (ACCESS_TOGETHER | ACCESS_COPY)) && what != IN_FLIGHT &&
            !((cell & STRONG_FLAG) | (how & ACCESS_STRONG)))
            suspect(w, cell, lane, b, 16 * piece + 4 * x + first_lane(of), (u32)__builtin_popcount(of));
        else
            race_fault(w, in, lane, b, at, what, cell, true, how);
    }
}

/* ---- Accesses ------------------------------------------------------------------------------------------------------------ */

static inline bool usable(const struct warp *w, const struct races *r)
{
    return r->base + w->block->clock < LIMIT;
}

/* The lanes of two reads of a piece at the same time, each given as in an entry. */
static u64 merged_order(u64 before, u64 entry)
{
    u32 had = (u32)(before >> READ_AT) & 0xffff, has = (u32)(entry >> READ_AT) & 0xffff;
    u32 x = first_lane(had) / 4, a = (u32)(before >> LANE_AT) & 31, old = (u32)(before >> ORDER_AT) & 3;
    u32 y = first_lane(has) / 4, b = (u32)(entry >> LANE_AT) & 31, new = (u32)(entry >> ORDER_AT) & 3;
    bool one = had == 15u << 4 * x, other = has == 15u << 4 * y;
    if (had == has && old != UNKNOWN && new != UNKNOWN) return (u64)BY_MANY << ORDER_AT;
    if (old == BY_ONE && one) a = (a + LANES - x) % LANES, old = IN_ORDER;
    if (new == BY_ONE && other) b = (b + LANES - y) % LANES, new = IN_ORDER;
    if (old == IN_ORDER && new == IN_ORDER && a == b) return (u64)IN_ORDER << ORDER_AT | (u64)a << LANE_AT;
    return (u64)UNKNOWN << ORDER_AT;
}

static inline void note_read(u64 *entries, u32 piece, u64 entry)
{
    const u64 lanes = ORDER_MASK | LANE_MASK;
    u64 before = entries[piece];
    if (before >> TIME_AT == entry >> TIME_AT) {
        u64 order = (before ^ entry) & lanes ? merged_order(before, entry) : before & lanes;
        entry = (entry & ~lanes & (before | ~STRONG_FLAG)) | (before & READ_MASK) | order;
    }
    entries[piece] = entry;
}

static inline u64 *start_reading(const struct warp *w, struct races *r)
{
    u32 actor = w->block->cluster_rank * MAX_WARPS + w->id;
    u64 *mine = reader(r, actor);
    r->latest[actor] = r->base + w->time;
    return mine;
}

/* A read of no bytes by no lane. */
static inline u64 entry_of(const struct warp *w, const struct races *r, const struct inst *in,
                           enum access how)
{
    return site_of(w, in) | (how & ACCESS_STRONG ? STRONG_FLAG : 0) | (u64)(r->base + w->time) << TIME_AT;
}

static void read_piece(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece, u32 bytes,
                       enum access how)
{
    struct races *r = b->races;
    bool words = !((bytes ^ bytes >> 1) & 0x5555 || (bytes ^ bytes >> 2) & 0x3333);
    u64 order = !words                  ? UNKNOWN
                : how & ACCESS_TOGETHER ? BY_MANY
                                        : BY_ONE; /* of parts of words: not told apart */
    if (r->wrote[piece] > r->met) check_writes(w, in, lane, b, piece, bytes, how);
    note_read(start_reading(w, r), piece,
              entry_of(w, r, in, how) | (u64)bytes << READ_AT | order << ORDER_AT | (u64)lane << LANE_AT);
}

static void write_piece(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                        u32 bytes, enum access how)
{
    struct races *r = b->races;
    u64 mine = me(w, r, in, lane, how);
    check_readers(w, in, lane, b, piece, bytes, how);
    if (r->wrote[piece] > r->met) check_writes(w, in, lane, b, piece, bytes, how);
    for (u32 x = 0; x < 4; x++) {
        u32 of = bytes >> 4 * x & 15;
        u64 *cell = &r->cells[4 * piece + x], written = mine | (u64)of << BYTES_AT;
        if (!of) continue;
        if (of != 15 && *cell >> TIME_AT == mine >> TIME_AT &&
            !((*cell ^ mine) & (RANK_MASK | WARP_MASK | PENDING_FLAG)))
            written |= (*cell & 15ull << BYTES_AT) | ((*cell ^ mine) & LANE_MASK ? MIXED_FLAG : 0);
        *cell = written;
    }
    r->wrote[piece] = how & ACCESS_COPY || b != w->block ? LOOK_CLOSER : r->base + w->time;
}

/* Any bytes. */
static void access_lane(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 begin,
                        u32 bytes, enum access how)
{
    u32 end = begin + bytes;
    for (u32 piece = begin / 16; piece <= (end - 1) / 16; piece++) {
        u32 from = begin > 16 * piece ? begin - 16 * piece : 0;
        u32 to = end < 16 * piece + 16 ? end - 16 * piece : 16;
        u32 part = ((1u << to) - 1) & ~((1u << from) - 1);
        if (how & ACCESS_WRITE)
            write_piece(w, in, lane, b, piece, part, how);
        else
            read_piece(w, in, lane, b, piece, part, how);
    }
}

/* Whether anything has been read since all met. */
static bool any_readers(const struct races *r)
{
    u32 latest = 0;
    for (u32 k = 0; k < r->active_count; k++)
        latest = r->latest[r->active[k]] > latest ? r->latest[r->active[k]] : latest;
    return latest > r->met;
}

/* Whole pieces of the own block, one a lane: what most vector accesses and ldmatrix are. */
static void read_pieces(struct warp *w, const struct inst *in, u32 mask, const u32 at[LANES], enum access how)
{
    struct races *r = w->block->races;
    u64 *mine = start_reading(w, r), order = how & ACCESS_TOGETHER ? BY_MANY : BY_ONE;
    u64 entry = entry_of(w, r, in, how) | order << ORDER_AT | READ_MASK;
    u32 latest = 0;
    for (u32 left = mask; left; left &= left - 1) {
        u32 piece = at[first_lane(left)] / 16;
        latest = r->wrote[piece] > latest ? r->wrote[piece] : latest;
    }
    for (u32 left = latest > r->met ? mask : 0; left; left &= left - 1) {
        u32 lane = first_lane(left), piece = at[lane] / 16;
        if (r->wrote[piece] > r->met) check_writes(w, in, lane, w->block, piece, 0xffff, how);
    }
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        if (how & ACCESS_TOGETHER)
            mine[at[lane] / 16] = entry;
        else
            note_read(mine, at[lane] / 16, entry | (u64)lane << LANE_AT);
    }
}

static void write_pieces(struct warp *w, const struct inst *in, u32 mask, const u32 at[LANES],
                         enum access how)
{
    struct races *r = w->block->races;
    u64 mine = me(w, r, in, 0, how) | 15ull << BYTES_AT;
    u32 wrote = how & ACCESS_COPY ? LOOK_CLOSER : r->base + w->time;
    bool readers = any_readers(r);
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left), piece = at[lane] / 16;
        if (readers) check_readers(w, in, lane, w->block, piece, 0xffff, how);
        if (r->wrote[piece] > r->met) check_writes(w, in, lane, w->block, piece, 0xffff, how);
        for (u32 x = 0; x < 4; x++) r->cells[4 * piece + x] = mine | (u64)lane << LANE_AT;
        r->wrote[piece] = wrote;
    }
}

void race_access(struct warp *w, const struct inst *in, u32 mask, struct block *b, const u32 at[LANES],
                 u32 bytes, enum access how)
{
    struct races *r = b->races;
    bool whole = bytes == 16 && b == w->block;
    if (!usable(w, r)) return;
    for (u32 left = whole ? mask : 0; left; left &= left - 1) whole &= at[first_lane(left)] % 16 == 0;
    if (whole && how & ACCESS_WRITE)
        write_pieces(w, in, mask, at, how);
    else if (whole)
        read_pieces(w, in, mask, at, how);
    else
        for (u32 left = mask; left; left &= left - 1)
            access_lane(w, in, first_lane(left), b, at[first_lane(left)], bytes, how);
    if (how != ACCESS_WRITE || bytes < 4) return;
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        if ((r->cells[at[lane] / 4] & LANE_MASK) != (u64)lane << LANE_AT)
            suspect(w, 0, lane, b, at[lane], bytes < 16 ? bytes : 16);
    }
}

/* Whether everything that these words' cells hold is ordered before an access by w, word i by lane i. */
static bool words_ordered(const struct warp *w, const struct races *r, const u32 word[LANES])
{
    s32 known[MAX_WARPS], bad = 0;
    const u32 *now = order_known(w) + w->block->cluster_rank * ACTORS;
    for (u32 k = 0; k < MAX_WARPS; k++) known[k] = (s32)now[k];
    known[w->id] = (s32)w->lanes_met - 1;
    u64 own = (u64)w->id << WARP_AT | (u64)w->block->cluster_rank << RANK_AT, rank = own & RANK_MASK;
    for (u64 i = 0; i < LANES; i++) {
        u64 c = r->cells[word[i]];
        s32 when = (s32)(c >> TIME_AT) - (s32)r->base;
        s32 fine = (when <= known[c >> WARP_AT & 31]) & ((c & RANK_MASK) == rank) & !(c & PENDING_FLAG);
        bad |= (when > 0) & !(fine | ((c & WHO_MASK) == (own | i << LANE_AT)));
    }
    return !bad;
}

/* 32 consecutive words from the start of a piece. */
static bool dense(const u32 word[LANES])
{
    u32 apart = word[0] & 3;
    for (u32 i = 0; i < LANES; i++) apart |= word[i] ^ (word[0] + i);
    return !apart;
}

static void read_words(struct warp *w, const struct inst *in, struct races *r, const u32 word[LANES])
{
    u64 *mine = start_reading(w, r), entry = entry_of(w, r, in, ACCESS_READ);
    if (dense(word)) {
        entry |= READ_MASK | (u64)IN_ORDER << ORDER_AT;
        for (u64 k = 0; k < LANES / 4; k++) mine[word[0] / 4 + k] = entry | 4 * k << LANE_AT;
        return;
    }
    u32 differ = 0;
    for (u32 i = 0; i < LANES / 2; i++) differ |= word[i] ^ word[i + LANES / 2];
    for (u32 i = 0, end, lanes = differ ? LANES : LANES / 2; i < lanes;
         i = end) { /* as many at once as are alike */
        u32 step = i + 1 < lanes ? word[i + 1] - word[i] : 2, first = word[i] % 4, bytes = 15u << 4 * first;
        for (end = i + 1; step == 0 && end < lanes && word[end] == word[i];) end++;
        for (; step == 1 && end < lanes && first + end - i < 4 && word[end] == word[i] + end - i; end++)
            bytes |= bytes << 4;
        u64 order = !differ || step == 0 ? BY_MANY : step == 1 ? IN_ORDER : BY_ONE;
        u64 lane = order == IN_ORDER ? (i + LANES - first) % LANES : i;
        note_read(mine, word[i] / 4,
                  entry | (u64)(bytes & 0xffff) << READ_AT | order << ORDER_AT | lane << LANE_AT);
    }
}

static void write_words(struct warp *w, const struct inst *in, struct races *r, const u32 word[LANES])
{
    u64 mine = me(w, r, in, 0, ACCESS_WRITE) | 15ull << BYTES_AT, twice = 0;
    if (dense(word)) {
        for (u64 i = 0; i < LANES; i++) r->cells[word[0] + i] = mine | i << LANE_AT;
        for (u32 k = 0; k < LANES / 4; k++) r->wrote[word[0] / 4 + k] = r->base + w->time;
        return;
    }
    for (u64 i = 0; i < LANES; i++) r->cells[word[i]] = mine | i << LANE_AT;
    for (u32 i = 0; i < LANES; i++) r->wrote[word[i] / 4] = r->base + w->time;
    for (u64 i = 0; i < LANES; i++) twice |= (r->cells[word[i]] ^ i << LANE_AT) & LANE_MASK;
    if (twice) suspect(w, 0, 0, w->block, 4 * word[0], 4);
}

void race_access_words(struct warp *w, const struct inst *in, const u32 word[LANES], enum access how)
{
    struct block *b = w->block;
    struct races *r = b->races;
    u32 wrote = 0;
    if (!usable(w, r)) return;
    for (u32 i = 0; i < LANES; i++) wrote = r->wrote[word[i] / 4] > wrote ? r->wrote[word[i] / 4] : wrote;
    bool look = wrote > r->met && !words_ordered(w, r, word), readers = how & ACCESS_WRITE && any_readers(r);
    for (u32 i = 0; i < LANES && (look || readers); i++) {
        if (look) check_writes(w, in, i, b, word[i] / 4, 15u << 4 * (word[i] % 4), how);
        if (readers) check_readers(w, in, i, b, word[i] / 4, 15u << 4 * (word[i] % 4), how);
    }
    if (how & ACCESS_WRITE)
        write_words(w, in, r, word);
    else
        read_words(w, in, r, word);
}

void race_landed(struct warp *owner, const struct function *fn, const struct inst *in, u32 lane, u32 at,
                 u32 bytes, u32 time)
{
    struct races *r = owner->block->races;
    if (!usable(owner, r)) return;
    u64 site = fn->first_site + (u64)(in - fn->code);
    u64 cell = (site <= SITE_MASK ? site : 0) | (u64)lane << LANE_AT | (u64)owner->id << WARP_AT |
               (u64)owner->block->cluster_rank << RANK_AT | 15ull << BYTES_AT |
               (u64)(r->base + time) << TIME_AT;
    for (u32 k = at / 4; k < (at + bytes) / 4; k++) { /* several lanes may copy the same there */
        bool others = (r->cells[k] ^ cell) & (LANE_MASK | WARP_MASK | RANK_MASK);
        r->cells[k] = cell | (others ? MIXED_FLAG : 0);
    }
    for (u32 k = at / 16; k <= (at + bytes - 1) / 16; k++)
        if (r->wrote[k] != LOOK_CLOSER || bytes == 16) r->wrote[k] = r->base + time;
}

/* ---- The same value ------------------------------------------------------------------------------------------------------ */

/* The bytes that a lane of a store, in->count elements in the registers in->more, has written: whether they are there. */
static bool still_there(struct warp *w, const struct inst *in, u32 lane, const u8 *memory)
{
    for (u32 k = 0; k < in->count; k++)
        if (memcmp(memory + k * in->bytes, (u8 *)lanes_of(w, in->more[k]) + lane * (u32)(in->flags >> 8),
                   in->bytes) != 0)
            return false;
    return true;
}

void race_settle_now(struct warp *w, const struct inst *in, u32 mask, const u64 at[LANES])
{
    struct suspect s = *w->suspects;
    struct races *r = s.block->races;
    free(w->suspects);
    w->suspects = NULL;
    if (s.cell && memcmp(s.before, s.block->shared + s.at, s.bytes) != 0)
        race_fault(w, in, s.lane, s.block, s.at, after_write(w, r, s.cell, s.lane, 15, ACCESS_WRITE), s.cell,
                   true, ACCESS_WRITE);
    for (u32 left = s.cell ? 0 : mask; left; left &= left - 1) {
        u32 lane = first_lane(left);
        if (!still_there(w, in, lane, (const u8 *)(uintptr_t)at[lane]))
            fault(
                w, in, 1u << lane, ERR_LAUNCH_FAILURE,
                "lanes of the warp write different values to shared offset %u with one store: which of them stays is "
                "undefined",
                (u32)((const u8 *)(uintptr_t)at[lane] - s.block->shared));
    }
    remark(w, in, 1u << s.lane,
           "the same value is written to shared offset %u by several threads, which nothing orders", s.at);
}
