#!/usr/bin/env python3
"""Times chapters 19 and 20 beside DeepGEMM's kernels, in turns, on this machine's GPU: for a Python that has torch.

    DEEP_GEMM=FOLDER CUTLASS=FOLDER tools/bench_deep_gemm.py --build     both libraries, on any machine that has nvcc, and what is in them
    tools/bench_deep_gemm.py [gemm|aligned|masked|k_groups] [ROUNDS]     (all of them, 10 rounds)

DEEP_GEMM is a checkout of DeepGEMM (54e2261), CUTLASS the include folder of CUTLASS (f3fde583). Their kernels, in the configurations that DeepGEMM
itself would choose (deep_gemm_kernels.py), become build/libdeep_gemm.so; our launchers become build/libgrouped.so. A library that our
sources made is used as it lies, from whatever machine. Both work on the same numbers, and must agree before they are timed. A turn is a CUDA graph of
some milliseconds, and each round draws its order; a line has the medians of the rounds, and the ratio, above 1 where ours is faster. What DeepGEMM asks
of scales is what chapter 18 gives: rows of them along m.
"""

import ctypes
import faulthandler
import hashlib
import os
import random
import re
import statistics
import subprocess
import sys

import deep_gemm_kernels

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = [
    "chapters/19_fp8_gemm/step4_persistent_multicast.cu",
    "chapters/19_fp8_gemm/step6_few_rows.cu",
    "chapters/20_grouped_gemm/step1_aligned_segments.cu",
    "chapters/20_grouped_gemm/step3_masked.cu",
    "chapters/20_grouped_gemm/step4_k_groups.cu",
    "common/device/tensor_map.c",
]
OURS, THEIRS = (os.path.join(ROOT, "build", name) for name in ("libgrouped.so", "libdeep_gemm.so"))
P, INT = ctypes.c_void_p, ctypes.c_int
LAUNCHERS = {  # as launchers.h of the two chapters have them
    "few_rows": [INT, P, P, P, P, P, INT, INT, INT, P],
    "aligned_segments": [P, P, P, P, P, P, INT, INT, INT, INT, P],
    "masked": [P, P, P, P, P, P, INT, INT, INT, INT, INT, P],
    "k_groups": [P, P, P, P, P, P, INT, INT, INT, INT, P],
}
DEEP_GEMM_LAUNCHER = [P, P, P, P, P, P, P, INT, P]  # as deep_gemm_kernels.py writes them
TURN_MS, L2_BYTES, BF16 = 10.0, 200 << 20, 4  # BF16: of enum dtype
WEIGHTS = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]
SHAPES = {  # DeepSeek-V3's layers, and DeepGEMM's own test shapes: (groups, rows of each, n, k); k_groups: (groups, m, n, columns of each)
    "gemm": [(1, m, n, k) for m in (64, 128, 4096) for n, k in [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]],
    "aligned": [(g, m, n, k) for g, m in [(4, 8192), (8, 4096)] for n, k in WEIGHTS],
    "masked": [(g, m, n, k) for g, m in [(32, 192), (6, 1024), (32, 20), (6, 20)] for n, k in WEIGHTS],
    "k_groups": [(g, m, n, k) for g, k in [(4, 8192), (8, 4096)] for m, n in [(4096, 7168), (7168, 2048)]],
}
CAPACITY = 4096
SETS = 4  # of numbers, at most: used in turn, so that L2 does not keep them


def fail(text):
    """Ends the script that was started, this one or one that imports it, with a line."""
    print(f"{os.path.basename(sys.argv[0]).removesuffix('.py')}: {text}", file=sys.stderr)
    sys.exit(2)


