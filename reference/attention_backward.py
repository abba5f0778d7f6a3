"""dQ, dK and dV of attention: the definition, the same tile by tile, how far a kernel may be off, the cases.

Shapes, scale and mask are those of attention.py. What is differentiated is L = sum(O ∘ dO):

    S = scale Q Kᵀ    P = exp(S - LSE)    dP = dO Vᵀ    D = rowsum(dP ∘ P) = rowsum(dO ∘ O)    dS = P ∘ (dP - D)
    dV = Pᵀ dO        dQ = scale dS K     dK = scale dSᵀ Q

since O = P V with P = exp(S) / l, so that dS is what the softmax makes of dP. A key/value head has the sum over its query
heads. A query that sees no key has dQ = 0, and adds nothing to dK and dV. Source: Dao et al., FlashAttention, appendix B.
"""

import attention
import bounds
import dtypes
import numpy as np

INPUTS = (*attention.TENSORS, "O", "dO", "LSE")


def by_group(arrays):
    """Q, O and dO as (b, g, h / g, q, d) in float64, K and V as (b, g, 1, k, d), and LSE as (b, g, h / g, q): the query heads of a
    key/value head side by side. What these functions call rows are the last but one dimension."""
    g = arrays["K"].shape[2]
    group = lambda array: array.astype(np.float64).reshape(array.shape[0], g, -1, *array.shape[2:])
    return *(group(arrays[name].swapaxes(1, 2)) for name in ("Q", "K", "V", "O", "dO")), group(arrays["LSE"])


def over_group(array):
    """The sum over the query heads of a key/value head."""
    return array.sum(-3, keepdims=True)


def probabilities(Q, K, LSE, causal):
    """P; rows of zeros where a query sees no key."""
    S = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
    S = np.where(attention.seen(Q.shape[-2], K.shape[-2], causal), S, -np.inf)
    return np.exp(S - np.where(np.isinf(LSE), 0, LSE)[..., None])


def direct(Q, K, V, dO, causal):
    """The definition, in float64: (dQ, dK, dV)."""
    scale = 1 / np.sqrt(Q.shape[-1])
    O, LSE = attention.direct(Q, K, V, causal)
    P = probabilities(Q, K, LSE, causal)
    dS = P * (dO @ V.swapaxes(-1, -2) - (dO * O).sum(-1, keepdims=True))
    return scale * dS @ K, over_group(scale * dS.swapaxes(-1, -2) @ Q), over_group(P.swapaxes(-1, -2) @ dO)


