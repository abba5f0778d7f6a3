"""The operations of chapter 9: definitions in float64, error bounds, and cases. The names are llm.c's.

permute      out[s,b,h,t,d] = inp[b,t,s,h,d]; unpermute is its inverse. Exact.
attention    S = Q K^T of qkv (b,t,3,h,d), att = softmax(S / sqrt(d)) over the keys up to each query's own, out = att V.
             Backward, with the forward's att as it was stored: dV = att^T dO, dP = dO V^T, datt = softmax's backward of dP times
             1 / sqrt(d), dQ = datt K, dK = datt^T Q.
bias         dbias += the sum of the rows of dout.
matmul       dinp = dout weight, dweight += dout^T inp, dbias as above.
matmul_gelu  pre = inp weight^T + bias, out = GELU(pre), as in elementwise.py.
             Backward, through the layer behind it: dpre = dout weight * GELU'(pre).

How far a correct kernel may be off (u = 2^-24, or of bf16 2^-8; gamma and the theorems as in bounds.py). E(x) is the bound of x.

* A product of computed matrices X Y: E(X) |Y| + |X| E(Y) + E(X) E(Y), and the sum of products itself: gamma_k in fp32, in any order;
  in bf16 the larger of that and what tensor cores do. A product below 2^-126 may vanish. What is stored in bf16 is rounded: rounded_output.
* Scores that are off by e_j turn exp(s_j) / sum of exp(s_k) into exp(s_j + e_j) / sum of exp(s_k + e_k): a factor between exp(-e_j - max e)
  and exp(e_j + max e). No probability is off by more than 1. The kernel's own error, and that of its backward, is chapter 8's: softmax.py.
* GELU: cuBLASLt does not say how it computes it. The least exact way that the GPU has is tanh.approx, with a relative error of 2^-11
  (PTX ISA): |x| 2^-12 in GELU, beside elementwise.py's bound. A difference of e in x is one of at most 1.13 e, GELU's largest slope.
  Its slope is (1 + t) / 2 + x u' (1 - t^2) / 2 with t = tanh(u): with a t that is off by 2^-11 |t|, 2^-12 + |x| u' 2^-11.
"""

import numpy as np

import bounds
import elementwise
import softmax
from bounds import UNIT_ROUNDOFF, gamma
from elementwise import rounded

U = UNIT_ROUNDOFF["f32"]
FLUSHED = 2.0**-126


def product(X, Y, dtype, X_error=0.0, Y_error=0.0):
    """(X Y, bound) of matrices that are off by their errors, summed in fp32."""
    absolute, k = np.abs(X) @ np.abs(Y), X.shape[-1]
    own = bounds.fp32_sum_of_products(k, absolute)
    if dtype == "bf16":
        own = np.maximum(own, bounds.tensor_core_sum_of_products(k, absolute))
    passed = 0.0
    if np.ndim(X_error):
        passed = X_error @ (np.abs(Y) + Y_error)
    if np.ndim(Y_error):
        passed = passed + np.abs(X) @ Y_error
    return X @ Y, own + passed + k * FLUSHED


def stored(value, error, dtype):
    """The bound after the value was stored in the type."""
    return rounded(value, error, dtype)


def turned(X):
    return X.swapaxes(-1, -2)


