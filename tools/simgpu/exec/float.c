/* float.c: floating-point arithmetic. The instructions are in float.def; here are the functions those lines use.
 *
 * f32 and f64 are the host's own: the same IEEE formats, the same single rounding, FMA included; only NaN results
 * differ (numeric.h). */
#include "alu.h"

#include <math.h>

/* An f64 result; when it is NaN and an operand was, that one, made quiet. */
static inline double pass_nan(double result, double a, double b)
{
    const u64 quiet = 1ull << 51;
    u64 nan = a != a ? bits_of_f64(a) | quiet : b != b ? bits_of_f64(b) | quiet : NAN_F64;
    return result == result ? result : f64_of_bits(nan);
}

static inline bool negative_f32(float x)
{
    return (s32)bits_of_f32(x) < 0;
}
static inline bool negative_f64(double x)
{
    return (s64)bits_of_f64(x) < 0;
}
static inline float min_f32_of(float a, float b)
{
    return (a < b) | (b != b) | ((a == b) & negative_f32(a)) ? a : b;
}
static inline float max_f32_of(float a, float b)
{
    return (a > b) | (b != b) | ((a == b) & !negative_f32(a)) ? a : b;
}
/* Of two NaN, b (ptxas's code for sm_90). */
static inline double min_f64_of(double a, double b)
{
    double least = (a < b) | (b != b) | ((a == b) & negative_f64(a)) ? a : b;
    return least == least ? least : pass_nan(least, b, a);
}
static inline double max_f64_of(double a, double b)
{
    double most = (a > b) | (b != b) | ((a == b) & !negative_f64(a)) ? a : b;
    return most == most ? most : pass_nan(most, b, a);
}
static inline float size(float x)
{
    return __builtin_fabsf(x);
}
static inline float xor_sign(float x, float a, float b)
{
    return f32_of_bits((bits_of_f32(x) & 0x7fffffff) | ((bits_of_f32(a) ^ bits_of_f32(b)) & 0x80000000));
}

/* div.approx multiplies by the reciprocal, which is 0 for |b| > 2^126. */
static inline float divide_approx(float a, float b)
{
    float magnitude = __builtin_fabsf(b);
    return magnitude > 0x1p126f && magnitude < INFINITY ? a * __builtin_copysignf(0, b) : a / b;
}

/* .approx.ftz.f64 sees and gives the upper 32 bits of an f64, subnormals as zero. */
static inline double high_word(double x)
{
    double flushed = __builtin_fabs(x) < 0x1p-1022 ? __builtin_copysign(0, x) : x;
    return f64_of_bits(bits_of_f64(flushed) & ~0xffffffffull);
}

/* 2^x to 27 bits: the whole part goes into the exponent, the rest through its series. Branches would keep the loop
 * over lanes from being vectorised. */
static inline double power_of_two_f64(double x)
{
    const double to_whole = 0x1.8p52; /* adding it leaves round(x) in the low bits */
    x = x < -300 ? -300 : x > 300 ? 300 : x;
    double shifted = x + to_whole, t = (x - (shifted - to_whole)) * M_LN2, series = 1;
    for (int n = 7; n > 0; n--) series = __builtin_fma(series, t * (1.0 / n), 1);
    return series * f64_of_bits((bits_of_f64(shifted) << 52) + (1023ull << 52));
}
static inline float power_of_two(float x)
{
    return (float)power_of_two_f64(x);
}
/* (e^2x - 1) / (e^2x + 1), where x itself is not as near */
static inline float tangent_hyperbolic(float x)
{
    double power = power_of_two_f64(__builtin_fabs((double)x) * (2 / M_LN2));
    float result = (float)((power - 1) / (power + 1));
    return __builtin_fabsf(x) < 0x1p-12f ? x : __builtin_copysignf(result, x);
}

#define OP(shape, ...) EXECUTOR_##shape(__VA_ARGS__)
#include "float.def"
#undef OP
#define OP(shape, ...) ROW_##shape(__VA_ARGS__)
const struct rule float_rules[] = {
#include "float.def"
    {NULL, NULL, NULL, 0, 0, {0}, false}};
#undef OP
