#!/usr/bin/env bats
# The reference: its bounds hold for any order of summation, and are tight enough to catch a real mistake.

load test_helper/common

setup() { export PYTHONPATH=$ROOT/reference; }

@test "reference: golden files are the same for the same seed and differ for another" {
    local name
    for name in a:1 b:1 c:2; do
        run -0 "$PYTHON" reference/golden.py matmul --types bf16 --out "$BATS_TEST_TMPDIR/${name%:*}" --shape m=9,n=5,k=16 --seed "${name#*:}"
    done
    diff -r "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
    run -1 diff -rq "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/c"
}

@test "reference: the fp32 bound holds for three orders of summation, and is within 300 times of what they err" {
    run -0 python 'import matmul
rng = np.random.default_rng(3)
A, B = (rng.standard_normal((40, 501)).astype(np.float32) for _ in "AB")
C, tolerance = matmul.Matmul().outputs({"A": A, "B": B}, "f32")["C"]
P = A[:, None, :] * B[None, :, :]
forward = np.zeros((40, 40), np.float32); backward = forward.copy()
for k in range(501): forward += P[..., k]; backward += P[..., 500 - k]
for out in forward, backward, P.sum(-1, dtype=np.float32):
    assert np.all(np.abs(out - C) <= tolerance)
assert (np.abs(forward - C) / tolerance).max() * 300 > 1'
}

@test "reference: leaving out one k, or taking one twice, is outside the fp32 bound for 97 of 100 elements" {
    run -0 python 'import matmul
rng = np.random.default_rng(4)
A, B = (rng.standard_normal((50, 301)).astype(np.float32) for _ in "AB")
C, tolerance = matmul.Matmul().outputs({"A": A, "B": B}, "f32")["C"]
for off in -1, 1:
    wrong = C + off * np.outer(A[:, -1], B[:, -1])
    caught = np.mean(np.abs(wrong - C) > tolerance); print(caught); assert caught > 0.97'
}

@test "reference: leaving out one k is outside the bf16 bound for most elements" {
    run -0 python 'import matmul, ml_dtypes
rng = np.random.default_rng(4)
A, B = (rng.standard_normal((50, 256)).astype(ml_dtypes.bfloat16) for _ in "AB")
C, tolerance = matmul.Matmul().outputs({"A": A, "B": B}, "bf16")["C"]
wrong = C - np.outer(A[:, -1].astype(float), B[:, -1].astype(float))
caught = np.mean(np.abs(wrong - C) > tolerance); print(caught); assert caught > 0.75'
}

@test "reference: the correctly rounded bf16 result is within the bound, one unit in the last place more is not" {
    run -0 python 'import matmul, ml_dtypes
rng = np.random.default_rng(5)
A, B = (rng.standard_normal((60, 64)).astype(ml_dtypes.bfloat16) for _ in "AB")
C, tolerance = matmul.Matmul().outputs({"A": A, "B": B}, "bf16")["C"]
right = C.astype(ml_dtypes.bfloat16)
assert np.all(np.abs(right.astype(float) - C) <= tolerance)
bits = right.view(np.uint16)
for off in 1, 2:
    wrong = (bits + off).astype(np.uint16).view(ml_dtypes.bfloat16).astype(float)
    caught = np.mean(np.abs(wrong - C) > tolerance); print(off, caught); assert caught > (0.9, 0.99)[off - 1]'
}

@test "reference: for Hopper's matmul, C rounded to bf16 or f16 is within the bound, and two units off is outside it" {
    run -0 python 'import matmul_16bit, ml_dtypes
rng = np.random.default_rng(7)
for dtype, t in ("bf16", ml_dtypes.bfloat16), ("f16", np.float16):
    A, B = (rng.standard_normal((60, 64)).astype(t) for _ in "AB")
    bias = rng.standard_normal(60).astype(t)
    C, tolerance = matmul_16bit.Matmul16Bit(f32_out=False).outputs({"A": A, "B": B, "bias": bias}, dtype)["C"]
    np.testing.assert_allclose(C, A.astype(float) @ B.astype(float).T + bias.astype(float), rtol=1e-12, atol=1e-13)
    right = C.astype(t)
    assert np.all(np.abs(right.astype(float) - C) <= tolerance)
    for off in 1, 2:
        wrong = (right.view(np.uint16) + off).astype(np.uint16).view(t).astype(float)
        caught = np.mean(np.abs(wrong - C) > tolerance); print(dtype, off, caught); assert caught > (0.8, 0.97)[off - 1]'
}

