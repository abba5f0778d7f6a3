/* integer.c: integer arithmetic, bits, logic, shifts and moves. What is a function of a lane's operands is in
 * integer.def; here are the functions those lines use, and the instructions whose operands are predicates or vectors. */
#include "alu.h"

#include <stdlib.h>

typedef unsigned __int128 u128;

/* ---- What integer.def calls -------------------------------------------------------------------------------------------- */

static inline s32 clamp_s32(s64 x)
{
    return (s32)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x);
}
static inline s32 positive(s32 x)
{
    return x > 0 ? x : 0;
}
static inline u32 high_u32(u32 a, u32 b)
{
    return (u32)((u64)a * b >> 32);
}
static inline s32 high_s32(s32 a, s32 b)
{
    return (s32)((s64)a * b >> 32);
}
static inline u64 high_u64(u64 a, u64 b)
{
    return (u64)((u128)a * b >> 64);
}
static inline s64 high_s64(s64 a, s64 b)
{
    return (s64)((__int128)a * b >> 64);
}
static inline u64 product_u24(u32 a, u32 b)
{
    return (u64)(a & 0xffffff) * (b & 0xffffff);
}
static inline s64 product_s24(s32 a, s32 b)
{
    return (s64)((s32)((u32)a << 8) >> 8) * ((s32)((u32)b << 8) >> 8);
}
/* Quotients in double, which vectorise: between two integers below 2^32 rounding cannot reach the next whole number. */
static inline u32 quotient_u32(u32 a, u32 b)
{
    return (u32)((double)a / (b ? b : 1));
}
static inline s32 quotient_s32(s32 a, s32 b)
{
    return (s32)(s64)((double)a / (b ? b : 1));
}
static inline u32 low_bits(u32 n)
{
    return n < 32 ? (1u << n) - 1 : ~0u;
}
static inline u32 highest_bit(u64 x)
{
    return x ? 63 - (u32)__builtin_clzll(x) : ~0u;
}
static inline u32 shift_from(u32 bit, u32 top)
{
    return bit == ~0u ? bit : top - bit;
}

static inline u32 reverse_u32(u32 x)
{
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}

/* The position of the n-th set bit of x from `base` on: upwards for n > 0, downwards for n < 0, base itself for 0. */
static inline u32 nth_set_bit(u32 x, u32 base, s32 n)
{
    if (n == 0) return base < 32 && x >> base & 1 ? base : ~0u;
    if (n == INT32_MIN) return 0; /* ptxas's code negates n */
    u32 left = n < 0 ? 0 - (u32)n : (u32)n;
    for (u32 at = base; at<32; at += n> 0 ? 1 : ~0u)
        if (x >> at & 1 && --left == 0) return at;
    return ~0u;
}

/* bfe: `length` bits of x from `position`; beyond its top, zeros or copies of its sign. x is extended to 64
 * bits. Of the 32-bit forms' position and length the low bytes count, of the 64-bit ones' everything. */
static inline u64 extract(u64 x, u32 position, u32 length, u32 width, bool is_signed)
{
    if (width == 32) position &= 255, length &= 255;
    if (length == 0) return 0;
    u32 unused = length < 64 ? 64 - length : 0;
    if (is_signed) return (u64)((s64)((u64)((s64)x >> (position < 63 ? position : 63)) << unused) >> unused);
    return position < width ? x >> position << unused >> unused : 0;
}

static inline u64 insert(u64 field, u64 x, u32 position, u32 length, u32 width)
{
    if (width == 32) position &= 255, length &= 255;
    u64 mask = length < 64 ? (1ull << length) - 1 : ~0ull;
    return position < width ? (x & ~(mask << position)) | (field & mask) << position : x;
}

/* The lowest n bits as a signed number. */
static inline u32 extend(u32 x, u32 n)
{
    return n ? (u32)((s32)(x << (32 - n)) >> (32 - n)) : 0;
}

