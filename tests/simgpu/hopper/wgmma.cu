// wgmma: every N of every combination of element types, both majors, all four swizzles, base offsets, A from registers or
// shared memory, negation, .satfinite, against plain C on the host; and the accumulation bit for bit. Passes on a GPU too.
#include "../check.h"

// ---- Kernels: one an instruction --------------------------------------------------------------------------------------

// The registers of D, as PTX has them: R4 is "d0,d1,d2,d3".
// clang-format off
#define R2 "d0,d1"
#define R4 R2 ",""d2,d3"
#define R6 R4 ",""d4,d5"
#define R8 R6 ",""d6,d7"
#define R10 R8 ",""d8,d9"
#define R12 R10 ",""d10,d11"
#define R14 R12 ",""d12,d13"
#define R16 R14 ",""d14,d15"
#define R18 R16 ",""d16,d17"
#define R20 R18 ",""d18,d19"
#define R22 R20 ",""d20,d21"
#define R24 R22 ",""d22,d23"
#define R26 R24 ",""d24,d25"
#define R28 R26 ",""d26,d27"
#define R30 R28 ",""d28,d29"
#define R32 R30 ",""d30,d31"
#define R34 R32 ",""d32,d33"
#define R36 R34 ",""d34,d35"
#define R38 R36 ",""d36,d37"
#define R40 R38 ",""d38,d39"
#define R42 R40 ",""d40,d41"
#define R44 R42 ",""d42,d43"
#define R46 R44 ",""d44,d45"
#define R48 R46 ",""d46,d47"
#define R50 R48 ",""d48,d49"
#define R52 R50 ",""d50,d51"
#define R54 R52 ",""d52,d53"
#define R56 R54 ",""d54,d55"
#define R58 R56 ",""d56,d57"
#define R60 R58 ",""d58,d59"
#define R62 R60 ",""d60,d61"
#define R64 R62 ",""d62,d63"
#define R66 R64 ",""d64,d65"
#define R68 R66 ",""d66,d67"
#define R70 R68 ",""d68,d69"
#define R72 R70 ",""d70,d71"
#define R74 R72 ",""d72,d73"
#define R76 R74 ",""d74,d75"
#define R78 R76 ",""d76,d77"
#define R80 R78 ",""d78,d79"
#define R82 R80 ",""d80,d81"
#define R84 R82 ",""d82,d83"
#define R86 R84 ",""d84,d85"
#define R88 R86 ",""d86,d87"
#define R90 R88 ",""d88,d89"
#define R92 R90 ",""d90,d91"
#define R94 R92 ",""d92,d93"
#define R96 R94 ",""d94,d95"
#define R98 R96 ",""d96,d97"
#define R100 R98 ",""d98,d99"
#define R102 R100 ",""d100,d101"
#define R104 R102 ",""d102,d103"
#define R106 R104 ",""d104,d105"
#define R108 R106 ",""d106,d107"
#define R110 R108 ",""d108,d109"
#define R112 R110 ",""d110,d111"
#define R114 R112 ",""d112,d113"
#define R116 R114 ",""d114,d115"
#define R118 R116 ",""d116,d117"
#define R120 R118 ",""d118,d119"
#define R122 R120 ",""d120,d121"
#define R124 R122 ",""d122,d123"
#define R126 R124 ",""d124,d125"
#define R128 R126 ",""d126,d127"
#define EACH_QUAD(X) X(0, 1, 2, 3, 0) X(4, 5, 6, 7, 16) X(8, 9, 10, 11, 32) X(12, 13, 14, 15, 48) X(16, 17, 18, 19, 64) X(20, 21, 22, 23, 80) X(24, 25, 26, 27, 96) X(28, 29, 30, 31, 112) X(32, 33, 34, 35, 128) X(36, 37, 38, 39, 144) X(40, 41, 42, 43, 160) X(44, 45, 46, 47, 176) X(48, 49, 50, 51, 192) X(52, 53, 54, 55, 208) X(56, 57, 58, 59, 224) X(60, 61, 62, 63, 240) X(64, 65, 66, 67, 256) X(68, 69, 70, 71, 272) X(72, 73, 74, 75, 288) X(76, 77, 78, 79, 304) X(80, 81, 82, 83, 320) X(84, 85, 86, 87, 336) X(88, 89, 90, 91, 352) X(92, 93, 94, 95, 368) X(96, 97, 98, 99, 384) X(100, 101, 102, 103, 400) X(104, 105, 106, 107, 416) X(108, 109, 110, 111, 432) X(112, 113, 114, 115, 448) X(116, 117, 118, 119, 464) X(120, 121, 122, 123, 480) X(124, 125, 126, 127, 496)
// clang-format on

