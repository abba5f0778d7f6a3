#!/usr/bin/env python3
"""Times chapters 19 and 20 beside DeepGEMM's kernels, in turns, on this machine's GPU: for a Python that has torch and deep_gemm.

    tools/bench_deep_gemm.py [gemm|aligned|masked|k_groups] [ROUNDS]     (all of them, 10 rounds)

Our launchers become a shared library in build/. Both work on the same numbers, and must agree before they are timed. A turn is a CUDA graph of some
milliseconds; a line has the medians of the rounds, and the ratio, above 1 where ours is faster. What DeepGEMM asks of scales is what chapter 18
gives: rows of them along m. DeepGEMM runs alone, once, before ours is loaded, so that a crash says whose it is; DG_JIT_DEBUG=1 has it say how far it got.
"""

import ctypes
import faulthandler
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = [
    "chapters/19_fp8_gemm/step4_persistent_multicast.cu",
    "chapters/19_fp8_gemm/step6_few_rows.cu",
    "chapters/20_grouped_gemm/step1_aligned_segments.cu",
    "chapters/20_grouped_gemm/step3_masked.cu",
    "chapters/20_grouped_gemm/step4_k_groups.cu",
    "common/device/tensor_map.c",
]
P, INT = ctypes.c_void_p, ctypes.c_int
LAUNCHERS = {  # as launchers.h of the two chapters have them
    "few_rows": [INT, P, P, P, P, P, INT, INT, INT, P],
    "aligned_segments": [P, P, P, P, P, P, INT, INT, INT, INT, P],
    "masked": [P, P, P, P, P, P, INT, INT, INT, INT, INT, P],
    "k_groups": [P, P, P, P, P, P, INT, INT, INT, INT, P],
}
TURN_MS, L2_BYTES, BF16 = 10.0, 200 << 20, 4  # BF16: of enum dtype
WEIGHTS = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]
SHAPES = {  # DeepSeek-V3's layers, and DeepGEMM's own test shapes: (groups, rows of each, n, k); k_groups: (groups, m, n, columns of each)
    "gemm": [(1, m, n, k) for m in (64, 128, 4096) for n, k in [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]],
    "aligned": [(g, m, n, k) for g, m in [(4, 8192), (8, 4096)] for n, k in WEIGHTS],
    "masked": [(g, m, n, k) for g, m in [(32, 192), (6, 1024), (32, 20), (6, 20)] for n, k in WEIGHTS],
    "k_groups": [(g, m, n, k) for g, k in [(4, 8192), (8, 4096)] for m, n in [(4096, 7168), (7168, 2048)]],
}
CAPACITY = 4096


def fail(text):
    print(f"bench_deep_gemm: {text}", file=sys.stderr)
    sys.exit(2)


def build_library():
    """Our launchers, loaded."""
    path = os.path.join(ROOT, "build", "libgrouped.so")
    with open(os.path.join(ROOT, "build", "config.mk"), encoding="utf-8") as file:
        config = dict(re.findall(r"^(\w+) *:= *(.*)$", file.read(), re.M))
    command = [*config["NVCC"].split(), "-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-cudart", "none", "-shared", "-Xcompiler", "-fPIC"]
    command += [f"-L{config['CUDA_LIB']}", "-l:libcudart.so.13", "-o", path]
    subprocess.run(command + [os.path.join(ROOT, source) for source in SOURCES], check=True)
    library = ctypes.CDLL(path)
    for name, arguments in LAUNCHERS.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = INT
    return library


def numbers(torch, *shape):
    return torch.randn(*shape, device="cuda").clamp(-4, 4).mul(100).to(torch.float8_e4m3fn)


def scales(torch, *shape):
    return torch.rand(*shape, device="cuda") * 0.01 + 0.001


