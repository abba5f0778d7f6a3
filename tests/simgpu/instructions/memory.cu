// Loads and stores: every space, type, vector and cache operator; generic addresses, cvta and isspacep; parameters of every
// size; __constant__ and __device__ variables; local arrays; static and dynamic shared memory; prefetch, ld.nc, ldu.
#include "../check.h"

enum { BYTES = 4096 }; // of a test buffer

static u8 pattern(size_t i)
{
    return (u8)(i * 131 + (i >> 8) * 17 + 5);
}

// ---- Global memory: a copy in units of one ld and one st ----------------------------------------------------------

struct copy {
    const char *name;
    int unit; // bytes a thread moves
    void (*kernel)(void *d, const void *s);
    struct copy *next;
};
static struct copy *first_copy;
static bool copy_add(struct copy *c)
{
    c->next = first_copy;
    first_copy = c;
    return true;
}
#define COPY(NAME, UNIT, REGISTERS, LOAD, STORE)                                                           \
    __global__ void NAME##_kernel(void *d, const void *s)                                                  \
    {                                                                                                      \
        const int i = (blockIdx.x * blockDim.x + threadIdx.x) * UNIT;                                      \
        asm volatile("{ " REGISTERS " " LOAD " " STORE " }" ::"l"((char *)d + i), "l"((const char *)s + i) \
                     : "memory");                                                                          \
    }                                                                                                      \
    static void NAME##_launch(void *d, const void *s)                                                      \
    {                                                                                                      \
        NAME##_kernel<<<BYTES / (UNIT * 32), 32>>>(d, s);                                                  \
    }                                                                                                      \
    static struct copy NAME##_copy = {#NAME, UNIT, NAME##_launch, NULL};                                   \
    static const bool NAME##_added = copy_add(&NAME##_copy);

COPY(ld_u8, 1, ".reg .b16 x;", "ld.global.u8 x, [%1];", "st.global.u8 [%0], x;")
COPY(ld_s8_in_32, 1, ".reg .b32 x;", "ld.global.s8 x, [%1];", "st.global.b8 [%0], x;")
COPY(ld_b16, 2, ".reg .b16 x;", "ld.global.b16 x, [%1];", "st.global.b16 [%0], x;")
COPY(ld_b32, 4, ".reg .b32 x;", "ld.global.b32 x, [%1];", "st.global.b32 [%0], x;")
COPY(ld_f32, 4, ".reg .f32 x;", "ld.global.f32 x, [%1];", "st.global.f32 [%0], x;")
COPY(ld_b64, 8, ".reg .b64 x;", "ld.global.b64 x, [%1];", "st.global.b64 [%0], x;")
COPY(ld_f64, 8, ".reg .f64 x;", "ld.global.f64 x, [%1];", "st.global.f64 [%0], x;")
COPY(ld_b128, 16, ".reg .b128 x;", "ld.global.b128 x, [%1];", "st.global.b128 [%0], x;")
COPY(ld_v2_u8, 2, ".reg .b16 x, y;", "ld.global.v2.u8 {x, y}, [%1];", "st.global.v2.u8 [%0], {x, y};")
COPY(ld_v4_u8, 4, ".reg .b16 x<4>;", "ld.global.v4.u8 {x0, x1, x2, x3}, [%1];",
     "st.global.v4.u8 [%0], {x0, x1, x2, x3};")
COPY(ld_v2_b16, 4, ".reg .b16 x, y;", "ld.global.v2.b16 {x, y}, [%1];", "st.global.v2.b16 [%0], {x, y};")
COPY(ld_v4_b16, 8, ".reg .b16 x<4>;", "ld.global.v4.b16 {x0, x1, x2, x3}, [%1];",
     "st.global.v4.b16 [%0], {x0, x1, x2, x3};")
