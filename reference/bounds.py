"""How far a correct kernel may be from the exact result: rounding error bounds, componentwise.

N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, SIAM 2002 ("Higham" below). None of these
numbers is tuned: each follows from the number format and the count of operations.
"""

import numpy as np

# Unit roundoff: half the distance from 1 to the next number. Higham, section 2.1: fl(x op y) = (x op y)(1 + d), |d| <= u.
UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}


def gamma(n, u):
    """n roundings of relative size u in a row: the product of n factors (1 + d) differs from 1 by at most this.

    Higham, Lemma 3.1: gamma_n = n u / (1 - n u), for n u < 1.
    """
    if not n * u < 1:
        raise ValueError(f"gamma({n}, {u}): n u must be below 1")
    return n * u / (1 - n * u)


def fp32_sum_of_products(terms, absolute_sum):
    """Bound of |s - ŝ| for a sum of `terms` products in fp32, in any order, with or without FMA.

    Higham, section 3.1 (equation 3.4 and the remark that it holds for any order): each product is rounded at most
    once and takes part in at most terms - 1 additions, so |s - ŝ| <= gamma_terms * sum |a_i b_i|. An FMA only removes
    roundings. The float64 reference makes the same error with its own u, which is added.

    absolute_sum: sum |a_i b_i|, any shape. Returns the same shape.
    """
    return (gamma(terms, UNIT_ROUNDOFF["f32"]) + gamma(terms, UNIT_ROUNDOFF["f64"])) * absolute_sum


def tensor_core_sum_of_products(terms, absolute_sum):
    """Bound of |s - ŝ| for a sum of `terms` bf16 products by mma instructions that accumulate in fp32.

    Products of two 8-bit significands are exact. What a tensor core does with them, as measured on an H200 (bit-exact
    over 275 million dot products) and as published for other generations (MMA-Sim, arXiv:2511.10909): one
    instruction aligns its L products and the accumulator to the largest exponent among them, truncates each to F
    fraction bits below it, adds exactly, and truncates the sum to 23 fraction bits:

        |error of one instruction| <= ((L + 1) 2^-F + 2^-23) * (sum of the |addends|)

    since the largest exponent's power of two is at most the largest addend, hence at most the sum. The generations
    differ: Hopper adds L = 16 products at F = 25; Ampere and Ada do it as two halves of L = 8 at F = 24, which over
    16 products is the larger error, so that one is used: delta = 9 * 2^-24 + 2^-23 for each 8 products. A chain of n
    such accumulations is a product of n factors (1 + d), |d| <= delta (Higham, Lemma 3.1). One more addition in fp32
    (a bias) rounds once more; u < delta, so it counts as one more factor.

    absolute_sum: sum |a_i b_i| (+ |bias|), any shape. Returns the same shape.
    """
    delta = 9 * 2.0**-24 + 2.0**-23
    chain = -(-terms // 8) + 1
    return (gamma(chain, delta) + gamma(terms + 1, UNIT_ROUNDOFF["f64"])) * absolute_sum


def rounded_output(value, error, dtype):
    """Bound of |x - fl(x̂)| when |x - x̂| <= error and x̂ is then rounded to nearest in `dtype`.

    The rounding moves x̂ by at most half the spacing of dtype around it (Higham, section 2.1), and that spacing is
    largest at |x| + error. Sharper than u |x|, by up to a factor of two: a result one unit in the last place off is
    caught wherever `error` is small beside that unit. An exact zero must stay zero.

    value, error: any shape, the same. Returns that shape.
    """
    largest = np.abs(value) + error
    _, exponent = np.frexp(largest)
    return np.where(largest > 0, error + np.ldexp(UNIT_ROUNDOFF[dtype], exponent - 1), 0.0)
