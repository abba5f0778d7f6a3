/* race.c: which accesses to shared memory nothing orders. */
#include "race.h"

#include <stdlib.h>
#include <string.h>

#include "../front/ptx.h"
#include "../report/report.h"
#include "order.h"

/* A write in a word's cell. */
enum {
    LANE_AT = SITE_BITS, /* below: the site, a number of the instruction in its module */
    WARP_AT = 22,
    RANK_AT = 27,
    BYTES_AT = 31,
    TIME_AT = 41 /* from the first block of these structures on */
};
#define BYTE_KNOWN    (1u << 31) /* in `bytes_by`: site 0 and lane 0 may be who it was */
#define SITE_MASK     ((1ull << LANE_AT) - 1)
#define LANE_MASK     (31ull << LANE_AT)
#define WARP_MASK     (31ull << WARP_AT)
#define RANK_MASK     (15ull << RANK_AT)
#define TOGETHER_FLAG (1ull << 35) /* by all lanes as one */
#define MIXED_FLAG    (1ull << 36) /* its bytes by several lanes: `bytes_by` */
#define PENDING_FLAG  (1ull << 37) /* cp.async, not yet waited for */
#define STRONG_FLAG   (1ull << 38)
#define CTA_FLAG      (1ull << 39) /* ... among the threads of its own block */
#define WHO_MASK      (LANE_MASK | WARP_MASK | RANK_MASK | TOGETHER_FLAG | STRONG_FLAG | PENDING_FLAG | MIXED_FLAG)

/* A warp's reads of a piece: site, lane, STRONG_FLAG (all of them) and time as above; which bytes; and by which lanes:
 *
 *      BY_ONE      all by the lane
 *      IN_ORDER    the piece's first word by the lane, the next one by the next, ...
 *      BY_MANY     each by more than one
 *      EACH        as is kept of each word: site and lane as above, and the flags below */
enum { READ_AT = 22, ORDER_AT = 39 };
#define READ_MASK  (0xffffull << READ_AT)
#define ORDER_MASK (3ull << ORDER_AT)
enum { BY_ONE, IN_ORDER, BY_MANY, EACH };
#define WORD_BY_MANY (1u << 22)
#define WORD_STRONG  (1u << 23)
#define WORD_UNKNOWN (1u << 24) /* weak and strong by different lanes: who is not told apart */
#define WORD_PARTS   (1u << 25) /* parts of it: who is kept of each byte */

/* Who has read a byte of such a word: a lane, this plus its number, or several. */
enum { BYTE_BY_LANE = 1, BYTE_BY_MANY = BYTE_BY_LANE + LANES };

enum { LIMIT = 1 << 23, LOOK_CLOSER = 0xffffffff };

/* What a warp has read lately. That goes into its entries only when somebody is to write near by, before a barrier of the
 * whole block has made all of it past: that happens seldom, so most reads cost no more than being written down here. */
enum { LOGGED = 1024, LISTED = 512, REGULAR = 0xffff };
struct read_log {
    u64 regions; /* where these reads are */
    u32 count, lists;
    struct read {
        u64 entry;       /* without lanes, and without bytes where they are words */
        u16 of;          /* words or pieces, a lane each: */
        u16 list;        /* a list of them, or REGULAR: */
        u16 first, step; /* the first lane's, and how far apart they are */
        u16 low, high;   /* all lie in these pieces */
        u32 mask;        /* of pieces: the lanes */
    } reads[LOGGED];
    u16 lists_of[LISTED][LANES];
};
enum { OF_PIECES, OF_WORDS };

