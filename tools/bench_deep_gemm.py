#!/usr/bin/env python3
"""Times chapters 19 and 20 beside DeepGEMM's kernels, in turns, on this machine's GPU: for a Python that has torch and deep_gemm.

    tools/bench_deep_gemm.py [gemm|aligned|masked] [ROUNDS]     (all of them, 10 rounds)

Our launchers become a shared library in build/. Both work on the same numbers, and must agree before they are timed. A turn is a CUDA graph of some
milliseconds; a line has the medians of the rounds, and the ratio, above 1 where ours is faster. What DeepGEMM asks of scales is what chapter 18
gives: rows of them along m.
"""

import ctypes
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
    "common/device/tensor_map.c",
]
TURN_MS, L2_BYTES, BF16 = 10.0, 200 << 20, 4  # BF16: of enum dtype
WEIGHTS = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]
SHAPES = {  # DeepSeek-V3's layers, and DeepGEMM's own test shapes: (groups, rows of each, n, k)
    "gemm": [(1, m, n, k) for m in (64, 128, 4096) for n, k in [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]],
    "aligned": [(g, m, n, k) for g, m in [(4, 8192), (8, 4096)] for n, k in WEIGHTS],
    "masked": [(g, m, n, k) for g, m in [(32, 192), (6, 1024), (32, 20), (6, 20)] for n, k in WEIGHTS],
}
CAPACITY = 4096


def fail(text):
    print(f"bench_deep_gemm: {text}", file=sys.stderr)
    sys.exit(2)


def build_library():
    """Our launchers, loaded."""
    path = os.path.join(ROOT, "build", "libgrouped.so")
    with open(os.path.join(ROOT, "build", "config.mk"), encoding="utf-8") as file:
        nvcc = re.search(r"^NVCC *:= *(.+)$", file.read(), re.M).group(1)
    command = [*nvcc.split(), "-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-cudart", "shared", "-shared", "-Xcompiler", "-fPIC", "-o", path]
    subprocess.run(command + [os.path.join(ROOT, source) for source in SOURCES], check=True)
    return ctypes.CDLL(path)


def deep_gemm_function(deep_gemm, *names):
    """DeepGEMM has called its functions differently over time."""
    for name in names:
        if hasattr(deep_gemm, name):
            return getattr(deep_gemm, name)
    return fail(f"deep_gemm has none of {', '.join(names)}")


def numbers(torch, *shape):
    return torch.randn(*shape, device="cuda").clamp(-4, 4).mul(100).to(torch.float8_e4m3fn)


