/* undefined.c: which bits of a warp's registers nobody has written, and what they decide. */
#include "undefined.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../front/flow.h"
#include "../front/lower.h"
#include "../report/report.h"
#include "../runtime/heap.h"
#include "record.h"
#include "memory.h"
#include "race.h"
#include "warp.h"

/* A load that found such bits. */
struct origin {
    const struct function *fn;
    const struct inst *in;
    bool shared; /* in shared memory */
    bool unset;  /* in a register */
    char where[96];
};
enum { ORIGINS = 64 };

/* Of a frame's registers: `bits` lies as they do, a bit being set that nobody has written; `from` says, for each lane, which load
 * a register's are from: its number plus 1, 0 when all are defined. It has a byte for every four of the frame, so that the lanes'
 * have room from where the register begins; a predicate's lanes share one. */
struct undefined {
    const struct frame *frame;
    const struct function *fn;
    u32 reg_bytes;
    u8 *bits, *from;
    struct origin origin[ORIGINS];
    u32 origins;
    u8 *dropped_at; /* a result of the instruction before, of which these lanes' are to be as memory that nobody has written */
    u32 dropped, dropped_bytes;
    u32 stored[4 * LANES],
        stored_count; /* words of the block's shared memory that it has stored such bits to */
};

/* ---- Memory --------------------------------------------------------------------------------------------------------------- */

void undefined_fill(void *start, u64 bytes)
{
    u8 *p = start;
    for (u64 k = 0; k < bytes / 2; k++) ((u16 *)start)[k] = UNWRITTEN_HALF;
    if (bytes % 2) p[bytes - 1] = UNWRITTEN_HALF & 0xff;
}

static u32 bitmap_bytes(const struct warp *w)
{
    return (w->block->launch->local_bytes + 15) / 16;
}

void undefined_fill_local(struct warp *w, u32 at, u32 bytes)
{
    u32 size = w->block->launch->local_bytes, each = bitmap_bytes(w);
    if (!bytes) return;
    if (!w->local_written && !(w->local_written = calloc(LANES, each))) abort();
    for (u32 lane = 0; lane < LANES; lane++) {
        undefined_fill(w->local + (size_t)lane * size + at, bytes);
        for (u32 k = at / 16; k < (at + bytes + 15) / 16; k++) w->local_written[lane * each + k] = 0;
    }
}

void undefined_local_written(struct warp *w, u32 lane, u32 at, u32 bytes)
{
    u8 *bits = w->local_written ? w->local_written + lane * bitmap_bytes(w) : NULL;
    for (u32 half = at / 2; bits && half <= (at + bytes - 1) / 2; half++)
        bits[half / 8] |= (u8)(1u << half % 8);
}

/* Whether nobody has written the two bytes at this host address, an even one in its state space; `where` says what they are. */
static bool unwritten(const struct warp *w, const u8 *p, char where[96])
{
    const struct launch *l = w->block->launch;
    struct allocation a;
    if (__atomic_load_n((const u16 *)p, __ATOMIC_RELAXED) != UNWRITTEN_HALF)
        return false; /* other blocks may write meanwhile */
    for (u32 r = 0; r < w->block->cluster->size; r++) {
        const struct block *b = w->block->cluster->block[r];
        u64 at = (u64)(p - b->shared);
        if (at >= b->shared_bytes) continue;
        const struct function *fn;
        const struct inst *store = race_unwritten_by(b, (u32)at, &fn);
        snprintf(where, 96, "shared offset %u", (u32)at);
        if (store)
            snprintf(where, 96, "shared offset %u, where line %u has stored it", (u32)at,
                     fn->lines[store - fn->code].line);
        return store || race_never_written(b, (u32)at);
    }
    u64 local = (u64)(p - w->local), size = (u64)l->local_bytes * LANES;
    if (w->local && local < size) {
        u32 lane = (u32)local / l->local_bytes, at = (u32)local % l->local_bytes;
        snprintf(where, 96, "its local memory at offset %u", at);
        return w->local_written && !(w->local_written[lane * bitmap_bytes(w) + at / 16] >> at / 2 % 8 & 1);
    }
    if (!record_never_written((u64)(uintptr_t)p) || !heap_find((u64)(uintptr_t)p, &a)) return false;
    if (a.kind == ALLOCATION_DEVICE_MALLOC)
        snprintf(where, 96, "0x%llx, %llu bytes into what malloc returned", (unsigned long long)(uintptr_t)p,
                 (unsigned long long)((u64)(uintptr_t)p - a.address));
    else
        snprintf(where, 96, "0x%llx (allocation %u + %llu)", (unsigned long long)(uintptr_t)p, a.number,
                 (unsigned long long)((u64)(uintptr_t)p - a.address));
    return a.kind == ALLOCATION_DEVICE || a.kind == ALLOCATION_DEVICE_MALLOC;
}

