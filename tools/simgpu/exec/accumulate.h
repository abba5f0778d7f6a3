/* accumulate.h: how a tensor core multiplies and adds: D = A B + C for 16 rows at a time (exec/accumulate.c). */
#ifndef ACCUMULATE_H
#define ACCUMULATE_H

#include "../sim.h"

enum { TILE = 16, MAX_K = 32 };

enum element { ELEMENT_F16, ELEMENT_BF16, ELEMENT_TF32, ELEMENT_E4M3, ELEMENT_E5M2 };

/* 16 rows of A, or 16 columns of B, decoded: vector i holds its k-th element at [k][i]. A finite element is
 * mantissa * 2^exponent with |mantissa| < 2; a subnormal one keeps its format's smallest exponent. */
struct operand_tile {
    float value[MAX_K][TILE], mantissa[MAX_K][TILE];
    s32 exponent[MAX_K][TILE];
    bool special; /* an infinity or NaN is among them */
};

/* Decodes `depth` elements of each vector. `words` are registers as the instruction finds them, [word][vector], the
 * element of lower k in the lower bits. With `as_f16`, fp8 elements are first widened to f16, which makes a normal
 * number of e4m3's subnormals. */
void tile_decode(struct operand_tile *t, enum element element, bool as_f16, const u32 (*words)[TILE],
                 u32 depth);

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

#endif
