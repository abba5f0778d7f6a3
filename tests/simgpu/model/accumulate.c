/* accumulate.c: exec/accumulate.c against the same arithmetic written down plainly: one element of D at a time, in 128-bit
 * integers, without any floating-point number. It agreed with an H200 on every one of 275 million random products. */
#include <stdlib.h>

#include "../../../tools/simgpu/exec/accumulate.h"

typedef __int128 wide;

/* ---- The model ------------------------------------------------------------------------------------------------------------ */

struct format {
    int exponent_bits, mantissa_bits, bias;
    bool infinite; /* the largest exponent is for infinities and NaN */
};

static struct format format_of(enum type t)
{
    switch (t) {
    case T_F16: return (struct format){5, 10, 15, true};
    case T_BF16: return (struct format){8, 7, 127, true};
    case T_TF32: return (struct format){8, 10, 127, true};
    case T_E4M3: return (struct format){4, 3, 7, false};
    case T_E5M2: return (struct format){5, 2, 15, true};
    default: return (struct format){8, 23, 127, true};
    }
}

/* sign * mantissa * 2^(exponent - mantissa bits) */
struct number {
    enum { FINITE, INFINITE, NOT_A_NUMBER } kind;
    int sign, exponent;
    s64 mantissa;
};

static struct number number_of(enum type t, u32 bits)
{
    struct format f = format_of(t);
    struct number x = {.kind = FINITE};
    u32 largest = (1u << f.exponent_bits) - 1;
    if (t == T_TF32) bits >>= 13;
    u32 e = bits >> f.mantissa_bits & largest, m = bits & ((1u << f.mantissa_bits) - 1);
    x.sign = bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -1 : 1;
    if (e == largest && f.infinite) x.kind = m ? NOT_A_NUMBER : INFINITE;
    if (e == largest && !f.infinite && m == 7) x.kind = NOT_A_NUMBER;
    x.exponent = (e ? (int)e : 1) - f.bias;
    x.mantissa = e ? m | 1u << f.mantissa_bits : m;
    return x;
}

static int highest_bit(wide x)
{
    int n = -1;
    for (; x; x >>= 1) n++;
    return n;
}

/* x * 2^lowest, for x > 0, cut to `precision` fraction bits, or rounded to nearest even; subnormals have fewer. */
static u32 packed(wide x, int lowest, struct format f, int precision, bool nearest)
{
    int least = 1 - f.bias, e = highest_bit(x) + lowest, largest = (1 << f.exponent_bits) - 1;
    int unit = (e > least ? e : least) - precision - lowest; /* of the result's last bit, in those of x */
    wide q = unit > 100 ? 0 : unit > 0 ? x >> unit : x << -unit;
    if (nearest && unit > 0 && unit <= 100) {
        wide rest = x - (q << unit), half = (wide)1 << (unit - 1);
        q += rest > half || (rest == half && (q & 1));
    }
    wide bits = (e > least ? (wide)(e - least) << f.mantissa_bits : 0) + (q << (f.mantissa_bits - precision));
    return bits >> f.mantissa_bits >= largest ? (u32)largest << f.mantissa_bits : (u32)bits;
}