struct races {
    u64 *cells;     /* by word */
    u32 *wrote;     /* by piece */
    u64 *unwritten; /* by word: its cell when it was written with what nobody had written; NULL: none was */
    u8 *parts;      /* by word: which of its bytes, where only some were written at a time; NULL: nowhere */
    u32 *bytes_by; /* by byte of a MIXED word: site and lane as in a cell; 0: not known; NULL: no such word */
    u64 *readers[MAX_CLUSTER * MAX_WARPS]; /* by actor: by piece, word, byte; NULL: it has read nothing */
    u32 latest[MAX_CLUSTER * MAX_WARPS];   /* by actor, when it has read anything */
    u16 active[MAX_CLUSTER * MAX_WARPS];   /* the actors that have */
    u32 active_count;
    struct read_log *logs[MAX_WARPS]; /* of the block's own warps */
    u64 written, read,
        closer; /* regions, a 64th each, where somebody has since all met; where LOOK_CLOSER may be */
    u32 region_shift;
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

/* Those of the last blocks that this host thread has ended, for the next launch: fresh memory is slow. */
enum { SPARES = 16 };
static _Thread_local struct races *spares[SPARES];
static _Thread_local u32 freed; /* so many until now */

static void clear(struct races *r)
{
    memset(r->cells, 0, r->pieces * (4 * sizeof *r->cells + sizeof *r->wrote));
    for (u32 k = 0; k < r->active_count; k++)
        memset(r->readers[r->active[k]], 0, r->pieces * sizeof **r->readers);
    if (r->unwritten) memset(r->unwritten, 0, r->pieces * 4 * sizeof *r->unwritten);
    r->base = 1;
}

static struct races *new_races(u32 pieces)
{
    struct races *r;
    for (u32 k = 0; k < SPARES; k++)
        if ((r = spares[k]) && r->pieces >= pieces && r->pieces / 4 < pieces) {
            spares[k] = NULL;
            return r;
        }
    if (!(r = calloc(1, sizeof *r)) || !(r->cells = calloc(pieces, 4 * sizeof *r->cells + sizeof *r->wrote)))
        abort();
    r->pieces = pieces;
    while ((pieces - 1) >> r->region_shift > 63) r->region_shift++;
    r->wrote = (u32 *)(r->cells + 4 * pieces);
    r->base = 1;
    return r;
}

static void forget_reads(struct read_log *log)
{
    log->regions = 0;
    log->count = log->lists = 0;
}

/* All know of what was until `met`. */
static void all_past(const struct block *b, u32 met)
{
    struct races *r = b->races;
    r->met = met;
    r->written = r->closer;
    r->read = 0;
    for (u32 k = 0; k < b->warp_count; k++)
        if (r->logs[k]) forget_reads(r->logs[k]);
}

void race_start_block(struct block *b)
{
    if (!b->shared_bytes) return;
    if (!b->races) b->races = new_races(b->shared_bytes / 16 + 1);
    struct races *r = b->races;
    if (r->base > LIMIT / 2) clear(r);
    memset(r->latest, 0, sizeof r->latest);
    r->closer = 0;
    all_past(b, r->base);
}

void race_end_cluster(struct cluster *c)
{
    u32 last = 0; /* by any of its blocks' clocks: their warps write in each other's memory */
    for (u32 k = 0; k < c->size; k++)
        if (c->block[k]->clock > last) last = c->block[k]->clock;
    for (u32 k = 0; k < c->size; k++)
        if (c->block[k]->races) c->block[k]->races->base += last;
}

void race_free_block(struct block *b)
{
    if (!b->races) return;
    struct races **place = &spares[freed++ % SPARES], *r = *place;
    *place = b->races;
    if (!r) return;
    for (u32 k = 0; k < r->active_count; k++) free(r->readers[r->active[k]]);
    for (u32 k = 0; k < MAX_WARPS; k++) free(r->logs[k]);
    free(r->cells);
    free(r->parts);
    free(r->bytes_by);
    free(r->unwritten);
    free(r);
}

void race_all_met(struct block *b)
{
    if (b->races && b->cluster->size == 1) all_past(b, b->races->base + b->clock);
}

static u64 *new_reader(struct races *r, u32 actor)
{
    if (!(r->readers[actor] = calloc(r->pieces, sizeof **r->readers + 4 * sizeof(u32) + 16))) abort();
    r->active[r->active_count++] = (u16)actor;
    return r->readers[actor];
}

static inline u64 *reader(struct races *r, u32 actor)
{
    return r->readers[actor] ? r->readers[actor] : new_reader(r, actor);
}

/* ---- Who did it -------------------------------------------------------------------------------------------------------- */

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
    return in->site | (u64)lane << LANE_AT | (u64)w->id << WARP_AT | (u64)w->block->cluster_rank << RANK_AT |
           (how & ACCESS_TOGETHER ? TOGETHER_FLAG : 0) | (how & ACCESS_STRONG ? STRONG_FLAG : 0) |
           (how & ACCESS_CTA ? CTA_FLAG : 0) | (how & ACCESS_COPY ? PENDING_FLAG : 0) |
           (u64)(r->base + w->time) << TIME_AT;
}

/* ---- Faults ------------------------------------------------------------------------------------------------------------ */

static const struct ptx_operand *address_of(const struct ptx_inst *p)
{
    for (u32 k = 0; k < p->op_count; k++)
        if (p->op[k].kind == OPERAND_ADDRESS) return &p->op[k];
    return NULL;
}

const char *race_missing_syncwarp(const struct warp *w)
{
    static _Thread_local char text[200];
    snprintf(
        text, sizeof text,
        "__syncwarp() between them is missing%s%s (that lanes execute together, or shuffle, orders no memory)",
        w->meeting_count ? ", with a mask that names both" : "",
        w->block->warp_count > 1 ? ", or __syncthreads() if other warps touch it too" : "");
    return text;
}

const char *race_update(const struct function *fn, const struct inst *in, const struct function *other,
                        const struct inst *with)
{
    const struct ptx_inst *p = fn->ptx[in - fn->code], *q = other == fn ? fn->ptx[with - fn->code] : NULL;
    if (!q || fn->lines[in - fn->code].line != fn->lines[with - fn->code].line) return "";
    if (strcmp(p->opcode, "ld") != 0 && strcmp(q->opcode, "ld") != 0) return "";
    if (strcmp(p->opcode, "st") != 0 && strcmp(q->opcode, "st") != 0) return "";
    const struct ptx_operand *a = address_of(p), *b = address_of(q);
    if (!a || !b || a->reg != b->reg || a->symbol != b->symbol || a->offset != b->offset) return "";
    return ". Or is this line, which loads and then stores it, meant to be an atomic operation, such as atomicAdd?";
}

enum verdict { ORDERED, BY_LANES, BY_WARPS, BY_LANES_OF_OTHERS, IN_FLIGHT };

