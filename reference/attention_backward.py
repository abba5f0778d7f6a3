"""dQ, dK and dV of attention: the definition, the same tile by tile, how far a kernel may be off, the cases.

Shapes, scale and mask are those of attention.py, windows and softcap those of attention_variants.py. What is differentiated is
L = sum(O ∘ dO):

    S = scale Q Kᵀ    P = exp(S - LSE)    dP = dO Vᵀ    D = rowsum(dP ∘ P) = rowsum(dO ∘ O)    dS = P ∘ (dP - D)
    dV = Pᵀ dO        dQ = scale dS K     dK = scale dSᵀ Q

since O = P V with P = exp(S) / l, so that dS is what the softmax makes of dP. With softcap c, P is of S' = c tanh(S / c), and dS has
the factor 1 - tanh². A key/value head has the sum over its query heads. A query that sees no key has dQ = 0, and adds nothing to dK
and dV. Source: Dao et al., FlashAttention, appendix B.
"""

import attention
import attention_variants as variants
import bounds
import dtypes
import numpy as np

INPUTS = (*attention.TENSORS, "O", "dO", "LSE")
NO_SINKS = np.full(1, -np.inf)


def by_group(arrays):
    """Q, O and dO as (b, g, h / g, q, d) in float64, K and V as (b, g, 1, k, d), and LSE as (b, g, h / g, q): the query heads of a
    key/value head side by side. What these functions call rows are the last but one dimension."""
    g = arrays["K"].shape[2]
    group = lambda array: array.astype(np.float64).reshape(array.shape[0], g, array.shape[1] // g, *array.shape[2:])
    return *(group(arrays[name].swapaxes(1, 2)) for name in ("Q", "K", "V", "O", "dO")), group(arrays["LSE"])


def by_row(array):
    """(b, g, h / g, rows, …) as arrays are stored: (b, rows, h, …)."""
    return array.reshape(array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:]).swapaxes(1, 2)


def over_group(array):
    """The sum over the query heads of a key/value head."""
    return array.sum(-3, keepdims=True)


def forward(Q, K, V, visible, softcap=0):
    """O and LSE; visible (q, k) says which keys each query sees."""
    return variants.direct(Q, K, V, visible, softcap, NO_SINKS)


def probabilities(Q, K, LSE, visible, softcap, float_type=np.float64):
    """P, rows of zeros where a query sees no key; and the factor that dS has by the softcap."""
    S = variants.scores(Q, K, visible, softcap, float_type)
    slope = 1 - (np.where(visible, S, 0) / softcap) ** 2 if softcap else np.ones_like(S)
    return np.exp(S - np.where(np.isinf(LSE), 0, LSE)[..., None]), slope


def direct(Q, K, V, dO, visible, softcap=0):
    """The definition, in float64: (dQ, dK, dV)."""
    scale = 1 / np.sqrt(Q.shape[-1])
    O, LSE = forward(Q, K, V, visible, softcap)
    P, slope = probabilities(Q, K, LSE, visible, softcap)
    dS = P * slope * (dO @ V.swapaxes(-1, -2) - (dO * O).sum(-1, keepdims=True))
    return scale * dS @ K, over_group(scale * dS.swapaxes(-1, -2) @ Q), over_group(P.swapaxes(-1, -2) @ dO)


def tile_by_tile(Q, K, V, O, dO, LSE, visible, block_q=64, block_kv=128, float_type=np.float64, dtype=None, softcap=0):
    """What a kernel's blocks do, for all heads at once: (dQ, dK, dV). Step through it with small matrices.

    A block has block_kv keys, and dK and dV of them; queries come by, block_q at a time. Each pair of tiles adds to dK and
    dV of the block, and to dQ in memory, which other blocks add to as well. Nothing of the forward pass is needed but O and LSE.
    float_type: of scores and accumulators. dtype: what P and dS, before they are multiplied, and the results are rounded to;
    None: not at all.
    """
    to_dtype = (lambda array: dtypes.rounded(array, dtype)) if dtype else (lambda array: array)
    Q, K, V, O, dO, LSE = (array.astype(float_type) for array in (Q, K, V, O, dO, LSE))
    scale = float_type(1 / np.sqrt(Q.shape[-1]))
    D = (dO * O).sum(-1, keepdims=True)
    dQ, dK, dV = (np.zeros_like(array) for array in (Q, K, V))
    for first in range(0, K.shape[-2], block_kv):
        keys = slice(first, first + block_kv)
        for row in range(0, Q.shape[-2], block_q):
            rows = slice(row, row + block_q)
            P, slope = probabilities(Q[..., rows, :], K[..., keys, :], LSE[..., rows], visible[rows, keys], float_type(softcap), float_type)
            dP = dO[..., rows, :] @ V[..., keys, :].swapaxes(-1, -2)
            dS = to_dtype(P * slope * (dP - D[..., rows, :]))
            dV[..., keys, :] += over_group(to_dtype(P).swapaxes(-1, -2) @ dO[..., rows, :])
            dK[..., keys, :] += over_group(dS.swapaxes(-1, -2) @ Q[..., rows, :])
            dQ[..., rows, :] += dS @ K[..., keys, :]
    return to_dtype(dQ * scale), to_dtype(dK * scale), to_dtype(dV)


