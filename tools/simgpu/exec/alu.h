/* alu.h: how arithmetic is written down. Families of arithmetic instructions are lists (integer.def, float.def): one
 * line an instruction, with its spelling in PTX, the types of its operands and its value as a C expression. A list is
 * read twice: OP as EXECUTOR makes a function of every line, OP as ROW makes the table that lowering searches. */
#ifndef ALU_H
#define ALU_H

#include "numeric.h"

/* ---- Types of operands ------------------------------------------------------------------------------------------- */

/* Registers are read and written as these, whatever type they were last used with. */
typedef u32 lane32 __attribute__((may_alias));
typedef u64 lane64 __attribute__((may_alias));

/* The operand type `name`: its lane in a register, the C type to compute with, the type of its immediates, and the
 * ways from a lane's bits and back. A result is settled when it is in its register: below. */
#define OPERAND_TYPE(name, lane, value, immediate, from_lane, to_lane)     \
    SETTLED_OPERAND_TYPE(name, lane, value, immediate, from_lane, to_lane) \
    static inline void name##_settle(lane to[LANES], u32 mask)             \
    {                                                                      \
        (void)to, (void)mask;                                              \
    }
#define SETTLED_OPERAND_TYPE(name, lane, value, immediate, from_lane, to_lane) \
    typedef lane name##_lane;                                                  \
    typedef value name##_value;                                                \
    enum { name##_type = immediate };                                          \
    static inline value name##_get(lane x)                                     \
    {                                                                          \
        return from_lane;                                                      \
    }                                                                          \
    static inline lane name##_put(value x)                                     \
    {                                                                          \
        return to_lane;                                                        \
    }

OPERAND_TYPE(u8, lane32, u32, T_U8, (u8)x, (u8)x)
OPERAND_TYPE(s8, lane32, s32, T_S8, (s8)x, (u8)x)
OPERAND_TYPE(u16, lane32, u32, T_U16, (u16)x, (u16)x)
OPERAND_TYPE(s16, lane32, s32, T_S16, (s16)x, (u16)x)
OPERAND_TYPE(u32, lane32, u32, T_U32, x, x)
OPERAND_TYPE(s32, lane32, s32, T_S32, (s32)x, (u32)x)
OPERAND_TYPE(u64, lane64, u64, T_U64, x, x)
OPERAND_TYPE(s64, lane64, s64, T_S64, (s64)x, (u64)x)

/* Floating point. A letter after the type: z flushes subnormal operands and results (.ftz), s saturates to [0, 1]
 * (.sat), r clamps negative results to 0 (.relu), d computes in double. */
static inline float flush_f32(float x)
{
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
}
static inline u32 flush_f16(u32 h)
{
    return h & 0x7c00 ? h : h & 0x8000;
}
static inline u32 flush_bf16(u32 h)
{
    return h & 0x7f80 ? h : h & 0x8000;
}
/* A result is flushed if it is below the smallest normal number once rounded as if exponents had no end: an H200 makes
 * 0 of 2^-126 * (1 - 2^-24), although as a subnormal that would round to 2^-126. So f32 results are looked at 2^64
 * times larger, where f32 has such an exponent; f16 results before they are rounded. */
static inline float flush_tiny(float result, float larger)
{
    return __builtin_fabsf(larger) < 0x1p-62f ? __builtin_copysignf(0, result) : result;
}
static inline u32 f16_flushed(float x)
{
    return __builtin_fabsf(x) < 0x1p-14f - 0x1p-26f ? bits_of_f32(x) >> 16 & 0x8000 : f16_of_f32(x);
}
static inline float saturate(float x)
{
    float positive = x > 0 ? x : 0;
    return positive < 1 ? positive : 1;
}
static inline double saturate_f64(double x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
static inline float relu(float x)
{
    return x <= 0 ? 0 : x;
}
static inline double relu_f64(double x)
{
    return x <= 0 ? 0 : x;
}

/* Whether one of 32 floats is NaN. */
static inline bool any_nan(const lane32 x[LANES])
{
#ifdef __AVX512F__
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), _CMP_UNORD_Q) != 0;
#else
    u32 found = 0;
    for (int i = 0; i < LANES; i++) found |= (u32)((s32)(x[i] & INT32_MAX) > 0x7f800000);
    return found;
#endif
}

/* NaN is NAN_F32. It is rare, and looked for when the result is in its register: so that what needs the result next has it at
 * once, as the host foresees that there is none. */
