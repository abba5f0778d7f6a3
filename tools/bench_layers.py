#!/usr/bin/env python3
"""Times the layers of chapters 6 to 10 beside PyTorch's, torch.compile's and, where it is installed, quack's, in turns, on this machine's
GPU (sm_90): for a Python that has torch.

    tools/bench_layers.py --build                                        the library of our launchers, on any machine that has nvcc
    tools/bench_layers.py [LAYER...] [--types f32,bf16] [--rounds 10] [--jobs 1] [--json FILE]

Our launchers become build/liblayers.so; one that our sources made is used as it lies, from whatever machine. With --jobs, so many processes
compile the peers' kernels first, into the peers' own caches. All contenders have the same numbers, and must agree with ours before they are timed. A
turn is a CUDA graph of some milliseconds, over so many sets of tensors that the L2 has none of them from the turn before, and each round draws
its order; a line has the medians of the rounds in GB/s, of the bytes that the layer must move, whoever moves more. `copy` is a copy on the device of as many.
"""

import argparse
import concurrent.futures
import ctypes
import glob
import json
import multiprocessing
import os
import statistics
import subprocess
import sys

from bench_deep_gemm import ROOT, build_ours, fail, graph_of, load, take_turns

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a layer is a kernel or two: nothing for a pool of compilers

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    torch, missing = None, error
try:
    from quack.cross_entropy import cross_entropy_fwd
    from quack.rmsnorm import layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd
    from quack.softmax import softmax_bwd, softmax_fwd
    has_quack = True
except ImportError:
    has_quack = False

SOURCES = [
    "chapters/06_elementwise_layers/step3_residual_stream.cu",
    "chapters/06_elementwise_layers/step4_residual_gradient.cu",
    "chapters/06_elementwise_layers/step6_gelu_exp2.cu",
    "chapters/06_elementwise_layers/step7_gelu_gradient.cu",
    "chapters/06_elementwise_layers/step9_encoder_rows.cu",
    "chapters/06_elementwise_layers/step15_encoder_ahead.cu",
    "chapters/07_layernorm/step2_layernorm_registers.cu",
    "chapters/07_layernorm/step3_layernorm_residual.cu",
    "chapters/07_layernorm/step4_rmsnorm.cu",
    "chapters/07_layernorm/step8_gradient_ahead.cu",
    "chapters/07_layernorm/step9_gradient_residual.cu",
    "chapters/07_layernorm/step10_rmsnorm_gradient.cu",
    "chapters/08_online_softmax/step19_cluster.cu",
    "chapters/08_online_softmax/step20_backward_cluster.cu",
    "chapters/08_online_softmax/step21_classifier_cluster.cu",
    "chapters/09_cublas_attention/step2_permute_packs.cu",
    "chapters/09_cublas_attention/step3_unpermute_packs.cu",
    "chapters/10_adamw_mixed_precision/step2_adamw_fours.cu",
]


LIBRARY = os.path.join(ROOT, "build", "liblayers.so")


class AdamW(ctypes.Structure):
    """adamw_settings of chapter 10's launchers.h."""

    _fields_ = [(name, ctypes.c_float) for name in ("lr", "beta1", "beta2", "epsilon", "weight_decay")]