void undefined_copied(const struct warp *w, u32 at, const u8 *source, u32 bytes)
{
    char where[96];
    for (u32 k = 0; k + 4 <= bytes && w->block->races; k += 4) {
        u32 word;
        memcpy(&word, source + k, 4);
        if (word == UNWRITTEN && unwritten(w, source + k, where) && unwritten(w, source + k + 2, where))
            race_stored_unwritten(w->block, at + k);
    }
}

/* ---- Registers ------------------------------------------------------------------------------------------------------------- */

static u64 ones(u32 bytes)
{
    return bytes >= 8 ? ~0ull : (1ull << 8 * bytes) - 1;
}

static u32 lane_bytes(enum type t)
{
    return type_bytes(t) <= 4 ? 4 : type_bytes(t);
}

static u8 *from_of(const struct undefined *u, u32 offset, u32 bytes, u32 lane)
{
    return &u->from[offset / 4 + (bytes ? lane : 0)];
}

/* Whether the register has undefined bits in some lane. */
static bool holds_any(const struct undefined *u, u32 offset, u32 bytes)
{
    u8 any = 0;
    for (u32 i = 0; i < (bytes ? LANES : 1); i++) any |= u->from[offset / 4 + i];
    return any;
}

static u32 reg_lane_bytes(const struct reg *r)
{
    return r->type == T_PRED ? 0 : lane_bytes(r->type);
}

static u64 bits_of(const struct undefined *u, const struct reg *r, u32 lane)
{
    u64 bits = 0;
    u32 bytes = reg_lane_bytes(r), mask;
    if (!*from_of(u, r->offset, bytes, lane)) return 0;
    if (!bytes) {
        memcpy(&mask, u->bits + r->offset, 4);
        return mask >> lane & 1;
    }
    if (bytes <= 8) memcpy(&bits, u->bits + r->offset + lane * bytes, bytes);
    return bits;
}

/* The register at `offset` of the frame, of so many bytes a lane (0: a predicate) has these bits in these lanes now. */
static void set_bits(struct warp *w, u32 offset, u32 bytes, u32 mask, const u64 bits[LANES],
                     const u8 from[LANES])
{
    struct undefined *u = w->undefined;
    u8 *at = u->bits + offset;
    if (bytes > 8) return;
    bool before = holds_any(u, offset, bytes);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left), now;
        u8 *known = from_of(u, offset, bytes, i);
        if (bytes) {
            memcpy(at + i * bytes, &bits[i], bytes);
            *known = bits[i] ? from[i] : 0;
            continue;
        }
        memcpy(&now, at, 4);
        now = (now & ~(1u << i)) | (u32)(bits[i] & 1) << i;
        memcpy(at, &now, 4);
        *known = !now ? 0 : bits[i] ? from[i] : *known;
    }
    w->undefined_registers += (u32)holds_any(u, offset, bytes) - before;
}

static void forget(struct warp *w)
{
    struct undefined *u = w->undefined;
    w->undefined_registers = 0;
    if (!u) return;
    memset(u->bits, 0, u->reg_bytes);
    memset(u->from, 0, u->reg_bytes / 4);
    u->frame = NULL;
    u->dropped = u->stored_count = 0;
}

void undefined_start_warp(struct warp *w)
{
    forget(w);
    undefined_fill_local(w, 0, w->block->launch->kernel->local_bytes);
}

void undefined_free_warp(struct warp *w)
{
    if (w->undefined) free(w->undefined->bits);
    free(w->undefined);
    free(w->local_written);
}