static inline u32 byte_of(u32 x, int n, int is_signed)
{
    u32 byte = x >> 8 * n & 0xff;
    return is_signed ? (u32)(s8)byte : byte;
}
static inline u32 half_of(u32 x, int n, int is_signed)
{
    u32 half = x >> 16 * n & 0xffff;
    return is_signed ? (u32)(s16)half : half;
}
static inline u32 dot_bytes(u32 a, u32 b, int a_signed, int b_signed)
{
    u32 sum = 0;
    for (int n = 0; n < 4; n++) sum += byte_of(a, n, a_signed) * byte_of(b, n, b_signed);
    return sum;
}
static inline u32 dot_halves(u32 a, u32 b, int a_signed, int b_signed)
{
    return half_of(a, 0, a_signed) * byte_of(b, 0, b_signed) +
           half_of(a, 1, a_signed) * byte_of(b, 1, b_signed);
}

static inline u32 difference(u32 x, u32 y)
{
    return x > y ? x - y : y - x;
}
static inline u32 differences(u32 a, u32 b)
{
    u32 result = 0;
    for (int n = 0; n < 32; n += 8) result |= difference(a >> n & 0xff, b >> n & 0xff) << n;
    return result;
}

/* prmt: nibble n of `selector` names the byte of {b, a} that becomes byte n; its top bit asks for that byte's sign. */
static inline u32 selected_byte(u32 a, u32 b, u32 selector, int n)
{
    u32 s = selector >> 4 * n, byte = (s & 4 ? b : a) >> 8 * (s & 3) & 0xff;
    return (s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * n;
}
static inline u32 permute(u32 a, u32 b, u32 selector)
{
    return selected_byte(a, b, selector, 0) | selected_byte(a, b, selector, 1) |
           selected_byte(a, b, selector, 2) | selected_byte(a, b, selector, 3);
}
static inline u32 pick(u32 n, u32 zero, u32 one, u32 two, u32 three)
{
    return n & 2 ? (n & 1 ? three : two) : (n & 1 ? one : zero);
}

#define OP(shape, ...) EXECUTOR_##shape(__VA_ARGS__)
#include "integer.def"
#undef OP
#define OP(shape, ...) ROW_##shape(__VA_ARGS__)
const struct rule integer_rules[] = {
#include "integer.def"
    {NULL, NULL, NULL, 0, 0, {0}, false}};
#undef OP

/* ---- lop3: any function of three bits ------------------------------------------------------------------------------------ */

/* Bit 4a + 2b + c of `table` is the result for those bits of a, b and c. */
static inline u32 look_up(u32 table, u32 a, u32 b, u32 c)
{
    u32 row[8];
    for (int n = 0; n < 8; n++) row[n] = 0 - (table >> n & 1);
    u32 b0c = (row[0] & ~c) | (row[1] & c), b1c = (row[2] & ~c) | (row[3] & c);
    u32 a1b0c = (row[4] & ~c) | (row[5] & c), a1b1c = (row[6] & ~c) | (row[7] & c);
    return (((b0c & ~b) | (b1c & b)) & ~a) | (((a1b0c & ~b) | (a1b1c & b)) & a);
}
static inline void combine_bits(struct warp *w, const struct inst *in, u32 mask)
{
    LANES_OF(u32, to, in->d);
    const LANES_OF(u32, a, in->a);
    const LANES_OF(u32, b, in->b);
    const LANES_OF(u32, c, in->c);
    const u32 table = in->aux;
    FOR_LANES(mask, { to[i] = look_up(table, a[i], b[i], c[i]); });
}

EXECUTOR(lop3)
{
    combine_bits(w, in, mask);
    GO_ON(w, in, mask);
}

enum combine { COMBINE_NONE, COMBINE_AND, COMBINE_OR };
/* lop3.BoolOp d|p: p = (d != 0) BoolOp q */
EXECUTOR(lop3_predicate)
{
    combine_bits(w, in, mask);
    const LANES_OF(u32, d, in->d);
    u32 q = predicate_of(w, in->more[1]) ^ (u32)in->imm, set = 0;
    for (int i = 0; i < LANES; i++) set |= (u32)(d[i] != 0) << i;
    set_predicate(w, in->more[0], mask, in->flags == COMBINE_AND ? set & q : set | q);
    GO_ON(w, in, mask);
}

bool lower_lop3(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    bool and = has_mod(p, "and"), or = has_mod(p, "or"), combines = and || or ;
    if (p->mod_count != 1u + combines || !has_mod(p, "b32"))
        return refuse(lo, p, "lop3 is lop3{.and|.or}.b32");
    if (p->op_count != 5u + combines) return refuse(lo, p, "%u operands, not %u", p->op_count, 5 + combines);
    const struct ptx_operand *d = &p->op[0], *table = &p->op[4];
    if (table->imm > 255) return refuse(lo, p, "the table is not an immediate 0..255");
    if (combines) {
        if (d->kind != OPERAND_PAIR) return refuse(lo, p, "the destination is not d|p");
        operand *more = lower_more(lo, 2);
        u32 flip;
        more[0] = lower_dest(lo, &d->element[1], T_PRED);
        more[1] = lower_predicate(lo, &p->op[5], &flip);
        in->more = more;
        in->imm = flip;
        in->flags = and? COMBINE_AND : COMBINE_OR;
        d = &d->element[0];
    }
    if (d->kind == OPERAND_SINK)
        in->d = lower_temp(lo, 4);
    else if (!lower_result(lo, p, d, T_B32, &in->d))
        return false;
    in->a = lower_source(lo, &p->op[1], T_B32);
    in->b = lower_source(lo, &p->op[2], T_B32);
    in->c = lower_source(lo, &p->op[3], T_B32);
    in->aux = (u16)table->imm;
    in->exec = combines ? lop3_predicate : lop3;
    return true;
}

/* ---- and, or, xor, not of predicates -------------------------------------------------------------------------------------- */

static inline u32 flipped(struct warp *w, operand o, u32 flip)
{
    return predicate_of(w, o) ^ flip;
}
#define PREDICATE_OP(name, operator)                                                               \
    EXECUTOR(name)                                                                                 \
    {                                                                                              \
        u32 a = flipped(w, in->a, (u32)in->imm), b = flipped(w, in->b, (u32)((u64)in->imm >> 32)); \
        set_predicate(w, in->d, mask, a operator b);                                               \
        GO_ON(w, in, mask);                                                                        \
    }
PREDICATE_OP(and_pred, &)
PREDICATE_OP(or_pred, |)
PREDICATE_OP(xor_pred, ^)
EXECUTOR(copy_pred)
{
    set_predicate(w, in->d, mask, flipped(w, in->a, (u32)in->imm));
    GO_ON(w, in, mask);
}

bool lower_logic(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    if (p->mod_count != 1 || !has_mod(p, "pred")) return lower_by_rule(lo, p, in);
    bool is_not = streq(p->opcode, "not");
    u32 flip_a, flip_b = 0;
    if (!lower_result(lo, p, &p->op[0], T_PRED, &in->d)) return false;
    in->a = lower_predicate(lo, &p->op[1], &flip_a);
    if (is_not)
        flip_a = ~flip_a;
    else
        in->b = lower_predicate(lo, &p->op[2], &flip_b);
    in->imm = (s64)((u64)flip_b << 32 | flip_a);
    in->exec = is_not                    ? copy_pred
               : streq(p->opcode, "and") ? and_pred
               : streq(p->opcode, "or")  ? or_pred
                                         : xor_pred;
    return true;
}

/* ---- selp: a where c, else b ------------------------------------------------------------------------------------------------ */

#define SELECT(name, T)                                         \
    EXECUTOR(name)                                              \
    {                                                           \
        LANES_OF(T, to, in->d);                                 \
        const LANES_OF(T, a, in->a);                            \
        const LANES_OF(T, b, in->b);                            \
        const u32 c = predicate_of(w, in->c);                   \
        FOR_LANES(mask, { to[i] = c >> i & 1 ? a[i] : b[i]; }); \
        GO_ON(w, in, mask);                                     \
    }
SELECT(selp_32, u32)
SELECT(selp_64, u64)

bool lower_selp(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type t = mod_type(p, 0);
    u32 flip;
    if (p->mod_count != 1 || t == T_NONE || t == T_PRED || type_bytes(t) < 2 || type_bytes(t) > 8)
        return refuse(lo, p, "selp has one modifier, a type of 16, 32 or 64 bits");
    if (!lower_result(lo, p, &p->op[0], t, &in->d)) return false;
    in->c = lower_predicate(lo, &p->op[3], &flip);
    in->a = lower_source(lo, &p->op[flip ? 2 : 1], t);
    in->b = lower_source(lo, &p->op[flip ? 1 : 2], t);
    in->exec = type_bytes(t) == 8 ? selp_64 : selp_32;
    return true;
}

/* ---- mov ------------------------------------------------------------------------------------------------------------------------ */

typedef struct __attribute__((may_alias)) {
    u64 half[2];
} b128;
EXECUTOR_UNARY(mov_32, "", u32, u32, a)
EXECUTOR_UNARY(mov_64, "", u64, u64, a)
EXECUTOR(mov_128)
{
    b128 *to = lanes_of(w, in->d);
    const b128 *from = lanes_of(w, in->a);
    FOR_LANES(mask, { to[i] = from[i]; });
    GO_ON(w, in, mask);
}

/* Lane i of a register as a number, and back: `bytes` is 16, 8 or up to 4. */
static inline u128 read_lane(struct warp *w, operand o, u32 bytes, int i)
{
    u8 *lanes = lanes_of(w, o);
    if (bytes == 16) return ((b128 *)lanes)[i].half[0] | (u128)((b128 *)lanes)[i].half[1] << 64;
    return bytes == 8 ? ((lane64 *)lanes)[i] : ((lane32 *)lanes)[i];
}
static inline void write_lane(struct warp *w, operand o, u32 bytes, int i, u128 value)
{
    u8 *lanes = lanes_of(w, o);
    if (bytes == 16)
        ((b128 *)lanes)[i] = (b128){{(u64)value, (u64)(value >> 64)}};
    else if (bytes == 8)
        ((lane64 *)lanes)[i] = (u64)value;
    else
        ((lane32 *)lanes)[i] = (u32)value;
}
/* Elements of in->count parts of in->bytes each, the first lowest; in->aux is the whole's size. */
EXECUTOR(pack)
{
    u128 one = ((u128)1 << 8 * in->bytes) - 1;
    FOR_LANES(mask, {
        u128 whole = 0;
        for (u32 n = 0; n < in->count; n++)
            whole |= (read_lane(w, in->more[n], in->bytes, i) & one) << 8 * in->bytes * n;
        write_lane(w, in->d, in->aux, i, whole);
    });
    GO_ON(w, in, mask);
}
EXECUTOR(unpack)
{
    u128 one = ((u128)1 << 8 * in->bytes) - 1;
    FOR_LANES(mask, {
        u128 whole = read_lane(w, in->a, in->aux, i);
        for (u32 n = 0; n < in->count; n++)
            if (in->more[n] != NO_OPERAND)
                write_lane(w, in->more[n], in->bytes, i, whole >> 8 * in->bytes * n & one);
    });
    GO_ON(w, in, mask);
}
/* The vectors that compilers write all the time. */
EXECUTOR(pack_2x16)
{
    LANES_OF(u32, to, in->d);
    const LANES_OF(u32, a, in->a);
    const LANES_OF(u32, b, in->b);
    FOR_LANES(mask, { to[i] = (a[i] & 0xffff) | b[i] << 16; });
    GO_ON(w, in, mask);
}
EXECUTOR(pack_2x32)
{
    LANES_OF(u64, to, in->d);
    const LANES_OF(u32, a, in->a);
    const LANES_OF(u32, b, in->b);
    FOR_LANES(mask, { to[i] = a[i] | (u64)b[i] << 32; });
    GO_ON(w, in, mask);
}
EXECUTOR(unpack_2x16)
{
    LANES_OF(u32, low, in->d);
    LANES_OF(u32, high, in->b);
    const LANES_OF(u32, a, in->a);
    FOR_LANES(mask, {
        u32 whole = a[i];
        low[i] = whole & 0xffff;
        high[i] = whole >> 16;
    });
    GO_ON(w, in, mask);
}
EXECUTOR(unpack_2x32)
{
    LANES_OF(u32, low, in->d);
    LANES_OF(u32, high, in->b);
    const LANES_OF(u64, a, in->a);
    FOR_LANES(mask, {
        u64 whole = a[i];
        low[i] = (u32)whole;
        high[i] = (u32)(whole >> 32);
    });
    GO_ON(w, in, mask);
}

static bool lower_mov_vector(struct lowering *lo, const struct ptx_inst *p, struct inst *in, enum type t)
{
    bool packs = p->op[1].kind == OPERAND_VECTOR;
    const struct ptx_operand *vector = &p->op[packs ? 1 : 0];
    static const enum type of_bytes[] = {[1] = T_B8, [2] = T_B16, [4] = T_B32, [8] = T_B64};
    u32 bytes = vector->count ? type_bytes(t) / vector->count : 0;
    if ((vector->count != 2 && vector->count != 4) || bytes < 1)
        return refuse(lo, p, "a vector of %u", vector->count);
    operand *more = lower_more(lo, vector->count), whole = NO_OPERAND;
    for (u32 n = 0; n < vector->count; n++) {
        const struct ptx_operand *o = &vector->element[n];
        if (packs)
            more[n] = lower_source(lo, o, of_bytes[bytes]);
        else if (o->kind == OPERAND_SINK)
            more[n] = NO_OPERAND;
        else if (o->kind != OPERAND_REG || type_bytes(o->reg->type) != bytes)
            return refuse(lo, p, "element %u is not a register of %u bytes", n, bytes);
        else
            more[n] = lower_dest(lo, o, o->reg->type);
    }
    if (packs && !lower_result(lo, p, &p->op[0], t, &whole)) return false;
    if (!packs) whole = lower_source(lo, &p->op[1], t);
    in->more = more;
    in->count = (u8)vector->count;
    in->bytes = (u8)bytes;
    in->aux = (u16)type_bytes(t);
    in->d = packs ? whole : more[0];
    in->a = packs ? more[0] : whole;
    in->b = more[1];
    in->exec = packs ? pack : unpack;
    if (vector->count == 2 && packs && bytes == 2) in->exec = pack_2x16;
    if (vector->count == 2 && packs && bytes == 4) in->exec = pack_2x32;
    if (vector->count == 2 && !packs && more[0] != NO_OPERAND && more[1] != NO_OPERAND && more[0] != more[1])
        in->exec = bytes == 2 ? unpack_2x16 : bytes == 4 ? unpack_2x32 : unpack;
    return true;
}

bool lower_mov(struct lowering *lo, const struct ptx_inst *p, struct inst *in)
{
    enum type t = mod_type(p, 0);
    if (p->mod_count != 1 || t == T_NONE) return refuse(lo, p, "mov has one modifier, a type");
    if (p->op[0].kind == OPERAND_VECTOR || p->op[1].kind == OPERAND_VECTOR)
        return lower_mov_vector(lo, p, in, t);
    if (!lower_result(lo, p, &p->op[0], t, &in->d)) return false;
    if (t == T_PRED) {
        u32 flip;
        in->a = lower_predicate(lo, &p->op[1], &flip);
        in->imm = flip;
        in->exec = copy_pred;
        return true;
    }
    in->a = lower_source(lo, &p->op[1], t);
    in->exec = type_bytes(t) == 16 ? mov_128 : type_bytes(t) == 8 ? mov_64 : mov_32;
    return true;
}
