// reference_float.h: floating-point results in software, on bits, for every format narrower than f64.
//
// An operation is done in double and rounded once to the format. The double is exact, or "rounded to odd": truncated,
// with its last bit set when something was cut off. As double has more than two bits beyond the widest format here,
// rounding that again gives what rounding the exact value would have given (Boldo and Melquiond, 2008).
#ifndef REFERENCE_FLOAT_H
#define REFERENCE_FLOAT_H

#include "../check.h"
#include <fenv.h>

struct format {
    int exponent_bits, mantissa_bits;
    u32 nan; // the NaN that arithmetic gives
};
static const struct format format_f32 = {8, 23, 0x7fffffff}, format_f16 = {5, 10, 0x7fff},
                           format_bf16 = {8, 7, 0x7fff};

enum rounding { RN, RZ, RM, RP, RNA }; // nearest even, to zero, down, up, nearest with ties away from zero

static inline u32 infinity_bits(const struct format *f)
{
    return ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
}
static inline u32 sign_bit(const struct format *f)
{
    return 1u << (f->exponent_bits + f->mantissa_bits);
}
static inline u32 magnitude_bits(const struct format *f, u32 x)
{
    return x & (sign_bit(f) - 1);
}
static inline bool is_nan(const struct format *f, u32 x)
{
    return magnitude_bits(f, x) > infinity_bits(f);
}
static inline bool is_subnormal(const struct format *f, u32 x)
{
    return magnitude_bits(f, x) && magnitude_bits(f, x) >> f->mantissa_bits == 0;
}
static inline u32 flush(const struct format *f, u32 x)
{
    return is_subnormal(f, x) ? x & sign_bit(f) : x;
}

static inline double decode(const struct format *f, u32 x)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const int exponent = (int)(magnitude_bits(f, x) >> f->mantissa_bits);
    const double mantissa = x & ((1u << f->mantissa_bits) - 1), hidden = 1u << f->mantissa_bits;
    double magnitude =
        ldexp(exponent ? hidden + mantissa : mantissa, (exponent ? exponent : 1) - bias - f->mantissa_bits);
    if (magnitude_bits(f, x) == infinity_bits(f)) magnitude = HUGE_VAL;
    if (is_nan(f, x)) magnitude = nan("");
    return x & sign_bit(f) ? -magnitude : magnitude;
}

// The bits of x, exact or rounded to odd, in the format.
static inline u32 encode(const struct format *f, double x, enum rounding rounding)
{
    if (x != x) return f->nan;
    const bool negative = signbit(x);
    const u32 sign = negative ? sign_bit(f) : 0;
    if (x == 0) return sign;
    if (isinf(x)) return sign | infinity_bits(f);
    const int least = 2 - (1 << (f->exponent_bits - 1)); // exponent of the smallest normal number
    const int exponent = ilogb(x) < least ? least : ilogb(x);
    const double scaled = ldexp(fabs(x), f->mantissa_bits - exponent), whole = floor(scaled),
                 rest = scaled - whole;
    bool up = false;
    switch (rounding) {
    case RN: up = rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0); break;
    case RNA: up = rest >= 0.5; break;
    case RZ: break;
    case RM: up = negative && rest > 0; break;
    case RP: up = !negative && rest > 0; break;
    }
    const u64 bits = ((u64)(exponent - least) << f->mantissa_bits) + (u64)whole + up;
    if (bits < infinity_bits(f)) return sign | (u32)bits;
    const bool to_infinity =
        rounding == RN || rounding == RNA || (rounding == RM && negative) || (rounding == RP && !negative);
    return sign | (infinity_bits(f) - !to_infinity);
}

// a * b + c rounded to odd. The sign of an exact zero follows the rounding mode, as in IEEE 754.
static inline double fma_to_odd(double a, double b, double c, enum rounding rounding)
{
    volatile double x = a, y = b, z = c;
    fesetround(FE_TOWARDZERO);
    feclearexcept(FE_ALL_EXCEPT);
    volatile double sum = fma(x, y, z);
    const bool inexact = fetestexcept(FE_INEXACT) != 0;
    fesetround(rounding == RM ? FE_DOWNWARD : FE_TONEAREST);
    if (sum == 0 && !inexact) sum = fma(x, y, z);
    fesetround(FE_TONEAREST);
    double odd = sum;
    u64 bits;
    memcpy(&bits, &odd, sizeof bits);
    if (inexact) bits |= 1;
    memcpy(&odd, &bits, sizeof bits);
    return odd;
}