def with_tolerances(Q, K, V, O, dO, LSE, visible, softcap, dtype):
    """(expected in float64, how far a correct kernel may be off) of dQ, dK and dV.

    At most twice the error of the tile-by-tile version with P, dS and the results in `dtype` and the rest in fp32, in units
    of what a rounding of all its P and dS could do to an element, and nowhere more than twice its largest error: as in
    attention.py, and each for the whole tensor. What P's rounding moves dV by is at most u * Pᵀ |dO|. dS is rounded too, and
    it is off by P * u sum |dO| |O| since O was rounded; dQ and dK are sums of that times |K| and |Q|.

    Where nothing is rounded (one key: P = 1, dS = 0) sums of fp32 are left, which a kernel takes in another order. So what
    they may do is added, to first order: a score's error, times P, is that of P; dP and D are sums of d products each. A capped
    score, and tanh, are off by a few units of numbers up to the cap, and of 1.
    """
    d = Q.shape[-1]
    scale = 1 / np.sqrt(d)
    P, slope = probabilities(Q, K, forward(Q, K, V, visible, softcap)[1], visible, softcap)
    dP = dO @ V.swapaxes(-1, -2) - (dO * O).sum(-1, keepdims=True)
    D_unit = (np.abs(dO) * np.abs(O)).sum(-1, keepdims=True)

    def without_cancelling(P, dS):
        """dQ, dK and dV of these, all terms positive."""
        return (
            scale * dS @ np.abs(K),
            over_group(scale * dS.swapaxes(-1, -2) @ np.abs(Q)),
            over_group(P.swapaxes(-1, -2) @ np.abs(dO)),
        )

    u = bounds.UNIT_ROUNDOFF["f32"]
    absolute_S = np.abs(Q) @ np.abs(K).swapaxes(-1, -2) * scale
    absolute_LSE = np.abs(np.where(np.isinf(LSE), 0, LSE))[..., None]
    score_error = bounds.tensor_core_sum_of_products(d, absolute_S) + 5 * u * (absolute_S + absolute_LSE + 1) + 16 * u * softcap
    dP_error = bounds.tensor_core_sum_of_products(d, np.abs(dO) @ np.abs(V).swapaxes(-1, -2)) + bounds.fp32_sum_of_products(d, D_unit)
    slope_error = 16 * u if softcap else 0

    right = direct(Q, K, V, dO, visible, softcap)
    pipeline = tile_by_tile(Q, K, V, O, dO, LSE, visible, float_type=np.float32, dtype=dtype, softcap=softcap)
    units = without_cancelling(P, P * slope * (np.abs(dP) + D_unit))
    fp32_errors = without_cancelling(P * score_error, P * (slope * (score_error * np.abs(dP) + dP_error) + slope_error * np.abs(dP)))
    for expected, computed, unit, fp32_error in zip(right, pipeline, units, fp32_errors):
        error = np.abs(computed.astype(np.float64) - expected)
        yield expected, 2 * np.minimum((error / np.where(unit == 0, 1, unit)).max() * unit, error.max()) + fp32_error


