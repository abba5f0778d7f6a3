/* exchange.c: what the lanes of a warp tell each other: shfl, vote, match, redux, activemask, elect (PTX ISA, "Parallel
 * Synchronization and Communication Instructions", "Data Movement and Conversion Instructions"). */
#include <math.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "../front/lower.h"
#include "undefined.h"
#include "warp.h"

/* Each lane names in its member mask the lanes it acts with; a warp may hold several such groups at once, as a labelled
 * partition makes them. Returns the lanes to execute for: all members of all groups, once they have come here; else 0. */
static u32 members(struct warp *w, const struct inst *in, u32 mask, operand member_mask)
{
    if (member_mask == NO_OPERAND) return mask;
    const u32 *member = lanes_of(w, member_mask);
    u32 want = 0, missing = 0;
    if (is_constant(member_mask)) { /* written in the program, and so the same for all */
        want = member[0];
        missing = mask & ~want;
    } else {
        for (u32 i = 0; i < LANES; i++) {
            if (!(mask >> i & 1)) continue;
            want |= member[i];
            missing |= (~member[i] >> i & 1) << i;
        }
    }
    if (missing)
        fault(w, in, missing, ERR_LAUNCH_FAILURE,
              "lane %u executes it, but its own member mask 0x%08x does not name it", first_lane(missing),
              member[first_lane(missing)]);
    return warp_gather(w, in, mask, want, EXCHANGE);
}

/* The lanes that lane i acts with. */
static u32 group_of(struct warp *w, operand member_mask, u32 mask, u32 i)
{
    return member_mask == NO_OPERAND ? mask : ((u32 *)lanes_of(w, member_mask))[i] & mask;
}

/* ---- shfl ---------------------------------------------------------------------------------------------------------------- */

enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };

/* The lane that each one reads, itself where that would lie outside of its segment; and which of them lie inside. */
struct sources {
    s32 lane[LANES];
    u32 inside;
    u8 quarter[4]; /* bits: the quarters of the warp that each quarter of its lanes reads from */
};

/* `bval`, `max_lane` and `min_lane` as PTX ISA, "shfl.sync", names them; c is the clamp and the segment mask. */
static void find_sources(u32 mode, const u32 *b, const u32 *c, struct sources *s)
{
    u32 inside[LANES];
#define SOURCES(source, condition)                                              \
    for (s32 i = 0; i < LANES; i++) {                                           \
        s32 bval = b[i] & 31, segment = c[i] >> 8 & 31, min_lane = i & segment; \
        s32 max_lane = min_lane | (c[i] & 31 & ~segment), j = (source);         \
        (void)min_lane;                                                         \
        inside[i] = (condition);                                                \
        s->lane[i] = inside[i] ? j & 31 : i;                                    \
    }
    switch (mode) {
    case SHFL_UP: SOURCES(i - bval, j >= max_lane) break;
    case SHFL_DOWN: SOURCES(i + bval, j <= max_lane) break;
    case SHFL_BFLY: SOURCES(i ^ bval, j <= max_lane) break;
    default: SOURCES(min_lane | (bval & ~segment), j <= max_lane) break;
    }
#undef SOURCES
    s->inside = mask_of_lanes(inside);
}

static void find_quarters(struct sources *s)
{
#ifndef __AVX512F__
    memset(s->quarter, 0, sizeof s->quarter);
    for (u32 i = 0; i < LANES; i++) s->quarter[i / 8] |= (u8)(1u << s->lane[i] / 8);
#else
    (void)s;
#endif
}

/* Each lane's source; `got` may be `a` itself where vectors are of 512 bits. x86 permutes the words of two vectors at once; with AVX2
 * alone the eight of one: then, one after the other, the vectors that some lane of the eight reads from, most often one or two. */
static inline void fetch(u32 *got, const u32 *a, const struct sources *s)
{
#if defined(__AVX512F__)
    __m512i low = _mm512_loadu_si512(a), high = _mm512_loadu_si512(a + 16),
            first = _mm512_permutex2var_epi32(low, _mm512_loadu_si512(s->lane), high),
            second = _mm512_permutex2var_epi32(low, _mm512_loadu_si512(s->lane + 16), high);
    _mm512_storeu_si512(got, first);
    _mm512_storeu_si512(got + 16, second);
#elif defined(__AVX2__)
    for (u32 k = 0; k < 4; k++) {
        u32 left = s->quarter[k], q = first_lane(left);
        __m256i lane = _mm256_loadu_si256((const __m256i *)&s->lane[8 * k]),
                all = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)&a[8 * q]), lane);
        while (left &= left - 1) {
            q = first_lane(left);
            __m256i from = _mm256_loadu_si256((const __m256i *)&a[8 * q]),
                    mine = _mm256_cmpeq_epi32(_mm256_srli_epi32(lane, 3), _mm256_set1_epi32((s32)q));
            all = _mm256_blendv_epi8(all, _mm256_permutevar8x32_epi32(from, lane), mine);
        }
        _mm256_storeu_si256((__m256i *)&got[8 * k], all);
    }