static inline void f32_settle(lane32 to[LANES], u32 mask)
{
    if (__builtin_expect(any_nan(to), 0))
        FOR_SOME_LANES(mask, if (f32_of_bits(to[i]) != f32_of_bits(to[i])) to[i] = NAN_F32;)
}
static inline void f32z_settle(lane32 to[LANES], u32 mask)
{
    f32_settle(to, mask);
}

SETTLED_OPERAND_TYPE(f32, lane32, float, T_F32, f32_of_bits(x), bits_of_f32(x))
SETTLED_OPERAND_TYPE(f32z, lane32, float, T_F32, flush_f32(f32_of_bits(x)), bits_of_f32(flush_f32(x)))
OPERAND_TYPE(f32s, lane32, float, T_F32, f32_of_bits(x), bits_of_f32(saturate(x)))
OPERAND_TYPE(f32zs, lane32, float, T_F32, flush_f32(f32_of_bits(x)), bits_of_f32(saturate(flush_f32(x))))
OPERAND_TYPE(f64, lane64, double, T_F64, f64_of_bits(x), bits_of_f64(x))
OPERAND_TYPE(f16, lane32, float, T_F16, f32_of_f16(x), f16_of_f32(x))
OPERAND_TYPE(f16z, lane32, float, T_F16, f32_of_f16(flush_f16(x)), f16_flushed(x))
OPERAND_TYPE(f16s, lane32, float, T_F16, f32_of_f16(x), f16_of_f32(saturate(x)))
OPERAND_TYPE(f16zs, lane32, float, T_F16, f32_of_f16(flush_f16(x)), f16_flushed(saturate(x)))
OPERAND_TYPE(f16r, lane32, float, T_F16, f32_of_f16(x), f16_of_f32(relu(x)))
OPERAND_TYPE(f16zr, lane32, float, T_F16, f32_of_f16(flush_f16(x)), f16_flushed(relu(x)))
OPERAND_TYPE(bf16, lane32, float, T_BF16, f32_of_bf16(x), bf16_of_f32(x))
OPERAND_TYPE(bf16z, lane32, float, T_BF16, f32_of_bf16(flush_bf16(x)), flush_bf16(bf16_of_f32(x)))
OPERAND_TYPE(bf16d, lane32, double, T_BF16, (double)f32_of_bf16(x), bf16_of_f32(f32_to_odd(x)))
OPERAND_TYPE(bf16dr, lane32, double, T_BF16, (double)f32_of_bf16(x), bf16_of_f32(relu(f32_to_odd(x))))

/* ---- Executors ----------------------------------------------------------------------------------------------------- */

#define EXECUTOR(name)       static void name(struct warp *w, const struct inst *in, u32 mask)
#define LANES_OF(type, p, o) type##_lane *p = lanes_of(w, o)
#define READ(type, x, p)     const type##_value x __attribute__((unused)) = type##_get(p[i])

#define EXECUTOR_UNARY(name, spelling, D, A, ...)                                                         \
    EXECUTOR_OF_LANES(name, LANES_OF(D, to, in->d); const LANES_OF(A, pa, in->a), D##_settle(to, mask), { \
        READ(A, a, pa);                                                                                   \
        to[i] = D##_put(__VA_ARGS__);                                                                     \
    })
#define EXECUTOR_BINARY(name, spelling, D, A, B, ...)                             \
    EXECUTOR_OF_LANES(name, LANES_OF(D, to, in->d); const LANES_OF(A, pa, in->a); \
                      const LANES_OF(B, pb, in->b), D##_settle(to, mask), {       \
                          READ(A, a, pa);                                         \
                          READ(B, b, pb);                                         \
                          to[i] = D##_put(__VA_ARGS__);                           \
                      })
#define EXECUTOR_TERNARY(name, spelling, D, A, B, C, ...)                                                 \
    EXECUTOR_OF_LANES(name, LANES_OF(D, to, in->d); const LANES_OF(A, pa, in->a);                         \
                      const LANES_OF(B, pb, in->b); const LANES_OF(C, pc, in->c), D##_settle(to, mask), { \
                          READ(A, a, pa);                                                                 \
                          READ(B, b, pb);                                                                 \
                          READ(C, c, pc);                                                                 \
                          to[i] = D##_put(__VA_ARGS__);                                                   \
                      })