/* What is known of the registers of the frame that runs. */
static struct undefined *registers_of(struct warp *w)
{
    struct undefined *u = w->undefined;
    u32 bytes = w->frame->fn->reg_bytes;
    if (u && u->frame == w->frame && u->fn == w->frame->fn) return u;
    if (!u && !(u = w->undefined = calloc(1, sizeof *u))) abort();
    if (u->reg_bytes < bytes) {
        free(u->bits);
        u->reg_bytes = bytes;
        if (!(u->bits = malloc(bytes + bytes / 4))) abort();
        u->from = u->bits + bytes;
    }
    forget(w);
    u->frame = w->frame;
    u->fn = w->frame->fn;
    return u;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------------------ */

static u8 new_origin(struct warp *w, const struct inst *in, const char *where)
{
    struct undefined *u = w->undefined;
    for (u32 k = 0; k < u->origins && k < ORIGINS; k++)
        if (u->origin[k].in == in) return (u8)(k + 1);
    u32 k = u->origins++ % ORIGINS;
    u->origin[k] = (struct origin){.fn = w->frame->fn,
                                   .in = in,
                                   .shared = strncmp(where, "shared", 6) == 0,
                                   .unset = in->exec == lower_unset};
    snprintf(u->origin[k].where, sizeof u->origin[k].where, "%s", where);
    return (u8)(k + 1);
}

/* The bits of an element that nobody has written, as they are in its register. */
static u64 element_bits(const struct warp *w, const struct inst *in, u64 at, char where[96])
{
    u64 bits = 0,
        base = at & 1; /* a thread's local memory, an allocation and shared memory begin on even addresses */
    for (u32 k = (in->bytes + 1u) / 2; k-- > 0;) /* `where` is the first in the end */
        if (unwritten(w, (const u8 *)(uintptr_t)(at - base) + 2 * k, where)) bits |= 0xffffull << 16 * k;
    bits &= ones(in->bytes);
    bool sign = in->bytes < 8 && bits >> (8 * in->bytes - 1) & 1;
    return sign && in->aux ? bits | (ones(in->aux) & ~ones(in->bytes)) : bits;
}

void undefined_load(struct warp *w, const struct inst *in, u32 mask, const u64 host[LANES])
{
    u32 width = in->flags >> 8;
    if (in->bytes > 8) return;
    for (u32 k = 0; k < in->count; k++) {
        u64 bits[LANES] = {0}, any = 0;
        char where[96] = "", first[96] = "";
        for (u32 left = mask; left; left &= left - 1) {
            u32 i = first_lane(left);
            bits[i] = element_bits(w, in, host[i] + (u64)k * in->bytes, where);
            if (bits[i] && !any) memcpy(first, where, sizeof first);
            any |= bits[i];
        }
        if (!any || in->more[k] == NO_OPERAND) continue;
        bool watched = undefined_watching(w);
        registers_of(w);
        u8 from[LANES];
        memset(from, new_origin(w, in, first), sizeof from);
        set_bits(w, (u32)in->more[k], width, mask, bits, from);
        if (!watched) warp_change_loop(w, in);
    }
}

/* Before an instruction that reads a register which nothing has written. */
void lower_unset(struct warp *w, const struct inst *in, u32 mask)
{
    const struct reg *r = in->data;
    const u64 unwritten = (u64)UNWRITTEN << 32 | UNWRITTEN;
    u32 bytes = reg_lane_bytes(r);
    u64 bits[LANES];
    u8 from[LANES];
    char where[96];
    bool watched = undefined_watching(w);
    if (bytes > 8) return;
    snprintf(where, sizeof where, "register %s, a variable that was never set", r->name);
    registers_of(w);
    memset(from, new_origin(w, in, where), sizeof from);
    for (u32 i = 0; i < LANES; i++) {
        bits[i] = bytes ? ones(type_bytes(r->type)) : 1;
        if (mask >> i & 1) memcpy(w->frame->regs + r->offset + i * bytes, &unwritten, bytes);
    }
    set_bits(w, r->offset, bytes, mask, bits, from);
    if (!watched) warp_change_loop(w, in);
}

/* What came of shared memory that nobody had written. A write that comes too late is told as the race that it is; if there is none
 * until the block leaves, this is told. */
struct finding {
    struct warp *warp;
    const struct function *fn;
    const struct inst *in;
    u32 lane;
    char text[320];
};

__attribute__((format(printf, 4, 5))) static void tell_later(struct warp *w, const struct inst *in, u32 lane,
                                                             const char *format, ...)
{
    struct finding *f = w->block->unwritten;
    va_list args;
    if (f) return; /* the first will do */
    if (!(f = w->block->unwritten = calloc(1, sizeof *f))) abort();
    *f = (struct finding){.warp = w, .fn = w->frame->fn, .in = in, .lane = lane};
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
}

void undefined_end_block(struct block *b)
{
    struct finding *found = b->unwritten, f;
    if (!found) return;
    f = *found;
    free(found);
    b->unwritten = NULL;
    if (!options.faults_report)
        fault_elsewhere(f.warp, f.fn, f.in, 1u << f.lane, ERR_LAUNCH_FAILURE, "%s", f.text);
}

#define UPDATE_TEXT \
    "an atomic operation on %s, which nobody has written: what it makes of that is anything. Clear it first"

void undefined_atomic(struct warp *w, const struct inst *in, u32 mask, const u64 address[LANES], u32 bytes)
{
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        char where[96];
        const u8 *p = memory_peek(w, in, address[i], bytes);
        if (!p) continue;
        bool shared = (u64)(p - w->block->shared) < w->block->shared_bytes;
        for (u32 k = 0; k < bytes; k += 2) {
            if (!unwritten(w, p - ((u64)(uintptr_t)p & 1) + k, where)) continue;
            if (shared)
                tell_later(w, in, i, UPDATE_TEXT, where);
            else
                breach(w, in, 1u << i, ERR_LAUNCH_FAILURE, UPDATE_TEXT, where);
        }
    }
}