// Loads and stores of all 128, whatever the instruction has of them: 16 bytes at a time, the last argument is where.
#define LOAD_QUAD(A, B, C, D, AT)  "ld.global.v4.b32 {d" #A ",d" #B ",d" #C ",d" #D "}, [%0+" #AT "];\n"
#define STORE_QUAD(A, B, C, D, AT) "st.global.v4.b32 [%0+" #AT "], {d" #A ",d" #B ",d" #C ",d" #D "};\n"

// Shared memory gets `image`; descriptors count from its start.
__device__ static u64 fill(const uint4 *image)
{
    extern __shared__ __align__(1024) uint4 smem[];
    for (int i = threadIdx.x; i < 65536 / 16; i += blockDim.x) smem[i] = image[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return (u32)__cvta_generic_to_shared(smem) >> 4;
}

#define WGMMA_KERNEL(NAME, INSTRUCTION, LIST, A, TAIL)                                                       \
    __global__ void NAME(const uint4 *image, u64 a, u64 b, const u32 *a_registers, u32 *d, int adds)         \
    {                                                                                                        \
        const u64 start = fill(image);                                                                       \
        asm volatile(                                                                                        \
            "{\n.reg .b32 d<128>, a<4>;\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"                             \
            "ld.global.v4.b32 {a0,a1,a2,a3}, [%3];\n" EACH_QUAD(                                             \
                LOAD_QUAD) "wgmma.fence.sync.aligned;\n"                                                     \
                           "wgmma.mma_async.sync.aligned." INSTRUCTION " {" LIST "}, " A ", %2, p" TAIL      \
                           ";\n"                                                                             \
                           "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" EACH_QUAD( \
                               STORE_QUAD) "}"                                                               \
            :                                                                                                \
            : "l"(d + 128 * threadIdx.x), "l"(a + start), "l"(b + start),                                    \
              "l"(a_registers + 4 * threadIdx.x), "r"(adds)                                                  \
            : "memory");                                                                                     \
    }

// X(N, registers of D, ...) for every N, with D of 32 bits, of integers, which have fewer, and of 16 bits.
// clang-format off
#define MULTIPLES_OF_16(X, ...) \
    X(48, R24, __VA_ARGS__) X(64, R32, __VA_ARGS__) X(80, R40, __VA_ARGS__) X(96, R48, __VA_ARGS__) \
    X(112, R56, __VA_ARGS__) X(128, R64, __VA_ARGS__) X(144, R72, __VA_ARGS__) X(160, R80, __VA_ARGS__) \
    X(176, R88, __VA_ARGS__) X(192, R96, __VA_ARGS__) X(208, R104, __VA_ARGS__) X(224, R112, __VA_ARGS__) \
    X(240, R120, __VA_ARGS__) X(256, R128, __VA_ARGS__)
#define EVERY_INTEGER_N(X, ...) \
    X(8, R4, __VA_ARGS__) X(16, R8, __VA_ARGS__) X(24, R12, __VA_ARGS__) X(32, R16, __VA_ARGS__) \
    MULTIPLES_OF_16(X, __VA_ARGS__)
#define EVERY_N(X, ...) \
    EVERY_INTEGER_N(X, __VA_ARGS__) \
    X(40, R20, __VA_ARGS__) X(56, R28, __VA_ARGS__) X(72, R36, __VA_ARGS__) X(88, R44, __VA_ARGS__) \
    X(104, R52, __VA_ARGS__) X(120, R60, __VA_ARGS__) X(136, R68, __VA_ARGS__) X(152, R76, __VA_ARGS__) \
    X(168, R84, __VA_ARGS__) X(184, R92, __VA_ARGS__) X(200, R100, __VA_ARGS__) X(216, R108, __VA_ARGS__) \
    X(232, R116, __VA_ARGS__) X(248, R124, __VA_ARGS__)
#define EVERY_N_F16(X, ...) \
    X(8, R2, __VA_ARGS__) X(16, R4, __VA_ARGS__) X(24, R6, __VA_ARGS__) X(32, R8, __VA_ARGS__) \
    X(40, R10, __VA_ARGS__) X(48, R12, __VA_ARGS__) X(56, R14, __VA_ARGS__) X(64, R16, __VA_ARGS__) \
    X(72, R18, __VA_ARGS__) X(80, R20, __VA_ARGS__) X(88, R22, __VA_ARGS__) X(96, R24, __VA_ARGS__) \
    X(104, R26, __VA_ARGS__) X(112, R28, __VA_ARGS__) X(120, R30, __VA_ARGS__) X(128, R32, __VA_ARGS__) \
    X(136, R34, __VA_ARGS__) X(144, R36, __VA_ARGS__) X(152, R38, __VA_ARGS__) X(160, R40, __VA_ARGS__) \
    X(168, R42, __VA_ARGS__) X(176, R44, __VA_ARGS__) X(184, R46, __VA_ARGS__) X(192, R48, __VA_ARGS__) \
    X(200, R50, __VA_ARGS__) X(208, R52, __VA_ARGS__) X(216, R54, __VA_ARGS__) X(224, R56, __VA_ARGS__) \
    X(232, R58, __VA_ARGS__) X(240, R60, __VA_ARGS__) X(248, R62, __VA_ARGS__) X(256, R64, __VA_ARGS__)
// clang-format on

// What is tried. PLAIN(N, registers, K, D, A, B, tail): A in shared memory, K-major, no sign; and
// SPECIAL(name, N, registers, K, D, A, B, operand A, transposed A, B, sign of A, B, tail).
#define SHARED_A    "%1"
#define REGISTERS_A "{a0,a1,a2,a3}"
#define PLAIN_VARIANTS(PLAIN)                             \
    EVERY_N(PLAIN, 16, f32, bf16, bf16, ", 1, 1, 0, 0")   \
    EVERY_N(PLAIN, 16, f32, f16, f16, ", 1, 1, 0, 0")     \
    EVERY_N_F16(PLAIN, 16, f16, f16, f16, ", 1, 1, 0, 0") \
    EVERY_N(PLAIN, 8, f32, tf32, tf32, ", 1, 1")          \
    EVERY_N(PLAIN, 32, f32, e4m3, e4m3, ", 1, 1")         \
    EVERY_N(PLAIN, 32, f32, e4m3, e5m2, ", 1, 1")         \
    EVERY_N(PLAIN, 32, f32, e5m2, e4m3, ", 1, 1")         \
    EVERY_N(PLAIN, 32, f32, e5m2, e5m2, ", 1, 1")         \
    EVERY_N_F16(PLAIN, 32, f16, e4m3, e4m3, ", 1, 1")     \
    EVERY_N_F16(PLAIN, 32, f16, e4m3, e5m2, ", 1, 1")     \
    EVERY_N_F16(PLAIN, 32, f16, e5m2, e4m3, ", 1, 1")     \
    EVERY_N_F16(PLAIN, 32, f16, e5m2, e5m2, ", 1, 1")     \
    EVERY_INTEGER_N(PLAIN, 32, s32, s8, s8, "")           \
    EVERY_INTEGER_N(PLAIN, 32, s32, s8, u8, "")           \
    EVERY_INTEGER_N(PLAIN, 32, s32, u8, s8, "")           \
    EVERY_INTEGER_N(PLAIN, 32, s32, u8, u8, "")
#define SPECIAL_VARIANTS(SPECIAL)                                                                     \
    SPECIAL(bf16_tn, 64, R32, 16, f32, bf16, bf16, SHARED_A, 1, 0, 1, 1, ", 1, 1, 1, 0")              \
    SPECIAL(bf16_nt, 24, R12, 16, f32, bf16, bf16, SHARED_A, 0, 1, 1, 1, ", 1, 1, 0, 1")              \
    SPECIAL(bf16_tt, 256, R128, 16, f32, bf16, bf16, SHARED_A, 1, 1, 1, 1, ", 1, 1, 1, 1")            \
    SPECIAL(f16_tt, 136, R68, 16, f32, f16, f16, SHARED_A, 1, 1, 1, 1, ", 1, 1, 1, 1")                \
    SPECIAL(f16_f16_tt, 64, R16, 16, f16, f16, f16, SHARED_A, 1, 1, 1, 1, ", 1, 1, 1, 1")             \
    SPECIAL(bf16_minus_a, 32, R16, 16, f32, bf16, bf16, SHARED_A, 0, 0, -1, 1, ", -1, 1, 0, 0")       \
    SPECIAL(f16_minus_b, 8, R4, 16, f32, f16, f16, SHARED_A, 0, 0, 1, -1, ", 1, -1, 0, 0")            \
    SPECIAL(f16_f16_minus_both, 64, R16, 16, f16, f16, f16, SHARED_A, 0, 0, -1, -1, ", -1, -1, 0, 0") \
    SPECIAL(tf32_minus_a, 16, R8, 8, f32, tf32, tf32, SHARED_A, 0, 0, -1, 1, ", -1, 1")               \
    SPECIAL(fp8_minus_b, 48, R24, 32, f32, e4m3, e5m2, SHARED_A, 0, 0, 1, -1, ", 1, -1")              \
    SPECIAL(bf16_rs, 128, R64, 16, f32, bf16, bf16, REGISTERS_A, 0, 0, 1, 1, ", 1, 1, 0")             \
    SPECIAL(bf16_rs_t_minus_a, 64, R32, 16, f32, bf16, bf16, REGISTERS_A, 0, 1, -1, 1, ", -1, 1, 1")  \
    SPECIAL(f16_rs, 32, R16, 16, f32, f16, f16, REGISTERS_A, 0, 0, 1, 1, ", 1, 1, 0")                 \
    SPECIAL(f16_f16_rs_t, 248, R62, 16, f16, f16, f16, REGISTERS_A, 0, 1, 1, 1, ", 1, 1, 1")          \
    SPECIAL(tf32_rs, 32, R16, 8, f32, tf32, tf32, REGISTERS_A, 0, 0, 1, 1, ", 1, 1")                  \
    SPECIAL(e4m3_rs, 64, R32, 32, f32, e4m3, e4m3, REGISTERS_A, 0, 0, 1, 1, ", 1, 1")                 \
    SPECIAL(e5m2_f16_rs, 8, R2, 32, f16, e5m2, e4m3, REGISTERS_A, 0, 0, 1, 1, ", 1, 1")               \
    SPECIAL(s8_rs, 32, R16, 32, s32, s8, u8, REGISTERS_A, 0, 0, 1, 1, "")                             \
    SPECIAL(u8_rs, 224, R112, 32, s32, u8, s8, REGISTERS_A, 0, 0, 1, 1, "")

#define PLAIN_KERNEL(N, LIST, K, D, A, B, TAIL) \
    WGMMA_KERNEL(D##_##A##_##B##_n##N, "m64n" #N "k" #K "." #D "." #A "." #B, LIST, SHARED_A, TAIL)
#define SPECIAL_KERNEL(NAME, N, LIST, K, D, A, B, FROM, TA, TB, SA, SB, TAIL) \
    WGMMA_KERNEL(NAME, "m64n" #N "k" #K "." #D "." #A "." #B, LIST, FROM, TAIL)
PLAIN_VARIANTS(PLAIN_KERNEL)
SPECIAL_VARIANTS(SPECIAL_KERNEL)
WGMMA_KERNEL(saturated, "m64n64k32.s32.s8.s8.satfinite", R32, SHARED_A, "")

// ---- The list -----------------------------------------------------------------------------------------------------------

enum type { type_f32, type_f16, type_bf16, type_tf32, type_e4m3, type_e5m2, type_s8, type_u8, type_s32 };

struct variant {
    const char *name;
    void (*kernel)(const uint4 *, u64, u64, const u32 *, u32 *, int);
    int n, k;
    type d, a, b;
    bool registers, a_transposed, b_transposed, saturates;
    int sign;
};

#define PLAIN_ENTRY(N, LIST, K, D, A, B, TAIL) \
    {#D "_" #A "_" #B "_n" #N,                 \
     D##_##A##_##B##_n##N,                     \
     N,                                        \
     K,                                        \
     type_##D,                                 \
     type_##A,                                 \
     type_##B,                                 \
     false,                                    \
     false,                                    \
     false,                                    \
     false,                                    \
     1},
#define SPECIAL_ENTRY(NAME, N, LIST, K, D, A, B, FROM, TA, TB, SA, SB, TAIL) \
    {#NAME, NAME, N, K, type_##D, type_##A, type_##B, FROM[0] == '{', TA, TB, false, (SA) * (SB)},
static const variant plain[] = {PLAIN_VARIANTS(PLAIN_ENTRY)};
static const variant special[] = {SPECIAL_VARIANTS(SPECIAL_ENTRY){
    "saturated", saturated, 64, 32, type_s32, type_s8, type_s8, false, false, false, true, 1}};

static int bytes_of(type t)
{
    return t == type_tf32 ? 4 : t <= type_bf16 ? 2 : 1;
}

static double value(type t, u32 bits)
{
    int e, m, mb, bias;
    if (t == type_s8) return (s8)bits;
    if (t == type_u8) return (u8)bits;
    if (t == type_tf32) bits >>= 13;
    mb = t == type_f16 || t == type_tf32 ? 10 : t == type_bf16 ? 7 : t == type_e4m3 ? 3 : 2;
    const int eb = t == type_f16 || t == type_e5m2 ? 5 : t == type_e4m3 ? 4 : 8;
    bias = (1 << (eb - 1)) - 1;
    m = bits & ((1 << mb) - 1), e = bits >> mb & ((1 << eb) - 1);
    const double v = e ? ldexp(m + (1 << mb), e - bias - mb) : ldexp(m, 1 - bias - mb);
    return bits >> (mb + eb) & 1 ? -v : v;
}

// Bits of a small number: `exact`, so that any order of adding gives the same; else any normal one about 1.
static u32 draw_element(type t, bool exact)
{
    const u32 r = (u32)random_u64();
    if (t == type_s8 || t == type_u8) return r & 0xff;
    const int mb = t == type_f16 || t == type_tf32 ? 10 : t == type_bf16 ? 7 : t == type_e4m3 ? 3 : 2;
    const int eb = t == type_f16 || t == type_e5m2 ? 5 : t == type_e4m3 ? 4 : 8, bias = (1 << (eb - 1)) - 1;
    const u32 e = (u32)bias + (exact ? r % 2 : r % 7 - 3), m = r >> 8 & ((1u << mb) - 1);
    const u32 v = (r >> 30 & 1) << (eb + mb) | e << mb | (exact ? m & 1u << (mb - 1) : m);
    return t == type_tf32 ? v << 13 | (r & 0x1fff) : v; // the low 13 bits of tf32 are ignored
}

// ---- Where an element lies ----------------------------------------------------------------------------------------------

// mode: 0 none, 1, 2, 3: 32, 64, 128 bytes. `row` of M or N, byte kb of the row, which is 32 bytes.
struct layout {
    int mode, transposed;
    u32 start, lbo, sbo, base;
    u32 at(u32 row, u32 k, u32 bytes) const
    {
        const u32 w = 16u << mode, kb = k * bytes, mb = row * bytes;
        u32 a = start;
        if (!transposed)
            a += row / 8 * sbo + (mode ? row % 8 * w + kb : row % 8 * 16 + kb / 16 * lbo + kb % 16);
        else
            a += mode ? mb / w * lbo + mb % w + k % 8 * w + k / 8 * sbo
                      : mb / 16 * sbo + mb % 16 + k % 8 * 16 + k / 8 * lbo;
        return a ^ (((a >> 7) - base) & ((1u << mode) - 1)) << 4;
    }
    u64 descriptor() const
    {
        return start >> 4 | (u64)(lbo >> 4) << 16 | (u64)(sbo >> 4) << 32 | (u64)base << 49 |
               (u64)(mode ? 4 - mode : 0) << 62;
    }
};

static layout make_layout(int mode, int transposed, u32 start, u32 base)
{
    const u32 w = 16u << mode;
    layout l = {mode, transposed, start + base * 128, 0, 0, mode ? base : 0};
    if (!transposed)
        l.sbo = mode ? 8 * w : 256, l.lbo = mode ? 16 : 128;
    else if (mode)
        l.sbo = 8 * w, l.lbo = 16 * w; // 2 x 8 k's, then the next W bytes of M or N
    else
        l.lbo = 128, l.sbo = 256;
    return l;
}

// ---- One product, as an H200 accumulates -----------------------------------------------------------------------------------

// To `bits` fraction bits, toward zero or to nearest even; all numbers here are normal ones.
static double rounded(double x, int bits, bool nearest)
{
    int e;
    frexp(x, &e);
    const double scaled = ldexp(x, bits + 1 - e);
    return ldexp(nearest ? nearbyint(scaled) : trunc(scaled), e - bits - 1);
}

// A number, and its exponent, or one below any other for zero.
struct number {
    double x;
    int e;
};
static number make_number(double x)
{
    return {x, x != 0 ? ilogb(x) : -100000};
}

static double fused(const number *a, const number *b, int n, number c, int fraction)
{
    int top = c.e;
    for (int k = 0; k < n; k++)
        if (a[k].e + b[k].e > top) top = a[k].e + b[k].e;
    if (top < -1000) return 0;
    const double scale = ldexp(1, fraction - top);
    double sum = trunc(c.x * scale);
    for (int k = 0; k < n; k++) sum += trunc(a[k].x * b[k].x * scale);
    return ldexp(sum, top - fraction);
}

// Bits of a number that f16 has; zero is positive.
static u32 f16_bits(double x)
{
    int e;
    if (x == 0) return 0;
    const double m = frexp(fabs(x), &e); // m in [0.5, 1)
    if (e > 16) return (x < 0) << 15 | 0x7c00;
    const u32 bits = e < -13 ? (u32)ldexp(m, e + 24) : (u32)(e + 14) << 10 | ((u32)ldexp(m, 11) & 0x3ff);
    return (u32)(x < 0) << 15 | bits;
}

static u32 f32_bits(double x)
{
    const float f = (float)x;
    u32 bits;
    memcpy(&bits, &f, 4);
    return bits << 1 ? bits : 0;
}

// What D must hold where it was `c` before.
static u32 expected(const variant &v, const number *a, const number *b, u32 c, bool adds)
{
    if (v.d == type_s32) {
        double sum = adds ? (double)(s32)c : 0;
        for (int k = 0; k < v.k; k++) sum += a[k].x * b[k].x;
        if (v.saturates) sum = fmin(fmax(sum, INT32_MIN), INT32_MAX);
        return (u32)(s64)sum;
    }
    float cf;
    memcpy(&cf, &c, 4);
    const bool fp8 = bytes_of(v.a) == 1;
    const double c0 = !adds ? 0 : v.d == type_f16 ? value(type_f16, c) : cf;
    const double sum = fused(a, b, v.k, make_number(c0), fp8 ? 13 : 25);
    return v.d == type_f16 ? f16_bits(rounded(sum, 10, true)) : f32_bits(rounded(sum, fp8 ? 13 : 23, false));
}

// ---- Trying a variant --------------------------------------------------------------------------------------------------------

static u8 image[65536], *device_image;
static u32 a_bits[64][32], b_bits[256][32], registers[128][4], before[128][128], after[128][128];
static u32 *device_registers, *device_d;

// Bits of a start value of D: two elements if it is f16.
static u32 draw_start(const variant &v, bool exact)
{
    const int s = (int)(random_u64() % 65) - 32;
    const float f = exact ? (float)s : (float)s / 7;
    u32 bits;
    if (v.d == type_s32)
        return v.saturates ? 0x7fffffffu ^ (u32) - (s & 1) ^ (u32)(random_u64() % 65536) : (u32)s * 1000;
    if (v.d == type_f16) return draw_element(type_f16, exact) << 16 | draw_element(type_f16, exact);
    memcpy(&bits, &f, 4);
    return bits;
}

static void try_variant(const variant &v, int a_mode, int b_mode, u32 a_base, u32 b_base, bool exact,
                        bool adds)
{
    static number a_numbers[64][32], b_numbers[256][32];
    const u32 size = bytes_of(v.a), each = 4 / size;
    const layout a = make_layout(a_mode, v.a_transposed, 0, a_mode ? a_base : 0);
    const layout b = make_layout(b_mode, v.b_transposed, 16384, b_mode ? b_base : 0);
    for (u32 i = 0; i < sizeof image; i += 8) {
        const u64 r = random_u64();
        memcpy(image + i, &r, 8);
    }
    for (u32 i = 0; i < 64; i++)
        for (int k = 0; k < v.k; k++) {
            a_bits[i][k] = draw_element(v.a, exact);
            a_numbers[i][k] = make_number(v.sign * value(v.a, a_bits[i][k]));
            memcpy(image + a.at(i, k, size), &a_bits[i][k], size);
        }
    for (int i = 0; i < v.n; i++)
        for (int k = 0; k < v.k; k++) {
            b_bits[i][k] = draw_element(v.b, exact);
            b_numbers[i][k] = make_number(value(v.b, b_bits[i][k]));
            memcpy(image + b.at(i, k, size), &b_bits[i][k], size);
        }
    for (u32 t = 0; t < 128; t++)
        for (u32 r = 0; r < 4; r++) {
            const u32 row = 16 * (t / 32) + t % 32 / 4 + 8 * (r & 1),
                      k = each * (t % 4) + 4 * each * (r >> 1);
            registers[t][r] = 0;
            for (u32 q = 0; q < each; q++) registers[t][r] |= a_bits[row][k + q] << 8 * size * q;
        }
    for (auto &thread : before)
        for (auto &x : thread) x = draw_start(v, exact);
    CUDA_CHECK(cudaMemcpy(device_image, image, sizeof image, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device_registers, registers, sizeof registers, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device_d, before, sizeof before, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof image));
    v.kernel<<<1, 128, sizeof image>>>((const uint4 *)device_image, a.descriptor(), b.descriptor(),
                                       device_registers, device_d, adds);
    if (!launched(v.name)) exit(1);
    CUDA_CHECK(cudaMemcpy(after, device_d, sizeof after, cudaMemcpyDeviceToHost));
    check_begin(v.name);
    const u32 count = v.n / (v.d == type_f16 ? 4 : 2);
    for (u32 t = 0; t < 128; t++) {
        for (u32 e = 0; e < (u32)v.n / 2; e++) { // D's elements in f32's order
            const u32 row = 16 * (t / 32) + t % 32 / 4 + 8 * (e >> 1 & 1),
                      col = 2 * (t % 4) + (e & 1) + 8 * (e >> 2);
            const u32 r = v.d == type_f16 ? e / 2 : e, shift = v.d == type_f16 ? 16 * (e & 1) : 0,
                      mask = v.d == type_f16 ? 0xffff : ~0u;
            check(t * 1000 + e, after[t][r] >> shift & mask,
                  expected(v, a_numbers[row], b_numbers[col], before[t][r] >> shift & mask, adds));
        }
        for (u32 r = count; r < 128; r++) check(t * 1000 + r, after[t][r], before[t][r]);
    }
}

// 1 x 1 and 31 times 2^-7 x 2^-8 in e4m3, in every row and column: 1 + 31 x 2^-15, but Hopper cuts every product to 2^-13.
static void print_small_products()
{
    const layout a = make_layout(0, false, 0, 0), b = make_layout(0, false, 16384, 0);
    float d;
    for (u32 row = 0; row < 64; row++)
        for (u32 k = 0; k < 32; k++) image[a.at(row, k, 1)] = k ? 0x04 : 0x38; // 2^-7, 1
    for (u32 row = 0; row < 8; row++)
        for (u32 k = 0; k < 32; k++) image[b.at(row, k, 1)] = k ? 0x02 : 0x38; // 2^-8, 1
    CUDA_CHECK(cudaMemcpy(device_image, image, sizeof image, cudaMemcpyHostToDevice));
    f32_e4m3_e4m3_n8<<<1, 128, sizeof image>>>((const uint4 *)device_image, a.descriptor(), b.descriptor(),
                                               device_registers, device_d, 0);
    if (!launched("small products")) exit(1);
    CUDA_CHECK(cudaMemcpy(&d, device_d, 4, cudaMemcpyDeviceToHost));
    printf("1 + 31 x 2^-15 = 1 + %g x 2^-15\n", ldexp(d - 1.0, 15));
}

// wgmma [exact]: exact: only numbers whose sums are exact, in any order. wgmma small: what becomes of small fp8 products.
int main(int argc, char **argv)
{
    const bool bits = argc < 2;
    CUDA_CHECK(cudaMalloc((void **)&device_image, sizeof image));
    CUDA_CHECK(cudaMalloc((void **)&device_registers, sizeof registers));
    CUDA_CHECK(cudaMalloc((void **)&device_d, sizeof before));
    if (!bits && !strcmp(argv[1], "small")) {
        CUDA_CHECK(cudaFuncSetAttribute(f32_e4m3_e4m3_n8, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        sizeof image));
        print_small_products();
        return 0;
    }
    for (const auto &v : plain) {
        const u64 r = random_u64();
        try_variant(v, r & 3, r >> 2 & 3, r >> 4 & 7, r >> 7 & 7, !bits, r >> 10 & 3);
    }
    for (const auto &v : special) // every swizzle, with every base offset that its pattern has room for
        for (int mode = 0; mode < 4; mode++)
            for (u32 base = 0; base < (mode ? 1u << mode : 1u); base++) {
                try_variant(v, mode, 3 - mode, base, 0, true, base & 1);
                try_variant(v, mode, mode, base, (1u << mode) - 1 - base, !bits, true);
            }
    return check_end("wgmma");
}
