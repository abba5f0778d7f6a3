// wgmma: every type, N and source of A, both majors, the four swizzles with descriptors of any start, base offset and strides,
// scales, on random elements from eight distributions, as an H200's tensor core rounds them.
//
// A case is one product, and a block computes it. Its shared memory is drawn, not laid out: wherever a descriptor leads, it
// finds elements of the right type. The first four accumulator registers of a thread are recorded as they are: all there are
// when N is 8. Register r of a larger N is folded into word r % 4.
#include <utility>

enum { WGMMA_THREADS = 128, WGMMA_A_BYTES = 16384, WGMMA_WORDS = 4 };

struct wgmma_case {
    u64 a, b; // descriptors, counted from the start of shared memory
    u32 scale_d, style;
};

struct wgmma_form {
    int n;
    enum element d, a, b;
    bool a_in_registers, a_transposed, b_transposed;
    int cases;
    const void *kernel;
    u32 offset; // where the case's shared memory begins in the block's
};

// ---- The text of an instruction with N / 2 registers -----------------------------------------------------------------

// All of f(a, b, c, d, at) for four registers and the offset of the first in memory.
// clang-format off
#define QUADS(F)                                                                                                 \
    F(0, 1, 2, 3, 0) F(4, 5, 6, 7, 16) F(8, 9, 10, 11, 32) F(12, 13, 14, 15, 48)                                 \
    F(16, 17, 18, 19, 64) F(20, 21, 22, 23, 80) F(24, 25, 26, 27, 96) F(28, 29, 30, 31, 112)                     \
    F(32, 33, 34, 35, 128) F(36, 37, 38, 39, 144) F(40, 41, 42, 43, 160) F(44, 45, 46, 47, 176)                  \
    F(48, 49, 50, 51, 192) F(52, 53, 54, 55, 208) F(56, 57, 58, 59, 224) F(60, 61, 62, 63, 240)                  \
    F(64, 65, 66, 67, 256) F(68, 69, 70, 71, 272) F(72, 73, 74, 75, 288) F(76, 77, 78, 79, 304)                  \
    F(80, 81, 82, 83, 320) F(84, 85, 86, 87, 336) F(88, 89, 90, 91, 352) F(92, 93, 94, 95, 368)                  \
    F(96, 97, 98, 99, 384) F(100, 101, 102, 103, 400) F(104, 105, 106, 107, 416) F(108, 109, 110, 111, 432)      \
    F(112, 113, 114, 115, 448) F(116, 117, 118, 119, 464) F(120, 121, 122, 123, 480) F(124, 125, 126, 127, 496)
// clang-format on
#define QUAD_LOAD(a, b, c, d, at) \
    "ld.global.v4.b32 {d" #a ", d" #b ", d" #c ", d" #d "}, [address+" #at "];\n"
#define QUAD_STORE(a, b, c, d, at) \
    "st.global.v4.b32 [address+" #at "], {d" #a ", d" #b ", d" #c ", d" #d "};\n"
#define QUAD_NAMES(a, b, c, d, at) "d" #a ",d" #b ",d" #c ",d" #d ","
static constexpr char wgmma_loads[] = QUADS(QUAD_LOAD), wgmma_stores[] = QUADS(QUAD_STORE),
                      wgmma_registers[] = QUADS(QUAD_NAMES);

// The beginning of TEXT up to the COUNTth C, less the last LESS characters, for asm's "C".
constexpr size_t text_until(const char *text, char c, int count)
{
    size_t i = 0;
    for (; count; i++) count -= text[i] == c;
    return i;
}
template <const char *TEXT, class I>
struct text_cut;
template <const char *TEXT, size_t... I>
struct text_cut<TEXT, std::index_sequence<I...>> {
    static constexpr char s[] = {TEXT[I]..., 0};
};
template <const char *TEXT, char C, int COUNT, int LESS>
using text_prefix = text_cut<TEXT, std::make_index_sequence<text_until(TEXT, C, COUNT) - LESS>>;

// ---- Elements ---------------------------------------------------------------------------------------------------------