static _Noreturn void race_fault(struct warp *w, const struct inst *in, u32 lane, const struct block *b,
                                 u32 at, enum verdict what, u64 other, bool other_wrote, enum access how)
{
    u64 site = other & SITE_MASK;
    const struct function *fn = function_at(w->block->launch, site);
    const struct inst *there = fn ? &fn->code[site - fn->first_site] : NULL;
    const char *does = how & ACCESS_WRITE ? "write" : "read", *did = other_wrote ? "write" : "read";
    u32 line = fn ? fn->lines[there - fn->code].line : 0;
    const char *update = fn ? race_update(w->frame->fn, in, fn, there) : "";
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
            "%s%s",
            at, where, does, did, who, line, race_missing_syncwarp(w), update);
    }
    u32 rank = (u32)(other >> RANK_AT) & 15;
    snprintf(who, sizeof who, "warp %u", (u32)(other >> WARP_AT) & 31);
    if (rank != w->block->cluster_rank)
        snprintf(who + strlen(who), sizeof who - strlen(who), " of block %u of the cluster", rank);
    if (what == BY_LANES_OF_OTHERS)
        fault_against(
            w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, there,
            "race on shared offset %u%s: this %s is not ordered after the %s by lane %u of %s at line %u%s",
            at, where, does, did, (u32)(other >> LANE_AT) & 31, who, line, ORDER_OTHER_LANE);
    bool scope = other & STRONG_FLAG && how & ACCESS_STRONG; /* of one: .cta */
    fault_against(w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, there,
                  "race on shared offset %u%s: this %s is not ordered after the %s by %s at line %u: %s%s",
                  at, where, does, did, who, line,
                  scope ? "the scope of one is .cta, its own block: it must be .cluster where blocks meet"
                  : rank == w->block->cluster_rank
                      ? "a barrier that both pass between them is missing, such as __syncthreads()"
                      : "a barrier that both pass between them is missing, such as barrier.cluster",
                  update);
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
    bool cta = cell & CTA_FLAG || how & ACCESS_CTA; /* its scope, of one of them */
    if (cell & STRONG_FLAG && how & ACCESS_STRONG && !(cta && rank != w->block->cluster_rank)) return ORDERED;
    if (cell & PENDING_FLAG) return how & ACCESS_COPY ? ORDERED : IN_FLIGHT;
    if (warp != w->id || rank != w->block->cluster_rank) {
        if (!order_knows_actor(w, rank * ACTORS + warp, (u32)when)) return BY_WARPS;
        if (cell & (TOGETHER_FLAG | MIXED_FLAG)) return ORDERED;
        u32 writer = 1u << ((u32)(cell >> LANE_AT) & 31);
        return order_not_passed(w, w->block->cluster->block[rank], warp, (u32)when, writer)
                   ? BY_LANES_OF_OTHERS
                   : ORDERED;
    }
    if (when < w->lanes_met || cell & MIXED_FLAG) return ORDERED;
    u32 by = cell & TOGETHER_FLAG ? 0 : 1u << ((u32)(cell >> LANE_AT) & 31);
    u32 of = how & ACCESS_TOGETHER ? 0 : 1u << lane;
    return (by && by == of) || order_met(w, (u32)when, by, of) ? ORDERED : BY_LANES;
}

/* What is kept of a piece's words when their readers are not alike, in an actor's entries. */
static inline u32 *words_of(const struct races *r, u64 *entries, u32 piece)
{
    return (u32 *)(entries + r->pieces) + 4 * piece;
}

static inline u8 *bytes_of(const struct races *r, u64 *entries, u32 piece)
{
    return (u8 *)words_of(r, entries, r->pieces) + 16 * piece;
}

/* Who has read word `x` of a piece: its entry, and what is kept of its words. */
static inline u32 word_reader(u64 entry, const u32 words[4], u32 x)
{
    u32 order = (u32)(entry >> ORDER_AT) & 3, one = (u32)(entry & (SITE_MASK | LANE_MASK));
    if (order == EACH) return words[x];
    if (entry & STRONG_FLAG) one |= WORD_STRONG;
    if (order == BY_MANY) one |= WORD_BY_MANY;
    if (order == IN_ORDER) one = (one & ~(u32)LANE_MASK) | ((one + (x << LANE_AT)) & (u32)LANE_MASK);
    return one;
}

/* Who has read one byte of a word. */
static inline u32 byte_reader(u32 word, u8 by)
{
    if (!(word & WORD_PARTS)) return word;
    word &= ~(u32)(WORD_PARTS | LANE_MASK);
    return by == BYTE_BY_MANY ? word | WORD_BY_MANY : word | (u32)(by - BYTE_BY_LANE) << LANE_AT;
}

/* Whether lanes of w's warp, other than the one that writes it, have read the word: as far as that is known. */
static inline bool read_by_others(u32 word, u32 lane, enum access how)
{
    if (how & ACCESS_TOGETHER) return true;
    if (word & WORD_UNKNOWN) return false;
    return word & WORD_BY_MANY || (word >> LANE_AT & 31) != lane;
}

/* A whole warp's store over what it has read by ldmatrix, which CUTLASS's epilogues do in place: each of its lanes had to come
 * there for the read, and has to for the store. */
static bool in_place(const struct warp *w, u64 read, enum access how)
{
    u64 site = read & SITE_MASK;
    const struct function *fn = how & ACCESS_TOGETHER ? function_at(w->block->launch, site) : NULL;
    const struct ptx_inst *p = fn ? fn->ptx[site - fn->first_site] : NULL;
    return p && strcmp(p->opcode, "ldmatrix") == 0;
}

static void check_readers(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                          u32 bytes, enum access how)
{
    const struct races *r = b->races;
    u64 by_lane = 0; /* told if there is none by another warp: the barrier that is missing then serves both */
    u32 by_lane_at = UINT32_MAX;
    for (u32 k = 0; k < r->active_count; k++) {
        u32 actor = r->active[k], rank = actor / MAX_WARPS, warp = actor % MAX_WARPS;
        u64 e = r->readers[actor][piece];
        u32 both = (u32)(e >> READ_AT) & bytes & 0xffff;
        s64 when = since_start(r, e);
        bool other = rank != w->block->cluster_rank || warp != w->id;
        if (r->latest[actor] <= r->met || when <= 0 || !both) continue;
        if (other ? order_knows_actor(w, rank * ACTORS + warp, (u32)when) && (e >> ORDER_AT & 3) > IN_ORDER
                  : when < w->lanes_met)
            continue;
        for (u32 x = first_lane(both) / 4; x < 4; x++) {
            u32 of = both >> 4 * x & 15;
            if (!of) continue;
            u32 at = 16 * piece + 4 * x + first_lane(of);
            u32 word = word_reader(e, words_of(r, r->readers[actor], piece), x);
            if (word & WORD_STRONG && how & ACCESS_STRONG &&
                !(how & ACCESS_CTA && rank != w->block->cluster_rank))
                continue;
            u64 who = (word & (SITE_MASK | LANE_MASK)) | (word & WORD_STRONG ? STRONG_FLAG : 0) |
                      (word & WORD_BY_MANY ? TOGETHER_FLAG : 0) | (u64)warp << WARP_AT | (u64)rank << RANK_AT;
            if (other) {
                if (!order_knows_actor(w, rank * ACTORS + warp, (u32)when))
                    race_fault(w, in, lane, b, at, BY_WARPS, who, false, how);
                if (order_not_passed(w, w->block->cluster->block[rank], warp, (u32)when,
                                     1u << (word >> LANE_AT & 31)))
                    race_fault(w, in, lane, b, at, BY_LANES_OF_OTHERS, who, false, how);
                break;
            }
            const u8 *bytes_by = bytes_of(r, r->readers[actor], piece) + 4 * x;
            for (u32 left = word & WORD_PARTS ? of : of & -of; left; left &= left - 1) {
                u32 one = byte_reader(word, bytes_by[first_lane(left)]);
                u32 by = one & (WORD_BY_MANY | WORD_UNKNOWN) ? 0 : 1u << (one >> LANE_AT & 31);
                if (by_lane_at != UINT32_MAX || !read_by_others(one, lane, how) || in_place(w, who, how) ||
                    order_met(w, (u32)when, by, how & ACCESS_TOGETHER ? 0 : 1u << lane))
                    continue;
                by_lane = (who & ~LANE_MASK) | (one & LANE_MASK) | (one & WORD_BY_MANY ? TOGETHER_FLAG : 0);
                by_lane_at = 16 * piece + 4 * x + first_lane(left);
            }
        }
    }
    if (by_lane_at != UINT32_MAX) race_fault(w, in, lane, b, by_lane_at, BY_LANES, by_lane, false, how);
}

