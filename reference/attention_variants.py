"""Attention as in attention.py, with the variants of chapter 16; the cases of each.

Every case is a list of sequences: query i of a sequence with q queries and k keys is at place i + k - q of them and sees the keys
from `left` before it to `right` behind it. softcap c > 0: scores s become c tanh(s / c). A sink is one more score of each row of
a head, without a value. Each operation says where in its arrays the rows of a sequence are, and the rest is the same for all.
"""

import attention
import bounds
import dtypes
import numpy as np
import sm90_attention


def seen(q, k, left, right):
    """(q, k) of booleans: which keys each query sees."""
    place = np.arange(q)[:, None] + k - q
    return (np.arange(k) >= place - left) & (np.arange(k) <= place + right)


def scores(Q, K, visible, softcap, float_type=np.float64):
    """(h, q, k): scale Q Kᵀ, capped; -inf where a query does not see the key."""
    S = Q @ K.swapaxes(-1, -2) * float_type(1 / np.sqrt(Q.shape[-1]))
    S = softcap * np.tanh(S / float_type(softcap)) if softcap else S
    return np.where(visible, S, float_type(-np.inf))


def direct(Q, K, V, visible, softcap, sinks):
    """The definition, for (h, rows, d) in float64; sinks is (h,), -inf where there is none: (O, LSE)."""
    S = scores(Q, K, visible, softcap)
    m = np.maximum(S.max(-1, initial=-np.inf), sinks[:, None])[..., None]
    m = np.where(np.isinf(m), 0, m)
    P = np.exp(S - m)
    l = P.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - m)
    with np.errstate(divide="ignore"):
        return P @ V / np.where(l == 0, 1, l), (m + np.log(l))[..., 0]


def tile_by_tile(Q, K, V, visible, softcap, sinks, dtype, slack, block_kv=64, lift=0):
    """O as a kernel has it, P and O rounded to dtype and the rest in fp32; slack and lift as in attention.tile_by_tile."""
    Q, K, V, sinks = (array.astype(np.float32) for array in (Q, K, V, sinks))
    m = np.full((*Q.shape[:-1], 1), np.finfo(np.float32).min, np.float32)
    l = np.zeros_like(m)
    O = np.zeros((*Q.shape[:-1], V.shape[-1]), np.float32)
    for first in range(0, K.shape[-2], block_kv):
        tile = slice(first, first + block_kv)
        S = scores(Q, K[..., tile, :], visible[:, tile], np.float32(softcap), np.float32)
        maximum = S.max(-1, keepdims=True)
        m_new = np.where(maximum - m > np.float32(slack * np.log(2)), maximum, m)
        rescale, P = np.exp(m - m_new), np.exp(S - m_new + np.float32(lift * np.log(2)))
        l = l * rescale + P.sum(-1, keepdims=True)
        O = O * rescale + dtypes.rounded(P, dtype) @ V[..., tile, :]
        m = m_new
    top = np.maximum(m, sinks[:, None, None])
    l = l * np.exp(m - top) + np.exp(sinks[:, None, None] - top + np.float32(lift * np.log(2)))
    return dtypes.rounded(O * np.exp(m - top) / np.where(l == 0, 1, l), dtype).astype(np.float64)


def by_head(LSE, tolerance):
    """(…, rows, h) as it is stored: (…, h, rows)."""
    return tuple(np.ascontiguousarray(array.swapaxes(-1, -2)) for array in (LSE, tolerance))


def turned(rows, places, cos, sin, interleaved):
    """(n, h, d), of fewer than 24 bits, with its first 2 cos.shape[1] numbers turned by the angles of its places (rotary position
    embedding), in fp32 as the kernel does it: a product is rounded, the other is part of an FMA. The result is the kernel's."""
    half = cos.shape[1]
    x, y = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    c, s = (table[places][:, None].astype(np.float64) for table in (cos, sin))
    result = rows.astype(np.float32)
    X, Y = rows[..., x].astype(np.float64), rows[..., y].astype(np.float64)
    result[..., x] = X * c - (Y * s).astype(np.float32)
    result[..., y] = X * s + (Y * c).astype(np.float32)
    return result


