"""The operation of chapter 11: some steps of GPT-2's training, in float64, and how far right kernels may be off. The names are llm.c's.

forward    x = wte[token] + wpe[position]; in each layer x += proj(attention(qkv(layernorm(x)))), x += fc_proj(GELU(fc(layernorm(x))));
           logits = layernorm(x) wte^T; loss = the mean of -log softmax(logits)[target] over all positions.
backward   the gradient of the loss by every parameter.
update     clipped to max_norm, then AdamW (adamw.py); weight_decay takes hold of the matrices, DECAYED, and of nothing else.
           In bf16 the layers see the nearest bf16 to each parameter, and the optimizer the parameter itself, in fp32.

A parameter of all layers is one array (l, ...); in a file all lie behind each other, in the order of SHAPES.

How far a correct kernel may be off. A bound for the worst case of twenty steps says nothing: it grows with the product of all layers'
and steps' condition numbers. So the bound is a statistical one, by Monte Carlo arithmetic (D. S. Parker, Monte Carlo Arithmetic,
UCLA CSD-970002, 1997): the same training RUNS times in float64, and whatever a kernel computes or stores is moved by as much as that
may be off, at random, evenly either way:

    stored in a type      u |x|, u = 2^-24 or of bf16 2^-8
    a sum of k products   u sqrt(k) times the sum of their absolute values, u = 2^-24: k roundings that do not know of each other
    one of few terms      8 u |x|, u = 2^-24: GELU, softmax, layernorm, AdamW
    tanh, in GELU         2^-17 besides: cuBLASLt's epilogue has 0.5 x (1 + tanh u), which keeps few digits where x is negative. On an H100
                          (CUDA 13.0, fp32) its largest error was 2^-17 |x| / 2, over 80,000 random x from -8 to 8.

The tolerance of a loss or norm is MARGIN times the largest distance that any of them has from the run without errors, at this step or
before. What is left of chance is MARGIN's to take.

A parameter goes by lr in the direction m / sqrt(v), whose size does not depend on the gradient's: of one that is nearer to 0 than its error,
that error decides even the sign. So a parameter's tolerance comes from its own gradient, g in each step, which a kernel may have anywhere in
g +- d, d being MARGIN times the largest distance of any run: the sum over the steps of lr times how far directions() then is from that of g.
"""

import dtypes
import elementwise
import numpy as np

from bounds import UNIT_ROUNDOFF

U = UNIT_ROUNDOFF["f32"]
RUNS, MARGIN = 12, 4.0
TANH = 2.0**-17
EPSILON = 1e-5  # layernorm's
SETTINGS = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "max_norm": 1.0}
DECAYED = ("wte", "wpe", "qkv_w", "proj_w", "fc_w", "fc_proj_w")


def padded(v):
    """Rows of wte: whole groups of 8. Those past v belong to no token."""
    return -(-v // 8) * 8


def parameter_shapes(dims):
    """Name -> shape, in the order of a file."""
    l, c, t = dims["l"], dims["c"], dims["t"]
    return {
        "wte": (padded(dims["v"]), c), "wpe": (t, c),
        "qkv_w": (l, 3 * c, c), "proj_w": (l, c, c), "fc_w": (l, 4 * c, c), "fc_proj_w": (l, c, 4 * c),
        "ln1_w": (l, c), "ln1_b": (l, c), "qkv_b": (l, 3 * c), "proj_b": (l, c),
        "ln2_w": (l, c), "ln2_b": (l, c), "fc_b": (l, 4 * c), "fc_proj_b": (l, c), "lnf_w": (c,), "lnf_b": (c,),
    }


def split(flat, dims):
    """The parameters in a flat array, by name."""
    shapes = parameter_shapes(dims)
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), np.split(flat, ends[:-1]))}


def join(parameters):
    return np.concatenate([array.ravel() for array in parameters.values()])