enum { FTZ = 1, SAT = 2, RELU = 4 };

// What .sat and .relu make of a result.
static inline u32 finish(const struct format *f, u32 x, int flags)
{
    if (flags & SAT) {
        const u32 one = (infinity_bits(f) >> (f->mantissa_bits + 1)) << f->mantissa_bits;
        if (is_nan(f, x) || x & sign_bit(f)) return 0;
        if (x > one) return one;
    }
    if (flags & RELU && x & sign_bit(f) && !is_nan(f, x)) return 0;
    return x;
}

// The bits of x, exact or rounded to odd, in the format. With .ftz a result is flushed when it is below the smallest normal
// number once rounded as if exponents had no end: an H200 makes 0 of 0x00800000 * 0x3f7fffff, though that as a subnormal
// would round to 0x00800000.
static inline u32 result(const struct format *f, double x, enum rounding rounding, int flags)
{
    if (flags & FTZ && x != 0 && isfinite(x)) {
        const int exponent = ilogb(x);
        const double rounded = ldexp(decode(f, encode(f, ldexp(x, -exponent), rounding)), exponent);
        if (fabs(rounded) < ldexp(1, 2 - (1 << (f->exponent_bits - 1)))) x = copysign(0, x);
    }
    return finish(f, encode(f, x, rounding), flags);
}

static inline u32 soft_fma(const struct format *f, u32 a, u32 b, u32 c, enum rounding rounding, int flags)
{
    if (flags & FTZ) a = flush(f, a), b = flush(f, b), c = flush(f, c);
    return result(f, fma_to_odd(decode(f, a), decode(f, b), decode(f, c), rounding), rounding, flags);
}
static inline u32 soft_add(const struct format *f, u32 a, u32 b, enum rounding rounding, int flags)
{
    const u32 one = (infinity_bits(f) >> (f->mantissa_bits + 1)) << f->mantissa_bits;
    return soft_fma(f, a, one, b, rounding, flags);
}
static inline u32 soft_sub(const struct format *f, u32 a, u32 b, enum rounding rounding, int flags)
{
    return soft_add(f, a, is_nan(f, b) ? b : b ^ sign_bit(f), rounding, flags);
}
static inline u32 soft_mul(const struct format *f, u32 a, u32 b, enum rounding rounding, int flags)
{
    // The added zero has the product's sign, so that it changes nothing.
    return soft_fma(f, a, b, (a ^ b) & sign_bit(f), rounding, flags);
}

// min and max: -0 < +0; a NaN loses, or with .NaN wins; .xorsign.abs compares magnitudes and takes the signs' xor.
enum { MAX = 8, NAN_WINS = 16, XORSIGN_ABS = 32 };
static inline u32 soft_minmax(const struct format *f, u32 a, u32 b, int flags)
{
    if (flags & FTZ) a = flush(f, a), b = flush(f, b);
    const u32 sign = (a ^ b) & sign_bit(f);
    if (flags & XORSIGN_ABS) a = magnitude_bits(f, a), b = magnitude_bits(f, b);
    u32 d;
    if (is_nan(f, a) || is_nan(f, b))
        return flags & NAN_WINS || (is_nan(f, a) && is_nan(f, b)) ? f->nan
               : is_nan(f, a)                                     ? (flags & XORSIGN_ABS ? b | sign : b)
                                                                  : (flags & XORSIGN_ABS ? a | sign : a);
    const double x = decode(f, a), y = decode(f, b);
    const bool a_is_less = x != y ? x < y : (a & sign_bit(f)) != 0;
    d = a_is_less == !(flags & MAX) ? a : b;
    return flags & XORSIGN_ABS ? d | sign : d;
}

// Applies EXPRESSION to the low and the high halves x, y, z of a, b, c.
#define HALVES(EXPRESSION)                                                              \
    ({                                                                                  \
        u32 pair_ = 0;                                                                  \
        for (int h_ = 0; h_ < 32; h_ += 16) {                                           \
            const u32 x = a >> h_ & 0xffff, y = b >> h_ & 0xffff, z = c >> h_ & 0xffff; \
            (void)x, (void)y, (void)z;                                                  \
            pair_ |= (u32)(EXPRESSION) << h_;                                           \
        }                                                                               \
        pair_;                                                                          \
    })

#endif
