/* numeric.h: number formats: bits to values and values to bits, in every format and rounding of PTX.
 *
 * The common conversions are inline and free of branches, so that a loop over lanes vectorises. All of them assume
 * that the host rounds to nearest, which it does except inside `in_rounding_mode` (alu.c), where only f32 and f64
 * arithmetic runs. */
#ifndef NUMERIC_H
#define NUMERIC_H

#include "../front/ptx.h"

enum rounding { TO_NEAREST, TO_ZERO, DOWN, UP, TO_NEAREST_AWAY };

/* Arithmetic that yields NaN yields this one (PTX ISA, Floating Point Instructions). */
enum { NAN_F32 = 0x7fffffff, NAN_F16 = 0x7fff, NAN_BF16 = 0x7fff };
#define NAN_F64 0xfff8000000000000u /* unless an operand was NaN: that one passes, made quiet */

static inline u32 bits_of_f32(float x)
{
    u32 bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float f32_of_bits(u32 bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
static inline u64 bits_of_f64(double x)
{
    u64 bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double f64_of_bits(u64 bits)
{
    double x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- f16, bf16, e5m2, e4m3 to and from f32 ------------------------------------------------------------------------------- */

static inline float f32_of_f16(u32 h)
{
    u32 magnitude = h & 0x7fff, sign = (h & 0x8000) << 16;
    u32 bits =
        bits_of_f32(f32_of_bits(magnitude << 13) * 0x1p112f); /* moves the exponent, normalises subnormals */
    return f32_of_bits(sign | (magnitude >= 0x7c00 ? 0x7f800000 | magnitude << 13 : bits));
}
static inline u32 f16_of_f32(float x)
{
    u32 bits = bits_of_f32(x) & 0x7fffffff, sign = bits_of_f32(x) >> 16 & 0x8000;
    u32 normal = (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    u32 subnormal = bits_of_f32(f32_of_bits(bits) + 0.5f) - 0x3f000000; /* the sum is a multiple of 2^-24 */
    u32 finite = bits < 113 << 23 ? subnormal : bits < 0x477ff000 ? normal : 0x7c00;
    return bits > 0x7f800000 ? NAN_F16 : sign | finite;
}
static inline float f32_of_bf16(u32 h)
{
    return f32_of_bits(h << 16);
}
static inline u32 bf16_of_f32(float x)
{
    u32 bits = bits_of_f32(x);
    return x != x ? NAN_BF16 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* The upper half of an f16 is an e5m2. An e4m3 has its exponent 8 lower and the code of the largest number is NaN. */
static inline float f32_of_e5m2(u32 byte)
{
    return f32_of_f16((byte & 0xff) << 8);
}
static inline float f32_of_e4m3(u32 byte)
{
    u32 magnitude = byte & 0x7f;
    return magnitude == 0x7f ? f32_of_bits(NAN_F32)
                             : f32_of_f16((byte & 0x80) << 8 | magnitude << 7) * 0x1p8f;
}

/* ---- Any format ---------------------------------------------------------------------------------------------------- */

/* `width` bits: a sign, an exponent, `mantissa` bits; subnormals below 2^min_exponent. `infinity` is what overflow
 * becomes (e4m3 has none: NaN). */
struct format {
    int width, mantissa, min_exponent;
    u32 max_finite, infinity, nan;
};
static const struct format FORMAT_F32 = {32, 23, -126, 0x7f7fffff, 0x7f800000, NAN_F32};
static const struct format FORMAT_TF32 = {19,      10,      -126,
                                          0x3fbff, 0x3fc00, 0x3ffff}; /* the upper 19 bits of an f32 */
static const struct format FORMAT_BF16 = {16, 7, -126, 0x7f7f, 0x7f80, NAN_BF16};
static const struct format FORMAT_F16 = {16, 10, -14, 0x7bff, 0x7c00, NAN_F16};
static const struct format FORMAT_E5M2 = {8, 2, -14, 0x7b, 0x7c, 0x7f};
static const struct format FORMAT_E4M3 = {8, 3, -6, 0x7e, 0x7f, 0x7f};

/* x, rounded once, as the bits of a format. NaN becomes the format's canonical NaN; with `satfinite` overflow and
 * infinity become the largest finite value. */
static inline __attribute__((always_inline)) u32 format_encode(struct format f, double x, enum rounding mode,
                                                               bool satfinite)
{
    const u64 magnitude = bits_of_f64(x) & ~(1ull << 63), negative = bits_of_f64(x) >> 63,
              infinity = 0x7ffull << 52;
    const u64 huge = (1023ull + 200) << 52, finite = magnitude < huge ? magnitude : huge;
    s64 exponent = (s64)(finite >> 52) - 1023;
    exponent = exponent < f.min_exponent ? f.min_exponent : exponent;
    /* |x| in units of the result's last place, exactly; an exponent and a mantissa side by side add up to its bits */
    const double units = f64_of_bits(finite) * f64_of_bits((u64)(1023 + f.mantissa - exponent) << 52);
    const u64 whole = (u64)units;
    const double rest = units - (double)whole;
    const u64 more = rest > 0.5, half = rest == 0.5, some = rest > 0;
    const u64 up = mode == TO_NEAREST        ? more | (half & whole & 1)
                   : mode == TO_NEAREST_AWAY ? more | half
                   : mode == UP              ? some & ~negative
                   : mode == DOWN            ? some & negative
                                             : 0;
    const u32 overflow = satfinite || mode == TO_ZERO ? f.max_finite
                         : mode == UP                 ? (negative ? f.max_finite : f.infinity)
                         : mode == DOWN               ? (negative ? f.infinity : f.max_finite)
                                                      : f.infinity;
    u64 bits = ((u64)(exponent - f.min_exponent) << f.mantissa) + whole + up;
    bits = bits > f.max_finite ? overflow : bits;
    if (overflow != f.infinity && !satfinite) bits = magnitude == infinity ? f.infinity : bits;
    bits |= negative << (f.width - 1);
    const u64 is_nan =
        0 - (u64)(magnitude > infinity); /* a mask: with a branch here gcc would not vectorise */
    return (u32)((bits & ~is_nan) | (f.nan & is_nan));
}
/* Rounded to odd: exact, or the neighbour whose last bit is set. Rounding that once more, to a format at least two bits
 * shorter, gives what rounding the exact value would. */
static inline double add_to_odd(double a, double b)
{
    double sum = a + b, b_part = sum - a, error = (a - (sum - b_part)) + (b - b_part);
    u64 bits = bits_of_f64(sum), inexact = (error > 0) | (error < 0), grows = (error > 0) == (sum > 0);
    return f64_of_bits(bits + (inexact & ~bits & 1) * (2 * grows - 1));
}
static inline float add_to_odd_f32(float a, float b)
{
    float sum = a + b, b_part = sum - a, error = (a - (sum - b_part)) + (b - b_part);
    u32 bits = bits_of_f32(sum), inexact = (error > 0) | (error < 0), grows = (error > 0) == (sum > 0);
    return f32_of_bits(bits + (inexact & ~bits & 1) * (2 * grows - 1));
}
static inline float f32_to_odd(double x)
{
    float nearest = (float)x;
    u32 bits = bits_of_f32(nearest), inexact = ((double)nearest < x) | ((double)nearest > x);
    u32 grows = ((double)nearest < x) == (x > 0);
    return f32_of_bits(bits + (inexact & ~bits & 1) * (2 * grows - 1));
}
static inline double f64_of_u64_to_odd(u64 x)
{
    return x >> 53 ? 0x1p11 * (double)(x >> 11 | ((x & 0x7ff) != 0)) : (double)x;
}

#endif