class Heads:
    """permute and unpermute."""

    DIMS = ("b", "t", "s", "h", "d")
    INPUTS = ("inp",)
    OPTIONAL = OWN_TYPE = ()

    def __init__(self, order):
        self.order = order  # of inp's axes b, t, s, h, d in out; None for the way back

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        if dims["b"] > 65535:
            return "b must be below 65536"
        return "s * h, times d / 256 rounded up, must be below 65536" if dims["s"] * dims["h"] * -(-dims["d"] // 256) > 65535 else None

    def cases(self, dtype):
        shapes = {
            "one_element": (1, 1, 1, 1, 1),
            "aligned": (2, 64, 3, 4, 64),
            "odd": (3, 7, 3, 5, 13),
            "ragged": (2, 37, 3, 2, 40),
            "output": (2, 19, 1, 3, 64),
            "wide": (1, 5, 3, 1, 2056),
            "many": (5, 130, 3, 3, 8),
        }
        return {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}

    def shapes(self, dims):
        b, t, s, h, d = (dims[name] for name in self.DIMS)
        return {"inp": (b, t, s, h, d) if self.order == (2, 0, 3, 1, 4) else (s, b, h, t, d)}

    def inputs(self, rng, case):
        return {"inp": rng.standard_normal(self.shapes(case)["inp"])}

    def outputs(self, arrays, dtype):
        out = arrays["inp"].astype(np.float64).transpose(self.order)
        return {"out": (np.ascontiguousarray(out), np.zeros(out.shape))}


class Attention:
    """What forward and backward share."""

    DIMS = ("b", "t", "h", "d")
    OPTIONAL = OWN_TYPE = ()

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        if dims["t"] > 16384:
            return "t must be at most 16384"
        if dims["b"] > 65535 or 3 * dims["h"] * -(-dims["d"] // 256) > 65535:
            return "b must be below 65536, and 3 h, times d / 256 rounded up, too"
        return "b * h * t must be below 2^31" if dims["b"] * dims["h"] * dims["t"] >= 1 << 31 else None

    def cases(self, dtype):
        shapes = {
            "one_position": (2, 1, 2, 8),
            "one_number": (1, 9, 2, 1),
            "aligned": (2, 64, 3, 64),
            "odd": (3, 33, 2, 13),
            "ragged": (2, 77, 2, 40),
            "long": (1, 300, 1, 64),
        }
        named = {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}
        for special in ("extreme", "equal"):
            named[special] = dict(b=1, t=70, h=2, d=16, special=special)
        return named

    def shapes(self, dims):
        b, t, h, d = (dims[name] for name in self.DIMS)
        return {"qkv": (b, t, 3, h, d), "att": (b, h, t, t), "dout": (b, t, h, d)}

    def qkv(self, rng, case):
        """Standard normal; scores of up to some 10^4 either way, or all keys alike."""
        qkv = rng.standard_normal(self.shapes(case)["qkv"])
        if case.get("special") == "extreme":
            qkv[:, :, :2] *= np.sqrt(1e4 / np.sqrt(case["d"]))
        elif case.get("special") == "equal":
            qkv[:, :, 1] = qkv[:, :1, 1]
        return qkv

    def split(self, qkv):
        """Q, K, V as (b, h, t, d) in float64."""
        return qkv.astype(np.float64).transpose(2, 0, 3, 1, 4)

    def positions(self, *heads):
        """(b, h, t, d) back to (b, t, h, d)."""
        return tuple(np.ascontiguousarray(X.swapaxes(1, 2)) for X in heads)


def probabilities(Q, K, dtype):
    """(att, bound) of stored probabilities."""
    t, scale = Q.shape[-2], float(np.float32(1) / np.sqrt(np.float32(Q.shape[-1])))
    below = np.tri(t, dtype=bool)
    S, error = product(Q, turned(K), dtype)
    error = np.where(below, scale * stored(S, error, dtype), 0.0)
    att, _, own, _, _ = softmax.probabilities(S, scale, below)
    error = error + error.max(-1, keepdims=True)
    moved = att * np.expm1(np.minimum(error, 50.0))
    total = np.minimum(moved + own * np.exp(np.minimum(error, 50.0)), 1.0)
    return att, np.where(below, stored(att, np.where(below, total + 2 * U * att, 0.0), dtype), 0.0)


class AttentionForward(Attention):
    INPUTS = ("qkv",)

    def inputs(self, rng, case):
        return {"qkv": self.qkv(rng, case)}

    def outputs(self, arrays, dtype):
        Q, K, V = self.split(arrays["qkv"])
        att, att_error = probabilities(Q, K, dtype)
        out, error = product(att, V, dtype, att_error)
        out, error = self.positions(out, stored(out, error, dtype))
        return {"att": (att, att_error), "out": (out, error)}


class AttentionBackward(Attention):
    INPUTS = ("qkv", "att", "dout")

    def inputs(self, rng, case):
        """att is what the forward would have stored, to the rounding of the case's type."""
        qkv = self.qkv(rng, case)
        return {"qkv": qkv, "att": probabilities(*self.split(qkv)[:2], "f32")[0], "dout": rng.standard_normal(self.shapes(case)["dout"])}

    def outputs(self, arrays, dtype):
        Q, K, V = self.split(arrays["qkv"])
        att, dO = arrays["att"].astype(np.float64), arrays["dout"].astype(np.float64).swapaxes(1, 2)
        scale = float(np.float32(1) / np.sqrt(np.float32(Q.shape[-1])))
        below = np.tri(att.shape[-1], dtype=bool)
        dV, dV_error = product(turned(att), dO, dtype)
        dP, dP_error = product(dO, turned(V), dtype)
        dP_error = np.where(below, stored(dP, dP_error, dtype), 0.0)
        dP = np.where(below, dP, 0.0)
        dS, own = softmax.gradient(att, dP, scale, "f32")
        error = own * (1 + 4 * U) + scale * att * (dP_error + (att * dP_error).sum(-1, keepdims=True)) * (1 + 1e-3)
        dS_error = np.where(att == 0, 0.0, stored(dS, error + 2 * U * np.abs(dS), dtype))
        dQ, dQ_error = product(dS, K, dtype, dS_error)
        dK, dK_error = product(turned(dS), Q, dtype, turned(dS_error))
        gradients, errors = [], []
        for X, X_error in (dQ, dQ_error), (dK, dK_error), (dV, dV_error):
            X, X_error = self.positions(X, stored(X, X_error, dtype))
            gradients.append(X), errors.append(X_error)
        return {"datt": (dS, dS_error), "dqkv": (np.stack(gradients, 2), np.stack(errors, 2))}


class Product:
    """What the operations on rows of a layer's product share."""

    DIMS = ("rows", "oc", "c")
    OPTIONAL = ()
    SUMS = ("dweight", "dbias")  # in fp32

    @property
    def OWN_TYPE(self):
        return tuple(name for name in self.INPUTS if name in self.SUMS)

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return None

    def cases(self, dtype):
        shapes = {"one_element": (1, 1, 1), "one_row": (1, 7, 5), "aligned": (128, 256, 64), "odd": (67, 33, 29), "ragged": (301, 72, 40), "many_rows": (2500, 24, 8), "wide": (9, 1032, 16)}
        return {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}

    def shapes(self, dims):
        rows, oc, c = (dims.get(name) for name in ("rows", "oc", "c"))
        shapes = {"inp": (rows, c), "weight": (oc, c), "bias": (oc,), "dout": (rows, oc), "dweight": (oc, c), "dbias": (oc,)}
        return {name: shapes[name] for name in self.INPUTS}

    def inputs(self, rng, case):
        arrays = {name: rng.standard_normal(shape) for name, shape in self.shapes(case).items()}
        return {name: array.astype(np.float32) if name in self.SUMS else array for name, array in arrays.items()}

    def bias_gradient(self, arrays):
        """A sum of rows + 1 numbers in any order: gamma_rows times the sum of their absolute values (Higham, section 4.2)."""
        dout, before = (arrays[name].astype(np.float64) for name in ("dout", "dbias"))
        absolute = np.abs(dout).sum(0) + np.abs(before)
        return before + dout.sum(0), (gamma(self.chain(len(dout)), U) + gamma(len(dout), UNIT_ROUNDOFF["f64"])) * absolute

    def chain(self, rows):
        """A block adds 64 rows to one addend, or a warp every 16th of its part's, 16 warps, then at most 1,024 parts or rows / 64 blocks."""
        each = max(-(-rows // 264), 64)
        return min(rows, 64 + each // 16 + 16 + max(-(-rows // 64), -(-rows // each))) + 1


class BiasBackward(Product):
    DIMS = ("rows", "oc")
    INPUTS = ("dout", "dbias")

    def outputs(self, arrays, dtype):
        return {"dbias.after": self.bias_gradient(arrays)}


class MatmulBackward(Product):
    INPUTS = ("inp", "weight", "dout", "dweight", "dbias")

    def outputs(self, arrays, dtype):
        inp, weight, dout, dweight = (arrays[name].astype(np.float64) for name in ("inp", "weight", "dout", "dweight"))
        dinp, error = product(dout, weight, dtype)
        sums, sums_error = product(turned(dout), inp, dtype)
        after = dweight + sums
        sums_error = sums_error * (1 + U) + U * (np.abs(after) + np.abs(dweight))
        return {"dinp": (dinp, stored(dinp, error, dtype)), "dweight.after": (after, sums_error), "dbias.after": self.bias_gradient(arrays)}


class MatmulGelu(Product):
    INPUTS = ("inp", "weight", "bias")

    def check_shape(self, dims, dtype):
        return "oc must be a multiple of 8" if dims["oc"] % 8 else None

    def cases(self, dtype):
        return {name: case for name, case in super().cases(dtype).items() if case["oc"] % 8 == 0}

    def outputs(self, arrays, dtype):
        """pre may be rounded before the bias and after it, or once."""
        inp, weight, bias = (arrays[name].astype(np.float64) for name in self.INPUTS)
        without, error = product(inp, turned(weight), dtype)
        error = stored(without, error, dtype)
        pre = without + bias
        error = error + U * (np.abs(pre) + error)
        s, rest, relative = elementwise.sigmoid(pre)
        out = pre * s
        own = np.abs(out) * (rest * relative + gamma(4, U)) / (1 - relative) + np.abs(pre) * 2.0**-12 + 2 * elementwise.FLUSHED
        return {"pre": (pre, stored(pre, error, dtype)), "out": (out, stored(out, own + 1.13 * error, dtype))}


class MatmulGeluBackward(MatmulGelu):
    INPUTS = ("dout", "weight", "pre")

    def shapes(self, dims):
        rows, oc, c = (dims[name] for name in self.DIMS)
        return {"dout": (rows, c), "weight": (c, oc), "pre": (rows, oc)}

    def outputs(self, arrays, dtype):
        """The product may be rounded before the slope, or not."""
        dout, weight, x = (arrays[name].astype(np.float64) for name in self.INPUTS)
        without, error = product(dout, weight, dtype)
        error = stored(without, error, dtype)
        slope, own = elementwise.GeluBackward().slope(x)
        own = own + 2.0**-12 + np.abs(x) * elementwise.SCALE * (1 + 3 * elementwise.CUBE * x * x) * 2.0**-11
        dpre = without * slope
        error = (np.abs(without) + error) * own + error * np.abs(slope) + gamma(2, U) * np.abs(dpre) + FLUSHED
        return {"dpre": (dpre, stored(dpre, error, dtype))}


OPERATIONS = {
    "permute": Heads((2, 0, 3, 1, 4)),
    "unpermute": Heads((1, 3, 0, 2, 4)),
    "attention_forward": AttentionForward(),
    "attention_backward": AttentionBackward(),
    "bias_backward": BiasBackward(),
    "matmul_backward": MatmulBackward(),
    "matmul_gelu": MatmulGelu(),
    "matmul_gelu_backward": MatmulGeluBackward(),
}
