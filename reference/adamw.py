"""The operations of chapter 10: definitions in float64, error bounds, and cases.

adamw        m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, and with c1 = 1 / (1 - beta1^t), c2 = 1 / (1 - beta2^t):
             param -= lr (c1 m / (sqrt(c2 v) + epsilon) + weight_decay param)    (Loshchilov and Hutter, algorithm 2)
master       the same of master; param is the nearest bf16.
stochastic   the same of param in bf16: the bits of the fp32 result plus 16 random ones, the lower half cut off.
norm         norm = sqrt(sum of grad^2), infinity past fp32; factor = min(1, max_norm / (norm + 1e-6)).
scaled_norm  norm = that of grad / scale, or infinity when the sum is infinity or NaN: then control = (0, 0, 0), good_steps = 0 and
             scale is halved. Else steps + 1, good_steps + 1, and control = (factor / scale, c1, c2) of those steps; scale is doubled
             and good_steps 0 once these are growth_interval. 0 for that: scale stays.
update       scaled_norm, and adamw of control[0] grad, unless norm is infinity.
Settings are fp32; the formulas have what fp32 has of them.

How far a correct kernel may be off (u = 2^-24; gamma and the theorems as in bounds.py), with or without FMA. E(x) is the bound of x.

* m: two products, a difference 1 - beta1 and a sum: gamma_4 (beta1 |m| + (1 - beta1) |g|), and (1 - beta1) E(g) where g is computed.
  v, whose terms are not negative: gamma_5 v, and that of g^2; each underflow of a square is worth 2^-149.
* c1, c2 are computed in double and rounded: u. With a = c2 v, E(a) = c2 E(v) + gamma_2 a. A root passes on |sqrt(a) - sqrt(b)| =
  |a - b| / (sqrt(a) + sqrt(b)), at most E(a) / (sqrt(a) + sqrt(a - E(a))), and where E(a) >= a sqrt(E(a)).
* sqrt.approx is off by 2^-23, div.approx by 2 ulp, 2^-22 (PTX ISA).
* A quotient x / d is off by (E(x) + |x / d| E(d)) / (d - E(d)), exactly that, and its rounding; epsilon > 0 keeps d from 0.
* The rest are products and sums: 3 roundings of what is subtracted, one of the difference.
* Rounded by chance: the fp32 result lies between two floats lo and hi; cutting is monotone, so what is written lies between what lo and
  hi become with the same random bits, mostly the same number: then the tolerance is 0.
* Sums of n squares: a chain has what a thread adds (at most 32 at a time, as often as it comes around, and one from behind the last
  pack), a tree of 10, and the blocks: one for 8,192 elements, at most 396, or a tree of 10. No term is negative: gamma_(chain + 1)
  of the sum, and 2^-149 for the underflow of each square, 2^-126 for each block whose sum an atomic adds (PTX ISA, atom: subnormal
  numbers are flushed). A root passes on what it does above.
"""

import dtypes
import numpy as np

from bounds import UNIT_ROUNDOFF, gamma, rounded_output

U = UNIT_ROUNDOFF["f32"]
F64 = gamma(64, UNIT_ROUNDOFF["f64"])  # what the definitions below are off themselves, relative to their terms
TINY = 2.0**-149
FLUSHED = 2.0**-126
SQRT, DIVIDE = 2.0**-23, 2.0**-22
LARGEST = float(np.finfo(np.float32).max)
MIN_SCALE, MAX_SCALE = 2.0**-126, 2.0**126
SETTINGS = ("beta1", "beta2", "epsilon", "weight_decay")
DEFAULTS = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "t": 10, "seed": 7, "max_norm": 1.0, "growth_interval": 2000, "scale": 1024.0, "good_steps": 5, "steps": 9}
WHOLE = ("t", "seed", "growth_interval", "good_steps", "steps")


def correction(beta, t):
    return 1 / (1 - float(beta) ** int(t))


def root_error(square, error):
    """How far the root of what is off by at most `error` from `square` is off."""
    below = np.sqrt(np.maximum(square - error, 0))
    return np.where(below > 0, error / np.where(below > 0, np.sqrt(square) + below, 1), np.sqrt(error))


