#!/usr/bin/env python3
"""Makes golden cases of random shapes, on every core, or in WORKERS processes: random_shapes.py MODULE OP TYPE COUNT SEED OUT [DIM=MOST[:STEP]]...

A dimension that is named is a multiple of STEP (1) up to MOST. Each other one is, every second time, a size that one of the operation's own
cases has, else any up to the largest of these, small ones as often as large. Shapes that the operation refuses, and those of more
than 16 million numbers, are drawn again. A case is named by its number, and drawn by it and SEED alone: the first cases of a larger COUNT are
the same.

    tests/random_shapes.py fp8_gemm gemm e4m3 5000 1 build/random/gemm m=300 n=300 k=640:16
    build/chapters/19_fp8_gemm --op gemm --golden build/random/gemm | tail -1
"""

import concurrent.futures
import importlib
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import golden
import numpy as np

DRAWS = 100000  # of a shape that the operation takes, before it is given up
MOST_NUMBERS = 1 << 24  # of a case's tensors: beside them NumPy has float64 arrays for a dozen times as many, on every core


def draw_dims(operation, dtype, limits, rng):
    """Sizes for operation.DIMS."""
    own = operation.cases(dtype).values()
    dims = {}
    for name in operation.DIMS:
        sizes = [case[name] for case in own if case.get(name)] or [1]
        most, _, step = limits[name].partition(":") if name in limits else (max(sizes), "", 1)
        most, step = int(most), int(step or 1)
        if name in limits:
            dims[name] = step * int(rng.integers(1, most // step + 1))
        elif rng.random() < 0.5:
            dims[name] = int(rng.choice(sizes))
        else:
            dims[name] = int((most + 1) ** rng.random())
    return dims


def make_case(number):
    module, op, dtype, _, seed, out, *limits = sys.argv[1:]
    operation = importlib.import_module(module).OPERATIONS[op]
    limits = dict(limit.split("=") for limit in limits)
    rng = np.random.default_rng([int(seed), number])
    for _ in range(DRAWS):
        dims = draw_dims(operation, dtype, limits, rng)
        refused = operation.check_shape(dims, dtype)
        numbers = 0 if refused else sum(math.prod(shape) for shape in operation.shapes(dims).values())
        if numbers > MOST_NUMBERS:
            refused = f"{numbers:,} numbers are more than {MOST_NUMBERS:,}"
        if not refused:
            break
    else:
        sys.exit(f"{module} {op}: no shape found in {DRAWS}; of the last {dims}: {refused}")
    for kind, case in operation.of_shape(dims).items():
        golden.write_case(operation, dtype, os.path.join(out, f"{number}_{kind}"), case, int(seed))


if __name__ == "__main__":
    if len(sys.argv) < 7 or not sys.argv[4].isdigit() or not sys.argv[5].isdigit():
        sys.exit("usage: " + __doc__.split(": ", 1)[1])
    os.makedirs(sys.argv[6], exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(int(os.environ.get("WORKERS", 0)) or None) as pool:
        try:
            list(pool.map(make_case, range(int(sys.argv[4]))))
        except concurrent.futures.process.BrokenProcessPool:
            sys.exit("random_shapes.py: a process was killed, for memory perhaps: OUT is not complete")
