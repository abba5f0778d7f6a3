"""The operations of chapter 21: attention of e4m3 numbers and their scales, as Hopper's tensor cores have it; and rotated numbers.

transposed_v, per_head, two_levels
                        O = softmax(scale_Q scale_K / sqrt(d) Q Kᵀ) scale_V V, scales (b, g); Q, K, V as in attention.py, but for transposed_v
                        V is (b, g, d, k rounded up to a multiple of 16), zeros behind k.
per_block               a scale for each 128 rows: scale_Q (b, h, ceil(q / 128)), scale_K and scale_V (b, g, ceil(k / 128)).
rotation                x (b, s, h, d) in bf16, times a sign for each of its d columns and a Hadamard matrix / sqrt(d) if `rotate`; then
                        in e4m3, with a scale for each 128 rows of a head.

What is expected is what the machine makes of it, as far as that does not depend on the kernel:

* S = Q Kᵀ is the tensor core's sum, bit for bit (fp8_gemm.tensor_core).
* P = 2^(s - m) is rounded to e4m3, s = c S in powers of two. m is a whole number, so that it does not matter to a P above 2^-6
  which it is: here the largest s of a row, rounded up, less 7.
* LSE is that of the P before they are rounded, O the sum of the rounded P times V, divided by the sum of the others.

How far a correct kernel may be off (u = 2^-24; gamma as in bounds.py):

* c is a product of five numbers, and c S - m is rounded: |s| 5 u + |s - m| u in the exponent; ex2 is off by 2^-22. A P near the middle
  between two e4m3 may become the other one: what the two ends of the interval become, as in fp8_quantization.py.
* A P below 2^-6 is a multiple of 2^-9, in units that m sets. In a row whose maximum is found in the first tile, m is the one above. Elsewhere
  it has been smaller: both may be off by 2^-10 from the P before rounding, or by P itself.
* P V: one wgmma cuts 32 products and the accumulator to a multiple of 2^-13 of the power of two of the largest, and the sum to 13 bits behind
  the leading one: at most 33 * 2^-13 of the largest, and 2^-13 of the sum. The accumulator is that of all keys, for two_levels and per_block
  that of 128. e4m3 subnormal numbers count as 2^-6.
* The sum of P, its reciprocal and the scale: gamma of their number.
"""

import dtypes
import fp8_gemm
import fp8_quantization as fp8
import numpy as np
from attention import TENSORS, Attention, seen

from bounds import UNIT_ROUNDOFF, gamma, rounded_output

U = UNIT_ROUNDOFF["f32"]
TILE = 128  # keys; rows that share a scale
TOP_LOG2 = 7
MMA_K = fp8_gemm.MMA_K
SMALLEST_NORMAL, CUT = 2.0**-6, 2.0**-fp8_gemm.FRACTION
LOG2_E, LN_2 = np.log2(np.e), np.log(2)


def tensor_core_error(P, V, whole):
    """Bound of what the tensor core loses of P (q, k) · V (k, d) of e4m3 numbers, V's maybe scaled; whole: in one sum for all keys."""
    error = np.zeros((len(P), V.shape[1]))
    for first in range(0, P.shape[1], MMA_K):
        p, v = P[:, first : first + MMA_K], V[first : first + MMA_K]
        before = np.zeros_like(error) if first == 0 or (first % TILE == 0 and not whole) else after
        after = before + p @ v
        largest = np.maximum(p.max(1), SMALLEST_NORMAL)[:, None] * np.abs(v).max(0)
        error += CUT * ((MMA_K + 1) * np.maximum(largest, np.abs(before)) + np.abs(after))
    return error


