"""The operations of chapter 7: definitions in float64, error bounds, and cases. The names are llm.c's.

layernorm   mean and rstd = 1 / sqrt(variance + EPSILON) of each row x of C elements; out = (x - mean) rstd weight + bias.
            Backward, with n = (x - mean) rstd and d = weight dout: dinp = rstd (d - mean of d - n mean of d n),
            dweight += sum over rows of dout n, dbias += sum over rows of dout.
fused       residual = inp1 + inp2, rounded to its type, and the layernorm of that.
            Backward: dresidual += dinp of that layernorm.
rmsnorm     rstd = 1 / sqrt(mean of x^2 + EPSILON); out = x rstd weight. Backward, with n = x rstd: dinp = rstd (d - n mean of d n),
            dweight += sum over rows of dout n.
mean, rstd, dweight and dbias are fp32. The backward gets mean and rstd as the forward saved them, and is exact in those.

How far a correct kernel may be off (u = 2^-24; gamma and the theorems as in bounds.py). A sum of C elements whose longest chain has
h additions is off by gamma_h times the sum of the absolute values (Higham, section 4.2); no step gives a thread more than 1/32 of a
row, or 64 elements, before a tree of at most 10 levels: h = ceil(C / 32) + 80.

* mean: the sum, and a division or a product with 1 / C (2 roundings): error m = gamma_(h+2) mean |x|.
* variance, from differences to the mean that was computed: each has an error of m, the same for all, and a rounding. The sum of
  (d - m)^2 is that of d^2 and C m^2, since the differences d sum up to 0: error v = m^2 + gamma_(h+6) (variance + m^2).
* rstd: v passes on to it with half its relative size, to first order, 1 / (1 - v) for the rest; rsqrt is off by 2 ulp, 2^-22 (CUDA
  C++ Programming Guide, rsqrtf), sum and product by 3 u.
* out: the difference is off by m and a rounding; then the relative error of rstd and 3 roundings, and that of the last sum.
* Backward: every term is a product of exact numbers with at most 4 roundings: with m1 and m2 the means above,
  |error| <= gamma_(h+10) rstd (|d| + mean |d| + |n| mean |d n|). The sums over R rows in any order: gamma_(R+5) times the sum of absolute
  values, what was there before included.
"""

import dtypes
import numpy as np

from bounds import UNIT_ROUNDOFF, gamma
from elementwise import rounded

U = UNIT_ROUNDOFF["f32"]
EPSILON = 1e-5


