/* accumulate.c: the tensor core's dot product, bit for bit as measured on an H200.
 *
 * All K products of an instruction and C are added in one step, in fixed point. Each addend is cut to a multiple of
 * 2^(top - F), where 2^top is the largest exponent among them; the sum is exact; the result is cut once more:
 *
 *   A, B elements    (-1)^s * mantissa * 2^e, mantissa in [1,2); a subnormal keeps the smallest e, mantissa in [0,1)
 *   product          mantissa in [0,4), e = e_a + e_b: neither normalised nor rounded
 *   top              max e over the products and C that are not zero, at least -133
 *
 *                     top                          top-F
 *   product 0     . . 1 0 1 1 0 1 0 0 1 1 0 . . . 0 1 |
 *   product 1     . . . . . . 1 1 0 1 0 1 1 . . . 1 0 | 1 1 0 1       dropped: toward zero
 *   C             . . . 1 0 0 1 0 0 0 0 0 0 . . . 0 0 | 1
 *
 *   D = f32          the sum cut toward zero to P fraction bits; too large: infinity
 *   D = f16          the sum rounded once, to nearest even
 *   zero             always +0;  NaN always 0x7fffffff, 0x7fff
 *
 * F = 25 and P = 23 for f16, bf16 and tf32; Hopper's wgmma on fp8 has F = P = 13. An infinity or NaN among the addends
 * decides the result as IEEE 754 would. (The structure is that of MMA-Sim, arXiv 2511.10909; PTX leaves it open.) */
#include "accumulate.h"

#include <string.h>

#include "numeric.h"

/* The exponent of zero: below any other, so that zeros never decide `top`. */
enum { ZERO_EXPONENT = -4096, LEAST_TOP = -133 };

static inline s32 larger(s32 a, s32 b)
{
    return a > b ? a : b;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) float widen(enum type element, u32 bits)
{
    switch (element) {
    case T_F16: return f32_of_f16(bits & 0xffff);
    case T_BF16: return f32_of_bf16(bits & 0xffff);
    case T_TF32: return f32_of_bits(bits & ~0x1fffu); /* the low 13 bits of the register are ignored */
    case T_E5M2: return f32_of_f16((bits & 0xff) << 8);
    case T_S8: return (s8)bits;
    case T_U8: return (u8)bits;
    default: break;
    }
    /* e4m3 has f16's shape with a bias less by 8 and no infinity: S.1111.111 is NaN. */
    u32 magnitude = bits & 0x7f, sign = (bits & 0x80) << 24;
    u32 finite = bits_of_f32(f32_of_bits(magnitude << 20) * 0x1p120f);
    return f32_of_bits(sign | (magnitude == 0x7f ? 0x7fc00000 : finite));
}

/* The exponent of x in the format whose smallest is `smallest`. */
static inline __attribute__((always_inline)) s32 exponent_of(float x, s32 smallest)
{
    u32 bits = bits_of_f32(x);
    s32 e = (s32)(bits >> 23 & 0xff) - 127;
    return bits << 1 ? larger(e, smallest) : ZERO_EXPONENT;
}

static inline __attribute__((always_inline)) void decode(struct operand_tile *t, enum type element, u32 width,
                                                         s32 smallest, const u32 (*words)[TILE], u32 depth)
{
    u32 each = 32 / width, special = 0, large = 0;
    for (u32 k = 0; k < depth; k += 2) {
        const u32 *low = words[k / each], *high = words[(k + 1) / each];
        for (u32 i = 0; i < TILE; i++) {
            float x = widen(element, low[i] >> k % each * width),
                  y = widen(element, high[i] >> (k + 1) % each * width);
            t->value[k][i] = x;
            t->value[k + 1][i] = y;
            u32 low_exponent = exponent_of(x, smallest) & 0xffff,
                high_exponent = (u32)exponent_of(y, smallest);
            t->exponents[k / 2][i] = low_exponent | high_exponent << 16;
        }
    }
    const float *all = (const float *)t->value;
    for (u32 i = 0; i < depth * TILE; i++) {
        u32 bits = bits_of_f32(all[i]) & 0x7fffffff;
        special |= bits >= 0x7f800000;
        large |= bits >= (127 + 61) << 23;
    }
    t->special = special;
    t->large = large;
}

void tile_decode(struct operand_tile *t, enum type element, bool as_f16, const u32 (*words)[TILE], u32 depth)
{
    switch (element) {
    case T_F16: decode(t, T_F16, 16, -14, words, depth); break;
    case T_BF16: decode(t, T_BF16, 16, -126, words, depth); break;
    case T_TF32: decode(t, T_TF32, 32, -126, words, depth); break;
    case T_E5M2: decode(t, T_E5M2, 8, -14, words, depth); break;
    case T_S8: decode(t, T_S8, 8, 0, words, depth); break;
    case T_U8: decode(t, T_U8, 8, 0, words, depth); break;
    default: decode(t, T_E4M3, 8, as_f16 ? -14 : -6, words, depth);
    }
}

