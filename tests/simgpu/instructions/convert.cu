// cvt: every pair of integer types, integers to and from floating point with every rounding mode, floating point to
// floating point, packed formats (f16x2, bf16x2, e4m3x2, e5m2x2, tf32), saturation, .ftz and .relu.
#include "reference_float.h"

static const struct format *const f32 = &format_f32, *const f16 = &format_f16, *const bf16 = &format_bf16;

// ---- Integers to integers: narrower ones keep the low bits, wider ones extend by the source's sign; .sat clamps -------

// 8-bit operands live in 16-bit registers here.
#define SOURCE_u8(x)  ((s64)(u8)(x))
#define SOURCE_s8(x)  ((s64)(s8)(x))
#define SOURCE_u16(x) ((s64)(u16)(x))
#define SOURCE_s16(x) ((s64)(s16)(x))
#define SOURCE_u32(x) ((s64)(u32)(x))
#define SOURCE_s32(x) ((s64)(s32)(x))
#define SOURCE_u64(x) ((s64)(x))
#define SOURCE_s64(x) ((s64)(x))
#define REGISTER_u8   u16
#define REGISTER_s8   u16
#define REGISTER_u16  u16
#define REGISTER_s16  u16
#define REGISTER_u32  u32
#define REGISTER_s32  u32
#define REGISTER_u64  u64
#define REGISTER_s64  u64
#define KIND_u8       INT16
#define KIND_s8       INT16
#define KIND_u16      INT16
#define KIND_s16      INT16
#define KIND_u32      INT32
#define KIND_s32      INT32
#define KIND_u64      INT64
#define KIND_s64      INT64

// A value of a source type, so that u64 is not taken for negative: sign and magnitude in 128 bits.
typedef __int128 s128;
static s128 clamp128(s128 x, s128 low, s128 high)
{
    return x < low ? low : x > high ? high : x;
}
#define VALUE(S, x) ((S)-1 < 0 ? (s128)SOURCE_##S(x) : (s128)(u64)SOURCE_##S(x))
#define LOW(D)      ((D)-1 < 0 ? -((s128)1 << (8 * sizeof(D) - 1)) : 0)
#define HIGH(D)     ((((s128)1 << (8 * sizeof(D) - ((D)-1 < 0))) - 1))