class AttentionBackward(attention.Attention):
    HEAD_DIMS = (64, 128, 256)
    INPUTS = (*INPUTS, "causal")
    OWN_TYPE = ("LSE", "causal")

    def cases(self, dtype):
        """Name -> dimensions and what is special about the case."""

        def case(q, k, d, h=1, g=1, b=1, **special):
            return dict(b=b, q=q, k=k, h=h, g=g, d=d, **special)

        if dtype == "f16":
            return {
                "ragged": case(100, 139, 64, h=2),
                "ragged_causal": case(139, 139, 128, causal=True),
                "d256_causal": case(90, 90, 256, causal=True),
                "outliers": case(70, 200, 128, outliers=True),
                "many_keys": case(200, 1300, 64, h=2),
            }
        return {
            "one_key": case(1, 1, 64),
            "one_query": case(1, 300, 128, h=2),
            "one_query_causal": case(1, 140, 256, causal=True),
            "len17": case(17, 17, 128, h=2, g=2),
            "len127": case(127, 127, 64, h=3, g=3),
            "len128": case(128, 128, 128),
            "len128_causal": case(128, 128, 64, h=2, causal=True),
            "len129": case(129, 129, 256),
            "len129_causal": case(129, 129, 128, causal=True),
            "len250": case(250, 250, 64),
            "len250_causal": case(250, 250, 128, causal=True),
            "d256_causal": case(250, 250, 256, h=2, g=2, causal=True),
            "whole_tiles": case(384, 384, 64, h=2, g=2),
            "whole_tiles_causal": case(256, 384, 128, b=2, causal=True),
            "d256_whole_tiles": case(128, 256, 256, h=2, g=2),
            "len600_causal": case(600, 600, 64, causal=True),
            "few_queries_causal": case(70, 300, 128, causal=True),
            "few_keys": case(300, 50, 128),
            "low_scores": case(70, 50, 64, low=True),
            "empty_rows_causal": case(300, 70, 64, causal=True),
            "d256_empty_rows_causal": case(200, 30, 256, causal=True),
            "empty_tiles_causal": case(400, 3, 128, causal=True),
            "shared_heads": case(70, 150, 64, h=6, g=2, b=2),
            "shared_heads_causal": case(140, 140, 128, h=4, g=1, b=2, causal=True),
            "d256_shared_heads_causal": case(80, 80, 256, h=3, g=1, causal=True),
            "outliers": case(100, 200, 64, h=2, outliers=True),
            "outliers_causal": case(200, 200, 128, causal=True, outliers=True),
            "many_keys": case(100, 2100, 64),
            "many_keys_causal": case(70, 2100, 128, causal=True),
        }

    def shapes(self, dims):
        shapes = super().shapes(dims)
        return shapes | {"d" + name: shapes[name] for name in ("Q", "K", "V", "O")}

    def inputs(self, rng, case):
        """Those of the forward pass and a standard normal dO, of which with outliers 3 rows are 30 times larger; and O and LSE
        of what is left of Q, K and V in the case's type. Low: all scores are near -200, so that where there is no key, and so a
        score of 0, exp(0 - LSE) is infinite."""
        arrays = super().inputs(rng, case) | self.options(case)
        if case.get("low"):
            arrays["Q"][..., 0], arrays["K"][..., 0] = 40, -5 * np.sqrt(case["d"])
        shapes = self.shapes(case)
        arrays["dO"] = rng.standard_normal(shapes["dO"])
        if case.get("outliers"):
            rows = arrays["dO"].reshape(-1, case["d"])
            rows[rng.choice(len(rows), 3, replace=False)] *= 30
        arrays["O"], arrays["LSE"] = np.zeros(shapes["O"]), np.zeros(shapes["LSE"], np.float32)
        rounded = arrays | {name: dtypes.rounded(arrays[name], case["dtype"]) for name in attention.TENSORS}
        for queries, keys, LSE in self.sequences(arrays):
            Q, K, V, *_ = by_group(self.sequence(rounded, queries, keys, LSE))
            O, row_LSE = forward(Q, K, V, self.visible(arrays, Q.shape[-2], K.shape[-2]), float(arrays.get("softcap", 0)))
            arrays["O"][queries][...] = by_row(O)
            arrays["LSE"][LSE][...] = by_row(row_LSE).swapaxes(1, 2)
        return {name: arrays[name] for name in self.INPUTS}

    def options(self, case):
        """What a case has besides tensors."""
        return {}

    def visible(self, arrays, q, k):
        return attention.seen(q, k, bool(arrays["causal"]))

    def sequences(self, arrays):
        """Indices of Q's rows, of K's and of LSE, that give views (b, rows, h, d) and (b, h, rows) of sequences of equal lengths."""
        return [(..., ..., ...)]

    def sequence(self, arrays, queries, keys, LSE):
        index = dict(Q=queries, K=keys, V=keys, O=queries, dO=queries, LSE=LSE)
        return {name: arrays[name][index[name]] for name in index}

    def outputs(self, arrays, dtype):
        """Output name -> (expected in float64, how far a correct kernel may be off), sequence by sequence."""
        results = {"d" + name: (np.zeros(arrays[name].shape), np.zeros(arrays[name].shape)) for name in attention.TENSORS}
        for queries, keys, LSE in self.sequences(arrays):
            grouped = by_group(self.sequence(arrays, queries, keys, LSE))
            visible = self.visible(arrays, grouped[0].shape[-2], grouped[1].shape[-2])
            if visible.size == 0:
                continue
            found = with_tolerances(*grouped, visible, float(arrays.get("softcap", 0)), dtype)
            for (name, result), index, pair in zip(results.items(), (queries, keys, keys), found):
                for whole, part in zip(result, pair):
                    whole[index][...] = by_row(part)
        return results