class Variants(sm90_attention.Sm90Attention):
    """What the operations have in common; these arrays are (b, q, h, d)."""

    HEAD_DIMS = {(64, 64), (128, 128), (256, 256), (192, 128), (64, 256)}
    ONE_HEAD_DIM = False  # whether the steps take only those that are alike
    DIMS = ("b", "q", "k", "h", "g", "d", "v")
    INPUTS = ("left", "right", "Q", "K", "V")
    OWN_TYPE = ("left", "right", "softcap", "sinks", "b", "q", "k", "cu_q", "cu_k", "used_k", "page_table",
                "rotary_cos", "rotary_sin", "interleaved")
    OPTIONAL = ()

    def case(self, q, k, d, v=None, h=1, g=1, b=1, left=None, right=None, **special):
        """A case; left and right None: unbounded, which is any number from q + k on."""
        unbounded = q + k
        return dict(b=b, q=q, k=k, h=h, g=g, d=d, v=v or d, left=unbounded if left is None else left,
                    right=unbounded if right is None else right, **special)

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"causal": case(139, 139, 128, right=0), "band": case(200, 300, 64, left=40, right=17)}
        return {
            "full": case(100, 139, 64, h=2),
            "causal": case(300, 300, 128, h=2, right=0),
            "left": case(400, 400, 128, left=100, right=0),
            "one_key": case(300, 300, 64, h=3, left=0, right=0),
            "band": case(257, 500, 128, left=130, right=70),
            "right": case(200, 333, 64, right=20),
            "edges": case(385, 385, 64, left=128, right=127),
            "wide": case(129, 127, 128, left=1000, right=1000),
            "empty_rows": case(300, 70, 64, left=50, right=0),
            "d256": case(200, 500, 256, left=150, right=0),
            "shared_heads": case(140, 140, 128, h=6, g=2, b=2, left=64, right=3),
            "rising": case(200, 900, 128, left=600, right=0, rising=True),
            "many_tiles": case(300, 300, 64, h=30, g=10, b=2, left=70, right=0),
            "one_query": case(1, 1000, 128, h=2, left=300, right=0),
        }

    def of_shape(self, dims):
        unbounded = dims["q"] + dims["k"]
        return {"full": dict(dims, left=unbounded, right=unbounded), "causal": dict(dims, left=unbounded, right=0),
                "window": dict(dims, left=dims["k"] // 3, right=dims["k"] // 7)}

    def check_shape(self, dims, dtype):
        if self.ONE_HEAD_DIM and dims["d"] != dims["v"]:
            return "d and v must be the same; others are what step head_dims brings"
        if (dims["d"], dims["v"]) not in self.HEAD_DIMS:
            return "d and v must be 64, 128 or 256, or d=192 with v=128, or d=64 with v=256"
        if dims["h"] % dims["g"]:
            return "h must be a multiple of g: every key/value head serves as many query heads"
        return None

    def shapes(self, dims):
        b, q, k, h, g, d, v = (dims[name] for name in ("b", "q", "k", "h", "g", "d", "v"))
        return {"Q": (b, q, h, d), "K": (b, k, g, d), "V": (b, k, g, v), "O": (b, q, h, v), "LSE": (b, h, q)}

    def inputs(self, rng, case):
        """Normal numbers; NaN in K and V where no sequence has a key; what else the operation has, as the case says."""
        arrays = {name: rng.standard_normal(self.shapes(case)[name]) for name in ("Q", "K", "V")}
        arrays |= {name: np.int32(case[name]) for name in ("left", "right")}
        if case.get("outliers"):
            for name, count, factor in (("Q", 5, 30), ("K", 5, 30), ("V", 3, 100)):
                rows = arrays[name].reshape(-1, arrays[name].shape[-1])
                rows[rng.choice(len(rows), count, replace=False)] *= factor
        if case.get("rising"):
            arrays["Q"][..., 0] = 1
            arrays["K"][..., 0] = 0.12 * np.sqrt(case["d"]) * np.arange(case["k"])[:, None]
        if "softcap" in self.INPUTS:
            arrays["softcap"] = np.float32(case.get("softcap", 0))
        if "sinks" in self.INPUTS and (case.get("sinks") is not None or "sinks" not in self.OPTIONAL):
            arrays["sinks"] = (rng.standard_normal(case["h"]) * case.get("sinks", 1)).astype(np.float32)
        return arrays

    def sequences(self, arrays):
        """(rows of Q and O, rows of K and V), each an index of the arrays, for each sequence."""
        return [((i,), (i,)) for i in range(len(arrays["Q"]))]

    def outputs(self, arrays, dtype):
        """O and LSE of each sequence, each with its tolerance, put together; as attention.Attention has them."""
        O = np.zeros((*arrays["Q"].shape[:-1], arrays["V"].shape[-1]))
        O_tolerance = np.zeros_like(O)
        LSE = np.zeros(O.shape[:-1])
        LSE_tolerance = np.zeros_like(LSE)
        for queries, keys in self.sequences(arrays):
            if arrays["Q"][queries].shape[0] > 0:
                result = self.sequence(arrays, arrays["Q"][queries], arrays["K"][keys], arrays["V"][keys], dtype)
                O[queries], O_tolerance[queries], LSE[queries], LSE_tolerance[queries] = result
        return {"O": (O, O_tolerance), "LSE": by_head(LSE, LSE_tolerance)}

    def sequence(self, arrays, Q, K, V, dtype):
        """O and LSE of one sequence, (rows, h, …), with their tolerances: of O as in attention.py; of LSE the same bound, and
        what the softcap adds: tanh and its units are computed with a few roundings of numbers up to softcap."""
        heads = Q.shape[1]
        Q, K, V = (np.asarray(array, np.float64).swapaxes(0, 1) for array in (Q, K, V))
        K, V = (array.repeat(heads // array.shape[0], axis=0) for array in (K, V))
        softcap = float(arrays.get("softcap", 0))
        sinks = np.asarray(arrays.get("sinks", np.full(heads, -np.inf)), np.float64)
        visible = seen(Q.shape[1], K.shape[1], int(arrays["left"]), int(arrays["right"]))
        O, LSE = direct(Q, K, V, visible, softcap, sinks)
        unit = direct(Q, K, np.abs(V), visible, softcap, sinks)[0]
        error = np.zeros_like(O)
        if K.shape[1]:
            # One that is lifted in any case: without, a row's one large P is 1, and not rounded.
            for slack, lift in (0, 0), (8, 0), (0, 0.618), *((0, lift) for lift in attention.lifts(O.size)[2:]):
                version = tile_by_tile(Q, K, V, visible, softcap, sinks, dtype, slack, lift=lift)
                error = np.maximum(error, np.abs(version - O))
        # Where every row's P are so few that nothing is rounded, O is still rounded once.
        least = bounds.UNIT_ROUNDOFF[dtype] * np.abs(O)
        O_tolerance = np.maximum(2 * np.minimum((error / np.where(unit == 0, 1, unit)).max() * unit, error.max()), least)

        u, scale = bounds.UNIT_ROUNDOFF["f32"], 1 / np.sqrt(Q.shape[-1])
        absolute = (np.abs(Q) @ np.abs(K).swapaxes(-1, -2)).max(-1, initial=0) * scale
        score_error = bounds.tensor_core_sum_of_products(Q.shape[-1], absolute) + 4 * u * absolute + 16 * u * softcap
        sink = np.where(np.isinf(sinks), 0, np.abs(sinks))[:, None]
        log_error = bounds.gamma(K.shape[1] + 12, u) + 8 * u * (absolute + sink + np.log(K.shape[1] + 1) + 1)
        return (O.swapaxes(0, 1), O_tolerance.swapaxes(0, 1), LSE.swapaxes(0, 1), (score_error + log_error).swapaxes(0, 1))


class Window(Variants):
    ONE_HEAD_DIM = True


class Softcap(Window):
    INPUTS = ("left", "right", "softcap", "Q", "K", "V")

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"causal": case(139, 139, 128, right=0, softcap=20)}
        return {
            "full": case(100, 139, 64, h=2, softcap=50),
            "causal": case(200, 200, 128, h=2, right=0, softcap=30),
            "tight": case(130, 300, 64, softcap=1),
            "window": case(300, 300, 256, left=70, right=0, softcap=50),
            "outliers": case(100, 200, 128, softcap=50, outliers=True),
            "one_query": case(1, 700, 128, h=8, g=2, softcap=30, right=0),
        }

    def of_shape(self, dims):
        return {name: dict(case, softcap=30) for name, case in super().of_shape(dims).items()}


class Sinks(Window):
    INPUTS = ("left", "right", "sinks", "Q", "K", "V")

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"window": case(139, 139, 64, left=30, right=0)}
        return {
            "full": case(100, 139, 64, h=2),
            "window": case(300, 300, 64, h=8, g=2, left=127, right=0),
            "strong": case(130, 130, 128, h=3, g=3, right=0, sinks=30),
            "empty_rows": case(200, 70, 128, h=2, g=2, right=0),
            "one_query": case(1, 700, 128, h=8, g=2, right=0),
        }


class HeadDims(Variants):
    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"mla_causal": case(139, 139, 192, 128, right=0), "wide_v": case(70, 150, 64, 256)}
        return {
            "mla": case(200, 333, 192, 128, h=2),
            "mla_causal": case(400, 400, 192, 128, h=2, g=2, right=0),
            "mla_one_query": case(1, 500, 192, 128, h=4, right=0),
            "wide_v": case(200, 200, 64, 256, h=2),
            "wide_v_causal": case(300, 300, 64, 256, right=0, h=2, g=2),
            "wide_v_rising": case(70, 500, 64, 256, rising=True),
            "wide_v_one_query": case(1, 500, 64, 256, h=3, g=3),
        }


class Varlen(Variants):
    """Sequences one behind the other: cases have their lengths, of queries and of keys."""

    INPUTS = ("left", "right", "softcap", "b", "q", "k", "sinks", "cu_q", "cu_k", "Q", "K", "V")
    OPTIONAL = ("sinks",)

    def lengths(self, queries, keys, d, **special):
        return dict(self.case(max(queries), max(keys), d, b=len(queries), **special), queries=queries, keys=keys)

    def cases(self, dtype):
        lengths = self.lengths
        if dtype == "f16":
            return {"causal": lengths((70, 1, 200), (70, 1, 200), 128, h=4, g=2, right=0)}
        return {
            "full": lengths((100, 30, 129), (50, 139, 128), 64, h=2),
            "causal": lengths((127, 1, 128, 0, 129, 300), (127, 1, 128, 0, 129, 300), 128, h=4, g=2, right=0),
            "no_keys": lengths((10, 20, 30), (0, 25, 0), 64, right=0),
            "no_queries": lengths((0, 0, 40, 0), (20, 0, 60, 5), 128),
            "window": lengths((300, 200, 64), (300, 260, 500), 128, h=2, left=70, right=10),
            "prefill_and_decode": lengths((1, 150, 1, 1), (300, 150, 77, 129), 128, h=8, g=1, right=0),
            "softcap_sinks": lengths((90, 200), (90, 200), 64, h=4, g=4, left=60, right=0, softcap=30, sinks=1),
            "many": lengths(tuple(range(70)), tuple(range(1, 71)), 64, h=3, g=3, right=0),
            "d256": lengths((60, 200), (99, 200), 256, right=0),
            "mla": lengths((130, 70), (130, 170), 192, v=128, h=2, g=2, right=0),
        }

    def of_shape(self, dims):
        """Lengths that fall by a third from sequence to sequence."""
        queries, keys = ([max(dims[name] * 2**i // 3**i, 1) for i in range(dims["b"])] for name in "qk")
        dims = dict(dims, queries=queries, keys=keys, left=dims["q"] + dims["k"], right=dims["q"] + dims["k"])
        return {"full": dims, "causal": dict(dims, right=0)}

    def shapes(self, dims):
        q, k = sum(dims.get("queries", [dims["b"] * dims["q"]])), sum(dims.get("keys", [dims["b"] * dims["k"]]))
        h, g, d, v = (dims[name] for name in "hgdv")
        return {"Q": (q, h, d), "K": (k, g, d), "V": (k, g, v), "O": (q, h, v), "LSE": (h, q)}

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case) | {name: np.int32(case[name]) for name in "bqk"}
        for name, lengths in ("cu_q", case["queries"]), ("cu_k", case["keys"]):
            arrays[name] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return arrays

    def sequences(self, arrays):
        bounds_of = [[slice(first, end) for first, end in zip(cu[:-1], cu[1:])] for cu in (arrays["cu_q"], arrays["cu_k"])]
        return list(zip(*bounds_of))


class PackGQA(Variants):
    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"one_query": case(1, 300, 128, h=8, g=1, right=0)}
        return {
            "one_query": case(1, 300, 128, h=8, g=1, right=0),
            "ratio4": case(5, 200, 64, h=8, g=2, right=0),
            "ratio6": case(7, 200, 128, h=12, g=2, right=0, b=2),
            "ratio3": case(30, 139, 64, h=9, g=3, left=50, right=2),
            "ratio71": case(2, 100, 64, h=71, g=1, right=0),
            "ratio128": case(1, 200, 128, h=128, g=1, right=0),
            "long": case(150, 150, 128, h=8, g=1, right=0),
            "d256": case(3, 200, 256, h=8, g=1, right=0),
        }


class Cache(Variants):
    """K and V have room for k keys, of which used_k[i] are there; behind them is NaN."""

    INPUTS = ("left", "right", "used_k", "Q", "K", "V")
    OPTIONAL = ("used_k",)

    def used(self, *used_k, **special):
        return dict(self.case(b=len(used_k), **special), used_k=used_k)

    def cases(self, dtype):
        case, used = self.case, self.used
        if dtype == "f16":
            return {"used": used(300, 1, 1000, q=1, k=1000, d=128, h=8, g=2, right=0)}
        return {
            "one_query": case(1, 3000, 128, h=8, g=2, right=0),
            "many_parts": case(1, 9300, 64, h=1, right=0),  # more than a warp's 32 lanes
            "used": used(300, 1, 1000, 257, q=1, k=1000, d=128, h=8, g=2, right=0),
            "empty_cache": used(0, 700, q=2, k=700, d=64, h=4, g=4, right=0),
            "parts_beyond": used(5, 2000, q=1, k=2000, d=64, h=2, g=2, right=0),
            "window": case(3, 2500, 64, h=2, left=700, right=0),
            "rising": case(2, 1500, 128, h=2, g=2, right=0, rising=True),
            "few_blocks": case(150, 1500, 128, h=2),
            "mla": case(1, 1500, 192, 128, h=16, g=16, right=0),
            "d256": case(1, 1100, 256, h=4, right=0),
        }

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case)
        if "used_k" in case:
            arrays["used_k"] = np.array(case["used_k"], np.int32)
            for name in "KV":
                for rows, used in zip(arrays[name], case["used_k"]):
                    rows[used:] = np.nan
        return arrays

    def sequences(self, arrays):
        used_k = arrays.get("used_k", np.full(len(arrays["Q"]), arrays["K"].shape[1]))
        return [((i,), (i, slice(0, used))) for i, used in enumerate(used_k)]


class Paged(Cache):
    """K and V in pages: cases have the page's size s, and n pages at most a sequence. Pages lie in random order, more than are
    needed; what is no key of a sequence is NaN, and places of the table that no key is at name a page that is not there."""

    DIMS = ("b", "q", "k", "h", "g", "d", "v", "s")
    INPUTS = ("left", "right", "softcap", "sinks", "used_k", "page_table", "Q", "K", "V")
    OPTIONAL = ("sinks",)

    def cases(self, dtype):
        used = self.used
        if dtype == "f16":
            return {"page16": used(300, 1, 77, q=1, k=300, d=128, h=8, g=2, right=0, s=16)}
        return {
            "page1": used(200, 1, 129, q=1, k=200, d=64, h=4, g=2, right=0, s=1),
            "page8": used(150, 77, q=1, k=150, d=256, h=2, g=2, right=0, s=8),
            "page10": used(95, 200, q=3, k=200, d=128, h=2, g=2, right=0, s=10),
            "page16": used(300, 1, 128, 129, q=1, k=300, d=128, h=8, g=1, right=0, s=16),
            "page24": used(333, 100, q=70, k=333, d=128, h=2, g=2, right=0, s=24),
            "page64": used(400, 127, q=70, k=400, d=128, h=2, g=1, right=0, s=64),
            "page128": used(500, 300, q=200, k=500, d=64, h=2, g=2, s=128),
            "page256": used(700, 0, q=1, k=700, d=128, h=4, g=4, right=0, s=256),
            "page48": used(333, q=150, k=333, d=256, h=2, g=2, right=0, s=48),
            "splits": used(2000, 900, q=1, k=2000, d=128, h=8, g=2, right=0, s=16),
            "gather_splits": used(1500, q=1, k=1500, d=128, h=8, g=2, right=0, s=1),
            "gather_d256": used(500, q=1, k=500, d=256, h=2, g=2, right=0, s=5),
            "gather_long": used(300, q=200, k=300, d=64, h=2, g=2, right=0, s=3),
            "window_softcap_sinks": used(700, 300, q=2, k=700, d=64, h=8, g=2, left=200, right=0, s=16, softcap=20, sinks=1),
            "mla": used(300, 200, q=5, k=300, d=192, v=128, h=4, g=4, right=0, s=64),
        }

    def of_shape(self, dims):
        unbounded = dims["q"] + dims["k"]
        used_k = [max(dims["k"] * 2**i // 3**i, 1) for i in range(dims["b"])]
        dims = dict(dims, used_k=used_k, left=unbounded, right=unbounded)
        return {"full": dims, "causal": dict(dims, right=0)}

    def shapes(self, dims):
        b, q, k, h, g, d, v, s = (dims[name] for name in self.DIMS)
        pages = b * (-(-k // s)) + 3
        return {"Q": (b, q, h, d), "K": (pages, s, g, d), "V": (pages, s, g, v), "O": (b, q, h, v), "LSE": (b, h, q)}

    def inputs(self, rng, case):
        arrays = Variants.inputs(self, rng, case)
        pages, s = arrays["K"].shape[:2]
        table = rng.permutation(pages)[: case["b"] * (-(-case["k"] // s))].reshape(case["b"], -1).astype(np.int32)
        is_key = np.zeros((pages, s), bool)
        for row, used in zip(table, case["used_k"]):
            is_key[row[np.arange(used) // s], np.arange(used) % s] = True
            row[-(-used // s):] = pages  # past the last
        for name in "KV":
            arrays[name][~is_key] = np.nan
        return arrays | {"used_k": np.array(case["used_k"], np.int32), "page_table": table}

    def sequences(self, arrays):
        s = arrays["K"].shape[1]
        return [((i,), (table[np.arange(used) // s], np.arange(used) % s))
                for i, (table, used) in enumerate(zip(arrays["page_table"], arrays["used_k"]))]


class Append(Variants):
    """A cache (p = b, s = k), or pages, that gets `new` keys a sequence; cos and sin of rotary angles for every place."""

    DIMS = ("b", "q", "k", "h", "g", "d", "v", "new")
    INPUTS = ("left", "right", "interleaved", "used_k", "page_table", "Q", "K", "V", "K_new", "V_new", "rotary_cos", "rotary_sin")
    OPTIONAL = ("page_table",)

    def cases(self, dtype):
        case = self.case
        if dtype == "f16":
            return {"one": case(1, 200, 128, h=4, b=2, right=0, new=1, used_k=(100, 7), half=64)}
        return {
            "one": case(1, 300, 128, h=8, g=2, b=3, right=0, new=1, used_k=(100, 0, 299), half=64),
            "interleaved": case(1, 200, 64, h=4, b=2, right=0, new=1, used_k=(100, 7), half=16, interleaved=1),
            "several": case(5, 300, 128, h=4, g=2, b=2, right=0, new=5, used_k=(130, 64), half=32),
            "more_queries": case(6, 100, 64, h=2, b=2, right=0, new=3, used_k=(1, 40), half=32),
            "pages": case(1, 320, 128, h=8, g=2, b=3, right=0, new=1, used_k=(100, 0, 300), half=64, s=16),
            "pages_gather": case(2, 99, 64, h=4, g=2, b=2, left=50, right=0, new=2, used_k=(30, 97), half=8, s=3, interleaved=1),
            "mla": case(1, 1000, 192, 128, h=4, g=1, b=1, right=0, new=1, used_k=(900,), half=32),
        }

    def of_shape(self, dims):
        used_k = [max(dims["k"] - dims["new"] - 3 * i, 0) for i in range(dims["b"])]
        return {"causal": dict(dims, used_k=used_k, half=dims["d"] // 2, left=dims["q"] + dims["k"], right=0)}

    def check_shape(self, dims, dtype):
        if dims["new"] > dims["k"]:
            return "k, the cache's room, must be at least new"
        return super().check_shape(dims, dtype)

    def shapes(self, dims):
        b, q, k, h, g, d, v, new = (dims[name] for name in self.DIMS)
        s = dims.get("s", k)
        pages = b * (-(-k // s)) + (2 if "s" in dims else 0)
        return {"Q": (b, q, h, d), "K": (pages, s, g, d), "V": (pages, s, g, v), "K_new": (b, new, g, d),
                "V_new": (b, new, g, v), "O": (b, q, h, v), "LSE": (b, h, q)}

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case) | {name: rng.standard_normal(self.shapes(case)[name]) for name in ("K_new", "V_new")}
        pages, s = arrays["K"].shape[:2]
        if "s" in case:
            arrays["page_table"] = rng.permutation(pages)[: case["b"] * (-(-case["k"] // s))].reshape(case["b"], -1).astype(np.int32)
        angles = np.arange(case["k"])[:, None] * 100.0 ** -(np.arange(case["half"]) / case["half"])
        return arrays | {"used_k": np.array(case["used_k"], np.int32), "interleaved": np.int32(case.get("interleaved", 0)),
                         "rotary_cos": np.cos(angles).astype(np.float32), "rotary_sin": np.sin(angles).astype(np.float32)}

    def outputs(self, arrays, dtype):
        """The cache afterwards, bit for bit; O and LSE follow from it and from Q as it is turned."""
        cos, sin = arrays["rotary_cos"], arrays["rotary_sin"]
        interleaved, new, q = int(arrays["interleaved"]), arrays["K_new"].shape[1], arrays["Q"].shape[1]
        Q, K, V = (np.asarray(arrays[name], np.float64).copy() for name in "QKV")
        s, rows = K.shape[1], []
        for i, used in enumerate(arrays["used_k"]):
            table = arrays["page_table"][i] if "page_table" in arrays else np.array([i])
            rows.append((table[np.arange(used + new) // s], np.arange(used + new) % s))
            at = tuple(index[used:] for index in rows[i])
            places = np.arange(used, used + new)
            K[at] = dtypes.rounded(turned(arrays["K_new"][i], places, cos, sin, interleaved), dtype)
            V[at] = arrays["V_new"][i]
            places = np.maximum(used + new - q + np.arange(q), 0)
            Q[i] = dtypes.rounded(turned(arrays["Q"][i], places, cos, sin, interleaved), dtype)
        O, O_tolerance = np.zeros((*Q.shape[:-1], V.shape[-1])), np.zeros((*Q.shape[:-1], V.shape[-1]))
        LSE, LSE_tolerance = np.zeros(Q.shape[:-1]), np.zeros(Q.shape[:-1])
        for i, keys in enumerate(rows):
            O[i], O_tolerance[i], LSE[i], LSE_tolerance[i] = self.sequence(arrays, Q[i], K[keys], V[keys], dtype)
        exact = np.float64(0)
        return {"K.after": (K, exact), "V.after": (V, exact), "O": (O, O_tolerance),
                "LSE": by_head(LSE, LSE_tolerance)}


OPERATIONS = {"window": Window(), "softcap": Softcap(), "sinks": Sinks(), "head_dims": HeadDims(), "varlen": Varlen(),
              "pack_gqa": PackGQA(), "split_kv": Cache(), "paged_kv": Paged(), "append_kv": Append()}