class Problem:
    """One shape's tensors, and what the two contenders do with them."""

    def __init__(self, torch, deep_gemm, library, op, groups, rows, n, k):
        self.stream = lambda: ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.library, self.op, self.groups, self.rows, self.n, self.k = library, op, groups, rows, n, k
        around = torch.randint(int(rows * 0.7), int(rows * 1.3) + 1, (groups,))
        m = {"gemm": rows, "aligned": int(((around + 127) // 128 * 128).sum()), "masked": groups * CAPACITY}[op]
        self.m, self.valid = m, int(around.sum()) if op == "masked" else m
        self.A, self.B = numbers(torch, m, k), numbers(torch, groups, n, k)
        self.scale_A = torch.rand(k // 128, m, device="cuda") * 0.01 + 0.001
        self.scale_B = torch.rand(groups, -(-n // 128), k // 128, device="cuda") * 0.01 + 0.001
        self.mine = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
        self.theirs = torch.zeros_like(self.mine)
        self.counts = around.to("cuda", torch.int32)
        owners = torch.arange(groups).repeat_interleave((around + 127) // 128 * 128) if op == "aligned" else torch.zeros(1)
        self.row_group = owners.to("cuda", torch.int32)
        self.deep = {
            "gemm": deep_gemm_function(deep_gemm, "fp8_gemm_nt", "gemm_fp8_fp8_bf16_nt"),
            "aligned": deep_gemm_function(deep_gemm, "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous"),
            "masked": deep_gemm_function(deep_gemm, "m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked", "m_grouped_gemm_fp8_fp8_bf16_nt_masked"),
        }[op]

    def run_mine(self):
        data = [ctypes.c_void_p(x.data_ptr()) for x in (self.A, self.B, self.scale_A, self.scale_B)]
        D, counts, row_group = (ctypes.c_void_p(x.data_ptr()) for x in (self.mine, self.counts, self.row_group))
        if self.op == "gemm":
            error = self.library.few_rows(BF16, *data, D, self.m, self.n, self.k, self.stream())
        elif self.op == "aligned":
            error = self.library.aligned_segments(*data, row_group, D, self.m, self.n, self.k, self.groups, self.stream())
        else:
            error = self.library.masked(*data, counts, D, CAPACITY, self.rows, self.n, self.k, self.groups, self.stream())
        if error:
            fail(f"our launcher: CUDA error {error}")

    def run_theirs(self):
        if self.op == "masked":
            shape = (self.groups, CAPACITY)
            scale = self.scale_A.view(self.k // 128, *shape).permute(1, 2, 0)
            scale = scale if self.groups == 1 else self.masked_scale(scale)
            self.deep((self.A.view(*shape, self.k), scale), (self.B, self.scale_B), self.theirs.view(*shape, self.n), self.counts, self.rows)
        elif self.op == "aligned":
            self.deep((self.A, self.scale_A.t()), (self.B, self.scale_B), self.theirs, self.row_group)
        else:
            self.deep((self.A, self.scale_A.t()), (self.B[0], self.scale_B[0]), self.theirs)

    def masked_scale(self, scale):
        """DeepGEMM's: a matrix of scales for each group, along m; made once."""
        if not hasattr(self, "kept_scale"):
            self.kept_scale = scale.permute(0, 2, 1).contiguous().permute(0, 2, 1)
        return self.kept_scale

    def flops(self):
        return 2.0 * self.valid * self.n * self.k


def agree(torch, problem):
    """Whether both have the same D where there are rows, but for the order of sums."""
    mine, theirs = problem.mine.float(), problem.theirs.float()
    if problem.op == "masked":
        there = torch.arange(CAPACITY, device="cuda") < problem.counts[:, None]
        mine, theirs = mine[there.flatten()], theirs[there.flatten()]
    return bool((mine - theirs).norm() < 0.01 * theirs.norm())


def graph_of(torch, run, launches):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run[i % len(run)]()
    return graph


def timed(torch, graph):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main():
    operations = [sys.argv[1]] if len(sys.argv) > 1 else list(SHAPES)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    if operations[0] not in SHAPES:
        fail(f"'{operations[0]}': expected one of {', '.join(SHAPES)}")
    try:
        import deep_gemm
        import torch
    except ImportError as error:
        fail(f"{error}: it takes a Python with torch and deep_gemm")
    library = build_library()
    torch.manual_seed(1)
    for op in operations:
        for shape in SHAPES[op]:
            first = Problem(torch, deep_gemm, library, op, *shape)
            moved = first.B.numel() + first.valid * (first.k + 2 * first.n)
            sets = [first] + [Problem(torch, deep_gemm, library, op, *shape) for _ in range(min(3, L2_BYTES // moved))]
            for problem in sets:
                problem.run_mine()
                problem.run_theirs()
            torch.cuda.synchronize()
            if not agree(torch, first):
                fail(f"{op} {shape}: ours and DeepGEMM's results differ")
            contenders = [[p.run_mine for p in sets], [p.run_theirs for p in sets]]
            once = timed(torch, graph_of(torch, contenders[1], 4)) / 4
            launches = max(1, round(TURN_MS / once))
            graphs = [graph_of(torch, runs, launches) for runs in contenders]
            times = [[timed(torch, graph) / launches for graph in graphs] for _ in range(rounds + 1)][1:]
            mine, theirs = (statistics.median(column) for column in zip(*times))
            rate = sum(p.flops() for p in sets) / len(sets) / 1e9
            print(f"{op:8} g={shape[0]} m={shape[1]} n={shape[2]} k={shape[3]}: {mine * 1e3:.1f} us, {rate / mine:.0f} TFLOP/s; "
                  f"DeepGEMM {theirs * 1e3:.1f} us, {rate / theirs:.0f} TFLOP/s; ratio {theirs / mine:.3f}", flush=True)
            del sets, first, contenders, graphs
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
