// atom and red: every operation and type, on global, shared and generic addresses; contended sums whose total is known, the
// old values they return, and one thread's results value by value.
#include "reference_float.h"

// ---- One thread, one atomic: what it returns and what it leaves -------------------------------------------------------

// Each element has a cell of its own, in global memory (a copy of a) or in shared memory. The result packs what atom
// returned and what it left: old in the low half, new in the high half, or their xor-mix for 64 bits.
static u64 mix(u64 old, u64 now)
{
    return old * 0x9e3779b97f4a7c15ull ^ now;
}

#define ATOM(NAME, T, KA, KB, KC, SUFFIX, OPERANDS, EXPECT)                                              \
    __global__ void NAME##_kernel(u64 *d, const u64 *a, const u64 *b, const u64 *c)                      \
    {                                                                                                    \
        __shared__ T cells[128];                                                                         \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                             \
        const T x = (T)b[i], y = (T)c[i];                                                                \
        T old_shared, old_global, old_generic;                                                           \
        T *const cell = (T *)(d + i);                                                                    \
        cells[threadIdx.x] = (T)a[i];                                                                    \
        *cell = (T)a[i];                                                                                 \
        asm volatile("atom.global." SUFFIX " %0, [%1], " OPERANDS ";"                                    \
                     : "=" REG_##T(old_global)                                                           \
                     : "l"(cell), REG_##T(x), REG_##T(y)                                                 \
                     : "memory");                                                                        \
        const T new_global = *(volatile T *)cell;                                                        \
        asm volatile("atom.shared." SUFFIX " %0, [%1], " OPERANDS ";"                                    \
                     : "=" REG_##T(old_shared)                                                           \
                     : "l"(__cvta_generic_to_shared(&cells[threadIdx.x])), REG_##T(x), REG_##T(y)        \
                     : "memory");                                                                        \
        const T new_shared = *(volatile T *)&cells[threadIdx.x];                                         \
        cells[threadIdx.x] = (T)a[i];                                                                    \
        asm volatile("atom.relaxed.cta." SUFFIX " %0, [%1], " OPERANDS ";"                               \
                     : "=" REG_##T(old_generic)                                                          \
                     : "l"(&cells[threadIdx.x]), REG_##T(x), REG_##T(y)                                  \
                     : "memory");                                                                        \
        const bool alike = old_shared == old_global && old_generic == old_global &&                      \
                           new_shared == new_global && *(volatile T *)&cells[threadIdx.x] == new_global; \
        d[i] = alike ? (u64)old_global * 0x9e3779b97f4a7c15ull ^ new_global : ~0ull;                     \
    }                                                                                                    \
    static u64 NAME##_expect(u64 a_bits, u64 b_bits, u64 c_bits)                                         \
    {                                                                                                    \
        const T a = (T)a_bits, b = (T)b_bits, c = (T)c_bits;                                             \
        (void)c;                                                                                         \
        return mix(a, (T)(EXPECT));                                                                      \
    }                                                                                                    \
    static void NAME##_launch(u64 *d, const u64 *a, const u64 *b, const u64 *c)                          \
    {                                                                                                    \
        NAME##_kernel<<<OP_COUNT / 128, 128>>>(d, a, b, c);                                              \
    }                                                                                                    \
    static struct op NAME##_op = {#NAME, NAME##_launch, NAME##_expect, KA, KB, KC, BITS, NULL};          \
    static const bool NAME##_added = op_add(&NAME##_op);

#define ONE                                    "%2"
#define TWO                                    "%2, %3"
#define ATOM32(NAME, SUFFIX, OPERANDS, EXPECT) ATOM(NAME, u32, INT32, INT32, INT32, SUFFIX, OPERANDS, EXPECT)
#define ATOM64(NAME, SUFFIX, OPERANDS, EXPECT) ATOM(NAME, u64, INT64, INT64, INT64, SUFFIX, OPERANDS, EXPECT)
#define WIDTH(W, S)                                                                                      \
    ATOM##W(and_b##W, "and.b" #W, ONE, a &b) ATOM##W(or_b##W, "or.b" #W, ONE, a | b)                     \
        ATOM##W(xor_b##W, "xor.b" #W, ONE, a ^ b) ATOM##W(exch_b##W, "exch.b" #W, ONE, b)                \
            ATOM##W(cas_b##W, "cas.b" #W, TWO, a == b ? c : a) ATOM##W(add_u##W, "add.u" #W, ONE, a + b) \
                ATOM##W(min_u##W, "min.u" #W, ONE, a < b ? a : b)                                        \
                    ATOM##W(max_u##W, "max.u" #W, ONE, a > b ? a : b)                                    \
                        ATOM##W(min_s##W, "min.s" #W, ONE, (S)a < (S)b ? a : b)                          \
                            ATOM##W(max_s##W, "max.s" #W, ONE, (S)a > (S)b ? a : b)
