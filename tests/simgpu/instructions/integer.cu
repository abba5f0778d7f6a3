// Integer arithmetic: add, sub, mul, mad, mul24, sad, div, rem, abs, neg, min, max, dot products, 16-bit pairs.
#include "../check.h"

typedef __int128 s128;
typedef unsigned __int128 u128;

static u64 clamp(s64 x, s64 low, s64 high)
{
    return (u64)(x < low ? low : x > high ? high : x);
}
static u64 saturate32(s64 x)
{
    return clamp(x, INT32_MIN, INT32_MAX);
}
static u64 magnitude(s64 x)
{
    return x < 0 ? -(u64)x : (u64)x;
}
static s32 low24(u32 x)
{
    return (s32)(x << 8) >> 8;
}

#define OP16(NAME, PTX, EXPECT) OP(NAME, u16, u16, u16, u16, INT16, INT16, INT16, BITS, PTX, EXPECT)
#define OP32(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, INT32, INT32, INT32, BITS, PTX, EXPECT)
#define OP64(NAME, PTX, EXPECT) OP(NAME, u64, u64, u64, u64, INT64, INT64, INT64, BITS, PTX, EXPECT)

// What is written alike for each width: W bits, S and U the types, SS and UU types twice as wide.
#define WIDTH(W, S, U, SS, UU)                                                                              \
    OP##W(add_u##W, "add.u" #W " %0, %1, %2;", a + b) OP##W(add_s##W, "add.s" #W " %0, %1, %2;", a + b)     \
        OP##W(sub_u##W, "sub.u" #W " %0, %1, %2;", a - b) OP##W(sub_s##W, "sub.s" #W " %0, %1, %2;", a - b) \
            OP##W(mul_lo_u##W, "mul.lo.u" #W " %0, %1, %2;", (UU)a *b) OP##W(                               \
                mul_lo_s##W, "mul.lo.s" #W " %0, %1, %2;",                                                  \
                (SS)(S)a *(S)b) OP##W(mul_hi_u##W, "mul.hi.u" #W " %0, %1, %2;", (UU)a *b >> W)             \
                OP##W(mul_hi_s##W, "mul.hi.s" #W " %0, %1, %2;", (SS)(S)a *(S)b >> W) OP##W(                \
                    mad_lo_u##W, "mad.lo.u" #W " %0, %1, %2, %3;",                                          \
                    (UU)a *b + c) OP##W(mad_lo_s##W, "mad.lo.s" #W " %0, %1, %2, %3;", (UU)a *b + c)        \
                    OP##W(mad_hi_u##W, "mad.hi.u" #W " %0, %1, %2, %3;", ((UU)a * b >> W) + c) OP##W(       \
                        mad_hi_s##W, "mad.hi.s" #W " %0, %1, %2, %3;",                                      \
                        ((SS)(S)a * (S)b >> W) +                                                            \
                            c) OP##W(sad_u##W, "sad.u" #W " %0, %1, %2, %3;", c + (a < b ? b - a : a - b))  \
                        OP##W(sad_s##W, "sad.s" #W " %0, %1, %2, %3;", c + ((S)a < (S)b ? b - a : a - b))   \
                            OP##W(div_u##W,                                                                 \
                                  "{ .reg .b" #W " x; or.b" #W " x, %2, 1; div.u" #W " %0, %1, x; }",       \
                                  a / (U)(b | 1)) OP##W(rem_u##W,                                           \
                                                        "{ .reg .b" #W " x; or.b" #W " x, %2, 1; rem.u" #W  \
                                                        " %0, %1, x; }",                                    \
                                                        a % (U)(b | 1))                                     \
                                OP##W(div_s##W,                                                             \
                                      "{ .reg .b" #W " x; or.b" #W " x, %2, 1; div.s" #W " %0, %1, x; }",   \
                                      (SS)(S)a / (S)(b | 1)) OP##W(rem_s##W,                                \
                                                                   "{ .reg .b" #W " x; or.b" #W             \
                                                                   " x, %2, 1; rem.s" #W " %0, %1, x; }",   \
                                                                   (SS)(S)a % (S)(b | 1))                   \
                                    OP##W(abs_s##W, "abs.s" #W " %0, %1;", magnitude((S)a))                 \
                                        OP##W(neg_s##W, "neg.s" #W " %0, %1;", -(u64)a)                     \
                                            OP##W(min_u##W, "min.u" #W " %0, %1, %2;", a < b ? a : b)       \
                                                OP##W(max_u##W, "max.u" #W " %0, %1, %2;", a > b ? a : b)   \
                                                    OP##W(min_s##W, "min.s" #W " %0, %1, %2;",              \
                                                          (S)a < (S)b ? a : b)                              \
                                                        OP##W(max_s##W, "max.s" #W " %0, %1, %2;",          \
                                                              (S)a > (S)b ? a : b)