SETTINGS = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
T, VOCABULARY, EPSILON, STEP = 1024, 50304, 1e-5, 5  # positions; rows of wte; layernorm's; AdamW's t
TURN_MS, L2_BYTES, MAX_SETS = 5.0, 200 << 20, 64
SHAPES = [(rows, c) for rows in (16384, 32768) for c in (768, 1600, 4096)]
ROWS_OF = {c: (1 << 27) // c for c in (1024, 4096, 16384, 32768, 65536, 131072)}  # softmax's, of as many numbers
P, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


def torch_type(name):
    return {"f32": torch.float32, "bf16": torch.bfloat16}[name]


def heads(c):
    """(H, D) of so many channels."""
    d = 128 if c == 4096 else 64
    return c // d, d


class Make:
    """Tensors of one set, the same ones each time."""

    def __init__(self, dtype):
        self.dtype = dtype
        torch.manual_seed(1)

    def normal(self, *shape):
        return torch.randn(*shape, device="cuda").to(self.dtype)

    def positive(self, *shape):
        return torch.rand(*shape, device="cuda") + 0.5

    def empty(self, *shape):
        return torch.empty(*shape, device="cuda", dtype=self.dtype)

    def zeros(self, *shape):
        return torch.zeros(*shape, device="cuda")

    def tokens(self, rows):
        return torch.randint(VOCABULARY, (rows,), device="cuda", dtype=torch.int32)


# A layer: `launcher` of our library takes the type, arguments() and a stream, and leaves its results in those of tensors() that are
# named in `results`. eager() takes those in `takes`, and returns the same results; torch.compile is given formula(), or eager() where
# there is no formula. quack() likewise, where quack has such a layer.
class Layer:
    shapes, types = SHAPES, ("f32", "bf16")


class ResidualForward(Layer):
    launcher, argtypes, takes, results = "residual_stream", [P, P, P, SIZE], ("a", "b"), ("out",)

    def tensors(self, make, rows, c):
        return {"a": make.normal(rows, c), "b": make.normal(rows, c), "out": make.empty(rows, c)}

    def arguments(self, d):
        return d["a"], d["b"], d["out"], d["out"].numel()

    @staticmethod
    def eager(a, b):
        return (a + b,)

    def bytes(self, size, rows, c):
        return 3 * size * rows * c


class ResidualBackward(Layer):
    launcher, argtypes, takes, results = "residual_gradient", [P, P, P, SIZE], ("dout", "da", "db"), ("da", "db")

    def tensors(self, make, rows, c):
        return {name: make.normal(rows, c) for name in ("dout", "da", "db")}

    def arguments(self, d):
        return d["dout"], d["da"], d["db"], d["dout"].numel()

    @staticmethod
    def eager(dout, da, db):
        return da.add_(dout), db.add_(dout)

    def bytes(self, size, rows, c):
        return 5 * size * rows * c


class GeluForward(Layer):
    launcher, argtypes, takes, results = "gelu_exp2", [P, P, SIZE], ("x",), ("out",)

    def tensors(self, make, rows, c):
        return {"x": make.normal(rows, c), "out": make.empty(rows, c)}

    def arguments(self, d):
        return d["x"], d["out"], d["x"].numel()

    @staticmethod
    def eager(x):
        return (F.gelu(x, approximate="tanh"),)

    def bytes(self, size, rows, c):
        return 2 * size * rows * c


class GeluBackward(Layer):
    launcher, argtypes, takes, results = "gelu_gradient", [P, P, P, SIZE], ("x", "dout"), ("dx",)

    def tensors(self, make, rows, c):
        return {"x": make.normal(rows, c), "dout": make.normal(rows, c), "dx": make.empty(rows, c)}

    def arguments(self, d):
        return d["x"], d["dout"], d["dx"], d["x"].numel()

    @staticmethod
    def eager(x, dout):
        return (torch.ops.aten.gelu_backward(dout, x, approximate="tanh"),)

    def bytes(self, size, rows, c):
        return 3 * size * rows * c


class EncoderForward(Layer):
    launcher, argtypes, takes, results = "encoder_rows", [P, P, P, P, INT, INT, INT], ("tokens", "wte", "wpe"), ("out",)

    def tensors(self, make, rows, c):
        return {"tokens": make.tokens(rows), "wte": make.normal(VOCABULARY, c), "wpe": make.normal(T, c), "out": make.empty(rows, c)}

    def arguments(self, d):
        rows, c = d["out"].shape
        return d["tokens"], d["wte"], d["wpe"], d["out"], rows // T, T, c

    @staticmethod
    def eager(tokens, wte, wpe):
        return ((F.embedding(tokens.view(-1, T), wte) + wpe).view(-1, wpe.shape[1]),)

    def bytes(self, size, rows, c):
        return 4 * rows + size * c * (2 * rows + T)


class EncoderBackward(Layer):
    launcher, argtypes, takes, results = "encoder_ahead", [P] * 4 + [INT] * 4, ("tokens", "dout", "dwte", "dwpe"), ("dwte", "dwpe")

    def tensors(self, make, rows, c):
        return {"tokens": make.tokens(rows), "dout": make.normal(rows, c), "dwte": make.zeros(VOCABULARY, c), "dwpe": make.zeros(T, c)}

    def arguments(self, d):
        rows, c = d["dout"].shape
        return d["tokens"], d["dout"], d["dwte"], d["dwpe"], rows // T, T, c, VOCABULARY

    @staticmethod
    def eager(tokens, dout, dwte, dwpe):
        dout = dout.float()
        return dwte.index_add_(0, tokens, dout), dwpe.add_(dout.view(-1, T, dout.shape[1]).sum(0))

    def bytes(self, size, rows, c):
        return 4 * rows + size * rows * c + 8 * c * (rows + T)


class LayernormForward(Layer):
    launcher, argtypes, takes, results = "layernorm_registers", [P] * 6 + [INT, INT], ("x", "weight", "bias"), ("out", "mean", "rstd")

    def tensors(self, make, rows, c):
        return {"x": make.normal(rows, c), "weight": make.normal(c), "bias": make.normal(c), "out": make.empty(rows, c),
                "mean": make.zeros(rows), "rstd": make.zeros(rows)}

    def arguments(self, d):
        return *(d[name] for name in ("x", "weight", "bias", "out", "mean", "rstd")), *d["x"].shape

    @staticmethod
    def eager(x, weight, bias):
        return torch.native_layer_norm(x, weight.shape, weight, bias, EPSILON)

    @staticmethod
    def quack(x, weight, bias):  # which wants weight and bias in fp32
        out, rstd, mean = layernorm_fwd(x, weight.float(), bias.float(), EPSILON, return_rstd=True, return_mean=True)
        return out, mean, rstd

    def bytes(self, size, rows, c):
        return 2 * size * (rows + 1) * c + 8 * rows


class FusedResidualForward(Layer):
    launcher, argtypes = "layernorm_residual", [P] * 8 + [INT, INT]
    takes, results = ("a", "b", "weight", "bias"), ("residual", "out", "mean", "rstd")

    def tensors(self, make, rows, c):
        return {"a": make.normal(rows, c), "b": make.normal(rows, c), "weight": make.normal(c), "bias": make.normal(c),
                "residual": make.empty(rows, c), "out": make.empty(rows, c), "mean": make.zeros(rows), "rstd": make.zeros(rows)}

    def arguments(self, d):
        return *(d[name] for name in self.takes + self.results), *d["a"].shape

    @staticmethod
    def eager(a, b, weight, bias):
        residual = a + b
        return residual, *torch.native_layer_norm(residual, weight.shape, weight, bias, EPSILON)

    def bytes(self, size, rows, c):
        return 4 * size * rows * c + 2 * size * c + 8 * rows


class RmsnormForward(Layer):
    launcher, argtypes, takes, results = "rmsnorm", [P] * 4 + [INT, INT], ("x", "weight"), ("out", "rstd")

    def tensors(self, make, rows, c):
        return {"x": make.normal(rows, c), "weight": make.normal(c), "out": make.empty(rows, c), "rstd": make.zeros(rows)}

    def arguments(self, d):
        return d["x"], d["weight"], d["out"], d["rstd"], *d["x"].shape

    @staticmethod
    def eager(x, weight):
        return (F.rms_norm(x, weight.shape, weight, EPSILON),)

    @staticmethod
    def formula(x, weight):
        rstd = (x.float().square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        return (x.float() * rstd * weight.float()).to(x.dtype), rstd

    @staticmethod
    def quack(x, weight):
        out, _, rstd = rmsnorm_fwd(x, weight, eps=EPSILON, store_rstd=True)
        return out, rstd

    def bytes(self, size, rows, c):
        return 2 * size * rows * c + size * c + 4 * rows


class LayernormBackward(Layer):
    launcher, argtypes = "gradient_ahead", [P] * 8 + [INT, INT]
    takes, results = ("x", "dout", "weight", "mean", "rstd"), ("dx", "dweight", "dbias")

    def tensors(self, make, rows, c):
        d = {"x": make.normal(rows, c), "dout": make.normal(rows, c), "weight": make.normal(c)}
        _, d["mean"], d["rstd"] = torch.native_layer_norm(d["x"].float(), (c,), None, None, EPSILON)
        return d | {"dx": make.empty(rows, c), "dweight": make.zeros(c), "dbias": make.zeros(c)}

    def arguments(self, d):
        return *(d[name] for name in self.takes + self.results), *d["x"].shape

    @staticmethod
    def eager(x, dout, weight, mean, rstd):
        return torch.ops.aten.native_layer_norm_backward(dout, x, weight.shape, mean, rstd, weight, weight, [True] * 3)

    def bytes(self, size, rows, c):
        return 3 * size * rows * c + size * c + 16 * c + 8 * rows


class FusedResidualBackward(LayernormBackward):
    launcher = "gradient_residual"
    takes, results = ("x", "dout", "weight", "mean", "rstd", "dresidual"), ("dresidual", "dweight", "dbias")

    def tensors(self, make, rows, c):
        d = super().tensors(make, rows, c)
        del d["dx"]
        return d | {"dresidual": make.normal(rows, c)}

    def arguments(self, d):
        return *(d[name] for name in self.takes + ("dweight", "dbias")), *d["x"].shape

    @staticmethod
    def eager(x, dout, weight, mean, rstd, dresidual):
        dx, dweight, dbias = LayernormBackward.eager(x, dout, weight, mean, rstd)
        return dresidual.add_(dx), dweight, dbias

    def bytes(self, size, rows, c):
        return super().bytes(size, rows, c) + size * rows * c


class RmsnormBackward(Layer):
    launcher, argtypes, takes, results = "rmsnorm_gradient", [P] * 6 + [INT, INT], ("x", "dout", "weight", "rstd"), ("dx", "dweight")

    def tensors(self, make, rows, c):
        d = {"x": make.normal(rows, c), "dout": make.normal(rows, c), "weight": make.normal(c)}
        d["rstd"] = (d["x"].float().square().mean(-1) + EPSILON).rsqrt()
        return d | {"dx": make.empty(rows, c), "dweight": make.zeros(c)}

    def arguments(self, d):
        return *(d[name] for name in self.takes + self.results), *d["x"].shape

    @staticmethod
    def eager(x, dout, weight, rstd):
        n, d = x.float() * rstd[:, None], weight.float() * dout.float()
        dx = (d - n * (d * n).mean(-1, keepdim=True)) * rstd[:, None]
        return dx.to(x.dtype), (dout.float() * n).sum(0)

    @staticmethod
    def quack(x, dout, weight, rstd):
        return rmsnorm_bwd(x, weight, dout, rstd)[:2]

    def bytes(self, size, rows, c):
        return 3 * size * rows * c + size * c + 8 * c + 4 * rows


class SoftmaxForward(Layer):
    launcher, argtypes, takes, results = "cluster", [P, P, INT, INT], ("x",), ("y",)
    shapes = [(rows, c) for c, rows in ROWS_OF.items()]

    def tensors(self, make, rows, c):
        return {"x": make.normal(rows, c), "y": make.empty(rows, c)}

    def arguments(self, d):
        return d["x"], d["y"], *d["x"].shape

    @staticmethod
    def eager(x):
        return (x.softmax(-1),)

    @staticmethod
    def quack(x):
        return (softmax_fwd(x),)

    def bytes(self, size, rows, c):
        return 2 * size * rows * c


class SoftmaxBackward(Layer):
    launcher, argtypes, takes, results = "backward_cluster", [P, P, P, INT, INT], ("y", "dy"), ("dx",)
    shapes = SoftmaxForward.shapes

    def tensors(self, make, rows, c):
        return {"y": make.normal(rows, c).softmax(-1), "dy": make.normal(rows, c), "dx": make.empty(rows, c)}

    def arguments(self, d):
        return d["y"], d["dy"], d["dx"], *d["y"].shape

    @staticmethod
    def eager(y, dy):
        return (torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype),)

    @staticmethod
    def quack(y, dy):
        return (softmax_bwd(dy, y),)

    def bytes(self, size, rows, c):
        return 3 * size * rows * c


class Classifier(Layer):
    launcher, argtypes = "classifier_cluster", [P, P, P, P, INT, INT, INT]
    takes, results = ("logits", "target", "dloss"), ("loss", "logits")
    shapes = SoftmaxForward.shapes + [(8192, 50304), (4096, 128256)]  # vocabularies: GPT-2's and Llama 3's

    def tensors(self, make, rows, c):
        return {"logits": make.normal(rows, c), "target": torch.randint(c, (rows,), device="cuda", dtype=torch.int32),
                "dloss": torch.ones(rows, device="cuda"), "loss": make.zeros(rows)}

    def arguments(self, d):
        rows, c = d["logits"].shape
        return d["logits"], d["loss"], d["target"], d["dloss"], rows, c, c

    @staticmethod
    def eager(logits, target, dloss):
        log_p, target = logits.float().log_softmax(-1), target.long()[:, None]
        loss = -log_p.gather(1, target)[:, 0]
        right = torch.arange(logits.shape[1], device=logits.device) == target
        return loss, logits.copy_((log_p.exp() - right.float()) * dloss[:, None])

    @staticmethod
    def quack(logits, target, _):  # whose gradient is that of the losses' sum
        return cross_entropy_fwd(logits, target, return_dx=True, inplace_backward=True)

    def bytes(self, size, rows, c):
        return 2 * size * rows * c + 12 * rows


class Permute(Layer):
    launcher, argtypes, takes, results = "permute_packs", [P, P] + [INT] * 5, ("inp",), ("out",)

    def tensors(self, make, rows, c):
        h, d = heads(c)
        return {"inp": make.normal(rows // T, T, 3, h, d), "out": make.empty(3, rows // T, h, T, d)}

    def arguments(self, d):
        return d["inp"], d["out"], *d["inp"].shape

    @staticmethod
    def eager(inp):
        return (inp.permute(2, 0, 3, 1, 4).contiguous(),)

    def bytes(self, size, rows, c):
        return 6 * size * rows * c


class Unpermute(Permute):
    launcher = "unpermute_packs"

    def tensors(self, make, rows, c):
        h, d = heads(c)
        return {"inp": make.normal(3, rows // T, h, T, d), "out": make.empty(rows // T, T, 3, h, d)}

    def arguments(self, d):
        return d["inp"], d["out"], *d["out"].shape

    @staticmethod
    def eager(inp):
        return (inp.permute(1, 3, 0, 2, 4).contiguous(),)


class AdamWUpdate(Layer):
    launcher, argtypes = "adamw_fours", [P, P, P, P, SIZE, AdamW, INT]
    takes, results = ("param", "grad", "m", "v", "t"), ("param", "m", "v")
    shapes, types = [(1, n) for n in (35482317, 124439808, 354823168)], ("f32",)  # a tenth of GPT-2's second, its smallest and its second

    def tensors(self, make, rows, c):
        d = {name: make.normal(rows * c) for name in ("param", "grad", "m")}
        return d | {"v": make.positive(rows * c), "t": torch.tensor(float(STEP), device="cuda")}

    def arguments(self, d):
        return d["grad"], d["param"], d["m"], d["v"], d["param"].numel(), AdamW(**SETTINGS), STEP

    @staticmethod
    def eager(param, grad, m, v, t):
        torch._fused_adamw_([param], [grad], [m], [v], [], [t], lr=SETTINGS["lr"], beta1=SETTINGS["beta1"], beta2=SETTINGS["beta2"],
                                 weight_decay=SETTINGS["weight_decay"], eps=SETTINGS["epsilon"], amsgrad=False, maximize=False)
        return param, m, v

    @staticmethod
    def formula(param, grad, m, v, _):
        s = SETTINGS
        m.mul_(s["beta1"]).add_(grad, alpha=1 - s["beta1"])
        v.mul_(s["beta2"]).addcmul_(grad, grad, value=1 - s["beta2"])
        root = (v / (1 - s["beta2"] ** STEP)).sqrt() + s["epsilon"]
        param.sub_(s["lr"] * (m / (1 - s["beta1"] ** STEP) / root + s["weight_decay"] * param))
        return param, m, v

    def bytes(self, size, rows, c):
        return (size + 24) * rows * c


LAYERS = {
    "residual_forward": ResidualForward, "residual_backward": ResidualBackward, "gelu_forward": GeluForward, "gelu_backward": GeluBackward,
    "encoder_forward": EncoderForward, "encoder_backward": EncoderBackward, "layernorm_forward": LayernormForward,
    "layernorm_backward": LayernormBackward, "fused_residual_forward": FusedResidualForward, "fused_residual_backward": FusedResidualBackward,
    "rmsnorm_forward": RmsnormForward, "rmsnorm_backward": RmsnormBackward, "softmax_forward": SoftmaxForward,
    "softmax_backward": SoftmaxBackward, "classifier": Classifier, "permute": Permute, "unpermute": Unpermute, "adamw": AdamWUpdate,
}


def compiled_peers(layer):
    """The peers that compile what they are given: a name, and a function that takes a set of tensors and returns the results."""
    named = {"compile": torch.compile(getattr(layer, "formula", layer.eager), dynamic=False)}
    if has_quack and hasattr(layer, "quack"):
        named["quack"] = layer.quack
    return {name: lambda d, run=run: run(*(d[tensor] for tensor in layer.takes)) for name, run in named.items()}


def compile_case(case):
    """Leaves a case's kernels in the peers' caches."""
    name, dtype, rows, c = case
    torch._dynamo.reset()
    try:
        layer = LAYERS[name]()
        d = layer.tensors(Make(torch_type(dtype)), rows, c)
        for run in compiled_peers(layer).values():
            run(d)
        torch.cuda.synchronize()
    except Exception:  # it will be met again, and said, where the case is timed
        pass
    d = None  # so that its memory is given back, too
    torch.cuda.empty_cache()


def compile_ahead(cases, jobs):
    """Compiles the peers' kernels in so many processes."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_case, cases))
    # What torch.compile found fastest, it found while others used the GPU: it has to choose again.
    for path in glob.glob(os.path.join(cache_dir(), "**", "*.best_config"), recursive=True):
        os.remove(path)


def contenders(library, layer, dtype):
    """What takes part, as compiled_peers() has it."""
    launcher = getattr(library, layer.launcher)

    def ours(d):
        arguments = [x.data_ptr() if hasattr(x, "data_ptr") else x for x in layer.arguments(d)]
        error = launcher({torch.float32: 1, torch.bfloat16: 4}[dtype], *arguments, torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(f"our launcher: CUDA error {error}")
        return [d[name] for name in layer.results]

    def eager(d):
        return layer.eager(*(d[tensor] for tensor in layer.takes))

    return {"ours": ours, "eager": eager} | compiled_peers(layer)


def agree(mine, theirs):
    """Whether they differ by rounding only: PyTorch's sums of columns are bf16 where weights are."""
    pairs = [(a.double(), b.double().view(a.shape)) for a, b in zip(mine, theirs)]
    return all(bool((a - b).norm() <= 0.01 * a.norm()) for a, b in pairs)


def time_case(library, case, rounds):
    """GB/s by contender, and the names of those that could not take part."""
    name, dtype, rows, c = case
    torch._dynamo.reset()  # a shape is compiled for itself
    layer, dtype = LAYERS[name](), torch_type(dtype)
    moved = layer.bytes(dtype.itemsize, rows, c)
    sets = [layer.tensors(Make(dtype), rows, c) for _ in range(min(MAX_SETS, L2_BYTES // moved + 2))]
    unit = 64 << 10  # copies of other than whole pages are slower (results/trials/copy_sizes.csv)
    half = max(moved // 2 // unit, 1) * unit
    for d in sets:
        d["copy_from"], d["copy_to"] = torch.full((half,), 85, device="cuda", dtype=torch.uint8), torch.empty(half, device="cuda", dtype=torch.uint8)
    runs, wrong, mine = {}, [], None  # the first is ours
    for name, run in contenders(library, layer, dtype).items():
        try:
            found = [x.clone() for x in run(layer.tensors(Make(dtype), rows, c))]
            torch.cuda.synchronize()
            mine = found if mine is None else mine
            if not agree(mine, found):
                raise RuntimeError("its results are not ours")
            runs[name] = run
        except Exception as error:  # whatever a peer throws: the others are timed all the same
            print(f"  {name}: not timed: {str(error).splitlines()[0]}", flush=True)
            wrong.append(name)
    runs["copy"] = lambda d: d["copy_to"].copy_(d["copy_from"])
    del mine
    graphs, launches = {}, {}
    for name, run in runs.items():
        def kept(d, run=run, name=name):  # results stay until the set's next turn, as a program's would
            d[name] = run(d)

        for d in sets:
            kept(d)
        torch.cuda.synchronize()
        each = [lambda d=d, kept=kept: kept(d) for d in sets]
        launches[name] = max(len(sets), round(TURN_MS * 1e-3 * 3e12 / moved))
        graphs[name] = graph_of(torch, each, launches[name])
    times = take_turns(torch, graphs, rounds)
    return {name: moved / 1e6 * launches[name] / statistics.median(turn[name] for turn in times) for name in runs}, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", metavar="LAYER")
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--build", action="store_true")
    options = parser.parse_args()
    for name in options.layers:
        if name not in LAYERS:
            fail(f"'{name}': expected one of {', '.join(LAYERS)}")
    if options.build:
        build_ours(LIBRARY, SOURCES)
        return
    if not torch:
        fail(f"{missing}: it takes a Python with torch")
    if not torch.cuda.is_available():
        fail("PyTorch finds no GPU here, and the simulated GPU has no speed to measure")
    build_ours(LIBRARY, SOURCES)
    library = load(LIBRARY, {layer.launcher: [INT, *layer.argtypes, P] for layer in LAYERS.values()})
    cases = [(name, dtype, rows, c) for name in options.layers or LAYERS for dtype in options.types.split(",") if dtype in LAYERS[name].types
             for rows, c in LAYERS[name].shapes]
    if options.jobs > 1:
        compile_ahead(cases, options.jobs)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, commit {commit}: GB/s; ours also as a share of the copy and of the best other{'' if has_quack else '; quack is not installed'}")
    records, all_right = [], True
    for case in cases:
        name, dtype, rows, c = case
        speeds, wrong = time_case(library, case, options.rounds)
        torch.cuda.empty_cache()
        all_right = all_right and not wrong
        others = [speed for peer, speed in speeds.items() if peer not in ("ours", "copy")]
        ratios = ""
        if "ours" in speeds and others:
            ratios = f"{speeds['ours'] / speeds['copy']:.3f} of copy, {speeds['ours'] / max(others):.3f} of best"
        shape = f"n={c}" if rows == 1 else f"rows={rows},c={c}"
        print(f"{name:24} {dtype:5} {shape:18}", *(f"{peer} {speed:.0f}" for peer, speed in speeds.items()), ratios, sep="  ", flush=True)
        records.append({"layer": name, "case": shape, "dtype": dtype, "gb_per_s": {p: round(s, 1) for p, s in speeds.items()},
                        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit})
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(records, file, indent=1)
    sys.exit(0 if all_right else 1)


if __name__ == "__main__":
    main()
