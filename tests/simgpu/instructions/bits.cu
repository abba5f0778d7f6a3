// Bits: logic, lop3, shifts, funnel shifts, bit fields, counting, permutation, carry chains.
#include "../check.h"

typedef unsigned __int128 u128;

#define OP16(NAME, PTX, EXPECT) OP(NAME, u16, u16, u16, u16, INT16, INT16, INT16, BITS, PTX, EXPECT)
#define OP32(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, INT32, INT32, INT32, BITS, PTX, EXPECT)
#define OP64(NAME, PTX, EXPECT) OP(NAME, u64, u64, u64, u64, INT64, INT64, INT64, BITS, PTX, EXPECT)

// ---- Logic and shifts, each width ------------------------------------------------------------------------------------

#define WIDTH(W, S, U)                                                                                    \
    OP##W(and_b##W, "and.b" #W " %0, %1, %2;", a &b) OP##W(or_b##W, "or.b" #W " %0, %1, %2;", a | b)      \
        OP##W(xor_b##W, "xor.b" #W " %0, %1, %2;", a ^ b) OP##W(not_b##W, "not.b" #W " %0, %1;", ~a)      \
            OP##W(cnot_b##W, "cnot.b" #W " %0, %1;", a == 0)                                              \
                OP(shl_b##W, U, U, u32, u32, INT##W, AMOUNT, UNUSED, BITS, "shl.b" #W " %0, %1, %2;",     \
                   b < W ? a << b : 0) OP(shr_b##W, U, U, u32, u32, INT##W, AMOUNT, UNUSED, BITS,         \
                                          "shr.b" #W " %0, %1, %2;", b < W ? a >> b : 0)                  \
                    OP(shr_u##W, U, U, u32, u32, INT##W, AMOUNT, UNUSED, BITS, "shr.u" #W " %0, %1, %2;", \
                       b < W ? a >> b : 0) OP(shr_s##W, U, U, u32, u32, INT##W, AMOUNT, UNUSED, BITS,     \
                                              "shr.s" #W " %0, %1, %2;", (S)a >> (b < W ? b : W - 1))
WIDTH(16, s16, u16)
WIDTH(32, s32, u32)
WIDTH(64, s64, u64)

// Predicate logic: p = a's bit 0, q = b's bit 0, and the result as 0 or 1.
#define PREDICATES(BODY)                                                                              \
    "{ .reg .pred p, q, r; .reg .b32 x, y; and.b32 x, %1, 1; and.b32 y, %2, 1; setp.ne.u32 p, x, 0; " \
    "setp.ne.u32 q, y, 0; " BODY " selp.b32 %0, 1, 0, r; }"
OP32(and_pred, PREDICATES("and.pred r, p, q;"), a &b & 1)
OP32(or_pred, PREDICATES("or.pred r, p, q;"), (a | b) & 1)
OP32(xor_pred, PREDICATES("xor.pred r, p, q;"), (a ^ b) & 1)
OP32(not_pred, PREDICATES("not.pred r, p;"), ~a & 1)
OP32(mov_pred, PREDICATES("mov.pred r, q;"), b & 1)
OP32(negated_pred, PREDICATES("and.pred r, p, !q;"), a & ~b & 1)

// ---- lop3: d's bit is the table's entry 4*a + 2*b + c ----------------------------------------------------------------

static u32 lop3(u32 a, u32 b, u32 c, int table)
{
    u32 d = 0;
    for (int i = 0; i < 32; i++) {
        const int entry = (int)(a >> i & 1) * 4 + (int)(b >> i & 1) * 2 + (int)(c >> i & 1);
        d |= (u32)(table >> entry & 1) << i;
    }
    return d;
}

#define LOP3(TABLE) \
    asm volatile("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d[TABLE]) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
#define LOP3_4(TABLE)  LOP3(TABLE) LOP3(TABLE + 1) LOP3(TABLE + 2) LOP3(TABLE + 3)
#define LOP3_16(TABLE) LOP3_4(TABLE) LOP3_4(TABLE + 4) LOP3_4(TABLE + 8) LOP3_4(TABLE + 12)
#define LOP3_64(TABLE) LOP3_16(TABLE) LOP3_16(TABLE + 16) LOP3_16(TABLE + 32) LOP3_16(TABLE + 48)
__global__ void lop3_kernel(u32 *d, u32 a, u32 b, u32 c)
{
    LOP3_64(0) LOP3_64(64) LOP3_64(128) LOP3_64(192)
}

static void check_lop3(void)
{
    check_begin("lop3.b32");
    u32 *d, got[256];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    for (int round = 0; round < 16; round++) {
        const u32 a = (u32)random_u64(), b = (u32)random_u64(), c = (u32)random_u64();
        lop3_kernel<<<1, 1>>>(d, a, b, c);
        if (!launched("lop3.b32")) return;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (int table = 0; table < 256; table++) check((u64)table, got[table], lop3(a, b, c, table));
    }
}

OP32(lop3_or,
     "{ .reg .pred p, q; .reg .b32 x; setp.gt.s32 q, %2, %3; lop3.or.b32 x|p, %1, %2, %3, 0x1e, q; "
     "selp.b32 %0, 1, 0, p; }",
     lop3(a, b, c, 0x1e) != 0 || (s32)b > (s32)c)
OP32(lop3_and,
     "{ .reg .pred p, q; .reg .b32 x; setp.gt.s32 q, %2, %3; lop3.and.b32 x|p, %1, %2, %3, 0x80, q; "
     "selp.b32 %0, x, 7, p; }",
     lop3(a, b, c, 0x80) != 0 && (s32)b > (s32)c ? lop3(a, b, c, 0x80) : 7)

// ---- Funnel shifts, bit fields, counting -----------------------------------------------------------------------------

#define FUNNEL(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, INT32, INT32, AMOUNT, BITS, PTX, EXPECT)
#define WIDE                      ((u64)b << 32 | a)
FUNNEL(shf_l_wrap, "shf.l.wrap.b32 %0, %1, %2, %3;", WIDE << (c & 31) >> 32)
FUNNEL(shf_l_clamp, "shf.l.clamp.b32 %0, %1, %2, %3;", WIDE << (c < 32 ? c : 32) >> 32)
FUNNEL(shf_r_wrap, "shf.r.wrap.b32 %0, %1, %2, %3;", WIDE >> (c & 31))
FUNNEL(shf_r_clamp, "shf.r.clamp.b32 %0, %1, %2, %3;", WIDE >> (c < 32 ? c : 32))

// Bit field extract and insert as PTX states them in pseudo-code. Position and length are the low 8 bits of b and c; for a
// 64-bit field, which an H200 works out with shifts, all 32 bits count.
static u64 bfe(u64 a, u32 b, u32 c, int bits, bool is_signed)
{
    const u64 pos = bits == 32 ? b & 0xff : b, len = bits == 32 ? c & 0xff : c, msb = (u64)bits - 1;
    u64 sign = 0, d = 0;
    if (is_signed && len) sign = a >> (pos + len - 1 < msb ? pos + len - 1 : msb) & 1;
    for (u64 i = 0; i <= msb; i++) d |= (i < len && pos + i <= msb ? a >> (pos + i) & 1 : sign) << i;
    return d;
}
static u64 bfi(u64 a, u64 b, u32 c, u32 length, int bits)
{
    const u64 pos = bits == 32 ? c & 0xff : c, len = bits == 32 ? length & 0xff : length;
    for (u64 i = 0; i < len && pos + i < (u64)bits; i++)
        b = (b & ~(1ull << (pos + i))) | (a >> i & 1) << (pos + i);
    return b;
}
OP(bfe_u32, u32, u32, u32, u32, INT32, AMOUNT, AMOUNT, BITS, "bfe.u32 %0, %1, %2, %3;",
   bfe(a, b, c, 32, false))
OP(bfe_s32, u32, u32, u32, u32, INT32, AMOUNT, AMOUNT, BITS, "bfe.s32 %0, %1, %2, %3;",
   bfe(a, b, c, 32, true))
OP(bfe_u64, u64, u64, u32, u32, INT64, AMOUNT, AMOUNT, BITS, "bfe.u64 %0, %1, %2, %3;",
   bfe(a, b, c, 64, false))
OP(bfe_s64, u64, u64, u32, u32, INT64, AMOUNT, AMOUNT, BITS, "bfe.s64 %0, %1, %2, %3;",
   bfe(a, b, c, 64, true))
// The length comes from c's upper half.
OP(bfi_b32, u32, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b32 n; shr.u32 n, %3, 16; bfi.b32 %0, %1, %2, %3, n; }", bfi(a, b, c, c >> 16, 32))
OP(bfi_b32_short, u32, u32, u32, u32, INT32, INT32, AMOUNT, BITS,
   "{ .reg .b32 n; shr.u32 n, %1, 27; bfi.b32 %0, %1, %2, %3, n; }", bfi(a, b, c, a >> 27, 32))
OP(bfi_b64, u64, u64, u64, u32, INT64, INT64, INT32, BITS,
   "{ .reg .b32 n; shr.u32 n, %3, 16; bfi.b64 %0, %1, %2, %3, n; }", bfi(a, b, c, c >> 16, 64))
OP(bfi_b64_short, u64, u64, u64, u32, INT64, INT64, AMOUNT, BITS,
   "{ .reg .b32 n; cvt.u32.u64 n, %1; shr.u32 n, n, 26; bfi.b64 %0, %1, %2, %3, n; }",
   bfi(a, b, c, (u32)a >> 26, 64))

static u32 highest_set(u64 x)
{
    u32 position = 0xffffffff;
    for (u32 i = 0; i < 64; i++)
        if (x >> i & 1) position = i;
    return position;
}
static u32 count_set(u64 x)
{
    u32 count = 0;
    for (; x; x &= x - 1) count++;
    return count;
}
static u64 reversed(u64 x, int bits)
{
    u64 d = 0;
    for (int i = 0; i < bits; i++) d |= (x >> i & 1) << (bits - 1 - i);
    return d;
}
static u32 shift_amount(u64 x, int bits)
{
    return x ? (u32)bits - 1 - highest_set(x) : 0xffffffff;
}
// For a negative number the highest 0 is looked for.
#define BFIND_S32                 ((s32)a < 0 ? (u32)~a : a)
#define BFIND_S64                 ((s64)a < 0 ? ~a : a)
#define FROM64(NAME, PTX, EXPECT) OP(NAME, u32, u64, u32, u32, INT64, UNUSED, UNUSED, BITS, PTX, EXPECT)
OP32(popc_b32, "popc.b32 %0, %1;", count_set(a))
FROM64(popc_b64, "popc.b64 %0, %1;", count_set(a))
OP32(clz_b32, "clz.b32 %0, %1;", 31 - highest_set(a))
FROM64(clz_b64, "clz.b64 %0, %1;", 63 - highest_set(a))
OP32(bfind_u32, "bfind.u32 %0, %1;", highest_set(a))
OP32(bfind_s32, "bfind.s32 %0, %1;", highest_set(BFIND_S32))
FROM64(bfind_u64, "bfind.u64 %0, %1;", highest_set(a))
FROM64(bfind_s64, "bfind.s64 %0, %1;", highest_set(BFIND_S64))
OP32(bfind_shiftamt_u32, "bfind.shiftamt.u32 %0, %1;", shift_amount(a, 32))
OP32(bfind_shiftamt_s32, "bfind.shiftamt.s32 %0, %1;", shift_amount(BFIND_S32, 32))
FROM64(bfind_shiftamt_u64, "bfind.shiftamt.u64 %0, %1;", shift_amount(a, 64))
FROM64(bfind_shiftamt_s64, "bfind.shiftamt.s64 %0, %1;", shift_amount(BFIND_S64, 64))
OP32(brev_b32, "brev.b32 %0, %1;", reversed(a, 32))
OP64(brev_b64, "brev.b64 %0, %1;", reversed(a, 64))

// fns: the n-th set bit from `base`, upwards for n > 0, downwards for n < 0, `base` itself for n = 0.
static u32 fns(u32 mask, u32 base, s32 n)
{
    if (base > 31) return 0xffffffff;
    if (n == 0) return mask >> base & 1 ? base : 0xffffffff;
    const int step = n > 0 ? 1 : -1;
    s32 left = n > 0 ? n : -n;
    for (int i = (int)base; i >= 0 && i < 32; i += step)
        if ((mask >> i & 1) && --left == 0) return (u32)i;
    return 0xffffffff;
}
OP32(fns_b32,
     "{ .reg .b32 base, n; and.b32 base, %2, 31; and.b32 n, %3, 15; sub.s32 n, n, 8; "
     "fns.b32 %0, %1, base, n; }",
     fns(a, b & 31, (s32)(c & 15) - 8))

static u32 bmsk(u32 a, u32 b, bool clamp)
{
    const u32 from = clamp ? a : a & 31, length = clamp ? b : b & 31;
    u32 d = 0;
    for (u32 i = 0; i < 32; i++) d |= (u32)(i >= from && i - from < length) << i;
    return d;
}
#define AMOUNTS(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, AMOUNT, AMOUNT, UNUSED, BITS, PTX, EXPECT)
AMOUNTS(bmsk_clamp, "bmsk.clamp.b32 %0, %1, %2;", bmsk(a, b, true))
AMOUNTS(bmsk_wrap, "bmsk.wrap.b32 %0, %1, %2;", bmsk(a, b, false))
// szext keeps the low n bits and extends them: n = 0 gives 0, n >= 32 (clamp) a itself.
static u32 szext(u32 a, u32 n, bool clamp, bool is_signed)
{
    n = clamp ? n : n & 31;
    if (n >= 32) return a;
    if (n == 0) return 0;
    const u32 low = a & ((1u << n) - 1);
    return is_signed && (low >> (n - 1) & 1) ? low | ~0u << n : low;
}
#define SZEXT(NAME, PTX, EXPECT) OP(NAME, u32, u32, u32, u32, INT32, AMOUNT, UNUSED, BITS, PTX, EXPECT)
SZEXT(szext_clamp_u32, "szext.clamp.u32 %0, %1, %2;", szext(a, b, true, false))
SZEXT(szext_clamp_s32, "szext.clamp.s32 %0, %1, %2;", szext(a, b, true, true))
SZEXT(szext_wrap_u32, "szext.wrap.u32 %0, %1, %2;", szext(a, b, false, false))
SZEXT(szext_wrap_s32, "szext.wrap.s32 %0, %1, %2;", szext(a, b, false, true))

// ---- prmt ------------------------------------------------------------------------------------------------------------

static u32 prmt_bytes(u32 a, u32 b, const int *from)
{
    u32 d = 0;
    for (int i = 0; i < 4; i++) d |= (u32)(u8)(WIDE >> 8 * from[i]) << 8 * i;
    return d;
}
static u32 prmt(u32 a, u32 b, u32 c)
{
    u32 d = 0;
    for (int i = 0; i < 4; i++) {
        const u32 selector = c >> 4 * i & 15;
        const u8 byte = (u8)(WIDE >> 8 * (selector & 7));
        d |= (u32)(u8)(selector & 8 ? (s8)byte >> 7 : byte) << 8 * i;
    }
    return d;
}
OP32(prmt_b32, "prmt.b32 %0, %1, %2, %3;", prmt(a, b, c))
#define PRMT(MODE, B0, B1, B2, B3)                                                   \
    OP32(prmt_##MODE, "prmt.b32." #MODE " %0, %1, %2, %3;", ({                       \
             const int n = (int)(c & 3), from[4] = {(B0)&7, (B1)&7, (B2)&7, (B3)&7}; \
             prmt_bytes(a, b, from);                                                 \
         }))
#define AT_LEAST(k) (n > (k) ? n : (k))
#define AT_MOST(k)  (n < (k) ? n : (k))
PRMT(f4e, n, n + 1, n + 2, n + 3)
PRMT(b4e, n, n + 7, n + 6, n + 5)
PRMT(rc8, n, n, n, n)
PRMT(ecl, n, AT_LEAST(1), AT_LEAST(2), AT_LEAST(3))
PRMT(ecr, AT_MOST(0), AT_MOST(1), AT_MOST(2), n)
PRMT(rc16, 2 * (n & 1), 2 * (n & 1) + 1, 2 * (n & 1), 2 * (n & 1) + 1)

// ---- Carry chains ----------------------------------------------------------------------------------------------------

// A 128-bit operand made of a and b, and another of b and c; the result's words folded into one by multiplying.
static u64 fold(u128 x, u32 carry)
{
    u64 d = carry;
    for (int i = 0; i < 4; i++) d = d * 0x100000001b3ull + (u32)(x >> 32 * i);
    return d;
}
__global__ void carry_kernel(u32 *d, const u32 *x, const u32 *y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    x += 4 * i, y += 4 * i, d += 10 * i;
    asm volatile("add.cc.u32 %0, %5, %9;\n\taddc.cc.u32 %1, %6, %10;\n\taddc.cc.s32 %2, %7, %11;\n\t"
                 "addc.cc.u32 %3, %8, %12;\n\taddc.u32 %4, 0, 0;"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
    asm volatile("sub.cc.u32 %0, %5, %9;\n\tsubc.cc.u32 %1, %6, %10;\n\tsubc.cc.s32 %2, %7, %11;\n\t"
                 "subc.cc.u32 %3, %8, %12;\n\tsubc.u32 %4, 0, 0;"
                 : "=r"(d[5]), "=r"(d[6]), "=r"(d[7]), "=r"(d[8]), "=r"(d[9])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
}
static u128 wide128(const u32 *x)
{
    return (u128)x[3] << 96 | (u128)x[2] << 64 | (u64)x[1] << 32 | x[0];
}

static void check_carry(void)
{
    enum { COUNT = 4096 };
    static u32 x[COUNT][4], y[COUNT][4], got[COUNT][10];
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 4; k++)
            x[i][k] = (u32)draw(INT32), y[i][k] = random_u64() % 4 ? (u32)draw(INT32) : ~x[i][k];
    u32 *x_gmem, *y_gmem, *d;
    CUDA_CHECK(cudaMalloc((void **)&x_gmem, sizeof x));
    CUDA_CHECK(cudaMalloc((void **)&y_gmem, sizeof y));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(x_gmem, x, sizeof x, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(y_gmem, y, sizeof y, cudaMemcpyHostToDevice));
    carry_kernel<<<COUNT / 128, 128>>>(d, x_gmem, y_gmem);
    if (!launched("add.cc, sub.cc")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) {
        const u128 left = wide128(x[i]), right = wide128(y[i]), sum = left + right, difference = left - right;
        check_name = "add.cc, addc.cc, addc";
        check((u64)i, fold(wide128(got[i]), got[i][4]), fold(sum, sum < left));
        check_name = "sub.cc, subc.cc, subc";
        check((u64)i, fold(wide128(got[i] + 5), got[i][9]), fold(difference, left < right ? 0xffffffff : 0));
    }
}

OP64(add_cc_u64, "{ .reg .b64 x; add.cc.u64 x, %1, %2; addc.u64 %0, %3, 0; }", c + (u64)(a + b < a))
OP64(sub_cc_u64, "{ .reg .b64 x; sub.cc.s64 x, %1, %2; subc.u64 %0, %3, 0; }", c - (u64)(a < b))
// A 32 x 32 -> 64 bit product, and a 64 x 64 -> 64 bit one in words.
OP(mad_cc_u32, u64, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b32 x, y; mad.lo.cc.u32 x, %1, %2, %3; madc.hi.u32 y, %1, %2, 0; mov.b64 %0, {x, y}; }",
   (u64)a *b + c)
OP(mad_cc_s32, u64, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b32 x, y, z; shr.s32 z, %3, 31; mad.lo.cc.s32 x, %1, %2, %3; madc.hi.s32 y, %1, %2, z; "
   "mov.b64 %0, {x, y}; }",
   (s64)(s32)a *(s32)b + (s32)c)
OP(mad_hi_cc_u32, u64, u32, u32, u32, INT32, INT32, INT32, BITS,
   "{ .reg .b32 x, y; mad.hi.cc.u32 x, %1, %2, %3; madc.lo.cc.u32 y, %1, %2, 0; mov.b64 %0, {x, y}; }", ({
       const u64 high = ((u64)a * b >> 32) + c;
       (u64)(u32)(a * b + (u32)(high >> 32)) << 32 | (u32)high;
   }))
OP64(mad_cc_u64, "{ .reg .b64 x; mad.lo.cc.u64 x, %1, %2, %3; madc.hi.u64 %0, %1, %2, 0; }",
     ((u128)a * b + c) >> 64)
OP64(mad_lo_cc_u64, "{ .reg .b64 x; mad.lo.cc.u64 x, %1, %2, %3; madc.lo.u64 %0, %1, %2, x; }", ({
         const u64 product = a * b, low = product + c;
         product + low + (low < c);
     }))

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    if (argc < 2) {
        check_lop3();
        check_carry();
    }
    return check_end("bits");
}
