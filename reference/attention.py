"""O = softmax(scale Q Kᵀ) V and LSE: the definition, the same tile by tile, how far a kernel may be off, the cases.

Q is (b, q, h, d), K and V are (b, k, g, d): h query heads share g key/value heads, h / g each. scale = 1 / sqrt(d).
Causal is aligned at the bottom right: query i sees the keys j <= i + k - q, the last query all of them. A row that
sees no key has O = 0 and LSE = -inf (the empty sum).
"""

import numpy as np

import bounds
import dtypes

TENSORS = ("Q", "K", "V")


def by_head(arrays):
    """Q, K and V in float64 as (b, h, rows, d), each key/value head repeated for the query heads that share it."""
    Q, K, V = (arrays[name].astype(np.float64).swapaxes(1, 2) for name in TENSORS)
    shared = Q.shape[1] // K.shape[1]
    return Q, K.repeat(shared, axis=1), V.repeat(shared, axis=1)


def seen(q, k, causal):
    """(q, k) of booleans: which keys each query sees."""
    last = np.arange(q)[:, None] + k - q if causal else np.full((q, 1), k - 1)
    return np.arange(k) <= last


def direct(Q, K, V, causal):
    """The definition, for (..., rows, d) in float64: (O, LSE)."""
    S = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
    S = np.where(seen(Q.shape[-2], K.shape[-2], causal), S, -np.inf)
    m = S.max(-1, keepdims=True)
    P = np.exp(S - np.where(np.isinf(m), 0, m))
    l = P.sum(-1, keepdims=True)
    O = P @ V / np.where(l == 0, 1, l)
    with np.errstate(divide="ignore"):
        return O, (m + np.log(l))[..., 0]


