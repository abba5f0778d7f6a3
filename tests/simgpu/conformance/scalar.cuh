// Scalar variants: one register value from up to three, SCALAR_COUNT times. The first elements go through every pair of the
// operands' special values; the others are drawn.

enum { SCALAR_COUNT = 1024 };

// The special values of a kind of operand.
static size_t special_values(enum input_kind kind, u64 *values)
{
    static const u64 f16[] = {0,      0x8000, 1,      0x83ff, 0x400,  0x3c00, 0xbc00, 0x7bff,
                              0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfd55, 0x7e2a, 0xfe00, 0x7fff};
    static const u64 bf16[] = {0,      0x8000, 1,      0x807f, 0x80,   0x3f80, 0xbf80, 0x7f7f,
                               0xff7f, 0x7f80, 0xff80, 0x7f81, 0xff95, 0x7fca, 0xffc0, 0x7fff};
    static const u64 f32[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000, 0x3f800000,
                              0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001,
                              0xffa54321, 0x7fc54321, 0xffc00000, 0x7fffffff};
    static const u64 f64[] = {0,
                              1ull << 63,
                              1,
                              0x800fffffffffffff,
                              0x0010000000000000,
                              0x3ff0000000000000,
                              0xbff0000000000000,
                              0x7fefffffffffffff,
                              0xffefffffffffffff,
                              0x7ff0000000000000,
                              0xfff0000000000000,
                              0x7ff0000000000001,
                              0xfff123456789abcd,
                              0x7ff8123456789abc,
                              0xfff8000000000000,
                              0x7fffffffffffffff};
    static const u64 integers[] = {0,
                                   1,
                                   2,
                                   ~0ull,
                                   ~1ull,
                                   0x7f,
                                   0x80,
                                   0xff,
                                   0x7fff,
                                   0x8000,
                                   0xffff,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x7fffffffffffffff,
                                   0x8000000000000000};
    static const u64 amounts[] = {0,   1,   31,  32,  33,         63,         64,         65,
                                  255, 256, 257, 288, 0x80000000, 0xffffffff, 0x7fffffff, 15};
    const u64 *from = integers;
    switch (kind) {
    case F16:
    case F16X2: from = f16; break;
    case BF16:
    case BF16X2: from = bf16; break;
    case F32: from = f32; break;
    case F64: from = f64; break;
    case AMOUNT: from = amounts; break;
    default: break;
    }
    for (size_t i = 0; i < 16; i++) {
        values[i] = from[i];
        if (kind == F16X2 || kind == BF16X2) values[i] |= from[15 - i] << 16;
    }
    return 16;
}

static void draw_scalar(const struct variant *v, u8 **inputs)
{
    u64 specials[3][16];
    for (int k = 0; k < 3; k++) special_values(v->kinds[k], specials[k]);
    for (int k = 0; k < 3; k++) {
        u64 *const values = (u64 *)inputs[k];
        for (u32 i = 0; i < SCALAR_COUNT; i++) {
            const u32 which = k == 0 ? i % 16 : k == 1 ? i / 16 % 16 : (i * 5 + i / 16) % 16;
            values[i] = v->kinds[k] == UNUSED ? 0 : i < 256 ? specials[k][which] : draw(v->kinds[k]);
        }
    }
}

// SCALAR(name, types of d a b c, kinds of a b c, rule, PTX)
#define SCALAR(NAME, TD, TA, TB, TC, KA, KB, KC, RULE, PTX)                                              \
    __global__ void NAME##_kernel(TD *d, const u64 *a, const u64 *b, const u64 *c)                       \
    {                                                                                                    \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                             \
        TD r;                                                                                            \
        asm volatile(PTX                                                                                 \
                     : "=" REG_##TD(r)                                                                   \
                     : REG_##TA((TA)a[i]), REG_##TB((TB)b[i]), REG_##TC((TC)c[i])                        \
                     : "memory");                                                                        \
        d[i] = r;                                                                                        \
    }                                                                                                    \
    static void NAME##_launch(u8 *out, u8 *const *in)                                                    \
    {                                                                                                    \
        NAME##_kernel<<<SCALAR_COUNT / 128, 128>>>((TD *)out, (u64 *)in[0], (u64 *)in[1], (u64 *)in[2]); \
    }                                                                                                    \
    static struct variant NAME##_variant = {#NAME,                                                       \
                                            draw_scalar,                                                 \
                                            NAME##_launch,                                               \
                                            {SCALAR_COUNT * 8, SCALAR_COUNT * 8, SCALAR_COUNT * 8, 0},   \
                                            SCALAR_COUNT * sizeof(TD),                                   \
                                            sizeof(TD),                                                  \
                                            RULE,                                                        \
                                            {KA, KB, KC},                                                \
                                            NULL};                                                       \
    static const bool NAME##_added = variant_add(&NAME##_variant);
