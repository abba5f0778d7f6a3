"""The types of tensors: rounding to them in NumPy, and how files hold them (common/harness/npy.h has the same table)."""

import numpy as np


def bf16_bits(array):
    """uint16 bits of the nearest bf16, ties to even: the upper half of an fp32 after just under half of the lower was added."""
    f32 = np.ascontiguousarray(array, np.float32)
    bits = f32.view(np.uint32)
    upper = (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(f32), (bits >> 16 & 0x8000 | 0x7FC0).astype(np.uint16), upper)


def bf16_values(bits):
    """The numbers with these bits, in fp32, which has all of them."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def fp8_bits(array, exponent_bits, largest):
    """uint8 bits of the nearest number of 1 bit of sign, exponent_bits of exponent and the rest of fraction, ties to even; past the
    largest, whose bits are `largest`, that one: it saturates, infinities too. A NaN becomes 0x7f.

    An fp32's fraction is cut to the format's, after just under half of what is cut off was added; below the format's smallest normal
    number more is cut off, the leading 1 among what is left.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.int64)
    fraction_bits, bias = 7 - exponent_bits, (1 << exponent_bits - 1) - 1
    magnitude = bits & 0x7FFFFFFF
    exponent = (magnitude >> 23) - 127 + bias  # the format's own, if at least 1
    significand = np.where(magnitude >> 23 > 0, magnitude & 0x7FFFFF | 0x800000, 0)  # fp32's subnormal numbers are below half of ours
    cut = np.minimum(23 - fraction_bits + np.maximum(1 - exponent, 0), 30)
    rounded_off = significand + (1 << cut - 1) - 1 + (significand >> cut & 1) >> cut
    # The leading 1 of a normal number is one more in the exponent; so is a carry.
    code = rounded_off + np.where(exponent >= 1, exponent - 1 << fraction_bits, 0)
    code = np.where(np.isnan(np.asarray(array, np.float32)), 0x7F, np.minimum(code, largest))
    return (code | np.where(np.isnan(np.asarray(array, np.float32)), 0, bits >> 24 & 0x80)).astype(np.uint8)


def fp8_values(bits, exponent_bits, infinity):
    """The numbers with these bits, in fp32, which has all of them; from `infinity` on, if it is not None, infinity and NaN."""
    bits = np.asarray(bits, np.uint8).astype(np.int64)
    fraction_bits, bias = 7 - exponent_bits, (1 << exponent_bits - 1) - 1
    code, one = bits & 0x7F, 1 << fraction_bits
    exponent, fraction = code >> fraction_bits, code & one - 1
    value = np.ldexp(np.where(exponent > 0, fraction + one, fraction).astype(np.float64), np.maximum(exponent, 1) - bias - fraction_bits)
    value = np.where(code == 0x7F if infinity is None else code > infinity, np.nan, np.where(code == infinity, np.inf, value))
    return np.where(bits & 0x80, -value, value).astype(np.float32)


def e4m3_bits(array):
    """uint8 bits of the nearest e4m3, as fp8_bits has it: past 448, 0x7e."""
    return fp8_bits(array, 4, 0x7E)


E4M3_VALUES = fp8_values(np.arange(256), 4, None)


def e4m3_values(bits):
    return E4M3_VALUES[np.asarray(bits, np.uint8)]


def e5m2_bits(array):
    """uint8 bits of the nearest e5m2: past 57344, 0x7b."""
    return fp8_bits(array, 5, 0x7B)


E5M2_VALUES = fp8_values(np.arange(256), 5, 0x7C)


def e5m2_values(bits):
    return E5M2_VALUES[np.asarray(bits, np.uint8)]


# Name -> what its files hold, how their names end, number -> bits in the file, bits -> number.
TYPES = {
    "f32": (np.float32, ".npy", np.float32, np.asarray),
    "f16": (np.float16, ".npy", np.float16, np.asarray),
    "bf16": (np.uint16, ".bf16.npy", bf16_bits, bf16_values),
    "e4m3": (np.uint8, ".e4m3.npy", e4m3_bits, e4m3_values),
    "e5m2": (np.uint8, ".e5m2.npy", e5m2_bits, e5m2_values),
}


def encode(array, dtype):
    """What a file of `dtype` holds for these numbers, each rounded to it once (bf16: from fp32)."""
    return np.asarray(TYPES[dtype][2](array))


def decode(stored, dtype):
    """The numbers in a file of `dtype`."""
    return TYPES[dtype][3](stored)


def rounded(array, dtype):
    """The nearest numbers of `dtype`, in the array's own type."""
    return decode(encode(array, dtype), dtype).astype(np.asarray(array).dtype)