COPY(ld_v2_b32, 8, ".reg .b32 x, y;", "ld.global.v2.b32 {x, y}, [%1];", "st.global.v2.b32 [%0], {x, y};")
COPY(ld_v4_b32, 16, ".reg .b32 x<4>;", "ld.global.v4.b32 {x0, x1, x2, x3}, [%1];",
     "st.global.v4.b32 [%0], {x0, x1, x2, x3};")
COPY(ld_v4_f32, 16, ".reg .f32 x<4>;", "ld.global.v4.f32 {x0, x1, x2, x3}, [%1];",
     "st.global.v4.f32 [%0], {x0, x1, x2, x3};")
COPY(ld_v2_b64, 16, ".reg .b64 x, y;", "ld.global.v2.b64 {x, y}, [%1];", "st.global.v2.b64 [%0], {x, y};")
COPY(ld_v2_f64, 16, ".reg .f64 x, y;", "ld.global.v2.f64 {x, y}, [%1];", "st.global.v2.f64 [%0], {x, y};")
COPY(ld_generic, 4, ".reg .b32 x;", "ld.b32 x, [%1];", "st.b32 [%0], x;")
COPY(ld_generic_v4, 16, ".reg .b32 x<4>;", "ld.v4.u32 {x0, x1, x2, x3}, [%1];",
     "st.v4.u32 [%0], {x0, x1, x2, x3};")
COPY(ld_ca, 4, ".reg .b32 x;", "ld.global.ca.b32 x, [%1];", "st.global.wb.b32 [%0], x;")
COPY(ld_cg, 4, ".reg .b32 x;", "ld.global.cg.b32 x, [%1];", "st.global.cg.b32 [%0], x;")
COPY(ld_cs, 16, ".reg .b32 x<4>;", "ld.global.cs.v4.b32 {x0, x1, x2, x3}, [%1];",
     "st.global.cs.v4.b32 [%0], {x0, x1, x2, x3};")
COPY(ld_lu, 4, ".reg .b32 x;", "ld.global.lu.b32 x, [%1];", "st.global.b32 [%0], x;")
COPY(ld_cv, 4, ".reg .b32 x;", "ld.global.cv.b32 x, [%1];", "st.global.wt.b32 [%0], x;")
COPY(ld_nc, 16, ".reg .b32 x<4>;", "ld.global.nc.v4.b32 {x0, x1, x2, x3}, [%1];",
     "st.global.v4.b32 [%0], {x0, x1, x2, x3};")
COPY(ld_nc_evict, 16, ".reg .b32 x<4>;",
     "ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {x0, x1, x2, x3}, [%1];",
     "st.global.L1::no_allocate.v4.b32 [%0], {x0, x1, x2, x3};")
COPY(ld_policy, 4, ".reg .b32 x; .reg .b64 p;",
     "createpolicy.fractional.L2::evict_first.b64 p, 1.0; ld.global.L2::cache_hint.b32 x, [%1], p;",
     "st.global.L2::cache_hint.b32 [%0], x, p;")
COPY(ld_volatile, 4, ".reg .b32 x;", "ld.volatile.global.b32 x, [%1];", "st.volatile.global.b32 [%0], x;")
COPY(ld_relaxed, 4, ".reg .b32 x;", "ld.relaxed.gpu.global.b32 x, [%1];",
     "st.relaxed.gpu.global.b32 [%0], x;")
COPY(ld_acquire, 8, ".reg .b64 x;", "ld.acquire.sys.global.b64 x, [%1];",
     "st.release.sys.global.b64 [%0], x;")
COPY(ld_weak, 4, ".reg .b32 x;", "ld.weak.global.b32 x, [%1];", "st.weak.global.b32 [%0], x;")
COPY(ldu, 4, ".reg .b32 x;", "ldu.global.b32 x, [%1];", "st.global.b32 [%0], x;")
COPY(prefetch, 4, ".reg .b32 x;", "prefetch.global.L2 [%1]; prefetch.global.L1 [%1]; ld.global.b32 x, [%1];",
     "st.global.b32 [%0], x;")