def lifts(elements):
    """How far below the maximum, in octaves, P may be taken relative to, so that each time other numbers are rounded: 0, and as many more
    as make small arrays' errors a sample of 2^16 elements, 64 at most."""
    return np.arange(np.clip(2**16 // max(elements, 1), 1, 64)) * (np.sqrt(5) - 1) / 2 % 1


def tile_by_tile(Q, K, V, causal, block_kv=64, float_type=np.float64, dtype=None, slack=0, lift=0):
    """What a kernel's block does, for all heads at once: (O, LSE). Step through it with a small Q, K and V.

    The state of a row is (m, l, O): its maximum, its sum of exp(S - m), and that sum weighted with V. A tile of
    block_kv keys is such a state too, and two states are merged by bringing both to the larger maximum.
    slack: how far a score may be above m, as a power of two, before m follows: O / l is the same for every m. lift: how far above
    exp(S - m) P is, likewise.
    float_type: of scores and accumulators. dtype: what P and the final O are rounded to, as tensor cores take it; None: not at all.
    """
    q, k = Q.shape[-2], K.shape[-2]
    to_dtype = (lambda array: dtypes.rounded(array, dtype)) if dtype else (lambda array: array)
    Q, K, V = (array.astype(float_type) for array in (Q, K, V))
    scale = float_type(1 / np.sqrt(Q.shape[-1]))
    visible = seen(q, k, causal)
    m = np.full((*Q.shape[:-1], 1), np.finfo(float_type).min, float_type)
    l = np.zeros_like(m)
    O = np.zeros(Q.shape, float_type)
    for first in range(0, k, block_kv):
        tile = slice(first, first + block_kv)
        S = Q @ K[..., tile, :].swapaxes(-1, -2) * scale
        S = np.where(visible[:, tile], S, float_type(-np.inf))
        maximum = S.max(-1, keepdims=True)
        m_new = np.where(maximum - m > float_type(slack * np.log(2)), maximum, m)
        rescale = np.exp(m - m_new)
        P = np.exp(S - m_new + float_type(lift * np.log(2)))
        l = l * rescale + P.sum(-1, keepdims=True)
        O = O * rescale + to_dtype(P) @ V[..., tile, :]
        m = m_new
    O = to_dtype(O / np.where(l == 0, 1, l))
    with np.errstate(divide="ignore"):
        return O, np.where(l == 0, -np.inf, m + np.log(l) - float_type(lift * np.log(2)))[..., 0]


class Attention:
    HEAD_DIMS = (64, 128)
    DIMS = ("b", "q", "k", "h", "g", "d")
    INPUTS = ("Q", "K", "V", "causal")
    OWN_TYPE = ("causal",)
    OPTIONAL = ()

    def cases(self, dtype):
        """Name -> dimensions and what is special about the case."""

        def case(q, k, d, h=1, g=1, b=1, **special):
            return dict(b=b, q=q, k=k, h=h, g=g, d=d, **special)

        if dtype == "f16":
            return {
                "ragged": case(100, 139, 64, h=2),
                "ragged_causal": case(139, 139, 128, causal=True),
                "outliers": case(70, 200, 128, outliers=True),
            }
        return {
            "one_key": case(1, 1, 64),
            "len17": case(17, 17, 128, h=2, g=2),
            "len63_causal": case(63, 63, 64, causal=True),
            "len64": case(64, 64, 128),
            "len64_causal": case(64, 64, 64, h=2, g=2, causal=True),
            "len65_causal": case(65, 65, 128, causal=True),
            "len1000": case(1000, 1000, 64),
            "len1000_causal": case(1000, 1000, 128, causal=True),
            "whole_tiles": case(768, 192, 64, h=2),
            "whole_tiles_causal": case(384, 384, 128, h=2, causal=True),
            "one_query_causal": case(1, 1000, 64, h=2, causal=True),
            "few_queries_causal": case(70, 300, 128, causal=True),
            "empty_rows_causal": case(300, 70, 64, causal=True),
            "empty_tiles_causal": case(400, 3, 128, causal=True),
            "shared_heads": case(130, 150, 64, h=6, g=2, b=2),
            "shared_heads_causal": case(140, 140, 128, h=4, g=1, b=2, causal=True),
            "outliers": case(100, 200, 64, h=2, outliers=True),
            "outliers_causal": case(200, 200, 128, causal=True, outliers=True),
        }

    def of_shape(self, dims):
        """The cases of a shape that the user asks for."""
        return {"full": dict(dims), "causal": dict(dims, causal=True)}

    def check_shape(self, dims, dtype):
        """None, or what the dimensions would have to be."""
        if dims["d"] not in self.HEAD_DIMS:
            *most, last = map(str, self.HEAD_DIMS)
            return f"d, the head dimension, must be {', '.join(most)} or {last}"
        if dims["h"] % dims["g"]:
            return "h must be a multiple of g: every key/value head serves as many query heads"
        return None

    def shapes(self, dims):
        """Tensor name -> shape."""
        b, q, k, h, g, d = (dims[name] for name in self.DIMS)
        return {"Q": (b, q, h, d), "K": (b, k, g, d), "V": (b, k, g, d), "O": (b, q, h, d), "LSE": (b, h, q)}

    def inputs(self, rng, case):
        """Standard normal Q, K and V in float64, before they are rounded to the case's type, and causal.

        Outliers: a few queries and keys 30 times larger, so that scores reach into the thousands and rows have one key
        that takes all, and a value 100 times larger.
        """
        arrays = {name: rng.standard_normal(self.shapes(case)[name]) for name in TENSORS}
        if case.get("outliers"):
            for name, count, factor in (("Q", 5, 30), ("K", 5, 30), ("V", 3, 100)):
                rows = arrays[name].reshape(-1, case["d"])
                rows[rng.choice(len(rows), count, replace=False)] *= factor
        return dict(arrays, causal=np.int32(case.get("causal", False)))

    def pipeline_error(self, Q, K, V, causal, dtype, O):
        """How far off the tile-by-tile version is with P and O in `dtype` and the rest in fp32, the most of several where O, the
        right one, has few elements, since these may all be close by luck."""
        versions = (tile_by_tile(Q, K, V, causal, 64, np.float32, dtype, lift=lift)[0] for lift in lifts(O.size))
        return np.max([np.abs(version.astype(np.float64) - O) for version in versions], axis=0)

    def outputs(self, arrays, dtype):
        """Output name -> (expected in float64, how far a correct kernel may be off).

        O: at most twice the error of the tile-by-tile version with P and O in `dtype` and the rest in fp32: the yardstick of
        FlashAttention's own tests. Rounding each P moves an element of O by at most u * sum P |V|, so that is the unit in
        which the case's largest error is taken, and in which no element may be off by more than twice as much; nor may any
        be off by more than twice the largest error itself. (A kernel rounds other numbers than this version when its maxima
        are those of other tiles, so one element's error says nothing about that element's in the kernel.)

        LSE: a bound. If every score is off by at most e, so is the log of the sum of their exp. A score is an mma sum, times
        scale, and then S - m is rounded; exp adds a relative 4 u, the sum of k positive terms gamma(k), the log, taken in
        fp32, and the final addition 4 u of |m| + |log l| + 1.
        """
        Q, K, V = by_head(arrays)
        causal = bool(arrays["causal"])
        O, LSE = direct(Q, K, V, causal)
        error = self.pipeline_error(Q, K, V, causal, dtype, O)
        unit = direct(Q, K, np.abs(V), causal)[0]
        O_tolerance = 2 * np.minimum((error / np.where(unit == 0, 1, unit)).max() * unit, error.max())

        u, scale = bounds.UNIT_ROUNDOFF["f32"], 1 / np.sqrt(Q.shape[-1])
        absolute = (np.abs(Q) @ np.abs(K).swapaxes(-1, -2)).max(-1) * scale
        score_error = bounds.tensor_core_sum_of_products(Q.shape[-1], absolute) + 4 * u * absolute
        log_error = bounds.gamma(K.shape[-2] + 4, u) + 4 * u * (absolute + np.log(K.shape[-2]) + 1)
        return {
            "O": (O.swapaxes(1, 2), O_tolerance.swapaxes(1, 2)),
            "LSE": (LSE, score_error + log_error),
        }


OPERATIONS = {"attention": Attention()}