@test "reference: for Hopper's matmul with C in fp32, one k left out is outside the bound for 9 of 10 elements" {
    run -0 python 'import matmul_16bit, ml_dtypes
rng = np.random.default_rng(8)
for dtype, t in ("bf16", ml_dtypes.bfloat16), ("f16", np.float16):
    A, B = (rng.standard_normal((50, 256)).astype(t) for _ in "AB")
    C, tolerance = matmul_16bit.Matmul16Bit(f32_out=True).outputs({"A": A, "B": B}, dtype)["C"]
    assert np.all(np.abs(C.astype(np.float32) - C) <= tolerance)
    wrong = C - np.outer(A[:, -1].astype(float), B[:, -1].astype(float))
    caught = np.mean(np.abs(wrong - C) > tolerance); print(dtype, caught); assert caught > 0.9'
}

@test "reference: the tensor-core bound covers the accumulation measured on an H200, and Ampere's" {
    run -0 python 'import matmul, bounds, ml_dtypes
def fused(addends, F):
    "aligned to the largest, truncated to F bits below it, summed exactly, truncated to 23 fraction bits"
    largest = np.frexp(np.abs(addends).max(0))[1] - 1
    s = np.ldexp(np.trunc(np.ldexp(addends, F - largest)), largest - F).sum(0)
    e = np.frexp(s)[1] - 1
    return np.where(s == 0, 0, np.ldexp(np.trunc(np.ldexp(s, 23 - e)), e - 23))
rng = np.random.default_rng(6)
for scale in 1, 100:
    A, B = (rng.standard_normal((24, 512)).astype(ml_dtypes.bfloat16).astype(float) for _ in "AB")
    A[:, 7] *= scale
    P = A[:, None, :] * B[None, :, :]
    for length, F in (16, 25), (8, 24):
        acc = np.zeros((24, 24))
        for k in range(0, 512, length): acc = fused(np.concatenate([acc[None], np.moveaxis(P[..., k:k + length], -1, 0)]), F)
        error = np.abs(acc - A @ B.T); bound = bounds.tensor_core_sum_of_products(512, np.abs(P).sum(-1))
        print(scale, length, (error / bound).max()); assert np.all(error <= bound)'
}

@test "reference: your own inputs get their outputs and tolerances" {
    local dir=$BATS_TEST_TMPDIR/mine
    mkdir "$dir"
    python 'd = sys.argv[1]; np.save(d + "/A.npy", np.eye(3, 4, dtype=np.float32)); np.save(d + "/B.npy", np.arange(8, dtype=np.float32).reshape(2, 4))' "$dir"
    run -0 "$PYTHON" reference/golden.py matmul --types f32 --inputs "$dir"
    run -0 python 'print(np.load(sys.argv[1] + "/C.npy").tolist())' "$dir"
    assert_output "[[0.0, 4.0], [1.0, 5.0], [2.0, 6.0]]"
    run -0 "$SIMGPU" "$(chapter 01_naive_matmul)" --golden "$dir"
}

@test "reference: the gradients of attention are what central finite differences say, and tile by tile the same" {
    run -0 python 'import attention, attention_backward as backward, attention_variants as variants
rng = np.random.default_rng(9)
# Full, causal, the same with queries that see no key, a window, softcap.
for q, k, left, right, softcap in (7, 9, 99, 99, 0), (7, 9, 99, 0, 0), (9, 5, 99, 0, 0), (7, 9, 3, 1, 0), (7, 9, 99, 0, 0.8):
    Q, K, V, dO = (rng.standard_normal((2, 1, heads, rows, 8)) for heads, rows in ((3, q), (1, k), (1, k), (3, q)))
    visible = variants.seen(q, k, left, right)
    assert left < 99 or (visible == attention.seen(q, k, right == 0)).all()
    O, LSE = backward.forward(Q, K, V, visible, softcap)
    gradients = backward.direct(Q, K, V, dO, visible, softcap)
    for expected, tiles in zip(gradients, backward.tile_by_tile(Q, K, V, O, dO, LSE, visible, 4, 3, softcap=softcap)):
        np.testing.assert_allclose(tiles, expected, rtol=1e-11, atol=1e-13)
    for array, gradient in zip((Q, K, V), gradients):
        difference, h = np.zeros_like(array), 1e-5
        for i in np.ndindex(array.shape):
            x, sums = array[i], []
            for moved in x + h, x - h:
                array[i] = moved
                sums.append((backward.forward(Q, K, V, visible, softcap)[0] * dO).sum())
            array[i] = x
            difference[i] = (sums[0] - sums[1]) / (2 * h)
        assert np.abs(difference - gradient).max() < 1e-8, (q, k, left, right, softcap) # h^2 and 1e-16 / h are below that'
}

