#!/usr/bin/env python3
"""Times chapters 15, 17 and 21 beside FlashAttention-3, cuDNN and, where it is installed, FlashAttention-4, in turns, on this machine's
GPU (sm_90): for a Python that has torch.

    FLASH_ATTENTION=FOLDER CUTLASS=FOLDER tools/bench_attention.py --build     the libraries, on any machine that has nvcc
    tools/bench_attention.py [forward|backward|fp8] [ROUNDS]                   (all three, 9 rounds)

FLASH_ATTENTION is the folder hopper of a checkout of FlashAttention (0251105a), CUTLASS the include folder of CUTLASS (71275920). Its kernels of
equal lengths, in bf16 and of V as it comes in e4m3, become build/libflash_attention_3.so; our launchers become build/libattention.so. A library
that our sources made is used as it lies, from whatever machine. FlashAttention-4 is the wheel flash-attn-4. All work on the same numbers, and must
agree before they are timed. A turn is a CUDA graph of some milliseconds, and each round draws its order; a line has the medians of the rounds in
TFLOP/s, and what part of the best of the others ours has. 16,384 tokens of 2,048 channels.
"""

import ctypes
import math
import os
import statistics
import sys

from bench_deep_gemm import ROOT, build_id, build_ours, config, fail, graph_of, is_made_of, link, load, read, stamp, take_turns, timed
from deep_gemm_kernels import compile_units

SOURCES = [
    "chapters/15_sm90_attention_forward/step10_tma_store.cu",
    "chapters/17_sm90_attention_backward/kernel_bf16.cu",
    "chapters/17_sm90_attention_backward/kernel_f16.cu",
    "chapters/17_sm90_attention_backward/plan.cu",
    "chapters/17_sm90_attention_backward/postprocess.cu",
    "chapters/17_sm90_attention_backward/preprocess.cu",
    "chapters/17_sm90_attention_backward/step6_tiles.cu",
    "chapters/21_fp8_attention/step1_transposed_v.cu",
    "chapters/21_fp8_attention/step2_transposed_inside.cu",
    "common/device/tensor_map.c",
]
OURS, THEIRS = (os.path.join(ROOT, "build", name) for name in ("libattention.so", "libflash_attention_3.so"))
P, INT, BOOL = ctypes.c_void_p, ctypes.c_int, ctypes.c_bool
FA3_LAUNCHERS = {"fa3_forward": [BOOL, BOOL, *[INT] * 4, *[P] * 10], "fa3_backward": [BOOL, *[INT] * 4, *[P] * 13]}
# As its setup.py compiles them, without the kernels that no turn here needs.
FA3_OPTIONS = "-std=c++17 -O3 --use_fast_math -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90 -DNDEBUG --expt-relaxed-constexpr -Xcompiler -fPIC".split()
FA3_OPTIONS += [f"-DFLASHATTENTION_DISABLE_{what}" for what in ("VARLEN", "LOCAL", "APPENDKV", "PAGEDKV", "SOFTCAP", "SPLIT", "PACKGQA", "SM8x")]
FA3_OPTIONS += ["-gencode", "arch=compute_90a,code=sm_90a"]
FA3_KERNELS = [f"fwd_hdim{d}_{dtype}" for d in (64, 128, 256) for dtype in ("bf16", "e4m3")] + [f"bwd_hdim{d}_bf16" for d in (64, 128, 256)]
TOKENS, CHANNELS, TURN_MS = 16384, 2048, 10.0
LENGTHS, HEAD_DIMS = (512, 1024, 2048, 4096, 8192, 16384), (64, 128, 256)
BF16, E4M3 = 4, 5  # of enum dtype


class Attention(ctypes.Structure):
    """attention of common/device/attention.h."""

    _fields_ = [("dtype", INT), *((name, P) for name in ("Q", "K", "V", "O", "LSE"))]
    _fields_ += [*((name, INT) for name in ("batch", "q_len", "k_len", "heads", "kv_heads", "head_dim")), ("causal", BOOL)]


class Backward(ctypes.Structure):
    """attention_backward of chapter 17's backward.h."""

    _fields_ = [("forward", Attention), *((name, P) for name in ("dO", "dQ", "dK", "dV", "workspace"))]


class Fp8Attention(ctypes.Structure):
    """fp8_attention of chapter 21's launchers.h."""

    _fields_ = [("a", Attention), *((name, P) for name in ("scale_Q", "scale_K", "scale_V"))]


OUR_LAUNCHERS = {name: [P, P] for name in ("tma_store", "tiles", "transposed_v", "transposed_inside")}


def build_libraries():
    """Makes the two libraries, or what is missing of them or made of other sources of ours."""
    wrapper = "flash_attention_3"
    sources = {name: f'#include "instantiations/flash_{name}_sm90.cu"\n' for name in FA3_KERNELS} | {wrapper: read(f"tools/{wrapper}.cu")}
    identity = stamp([*sources.values(), *FA3_OPTIONS])
    if not is_made_of(THEIRS, identity):
        folders = [os.environ.get(name) for name in ("FLASH_ATTENTION", "CUTLASS")]
        if None in folders:
            fail("build/libflash_attention_3.so is missing, or made of other sources: say FLASH_ATTENTION=FOLDER and CUTLASS=FOLDER to make it")
        objects = compile_units(sources, [*config()["NVCC"].split(), *FA3_OPTIONS], folders, os.path.join(ROOT, "build", wrapper))
        link(THEIRS, objects, *build_id(identity))
    build_ours(OURS, SOURCES)