enum { WGMMA_STYLES = 8 };

static u32 draw_wgmma_element(enum element kind, u32 style)
{
    const int e = elements[kind].exponent_bits, m = elements[kind].mantissa_bits;
    if (!e) return draw_element(kind, (int)style);
    const u64 r = random_u64(), sign = (r & 1) << (e + m), top = (1ull << e) - 1, any = r >> 16;
    switch (style) {
    case 3: { // a narrow range, with infinities, NaNs, the largest and the smallest numbers strewn in
        const u64 special[] = {
            top << m, ((top + 1) << m) - 1, (top << m) - 1, 1, (1ull << m) - 1, (2ull << m) - 1, 0,
            1ull << m};
        if ((r >> 8) % 256 == 0) return (u32)(sign | special[any % 8]);
        return draw_element(kind, 0);
    }
    case 4: // nearly the same magnitude everywhere, so that sums cancel
        return (u32)(sign | (top / 2) << m | ((r >> 8) % 3 ? 0 : any % 2));
    case 5: // zeros, and a few numbers from anywhere
        return (u32)(sign | ((r >> 8) % 4 ? 0 : any % (top << m)));
    case 6: // products about the square root of the largest number, so that some sums overflow
        return (u32)(sign | (top / 2 + top / 4 - (r >> 8) % 2) << m | (any & ((1ull << m) - 1)));
    case 7: // any finite bits
        return (u32)(sign | any % (top << m));
    default: return draw_element(kind, (int)style);
    }
}

static void draw_wgmma_elements(u8 *bytes, size_t count, enum element kind, u32 style)
{
    for (size_t at = 0; at < count; at += (size_t)elements[kind].bytes) {
        const u32 x = draw_wgmma_element(kind, style);
        memcpy(bytes + at, &x, (size_t)elements[kind].bytes);
    }
}

// Half of the accumulators are about 1, whatever the style is, lest they drown all products.
static void draw_wgmma_accumulators(u8 *bytes, size_t count, enum element kind, u32 style)
{
    for (size_t at = 0; at < count; at += (size_t)elements[kind].bytes) {
        const u32 x = draw_wgmma_element(kind, elements[kind].exponent_bits && random_u64() % 2 ? 0 : style);
        memcpy(bytes + at, &x, (size_t)elements[kind].bytes);
    }
}

// A descriptor of the matrix that begins about `start`. Case c has swizzle c % 4 (none, 32, 64, 128 bytes); it begins where
// the swizzle's pattern does, or 128 j bytes on, with base offset 0 or j, or anywhere.
static u64 draw_descriptor(int c, bool transposed, u32 start)
{
    const u32 mode = (u32)c % 4, width = 16u << mode, j = (u32)(random_u64() % 8), r = (u32)random_u64();
    const u32 extras[] = {0, 0, 16, 128, 384}, extra = extras[random_u64() % 5];
    u32 base = 0, lbo, sbo;
    switch (c / 4 % 4) {
    case 1: start += 128 * j; break;
    case 2: start += 128 * j, base = j; break;
    case 3: start += 16 * (r % 64); break;
    }
    if (!mode) base = r >> 8 & 7; // ignored
    if (transposed)
        lbo = mode ? 16 * width + 16 * (r >> 16 & 7) : 128 + extra,
        sbo = mode ? 8 * width + extra : 256 + extra;
    else
        lbo = mode ? 16 * (r >> 16 & 1023) : 128 + 16 * (r >> 16 & 63),
        sbo = 8 * width + extra; // mode: ignored
    return start >> 4 | (u64)(lbo >> 4) << 16 | (u64)(sbo >> 4) << 32 | (u64)base << 49 |
           (u64)(mode ? 4 - mode : 0) << 62;
}

#define WGMMA_IMAGE_BYTES(N) (WGMMA_A_BYTES + 4096 + (N) / 8 * 1536) // of a case's shared memory
static size_t wgmma_d_words(int n, enum element d)                   // of a thread, in whole quads
{
    return ((size_t)n / (d == ELEMENT_F16 ? 4 : 2) + 3) / 4 * 4;
}