/* ---- Adding up ------------------------------------------------------------------------------------------------- */

/* What one of this computer's vector instructions takes; a column of TILE rows is PARTS of these. */
#if defined __AVX512F__
enum { VECTOR_BYTES = 64 };
#elif defined __AVX2__
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
typedef float floats __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef s32 ints __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef s16 shorts __attribute__((vector_size(VECTOR_BYTES), may_alias));
enum { PARTS = TILE * sizeof(float) / VECTOR_BYTES };

/* The sums of up to 16 columns in flight. */
struct sums {
    _Alignas(64) float addend[TILE][TILE];
    s32 top[TILE][TILE], pair[TILE][TILE];
    float scale[TILE][TILE];
    s32 even[TILE][TILE],
        odd[TILE][TILE]; /* |addend| < 2^27: for all of them in one sum s32 would be too small */
    u32 special;
};

static inline __attribute__((always_inline)) void read_addends(struct sums *t, bool f16, u32 count,
                                                               const u32 *c)
{
    float *addend = (float *)t->addend;
    s32 *top = (s32 *)t->top;
    u32 special = 0;
    for (u32 i = 0; i < count; i++) {
        float x = f16 ? f32_of_f16(c[i]) : f32_of_bits(c[i]);
        addend[i] = x;
        top[i] = larger(exponent_of(x, f16 ? -14 : -126), LEAST_TOP);
        special |= (bits_of_f32(x) & 0x7f800000) == 0x7f800000;
    }
    t->special = special;
}

/* The largest exponent of each row's products in this column: of the even and of the odd k's, as a pair. */
static void find_top(u32 depth, const struct operand_tile *a, const struct operand_tile *b, u32 column,
                     s32 pair[TILE])
{
    shorts most[PARTS];
    for (u32 i = 0; i < PARTS; i++) most[i] = (shorts)(ints){0} + ZERO_EXPONENT;
    for (u32 k = 0; k < depth / 2; k++) {
        const shorts *row = (const shorts *)a->exponents[k];
        shorts e = (shorts)((ints){0} + (s32)b->exponents[k][column]);
        for (u32 i = 0; i < PARTS; i++) {
            shorts both = row[i] + e, raises = both > most[i];
            most[i] = (both & raises) | (most[i] & ~raises);
        }
    }
    memcpy(pair, most, sizeof most);
}

/* Raises `top`, which has C's exponents, to that of the largest addend. True when all products that count fit in f32. */
static bool find_scales(struct sums *t, s32 fraction, u32 count)
{
    const s32 *pair = (const s32 *)t->pair;
    s32 *top = (s32 *)t->top, least = 0;
    float *scale = (float *)t->scale;
    for (u32 i = 0; i < count; i++) {
        s32 e = larger(pair[i] >> 16, (s16)pair[i]), up;
        top[i] = larger(top[i], e);
        e = e > ZERO_EXPONENT / 2 ? e : 0; /* every product is zero */
        least = least < e ? least : e;
        up = fraction - top[i];
        scale[i] = f32_of_bits((u32)(127 + (up < 127 ? up : 127)) << 23);
    }
    return least > -95; /* f32's exponents end at -126, and what is less than 2^(top - 27) does not count */
}

/* Adds up the products of a column in units of 2^(top - F). They are exact, and the conversion to an integer cuts them. */
static void sum_products(u32 depth, struct sums *t, const struct operand_tile *a,
                         const struct operand_tile *b, u32 column)
{
    const floats *scale = (const floats *)t->scale[column];
    ints even[PARTS] = {{0}}, odd[PARTS] = {{0}};
    for (u32 k = 0; k < depth; k += 2) {
        const floats *p = (const floats *)a->value[k], *q = (const floats *)a->value[k + 1];
        float x = b->value[k][column], y = b->value[k + 1][column];
        for (u32 i = 0; i < PARTS; i++) {
            even[i] += __builtin_convertvector(p[i] * x * scale[i], ints);
            odd[i] += __builtin_convertvector(q[i] * y * scale[i], ints);
        }
    }
    memcpy(t->even[column], even, sizeof even);
    memcpy(t->odd[column], odd, sizeof odd);
}

/* The same where a product or the scale may be too large or too small for f32. */
static void sum_wide_products(const struct dot_rule *rule, struct sums *t, const struct operand_tile *a,
                              const struct operand_tile *b, u32 column)
{
    for (u32 i = 0; i < TILE; i++) {
        s32 even = 0, odd = 0;
        double scale = f64_of_bits((u64)(1023 + (s32)rule->fraction - t->top[column][i]) << 52);
        for (u32 k = 0; k < rule->depth; k += 2) {
            even += (s32)((double)a->value[k][i] * b->value[k][column] * scale);
            odd += (s32)((double)a->value[k + 1][i] * b->value[k + 1][column] * scale);
        }
        t->even[column][i] = even;
        t->odd[column][i] = odd;
    }
}

