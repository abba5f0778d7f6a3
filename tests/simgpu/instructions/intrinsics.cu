// What CUDA's headers offer beyond the operators of C: SIMD-in-a-word and integer intrinsics against plain C, and the f16, bf16
// and FP8 functions against the same headers' own host implementations.
#include "../check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

// INTRINSIC(name, kinds of a, b, c, the device's expression, the host's expression) of the operands' bits.
#define INTRINSIC(NAME, KA, KB, KC, DEVICE, HOST)                                                  \
    __global__ void NAME##_kernel(u64 *d, const u64 *a_bits, const u64 *b_bits, const u64 *c_bits) \
    {                                                                                              \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                       \
        const u64 a = a_bits[i], b = b_bits[i], c = c_bits[i];                                     \
        (void)a, (void)b, (void)c;                                                                 \
        d[i] = DEVICE;                                                                             \
    }                                                                                              \
    static u64 NAME##_expect(u64 a, u64 b, u64 c)                                                  \
    {                                                                                              \
        (void)a, (void)b, (void)c;                                                                 \
        return HOST;                                                                               \
    }                                                                                              \
    static void NAME##_launch(u64 *d, const u64 *a, const u64 *b, const u64 *c)                    \
    {                                                                                              \
        NAME##_kernel<<<OP_COUNT / 128, 128>>>(d, a, b, c);                                        \
    }                                                                                              \
    static struct op NAME##_op = {#NAME, NAME##_launch, NAME##_expect, KA, KB, KC, BITS, NULL};    \
    static const bool NAME##_added = op_add(&NAME##_op);

// ---- SIMD in a word ---------------------------------------------------------------------------------------------------

// EXPRESSION of x and y, the elements of a and b as LANE_TYPE, for each element; the result is cut to its width.
#define EACH(LANE_TYPE, EXPRESSION)                                             \
    ({                                                                          \
        u32 word_ = 0;                                                          \
        for (int at_ = 0; at_ < 32; at_ += 8 * (int)sizeof(LANE_TYPE)) {        \
            const s32 x = (LANE_TYPE)(a >> at_), y = (LANE_TYPE)(b >> at_);     \
            const u32 mask_ = 0xffffffffu >> (32 - 8 * (int)sizeof(LANE_TYPE)); \
            word_ |= ((u32)(EXPRESSION)&mask_) << at_;                          \
        }                                                                       \
        (u64) word_;                                                            \
    })
// The sum over all elements.
#define SUM(LANE_TYPE, EXPRESSION)                                          \
    ({                                                                      \
        u32 sum_ = 0;                                                       \
        for (int at_ = 0; at_ < 32; at_ += 8 * (int)sizeof(LANE_TYPE)) {    \
            const s32 x = (LANE_TYPE)(a >> at_), y = (LANE_TYPE)(b >> at_); \
            sum_ += (u32)(EXPRESSION);                                      \
        }                                                                   \
        (u64) sum_;                                                         \
    })
static s32 clamp(s32 x, s32 low, s32 high)
{
    return x < low ? low : x > high ? high : x;
}
static s32 distance(s32 x, s32 y)
{
    return x < y ? y - x : x - y;
}