static u32 model(const struct dot_rule *rule, enum type a, enum type b, const u32 *as, const u32 *bs,
                 u32 c_bits)
{
    enum type d = rule->f16 ? T_F16 : T_F32;
    struct format fd = format_of(d);
    int fraction_bits[MAX_K + 1], count = (int)rule->depth, top = -133, infinite = 0, opposite = 0;
    u32 sign_bit = 1u << (fd.exponent_bits + fd.mantissa_bits), nan = sign_bit - 1;
    struct number term[MAX_K + 1];
    bool any = false;
    for (int k = 0; k < count; k++) {
        struct number x = number_of(a, as[k]), y = number_of(b, bs[k]);
        term[k] = (struct number){FINITE, x.sign * y.sign, x.exponent + y.exponent, x.mantissa * y.mantissa};
        if (x.kind || y.kind) term[k].kind = INFINITE;
        if ((x.kind == INFINITE && !y.kind && !y.mantissa) || (y.kind == INFINITE && !x.kind && !x.mantissa))
            return nan;
        if (x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER) return nan;
        fraction_bits[k] = format_of(a).mantissa_bits + format_of(b).mantissa_bits;
    }
    term[count] = number_of(d, c_bits);
    fraction_bits[count] = fd.mantissa_bits;
    for (int k = 0; k <= count; k++) {
        if (term[k].kind == NOT_A_NUMBER) return nan;
        if (term[k].kind == INFINITE) {
            opposite |= infinite == -term[k].sign;
            infinite = term[k].sign;
        } else if (term[k].mantissa) {
            any = true;
            if (term[k].exponent > top) top = term[k].exponent;
        }
    }
    if (opposite) return nan;
    if (infinite) return (infinite < 0 ? sign_bit : 0) | ((1u << fd.exponent_bits) - 1) << fd.mantissa_bits;
    wide sum = 0;
    for (int k = 0; k <= count && any; k++) {
        if (!term[k].mantissa) continue; // its exponent may be above `top`
        int up = (int)rule->fraction - fraction_bits[k] + term[k].exponent - top;
        wide cut = up >= 0 ? (wide)term[k].mantissa << up : up < -62 ? 0 : term[k].mantissa >> -up;
        sum += term[k].sign * cut;
    }
    if (!sum) return 0;
    u32 bits = packed(sum < 0 ? -sum : sum, top - (int)rule->fraction, fd,
                      rule->f16 ? 10 : (int)rule->precision, rule->f16);
    return bits ? bits | (sum < 0 ? sign_bit : 0) : 0;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------------------ */

static u64 state = 1;
static u64 random_u64(void) /* splitmix64 */
{
    u64 z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

enum { STYLES = 9 };

static u32 draw(enum type t, u32 style)
{
    struct format f = format_of(t);
    u32 largest = (1u << f.exponent_bits) - 1, one = (u32)f.bias, r = (u32)random_u64();
    u32 m = (u32)random_u64() & ((1u << f.mantissa_bits) - 1), e;
    switch (style) {
    case 0: e = one - 3 + r % 7; break;                                       /* about 1 */
    case 1: e = r % largest; break;                                           /* finite */
    case 2: e = r & largest; break;                                           /* any bits */
    case 3: e = 0; break;                                                     /* subnormal */
    case 4: e = one - 3 + r % 5, m = 0; break;                                /* ties, cancellation */
    case 5: e = r % 3 ? one : 0, m = e ? m : 0; break;                        /* zeros */
    case 6: e = r % 20 ? one - 2 + r % 4 : largest, m = r % 3 ? m : 0; break; /* infinities, NaN */
    case 7: e = r % 5 ? 1 + r % 2 : largest - 1; break;                       /* tiny and huge */
    default: e = largest - 1 - r % 2;                                         /* overflow */
    }
    u32 bits = (u32)(random_u64() & 1) << (f.exponent_bits + f.mantissa_bits) | e << f.mantissa_bits | m;
    return t == T_TF32 ? bits << 13 | (u32)(random_u64() & 0x1fff) : bits;
}

static u64 done, wrong;

static void try_tile(enum type a, enum type b, u32 width, const struct dot_rule *rule)
{
    enum { ROWS = 2 * TILE };
    u32 a_words[2][8][TILE] = {0}, b_words[8][TILE] = {0}, as[ROWS][MAX_K], bs[TILE][MAX_K], c[4][LANES],
        d[4][LANES];
    u32 *const sums[4] = {d[0], d[1], d[2], d[3]};
    u32 style = (u32)(random_u64() % (2 * STYLES)),
        other = random_u64() % 2 ? style : (u32)(random_u64() % STYLES);
    for (u32 i = 0; i < ROWS; i++)
        for (u32 k = 0; k < rule->depth; k++) {
            as[i][k] = draw(a, style < STYLES ? style : (u32)random_u64() % 6);
            a_words[i / TILE][k * width / 32][i % TILE] |= as[i][k] << k * width % 32;
        }
    for (u32 i = 0; i < TILE; i++)
        for (u32 k = 0; k < rule->depth; k++) {
            bs[i][k] = draw(b, other < STYLES ? other : (u32)random_u64() % 6);
            b_words[k * width / 32][i] |= bs[i][k] << k * width % 32;
        }
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++)
            c[q][l] = d[q][l] =
                random_u64() % 4 ? draw(rule->f16 ? T_F16 : T_F32, (u32)(random_u64() % STYLES)) : 0;
    struct row_tile rows;
    struct column_tile columns;
    for (u32 half = 0; half < 2; half++) decode_rows(&rows, half, a, false, a_words[half], rule->depth);
    decode_columns(&columns, b, false, b_words, rule->depth);
    dot_fused(rule, &rows, &columns, (const u32 *const *)sums, sums);
    for (u32 q = 0; q < 4; q++)
        for (u32 l = 0; l < LANES; l++) {
            u32 row = TILE * (q / 2) + l / 4, column = 2 * (l % 4) + q % 2;
            u32 want = model(rule, a, b, as[row], bs[column], c[q][l]);
            done++;
            if (want == d[q][l] || wrong++ > 5) continue;
            printf("types %d and %d, K = %u, c = 0x%x: got 0x%x, expected 0x%x\n", a, b, rule->depth, c[q][l],
                   d[q][l], want);
        }
}

int main(int argc, char **argv)
{
    static const enum type fp8[] = {T_E4M3, T_E5M2};
    u32 rounds = argc > 1 ? (u32)atoi(argv[1]) : 100;
    state = argc > 2 ? (u64)atoll(argv[2]) : 1;
    for (u32 n = 0; n < rounds; n++) {
        for (u32 half = 0; half < 2; half++) {
            u32 k = 32u >> half;
            try_tile(T_F16, T_F16, 16, &(struct dot_rule){k / 2, 25, 23, false});
            try_tile(T_F16, T_F16, 16, &(struct dot_rule){k / 2, 25, 23, true});
            try_tile(T_BF16, T_BF16, 16, &(struct dot_rule){k / 2, 25, 23, false});
            try_tile(T_TF32, T_TF32, 32, &(struct dot_rule){k / 4, 25, 23, false});
        }
        for (u32 pair = 0; pair < 4; pair++)
            for (u32 f16 = 0; f16 < 2; f16++)
                try_tile(fp8[pair / 2], fp8[pair % 2], 8, &(struct dot_rule){32, 13, 13, f16});
    }
    printf("accumulate: %llu products, %llu wrong\n", (unsigned long long)done, (unsigned long long)wrong);
    return wrong != 0;
}
