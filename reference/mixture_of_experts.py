"""The operations of chapter 20: those of grouped_gemm.py, and a layer of a mixture of experts, forward and backward.

moe           expert, weight: the k largest logits of a token, and softmax over them; a row for each copy of a token, sorted by expert.
              gate_up = W1[e] · x, h = silu(gate) up, out = W2[e] · h, y[t] = sum of weight out. x, h and the W are e4m3 (chapter 18).
moe_gradient  g = weight dy a row; dh = W2[e]ᵀ · g, dgate = dh up silu'(gate), dup = dh silu(gate); dx[t] = sum of W1[e]ᵀ · (dgate, dup);
              dW2[e] += gᵀ h, dW1[e] += (dgate, dup)ᵀ x over e's rows; dlogits by way of the softmax. All that is multiplied is e4m3, with
              a scale for each 128 along what is summed up.

How far a correct kernel may be off is carried along, number by number, as (value, bound): between two products are roundings to bf16 and to
e4m3, and a number that is near the middle of two may become either. Mostly it is near none, and its bound becomes 0 again.

* Rounding is monotone: what is written lies between what the two ends become.
* A product of uncertain numbers: |dA| |B| + |A| |dB| + |dA| |dB|, with the scales. The tensor core's cuts depend on the numbers: where a row's 128
  have an uncertain one, each of the 4 wgmma may cut 33 addends and the sum at another place: by 2^-13 of the largest addend, which is at most
  the sum of the magnitudes, each, before and after: 4 * 2 * 34 * 2^-13 of it. Elsewhere they are the same to the bit. Scales may be off
  relatively, as fp32 sums are: gamma, as in fp8_gemm.py.
* silu(g) = g s(g): chapter 18's bound of s; silu'(g) = s (1 + g (1 - s)) has s three times and |g| at most once more.
* expf of a difference d is off by 2 units and by U |d|.
"""

import dtypes
import elementwise
import fp8_gemm
import fp8_quantization as fp8
import numpy as np

import grouped_gemm
from bounds import UNIT_ROUNDOFF, gamma, rounded_output
from fp8_quantization import GROUP, up_to
from grouped_gemm import column_scales, quantised_squares

U = UNIT_ROUNDOFF["f32"]
CUTS = 4 * 2 * 34 * 2.0**-13


def bf16(value, error):
    """What becomes of numbers that are off by at most `error` when they are rounded to bf16: (value, bound)."""
    ends = [dtypes.rounded(value + side * error, "bf16") for side in (-1, 0, 1)]
    return fp8.with_bound(*(end.astype(np.float64) for end in ends))


def quantised(value, error):
    """Rows with a scale for each 128: ((out, bound), (scales (groups, rows), relative bound)).

    In fp32 as the kernels have it, scale = amax / 448 and out = e4m3(x (1 / scale)), each operation rounded to nearest. All of them are
    monotone: what is written lies between what the ends become, and where x is certain, so is it.
    """
    magnitude = np.abs(value)
    ends = [np.maximum(magnitude + side * error, 0) for side in (-1, 0, 1)]
    amax = [fp8.groups(end, 1, GROUP).max((1, 3)) for end in ends]
    scale = [np.maximum(x, fp8.SMALLEST_AMAX).astype(np.float32) / np.float32(448) for x in amax]
    inverse = [np.repeat(np.float32(1) / x, GROUP, 1)[:, : value.shape[1]] for x in scale]
    low, middle, high = (
        dtypes.rounded((end.astype(np.float32) * by).astype(np.float64), "e4m3") for end, by in zip(ends, (inverse[2], inverse[1], inverse[0]))
    )
    out, bound = fp8.with_bound(low, middle, high)
    scale, scale_bound = fp8.with_bound(*(x.astype(np.float64) for x in scale))
    return (np.where(value < 0, -out, out), bound), (scale.T, (scale_bound / scale).T)


