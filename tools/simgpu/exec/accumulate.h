/* accumulate.h: how a tensor core multiplies and adds: D = A B + C for 16 rows at a time (exec/accumulate.c). */
#ifndef ACCUMULATE_H
#define ACCUMULATE_H

#include "../front/ptx.h"

enum { TILE = 16, MAX_K = 32 };

/* 16 rows of A, or 16 columns of B, decoded: vector i holds its k-th element at [k][i]. A finite element is
 * mantissa * 2^exponent with |mantissa| < 2; a subnormal one keeps its format's smallest exponent. */
struct operand_tile {
    _Alignas(64) float value[MAX_K][TILE];
    u32 exponents[MAX_K / 2][TILE]; /* s16, that of the even k in the lower half */
    bool special;                   /* an infinity or NaN is among them */
};

/* Decodes `depth` elements of each vector. `words` are registers as the instruction finds them, [word][vector], the
 * element of lower k in the lower bits. With `as_f16`, fp8 elements are first widened to f16, which makes a normal
 * number of e4m3's subnormals. */
void tile_decode(struct operand_tile *t, enum type element, bool as_f16, const u32 (*words)[TILE], u32 depth);

/* What an instruction does to one output element. */
struct dot_rule {
    u32 depth;     /* K */
    u32 fraction;  /* bits below the largest exponent that an addend keeps */
    u32 precision; /* fraction bits that an f32 result keeps */
    bool f16;      /* C and D are f16, not f32 */
};

/* d[column][row] = c[column][row] + sum over k of a[k][row] * b[k][column], as bits of f32 or f16. d may be c. */
void dot_fused(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE]);

/* The same, in f32 fused multiply-adds in the order of k: --exact-mma. */
void dot_exact(const struct dot_rule *rule, const struct operand_tile *a, const struct operand_tile *b,
               u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE]);

/* Integers: exact; the last addition wraps around, or stays at the ends of s32's range. */
void dot_integers(u32 depth, bool saturate, const struct operand_tile *a, const struct operand_tile *b,
                  u32 columns, const u32 (*c)[TILE], u32 (*d)[TILE]);

/* A fragment register's lanes as 4 x 8 words, and back: lane 4 g + t is word t of row g. */
#if defined __GNUC__ && \
    (__GNUC__ >= 12 || defined __clang__) /* in vector instructions, which the loops do not become */
typedef u32 words8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef u64 pairs4 __attribute__((vector_size(32), aligned(4), may_alias)); /* of the words of two rows */
#define EVEN(a, b)  __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define ODD(a, b)   __builtin_shufflevector(a, b, 1, 5, 3, 7)
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define UPPER(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
static inline void spread(const u32 *lane, u32 *rows, u32 pitch)
{
    const words8 *from = (const words8 *)lane;
    pairs4 pair[4];
    for (u32 i = 0; i < 4; i++)
        pair[i] = (pairs4)__builtin_shufflevector(from[i], from[i], 0, 4, 1, 5, 2, 6, 3, 7);
    pairs4 even01 = EVEN(pair[0], pair[1]), even23 = EVEN(pair[2], pair[3]), odd01 = ODD(pair[0], pair[1]),
           odd23 = ODD(pair[2], pair[3]);
    *(pairs4 *)rows = LOWER(even01, even23);
    *(pairs4 *)(rows + pitch) = LOWER(odd01, odd23);
    *(pairs4 *)(rows + 2 * pitch) = UPPER(even01, even23);
    *(pairs4 *)(rows + 3 * pitch) = UPPER(odd01, odd23);
}
static inline void collect(u32 *lane, const u32 *rows, u32 pitch)
{
    pairs4 row[4];
    for (u32 t = 0; t < 4; t++) row[t] = *(const pairs4 *)(rows + t * pitch);
    pairs4 even01 = LOWER(row[0], row[2]), even23 = UPPER(row[0], row[2]), odd01 = LOWER(row[1], row[3]),
           odd23 = UPPER(row[1], row[3]);
    const pairs4 pair[4] = {EVEN(even01, odd01), ODD(even01, odd01), EVEN(even23, odd23), ODD(even23, odd23)};
    for (u32 i = 0; i < 4; i++)
        ((words8 *)lane)[i] =
            __builtin_shufflevector((words8)pair[i], (words8)pair[i], 0, 2, 4, 6, 1, 3, 5, 7);
}
#else
static inline void spread(const u32 *lane, u32 *rows, u32 pitch)
{
    for (u32 t = 0; t < 4; t++)
        for (u32 g = 0; g < 8; g++) rows[t * pitch + g] = lane[4 * g + t];
}
static inline void collect(u32 *lane, const u32 *rows, u32 pitch)
{
    for (u32 t = 0; t < 4; t++)
        for (u32 g = 0; g < 8; g++) lane[4 * g + t] = rows[t * pitch + g];
}
#endif

#endif