def tile_by_tile(Q, K, V, O, dO, LSE, causal, block_q=64, block_kv=128, float_type=np.float64, dtype=None):
    """What a kernel's blocks do, for all heads at once: (dQ, dK, dV). Step through it with small matrices.

    A block has block_kv keys, and dK and dV of them; queries come by, block_q at a time. Each pair of tiles adds to dK and
    dV of the block, and to dQ in memory, which other blocks add to as well. Nothing of the forward pass is needed but O and LSE.
    float_type: of scores and accumulators. dtype: what P and dS, before they are multiplied, and the results are rounded to;
    None: not at all.
    """
    to_dtype = (lambda array: dtypes.rounded(array, dtype)) if dtype else (lambda array: array)
    Q, K, V, O, dO, LSE = (array.astype(float_type) for array in (Q, K, V, O, dO, LSE))
    q, k = Q.shape[-2], K.shape[-2]
    scale = float_type(1 / np.sqrt(Q.shape[-1]))
    visible = attention.seen(q, k, causal)
    D = (dO * O).sum(-1, keepdims=True)
    LSE = np.where(np.isinf(LSE), 0, LSE)[..., None]
    dQ, dK, dV = (np.zeros_like(array) for array in (Q, K, V))
    for first in range(0, k, block_kv):
        keys = slice(first, first + block_kv)
        for row in range(0, q, block_q):
            rows = slice(row, row + block_q)
            S = Q[..., rows, :] @ K[..., keys, :].swapaxes(-1, -2) * scale
            P = np.exp(np.where(visible[rows, keys], S - LSE[..., rows, :], float_type(-np.inf)))
            dP = dO[..., rows, :] @ V[..., keys, :].swapaxes(-1, -2)
            dS = to_dtype(P * (dP - D[..., rows, :]))
            dV[..., keys, :] += over_group(to_dtype(P).swapaxes(-1, -2) @ dO[..., rows, :])
            dK[..., keys, :] += over_group(dS.swapaxes(-1, -2) @ Q[..., rows, :])
            dQ[..., rows, :] += dS @ K[..., keys, :]
    return to_dtype(dQ * scale), to_dtype(dK * scale), to_dtype(dV)


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
        }

    def shapes(self, dims):
        shapes = super().shapes(dims)
        return shapes | {"d" + name: shapes[name] for name in ("Q", "K", "V", "O")}

    def inputs(self, rng, case):
        """Those of the forward pass and a standard normal dO, of which with outliers 3 rows are 30 times larger; and O and LSE
        of what is left of Q, K and V in the case's type. Low: all scores are near -200, so that where there is no key, and so a
        score of 0, exp(0 - LSE) is infinite."""
        arrays = super().inputs(rng, case)
        if case.get("low"):
            arrays["Q"][..., 0], arrays["K"][..., 0] = 40, -5 * np.sqrt(case["d"])
        arrays["dO"] = rng.standard_normal(self.shapes(case)["dO"])
        if case.get("outliers"):
            rows = arrays["dO"].reshape(-1, case["d"])
            rows[rng.choice(len(rows), 3, replace=False)] *= 30
        forward = {name: dtypes.rounded(arrays[name], case["dtype"]) for name in attention.TENSORS}
        O, LSE = attention.direct(*attention.by_head(forward), case.get("causal", False))
        return arrays | {"O": O.swapaxes(1, 2), "LSE": LSE.astype(np.float32)}

    def outputs(self, arrays, dtype):
        """Output name -> (expected in float64, how far a correct kernel may be off).

        At most twice the error of the tile-by-tile version with P, dS and the results in `dtype` and the rest in fp32, in units
        of what a rounding of all its P and dS could do to an element, and nowhere more than twice its largest error: as in
        attention.py, and each for the whole tensor. What P's rounding moves dV by is at most u * Pᵀ |dO|. dS is rounded too, and
        it is off by P * u sum |dO| |O| since O was rounded; dQ and dK are sums of that times |K| and |Q|.

        Where nothing is rounded (one key: P = 1, dS = 0) sums of fp32 are left, which a kernel takes in another order. So what
        they may do is added, to first order: a score's error, times P, is that of P; dP and D are sums of d products each.
        """
        Q, K, V, O, dO, LSE = by_group(arrays)
        causal, d = bool(arrays["causal"]), Q.shape[-1]
        scale = 1 / np.sqrt(d)
        P = probabilities(Q, K, attention.direct(Q, K, V, causal)[1], causal)
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
        P_error = P * (bounds.tensor_core_sum_of_products(d, absolute_S) + 5 * u * (absolute_S + absolute_LSE + 1))
        dP_error = bounds.tensor_core_sum_of_products(d, np.abs(dO) @ np.abs(V).swapaxes(-1, -2)) + bounds.fp32_sum_of_products(d, D_unit)

        right = direct(Q, K, V, dO, causal)
        pipeline = tile_by_tile(Q, K, V, O, dO, LSE, causal, float_type=np.float32, dtype=dtype)
        units = without_cancelling(P, P * (np.abs(dP) + D_unit))
        fp32_errors = without_cancelling(P_error, P_error * np.abs(dP) + P * dP_error)
        results = {}
        for name, expected, computed, unit, fp32_error in zip(("dQ", "dK", "dV"), right, pipeline, units, fp32_errors):
            error = np.abs(computed.astype(np.float64) - expected)
            tolerance = 2 * np.minimum((error / np.where(unit == 0, 1, unit)).max() * unit, error.max()) + fp32_error
            shape = (expected.shape[0], -1, *expected.shape[-2:])
            results[name] = (expected.reshape(shape).swapaxes(1, 2), tolerance.reshape(shape).swapaxes(1, 2))
        return results


OPERATIONS = {"attention": AttentionBackward()}