/* A write that races with another one, or lanes that write the same bytes (`cell` 0). */
static void suspect(struct warp *w, u64 cell, u32 lane, const struct block *b, u32 at, u32 bytes)
{
    if (!w->suspects && !(w->suspects = malloc(sizeof *w->suspects))) abort();
    *w->suspects = (struct suspect){.cell = cell, .block = b, .lane = lane, .at = at, .bytes = bytes};
    memcpy(w->suspects->before, b->shared + at, bytes);
}

/* A word's cell as one byte alone has it. */
static inline u64 cell_of_byte(const struct races *r, u32 word, u32 byte)
{
    u64 cell = r->cells[word];
    u32 by = cell & MIXED_FLAG && r->bytes_by ? r->bytes_by[4 * word + byte] : 0;
    return by ? (cell & ~(SITE_MASK | LANE_MASK | MIXED_FLAG)) | (by & ~BYTE_KNOWN) : cell;
}

static void check_writes(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                         u32 bytes, enum access how)
{
    const struct races *r = b->races;
    for (u32 x = 0; x < 4; x++) {
        u64 cell = r->cells[4 * piece + x];
        u32 of = bytes >> 4 * x & 15, both = of & (u32)(cell >> BYTES_AT);
        if (!both) continue;
        u32 first = first_lane(both);
        enum verdict what = after_write(w, r, cell, lane, of, how);
        for (u32 left = cell & MIXED_FLAG ? both : 0; left && what == ORDERED; left &= left - 1) {
            first = first_lane(left);
            cell = cell_of_byte(r, 4 * piece + x, first);
            what = after_write(w, r, cell, lane, 1u << first, how);
        }
        if (what == ORDERED) continue;
        u32 at = 16 * piece + 4 * x + first;
        if (how & ACCESS_WRITE && !(how & (ACCESS_TOGETHER | ACCESS_COPY)) && what != IN_FLIGHT &&
            !((cell & STRONG_FLAG) | (how & ACCESS_STRONG)))
            suspect(w, cell, lane, b, 16 * piece + 4 * x + first_lane(of), (u32)__builtin_popcount(of));
        else
            race_fault(w, in, lane, b, at, what, cell, true, how);
    }
}

/* ---- Volatile for __syncwarp() ----------------------------------------------------------------------------------------------- */

bool race_is_volatile(const struct function *fn, const struct inst *in)
{
    return has_mod(fn->ptx[in - fn->code], "volatile");
}

void race_tell_volatile(struct warp *w, const struct inst *in, u32 lane, const char *where, u32 writer,
                        const struct function *fn, const struct inst *store)
{
    breach_against(
        w, in, 1u << lane, ERR_LAUNCH_FAILURE, fn, store,
        "%s: lanes of this warp compute with what others have left there, here lane %u at line %u: volatile does not order "
        "lanes, which need not run in step: __syncwarp() between them is missing",
        where, writer, fn->lines[store - fn->code].line);
}

/* Several lanes compute with what several have left by one volatile store. (With one it may be a flag.) */
static void check_step(struct warp *w, const struct inst *in, u32 mask, const u32 at[LANES])
{
    const struct races *r = w->block->races;
    const u64 who = (u64)w->id << WARP_AT | (u64)w->block->cluster_rank << RANK_AT | STRONG_FLAG;
    u32 readers = 0, writers = 0, lane = 0;
    u64 found = 0;
    if (!race_is_volatile(w->frame->fn, in)) return;
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        u64 cell = r->cells[at[i] / 4];
        s64 when = since_start(r, cell);
        bool other = (cell & (WHO_MASK & ~LANE_MASK)) == who && (u32)(cell >> LANE_AT & 31) != i;
        if (when <= 0 || when < w->lanes_met || !other || (found && (found ^ cell) & SITE_MASK) ||
            order_met(w, (u32)when, 1u << (cell >> LANE_AT & 31), 1u << i))
            continue;
        found = cell;
        lane = i;
        readers++;
        writers |= 1u << (cell >> LANE_AT & 31);
    }
    if (readers < 2 || !(writers & (writers - 1))) return;
    const struct function *fn = function_at(w->block->launch, found & SITE_MASK);
    const struct inst *store = fn ? &fn->code[(found & SITE_MASK) - fn->first_site] : NULL;
    char where[48];
    snprintf(where, sizeof where, "shared offset %u", at[lane]);
    if (fn && race_is_volatile(fn, store))
        race_tell_volatile(w, in, lane, where, (u32)(found >> LANE_AT) & 31, fn, store);
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
    if ((before ^ entry) & STRONG_FLAG || old == EACH || new == EACH) return (u64)EACH << ORDER_AT;
    if (had == has && (old == new || old == BY_MANY || new == BY_MANY)) return (u64)BY_MANY << ORDER_AT;
    if (old == BY_ONE && one) a = (a + LANES - x) % LANES, old = IN_ORDER;
    if (new == BY_ONE && other) b = (b + LANES - y) % LANES, new = IN_ORDER;
    if (old == IN_ORDER && new == IN_ORDER && a == b) return (u64)IN_ORDER << ORDER_AT | (u64)a << LANE_AT;
    return (u64)EACH << ORDER_AT;
}