/* ---- Operands --------------------------------------------------------------------------------------------------------------- */

/* An operand in a lane: its bits, and which of them nobody has written. */
struct value {
    u64 is, undefined;
};

static struct value value_of(struct warp *w, const struct ptx_operand *o, u32 lane)
{
    struct value v = {0};
    if (o->kind == OPERAND_REG && o->reg->value) o = o->reg->value; /* what lowering reads */
    if (o->kind == OPERAND_REG) {
        const u8 *at = w->frame->regs + o->reg->offset;
        u32 bytes = lane_bytes(o->reg->type);
        if (o->reg->type == T_PRED) {
            memcpy(&v.is, at, 4);
            v.is = v.is >> lane & 1;
        } else if (bytes <= 8) {
            memcpy(&v.is, at + lane * bytes, bytes);
        }
        v.undefined = bits_of(w->undefined, o->reg, lane);
        if (o->negated && o->reg->type == T_PRED) v.is ^= 1;
    } else {
        v.is = o->imm;
    }
    return v;
}

static bool is_signed(const struct ptx_inst *p)
{
    return type_signed(mod_type(p, 0));
}

/* ---- Rules -------------------------------------------------------------------------------------------------------------------
 *
 * Each says which bits of a result are not known, whatever the others are: rather too few than too many. */

/* A result of which nothing is known when nothing is known of one source. */
static u64 from_whole(const struct value *v, u32 count, u32 source_bytes, u32 result_bytes)
{
    for (u32 k = 0; k < count; k++)
        if ((v[k].undefined & ones(source_bytes)) == ones(source_bytes)) return ones(result_bytes);
    return 0;
}

static u64 of_and(struct value a, struct value b)
{
    return (a.undefined & b.is) | (b.undefined & a.is) | (a.undefined & b.undefined);
}
static u64 of_or(struct value a, struct value b)
{
    return (a.undefined & ~b.is) | (b.undefined & ~a.is) | (a.undefined & b.undefined);
}

/* A known factor moves the bits up by its trailing zeros. */
static u64 of_product(struct value a, struct value b)
{
    if (a.undefined && b.undefined) return 0;
    u64 factor = a.undefined ? b.is : a.is, bits = a.undefined | b.undefined;
    return factor ? bits << __builtin_ctzll(factor) : 0;
}

/* To a type of so many bytes; the sign may be one of the bits. */
static u64 widened(u64 bits, u32 from, bool sign, u32 to)
{
    if (from < to && sign && bits >> (8 * from - 1) & 1) bits |= ones(to) & ~ones(from);
    return bits & ones(to);
}

static u64 of_shift(const struct ptx_inst *p, const struct value *v, u32 bytes)
{
    u64 n = v[1].is & 0xffffffff, bits = v[0].undefined & ones(bytes);
    if (v[1].undefined) return 0;
    if (streq(p->opcode, "shl")) return n < 8 * bytes ? bits << n & ones(bytes) : 0;
    bool sign = is_signed(p) && bits >> (8 * bytes - 1) & 1;
    if (n >= 8 * bytes) return sign ? ones(bytes) : 0;
    return bits >> n | (sign ? ones(bytes) & ~(ones(bytes) >> n) : 0);
}

static bool compares(const struct ptx_inst *p, u64 a, u64 b)
{
    if (has_mod(p, "lt") || has_mod(p, "lo")) return a < b;
    if (has_mod(p, "le") || has_mod(p, "ls")) return a <= b;
    if (has_mod(p, "gt") || has_mod(p, "hi")) return a > b;
    if (has_mod(p, "ge") || has_mod(p, "hs")) return a >= b;
    return has_mod(p, "eq") == (a == b);
}