class Problem:
    """One shape's tensors, and what the two contenders do with them."""

    def __init__(self, torch, op, groups, rows, n, k):
        self.torch, self.op, self.groups, self.rows, self.n, self.k = torch, op, groups, rows, n, k
        self.m = self.valid = rows  # of A; with numbers in them
        around = torch.randint(int(rows * 0.7), int(rows * 1.3) + 1, (groups,))
        if op == "aligned":
            padded = (around + 127) // 128 * 128
            self.m = self.valid = int(padded.sum())
            self.layout = torch.arange(groups).repeat_interleave(padded).to("cuda", torch.int32)
        elif op == "masked":
            self.m, self.valid = groups * CAPACITY, int(around.sum())
            self.layout = around.to("cuda", torch.int32)
        elif op == "k_groups":
            self.columns = [k] * groups
            self.k = k * groups
            self.layout = torch.tensor(self.columns, device="cuda", dtype=torch.int32)
        self.A, self.scale_A = numbers(torch, self.m, self.k), scales(torch, self.k // 128, self.m)
        if op == "k_groups":
            self.B, self.scale_B = numbers(torch, n, self.k), scales(torch, self.k // 128, n)
            self.mine = torch.zeros(groups, self.m, n, device="cuda")
            # DeepGEMM's has each group's columns as a matrix of their own.
            self.deep_A, self.deep_B = (torch.cat([x[:, g * k : (g + 1) * k].reshape(-1) for g in range(groups)]) for x in (self.A, self.B))
        else:
            self.B, self.scale_B = numbers(torch, groups, n, k), scales(torch, groups, -(-n // 128), k // 128)
            self.mine = torch.zeros(self.m, n, device="cuda", dtype=torch.bfloat16)
        if op == "masked":  # DeepGEMM's has a matrix of scales for each group, along m
            self.deep_scale = self.scale_A.view(k // 128, groups, CAPACITY).permute(1, 0, 2).contiguous().permute(0, 2, 1)
        self.theirs = self.mine.clone()

    def run_mine(self, library):
        data = [x.data_ptr() for x in (self.A, self.B, self.scale_A, self.scale_B)]
        D, stream = self.mine.data_ptr(), self.torch.cuda.current_stream().cuda_stream
        if self.op == "gemm":
            error = library.few_rows(BF16, *data, D, self.m, self.n, self.k, stream)
        elif self.op == "aligned":
            error = library.aligned_segments(*data, self.layout.data_ptr(), D, self.m, self.n, self.k, self.groups, stream)
        elif self.op == "masked":
            error = library.masked(*data, self.layout.data_ptr(), D, CAPACITY, self.rows, self.n, self.k, self.groups, stream)
        else:
            error = library.k_groups(*data, self.layout.data_ptr(), D, self.m, self.n, self.k, self.groups, stream)
        if error:
            fail(f"our launcher: CUDA error {error}")

    def run_theirs(self, deep_gemm):
        B = (self.B, self.scale_B)
        if self.op == "gemm":
            deep_gemm.fp8_gemm_nt((self.A, self.scale_A.t()), (self.B[0], self.scale_B[0]), self.theirs)
        elif self.op == "aligned":
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous((self.A, self.scale_A.t()), B, self.theirs, self.layout)
        elif self.op == "masked":
            shape = (self.groups, CAPACITY)
            deep_gemm.m_grouped_fp8_gemm_nt_masked((self.A.view(*shape, self.k), self.deep_scale), B, self.theirs.view(*shape, self.n), self.layout, self.rows)
        else:
            A, B = (self.deep_A, self.scale_A.t()), (self.deep_B, self.scale_B.t())
            deep_gemm.k_grouped_fp8_gemm_nt_contiguous(A, B, self.theirs, self.columns, self.layout, c=self.theirs)

    def flops(self):
        return 2.0 * self.valid * self.n * self.k

    def agree(self):
        """Whether both have the same D where there are rows, but for the order of sums."""
        mine, theirs = self.mine.float(), self.theirs.float()
        if self.op == "masked":
            there = (self.torch.arange(CAPACITY, device="cuda") < self.layout[:, None]).flatten()
            mine, theirs = mine[there], theirs[there]
        return bool((mine - theirs).norm() < 0.01 * theirs.norm())


def graph_of(torch, runs, launches):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            runs[i % len(runs)]()
    return graph


def timed(torch, graph):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def time_shape(torch, deep_gemm, library, op, shape, rounds):
    """Prints a shape's line; whether the two agree."""
    first = Problem(torch, op, *shape)
    moved = first.B.numel() + first.valid * (first.k + 2 * first.n)
    sets = [first] + [Problem(torch, op, *shape) for _ in range(min(3, L2_BYTES // moved))]
    for problem in sets:
        problem.run_mine(library)
        problem.run_theirs(deep_gemm)
    torch.cuda.synchronize()
    name = f"{op:8} g={shape[0]} m={shape[1]} n={shape[2]} k={shape[3]}"
    if not first.agree():
        print(f"{name}: WRONG, so not timed: ours and DeepGEMM's results differ", flush=True)
        return False
    contenders = [[lambda p=p: p.run_mine(library) for p in sets], [lambda p=p: p.run_theirs(deep_gemm) for p in sets]]
    once = timed(torch, graph_of(torch, contenders[1], 4)) / 4
    launches = max(1, round(TURN_MS / once))
    graphs = [graph_of(torch, runs, launches) for runs in contenders]
    times = [[timed(torch, graph) / launches for graph in graphs] for _ in range(rounds + 1)][1:]
    mine, theirs = (statistics.median(column) for column in zip(*times))
    ratio = statistics.median(t / m for m, t in times)
    rate = sum(p.flops() for p in sets) / len(sets) / 1e9
    print(f"{name}: {mine * 1e3:.1f} us, {rate / mine:.0f} TFLOP/s; DeepGEMM {theirs * 1e3:.1f} us, {rate / theirs:.0f} TFLOP/s; ratio {ratio:.3f}", flush=True)
    return True


def main():
    faulthandler.enable()
    operations = [sys.argv[1]] if len(sys.argv) > 1 else list(SHAPES)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    if operations[0] not in SHAPES:
        fail(f"'{operations[0]}': expected one of {', '.join(SHAPES)}")
    try:
        import torch
        import deep_gemm
    except ImportError as error:
        fail(f"{error}: it takes a Python with torch and deep_gemm")
    torch.manual_seed(1)
    print("DeepGEMM alone", file=sys.stderr, flush=True)
    Problem(torch, "gemm", 1, 128, 256, 512).run_theirs(deep_gemm)
    torch.cuda.synchronize()
    library = build_library()
    print("both", file=sys.stderr, flush=True)
    right = True
    for op in operations:
        for shape in SHAPES[op]:
            right = time_shape(torch, deep_gemm, library, op, shape, rounds) and right
            torch.cuda.empty_cache()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
