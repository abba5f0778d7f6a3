// wgmma: four warps, a warpgroup, multiply a tile from shared memory; one inline function an instruction.
//
// The instructions run behind the warpgroup's back. From the wgmma to the wait_group that ends it, nobody may touch the
// accumulators or change the shared memory that is read.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

#include "ptx.cuh"
#include "trace.cuh"
#include "wgmma_descriptor.cuh"

// The matrix descriptor of a tile with rows of 128 bytes that begins at a multiple of 1024 bytes, swizzled by 128 bytes.
__device__ inline uint64_t wgmma_descriptor(const void *tile_smem)
{
    return wgmma_descriptor_bits(smem_addr(tile_smem));
}

// The same of a tile whose rows run along m or n: boxes of 64 of them, box_bytes apart.
__device__ inline uint64_t wgmma_descriptor_mn(const void *tile_smem, uint32_t box_bytes)
{
    return wgmma_descriptor_bits_mn(smem_addr(tile_smem), box_bytes);
}

// wgmma.fence: the accumulators' values, written by ordinary instructions until now, are there for wgmma.
__device__ inline void wgmma_fence()
{
    trace(MULTIPLY);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// wgmma.commit_group: the warpgroup's wgmma since the last commit become one group.
__device__ inline void wgmma_commit_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// wgmma.wait_group: waits until at most PENDING groups are still running.
template <int PENDING>
__device__ inline void wgmma_wait_group()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    if constexpr (PENDING == 0) {
        trace(PRODUCTS_DONE);
    }
}

// No instruction: tells the compiler that the accumulators may change here, so that it moves no use of them across a
// wgmma_fence or a wgmma_wait_group. "memory" holds back loads and stores there, not arithmetic on registers. Where the first
// product takes zeros that a loop wrote, the compiler puts them behind the fence without it (notes/13_tma_wgmma_matmul.md).
template <int COUNT>
__device__ inline void wgmma_touch(float (&acc)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(acc[i])::"memory");
}

// The same of A's registers, which nobody may write while wgmma reads them.
template <int COUNT>
__device__ inline void wgmma_touch(const uint32_t (&A_frag)[COUNT][4])
{
#pragma unroll
    for (int i = 0; i < COUNT * 4; i++) asm volatile("" ::"r"(A_frag[i / 4][i % 4]) : "memory");
}

// Accumulators 10 t to 10 t + 9 (or to + n - 1) as the instruction's text and as its operands.
#define WGMMA_TEXT_2(t)  "%" #t "0, %" #t "1"
#define WGMMA_TEXT_4(t)  WGMMA_TEXT_2(t) ", %" #t "2, %" #t "3"
#define WGMMA_TEXT_6(t)  WGMMA_TEXT_4(t) ", %" #t "4, %" #t "5"
#define WGMMA_TEXT_8(t)  WGMMA_TEXT_6(t) ", %" #t "6, %" #t "7"
#define WGMMA_TEXT_10(t) WGMMA_TEXT_8(t) ", %" #t "8, %" #t "9"
#define WGMMA_TEXT(t)    WGMMA_TEXT_10(t) ", "
#define WGMMA_REGS_2(t)  "+f"(acc[t##0]), "+f"(acc[t##1])
#define WGMMA_REGS_4(t)  WGMMA_REGS_2(t), "+f"(acc[t##2]), "+f"(acc[t##3])
#define WGMMA_REGS_6(t)  WGMMA_REGS_4(t), "+f"(acc[t##4]), "+f"(acc[t##5])
#define WGMMA_REGS_8(t)  WGMMA_REGS_6(t), "+f"(acc[t##6]), "+f"(acc[t##7])
#define WGMMA_REGS(t)    WGMMA_REGS_8(t), "+f"(acc[t##8]), "+f"(acc[t##9])

