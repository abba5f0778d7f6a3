"""The operations of chapter 6: definitions in float64, error bounds, and cases. The names are llm.c's.

residual   out = inp1 + inp2.                       Backward: dinp1 += dout, dinp2 += dout.
gelu       out = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is the tanh form 0.5 x (1 + tanh u), since
           1 + tanh u = 2 / (1 + e^-2u).            Backward: dinp = dout (s + x s (1 - s) 2u'), s = 1 / (1 + e^-2u).
encoder    out[b,t] = wte[inp[b,t]] + wpe[t].       Backward: dwte[inp[b,t]] += dout[b,t], dwpe[t] += dout[b,t], in fp32.

How far a correct kernel may be off (u = 2^-24 below; gamma and the theorems as in bounds.py):

* residual, encoder, each of their gradients' additions: one rounding, relative to the result; dwte and dwpe are sums of n + 1
  addends in any order: gamma_n times the sum of their absolute values (Higham, section 4.2).
* gelu. The kernels compute e = ex2(x (A + B x^2)), in which all terms have one sign: x^2, an FMA, a product and the rounding of
  two constants, or one operation more where e^-2u is asked for, so that the exponent d = -2u has a relative error of at most
  gamma_6 and e one of stretch = exp(gamma_6 |d|) (1 + EX2) - 1; EX2 as in softmax.py. s = 1 / (1 + e) passes on e s <= 1 of it;
  a sum, a reciprocal of at most 1 ulp (PTX ISA, rcp.approx: 2 u) and a product add gamma_4. Nothing cancels: the bound is
  relative, into the tail. Where e is above 2^126, s becomes 0: an error of at most |x| 2^-126.
* gelu's backward is a sum of s and p = (x s) (e s) 2u': relative errors of s as above, of p twice that and of e, and 8 roundings.
"""

import numpy as np

from bounds import UNIT_ROUNDOFF, gamma, rounded_output

U = UNIT_ROUNDOFF["f32"]
EX2 = 2.06 * 2.0**-23
FLUSHED = 2.0**-126
SCALE, CUBE = np.sqrt(2 / np.pi), 0.044715
F64 = gamma(64, UNIT_ROUNDOFF["f64"])  # what the definitions below are off themselves, relative to their terms


def rounded(value, error, dtype):
    """fp32 results are rounded in the bound already."""
    return error if dtype == "f32" else rounded_output(value, error, dtype)


def spoil(rng, x, special):
    """Makes standard normal numbers into what the case is about: magnitudes from 2^-60 to 2^60, zeros among them."""
    if special == "extreme":
        x = np.sign(x) * np.exp2(rng.uniform(-60, 60, x.shape))
        x[:: 7] = 0.0
        x[1:: 7] = np.linspace(-16, 16, x[1:: 7].size)
    return x


class Flat:
    """What the operations on n independent numbers share."""

    DIMS = ("n",)
    OPTIONAL = ()
    OWN_TYPE = ()

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return None

    def cases(self, dtype):
        sizes = {"one_element": 1, "below_a_pack": 3, "a_pack": 8, "ragged": 1021, "aligned": 8192, "blocks": 50003}
        return {name: dict(n=n) for name, n in sizes.items()} | {"extreme": dict(n=3001, special="extreme")}

    def shapes(self, dims):
        return {name: (dims["n"],) for name in self.INPUTS}

    def inputs(self, rng, case):
        return {name: spoil(rng, rng.standard_normal(case["n"]), case.get("special")) for name in self.INPUTS}


class ResidualForward(Flat):
    INPUTS = ("inp1", "inp2")

    def outputs(self, arrays, dtype):
        out = arrays["inp1"].astype(np.float64) + arrays["inp2"]
        return {"out": (out, rounded(out, U * np.abs(out), dtype))}


class ResidualBackward(Flat):
    INPUTS = ("dout", "dinp1", "dinp2")

    def outputs(self, arrays, dtype):
        results = {}
        for name in ("dinp1", "dinp2"):
            after = arrays[name].astype(np.float64) + arrays["dout"]
            results[f"{name}.after"] = (after, rounded(after, U * np.abs(after), dtype))
        return results


def sigmoid(x):
    """(s, 1 - s, relative bound of a kernel's s and 1 - s) with s = 1 / (1 + e^-2u) of float64 x."""
    with np.errstate(over="ignore"):
        d = -2 * SCALE * x * (1 + CUBE * x * x)
        e = np.exp(d)
        rest = 1 / (1 + np.exp(-d))
    s = 1 / (1 + e)
    stretch = np.expm1(gamma(6, U) * np.minimum(np.abs(d), 90.0)) * (1 + EX2) + EX2  # past 90 s is flushed, or e is
    return s, rest, (1 + stretch) * (1 + gamma(4, U)) - 1 + F64


def gelu(x):
    return x * sigmoid(x)[0]


class GeluForward(Flat):
    INPUTS = ("inp",)

    def outputs(self, arrays, dtype):
        x = arrays["inp"].astype(np.float64)
        s, rest, relative = sigmoid(x)
        out = x * s
        # s depends on e through 1 - s: what is wrong in e counts by that much.
        error = np.abs(out) * (rest * relative + gamma(4, U)) / (1 - relative) + (np.abs(x) + 1) * FLUSHED
        return {"out": (out, rounded(out, error, dtype))}


