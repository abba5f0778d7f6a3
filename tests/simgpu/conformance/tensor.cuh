// Tensor variants: mma.sync and wmma on fragments drawn per tile, ldmatrix, stmatrix, movmatrix, and cp.async.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

enum { LANES = 32, TILES = 32 };

// ---- Elements of fragments ----------------------------------------------------------------------------------------

enum element {
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_F32,
    ELEMENT_E4M3,
    ELEMENT_E5M2,
    ELEMENT_INT8,
    ELEMENT_INT32,
    ELEMENT_NONE
};
static const struct {
    int bytes, exponent_bits, mantissa_bits;
} elements[] = {{2, 5, 10}, {2, 8, 7}, {4, 8, 23}, {1, 4, 3}, {1, 5, 2}, {1, 0, 0}, {4, 0, 0}, {4, 0, 0}};

// A tile has one of four styles: a narrow range of exponents; a wide one; many subnormals; and a narrow one with a few raw
// bit patterns, NaN and infinity among them.
static u32 draw_element(enum element kind, int style)
{
    const int e = elements[kind].exponent_bits, m = elements[kind].mantissa_bits;
    const u64 r = random_u64(), s = random_u64();
    if (kind == ELEMENT_INT8) return (u32)(style == 1 ? (r & 1 ? 0x7f : 0x80) : r & 0xff);
    if (kind == ELEMENT_INT32)
        return (u32)(style % 2 ? (r & 1 ? 0x7fffffff : 0x80000000) ^ (s & 0x1ffff) : s >> 40);
    if (kind == ELEMENT_NONE) return 0;
    const u64 sign = (r & 1) << (e + m), mantissa = s & ((1ull << m) - 1), bias = (1ull << (e - 1)) - 1;
    const u64 span = bias < 20 ? bias - 1 : 20;
    switch (style) {
    case 0: return (u32)(sign | (bias - 2 + (r >> 8) % 5) << m | mantissa);
    case 1: return (u32)(sign | (bias - span + (r >> 8) % (2 * span + 1)) << m | mantissa);
    case 2: return (u32)(sign | ((r >> 8) % 2 ? 0 : (r >> 16) % (bias + 2)) << m | mantissa);
    default:
        if ((r >> 8) % 128 == 0) return (u32)(s & ((2ull << (e + m)) - 1));
        return (u32)(sign | (bias - 3 + (r >> 16) % 7) << m | mantissa);
    }
}

static void draw_elements(u8 *bytes, size_t count, enum element kind, size_t per_tile)
{
    for (size_t at = 0; at < count; at += (size_t)elements[kind].bytes) {
        const u32 x = draw_element(kind, (int)(at / per_tile % 4));
        memcpy(bytes + at, &x, (size_t)elements[kind].bytes);
    }
}

// ---- mma.sync -----------------------------------------------------------------------------------------------------

struct fragments {
    const char *name;
    enum element a, b, c;
    int a_regs, b_regs, c_regs;
    struct fragments *next;
};
static struct fragments *first_fragments;
static bool fragments_add(struct fragments *f)
{
    f->next = first_fragments;
    first_fragments = f;
    return true;
}
static void draw_fragments(const struct variant *v, u8 **inputs)
{
    const struct fragments *f = first_fragments;
    while (strcmp(f->name, v->name)) f = f->next;
    draw_elements(inputs[0], v->input_bytes[0], f->a, (size_t)f->a_regs * 4 * LANES);
    draw_elements(inputs[1], v->input_bytes[1], f->b, (size_t)f->b_regs * 4 * LANES);
    draw_elements(inputs[2], v->input_bytes[2], f->c, (size_t)f->c_regs * 4 * LANES);
}

#define ASM_424(PTX)                                                                                       \
    asm volatile(PTX " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), \
                   "r"(c[2]), "r"(c[3]))
#define ASM_422(PTX)                                                    \
    asm volatile(PTX " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};" \
                 : "=r"(d[0]), "=r"(d[1])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]))
