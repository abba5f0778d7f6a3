// mma.sync, every shape and type: small integers, so that each sum is exact whatever the order. The fragments are built
// element by element from the formulas of the PTX ISA, "Matrix Fragments for mma.m16n8k...".
#include "../check.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum type { TYPE_F16, TYPE_BF16, TYPE_TF32, TYPE_E4M3, TYPE_E5M2, TYPE_S8, TYPE_U8, TYPE_F32, TYPE_S32 };

__host__ __device__ static constexpr int bits_of(enum type t)
{
    return t == TYPE_F16 || t == TYPE_BF16 ? 16 : t == TYPE_TF32 || t == TYPE_F32 || t == TYPE_S32 ? 32 : 8;
}

static u32 encode(enum type t, int v)
{
    const float x = (float)v;
    u32 bits;
    memcpy(&bits, &x, 4);
    switch (t) {
    case TYPE_F16: return __half_as_ushort(__float2half(x));
    case TYPE_BF16: return bits >> 16;
    case TYPE_TF32: return bits | 0x155; // the low bits are ignored
    case TYPE_F32: return bits;
    case TYPE_E4M3: return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    case TYPE_E5M2: return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    default: return (u32)v & (bits_of(t) == 8 ? 0xff : ~0u);
    }
}

// ---- Fragments, by element ------------------------------------------------------------------------------------------

struct place {
    int row, col;
};

// Element i of A (M x K). The ISA's cases: 32-bit elements, 16-bit ones, bytes.
__device__ static place place_A(int bits, int lane, int i)
{
    const int group = lane >> 2, thread = lane % 4;
    if (bits == 32) return {i == 0 || i == 2 ? group : group + 8, i < 2 ? thread : thread + 4};
    if (bits == 16)
        return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, thread * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
    return {i < 4 || (i >= 8 && i < 12) ? group : group + 8, thread * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
}

// Element i of B (K x N): row is k.
__device__ static place place_B(int bits, int lane, int i)
{
    const int group = lane >> 2, thread = lane % 4;
    if (bits == 32) return {i < 1 ? thread : thread + 4, group};
    if (bits == 16) return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, group};
    return {i < 4 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16, group};
}