// The instruction for n columns. `text` names its accumulators, i0 to i5 are the numbers of the operands behind them.
// A and B by their descriptors; A_MN, B_MN: the transpose flags.
#define WGMMA_SS(n, type, text, i0, i1, i2, i3, i4, i5, ...)                                          \
    asm volatile("{\n"                                                                                \
                 ".reg .pred p;\n"                                                                    \
                 "setp.ne.b32 p, %" #i2 ", 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" text "}, %" #i0 \
                 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";\n"                                         \
                 "}"                                                                                  \
                 : __VA_ARGS__                                                                        \
                 : "l"(A_desc), "l"(B_desc), "r"((int)accumulate), "n"((int)A_MN), "n"((int)B_MN)     \
                 : "memory")
// A from registers, B transposed:
#define WGMMA_RS(n, type, text, i0, i1, i2, i3, i4, i5, ...)                                           \
    asm volatile("{\n"                                                                                 \
                 ".reg .pred p;\n"                                                                     \
                 "setp.ne.b32 p, %" #i5 ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" text "}, {%" #i0 \
                 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, 1;\n"                            \
                 "}"                                                                                   \
                 : __VA_ARGS__                                                                         \
                 : "r"(A_frag[0]), "r"(A_frag[1]), "r"(A_frag[2]), "r"(A_frag[3]), "l"(B_desc),        \
                   "r"((int)accumulate)                                                                \
                 : "memory")
// Of 8-bit types, whose rows always run along k:
#define WGMMA_SS_8(n, type, text, i0, i1, i2, i3, i4, i5, ...)                                        \
    asm volatile("{\n"                                                                                \
                 ".reg .pred p;\n"                                                                    \
                 "setp.ne.b32 p, %" #i2 ", 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." type "." type " {" text "}, %" #i0 \
                 ", %" #i1 ", p, 1, 1;\n"                                                             \
                 "}"                                                                                  \
                 : __VA_ARGS__                                                                        \
                 : "l"(A_desc), "l"(B_desc), "r"((int)accumulate)                                     \
                 : "memory")
#define WGMMA_RS_8(n, type, text, i0, i1, i2, i3, i4, i5, ...)                                         \
    asm volatile("{\n"                                                                                 \
                 ".reg .pred p;\n"                                                                     \
                 "setp.ne.b32 p, %" #i5 ", 0;\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." type "." type " {" text "}, {%" #i0 \
                 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1;\n"                               \
                 "}"                                                                                   \
                 : __VA_ARGS__                                                                         \
                 : "r"(A_frag[0]), "r"(A_frag[1]), "r"(A_frag[2]), "r"(A_frag[3]), "l"(B_desc),        \
                   "r"((int)accumulate)                                                                \
                 : "memory")
#define WGMMA_N32(FORM, type) \
    FORM(32, type, WGMMA_TEXT() WGMMA_TEXT_6(1), 16, 17, 18, 19, 20, 21, WGMMA_REGS(), WGMMA_REGS_6(1))
#define WGMMA_N64(FORM, type)                                                                        \
    FORM(64, type, WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT_2(3), 32, 33, 34, 35, 36, 37, \
         WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS_2(3))
#define WGMMA_N80(FORM, type)                                                                         \
    FORM(80, type, WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT_10(3), 40, 41, 42, 43, 44, 45, \
         WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3))
#define WGMMA_N96(FORM, type)                                                                              \
    FORM(96, type, WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT_8(4), 48, 49, 50, 51, \
         52, 53, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS_8(4))
#define WGMMA_N112(FORM, type)                                                                             \
    FORM(112, type, WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT_6(5),  \
         56, 57, 58, 59, 60, 61, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4), \
         WGMMA_REGS_6(5))
#define WGMMA_N128(FORM, type)                                                                               \
    FORM(128, type,                                                                                          \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT_4(6), \
         64, 65, 66, 67, 68, 69, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4),   \
         WGMMA_REGS(5), WGMMA_REGS_4(6))
#define WGMMA_N144(FORM, type)                                                                             \
    FORM(144, type,                                                                                        \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT(6)  \
             WGMMA_TEXT_2(7),                                                                              \
         72, 73, 74, 75, 76, 77, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4), \
         WGMMA_REGS(5), WGMMA_REGS(6), WGMMA_REGS_2(7))