class Window(AttentionBackward):
    """left and right of a case are None where they are unbounded, which is any number from q + k on."""

    DIMS = ("b", "q", "k", "h", "g", "d")
    INPUTS = (*INPUTS, "left", "right", "deterministic")
    OWN_TYPE = ("LSE", "left", "right", "deterministic", "softcap", "b", "q", "k", "cu_q", "cu_k")

    def case(self, q, k, d, h=1, g=1, b=1, left=None, right=None, **special):
        far = q + k
        return dict(b=b, q=q, k=k, h=h, g=g, d=d, left=far if left is None else left, right=far if right is None else right, **special)

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"band": case(139, 139, 128, left=30, right=5)}
        return {
            "left": case(300, 300, 128, left=70, right=0, deterministic=1),
            "band": case(150, 260, 64, h=2, left=40, right=17),
            "one_key": case(140, 140, 64, left=0, right=0),
            "ahead": case(260, 140, 128, h=2, left=0, right=60),
            "d256_band": case(130, 200, 256, left=50, right=3, deterministic=1),
        }

    def of_shape(self, dims):
        far = dims["q"] + dims["k"]
        return {"full": dict(dims, left=far, right=far), "window": dict(dims, left=dims["k"] // 3, right=0)}

    def options(self, case):
        return {name: np.int32(case.get(name, 0)) for name in ("left", "right", "deterministic")}

    def visible(self, arrays, q, k):
        return variants.seen(q, k, int(arrays["left"]), int(arrays["right"]))


class Softcap(Window):
    INPUTS = (*Window.INPUTS, "softcap")

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"causal": case(139, 139, 128, right=0, softcap=20)}
        return {
            "full": case(100, 139, 64, h=2, softcap=50),
            "causal": case(130, 200, 128, h=2, right=0, softcap=30),
            "tight": case(70, 200, 64, softcap=1),
            "outliers": case(100, 150, 128, softcap=50, outliers=True),
            "d256_window": case(100, 100, 256, left=40, right=0, softcap=20, deterministic=1),
        }

    def of_shape(self, dims):
        return {name: dict(case, softcap=30) for name, case in super().of_shape(dims).items()}

    def options(self, case):
        return super().options(case) | {"softcap": np.float32(case.get("softcap", 0))}


class Varlen(Softcap):
    """Sequences one behind the other: cases have their lengths, of queries and of keys."""

    INPUTS = (*Softcap.INPUTS, "b", "q", "k", "cu_q", "cu_k")

    def lengths(self, queries, keys, d, **special):
        return dict(self.case(max(queries), max(keys), d, b=len(queries), **special), queries=queries, keys=keys)

    def cases(self, dtype):
        lengths = self.lengths
        if dtype == "f16":
            return {"causal": lengths((70, 1, 130), (70, 1, 130), 128, h=4, g=2, right=0)}
        return {
            "full": lengths((100, 30, 129), (50, 139, 128), 64, h=2),
            "causal": lengths((127, 1, 128, 0, 65), (127, 1, 128, 0, 65), 128, h=4, g=2, right=0, deterministic=1),
            "no_keys": lengths((10, 20, 30), (0, 25, 0), 64, right=0),
            "no_queries": lengths((0, 0, 40, 0), (20, 0, 60, 5), 128),
            "many": lengths(tuple(range(40)), tuple(range(1, 41)), 64, right=0),
            "window_softcap": lengths((90, 200), (90, 180), 128, h=2, g=2, left=60, right=0, softcap=30),
            "d256": lengths((60, 100), (99, 130), 256, right=0, deterministic=1),
        }

    def of_shape(self, dims):
        """Lengths that fall by a third from sequence to sequence."""
        queries, keys = ([max(dims[name] * 2**i // 3**i, 1) for i in range(dims["b"])] for name in "qk")
        far = dims["q"] + dims["k"]
        dims = dict(dims, queries=queries, keys=keys, left=far, right=far)
        return {"full": dims, "causal": dict(dims, right=0)}

    def shapes(self, dims):
        q, k = sum(dims.get("queries", [dims["b"] * dims["q"]])), sum(dims.get("keys", [dims["b"] * dims["k"]]))
        h, g, d = (dims[name] for name in "hgd")
        shapes = {"Q": (q, h, d), "K": (k, g, d), "V": (k, g, d), "O": (q, h, d), "LSE": (h, q)}
        return shapes | {"d" + name: shapes[name] for name in ("Q", "K", "V", "O")}

    def options(self, case):
        cu = {"cu_" + name: np.cumsum([0, *case[lengths]]).astype(np.int32) for name, lengths in (("q", "queries"), ("k", "keys"))}
        return super().options(case) | {name: np.int32(case[name]) for name in "bqk"} | cu

    def sequences(self, arrays):
        rows, keys = ([slice(*ends) for ends in zip(cu[:-1], cu[1:])] for cu in (arrays["cu_q"], arrays["cu_k"]))
        return [((None, q), (None, k), (None, slice(None), q)) for q, k in zip(rows, keys)]


OPERATIONS = {"attention": AttentionBackward(), "window": Window(), "softcap": Softcap(), "varlen": Varlen()}
