// f64: add, sub, mul, fma, div, rcp, sqrt in every rounding mode; abs, neg, min, max, copysign, testp. A NaN's payload is
// the conformance recordings' business: here every NaN is alike.
#include "../check.h"
#include <fenv.h>

static double real(u64 bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static u64 bits_of(double x)
{
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

enum operation { ADD, SUB, MUL, FMA, DIV, SQRT };
static u64 ieee(enum operation operation, u64 a, u64 b, u64 c, int rounding)
{
    volatile double x = real(a), y = real(b), z = real(c), d = 0;
    fesetround(rounding);
    switch (operation) {
    case ADD: d = x + y; break;
    case SUB: d = x - y; break;
    case MUL: d = x * y; break;
    case FMA: d = fma(x, y, z); break;
    case DIV: d = x / y; break;
    case SQRT: d = sqrt(x); break;
    }
    fesetround(FE_TONEAREST);
    return bits_of(d);
}

#define F(NAME, PTX, EXPECT) OP(NAME, u64, u64, u64, u64, F64, F64, F64, NAN64, PTX, EXPECT)
#define ROUNDING(ROUND, MODE)                                                              \
    F(add_##ROUND, "add." #ROUND ".f64 %0, %1, %2;", ieee(ADD, a, b, c, MODE))             \
    F(sub_##ROUND, "sub." #ROUND ".f64 %0, %1, %2;", ieee(SUB, a, b, c, MODE))             \
    F(mul_##ROUND, "mul." #ROUND ".f64 %0, %1, %2;", ieee(MUL, a, b, c, MODE))             \
    F(fma_##ROUND, "fma." #ROUND ".f64 %0, %1, %2, %3;", ieee(FMA, a, b, c, MODE))         \
    F(mad_##ROUND, "mad." #ROUND ".f64 %0, %1, %2, %3;", ieee(FMA, a, b, c, MODE))         \
    F(div_##ROUND, "div." #ROUND ".f64 %0, %1, %2;", ieee(DIV, a, b, c, MODE))             \
    F(rcp_##ROUND, "rcp." #ROUND ".f64 %0, %1;", ieee(DIV, bits_of(1), a, c, MODE))        \
    F(sqrt_##ROUND, "sqrt." #ROUND ".f64 %0, %1;", ieee(SQRT, a, b, c, MODE))              \
    F(sqrt_positive_##ROUND, "{ .reg .b64 x; abs.f64 x, %1; sqrt." #ROUND ".f64 %0, x; }", \
      ieee(SQRT, a & ~0ull >> 1, b, c, MODE))
ROUNDING(rn, FE_TONEAREST)
ROUNDING(rz, FE_TOWARDZERO)
ROUNDING(rm, FE_DOWNWARD)
ROUNDING(rp, FE_UPWARD)
F(add_plain, "add.f64 %0, %1, %2;", ieee(ADD, a, b, c, FE_TONEAREST))

#define SIGN (1ull << 63)
F(abs_, "abs.f64 %0, %1;", a & ~SIGN)
F(neg, "neg.f64 %0, %1;", a ^ SIGN)
F(copysign_, "copysign.f64 %0, %1, %2;", (a & SIGN) | (b & ~SIGN))

// -0 < +0, and a NaN loses.
static u64 minmax(u64 a, u64 b, bool max)
{
    const double x = real(a), y = real(b);
    if (x != x) return b;
    if (y != y) return a;
    const bool a_is_less = x != y ? x < y : (a & SIGN) != 0;
    return a_is_less == !max ? a : b;
}
F(min, "min.f64 %0, %1, %2;", minmax(a, b, false))
F(max, "max.f64 %0, %1, %2;", minmax(a, b, true))

#define TESTP(KIND, EXPECT)                                         \
    OP(testp_##KIND, u32, u64, u64, u64, F64, UNUSED, UNUSED, BITS, \
       "{ .reg .pred p; testp." #KIND ".f64 p, %1; selp.u32 %0, 1, 0, p; }", EXPECT)
#define MAGNITUDE  (a & ~SIGN)
#define INFINITY64 (0x7ffull << 52)
TESTP(finite, MAGNITUDE < INFINITY64)
TESTP(infinite, MAGNITUDE == INFINITY64)
TESTP(number, MAGNITUDE <= INFINITY64)
TESTP(notanumber, MAGNITUDE > INFINITY64)
TESTP(normal, MAGNITUDE < INFINITY64 && (!MAGNITUDE || MAGNITUDE >> 52)) // zero counts as normal
TESTP(subnormal, MAGNITUDE &&MAGNITUDE >> 52 == 0)

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("float64");
}
