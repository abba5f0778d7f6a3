// check.h: how the instruction tests state what an instruction must give, and find where it does not.
//
// Most instructions map up to three register values to one. Such a test is one OP line: the PTX, where the inputs come
// from, and the expected value as a C expression of the operands' bits a, b and c. OP makes the kernel, the host's
// function and an entry in the list that run_ops goes through. Everything is compared as bits. The programs know nothing
// of the simulator: they run on a GPU too, and it is the judge of what they expect.
#ifndef CHECK_H
#define CHECK_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

#define CUDA_CHECK(call)                                                                     \
    do {                                                                                     \
        cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                        \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(status_)); \
            exit(3);                                                                         \
        }                                                                                    \
    } while (0)

// ---- Counting ------------------------------------------------------------------------------------------------------

static u64 checks_done, checks_failed;
static const char *check_name = "";
static u64 check_reported; // mismatches of the current name

static inline void check_begin(const char *name)
{
    check_name = name;
    check_reported = 0;
}

// One comparison; `where` is the element, lane or byte. The first mismatch under each name is printed.
static inline void check(u64 where, u64 got, u64 want)
{
    checks_done++;
    if (got == want) return;
    checks_failed++;
    if (!check_reported++)
        printf("%s: at %llu got 0x%llx, expected 0x%llx\n", check_name, (unsigned long long)where,
               (unsigned long long)got, (unsigned long long)want);
}

// The summary line and the exit status.
static inline int check_end(const char *family)
{
    printf("%s: %llu checks", family, (unsigned long long)checks_done);
    if (checks_failed) printf(", %llu wrong", (unsigned long long)checks_failed);
    printf("\n");
    return checks_failed != 0;
}

// Waits for the kernel just launched; false, and a line that says so, when it was refused or failed.
static inline bool launched(const char *name)
{
    cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    if (status == cudaSuccess) return true;
    printf("%s: %s\n", name, cudaGetErrorName(status));
    checks_done++;
    checks_failed++;
    return false;
}

// ---- Inputs ---------------------------------------------------------------------------------------------------------

static u64 random_state = 1;