#else
    for (int i = 0; i < LANES; i++) got[i] = a[s->lane[i]];
#endif
}

/* A lane that has exited, but that the member mask names, has nothing to tell. Of lanes that never were, because the block is no
 * multiple of 32, shfl.up and .down may read: a sum of half a warp does so where it makes no difference. */
static void must_be_live(struct warp *w, const struct inst *in, u32 mask, const struct sources *s)
{
    const u32 *member = in->more[2] == NO_OPERAND ? NULL : lanes_of(w, in->more[2]);
    for (u32 left = mask & s->inside; left; left &= left - 1) {
        u32 i = first_lane(left), from = (u32)s->lane[i], thread = w->id * LANES + from;
        bool slides = in->flags == SHFL_UP || in->flags == SHFL_DOWN;
        if (!(w->live >> from & 1) && !(slides && thread >= w->block->threads) && member &&
            member[i] >> from & 1)
            fault(
                w, in, 1u << i, ERR_LAUNCH_FAILURE,
                "lane %u reads lane %u, which has exited (or never was): the value is undefined. All lanes that are "
                "read must get here: let those without work stay, with a neutral value",
                i, from);
    }
}

static __attribute__((noinline)) void shuffle(struct warp *w, const struct inst *in, u32 mask,
                                              const struct sources *s)
{
    const u32 *a = lanes_of(w, in->a);
    u32 got[LANES], *d = lanes_of(w, in->d);
    if (w->live != ALL_LANES) must_be_live(w, in, mask, s);
    fetch(got, a, s);
    if (mask != ALL_LANES) /* from a lane that takes no part: undefined; no number that is neutral in a sum */
        for (int i = 0; i < LANES; i++) got[i] = mask >> s->lane[i] & 1 ? got[i] : UNWRITTEN;
    FOR_LANES(mask, { d[i] = got[i]; });
    if (in->more[0] != NO_OPERAND) set_predicate(w, in->more[0], mask, s->inside);
}

void exchange_sources(struct warp *w, const struct inst *in, s32 lane[LANES])
{
    struct sources s;
    find_sources(in->flags, lanes_of(w, in->b), lanes_of(w, in->more[1]), &s);
    memcpy(lane, s.lane, sizeof s.lane);
}

/* more: predicate destination, clamp and segment mask, member mask. flags: mode. */
static void exec_shfl(struct warp *w, const struct inst *in, u32 mask)
{
    struct sources s;
    mask = members(w, in, mask, in->more[2]);
    if (!mask) return;
    find_sources(in->flags, lanes_of(w, in->b), lanes_of(w, in->more[1]), &s);
    find_quarters(&s);
    shuffle(w, in, mask, &s);
}

/* The same with b and c written in the program; data: the sources. aux: all lanes are members. When they are all here, nobody is
 * waited for, and the run of plain instructions goes on. */
static void exec_shfl_known(struct warp *w, const struct inst *in, u32 mask)
{
    if (mask == ALL_LANES && in->aux) {
#ifdef __AVX512F__
        fetch(lanes_of(w, in->d), lanes_of(w, in->a), in->data);
        if (in->more[0] != NO_OPERAND)
            set_predicate(w, in->more[0], mask, ((const struct sources *)in->data)->inside);
#else
        shuffle(w, in, mask, in->data);
#endif
        GO_ON(w, in, mask);
        return;
    }
    warp_leave_run(w, in);
    mask = members(w, in, mask, in->more[2]);
    if (mask) shuffle(w, in, mask, in->data);
}