class GeluBackward(Flat):
    INPUTS = ("inp", "dout")

    def slope(self, x):
        """(GELU's, bound) at x in float64."""
        s, rest, relative = sigmoid(x)
        slope = 2 * SCALE * (1 + 3 * CUBE * x * x)
        p = x * s * rest * slope
        s_error = s * (rest * relative + gamma(4, U)) + FLUSHED
        p_error = np.abs(p) * (3 * relative + gamma(8, U)) + (np.abs(x * slope) + 1) * 4 * FLUSHED
        p_error = np.where(np.minimum(s, rest) * np.abs(x * slope) < FLUSHED, 4 * FLUSHED + np.abs(p), p_error)
        return s + p, s_error + p_error

    def outputs(self, arrays, dtype):
        x, dout = (arrays[name].astype(np.float64) for name in self.INPUTS)
        slope, own = self.slope(x)
        dinp = dout * slope
        error = np.abs(dout) * own * (1 + gamma(2, U)) + gamma(2, U) * np.abs(dinp) + FLUSHED
        return {"dinp": (dinp, rounded(dinp, error, dtype))}


class Encoder:
    """What encoder_forward and encoder_backward share."""

    DIMS = ("b", "t", "c", "v")
    OPTIONAL = ()

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return "b * t must be below 2^31" if dims["b"] * dims["t"] >= 1 << 31 else None

    def cases(self, dtype):
        shapes = {
            "one_element": (1, 1, 1, 1),
            "odd": (3, 7, 13, 11),
            "aligned": (2, 32, 768, 50),
            "ragged": (2, 5, 771, 301),
            "wide": (1, 3, 2056, 7),
            "many_tokens": (4, 96, 40, 5000),
            "one_token": (5, 61, 72, 1),
            "many_sequences": (70, 3, 24, 30),
            "long": (12, 500, 8, 1),
        }
        return {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}

    def tokens(self, rng, case):
        """(b, t): half of them one of three, so that some come often; the first is token 0, the last v - 1."""
        b, t, v = (case[name] for name in "btv")
        inp = rng.integers(0, v, (b, t))
        inp = np.where(rng.random((b, t)) < 0.5, inp % min(v, 3), inp).astype(np.int32)
        inp[-1, -1] = v - 1
        if inp.size > 1:
            inp[0, 0] = 0
        return inp

    def check_tokens(self, arrays, v):
        inp = arrays["inp"]
        if inp.min() < 0 or inp.max() >= v:
            raise ValueError(f"inp: tokens {inp.min()} to {inp.max()}, expected 0 to {v - 1}")


class EncoderForward(Encoder):
    INPUTS = ("inp", "wte", "wpe")
    OWN_TYPE = ("inp",)

    def shapes(self, dims):
        return {"inp": (dims["b"], dims["t"]), "wte": (dims["v"], dims["c"]), "wpe": (dims["t"], dims["c"]), "out": (dims["b"], dims["t"], dims["c"])}

    def inputs(self, rng, case):
        """A token that never comes has a row of NaN: nobody may read it."""
        inp = self.tokens(rng, case)
        wte = rng.standard_normal((case["v"], case["c"]))
        wte[np.setdiff1d(np.arange(case["v"]), inp)] = np.nan
        return {"inp": inp, "wte": wte, "wpe": rng.standard_normal((case["t"], case["c"]))}

    def outputs(self, arrays, dtype):
        wte, wpe = (arrays[name].astype(np.float64) for name in ("wte", "wpe"))
        self.check_tokens(arrays, wte.shape[0])
        out = wte[arrays["inp"]] + wpe
        return {"out": (out, rounded(out, U * np.abs(out), dtype))}


class EncoderBackward(Encoder):
    INPUTS = ("inp", "dout", "dwte", "dwpe")
    OWN_TYPE = ("inp", "dwte", "dwpe")

    def shapes(self, dims):
        return {"inp": (dims["b"], dims["t"]), "dout": (dims["b"], dims["t"], dims["c"]), "dwte": (dims["v"], dims["c"]), "dwpe": (dims["t"], dims["c"])}

    def inputs(self, rng, case):
        shapes = self.shapes(case)
        arrays = {name: rng.standard_normal(shapes[name]) for name in ("dout", "dwte", "dwpe")}
        return {"inp": self.tokens(rng, case)} | arrays | {name: arrays[name].astype(np.float32) for name in ("dwte", "dwpe")}

    def outputs(self, arrays, dtype):
        dout = arrays["dout"].astype(np.float64)
        inp = arrays["inp"]
        self.check_tokens(arrays, arrays["dwte"].shape[0])
        dwte, dwpe = (arrays[name].astype(np.float64) for name in ("dwte", "dwpe"))
        absolute, count = np.abs(dwte), np.zeros(len(dwte))
        np.add.at(dwte, inp, dout)
        np.add.at(absolute, inp, np.abs(dout))
        np.add.at(count, inp, 1)
        dwpe_absolute = np.abs(dwpe) + np.abs(dout).sum(0)
        dwpe = dwpe + dout.sum(0)
        factor = count * U / (1 - count * U) * (1 + F64)  # gamma of each token's count
        return {
            "dwte.after": (dwte, factor[:, None] * absolute),
            "dwpe.after": (dwpe, gamma(len(dout), U) * (1 + F64) * dwpe_absolute),
        }


OPERATIONS = {
    "residual_forward": ResidualForward(),
    "residual_backward": ResidualBackward(),
    "gelu_forward": GeluForward(),
    "gelu_backward": GeluBackward(),
    "encoder_forward": EncoderForward(),
    "encoder_backward": EncoderBackward(),
}