WIDTH(32, s32)
WIDTH(64, s64)
ATOM32(add_s32, "add.s32", ONE, a + b)
ATOM32(inc_u32, "inc.u32", ONE, a >= b ? 0 : a + 1)
ATOM32(dec_u32, "dec.u32", ONE, a == 0 || a > b ? b : a - 1)
ATOM(cas_b16, u16, INT16, INT16, INT16, "cas.b16", TWO, a == b ? c : a)
ATOM(add_f16, u16, F16, F16, UNUSED, "add.noftz.f16", ONE, soft_add(&format_f16, a, b, RN, 0))
ATOM(add_bf16, u16, BF16, BF16, UNUSED, "add.noftz.bf16", ONE, soft_add(&format_bf16, a, b, RN, 0))
#define PAIR_SUM(FORMAT) \
    (soft_add(FORMAT, a >> 16, b >> 16, RN, 0) << 16 | soft_add(FORMAT, a & 0xffff, b & 0xffff, RN, 0))
ATOM(add_f16x2, u32, F16X2, F16X2, UNUSED, "add.noftz.f16x2", ONE, PAIR_SUM(&format_f16))
ATOM(add_bf16x2, u32, BF16X2, BF16X2, UNUSED, "add.noftz.bf16x2", ONE, PAIR_SUM(&format_bf16))

// f32 sums flush subnormals in global memory and keep them in shared memory: one kernel each. f64 sums keep them.
#define SUM(NAME, T, KIND, COMPARE, PTX_GLOBAL, PTX_SHARED, EXPECT_GLOBAL, EXPECT_SHARED)              \
    SUM_IN(NAME##_global, T, KIND, COMPARE, cell, PTX_GLOBAL, EXPECT_GLOBAL)                           \
    SUM_IN(NAME##_shared, T, KIND, COMPARE, __cvta_generic_to_shared(&cells[threadIdx.x]), PTX_SHARED, \
           EXPECT_SHARED)
#define SUM_IN(NAME, T, KIND, COMPARE, ADDRESS, PTX, EXPECT)                                               \
    __global__ void NAME##_kernel(u64 *d, const u64 *a, const u64 *b, const u64 *)                         \
    {                                                                                                      \
        __shared__ T cells[128];                                                                           \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                               \
        T *const cell = (T *)(d + i);                                                                      \
        cells[threadIdx.x] = *cell = (T)a[i];                                                              \
        asm volatile(PTX " [%0], %1;" ::"l"(ADDRESS), REG_##T((T)b[i]) : "memory");                        \
        const T in_shared = *(volatile T *)&cells[threadIdx.x], in_global = *(volatile T *)cell;           \
        d[i] = in_shared == (T)a[i] ? in_global : in_shared;                                               \
    }                                                                                                      \
    static u64 NAME##_expect(u64 a_bits, u64 b_bits, u64)                                                  \
    {                                                                                                      \
        const T a = (T)a_bits, b = (T)b_bits;                                                              \
        return EXPECT;                                                                                     \
    }                                                                                                      \
    static void NAME##_launch(u64 *d, const u64 *a, const u64 *b, const u64 *c)                            \
    {                                                                                                      \
        NAME##_kernel<<<OP_COUNT / 128, 128>>>(d, a, b, c);                                                \
    }                                                                                                      \
    static struct op NAME##_op = {#NAME, NAME##_launch, NAME##_expect, KIND, KIND, UNUSED, COMPARE, NULL}; \
    static const bool NAME##_added = op_add(&NAME##_op);
static u64 sum64(u64 a, u64 b)
{
    double x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    const double z = x + y;
    u64 bits;
    memcpy(&bits, &z, sizeof bits);
    return bits;
}
SUM(red_f32, u32, F32, BITS, "red.global.add.f32", "red.shared.add.f32", soft_add(&format_f32, a, b, RN, FTZ),
    soft_add(&format_f32, a, b, RN, 0))
SUM(red_f64, u64, F64, NAN64, "red.global.add.f64", "red.shared.add.f64", sum64(a, b), sum64(a, b))
SUM(red_u64, u64, INT64, BITS, "red.global.add.u64", "red.shared.add.u64", a + b, a + b)
SUM(red_and, u32, INT32, BITS, "red.global.and.b32", "red.relaxed.cta.shared.and.b32", a &b, a &b)
SUM(red_max_s32, u32, INT32, BITS, "red.release.gpu.global.max.s32", "red.shared.max.s32",
    (s32)a > (s32)b ? a : b, (s32)a > (s32)b ? a : b)
SUM(red_min_u64, u64, INT64, BITS, "red.global.min.u64", "red.shared.min.u64", a < b ? a : b, a < b ? a : b)
SUM(red_f16x2, u32, F16X2, BITS, "red.global.add.noftz.f16x2", "red.shared.add.noftz.f16x2",
    PAIR_SUM(&format_f16), PAIR_SUM(&format_f16))

// ---- Contention: many threads on one cell ------------------------------------------------------------------------------

enum { BLOCKS = 13, THREADS = 160, TOTAL = BLOCKS * THREADS };

struct totals {
    u32 sum, smallest, largest, all, any, parity, ring, ring_down;
    u64 sum64;
    float f32;
    double f64;
    u32 f16x2, locked, tickets[TOTAL];
    float vector[4];
};

__global__ void contended_kernel(totals *t)
{
    __shared__ u32 block_sum;
    __shared__ double block_f64;
    if (threadIdx.x == 0) block_sum = 0, block_f64 = 0;
    __syncthreads();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&t->sum, i);
    atomicMin(&t->smallest, 100 + i * 7919 % TOTAL);
    atomicMax(&t->largest, 100 + i * 7919 % TOTAL);
    atomicAnd(&t->all, ~(1u << i % 20));
    atomicOr(&t->any, 1u << i % 20);
    atomicXor(&t->parity, 1u << i % 7);
    atomicInc(&t->ring, 99);
    atomicDec(&t->ring_down, 99);
    atomicAdd((unsigned long long *)&t->sum64, (unsigned long long)i << 30);
    atomicAdd(&t->f32, 1.0f); // exact: the total is far below 2^24
    atomicAdd(&t->f64, 0.5);
    asm volatile("red.global.add.noftz.f16x2 [%0], %1;" ::"l"(&t->f16x2), "r"(i < 1024 ? 0x3c004000u : 0u)
                 : "memory"); // 1, 2
    t->tickets[atomicAdd(&block_sum, 1) + blockIdx.x * THREADS] = threadIdx.x;
    atomicAdd(&block_f64, (double)threadIdx.x);
    // A lock by compare and swap, with the critical section inside the loop that takes it.
    for (bool done = false; !done;) {
        if (atomicCAS(&t->locked, 0, 1) == 0) {
            __threadfence();
            *(volatile float *)&t->vector[0] = *(volatile float *)&t->vector[0] + 1;
            __threadfence();
            atomicExch(&t->locked, 0);
            done = true;
        }
    }
    asm volatile("red.global.v2.f32.add [%0], {%1, %2};" ::"l"(&t->vector[2]), "f"(1.0f), "f"(2.0f)
                 : "memory");
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&t->f64, block_f64);
}

