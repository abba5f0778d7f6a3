/* numeric.c: the number formats' less common conversions. */
#include "numeric.h"

#include <math.h>

double format_decode(struct format f, u32 bits) {
    u32 magnitude = bits & ((1u << (f.width - 1)) - 1), one = 1u << f.mantissa;
    u32 exponent = magnitude >> f.mantissa, fraction = magnitude & (one - 1);
    double value = magnitude > f.max_finite ? (magnitude == f.infinity && f.infinity != f.nan ? INFINITY : NAN)
                   : exponent               ? ldexp(fraction + one, (int)exponent - 1 + f.min_exponent - f.mantissa)
                                            : ldexp(fraction, f.min_exponent - f.mantissa);
    return bits >> (f.width - 1) & 1 ? -value : value;
}

double f64_of_u64_to_odd(u64 x) {
    bool wide = x >> 53;
    return wide ? ldexp((double)(x >> 11 | ((x & 0x7ff) != 0)), 11) : (double)x;
}