#define OP_OF(NAME, TD, TA, KA, PTX, EXPECT) OP(NAME, TD, TA, u32, u32, KA, UNUSED, UNUSED, BITS, PTX, EXPECT)
#define OP_EXPANDED(...)                     OP_OF(__VA_ARGS__)
// An 8-bit result is written to the register with the sign or zero extension that PTX prescribes.
#define INTEGER(D, S)                                                                       \
    OP_EXPANDED(D##_##S, REGISTER_##D, REGISTER_##S, KIND_##S, "cvt." #D "." #S " %0, %1;", \
                (REGISTER_##D)(D)SOURCE_##S(a))
#define FROM_EACH_INTEGER(D) \
    INTEGER(D, u8)           \
    INTEGER(D, s8)           \
    INTEGER(D, u16)          \
    INTEGER(D, s16)          \
    INTEGER(D, u32)          \
    INTEGER(D, s32)          \
    INTEGER(D, u64)          \
    INTEGER(D, s64)
FROM_EACH_INTEGER(u8)
FROM_EACH_INTEGER(s8)
FROM_EACH_INTEGER(u16)
FROM_EACH_INTEGER(s16)
FROM_EACH_INTEGER(u32)
FROM_EACH_INTEGER(s32)
FROM_EACH_INTEGER(u64)
FROM_EACH_INTEGER(s64)

// .sat is PTX only where the destination cannot hold every source.
#define SATURATE(D, S)                                                                                \
    OP_EXPANDED(sat_##D##_##S, REGISTER_##D, REGISTER_##S, KIND_##S, "cvt.sat." #D "." #S " %0, %1;", \
                (REGISTER_##D)(D)clamp128(VALUE(S, a), LOW(D), HIGH(D)))
SATURATE(u8, s8)
SATURATE(u8, u16)
SATURATE(u8, s16)
SATURATE(u8, u32)
SATURATE(u8, s32)
SATURATE(u8, u64)
SATURATE(u8, s64)
SATURATE(s8, u8)
SATURATE(s8, u16)
SATURATE(s8, s16)
SATURATE(s8, u32)
SATURATE(s8, s32)
SATURATE(s8, u64)
SATURATE(s8, s64)
SATURATE(u16, s8)
SATURATE(u16, s16)
SATURATE(u16, u32)
SATURATE(u16, s32)
SATURATE(u16, u64)
SATURATE(u16, s64)
SATURATE(s16, u16)
SATURATE(s16, u32)
SATURATE(s16, s32)
SATURATE(s16, u64)
SATURATE(s16, s64)
SATURATE(u32, s8)
SATURATE(u32, s16)
SATURATE(u32, s32)
SATURATE(u32, u64)
SATURATE(u32, s64)
SATURATE(s32, u32)
SATURATE(s32, u64)
SATURATE(s32, s64)
SATURATE(u64, s8)
SATURATE(u64, s16)
SATURATE(u64, s32)
SATURATE(u64, s64)
SATURATE(s64, u64)

// ---- Integers to floating point --------------------------------------------------------------------------------------

// A 64-bit integer as a double rounded to odd, which a narrower format can then round again.
static double int_to_odd(s128 x)
{
    unsigned __int128 magnitude = x < 0 ? -x : x;
    int shift = 0;
    bool lost = false;
    while (magnitude >> 53) lost |= magnitude & 1, magnitude >>= 1, shift++;
    return ldexp((double)(s64)(magnitude | lost), shift) * (x < 0 ? -1 : 1);
}
static u64 int_to_f64(s128 x, int mode)
{
    const bool halve = x >> 63 > 0; // from 2^63 on, half of it, with a sticky bit, is a host's signed integer
    const u64 magnitude = (u64)x;
    volatile s64 whole = halve ? (s64)(magnitude >> 1 | (magnitude & 1)) : (s64)x;
    fesetround(mode);
    volatile double d = (double)whole;
    fesetround(FE_TONEAREST);
    const double result = halve ? d * 2 : d;
    u64 bits;
    memcpy(&bits, &result, sizeof bits);
    return bits;
}
#define TO_FLOAT_MODE(S, ROUND, MODE, FE)                                                            \
    OP_EXPANDED(f32_##ROUND##_##S, u32, REGISTER_##S, KIND_##S, "cvt." #ROUND ".f32." #S " %0, %1;", \
                encode(f32, int_to_odd(VALUE(S, a)), MODE))                                          \
    OP_EXPANDED(f16_##ROUND##_##S, u16, REGISTER_##S, KIND_##S, "cvt." #ROUND ".f16." #S " %0, %1;", \
                encode(f16, int_to_odd(VALUE(S, a)), MODE))                                          \
    OP_EXPANDED(f64_##ROUND##_##S, u64, REGISTER_##S, KIND_##S, "cvt." #ROUND ".f64." #S " %0, %1;", \
                int_to_f64(VALUE(S, a), FE))
#define TO_BF16_MODE(S, ROUND, MODE)                                                                   \
    OP_EXPANDED(bf16_##ROUND##_##S, u16, REGISTER_##S, KIND_##S, "cvt." #ROUND ".bf16." #S " %0, %1;", \
                encode(bf16, int_to_odd(VALUE(S, a)), MODE))
#define TO_FLOAT(S)                         \
    TO_FLOAT_MODE(S, rn, RN, FE_TONEAREST)  \
    TO_FLOAT_MODE(S, rz, RZ, FE_TOWARDZERO) \
    TO_FLOAT_MODE(S, rm, RM, FE_DOWNWARD)   \
    TO_FLOAT_MODE(S, rp, RP, FE_UPWARD)
TO_FLOAT(u8)
TO_FLOAT(s8)
TO_FLOAT(u16)
TO_FLOAT(s16)
TO_FLOAT(u32)
TO_FLOAT(s32)
TO_FLOAT(u64)
TO_FLOAT(s64)
#define TO_BF16(S)          \
    TO_BF16_MODE(S, rn, RN) \
    TO_BF16_MODE(S, rz, RZ) \
    TO_BF16_MODE(S, rm, RM) \
    TO_BF16_MODE(S, rp, RP)
TO_BF16(u16)
TO_BF16(s16)
TO_BF16(u32)
TO_BF16(s32)
TO_BF16(u64)
TO_BF16(s64)

// ---- Floating point to integers: in range; beyond it, and NaN, is the conformance recordings' business ------------------

static double rounded(double x, enum rounding mode)
{
    switch (mode) {
    case RM: return floor(x);
    case RP: return ceil(x);
    case RZ: return trunc(x);
    default: return nearbyint(x);
    }
}
// Rounds, and clamps to the integers of `bits`: cvt to an integer saturates always.
static u64 to_int(double x, enum rounding mode, int bits, bool is_signed)
{
    x = rounded(x, mode);
    const double low = is_signed ? -ldexp(1, bits - 1) : 0, beyond = ldexp(1, is_signed ? bits - 1 : bits);
    if (x <= low) return is_signed ? -(1ull << (bits - 1)) : 0;
    if (x >= beyond) return is_signed ? (1ull << (bits - 1)) - 1 : ~0ull >> (64 - bits);
    return x < 0 ? (u64)(s64)x : x >= ldexp(1, 63) ? (u64)(x - ldexp(1, 63)) | 1ull << 63 : (u64)(s64)x;
}
static double real64(u64 bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
// NaN inputs become 1 in the kernel and here.
#define NUMBER(TYPE, W) "{ .reg .b" #W " x; .reg .pred p; setp.num." #TYPE " p, %1, %1; selp.b" #W " x, %1, "
#define FROM_FLOAT_MODE(D, ROUND, MODE)                                                                     \
    OP_EXPANDED(D##_##ROUND##_f32, REGISTER_##D, u32, F32,                                                  \
                NUMBER(f32, 32) "0x3f800000, p; cvt." #ROUND "." #D ".f32 %0, x; }",                        \
                (D)to_int(is_nan(f32, a) ? 1 : decode(f32, a), MODE, 8 * sizeof(D), (D)-1 < 0))             \
    OP_EXPANDED(D##_##ROUND##_ftz_f32, REGISTER_##D, u32, F32,                                              \
                NUMBER(f32, 32) "0x3f800000, p; cvt." #ROUND ".ftz." #D ".f32 %0, x; }",                    \
                (D)to_int(is_nan(f32, a) ? 1 : decode(f32, flush(f32, a)), MODE, 8 * sizeof(D), (D)-1 < 0)) \
    OP_EXPANDED(D##_##ROUND##_f16, REGISTER_##D, u16, F16,                                                  \
                NUMBER(f16, 16) "0x3c00, p; cvt." #ROUND "." #D ".f16 %0, x; }",                            \
                (D)to_int(is_nan(f16, a) ? 1 : decode(f16, a), MODE, 8 * sizeof(D), (D)-1 < 0))             \
    OP_EXPANDED(D##_##ROUND##_f64, REGISTER_##D, u64, F64,                                                  \
                NUMBER(f64, 64) "0x3ff0000000000000, p; cvt." #ROUND "." #D ".f64 %0, x; }",                \
                (D)to_int(real64(a) != real64(a) ? 1 : real64(a), MODE, 8 * sizeof(D), (D)-1 < 0))
#define FROM_BF16_MODE(D, ROUND, MODE)                                             \
    OP_EXPANDED(D##_##ROUND##_bf16, REGISTER_##D, u16, BF16,                       \
                NUMBER(bf16, 16) "0x3f80, p; cvt." #ROUND "." #D ".bf16 %0, x; }", \
                (D)to_int(is_nan(bf16, a) ? 1 : decode(bf16, a), MODE, 8 * sizeof(D), (D)-1 < 0))
#define FROM_FLOAT(D)           \
    FROM_FLOAT_MODE(D, rni, RN) \
    FROM_FLOAT_MODE(D, rzi, RZ) \
    FROM_FLOAT_MODE(D, rmi, RM) \
    FROM_FLOAT_MODE(D, rpi, RP)
FROM_FLOAT(u8)
FROM_FLOAT(s8)
FROM_FLOAT(u16)
FROM_FLOAT(s16)
FROM_FLOAT(u32)
FROM_FLOAT(s32)
FROM_FLOAT(u64)
FROM_FLOAT(s64)
#define FROM_BF16(D)           \
    FROM_BF16_MODE(D, rni, RN) \
    FROM_BF16_MODE(D, rzi, RZ) \
    FROM_BF16_MODE(D, rmi, RM) \
    FROM_BF16_MODE(D, rpi, RP)
FROM_BF16(u16)
FROM_BF16(s16)
FROM_BF16(u32)
FROM_BF16(s32)
FROM_BF16(u64)
FROM_BF16(s64)

// ---- Floating point to floating point ----------------------------------------------------------------------------------

// A NaN from f64 keeps its sign and the upper bits of its payload; any other narrowing gives the canonical NaN.
static u32 narrow(const struct format *f, u64 a, enum rounding mode, int flags)
{
    const double x = real64(a);
    if (x == x || flags & SAT) return result(f, x, mode, flags);
    const u32 payload = (u32)(a >> (52 - f->mantissa_bits)) & ((1u << f->mantissa_bits) - 1);
    return (a >> 63 ? sign_bit(f) : 0) | infinity_bits(f) | 1u << (f->mantissa_bits - 1) | payload;
}
#define NARROW(ROUND, MODE)                                                                          \
    OP_OF(ROUND##_f32_f64, u32, u64, F64, "cvt." #ROUND ".f32.f64 %0, %1;", narrow(f32, a, MODE, 0)) \
    OP_OF(ROUND##_ftz_f32_f64, u32, u64, F64, "cvt." #ROUND ".ftz.f32.f64 %0, %1;",                  \
          narrow(f32, a, MODE, FTZ))                                                                 \
    OP_OF(ROUND##_sat_f32_f64, u32, u64, F64, "cvt." #ROUND ".sat.f32.f64 %0, %1;",                  \
          narrow(f32, a, MODE, SAT))                                                                 \
    OP_OF(ROUND##_f16_f64, u16, u64, F64, "cvt." #ROUND ".f16.f64 %0, %1;", narrow(f16, a, MODE, 0)) \
    OP_OF(ROUND##_f16_f32, u16, u32, F32, "cvt." #ROUND ".f16.f32 %0, %1;",                          \
          encode(f16, decode(f32, a), MODE))                                                         \
    OP_OF(ROUND##_ftz_f16_f32, u16, u32, F32, "cvt." #ROUND ".ftz.f16.f32 %0, %1;",                  \
          encode(f16, decode(f32, a), MODE)) /* a subnormal operand is not flushed */                \
    OP_OF(ROUND##_sat_f16_f32, u16, u32, F32, "cvt." #ROUND ".sat.f16.f32 %0, %1;",                  \
          finish(f16, encode(f16, decode(f32, a), MODE), SAT))                                       \
    OP_OF(ROUND##_bf16_f64, u16, u64, F64, "cvt." #ROUND ".bf16.f64 %0, %1;", narrow(bf16, a, MODE, 0))
NARROW(rn, RN)
NARROW(rz, RZ)
NARROW(rm, RM)
NARROW(rp, RP)
OP_OF(rn_bf16_f32, u16, u32, F32, "cvt.rn.bf16.f32 %0, %1;", encode(bf16, decode(f32, a), RN))
OP_OF(rz_bf16_f32, u16, u32, F32, "cvt.rz.bf16.f32 %0, %1;", encode(bf16, decode(f32, a), RZ))
OP_OF(rn_relu_bf16_f32, u16, u32, F32, "cvt.rn.relu.bf16.f32 %0, %1;",
      finish(bf16, encode(bf16, decode(f32, a), RN), RELU))
OP_OF(rn_relu_f16_f32, u16, u32, F32, "cvt.rn.relu.f16.f32 %0, %1;",
      finish(f16, encode(f16, decode(f32, a), RN), RELU))

static u64 widen64(double x)
{
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
#define WIDEN(NAME, TD, TA, KA, PTX, EXPECT) \
    OP(NAME, TD, TA, u32, u32, KA, UNUSED, UNUSED, NAN64, PTX, EXPECT)
WIDEN(f64_f32, u64, u32, F32, "cvt.f64.f32 %0, %1;", widen64(decode(f32, a)))
WIDEN(f64_ftz_f32, u64, u32, F32, "cvt.ftz.f64.f32 %0, %1;", widen64(decode(f32, flush(f32, a))))
WIDEN(f64_f16, u64, u16, F16, "cvt.f64.f16 %0, %1;", widen64(decode(f16, a)))
WIDEN(f64_bf16, u64, u16, BF16, "cvt.f64.bf16 %0, %1;", widen64(decode(bf16, a)))
OP_OF(f32_f16, u32, u16, F16, "cvt.f32.f16 %0, %1;", encode(f32, decode(f16, a), RN))
OP_OF(f32_bf16, u32, u16, BF16, "cvt.f32.bf16 %0, %1;", (u32)a << 16)
OP_OF(f32_sat_f32, u32, u32, F32, "cvt.sat.f32.f32 %0, %1;",
      finish(f32, encode(f32, decode(f32, a), RN), SAT))

// To an integral number, in the same format; the sign of a zero stays.
#define INTEGRAL(ROUND, MODE)                                                                   \
    OP_OF(ROUND##_f32_f32, u32, u32, F32, "cvt." #ROUND ".f32.f32 %0, %1;",                     \
          encode(f32, copysign(rounded(decode(f32, a), MODE), decode(f32, a)), RN))             \
    OP_OF(ROUND##_ftz_f32_f32, u32, u32, F32, "cvt." #ROUND ".ftz.f32.f32 %0, %1;",             \
          encode(f32, copysign(rounded(decode(f32, flush(f32, a)), MODE), decode(f32, a)), RN)) \
    OP_OF(ROUND##_sat_f32_f32, u32, u32, F32, "cvt." #ROUND ".sat.f32.f32 %0, %1;",             \
          finish(f32, encode(f32, rounded(decode(f32, a), MODE), RN), SAT))                     \
    OP_OF(ROUND##_f16_f16, u16, u16, F16, "cvt." #ROUND ".f16.f16 %0, %1;",                     \
          encode(f16, copysign(rounded(decode(f16, a), MODE), decode(f16, a)), RN))             \
    WIDEN(ROUND##_f64_f64, u64, u64, F64, "cvt." #ROUND ".f64.f64 %0, %1;",                     \
          widen64(copysign(rounded(real64(a), MODE), real64(a))))
INTEGRAL(rni, RN)
INTEGRAL(rzi, RZ)
INTEGRAL(rmi, RM)
INTEGRAL(rpi, RP)

// ---- Packed: the first operand goes to the upper half ------------------------------------------------------------------

#define OP_PAIR(NAME, TD, PTX, EXPECT) OP(NAME, TD, u32, u32, u32, F32, F32, UNUSED, BITS, PTX, EXPECT)
#define PACKED(ROUND, MODE)                                                                \
    OP_PAIR(ROUND##_f16x2_f32, u32, "cvt." #ROUND ".f16x2.f32 %0, %1, %2;",                \
            encode(f16, decode(f32, a), MODE) << 16 | encode(f16, decode(f32, b), MODE))   \
    OP_PAIR(ROUND##_bf16x2_f32, u32, "cvt." #ROUND ".bf16x2.f32 %0, %1, %2;",              \
            encode(bf16, decode(f32, a), MODE) << 16 | encode(bf16, decode(f32, b), MODE)) \
    OP_PAIR(ROUND##_relu_f16x2_f32, u32, "cvt." #ROUND ".relu.f16x2.f32 %0, %1, %2;",      \
            finish(f16, encode(f16, decode(f32, a), MODE), RELU) << 16 |                   \
                finish(f16, encode(f16, decode(f32, b), MODE), RELU))                      \
    OP_PAIR(ROUND##_relu_bf16x2_f32, u32, "cvt." #ROUND ".relu.bf16x2.f32 %0, %1, %2;",    \
            finish(bf16, encode(bf16, decode(f32, a), MODE), RELU) << 16 |                 \
                finish(bf16, encode(bf16, decode(f32, b), MODE), RELU))
PACKED(rn, RN)
PACKED(rz, RZ)

// tf32 is f32 with 10 mantissa bits; the 13 below are zero. A NaN is 0x7fffe000, but .rna only cuts its payload.
static const struct format format_tf32 = {8, 10, 0x3ffff};
static u32 tf32(u32 a, enum rounding mode, int flags)
{
    if (is_nan(f32, a) && mode == RNA) return a & ~0x1fffu;
    return finish(f32, encode(&format_tf32, decode(f32, a), mode) << 13, flags);
}
OP_OF(rna_tf32_f32, u32, u32, F32, "cvt.rna.tf32.f32 %0, %1;", tf32(a, RNA, 0))
OP_OF(rn_tf32_f32, u32, u32, F32, "cvt.rn.tf32.f32 %0, %1;", tf32(a, RN, 0))
OP_OF(rz_tf32_f32, u32, u32, F32, "cvt.rz.tf32.f32 %0, %1;", tf32(a, RZ, 0))
OP_OF(rn_relu_tf32_f32, u32, u32, F32, "cvt.rn.relu.tf32.f32 %0, %1;", tf32(a, RN, RELU))
OP_OF(rz_relu_tf32_f32, u32, u32, F32, "cvt.rz.relu.tf32.f32 %0, %1;", tf32(a, RZ, RELU))

// FP8. e5m2 is IEEE-like. e4m3 has no infinity: exponent 15 holds numbers up to 448 (0x7e), and 0x7f is its only NaN.
// cvt saturates to the largest number, whatever the magnitude, and makes every NaN 0x7f.
static const struct format format_e5m2 = {5, 2, 0x7f};
static u32 to_fp8(double x, bool e4m3, int flags)
{
    if (x != x) return 0x7f;
    const u32 sign = signbit(x) ? 0x80 : 0;
    if (flags & RELU && sign) return 0;
    u32 magnitude;
    if (e4m3) { // as a format with one more exponent, so that 256 .. 448 are numbers
        const struct format wide = {5, 3, 0xff};
        const double clamped = fabs(x) > 448 ? 448 : fabs(x);
        if (clamped < ldexp(1, -6)) {
            magnitude = (u32)nearbyint(ldexp(clamped, 9));
        } else {
            magnitude = encode(&wide, clamped, RN) - (8u << 3);
            if (magnitude > 0x7e) magnitude = 0x7e;
        }
    } else {
        magnitude = magnitude_bits(&format_e5m2, encode(&format_e5m2, fabs(x), RN));
        if (magnitude > 0x7b) magnitude = 0x7b;
    }
    return sign | magnitude;
}
static double from_fp8(u32 x, bool e4m3)
{
    if (!e4m3) return decode(&format_e5m2, x);
    if ((x & 0x7f) == 0x7f) return nan("");
    const int exponent = (int)(x >> 3 & 15);
    const double magnitude = exponent ? ldexp(8 + (x & 7), exponent - 10) : ldexp(x & 7, -9);
    return x & 0x80 ? -magnitude : magnitude;
}
#define FP8(TYPE, E4M3, KIND)                                                                          \
    OP_PAIR(TYPE##_f32, u16, "cvt.rn.satfinite." #TYPE ".f32 %0, %1, %2;",                             \
            to_fp8(decode(f32, a), E4M3, 0) << 8 | to_fp8(decode(f32, b), E4M3, 0))                    \
    OP_PAIR(relu_##TYPE##_f32, u16, "cvt.rn.satfinite.relu." #TYPE ".f32 %0, %1, %2;",                 \
            to_fp8(decode(f32, a), E4M3, RELU) << 8 | to_fp8(decode(f32, b), E4M3, RELU))              \
    OP_OF(TYPE##_f16x2, u16, u32, F16X2, "cvt.rn.satfinite." #TYPE ".f16x2 %0, %1;",                   \
          to_fp8(decode(f16, a >> 16), E4M3, 0) << 8 | to_fp8(decode(f16, a & 0xffff), E4M3, 0))       \
    OP_OF(relu_##TYPE##_f16x2, u16, u32, F16X2, "cvt.rn.satfinite.relu." #TYPE ".f16x2 %0, %1;",       \
          to_fp8(decode(f16, a >> 16), E4M3, RELU) << 8 | to_fp8(decode(f16, a & 0xffff), E4M3, RELU)) \
    OP_OF(f16x2_##TYPE, u32, u16, KIND, "cvt.rn.f16x2." #TYPE " %0, %1;",                              \
          encode(f16, from_fp8(a >> 8, E4M3), RN) << 16 | encode(f16, from_fp8(a & 0xff, E4M3), RN))   \
    OP_OF(relu_f16x2_##TYPE, u32, u16, KIND, "cvt.rn.relu.f16x2." #TYPE " %0, %1;",                    \
          finish(f16, encode(f16, from_fp8(a >> 8, E4M3), RN), RELU) << 16 |                           \
              finish(f16, encode(f16, from_fp8(a & 0xff, E4M3), RN), RELU))
FP8(e4m3x2, true, E4M3X2)
FP8(e5m2x2, false, E5M2X2)

// cvt.pack.sat: a to the upper, b to the lower part, and for 8 bits c's lower half above them.
static u32 clamp_to(u32 x, int bits, bool is_signed)
{
    const s64 low = is_signed ? -(1ll << (bits - 1)) : 0, high = (1ll << (bits - is_signed)) - 1;
    const s64 v = (s32)x;
    return (u32)(v < low ? low : v > high ? high : v) & (u32)((1ull << bits) - 1);
}
#define OP_PACK(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, INT32, INT32, INT32, BITS, PTX, EXPECT)
OP_PACK(pack_sat_u16, "cvt.pack.sat.u16.s32 %0, %1, %2;",
        clamp_to(a, 16, false) << 16 | clamp_to(b, 16, false))
OP_PACK(pack_sat_s16, "cvt.pack.sat.s16.s32 %0, %1, %2;", clamp_to(a, 16, true) << 16 | clamp_to(b, 16, true))
OP_PACK(pack_sat_u8, "cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;",
        c << 16 | clamp_to(a, 8, false) << 8 | clamp_to(b, 8, false))
OP_PACK(pack_sat_s8, "cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;",
        c << 16 | clamp_to(a, 8, true) << 8 | clamp_to(b, 8, true))

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("convert");
}