@test "reference: a packed batch of sequences has the gradients of each alone" {
    run -0 python 'import attention_backward as backward, dtypes
varlen, window = (backward.OPERATIONS[name] for name in ("varlen", "window"))
case = dict(varlen.lengths((30, 0, 50), (40, 20, 50), 64, h=2, left=20, right=3), dtype="bf16")
arrays = {name: array if name in varlen.OWN_TYPE else dtypes.rounded(array, "bf16") for name, array in varlen.inputs(np.random.default_rng(2), case).items()}
packed = varlen.outputs(arrays, "bf16")
for q, k in ((slice(0, 30), slice(0, 40)), (slice(30, 80), slice(60, 110))):
    alone = {name: arrays[name][None, q] for name in ("Q", "O", "dO")} | {name: arrays[name][None, k] for name in "KV"}
    alone |= {"LSE": arrays["LSE"][None, :, q]} | {name: arrays[name] for name in ("left", "right")}
    for name, rows in (("dQ", q), ("dK", k), ("dV", k)):
        for whole, part in zip(packed[name], window.outputs(alone, "bf16")[name]): np.testing.assert_array_equal(whole[rows], part[0])
assert all((packed[name][i][40:60] == 0).all() for name in ("dK", "dV") for i in (0, 1)) # keys without queries'
}

@test "reference: gradients without dPsum, without the scale or with one key too many are outside the tolerance, twice as many tiles are not" {
    run -0 python 'import attention, attention_backward as backward, dtypes
operation = backward.OPERATIONS["attention"]
for dtype in "bf16", "f16":
    case = dict(b=1, q=70, k=90, h=2, g=1, d=64, causal=True, dtype=dtype)
    arrays = {name: array if name in operation.OWN_TYPE else dtypes.rounded(array, dtype) for name, array in operation.inputs(np.random.default_rng(10), case).items()}
    results = operation.outputs(arrays, dtype)
    Q, K, V, O, dO, LSE = backward.by_group(arrays)
    causal = attention.seen(70, 90, True)
    def outside(computed):
        "the share of elements that are too far off, of dQ, dK and dV"
        laid_out = (array.reshape(1, -1, *array.shape[-2:]).swapaxes(1, 2) for array in computed)
        return [np.mean(~(np.abs(array - expected) <= tolerance)) for array, (expected, tolerance) in zip(laid_out, results.values())]
    tiles = dict(float_type=np.float32, dtype=dtype)
    assert outside(backward.tile_by_tile(Q, K, V, O, dO, LSE, causal, 32, 32, **tiles)) == [0, 0, 0]
    without_dPsum = outside(backward.tile_by_tile(Q, K, V, 0 * O, dO, LSE, causal, **tiles))
    without_scale = outside([8 * array for array in backward.tile_by_tile(Q, K, V, O, dO, LSE, causal, **tiles)][:2])
    more_keys = outside(backward.tile_by_tile(Q, K, V, O, dO, LSE, np.ones_like(causal), **tiles))
    print(dtype, without_dPsum, without_scale, more_keys)
    assert min(without_dPsum[:2]) > 0.5 and min(without_scale) > 0.9 and min(more_keys) > 0.5'
}

@test "reference: random shapes too large for memory are drawn again, and a process that is killed is said" {
    export PYTHONPATH=$PYTHONPATH:$BATS_TEST_TMPDIR
    cat >"$BATS_TEST_TMPDIR/made_up.py" <<'PYTHON'
import os, signal


class Operation:
    DIMS = ("n",)

    def cases(self, dtype):
        return {"large": {"n": 1 << 26}}

    def check_shape(self, dims, dtype):
        if dtype == "f16":
            os.kill(os.getpid(), signal.SIGKILL)

    def shapes(self, dims):
        return {"x": (1 << 25, dims["n"])}


OPERATIONS = {"op": Operation()}
PYTHON
    run -1 "$PYTHON" tests/random_shapes.py made_up op f32 1 1 "$BATS_TEST_TMPDIR/out"
    assert_line --regexp '^made_up op: no shape found in 100000; of the last .*: [0-9,]+ numbers are more than 16,777,216$'
    run -1 "$PYTHON" tests/random_shapes.py made_up op f16 1 1 "$BATS_TEST_TMPDIR/out"
    assert_line "random_shapes.py: a process was killed, for memory perhaps: OUT is not complete"
}
