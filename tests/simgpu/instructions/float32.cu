// f32: add, sub, mul, fma, div, rcp, sqrt in every rounding mode, .ftz and .sat; abs, neg, min, max, copysign, testp.
#include "reference_float.h"

#define F(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, F32, F32, F32, BITS, PTX, EXPECT)
static const struct format *const f32 = &format_f32;

static u32 quiet(u32 x)
{
    return is_nan(f32, x) ? f32->nan : x;
}

#define ARITHMETIC(ROUND, MODE, SUFFIX, DOTS, FLAGS)                                                \
    F(add_##ROUND##SUFFIX, "add." #ROUND DOTS ".f32 %0, %1, %2;", soft_add(f32, a, b, MODE, FLAGS)) \
    F(sub_##ROUND##SUFFIX, "sub." #ROUND DOTS ".f32 %0, %1, %2;", soft_sub(f32, a, b, MODE, FLAGS)) \
    F(mul_##ROUND##SUFFIX, "mul." #ROUND DOTS ".f32 %0, %1, %2;", soft_mul(f32, a, b, MODE, FLAGS)) \
    F(fma_##ROUND##SUFFIX, "fma." #ROUND DOTS ".f32 %0, %1, %2, %3;", soft_fma(f32, a, b, c, MODE, FLAGS))
#define ROUNDING(ROUND, MODE)                  \
    ARITHMETIC(ROUND, MODE, , "", 0)           \
    ARITHMETIC(ROUND, MODE, _ftz, ".ftz", FTZ) \
    ARITHMETIC(ROUND, MODE, _sat, ".sat", SAT) \
    ARITHMETIC(ROUND, MODE, _ftz_sat, ".ftz.sat", FTZ | SAT)
ROUNDING(rn, RN)
ROUNDING(rz, RZ)
ROUNDING(rm, RM)
ROUNDING(rp, RP)
F(add_plain, "add.f32 %0, %1, %2;", soft_add(f32, a, b, RN, 0))
F(mul_plain, "mul.ftz.f32 %0, %1, %2;", soft_mul(f32, a, b, RN, FTZ))
F(mad_rn, "mad.rn.f32 %0, %1, %2, %3;", soft_fma(f32, a, b, c, RN, 0))

// Quotients, reciprocals and roots rounded to odd: the correctly truncated double, its last bit set when inexact.
static double to_odd(double (*operation)(double, double), double x, double y)
{
    volatile double p = x, q = y;
    fesetround(FE_TOWARDZERO);
    feclearexcept(FE_ALL_EXCEPT);
    volatile double r = operation(p, q);
    const bool inexact = fetestexcept(FE_INEXACT) != 0;
    fesetround(FE_TONEAREST);
    double odd = r;
    u64 bits;
    memcpy(&bits, &odd, sizeof bits);
    bits |= inexact;
    memcpy(&odd, &bits, sizeof bits);
    return odd;
}
static double quotient(double x, double y)
{
    return x / y;
}
static double root(double x, double)
{
    return sqrt(x);
}
static u32 divide(u32 a, u32 b, enum rounding rounding, int flags)
{
    if (flags & FTZ) a = flush(f32, a), b = flush(f32, b);
    return result(f32, to_odd(quotient, decode(f32, a), decode(f32, b)), rounding, flags);
}
static u32 square_root(u32 a, enum rounding rounding, int flags)
{
    if (flags & FTZ) a = flush(f32, a);
    return result(f32, to_odd(root, decode(f32, a), 0), rounding, flags);
}
#define DIVISION(ROUND, MODE, SUFFIX, DOTS, FLAGS)                                                \
    F(div_##ROUND##SUFFIX, "div." #ROUND DOTS ".f32 %0, %1, %2;", divide(a, b, MODE, FLAGS))      \
    F(rcp_##ROUND##SUFFIX, "rcp." #ROUND DOTS ".f32 %0, %1;", divide(0x3f800000, a, MODE, FLAGS)) \
    F(sqrt_##ROUND##SUFFIX, "sqrt." #ROUND DOTS ".f32 %0, %1;", square_root(a, MODE, FLAGS))      \
    OP(sqrt_positive_##ROUND##SUFFIX, u32, u32, u32, u32, POSITIVE_F32, UNUSED, UNUSED, BITS,     \
       "sqrt." #ROUND DOTS ".f32 %0, %1;", square_root(a, MODE, FLAGS))
DIVISION(rn, RN, , "", 0)
DIVISION(rz, RZ, , "", 0)
DIVISION(rm, RM, , "", 0)
DIVISION(rp, RP, , "", 0)
DIVISION(rn, RN, _ftz, ".ftz", FTZ)
DIVISION(rz, RZ, _ftz, ".ftz", FTZ)
DIVISION(rm, RM, _ftz, ".ftz", FTZ)
DIVISION(rp, RP, _ftz, ".ftz", FTZ)

F(abs, "abs.f32 %0, %1;", quiet(a & 0x7fffffff))
F(neg, "neg.f32 %0, %1;", quiet(a ^ 0x80000000))
F(abs_ftz, "abs.ftz.f32 %0, %1;", quiet(flush(f32, a) & 0x7fffffff))
F(neg_ftz, "neg.ftz.f32 %0, %1;", quiet(flush(f32, a) ^ 0x80000000))
F(copysign, "copysign.f32 %0, %1, %2;", (a & 0x80000000) | (b & 0x7fffffff))

#define MINMAX(SUFFIX, DOTS, FLAGS)                                              \
    F(min##SUFFIX, "min" DOTS ".f32 %0, %1, %2;", soft_minmax(f32, a, b, FLAGS)) \
    F(max##SUFFIX, "max" DOTS ".f32 %0, %1, %2;", soft_minmax(f32, a, b, MAX | (FLAGS)))
MINMAX(, "", 0)
MINMAX(_ftz, ".ftz", FTZ)
MINMAX(_nan, ".NaN", NAN_WINS)
MINMAX(_ftz_nan, ".ftz.NaN", FTZ | NAN_WINS)
MINMAX(_xorsign, ".xorsign.abs", XORSIGN_ABS)
MINMAX(_nan_xorsign, ".NaN.xorsign.abs", NAN_WINS | XORSIGN_ABS)

#define TESTP(KIND, EXPECT) \
    F(testp_##KIND, "{ .reg .pred p; testp." #KIND ".f32 p, %1; selp.u32 %0, 1, 0, p; }", EXPECT)
TESTP(finite, magnitude_bits(f32, a) < infinity_bits(f32))
TESTP(infinite, magnitude_bits(f32, a) == infinity_bits(f32))
TESTP(number, !is_nan(f32, a))
TESTP(notanumber, is_nan(f32, a))
TESTP(normal, magnitude_bits(f32, a) < infinity_bits(f32) && !is_subnormal(f32, a)) // zero counts as normal
TESTP(subnormal, is_subnormal(f32, a))

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("float32");
}
