/* atomic.c: atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions"). Lanes act one after the
 * other, lowest first; each is atomic with respect to other host threads. */
#include <math.h>
#include <string.h>

#include "../front/lower.h"
#include "atomic.h"
#include "bulk.h"
#include "global.h"
#include "memory.h"
#include "order.h"
#include "undefined.h"
#include "warp.h"
#include "numeric.h"

static const char *const op_names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"};

static float as_f32(u64 v)
{
    u32 b = (u32)v;
    float f;
    memcpy(&f, &b, 4);
    return f;
}
static u64 f32_bits(float f)
{
    u32 b;
    memcpy(&b, &f, 4);
    return f != f ? 0x7fffffff : b;
}
static double as_f64(u64 v)
{
    double d;
    memcpy(&d, &v, 8);
    return d;
}
static u64 f64_bits(double d)
{
    u64 v;
    memcpy(&v, &d, 8);
    return v;
}
static u64 flush(u64 v)
{
    return (v & 0x7f800000) ? v : v & 0x80000000;
}

/* Half-precision addition is exact in f32, or rounds the same twice (24 >= 2 * 11 + 2 bits). NaN loses in min and max. */
static u64 half_op(enum atomic_op op, enum type t, u64 x, u64 y)
{
    bool bf16 = t == T_BF16 || t == T_BF16X2;
    float a = bf16 ? f32_of_bf16((u16)x) : f32_of_f16((u16)x),
          b = bf16 ? f32_of_bf16((u16)y) : f32_of_f16((u16)y);
    if (op == OP_ADD) {
        float s = a + b;
        return bf16 ? bf16_of_f32(s) : f16_of_f32(s);
    }
    if (a != a && b != b) return 0x7fff;
    if (a != a) return y & 0xffff;
    if (b != b) return x & 0xffff;
    bool less = a < b || (a == b && signbit(a) && !signbit(b));
    return (op == OP_MIN) == less ? x & 0xffff : y & 0xffff;
}

static u64 apply(enum atomic_op op, enum type t, bool in_shared, u64 old, u64 v, u64 compare)
{
    u32 bits = 8 * type_bytes(t);
    u64 low = bits == 64 ? ~0ull : (1ull << bits) - 1;
    s64 so = (s64)(old << (64 - bits)) >> (64 - bits), sv = (s64)(v << (64 - bits)) >> (64 - bits);
    const u64 quiet = 1ull << 51;
    switch (op) {
    case OP_CAS: return old == compare ? v : old;
    case OP_EXCH: return v;
    case OP_AND: return old & v;
    case OP_OR: return old | v;
    case OP_XOR: return old ^ v;
    case OP_INC: return old >= v ? 0 : old + 1;
    case OP_DEC: return old == 0 || old > v ? v : old - 1;
    default: break;
    }
    switch (t) {
    case T_F32: {
        if (in_shared) return f32_bits(as_f32(old) + as_f32(v));
        return flush(f32_bits(as_f32(flush(old)) + as_f32(flush(v))));
    }
    case T_F64: /* a NaN passes: in global memory as it is, the operand's first; in shared memory quiet, memory's first */
        if (in_shared && as_f64(old) != as_f64(old)) return old | quiet;
        if (as_f64(v) != as_f64(v)) return v | (in_shared ? quiet : 0);
        if (as_f64(old) != as_f64(old)) return old;
        return f64_bits(as_f64(old) + as_f64(v));
    case T_F16:
    case T_BF16: return half_op(op, t, old, v);
    case T_F16X2:
    case T_BF16X2: return half_op(op, t, old, v) | half_op(op, t, old >> 16, v >> 16) << 16;
    default: break;
    }
    if (op == OP_ADD) return (old + v) & low;
    bool less = type_signed(t) ? so < sv : (old & low) < (v & low);
    return (op == OP_MIN) == less ? old & low : v & low;
}

