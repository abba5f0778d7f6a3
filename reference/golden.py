#!/usr/bin/env python3
"""Writes golden files: folders of .npy inputs, expected outputs (float64) and tolerances, as the chapters read them.

    golden.py OPERATION --dtype f32 --out DIR                               the chapter's own cases
    golden.py OPERATION --dtype f32 --out DIR --shape m=333,n=77,k=129      cases of one shape
    golden.py OPERATION --dtype f32 --inputs DIR                            outputs and tolerances for your own inputs

A module may define several operations in OPERATIONS, name -> (operation, dtype): then --op chooses one instead of --dtype,
and without it the cases of each are written into a folder of its name.
"""

import argparse
import importlib
import os
import shutil
import sys
import zlib

import ml_dtypes
import numpy as np

# What NumPy cannot store is stored as its bits, and the file's name says so (common/harness/npy.h has the same table).
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


def write_case(operation, dtype, folder, case, seed):
    """Makes one case in `folder`, which appears complete or not at all. A case may have a dtype of its own."""
    dtype = case.get("dtype", dtype)
    number_type, stored_type, number_suffix = STORED[dtype]
    rng = np.random.default_rng([seed, zlib.crc32(os.path.basename(folder).encode())])
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    # float64 stands for the operation's type; anything else (indices, parameters) is stored as it is.
    arrays = operation.inputs(rng, case)
    for name, array in arrays.items():
        suffix = ".npy"
        if array.dtype == np.float64:
            array = arrays[name] = array.astype(number_type)
            array, suffix = array.view(stored_type), number_suffix
        np.save(os.path.join(partial, name + suffix), array)
    write_outputs(partial, operation.outputs(arrays, dtype))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)


def read_inputs(operation, dtype, folder):
    """The user's own inputs; the chapter's program checks their shapes against each other."""
    number_type, stored_type, suffix = STORED[dtype]
    arrays = {}
    for name in operation.INPUTS:
        own_type = name in getattr(operation, "OWN_TYPE", ())
        path = os.path.join(folder, name + (".npy" if own_type else suffix))
        if name in operation.OPTIONAL and not os.path.exists(path):
            continue
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: {error}") from error
        if not own_type and array.dtype != stored_type:
            raise BadInput(f"{path}: dtype {array.dtype}, expected {np.dtype(stored_type)}")
        arrays[name] = array if own_type else array.view(number_type)
    return arrays


def write_cases(operation, dtype, folder, cases, options):
    for name, case in cases.items():
        for array, shape in operation.shapes(case).items():
            if np.prod(shape, dtype=object) * 8 > LARGEST_ARRAY:
                raise BadInput(f"SHAPE '{options.shape}': {array} {shape} is too large, expected at most {LARGEST_ARRAY // 8} elements")
        write_case(operation, dtype, os.path.join(folder, name), case, int(options.seed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", help="a module of reference/: matmul, softmax, attention")
    parser.add_argument("--dtype", choices=STORED)
    parser.add_argument("--op", help="one of the module's operations")
    parser.add_argument("--out", help="folder to write the cases into")
    parser.add_argument("--inputs", help="folder of one case that has inputs only")
    parser.add_argument("--shape", help="sizes, such as m=333,n=77,k=129")
    parser.add_argument("--seed", default="1", help="whole number (1)")
    options = parser.parse_args()
    module = importlib.import_module(options.operation)
    if not (options.seed.isascii() and options.seed.isdigit()):
        raise BadInput(f"SEED '{options.seed}': expected a whole number of at least 0")
    several = getattr(module, "OPERATIONS", None)
    if several is None:
        if not options.dtype:
            raise BadInput("golden.py: --dtype is missing")
        operation, dtype = module, options.dtype
    elif options.op:
        if options.op not in several:
            raise BadInput(f"OP '{options.op}': expected one of {', '.join(several)}")
        operation, dtype = several[options.op]
    elif options.shape or options.inputs:
        raise BadInput(f"OP is missing: expected one of {', '.join(several)}")
    if options.inputs:
        try:
            write_outputs(options.inputs, operation.outputs(read_inputs(operation, dtype, options.inputs), dtype))
        except ValueError as error:
            raise BadInput(f"{options.inputs}: {error}") from error
        return
    if not options.out:
        raise BadInput("golden.py: --out or --inputs is missing")
    if several is not None and not options.op:
        for name, (operation, dtype) in several.items():
            write_cases(operation, dtype, os.path.join(options.out, name), operation.cases(dtype), options)
    elif options.shape:
        dims = parse_shape(options.shape, operation.DIMS)
        needed = operation.check_shape(dims, dtype)
        if needed:
            raise BadInput(f"SHAPE '{options.shape}': {needed}")
        write_cases(operation, dtype, options.out, operation.of_shape(dims), options)
    else:
        write_cases(operation, dtype, options.out, operation.cases(dtype), options)


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