class Exact:
    """Arithmetic without errors."""

    def stored(self, x):
        return x

    def few(self, x):
        return x

    def fp32(self, x):
        return x

    def rounded(self, x):
        return x

    def gelu(self, x):
        return elementwise.gelu(x)

    def product(self, A, B):
        return A @ B


class Noisy(Exact):
    """Arithmetic with the errors of a kernel whose tensors are of `dtype`, drawn from rng."""

    def __init__(self, rng, dtype):
        self.rng, self.u = rng, UNIT_ROUNDOFF[dtype]

    def moved(self, x, most):
        return x + self.rng.uniform(-1, 1, x.shape) * most

    def stored(self, x):
        return self.moved(x, self.u * np.abs(x))

    def few(self, x):
        return self.moved(x, (self.u + 8 * U) * np.abs(x))

    def fp32(self, x):
        return self.moved(x, 8 * U * np.abs(x))

    def rounded(self, x):
        return self.moved(x, U * np.abs(x))

    def gelu(self, x):
        return self.moved(self.few(super().gelu(x)), TANH * np.abs(x) / 2)

    def product(self, A, B):
        return self.moved(A @ B, U * np.sqrt(A.shape[-1]) * (np.abs(A) @ np.abs(B)))


def turned(X):
    return X.swapaxes(-1, -2)


def layernorm(x, weight, bias, a):
    """(out, what the backward needs)."""
    d = x - x.mean(-1, keepdims=True)
    rstd = a.fp32(1 / np.sqrt((d * d).mean(-1, keepdims=True) + EPSILON))
    n = a.fp32(d * rstd)
    return a.stored(n * weight + bias), (n, rstd)


def layernorm_backward(dout, weight, saved, a):
    """(dinp, dweight, dbias); the sums are over all positions, in fp32."""
    n, rstd = saved
    d = weight * dout
    dinp = rstd * (d - d.mean(-1, keepdims=True) - n * (d * n).mean(-1, keepdims=True))
    return a.few(dinp), sum_of_rows(dout * n, a), sum_of_rows(dout, a)


def sum_of_rows(x, a):
    """Over all positions, by any tree: (b, t, c) -> (c)."""
    rows = x.reshape(-1, x.shape[-1])
    return a.product(np.ones((1, len(rows))), rows)[0]


def linear_backward(dout, inp, weight, a):
    """(dinp, dweight, dbias) of inp weight^T + bias."""
    rows, inputs = dout.reshape(-1, dout.shape[-1]), inp.reshape(-1, inp.shape[-1])
    return a.stored(a.product(dout, weight)), a.product(rows.T, inputs), sum_of_rows(dout, a)