/* The predicate of setp: 1 when it may be either. */
static u64 of_comparison(const struct ptx_inst *p, const struct value *v, u32 bytes)
{
    enum type t = mod_type(p, 0);
    u64 all = ones(bytes), top = type_signed(t) ? 1ull << (8 * bytes - 1) : 0;
    u64 ua = v[0].undefined & all, ub = v[1].undefined & all, a = (v[0].is ^ top) & all,
        b = (v[1].is ^ top) & all;
    bool either, combined = p->op_count > 3;
    if (type_float(t))
        either = from_whole(v, 2, bytes, 1) != 0;
    else if (has_mod(p, "eq") || has_mod(p, "ne"))
        either = (ua | ub) && !((a ^ b) & ~(ua | ub));
    else
        either = compares(p, a & ~ua, b | ub) != compares(p, a | ua, b & ~ub);
    if (!combined) return either;
    struct value c = {compares(p, a, b), either};
    if (type_float(t) && v[2].undefined && !either) return 0; /* what it compares to is not worked out here */
    if (has_mod(p, "and")) return of_and(c, v[2]) & 1;
    if (has_mod(p, "or")) return of_or(c, v[2]) & 1;
    return (c.undefined | v[2].undefined) & 1;
}

static u64 of_selection(const struct value *v)
{
    u64 chosen = v[2].is & 1 ? v[0].undefined : v[1].undefined;
    return v[2].undefined ? (v[0].is ^ v[1].is) | v[0].undefined | v[1].undefined : chosen;
}

/* Whether a source that is known decides a maximum or minimum, whatever the other is: the type's largest or smallest value.
 * Infinity does, since a NaN is dropped. */
static bool is_extreme(const struct ptx_inst *p, struct value v, u32 bytes)
{
    enum type t = mod_type(p, 0);
    bool largest = streq(p->opcode, "max");
    u64 top = t == T_S16X2 ? 0x80008000 : 1ull << (8 * bytes - 1), extreme = largest ? ones(bytes) : 0;
    if (v.undefined || has_mod(p, "NaN") || has_mod(p, "xorsign")) return false;
    if (t == T_F32) extreme = largest ? 0x7f800000 : 0xff800000;
    if (t == T_F64) extreme = largest ? 0x7ffull << 52 : 0xfffull << 52;
    if (type_float(t) && t != T_F32 && t != T_F64) return false;
    if (type_signed(t)) extreme ^= top;
    return (v.is & ones(bytes)) == extreme;
}