static inline u64 random_u64(void) // splitmix64
{
    u64 z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

enum input_kind {
    INT16,
    INT32,
    INT64,
    AMOUNT,
    F16,
    BF16,
    F32,
    F64,
    F16X2,
    BF16X2,
    E4M3X2,
    E5M2X2,
    POSITIVE_F32,
    UNUSED
};

static inline u64 pick(const u64 *values, size_t count)
{
    return values[random_u64() % count];
}
#define PICK(array) pick(array, sizeof(array) / sizeof *(array))

// An integer of `bits`: extremes, small numbers, single bits and all-random ones.
static inline u64 draw_int(int bits)
{
    const u64 mask = ~0ull >> (64 - bits), r = random_u64();
    switch (random_u64() % 6) {
    case 0: return ((r % 2 ? 0 : mask) + (r >> 8) % 3 - 1) & mask;    // about 0 and -1
    case 1: return ((1ull << (bits - 1)) + (r >> 8) % 3 - 1) & mask;  // about the extremes
    case 2: return 1ull << (r % bits);                                // one bit
    case 3: return (r % 2 ? r >> 8 & 0xff : -(r >> 8 & 0xff)) & mask; // small
    case 4: return (r & mask) >> (random_u64() % bits);               // any magnitude
    default: return r & mask;
    }
}

// A floating-point number of 1 + exponent_bits + mantissa_bits: specials, subnormals, neighbours of 1, a narrow range
// where sums cancel and tie, and all-random bits.
static inline u64 draw_float(int exponent_bits, int mantissa_bits)
{
    const u64 sign = (random_u64() & 1) << (exponent_bits + mantissa_bits);
    const u64 mantissa = (1ull << mantissa_bits) - 1, exponent = (1ull << exponent_bits) - 1;
    const u64 one = (exponent >> 1) << mantissa_bits, r = random_u64();
    switch (random_u64() % 8) {
    case 0: {
        const u64 specials[] = {0,
                                1,
                                mantissa,
                                mantissa + 1,
                                one,
                                exponent << mantissa_bits,
                                (exponent << mantissa_bits) - 1,
                                exponent << mantissa_bits | 1,
                                exponent << mantissa_bits | (mantissa + 1) >> 1,
                                exponent << mantissa_bits | mantissa};
        return sign | PICK(specials);
    }
    case 1: return sign | (r & mantissa);    // subnormal
    case 2: return sign | (one + r % 5 - 2); // about 1
    case 3:
        return sign | (((exponent >> 1) - 2 + r % 5) << mantissa_bits) |
               (random_u64() & mantissa & ~(mantissa >> 3));
    case 4:
        return sign | (((exponent >> 1) - mantissa_bits + r % (2 * mantissa_bits)) << mantissa_bits) |
               (random_u64() & mantissa);
    case 5: return sign | ((1 + r % 3) << mantissa_bits) | (random_u64() & mantissa); // just above subnormal
    default: return sign | (r & (exponent << mantissa_bits | mantissa));
    }
}

static inline u64 draw(enum input_kind kind)
{
    switch (kind) {
    case INT16: return draw_int(16);
    case INT32: return draw_int(32);
    case INT64: return draw_int(64);
    case AMOUNT: return random_u64() % 4 ? random_u64() % 70 : draw_int(32); // a shift amount or a position
    case F16: return draw_float(5, 10);
    case BF16: return draw_float(8, 7);
    case F32: return draw_float(8, 23);
    case F64: return draw_float(11, 52);
    case F16X2: {
        const u64 high = draw_float(5, 10);
        return high << 16 | draw_float(5, 10);
    }
    case BF16X2: {
        const u64 high = draw_float(8, 7);
        return high << 16 | draw_float(8, 7);
    }
    case E4M3X2:
    case E5M2X2: return random_u64() & 0xffff;
    case POSITIVE_F32: return draw_float(8, 23) & 0x7fffffff;
    case UNUSED: break;
    }
    return 0;
}

// ---- One instruction, element by element -----------------------------------------------------------------------------

enum { OP_COUNT = 8192 }; // elements an instruction is tried on

// How a result is compared: its bits, or its bits with every NaN alike (f64, whose NaNs carry payloads).
enum compare { BITS, NAN64 };

struct op {
    const char *name;
    void (*kernel)(u64 *d, const u64 *a, const u64 *b, const u64 *c);
    u64 (*expect)(u64 a, u64 b, u64 c);
    enum input_kind a, b, c;
    enum compare compare;
    struct op *next;
};

static struct op *op_first, **op_last = &op_first;

static inline bool op_add(struct op *op)
{
    *op_last = op;
    op_last = &op->next;
    return true;
}

// Inline asm's constraint letter for a register type.
#define REG_u16 "h"
#define REG_u32 "r"
#define REG_u64 "l"

// OP(name, types of d a b c, kinds of inputs a b c, compare, PTX with %0 = d and %1 %2 %3 = a b c, expected d)
#define OP(NAME, TD, TA, TB, TC, KA, KB, KC, COMPARE, PTX, EXPECT)                                        \
    __global__ void NAME##_kernel(u64 *d, const u64 *a, const u64 *b, const u64 *c)                       \
    {                                                                                                     \
        const int i = blockIdx.x * blockDim.x + threadIdx.x;                                              \
        TD r;                                                                                             \
        asm volatile(PTX : "=" REG_##TD(r) : REG_##TA((TA)a[i]), REG_##TB((TB)b[i]), REG_##TC((TC)c[i])); \
        d[i] = r;                                                                                         \
    }                                                                                                     \
    static u64 NAME##_expect(u64 a_bits, u64 b_bits, u64 c_bits)                                          \
    {                                                                                                     \
        const TA a = (TA)a_bits;                                                                          \
        const TB b = (TB)b_bits;                                                                          \
        const TC c = (TC)c_bits;                                                                          \
        (void)a, (void)b, (void)c;                                                                        \
        return (TD)(EXPECT);                                                                              \
    }                                                                                                     \
    static void NAME##_launch(u64 *d, const u64 *a, const u64 *b, const u64 *c)                           \
    {                                                                                                     \
        NAME##_kernel<<<OP_COUNT / 128, 128>>>(d, a, b, c);                                               \
    }                                                                                                     \
    static struct op NAME##_op = {#NAME, NAME##_launch, NAME##_expect, KA, KB, KC, COMPARE, NULL};        \
    static const bool NAME##_added = op_add(&NAME##_op);

static inline bool same(enum compare compare, u64 got, u64 want)
{
    const u64 infinity = 0x7ffull << 52, magnitude = ~0ull >> 1;
    return got == want || (compare == NAN64 && (got & magnitude) > infinity && (want & magnitude) > infinity);
}

// Runs every OP of the program, or the one named in argv[1].
static inline void run_ops(int argc, char **argv)
{
    const size_t bytes = OP_COUNT * sizeof(u64);
    u64 *host[4], *device[4];
    for (int i = 0; i < 4; i++) {
        host[i] = (u64 *)malloc(bytes);
        CUDA_CHECK(cudaMalloc((void **)&device[i], bytes));
    }
    for (const struct op *op = op_first; op; op = op->next) {
        if (argc > 1 && strcmp(argv[1], op->name)) continue;
        random_state = 0;
        for (const char *s = op->name; *s; s++) random_state = random_state * 31 + (u8)*s;
        const enum input_kind kinds[3] = {op->a, op->b, op->c};
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < OP_COUNT; i++) host[k][i] = draw(kinds[k]);
            CUDA_CHECK(cudaMemcpy(device[k], host[k], bytes, cudaMemcpyHostToDevice));
        }
        CUDA_CHECK(cudaMemset(device[3], 0xa5, bytes));
        op->kernel(device[3], device[0], device[1], device[2]);
        if (!launched(op->name)) continue;
        CUDA_CHECK(cudaMemcpy(host[3], device[3], bytes, cudaMemcpyDeviceToHost));
        u64 wrong = 0;
        for (int i = 0; i < OP_COUNT; i++) {
            const u64 want = op->expect(host[0][i], host[1][i], host[2][i]);
            if (same(op->compare, host[3][i], want)) continue;
            if (!wrong++)
                printf("%s: a=0x%llx b=0x%llx c=0x%llx: got 0x%llx, expected 0x%llx\n", op->name,
                       (unsigned long long)host[0][i], (unsigned long long)host[1][i],
                       (unsigned long long)host[2][i], (unsigned long long)host[3][i],
                       (unsigned long long)want);
        }
        if (wrong) printf("%s: %llu of %d wrong\n", op->name, (unsigned long long)wrong, OP_COUNT);
        checks_done += OP_COUNT;
        checks_failed += wrong;
    }
}

#endif
