"""The operations of chapter 8: definitions in float64, error bounds, and cases.

Softmax of a row x, for the valid columns: y_j = exp(scale (x_j - m)) / s, with m = max x_k, s = sum exp(scale (x_k - m)).
A row that has no column above -infinity gives zeros. Its backward: dx_j = scale y_j (dy_j - sum y_k dy_k). Causal: row i
of a (t, t) matrix has the columns 0 to i, and zeros after them. The classifier: loss = log(s) + m - x_target and
dlogits_j = (y_j - [j = target]) dloss, in the first v of vp columns and zeros in the others.

How far a correct kernel may be off (u = 2^-24; gamma and the theorems as in bounds.py):

* An exponential. The kernels compute ex2((x - m) c) with c = fl(scale fl(log2 e)): a rounding of x - m, one of log2 e,
  one of c and one of the product, so that the exponent d = scale (x - m) has a relative error of at most gamma_4 and the
  exponential one of exp(gamma_4 |d|) - 1. The instruction adds EX2: PTX documents 2 ulp for ex2.approx, 2.06 ulp were
  measured on an H200, and an ulp is at most 2^-23 of the value. Below 2^-126 it gives 0 (ftz): an absolute error.
* A running sum that changes its maximum multiplies by exp(m_old - m_new). The maxima only grow, so the exponents of one
  element's factors add up to d, and their errors to gamma_4 |d|; each factor adds EX2 and a rounding.
* The sum. All addends are positive, so an element that takes part in h additions is off by gamma_h relative to the sum
  (Higham, section 4.2). h is at most the longest chain of a thread plus the levels of the merges. No step gives one
  thread more than 1/32 of a row, or than 8 packs of 16 bytes: h = ceil(n / 32) + 64 + 32 covers them all.
"""

import numpy as np

import bounds
from bounds import UNIT_ROUNDOFF, gamma

U = UNIT_ROUNDOFF["f32"]
EX2 = 2.06 * 2.0**-23
FLUSHED = 2.0**-126