/* x cut toward zero to `precision` fraction bits. f32 has 29 fewer than f64; a subnormal is a multiple of 2^-149. */
static inline u32 cut_to_f32(double x, u32 precision)
{
    u64 magnitude = bits_of_f64(x) & ~(1ull << 63);
    u32 normal = bits_of_f32((float)f64_of_bits(magnitude & ~0ull << 29));
    u32 subnormal = (u32)(s32)(f64_of_bits(magnitude) * 0x1p149);
    u32 bits = (magnitude < 897ull << 52 ? subnormal : normal) & ~0u << (23 - precision);
    return bits ? bits | (u32)(bits_of_f64(x) >> 32 & 0x80000000) : 0;
}

/* x rounded to nearest by way of f32: cut, with the last bit set if that lost anything, so that rounding again is safe. */
static inline u32 round_to_f16(double x)
{
    u32 bits = cut_to_f32(x, 23), lost = (double)f32_of_bits(bits) != x,
        f16 = f16_of_f32(f32_of_bits(bits | lost));
    return f16 & 0x7fff ? f16 : 0;
}

static inline __attribute__((always_inline)) void
write_sums(const struct dot_rule *rule, const struct sums *t, bool f16, u32 count, u32 *restrict d)
{
    const float *addend = (const float *)t->addend;
    const s32 *top = (const s32 *)t->top, *even = (const s32 *)t->even, *odd = (const s32 *)t->odd;
    for (u32 i = 0; i < count; i++) {
        s32 up = (s32)rule->fraction - top[i];
        s32 c = (s32)(addend[i] * f64_of_bits((u64)(1023 + up) << 52));
        double sum = ((double)even[i] + (double)odd[i] + (double)c) * f64_of_bits((u64)(1023 - up) << 52);
        d[i] = f16 ? round_to_f16(sum) : cut_to_f32(sum, rule->precision);
    }
}

/* An infinity or a NaN among the addends decides as IEEE 754 would. */
static void add_specials(const struct dot_rule *rule, const struct operand_tile *a,
                         const struct operand_tile *b, u32 column, const float addend[TILE], u32 d[TILE])
{
    for (u32 i = 0; i < TILE; i++) {
        double sum = addend[i];
        for (u32 k = 0; k < rule->depth; k++) sum += (double)a->value[k][i] * b->value[k][column];
        if (sum - sum == 0) continue; /* finite */
        d[i] = rule->f16 ? f16_of_f32((float)sum) : sum != sum ? NAN_F32 : bits_of_f32((float)sum);
    }
}

void dot_fused(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE])
{
    struct sums t;
    u32 count = columns * TILE;
    if (rule->f16)
        read_addends(&t, true, count, (const u32 *)c);
    else
        read_addends(&t, false, count, (const u32 *)c);
    for (u32 n = 0; n < columns; n++) find_top(rule->depth, a, b, n, t.pair[n]);
    bool fits = find_scales(&t, (s32)rule->fraction, count) && !a->large && !b->large;
    for (u32 n = 0; n < columns; n++)
        if (fits)
            sum_products(rule->depth, &t, a, b, n);
        else
            sum_wide_products(rule, &t, a, b, n);
    if (rule->f16)
        write_sums(rule, &t, true, count, (u32 *)d);
    else
        write_sums(rule, &t, false, count, (u32 *)d);
    if (a->special || b->special || t.special)
        for (u32 n = 0; n < columns; n++) add_specials(rule, a, b, n, t.addend[n], d[n]);
}

void dot_exact(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE])
{
    for (u32 n = 0; n < columns; n++) {
        float sum[TILE];
        for (u32 i = 0; i < TILE; i++) sum[i] = rule->f16 ? f32_of_f16(c[n][i]) : f32_of_bits(c[n][i]);
        for (u32 k = 0; k < rule->depth; k++)
            for (u32 i = 0; i < TILE; i++) sum[i] = __builtin_fmaf(a->value[k][i], b->value[k][n], sum[i]);
        for (u32 i = 0; i < TILE; i++)
            d[n][i] = rule->f16 ? f16_of_f32(sum[i]) : sum[i] != sum[i] ? NAN_F32 : bits_of_f32(sum[i]);
    }
}

void dot_integers(u32 depth, bool saturate, const struct operand_tile *a, const struct operand_tile *b,
                  u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE])
{
    for (u32 n = 0; n < columns; n++) {
        floats sum[PARTS] = {{0}}; /* below 2^21: exact */
        float total[TILE];
        for (u32 k = 0; k < depth; k++)
            for (u32 i = 0; i < PARTS; i++) sum[i] += ((const floats *)a->value[k])[i] * b->value[k][n];
        memcpy(total, sum, sizeof total);
        for (u32 i = 0; i < TILE; i++) {
            s64 exact = (s64)(s32)total[i] + (s32)c[n][i];
            s64 inside = exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : exact;
            d[n][i] = (u32)(saturate ? inside : exact);
        }
    }
}