#define ASM_214(PTX)                                                         \
    asm volatile(PTX " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])            \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
#define ASM_212(PTX)                                        \
    asm volatile(PTX " {%0, %1}, {%2, %3}, {%4}, {%5, %6};" \
                 : "=r"(d[0]), "=r"(d[1])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(c[0]), "r"(c[1]))
#define ASM_112(PTX)                                    \
    asm volatile(PTX " {%0, %1}, {%2}, {%3}, {%4, %5};" \
                 : "=r"(d[0]), "=r"(d[1])               \
                 : "r"(a[0]), "r"(b[0]), "r"(c[0]), "r"(c[1]))

// MMA(name, registers of A, B and C = D, elements of each, PTX)
#define MMA(NAME, NA, NB, NC, A, B, C, PTX)                                                    \
    __global__ void NAME##_kernel(u32 *d, const u32 *a, const u32 *b, const u32 *c)            \
    {                                                                                          \
        const int thread = blockIdx.x * LANES + threadIdx.x;                                   \
        a += thread * NA, b += thread * NB, c += thread * NC, d += thread * NC;                \
        ASM_##NA##NB##NC(PTX);                                                                 \
    }                                                                                          \
    static void NAME##_launch(u8 *out, u8 *const *in)                                          \
    {                                                                                          \
        NAME##_kernel<<<TILES, LANES>>>((u32 *)out, (u32 *)in[0], (u32 *)in[1], (u32 *)in[2]); \
    }                                                                                          \
    static struct fragments NAME##_fragments = {#NAME, ELEMENT_##A, ELEMENT_##B, ELEMENT_##C,  \
                                                NA,    NB,          NC,          NULL};        \
    static struct variant NAME##_variant = {                                                   \
        #NAME,                                                                                 \
        draw_fragments,                                                                        \
        NAME##_launch,                                                                         \
        {TILES * LANES * NA * 4, TILES * LANES * NB * 4, TILES * LANES * NC * 4, 0},           \
        TILES * LANES * NC * 4,                                                                \
        4,                                                                                     \
        bits(),                                                                                \
        {UNUSED, UNUSED, UNUSED},                                                              \
        NULL};                                                                                 \
    static const bool NAME##_added = fragments_add(&NAME##_fragments) && variant_add(&NAME##_variant);