// inputs: shared memory of each case, the cases, D, A's registers
static void draw_wgmma(const struct variant *v, u8 **inputs)
{
    const struct wgmma_form *f = (const struct wgmma_form *)v->about;
    struct wgmma_case *cases = (struct wgmma_case *)inputs[1];
    const size_t image = (size_t)WGMMA_IMAGE_BYTES(f->n),
                 d_bytes = wgmma_d_words(f->n, f->d) * 4 * WGMMA_THREADS;
    for (int c = 0; c < f->cases; c++) {
        const int turn = c + f->n / 8; // with one case for each N, all swizzles and styles have their turn
        const u32 style = (u32)(turn + turn / 4) % WGMMA_STYLES;
        cases[c].a = draw_descriptor(turn, f->a_transposed, 0);
        cases[c].b = draw_descriptor(turn + (int)(random_u64() % 4), f->b_transposed, WGMMA_A_BYTES);
        cases[c].scale_d = turn / 3 % 5 != 2;
        cases[c].style = style;
        draw_wgmma_elements(inputs[0] + c * image, WGMMA_A_BYTES, f->a, style);
        draw_wgmma_elements(inputs[0] + c * image + WGMMA_A_BYTES, image - WGMMA_A_BYTES, f->b, style);
        draw_wgmma_accumulators(inputs[2] + c * d_bytes, d_bytes, f->d, style);
        if (f->a_in_registers)
            draw_wgmma_elements(inputs[3] + c * WGMMA_THREADS * 16, WGMMA_THREADS * 16, f->a, style);
    }
}

// ---- Kernels ----------------------------------------------------------------------------------------------------------