def adamw(param, g, g_error, m, v, a, c1, c2):
    """(param, m, v) after the step, each with its bound; `a` has the settings and lr, g_error is the bound of g."""
    lr, beta1, beta2, epsilon, decay = (float(a[name]) for name in ("lr",) + SETTINGS)
    m_terms = beta1 * np.abs(m) + (1 - beta1) * np.abs(g)
    m_after = beta1 * m + (1 - beta1) * g
    m_error = (gamma(4, U) + F64) * m_terms + (1 - beta1) * g_error * (1 + gamma(4, U)) + 4 * TINY
    v_after = beta2 * v + (1 - beta2) * g * g
    v_error = (gamma(5, U) + F64) * v_after + (1 - beta2) * (2 * np.abs(g) + g_error) * g_error * (1 + gamma(5, U)) + 4 * TINY
    square = c2 * v_after
    square_error = c2 * v_error * (1 + gamma(2, U)) + gamma(2, U) * square + TINY
    root = np.sqrt(square)
    d = root + epsilon
    passed_on = root_error(square, square_error)
    d_error = passed_on + (gamma(2, U) + SQRT) * (d + passed_on)
    x, x_error = c1 * m_after, c1 * m_error * (1 + gamma(2, U)) + gamma(2, U) * c1 * np.abs(m_after) + TINY
    direction = x / d
    direction_error = (x_error + np.abs(direction) * d_error) / (d - d_error) * (1 + DIVIDE) + DIVIDE * np.abs(direction) + FLUSHED
    after = param - lr * (direction + decay * param)
    terms = np.abs(direction) + direction_error + decay * np.abs(param)
    error = lr * (direction_error + (gamma(3, U) + F64) * terms) * (1 + U) + (U + F64) * np.abs(after) + 2 * TINY
    return (after, error), (m_after, m_error), (v_after, v_error)