def rows_of(op, shape, index):
    """How many rows each group has in a shape's index-th set of numbers: 0.7 to 1.3 of what the shape says, of aligned whole tiles."""
    groups, rows = shape[:2]
    choose = random.Random(f"{op} {shape} {index}")
    around = [choose.randint(int(rows * 0.7), int(rows * 1.3)) for _ in range(groups)]
    return [(count + 127) // 128 * 128 for count in around] if op == "aligned" else around


def product_of(op, shape, index):
    """What DeepGEMM's choice of a configuration depends on."""
    groups, rows, n, k = shape
    m = {"aligned": sum(rows_of(op, shape, index)), "masked": CAPACITY}.get(op, rows)
    return deep_gemm_kernels.Product(op, groups, m, rows if op == "masked" else m, n, k)


def units():
    """The sources of DeepGEMM's launchers, by their names."""
    return deep_gemm_kernels.units(product_of(op, shape, index) for op in SHAPES for shape in SHAPES[op] for index in range(SETS))


def stamp(texts):
    """20 bytes that tell sources apart: the build id of the library that they make."""
    return hashlib.sha1("\0".join(texts).encode()).hexdigest()


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def config():
    return dict(re.findall(r"^(\w+) *:= *(.*)$", read("build/config.mk"), re.M))


def link(path, inputs, *options):
    folder = config()["CUDA_LIB"]
    command = [*config()["NVCC"].split(), "-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-cudart", "none", "-shared", "-Xcompiler", "-fPIC"]
    command += ["--threads", "0", f"-L{folder}", "-l:libcudart.so.13", "-Xlinker", f"-rpath={folder}", *options, "-o", path]
    subprocess.run(command + inputs, check=True)


def load(path, launchers):
    """The library; its launchers take these arguments and return a status."""
    library = ctypes.CDLL(path)
    for name, arguments in launchers.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = INT
    return library


def build_id(identity):
    return ["-Xlinker", f"--build-id=0x{identity}"]


def is_made_of(path, identity):
    if not os.path.exists(path):
        return False
    with open(path, "rb") as file:
        return bytes.fromhex(identity) in file.read()


def build_ours(path, sources):
    """Makes the library of our launchers, where it is missing or made of other sources."""
    folders = sorted({os.path.dirname(source) for source in sources} | {"common/device"})
    headers = [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(os.path.join(ROOT, folder))) if name.endswith((".h", ".cuh"))]
    identity = stamp(read(path) for path in sources + headers)
    if not is_made_of(path, identity):
        link(path, [os.path.join(ROOT, source) for source in sources], *build_id(identity))


def build_libraries():
    """Makes the two libraries, or what is missing of them or made of other sources of ours."""
    sources = units()
    identity = stamp([*sources.values(), *deep_gemm_kernels.OPTIONS, read("tools/deep_gemm_launch.cuh")])
    if not is_made_of(THEIRS, identity):
        folders = [os.environ.get(name) for name in ("DEEP_GEMM", "CUTLASS")]
        if None in folders:
            fail("build/libdeep_gemm.so is missing, or made of other sources: say DEEP_GEMM=FOLDER and CUTLASS=FOLDER to make it")
        includes = [os.path.join(folders[0], "deep_gemm/include"), folders[1], os.path.join(ROOT, "tools")]
        objects = deep_gemm_kernels.compile_units(sources, [*config()["NVCC"].split(), *deep_gemm_kernels.OPTIONS], includes, os.path.join(ROOT, "build", "deep_gemm"))
        link(THEIRS, objects, *build_id(identity))
    build_ours(OURS, SOURCES)


def numbers(torch, *shape):
    return torch.randn(*shape, device="cuda").clamp(-4, 4).mul(100).to(torch.float8_e4m3fn)


def scales(torch, *shape):
    return torch.rand(*shape, device="cuda") * 0.01 + 0.001