/* Who has read a word, of two reads at the same time. Of who reads twice and writes then, the first read is another lane's. */
static inline u32 merged_word(u32 before, u32 word)
{
    u32 either = before | word, strong = before & word & WORD_STRONG;
    bool lanes = (before ^ word) & LANE_MASK || either & WORD_BY_MANY;
    if (either & WORD_UNKNOWN) return before | WORD_UNKNOWN | (word & WORD_STRONG);
    if (!lanes) return (word & ~WORD_STRONG) | strong;
    return (before & ~WORD_STRONG) | strong | ((before ^ word) & WORD_STRONG ? WORD_UNKNOWN : WORD_BY_MANY);
}

static inline u8 reader_of_byte(u32 word)
{
    return word & WORD_BY_MANY ? BYTE_BY_MANY : (u8)(BYTE_BY_LANE + (word >> LANE_AT & 31));
}

/* The same where one of them, or both, was of parts of the word: of the bytes `had` and `has`, by whom. */
static u32 merged_parts(u32 before, u32 had, u32 word, u32 has, u8 by[4])
{
    if (had && ((before ^ word) & WORD_STRONG || before & WORD_UNKNOWN)) return before | WORD_UNKNOWN;
    for (u32 k = 0; k < 4; k++) {
        u8 first = before & WORD_PARTS ? by[k] : reader_of_byte(before), second = reader_of_byte(word);
        if (!(had >> k & 1)) first = 0;
        if (!(has >> k & 1)) second = 0;
        by[k] = first && second && first != second ? BYTE_BY_MANY : first | second;
    }
    return (word & ~(u32)WORD_BY_MANY) | WORD_PARTS;
}

/* These reads of a piece at the same time, the first of which may be none, are kept by word. */
static void note_each(u32 words[4], u8 bytes[16], u64 before, u64 entry)
{
    u32 one = (u32)(entry & (SITE_MASK | LANE_MASK)) | (entry & STRONG_FLAG ? WORD_STRONG : 0);
    bool parts = (entry >> ORDER_AT & 3) == EACH;
    for (u32 x = 0; x < 4; x++) {
        u32 had = (u32)(before >> (READ_AT + 4 * x)) & 15, has = (u32)(entry >> (READ_AT + 4 * x)) & 15;
        u32 old = word_reader(before, words, x), new = parts ? one : word_reader(entry, words, x);
        if (!has)
            words[x] = old;
        else if (parts || (had && old & WORD_PARTS))
            words[x] = merged_parts(old, had, new, has, bytes + 4 * x);
        else
            words[x] = had ? merged_word(old, new) : new;
    }
}

static inline void note_read(const struct races *r, u64 *entries, u32 piece, u64 entry)
{
    const u64 lanes = ORDER_MASK | LANE_MASK;
    u64 before = entries[piece], order = entry & lanes;
    bool together = before >> TIME_AT == entry >> TIME_AT;
    if (before >> TIME_AT > entry >> TIME_AT) return; /* `entry` had been written down only */
    if (together)
        order = (before ^ entry) & (lanes | STRONG_FLAG) ? merged_order(before, entry) : before & lanes;
    if (order >> ORDER_AT == EACH)
        note_each(words_of(r, entries, piece), bytes_of(r, entries, piece), together ? before : 0, entry);
    if (together) {
        u64 earlier = (order ^ before) & ORDER_MASK && order >> ORDER_AT == BY_MANY ? SITE_MASK : 0;
        entry = (entry & ~lanes & (before | ~STRONG_FLAG)) | (before & READ_MASK) | order;
        entry ^= (entry ^ before) &
                 earlier; /* of who reads twice and writes then, the first read is another lane's */
    }
    entries[piece] = entry;
}

/* The regions of the pieces from `first` to `last`. */
static inline u64 regions_of(const struct races *r, u32 first, u32 last)
{
    return (2ull << (last >> r->region_shift)) - (1ull << (first >> r->region_shift));
}

/* A read of no bytes by no lane. */
static inline u64 entry_of(const struct warp *w, const struct races *r, const struct inst *in,
                           enum access how)
{
    return in->site | (how & ACCESS_STRONG ? STRONG_FLAG : 0) | (u64)(r->base + w->time) << TIME_AT;
}

static void read_piece(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece, u32 bytes,
                       enum access how)
{
    struct races *r = b->races;
    u32 actor = w->block->cluster_rank * MAX_WARPS + w->id;
    if (how & ACCESS_CTA && b != w->block) how &= ~(u32)ACCESS_STRONG;
    bool words = !((bytes ^ bytes >> 1) & 0x5555 || (bytes ^ bytes >> 2) & 0x3333);
    u64 order = !words ? EACH : how & ACCESS_TOGETHER ? BY_MANY : BY_ONE;
    if (r->wrote[piece] > r->met) check_writes(w, in, lane, b, piece, bytes, how);
    r->latest[actor] = r->base + w->time;
    r->read |= regions_of(r, piece, piece);
    note_read(r, reader(r, actor), piece,
              entry_of(w, r, in, how) | (u64)bytes << READ_AT | order << ORDER_AT | (u64)lane << LANE_AT);
}

/* 32 consecutive words from the start of a piece. */
static bool dense(const u32 word[LANES])
{
    u32 apart = word[0] & 3;
    for (u32 i = 0; i < LANES; i++) apart |= word[i] ^ (word[0] + i);
    return !apart;
}