#define EXECUTOR_QUATERNARY(name, spelling, D, A, B, C, E, ...)                   \
    EXECUTOR_OF_LANES(name, LANES_OF(D, to, in->d); const LANES_OF(A, pa, in->a); \
                      const LANES_OF(B, pb, in->b); const LANES_OF(C, pc, in->c); \
                      const LANES_OF(E, pd, in->more[0]), D##_settle(to, mask), { \
                          READ(A, a, pa);                                         \
                          READ(B, b, pb);                                         \
                          READ(C, c, pc);                                         \
                          READ(E, d, pd);                                         \
                          to[i] = D##_put(__VA_ARGS__);                           \
                      })

/* The same expression for both halves of a 32-bit lane. */
#define EXECUTOR_PACKED_UNARY(name, spelling, D, A, ...) \
    static inline u32 name##_half(A##_value a)           \
    {                                                    \
        return D##_put(__VA_ARGS__);                     \
    }                                                    \
    EXECUTOR_UNARY(name, spelling, u32, u32,             \
                   name##_half(A##_get(a & 0xffff)) | name##_half(A##_get(a >> 16)) << 16)
#define EXECUTOR_PACKED_BINARY(name, spelling, D, A, ...)                   \
    static inline u32 name##_half(A##_value a, A##_value b)                 \
    {                                                                       \
        return D##_put(__VA_ARGS__);                                        \
    }                                                                       \
    EXECUTOR_BINARY(name, spelling, u32, u32, u32,                          \
                    name##_half(A##_get(a & 0xffff), A##_get(b & 0xffff)) | \
                        name##_half(A##_get(a >> 16), A##_get(b >> 16)) << 16)
#define EXECUTOR_PACKED_TERNARY(name, spelling, D, A, ...)                                        \
    static inline u32 name##_half(A##_value a, A##_value b, A##_value c)                          \
    {                                                                                             \
        return D##_put(__VA_ARGS__);                                                              \
    }                                                                                             \
    EXECUTOR_TERNARY(name, spelling, u32, u32, u32, u32,                                          \
                     name##_half(A##_get(a & 0xffff), A##_get(b & 0xffff), A##_get(c & 0xffff)) | \
                         name##_half(A##_get(a >> 16), A##_get(b >> 16), A##_get(c >> 16)) << 16)

/* Extended precision: the expression has type `wide` and may use `carry`, the incoming flag; the bit above T's is the
 * outgoing flag, kept if the instruction has .cc. With two operands c is b again. */
#define EXECUTOR_CARRY(name, spelling, operands, T, wide, ...)        \
    EXECUTOR(name)                                                    \
    {                                                                 \
        LANES_OF(T, to, in->d);                                       \
        const LANES_OF(T, pa, in->a);                                 \
        const LANES_OF(T, pb, in->b);                                 \
        const LANES_OF(T, pc, in->c);                                 \
        u32 flags = predicate_of(w, in->more[0]), out = 0;            \
        for (int i = 0; i < LANES; i++) {                             \
            const u32 carry __attribute__((unused)) = flags >> i & 1; \
            READ(T, a, pa);                                           \
            READ(T, b, pb);                                           \
            READ(T, c, pc);                                           \
            const wide result = (__VA_ARGS__);                        \
            out |= (u32)(result >> (8 * sizeof a) & 1) << i;          \
            if (mask >> i & 1) to[i] = T##_put((T##_value)result);    \
        }                                                             \
        if (in->flags) set_predicate(w, in->more[0], mask, out);      \
        GO_ON(w, in, mask);                                           \
    }

/* ---- Comparisons --------------------------------------------------------------------------------------------------- */

/* Which lanes of a and b compare true: in the low word; of 16-bit pairs, the upper halves' in the high word. */
typedef u64 (*compare_fn)(const void *a, const void *b);

#define COMPARE_LANES(T, part, ...)                                       \
    for (int i = 0; i < LANES; i++) {                                     \
        const T##_value a = T##_get(part(pa[i]));                         \
        const T##_value b __attribute__((unused)) = T##_get(part(pb[i])); \
        truth[i] = -(s32)(__VA_ARGS__);                                   \
    }
#define WHOLE(x)      (x)
#define LOWER_HALF(x) ((x)&0xffff)
#define UPPER_HALF(x) ((x) >> 16)

/* The comparison, and an executor for setp with one destination; compare.c has the other forms. */
#define EXECUTOR_COMPARE(name, spelling, T, ...)                                                 \
    static inline u64 name##_bits(const void *va, const void *vb)                                \
    {                                                                                            \
        const T##_lane *pa = va, *pb = vb;                                                       \
        s32 truth[LANES];                                                                        \
        COMPARE_LANES(T, WHOLE, __VA_ARGS__)                                                     \
        return mask_of_lanes((const u32 *)truth);                                                \
    }                                                                                            \
    EXECUTOR(name)                                                                               \
    {                                                                                            \
        set_predicate(w, in->d, mask, (u32)name##_bits(lanes_of(w, in->a), lanes_of(w, in->b))); \
        GO_ON(w, in, mask);                                                                      \
    }
#define EXECUTOR_TEST(...) EXECUTOR_COMPARE(__VA_ARGS__) /* of a with itself */
#define EXECUTOR_PACKED_COMPARE(name, spelling, T, ...)              \
    static u64 name##_bits(const void *va, const void *vb)           \
    {                                                                \
        const T##_lane *pa = va, *pb = vb;                           \
        s32 truth[LANES];                                            \
        COMPARE_LANES(T, LOWER_HALF, __VA_ARGS__)                    \
        u32 lower = mask_of_lanes((const u32 *)truth);               \
        COMPARE_LANES(T, UPPER_HALF, __VA_ARGS__)                    \
        return lower | (u64)mask_of_lanes((const u32 *)truth) << 32; \
    }

/* ---- Rows and lowering ----------------------------------------------------------------------------------------------- */

struct rule {
    const char *spelling; /* one or more, separated by spaces; `rnd` stands for rn, rz, rm or rp */
    exec_fn exec;
    compare_fn compare;
    u8 sources;
    u8 dest, type[4]; /* enum type of the destination and the sources */
    bool carry;       /* reads the carry flag */
};
#define ROW_UNARY(name, spelling, D, A, ...) {spelling, name, NULL, 1, D##_type, {A##_type}, false},
#define ROW_BINARY(name, spelling, D, A, B, ...) \
    {spelling, name, NULL, 2, D##_type, {A##_type, B##_type}, false},
#define ROW_TERNARY(name, spelling, D, A, B, C, ...) \
    {spelling, name, NULL, 3, D##_type, {A##_type, B##_type, C##_type}, false},
#define ROW_QUATERNARY(name, spelling, D, A, B, C, E, ...) \
    {spelling, name, NULL, 4, D##_type, {A##_type, B##_type, C##_type, E##_type}, false},
#define ROW_PACKED_UNARY(name, spelling, ...)  {spelling, name, NULL, 1, T_B32, {T_B32}, false},
#define ROW_PACKED_BINARY(name, spelling, ...) {spelling, name, NULL, 2, T_B32, {T_B32, T_B32}, false},
#define ROW_PACKED_TERNARY(name, spelling, ...) \
    {spelling, name, NULL, 3, T_B32, {T_B32, T_B32, T_B32}, false},
#define ROW_CARRY(name, spelling, operands, T, ...) \
    {spelling, name, NULL, operands, T##_type, {T##_type, T##_type, T##_type}, true},
#define ROW_COMPARE(name, spelling, T, ...) \
    {spelling, name, name##_bits, 2, T_PRED, {T##_type, T##_type}, false},
#define ROW_TEST(name, spelling, T, ...) {spelling, name, NULL, 1, T_PRED, {T##_type}, false},
#define ROW_PACKED_COMPARE(name, spelling, T, ...) \
    {spelling, NULL, name##_bits, 2, T_PRED, {T_B32, T_B32}, false},

/* These end with a row of zeros. */
extern const struct rule integer_rules[], float_rules[], convert_rules[], compare_rules[];

/* The rule for an instruction spelled with these parts (opcode and modifiers; their order counts among types only), or
 * NULL. With `rounding`, a rule that says `rnd` will do, and *rounding is the mode asked for. */
const struct rule *rule_named(const char *const *part, u32 count, enum rounding *rounding);
/* The destination, checked to be a register as wide as `t`. */
bool lower_result(struct lowering *lo, const struct ptx_inst *p, const struct ptx_operand *o, enum type t,
                  operand *d);
/* lower_source for the operand types above, which ignore the rest of a lane: a register may be wider than `t`. */
operand lower_operand(struct lowering *lo, const struct ptx_operand *o, enum type t);
/* Makes `in` run with the host rounding that way: for f32 and f64 arithmetic, the host's is the GPU's. */
void round_toward(struct inst *in, enum rounding mode);

#endif