bool lower_shfl(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const char *const modes[] = {"up", "down", "bfly", "idx"};
    bool sync = false;
    s32 mode = -1;
    for (u32 k = 0; k < p->mod_count; k++) {
        bool known = streq(p->mod[k], "sync") || streq(p->mod[k], "b32");
        if (streq(p->mod[k], "sync")) sync = true;
        for (s32 m = 0; m < 4; m++)
            if (streq(modes[m], p->mod[k])) mode = m, known = true;
        if (!known) return refuse(lo, p, "the modifier .%s is not supported", p->mod[k]);
    }
    if (mode < 0 || p->op_count != 4 + (u32)sync) return refuse(lo, p, "this form of shfl");
    operand *more = lower_more(lo, 3);
    bool pair = p->op[0].kind == OPERAND_PAIR;
    in->d = lower_dest(lo, pair ? &p->op[0].element[0] : &p->op[0], T_B32);
    more[0] = pair ? lower_dest(lo, &p->op[0].element[1], T_PRED) : NO_OPERAND;
    in->a = lower_source(lo, &p->op[1], T_B32);
    in->b = lower_source(lo, &p->op[2], T_B32);
    more[1] = lower_source(lo, &p->op[3], T_B32);
    more[2] = sync ? lower_source(lo, &p->op[4], T_B32) : NO_OPERAND;
    in->more = more;
    in->flags = (u16)mode;
    in->exec = exec_shfl;
    const struct ptx_operand *by = lower_known(&p->op[2], T_B32), *clamp = lower_known(&p->op[3], T_B32);
    if (by->kind == OPERAND_IMM && clamp->kind == OPERAND_IMM) {
        u32 b[LANES], c[LANES];
        struct sources *s = keep(sizeof *s);
        for (u32 i = 0; i < LANES; i++) b[i] = (u32)by->imm, c[i] = (u32)clamp->imm;
        find_sources((u32)mode, b, c, s);
        find_quarters(s);
        in->exec = exec_shfl_known;
        in->data = s;
        const struct ptx_operand *member = sync ? lower_known(&p->op[4], T_B32) : NULL;
        in->aux = !member || (member->kind == OPERAND_IMM && (u32)member->imm == ALL_LANES);
        in->plain = !p->guard;
    }
    return true;
}

/* ---- vote ---------------------------------------------------------------------------------------------------------------- */

enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

/* a: predicate, aux: flip; b: member mask; flags: mode */
static void exec_vote(struct warp *w, const struct inst *in, u32 mask)
{
    mask = members(w, in, mask, in->b);
    if (!mask) return;
    u32 truth = (predicate_of(w, in->a) ^ (in->aux ? ~0u : 0)) & mask;
    u32 yes = 0, *d = lanes_of(w, in->d);
    for (u32 i = 0; i < LANES; i++) {
        u32 group = group_of(w, in->b, mask, i), on = truth & group;
        switch (in->flags) {
        case VOTE_BALLOT:
            if (mask >> i & 1) d[i] = on;
            break;
        case VOTE_ALL: yes |= (u32)(on == group) << i; break;
        case VOTE_ANY: yes |= (u32)(on != 0) << i; break;
        default: yes |= (u32)(on == group || !on) << i; break;
        }
    }
    if (in->flags != VOTE_BALLOT) set_predicate(w, in->d, mask, yes);
}

bool lower_vote(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const char *const modes[] = {"all", "any", "uni", "ballot"};
    s32 mode = -1;
    bool sync = has_mod(p, "sync");
    for (s32 m = 0; m < 4; m++)
        if (has_mod(p, modes[m])) mode = m;
    if (mode < 0 || p->op_count != 2 + (u32)sync) return refuse(lo, p, "this form of vote");
    u32 flip;
    in->exec = exec_vote;
    in->flags = (u16)mode;
    in->d = lower_dest(lo, &p->op[0], streq(modes[mode], "ballot") ? T_B32 : T_PRED);
    in->a = lower_predicate(lo, &p->op[1], &flip);
    in->aux = flip != 0;
    in->b = sync ? lower_source(lo, &p->op[2], T_B32) : NO_OPERAND;
    return true;
}

static void exec_activemask(struct warp *w, const struct inst *in, u32 mask)
{
    u32 *d = lanes_of(w, in->d), active = mask;
    FOR_LANES(mask, { d[i] = active; });
}
bool lower_activemask(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    in->exec = exec_activemask;
    in->d = lower_dest(lo, &p->op[0], T_B32);
    return true;
}

/* ---- match ---------------------------------------------------------------------------------------------------------------- */

