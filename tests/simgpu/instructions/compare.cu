// Comparison and selection: setp (every relation and type, with a Boolean operation and a second result), set, selp,
// slct, mov with vectors.
#include "reference_float.h"

#define X16(NAME, KIND, PTX, EXPECT) OP(NAME, u32, u16, u16, u32, KIND, KIND, INT32, BITS, PTX, EXPECT)
#define X32(NAME, KIND, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, KIND, KIND, INT32, BITS, PTX, EXPECT)
#define X64(NAME, KIND, PTX, EXPECT) OP(NAME, u32, u64, u64, u32, KIND, KIND, INT32, BITS, PTX, EXPECT)
#define SETP(PTX)                    "{ .reg .pred p; setp." PTX " p, %1, %2; selp.u32 %0, 1, 0, p; }"

// ---- Integers --------------------------------------------------------------------------------------------------------

#define RELATION(W, TYPE, CAST, REL, SYMBOL)                                        \
    X##W(setp_##REL##_##TYPE, INT##W, SETP(#REL "." #TYPE), (CAST)a SYMBOL(CAST) b) \
        X##W(set_##REL##_##TYPE, INT##W, "set." #REL ".u32." #TYPE " %0, %1, %2;",  \
             (CAST)a SYMBOL(CAST) b ? 0xffffffff : 0)
#define EQUALITY(W, TYPE, CAST)     \
    RELATION(W, TYPE, CAST, eq, ==) \
    RELATION(W, TYPE, CAST, ne, !=)
#define ORDER(W, TYPE, CAST)        \
    RELATION(W, TYPE, CAST, lt, <)  \
    RELATION(W, TYPE, CAST, le, <=) \
    RELATION(W, TYPE, CAST, gt, >)  \
    RELATION(W, TYPE, CAST, ge, >=)