static void check_contended(void)
{
    static totals host, got;
    memset(&host, 0, sizeof host);
    host.smallest = host.all = ~0u;
    totals *t;
    CUDA_CHECK(cudaMalloc((void **)&t, sizeof host));
    CUDA_CHECK(cudaMemcpy(t, &host, sizeof host, cudaMemcpyHostToDevice));
    contended_kernel<<<BLOCKS, THREADS>>>(t);
    if (!launched("contended atomics")) return;
    CUDA_CHECK(cudaMemcpy(&got, t, sizeof got, cudaMemcpyDeviceToHost));
    u32 parity = 0;
    for (u32 i = 0; i < TOTAL; i++) parity ^= 1u << i % 7;
    const u32 block = THREADS * (THREADS - 1) / 2;
    check_begin("contended atomics");
    check(0, got.sum, (u64)TOTAL * (TOTAL - 1) / 2);
    check(1, got.smallest, 100);
    check(2, got.largest, 100 + TOTAL - 1);
    check(3, got.all, ~0xfffffu);
    check(4, got.any, 0xfffff);
    check(5, got.parity, parity);
    check(6, got.ring, TOTAL % 100);
    check(7, got.ring_down, (100 - TOTAL % 100) % 100);
    check(8, got.sum64, ((u64)TOTAL * (TOTAL - 1) / 2) << 30);
    check(9, (u64)got.f32, TOTAL);
    check(10, (u64)(got.f64 * 2), TOTAL + 2ull * BLOCKS * block);
    check(11, got.f16x2, 0x64006800); // 1024 and 2048
    check(12, (u64)got.vector[0], TOTAL);
    check(13, (u64)got.vector[2], TOTAL);
    check(14, (u64)got.vector[3], 2 * TOTAL);
    check(15, got.locked, 0);
    for (u32 b = 0; b < BLOCKS; b++) { // the tickets of a block are its threads in some order
        u32 seen = 0;
        for (u32 i = 0; i < THREADS; i++) seen += got.tickets[b * THREADS + i];
        check(16 + b, seen, block);
    }
}

int main(int argc, char **argv)
{
    run_ops(argc, argv);
    if (argc < 2) check_contended();
    return check_end("atomic");
}
