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
#ifdef __AVX2__
#include <immintrin.h>
#endif

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
    u32 each = 32 / width, special = 0;
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
    for (u32 i = 0; i < depth * TILE; i++) special |= (bits_of_f32(all[i]) & 0x7fffffff) >= 0x7f800000;
    t->special = special;
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
#if defined __AVX512BW__
enum { VECTOR_BYTES = 64 };
typedef __m512i host_vector;
#define HOST(operation) _mm512_##operation
#elif defined __AVX2__
enum { VECTOR_BYTES = 32 };
typedef __m256i host_vector;
#define HOST(operation) _mm256_##operation
#else
enum { VECTOR_BYTES = 16 };
#endif
typedef float floats __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef s32 ints __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef u32 words __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef s16 shorts __attribute__((vector_size(VECTOR_BYTES), may_alias));
enum { PARTS = TILE * sizeof(float) / VECTOR_BYTES };

#define INLINE static inline __attribute__((always_inline))

/* `a` where the mask is on, `b` where it is off. */
INLINE ints either(ints mask, ints a, ints b)
{
    return (a & mask) | (b & ~mask);
}
INLINE bool any_negative(ints a)
{
    s32 all = 0;
    for (u32 i = 0; i < VECTOR_BYTES / sizeof all; i++) all |= a[i];
    return all < 0;
}
/* The larger of each two; without the sign, which only -2^31 keeps. The host has instructions for these that gcc 12 does not
 * find for vectors in C. */
INLINE ints larger_ints(ints a, ints b)
{
#ifdef HOST
    return (ints)HOST(max_epi32)((host_vector)a, (host_vector)b);
#else
    return either(a > b, a, b);
#endif
}
INLINE shorts larger_shorts(shorts a, shorts b)
{
#ifdef HOST
    return (shorts)HOST(max_epi16)((host_vector)a, (host_vector)b);
#else
    shorts mask = a > b;
    return (a & mask) | (b & ~mask);
#endif
}
INLINE ints magnitude_of(ints a)
{
#ifdef HOST
    return (ints)HOST(abs_epi32)((host_vector)a);
#else
    return (a ^ a >> 31) - (a >> 31);
#endif
}

/* The largest exponent of each row's products in this column. */
INLINE void find_top(u32 depth, const struct operand_tile *a, const struct operand_tile *b, u32 column,
                     ints top[PARTS])
{
    shorts most[PARTS];
    for (u32 i = 0; i < PARTS; i++) most[i] = (shorts)(ints){0} + ZERO_EXPONENT;
    for (u32 k = 0; k < depth / 2; k++) {
        const shorts *row = (const shorts *)a->exponents[k];
        shorts e = (shorts)((ints){0} + (s32)b->exponents[k][column]);
        for (u32 i = 0; i < PARTS; i++) most[i] = larger_shorts(most[i], row[i] + e);
    }
    for (u32 i = 0; i < PARTS; i++) /* of the even and of the odd k's */
        top[i] = larger_ints((ints)most[i] >> 16, (ints)((words)most[i] << 16) >> 16);
}

/* Raises `top` to the exponent of C where that is larger. Negative in `unfit`: a number that counts may not be a normal one of
 * f32. */
INLINE void raise_top(ints top[PARTS], const float c[TILE], s32 smallest, ints *unfit)
{
    enum { LEAST = -95, MOST = 120 }; /* addends count from 2^(top - 25) on; their sum is below 2^(top + 6) */
    for (u32 i = 0; i < PARTS; i++) {
        ints bits = ((const ints *)c)[i] & INT32_MAX,
             e = larger_ints((bits >> 23) - 127, (ints){0} + smallest);
        e = larger_ints(top[i], either(bits == 0, (ints){0} + ZERO_EXPONENT, e));
        top[i] = e & (e > ZERO_EXPONENT / 2); /* all addends are zero: any `top` will do */
        *unfit |= (top[i] - LEAST) | (MOST - top[i]);
    }
}

/* Adds up C and the products of a column in units of 2^(top - F). They are exact in f32, and the conversion to an integer
 * cuts them. Negative in `unfit`: 32 bits do not hold the sum. */
INLINE void sum_column(const struct dot_rule rule, const struct operand_tile *a, const struct operand_tile *b,
                       u32 column, const float c[TILE], const ints top[PARTS], ints sum[PARTS], ints *unfit)
{
    floats scale[PARTS];
    words even[PARTS], odd[PARTS]; /* as if signed; numbers that do not fit may wrap around */
    for (u32 i = 0; i < PARTS; i++) {
        scale[i] = (floats)((127 + (s32)rule.fraction - top[i]) << 23);
        even[i] = (words) __builtin_convertvector(((const floats *)c)[i] * scale[i], ints);
        odd[i] = (words){0};
    }
#pragma GCC unroll 4
    for (u32 k = 0; k < rule.depth; k += 2) {
        const floats *p = (const floats *)a->value[k], *q = (const floats *)a->value[k + 1];
        float x = b->value[k][column], y = b->value[k + 1][column];
        for (u32 i = 0; i < PARTS; i++) {
            even[i] += (words) __builtin_convertvector(p[i] * x * scale[i], ints);
            odd[i] += (words) __builtin_convertvector(q[i] * y * scale[i], ints);
        }
    }
    for (u32 i = 0; i < PARTS; i++) { /* each half fits: at most 9 addends of less than 2^27 */
        words both = even[i] + odd[i];
        sum[i] = (ints)both;
        *unfit |= (ints)((even[i] ^ both) & (odd[i] ^ both)) | magnitude_of(sum[i]);
    }
}