#define WGMMA_N160(FORM, type)                                                                             \
    FORM(160, type,                                                                                        \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT(6)  \
             WGMMA_TEXT_10(7),                                                                             \
         80, 81, 82, 83, 84, 85, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4), \
         WGMMA_REGS(5), WGMMA_REGS(6), WGMMA_REGS(7))
#define WGMMA_N176(FORM, type)                                                                             \
    FORM(176, type,                                                                                        \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT(6)  \
             WGMMA_TEXT(7) WGMMA_TEXT_8(8),                                                                \
         88, 89, 90, 91, 92, 93, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4), \
         WGMMA_REGS(5), WGMMA_REGS(6), WGMMA_REGS(7), WGMMA_REGS_8(8))
#define WGMMA_N192(FORM, type)                                                                               \
    FORM(192, type,                                                                                          \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT(6)    \
             WGMMA_TEXT(7) WGMMA_TEXT(8) WGMMA_TEXT_6(9),                                                    \
         96, 97, 98, 99, 100, 101, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3), WGMMA_REGS(4), \
         WGMMA_REGS(5), WGMMA_REGS(6), WGMMA_REGS(7), WGMMA_REGS(8), WGMMA_REGS_6(9))
#define WGMMA_N256(FORM, type)                                                                            \
    FORM(256, type,                                                                                       \
         WGMMA_TEXT() WGMMA_TEXT(1) WGMMA_TEXT(2) WGMMA_TEXT(3) WGMMA_TEXT(4) WGMMA_TEXT(5) WGMMA_TEXT(6) \
             WGMMA_TEXT(7) WGMMA_TEXT(8) WGMMA_TEXT(9) WGMMA_TEXT(10) WGMMA_TEXT(11) WGMMA_TEXT_8(12),    \
         128, 129, 130, 131, 132, 133, WGMMA_REGS(), WGMMA_REGS(1), WGMMA_REGS(2), WGMMA_REGS(3),         \
         WGMMA_REGS(4), WGMMA_REGS(5), WGMMA_REGS(6), WGMMA_REGS(7), WGMMA_REGS(8), WGMMA_REGS(9),        \
         WGMMA_REGS(10), WGMMA_REGS(11), WGMMA_REGS_8(12))
#define WGMMA_N(n, FORM)                                    \
    if constexpr (N == n && bf16) WGMMA_N##n(FORM, "bf16"); \
    if constexpr (N == n && !bf16) WGMMA_N##n(FORM, "f16")

// wgmma.mma_async: acc(64, N) = A(64, 16) * B(N, 16)ᵀ, + acc if `accumulate`; A and B in shared memory, their rows along
// k, of type T (bf16 or f16). Thread t of the warpgroup holds in acc[r]
//      row 16 (t / 32) + t % 32 / 4 + 8 (r / 2 % 2),  column 8 (r / 4) + 2 (t % 4) + r % 2.
// A_MN, B_MN: A's rows run along m, B's along n (wgmma_descriptor_mn).
template <int N, typename T, bool A_MN = false, bool B_MN = false>
__device__ inline void wgmma(float (&acc)[N / 2], uint64_t A_desc, uint64_t B_desc, bool accumulate)
{
    constexpr bool bf16 = std::is_same<T, __nv_bfloat16>::value;
    static_assert(N == 32 || N == 64 || N == 80 || N == 96 || N == 112 || N == 128 || N == 144 || N == 160 ||
                      N == 176 || N == 192 || N == 256,
                  "the shapes that are used");
    static_assert(bf16 || std::is_same<T, __half>::value, "the types that are used");
    WGMMA_N(32, WGMMA_SS);
    WGMMA_N(64, WGMMA_SS);
    WGMMA_N(80, WGMMA_SS);
    WGMMA_N(96, WGMMA_SS);
    WGMMA_N(112, WGMMA_SS);
    WGMMA_N(128, WGMMA_SS);
    WGMMA_N(144, WGMMA_SS);
    WGMMA_N(160, WGMMA_SS);
    WGMMA_N(176, WGMMA_SS);
    WGMMA_N(192, WGMMA_SS);
    WGMMA_N(256, WGMMA_SS);
}

