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

/* 8 rows or columns, as [k][i]. */
static inline __attribute__((always_inline)) void decode(struct column_tile *t, enum type element, u32 width,
                                                         s32 smallest, const u32 (*words)[TILE], u32 depth)
{
    u32 each = 32 / width, special = 0;
    for (u32 k = 0; k < depth; k += 2) {
        const u32 *low = words[k / each], *high = words[(k + 1) / each];
#pragma GCC unroll 1 /* one vector instruction, not eight others */
        for (u32 i = 0; i < TILE; i++) {
            float x = widen(element, low[i] >> k % each * width),
                  y = widen(element, high[i] >> (k + 1) % each * width);
            u32 low_exponent = exponent_of(x, smallest) & 0xffff,
                high_exponent = (u32)exponent_of(y, smallest);
            t->value[k][i] = x;
            t->value[k + 1][i] = y;
            t->exponents[k / 2][i] = low_exponent | high_exponent << 16;
        }
    }
    const float *all = (const float *)t->value;
    for (u32 i = 0; i < depth * TILE; i++) special |= (bits_of_f32(all[i]) & 0x7fffffff) >= 0x7f800000;
    t->special = special;
}

static void decode_tile(struct column_tile *t, enum type element, bool as_f16, const u32 (*words)[TILE],
                        u32 depth)
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

void decode_rows(struct row_tile *t, u32 half, enum type element, bool as_f16, const u32 (*words)[TILE],
                 u32 depth)
{
    struct column_tile once;
    decode_tile(&once, element, as_f16, words, depth);
    for (u32 k = 0; k < depth; k++)
        for (u32 l = 0; l < LANES; l++) t->value[k][half][l] = once.value[k][l / 4];
    for (u32 k = 0; k < depth / 2; k++)
        for (u32 l = 0; l < LANES; l++) t->exponents[k][half][l] = once.exponents[k][l / 4];
    t->special[half] = once.special;
}

void decode_columns(struct column_tile *t, enum type element, bool as_f16, const u32 (*words)[TILE],
                    u32 depth)
{
    u32 sorted[MAX_WORDS][TILE];
    for (u32 word = 0; word < MAX_WORDS; word++)
        for (u32 i = 0; i < TILE; i++) sorted[word][4 * (i % 2) + i / 2] = words[word][i];
    decode_tile(t, element, as_f16, sorted, depth);
}

/* ---- Adding up ------------------------------------------------------------------------------------------------- */

/* What one of this computer's vector instructions takes; the 32 lanes of a fragment are PARTS of these. */
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
/* In a register of the warp's. */
typedef s32 lane_ints __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
enum { PARTS = LANES * sizeof(float) / VECTOR_BYTES };

#define INLINE static inline __attribute__((always_inline))

