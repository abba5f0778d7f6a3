"""The operations of chapter 18: numbers of 8 bits and their scales, error bounds, and cases.

scale       of numbers whose largest magnitude is amax: max(amax, 2^-100) / MAX, MAX = 448 for e4m3 and 57344 for e5m2; pow2: the
            next power of two that is not below. out: the nearest of the format to x / scale, MAX past MAX.
per_tensor  one scale for all of x.          weights      one for each square of 128 x 128.
activations one for each 128 neighbours of a row: scale (ceil(k / 128), m rounded up to a multiple of 4), 0 past m.
transposed  that of x, and of x transposed, whose rows are rounded up to a multiple of 16 with zeros.
swiglu      activations of silu(gate) up, gate and up the halves of a row of x; gelu: of chapter 6's GELU.
delayed     out by the scale that is there, written to `used`; history[position] = amax of x, position + 1 around the ring; the next
            scale is 2^margin that of the history's largest, or with most_recent of x's, and at most 2^126; unchanged when that
            amax is 0 or infinite.

How far a correct kernel may be off (u = 2^-24; gamma as in bounds.py):

* amax of bf16 numbers is exact, and scale is a quotient, rounded once. A power of two is exact: amax / MAX = 2^e only for amax = 1.75 *
  2^j, which the quotient hits, and bf16's neighbours are 2^-8 off.
* x / scale is computed as x times a rounded 1 / scale: three roundings, gamma_3, and gamma_4 for the float32 that the reference
  itself rounds it to. Rounding to 8 bits is monotone: what is written lies between what the two ends become. Mostly that is one
  number, and the tolerance 0; else it is the distance to the farther one. By a power of two x is divided exactly.
* Where x itself is computed, to within E: amax lies within max E of the reference's, scale and x / scale between their ends likewise.
* silu(g) = g s(g): as gelu in elementwise.py; the exponent is one product with a rounded constant, gamma_2 |d|. Times `up`: one more.
"""

import dtypes
import elementwise
import numpy as np

from bounds import UNIT_ROUNDOFF, gamma

U = UNIT_ROUNDOFF["f32"]
MAX = {"e4m3": 448.0, "e5m2": 57344.0}
GROUP = 128
SMALLEST_AMAX, MAX_SCALE = 2.0**-100, 2.0**126


def up_to(size, multiple):
    return -(-size // multiple) * multiple


def scale_of(amax, dtype, pow2=False):
    """The scale of numbers whose largest magnitude is amax, in float64; any shape."""
    scale = np.maximum(amax, SMALLEST_AMAX) / MAX[dtype]
    if not pow2:
        return scale
    fraction, exponent = np.frexp(scale)
    return np.ldexp(1.0, exponent - (fraction == 0.5))


def scale_ends(amax, error, dtype, pow2):
    """(least, exact, most) that the scale may be where amax is off by at most `error`."""
    low, scale, high = (scale_of(np.maximum(amax + side * error, 0), dtype, pow2) for side in (-1, 0, 1))
    return (low, scale, high) if pow2 else (low * (1 - U), scale, high * (1 + U))


def with_bound(low, exact, high):
    return exact, np.maximum(high - exact, exact - low)


def quantised(x, error, scale, dtype, rounding=gamma(4, U)):
    """(the nearest numbers of the format to x / scale, bound), x off by at most `error`, scale as scale_ends has it; arrays that broadcast."""
    magnitude = np.abs(x)
    ends = (magnitude - error) / scale[2] * (1 - rounding), magnitude / scale[1], (magnitude + error) / scale[0] * (1 + rounding)
    low, middle, high = (dtypes.rounded(end, dtype) for end in ends)
    middle, bound = with_bound(low, middle, high)
    return np.where(np.signbit(x), -middle, middle), bound


def groups(array, rows, cols):
    """(m, k) -> the groups of rows x cols, (ceil(m / rows), rows, ceil(k / cols), cols), with zeros past the edges."""
    m, k = array.shape
    padded = np.zeros((up_to(m, rows), up_to(k, cols)))
    padded[:m, :k] = array
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)


def by_groups(x, error, rows, cols, dtype, pow2):
    """x (m, k), off by at most `error`, with a scale for each group of rows x cols.

    Returns (out, bound), both (m, k), and (scale, bound), both (ceil(m / rows), ceil(k / cols)).
    """
    amax = groups(np.abs(x), rows, cols).max((1, 3))
    amax_error = groups(error, rows, cols).max((1, 3))
    scale = scale_ends(amax, amax_error, dtype, pow2)
    spread = [np.repeat(np.repeat(end, rows, 0), cols, 1)[: x.shape[0], : x.shape[1]] for end in scale]
    exact = pow2 and not np.any(error)
    return quantised(x, error, spread, dtype, 0.0 if exact else gamma(4, U)), with_bound(*scale)