#define WORD(NAME, HOST) INTRINSIC(NAME, INT32, INT32, INT32, __##NAME((u32)a, (u32)b), HOST)
#define SIMD(W, S, U)                                                                                   \
    WORD(vadd##W, EACH(U, x + y))                                                                       \
    WORD(vsub##W, EACH(U, x - y))                                                                       \
    WORD(vaddss##W, EACH(S, clamp(x + y, -(1 << (8 * sizeof(S) - 1)), (1 << (8 * sizeof(S) - 1)) - 1))) \
    WORD(vsubss##W, EACH(S, clamp(x - y, -(1 << (8 * sizeof(S) - 1)), (1 << (8 * sizeof(S) - 1)) - 1))) \
    WORD(vaddus##W, EACH(U, clamp(x + y, 0, (1 << 8 * sizeof(U)) - 1)))                                 \
    WORD(vsubus##W, EACH(U, clamp(x - y, 0, (1 << 8 * sizeof(U)) - 1)))                                 \
    WORD(vabsdiffs##W, EACH(S, distance(x, y)))                                                         \
    WORD(vabsdiffu##W, EACH(U, distance(x, y)))                                                         \
    WORD(vavgs##W, EACH(S, (x + y + (x + y >= 0)) >> 1))                                                \
    WORD(vavgu##W, EACH(U, (x + y + 1) >> 1))                                                           \
    WORD(vhaddu##W, EACH(U, (x + y) >> 1))                                                              \
    WORD(vmaxs##W, EACH(S, x > y ? x : y))                                                              \
    WORD(vmaxu##W, EACH(U, x > y ? x : y))                                                              \
    WORD(vmins##W, EACH(S, x < y ? x : y))                                                              \
    WORD(vminu##W, EACH(U, x < y ? x : y))                                                              \
    WORD(vcmpeq##W, EACH(U, x == y ? -1 : 0))                                                           \
    WORD(vcmpges##W, EACH(S, x >= y ? -1 : 0))                                                          \
    WORD(vcmpltu##W, EACH(U, x < y ? -1 : 0))                                                           \
    WORD(vsetgts##W, EACH(S, x > y))                                                                    \
    WORD(vsetleu##W, EACH(U, x <= y))                                                                   \
    WORD(vsads##W, SUM(S, distance(x, y)))                                                              \
    WORD(vsadu##W, SUM(U, distance(x, y)))                                                              \
    INTRINSIC(vneg##W, INT32, INT32, UNUSED, __vneg##W((u32)a), EACH(S, 0 * y - x))                     \
    INTRINSIC(vabs##W, INT32, INT32, UNUSED, __vabs##W((u32)a), EACH(S, distance(x, 0 * y)))
SIMD(2, s16, u16)
SIMD(4, s8, u8)

// ---- Integers ----------------------------------------------------------------------------------------------------------

typedef unsigned __int128 u128;
#define INTEGER(NAME, DEVICE, HOST) INTRINSIC(NAME, INT32, INT32, INT32, DEVICE, HOST)
INTEGER(hadd, (u32)__hadd((s32)a, (s32)b), (u32)(((s64)(s32)a + (s32)b) >> 1))
INTEGER(rhadd, (u32)__rhadd((s32)a, (s32)b), (u32)(((s64)(s32)a + (s32)b + 1) >> 1))
INTEGER(uhadd, __uhadd((u32)a, (u32)b), (u32)((a + b) >> 1))
INTEGER(urhadd, __urhadd((u32)a, (u32)b), (u32)((a + b + 1) >> 1))
INTEGER(ffs, (u32)__ffs((s32)a), (u32)__builtin_ffs((s32)a))
INTEGER(clz, (u32)__clz((s32)a), (u32)a ? (u32)__builtin_clz((u32)a) : 32)
INTEGER(popc, (u32)__popc((u32)a), (u32)__builtin_popcount((u32)a))
INTEGER(funnel, __funnelshift_lc((u32)a, (u32)b, (u32)c),
        (u32)((b << 32 | a) << ((u32)c < 32 ? c : 32) >> 32))
INTRINSIC(ffsll, INT64, UNUSED, UNUSED, (u32)__ffsll((s64)a), (u32)__builtin_ffsll((s64)a))
INTRINSIC(clzll, INT64, UNUSED, UNUSED, (u32)__clzll((s64)a), a ? (u32)__builtin_clzll(a) : 64)
INTRINSIC(umul64hi, INT64, INT64, UNUSED, __umul64hi(a, b), (u64)((u128)a *b >> 64))
INTRINSIC(mul64hi, INT64, INT64, UNUSED, (u64)__mul64hi((s64)a, (s64)b),
          (u64)((__int128)(s64)a *(s64)b >> 64))
INTRINSIC(divide_u64, INT64, INT64, UNUSED, a / (b | 1), a / (b | 1))
INTRINSIC(remainder_s64, INT64, INT64, UNUSED, (u64)((s64)a % (s64)((b & 0xffffff) + 1)),
          (u64)((s64)a % (s64)((b & 0xffffff) + 1)))

// ---- f16, bf16 and FP8: one expression for both sides -------------------------------------------------------------------

__host__ __device__ static u32 half_bits(__half x)
{
    const u16 bits = __half_as_ushort(x);
    return (bits & 0x7fff) > 0x7c00 ? 0x7fff : bits; // every NaN alike
}
__host__ __device__ static u32 bfloat_bits(__nv_bfloat16 x)
{
    const u16 bits = __bfloat16_as_ushort(x);
    return (bits & 0x7fff) > 0x7f80 ? 0x7fff : bits;
}
__host__ __device__ static u32 half2_bits(__half2 x)
{
    return half_bits(__high2half(x)) << 16 | half_bits(__low2half(x));
}
__host__ __device__ static u32 float_bits(float x)
{
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fffffff : bits;
}
__host__ __device__ static float float_of(u64 bits)
{
    const u32 low = (u32)bits;
    float x;
    memcpy(&x, &low, sizeof x);
    return x;
}
__host__ __device__ static double double_of(u64 bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#define BOTH(NAME, KIND, EXPRESSION) INTRINSIC(NAME, KIND, KIND, KIND, EXPRESSION, EXPRESSION)
#define HA                           __ushort_as_half((u16)a)
#define HB                           __ushort_as_half((u16)b)
#define HA2                          __halves2half2(__ushort_as_half((u16)a), __ushort_as_half((u16)(a >> 16)))
#define HB2                          __halves2half2(__ushort_as_half((u16)b), __ushort_as_half((u16)(b >> 16)))
#define BA                           __ushort_as_bfloat16((u16)a)
#define BB                           __ushort_as_bfloat16((u16)b)
BOTH(half_add, F16, half_bits(__hadd(HA, HB)))
BOTH(half_sub, F16, half_bits(__hsub(HA, HB)))
BOTH(half_mul, F16, half_bits(__hmul(HA, HB)))
BOTH(half_add_sat, F16, half_bits(__hadd_sat(HA, HB)))
BOTH(half_div, F16, half_bits(__hdiv(HA, HB)))
BOTH(half_less, F16,
     (u32)(HA < HB) | (u32)__heq(HA, HB) << 1 | (u32)__hgtu(HA, HB) << 2 | (u32)__hisnan(HA) << 3)
BOTH(half2_add, F16X2, half2_bits(__hadd2(HA2, HB2)))
BOTH(half2_mul, F16X2, half2_bits(__hmul2(HA2, HB2)))
BOTH(half2_greater, F16X2, half2_bits(__hgt2(HA2, HB2)) | (u64)__hbeq2(HA2, HB2) << 32)
BOTH(half_to_float, F16, float_bits(__half2float(HA)))
BOTH(half_from_float, F32,
     half_bits(__float2half_rn(float_of(a))) | half_bits(__float2half_rz(float_of(b))) << 16)
BOTH(half_from_float_directed, F32,
     half_bits(__float2half_rd(float_of(a))) | half_bits(__float2half_ru(float_of(b))) << 16)
BOTH(half_from_double, F64, half_bits(__double2half(double_of(a))))
BOTH(half_from_int, INT32, half_bits(__int2half_rn((s32)a)) | half_bits(__uint2half_rz((u32)b)) << 16)
BOTH(half_from_long, INT64, half_bits(__ll2half_rn((s64)a)) | half_bits(__ull2half_rd(b)) << 16)
BOTH(half_to_int, F16, __hisnan(HA) ? 0 : (u32)__half2int_rz(HA) ^ (u32)__half2uint_rz(HA) * 3)
BOTH(bfloat_add, BF16, bfloat_bits(__hadd(BA, BB)))
BOTH(bfloat_mul, BF16, bfloat_bits(__hmul(BA, BB)))
BOTH(bfloat_div, BF16, bfloat_bits(__hdiv(BA, BB)))
BOTH(bfloat_less, BF16, (u32)(BA < BB) | (u32)__heq(BA, BB) << 1 | (u32)__hltu(BA, BB) << 2)
BOTH(bfloat_from_float, F32,
     bfloat_bits(__float2bfloat16_rn(float_of(a))) | bfloat_bits(__float2bfloat16_rz(float_of(b))) << 16)
BOTH(bfloat_from_float_directed, F32,
     bfloat_bits(__float2bfloat16_rd(float_of(a))) | bfloat_bits(__float2bfloat16_ru(float_of(b))) << 16)
BOTH(bfloat_from_double, F64, bfloat_bits(__double2bfloat16(double_of(a))))
BOTH(bfloat_from_int, INT32,
     bfloat_bits(__int2bfloat16_rn((s32)a)) | bfloat_bits(__uint2bfloat16_rn((u32)b)) << 16)
BOTH(bfloat_to_float, BF16, float_bits(__bfloat162float(BA)))
#define FP8(NAME, KIND)                                                                                \
    BOTH(NAME##_from_float, F32,                                                                       \
         (u32)__nv_cvt_float_to_fp8(float_of(a), __NV_SATFINITE, __NV_##KIND) |                        \
             (u32)__nv_cvt_float_to_fp8(float_of(b), __NV_NOSAT, __NV_##KIND) << 8)                    \
    BOTH(NAME##_from_double, F64, __nv_cvt_double_to_fp8(double_of(a), __NV_SATFINITE, __NV_##KIND))   \
    BOTH(NAME##_from_half, F16,                                                                        \
         __nv_cvt_halfraw_to_fp8(static_cast<__half_raw>(HA), __NV_SATFINITE, __NV_##KIND))            \
    BOTH(NAME##_from_bfloat, BF16,                                                                     \
         __nv_cvt_bfloat16raw_to_fp8(static_cast<__nv_bfloat16_raw>(BA), __NV_SATFINITE, __NV_##KIND)) \
    BOTH(NAME##_to_half, INT16,                                                                        \
         half_bits(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(a & 0xff), __NV_##KIND))))
FP8(e4m3, E4M3)
FP8(e5m2, E5M2)

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    return check_end("intrinsics");
}