/* more: predicate destination; flags: .all; bytes: 4 or 8 */
static void exec_match(struct warp *w, const struct inst *in, u32 mask)
{
    mask = members(w, in, mask, in->b);
    if (!mask) return;
    u64 value[LANES];
    for (int i = 0; i < LANES; i++)
        value[i] = in->bytes == 8 ? ((u64 *)lanes_of(w, in->a))[i] : ((u32 *)lanes_of(w, in->a))[i];
    u32 same[LANES], all = ALL_LANES;
    for (int i = 0; i < LANES; i++) {
        same[i] = 0;
        for (int j = 0; j < LANES; j++) same[i] |= (u32)(value[i] == value[j]) << j;
        u32 group = group_of(w, in->b, mask, (u32)i);
        same[i] &= group;
        if (in->flags && same[i] != group) same[i] = 0, all &= ~(1u << i);
    }
    u32 *d = lanes_of(w, in->d);
    FOR_LANES(mask, { d[i] = same[i]; });
    if (in->more) set_predicate(w, in->more[0], mask, all);
}

bool lower_match(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type t = mod_type(p, 0);
    bool pair = p->op[0].kind == OPERAND_PAIR;
    if (!has_mod(p, "sync") || (t != T_B32 && t != T_B64)) return refuse(lo, p, "this form of match");
    in->exec = exec_match;
    in->flags = has_mod(p, "all");
    in->bytes = (u8)type_bytes(t);
    in->d = lower_dest(lo, pair ? &p->op[0].element[0] : &p->op[0], T_B32);
    if (pair) {
        operand *more = lower_more(lo, 1);
        more[0] = lower_dest(lo, &p->op[0].element[1], T_PRED);
        in->more = more;
    }
    in->a = lower_source(lo, &p->op[1], t);
    in->b = lower_source(lo, &p->op[2], T_B32);
    return true;
}

/* ---- redux, elect ------------------------------------------------------------------------------------------------------------ */

enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

static void exec_redux(struct warp *w, const struct inst *in, u32 mask)
{
    mask = members(w, in, mask, in->b);
    if (!mask) return;
    const u32 *a = lanes_of(w, in->a);
    u32 result[LANES], *d = lanes_of(w, in->d);
    for (u32 left = mask, group; left; left &= ~group) {
        group = group_of(w, in->b, mask, first_lane(left));
        u32 r = a[first_lane(group)];
        for (u32 rest = group & (group - 1); rest; rest &= rest - 1) {
            u32 v = a[first_lane(rest)];
            bool less = in->aux ? (s32)v < (s32)r : v < r;
            switch (in->flags) {
            case REDUX_ADD: r += v; break;
            case REDUX_MIN: r = less ? v : r; break;
            case REDUX_MAX: r = less ? r : v; break;
            case REDUX_AND: r &= v; break;
            case REDUX_OR: r |= v; break;
            default: r ^= v; break;
            }
        }
        for (u32 i = 0; i < LANES; i++)
            if (group >> i & 1) result[i] = r;
    }
    FOR_LANES(mask, { d[i] = result[i]; });
}

bool lower_redux(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor"};
    enum type t = mod_type(p, 0);
    s32 op = -1;
    for (s32 k = 0; k < 6; k++)
        if (has_mod(p, ops[k])) op = k;
    if (op < 0 || (t != T_U32 && t != T_S32 && t != T_B32)) return refuse(lo, p, "this form of redux");
    in->exec = exec_redux;
    in->flags = (u16)op;
    in->aux = t == T_S32;
    in->d = lower_dest(lo, &p->op[0], t);
    in->a = lower_source(lo, &p->op[1], t);
    in->b = lower_source(lo, &p->op[2], T_B32);
    return true;
}

/* elect.sync d|p, membermask: the lowest lane, as on an H200. */
static void exec_elect(struct warp *w, const struct inst *in, u32 mask)
{
    mask = members(w, in, mask, in->b);
    if (!mask) return;
    u32 leaders = 0;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u32 leader = first_lane(group_of(w, in->b, mask, i));
        leaders |= 1u << leader;
        ((u32 *)lanes_of(w, in->d))[i] = leader;
    }
    set_predicate(w, in->a, mask, leaders);
}

bool lower_elect(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (p->op[0].kind != OPERAND_PAIR) return refuse(lo, p, "this form of elect");
    in->exec = exec_elect;
    in->d = lower_dest(lo, &p->op[0].element[0], T_B32);
    in->a = lower_dest(lo, &p->op[0].element[1], T_PRED);
    in->b = lower_source(lo, &p->op[1], T_B32);
    return true;
}