// Fills shared memory and makes it visible to wgmma. Returns its start, as a descriptor has it.
__device__ static u64 wgmma_fill(u8 *smem, const u8 *image, u32 bytes)
{
    const uint4 *const from = (const uint4 *)(image + blockIdx.x * (size_t)bytes);
    for (u32 i = threadIdx.x; i < bytes / 16; i += WGMMA_THREADS) ((uint4 *)smem)[i] = from[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return (u32)__cvta_generic_to_shared(smem) >> 4;
}

// `count` registers of each thread to WGMMA_WORDS
__device__ static void wgmma_fold(u32 *out, const u32 *d, u32 count)
{
    const u32 words = count < WGMMA_WORDS ? count : WGMMA_WORDS;
    u32 word[WGMMA_WORDS];
    for (u32 r = 0; r < count; r++)
        word[r % WGMMA_WORDS] = r < WGMMA_WORDS ? d[r] : word[r % WGMMA_WORDS] * 0x01000193 ^ d[r];
    for (u32 k = 0; k < words; k++) out[(blockIdx.x * words + k) * WGMMA_THREADS + threadIdx.x] = word[k];
}

static void wgmma_launch(u8 *out, u8 *const *in)
{
    const struct wgmma_form *f = (const struct wgmma_form *)running->about;
    const u32 bytes = (u32)WGMMA_IMAGE_BYTES(f->n) + f->offset;
    void *args[] = {&out, (void *)&in[0], (void *)&in[1], (void *)&in[2], (void *)&in[3]};
    CUDA_CHECK(cudaFuncSetAttribute(f->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    CUDA_CHECK(cudaLaunchKernel(f->kernel, dim3((u32)f->cases), dim3(WGMMA_THREADS), args, bytes, 0));
}

// WGMMA(name, N, K, types of D, A, B as element and as PTX, MODIFIER, A in registers, A and B MN-major, cases, text of A,
// what follows scale-d)
#define WGMMA(NAME, N, K, ED, EA, EB, D, A, B, MODIFIER, RS, TA, TB, CASES, A_TEXT, TAIL)               \
    __global__ void NAME##_kernel(u32 *out, const u8 *image, const struct wgmma_case *cases, u32 *d,    \
                                  const u32 *a_registers)                                               \
    {                                                                                                   \
        extern __shared__ __align__(1024) u8 smem[];                                                    \
        constexpr int count = ELEMENT_##ED == ELEMENT_F16 ? N / 4 : N / 2, quads = (count + 3) / 4;     \
        const u32 thread = blockIdx.x * WGMMA_THREADS + threadIdx.x;                                    \
        const u64 start = wgmma_fill(smem, image, WGMMA_IMAGE_BYTES(N));                                \
        const struct wgmma_case c = cases[blockIdx.x];                                                  \
        u32 a[4];                                                                                       \
        for (int i = 0; i < 4; i++) a[i] = RS ? a_registers[thread * 4 + i] : 0;                        \
        d += thread * (size_t)(quads * 4);                                                              \
        asm volatile("{ .reg .b32 d<128>; .reg .b64 address; .reg .pred p; mov.b64 address, %3;\n%0"    \
                     "setp.ne.b32 p, %6, 0; wgmma.fence.sync.aligned;\n"                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #K "." #D "." #A "." #B MODIFIER        \
                     " {%1}, " A_TEXT ", %5, p" TAIL                                                    \
                     ";\nwgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n%2}" ::"C"( \
                         text_prefix<wgmma_loads, ';', quads, 0>::s),                                   \
                     "C"(text_prefix<wgmma_registers, ',', count, 1>::s),                               \
                     "C"(text_prefix<wgmma_stores, ';', quads, 0>::s), "l"(d), "l"(c.a + start),        \
                     "l"(c.b + start), "r"(c.scale_d), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])       \
                     : "memory");                                                                       \
        wgmma_fold(out, d, count);                                                                      \
    }                                                                                                   \
    static const struct wgmma_form NAME##_form = {                                                      \
        N, ELEMENT_##ED, ELEMENT_##EA, ELEMENT_##EB, RS, TA, TB, CASES, (const void *)NAME##_kernel};   \
    VARIANT(NAME, draw_wgmma, wgmma_launch, &NAME##_form,                                               \
            CASES *WGMMA_THREADS * 4 * (ELEMENT_##ED == ELEMENT_F16 && N == 8 ? 2 : WGMMA_WORDS), 4,    \
            CASES * WGMMA_IMAGE_BYTES(N), CASES * sizeof(struct wgmma_case),                            \
            CASES * WGMMA_THREADS * 16 * (((ELEMENT_##ED == ELEMENT_F16 ? N / 4 : N / 2) + 3) / 4),     \
            (RS)*CASES * WGMMA_THREADS * 16)

#define FROM_SHARED    "%4"
#define FROM_REGISTERS "{%7, %8, %9, %10}"

// One product of each kind for a type, and for 16-bit ones all majors. P and Q: what follows the scales, if A is in shared
// memory or in registers.
#define WGMMA_FLOAT(TYPES, K, ED, EA, EB, D, A, B, P, Q)                                                   \
    WGMMA(wgmma_n8_##TYPES##_rs, 8, K, ED, EA, EB, D, A, B, "", 1, 0, 0, 8, FROM_REGISTERS, ", 1, 1" Q)    \
    WGMMA(wgmma_n8_##TYPES##_minus_a, 8, K, ED, EA, EB, D, A, B, "", 0, 0, 0, 4, FROM_SHARED, ", -1, 1" P) \
    WGMMA(wgmma_n8_##TYPES##_minus_b, 8, K, ED, EA, EB, D, A, B, "", 0, 0, 0, 4, FROM_SHARED, ", 1, -1" P) \
    WGMMA(wgmma_n8_##TYPES##_minus_both_rs, 8, K, ED, EA, EB, D, A, B, "", 1, 0, 0, 4, FROM_REGISTERS,     \
          ", -1, -1" Q)
#define WGMMA_SHARED(N, TYPES, K, ED, EA, EB, D, A, B, CASES, P) \
    WGMMA(wgmma_n##N##_##TYPES, N, K, ED, EA, EB, D, A, B, "", 0, 0, 0, (CASES), FROM_SHARED, ", 1, 1" P)
#define WGMMA_FEW_N(TYPES, K, ED, EA, EB, D, A, B)          \
    WGMMA_SHARED(8, TYPES, K, ED, EA, EB, D, A, B, 24, "")  \
    WGMMA_SHARED(40, TYPES, K, ED, EA, EB, D, A, B, 2, "")  \
    WGMMA_SHARED(128, TYPES, K, ED, EA, EB, D, A, B, 1, "") \
    WGMMA_SHARED(256, TYPES, K, ED, EA, EB, D, A, B, 1, "")
#define WGMMA_MAJORS(TYPES, ED, E, D, T)                                                                   \
    WGMMA(wgmma_n64_##TYPES##_ta, 64, 16, ED, E, E, D, T, T, "", 0, 1, 0, 16, FROM_SHARED, ", 1, 1, 1, 0") \
    WGMMA(wgmma_n64_##TYPES##_tb, 64, 16, ED, E, E, D, T, T, "", 0, 0, 1, 16, FROM_SHARED, ", 1, 1, 0, 1") \
    WGMMA(wgmma_n128_##TYPES##_ta_tb, 128, 16, ED, E, E, D, T, T, "", 0, 1, 1, 16, FROM_SHARED,            \
          ", 1, 1, 1, 1")                                                                                  \
    WGMMA(wgmma_n256_##TYPES##_rs_tb, 256, 16, ED, E, E, D, T, T, "", 1, 0, 1, 8, FROM_REGISTERS, ", 1, 1, 1")

#define EVERY_N_BUT_8_UP_TO_32(F) F(16) F(24) F(32)
#define EVERY_16TH_N(F) \
    F(48) F(64) F(80) F(96) F(112) F(128) F(144) F(160) F(176) F(192) F(208) F(224) F(240) F(256)
#define EVERY_N(F)            \
    F(8)                      \
    EVERY_N_BUT_8_UP_TO_32(F) \
    EVERY_16TH_N(F)           \
    F(40) F(56) F(72) F(88) F(104) F(120) F(136) F(152) F(168) F(184) F(200) F(216) F(232) F(248)
#define SWEEP_CASES(N) (N == 8 ? 24 : 1)
#define SWEEP_BF16(N) \
    WGMMA_SHARED(N, f32_bf16_bf16, 16, F32, BF16, BF16, f32, bf16, bf16, SWEEP_CASES(N), ", 0, 0")
#define SWEEP_F16(N)  WGMMA_SHARED(N, f16_f16_f16, 16, F16, F16, F16, f16, f16, f16, SWEEP_CASES(N), ", 0, 0")
#define SWEEP_TF32(N) WGMMA_SHARED(N, f32_tf32_tf32, 8, F32, F32, F32, f32, tf32, tf32, SWEEP_CASES(N), "")
#define SWEEP_E4M3(N) WGMMA_SHARED(N, f32_e4m3_e4m3, 32, F32, E4M3, E4M3, f32, e4m3, e4m3, SWEEP_CASES(N), "")
#define SWEEP_E5M2(N) WGMMA_SHARED(N, f16_e5m2_e5m2, 32, F16, E5M2, E5M2, f16, e5m2, e5m2, SWEEP_CASES(N), "")
EVERY_N(SWEEP_BF16)
EVERY_N(SWEEP_F16)
EVERY_N(SWEEP_TF32)
EVERY_N(SWEEP_E4M3)
EVERY_N(SWEEP_E5M2)

WGMMA_SHARED(8, f32_f16_f16, 16, F32, F16, F16, f32, f16, f16, 24, ", 0, 0")
WGMMA_SHARED(40, f32_f16_f16, 16, F32, F16, F16, f32, f16, f16, 2, ", 0, 0")
WGMMA_SHARED(256, f32_f16_f16, 16, F32, F16, F16, f32, f16, f16, 1, ", 0, 0")
WGMMA_FEW_N(f32_e4m3_e5m2, 32, F32, E4M3, E5M2, f32, e4m3, e5m2)
WGMMA_FEW_N(f32_e5m2_e4m3, 32, F32, E5M2, E4M3, f32, e5m2, e4m3)
WGMMA_FEW_N(f32_e5m2_e5m2, 32, F32, E5M2, E5M2, f32, e5m2, e5m2)
WGMMA_FEW_N(f16_e4m3_e4m3, 32, F16, E4M3, E4M3, f16, e4m3, e4m3)
WGMMA_FEW_N(f16_e4m3_e5m2, 32, F16, E4M3, E5M2, f16, e4m3, e5m2)
WGMMA_FEW_N(f16_e5m2_e4m3, 32, F16, E5M2, E4M3, f16, e5m2, e4m3)

WGMMA_FLOAT(f32_bf16_bf16, 16, F32, BF16, BF16, f32, bf16, bf16, ", 0, 0", ", 0")
WGMMA_FLOAT(f32_f16_f16, 16, F32, F16, F16, f32, f16, f16, ", 0, 0", ", 0")
WGMMA_FLOAT(f16_f16_f16, 16, F16, F16, F16, f16, f16, f16, ", 0, 0", ", 0")
WGMMA_FLOAT(f32_tf32_tf32, 8, F32, F32, F32, f32, tf32, tf32, "", "")
WGMMA_FLOAT(f32_e4m3_e4m3, 32, F32, E4M3, E4M3, f32, e4m3, e4m3, "", "")
WGMMA_FLOAT(f32_e4m3_e5m2, 32, F32, E4M3, E5M2, f32, e4m3, e5m2, "", "")
WGMMA_FLOAT(f32_e5m2_e4m3, 32, F32, E5M2, E4M3, f32, e5m2, e4m3, "", "")
WGMMA_FLOAT(f32_e5m2_e5m2, 32, F32, E5M2, E5M2, f32, e5m2, e5m2, "", "")
WGMMA_FLOAT(f16_e4m3_e4m3, 32, F16, E4M3, E4M3, f16, e4m3, e4m3, "", "")
WGMMA_FLOAT(f16_e4m3_e5m2, 32, F16, E4M3, E5M2, f16, e4m3, e5m2, "", "")
WGMMA_FLOAT(f16_e5m2_e4m3, 32, F16, E5M2, E4M3, f16, e5m2, e4m3, "", "")
WGMMA_FLOAT(f16_e5m2_e5m2, 32, F16, E5M2, E5M2, f16, e5m2, e5m2, "", "")

WGMMA_MAJORS(f32_bf16_bf16, F32, BF16, f32, bf16)
WGMMA_MAJORS(f32_f16_f16, F32, F16, f32, f16)
WGMMA_MAJORS(f16_f16_f16, F16, F16, f16, f16)
// An N that is not a whole number of the swizzle's rows
#define WGMMA_PARTLY(N)                                                                           \
    WGMMA(wgmma_n##N##_f32_bf16_bf16_tb, N, 16, F32, BF16, BF16, f32, bf16, bf16, "", 0, 0, 1, 8, \
          FROM_SHARED, ", 1, 1, 0, 1")
WGMMA_PARTLY(8)
WGMMA_PARTLY(24)
WGMMA_PARTLY(72)
WGMMA_PARTLY(200)

// ---- Integers ---------------------------------------------------------------------------------------------------------

#define WGMMA_INTEGER(N, A, B, SUFFIX, MODIFIER, CASES)                                                      \
    WGMMA(wgmma_n##N##_s32_##A##_##B##SUFFIX, N, 32, INT32, INT8, INT8, s32, A, B, MODIFIER, 0, 0, 0, CASES, \
          FROM_SHARED, "")
#define WGMMA_INTEGERS(A, B)                                                                                \
    WGMMA_INTEGER(8, A, B, , "", 16)                                                                        \
    WGMMA_INTEGER(8, A, B, _sat, ".satfinite", 16)                                                          \
    WGMMA(wgmma_n8_s32_##A##_##B##_rs, 8, 32, INT32, INT8, INT8, s32, A, B, "", 1, 0, 0, 4, FROM_REGISTERS, \
          "")                                                                                               \
    WGMMA(wgmma_n8_s32_##A##_##B##_sat_rs, 8, 32, INT32, INT8, INT8, s32, A, B, ".satfinite", 1, 0, 0, 4,   \
          FROM_REGISTERS, "")
WGMMA_INTEGERS(s8, s8)
WGMMA_INTEGERS(s8, u8)
WGMMA_INTEGERS(u8, s8)
WGMMA_INTEGERS(u8, u8)
WGMMA_INTEGER(24, s8, u8, , "", 2)
WGMMA_INTEGER(256, s8, u8, , "", 1)
WGMMA_INTEGER(32, u8, s8, , "", 2)
WGMMA_INTEGER(256, u8, s8, _sat, ".satfinite", 1)
WGMMA_INTEGER(96, u8, u8, , "", 2)
WGMMA_INTEGER(256, u8, u8, , "", 1)
#define SWEEP_S8(N) WGMMA_INTEGER(N, s8, s8, , "", 1)
EVERY_N_BUT_8_UP_TO_32(SWEEP_S8)
EVERY_16TH_N(SWEEP_S8)

// ---- Several products into one accumulator ----------------------------------------------------------------------------

// Four of them, 32 bytes of K on each time, in three groups that are waited for one by one.
template <u32 OFFSET>
__global__ void wgmma_chain_kernel(u32 *out, const u8 *image, const struct wgmma_case *cases, u32 *d,
                                   const u32 *)
{
    extern __shared__ __align__(1024) u8 smem[];
    const u64 start = wgmma_fill(smem + OFFSET, image, WGMMA_IMAGE_BYTES(8));
    const struct wgmma_case c = cases[blockIdx.x];
    d += (blockIdx.x * WGMMA_THREADS + threadIdx.x) * 4;
#define CHAIN_PRODUCT(A, B, SCALE_D)                                                               \
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, " A ", " B ", " SCALE_D \
    ", 1, 1, 0, 0;\n"
    float sum[4];
    for (int i = 0; i < 4; i++) sum[i] = __uint_as_float(d[i]);
    asm volatile(
        "{ .reg .pred p; .reg .b64 a1, a2, a3, b1, b2, b3; setp.ne.b32 p, %6, 0;\n"
        "add.u64 a1, %4, 2; add.u64 a2, %4, 4; add.u64 a3, %4, 6;\n"
        "add.u64 b1, %5, 2; add.u64 b2, %5, 4; add.u64 b3, %5, 6;\n"
        "wgmma.fence.sync.aligned;\n" CHAIN_PRODUCT("%4", "%5", "p")
            CHAIN_PRODUCT("a1", "b1", "1") "wgmma.commit_group.sync.aligned;\n" CHAIN_PRODUCT(
                "a2", "b2",
                "1") "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;\n" CHAIN_PRODUCT("a3",
                                                                                                          "b3",
                                                                                                          "p") "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; }"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "l"(c.a + start), "l"(c.b + start), "r"(c.scale_d)
        : "memory");
    for (int i = 0; i < 4; i++) d[i] = __float_as_uint(sum[i]);
    wgmma_fold(out, d, 4);
}
#define WGMMA_CHAIN(NAME, OFFSET)                                                           \
    static const struct wgmma_form NAME##_form = {8,                                        \
                                                  ELEMENT_F32,                              \
                                                  ELEMENT_BF16,                             \
                                                  ELEMENT_BF16,                             \
                                                  0,                                        \
                                                  0,                                        \
                                                  0,                                        \
                                                  16,                                       \
                                                  (const void *)wgmma_chain_kernel<OFFSET>, \
                                                  OFFSET};                                  \
    VARIANT(NAME, draw_wgmma, wgmma_launch, &NAME##_form, 16 * WGMMA_THREADS * 16, 4,       \
            16 * WGMMA_IMAGE_BYTES(8), 16 * sizeof(struct wgmma_case), 16 * WGMMA_THREADS * 16)
WGMMA_CHAIN(wgmma_chain, 0)
WGMMA_CHAIN(wgmma_chain_high_in_shared_memory, 200 * 1024)
