/* accumulate.h: how a tensor core multiplies and adds: D = A B + C for 16 rows at a time (exec/accumulate.c). */
#ifndef ACCUMULATE_H
#define ACCUMULATE_H

#include "../front/ptx.h"

/* Rows or columns decoded at a time, most elements along k, most 32-bit words that hold them. */
enum { TILE = 8, MAX_K = 32, MAX_WORDS = 8 };

/* 16 rows of A and 8 columns of B, decoded, in the order in which the lanes of a warp hold D: lane 4 g + t of fragment
 * [half][parity] is row 8 half + g, column 2 t + parity. A finite element is mantissa * 2^exponent with |mantissa| < 2; a
 * subnormal one keeps its format's smallest exponent. */
struct row_tile {
    _Alignas(64) float value[MAX_K][2][LANES]; /* [half]: each element for the four lanes of its row */
    u32 exponents[MAX_K / 2][2][LANES];        /* s16, that of the even k in the lower half */
    bool special[2];                           /* [half]: an infinity or NaN is among them */
};
struct column_tile {
    _Alignas(64) float value[MAX_K][TILE]; /* [4 parity + t] */
    u32 exponents[MAX_K / 2][TILE];
    bool special;
};

/* Decode `depth` elements of each of 8 rows or columns. `words` are registers as the instruction finds them, the element of
 * lower k in the lower bits. With `as_f16`, fp8 elements are first widened to f16, which makes a normal number of e4m3's
 * subnormals. */
void decode_rows(struct row_tile *t, u32 half, enum type element, bool as_f16, const u32 (*words)[TILE],
                 u32 depth);
void decode_columns(struct column_tile *t, enum type element, bool as_f16, const u32 (*words)[TILE],
                    u32 depth);

/* What an instruction does to one output element. */
struct dot_rule {
    u32 depth;     /* K */
    u32 fraction;  /* bits below the largest exponent that an addend keeps */
    u32 precision; /* fraction bits that an f32 result keeps */
    bool f16;      /* C and D are f16, not f32 */
};

/* d = c + the sum over k of a times b, as bits of f32 or f16, for each [2 half + parity] and lane. d may be c. */
void dot_fused(const struct dot_rule *rule, const struct row_tile *a, const struct column_tile *b,
               const u32 *const c[4], u32 *const d[4]);

/* The same, in f32 fused multiply-adds in the order of k: --exact-mma. */
void dot_exact(const struct dot_rule *rule, const struct row_tile *a, const struct column_tile *b,
               const u32 *const c[4], u32 *const d[4]);

/* Integers: exact; the last addition wraps around, or stays at the ends of s32's range. */
void dot_integers(u32 depth, bool saturate, const struct row_tile *a, const struct column_tile *b,
                  const u32 *const c[4], u32 *const d[4]);

/* A fragment register's lanes as 4 x 8 words: lane 4 g + t is word t of row g. */
#if defined __GNUC__ && \
    (__GNUC__ >= 12 || defined __clang__) /* in vector instructions, which the loops do not become */
typedef u32 words8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef u64 pairs4 __attribute__((vector_size(32), aligned(4), may_alias)); /* of the words of two rows */
#define EVEN(a, b)  __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define ODD(a, b)   __builtin_shufflevector(a, b, 1, 5, 3, 7)
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define UPPER(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
static inline void spread(const u32 *lane, u32 (*word)[TILE])
{
    const words8 *from = (const words8 *)lane;
    pairs4 pair[4];
    for (u32 i = 0; i < 4; i++)
        pair[i] = (pairs4)__builtin_shufflevector(from[i], from[i], 0, 4, 1, 5, 2, 6, 3, 7);
    pairs4 even01 = EVEN(pair[0], pair[1]), even23 = EVEN(pair[2], pair[3]), odd01 = ODD(pair[0], pair[1]),
           odd23 = ODD(pair[2], pair[3]);
    *(pairs4 *)word[0] = LOWER(even01, even23);
    *(pairs4 *)word[1] = LOWER(odd01, odd23);
    *(pairs4 *)word[2] = UPPER(even01, even23);
    *(pairs4 *)word[3] = UPPER(odd01, odd23);
}
#else
static inline void spread(const u32 *lane, u32 (*word)[TILE])
{
    for (u32 t = 0; t < 4; t++)
        for (u32 g = 0; g < 8; g++) word[t][g] = lane[4 * g + t];
}
#endif

/* Two f16 in each lane: the element of the even column, and that of the odd one. */
static inline void unpack_f16(const u32 *lane, u32 *even, u32 *odd)
{
    for (u32 l = 0; l < LANES; l++) even[l] = lane[l] & 0xffff, odd[l] = lane[l] >> 16;
}
static inline void pack_f16(const u32 *even, const u32 *odd, u32 *lane)
{
    for (u32 l = 0; l < LANES; l++) lane[l] = even[l] | odd[l] << 16;
}

#endif