def chain(c):
    """How many additions an element of a row of c takes part in, at most."""
    return -(-c // 32) + 80


def average(x):
    return x.mean(-1, keepdims=True)


def normalized(x, dtype, weight, bias=None):
    """Of rows x (rows, c): (out, its bound), (mean, its bound) or None, (rstd, its bound); RMSNorm without a bias."""
    c = x.shape[-1]
    h = chain(c)
    F64 = gamma(2 * c + 20, UNIT_ROUNDOFF["f64"])
    mean, mean_error = (average(x), gamma(h + 2, U) * average(np.abs(x))) if bias is not None else (0.0, 0.0)
    d = x - mean
    variance = average(d * d)
    variance_error = mean_error**2 + gamma(h + 6, U) * (variance + mean_error**2)
    rstd = 1 / np.sqrt(variance + EPSILON)
    relative = variance_error / (variance + EPSILON)
    relative = 0.5 * relative / (1 - np.minimum(relative, 0.5)) + 2.0**-22 + gamma(4, U)
    n, n_error = d * rstd, rstd * (1 + relative) * (mean_error + U * np.abs(d))
    out = n * weight + (0 if bias is None else bias)
    error = np.abs(weight) * (n_error + np.abs(n) * (relative + gamma(3, U))) * (1 + 4 * U) + U * np.abs(out)
    error += F64 * (np.abs(weight) * rstd * (np.abs(x) + average(np.abs(x))) + np.abs(out))
    if bias is not None:
        mean = mean[:, 0], mean_error[:, 0] + F64 * average(np.abs(x))[:, 0]
    return (out, rounded(out, error, dtype)), mean, (rstd[:, 0], (rstd * (relative + F64))[:, 0])


class Norm:
    """What all operations of the chapter share."""

    DIMS = ("rows", "c")
    OPTIONAL = ()
    OWN_TYPE = ()

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return None

    def cases(self, dtype):
        pack = 4 if dtype == "f32" else 8
        shapes = {
            "one_element": (5, 1),
            "one_row": (1, 7),
            "short": (67, 17),
            "aligned": (33, 768),
            "warp": (7, 200 * pack),
            "block": (5, 1000 * pack),
            "ragged": (19, 771),
            "ragged_block": (3, 5001),
            "widest": (2, 2048 * pack),
            "longer_than_a_block": (2, 9000 * pack),
            "longer_ragged": (2, 33001),
            "many_rows": (1301, 24),
            "many_ragged_rows": (1100, 151),
        }
        named = {name: dict(rows=rows, c=c) for name, (rows, c) in shapes.items()}
        for special in ("equal", "offset", "outliers"):
            named[special] = dict(rows=9, c=300, special=special)
        return named

    def rows(self, rng, case):
        """Rows of standard normal numbers, or all alike, or far from 0, or with some a thousand times larger."""
        x = rng.standard_normal((case["rows"], case["c"]))
        special = case.get("special")
        if special == "equal":
            x[...] = rng.standard_normal((case["rows"], 1)) * 100
            x[0] = 0.0
        elif special == "offset":
            x += 100
        elif special == "outliers":
            x[rng.random(x.shape) < 0.01] *= 1000
        return x

    def shapes(self, dims):
        row = {"weight", "bias", "dweight", "dbias"}
        return {name: (dims["c"],) if name in row else (dims["rows"],) if name in ("mean", "rstd") else (dims["rows"], dims["c"]) for name in self.INPUTS}

    def inputs(self, rng, case):
        arrays = {name: rng.standard_normal(shape) for name, shape in self.shapes(case).items()}
        return arrays | {name: self.rows(rng, case) for name in self.INPUTS if name in ("inp", "inp1", "inp2")}

    def floats(self, arrays):
        return (arrays[name].astype(np.float64) for name in self.INPUTS)


class LayernormForward(Norm):
    INPUTS = ("inp", "weight", "bias")

    def outputs(self, arrays, dtype):
        x, weight, bias = self.floats(arrays)
        return dict(zip(("out", "mean", "rstd"), normalized(x, dtype, weight, bias)))


class FusedResidualForward(Norm):
    INPUTS = ("inp1", "inp2", "weight", "bias")

    def outputs(self, arrays, dtype):
        """The sum must be right to the bit: what is normalized is what was rounded."""
        inp1, inp2, weight, bias = self.floats(arrays)
        x = dtypes.rounded((inp1 + inp2).astype(np.float32), dtype).astype(np.float64)
        return {"residual": (x, np.zeros_like(x))} | dict(zip(("out", "mean", "rstd"), normalized(x, dtype, weight, bias)))


class RmsnormForward(Norm):
    INPUTS = ("inp", "weight")

    def outputs(self, arrays, dtype):
        x, weight = self.floats(arrays)
        out, _, rstd = normalized(x, dtype, weight)
        return {"out": out, "rstd": rstd}


class Backward(Norm):
    """The backward: of layernorm with mean and dbias, of RMSNorm without."""

    def cases(self, dtype):
        """With more rows than 132 blocks hold at a time, whether a warp holds one or many warps do."""
        return super().cases(dtype) | {"two_turns": {"rows": 3301, "c": 24}, "two_ragged_turns": {"rows": 135, "c": 2305}}

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case)
        x = arrays["inp"]
        mean = average(x) if "mean" in self.INPUTS else np.zeros((len(x), 1))
        arrays |= {"mean": mean[:, 0], "rstd": 1 / np.sqrt(average((x - mean) ** 2) + EPSILON)[:, 0]}
        return {name: arrays[name].astype(np.float32) if name in self.OWN_TYPE else arrays[name] for name in self.INPUTS}

    def outputs(self, arrays, dtype):
        named = {name: array.astype(np.float64) for name, array in arrays.items()}
        x, dout, weight, rstd = named["inp"], named["dout"], named["weight"], named["rstd"][:, None]
        centered = "mean" in named
        n = (x - (named["mean"][:, None] if centered else 0)) * rstd
        d = weight * dout
        dinp = rstd * (d - (average(d) if centered else 0) - n * average(d * n))
        absolute = rstd * (np.abs(d) + (average(np.abs(d)) if centered else 0) + np.abs(n) * average(np.abs(d * n)))
        factor = gamma(chain(x.shape[-1]) + 10, U) + gamma(2 * x.shape[-1] + 20, UNIT_ROUNDOFF["f64"])
        results = {"dinp": (dinp, rounded(dinp, factor * absolute, dtype))}
        factor = gamma(len(x) + 5, U) + gamma(len(x) + 5, UNIT_ROUNDOFF["f64"])
        for name, addends in {"dweight": dout * n, "dbias": dout}.items():
            if name in named:
                before = named[name]
                results[f"{name}.after"] = before + addends.sum(0), factor * (np.abs(before) + np.abs(addends).sum(0))
        return results


class LayernormBackward(Backward):
    INPUTS = ("inp", "dout", "weight", "mean", "rstd", "dweight", "dbias")
    OWN_TYPE = ("mean", "rstd", "dweight", "dbias")


class FusedResidualBackward(LayernormBackward):
    INPUTS = LayernormBackward.INPUTS + ("dresidual",)

    def outputs(self, arrays, dtype):
        """The sum is rounded once, and so is dinp in fp32."""
        results = super().outputs(arrays, "f32")
        dinp, error = results.pop("dinp")
        after = arrays["dresidual"].astype(np.float64) + dinp
        return results | {"dresidual.after": (after, rounded(after, error + U * np.abs(after), dtype))}


class RmsnormBackward(Backward):
    INPUTS = ("inp", "dout", "weight", "rstd", "dweight")
    OWN_TYPE = ("rstd", "dweight")


OPERATIONS = {
    "layernorm_forward": LayernormForward(),
    "fused_residual_forward": FusedResidualForward(),
    "rmsnorm_forward": RmsnormForward(),
    "layernorm_backward": LayernormBackward(),
    "fused_residual_backward": FusedResidualBackward(),
    "rmsnorm_backward": RmsnormBackward(),
}