/* A word for each lane: into the entries of their pieces. */
static void note_words(const struct races *r, u64 *mine, u64 entry, const u32 word[LANES])
{
    if (dense(word)) {
        entry |= READ_MASK | (u64)IN_ORDER << ORDER_AT;
        for (u64 k = 0; k < LANES / 4; k++)
            note_read(r, mine, word[0] / 4 + (u32)k, entry | 4 * k << LANE_AT);
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
        note_read(r, mine, word[i] / 4,
                  entry | (u64)(bytes & 0xffff) << READ_AT | order << ORDER_AT | lane << LANE_AT);
    }
}

/* The least and the greatest of these; true if each is as far from the one before it. */
static inline bool extent(const u32 at[LANES], u32 *low, u32 *high)
{
    u32 step = at[1] - at[0], irregular = 0, lo = at[0], hi = lo;
    for (u32 i = 0; i < LANES; i++) irregular |= at[i] - at[0] - i * step;
    *low = at[0] < at[LANES - 1] ? at[0] : at[LANES - 1];
    *high = at[0] < at[LANES - 1] ? at[LANES - 1] : at[0];
    if (!irregular) return true;
    for (u32 i = 0; i < LANES; i++) lo = at[i] < lo ? at[i] : lo;
    for (u32 i = 0; i < LANES; i++) hi = at[i] > hi ? at[i] : hi;
    *low = lo;
    *high = hi;
    return false;
}

/* What warp k of b has written down of these regions goes into its entries. */
static void flush_reads(const struct block *b, u32 k, u64 regions)
{
    struct races *r = b->races;
    struct read_log *log = r->logs[k];
    u32 actor = b->cluster_rank * MAX_WARPS + k;
    u64 *entries = reader(r, actor);
    u32 kept = 0;
    log->regions = 0;
    for (u32 n = 0; n < log->count; n++) {
        const struct read *read = &log->reads[n];
        u32 at[LANES], time = (u32)(read->entry >> TIME_AT);
        u64 here = regions_of(r, read->low, read->high);
        if (!(here & regions)) {
            log->regions |= here;
            log->reads[kept++] = *read;
            continue;
        }
        for (u32 i = 0; i < LANES; i++)
            at[i] =
                read->list == REGULAR ? (u16)(read->first + i * read->step) : log->lists_of[read->list][i];
        if (read->of == OF_WORDS) note_words(r, entries, read->entry, at);
        for (u32 left = read->of == OF_PIECES ? read->mask : 0; left; left &= left - 1)
            note_read(r, entries, at[first_lane(left)], read->entry | (u64)first_lane(left) << LANE_AT);
        if (r->latest[actor] < time) r->latest[actor] = time;
    }
    if (!kept) forget_reads(log);
    log->count = kept;
}

/* Room to write down one more read of w. */
static __attribute__((noinline)) struct read_log *make_room(const struct warp *w, struct races *r)
{
    struct read_log *log = r->logs[w->id];
    if (log)
        flush_reads(w->block, w->id, ~0ull);
    else if (!(log = r->logs[w->id] = malloc(sizeof *log)))
        abort();
    forget_reads(log);
    return log;
}

/* Writes down a read of w: of words or pieces, lane by lane, that lie in the pieces from `low` to `high`. */
static inline void log_read(const struct warp *w, struct races *r, u64 entry, u32 of, u32 mask,
                            const u32 at[LANES], bool regular, u32 low, u32 high)
{
    struct read_log *log = r->logs[w->id];
    if (!log || log->count == LOGGED || log->lists == LISTED) log = make_room(w, r);
    struct read *read = &log->reads[log->count++];
    *read = (struct read){.entry = entry,
                          .of = (u16)of,
                          .list = REGULAR,
                          .first = (u16)at[0],
                          .step = (u16)(at[1] - at[0]),
                          .low = (u16)low,
                          .high = (u16)high,
                          .mask = mask};
    u64 regions = regions_of(r, low, high);
    r->read |= regions;
    log->regions |= regions;
    if (regular) return;
    u16 *list = log->lists_of[read->list = (u16)log->lists++];
    for (u32 i = 0; i < LANES; i++) list[i] = (u16)at[i];
}

/* w is about to write in these pieces of b. False when nobody has read near by since all met. */
static inline bool start_writing(const struct warp *w, const struct block *b, u32 low, u32 high,
                                 enum access how)
{
    struct races *r = b->races;
    u64 regions = regions_of(r, low, high);
    r->written |= regions;
    if (how & ACCESS_COPY || b != w->block) r->closer |= regions;
    if (!(r->read & regions)) return false;
    for (u32 k = 0; k < b->warp_count; k++)
        if (r->logs[k] && r->logs[k]->regions & regions) flush_reads(b, k, regions);
    return true;
}

/* Some bytes of a word are written: those of before are not forgotten. */
static void note_part(struct races *r, u32 word, u32 bytes)
{
    u64 cell = r->cells[word];
    if (!r->parts && !(r->parts = calloc(4 * r->pieces, 1))) abort();
    if (since_start(r, cell) <= 0) r->parts[word] = 0;
    if (since_start(r, cell) > 0 && (cell >> BYTES_AT & 15) == 15) r->parts[word] = 15;
    r->parts[word] |= (u8)bytes;
}

/* ... while a write of the same time by another lane is in the cell: which lane has written which byte. */
static void note_bytes(struct races *r, u32 word, u32 bytes, u64 mine)
{
    const u64 who = SITE_MASK | LANE_MASK;
    u64 cell = r->cells[word];
    if (!r->bytes_by && !(r->bytes_by = calloc(16 * r->pieces, sizeof *r->bytes_by))) abort();
    u32 *by = &r->bytes_by[4 * word];
    for (u32 k = 0; k < 4; k++)
        if (bytes >> k & 1)
            by[k] = (u32)(mine & who) | BYTE_KNOWN;
        else if (!(cell & MIXED_FLAG))
            by[k] = cell & TOGETHER_FLAG ? 0 : (u32)(cell & who) | BYTE_KNOWN;
}