WIDTH(16, s16, u16, s32, u32)
WIDTH(32, s32, u32, s64, u64)
WIDTH(64, s64, u64, s128, u128)

OP32(add_sat_s32, "add.sat.s32 %0, %1, %2;", saturate32((s64)(s32)a + (s32)b))
OP32(sub_sat_s32, "sub.sat.s32 %0, %1, %2;", saturate32((s64)(s32)a - (s32)b))
OP32(mad_hi_sat_s32, "mad.hi.sat.s32 %0, %1, %2, %3;", saturate32(((s64)(s32)a * (s32)b >> 32) + (s32)c))
OP32(min_relu_s32, "min.relu.s32 %0, %1, %2;", clamp((s32)a < (s32)b ? (s32)a : (s32)b, 0, INT32_MAX))
OP32(max_relu_s32, "max.relu.s32 %0, %1, %2;", clamp((s32)a > (s32)b ? (s32)a : (s32)b, 0, INT32_MAX))

OP(mul_wide_u16, u32, u16, u16, u16, INT16, INT16, INT16, BITS, "mul.wide.u16 %0, %1, %2;", (u32)a *b)
OP(mul_wide_s16, u32, u16, u16, u16, INT16, INT16, INT16, BITS, "mul.wide.s16 %0, %1, %2;", (s16)a *(s16)b)
OP(mul_wide_u32, u64, u32, u32, u32, INT32, INT32, INT32, BITS, "mul.wide.u32 %0, %1, %2;", (u64)a *b)
OP(mul_wide_s32, u64, u32, u32, u32, INT32, INT32, INT32, BITS, "mul.wide.s32 %0, %1, %2;",
   (s64)(s32)a *(s32)b)
OP(mad_wide_u16, u32, u16, u16, u32, INT16, INT16, INT32, BITS, "mad.wide.u16 %0, %1, %2, %3;", (u32)a *b + c)
OP(mad_wide_s16, u32, u16, u16, u32, INT16, INT16, INT32, BITS, "mad.wide.s16 %0, %1, %2, %3;",
   (u32)((s16)a *(s16)b) + c)
OP(mad_wide_u32, u64, u32, u32, u64, INT32, INT32, INT64, BITS, "mad.wide.u32 %0, %1, %2, %3;", (u64)a *b + c)
OP(mad_wide_s32, u64, u32, u32, u64, INT32, INT32, INT64, BITS, "mad.wide.s32 %0, %1, %2, %3;",
   (u64)((s64)(s32)a *(s32)b) + c)

OP32(mul24_lo_u32, "mul24.lo.u32 %0, %1, %2;", (u64)(a & 0xffffff) * (b & 0xffffff))
OP32(mul24_lo_s32, "mul24.lo.s32 %0, %1, %2;", (s64)low24(a) * low24(b))
OP32(mul24_hi_u32, "mul24.hi.u32 %0, %1, %2;", (u64)(a & 0xffffff) * (b & 0xffffff) >> 16)
OP32(mul24_hi_s32, "mul24.hi.s32 %0, %1, %2;", (s64)low24(a) * low24(b) >> 16)
OP32(mad24_lo_u32, "mad24.lo.u32 %0, %1, %2, %3;", (u64)(a & 0xffffff) * (b & 0xffffff) + c)
OP32(mad24_lo_s32, "mad24.lo.s32 %0, %1, %2, %3;", (s64)low24(a) * low24(b) + c)
OP32(mad24_hi_u32, "mad24.hi.u32 %0, %1, %2, %3;", ((u64)(a & 0xffffff) * (b & 0xffffff) >> 16) + c)
OP32(mad24_hi_s32, "mad24.hi.s32 %0, %1, %2, %3;", ((s64)low24(a) * low24(b) >> 16) + c)
OP32(mad24_hi_sat_s32, "mad24.hi.sat.s32 %0, %1, %2, %3;",
     saturate32((s64)(s32)((s64)low24(a) * low24(b) >> 16) + (s32)c))