class Problem:
    """One shape's tensors, and the contenders: for each a function that launches it and the tensors that it leaves."""

    def __init__(self, torch, ours, theirs, flash_attention_4, head_dim, causal, length):
        self.torch, self.ours, self.theirs, self.fa4 = torch, ours, theirs, flash_attention_4
        self.causal, self.sizes = causal, (TOKENS // length, length, CHANNELS // head_dim, head_dim)
        self.contenders = {}

    def normal(self):
        return self.torch.randn(*self.sizes, device="cuda")

    def empty(self, *shape, dtype=None):
        return self.torch.empty(*(shape or self.sizes), device="cuda", dtype=dtype or self.torch.bfloat16)

    def statistics(self):
        batch, length, heads, _ = self.sizes
        return self.empty(batch, heads, length, dtype=self.torch.float32)

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def launch(self, library, name, *arguments):
        error = getattr(library, name)(*(x.data_ptr() if isinstance(x, self.torch.Tensor) else x for x in arguments), self.stream())
        if error:
            fail(f"{name}: CUDA error {error}")

    def attention(self, dtype, Q, K, V, O, LSE):
        batch, length, heads, head_dim = self.sizes
        pointers = [x.data_ptr() for x in (Q, K, V, O, LSE)]
        return Attention(dtype, *pointers, batch, length, length, heads, heads, head_dim, self.causal)

    def flops(self):
        batch, length, heads, head_dim = self.sizes
        return 4.0 * batch * heads * length * length * head_dim / (2 if self.causal else 1)

    def agree(self, tolerance):
        """The first contender whose results are not ours; None if all are."""
        results = {}
        for name, (run, outputs) in self.contenders.items():
            got = run()
            self.torch.cuda.synchronize()  # so that an error says whose it is
            results[name] = [x.float() for x in (outputs or got)]
        expected = results["ours"]
        for name, got in results.items():
            if not all((a - b).norm() < tolerance * b.norm() for a, b in zip(got, expected)):
                return name
        return None


class Forward(Problem):
    products, tolerance = 1.0, 0.01

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.Q, self.K, self.V = Q, K, V = [self.normal().bfloat16() for _ in range(3)]
        self.O, self.LSE = self.empty(), self.statistics()
        self.ours_arguments = self.attention(BF16, Q, K, V, self.O, self.LSE)
        self.add_contenders()

    def add_contenders(self):
        torch, Q, K, V = self.torch, self.Q, self.K, self.V
        O, LSE, counter = self.empty(), self.statistics(), self.empty(1, dtype=torch.int32)
        self.contenders["ours"] = lambda: self.launch(self.ours, "tma_store", ctypes.addressof(self.ours_arguments)), [self.O]
        self.contenders["FA3"] = (lambda: self.launch(self.theirs, "fa3_forward", False, self.causal, *self.sizes, Q, K, V, O, LSE,
                                                      None, None, None, counter), [O])  # fmt: skip
        q, k, v = (x.transpose(1, 2) for x in (Q, K, V))
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        self.contenders["cuDNN"] = lambda: [cudnn(q, k, v, None, True, 0.0, self.causal, False)[0].transpose(1, 2)], None
        if self.fa4:
            self.contenders["FA4"] = lambda: [self.fa4._flash_attn_fwd(Q, K, V, causal=self.causal, return_lse=True)[0]], None


class BackwardProblem(Forward):
    products, tolerance = 2.5, 0.02

    def add_contenders(self):
        torch, Q, K, V, O, LSE = self.torch, self.Q, self.K, self.V, self.O, self.LSE
        batch, length, heads, head_dim = self.sizes
        self.launch(self.ours, "tma_store", ctypes.addressof(self.ours_arguments))
        dO = self.normal().bfloat16()
        grads, their_grads = ([self.empty() for _ in range(3)] for _ in range(2))
        of_bytes = self.ours.attention_backward_workspace_bytes
        of_bytes.restype = ctypes.c_size_t
        workspace = self.empty(of_bytes(ctypes.byref(self.ours_arguments)), dtype=torch.uint8)
        self.backward = Backward(self.ours_arguments, *(x.data_ptr() for x in (dO, *grads, workspace)))
        self.kept = workspace  # its address is in self.backward
        self.contenders["ours"] = lambda: self.launch(self.ours, "tiles", ctypes.addressof(self.backward)), grads
        rows = length + 127
        sums, two = self.empty(batch * heads * rows * head_dim, dtype=torch.float32), self.empty(2 * batch * heads * rows, dtype=torch.float32)
        counters = self.empty(batch * heads * (length // 64 + 1), dtype=torch.int32)
        self.contenders["FA3"] = (lambda: self.launch(self.theirs, "fa3_backward", self.causal, *self.sizes, Q, K, V, O, LSE, dO, *their_grads,
                                                      sums, two, counters), their_grads)  # fmt: skip
        q, k, v, g = (x.transpose(1, 2) for x in (Q, K, V, dO))
        out, lse, cu_q, cu_k, max_q, max_k, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, self.causal, False)
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
        self.contenders["cuDNN"] = (lambda: [x.transpose(1, 2) for x in cudnn(g, q, k, v, out, lse, seed, offset, None, cu_q, cu_k, max_q, max_k, 0.0,
                                                                             self.causal)], None)  # fmt: skip
        if self.fa4:
            self.contenders["FA4"] = lambda: list(self.fa4._flash_attn_bwd(Q, K, V, O, dO, LSE, causal=self.causal)[:3]), None


class Fp8(Problem):
    products, tolerance = 1.0, 0.06

    def __init__(self, *arguments):
        super().__init__(*arguments)
        torch, (batch, length, heads, head_dim) = self.torch, self.sizes
        Q, K, V = [self.normal().to(torch.float8_e4m3fn) for _ in range(3)]
        Vt = V.view(torch.uint8).permute(0, 2, 3, 1).contiguous()
        scales = [torch.rand(batch, heads, device="cuda") + 0.5 for _ in range(3)]
        self.kept = Q, K, V, Vt, scales
        for name, values, launcher in ("ours", V, "transposed_inside"), ("V transposed", Vt, "transposed_v"):
            O, LSE = self.empty(), self.statistics()
            a = Fp8Attention(self.attention(E4M3, Q, K, values, O, LSE), *(x.data_ptr() for x in scales))
            self.contenders[name] = (lambda a=a, LSE=LSE, launcher=launcher: self.launch(self.ours, launcher, ctypes.addressof(a)), [O])
        O, LSE, counter = self.empty(), self.statistics(), self.empty(1, dtype=torch.int32)
        self.contenders["FA3"] = (lambda: self.launch(self.theirs, "fa3_forward", True, self.causal, *self.sizes, Q, K, V, O, LSE, *scales, counter), [O])


OPERATIONS = {"forward": Forward, "backward": BackwardProblem, "fp8": Fp8}


def time_shape(torch, name, problem, rounds):
    """Prints a shape's line; ours over the best of the others, or None."""
    wrong = problem.agree(problem.tolerance)
    if wrong:
        print(f"{name}: WRONG, so not timed: {wrong}'s results and ours differ", flush=True)
        return None
    runs = {contender: run for contender, (run, _) in problem.contenders.items()}
    launches = {c: max(1, round(TURN_MS / (timed(torch, graph_of(torch, [run], 4)) / 4))) for c, run in runs.items()}
    graphs = {c: graph_of(torch, [run], launches[c]) for c, run in runs.items()}
    times = [{contender: ms / launches[contender] for contender, ms in turn.items()} for turn in take_turns(torch, graphs, rounds)]
    rates = [f"{c} {problem.products * problem.flops() / 1e9 / statistics.median(turn[c] for turn in times):.1f}" for c in graphs]
    others = [c for c in graphs if c not in ("ours", "V transposed")]
    ratio = statistics.median(min(turn[c] for c in others) / turn["ours"] for turn in times)
    print(f"{name}: {', '.join(rates)} TFLOP/s; ratio {ratio:.3f}", flush=True)
    return ratio


def main():
    arguments = sys.argv[1:]
    if arguments == ["--build"]:
        build_libraries()
        return
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return
    operations = [arguments[0]] if arguments else list(OPERATIONS)
    if operations[0] not in OPERATIONS:
        fail(f"'{operations[0]}': expected one of {', '.join(OPERATIONS)}")
    if len(arguments) > 1 and not (arguments[1].isdecimal() and int(arguments[1]) > 0):
        fail(f"'{arguments[1]}': expected how many rounds")
    rounds = int(arguments[1]) if len(arguments) > 1 else 9
    build_libraries()
    try:
        import torch
    except ImportError as error:
        fail(f"{error}: it takes a Python with torch")
    try:
        from flash_attn.cute import interface as flash_attention_4
    except ImportError:
        flash_attention_4 = None
    torch.manual_seed(1)
    ours, theirs = load(OURS, OUR_LAUNCHERS), load(THEIRS, FA3_LAUNCHERS)
    right = True
    for op in operations:
        for head_dim in HEAD_DIMS:
            for causal in (False, True):
                ratios = []
                for length in LENGTHS:
                    name = f"{op:8} d={head_dim} {'causal' if causal else 'full  '} len={length}"
                    ratios.append(time_shape(torch, name, OPERATIONS[op](torch, ours, theirs, flash_attention_4, head_dim, causal, length), rounds))
                    torch.cuda.empty_cache()
                if None in ratios:
                    right = False
                else:
                    print(f"{op:8} d={head_dim} {'causal' if causal else 'full  '}: mean {math.prod(ratios) ** (1 / len(ratios)):.3f}, least {min(ratios):.3f}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
