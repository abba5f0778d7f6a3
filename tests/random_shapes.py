#!/usr/bin/env python3
"""Makes golden cases of random shapes, on every core: random_shapes.py MODULE OP COUNT SEED OUT DIM=MOST[:STEP]...

Each dimension is a multiple of STEP (1) up to MOST; shapes that the operation refuses are drawn again. A case is named by its number, and drawn
by it and SEED alone: the first cases of a larger COUNT are the same.

    tests/random_shapes.py fp8_gemm gemm 5000 1 build/random/gemm m=300 n=300 k=640:16
    build/chapters/19_fp8_gemm --op gemm --golden build/random/gemm | tail -1
"""

import importlib
import multiprocessing
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference"))
import golden
import numpy as np


def make_case(number):
    module, op, _, seed, out, *limits = sys.argv[1:]
    operation = importlib.import_module(module).OPERATIONS[op]
    rng = np.random.default_rng([int(seed), number])
    dims, refused = {}, True
    while refused:
        for limit in limits:
            name, most = limit.split("=")
            most, _, step = most.partition(":")
            step = int(step or 1)
            dims[name] = step * int(rng.integers(1, int(most) // step + 1))
        refused = operation.check_shape(dims, "e4m3")
    for kind, case in operation.of_shape(dims).items():
        golden.write_case(operation, "e4m3", os.path.join(out, f"{number}_{kind}"), case, int(seed))


if __name__ == "__main__":
    os.makedirs(sys.argv[5], exist_ok=True)
    with multiprocessing.Pool() as pool:
        pool.map(make_case, range(int(sys.argv[3])), chunksize=1)