def product(A, scale_A, B, scale_B):
    """(A · Bᵀ, bound) in fp32. A, B: (numbers, bound); their scales: (scales (groups of k, rows), relative bound)."""
    total, _ = fp8_gemm.promoted(A[0], B[0], scale_A[0], scale_B[0])
    error = np.zeros_like(total)
    for g in range(len(scale_A[0])):
        k = slice(g * GROUP, (g + 1) * GROUP)
        a, b, da, db = np.abs(A[0][:, k]), np.abs(B[0][:, k]), A[1][:, k], B[1][:, k]
        magnitudes = (a + da) @ (b + db).T
        uncertain = da.any(1)[:, None] | db.any(1)
        part = da @ b.T + a @ db.T + da @ db.T + CUTS * magnitudes * uncertain
        relative = scale_A[1][g][:, None] + scale_B[1][g] + gamma(len(scale_A[0]) + 3, U)
        error += (part + relative * magnitudes) * scale_A[0][g][:, None] * scale_B[0][g]
    return total, error * (1 + 1e-6)  # products of bounds


def exact(array):
    return array.astype(np.float64), np.zeros(array.shape)


def sigmoid(x):
    """(s, relative bound) as the kernels have it: chapter 18's."""
    with np.errstate(over="ignore"):
        s, rest = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    stretch = np.expm1(gamma(2, U) * np.minimum(np.abs(x), 90.0)) * (1 + elementwise.EX2) + elementwise.EX2
    relative = (1 + stretch) * (1 + gamma(4, U)) - 1 + elementwise.F64
    return s, (rest * relative + gamma(4, U)) / (1 - relative)


def swiglu(gate_up, error):
    """(h, bound) of rows (gate, up) that are off by at most `error`. |silu'| is at most 1.1."""
    (gate, up), (dgate, dup) = np.split(gate_up, 2, 1), np.split(error, 2, 1)
    s, relative = sigmoid(gate)
    h = gate * s * up
    own = np.abs(h) * (relative + gamma(3, U)) + (np.abs(gate) + 1) * elementwise.FLUSHED * np.maximum(np.abs(up), 1)
    return h, own + 1.1 * dgate * (np.abs(up) + dup) + (np.abs(gate * s) + 1.1 * dgate) * dup


def swiglu_gradients(gate_up, dh):
    """(values, bound) of (dgate, dup), rows of gate_up exact, dh = (value, bound)."""
    gate, up = np.split(gate_up, 2, 1)
    s, relative = sigmoid(gate)
    slope = s * (1 + gate * (1 - s))
    slope_error = s * (1 + np.abs(gate)) * (3 * relative + gamma(6, U)) + (np.abs(gate) + 1) * elementwise.FLUSHED
    silu, silu_error = gate * s, np.abs(gate) * s * (relative + U) + (np.abs(gate) + 1) * elementwise.FLUSHED
    value, error = [], []
    for factor, factor_error in ((up * slope, np.abs(up) * slope_error), (silu, silu_error)):
        value.append(dh[0] * factor)
        error.append((np.abs(dh[0]) + dh[1]) * (factor_error + gamma(3, U) * np.abs(factor)) + dh[1] * np.abs(factor))
    return np.concatenate(value, 1), np.concatenate(error, 1)


def weighted_sum(rows, weight, place):
    """(sum over a token's rows, bound), rows = (values, bound), weight = (values, bound)."""
    value, error = rows[0][place], rows[1][place]
    w, dw = weight[0][..., None], weight[1][..., None]
    total = (w * value).sum(1)
    magnitudes = ((w + dw) * (np.abs(value) + error)).sum(1)
    return total, (w * error + dw * (np.abs(value) + error)).sum(1) + gamma(place.shape[1], U) * magnitudes


def segments(counts):
    ends = np.cumsum(counts)
    return [slice(end - count, end) for count, end in zip(counts, ends)]


def grouped(A, counts, B, scale_B):
    """bf16 rows of A = (value, bound), quantised, times each expert's B: (values, bound)."""
    numbers, (scale, scale_bound) = quantised(*A)
    parts = []
    for rows, b, s in zip(segments(counts), B, scale_B):
        columns = column_scales(s, len(b))
        parts.append(product([x[rows] for x in numbers], (scale[:, rows], scale_bound[:, rows]), exact(b), (columns, np.zeros_like(columns))))
    return bf16(*(np.concatenate(part) for part in zip(*parts)))