COPY(prefetchu, 4, ".reg .b32 x;", "prefetchu.L1 [%1]; ld.global.b32 x, [%1];", "st.global.b32 [%0], x;")
COPY(priority, 4, ".reg .b32 x; .reg .b64 line;",
     "and.b64 line, %1, -128; applypriority.global.L2::evict_normal [line], 128; ld.global.b32 x, [%1];",
     "st.global.b32 [%0], x;")
COPY(offset, 8, ".reg .b32 x, y;", "ld.global.b32 x, [%1+4]; ld.global.b32 y, [%1+-0];",
     "st.global.b32 [%0+4], x; st.global.b32 [%0], y;")
COPY(
    sink, 16, ".reg .b32 x, y;", "ld.global.v4.b32 {x, _, y, _}, [%1];",
    "st.global.b32 [%0], x; st.global.b32 [%0+8], y; ld.global.v4.b32 {_, x, _, y}, [%1]; st.global.b32 [%0+4], x; "
    "st.global.b32 [%0+12], y;")

static void check_copies(void)
{
    static u8 source[BYTES], got[BYTES];
    u8 *s, *d;
    CUDA_CHECK(cudaMalloc((void **)&s, BYTES));
    CUDA_CHECK(cudaMalloc((void **)&d, BYTES));
    for (size_t i = 0; i < BYTES; i++) source[i] = pattern(i);
    CUDA_CHECK(cudaMemcpy(s, source, BYTES, cudaMemcpyHostToDevice));
    for (const struct copy *c = first_copy; c; c = c->next) {
        CUDA_CHECK(cudaMemset(d, 0, BYTES));
        c->kernel(d, s);
        if (!launched(c->name)) continue;
        CUDA_CHECK(cudaMemcpy(got, d, BYTES, cudaMemcpyDeviceToHost));
        check_begin(c->name);
        for (size_t i = 0; i < BYTES; i++) check(i, got[i], source[i]);
    }
}

// ---- Extension: 8- and 16-bit loads into wider registers ----------------------------------------------------------

#define EXTEND(NAME, T, PTX, EXPECT) OP(NAME, T, u64, u64, u64, INT64, UNUSED, UNUSED, BITS, PTX, EXPECT)
// The operand is put into local memory first.
#define LOCAL(BODY) "{ .local .align 8 .b64 slot; st.local.b64 [slot], %1; " BODY " }"
EXTEND(ld_local_u8, u32, LOCAL("ld.local.u8 %0, [slot+3];"), (u8)(a >> 24))
EXTEND(ld_local_s8, u32, LOCAL("ld.local.s8 %0, [slot+3];"), (s8)(a >> 24))
EXTEND(ld_local_u16, u32, LOCAL("ld.local.u16 %0, [slot+2];"), (u16)(a >> 16))
EXTEND(ld_local_s16, u32, LOCAL("ld.local.s16 %0, [slot+2];"), (s16)(a >> 16))
EXTEND(ld_local_s8_64, u64, LOCAL("ld.local.s8 %0, [slot+7];"), (s64)(s8)(a >> 56))
EXTEND(ld_local_s16_64, u64, LOCAL("ld.local.s16 %0, [slot+6];"), (s64)(s16)(a >> 48))
EXTEND(ld_local_s32_64, u64, LOCAL("ld.local.s32 %0, [slot+4];"), (s64)(s32)(a >> 32))
EXTEND(ld_local_u32_64, u64, LOCAL("ld.local.u32 %0, [slot+4];"), a >> 32)
EXTEND(st_local_b8, u64, LOCAL("st.local.b8 [slot+5], %1; ld.local.b64 %0, [slot];"),
       (a & ~(0xffull << 40)) | (a & 0xff) << 40)
EXTEND(st_local_b16, u64, LOCAL("st.local.b16 [slot+6], %1; ld.local.b64 %0, [slot];"),
       a << 48 | a << 16 >> 16)