static bool compare_exchange(u8 *at, u32 bytes, u64 *old, u64 new)
{
    if (bytes == 2) {
        u16 o = (u16)*old;
        bool ok =
            __atomic_compare_exchange_n((u16 *)at, &o, (u16) new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        *old = o;
        return ok;
    }
    if (bytes == 4) {
        u32 o = (u32)*old;
        bool ok =
            __atomic_compare_exchange_n((u32 *)at, &o, (u32) new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        *old = o;
        return ok;
    }
    return __atomic_compare_exchange_n((u64 *)at, old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* What compare_exchange begins with: a guess. */
static u64 load(const u8 *at, u32 bytes)
{
    return bytes == 2   ? __atomic_load_n((const u16 *)at, __ATOMIC_RELAXED)
           : bytes == 4 ? __atomic_load_n((const u32 *)at, __ATOMIC_RELAXED)
                        : __atomic_load_n((const u64 *)at, __ATOMIC_RELAXED);
}

void atomic_update(u8 *at, enum atomic_op op, enum type t, bool in_shared, u64 v)
{
    u64 old = load(at, type_bytes(t));
    while (!compare_exchange(at, type_bytes(t), &old, apply(op, t, in_shared, old, v, 0))) {
    }
}

s32 atomic_op_named(const char *name)
{
    for (s32 k = 0; k < (s32)(sizeof op_names / sizeof *op_names); k++)
        if (streq(op_names[k], name)) return k;
    return -1;
}

static u64 read_lane(struct warp *w, operand o, u32 lane, u32 bytes)
{
    u64 v = 0;
    memcpy(&v, (u8 *)lanes_of(w, o) + lane * (bytes == 8 ? 8 : 4), bytes);
    return v;
}

/* in->more: count destinations (NO_OPERAND each for red), count values, then a compare value for cas. aux: enum type;
 * flags: operation, and << 8 enum order. */
static void exec_atomic(struct warp *w, const struct inst *in, u32 mask)
{
    u64 at[LANES];
    enum type t = (enum type)in->aux;
    enum atomic_op op = in->flags & 255;
    u32 in_shared = in->space == SPACE_SHARED || in->space == SPACE_CLUSTER
                        ? ALL_LANES
                        : 0; /* its unit rounds and passes NaN otherwise */
    u32 n = in->count, bytes = in->bytes;
    u64 saw = 0;
    bool changed = false;
    u32 order = in->flags >> 8;
    memory_addresses(w, in, mask, at);
    for (u32 i = 0; i < LANES && in->space == SPACE_GENERIC; i++)
        in_shared |= (u32)(at[i] - SHARED_WINDOW < WINDOW_BYTES) << i;
    if (op != OP_EXCH) undefined_atomic(w, in, mask, at, bytes * n);
    memory_resolve(w, in, mask, at, bytes * n, bytes * n,
                   ACCESS_WRITE | ACCESS_STRONG | (order & ORDER_CTA ? ACCESS_CTA : 0));
    if (order & ORDER_RELEASE) order_publish(w, mask); /* itself included */
    known_publish(w, mask, at, order);
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        pthread_mutex_t *held = global_hold(at[i], order);
        for (u32 k = 0; k < n; k++) {
            u8 *p = (u8 *)(uintptr_t)at[i] + k * bytes;
            u64 v = read_lane(w, in->more[n + k], i, bytes),
                compare = op == OP_CAS ? read_lane(w, in->more[2 * n], i, bytes) : 0;
            u64 old = load(p, bytes), new;
            do new = apply(op, t, in_shared >> i & 1, old, v, compare);
            while (!compare_exchange(p, bytes, &old, new));
            changed |= new != old;
            saw = warp_saw(saw, (const u8 *)&old, bytes);
            if (in->more[k] != NO_OPERAND)
                memcpy((u8 *)lanes_of(w, in->more[k]) + i * (bytes == 8 ? 8 : 4), &(u64){old},
                       bytes == 8 ? 8 : 4);
        }
        global_done(w, in, i, at[i], bytes * n, held);
    }
    race_settle(w, in, mask, at);
    if (order & ORDER_ACQUIRE) order_observe(w);
    global_observe(w, in, mask, at, bytes * n, ACCESS_WRITE | ACCESS_STRONG, order);
    if (changed) {
        w->polled = true;
        note_change(w->block);
        warp_published(w);
    } else {
        warp_poll(w, in, mask, at, bytes * n, saw);
    }
}

static bool op_allowed(enum atomic_op op, enum type t)
{
    switch (op) {
    case OP_CAS:
    case OP_EXCH: return t == T_B32 || t == T_B64 || (op == OP_CAS && t == T_B16);
    case OP_AND:
    case OP_OR:
    case OP_XOR: return t == T_B32 || t == T_B64;
    case OP_INC:
    case OP_DEC: return t == T_U32;
    case OP_MIN:
    case OP_MAX:
        return t == T_U32 || t == T_S32 || t == T_U64 || t == T_S64 || t == T_F16 || t == T_BF16 ||
               t == T_F16X2 || t == T_BF16X2;
    default:
        return t == T_U32 || t == T_S32 || t == T_U64 || t == T_S64 || t == T_F16 || t == T_BF16 ||
               t == T_F16X2 || t == T_BF16X2 || t == T_F32 || t == T_F64;
    }
}

bool lower_atomic(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    static const char *const quiet[] = {"relaxed", "acquire", "release", "acq_rel", "volatile",
                                        "cta",     "cluster", "gpu",     "sys",     "noftz"};
    bool is_atom = streq(p->opcode, "atom");
    s32 op = -1;
    u32 order = 0;
    enum type t = T_NONE;
    in->space = SPACE_GENERIC;
    in->count = 1;
    for (u32 k = 0; k < p->mod_count; k++) {
        const char *m = p->mod[k];
        bool known = false;
        for (u32 q = 0; q < sizeof quiet / sizeof *quiet; q++) known |= streq(quiet[q], m);
        if (streq(m, "acquire") || streq(m, "acq_rel")) order |= ORDER_ACQUIRE;
        if (streq(m, "release") || streq(m, "acq_rel")) order |= ORDER_RELEASE;
        if (streq(m, "cta")) order |= ORDER_CTA;
        if (atomic_op_named(m) >= 0) op = atomic_op_named(m), known = true;
        if (type_named(m) != T_NONE)
            t = type_named(m), known = true;
        else if (streq(m, "global"))
            in->space = SPACE_GLOBAL, known = true;
        else if (shared_space(m) != SPACE_GENERIC)
            in->space = shared_space(m), known = true;
        else if (streq(m, "v2"))
            in->count = 2, known = true;
        else if (streq(m, "v4"))
            in->count = 4, known = true;
        else if (streq(m, "v8"))
            in->count = 8, known = true;
        else if (strncmp(m, "L2::", 4) == 0)
            known = true;
        if (!known) return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (op < 0 || !op_allowed((enum atomic_op)op, t)) return refuse(lo, p, "this operation on this type");
    u32 n = in->count, first = is_atom ? 2 : 1, need = first + 1 + (op == OP_CAS);
    if (p->op_count < need || (op == OP_CAS && (!is_atom || n > 1))) return refuse(lo, p, "operands missing");
    const struct ptx_operand *value = &p->op[op == OP_CAS ? first + 1 : first];
    if (n > 1 && (value->kind != OPERAND_VECTOR || value->count != n ||
                  (is_atom && (p->op[0].kind != OPERAND_VECTOR || p->op[0].count != n))))
        return refuse(lo, p, "vectors of %u registers", n);
    in->bytes = (u8)type_bytes(t);
    in->aux = (u16)t;
    in->flags = (u16)((u32)op | order << 8);
    operand *more = lower_more(lo, 2 * n + 1);
    for (u32 k = 0; k < n; k++) {
        more[k] = !is_atom ? NO_OPERAND : lower_dest(lo, n > 1 ? &p->op[0].element[k] : &p->op[0], t);
        more[n + k] = lower_source(lo, n > 1 ? &value->element[k] : value, t);
    }
    if (op == OP_CAS) more[2 * n] = lower_source(lo, &p->op[first], t);
    in->more = more;
    in->exec = exec_atomic;
    return lower_address(lo, &p->op[first - 1], in);
}
