#!/usr/bin/env python3
"""Writes golden files: folders of .npy inputs, expected outputs (float64) and tolerances, as the chapters read them.

    golden.py OPERATION --dtype f32 --out DIR                               the chapter's own cases
    golden.py OPERATION --dtype f32 --out DIR --shape m=333,n=77,k=129      cases of one shape
    golden.py OPERATION --dtype f32 --inputs DIR                            outputs and tolerances for your own inputs
"""

import argparse
import importlib
import os
import shutil
import sys
import zlib

import ml_dtypes
import numpy as np

# What NumPy cannot store is stored as its bits, and the file's name says so (common/npy.h has the same table).
STORED = {
    "f32": (np.float32, np.float32, ".npy"),
    "bf16": (ml_dtypes.bfloat16, np.uint16, ".bf16.npy"),
    "f16": (np.float16, np.float16, ".npy"),
}

LARGEST_ARRAY = 1 << 30  # bytes of float64: more is a benchmark, not a golden file


class BadInput(Exception):
    """One line for the user: the file or flag, what was found, what was expected."""


def parse_shape(text, names):
    """"m=3,n=4" -> {"m": 3, "n": 4}; every name of `names` exactly once, each from 1 to 2^31 - 1."""
    dims = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            raise BadInput(f"SHAPE '{text}': found '{part}', expected {','.join(f'{n}=SIZE' for n in names)}")
        if name in dims:
            raise BadInput(f"SHAPE '{text}': {name} comes twice")
        if not value.lstrip("-").isascii() or not value.lstrip("-").isdigit():
            raise BadInput(f"SHAPE '{text}': {name} is '{value}', expected a whole number")
        if not 1 <= int(value) < 1 << 31:
            raise BadInput(f"SHAPE '{text}': {name} is {value}, expected 1 to {(1 << 31) - 1}")
        dims[name] = int(value)
    for name in names:
        if name not in dims:
            raise BadInput(f"SHAPE '{text}': {name} is missing")
    return dims


def write_outputs(folder, results):
    for name, (expected, tolerance) in results.items():
        np.save(os.path.join(folder, f"{name}.npy"), expected)
        np.save(os.path.join(folder, f"{name}.tol.npy"), tolerance)


def params(operation):
    """The operation's parameters: numbers in files of their own type, not tensors of the chapter's."""
    return getattr(operation, "PARAMS", ())


def write_case(operation, dtype, folder, case, seed):
    """Makes one case in `folder`, which appears complete or not at all. A case may have a dtype of its own."""
    dtype = case.get("dtype", dtype)
    number_type, stored_type, suffix = STORED[dtype]
    rng = np.random.default_rng([seed, zlib.crc32(os.path.basename(folder).encode())])
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    arrays = operation.inputs(rng, case)
    for name, array in arrays.items():
        if name in params(operation):
            np.save(os.path.join(partial, name + ".npy"), array)
        else:
            arrays[name] = array.astype(number_type)
            np.save(os.path.join(partial, name + suffix), arrays[name].view(stored_type))
    write_outputs(partial, operation.outputs(arrays, dtype))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)


def read_inputs(operation, dtype, folder):
    """The user's own inputs; the chapter's program checks their shapes against each other."""
    number_type, stored_type, suffix = STORED[dtype]
    arrays = {}
    for name in (*operation.INPUTS, *params(operation)):
        path = os.path.join(folder, name + (".npy" if name in params(operation) else suffix))
        if name in operation.OPTIONAL and not os.path.exists(path):
            continue
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: {error}") from error
        if name in params(operation):
            arrays[name] = array
            continue
        if array.dtype != stored_type:
            raise BadInput(f"{path}: dtype {array.dtype}, expected {np.dtype(stored_type)}")
        arrays[name] = array.view(number_type)
    return arrays


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", help="a module of reference/: matmul, attention")
    parser.add_argument("--dtype", required=True, choices=STORED)
    parser.add_argument("--out", help="folder to write the cases into")
    parser.add_argument("--inputs", help="folder of one case that has inputs only")
    parser.add_argument("--shape", help="sizes, such as m=333,n=77,k=129")
    parser.add_argument("--seed", default="1", help="whole number (1)")
    options = parser.parse_args()
    operation = importlib.import_module(options.operation)
    if not (options.seed.isascii() and options.seed.isdigit()):
        raise BadInput(f"SEED '{options.seed}': expected a whole number of at least 0")
    if options.inputs:
        try:
            write_outputs(options.inputs, operation.outputs(read_inputs(operation, options.dtype, options.inputs), options.dtype))
        except ValueError as error:
            raise BadInput(f"{options.inputs}: {error}") from error
        return
    if not options.out:
        raise BadInput("golden.py: --out or --inputs is missing")
    if options.shape:
        dims = parse_shape(options.shape, operation.DIMS)
        needed = operation.check_shape(dims, options.dtype)
        if needed:
            raise BadInput(f"SHAPE '{options.shape}': {needed}")
        cases = operation.of_shape(dims)
    else:
        cases = operation.cases(options.dtype)
    for name, case in cases.items():
        for array, shape in operation.shapes(case).items():
            if np.prod(shape, dtype=object) * 8 > LARGEST_ARRAY:
                raise BadInput(f"SHAPE '{options.shape}': {array} {shape} is too large, expected at most {LARGEST_ARRAY // 8} elements")
        write_case(operation, options.dtype, os.path.join(options.out, name), case, int(options.seed))


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