EXTEND(ld_local_v2, u64, LOCAL("{ .reg .b32 x, y; ld.local.v2.b32 {x, y}, [slot]; mov.b64 %0, {y, x}; }"),
       a << 32 | a >> 32)
EXTEND(ld_local_generic, u64, LOCAL("{ .reg .b64 p; mov.b64 p, slot; cvta.local.u64 p, p; ld.b64 %0, [p]; }"),
       a)

// ---- Shared memory ------------------------------------------------------------------------------------------------

struct __align__(16) shared_tile
{
    u8 bytes[64];
    u16 halves[64];
    u32 words[64];
    u64 longs[64];
    uint4 quads[64];
};

// Each thread writes in every width and reads what another thread wrote, through shared and generic addresses.
__global__ void shared_kernel(u64 *d)
{
    __shared__ shared_tile tile;
    const u32 t = threadIdx.x, other = (t * 5 + 3) % 64;
    tile.bytes[t] = (u8)(t * 3);
    tile.halves[t] = (u16)(t * 1000);
    tile.words[t] = t * 0x01010101;
    tile.longs[t] = t * 0x0123456789ull;
    tile.quads[t] = make_uint4(t, t + 1, t + 2, t + 3);
    __syncthreads();
    u32 quad[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad[0]), "=r"(quad[1]), "=r"(quad[2]), "=r"(quad[3])
                 : "r"((u32)__cvta_generic_to_shared(&tile.quads[other])));
    u64 via_generic;
    asm volatile("ld.b64 %0, [%1];" : "=l"(via_generic) : "l"(&tile.longs[other]));
    u32 volatile_word;
    asm volatile("ld.volatile.shared.u32 %0, [%1];"
                 : "=r"(volatile_word)
                 : "r"((u32)__cvta_generic_to_shared(&tile.words[other])));
    d += t * 8;
    d[0] = tile.bytes[other];
    d[1] = tile.halves[other];
    d[2] = volatile_word;
    d[3] = via_generic;
    for (int i = 0; i < 4; i++) d[4 + i] = quad[i];
}

// Dynamic shared memory behind static: two arrays carved from it, of a size the launch decides.
__global__ void dynamic_shared_kernel(u32 *d, int count)
{
    __shared__ u32 fixed[32];
    extern __shared__ __align__(16) u32 dynamic[];
    u32 *const second = dynamic + count;
    const int t = threadIdx.x;
    if (t < 32) fixed[t] = t * 7;
    for (int i = t; i < count; i += blockDim.x) dynamic[i] = i * 3, second[i] = i * 5;
    __syncthreads();
    u32 size;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    for (int i = t; i < count; i += blockDim.x)
        d[i] = dynamic[count - 1 - i] + second[i] * fixed[i % 32] + size;
}

static void check_shared(void)
{
    u64 *d, got[64 * 8];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    shared_kernel<<<1, 64>>>(d);
    check_begin("shared memory");
    if (launched("shared memory")) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 t = 0; t < 64; t++) {
            const u32 o = (t * 5 + 3) % 64;
            const u64 want[8] = {(u8)(o * 3), (u16)(o * 1000), o * 0x01010101, o * 0x0123456789ull,
                                 o,           o + 1,           o + 2,          o + 3};
            for (int i = 0; i < 8; i++) check(t * 8 + i, got[t * 8 + i], want[i]);
        }
    }
    check_begin("dynamic shared memory");
    const int counts[] = {1, 100, 1024, 12000, 25000};
    CUDA_CHECK(
        cudaFuncSetAttribute(dynamic_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        const int count = counts[k];
        static u32 result[25000];
        u32 *r;
        CUDA_CHECK(cudaMalloc((void **)&r, (size_t)count * 4));
        dynamic_shared_kernel<<<1, 96, (size_t)count * 8>>>(r, count);
        if (!launched("dynamic shared memory")) return;
        CUDA_CHECK(cudaMemcpy(result, r, (size_t)count * 4, cudaMemcpyDeviceToHost));
        for (int i = 0; i < count; i++)
            check((u64)i, result[i], (u32)((count - 1 - i) * 3 + i * 5 * (i % 32 * 7) + count * 8));
        CUDA_CHECK(cudaFree(r));
    }
}