def hash32(x):
    """triple32 of C. Wellons, on arrays of uint32."""
    x = np.asarray(x, np.uint32)
    for shift, factor in (17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return x ^ x >> np.uint32(14)


def random_bits(seed, t, n):
    """The 16 random bits of elements 0 to n - 1, n at most 2^32."""
    with np.errstate(over="ignore"):
        key = hash32(hash32(hash32(np.array([seed], np.uint32)) + np.uint32(t)))
        return hash32(key ^ np.arange(n, dtype=np.uint32)) >> np.uint32(16)


def round_by_chance(x, random):
    """fp32 to numbers of bf16, towards 0 if the lower half and the random bits do not carry."""
    x = np.ascontiguousarray(x, np.float32)
    return np.where(np.isnan(x), x, (x.view(np.uint32) + random & np.uint32(0xFFFF0000)).view(np.float32))


def norm_of(grad):
    """(sum of squares, relative bound of the sum); infinity past fp32, NaN of a NaN."""
    n = grad.size
    total = np.sum(grad.astype(np.float64) ** 2)
    chain = 32 * -(-n // (396 * 512 * 16)) + 1 + 10 + max(10, min(396, -(-n // 8192)))
    return (np.inf if total > LARGEST else total), gamma(chain + 1, U) + gamma(n + 1, UNIT_ROUNDOFF["f64"])


def root_of(total, relative, n):
    """(norm, bound) of a sum of n squares that are off by at most that, and by what underflows."""
    if not np.isfinite(total):
        return total, 0.0
    error = relative * total + n * TINY + -(-n // 8192) * FLUSHED
    root = np.sqrt(total)
    return root, root_error(total, error) + U * root


def factor_of(norm, error, max_norm):
    """(factor, bound). It falls as norm grows, so what norm - error and norm + error become encloses it."""
    factor = min(1.0, max_norm / (norm + 1e-6))
    if np.isinf(norm):
        return factor, 0.0
    low, high = (min(1.0, max_norm / (max(norm + off, 0.0) + 1e-6)) for off in (error, -error))
    return factor, max(factor - low, high - factor) + gamma(4, U) * factor


def next_state(a):
    """norm, scale, good_steps, steps and control (3) after the gradient, each with its bound; whole numbers without one."""
    scale, interval = float(a["scale"][0]), int(a["growth_interval"])
    good_steps, steps = int(a["good_steps"][0]), int(a["steps"][0])
    total, relative = norm_of(a["grad"])
    if not np.isfinite(total):
        state = {"norm": np.inf, "scale": max(scale / 2, MIN_SCALE) if interval > 0 else scale, "good_steps": 0, "steps": steps}
        return state, 0.0, np.zeros(3), np.zeros(3)
    root, error = root_of(total, relative, a["grad"].size)
    norm, error = root / scale, error / scale * (1 + U) + U * root / scale + TINY
    steps, good_steps = steps + 1, good_steps + 1
    after = scale
    if interval > 0 and good_steps >= interval:
        after, good_steps = min(scale * 2, MAX_SCALE), 0
    factor, factor_error = factor_of(norm, error, float(a["max_norm"]))
    control = np.array([factor / scale, correction(a["beta1"], steps), correction(a["beta2"], steps)])
    control_error = np.array([factor_error / scale * (1 + U) + U * control[0] + TINY, *(2 * U * control[1:])])
    return {"norm": norm, "scale": after, "good_steps": good_steps, "steps": steps}, error, control, control_error


class Flat:
    """What the operations on n parameters share."""

    DIMS = ("n",)
    OPTIONAL = ()
    FIXED = {}
    SPECIAL = {}  # more cases: name -> what is special
    IN_MEMORY = ()  # settings that are in device memory: rank 1
    ROUNDS = False  # whether there is a case of more numbers than the blocks of a norm take at a time

    @property
    def OWN_TYPE(self):
        return tuple(name for name in self.INPUTS if name != "grad" and name not in self.FIXED)

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        return None

    def cases(self, dtype):
        sizes = {"one_element": 1, "below_four": 3, "ragged": 1021, "aligned": 8192, "blocks": 50003}
        if self.ROUNDS:  # 396 blocks of 512 threads have four times 16 bytes each
            sizes["rounds"] = 396 * 512 * 4 * (8 if dtype == "bf16" else 4) + 50003
        return {name: dict(n=n) for name, n in sizes.items()} | {name: dict(n=2003) | special for name, special in self.SPECIAL.items()}

    def shapes(self, dims):
        return {name: (dims["n"],) for name in self.INPUTS if name not in DEFAULTS}

    def inputs(self, rng, case):
        """Standard normal parameters; gradients and their means of the case's magnitude."""
        n, magnitude, arrays = case["n"], case.get("magnitude", 1.0), {}
        first = case.get("steps") == 0 or case.get("t") == 1  # no means before the first step
        for name in self.INPUTS:
            if name in DEFAULTS:
                value = (np.int32 if name in WHOLE else np.float32)(case.get(name, DEFAULTS[name]))
                arrays[name] = np.array([value]) if name in self.IN_MEMORY else np.array(value)
            elif name == "grad":
                arrays[name] = self.gradient(rng, n, case) * magnitude
            else:
                drawn = rng.standard_normal(n)
                drawn = {"m": 0 * drawn if first else drawn * magnitude, "v": 0 * drawn if first else (drawn * magnitude) ** 2}.get(name, drawn)
                arrays[name] = drawn if name in self.FIXED else drawn.astype(np.float32)
        return arrays

    def gradient(self, rng, n, case):
        grad = rng.standard_normal(n)
        if case.get("spread"):
            grad *= np.exp2(rng.uniform(-30, 30, n))
            grad[:: 7] = 0.0
        if "spoilt" in case:
            grad[n // 2] = case["spoilt"]
        return grad


TRAINING = {
    "first_step": {"t": 1},
    "late_step": {"t": 100000, "beta2": 0.999},
    "no_decay": {"weight_decay": 0.0, "beta1": 0.0},
    "small": {"magnitude": 1e-12},
    "wide": {"spread": True},
}


class Adamw(Flat):
    INPUTS = ("grad", "param", "m", "v", *SETTINGS, "lr", "t")
    SPECIAL = TRAINING

    def stepped(self, arrays, name):
        """The array of that name, m and v after the step."""
        param, grad, m, v = (arrays[x].astype(np.float64) for x in (name, "grad", "m", "v"))
        c1, c2 = (correction(arrays[beta], arrays["t"]) for beta in ("beta1", "beta2"))
        return adamw(param, grad, 0.0, m, v, arrays, c1, c2)

    def outputs(self, arrays, dtype):
        param, m, v = self.stepped(arrays, "param")
        return {"param.after": param, "m.after": m, "v.after": v}


class AdamwMaster(Adamw):
    INPUTS = ("grad", "master", "m", "v", *SETTINGS, "lr", "t")

    def outputs(self, arrays, dtype):
        master, m, v = self.stepped(arrays, "master")
        param = master[0], rounded_output(*master, "bf16")
        return {"param": param, "master.after": master, "m.after": m, "v.after": v}


class AdamwStochastic(Adamw):
    FIXED = {"param": "bf16"}
    INPUTS = (*Adamw.INPUTS, "seed")

    def outputs(self, arrays, dtype):
        (param, error), m, v = self.stepped(arrays, "param")
        random = random_bits(arrays["seed"], arrays["t"], param.size)
        low, high = (round_by_chance(np.nextafter((param + side * error).astype(np.float32), np.float32(side * np.inf)), random).astype(np.float64) for side in (-1, 1))
        return {"param.after": ((low + high) / 2, (high - low) / 2), "m.after": m, "v.after": v}


class GradNorm(Flat):
    INPUTS = ("grad", "max_norm")
    ROUNDS = True
    SPECIAL = {"wide": {"spread": True}, "small": {"magnitude": 1e-19}, "short": {"magnitude": 1e-3}, "zero": {"magnitude": 0.0}, "past_fp32": {"spoilt": 1e30}}

    def outputs(self, arrays, dtype):
        norm, error = root_of(*norm_of(arrays["grad"]), arrays["grad"].size)
        factor, factor_error = factor_of(norm, error, float(arrays["max_norm"]))
        return {"norm": (np.array([norm]), np.array([error])), "factor": (np.array([factor]), np.array([factor_error]))}


SCALING = {
    "first_step": {"steps": 0, "good_steps": 0},
    "second_step": {"steps": 1, "beta2": 0.999},
    "seventh_step": {"steps": 6, "beta2": 0.999},
    "growth": {"good_steps": 1999},
    "before_growth": {"good_steps": 1998},
    "overflow": {"spoilt": np.inf},
    "not_a_number": {"spoilt": np.nan},
    "static": {"growth_interval": 0, "good_steps": 3000},
    "static_overflow": {"growth_interval": 0, "spoilt": -np.inf},
    "smallest_scale": {"spoilt": np.inf, "scale": 2.0**-126},
    "largest_scale": {"good_steps": 1999, "scale": 2.0**126, "magnitude": 1e-30},
    "not_clipped": {"max_norm": np.inf},
    "short": {"magnitude": 1e-4},
}
STATE = ("scale", "good_steps", "steps", "max_norm", "growth_interval")


class ScaledNorm(Flat):
    INPUTS = ("grad", *STATE, "beta1", "beta2")
    IN_MEMORY = CHANGED = ("scale", "good_steps", "steps")
    SPECIAL = SCALING
    ROUNDS = True

    def gradient(self, rng, n, case):
        return super().gradient(rng, n, case) * case.get("scale", DEFAULTS["scale"])

    def state(self, arrays):
        """The files of the state after the gradient; control and its bound."""
        after, error, control, control_error = next_state(arrays)
        files = {"norm": (np.array([after["norm"]]), np.array([error])), "control": (control, control_error)}
        return files | {f"{name}.after": (np.array([after[name]], np.int32 if name in WHOLE else np.float64), np.zeros(1)) for name in self.CHANGED}, control, control_error

    def outputs(self, arrays, dtype):
        return self.state(arrays)[0]


class Update(ScaledNorm):
    INPUTS = ("grad", "master", "m", "v", *STATE, *SETTINGS, "lr")
    IN_MEMORY = (*ScaledNorm.CHANGED, "lr")
    SPECIAL = SCALING | {"wide": {"spread": True}}
    ROUNDS = False

    def outputs(self, arrays, dtype):
        files, control, control_error = self.state(arrays)
        grad, master, m, v = (arrays[name].astype(np.float64) for name in ("grad", "master", "m", "v"))
        if np.isinf(files["norm"][0][0]):
            same = np.zeros_like(m)
            return files | {"master.after": (master, same), "m.after": (m, same), "v.after": (v, same)}
        g = control[0] * grad
        g_error = control_error[0] * np.abs(grad) * (1 + U) + U * np.abs(g) + TINY
        settings = {name: arrays[name] for name in SETTINGS} | {"lr": arrays["lr"][0]}
        master, m, v = adamw(master, g, g_error, m, v, settings, control[1], control[2])
        return files | {"master.after": master, "m.after": m, "v.after": v}


class MixedUpdate(Update):
    FIXED = {"param": "bf16"}
    INPUTS = ("grad", "param", "master", "m", "v", *STATE, *SETTINGS, "lr")

    def inputs(self, rng, case):
        arrays = super().inputs(rng, case)
        return arrays | {"param": arrays["master"]}

    def outputs(self, arrays, dtype):
        files = super().outputs(arrays, dtype)
        if np.isinf(files["norm"][0][0]):
            param = arrays["param"].astype(np.float64)
            return files | {"param.after": (param, np.zeros_like(param))}
        master = files["master.after"]
        return files | {"param.after": (master[0], rounded_output(*master, "bf16"))}


OPERATIONS = {
    "adamw": Adamw(),
    "adamw_master": AdamwMaster(),
    "adamw_stochastic": AdamwStochastic(),
    "grad_norm": GradNorm(),
    "scaled_norm": ScaledNorm(),
    "mixed_update": MixedUpdate(),
    "update": Update(),
}