#define U16(NAME, KIND, PTX) SCALAR(NAME, u16, u16, u16, u16, KIND, KIND, KIND, bits(), PTX)
#define U32(NAME, KIND, PTX) SCALAR(NAME, u32, u32, u32, u32, KIND, KIND, KIND, bits(), PTX)
#define U64(NAME, KIND, PTX) SCALAR(NAME, u64, u64, u64, u64, KIND, KIND, KIND, bits(), PTX)

// ---- Approximations -----------------------------------------------------------------------------------------------

#define APPROX(NAME, KIND, T, RULE, PTX) SCALAR(NAME, T, T, T, T, KIND, KIND, UNUSED, RULE, PTX)
#define APPROX32(NAME, ULPS, ABSOLUTE, PTX, OPERANDS)                         \
    APPROX(NAME, F32, u32, ulp_f32(ULPS, ABSOLUTE), PTX ".f32 " OPERANDS ";") \
    APPROX(NAME##_ftz, F32, u32, ulp_f32(ULPS, ABSOLUTE), PTX ".ftz.f32 " OPERANDS ";")
APPROX32(ex2_approx, 2.1, 0, "ex2.approx", "%0, %1")
APPROX32(rcp_approx, 1, 0, "rcp.approx", "%0, %1")
APPROX32(rsqrt_approx, 2, 0, "rsqrt.approx", "%0, %1")
APPROX32(sqrt_approx, 1, 0, "sqrt.approx", "%0, %1")
APPROX32(lg2_approx, 2, 0x1p-22, "lg2.approx", "%0, %1")
APPROX32(div_approx, 2, 0, "div.approx", "%0, %1, %2")
APPROX32(div_full, 2, 0, "div.full", "%0, %1, %2")
// sin and cos: on +-2 pi, by folding the operand into it, and as it is, where no bound holds beyond their range of [-1, 1].
#define FOLD \
    "{ .reg .f32 x; .reg .b32 i; and.b32 i, %1, 0x00ffffff; cvt.rn.f32.u32 x, i; mul.f32 x, x, 0f34c90fdb; "
APPROX(sin_approx, F32, u32, ulp_f32(2, 0x1p-20), FOLD "sin.approx.f32 %0, x; }")
APPROX(sin_approx_ftz, F32, u32, ulp_f32(2, 0x1p-20), FOLD "sin.approx.ftz.f32 %0, x; }")
APPROX(cos_approx, F32, u32, ulp_f32(2, 0x1p-20), FOLD "cos.approx.f32 %0, x; }")
APPROX(cos_approx_ftz, F32, u32, ulp_f32(2, 0x1p-20), FOLD "cos.approx.ftz.f32 %0, x; }")
APPROX(sin_approx_any, F32, u32, ulp_f32(2, 1), "sin.approx.f32 %0, %1;")
APPROX(cos_approx_any, F32, u32, ulp_f32(2, 1), "cos.approx.f32 %0, %1;")
APPROX(tanh_approx, F32, u32, ulp_f32(4096, 0x1p-11), "tanh.approx.f32 %0, %1;")
APPROX(ex2_approx_f16, F16, u16, ulp_f16(1.1, 0), "ex2.approx.f16 %0, %1;")
APPROX(ex2_approx_f16x2, F16X2, u32, ulp_f16(1.1, 0), "ex2.approx.f16x2 %0, %1;")
APPROX(ex2_approx_bf16, BF16, u16, ulp_bf16(1, 0), "ex2.approx.ftz.bf16 %0, %1;")
APPROX(ex2_approx_bf16x2, BF16X2, u32, ulp_bf16(1, 0), "ex2.approx.ftz.bf16x2 %0, %1;")
APPROX(tanh_approx_f16, F16, u16, ulp_f16(1, 0x1p-11), "tanh.approx.f16 %0, %1;")
APPROX(tanh_approx_f16x2, F16X2, u32, ulp_f16(1, 0x1p-11), "tanh.approx.f16x2 %0, %1;")
APPROX(tanh_approx_bf16, BF16, u16, ulp_bf16(1, 0x1p-8), "tanh.approx.bf16 %0, %1;")
APPROX(tanh_approx_bf16x2, BF16X2, u32, ulp_bf16(1, 0x1p-8), "tanh.approx.bf16x2 %0, %1;")
APPROX(rcp_approx_f64, F64, u64, ulp_f64(0x1p33), "rcp.approx.ftz.f64 %0, %1;")
APPROX(rsqrt_approx_f64, F64, u64, ulp_f64(0x1p33), "rsqrt.approx.f64 %0, %1;")
APPROX(rsqrt_approx_ftz_f64, F64, u64, ulp_f64(0x1p33), "rsqrt.approx.ftz.f64 %0, %1;")

// ---- Floating point: NaN payloads, signed zeros, what .ftz and .sat do at their edges -----------------------------

#define F32_MODES(ROUND)                                                          \
    U32(add_##ROUND##_f32, F32, "add." #ROUND ".f32 %0, %1, %2;")                 \
    U32(add_##ROUND##_ftz_f32, F32, "add." #ROUND ".ftz.f32 %0, %1, %2;")         \
    U32(sub_##ROUND##_f32, F32, "sub." #ROUND ".f32 %0, %1, %2;")                 \
    U32(mul_##ROUND##_f32, F32, "mul." #ROUND ".f32 %0, %1, %2;")                 \
    U32(mul_##ROUND##_ftz_f32, F32, "mul." #ROUND ".ftz.f32 %0, %1, %2;")         \
    U32(fma_##ROUND##_f32, F32, "fma." #ROUND ".f32 %0, %1, %2, %3;")             \
    U32(fma_##ROUND##_ftz_f32, F32, "fma." #ROUND ".ftz.f32 %0, %1, %2, %3;")     \
    U32(fma_##ROUND##_sat_f32, F32, "fma." #ROUND ".ftz.sat.f32 %0, %1, %2, %3;") \
    U32(div_##ROUND##_f32, F32, "div." #ROUND ".f32 %0, %1, %2;")                 \
    U32(div_##ROUND##_ftz_f32, F32, "div." #ROUND ".ftz.f32 %0, %1, %2;")         \
    U32(rcp_##ROUND##_f32, F32, "rcp." #ROUND ".f32 %0, %1;")                     \
    U32(rcp_##ROUND##_ftz_f32, F32, "rcp." #ROUND ".ftz.f32 %0, %1;")             \
    U32(sqrt_##ROUND##_f32, F32, "sqrt." #ROUND ".f32 %0, %1;")                   \
    U32(sqrt_##ROUND##_ftz_f32, F32, "sqrt." #ROUND ".ftz.f32 %0, %1;")           \
    U64(add_##ROUND##_f64, F64, "add." #ROUND ".f64 %0, %1, %2;")                 \
    U64(sub_##ROUND##_f64, F64, "sub." #ROUND ".f64 %0, %1, %2;")                 \
    U64(mul_##ROUND##_f64, F64, "mul." #ROUND ".f64 %0, %1, %2;")                 \
    U64(fma_##ROUND##_f64, F64, "fma." #ROUND ".f64 %0, %1, %2, %3;")             \
    U64(div_##ROUND##_f64, F64, "div." #ROUND ".f64 %0, %1, %2;")                 \
    U64(rcp_##ROUND##_f64, F64, "rcp." #ROUND ".f64 %0, %1;")                     \
    U64(sqrt_##ROUND##_f64, F64, "sqrt." #ROUND ".f64 %0, %1;")
F32_MODES(rn)
F32_MODES(rz)
F32_MODES(rm)
F32_MODES(rp)
U32(add_sat_f32, F32, "add.sat.f32 %0, %1, %2;")
U32(abs_f32, F32, "abs.f32 %0, %1;")
U32(abs_ftz_f32, F32, "abs.ftz.f32 %0, %1;")
U32(neg_f32, F32, "neg.f32 %0, %1;")
U32(neg_ftz_f32, F32, "neg.ftz.f32 %0, %1;")
U32(copysign_f32, F32, "copysign.f32 %0, %1, %2;")
U64(abs_f64, F64, "abs.f64 %0, %1;")
U64(neg_f64, F64, "neg.f64 %0, %1;")
U64(min_f64, F64, "min.f64 %0, %1, %2;")
U64(max_f64, F64, "max.f64 %0, %1, %2;")
#define MINMAX32(SUFFIX, DOTS)                                 \
    U32(min##SUFFIX##_f32, F32, "min" DOTS ".f32 %0, %1, %2;") \
    U32(max##SUFFIX##_f32, F32, "max" DOTS ".f32 %0, %1, %2;")
MINMAX32(, "")
MINMAX32(_ftz, ".ftz")
MINMAX32(_nan, ".NaN")
MINMAX32(_ftz_nan, ".ftz.NaN")
MINMAX32(_xorsign, ".xorsign.abs")
MINMAX32(_nan_xorsign, ".NaN.xorsign.abs")

#define HALF(NAME, PTX, OPERANDS)                  \
    U16(NAME##_f16, F16, PTX ".f16 " OPERANDS ";") \
    U32(NAME##_f16x2, F16X2, PTX ".f16x2 " OPERANDS ";")
#define BHALF(NAME, PTX, OPERANDS)                    \
    U16(NAME##_bf16, BF16, PTX ".bf16 " OPERANDS ";") \
    U32(NAME##_bf16x2, BF16X2, PTX ".bf16x2 " OPERANDS ";")
#define TWO   "%0, %1, %2"
#define THREE "%0, %1, %2, %3"
HALF(add, "add", TWO)
HALF(add_ftz, "add.ftz", TWO)
HALF(add_sat, "add.sat", TWO)
HALF(sub, "sub", TWO)
HALF(mul, "mul", TWO)
HALF(mul_ftz, "mul.ftz", TWO)
HALF(mul_sat, "mul.sat", TWO)
HALF(fma, "fma.rn", THREE)
HALF(fma_ftz, "fma.rn.ftz", THREE)
HALF(fma_sat, "fma.rn.sat", THREE)
HALF(fma_relu, "fma.rn.relu", THREE)
HALF(abs, "abs", "%0, %1")
HALF(neg, "neg", "%0, %1")
HALF(min, "min", TWO)
HALF(max, "max", TWO)
HALF(min_ftz, "min.ftz", TWO)
HALF(min_nan, "min.NaN", TWO)
HALF(max_nan, "max.NaN", TWO)
HALF(max_xorsign, "max.xorsign.abs", TWO)
HALF(min_nan_xorsign, "min.NaN.xorsign.abs", TWO)
BHALF(add, "add.rn", TWO)
BHALF(sub, "sub.rn", TWO)
BHALF(mul, "mul.rn", TWO)
BHALF(fma, "fma.rn", THREE)
BHALF(fma_relu, "fma.rn.relu", THREE)
BHALF(abs, "abs", "%0, %1")
BHALF(neg, "neg", "%0, %1")
BHALF(min, "min", TWO)
BHALF(max, "max", TWO)
BHALF(min_nan, "min.NaN", TWO)
BHALF(max_nan, "max.NaN", TWO)
BHALF(max_xorsign, "max.xorsign.abs", TWO)

#define TESTP(KIND)                                                              \
    SCALAR(testp_##KIND##_f32, u16, u32, u32, u32, F32, UNUSED, UNUSED, bits(),  \
           "{ .reg .pred p; testp." #KIND ".f32 p, %1; selp.u16 %0, 1, 0, p; }") \
    SCALAR(testp_##KIND##_f64, u16, u64, u64, u64, F64, UNUSED, UNUSED, bits(),  \
           "{ .reg .pred p; testp." #KIND ".f64 p, %1; selp.u16 %0, 1, 0, p; }")
TESTP(finite)
TESTP(infinite)
TESTP(number)
TESTP(notanumber)
TESTP(normal)
TESTP(subnormal)

// Results about the smallest normal number, where .ftz must decide: x is that number and up to 255 units more, y is 1 less up
// to 255 units, and for fma z adds a small fraction of a unit.
#define EDGE_OPERANDS                                                                         \
    "{ .reg .b32 x, y, z; and.b32 x, %1, 255; add.u32 x, x, 0x00800000; and.b32 y, %2, 255; " \
    "sub.u32 y, 0x3f800000, y; and.b32 z, %3, 0x80ffffff; add.u32 z, z, 0x00800000; "
#define EDGES(ROUND)                                                                                  \
    U32(mul_##ROUND##_ftz_edge_f32, INT32, EDGE_OPERANDS "mul." #ROUND ".ftz.f32 %0, x, y; }")        \
    U32(fma_##ROUND##_ftz_edge_f32, INT32,                                                            \
        EDGE_OPERANDS "neg.f32 x, x; fma." #ROUND ".ftz.f32 %0, z, 0f30000001, x; }")                 \
    U32(div_##ROUND##_ftz_edge_f32, INT32,                                                            \
        EDGE_OPERANDS "add.u32 y, y, 255; div." #ROUND ".ftz.f32 %0, x, y; }")                        \
    SCALAR(cvt_##ROUND##_ftz_edge_f32_f64, u32, u64, u64, u64, INT32, INT32, UNUSED, bits(),          \
           "{ .reg .b64 x; .reg .b32 n, h; cvt.u32.u64 n, %2; and.b32 n, n, 31; mov.b64 {h, _}, %1; " \
           "cvt.s64.s32 x, h; shl.b64 x, x, n; add.s64 x, x, 0x3810000000000000; cvt." #ROUND         \
           ".ftz.f32.f64 %0, x; }")
EDGES(rn)
EDGES(rz)
EDGES(rm)
EDGES(rp)
// The same for f16.
U16(mul_ftz_edge_f16, INT16,
    "{ .reg .b16 x, y; and.b16 x, %1, 31; add.u16 x, x, 0x0400; and.b16 y, %2, 31; sub.u16 y, 0x3c00, y; "
    "mul.ftz.f16 %0, x, y; }")
U16(fma_ftz_edge_f16, INT16,
    "{ .reg .b16 x, y, k; mov.b16 k, 0x1401; and.b16 x, %1, 31; add.u16 x, x, 0x0400; neg.f16 x, x; and.b16 y, %2, 0x83ff; "
    "add.u16 y, y, 0x0400; fma.rn.ftz.f16 %0, y, k, x; }")

// ---- cvt: NaN, infinity and out of range to each integer type, and the narrow formats -----------------------------

#define CVT(NAME, TD, TA, KIND, PTX) \
    SCALAR(NAME, TD, TA, u32, u32, KIND, UNUSED, UNUSED, bits(), PTX " %0, %1;")
#define TO_INTEGER(D, TD, ROUND)                                                    \
    CVT(cvt_##ROUND##_##D##_f16, TD, u16, F16, "cvt." #ROUND "." #D ".f16")         \
    CVT(cvt_##ROUND##_##D##_f32, TD, u32, F32, "cvt." #ROUND "." #D ".f32")         \
    CVT(cvt_##ROUND##_ftz_##D##_f32, TD, u32, F32, "cvt." #ROUND ".ftz." #D ".f32") \
    CVT(cvt_##ROUND##_##D##_f64, TD, u64, F64, "cvt." #ROUND "." #D ".f64")
#define TO_INTEGER_BF16(D, TD) CVT(cvt_rzi_##D##_bf16, TD, u16, BF16, "cvt.rzi." #D ".bf16")
#define EACH_INTEGER(MAKE, ...) \
    MAKE(u8, u16, __VA_ARGS__)  \
    MAKE(s8, u16, __VA_ARGS__)  \
    MAKE(u16, u16, __VA_ARGS__) \
    MAKE(s16, u16, __VA_ARGS__) \
    MAKE(u32, u32, __VA_ARGS__) \
    MAKE(s32, u32, __VA_ARGS__) \
    MAKE(u64, u64, __VA_ARGS__) \
    MAKE(s64, u64, __VA_ARGS__)
EACH_INTEGER(TO_INTEGER, rni)
EACH_INTEGER(TO_INTEGER, rzi)
TO_INTEGER_BF16(u16, u16)
TO_INTEGER_BF16(s16, u16)
TO_INTEGER_BF16(u32, u32)
TO_INTEGER_BF16(s32, u32)
TO_INTEGER_BF16(u64, u64)
TO_INTEGER_BF16(s64, u64)

#define NARROW(ROUND)                                                           \
    CVT(cvt_##ROUND##_f16_f32, u16, u32, F32, "cvt." #ROUND ".f16.f32")         \
    CVT(cvt_##ROUND##_bf16_f64, u16, u64, F64, "cvt." #ROUND ".bf16.f64")       \
    CVT(cvt_##ROUND##_f32_f64, u32, u64, F64, "cvt." #ROUND ".f32.f64")         \
    CVT(cvt_##ROUND##_ftz_f32_f64, u32, u64, F64, "cvt." #ROUND ".ftz.f32.f64") \
    CVT(cvt_##ROUND##_f16_f64, u16, u64, F64, "cvt." #ROUND ".f16.f64")         \
    CVT(cvt_##ROUND##i_f32, u32, u32, F32, "cvt." #ROUND "i.f32.f32")           \
    CVT(cvt_##ROUND##i_ftz_f32, u32, u32, F32, "cvt." #ROUND "i.ftz.f32.f32")   \
    CVT(cvt_##ROUND##i_f16, u16, u16, F16, "cvt." #ROUND "i.f16.f16")           \
    CVT(cvt_##ROUND##i_f64, u64, u64, F64, "cvt." #ROUND "i.f64.f64")
NARROW(rn)
NARROW(rz)
NARROW(rm)
NARROW(rp)
CVT(cvt_sat_f32, u32, u32, F32, "cvt.sat.f32.f32")
CVT(cvt_ftz_f16_f32, u16, u32, F32, "cvt.rn.ftz.f16.f32")
CVT(cvt_sat_f16_f32, u16, u32, F32, "cvt.rn.sat.f16.f32")
CVT(cvt_f32_f16, u32, u16, F16, "cvt.f32.f16")
CVT(cvt_f64_f16, u64, u16, F16, "cvt.f64.f16")
CVT(cvt_f64_f32, u64, u32, F32, "cvt.f64.f32")
CVT(cvt_f32_bf16, u32, u16, BF16, "cvt.f32.bf16")
CVT(cvt_f64_bf16, u64, u16, BF16, "cvt.f64.bf16")
CVT(cvt_rn_bf16_f32, u16, u32, F32, "cvt.rn.bf16.f32")
CVT(cvt_rz_bf16_f32, u16, u32, F32, "cvt.rz.bf16.f32")
CVT(cvt_rn_relu_bf16_f32, u16, u32, F32, "cvt.rn.relu.bf16.f32")
CVT(cvt_rz_relu_f16_f32, u16, u32, F32, "cvt.rz.relu.f16.f32")
CVT(cvt_rna_tf32, u32, u32, F32, "cvt.rna.tf32.f32")
CVT(cvt_rna_satfinite_tf32, u32, u32, F32, "cvt.rna.satfinite.tf32.f32")
CVT(cvt_rn_tf32, u32, u32, F32, "cvt.rn.tf32.f32")
CVT(cvt_rz_tf32, u32, u32, F32, "cvt.rz.tf32.f32")
CVT(cvt_rn_relu_tf32, u32, u32, F32, "cvt.rn.relu.tf32.f32")
CVT(cvt_rz_relu_tf32, u32, u32, F32, "cvt.rz.relu.tf32.f32")
#define CVT_PAIR(NAME, TD, PTX) SCALAR(NAME, TD, u32, u32, u32, F32, F32, UNUSED, bits(), PTX " %0, %1, %2;")
CVT_PAIR(cvt_rn_f16x2_f32, u32, "cvt.rn.f16x2.f32")
CVT_PAIR(cvt_rz_f16x2_f32, u32, "cvt.rz.f16x2.f32")
CVT_PAIR(cvt_rn_relu_f16x2_f32, u32, "cvt.rn.relu.f16x2.f32")
CVT_PAIR(cvt_rn_bf16x2_f32, u32, "cvt.rn.bf16x2.f32")
CVT_PAIR(cvt_rz_bf16x2_f32, u32, "cvt.rz.bf16x2.f32")
CVT_PAIR(cvt_rz_relu_bf16x2_f32, u32, "cvt.rz.relu.bf16x2.f32")
#define FP8(TYPE, KIND)                                                                    \
    CVT_PAIR(cvt_##TYPE##_f32, u16, "cvt.rn.satfinite." #TYPE ".f32")                      \
    CVT_PAIR(cvt_relu_##TYPE##_f32, u16, "cvt.rn.satfinite.relu." #TYPE ".f32")            \
    CVT(cvt_##TYPE##_f16x2, u16, u32, F16X2, "cvt.rn.satfinite." #TYPE ".f16x2")           \
    CVT(cvt_relu_##TYPE##_f16x2, u16, u32, F16X2, "cvt.rn.satfinite.relu." #TYPE ".f16x2") \
    CVT(cvt_f16x2_##TYPE, u32, u16, KIND, "cvt.rn.f16x2." #TYPE)                           \
    CVT(cvt_relu_f16x2_##TYPE, u32, u16, KIND, "cvt.rn.relu.f16x2." #TYPE)
FP8(e4m3x2, E4M3X2)
FP8(e5m2x2, E5M2X2)

// ---- Integers: division by zero, shifts and fields beyond the width, odd selectors --------------------------------

#define DIVISION(W, T)                                 \
    T(div_u##W, INT##W, "div.u" #W " %0, %1, %2;")     \
    T(div_s##W, INT##W, "div.s" #W " %0, %1, %2;")     \
    T(rem_u##W, INT##W, "rem.u" #W " %0, %1, %2;")     \
    T(rem_s##W, INT##W, "rem.s" #W " %0, %1, %2;")     \
    T(abs_s##W, INT##W, "abs.s" #W " %0, %1;")         \
    T(sad_s##W, INT##W, "sad.s" #W " %0, %1, %2, %3;") \
    T(mad_hi_s##W, INT##W, "mad.hi.s" #W " %0, %1, %2, %3;")
DIVISION(16, U16)
DIVISION(32, U32)
DIVISION(64, U64)
#define SHIFT(W)                                                                                      \
    SCALAR(shl_b##W, u##W, u##W, u32, u32, INT##W, AMOUNT, UNUSED, bits(), "shl.b" #W " %0, %1, %2;") \
    SCALAR(shr_u##W, u##W, u##W, u32, u32, INT##W, AMOUNT, UNUSED, bits(), "shr.u" #W " %0, %1, %2;") \
    SCALAR(shr_s##W, u##W, u##W, u32, u32, INT##W, AMOUNT, UNUSED, bits(), "shr.s" #W " %0, %1, %2;")
SHIFT(16)
SHIFT(32)
SHIFT(64)
#define FIELDS32(NAME, PTX) SCALAR(NAME, u32, u32, u32, u32, INT32, AMOUNT, AMOUNT, bits(), PTX)
#define FIELDS64(NAME, PTX) SCALAR(NAME, u64, u64, u32, u32, INT64, AMOUNT, AMOUNT, bits(), PTX)
FIELDS32(bfe_u32, "bfe.u32 %0, %1, %2, %3;")
FIELDS32(bfe_s32, "bfe.s32 %0, %1, %2, %3;")
FIELDS64(bfe_u64, "bfe.u64 %0, %1, %2, %3;")
FIELDS64(bfe_s64, "bfe.s64 %0, %1, %2, %3;")
FIELDS32(bfi_b32, "bfi.b32 %0, %1, 0x5a5a5a5a, %2, %3;")
FIELDS64(bfi_b64, "bfi.b64 %0, %1, 0x5a5a5a5a5a5a5a5a, %2, %3;")
FIELDS32(bmsk_clamp, "bmsk.clamp.b32 %0, %2, %3;")
FIELDS32(bmsk_wrap, "bmsk.wrap.b32 %0, %2, %3;")
FIELDS32(szext_clamp_u32, "szext.clamp.u32 %0, %1, %2;")
FIELDS32(szext_clamp_s32, "szext.clamp.s32 %0, %1, %2;")
FIELDS32(szext_wrap_u32, "szext.wrap.u32 %0, %1, %2;")
FIELDS32(szext_wrap_s32, "szext.wrap.s32 %0, %1, %2;")
FIELDS32(fns_b32, "fns.b32 %0, %1, %2, %3;")
#define FUNNEL(NAME, PTX) SCALAR(NAME, u32, u32, u32, u32, INT32, INT32, AMOUNT, bits(), PTX)
FUNNEL(shf_l_wrap, "shf.l.wrap.b32 %0, %1, %2, %3;")
FUNNEL(shf_l_clamp, "shf.l.clamp.b32 %0, %1, %2, %3;")
FUNNEL(shf_r_wrap, "shf.r.wrap.b32 %0, %1, %2, %3;")
FUNNEL(shf_r_clamp, "shf.r.clamp.b32 %0, %1, %2, %3;")
#define PRMT(MODE) U32(prmt_##MODE, INT32, "prmt.b32." #MODE " %0, %1, %2, %3;")
U32(prmt, INT32, "prmt.b32 %0, %1, %2, %3;")
PRMT(f4e)
PRMT(b4e)
PRMT(rc8)
PRMT(ecl)
PRMT(ecr)
PRMT(rc16)
U32(bfind_u32, INT32, "bfind.u32 %0, %1;")
U32(bfind_s32, INT32, "bfind.s32 %0, %1;")
U32(bfind_shiftamt_s32, INT32, "bfind.shiftamt.s32 %0, %1;")
U32(clz_b32, INT32, "clz.b32 %0, %1;")
U32(mul24_lo_s32, INT32, "mul24.lo.s32 %0, %1, %2;")
U32(mul24_hi_s32, INT32, "mul24.hi.s32 %0, %1, %2;")
U32(mad24_hi_sat_s32, INT32, "mad24.hi.sat.s32 %0, %1, %2, %3;")
U32(mad_hi_sat_s32, INT32, "mad.hi.sat.s32 %0, %1, %2, %3;")
U32(dp4a_s32_u32, INT32, "dp4a.s32.u32 %0, %1, %2, %3;")
U32(dp2a_hi_u32_s32, INT32, "dp2a.hi.u32.s32 %0, %1, %2, %3;")
SCALAR(slct_f32, u32, u32, u32, u32, INT32, INT32, F32, bits(), "slct.b32.f32 %0, %1, %2, %3;")
SCALAR(slct_ftz_f32, u32, u32, u32, u32, INT32, INT32, F32, bits(), "slct.ftz.b32.f32 %0, %1, %2, %3;")

// ---- Atomics: what is left in memory ------------------------------------------------------------------------------

// Each thread has a cell; PTX runs on it (%0 the address, %1 the operand), and what it leaves there is the result.
#define CELL(NAME, T, KIND, SPACE, PTX)                                                                     \
    __global__ void NAME##_kernel(T *d, const u64 *a, const u64 *b)                                         \
    {                                                                                                       \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                                \
        CELL_##SPACE(T);                                                                                    \
        *cell = (T)a[i];                                                                                    \
        asm volatile(PTX " [%0], %1;" ::"l"(__cvta_generic_to_##SPACE(cell)), REG_##T((T)b[i]) : "memory"); \
        d[i] = *(volatile T *)cell;                                                                         \
    }                                                                                                       \
    static void NAME##_launch(u8 *out, u8 *const *in)                                                       \
    {                                                                                                       \
        NAME##_kernel<<<SCALAR_COUNT / 128, 128>>>((T *)out, (u64 *)in[0], (u64 *)in[1]);                   \
    }                                                                                                       \
    static struct variant NAME##_variant = {#NAME,                                                          \
                                            draw_scalar,                                                    \
                                            NAME##_launch,                                                  \
                                            {SCALAR_COUNT * 8, SCALAR_COUNT * 8, SCALAR_COUNT * 8, 0},      \
                                            SCALAR_COUNT * sizeof(T),                                       \
                                            sizeof(T),                                                      \
                                            bits(),                                                         \
                                            {KIND, KIND, UNUSED},                                           \
                                            NULL};                                                          \
    static const bool NAME##_added = variant_add(&NAME##_variant);
#define CELL_global(T) T *const cell = d + i
#define CELL_shared(T)       \
    __shared__ T cells[128]; \
    T *const cell = cells + threadIdx.x
CELL(red_global_add_f32, u32, F32, global, "red.global.add.f32")
CELL(red_shared_add_f32, u32, F32, shared, "red.shared.add.f32")
CELL(red_global_add_f16x2, u32, F16X2, global, "red.global.add.noftz.f16x2")
CELL(red_shared_add_f16x2, u32, F16X2, shared, "red.shared.add.noftz.f16x2")
CELL(red_global_add_bf16x2, u32, BF16X2, global, "red.global.add.noftz.bf16x2")
CELL(red_shared_add_bf16x2, u32, BF16X2, shared, "red.shared.add.noftz.bf16x2")
CELL(red_global_add_f64, u64, F64, global, "red.global.add.f64")
CELL(red_shared_add_f64, u64, F64, shared, "red.shared.add.f64")
CELL(red_global_add_f16, u16, F16, global, "red.global.add.noftz.f16")
CELL(red_global_add_bf16, u16, BF16, global, "red.global.add.noftz.bf16")
CELL(red_global_inc, u32, INT32, global, "red.global.inc.u32")
CELL(red_global_dec, u32, INT32, global, "red.global.dec.u32")
SCALAR(
    atom_shared_add_f32, u32, u32, u32, u32, F32, F32, UNUSED, bits(),
    "{ .shared .align 4 .b32 cells[128]; .reg .b32 t, p; mov.u32 t, %%tid.x; shl.b32 t, t, 2; mov.u32 p, cells; "
    "add.u32 p, p, t; st.shared.b32 [p], %1; atom.shared.add.f32 t, [p], %2; ld.shared.b32 %0, [p]; }")

// ---- shfl: lanes out of range -------------------------------------------------------------------------------------

#define SHFL(MODE)                                                                                   \
    SCALAR(shfl_##MODE, u32, u32, u32, u32, INT32, AMOUNT, AMOUNT, bits(),                           \
           "{ .reg .pred p; .reg .b32 c; shfl.sync.idx.b32 c, %3, 0, 31, -1; and.b32 c, c, 0x1f1f; " \
           "shfl.sync." #MODE ".b32 %0|p, %1, %2, c, -1; @!p not.b32 %0, %0; }")
SHFL(up)
SHFL(down)
SHFL(bfly)
SHFL(idx)