/* Sums as f32, cut to `precision` fraction bits. With `odd`, the last bit is set where that cut a one off: rounding once more,
 * to a shorter format, then gives what rounding the sum itself would. */
INLINE ints cut_sum(const struct dot_rule rule, ints sum, ints top, bool odd)
{
    ints magnitude = magnitude_of(sum);
    floats nearest = __builtin_convertvector(magnitude, floats),
           unit = (floats)((127 - (s32)rule.fraction + top) << 23);
    ints beyond = (ints)((words) __builtin_convertvector(nearest, ints) - (words)magnitude);
    ints cut = (ints)nearest + (beyond > 0); /* a true comparison is -1 */
    if (odd) cut |= (ints)(beyond != 0) & 1;
    if (rule.precision < 23 && !odd) cut &= (s32)(~0u << (23 - rule.precision));
    return (ints)((floats)cut * unit) | (sum & INT32_MIN);
}

/* Nearest even; zero is +0. */
static inline u32 rounded_f16(float x)
{
    u32 f16 = f16_of_f32(x);
    return f16 & 0x7fff ? f16 : 0;
}

/* A column in 32-bit arithmetic. False, with nothing done, where that does not do. */
INLINE bool add_column(const struct dot_rule rule, const struct operand_tile *a, const struct operand_tile *b,
                       u32 column, const float c[TILE], u32 d[TILE])
{
    ints top[PARTS], sum[PARTS], unfit = {0};
    find_top(rule.depth, a, b, column, top);
    raise_top(top, c, rule.f16 ? -14 : -126, &unfit);
    sum_column(rule, a, b, column, c, top, sum, &unfit);
    if (any_negative(unfit)) return false;
    for (u32 i = 0; i < PARTS; i++) ((ints *)d)[i] = cut_sum(rule, sum[i], top[i], rule.f16);
    for (u32 i = 0; i < TILE && rule.f16; i++) d[i] = rounded_f16(f32_of_bits(d[i]));
    return true;
}

/* The rule that is used most is a constant, so that find_top's loop is unrolled. */
INLINE bool add_known_column(const struct dot_rule *rule, const struct operand_tile *a,
                             const struct operand_tile *b, u32 column, const float c[TILE], u32 d[TILE])
{
    const struct dot_rule often = {.depth = 16, .fraction = 25, .precision = 23};
    if (rule->depth == often.depth && rule->fraction == often.fraction && !rule->f16)
        return add_column(often, a, b, column, c, d);
    return add_column(*rule, a, b, column, c, d);
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
    u32 bits = cut_to_f32(x, 23), lost = (double)f32_of_bits(bits) != x;
    return rounded_f16(f32_of_bits(bits | lost));
}

/* The same for whatever numbers. */
static void sum_wide_column(const struct dot_rule *rule, const struct operand_tile *a,
                            const struct operand_tile *b, u32 column, const float c[TILE], u32 d[TILE])
{
    for (u32 i = 0; i < TILE; i++) {
        s32 top = larger(exponent_of(c[i], rule->f16 ? -14 : -126), LEAST_TOP);
        for (u32 k = 0; k < rule->depth; k++) {
            u32 shift = k % 2 * 16;
            top = larger(top, (s16)(a->exponents[k / 2][i] >> shift) +
                                  (s16)(b->exponents[k / 2][column] >> shift));
        }
        s32 up = (s32)rule->fraction - top;
        double scale = f64_of_bits((u64)(1023 + up) << 52);
        s64 sum = (s64)(c[i] * scale);
        for (u32 k = 0; k < rule->depth; k++)
            sum += (s64)((double)a->value[k][i] * b->value[k][column] * scale);
        double result = (double)sum * f64_of_bits((u64)(1023 - up) << 52);
        d[i] = rule->f16 ? round_to_f16(result) : cut_to_f32(result, rule->precision);
    }
}

/* An infinity or a NaN among the addends decides as IEEE 754 would. */
static void add_specials(const struct dot_rule *rule, const struct operand_tile *a,
                         const struct operand_tile *b, u32 column, const float c[TILE], u32 d[TILE])
{
    for (u32 i = 0; i < TILE; i++) {
        double sum = c[i];
        for (u32 k = 0; k < rule->depth; k++) sum += (double)a->value[k][i] * b->value[k][column];
        if (sum - sum == 0) continue; /* finite */
        d[i] = rule->f16 ? f16_of_f32((float)sum) : sum != sum ? NAN_F32 : bits_of_f32((float)sum);
    }
}

void dot_fused(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE])
{
    for (u32 n = 0; n < columns; n++) {
        float addend[TILE];
        for (u32 i = 0; i < TILE; i++) addend[i] = rule->f16 ? f32_of_f16(c[n][i]) : f32_of_bits(c[n][i]);
        bool fits = add_known_column(rule, a, b, n, addend, d[n]);
        if (!fits) sum_wide_column(rule, a, b, n, addend, d[n]);
        if (!fits || a->special || b->special) add_specials(rule, a, b, n, addend, d[n]);
    }
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