// The same of e4m3: acc(64, N) = A(64, 32) * B(N, 32)ᵀ, + acc if `accumulate`. The sum of 32 products and of acc keeps 13
// bits behind the leading one of the largest of them (notes/19_fp8_gemm.md).
template <int N>
__device__ inline void wgmma_e4m3(float (&acc)[N / 2], uint64_t A_desc, uint64_t B_desc, bool accumulate)
{
    static_assert(N == 64 || N == 96 || N == 112 || N == 128 || N == 160 || N == 192,
                  "the shapes that are used");
    if constexpr (N == 64) WGMMA_N64(WGMMA_SS_8, "e4m3");
    if constexpr (N == 96) WGMMA_N96(WGMMA_SS_8, "e4m3");
    if constexpr (N == 112) WGMMA_N112(WGMMA_SS_8, "e4m3");
    if constexpr (N == 128) WGMMA_N128(WGMMA_SS_8, "e4m3");
    if constexpr (N == 160) WGMMA_N160(WGMMA_SS_8, "e4m3");
    if constexpr (N == 192) WGMMA_N192(WGMMA_SS_8, "e4m3");
}

// wgmma.mma_async with A in registers: acc(64, N) = A(64, 16) * B(16, N), + acc if `accumulate`; B in shared memory, its
// rows along n (wgmma_descriptor_mn). A thread's A_frag[i], two of T, are in the places of acc[2 i] and acc[2 i + 1] of a
// product with 16 columns: what one product has left in registers is A of the next.
template <int N, typename T>
__device__ inline void wgmma_rs(float (&acc)[N / 2], const uint32_t (&A_frag)[4], uint64_t B_desc,
                                bool accumulate)
{
    constexpr bool bf16 = std::is_same<T, __nv_bfloat16>::value;
    static_assert(N == 64 || N == 128 || N == 256, "the shapes that are used");
    static_assert(bf16 || std::is_same<T, __half>::value, "the types that are used");
    WGMMA_N(64, WGMMA_RS);
    WGMMA_N(128, WGMMA_RS);
    WGMMA_N(256, WGMMA_RS);
}

// The same of e4m3: acc(64, N) = A(64, 32) * B(N, 32)ᵀ, + acc if `accumulate`; B's rows along k, as they must be. A thread's
// A_frag has k 4 (t % 4) to + 3 of the row of acc[0] and of that of acc[2], then those 16 further: not the places of a product's
// accumulators, whose pairs of columns are 8 apart (notes/21_fp8_attention.md).
template <int N>
__device__ inline void wgmma_rs_e4m3(float (&acc)[N / 2], const uint32_t (&A_frag)[4], uint64_t B_desc,
                                     bool accumulate)
{
    static_assert(N == 64 || N == 128 || N == 256, "the shapes that are used");
    if constexpr (N == 64) WGMMA_N64(WGMMA_RS_8, "e4m3");
    if constexpr (N == 128) WGMMA_N128(WGMMA_RS_8, "e4m3");
    if constexpr (N == 256) WGMMA_N256(WGMMA_RS_8, "e4m3");
}

#undef WGMMA_SS
#undef WGMMA_SS_8
#undef WGMMA_RS
#undef WGMMA_RS_8
#undef WGMMA_N
#undef WGMMA_N32
#undef WGMMA_N64
#undef WGMMA_N80
#undef WGMMA_N96
#undef WGMMA_N112
#undef WGMMA_N128
#undef WGMMA_N144
#undef WGMMA_N160
#undef WGMMA_N176
#undef WGMMA_N192
#undef WGMMA_N256
#undef WGMMA_TEXT
#undef WGMMA_TEXT_2
#undef WGMMA_TEXT_4
#undef WGMMA_TEXT_6
#undef WGMMA_TEXT_8
#undef WGMMA_TEXT_10
#undef WGMMA_REGS
#undef WGMMA_REGS_2
#undef WGMMA_REGS_4
#undef WGMMA_REGS_6
#undef WGMMA_REGS_8