MMA(mma_m16n8k8_f16_f16, 2, 1, 2, F16, F16, F16, "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16")
MMA(mma_m16n8k8_f32_f16, 2, 1, 4, F16, F16, F32, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")
MMA(mma_m16n8k8_f32_bf16, 2, 1, 4, BF16, BF16, F32, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")
MMA(mma_m16n8k16_f16_f16, 4, 2, 2, F16, F16, F16, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
MMA(mma_m16n8k16_f32_f16, 4, 2, 4, F16, F16, F32, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MMA(mma_m16n8k16_f32_bf16, 4, 2, 4, BF16, BF16, F32, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(mma_m16n8k4_tf32, 2, 1, 4, F32, F32, F32, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")
MMA(mma_m16n8k8_tf32, 4, 2, 4, F32, F32, F32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#define MMA_FP8(A, B, PTX_A, PTX_B)                                      \
    MMA(mma_m16n8k32_f32_##A##_##B, 4, 2, 4, A, B, F32,                  \
        "mma.sync.aligned.m16n8k32.row.col.f32." PTX_A "." PTX_B ".f32") \
    MMA(mma_m16n8k32_f16_##A##_##B, 4, 2, 2, A, B, F16,                  \
        "mma.sync.aligned.m16n8k32.row.col.f16." PTX_A "." PTX_B ".f16") \
    MMA(mma_m16n8k16_f32_##A##_##B, 2, 1, 4, A, B, F32,                  \
        "mma.sync.aligned.m16n8k16.row.col.f32." PTX_A "." PTX_B ".f32") \
    MMA(mma_m16n8k16_f16_##A##_##B, 2, 1, 2, A, B, F16,                  \
        "mma.sync.aligned.m16n8k16.row.col.f16." PTX_A "." PTX_B ".f16")
MMA_FP8(E4M3, E4M3, "e4m3", "e4m3")
MMA_FP8(E4M3, E5M2, "e4m3", "e5m2")
MMA_FP8(E5M2, E4M3, "e5m2", "e4m3")
MMA_FP8(E5M2, E5M2, "e5m2", "e5m2")
#define MMA_INT(A, B)                                                        \
    MMA(mma_m8n8k16_##A##_##B, 1, 1, 2, INT8, INT8, INT32,                   \
        "mma.sync.aligned.m8n8k16.row.col.s32." #A "." #B ".s32")            \
    MMA(mma_m16n8k16_##A##_##B, 2, 1, 4, INT8, INT8, INT32,                  \
        "mma.sync.aligned.m16n8k16.row.col.s32." #A "." #B ".s32")           \
    MMA(mma_m16n8k16_sat_##A##_##B, 2, 1, 4, INT8, INT8, INT32,              \
        "mma.sync.aligned.m16n8k16.row.col.satfinite.s32." #A "." #B ".s32") \
    MMA(mma_m16n8k32_##A##_##B, 4, 2, 4, INT8, INT8, INT32,                  \
        "mma.sync.aligned.m16n8k32.row.col.s32." #A "." #B ".s32")           \
    MMA(mma_m16n8k32_sat_##A##_##B, 4, 2, 4, INT8, INT8, INT32,              \
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32." #A "." #B ".s32")
MMA_INT(s8, s8)
MMA_INT(s8, u8)
MMA_INT(u8, s8)
MMA_INT(u8, u8)

// ---- wmma: matrices in global memory, through nvcuda::wmma --------------------------------------------------------

enum { WMMA_TILES = 8 };

template <int M, int N, int K, typename AB, typename C, typename A_LAYOUT, typename B_LAYOUT, typename STORED>
__global__ void wmma_kernel(C *d, const STORED *a, const STORED *b, const C *c)
{
    using namespace nvcuda;
    const bool a_row = std::is_same<A_LAYOUT, wmma::row_major>::value;
    const bool b_row = std::is_same<B_LAYOUT, wmma::row_major>::value;
    a += blockIdx.x * M * K, b += blockIdx.x * K * N, c += blockIdx.x * M * N, d += blockIdx.x * M * N;
    wmma::fragment<wmma::matrix_a, M, N, K, AB, A_LAYOUT> a_frag;
    wmma::fragment<wmma::matrix_b, M, N, K, AB, B_LAYOUT> b_frag;
    wmma::fragment<wmma::accumulator, M, N, K, C> acc;
    wmma::load_matrix_sync(a_frag, a, a_row ? K : M);
    wmma::load_matrix_sync(b_frag, b, b_row ? N : K);
    wmma::load_matrix_sync(acc, c, N, wmma::mem_row_major);
    wmma::mma_sync(acc, a_frag, b_frag, acc);
    wmma::store_matrix_sync(d, acc, blockIdx.x % 2 ? N : M,
                            blockIdx.x % 2 ? wmma::mem_row_major : wmma::mem_col_major);
}

#define WMMA(NAME, M, N, K, AB, C, A_LAYOUT, B_LAYOUT, STORED, ELEMENT_AB, ELEMENT_C)        \
    static void NAME##_launch(u8 *out, u8 *const *in)                                        \
    {                                                                                        \
        wmma_kernel<M, N, K, AB, C, nvcuda::wmma::A_LAYOUT, nvcuda::wmma::B_LAYOUT, STORED>  \
            <<<WMMA_TILES, LANES>>>((C *)out, (STORED *)in[0], (STORED *)in[1], (C *)in[2]); \
    }                                                                                        \
    static struct fragments NAME##_fragments = {#NAME,                                       \
                                                ELEMENT_AB,                                  \
                                                ELEMENT_AB,                                  \
                                                ELEMENT_C,                                   \
                                                M * K * sizeof(STORED) / (4 * LANES),        \
                                                N * K * sizeof(STORED) / (4 * LANES),        \
                                                M * N * sizeof(C) / (4 * LANES),             \
                                                NULL};                                       \
    static struct variant NAME##_variant = {#NAME,                                           \
                                            draw_fragments,                                  \
                                            NAME##_launch,                                   \
                                            {WMMA_TILES * M * K * sizeof(STORED),            \
                                             WMMA_TILES * N * K * sizeof(STORED),            \
                                             WMMA_TILES * M * N * sizeof(C), 0},             \
                                            WMMA_TILES * M * N * sizeof(C),                  \
                                            sizeof(C),                                       \
                                            bits(),                                          \
                                            {UNUSED, UNUSED, UNUSED},                        \
                                            NULL};                                           \
    static const bool NAME##_added = fragments_add(&NAME##_fragments) && variant_add(&NAME##_variant);

#define WMMA_F16(M, N, K)                                                                                \
    WMMA(wmma_m##M##n##N##k##K##_f32_f16, M, N, K, half, float, row_major, col_major, half, ELEMENT_F16, \
         ELEMENT_F32)                                                                                    \
    WMMA(wmma_m##M##n##N##k##K##_f16_f16, M, N, K, half, half, col_major, row_major, half, ELEMENT_F16,  \
         ELEMENT_F16)                                                                                    \
    WMMA(wmma_m##M##n##N##k##K##_f32_bf16, M, N, K, __nv_bfloat16, float, row_major, row_major,          \
         __nv_bfloat16, ELEMENT_BF16, ELEMENT_F32)                                                       \
    WMMA(wmma_m##M##n##N##k##K##_s8, M, N, K, signed char, int, row_major, col_major, signed char,       \
         ELEMENT_INT8, ELEMENT_INT32)                                                                    \
    WMMA(wmma_m##M##n##N##k##K##_u8, M, N, K, unsigned char, int, col_major, col_major, unsigned char,   \
         ELEMENT_INT8, ELEMENT_INT32)
WMMA_F16(16, 16, 16)
WMMA_F16(32, 8, 16)
WMMA_F16(8, 32, 16)
WMMA(wmma_m16n16k8_tf32, 16, 16, 8, nvcuda::wmma::precision::tf32, float, row_major, col_major, float,
     ELEMENT_F32, ELEMENT_F32)

// ---- ldmatrix, stmatrix, movmatrix --------------------------------------------------------------------------------

enum { ROWS = 128, ROW_BYTES = 16, MATRIX_TILES = 8 };

// inputs[0]: shared memory, random bytes; inputs[1]: a row of it for each lane, all different.
static void draw_rows(const struct variant *v, u8 **inputs)
{
    for (size_t i = 0; i < v->input_bytes[0]; i++) inputs[0][i] = (u8)random_u64();
    u32 *const rows = (u32 *)inputs[1];
    for (u32 tile = 0; tile < MATRIX_TILES; tile++) {
        const u32 start = (u32)random_u64() % ROWS, step = (u32)random_u64() % (ROWS / 2) * 2 + 1;
        for (u32 lane = 0; lane < LANES; lane++) rows[tile * LANES + lane] = (start + lane * step) % ROWS;
    }
}
#define MATRIX_VARIANT(NAME, OUT_BYTES)                                                 \
    static void NAME##_launch(u8 *out, u8 *const *in)                                   \
    {                                                                                   \
        NAME##_kernel<<<MATRIX_TILES, LANES>>>((u32 *)out, (u32 *)in[0], (u32 *)in[1]); \
    }                                                                                   \
    static struct variant NAME##_variant = {                                            \
        #NAME,                                                                          \
        draw_rows,                                                                      \
        NAME##_launch,                                                                  \
        {MATRIX_TILES * ROWS * ROW_BYTES, MATRIX_TILES * LANES * 4, 0, 0},              \
        MATRIX_TILES * (OUT_BYTES),                                                     \
        4,                                                                              \
        bits(),                                                                         \
        {UNUSED, UNUSED, UNUSED},                                                       \
        NULL};                                                                          \
    static const bool NAME##_added = variant_add(&NAME##_variant);
#define FILL_SHARED                                                 \
    __shared__ __align__(16) u32 tile[ROWS * ROW_BYTES / 4];        \
    for (int i = threadIdx.x; i < ROWS * ROW_BYTES / 4; i += LANES) \
        tile[i] = memory[blockIdx.x * (ROWS * ROW_BYTES / 4) + i];  \
    __syncwarp();                                                   \
    const u32 row = rows[blockIdx.x * LANES + threadIdx.x];         \
    const u32 address = (u32)__cvta_generic_to_shared(tile) + row * ROW_BYTES;

#define LDMATRIX(NAME, COUNT, PTX, REGISTERS, ...)                                                  \
    __global__ void NAME##_kernel(u32 *d, const u32 *memory, const u32 *rows)                       \
    {                                                                                               \
        FILL_SHARED                                                                                 \
        u32 r[COUNT];                                                                               \
        asm volatile(PTX " " REGISTERS ", [%" #COUNT "];" : __VA_ARGS__ : "r"(address) : "memory"); \
        for (int i = 0; i < COUNT; i++) d[(blockIdx.x * LANES + threadIdx.x) * COUNT + i] = r[i];   \
    }                                                                                               \
    MATRIX_VARIANT(NAME, LANES *COUNT * 4)
#define LDMATRIX_ALL(SUFFIX, DOTS)                                                                           \
    LDMATRIX(ldmatrix_x1##SUFFIX, 1, "ldmatrix.sync.aligned.m8n8.x1" DOTS ".shared.b16", "{%0}", "=r"(r[0])) \
    LDMATRIX(ldmatrix_x2##SUFFIX, 2, "ldmatrix.sync.aligned.m8n8.x2" DOTS ".shared.b16", "{%0, %1}",         \
             "=r"(r[0]), "=r"(r[1]))                                                                         \
    LDMATRIX(ldmatrix_x4##SUFFIX, 4, "ldmatrix.sync.aligned.m8n8.x4" DOTS ".shared.b16", "{%0, %1, %2, %3}", \
             "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))
LDMATRIX_ALL(, "")
LDMATRIX_ALL(_trans, ".trans")

// The registers stored are the first words of shared memory's own contents, lane by lane; all of it is the result.
#define STMATRIX(NAME, PTX, REGISTERS, ...)                                               \
    __global__ void NAME##_kernel(u32 *d, const u32 *memory, const u32 *rows)             \
    {                                                                                     \
        FILL_SHARED                                                                       \
        u32 r[4];                                                                         \
        for (int i = 0; i < 4; i++)                                                       \
            r[i] = ~memory[blockIdx.x * (ROWS * ROW_BYTES / 4) + threadIdx.x * 4 + i];    \
        asm volatile(PTX " [%0], " REGISTERS ";" ::"r"(address), __VA_ARGS__ : "memory"); \
        __syncwarp();                                                                     \
        for (int i = threadIdx.x; i < ROWS * ROW_BYTES / 4; i += LANES)                   \
            d[blockIdx.x * (ROWS * ROW_BYTES / 4) + i] = tile[i];                         \
    }                                                                                     \
    MATRIX_VARIANT(NAME, ROWS *ROW_BYTES)
#define STMATRIX_ALL(SUFFIX, DOTS)                                                                           \
    STMATRIX(stmatrix_x1##SUFFIX, "stmatrix.sync.aligned.m8n8.x1" DOTS ".shared.b16", "{%1}", "r"(r[0]))     \
    STMATRIX(stmatrix_x2##SUFFIX, "stmatrix.sync.aligned.m8n8.x2" DOTS ".shared.b16", "{%1, %2}", "r"(r[0]), \
             "r"(r[1]))                                                                                      \
    STMATRIX(stmatrix_x4##SUFFIX, "stmatrix.sync.aligned.m8n8.x4" DOTS ".shared.b16", "{%1, %2, %3, %4}",    \
             "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))
STMATRIX_ALL(, "")
STMATRIX_ALL(_trans, ".trans")

__global__ void movmatrix_kernel(u32 *d, const u32 *memory, const u32 *)
{
    u32 r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                 : "=r"(r)
                 : "r"(memory[blockIdx.x * (ROWS * ROW_BYTES / 4) + threadIdx.x]));
    d[blockIdx.x * LANES + threadIdx.x] = r;
}
MATRIX_VARIANT(movmatrix, LANES * 4)

// ---- cp.async -----------------------------------------------------------------------------------------------------

// Each lane copies 16 bytes, in pieces of the instruction's size, from its row of global memory to its own place in shared
// memory. %0 is the destination, %1 the source, %2 how many bytes of the piece to read, which differs from lane to lane.
#define CP_ASYNC(NAME, SIZE, PTX, WAIT)                                                               \
    __global__ void NAME##_kernel(u32 *d, const u32 *memory, const u32 *rows)                         \
    {                                                                                                 \
        FILL_SHARED                                                                                   \
        const u32 own = (u32)__cvta_generic_to_shared(tile) + threadIdx.x * 16;                       \
        const u32 *const from = memory + blockIdx.x * (ROWS * ROW_BYTES / 4) + row * 4;               \
        for (u32 piece = 0; piece < 16; piece += SIZE)                                                \
            asm volatile("{ .reg .pred p; setp.eq.u32 p, %2, 0; " PTX " }" ::"r"(own + piece),        \
                         "l"(__cvta_generic_to_global((const char *)from + piece)),                   \
                         "r"((row + piece) % (SIZE + 1))                                              \
                         : "memory");                                                                 \
        asm volatile(WAIT ::"r"(address) : "memory");                                                 \
        __syncwarp();                                                                                 \
        for (int i = threadIdx.x; i < LANES * 4; i += LANES) d[blockIdx.x * LANES * 4 + i] = tile[i]; \
    }                                                                                                 \
    MATRIX_VARIANT(NAME, LANES * 16)
#define WAIT_GROUP "cp.async.commit_group; cp.async.wait_group 0;"
CP_ASYNC(cp_async_ca_4, 4, "cp.async.ca.shared.global [%0], [%1], 4;", WAIT_GROUP)
CP_ASYNC(cp_async_ca_8, 8, "cp.async.ca.shared.global [%0], [%1], 8;", WAIT_GROUP)
CP_ASYNC(cp_async_ca_16, 16, "cp.async.ca.shared.global [%0], [%1], 16;", WAIT_GROUP)
CP_ASYNC(cp_async_cg_16, 16, "cp.async.cg.shared.global [%0], [%1], 16;", "cp.async.wait_all;")
CP_ASYNC(cp_async_ca_4_zfill, 4, "cp.async.ca.shared.global [%0], [%1], 4, %2;", WAIT_GROUP)
CP_ASYNC(cp_async_ca_8_zfill, 8, "cp.async.ca.shared.global [%0], [%1], 8, %2;", WAIT_GROUP)
CP_ASYNC(cp_async_ca_16_zfill, 16, "cp.async.ca.shared.global [%0], [%1], 16, %2;", "cp.async.wait_all;")
CP_ASYNC(cp_async_cg_16_zfill, 16, "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;", WAIT_GROUP)
CP_ASYNC(cp_async_cg_16_ignore, 16, "cp.async.cg.shared.global [%0], [%1], 16, p;", WAIT_GROUP)
CP_ASYNC(cp_async_groups, 4, "cp.async.ca.shared.global [%0], [%1], 4, %2; cp.async.commit_group;",
         "cp.async.wait_group 3; cp.async.wait_group 1; cp.async.wait_group 0;")