// ---- Variables ----------------------------------------------------------------------------------------------------

struct record {
    char c;
    short s;
    int i;
    double d;
    const int *p;
};
__constant__ u32 table[256];
__constant__ double scale = 1.5;
__device__ u32 counters[64] = {1, 2, 3};
__device__ int target = 42;
__device__ record initialised = {'x', -3, 1 << 20, 2.25, &target};
__device__ const char text[] = "hello";
__device__ u64 zeroed[4];

__global__ void variables_kernel(u64 *d)
{
    const int t = threadIdx.x;
    if (t < 64) counters[t] += table[255 - t];
    if (t == 0) {
        d[0] = (u64)(scale * 4);
        d[1] = (u64)initialised.c;
        d[2] = (u64)initialised.s;
        d[3] = (u64)initialised.i;
        d[4] = (u64)(initialised.d * 4);
        d[5] = (u64)*initialised.p;
        d[6] = (u64)text[1];
        d[7] = zeroed[3]++;
        u32 word;
        asm volatile("ld.const.u32 %0, [%1];" : "=r"(word) : "l"(__cvta_generic_to_constant(&table[7])));
        d[8] = word;
        u32 quad[4];
        asm volatile("ld.const.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(quad[0]), "=r"(quad[1]), "=r"(quad[2]), "=r"(quad[3])
                     : "l"(__cvta_generic_to_constant(&table[12])));
        for (int i = 0; i < 4; i++) d[9 + i] = quad[i];
    }
}