bool race_never_written(const struct block *b, u32 at)
{
    const struct races *r = b->races;
    u64 cell = r->cells[at / 4];
    if (r->base + b->clock >= LIMIT || (b->stamps && b->stamps[at / 16])) return false;
    if (since_start(r, cell) <= 0) return true;
    return (cell >> BYTES_AT & 15) != 15 && !(r->parts[at / 4] >> at % 4 & 3);
}

void race_stored_unwritten(struct block *b, u32 at)
{
    struct races *r = b->races;
    if (!r->unwritten && !(r->unwritten = calloc(4 * r->pieces, sizeof *r->unwritten))) abort();
    r->unwritten[at / 4] = r->cells[at / 4];
}

static void write_piece(struct warp *w, const struct inst *in, u32 lane, struct block *b, u32 piece,
                        u32 bytes, enum access how)
{
    struct races *r = b->races;
    u64 mine = me(w, r, in, lane, how);
    if (start_writing(w, b, piece, piece, how)) check_readers(w, in, lane, b, piece, bytes, how);
    if (r->wrote[piece] > r->met) check_writes(w, in, lane, b, piece, bytes, how);
    for (u32 x = 0; x < 4; x++) {
        u32 of = bytes >> 4 * x & 15;
        u64 *cell = &r->cells[4 * piece + x], written = mine | (u64)of << BYTES_AT;
        if (!of) continue;
        if (of != 15) note_part(r, 4 * piece + x, of);
        if (of != 15 && *cell >> TIME_AT == mine >> TIME_AT &&
            !((*cell ^ mine) & (RANK_MASK | WARP_MASK | PENDING_FLAG))) {
            bool mixed = (*cell ^ mine) & LANE_MASK || *cell & MIXED_FLAG;
            if (mixed) note_bytes(r, 4 * piece + x, of, mine);
            written |= (*cell & (15ull << BYTES_AT | STRONG_FLAG)) | (mixed ? MIXED_FLAG : 0);
        }
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

/* The pieces at these offsets; lanes that are off have that of one which is on. */
static inline void pieces_of(u32 mask, const u32 at[LANES], u32 piece[LANES])
{
    u32 first = at[first_lane(mask)] / 16;
    for (u32 i = 0; i < LANES; i++) piece[i] = mask >> i & 1 ? at[i] / 16 : first;
}

/* Whether one write has written the whole piece, and is ordered before this access to it. */
static inline bool piece_ordered(const struct warp *w, const struct races *r, u32 piece, u32 lane,
                                 enum access how)
{
    const u64 *c = &r->cells[4 * piece];
    return c[0] == c[1] && c[1] == c[2] && c[2] == c[3] && !(c[0] & MIXED_FLAG) &&
           after_write(w, r, c[0], lane, 15, how) == ORDERED;
}

/* Whole pieces of the own block, one a lane: what most vector accesses and ldmatrix are. */
static void read_pieces(struct warp *w, const struct inst *in, u32 mask, const u32 at[LANES], enum access how)
{
    struct races *r = w->block->races;
    u64 order = how & ACCESS_TOGETHER ? BY_MANY : BY_ONE;
    u32 piece[LANES], low, high;
    pieces_of(mask, at, piece);
    bool regular = extent(piece, &low, &high);
    for (u32 left = regions_of(r, low, high) & r->written ? mask : 0; left; left &= left - 1) {
        u32 lane = first_lane(left);
        if (r->wrote[piece[lane]] > r->met && !piece_ordered(w, r, piece[lane], lane, how))
            check_writes(w, in, lane, w->block, piece[lane], 0xffff, how);
    }
    log_read(w, r, entry_of(w, r, in, how) | order << ORDER_AT | READ_MASK, OF_PIECES, mask, piece, regular,
             low, high);
}

static void write_pieces(struct warp *w, const struct inst *in, u32 mask, const u32 at[LANES],
                         enum access how)
{
    struct races *r = w->block->races;
    u64 mine = me(w, r, in, 0, how) | 15ull << BYTES_AT;
    u32 wrote = how & ACCESS_COPY ? LOOK_CLOSER : r->base + w->time;
    u32 piece[LANES], low, high;
    pieces_of(mask, at, piece);
    extent(piece, &low, &high);
    bool readers = start_writing(w, w->block, low, high, how);
    for (u32 left = mask; left; left &= left - 1) {
        u32 lane = first_lane(left), k = piece[lane];
        if (readers) check_readers(w, in, lane, w->block, k, 0xffff, how);
        if (r->wrote[k] > r->met && !piece_ordered(w, r, k, lane, how))
            check_writes(w, in, lane, w->block, k, 0xffff, how);
        for (u32 x = 0; x < 4; x++) r->cells[4 * k + x] = mine | (u64)lane << LANE_AT;
        r->wrote[k] = wrote;
    }
}

void race_access(struct warp *w, const struct inst *in, u32 mask, struct block *b, const u32 at[LANES],
                 u32 bytes, enum access how)
{
    struct races *r = b->races;
    if (!usable(w, r)) return;
    if (how & ACCESS_DATA && b == w->block) check_step(w, in, mask, at);
    if (mask == ALL_LANES && bytes == 4 && b == w->block && !(how & ~(u32)ACCESS_WRITE)) {
        u32 word[LANES]; /* an access of 4 bytes is aligned */
        for (u32 i = 0; i < LANES; i++) word[i] = at[i] / 4;
        race_access_words(w, in, word, how);
        return;
    }
    u32 unaligned = 0;
    for (u32 i = 0; i < LANES; i++) unaligned |= mask >> i & 1 ? at[i] % 16 : 0;
    bool whole = bytes == 16 && b == w->block && !unaligned;
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
    s32 known[MAX_WARPS] = {0}, bad = 0;
    for (u32 k = 0; k < w->block->warp_count; k++) known[k] = (s32)order_known_of_all(w, w->block, k);
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
    u32 low, high, wrote = 0;
    if (!usable(w, r)) return;
    bool regular = extent(word, &low, &high);
    if (regions_of(r, low / 4, high / 4) & r->written)
        for (u32 i = 0; i < LANES; i++) wrote = r->wrote[word[i] / 4] > wrote ? r->wrote[word[i] / 4] : wrote;
    bool look = wrote > r->met && !words_ordered(w, r, word),
         readers = how & ACCESS_WRITE && start_writing(w, b, low / 4, high / 4, how);
    for (u32 i = 0; i < LANES && (look || readers); i++) {
        if (look) check_writes(w, in, i, b, word[i] / 4, 15u << 4 * (word[i] % 4), how);
        if (readers) check_readers(w, in, i, b, word[i] / 4, 15u << 4 * (word[i] % 4), how);
    }
    if (how & ACCESS_WRITE) {
        write_words(w, in, r, word);
    } else {
        log_read(w, r, entry_of(w, r, in, how), OF_WORDS, 0, word, regular, low / 4, high / 4);
    }
}

void race_write_word(struct warp *w, const struct inst *in, u32 lane, u32 word)
{
    struct block *b = w->block;
    struct races *r = b->races;
    u32 piece = word / 4, bytes = 15u << 4 * (word % 4);
    if (!usable(w, r)) return;
    if (start_writing(w, b, piece, piece, ACCESS_WRITE))
        check_readers(w, in, lane, b, piece, bytes, ACCESS_WRITE);
    if (r->wrote[piece] > r->met &&
        (r->cells[word] & MIXED_FLAG || after_write(w, r, r->cells[word], lane, 15, ACCESS_WRITE) != ORDERED))
        check_writes(w, in, lane, b, piece, bytes, ACCESS_WRITE);
    r->cells[word] = me(w, r, in, lane, ACCESS_WRITE) | 15ull << BYTES_AT;
    r->wrote[piece] = r->base + w->time;
}

/* Somebody has written near by since all met, or there is no room left. */
static __attribute__((noinline)) void read_regular(struct warp *w, const struct inst *in, u32 word, u32 step)
{
    struct races *r = w->block->races;
    u32 words[LANES], low = word / 4, high = (word + (LANES - 1) * step) / 4, wrote = 0;
    for (u32 i = 0; i < LANES; i++) words[i] = word + i * step;
    for (u32 k = low; k <= high; k++) wrote = r->wrote[k] > wrote ? r->wrote[k] : wrote;
    if (wrote > r->met)
        race_access_words(w, in, words, ACCESS_READ);
    else
        log_read(w, r, entry_of(w, r, in, ACCESS_READ), OF_WORDS, 0, words, true, low, high);
}

void race_read_regular(struct warp *w, const struct inst *in, u32 word, u32 step)
{
    struct races *r = w->block->races;
    struct read_log *log = r->logs[w->id];
    u32 low = word / 4, high = (word + (LANES - 1) * step) / 4;
    if (!usable(w, r)) return;
    u64 regions = regions_of(r, low, high);
    if (regions & r->written || !log || log->count == LOGGED) {
        read_regular(w, in, word, step);
        return;
    }
    struct read *read = &log->reads[log->count++];
    r->read |= regions;
    log->regions |= regions;
    read->entry = entry_of(w, r, in, ACCESS_READ);
    read->of = OF_WORDS;
    read->list = REGULAR;
    read->first = (u16)word;
    read->step = (u16)step;
    read->low = (u16)low;
    read->high = (u16)high;
}

void race_landed(struct warp *owner, const struct inst *in, u32 lane, u32 at, u32 bytes, u32 time)
{
    struct races *r = owner->block->races;
    if (!usable(owner, r)) return;
    u64 cell = in->site | (u64)lane << LANE_AT | (u64)owner->id << WARP_AT |
               (u64)owner->block->cluster_rank << RANK_AT | 15ull << BYTES_AT |
               (u64)(r->base + time) << TIME_AT;
    for (u32 k = at / 4; k < (at + bytes) / 4; k++) { /* several lanes may copy the same there */
        bool others = (r->cells[k] ^ cell) & (LANE_MASK | WARP_MASK | RANK_MASK);
        r->cells[k] = cell | (others ? MIXED_FLAG : 0);
        if (others && r->bytes_by) memset(&r->bytes_by[4 * k], 0, 4 * sizeof *r->bytes_by);
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

/* ---- For messages -------------------------------------------------------------------------------------------------------- */

/* The instruction of an entry or a cell, if it is of this block. */
static const struct inst *instruction_of(const struct block *b, u64 entry, const struct function **fn)
{
    *fn = entry >> TIME_AT > b->races->base ? function_at(b->launch, entry & SITE_MASK) : NULL;
    return *fn ? &(*fn)->code[(entry & SITE_MASK) - (*fn)->first_site] : NULL;
}

const struct inst *race_writer(const struct block *b, u32 at, const struct function **fn)
{
    const u64 *cells = &b->races->cells[at / 16 * 4];
    u64 latest = 0;
    for (u32 x = 0; x < 4; x++) latest = cells[x] >> TIME_AT > latest >> TIME_AT ? cells[x] : latest;
    return instruction_of(b, latest, fn);
}

const struct inst *race_reader(struct block *b, u32 warp, u32 at, const struct function **fn)
{
    if (b->races->logs[warp]) flush_reads(b, warp, ~0ull);
    const u64 *mine = b->races->readers[b->cluster_rank * MAX_WARPS + warp];
    return instruction_of(b, mine ? mine[at / 16] : 0, fn);
}

const struct inst *race_unwritten_by(const struct block *b, u32 at, const struct function **fn)
{
    const struct races *r = b->races;
    u64 cell = r->cells[at / 4];
    return r->unwritten && r->unwritten[at / 4] == cell ? instruction_of(b, cell, fn) : NULL;
}