__device__ static place place_C(int lane, int i)
{
    const int group = lane >> 2, thread = lane % 4;
    return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

// ---- The instructions ------------------------------------------------------------------------------------------------

#define D4_A4_B2(TYPES, R)                                                          \
    asm volatile("mma.sync.aligned." TYPES                                          \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+" R(d[0]), "+" R(d[1]), "+" R(d[2]), "+" R(d[3])               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define D4_A2_B1(TYPES, R)                                                                        \
    asm volatile("mma.sync.aligned." TYPES " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
                 : "+" R(d[0]), "+" R(d[1]), "+" R(d[2]), "+" R(d[3])                             \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define D2_A4_B2(TYPES, R)                                                                    \
    asm volatile("mma.sync.aligned." TYPES " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" \
                 : "+" R(d[0]), "+" R(d[1])                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define D2_A2_B1(TYPES, R)                                                        \
    asm volatile("mma.sync.aligned." TYPES " {%0, %1}, {%2, %3}, {%4}, {%0, %1};" \
                 : "+" R(d[0]), "+" R(d[1])                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define D2_A1_B1(TYPES, R)                                                    \
    asm volatile("mma.sync.aligned." TYPES " {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+" R(d[0]), "+" R(d[1])                                   \
                 : "r"(a[0]), "r"(b[0]))

struct variant {
    const char *name;
    void (*kernel)(const u32 *A, const u32 *B, u32 *D);
    int m, k;
    enum type a, b, d;
};
enum { N = 8 };

// A and B hold one element a word; D holds C before and the result after.
#define VARIANT(NAME, ASM, TYPES, CONSTRAINT, REGISTER, M, K, TA, TB, TD)                                    \
    __global__ void NAME##_kernel(const u32 *A, const u32 *B, u32 *D)                                        \
    {                                                                                                        \
        const int lane = threadIdx.x, bits = bits_of(TA), each = 32 / bits, d_each = TD == TYPE_F16 ? 2 : 1; \
        const int a_count = M * K / 32, b_count = N * K / 32, d_count = M * N / 32;                          \
        u32 a[4] = {}, b[4] = {}, bits_d[4] = {};                                                            \
        REGISTER d[4] = {};                                                                                  \
        for (int i = 0; i < a_count; i++) {                                                                  \
            const place at = place_A(bits, lane, i);                                                         \
            a[i / each] |= A[at.row * K + at.col] << i % each * (bits % 32);                                 \
        }                                                                                                    \
        for (int i = 0; i < b_count; i++) {                                                                  \
            const place at = place_B(bits, lane, i);                                                         \
            b[i / each] |= B[at.row * N + at.col] << i % each * (bits % 32);                                 \
        }                                                                                                    \
        for (int i = 0; i < d_count; i++) {                                                                  \
            const place at = place_C(lane, i);                                                               \
            bits_d[i / d_each] |= D[at.row * N + at.col] << i % d_each * 16;                                 \
        }                                                                                                    \
        memcpy(d, bits_d, sizeof d);                                                                         \
        ASM(TYPES, CONSTRAINT);                                                                              \
        memcpy(bits_d, d, sizeof d);                                                                         \
        for (int i = 0; i < d_count; i++) {                                                                  \
            const place at = place_C(lane, i);                                                               \
            const u32 word = bits_d[i / d_each];                                                             \
            D[at.row * N + at.col] = d_each == 1 ? word : word >> i % 2 * 16 & 0xffff;                       \
        }                                                                                                    \
    }                                                                                                        \
    static void NAME##_launch(const u32 *A, const u32 *B, u32 *D)                                            \
    {                                                                                                        \
        NAME##_kernel<<<1, 32>>>(A, B, D);                                                                   \
    }                                                                                                        \
    static const struct variant NAME = {#NAME, NAME##_launch, M, K, TA, TB, TD};

VARIANT(f16_k16, D4_A4_B2, "m16n8k16.row.col.f32.f16.f16.f32", "f", float, 16, 16, TYPE_F16, TYPE_F16,
        TYPE_F32)
VARIANT(f16_k8, D4_A2_B1, "m16n8k8.row.col.f32.f16.f16.f32", "f", float, 16, 8, TYPE_F16, TYPE_F16, TYPE_F32)
VARIANT(f16_f16_k16, D2_A4_B2, "m16n8k16.row.col.f16.f16.f16.f16", "r", u32, 16, 16, TYPE_F16, TYPE_F16,
        TYPE_F16)
VARIANT(f16_f16_k8, D2_A2_B1, "m16n8k8.row.col.f16.f16.f16.f16", "r", u32, 16, 8, TYPE_F16, TYPE_F16,
        TYPE_F16)
VARIANT(bf16_k16, D4_A4_B2, "m16n8k16.row.col.f32.bf16.bf16.f32", "f", float, 16, 16, TYPE_BF16, TYPE_BF16,
        TYPE_F32)
VARIANT(bf16_k8, D4_A2_B1, "m16n8k8.row.col.f32.bf16.bf16.f32", "f", float, 16, 8, TYPE_BF16, TYPE_BF16,
        TYPE_F32)
VARIANT(tf32_k8, D4_A4_B2, "m16n8k8.row.col.f32.tf32.tf32.f32", "f", float, 16, 8, TYPE_TF32, TYPE_TF32,
        TYPE_F32)
VARIANT(tf32_k4, D4_A2_B1, "m16n8k4.row.col.f32.tf32.tf32.f32", "f", float, 16, 4, TYPE_TF32, TYPE_TF32,
        TYPE_F32)
VARIANT(e4m3_k32, D4_A4_B2, "m16n8k32.row.col.f32.e4m3.e4m3.f32", "f", float, 16, 32, TYPE_E4M3, TYPE_E4M3,
        TYPE_F32)
VARIANT(e5m2_k32, D4_A4_B2, "m16n8k32.row.col.f32.e5m2.e5m2.f32", "f", float, 16, 32, TYPE_E5M2, TYPE_E5M2,
        TYPE_F32)
VARIANT(e4m3_e5m2_k32, D4_A4_B2, "m16n8k32.row.col.f32.e4m3.e5m2.f32", "f", float, 16, 32, TYPE_E4M3,
        TYPE_E5M2, TYPE_F32)
VARIANT(e5m2_e4m3_k32, D4_A4_B2, "m16n8k32.row.col.f32.e5m2.e4m3.f32", "f", float, 16, 32, TYPE_E5M2,
        TYPE_E4M3, TYPE_F32)
VARIANT(e4m3_k16, D4_A2_B1, "m16n8k16.row.col.f32.e4m3.e4m3.f32", "f", float, 16, 16, TYPE_E4M3, TYPE_E4M3,
        TYPE_F32)
VARIANT(e4m3_f16_k32, D2_A4_B2, "m16n8k32.row.col.f16.e4m3.e4m3.f16", "r", u32, 16, 32, TYPE_E4M3, TYPE_E4M3,
        TYPE_F16)
VARIANT(e5m2_f16_k16, D2_A2_B1, "m16n8k16.row.col.f16.e5m2.e5m2.f16", "r", u32, 16, 16, TYPE_E5M2, TYPE_E5M2,
        TYPE_F16)
VARIANT(s8_k32, D4_A4_B2, "m16n8k32.row.col.s32.s8.s8.s32", "r", u32, 16, 32, TYPE_S8, TYPE_S8, TYPE_S32)
VARIANT(u8_s8_k32, D4_A4_B2, "m16n8k32.row.col.s32.u8.s8.s32", "r", u32, 16, 32, TYPE_U8, TYPE_S8, TYPE_S32)
VARIANT(s8_u8_k16, D4_A2_B1, "m16n8k16.row.col.s32.s8.u8.s32", "r", u32, 16, 16, TYPE_S8, TYPE_U8, TYPE_S32)
VARIANT(u8_k16, D4_A2_B1, "m16n8k16.row.col.s32.u8.u8.s32", "r", u32, 16, 16, TYPE_U8, TYPE_U8, TYPE_S32)
VARIANT(s8_m8, D2_A1_B1, "m8n8k16.row.col.s32.s8.s8.s32", "r", u32, 8, 16, TYPE_S8, TYPE_S8, TYPE_S32)
VARIANT(s8_saturating, D4_A4_B2, "m16n8k32.row.col.satfinite.s32.s8.s8.s32", "r", u32, 16, 32, TYPE_S8,
        TYPE_S8, TYPE_S32)
VARIANT(u8_wrapping, D4_A4_B2, "m16n8k32.row.col.s32.u8.u8.s32", "r", u32, 16, 32, TYPE_U8, TYPE_U8, TYPE_S32)

static const struct variant *const variants[] = {
    &f16_k16,      &f16_k8,   &f16_f16_k16, &f16_f16_k8,    &bf16_k16,      &bf16_k8,  &tf32_k8,
    &tf32_k4,      &e4m3_k32, &e5m2_k32,    &e4m3_e5m2_k32, &e5m2_e4m3_k32, &e4m3_k16, &e4m3_f16_k32,
    &e5m2_f16_k16, &s8_k32,   &u8_s8_k32,   &s8_u8_k16,     &u8_k16,        &s8_m8};

// Values that every type holds, and whose sums of 32 products stay exact even in f16.
static int draw_value(enum type t)
{
    const int v = (int)(random_u64() % 9) - 4;
    return t == TYPE_U8 ? v + 4 : v;
}

static void run_variant(const struct variant *v, bool extremes, bool saturates)
{
    static int A[16 * 32], B[32 * N], C[16 * N];
    u32 *device;
    static u32 host[3 * 512];
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    for (int i = 0; i < v->m * v->k; i++) A[i] = extremes ? (v->a == TYPE_U8 ? 255 : -128) : draw_value(v->a);
    for (int i = 0; i < N * v->k; i++)
        B[i] = extremes ? (v->b == TYPE_U8 ? 255 : i % N % 2 ? 127 : -128) : draw_value(v->b);
    for (int i = 0; i < v->m * N; i++)
        C[i] = extremes ? (i % 2 ? INT32_MIN + 9 : INT32_MAX - 9) : draw_value(v->d);
    for (int i = 0; i < v->m * v->k; i++) host[i] = encode(v->a, A[i]);
    for (int i = 0; i < N * v->k; i++) host[512 + i] = encode(v->b, B[i]);
    for (int i = 0; i < v->m * N; i++) host[1024 + i] = v->d == TYPE_S32 ? (u32)C[i] : encode(v->d, C[i]);
    CUDA_CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    check_begin(v->name);
    v->kernel(device, device + 512, device + 1024);
    if (!launched(v->name)) return;
    CUDA_CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int row = 0; row < v->m; row++)
        for (int col = 0; col < N; col++) {
            s64 sum = C[row * N + col];
            for (int k = 0; k < v->k; k++) sum += (s64)A[row * v->k + k] * B[k * N + col];
            if (saturates) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            check(row * N + col, host[1024 + row * N + col],
                  v->d == TYPE_S32 ? (u32)sum : encode(v->d, (int)sum));
        }
    CUDA_CHECK(cudaFree(device));
}

int main(void)
{
    for (const struct variant *v : variants)
        for (int i = 0; i < 4; i++) run_variant(v, false, false);
    run_variant(&s8_saturating, true, true);
    run_variant(&u8_wrapping, true, false);
    run_variant(&s8_k32, true, false);
    return check_end("mma");
}