#define UNSIGNED(W)                 \
    EQUALITY(W, b##W, u##W)         \
    EQUALITY(W, u##W, u##W)         \
    ORDER(W, u##W, u##W)            \
    RELATION(W, u##W, u##W, lo, <)  \
    RELATION(W, u##W, u##W, ls, <=) \
    RELATION(W, u##W, u##W, hi, >)  \
    RELATION(W, u##W, u##W, hs, >=) \
    EQUALITY(W, s##W, s##W)         \
    ORDER(W, s##W, s##W)
UNSIGNED(16)
UNSIGNED(32)
UNSIGNED(64)

// p = (a < b) OP r, q = !(a < b) OP r, where r is c's bit 0: the result is p + 2q.
#define BOOLEAN(NAME, NEGATE, LESS, R)                                                                  \
    X32(setp_lt_##NAME##_##R, INT32,                                                                    \
        "{ .reg .pred p, q, r; .reg .b32 x, y; and.b32 x, %3, 1; setp.ne.u32 r, x, 0; setp.lt." #NAME   \
        ".s32 p|q, %1, %2, " NEGATE "r; selp.u32 x, 1, 0, p; selp.u32 y, 2, 0, q; add.u32 %0, x, y; }", \
        ({                                                                                              \
            const bool r = (c & 1) != *NEGATE / '!', t = (s32)a < (s32)b;                               \
            (LESS(t, r)) + 2 * (LESS(!t, r));                                                           \
        }))
#define DO_AND(x, y) ((x) && (y))
#define DO_OR(x, y)  ((x) || (y))
#define DO_XOR(x, y) ((x) != (y))
BOOLEAN(and, "", DO_AND, plain)
BOOLEAN(or, "", DO_OR, plain)
BOOLEAN(xor, "", DO_XOR, plain)
BOOLEAN(and, "!", DO_AND, negated)
BOOLEAN(or, "!", DO_OR, negated)
BOOLEAN(xor, "!", DO_XOR, negated)
X32(set_lt_and_s32, INT32,
    "{ .reg .pred r; .reg .b32 x; and.b32 x, %3, 1; setp.ne.u32 r, x, 0; set.lt.and.s32.s32 %0, %1, %2, r; }",
    (s32)a < (s32)b && (c & 1) ? 0xffffffff : 0)
X32(set_ge_f32_u32, INT32, "set.ge.f32.u32 %0, %1, %2;", a >= b ? 0x3f800000 : 0)

// ---- Floating point --------------------------------------------------------------------------------------------------

struct order {
    bool less, equal, greater, unordered;
};
static struct order order_of(double x, double y)
{
    return {x<y, x == y, x> y, x != x || y != y};
}
static struct order order_soft(const struct format *f, u32 a, u32 b, bool ftz)
{
    if (ftz) a = flush(f, a), b = flush(f, b);
    return order_of(decode(f, a), decode(f, b));
}
static struct order order_f64(u64 a, u64 b)
{
    double x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return order_of(x, y);
}

// MAKE(relation, expected of `struct order o`)
#define FLOAT_RELATIONS(MAKE)           \
    MAKE(eq, o.equal)                   \
    MAKE(ne, o.less || o.greater)       \
    MAKE(lt, o.less)                    \
    MAKE(le, o.less || o.equal)         \
    MAKE(gt, o.greater)                 \
    MAKE(ge, o.greater || o.equal)      \
    MAKE(equ, o.equal || o.unordered)   \
    MAKE(neu, !o.equal)                 \
    MAKE(ltu, o.less || o.unordered)    \
    MAKE(leu, !o.greater)               \
    MAKE(gtu, o.greater || o.unordered) \
    MAKE(geu, !o.less)                  \
    MAKE(num, !o.unordered)             \
    MAKE(nan, o.unordered)
#define WITH(ORDER, EXPECT)           \
    ({                                \
        const struct order o = ORDER; \
        EXPECT;                       \
    })
#define F32_RELATION(REL, EXPECT)                                                                            \
    X32(setp_##REL##_f32, F32, SETP(#REL ".f32"), WITH(order_soft(&format_f32, a, b, false), EXPECT))        \
    X32(setp_##REL##_ftz_f32, F32, SETP(#REL ".ftz.f32"), WITH(order_soft(&format_f32, a, b, true), EXPECT)) \
    X32(set_##REL##_u32_f32, F32, "set." #REL ".u32.f32 %0, %1, %2;",                                        \
        WITH(order_soft(&format_f32, a, b, false), EXPECT) ? 0xffffffff : 0)                                 \
    X32(set_##REL##_f32_f32, F32, "set." #REL ".f32.f32 %0, %1, %2;",                                        \
        WITH(order_soft(&format_f32, a, b, false), EXPECT) ? 0x3f800000 : 0)
#define F64_RELATION(REL, EXPECT)                                                \
    X64(setp_##REL##_f64, F64, SETP(#REL ".f64"), WITH(order_f64(a, b), EXPECT)) \
    X64(set_##REL##_u32_f64, F64, "set." #REL ".u32.f64 %0, %1, %2;",            \
        WITH(order_f64(a, b), EXPECT) ? 0xffffffff : 0)
#define F16_RELATION(REL, EXPECT)                                                                            \
    X16(setp_##REL##_f16, F16, SETP(#REL ".f16"), WITH(order_soft(&format_f16, a, b, false), EXPECT))        \
    X16(setp_##REL##_ftz_f16, F16, SETP(#REL ".ftz.f16"), WITH(order_soft(&format_f16, a, b, true), EXPECT)) \
    X16(set_##REL##_u32_f16, F16, "set." #REL ".u32.f16 %0, %1, %2;",                                        \
        WITH(order_soft(&format_f16, a, b, false), EXPECT) ? 0xffffffff : 0)                                 \
    X32(setp_##REL##_f16x2, F16X2,                                                                           \
        "{ .reg .pred p, q; .reg .b32 x, y; setp." #REL ".f16x2 p|q, %1, %2; selp.u32 x, 1, 0, p; "          \
        "selp.u32 y, 65536, 0, q; add.u32 %0, x, y; }",                                                      \
        HALVES(WITH(order_soft(&format_f16, x, y, false), EXPECT)))                                          \
    X32(set_##REL##_f16x2, F16X2, "set." #REL ".f16x2.f16x2 %0, %1, %2;",                                    \
        HALVES(WITH(order_soft(&format_f16, x, y, false), EXPECT) ? 0x3c00 : 0))                             \
    X32(set_##REL##_u32_f16x2, F16X2, "set." #REL ".u32.f16x2 %0, %1, %2;",                                  \
        HALVES(WITH(order_soft(&format_f16, x, y, false), EXPECT) ? 0xffff : 0))
#define BF16_RELATION(REL, EXPECT)                                                                        \
    X16(setp_##REL##_bf16, BF16, SETP(#REL ".bf16"), WITH(order_soft(&format_bf16, a, b, false), EXPECT)) \
    X32(setp_##REL##_bf16x2, BF16X2,                                                                      \
        "{ .reg .pred p, q; .reg .b32 x, y; setp." #REL ".bf16x2 p|q, %1, %2; selp.u32 x, 1, 0, p; "      \
        "selp.u32 y, 65536, 0, q; add.u32 %0, x, y; }",                                                   \
        HALVES(WITH(order_soft(&format_bf16, x, y, false), EXPECT)))                                      \
    X32(set_##REL##_bf16x2, BF16X2, "set." #REL ".bf16x2.bf16x2 %0, %1, %2;",                             \
        HALVES(WITH(order_soft(&format_bf16, x, y, false), EXPECT) ? 0x3f80 : 0))
FLOAT_RELATIONS(F32_RELATION)
FLOAT_RELATIONS(F64_RELATION)
FLOAT_RELATIONS(F16_RELATION)
FLOAT_RELATIONS(BF16_RELATION)

// ---- Selection -------------------------------------------------------------------------------------------------------

#define SELP(W, TYPE)                                                   \
    OP(selp_##TYPE, u##W, u##W, u##W, u32, INT##W, INT##W, INT32, BITS, \
       "{ .reg .pred p; setp.gt.s32 p, %3, 0; selp." #TYPE " %0, %1, %2, p; }", (s32)c > 0 ? a : b)
SELP(16, b16)
SELP(16, u16)
SELP(16, s16)
SELP(32, b32)
SELP(32, u32)
SELP(32, s32)
SELP(32, f32)
SELP(64, b64)
SELP(64, u64)
SELP(64, s64)
SELP(64, f64)
// slct: a where c >= 0, and for an f32 c with a NaN, b; -0 is >= 0.
#define SLCT(W, TYPE)                                                             \
    OP(slct_##TYPE##_s32, u##W, u##W, u##W, u32, INT##W, INT##W, INT32, BITS,     \
       "slct." #TYPE ".s32 %0, %1, %2, %3;", (s32)c >= 0 ? a : b)                 \
    OP(slct_##TYPE##_f32, u##W, u##W, u##W, u32, INT##W, INT##W, F32, BITS,       \
       "slct." #TYPE ".f32 %0, %1, %2, %3;", decode(&format_f32, c) >= 0 ? a : b) \
    OP(slct_##TYPE##_ftz_f32, u##W, u##W, u##W, u32, INT##W, INT##W, F32, BITS,   \
       "slct.ftz." #TYPE ".f32 %0, %1, %2, %3;", decode(&format_f32, flush(&format_f32, c)) >= 0 ? a : b)
SLCT(16, b16)
SLCT(16, u16)
SLCT(16, s16)
SLCT(32, b32)
SLCT(32, u32)
SLCT(32, s32)
SLCT(32, f32)
SLCT(64, b64)
SLCT(64, u64)
SLCT(64, s64)
SLCT(64, f64)

// ---- mov -------------------------------------------------------------------------------------------------------------

OP(mov_pack_32, u32, u16, u16, u16, INT16, INT16, INT16, BITS, "mov.b32 %0, {%1, %2};", (u32)b << 16 | a)
OP(mov_pack_64, u64, u32, u32, u32, INT32, INT32, INT32, BITS, "mov.b64 %0, {%1, %2};", (u64)b << 32 | a)
OP(mov_pack_64_of_4, u64, u16, u16, u16, INT16, INT16, INT16, BITS, "mov.b64 %0, {%1, %2, %3, %1};",
   (u64)a << 48 | (u64)c << 32 | (u64)b << 16 | a)
OP(mov_unpack_32, u16, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b16 x, y; mov.b32 {x, y}, %1; sub.u16 %0, x, y; }", (a & 0xffff) - (a >> 16))
OP(mov_unpack_64, u32, u64, u64, u64, INT64, INT64, INT64, BITS,
   "{ .reg .b32 x, y; mov.b64 {x, y}, %1; sub.u32 %0, x, y; }", (u32)a - (u32)(a >> 32))
OP(mov_sink, u32, u64, u64, u64, INT64, INT64, INT64, BITS, "mov.b64 {_, %0}, %1;", a >> 32)

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("compare");
}
