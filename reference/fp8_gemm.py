"""The operations of chapter 19: D[m,n] = A[m,k] · B[n,k]ᵀ of e4m3 numbers and their scales; what Hopper's tensor cores make of the sums.

per_tensor       D = scale_A scale_B (A · Bᵀ) in fp32, one scale each.
gemm, gemm_f32   A has a scale for each 128 neighbours of a row, scale_A (ceil(k / 128), m rounded up to a multiple of 4); B for each square of
                 128 x 128, scale_B (ceil(n / 128), ceil(k / 128)): chapter 18's. D is bf16 or fp32.
weight_gradient  both as A; D, in fp32, += the product.

The sums. One wgmma of e4m3 adds 32 products and the accumulator: all are cut, towards 0, to a multiple of 2^-13 of the power of two of the largest,
added exactly, and the sum is cut to 13 bits behind its leading one (measured on an H200, 12 million sums without an exception; as published, MMA-Sim,
arXiv:2511.10909). `tensor_core` does that exactly, so that what is expected is not what A · Bᵀ is but what the machine makes of it.

How far a correct kernel may be off then (u = 2^-24; gamma as in bounds.py): without a scale for each 128, by the product of two scales and that with
the sum, gamma_2. With them the k / 128 sums are exact numbers of 14 bits that are multiplied by their scales and added in fp32, with or without FMA, in
any order: gamma_(k / 128 + 3) of the sum of their magnitudes; and one addition more where D is added to. bf16 rounds once more.
"""

import dtypes
import fp8_quantization as fp8
import numpy as np

from bounds import UNIT_ROUNDOFF, gamma, rounded_output

U = UNIT_ROUNDOFF["f32"]
GROUP = fp8.GROUP
MMA_K = 32
FRACTION = 13  # bits that are kept behind the leading one, of the addends and of the sum
NONE = -100  # the exponent of a 0


def with_exponents(values):
    """e4m3 numbers, in fp32, and their exponents, subnormal numbers not normalised."""
    values = np.asarray(values, np.float32)
    return values, np.where(values == 0, NONE, np.maximum(np.frexp(values)[1] - 1, -6))


def multiply_add(a, b, acc):
    """One wgmma: acc (m, n) + a (m, 32) · b (n, 32)ᵀ as the tensor core has it; a and b as `with_exponents` gives them."""
    acc_exponent = np.where(acc == 0, NONE, np.frexp(acc)[1] - 1)
    largest = np.maximum((a[1][:, None] + b[1]).max(-1), acc_exponent)
    # In units of 2^(largest - FRACTION) what is cut is below 2^15, and the sum of 32 below 2^20: fp32 is exact.
    units = np.ldexp(np.float32(1), FRACTION - largest)
    total = np.trunc(a[0][:, None] * b[0] * units[..., None]).sum(-1) + np.trunc(acc * units)
    above = np.maximum(np.frexp(total)[1] - 1 - FRACTION, 0)  # bits that the sum has too many
    return np.where(total == 0, 0.0, np.ldexp(np.trunc(np.ldexp(total, -above)), above + largest - FRACTION))


def tensor_core(A, B):
    """A (m, k) · B (n, k)ᵀ of e4m3 numbers, one accumulator for all of k; zeros behind k change nothing."""
    k = fp8.up_to(A.shape[1], MMA_K)
    (a, a_exponent), (b, b_exponent) = (with_exponents(np.pad(x, ((0, 0), (0, k - x.shape[1])))) for x in (A, B))
    acc = np.zeros((len(A), len(B)))
    for i in range(0, k, MMA_K):
        acc = multiply_add((a[:, i : i + MMA_K], a_exponent[:, i : i + MMA_K]), (b[:, i : i + MMA_K], b_exponent[:, i : i + MMA_K]), acc)
    return acc


