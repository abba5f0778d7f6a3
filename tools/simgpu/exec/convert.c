/* convert.c: cvt between every pair of types. convert.def has the frequent and the packed conversions; the others go
 * lane by lane through cvt_general. */
#include "alu.h"

#include <math.h>
#include <stdlib.h>

/* ---- What convert.def calls ---------------------------------------------------------------------------------------------- */

static inline s32 to_s32(double x, u32 nan)
{
    return x != x ? (s32)nan : x <= -0x1p31 ? INT32_MIN : x >= 0x1p31 ? INT32_MAX : (s32)x;
}
static inline u32 to_u32(double x, u32 nan)
{
    return x != x ? nan : x <= 0 ? 0 : x >= 0x1p32 ? UINT32_MAX : (u32)x;
}
static inline s64 to_s64(double x)
{
    return x != x ? INT64_MIN : x <= -0x1p63 ? INT64_MIN : x >= 0x1p63 ? INT64_MAX : (s64)x;
}
static inline u64 to_u64(double x)
{
    return x != x ? 1ull << 63 : x <= 0 ? 0 : x >= 0x1p64 ? UINT64_MAX : (u64)x;
}
static inline float f32_of_e4m3x2(u32 byte)
{
    return f32_of_e4m3(byte);
}
static inline float f32_of_e5m2x2(u32 byte)
{
    return f32_of_e5m2(byte);
}
static inline u32 tf32_away(u32 x)
{
    return ((x & 0x7fffffff) < 0x7f800000 ? x + 0x1000 : x) & 0xffffe000;
}
static inline u32 finite_tf32(u32 x)
{
    return (x & 0x7fffffff) < 0x7f800000 ? x : x - 0x2000;
}
static inline u32 clamp_bits(s32 x, s32 low, s32 high, int bits)
{
    return (u32)(x < low ? low : x > high ? high : x) & ((1u << bits) - 1);
}

#define OP(shape, ...) EXECUTOR_##shape(__VA_ARGS__)
#include "convert.def"
#undef OP
#define OP(shape, ...) ROW_##shape(__VA_ARGS__)
const struct rule convert_rules[] = {
#include "convert.def"
    {NULL, NULL, NULL, 0, 0, {0}, false}};
#undef OP

/* ---- Any conversion -------------------------------------------------------------------------------------------------------- */

struct conversion {
    enum type to, from;
    u32 to_bytes, from_bytes; /* of the registers: they may be wider than the types */
    enum rounding mode;
    bool integral; /* .rni and the like: round to a whole number */
    bool ftz, sat, satfinite, relu;
};

static double round_whole(double x, enum rounding mode)
{
    return mode == TO_NEAREST ? rint(x) : mode == TO_ZERO ? trunc(x) : mode == DOWN ? floor(x) : ceil(x);
}

static u64 bits_below(u32 bits)
{
    return bits < 64 ? (1ull << bits) - 1 : ~0ull;
}

/* A number as an integer of the target's type, clamped to its range. */
static u64 integer_of_f64(const struct conversion *c, double x)
{
    u32 bits = 8 * type_bytes(c->to);
    bool is_signed = type_signed(c->to);
    double limit = ldexp(1, (int)bits - is_signed);
    u64 top = bits_below(bits - is_signed);
    if (x != x) return c->from == T_F64 || bits == 64 ? 1ull << (bits - 1) : 0;
    x = round_whole(x, c->mode);
    if (x >= limit) return top;
    if (is_signed) return x <= -limit ? ~top : (u64)(s64)x;
    return x <= 0 ? 0 : (u64)x;
}

static u64 integer_of_integer(const struct conversion *c, u64 raw)
{
    if (!c->sat) return raw;
    u64 top = bits_below(8 * type_bytes(c->to) - type_signed(c->to));
    bool negative = type_signed(c->from) && (s64)raw < 0;
    if (negative) return !type_signed(c->to) ? 0 : (s64)raw < (s64)~top ? ~top : raw;
    return raw > top ? top : raw;
}

/* Narrower than f64, NaN keeps its sign and as much of its payload as there is room for. */
static u32 narrow_nan(struct format f, double x)
{
    u32 sign = (u32)(bits_of_f64(x) >> 63) << (f.width - 1), quiet = 1u << (f.mantissa - 1);
    return sign | f.infinity | quiet |
           ((u32)(bits_of_f64(x) >> (52 - f.mantissa)) & ((1u << f.mantissa) - 1));
}

static u32 narrow(const struct conversion *c, struct format f, double x)
{
    if (x != x && c->from == T_F64) return narrow_nan(f, x);
    return format_encode(f, x, c->integral ? TO_NEAREST : c->mode, c->satfinite);
}

static u64 float_of_f64(const struct conversion *c, double x)
{
    if (c->integral) x = round_whole(x, c->mode);
    if (c->sat) x = saturate_f64(x);
    if (c->relu) x = relu_f64(x);
    switch (c->to) {
    case T_F16: return narrow(c, FORMAT_F16, x);
    case T_BF16: return narrow(c, FORMAT_BF16, x);
    case T_TF32: return narrow(c, FORMAT_TF32, x) << 13;
    case T_F32: return narrow(c, FORMAT_F32, x);
    default: return bits_of_f64(x);
    }
}

/* The source's value where it is floating point. .ftz flushes an f32, unless the result is f16. */
static double f64_of_float(const struct conversion *c, u64 raw)
{
    switch (c->from) {
    case T_F16: return f32_of_f16((u32)raw);
    case T_BF16: return f32_of_bf16((u32)raw);
    case T_F32: return c->ftz && c->to != T_F16 ? flush_f32(f32_of_bits((u32)raw)) : f32_of_bits((u32)raw);
    default: return f64_of_bits(raw);
    }
}

