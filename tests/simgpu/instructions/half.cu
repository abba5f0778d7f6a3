// f16, bf16 and their pairs: add, sub, mul, fma with .ftz, .sat, .relu; abs, neg, min, max.
#include "reference_float.h"

static const struct format *const f16 = &format_f16, *const bf16 = &format_bf16;

#define H(NAME, PTX, EXPECT)  OP(NAME, u16, u16, u16, u16, F16, F16, F16, BITS, PTX, EXPECT)
#define H2(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, F16X2, F16X2, F16X2, BITS, PTX, HALVES(EXPECT))
#define B(NAME, PTX, EXPECT)  OP(NAME, u16, u16, u16, u16, BF16, BF16, BF16, BITS, PTX, EXPECT)
#define B2(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, BF16X2, BF16X2, BF16X2, BITS, PTX, HALVES(EXPECT))

// One line for the number and one for the pair: OPERATION's PTX, and its value on x, y, z.
#define BOTH_F16(NAME, PTX, OPERANDS, FUNCTION, ...)                        \
    H(NAME##_f16, PTX ".f16 " OPERANDS ";", FUNCTION##_A(f16, __VA_ARGS__)) \
    H2(NAME##_f16x2, PTX ".f16x2 " OPERANDS ";", FUNCTION##_X(f16, __VA_ARGS__))
#define BOTH_BF16(NAME, PTX, OPERANDS, FUNCTION, ...)                          \
    B(NAME##_bf16, PTX ".bf16 " OPERANDS ";", FUNCTION##_A(bf16, __VA_ARGS__)) \
    B2(NAME##_bf16x2, PTX ".bf16x2 " OPERANDS ";", FUNCTION##_X(bf16, __VA_ARGS__))
#define ADD_A(F, FLAGS)    soft_add(F, a, b, RN, FLAGS)
#define ADD_X(F, FLAGS)    soft_add(F, x, y, RN, FLAGS)
#define SUB_A(F, FLAGS)    soft_sub(F, a, b, RN, FLAGS)
#define SUB_X(F, FLAGS)    soft_sub(F, x, y, RN, FLAGS)
#define MUL_A(F, FLAGS)    soft_mul(F, a, b, RN, FLAGS)
#define MUL_X(F, FLAGS)    soft_mul(F, x, y, RN, FLAGS)
#define FMA_A(F, FLAGS)    soft_fma(F, a, b, c, RN, FLAGS)
#define FMA_X(F, FLAGS)    soft_fma(F, x, y, z, RN, FLAGS)
#define MINMAX_A(F, FLAGS) soft_minmax(F, a, b, FLAGS)
#define MINMAX_X(F, FLAGS) soft_minmax(F, x, y, FLAGS)
#define TWO                "%0, %1, %2"
#define THREE              "%0, %1, %2, %3"

#define ADDITIONS(SUFFIX, DOTS, FLAGS)                 \
    BOTH_F16(add##SUFFIX, "add" DOTS, TWO, ADD, FLAGS) \
    BOTH_F16(sub##SUFFIX, "sub" DOTS, TWO, SUB, FLAGS) \
    BOTH_F16(mul##SUFFIX, "mul" DOTS, TWO, MUL, FLAGS)
ADDITIONS(, "", 0)
ADDITIONS(_rn, ".rn", 0)
ADDITIONS(_rn_ftz, ".rn.ftz", FTZ)
ADDITIONS(_sat, ".sat", SAT)
ADDITIONS(_ftz_sat, ".ftz.sat", FTZ | SAT)
BOTH_F16(fma_rn, "fma.rn", THREE, FMA, 0)
BOTH_F16(fma_rn_ftz, "fma.rn.ftz", THREE, FMA, FTZ)
BOTH_F16(fma_rn_sat, "fma.rn.sat", THREE, FMA, SAT)
BOTH_F16(fma_rn_ftz_sat, "fma.rn.ftz.sat", THREE, FMA, FTZ | SAT)
BOTH_F16(fma_rn_relu, "fma.rn.relu", THREE, FMA, RELU)
BOTH_F16(fma_rn_ftz_relu, "fma.rn.ftz.relu", THREE, FMA, FTZ | RELU)
BOTH_BF16(add_rn, "add.rn", TWO, ADD, 0)
BOTH_BF16(sub_rn, "sub.rn", TWO, SUB, 0)
BOTH_BF16(mul_rn, "mul.rn", TWO, MUL, 0)
BOTH_BF16(fma_rn, "fma.rn", THREE, FMA, 0)
BOTH_BF16(fma_rn_relu, "fma.rn.relu", THREE, FMA, RELU)

#define MINMAX(TYPE, SUFFIX, DOTS, FLAGS)                    \
    BOTH_##TYPE(min##SUFFIX, "min" DOTS, TWO, MINMAX, FLAGS) \
        BOTH_##TYPE(max##SUFFIX, "max" DOTS, TWO, MINMAX, MAX | (FLAGS))
MINMAX(F16, , "", 0)
MINMAX(F16, _ftz, ".ftz", FTZ)
MINMAX(F16, _nan, ".NaN", NAN_WINS)
MINMAX(F16, _ftz_nan, ".ftz.NaN", FTZ | NAN_WINS)
MINMAX(F16, _xorsign, ".xorsign.abs", XORSIGN_ABS)
MINMAX(BF16, , "", 0)
MINMAX(BF16, _nan, ".NaN", NAN_WINS)
MINMAX(BF16, _xorsign, ".xorsign.abs", XORSIGN_ABS)

// A NaN comes out as the one that arithmetic gives.
static u32 quiet(const struct format *f, u32 x)
{
    return is_nan(f, x) ? f->nan : x;
}
H(abs_f16, "abs.f16 %0, %1;", quiet(f16, a & 0x7fff))
H(neg_f16, "neg.f16 %0, %1;", quiet(f16, a ^ 0x8000))
H(abs_ftz_f16, "abs.ftz.f16 %0, %1;", quiet(f16, flush(f16, a) & 0x7fff))
H(neg_ftz_f16, "neg.ftz.f16 %0, %1;", quiet(f16, flush(f16, a) ^ 0x8000))
H2(abs_f16x2, "abs.f16x2 %0, %1;", quiet(f16, x & 0x7fff))
H2(neg_f16x2, "neg.f16x2 %0, %1;", quiet(f16, x ^ 0x8000))
B(abs_bf16, "abs.bf16 %0, %1;", quiet(bf16, a & 0x7fff))
B(neg_bf16, "neg.bf16 %0, %1;", quiet(bf16, a ^ 0x8000))
B2(abs_bf16x2, "abs.bf16x2 %0, %1;", quiet(bf16, x & 0x7fff))
B2(neg_bf16x2, "neg.bf16x2 %0, %1;", quiet(bf16, x ^ 0x8000))

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("half");
}