def forward(p, tokens, targets, heads, v, a=Exact()):
    """(loss, what the backward needs) for tokens and targets (b, t) and parameters p."""
    (b, t), c, layers = tokens.shape, p["wte"].shape[1], len(p["qkv_w"])
    below, scale, saved = np.tri(t, dtype=bool), 1 / np.sqrt(c // heads), []
    x = a.stored(p["wte"][tokens] + p["wpe"][:t])
    for l in range(layers):
        s = {}
        s["ln1"], s["ln1_saved"] = layernorm(x, p["ln1_w"][l], p["ln1_b"][l], a)
        qkv = a.stored(a.product(s["ln1"], p["qkv_w"][l].T) + p["qkv_b"][l])
        Q, K, V = qkv.reshape(b, t, 3, heads, -1).transpose(2, 0, 3, 1, 4)
        scores = np.where(below, scale * a.stored(a.product(Q, turned(K))), -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        att = a.few(e / e.sum(-1, keepdims=True))
        heads_out = a.stored(a.product(att, V))
        s["qkv"], s["att"], s["atty"] = (Q, K, V), att, heads_out.transpose(0, 2, 1, 3).reshape(b, t, c)
        x = a.stored(x + a.stored(a.product(s["atty"], p["proj_w"][l].T) + p["proj_b"][l]))
        s["ln2"], s["ln2_saved"] = layernorm(x, p["ln2_w"][l], p["ln2_b"][l], a)
        s["pre"] = a.stored(a.product(s["ln2"], p["fc_w"][l].T) + p["fc_b"][l])
        s["gelu"] = a.gelu(s["pre"])
        x = a.stored(x + a.stored(a.product(s["gelu"], p["fc_proj_w"][l].T) + p["fc_proj_b"][l]))
        saved.append(s)
    lnf, lnf_saved = layernorm(x, p["lnf_w"], p["lnf_b"], a)
    logits = a.stored(a.product(lnf, p["wte"][:v].T))
    e = np.exp(logits - logits.max(-1, keepdims=True))
    probability = e / e.sum(-1, keepdims=True)
    right = np.take_along_axis(probability, targets[..., None], -1)[..., 0]
    return a.fp32(-np.log(right)).mean(), (saved, lnf, lnf_saved, probability)


def backward(p, tokens, targets, kept, heads, a=Exact()):
    """The gradient of the loss, by parameter."""
    saved, lnf, lnf_saved, probability = kept
    (b, t), c = tokens.shape, lnf.shape[-1]
    grad = {name: np.zeros_like(array) for name, array in p.items()}
    v, scale = probability.shape[-1], 1 / np.sqrt(c // heads)
    indicator = np.zeros_like(probability)
    np.put_along_axis(indicator, targets[..., None], 1.0, -1)
    dlogits = a.few((probability - indicator) / tokens.size)
    dlnf, grad["wte"][:v], _ = linear_backward(dlogits, lnf, p["wte"][:v], a)
    dx, grad["lnf_w"], grad["lnf_b"] = layernorm_backward(dlnf, p["lnf_w"], lnf_saved, a)
    for l in reversed(range(len(saved))):
        s = saved[l]
        dgelu, grad["fc_proj_w"][l], grad["fc_proj_b"][l] = linear_backward(dx, s["gelu"], p["fc_proj_w"][l], a)
        dpre = a.few(dgelu * gelu_slope(s["pre"]))
        dln2, grad["fc_w"][l], grad["fc_b"][l] = linear_backward(dpre, s["ln2"], p["fc_w"][l], a)
        d, grad["ln2_w"][l], grad["ln2_b"][l] = layernorm_backward(dln2, p["ln2_w"][l], s["ln2_saved"], a)
        dx = a.stored(dx + d)
        datty, grad["proj_w"][l], grad["proj_b"][l] = linear_backward(dx, s["atty"], p["proj_w"][l], a)
        dO = datty.reshape(b, t, heads, -1).swapaxes(1, 2)
        (Q, K, V), att = s["qkv"], s["att"]
        dP = a.stored(a.product(dO, turned(V)))
        dS = a.few(scale * att * (dP - (att * dP).sum(-1, keepdims=True)))
        parts = a.product(dS, K), a.product(turned(dS), Q), a.product(turned(att), dO)
        dqkv = a.stored(np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(b, t, 3 * c))
        dln1, grad["qkv_w"][l], grad["qkv_b"][l] = linear_backward(dqkv, s["ln1"], p["qkv_w"][l], a)
        d, grad["ln1_w"][l], grad["ln1_b"][l] = layernorm_backward(dln1, p["ln1_w"][l], s["ln1_saved"], a)
        dx = a.stored(dx + d)
    np.add.at(grad["wte"], tokens, dx)
    grad["wpe"][:t] += dx.sum(0)
    return {name: a.fp32(array) for name, array in grad.items()}


def gelu_slope(x):
    s, rest, _ = elementwise.sigmoid(x)
    return s + x * s * rest * 2 * elementwise.SCALE * (1 + 3 * elementwise.CUBE * x * x)


def train(arrays, dtype, a=Exact(), gradients=None):
    """(losses, norms, parameters by name) of a training with these inputs; each step's clipped gradient, flat, is added to `gradients`."""
    v, heads = int(arrays["v"]), int(arrays["h"])
    dims = {name: int(arrays[name]) for name in ("l", "c", "v")} | {"t": arrays["inputs"].shape[2]}
    beta1, beta2, epsilon, decay, max_norm = (float(arrays[name]) for name in SETTINGS)
    master = split(arrays["weights"].astype(np.float64), dims)
    m, m2 = ({name: np.zeros_like(array) for name, array in master.items()} for _ in "mv")
    losses, norms = [], []
    for step, (tokens, targets, lr) in enumerate(zip(arrays["inputs"], arrays["targets"], arrays["lr"].astype(np.float64)), 1):
        p = {name: dtypes.rounded(array, dtype) for name, array in master.items()} if dtype != "f32" else master
        loss, kept = forward(p, tokens, targets, heads, v, a)
        grad = backward(p, tokens, targets, kept, heads, a)
        norm = np.sqrt(sum((array**2).sum() for array in grad.values()))
        factor = min(1.0, max_norm / (norm + 1e-6))
        losses.append(loss), norms.append(norm)
        if gradients is not None:
            gradients.append(factor * join(grad))
        for name, array in master.items():
            g = factor * grad[name]
            m[name] = a.fp32(beta1 * m[name] + (1 - beta1) * g)
            m2[name] = a.fp32(beta2 * m2[name] + (1 - beta2) * g * g)
            direction = m[name] / (1 - beta1**step) / (np.sqrt(m2[name] / (1 - beta2**step)) + epsilon)
            change = lr * (a.fp32(direction) + (decay * array if name in DECAYED else 0))
            master[name] = a.rounded(array - change)
    return np.array(losses), np.array(norms), master


def directions(arrays, gradients, off):
    """For each step AdamW's direction for these gradients, and the lowest and the highest for gradients at most `off` from them.

    In interval arithmetic: m = the mean of the gradients so far with weights w, v that of their squares with weights u. What that
    overlooks, that m and v are of the same gradients, is made up for in part by |m| <= sqrt(sum of w^2 / u) sqrt(v) (Cauchy and Schwarz):
    in the first step the direction is never beyond 1.
    """
    beta1, beta2, epsilon = (float(arrays[name]) for name in ("beta1", "beta2", "epsilon"))
    m = m_off = v = least = most = 0.0
    for step, (g, d) in enumerate(zip(gradients, off), 1):
        m, m_off = beta1 * m + (1 - beta1) * g, beta1 * m_off + (1 - beta1) * d
        v, least, most = (beta2 * old + (1 - beta2) * size**2
                          for old, size in ((v, g), (least, np.maximum(np.abs(g) - d, 0)), (most, np.abs(g) + d)))
        whole1, whole2, back = 1 - beta1**step, 1 - beta2**step, np.arange(step)
        farthest = np.sqrt(sum(((1 - beta1) * beta1**back / whole1) ** 2 / ((1 - beta2) * beta2**back / whole2)))

        def direction(m, near, far):
            """With the v that brings it as far from 0 as it gets, or as near."""
            return np.clip(m / whole1 / (np.sqrt(np.where(m > 0, near, far) / whole2) + epsilon), -farthest, farthest)

        yield direction(m, v, v), direction(m - m_off, most, least), direction(m + m_off, least, most)


def tolerances(arrays, dtype):
    """(losses, norms, parameters, flat), each with its tolerances, as the text above says."""
    gradients = []
    *series, master = train(arrays, dtype, gradients=gradients)
    apart = [np.zeros(array.size) for array in series]
    off = [np.zeros_like(g) for g in gradients]
    for run in range(RUNS):
        moved_gradients = []
        moved = train(arrays, dtype, Noisy(np.random.default_rng([11, run]), dtype), moved_gradients)
        apart = [np.maximum(most, np.abs(x - exact)) for most, x, exact in zip(apart, moved, series)]
        off = [np.maximum(most, np.abs(x - exact)) for most, x, exact in zip(off, moved_gradients, gradients)]
    results = [(exact, MARGIN * np.maximum.accumulate(most) + U * np.abs(exact)) for exact, most in zip(series, apart)]
    after = join(master)
    tolerance = U * np.abs(after)
    for lr, (right, low, high) in zip(arrays["lr"].astype(np.float64), directions(arrays, gradients, [MARGIN * most for most in off])):
        # An update has 8 roundings, and the sum is one for the next.
        tolerance += lr * (np.maximum(high - right, right - low) + 8 * U * np.abs(right)) + U * np.abs(after)
    return *results, (after, tolerance)


class Gpt2:
    DIMS = ("steps", "b", "t", "l", "h", "c", "v", "attention")
    PARAMS = ("l", "h", "c", "v", "attention")
    INPUTS = ("weights", "inputs", "targets", "lr", *PARAMS, *SETTINGS)
    OPTIONAL = ()
    OWN_TYPE = INPUTS[1:]

    def cases(self, dtype):
        shapes = {
            "tiny": (20, 2, 32, 2, 2, 32, 61, 9),
            "ragged": (3, 3, 13, 3, 3, 24, 37, 9),
            "one_token": (2, 1, 1, 1, 1, 8, 2, 9),
        }
        if dtype == "bf16":
            shapes["hopper"] = (5, 2, 70, 1, 1, 64, 61, 17)
        return {name: dict(zip(self.DIMS, shape)) for name, shape in shapes.items()}

    def of_shape(self, dims):
        return {"plain": dict(dims)}

    def check_shape(self, dims, dtype):
        if dims["c"] % 8 or dims["c"] % dims["h"]:
            return "c must be a multiple of 8 and of h"
        if dims["attention"] not in (9, 12, 17):
            return "attention must be 9, 12 or 17"
        if dims["attention"] != 9 and dims["c"] // dims["h"] not in (64, 128):
            return "attention 12 and 17 need c / h = 64 or 128"
        return None

    def shapes(self, dims):
        elements = sum(np.prod(shape, dtype=object) for shape in parameter_shapes(dims).values())
        return {"weights": (elements,), "logits": (dims["b"], dims["t"], dims["v"]), "att": (dims["b"], dims["h"], dims["t"], dims["t"])}

    def inputs(self, rng, case):
        """Weights so large that attention is not even and GELU not straight; text in which a token tells of the next."""
        parameters = {}
        for name, shape in parameter_shapes(case).items():
            scale = 1 / np.sqrt(case["c"]) if name.endswith("_w") else 0.1
            parameters[name] = rng.standard_normal(shape) * scale + (1 if name in ("ln1_w", "ln2_w", "lnf_w") else 0)
        v = case["v"]
        text = np.zeros((case["steps"], case["b"], case["t"] + 1), np.int32)
        for i in range(1, case["t"] + 1):
            text[..., i] = (3 * text[..., i - 1] + 1 + rng.integers(0, max(v // 8, 2), text.shape[:2])) % v
        settings = {name: np.float32(value) for name, value in SETTINGS.items()}
        lr = 3e-3 * (1 + np.cos(np.pi * np.arange(case["steps"]) / case["steps"])) / 2
        arrays = {"weights": join(parameters), "inputs": text[..., :-1], "targets": text[..., 1:], "lr": lr.astype(np.float32)}
        attention = {"attention": 9} if case["dtype"] == "f32" else {}  # chapters 12 and 17 have no fp32
        return arrays | settings | {name: np.int32((case | attention)[name]) for name in self.PARAMS}

    def outputs(self, arrays, dtype):
        return dict(zip(("loss", "norm", "after"), tolerances(arrays, dtype)))


OPERATIONS = {"gpt2_step": Gpt2()}