def head(Q, K, V, c, scale_V, causal, whole):
    """One head: Q (q, d), K and V (k, d) of e4m3 numbers; c (q, k) and scale_V (k): (O, its bound before it is bf16, LSE, its bound)."""
    q, k = len(Q), len(K)
    visible = seen(q, k, causal)
    S = np.concatenate([fp8_gemm.tensor_core(Q[i : i + 64], K) for i in range(0, q, 64)])
    s = np.where(visible, S * c, -np.inf)
    top = np.ceil(s.max(1, keepdims=True))
    m = np.where(np.isinf(top), 0, top) - TOP_LOG2
    P = np.exp2(s - m)
    P8 = dtypes.rounded(P, "e4m3")
    l = P.sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        delta = np.where(visible, LN_2 * (5 * np.abs(s) + np.abs(s - m) + np.abs(m)) * U + 2.0**-22, 0)
    P_error = dtypes.rounded(P * (1 + delta), "e4m3") - dtypes.rounded(P * (1 - delta), "e4m3")
    m_is_another = np.ceil(s[:, :TILE].max(1, keepdims=True)) < top
    P_error = np.maximum(P_error, np.where(m_is_another & (P < SMALLEST_NORMAL), np.minimum(2.0**-9, 2 * P), 0))

    scaled = V * scale_V[:, None]
    divisor = np.where(l == 0, 1, l)
    O = P8 @ scaled / divisor
    l_error = (P * delta).sum(1, keepdims=True) / divisor + gamma(k + 8, U)
    floor = np.where(V == 0, 0, np.maximum(np.abs(V), SMALLEST_NORMAL)) * scale_V[:, None]
    error = tensor_core_error(P8, np.copysign(floor, V), whole) + P_error @ np.abs(scaled)
    O_error = error / divisor + np.abs(O) * l_error
    with np.errstate(divide="ignore"):
        LSE = ((m + np.log2(l)) * LN_2)[:, 0]
    LSE_error = l_error[:, 0] + 4 * U * (np.abs(m[:, 0]) + np.abs(np.where(l > 0, np.log2(divisor), 0))[:, 0] + 1)
    return O, O_error, LSE, LSE_error