def along_rows(x, error, dtype, pow2):
    """What activations makes of x (m, k): (out, bound) and (scale, bound), the scales as they lie in memory."""
    out, scale = by_groups(x, error, 1, GROUP, dtype, pow2)
    return out, tuple(np.pad(part.T, ((0, 0), (0, -part.shape[0] % 4))) for part in scale)


class Quantisation:
    """What all operations share: x is bf16, what it becomes is of the case's type."""

    OPTIONAL = ()
    FIXED = {"x": "bf16"}
    STORED = ("out",)

    @property
    def OWN_TYPE(self):
        return tuple(name for name in self.INPUTS if name != "x")

    def of_shape(self, dims):
        return {"plain": dict(dims)}


def numbers(rng, shape, special):
    """Normal numbers, and what the case is about."""
    x = rng.standard_normal(shape)
    if special == "outliers":  # a few, in a few rows
        x.reshape(-1)[rng.choice(x.size, max(1, x.size // 2000), replace=False)] *= 30000
    elif special == "zeros":  # whole groups of them, and single ones
        x[..., :GROUP] = 0
        x[..., GROUP::7] = 0
    elif special == "extreme":  # from bf16's smallest to its largest, rows of one magnitude
        x *= np.exp2(np.linspace(-126, 120, x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)))
    elif special == "ties":  # halfway between two of the format's numbers, once divided
        x = np.where(rng.random(shape) < 0.1, 448, rng.integers(0, 64, shape) + 0.5) * np.where(rng.random(shape) < 0.5, -1, 1)
    return x


class Flat(Quantisation):
    DIMS = ("n",)
    SIZES = {"one_element": 1, "below_a_pack": 7, "a_pack": 8, "ragged": 5003, "aligned": 16384, "blocks": 50001}

    def check_shape(self, dims, dtype):
        return None

    def shapes(self, dims):
        return {"x": (dims["n"],)}

    def cases(self, dtype):
        return {name: dict(n=n) for name, n in self.SIZES.items()} | {name: dict(n=3001, special=name) for name in ("outliers", "zeros", "extreme", "ties")}

    def x(self, rng, case):
        return numbers(rng, case["n"], case.get("special"))


class PerTensor(Flat):
    INPUTS = ("x",)

    def inputs(self, rng, case):
        return {"x": self.x(rng, case)}

    def outputs(self, arrays, dtype):
        x = arrays["x"].astype(np.float64)
        scale = scale_ends(np.array([np.abs(x).max()]), 0.0, dtype, False)
        return {"out": quantised(x, 0.0, scale, dtype), "scale": with_bound(*scale)}


class Delayed(Flat):
    DIMS = ("n", "h")
    INPUTS = ("x", "scale", "history", "position", "margin", "most_recent")
    SPECIAL = {
        "first_call": dict(history=0.0, scale=1.0),
        "saturated": dict(history=0.01),
        "past_the_end": dict(position=15),
        "margin": dict(margin=3),
        "most_recent": dict(most_recent=1, history=100.0),
        "history_of_one": dict(h=1),
        "zeros_only": dict(history=0.0, zero=True),
        "infinite_history": dict(history=np.inf),
        "largest_scale": dict(history=3e38, margin=16),
        "largest_finite": dict(history=float(np.finfo(np.float32).max)),
    }

    def cases(self, dtype):
        return {name: case | {"h": 16} for name, case in super().cases(dtype).items()} | {name: {"n": 4001, "h": 16} | case for name, case in self.SPECIAL.items()}

    def inputs(self, rng, case):
        """A history of what such numbers may have had, of which the scale that is there is."""
        x, h = self.x(rng, case) * (not case.get("zero")), case["h"]
        history = np.full(h, case["history"]) if "history" in case else np.abs(x).max() * rng.uniform(0.5, 1.5, h)
        scale = case.get("scale", scale_of(min(history.max(), 1e30), "e4m3"))
        whole = {"position": [case.get("position", 3 % h)], "margin": case.get("margin", 0), "most_recent": case.get("most_recent", 0)}
        return {"x": x, "scale": np.array([scale], np.float32), "history": history.astype(np.float32)} | {name: np.array(value, np.int32) for name, value in whole.items()}

    def outputs(self, arrays, dtype):
        x, scale = arrays["x"].astype(np.float64), arrays["scale"].astype(np.float64)
        history, position = arrays["history"].astype(np.float64), int(arrays["position"][0])
        if not 0 <= position < history.size:
            raise ValueError(f"position: {position}, expected 0 to {history.size - 1}")
        out = quantised(x, 0.0, (scale, scale, scale), dtype)
        history[position] = np.abs(x).max()
        amax = history[position] if arrays["most_recent"] else history.max()
        after, bound = scale, np.zeros(1)
        if 0 < amax < np.inf:
            after = np.minimum(np.ldexp(scale_of(np.array([amax]), dtype), int(arrays["margin"])), MAX_SCALE)
            bound = U * after
        return {
            "out": out,
            "used": (scale, np.zeros(1)),
            "scale.after": (after, bound),
            "history.after": (history, np.zeros(history.size)),
            "position.after": (np.array([(position + 1) % history.size], np.int32), np.zeros(1)),
        }


class Activations(Quantisation):
    DIMS = ("m", "k")
    INPUTS = ("x", "pow2")
    SHAPES = {
        "smallest": (1, 16),
        "one_group": (1, 128),
        "ragged": (37, 208),
        "tiles": (128, 256),
        "several_tiles": (261, 400),
        "tall": (300, 48),
        "wide": (3, 2064),
    }

    def check_shape(self, dims, dtype):
        return "k must be a multiple of 16, so that every row of out begins at a multiple of 16 bytes" if dims["k"] % 16 else None

    def shapes(self, dims):
        return {"x": (dims["m"], dims["k"])}

    def cases(self, dtype):
        special = {name: dict(zip(self.DIMS, (70, 272)), special=name) for name in ("outliers", "zeros", "extreme", "ties")}
        return {name: dict(zip(self.DIMS, shape)) for name, shape in self.SHAPES.items()} | special | {f"{name}_pow2": dict(special[name], pow2=1) for name in special}

    def inputs(self, rng, case):
        return {"x": numbers(rng, self.shapes(case)["x"], case.get("special")), "pow2": np.array(case.get("pow2", 0), np.int32)}

    def computed(self, arrays):
        """What is to be quantised, and how far off a kernel may have it."""
        x = arrays["x"].astype(np.float64)
        return x, np.zeros_like(x)

    def outputs(self, arrays, dtype):
        out, scale = along_rows(*self.computed(arrays), dtype, bool(arrays["pow2"]))
        return {"out": out, "scale": scale}


class Weights(Activations):
    DIMS = ("n", "k")

    def shapes(self, dims):
        return {"x": (dims["n"], dims["k"])}

    def outputs(self, arrays, dtype):
        out, scale = by_groups(*self.computed(arrays), GROUP, GROUP, dtype, bool(arrays["pow2"]))
        return {"out": out, "scale": scale}


class Transposed(Activations):
    STORED = ("out", "out_t")

    def outputs(self, arrays, dtype):
        x, error = self.computed(arrays)
        pow2 = bool(arrays["pow2"])
        out_t, scale_t = along_rows(x.T, error.T, dtype, pow2)
        out_t = tuple(np.pad(part, ((0, 0), (0, -x.shape[0] % 16))) for part in out_t)
        return super().outputs(arrays, dtype) | {"out_t": out_t, "scale_t": scale_t}


class Gelu(Activations):
    def computed(self, arrays):
        x = arrays["x"].astype(np.float64)
        s, rest, relative = elementwise.sigmoid(x)
        h = x * s
        return h, np.abs(h) * (rest * relative + gamma(4, U)) / (1 - relative) + (np.abs(x) + 1) * elementwise.FLUSHED


class Swiglu(Activations):
    def shapes(self, dims):
        return {"x": (dims["m"], 2 * dims["k"])}

    def inputs(self, rng, case):
        """The product of two numbers must be one of fp32: extreme ones have only half the exponents."""
        arrays = super().inputs(rng, case)
        if case.get("special") == "extreme":
            arrays["x"] = np.sign(arrays["x"]) * np.sqrt(np.abs(arrays["x"]))
        return arrays

    def computed(self, arrays):
        gate, up = np.split(arrays["x"].astype(np.float64), 2, axis=1)
        with np.errstate(over="ignore"):
            s, rest = 1 / (1 + np.exp(-gate)), 1 / (1 + np.exp(gate))
        stretch = np.expm1(gamma(2, U) * np.minimum(np.abs(gate), 90.0)) * (1 + elementwise.EX2) + elementwise.EX2
        relative = (1 + stretch) * (1 + gamma(4, U)) - 1 + elementwise.F64
        h = gate * s * up
        flushed = (np.abs(gate) + 1) * elementwise.FLUSHED * np.maximum(np.abs(up), 1)
        return h, np.abs(h) * (rest * relative + gamma(6, U)) / (1 - relative) + flushed


OPERATIONS = {
    "per_tensor": PerTensor(),
    "delayed": Delayed(),
    "activations": Activations(),
    "weights": Weights(),
    "transposed": Transposed(),
    "swiglu": Swiglu(),
    "gelu": Gelu(),
}