// dp4a: four 8-bit products; dp2a: two 16-bit by 8-bit products, the low or high bytes of b.
static u32 dp4a(u32 a, u32 b, u32 c, bool a_signed, bool b_signed)
{
    for (int i = 0; i < 4; i++) {
        const u8 x = (u8)(a >> 8 * i), y = (u8)(b >> 8 * i);
        c += (u32)((a_signed ? (s8)x : x) * (b_signed ? (s8)y : y));
    }
    return c;
}
static u32 dp2a(u32 a, u32 b, u32 c, bool a_signed, bool b_signed, bool high)
{
    for (int i = 0; i < 2; i++) {
        const u16 x = (u16)(a >> 16 * i);
        const u8 y = (u8)(b >> (8 * i + 16 * high));
        c += (u32)((a_signed ? (s16)x : x) * (b_signed ? (s8)y : y));
    }
    return c;
}
#define DOT_PRODUCTS(A, B, A_SIGNED, B_SIGNED)                                                             \
    OP32(dp4a_##A##_##B, "dp4a." #A "." #B " %0, %1, %2, %3;", dp4a(a, b, c, A_SIGNED, B_SIGNED))          \
    OP32(dp2a_lo_##A##_##B, "dp2a.lo." #A "." #B " %0, %1, %2, %3;", dp2a(a, b, c, A_SIGNED, B_SIGNED, 0)) \
    OP32(dp2a_hi_##A##_##B, "dp2a.hi." #A "." #B " %0, %1, %2, %3;", dp2a(a, b, c, A_SIGNED, B_SIGNED, 1))
DOT_PRODUCTS(u32, u32, false, false)
DOT_PRODUCTS(u32, s32, false, true)
DOT_PRODUCTS(s32, u32, true, false)
DOT_PRODUCTS(s32, s32, true, true)

// Pairs of 16-bit integers: x and y are the halves.
#define PAIR(EXPRESSION)                                      \
    ({                                                        \
        u32 pair_ = 0;                                        \
        for (int h_ = 0; h_ < 32; h_ += 16) {                 \
            const u16 x = (u16)(a >> h_), y = (u16)(b >> h_); \
            pair_ |= (u32)(u16)(EXPRESSION) << h_;            \
        }                                                     \
        pair_;                                                \
    })
OP32(add_u16x2, "add.u16x2 %0, %1, %2;", PAIR(x + y))
OP32(add_s16x2, "add.s16x2 %0, %1, %2;", PAIR(x + y))
OP32(min_u16x2, "min.u16x2 %0, %1, %2;", PAIR(x < y ? x : y))
OP32(max_u16x2, "max.u16x2 %0, %1, %2;", PAIR(x > y ? x : y))
OP32(min_s16x2, "min.s16x2 %0, %1, %2;", PAIR((s16)x < (s16)y ? x : y))
OP32(max_s16x2, "max.s16x2 %0, %1, %2;", PAIR((s16)x > (s16)y ? x : y))
OP32(min_relu_s16x2, "min.relu.s16x2 %0, %1, %2;",
     PAIR(clamp((s16)x < (s16)y ? (s16)x : (s16)y, 0, INT16_MAX)))
OP32(max_relu_s16x2, "max.relu.s16x2 %0, %1, %2;",
     PAIR(clamp((s16)x > (s16)y ? (s16)x : (s16)y, 0, INT16_MAX)))

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("integer");
}