def chain(n):
    """How many additions an element of a row of n takes part in, at most."""
    return -(-n // 32) + 96


def probabilities(x, scale, valid):
    """(y, relative bound of its sum, bound of y, m, s) of rows of x (..., n) in float64; valid: which columns count."""
    x = np.where(valid, x, -np.inf)
    m = x.max(-1, keepdims=True)
    shift = np.where(np.isneginf(m), 0.0, m)
    d = scale * (x - shift)
    e = np.exp(d)
    s = e.sum(-1, keepdims=True)
    y = np.divide(e, s, out=np.zeros_like(e), where=s > 0)
    h = chain(x.shape[-1])
    factors = (1 + EX2) ** (h + 1) * (1 + gamma(2 * h + 1, U))  # each addition may come with a factor
    stretch = np.exp(gamma(4, U) * np.where(np.isneginf(d), 0.0, -d))
    sum_error = (y * stretch).sum(-1, keepdims=True) * factors - 1 + 2 * x.shape[-1] * FLUSHED
    sum_error = np.where(s > 0, sum_error, 0.0)
    # y = e / s: the exponential, a reciprocal and a product.
    relative = stretch * (1 + EX2) * (1 + gamma(2, U)) / (1 - sum_error) - 1 + gamma(x.shape[-1], UNIT_ROUNDOFF["f64"])
    error = np.where(valid & (s > 0) & ~np.isneginf(x), y * relative + 2 * FLUSHED, 0.0)
    return y, sum_error, error, shift, s


def rounded(value, error, dtype):
    """fp32 results are rounded in the bound already."""
    return error if dtype == "f32" else bounds.rounded_output(value, error, dtype)


def lower_triangle(t):
    return np.tri(t, dtype=bool)


def spoil(rng, x, special):
    """Makes rows of standard normal logits (..., n) into what the case is about."""
    n = x.shape[-1]
    if special == "extreme":
        x *= 1e4 / 3
        x[..., : n // 2] = np.sign(x[..., : n // 2]) * 1e4
    elif special == "equal":
        x[...] = rng.standard_normal(x.shape[:-1] + (1,)) * 100
    elif special == "minus_infinity":
        x[rng.random(x.shape) < 0.3] = -np.inf
        rows = x.reshape(-1, n)
        rows[0] = -np.inf
        rows[1, : n - 1] = -np.inf
        rows[2, 1:] = -np.inf
        rows[2, 0] = rows[1, n - 1] = 1.0
    return x


class Rows:
    """What the operations on independent rows share."""

    DIMS = ("rows", "cols")
    OPTIONAL = ()
    OWN_TYPE = ()

    def of_shape(self, dims):
        return {"plain": dict(dims), "minus_infinity": dict(dims, special="minus_infinity")} if min(dims.values()) > 2 else {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return "cols must be at most 131072" if dims["cols"] > 131072 else None

    def cases(self, dtype):
        pack = 4 if dtype == "f32" else 8
        shapes = {
            "one_element": (3, 1),
            "one_row": (1, 7),
            "short": (67, 17),
            "aligned": (5, 32 * pack),
            "warp": (6, 128 * pack - 4),
            "block": (3, 300 * pack),
            "ragged": (9, 1021),
            "ragged_block": (3, 1050 * pack + 3),
            "several_blocks": (3, 8192 * pack + 5),
            "many_blocks": (2, 70001),
            "longest": (1, 131072),
            "longest_ragged": (2, 131071),
        }
        named = {name: dict(rows=rows, cols=cols) for name, (rows, cols) in shapes.items()}
        for special in ("extreme", "equal", "minus_infinity"):
            named[special] = dict(rows=6, cols=301, special=special)
        named["extreme_long"] = dict(rows=2, cols=8240 * pack + 1, special="extreme")
        named["minus_infinity_long"] = dict(rows=3, cols=8240 * pack + 1, special="minus_infinity")
        return named


class Forward(Rows):
    INPUTS = ("x",)

    def shapes(self, dims):
        return {"x": (dims["rows"], dims["cols"])}

    def inputs(self, rng, case):
        return {"x": spoil(rng, rng.standard_normal(self.shapes(case)["x"]), case.get("special"))}

    def outputs(self, arrays, dtype):
        y, _, error, _, _ = probabilities(arrays["x"].astype(np.float64), 1.0, True)
        return {"y": (y, rounded(y, error, dtype))}


def gradient(y, dy, scale, dtype):
    """dx = scale y (dy - y·dy): y·dy is a sum of h additions (Higham, 3.1), then there are at most 4 roundings.

    |error| <= |scale y| gamma_(h+5) (|dy| + |y|·|dy|), by Higham's lemma 3.3; a product below 2^-126 may vanish.
    """
    absolute = (np.abs(y) * np.abs(dy)).sum(-1, keepdims=True)
    dx = scale * y * (dy - (y * dy).sum(-1, keepdims=True))
    h = chain(y.shape[-1])
    factor = gamma(h + 5, U) + gamma(y.shape[-1] + 5, UNIT_ROUNDOFF["f64"])
    error = np.where(y == 0, 0.0, np.abs(scale * y) * factor * (np.abs(dy) + absolute) + 2 * FLUSHED)
    return dx, rounded(dx, error, dtype)


class Backward(Rows):
    INPUTS = ("y", "dy")

    def shapes(self, dims):
        return {name: (dims["rows"], dims["cols"]) for name in self.INPUTS}

    def inputs(self, rng, case):
        x = spoil(rng, rng.standard_normal(self.shapes(case)["y"]), case.get("special"))
        return {"y": probabilities(x, 1.0, True)[0], "dy": rng.standard_normal(x.shape)}

    def outputs(self, arrays, dtype):
        y, dy = (arrays[name].astype(np.float64) for name in self.INPUTS)
        return {"dx": gradient(y, dy, 1.0, dtype)}


class Square:
    """What the causal operations on (batch, t, t) matrices share."""

    DIMS = ("batch", "t")
    OPTIONAL = ()

    def of_shape(self, dims):
        return {"plain": dict(dims, scale=0.125)}

    def check_shape(self, dims, dtype):
        if dims["t"] > 16384:
            return "t must be at most 16384"
        return "batch * t must be below 2^31" if dims["batch"] * dims["t"] >= 1 << 31 else None

    def cases(self, dtype):
        pack = 4 if dtype == "f32" else 8
        cases = {
            "one_element": dict(batch=3, t=1, scale=1.0),
            "small": dict(batch=2, t=5, scale=0.5),
            "aligned": dict(batch=3, t=64, scale=0.125),
            "ragged": dict(batch=2, t=77, scale=0.125),
            "warp": dict(batch=1, t=32 * pack + 3, scale=0.088388),
            "block": dict(batch=1, t=128 * pack + 7, scale=0.125),
            "extreme": dict(batch=1, t=90, scale=0.7, special="extreme"),
            "equal": dict(batch=1, t=41, scale=0.125, special="equal"),
            "minus_infinity": dict(batch=2, t=43, scale=1.0, special="minus_infinity"),
        }
        if dtype == "f32":  # in 16 bits it would have to be twice as long: 8 MB
            cases["longer_than_a_warp"] = dict(batch=1, t=1031, scale=0.125)
        return cases


class Causal(Square):
    INPUTS = ("x", "scale")
    OWN_TYPE = ("scale",)

    def shapes(self, dims):
        return {"x": (dims["batch"], dims["t"], dims["t"])}

    def inputs(self, rng, case):
        """What is above the diagonal is not the kernel's to read: NaN."""
        x = spoil(rng, rng.standard_normal(self.shapes(case)["x"]) / case["scale"], case.get("special"))
        x = np.where(lower_triangle(case["t"]), x, np.nan)
        return {"x": x, "scale": np.float32(case["scale"])}

    def outputs(self, arrays, dtype):
        x = arrays["x"].astype(np.float64)
        y, _, error, _, _ = probabilities(x, float(arrays["scale"]), lower_triangle(x.shape[-1]))
        return {"y": (y, rounded(y, error, dtype))}


class CausalBackward(Square):
    INPUTS = ("y", "dy", "scale")
    OWN_TYPE = ("scale",)

    def shapes(self, dims):
        return {name: (dims["batch"], dims["t"], dims["t"]) for name in ("y", "dy")}

    def inputs(self, rng, case):
        """What is above the diagonal is not the kernel's to read: NaN."""
        x = spoil(rng, rng.standard_normal(self.shapes(case)["y"]), case.get("special"))
        below = lower_triangle(case["t"])
        y = np.where(below, probabilities(x, 1.0, below)[0], np.nan)
        return {"y": y, "dy": np.where(below, rng.standard_normal(x.shape), np.nan), "scale": np.float32(case["scale"])}

    def outputs(self, arrays, dtype):
        below = lower_triangle(arrays["y"].shape[-1])
        y, dy = (np.where(below, arrays[name].astype(np.float64), 0.0) for name in ("y", "dy"))
        return {"dx": gradient(y, dy, float(arrays["scale"]), dtype)}


class Classifier:
    DIMS = ("rows", "v", "vp")
    INPUTS = ("logits", "target", "dloss", "v")
    OWN_TYPE = ("target", "dloss", "v")
    OPTIONAL = ("dloss",)

    def of_shape(self, dims):
        return {"mean": dict(dims), "dloss": dict(dims, dloss=True)}

    def check_shape(self, dims, dtype):
        if dims["vp"] < dims["v"]:
            return "vp must be at least v"
        return "vp must be at most 131072" if dims["vp"] > 131072 else None

    def cases(self, dtype):
        pack = 4 if dtype == "f32" else 8
        return {
            "one_class": dict(rows=3, v=1, vp=1),
            "only_padding_follows": dict(rows=3, v=1, vp=40),
            "small": dict(rows=5, v=17, vp=24, dloss=True),
            "no_padding": dict(rows=4, v=256, vp=256),
            "ragged": dict(rows=7, v=1001, vp=1003, dloss=True),
            "block": dict(rows=3, v=1500 * pack - 7, vp=1500 * pack),
            "two_blocks": dict(rows=2, v=7000 * pack - 47, vp=7000 * pack, dloss=True),
            "ragged_blocks": dict(rows=3, v=7000 * pack - 47, vp=7000 * pack + 1, dloss=True),
            "block_of_padding": dict(rows=2, v=1000, vp=7000 * pack),
            "gpt2": dict(rows=1, v=50257, vp=50304),
            "extreme": dict(rows=6, v=301, vp=304, special="extreme"),
            "equal": dict(rows=6, v=301, vp=304, special="equal"),
            "minus_infinity": dict(rows=6, v=301, vp=304, special="minus_infinity", dloss=True),
        }

    def shapes(self, dims):
        return {"logits": (dims["rows"], dims["vp"])}

    def inputs(self, rng, case):
        """The padding is not the kernel's to read: NaN. A target of probability 0 has a loss of infinity."""
        rows, v = case["rows"], case["v"]
        logits = np.full((rows, case["vp"]), np.nan)
        logits[:, :v] = spoil(rng, rng.standard_normal((rows, v)) * 3, case.get("special"))
        if case.get("special") == "minus_infinity":
            logits[0, v - 1] = 0.0
        target = rng.integers(0, v, rows).astype(np.int32)
        target[0], target[-1] = v - 1, 0
        arrays = {"logits": logits, "target": target, "v": np.int32(v)}
        if case.get("dloss"):
            arrays["dloss"] = rng.standard_normal(rows).astype(np.float32)
        return arrays

    def outputs(self, arrays, dtype):
        v = int(arrays["v"])
        logits = arrays["logits"].astype(np.float64)
        rows, vp = logits.shape
        target = arrays["target"]
        if v < 1 or v > vp or target.min() < 0 or target.max() >= v:
            raise ValueError(f"targets {target.min()} to {target.max()} and v = {v}, expected targets below v and v at most {vp}")
        dloss = arrays["dloss"].astype(np.float64) if "dloss" in arrays else np.full(rows, 1.0 / rows)
        x = logits[:, :v]
        y, sum_error, y_error, m, s = probabilities(x, 1.0, True)
        if not np.all(s > 0):
            raise ValueError("logits: a row of nothing but -infinity has no loss")
        right = x[np.arange(rows), target]
        log_s, m, sum_error = (a[:, 0] for a in (np.log(s), m, sum_error))
        loss = log_s + (m - right)
        # The logarithm passes a relative error of s on as an absolute one, and is itself off by at most 1 ulp, 2 u (CUDA
        # Programming Guide, logf); then a difference and a sum are rounded.
        apart = np.where(np.isinf(right), 0.0, m - right)
        loss_error = -np.log1p(-sum_error) + gamma(4, U) * (np.abs(log_s) + sum_error + apart)
        indicator = np.zeros_like(x)
        indicator[np.arange(rows), target] = 1.0
        value = (y - indicator) * dloss[:, None]
        # A difference and two products more: of dloss, which is rounded itself when it is 1 / rows.
        error = np.abs(dloss)[:, None] * (y_error * (1 + gamma(3, U)) + gamma(3, U) * np.abs(y - indicator)) + 2 * FLUSHED
        error = np.where((value == 0) & (y_error == 0), 0.0, error)
        after, tolerance = np.zeros((rows, vp)), np.zeros((rows, vp))
        after[:, :v], tolerance[:, :v] = value, rounded(value, error, dtype)
        return {"logits.after": (after, tolerance), "loss": (loss, loss_error)}


OPERATIONS = {
    "forward": Forward(),
    "causal": Causal(),
    "backward": Backward(),
    "causal_backward": CausalBackward(),
    "classifier": Classifier(),
}