class Moe:
    DIMS = ("t", "h", "f", "e", "k")
    INPUTS = ("W1", "W2", "x", "logits", "scale_W1", "scale_W2", "k")
    OPTIONAL = ()
    OWN_TYPE = ("logits", "scale_W1", "scale_W2", "k")
    FIXED = {"x": "bf16"}
    CASES = {
        "smallest": (1, 16, 16, 1, 1),
        "ragged": (50, 144, 80, 5, 2),
        "one_has_all": (140, 48, 32, 3, 1),
        "many_experts": (21, 64, 48, 40, 6),
        "several_tiles": (140, 160, 144, 2, 2),
    }

    def cases(self, dtype):
        return {name: dict(zip(self.DIMS, shape), favourite=name == "one_has_all") for name, shape in self.CASES.items()}

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        if dims["h"] % 16 or dims["f"] % 16:
            return "h and f must be multiples of 16, as TMA needs rows of e4m3"
        return "k must be at most 32, and at most e" if dims["k"] > min(32, dims["e"]) else None

    def shapes(self, case):
        t, h, f, e, k = (case[name] for name in self.DIMS)
        return {"x": (t, h), "W1": (e, 2 * f, h), "gate_up": (t * k, 2 * f)}

    def inputs(self, rng, case):
        t, h, f, e, _ = (case[name] for name in self.DIMS)
        logits = rng.standard_normal((t, e)).astype(np.float32)
        logits[: t // 3] = np.round(logits[: t // 3])  # equal ones
        if case.get("favourite"):
            logits[:, 1] += 20
        arrays = {"x": rng.standard_normal((t, h)), "logits": logits, "k": np.array(case["k"], np.int32)}
        for name, shape in ("W1", (2 * f, h)), ("W2", (h, f)):
            W, scale = zip(*(quantised_squares(rng.standard_normal(shape) / np.sqrt(shape[1])) for _ in range(e)))
            arrays |= {name: np.array(W), f"scale_{name}": np.array(scale)}
        return {name: arrays[name] for name in Moe.INPUTS}

    def routed(self, logits, k):
        """expert (t, k), weight = (values, bound) (t, k), counts, place (t, k), source."""
        expert = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
        chosen = np.take_along_axis(logits.astype(np.float64), expert.astype(int), 1)
        distance = chosen[:, :1] - chosen
        share = np.exp(-distance)
        relative = np.expm1(2 * U * distance) + 2 * gamma(4, U)
        weight = share / share.sum(1, keepdims=True)
        bound = weight * (relative + relative.max(1, keepdims=True) + gamma(k + 2, U)) * 1.01
        source = np.argsort(expert.reshape(-1), kind="stable").astype(np.int32)
        place = np.argsort(source, kind="stable").astype(np.int32).reshape(expert.shape)
        return expert, (weight, bound), np.bincount(expert.reshape(-1), minlength=logits.shape[1]).astype(np.int32), place, source

    def outputs(self, arrays, dtype):
        k = int(arrays["k"])
        expert, weight, counts, place, source = self.routed(arrays["logits"], k)
        gate_up = grouped(exact(arrays["x"][source // k]), counts, arrays["W1"], arrays["scale_W1"])
        out = grouped(swiglu(*gate_up), counts, arrays["W2"], arrays["scale_W2"])
        y, error = weighted_sum(out, weight, place)
        whole = {"expert": expert, "counts": counts, "place": place, "source": source}
        return {name: (value, np.zeros(value.shape)) for name, value in whole.items()} | {
            "weight": weight,
            "gate_up": gate_up,
            "out": out,
            "y": (y, rounded_output(y, error, "bf16")),
        }


class MoeGradient(Moe):
    INPUTS = ("W1_t", "W2_t", "x", "dy", "gate_up", "out", "weight", "expert", "counts", "place", "source", "scale_W1_t", "scale_W2_t", "dW1", "dW2")
    OWN_TYPE = INPUTS[6:]
    FIXED = dict.fromkeys(("x", "dy", "gate_up", "out"), "bf16")

    def inputs(self, rng, case):
        forward = super().inputs(rng, case)
        for name, dtype in ("x", "bf16"), ("W1", "e4m3"), ("W2", "e4m3"):
            forward[name] = dtypes.rounded(forward[name], dtype)
        left = {name: value for name, (value, _) in super().outputs(forward, "e4m3").items()}
        arrays = {"x": forward["x"], "dy": rng.standard_normal(forward["x"].shape), "weight": left["weight"].astype(np.float32)}
        arrays |= {name: left[name] for name in ("gate_up", "out", "expert", "counts", "place", "source")}
        for name in "W1", "W2":
            arrays[f"{name}_t"] = forward[name].swapaxes(1, 2)
            arrays[f"scale_{name}_t"] = np.ascontiguousarray(forward[f"scale_{name}"].swapaxes(1, 2))
            arrays[f"d{name}"] = rng.standard_normal(forward[name].shape).astype(np.float32)
        return {name: arrays[name] for name in self.INPUTS}

    def weight_gradient(self, D, counts, A, B):
        """D[e] += A[e's rows]ᵀ · B[e's rows], A and B = (value, bound), quantised along the rows; (value, bound)."""
        value, error = D.astype(np.float64), np.zeros(D.shape)
        for e, rows in enumerate(segments(counts)):
            if counts[e] == 0:
                continue
            pad = ((0, 0), (0, up_to(counts[e], GROUP) - counts[e]))
            (a, scale_a), (b, scale_b) = (quantised(*(np.pad(part[rows].T, pad) for part in X)) for X in (A, B))
            added, bound = product(a, scale_a, b, scale_b)
            value[e] += added
            error[e] = bound * (1 + U) + U * (np.abs(value[e]) + np.abs(added))
        return value, error

    def outputs(self, arrays, dtype):
        counts, place, source, weight = arrays["counts"], arrays["place"], arrays["source"], arrays["weight"].astype(np.float64)
        k = place.shape[1]
        x, dy, out, gate_up = (arrays[name].astype(np.float64) for name in ("x", "dy", "out", "gate_up"))
        g = exact((weight.reshape(-1)[source][:, None] * dy[source // k]).astype(np.float32))  # one product, rounded once
        dh = grouped(g, counts, arrays["W2_t"], arrays["scale_W2_t"])
        h = swiglu(gate_up, np.zeros_like(gate_up))
        a = swiglu_gradients(gate_up, dh)
        dx, dx_error = weighted_sum(grouped(a, counts, arrays["W1_t"], arrays["scale_W1_t"]), exact(np.ones_like(weight)), place)
        products = dy[:, None] * out[place]
        p, dp = products.sum(-1), gamma(products.shape[-1] + 1, U) * np.abs(products).sum(-1)
        mean = (weight * p).sum(1, keepdims=True)
        gradient = weight * (p - mean)
        reach = np.abs(p) + dp + (weight * (np.abs(p) + dp)).sum(1, keepdims=True)
        error = weight * (dp + (weight * dp).sum(1, keepdims=True) + gamma(k + 3, U) * reach)
        dlogits, dlogits_error = np.zeros((len(x), len(counts))), np.zeros((len(x), len(counts)))
        np.put_along_axis(dlogits, arrays["expert"].astype(int), gradient, 1)
        np.put_along_axis(dlogits_error, arrays["expert"].astype(int), error, 1)
        return {
            "dx": (dx, rounded_output(dx, dx_error, "bf16")),
            "dlogits": (dlogits, dlogits_error),
            "dW1.after": self.weight_gradient(arrays["dW1"], counts, a, exact(x[source // k])),
            "dW2.after": self.weight_gradient(arrays["dW2"], counts, g, h),
        }


OPERATIONS = grouped_gemm.OPERATIONS | {"moe": Moe(), "moe_gradient": MoeGradient()}