/* Four columns' elements, for each row of a vector. */
INLINE ints repeat(const void *four)
{
#if defined __AVX512BW__
    return (ints)_mm512_broadcast_i32x4(_mm_load_si128(four));
#elif defined __AVX2__
    return (ints)_mm256_broadcastsi128_si256(_mm_load_si128(four));
#else
    return *(const ints *)four;
#endif
}
/* `a` where the mask is on, `b` where it is off. */
INLINE ints either(ints mask, ints a, ints b)
{
    return (a & mask) | (b & ~mask);
}
INLINE bool any_negative(ints a)
{
#if defined __AVX512BW__
    return _mm512_cmplt_epi32_mask((host_vector)a, (host_vector){0}) != 0;
#elif defined __AVX2__
    return _mm256_movemask_ps((__m256)a) != 0;
#else
    s32 all = 0;
    for (u32 i = 0; i < VECTOR_BYTES / sizeof all; i++) all |= a[i];
    return all < 0;
#endif
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
INLINE ints smaller_ints(ints a, ints b)
{
#ifdef HOST
    return (ints)HOST(min_epi32)((host_vector)a, (host_vector)b);
#else
    return either(a < b, a, b);
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
    ints negative = a < 0; /* -1 where it is */
    return (a ^ negative) - negative;
#endif
}

/* The largest exponent of each lane's products. */
INLINE void find_top(u32 depth, const struct row_tile *a, u32 half, const struct column_tile *b, u32 parity,
                     ints top[PARTS])
{
    shorts most[PARTS];
    for (u32 i = 0; i < PARTS; i++) most[i] = (shorts)(ints){0} + ZERO_EXPONENT;
    for (u32 k = 0; k < depth / 2; k++) {
        const shorts *row = (const shorts *)a->exponents[k][half];
        shorts e = (shorts)repeat(b->exponents[k] + 4 * parity);
        for (u32 i = 0; i < PARTS; i++) most[i] = larger_shorts(most[i], row[i] + e);
    }
    for (u32 i = 0; i < PARTS; i++) /* of the even and of the odd k's */
        top[i] = larger_ints((ints)most[i] >> 16, (ints)((words)most[i] << 16) >> 16);
}

/* Raises `top` to the exponent of C where that is larger. Negative in `unfit`: a number that counts may not be a normal one of
 * f32. */
INLINE void raise_top(const struct dot_rule rule, ints top[PARTS], const u32 *c, ints *unfit)
{
    enum { LEAST = -95, MOST = 120 }; /* addends count from 2^(top - 25) on; their sum is below 2^(top + 6) */
    ints low = {0}, high = {0};
    for (u32 i = 0; i < PARTS; i++) {
        ints bits = ((const lane_ints *)c)[i] & INT32_MAX, e = (bits >> 23) - 127;
        if (rule.f16) e = larger_ints(e, (ints){0} - 14);
        e = larger_ints(top[i], either(bits == 0, (ints){0} + ZERO_EXPONENT, e));
        top[i] = e & (e > ZERO_EXPONENT / 2); /* all addends are zero: any `top` will do */
        low = smaller_ints(low, top[i]);
        high = larger_ints(high, top[i]);
    }
    *unfit |= (low - LEAST) | (MOST - high);
}

/* Adds up C and the products in units of 2^(top - F). They are exact in f32, and the conversion to an integer cuts them.
 * Negative in `unfit`: 32 bits do not hold the sum. The products alone always fit: they are at most 16 of less than 2^27, or 32
 * of less than 2^15. */
INLINE void sum_products(const struct dot_rule rule, const struct row_tile *a, u32 half,
                         const struct column_tile *b, u32 parity, const u32 *c, const ints top[PARTS],
                         ints sum[PARTS], ints *unfit)
{
    floats scale[PARTS];
    words products[PARTS]; /* as if signed; numbers that do not fit may wrap around */
    for (u32 i = 0; i < PARTS; i++) {
        scale[i] = (floats)((127 + (s32)rule.fraction - top[i]) << 23);
        products[i] = (words){0};
    }
#pragma GCC unroll 4
    for (u32 k = 0; k < rule.depth; k++) {
        const floats *row = (const floats *)a->value[k][half];
        floats x = (floats)repeat(b->value[k] + 4 * parity);
        for (u32 i = 0; i < PARTS; i++)
            products[i] += (words) __builtin_convertvector(row[i] * x * scale[i], ints);
    }
    ints most = {0};
    for (u32 i = 0; i < PARTS; i++) {
        words addend = (words) __builtin_convertvector((floats)((const lane_ints *)c)[i] * scale[i], ints);
        sum[i] = (ints)(products[i] + addend);
        most = larger_ints(most, magnitude_of((ints)products[i]));
    }
    *unfit |= (ints)((words)most + (1u << 26)); /* C is less than that */
}

/* Sums as f32, cut to `precision` fraction bits. With `odd`, the last bit is set where that cut a one off: rounding once more,
 * to a shorter format, then gives what rounding the sum itself would. */
INLINE ints cut_sum(const struct dot_rule rule, ints sum, ints top, bool odd)
{
    ints magnitude = magnitude_of(sum);
    /* Without its 25th bit, and some below that, a number is not rounded up. */
    floats nearest = __builtin_convertvector(magnitude & ~(magnitude >> 24), floats),
           unit = (floats)((127 - (s32)rule.fraction + top) << 23);
    ints cut = (ints)nearest;
    if (odd) cut |= (ints)(__builtin_convertvector(nearest, ints) != magnitude) & 1;
    if (rule.precision < 23 && !odd) cut &= (s32)(~0u << (23 - rule.precision));
    return (ints)((floats)cut * unit) | (sum & INT32_MIN);
}

/* Nearest even; zero is +0. */
static inline u32 rounded_f16(float x)
{
    u32 f16 = f16_of_f32(x);
    return f16 & 0x7fff ? f16 : 0;
}

/* Four fragments in 32-bit arithmetic, `c` in f32; but for those, as a sum of 1 << q, where that does not do. One pass after the
 * other, so that this computer has something to do while it waits for the end of a fragment's. */
INLINE u32 add_fragments(const struct dot_rule rule, const struct row_tile *a, const struct column_tile *b,
                         const u32 *const c[4], u32 *const d[4])
{
    ints top[4][PARTS], sum[4][PARTS], unfit[4];
    u32 left = 0;
    for (u32 q = 0; q < 4; q++) {
        unfit[q] = (ints){0};
        find_top(rule.depth, a, q / 2, b, q % 2, top[q]);
        raise_top(rule, top[q], c[q], &unfit[q]);
    }
    for (u32 q = 0; q < 4; q++) sum_products(rule, a, q / 2, b, q % 2, c[q], top[q], sum[q], &unfit[q]);
    for (u32 q = 0; q < 4; q++) {
        if (any_negative(unfit[q])) {
            left |= 1u << q;
            continue;
        }
        for (u32 i = 0; i < PARTS; i++)
            ((lane_ints *)d[q])[i] = cut_sum(rule, sum[q][i], top[q][i], rule.f16);
        for (u32 l = 0; l < LANES && rule.f16; l++) d[q][l] = rounded_f16(f32_of_bits(d[q][l]));
    }
    return left;
}

/* The rule that is used most is a constant, so that find_top's loop is unrolled. */
INLINE u32 add_known_fragments(const struct dot_rule *rule, const struct row_tile *a,
                               const struct column_tile *b, const u32 *const c[4], u32 *const d[4])
{
    const struct dot_rule often = {.depth = 16, .fraction = 25, .precision = 23};
    if (rule->depth == often.depth && rule->fraction == often.fraction && !rule->f16)
        return add_fragments(often, a, b, c, d);
    return add_fragments(*rule, a, b, c, d);
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
static void sum_wide(const struct dot_rule *rule, const struct row_tile *a, u32 half,
                     const struct column_tile *b, u32 parity, const u32 *c, u32 *d)
{
    for (u32 l = 0; l < LANES; l++) {
        float addend = f32_of_bits(c[l]);
        s32 top = larger(exponent_of(addend, rule->f16 ? -14 : -126), LEAST_TOP);
        for (u32 k = 0; k < rule->depth; k++) {
            u32 shift = k % 2 * 16;
            top = larger(top, (s16)(a->exponents[k / 2][half][l] >> shift) +
                                  (s16)(b->exponents[k / 2][4 * parity + l % 4] >> shift));
        }
        s32 up = (s32)rule->fraction - top;
        double scale = f64_of_bits((u64)(1023 + up) << 52);
        u64 sum =
            (u64)(s64)(addend * scale); /* unsigned: what an infinity or a NaN makes of it may wrap around */
        for (u32 k = 0; k < rule->depth; k++)
            sum += (u64)(s64)((double)a->value[k][half][l] * b->value[k][4 * parity + l % 4] * scale);
        double result = (double)(s64)sum * f64_of_bits((u64)(1023 - up) << 52);
        d[l] = rule->f16 ? round_to_f16(result) : cut_to_f32(result, rule->precision);
    }
}

/* An infinity or a NaN among the addends decides as IEEE 754 would. */
static void add_specials(const struct dot_rule *rule, const struct row_tile *a, u32 half,
                         const struct column_tile *b, u32 parity, const u32 *c, u32 *d)
{
    for (u32 l = 0; l < LANES; l++) {
        double sum = f32_of_bits(c[l]);
        for (u32 k = 0; k < rule->depth; k++)
            sum += (double)a->value[k][half][l] * b->value[k][4 * parity + l % 4];
        if (sum - sum == 0) continue; /* finite */
        d[l] = rule->f16 ? f16_of_f32((float)sum) : sum != sum ? NAN_F32 : bits_of_f32((float)sum);
    }
}

void dot_fused(const struct dot_rule *rule, const struct row_tile *a, const struct column_tile *b,
               const u32 *const c[4], u32 *const d[4])
{
    u32 wide[4][LANES];
    const u32 *addend[4] = {c[0], c[1], c[2], c[3]};
    for (u32 q = 0; q < 4 && rule->f16; q++) {
        for (u32 l = 0; l < LANES; l++) wide[q][l] = bits_of_f32(f32_of_f16(c[q][l]));
        addend[q] = wide[q];
    }
    bool special = a->special[0] || a->special[1] || b->special;
    u32 left = special ? 0xf : add_known_fragments(rule, a, b, addend, d);
    for (u32 q = 0; q < 4 && left; q++) {
        u32 before[LANES]; /* c may be d */
        if (!(left >> q & 1)) continue;
        memcpy(before, addend[q], sizeof before);
        sum_wide(rule, a, q / 2, b, q % 2, before, d[q]);
        add_specials(rule, a, q / 2, b, q % 2, before, d[q]);
    }
}

void dot_exact(const struct dot_rule *rule, const struct row_tile *a, const struct column_tile *b,
               const u32 *const c[4], u32 *const d[4])
{
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++) {
            float sum = rule->f16 ? f32_of_f16(c[q][l]) : f32_of_bits(c[q][l]);
            for (u32 k = 0; k < rule->depth; k++)
                sum = __builtin_fmaf(a->value[k][q / 2][l], b->value[k][4 * (q % 2) + l % 4], sum);
            d[q][l] = rule->f16 ? f16_of_f32(sum) : sum != sum ? NAN_F32 : bits_of_f32(sum);
        }
}

void dot_integers(u32 depth, bool saturate, const struct row_tile *a, const struct column_tile *b,
                  const u32 *const c[4], u32 *const d[4])
{
    for (u32 q = 0; q < 4; q++) {
        float total[LANES] = {0}; /* below 2^21: exact */
        for (u32 k = 0; k < depth; k++)
            for (u32 l = 0; l < LANES; l++)
                total[l] += a->value[k][q / 2][l] * b->value[k][4 * (q % 2) + l % 4];
        for (u32 l = 0; l < LANES; l++) {
            s64 exact = (s64)(s32)total[l] + (s32)c[q][l];
            s64 inside = exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : exact;
            d[q][l] = (u32)(saturate ? inside : exact);
        }
    }
}