/* The undefined bits of the result, of so many bytes (0: a predicate), of an instruction with these sources. */
static u64 result_of(const struct ptx_inst *p, const struct value *v, u32 count, u32 result_bytes)
{
    static const char *const whole[] = {"min", "max", "abs",  "div",   "rem", "sad", "fma", "ex2",
                                        "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"};
    enum type t = mod_type(p, 0), from = mod_type(p, 1);
    u32 bytes = type_bytes(t);
    const char *op = p->opcode;
    bool sum = streq(op, "add") || streq(op, "sub") || streq(op, "neg"),
         product = streq(op, "mul") || streq(op, "mad");
    if (streq(op, "mov") || streq(op, "cvta")) return v[0].undefined;
    if (streq(op, "setp")) return of_comparison(p, v, bytes);
    if (streq(op, "selp")) return of_selection(v);
    if (streq(op, "and")) return of_and(v[0], v[1]);
    if (streq(op, "or")) return of_or(v[0], v[1]);
    if (streq(op, "xor")) return v[0].undefined | v[1].undefined;
    if (streq(op, "not")) return v[0].undefined;
    if (streq(op, "shl") || streq(op, "shr")) return of_shift(p, v, bytes);
    if (streq(op, "cvt") && from != T_NONE) {
        if (type_float(t) || type_float(from)) return from_whole(v, 1, type_bytes(from), result_bytes);
        return widened(v[0].undefined & ones(type_bytes(from)), type_bytes(from), type_signed(from),
                       result_bytes);
    }
    if (type_float(t) && (sum || product)) return from_whole(v, count, bytes, result_bytes);
    if (sum) return v[0].undefined | (count > 1 ? v[1].undefined : 0);
    if (product && !has_mod(p, "hi")) {
        u64 factors = of_product(v[0], v[1]);
        u32 wide = has_mod(p, "wide") ? 2 * bytes : bytes;
        return (factors | (count > 2 ? v[2].undefined : 0)) & ones(wide);
    }
    if (product) return from_whole(v, count, bytes, result_bytes);
    if ((streq(op, "max") || streq(op, "min")) && count == 2 &&
        (is_extreme(p, v[0], bytes) || is_extreme(p, v[1], bytes)))
        return 0;
    for (u32 k = 0; k < sizeof whole / sizeof *whole; k++)
        if (streq(op, whole[k])) return from_whole(v, count, bytes, result_bytes);
    return 0;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------------------- */

#define DECIDES_TEXT \
    "%s depends on a value that nobody has written: line %u read it from %s. Write that first, or clear it"

/* `r`, undefined in these lanes, decides something. */
static void decides(struct warp *w, const struct inst *in, u32 lanes, const struct reg *r, const char *what)
{
    bool address = strcmp(what, "this address") == 0; /* leads nowhere: cannot wait */
    const struct undefined *u = w->undefined;
    const struct origin *o = &u->origin[*from_of(u, r->offset, reg_lane_bytes(r), first_lane(lanes)) - 1];
    u32 line = o->fn->lines[o->in - o->fn->code].line;
    if (o->shared && !address)
        tell_later(w, in, first_lane(lanes), DECIDES_TEXT, what, line, o->where);
    else
        breach_against(w, in, lanes, ERR_LAUNCH_FAILURE, o->fn, o->in, DECIDES_TEXT, what, line, o->where);
}

static u32 undefined_lanes(const struct undefined *u, const struct reg *r, u32 mask)
{
    u32 lanes = 0;
    for (u32 left = mask; left; left &= left - 1)
        if (bits_of(u, r, first_lane(left))) lanes |= left & -left;
    return lanes;
}

static void check_guard(struct warp *w, const struct inst *in, const struct ptx_inst *p)
{
    static const char *const deciding[] = {"bra", "exit", "ret", "call", "trap",
                                           "st",  "atom", "red", "bar",  "barrier"};
    u32 lanes = p->guard ? undefined_lanes(w->undefined, p->guard, w->active) : 0;
    for (u32 k = 0; lanes && k < sizeof deciding / sizeof *deciding; k++)
        if (streq(p->opcode, deciding[k]))
            decides(w, in, lanes, p->guard, k < 4 ? "which way the thread goes" : "whether this is executed");
}

static void check_addresses(struct warp *w, const struct inst *in, const struct ptx_inst *p, u32 mask)
{
    if (strncmp(p->opcode, "prefetch", 8) == 0) return;
    for (u32 k = 0; k < p->op_count; k++) {
        const struct ptx_operand *o = &p->op[k];
        if (o->kind != OPERAND_ADDRESS || !o->reg) continue;
        u32 lanes = undefined_lanes(w->undefined, o->reg, mask);
        if (lanes) decides(w, in, lanes, o->reg, "this address");
    }
}

void undefined_accumulators(struct warp *w, const struct inst *in, u32 mask, const char *more)
{
    breach(w, in, mask, ERR_LAUNCH_FAILURE,
           "this is added to accumulators that nothing has written: set them to 0 first%s", more);
}

/* An mma that is added to accumulators of which a lane has set none. (wgmma: exec/wgmma.c) */
static void check_accumulators(struct warp *w, const struct inst *in, const struct ptx_inst *p, u32 mask)
{
    const struct undefined *u = w->undefined;
    const struct ptx_operand *c = &p->op[3];
    u32 lane = first_lane(mask), unset = 0;
    if (p->op_count < 4 || c->kind != OPERAND_VECTOR) return;
    for (u32 k = 0; k < c->count; k++) {
        const struct ptx_operand *o = &c->element[k];
        u8 from = o->kind == OPERAND_REG ? *from_of(u, o->reg->offset, reg_lane_bytes(o->reg), lane) : 0;
        unset += from && u->origin[from - 1].unset;
    }
    if (unset == c->count) undefined_accumulators(w, in, mask, "");
}

/* Whether one of the registers has undefined bits. */
struct search {
    const struct undefined *u;
    bool found;
};
static void look(struct reg *r, void *context)
{
    struct search *s = context;
    s->found |= r->offset < s->u->reg_bytes && holds_any(s->u, r->offset, reg_lane_bytes(r));
}

struct lanes {
    struct warp *w;
    u32 mask;
};
static void define(struct reg *r, void *context)
{
    static const u64 none[LANES];
    static const u8 nowhere[LANES];
    const struct lanes *l = context;
    set_bits(l->w, r->offset, reg_lane_bytes(r), l->mask, none, nowhere);
}

/* Where a lane's undefined bits of an operand are from, or 0. */
static u8 origin_in(const struct undefined *u, const struct ptx_operand *o, u32 lane)
{
    return o->kind == OPERAND_REG ? *from_of(u, o->reg->offset, reg_lane_bytes(o->reg), lane) : 0;
}

/* A mov between one wide register and several narrow ones. */
static void move_parts(struct warp *w, const struct ptx_operand *d, const struct ptx_operand *s, u32 mask)
{
    const struct undefined *u = w->undefined;
    u64 bits[LANES] = {0};
    u8 from[LANES] = {0};
    const struct ptx_operand *parts = d->kind == OPERAND_VECTOR ? d : s, *wide = parts == d ? s : d;
    if (wide->kind != OPERAND_REG || type_bytes(wide->reg->type) > 8) return;
    u32 part = 8 * type_bytes(wide->reg->type) / parts->count;
    for (u32 k = 0; k < parts->count; k++) {
        const struct ptx_operand *o = &parts->element[k];
        if (o->kind != OPERAND_REG) continue;
        u64 out[LANES];
        for (u32 i = 0; i < LANES; i++) {
            out[i] = bits_of(u, wide->reg, i) >> k * part & ones(part / 8);
            bits[i] |= (bits_of(u, o->reg, i) & ones(part / 8)) << k * part;
            u8 origin = origin_in(u, parts == d ? wide : o, i);
            if (origin) from[i] = origin;
        }
        if (parts == d) set_bits(w, o->reg->offset, reg_lane_bytes(o->reg), mask, out, from);
    }
    if (parts == s) set_bits(w, wide->reg->offset, reg_lane_bytes(wide->reg), mask, bits, from);
}

/* Each lane has the undefined bits of the lane that it reads. */
static void move_between_lanes(struct warp *w, const struct inst *in, const struct ptx_inst *p, u32 mask)
{
    const struct ptx_operand *d = p->op[0].kind == OPERAND_PAIR ? &p->op[0].element[0] : &p->op[0];
    u64 bits[LANES] = {0};
    u8 from[LANES] = {0};
    s32 lane[LANES];
    bool known = d->kind == OPERAND_REG && p->op[1].kind == OPERAND_REG;
    exchange_sources(w, in, lane);
    for (u32 left = known ? mask : 0; left; left &= left - 1) {
        u32 i = first_lane(left);
        bits[i] = bits_of(w->undefined, p->op[1].reg, (u32)lane[i]);
        from[i] = origin_in(w->undefined, &p->op[1], (u32)lane[i]);
    }
    visit_definitions(p, define, &(struct lanes){w, mask}); /* the predicate, too */
    if (known) set_bits(w, d->reg->offset, reg_lane_bytes(d->reg), mask, bits, from);
}

/* max and min drop NaN: of a value that nobody has written they would make a number, and hide it. */
static void leave_unwritten(struct undefined *u)
{
    const u64 unwritten = (u64)UNWRITTEN << 32 | UNWRITTEN;
    for (; u->dropped; u->dropped &= u->dropped - 1)
        memcpy(u->dropped_at + first_lane(u->dropped) * u->dropped_bytes, &unwritten, u->dropped_bytes);
}

/* Words of shared memory that are stored, of whose bits none is known: to be noted when that is done. So what a maximum has left
 * unwritten stays so through the levels of a tree in shared memory. */
static void find_stored(struct warp *w, const struct inst *in, const struct ptx_inst *p, u32 mask)
{
    struct undefined *u = w->undefined;
    const struct ptx_operand *source = p->op[1].kind == OPERAND_VECTOR ? p->op[1].element : &p->op[1];
    u64 address[LANES];
    if (in->bytes != 4 || in->count > 4 || !w->block->races) return;
    memory_addresses(w, in, mask, address);
    for (u32 k = 0; k < in->count; k++)
        for (u32 left = source[k].kind == OPERAND_REG ? mask : 0; left; left &= left - 1) {
            u32 i = first_lane(left);
            struct value v = value_of(w, &source[k], i);
            if (v.undefined != ones(4) || (u32)v.is != UNWRITTEN) continue;
            const u8 *to = memory_peek(w, in, address[i] + 4 * k, 4);
            u64 at = to ? (u64)(to - w->block->shared) : UINT64_MAX;
            if (at < w->block->shared_bytes && at % 4 == 0) u->stored[u->stored_count++] = (u32)at;
        }
}
static void note_stored(struct warp *w)
{
    struct undefined *u = w->undefined;
    while (u->stored_count) race_stored_unwritten(w->block, u->stored[--u->stored_count]);
}

static void propagate(struct warp *w, const struct inst *in, const struct ptx_inst *p, u32 mask)
{
    const struct ptx_operand *d = &p->op[0];
    u32 count = p->op_count - 1;
    bool move = streq(p->opcode, "mov") && count == 1;
    if (streq(p->opcode, "shfl")) {
        move_between_lanes(w, in, p, mask);
        return;
    }
    if (move && (d->kind == OPERAND_VECTOR || p->op[1].kind == OPERAND_VECTOR)) {
        move_parts(w, d, &p->op[1], mask);
        return;
    }
    bool known = d->kind == OPERAND_REG && count > 0 && count <= 3;
    for (u32 k = 1; k <= count && known; k++)
        known = p->op[k].kind == OPERAND_REG || p->op[k].kind == OPERAND_IMM ||
                p->op[k].kind == OPERAND_F32 || p->op[k].kind == OPERAND_F64;
    if (!known) {
        visit_definitions(p, define, &(struct lanes){w, mask});
        return;
    }
    u64 bits[LANES] = {0};
    u8 from[LANES] = {0};
    bool predicate = d->reg->type == T_PRED;
    u32 bytes = predicate ? 0 : type_bytes(d->reg->type);
    for (u32 left = mask; left; left &= left - 1) {
        u32 i = first_lane(left);
        struct value v[3];
        for (u32 k = 0; k < count; k++) {
            v[k] = value_of(w, &p->op[k + 1], i);
            if (v[k].undefined) from[i] = origin_in(w->undefined, &p->op[k + 1], i);
        }
        bits[i] = result_of(p, v, count, bytes) & (predicate ? 1 : ones(bytes));
    }
    set_bits(w, d->reg->offset, reg_lane_bytes(d->reg), mask, bits, from);
    if ((!streq(p->opcode, "max") && !streq(p->opcode, "min")) || lane_bytes(d->reg->type) > 8) return;
    struct undefined *u = w->undefined;
    u->dropped_at = w->frame->regs + d->reg->offset;
    u->dropped_bytes = lane_bytes(d->reg->type);
    for (u32 i = 0; i < LANES; i++) u->dropped |= (u32)(bits[i] == ones(bytes)) << i;
}

/* Registers that p reads and nothing has written are left alone when it has: nobody else could say of what comes later that it
 * does not read them. */
struct search_for {
    const struct reg *reg;
    bool found;
};
static void look_for(struct reg *r, void *context)
{
    struct search_for *s = context;
    s->found |= r == s->reg;
}
static void leave_unset(struct warp *w, const struct ptx_inst *p, u32 at)
{
    const struct function *fn = w->frame->fn;
    while (at-- > 0 && fn->ptx[at] == p && fn->code[at].exec == lower_unset) {
        struct search_for writes = {.reg = fn->code[at].data};
        visit_definitions(p, look_for, &writes);
        if (!writes.found) define((struct reg *)fn->code[at].data, &(struct lanes){w, ALL_LANES});
    }
}

void undefined_step(struct warp *w, const struct inst *in, u32 mask)
{
    struct undefined *u = w->undefined;
    const struct function *fn = w->frame->fn;
    u32 at = (u32)(in - fn->code);
    const struct ptx_inst *p = fn->ptx[at];
    note_stored(w);
    if (u->frame == w->frame) leave_unwritten(u);
    if (u->frame != w->frame || u->fn != fn || !p || (at + 1 < fn->code_count && fn->ptx[at + 1] == p))
        return; /* a part of p */
    struct search uses = {.u = u}, definitions = {.u = u};
    visit_uses(p, look, &uses);
    visit_definitions(p, look, &definitions);
    if (!uses.found && !definitions.found) return;
    check_guard(w, in, p);
    if (mask) {
        check_addresses(w, in, p, mask);
        if (streq(p->opcode, "mma")) check_accumulators(w, in, p, mask);
        if (streq(p->opcode, "st") && p->op_count == 2)
            find_stored(w, in, p, mask);
        else if (p->op_count)
            propagate(w, in, p, mask);
    }
    leave_unset(w, p, at);
}
