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

/* ---- Decoding ------------------------------------------------------------------------------------------------- */

/* The element in the low bits of `bits`. Every format's values are f32 values. */
static inline __attribute__((always_inline)) float widen(enum element element, u32 bits)
{
    switch (element) {
    case ELEMENT_F16: return f32_of_f16(bits & 0xffff);
    case ELEMENT_BF16: return f32_of_bf16(bits & 0xffff);
    case ELEMENT_TF32: return f32_of_bits(bits & ~0x1fffu); /* the low 13 bits of the register are ignored */
    case ELEMENT_E5M2: return f32_of_f16((bits & 0xff) << 8);
    case ELEMENT_E4M3: break;
    }
    /* e4m3 has f16's shape with a bias less by 8 and no infinity: S.1111.111 is NaN. */
    u32 magnitude = bits & 0x7f, sign = (bits & 0x80) << 24;
    u32 finite = bits_of_f32(f32_of_bits(magnitude << 20) * 0x1p120f);
    return f32_of_bits(sign | (magnitude == 0x7f ? 0x7fc00000 : finite));
}

/* x in the format whose smallest exponent is `smallest`. */
static inline __attribute__((always_inline)) void split(float x, s32 smallest, float *mantissa, s32 *exponent)
{
    u32 bits = bits_of_f32(x);
    s32 e = (s32)(bits >> 23 & 0xff) - 127;
    bool normal = e >= smallest;
    float scaled = x * f32_of_bits((u32)(127 - smallest) << 23); /* x / 2^smallest */
    *mantissa = normal ? f32_of_bits((bits & 0x807fffff) | 0x3f800000) : scaled;
    *exponent = bits << 1 ? (normal ? e : smallest) : ZERO_EXPONENT;
}

static inline __attribute__((always_inline)) void decode(struct operand_tile *t, enum element element,
                                                         s32 smallest, const u32 (*words)[TILE], u32 depth)
{
    u32 width = element == ELEMENT_TF32   ? 32
                : element <= ELEMENT_BF16 ? 16
                                          : 8,
        each = 32 / width, special = 0;
    for (u32 k = 0; k < depth; k++)
        for (u32 i = 0; i < TILE; i++) {
            float x = widen(element, words[k / each][i] >> k % each * width);
            t->value[k][i] = x;
            split(x, smallest, &t->mantissa[k][i], &t->exponent[k][i]);
            special |= (bits_of_f32(x) & 0x7f800000) == 0x7f800000;
        }
    t->special = special;
}

void tile_decode(struct operand_tile *t, enum element element, bool as_f16, const u32 (*words)[TILE],
                 u32 depth)
{
    switch (element) {
    case ELEMENT_F16: decode(t, ELEMENT_F16, -14, words, depth); break;
    case ELEMENT_BF16: decode(t, ELEMENT_BF16, -126, words, depth); break;
    case ELEMENT_TF32: decode(t, ELEMENT_TF32, -126, words, depth); break;
    case ELEMENT_E5M2: decode(t, ELEMENT_E5M2, -14, words, depth); break;
    case ELEMENT_E4M3: decode(t, ELEMENT_E4M3, as_f16 ? -14 : -6, words, depth); break;
    }
}

/* ---- Adding up ------------------------------------------------------------------------------------------------- */

static inline s32 larger(s32 a, s32 b)
{
    return a > b ? a : b;
}

/* x * 2^shift cut to an integer. |x| < 4, so that below 2^-4 nothing is left. */
static inline s32 fixed_point(float x, s32 shift)
{
    return (s32)(x * f32_of_bits((u32)(127 + larger(shift, -4)) << 23));
}

/* x cut toward zero to `precision` fraction bits. Cutting is rounding, and a step back where that went too far. */
static inline u32 cut_to_f32(double x, u32 precision)
{
    double magnitude = f64_of_bits(bits_of_f64(x) & ~(1ull << 63));
    float nearest = (float)magnitude;
    u32 bits = bits_of_f32(nearest) - ((double)nearest > magnitude && magnitude < 0x1p128);
    bits &= ~0u << (23 - precision) | (bits == 0x7f800000 ? ~0u : 0);
    return bits ? bits | (u32)(bits_of_f64(x) >> 32 & 0x80000000) : 0;
}

/* x rounded to nearest by way of f32: cut, with the last bit set if that lost anything, so that rounding again is safe. */
static inline u32 round_to_f16(double x)
{
    u32 bits = cut_to_f32(x, 23), lost = (double)f32_of_bits(bits) != x,
        f16 = f16_of_f32(f32_of_bits(bits | lost));
    return f16 & 0x7fff ? f16 : 0;
}

static inline __attribute__((always_inline)) void fused_column(const struct dot_rule *rule, bool f16,
                                                               const struct operand_tile *a,
                                                               const struct operand_tile *b, u32 column,
                                                               const u32 c[TILE], u32 d[TILE])
{
    float addend[TILE], mantissa[TILE];
    s32 exponent[TILE], top[TILE], shift[TILE], even[TILE], odd[TILE] = {0};
    u32 special = a->special | b->special;
    for (u32 i = 0; i < TILE; i++) {
        addend[i] = f16 ? f32_of_f16(c[i]) : f32_of_bits(c[i]);
        split(addend[i], f16 ? -14 : -126, &mantissa[i], &exponent[i]);
        special |= (bits_of_f32(addend[i]) & 0x7f800000) == 0x7f800000;
        top[i] = larger(exponent[i], LEAST_TOP);
    }
    for (u32 k = 0; k < rule->depth; k++)
        for (u32 i = 0; i < TILE; i++) top[i] = larger(top[i], a->exponent[k][i] + b->exponent[k][column]);
    for (u32 i = 0; i < TILE; i++) {
        shift[i] = (s32)rule->fraction - top[i];
        even[i] = fixed_point(mantissa[i], exponent[i] + shift[i]);
    }
    for (u32 k = 0; k < rule->depth; k += 2)
        for (u32 i = 0; i < TILE; i++) {
            even[i] += fixed_point(a->mantissa[k][i] * b->mantissa[k][column],
                                   a->exponent[k][i] + b->exponent[k][column] + shift[i]);
            odd[i] += fixed_point(a->mantissa[k + 1][i] * b->mantissa[k + 1][column],
                                  a->exponent[k + 1][i] + b->exponent[k + 1][column] + shift[i]);
        }
    for (u32 i = 0; i < TILE; i++) {
        double sum = ((double)even[i] + (double)odd[i]) * f64_of_bits((u64)(1023 - shift[i]) << 52);
        d[i] = f16 ? round_to_f16(sum) : cut_to_f32(sum, rule->precision);
    }
    if (!special) return;
    for (u32 i = 0; i < TILE; i++) {
        double sum = addend[i];
        for (u32 k = 0; k < rule->depth; k++) sum += (double)a->value[k][i] * b->value[k][column];
        if (sum - sum == 0) continue; /* finite */
        d[i] = f16 ? f16_of_f32((float)sum) : sum != sum ? NAN_F32 : bits_of_f32((float)sum);
    }
}

void dot_fused(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE])
{
    if (rule->f16)
        for (u32 n = 0; n < columns; n++) fused_column(rule, true, a, b, n, c[n], d[n]);
    else
        for (u32 n = 0; n < columns; n++) fused_column(rule, false, a, b, n, c[n], d[n]);
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