EXECUTOR(cvt_general)
{
    const struct conversion *c = in->data;
    const u32 *from_32 = lanes_of(w, in->a);
    const u64 *from_64 = lanes_of(w, in->a);
    LANES_OF(u32, to_32, in->d);
    LANES_OF(u64, to_64, in->d);
    const u32 from_unused = 64 - 8 * type_bytes(c->from), to_unused = 64 - 8 * type_bytes(c->to);
    for (int i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u64 raw = c->from_bytes == 8 ? from_64[i] : from_32[i], result;
        raw = type_signed(c->from) ? (u64)((s64)(raw << from_unused) >> from_unused)
                                   : raw << from_unused >> from_unused;
        if (type_float(c->from)) {
            double x = f64_of_float(c, raw);
            result = type_float(c->to) ? float_of_f64(c, x) : integer_of_f64(c, x);
        } else if (type_float(c->to)) {
            bool negative = type_signed(c->from) && (s64)raw < 0;
            double magnitude = f64_of_u64_to_odd(negative ? 0 - raw : raw);
            result = float_of_f64(c, negative ? -magnitude : magnitude);
        } else {
            result = integer_of_integer(c, raw);
        }
        /* a register wider than the type is filled by extension */
        result = type_signed(c->to) ? (u64)((s64)(result << to_unused) >> to_unused)
                                    : result << to_unused >> to_unused;
        if (c->to_bytes == 8)
            to_64[i] = result;
        else
            to_32[i] = (u32)(result & bits_below(8 * c->to_bytes));
    }
    GO_ON(w, in, mask);
}

static bool convertible(enum type t)
{
    switch (t) {
    case T_U8:
    case T_S8:
    case T_U16:
    case T_S16:
    case T_U32:
    case T_S32:
    case T_U64:
    case T_S64:
    case T_F16:
    case T_BF16:
    case T_F32:
    case T_F64: return true;
    default: return false;
    }
}

bool lower_cvt(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type to = mod_type(p, 0), from = mod_type(p, 1);
    if (p->op[0].kind != OPERAND_REG) return refuse(lo, p, "the destination is not a register");
    u32 to_bytes = type_bytes(p->op[0].reg->type);
    const char *part[12] = {"cvt"};
    enum rounding mode = TO_NEAREST;
    u32 count = p->mod_count + 1 < 12 ? p->mod_count + 1 : 12;
    for (u32 n = 1; n < count; n++) part[n] = p->mod[n - 1];
    const struct rule *r = rule_named(part, count, &mode);
    if (r && type_bytes((enum type)r->dest) == to_bytes) return lower_by_rule(lo, p, in);

    struct conversion c = {.to = to, .from = from, .to_bytes = to_bytes};
    static const char *const modes[] = {"rn", "rz", "rm", "rp", "rna"}, *const whole[] = {"rni", "rzi", "rmi",
                                                                                          "rpi"};
    u32 rounds = 0;
    for (u32 n = 0; n < p->mod_count; n++) {
        const char *m = p->mod[n];
        bool known = type_named(m) != T_NONE;
        for (u32 k = 0; k < 5; k++)
            if (streq(m, modes[k])) c.mode = k, known = true, rounds++;
        for (u32 k = 0; k < 4; k++)
            if (streq(m, whole[k])) c.mode = k, c.integral = known = true, rounds++;
        if (streq(m, "ftz")) c.ftz = known = true;
        if (streq(m, "sat")) c.sat = known = true;
        if (streq(m, "satfinite")) c.satfinite = known = true;
        if (streq(m, "relu")) c.relu = known = true;
        if (!known) return refuse(lo, p, "the modifier .%s is not supported", m);
    }
    if (mod_type(p, 2) != T_NONE || !convertible(from) ||
        (!convertible(to) && !(to == T_TF32 && from == T_F32)))
        return refuse(lo, p, "this conversion is not supported");
    if (p->op_count != 2) return refuse(lo, p, "%u operands, not 2", p->op_count);
    if (rounds > 1) return refuse(lo, p, "more than one rounding");
    bool to_integer = !type_float(to) && to != T_TF32,
         exact_only = to == T_F64 && !type_float(from) && type_bytes(from) == 8;
    if (to_integer && type_float(from) && !c.integral) return refuse(lo, p, "it needs an integer rounding");
    if (c.integral && !type_float(from)) return refuse(lo, p, "an integer is whole already");
    if ((c.satfinite || c.relu || c.mode == TO_NEAREST_AWAY) &&
        (to_integer || from != T_F32 || to == T_F32 || to == T_F64))
        return refuse(lo, p, "this modifier is for narrower results of f32");
    if (to_bytes < type_bytes(to) || (type_float(to) && to_bytes != type_bytes(to)) || exact_only)
        return refuse(lo, p, "the destination %s does not fit", p->op[0].reg->name);
    c.from_bytes = p->op[1].kind == OPERAND_REG ? type_bytes(p->op[1].reg->type) : type_bytes(from);
    in->a = lower_source(lo, &p->op[1], p->op[1].kind == OPERAND_REG ? p->op[1].reg->type : from);
    in->d = lower_dest(lo, &p->op[0], p->op[0].reg->type);
    struct conversion *kept = malloc(sizeof *kept);
    if (!kept) return refuse(lo, p, "out of memory");
    *kept = c;
    in->data = kept;
    in->exec = cvt_general;
    return true;
}