static void check_variables(void)
{
    u32 host_table[256], got_counters[64];
    for (u32 i = 0; i < 256; i++) host_table[i] = i * i + 1;
    CUDA_CHECK(cudaMemcpyToSymbol(table, host_table, sizeof host_table));
    u64 *d, got[13];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    check_begin("__constant__ and __device__ variables");
    for (int round = 0; round < 2; round++) {
        variables_kernel<<<1, 128>>>(d);
        if (!launched("variables")) return;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        const u64 want[13] = {6, 'x', (u64)-3, 1 << 20, 9, 42, 'e', (u64)round, 50, 145, 170, 197, 226};
        for (int i = 0; i < 13; i++) check((u64)i, got[i], want[i]);
    }
    CUDA_CHECK(cudaMemcpyFromSymbol(got_counters, counters, sizeof got_counters));
    for (u32 i = 0; i < 64; i++)
        check(100 + i, got_counters[i], (i < 3 ? i + 1 : 0) + 2 * host_table[255 - i]);
    double new_scale = 2.5;
    CUDA_CHECK(cudaMemcpyToSymbol(scale, &new_scale, sizeof new_scale));
    variables_kernel<<<1, 128>>>(d);
    if (!launched("variables")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    check(200, got[0], 10);
}

// ---- Parameters ---------------------------------------------------------------------------------------------------

struct __align__(8) big
{
    u8 bytes[600];
};
struct mixed {
    char c;
    double d;
    short s;
    float f[3];
};
__global__ void params_kernel(u64 *d, bool b, char c, short s, int i, long long l, float f, double g,
                              const mixed m, const big large, int index, uchar3 triple)
{
    d += threadIdx.x * 16;
    d[0] = b;
    d[1] = (u64)c;
    d[2] = (u64)s;
    d[3] = (u64)i;
    d[4] = (u64)l;
    d[5] = (u64)(s64)(f * 8);
    d[6] = (u64)(s64)(g * 8);
    d[7] = (u64)m.c;
    d[8] = (u64)(s64)(m.d * 2);
    d[9] = (u64)m.s;
    d[10] = (u64)(s64)(m.f[threadIdx.x % 3] * 4); // an index at run time
    d[11] = large.bytes[index + threadIdx.x];
    d[12] = triple.x;
    d[13] = triple.z;
}

static void check_params(void)
{
    u64 *d, got[64 * 16];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    mixed m = {-5, -2.5, -7, {1.25f, 2.5f, -3.75f}};
    big large;
    for (size_t i = 0; i < sizeof large.bytes; i++) large.bytes[i] = pattern(i);
    params_kernel<<<1, 64>>>(d, true, -1, -300, -70000, -5000000000ll, 0.125f, -0.875, m, large, 500,
                             make_uchar3(1, 2, 3));
    check_begin("kernel parameters");
    if (!launched("kernel parameters")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u64 t = 0; t < 64; t++) {
        const u64 want[14] = {
            1,       (u64)-1, (u64)-300, (u64)-70000, (u64)-5000000000ll,         1,
            (u64)-7, (u64)-5, (u64)-5,   (u64)-7,     (u64)(s64)(m.f[t % 3] * 4), pattern(500 + t),
            1,       3};
        for (u64 i = 0; i < 14; i++) check(t * 100 + i, got[t * 16 + i], want[i]);
    }
}

// ---- Address spaces -----------------------------------------------------------------------------------------------

// For addresses in four spaces: a bit each for isspacep.global, .shared, .const and .local; and round trips of cvta.
__global__ void spaces_kernel(u64 *d, int *global)
{
    __shared__ int shared[32];
    volatile int local[4] = {1, 2, 3, 4};
    const void *addresses[4] = {global, shared, (const void *)table, (const void *)&local[threadIdx.x % 4]};
    for (int i = 0; i < 4; i++) {
        u32 bits = 0, p;
        asm volatile("{ .reg .pred q; isspacep.global q, %1; selp.u32 %0, 1, 0, q; }"
                     : "=r"(p)
                     : "l"(addresses[i]));
        bits |= p;
        asm volatile("{ .reg .pred q; isspacep.shared q, %1; selp.u32 %0, 2, 0, q; }"
                     : "=r"(p)
                     : "l"(addresses[i]));
        bits |= p;
        asm volatile("{ .reg .pred q; isspacep.const q, %1; selp.u32 %0, 4, 0, q; }"
                     : "=r"(p)
                     : "l"(addresses[i]));
        bits |= p;
        asm volatile("{ .reg .pred q; isspacep.local q, %1; selp.u32 %0, 8, 0, q; }"
                     : "=r"(p)
                     : "l"(addresses[i]));
        d[threadIdx.x * 8 + i] = bits | p;
    }
    u64 there, back;
    asm volatile("cvta.to.shared.u64 %0, %1;" : "=l"(there) : "l"(shared + threadIdx.x));
    asm volatile("cvta.shared.u64 %0, %1;" : "=l"(back) : "l"(there));
    d[threadIdx.x * 8 + 4] = back == (u64)(shared + threadIdx.x);
    asm volatile("cvta.to.global.u64 %0, %1;" : "=l"(there) : "l"(global));
    asm volatile("cvta.global.u64 %0, %1;" : "=l"(back) : "l"(there));
    d[threadIdx.x * 8 + 5] = back == (u64)global;
    asm volatile("cvta.to.local.u64 %0, %1;" : "=l"(there) : "l"(&local[1]));
    asm volatile("cvta.local.u64 %0, %1;" : "=l"(back) : "l"(there));
    d[threadIdx.x * 8 + 6] = back == (u64)&local[1];
    asm volatile("cvta.to.const.u64 %0, %1;" : "=l"(there) : "l"(table + 3));
    asm volatile("cvta.const.u64 %0, %1;" : "=l"(back) : "l"(there));
    d[threadIdx.x * 8 + 7] = back == (u64)(table + 3);
}

static void check_spaces(void)
{
    u64 *d, got[32 * 8];
    int *global;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMalloc((void **)&global, 64));
    spaces_kernel<<<1, 32>>>(d, global);
    check_begin("isspacep and cvta");
    if (!launched("isspacep and cvta")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    const u64 want[8] = {1, 2, 4, 8, 1, 1, 1, 1};
    for (u64 i = 0; i < 32 * 8; i++) check(i, got[i], want[i % 8]);
}

// ---- Local memory -------------------------------------------------------------------------------------------------

// An array indexed at run time, differently in each thread: a sort of 64 numbers, and a pointer passed on.
__device__ __noinline__ void insert(u32 *array, int count, u32 x)
{
    int i = count;
    for (; i > 0 && array[i - 1] > x; i--) array[i] = array[i - 1];
    array[i] = x;
}
__global__ void local_kernel(u32 *d)
{
    u32 array[64];
    u32 x = threadIdx.x + blockIdx.x * blockDim.x + 1;
    for (int i = 0; i < 64; i++) {
        x = x * 1664525 + 1013904223;
        insert(array, i, x >> 8);
    }
    for (int i = 0; i < 64; i++) d[(blockIdx.x * blockDim.x + threadIdx.x) * 64 + i] = array[i];
}
static int by_value(const void *a, const void *b)
{
    const u32 x = *(const u32 *)a, y = *(const u32 *)b;
    return x < y ? -1 : x > y;
}
static void check_local(void)
{
    enum { THREADS = 192 };
    static u32 got[THREADS * 64];
    u32 *d;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    local_kernel<<<THREADS / 96, 96>>>(d);
    check_begin("local arrays");
    if (!launched("local arrays")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < THREADS; t++) {
        u32 want[64], x = t + 1;
        for (int i = 0; i < 64; i++) x = x * 1664525 + 1013904223, want[i] = x >> 8;
        qsort(want, 64, sizeof *want, by_value);
        for (u32 i = 0; i < 64; i++) check(t * 64 + i, got[t * 64 + i], want[i]);
    }
}

// ---- The device's own heap --------------------------------------------------------------------------------------------

// Every thread builds a list of its own with malloc, reads it, passes it to its neighbour's hands to free.
struct node {
    node *next;
    u32 value;
};
__global__ void heap_kernel(u64 *d)
{
    __shared__ node *lists[64];
    const u32 t = threadIdx.x;
    node *list = NULL;
    for (u32 i = 0; i <= t % 7; i++) {
        node *const n = (node *)malloc(sizeof *n);
        n->next = list;
        n->value = t * 100 + i;
        list = n;
    }
    lists[t] = list;
    __syncthreads();
    list = lists[(t + 1) % 64];
    u64 sum = 0;
    while (list) {
        node *const n = list;
        sum = sum * 3 + n->value;
        list = n->next;
        free(n);
    }
    u32 *const array = new u32[t + 1]; // and an array whose size differs from thread to thread
    for (u32 i = 0; i <= t; i++) array[i] = i;
    for (u32 i = 0; i <= t; i++) sum += array[t - i] * i;
    delete[] array;
    free(NULL);
    d[t] = sum;
}
static void check_heap(void)
{
    u64 *d, got[64];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    check_begin("malloc and free on the device");
    for (int round = 0; round < 2; round++) {
        heap_kernel<<<1, 64>>>(d);
        if (!launched(check_name)) return;
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (u32 t = 0; t < 64; t++) {
            const u32 from = (t + 1) % 64;
            u64 sum = 0;
            for (u32 i = from % 7 + 1; i-- > 0;) sum = sum * 3 + from * 100 + i;
            for (u32 i = 0; i <= t; i++) sum += (t - i) * i;
            check(t, got[t], sum);
        }
    }
}

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    if (argc < 2) {
        check_copies();
        check_shared();
        check_variables();
        check_params();
        check_spaces();
        check_local();
        check_heap();
    }
    return check_end("memory");
}