class Problem:
    """One shape's tensors, and what the two contenders do with them."""

    def __init__(self, torch, op, shape, index):
        self.torch, self.op, self.product = torch, op, product_of(op, shape, index)
        self.groups, self.rows, self.n, self.k = groups, rows, n, k = shape
        self.m = self.valid = rows  # of A; with numbers in them
        counts = rows_of(op, shape, index)
        self.layout = torch.tensor(counts, device="cuda", dtype=torch.int32)
        if op == "aligned":
            self.m = self.valid = sum(counts)
            self.layout = torch.arange(groups, device="cuda", dtype=torch.int32).repeat_interleave(self.layout)
        elif op == "masked":
            self.m, self.valid = groups * CAPACITY, sum(counts)
        elif op == "k_groups":
            self.k = k * groups
            self.layout.fill_(k)
        self.A, self.scale_A = numbers(torch, self.m, self.k), scales(torch, self.k // 128, self.m)
        if op == "k_groups":
            self.B, self.scale_B = numbers(torch, n, self.k), scales(torch, self.k // 128, n)
            self.mine = torch.zeros(groups, self.m, n, device="cuda")
            # DeepGEMM's has each group's columns as a matrix of their own.
            bytes_AB = [x.view(torch.uint8) for x in (self.A, self.B)]  # not every torch concatenates e4m3
            self.deep_A, self.deep_B = (torch.cat([x[:, g * k : (g + 1) * k].reshape(-1) for g in range(groups)]) for x in bytes_AB)
            self.maps = torch.empty(deep_gemm_kernels.NUM_SMS * 4 * 128, device="cuda", dtype=torch.uint8)  # its blocks edit them
        else:
            self.B, self.scale_B = numbers(torch, groups, n, k), scales(torch, groups, -(-n // 128), k // 128)
            self.mine = torch.zeros(self.m, n, device="cuda", dtype=torch.bfloat16)
        if op == "masked":  # DeepGEMM's has each group's scales behind each other
            self.deep_scale = self.scale_A.view(k // 128, groups, CAPACITY).permute(1, 0, 2).contiguous()
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

    def run_theirs(self, library):
        A, B, scale_A = self.A, self.B, self.deep_scale if self.op == "masked" else self.scale_A
        if self.op == "k_groups":
            A, B = self.deep_A, self.deep_B
        maps = self.maps.data_ptr() if self.op == "k_groups" else None
        launcher = getattr(library, deep_gemm_kernels.symbol(self.product, deep_gemm_kernels.best_tiling(self.product)))
        data = [x.data_ptr() for x in (A, B, scale_A, self.scale_B, self.layout, self.theirs)]
        error = launcher(*data, maps, self.product.m, self.torch.cuda.current_stream().cuda_stream)
        if error:
            fail(f"DeepGEMM's launcher: CUDA error {error}")

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


def take_turns(torch, graphs, rounds):
    """Milliseconds of each graph, by its name, in each round. The order of a round is drawn anew (but the same in every run): whose turn
    comes first, or behind whose, makes a per cent or two."""
    names, order, times = list(graphs), random.Random(0), []
    for _ in range(rounds + 1):
        order.shuffle(names)
        times.append({name: timed(torch, graphs[name]) for name in names})
    return times[1:]  # the first warms up


def time_shape(torch, ours, theirs, op, shape, rounds):
    """Prints a shape's line; whether the two agree."""
    first = Problem(torch, op, shape, 0)
    moved = first.B.numel() + first.valid * (first.k + 2 * first.n)
    sets = [first] + [Problem(torch, op, shape, index) for index in range(1, 1 + min(SETS - 1, L2_BYTES // moved))]
    for problem in sets:
        problem.run_theirs(theirs)
        torch.cuda.synchronize()  # so that an error says whose it is
        problem.run_mine(ours)
        torch.cuda.synchronize()
    name = f"{op:8} g={shape[0]} m={shape[1]} n={shape[2]} k={shape[3]}"
    if not first.agree():
        print(f"{name}: WRONG, so not timed: ours and DeepGEMM's results differ", flush=True)
        return False
    contenders = {"ours": [lambda p=p: p.run_mine(ours) for p in sets], "theirs": [lambda p=p: p.run_theirs(theirs) for p in sets]}
    once = timed(torch, graph_of(torch, contenders["theirs"], 4)) / 4
    launches = max(1, round(TURN_MS / once))
    times = take_turns(torch, {name: graph_of(torch, runs, launches) for name, runs in contenders.items()}, rounds)
    our_ms, their_ms = (statistics.median(turn[name] for turn in times) / launches for name in contenders)
    ratio = statistics.median(turn["theirs"] / turn["ours"] for turn in times)
    rate = sum(p.flops() for p in sets) / len(sets) / 1e9
    print(f"{name}: {our_ms * 1e3:.1f} us, {rate / our_ms:.0f} TFLOP/s; DeepGEMM {their_ms * 1e3:.1f} us, {rate / their_ms:.0f} TFLOP/s; ratio {ratio:.3f}", flush=True)
    return True


def print_configurations():
    for op in SHAPES:
        for shape in SHAPES[op]:
            for tiling in sorted({deep_gemm_kernels.best_tiling(product_of(op, shape, index)) for index in range(SETS)}, key=repr):
                stages, smem_bytes = tiling.pipeline(product_of(op, shape, 0))
                tile = f"{tiling.block_m}x{tiling.block_n}, {stages} stages, cluster {tiling.cluster_m}x{tiling.cluster_n}, {smem_bytes} bytes"
                print(f"{op:8} g={shape[0]} m={shape[1]} n={shape[2]} k={shape[3]}: {tile}")


def main():
    faulthandler.enable()
    arguments = sys.argv[1:]
    if arguments == ["--build"]:
        build_libraries()
        print_configurations()
        return
    operations = [arguments[0]] if arguments else list(SHAPES)
    rounds = int(arguments[1]) if len(arguments) > 1 else 10
    if operations[0] not in SHAPES:
        fail(f"'{operations[0]}': expected one of {', '.join(SHAPES)}")
    build_libraries()
    try:
        import torch
    except ImportError as error:
        fail(f"{error}: it takes a Python with torch")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    if sms != deep_gemm_kernels.NUM_SMS:
        fail(f"this GPU has {sms} SMs: DeepGEMM's kernels here are for {deep_gemm_kernels.NUM_SMS}")
    torch.manual_seed(1)
    ours, theirs = load(OURS, LAUNCHERS), load(THEIRS, dict.fromkeys(units(), DEEP_GEMM_LAUNCHER))
    right = True
    for op in operations:
        for shape in SHAPES[op]:
            right = time_shape(torch, ours, theirs, op, shape, rounds) and right
            torch.cuda.empty_cache()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
