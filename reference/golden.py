#!/usr/bin/env python3
"""Writes golden files: folders of .npy inputs, expected outputs (float64) and tolerances, as the chapters read them.

    golden.py MODULE --types f32 --out DIR                                   the chapter's own cases
    golden.py MODULE --types bf16,f16 --out DIR --shape m=333,n=77,k=129     cases of one shape
    golden.py MODULE --types bf16 --inputs DIR                               outputs and tolerances for your own inputs

A module of reference/ has OPERATIONS, name -> operation. An operation has DIMS, the names of its dimensions; INPUTS, those of
its inputs, of which OPTIONAL may be left out and OWN_TYPE are stored as they are, while the others are of the case's type, or of
the one that FIXED, if there is such a dict, has for their name; STORED, if there is such, the outputs that are numbers of the case's type
and stored in it, by which a case is known that has no input of that type;
cases(dtype) and of_shape(dims), name -> case, a dict with the dimensions and what is special; check_shape(dims, dtype), None
or what the dimensions would have to be; shapes(case), name of a large array -> shape; inputs(rng, case), name -> array, in
float64 if it is of the case's type, which is case["dtype"]; outputs(inputs, dtype), name -> (expected, tolerance).

The cases of several operations are written into a folder for each; --op chooses one, whose cases come without that folder. The
cases of each type but the first have names that end in it: ragged, ragged_bf16.
"""

import argparse
import importlib
import os
import shutil
import sys
import zlib

# One thread, whatever the machine: the last bits are the same then, and with a second one, which spins while it waits for matrices as small
# as these, a case takes up to ten times as long. NumPy reads it when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dtypes
import numpy as np

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


def write_outputs(folder, operation, dtype, results):
    for name, (expected, tolerance) in results.items():
        suffix = ".npy"
        if name in getattr(operation, "STORED", ()):
            expected, suffix = dtypes.encode(expected, dtype), dtypes.TYPES[dtype][1]
        np.save(os.path.join(folder, name + suffix), np.asarray(expected, order="C"))
        np.save(os.path.join(folder, f"{name}.tol.npy"), np.asarray(tolerance, order="C"))


def file_type(operation, name, dtype):
    """The type of an input's file that is not stored as it is."""
    return getattr(operation, "FIXED", {}).get(name, dtype)


def write_case(operation, dtype, folder, case, seed):
    """Makes one case in `folder`, which appears complete or not at all."""
    rng = np.random.default_rng([seed, zlib.crc32(os.path.basename(folder).encode())])
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    arrays = operation.inputs(rng, dict(case, dtype=dtype))
    for name, array in arrays.items():
        suffix = ".npy"
        if name not in operation.OWN_TYPE:
            stored = file_type(operation, name, dtype)
            array, suffix = dtypes.encode(array, stored), dtypes.TYPES[stored][1]
            arrays[name] = dtypes.decode(array, stored)
        np.save(os.path.join(partial, name + suffix), array)
    write_outputs(partial, operation, dtype, operation.outputs(arrays, dtype))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)


def load(path):
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error


def find_type(operation, types, folder):
    """The type that the user's own inputs are of: that of the first file that is not of a type of its own."""
    name = next(name for name in operation.INPUTS if name not in operation.OWN_TYPE + operation.OPTIONAL)
    for dtype in types:
        stored, suffix, *_ = dtypes.TYPES[dtype]
        path = os.path.join(folder, name + suffix)
        if os.path.exists(path) and load(path).dtype == stored:
            return dtype
    return types[0]


def read_inputs(operation, dtype, folder):
    """The user's own inputs, of this type; the chapter's program checks their shapes against each other."""
    arrays = {}
    for name in operation.INPUTS:
        kind = file_type(operation, name, dtype)
        stored, suffix, *_ = dtypes.TYPES[kind]
        own_type = name in operation.OWN_TYPE
        path = os.path.join(folder, name + (".npy" if own_type else suffix))
        if name in operation.OPTIONAL and not os.path.exists(path):
            continue
        array = load(path)
        if not own_type and array.dtype != stored:
            raise BadInput(f"{path}: dtype {array.dtype}, expected {np.dtype(stored)}")
        arrays[name] = array if own_type else dtypes.decode(array, kind)
    return arrays


def write_cases(operation, types, folder, options):
    """The cases of every type: the operation's own, or those of the shape that the options ask for."""
    dims = parse_shape(options.shape, operation.DIMS) if options.shape else None
    for dtype in types:
        needed = operation.check_shape(dims, dtype) if dims else None
        if needed:
            raise BadInput(f"SHAPE '{options.shape}': {needed}")
        for name, case in (operation.of_shape(dims) if dims else operation.cases(dtype)).items():
            for array, shape in operation.shapes(case).items():
                if np.prod(shape, dtype=object) * 8 > LARGEST_ARRAY:
                    raise BadInput(f"SHAPE '{options.shape}': {array} {shape} is too large, expected at most {LARGEST_ARRAY // 8} elements")
            name = name if dtype == types[0] else f"{name}_{dtype}"
            write_case(operation, dtype, os.path.join(folder, name), case, int(options.seed))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="a module of reference/: matmul, matmul_16bit, softmax, attention")
    parser.add_argument("--types", required=True, help="types of the cases, such as bf16,f16")
    parser.add_argument("--op", help="one of the module's operations")
    parser.add_argument("--out", help="folder to write the cases into")
    parser.add_argument("--inputs", help="folder of one case that has inputs only")
    parser.add_argument("--shape", help="sizes, such as m=333,n=77,k=129")
    parser.add_argument("--seed", default="1", help="whole number (1)")
    options = parser.parse_args(arguments)
    operations = importlib.import_module(options.module).OPERATIONS
    types = options.types.split(",")
    for dtype in types:
        if dtype not in dtypes.TYPES:
            raise BadInput(f"--types '{options.types}': found '{dtype}', expected some of {', '.join(dtypes.TYPES)}")
    if not (options.seed.isascii() and options.seed.isdigit()):
        raise BadInput(f"SEED '{options.seed}': expected a whole number of at least 0")
    if options.op and options.op not in operations:
        raise BadInput(f"OP '{options.op}': expected one of {', '.join(operations)}")
    if not options.op and (options.shape or options.inputs) and len(operations) > 1:
        raise BadInput(f"OP is missing: expected one of {', '.join(operations)}")
    if not options.out and not options.inputs:
        raise BadInput("golden.py: --out or --inputs is missing")
    chosen = {options.op: operations[options.op]} if options.op else operations
    for name, operation in chosen.items():
        if options.inputs:
            dtype = find_type(operation, types, options.inputs)
            arrays = read_inputs(operation, dtype, options.inputs)
            try:
                write_outputs(options.inputs, operation, dtype, operation.outputs(arrays, dtype))
            except ValueError as error:
                raise BadInput(f"{options.inputs}: {error}") from error
        else:
            write_cases(operation, types, os.path.join(options.out, name) if len(chosen) > 1 else options.out, options)


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