class PerHead(Attention):
    HEAD_DIMS = (64, 128, 256)
    INPUTS = (*TENSORS, "scale_Q", "scale_K", "scale_V", "causal")
    OWN_TYPE = ("scale_Q", "scale_K", "scale_V", "causal")
    WHOLE = True  # one sum for all keys

    def cases(self, dtype):
        """Name -> dimensions and what is special about the case."""

        def case(q, k, d, h=1, g=1, b=1, **special):
            return dict(b=b, q=q, k=k, h=h, g=g, d=d, **special)

        cases = {
            "one_key": case(1, 1, 64),
            "len17": case(17, 17, 128, h=2, g=2),
            "ragged": case(70, 139, 64, h=2),
            "len128_causal": case(128, 128, 128, causal=True),
            "len129_causal": case(129, 129, 64, causal=True),
            "whole_tiles": case(768, 192, 128, h=2),
            "whole_tiles_causal": case(512, 384, 64, h=2, causal=True),
            "d256_whole_tiles": case(256, 256, 256, h=2),
            "few_queries_causal": case(70, 300, 128, causal=True),
            "empty_rows_causal": case(200, 70, 64, causal=True),
            "shared_heads_causal": case(140, 150, 128, h=4, g=2, b=2, causal=True),
            "d256": case(100, 260, 256, h=2),
            "d256_causal": case(150, 150, 256, causal=True),
            "outliers": case(100, 200, 128, special="outliers"),
            "rising_causal": case(300, 300, 128, special="rising", causal=True),
            "sink": case(70, 400, 128, special="sink"),
            "jump": case(70, 300, 128, h=5, special="jump"),
            "jump_d256": case(70, 300, 256, special="jump"),
            "steep_causal": case(20, 300, 64, special="steep", causal=True),
            "many_tiles_causal": case(150, 140, 64, h=6, g=3, b=2, causal=True),
            "more_tiles_than_sms": case(3, 20, 128, h=70, g=35, b=2),
        }
        return {name: case for name, case in cases.items() if case["d"] in self.HEAD_DIMS}

    def shapes(self, dims):
        b, q, k, h, g, d = (dims[name] for name in self.DIMS)
        return {"Q": (b, q, h, d), "K": (b, k, g, d), "V": (b, k, g, d), "O": (b, q, h, d), "LSE": (b, h, q), "S": (b, h, q, k)}

    def numbers(self, rng, case):
        """Q, K and V before they have 8 bits: normal numbers, each head of K and V of another size.

        outliers: a few queries and keys 10 times larger, a value 100 times. rising: each key's score is about 0.12 above that of the key before,
        for every query; steep: 2, more than 128 powers of two from tile to tile. jump: for each third query, keys 150 to 159 are 100 above those
        before and behind them, and from 290 on they are 200 above. sink: key 5 has a score of 8 above the others, and V is positive, so that what
        all the others have together counts.
        alike: scores near 0, and V near 1, so that the sums of P V do nothing but grow.
        """
        arrays = {name: rng.standard_normal(self.shapes(case)[name]) for name in TENSORS}
        heads = np.arange(1, case["g"] + 1)[:, None]
        arrays["K"] *= 0.5 + 0.5 * heads
        arrays["V"] *= heads
        special, root = case.get("special"), np.sqrt(case["d"])
        if special == "outliers":
            for name, count, factor in (("Q", 5, 10), ("K", 5, 10), ("V", 3, 100)):
                rows = arrays[name].reshape(-1, case["d"])
                rows[rng.choice(len(rows), count, replace=False)] *= factor
        elif special == "alike":
            arrays["Q"] /= 10
            arrays["V"] = 1 + arrays["V"] / 10
        elif special:
            key = np.arange(case["k"])
            jump = 100.0 * (key // 10 == 15) + 200 * (key >= 290) - 200
            score = {"rising": 0.12 * key, "steep": 2.0 * (key - case["k"]), "jump": jump, "sink": 8.0 * (key == 5)}[special]
            arrays["Q"][..., 0] = (np.arange(case["q"]) % 3 == 0)[:, None] if special == "jump" else 1
            arrays["K"][..., 0] = root * score[:, None]
        if special == "sink":
            arrays["V"] = np.abs(arrays["V"])
        return arrays

    def scales(self, x, heads):
        """(b, rows, its heads, d) -> the scale of each row and head of it, (b, rows, its heads, 1), and the scales as they lie in memory."""
        b, rows, own, d = x.shape
        amax = np.abs(x).reshape(b, rows, heads, -1).max((1, 3))
        scale = fp8.scale_of(amax, "e4m3").astype(np.float32)
        return scale.repeat(own // heads, 1)[:, None, :, None], scale

    def inputs(self, rng, case):
        arrays = {}
        for name, x in self.numbers(rng, case).items():
            scale, arrays[f"scale_{name}"] = self.scales(x, case["g"])
            arrays[name] = x / scale
        return arrays | {"causal": np.int32(case.get("causal", False))}

    def values(self, arrays):
        """V as it is in attention.py."""
        return arrays["V"]

    def of_head(self, scale, batch, own, g, rows):
        """The scale of each row of head `own` of Q, K or V, which belongs to head g of K and V."""
        return np.full(rows, scale[batch, g], np.float64)

    def outputs(self, arrays, dtype):
        Q, K, V = (x.astype(np.float64) for x in (arrays["Q"], arrays["K"], self.values(arrays)))
        b, q, h, d = Q.shape
        k, g = K.shape[1:3]
        O, LSE = np.zeros((2, b, q, h, d)), np.zeros((2, b, h, q))
        for batch, i in np.ndindex(b, h):
            j = i // (h // g)
            scale_Q = self.of_head(arrays["scale_Q"], batch, i, j, q)
            scale_K = self.of_head(arrays["scale_K"], batch, j, j, k)
            scale_V = self.of_head(arrays["scale_V"], batch, j, j, k)
            c = scale_Q[:, None] * scale_K / np.sqrt(d) * LOG2_E
            rows = Q[batch, :, i], K[batch, :, j], V[batch, :, j]
            O[0, batch, :, i], O[1, batch, :, i], LSE[0, batch, i], LSE[1, batch, i] = head(*rows, c, scale_V, bool(arrays["causal"]), self.WHOLE)
        return {"O": (O[0], rounded_output(*O, "bf16")), "LSE": tuple(LSE)}


class TransposedV(PerHead):
    def cases(self, dtype):
        names = "one_key", "len17", "ragged", "whole_tiles", "whole_tiles_causal", "d256_whole_tiles", "empty_rows_causal", "shared_heads_causal", "d256", "rising_causal", "jump", "jump_d256", "sink"
        return {name: case for name, case in super().cases(dtype).items() if name in names}

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case)
        V = arrays["V"].transpose(0, 2, 3, 1)
        return arrays | {"V": np.pad(V, ((0, 0), (0, 0), (0, 0), (0, -case["k"] % 16)))}

    def values(self, arrays):
        return arrays["V"][..., : arrays["K"].shape[1]].transpose(0, 3, 1, 2)


class TwoLevels(PerHead):
    HEAD_DIMS = (64, 128)
    WHOLE = False

    def cases(self, dtype):
        names = "len17", "ragged", "whole_tiles", "whole_tiles_causal", "shared_heads_causal", "outliers", "rising_causal", "jump", "sink"
        cases = super().cases(dtype)
        alike = dict(b=1, q=20, k=2500, h=1, g=1, d=64, special="alike")
        return {name: cases[name] for name in names} | {"alike": alike}


class PerBlock(PerHead):
    HEAD_DIMS = (64, 128)
    WHOLE = False

    def numbers(self, rng, case):
        """The same, each 128 keys of another size."""
        arrays = super().numbers(rng, case)
        for name, rows in ("K", "k"), ("V", "k"), ("Q", "q"):
            if case.get("special") is None or name == "V":
                arrays[name] *= np.exp2(np.arange(case[rows]) // TILE % 3)[:, None, None]
        return arrays

    def scales(self, x, heads):
        b, rows, own, d = x.shape
        padded = np.pad(np.abs(x), ((0, 0), (0, -rows % TILE), (0, 0), (0, 0)))
        scale = fp8.scale_of(padded.reshape(b, -1, TILE, own, d).max((2, 4)), "e4m3").astype(np.float32)
        return scale.repeat(TILE, 1)[:, :rows, :, None], np.ascontiguousarray(scale.swapaxes(1, 2))

    def of_head(self, scale, batch, own, g, rows):
        return scale[batch, own].astype(np.float64).repeat(TILE)[:rows]


def hadamard(x):
    """The rows of x (..., d) times Sylvester's Hadamard matrix: + where the numbers of row and column have an even number of bits in common."""
    d = x.shape[-1]
    for distance in 2 ** np.arange(int(np.log2(d))):
        pairs = x.reshape(*x.shape[:-1], d // (2 * distance), 2, distance)
        x = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2).reshape(x.shape)
    return x


class Rotation:
    """out and scale as chapter 18's, of the rotated x: d additions in log2(d) rounds, each rounded, make an error of at most gamma_log2(d) of
    sum |x| / sqrt(d), and 1 / sqrt(d) three roundings more."""

    DIMS = ("b", "s", "h", "d")
    INPUTS = ("x", "signs", "rotate")
    OWN_TYPE = ("signs", "rotate")
    FIXED = {"x": "bf16"}
    STORED = ("out",)
    OPTIONAL = ()

    def cases(self, dtype):
        def case(b, s, h, d, **special):
            return dict(zip(self.DIMS, (b, s, h, d)), **special)

        return {
            "one_row": case(1, 1, 1, 64),
            "d64": case(2, 130, 3, 64),
            "d128": case(1, 300, 2, 128),
            "d256": case(2, 70, 1, 256),
            "columns": case(1, 200, 2, 128, columns=True),
            "columns_as_they_are": case(1, 200, 2, 128, columns=True, rotate=False),
            "d256_as_they_are": case(1, 129, 2, 256, rotate=False),
        }

    def of_shape(self, dims):
        return {"rotated": dict(dims), "as_they_are": dict(dims, rotate=False)}

    def check_shape(self, dims, dtype):
        return None if dims["d"] in PerHead.HEAD_DIMS else "d, the head dimension, must be 64, 128 or 256"

    def shapes(self, dims):
        return {"x": tuple(dims[name] for name in self.DIMS)}

    def inputs(self, rng, case):
        """Normal numbers; columns: three of a head's columns are 30 times the others."""
        x = rng.standard_normal(self.shapes(case)["x"])
        if case.get("columns"):
            x[..., rng.choice(case["d"], 3, replace=False)] *= 30
        signs = rng.choice([-1.0, 1.0], case["d"]).astype(np.float32)
        return {"x": x, "signs": signs, "rotate": np.int32(case.get("rotate", True))}

    def outputs(self, arrays, dtype):
        x = arrays["x"].astype(np.float64)
        b, s, h, d = x.shape
        error = np.zeros_like(x)
        if arrays["rotate"]:
            error += (gamma(int(np.log2(d)), U) + 3 * U) * np.abs(x).sum(-1, keepdims=True) / np.sqrt(d)
            x = hadamard(x * arrays["signs"]) / np.sqrt(d)
        out, scale = np.zeros((2, b, s, h, d)), np.zeros((2, b, h, -(-s // TILE)))
        for batch, i in np.ndindex(b, h):
            of_head = fp8.by_groups(x[batch, :, i], error[batch, :, i], TILE, d, dtype, False)
            out[:, batch, :, i], scale[:, batch, i] = of_head[0], np.array(of_head[1])[..., 0]
        return {"out": tuple(out), "scale": tuple(scale)}


OPERATIONS = {"transposed_v": TransposedV(), "per_head": PerHead(), "two_levels": TwoLevels(), "per_block": PerBlock(), "rotation": Rotation()}
