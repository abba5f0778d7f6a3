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
    bool large;                     /* one of 2^61 or more is among them */
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
#define LANES_2X2(a, b, i, j) __builtin_shufflevector(a, b, i, i + 4, i + 8, i + 12, j, j + 4, j + 8, j + 12)
static inline void spread(const u32 *lane, u32 *rows, u32 pitch)
{
    const words8 *from = (const words8 *)lane;
    words8 low01 = LANES_2X2(from[0], from[1], 0, 1), low23 = LANES_2X2(from[0], from[1], 2, 3),
           high01 = LANES_2X2(from[2], from[3], 0, 1), high23 = LANES_2X2(from[2], from[3], 2, 3);
    *(words8 *)rows = __builtin_shufflevector(low01, high01, 0, 1, 2, 3, 8, 9, 10, 11);
    *(words8 *)(rows + pitch) = __builtin_shufflevector(low01, high01, 4, 5, 6, 7, 12, 13, 14, 15);
    *(words8 *)(rows + 2 * pitch) = __builtin_shufflevector(low23, high23, 0, 1, 2, 3, 8, 9, 10, 11);
    *(words8 *)(rows + 3 * pitch) = __builtin_shufflevector(low23, high23, 4, 5, 6, 7, 12, 13, 14, 15);
}
static inline void collect(u32 *lane, const u32 *rows, u32 pitch)
{
    words8 row0 = *(const words8 *)rows, row1 = *(const words8 *)(rows + pitch),
           row2 = *(const words8 *)(rows + 2 * pitch), row3 = *(const words8 *)(rows + 3 * pitch);
    words8 low01 = __builtin_shufflevector(row0, row1, 0, 8, 1, 9, 2, 10, 3, 11),
           high01 = __builtin_shufflevector(row0, row1, 4, 12, 5, 13, 6, 14, 7, 15),
           low23 = __builtin_shufflevector(row2, row3, 0, 8, 1, 9, 2, 10, 3, 11),
           high23 = __builtin_shufflevector(row2, row3, 4, 12, 5, 13, 6, 14, 7, 15);
    words8 *to = (words8 *)lane;
    to[0] = __builtin_shufflevector(low01, low23, 0, 1, 8, 9, 2, 3, 10, 11);
    to[1] = __builtin_shufflevector(low01, low23, 4, 5, 12, 13, 6, 7, 14, 15);
    to[2] = __builtin_shufflevector(high01, high23, 0, 1, 8, 9, 2, 3, 10, 11);
    to[3] = __builtin_shufflevector(high01, high23, 4, 5, 12, 13, 6, 7, 14, 15);
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