def promoted(A, B, scale_A, scale_B):
    """The sum over groups of 128 k of scale_A scale_B (tensor core's sum), and of its magnitudes; scales (groups, m) and (groups, n)."""
    total = magnitudes = np.zeros((len(A), len(B)))
    for g in range(-(-A.shape[1] // GROUP)):
        part = tensor_core(A[:, g * GROUP : (g + 1) * GROUP], B[:, g * GROUP : (g + 1) * GROUP])
        part = part * scale_A[g][:, None] * scale_B[g]
        total, magnitudes = total + part, magnitudes + np.abs(part)
    return total, magnitudes


def result(D, error, dtype):
    return {"D": (D, rounded_output(D, error, "bf16") if dtype == "bf16" else error)}


class PerTensor:
    DIMS = ("m", "n", "k")
    INPUTS = ("A", "B", "scale_A", "scale_B")
    OPTIONAL = ()
    OWN_TYPE = ("scale_A", "scale_B")
    D_TYPE = "f32"
    CASES = {
        "smallest": (1, 1, 16),
        "one_tile": (128, 128, 128),
        "ragged": (131, 139, 272),
        "odd_n": (37, 131, 144),
        "several_tiles": (261, 264, 400),
        "whole_tiles": (256, 384, 256),
        "one_row": (1, 264, 528),
        "deep": (24, 40, 2048),
        "in_turn": (70, 1536, 144),  # several tiles of columns for each block, on few multiprocessors
    }

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes" if dims["k"] % 16 else None

    def cases(self, dtype):
        special = {name: dict(zip(self.DIMS, (70, 200, 304)), special=name) for name in ("outliers", "zeros")}
        return {name: dict(zip(self.DIMS, shape)) for name, shape in self.CASES.items()} | special

    def shapes(self, dims):
        m, n, k = (dims[name] for name in self.DIMS)
        return {"A": (m, k), "B": (n, k), "D": (m, n)}

    def numbers(self, rng, case):
        """What A and B were before they were 8 bits."""
        return (fp8.numbers(rng, self.shapes(case)[name], case.get("special")) for name in "AB")

    def inputs(self, rng, case):
        arrays = {}
        for name, x in zip("AB", self.numbers(rng, case)):
            scale = np.array([fp8.scale_of(np.abs(x).max(), "e4m3")])
            arrays |= {name: x / scale, f"scale_{name}": scale.astype(np.float32)}
        return arrays

    def outputs(self, arrays, dtype):
        D = tensor_core(arrays["A"], arrays["B"]) * float(arrays["scale_A"][0]) * float(arrays["scale_B"][0])
        return result(D, gamma(2, U) * np.abs(D), self.D_TYPE)


class Gemm(PerTensor):
    D_TYPE = "bf16"

    def quantised_B(self, x):
        """(B, its scales as they lie in memory)."""
        out, scale = fp8.by_groups(x, np.zeros_like(x), GROUP, GROUP, "e4m3", False)
        return out[0], scale[0]

    def column_scales(self, arrays):
        """(groups of k, n)"""
        return np.repeat(arrays["scale_B"].T.astype(np.float64), GROUP, 1)[:, : len(arrays["B"])]

    def inputs(self, rng, case):
        A, B = self.numbers(rng, case)
        (A, _), (scale_A, _) = fp8.along_rows(A, np.zeros_like(A), "e4m3", False)
        B, scale_B = self.quantised_B(B)
        scales = {"scale_A": scale_A, "scale_B": scale_B}
        return {"A": A, "B": B} | {name: np.ascontiguousarray(scale, np.float32) for name, scale in scales.items()}

    def product(self, arrays):
        """(D, bound) before it is rounded to its type."""
        scale_A = arrays["scale_A"][:, : len(arrays["A"])].astype(np.float64)
        D, magnitudes = promoted(arrays["A"], arrays["B"], scale_A, self.column_scales(arrays))
        return D, gamma(len(scale_A) + 3, U) * magnitudes

    def outputs(self, arrays, dtype):
        return result(*self.product(arrays), self.D_TYPE)


class GemmF32(Gemm):
    D_TYPE = "f32"
    CASES = {name: shape for name, shape in PerTensor.CASES.items() if name in ("ragged", "odd_n", "several_tiles")}

    def cases(self, dtype):
        return {name: dict(zip(self.DIMS, shape)) for name, shape in self.CASES.items()}


class WeightGradient(Gemm):
    INPUTS = (*PerTensor.INPUTS, "D")
    OWN_TYPE = (*PerTensor.OWN_TYPE, "D")

    def quantised_B(self, x):
        (out, _), (scale, _) = fp8.along_rows(x, np.zeros_like(x), "e4m3", False)
        return out, scale

    def column_scales(self, arrays):
        return arrays["scale_B"][:, : len(arrays["B"])].astype(np.float64)

    def inputs(self, rng, case):
        return super().inputs(rng, case) | {"D": rng.standard_normal(self.shapes(case)["D"]).astype(np.float32)}

    def outputs(self, arrays, dtype):
        product, error = self.product(arrays)
        D = arrays["D"] + product
        return {"D.after": (D, error * (1 + U) + U * (np.abs(D) + np.abs(product)))}


OPERATIONS = {"per_tensor": PerTensor(), "gemm": Gemm(), "gemm_f32": GemmF32(), "weight_gradient": WeightGradient()}
