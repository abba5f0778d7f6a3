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


# Name -> what its files hold, how their names end, number -> bits in the file, bits -> number.
TYPES = {
    "f32": (np.float32, ".npy", np.float32, np.asarray),
    "f16": (np.float16, ".npy", np.float16, np.asarray),
    "bf16": (np.uint16, ".bf16.npy", bf16_bits, bf16_values),
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
