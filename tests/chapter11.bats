#!/usr/bin/env bats
# Chapter 11: GPT-2's training step follows NumPy's, gives the same bits every time, and fails when it is broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=11_gpt2_training

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 11: losses, gradient norms and parameters of every step follow NumPy's training, with each attention" {
    all_right 3
}

@test "chapter 11: the order of warps and blocks does not matter" {
    any_order one_token ragged_bf16
}

@test "chapter 11: a shape of the user's own is right, with attention by chapter 12 too" {
    run -0 make chapter-11 DEVICE=sim PROFILE=0 TYPE=bf16 STEP=fused SHAPE=steps=2,b=1,t=33,l=1,h=2,c=128,v=19,attention=12
    assert_line "$CHAPTER: all 1 runs right"
    run -2 make --no-print-directory chapter-11 DEVICE=sim SHAPE=steps=1,b=1,t=8,l=1,h=3,c=32,v=9,attention=9
    assert_line --partial "c must be a multiple of 8 and of h"
}

@test "chapter 11: fused or recorded, whatever the order of blocks and the number of SMs, the parameters are the same to the bit" {
    local seed
    for seed in 1 2 3; do
        run -0 "$SIMGPU" --seed $seed --sms $((seed * 40)) "$(chapter $CHAPTER)" --case ragged_bf16 --out "$BATS_TEST_TMPDIR/$seed"
        run -0 diff -r "$BATS_TEST_TMPDIR/1" "$BATS_TEST_TMPDIR/$seed"
        run -0 diff -r "$BATS_TEST_TMPDIR/$seed/fused" "$BATS_TEST_TMPDIR/$seed/recorded"
    done
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "chapter 11: the reference's gradients are what central finite differences say" {
    run -0 python 'import gpt2
case = dict(steps=1, b=2, t=5, l=2, h=2, c=8, v=7, attention=9, dtype="f32")
arrays = gpt2.Gpt2().inputs(np.random.default_rng(1), case)
p = gpt2.split(arrays["weights"], case)
tokens, targets = arrays["inputs"][0], arrays["targets"][0]
loss, kept = gpt2.forward(p, tokens, targets, 2, 7)
grad = gpt2.backward(p, tokens, targets, kept, 2)
rng, h = np.random.default_rng(2), 1e-6
for name, array in p.items():
    for i in rng.permutation(array.size)[:25]:
        x, sums = array.flat[i], []
        for moved in x + h, x - h:
            array.flat[i] = moved
            sums.append(gpt2.forward(p, tokens, targets, 2, 7)[0])
        array.flat[i] = x
        assert abs((sums[0] - sums[1]) / (2 * h) - grad[name].flat[i]) < 3e-9, (name, i) # h^2, and 1e-16 / h, are below that'
}

@test "chapter 11: a training in fp32 is within the tolerances, one with a slope off by 0.01 %, another epsilon, less decay or a row left out is not" {
    run -0 python 'import gpt2
operation = gpt2.Gpt2()
case = operation.cases("f32")["ragged"] | {"dtype": "f32"}
arrays = operation.inputs(np.random.default_rng(3), case)
results = operation.outputs(arrays, "f32")
def outside(*moved):
    return [bool((abs(m - expected) > tolerance).any()) for m, (expected, tolerance) in zip(moved, results.values())]
def trained():
    losses, norms, parameters = gpt2.train(arrays, "f32")
    return outside(losses, norms, gpt2.join(parameters))
assert trained() == [False] * 3
class Single(gpt2.Exact):
    def stored(self, x): return x.astype(np.float32).astype(float)
    few = fp32 = rounded = stored
    def product(self, A, B): return (A.astype(np.float32) @ B.astype(np.float32)).astype(float)
losses, norms, parameters = gpt2.train(arrays, "f32", Single())
assert outside(losses, norms, gpt2.join(parameters)) == [False] * 3
def broken(name, new):
    old = getattr(gpt2, name); setattr(gpt2, name, new); now = trained(); setattr(gpt2, name, old); return now
slope = gpt2.gelu_slope
assert broken("gelu_slope", lambda x: slope(x) * 1.0001)[1:] == [True] * 2
assert broken("EPSILON", 2e-5) == [True] * 3
assert broken("DECAYED", gpt2.DECAYED[1:])[2]
assert broken("sum_of_rows", lambda x, a: x.reshape(-1, x.shape[-1])[:-1].sum(0))[1:] == [True] * 2'
}

@test "chapter 11: a parameter may go where AdamW takes it for any gradient within the error, and nowhere else" {
    run -0 python 'import gpt2
arrays = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}
g, off = np.array([[1e-3, 1e-3, 1e-5, 0], [2e-3, -1e-3, 3e-3, 0]]), np.array([[1e-5, 2e-3, 1e-4, 0], [1e-5, 1e-5, 1e-5, 0]])
(first, low, high), (second, low2, high2) = gpt2.directions(arrays, g, off)
assert (abs(first - [1, 1, 0.999, 0]) < 1e-4).all(), first
assert 0.97 < low[0] <= high[0] <= 1                  # sure of its sign: nearly fixed
assert (low[1:3] == -1).all() and (high[1:3] == 1).all() # of either sign
assert low[3] == high[3] == low2[3] == high2[3] == 0  # no gradient, no step
rng = np.random.default_rng(1)
for draw in range(1000): # whatever the gradients are, as long as they are within
    moved = g + off * rng.choice([-1, 1, rng.uniform(-1, 1)], g.shape)
    for (d, _, _), (a, b) in zip(gpt2.directions(arrays, moved, 0 * off), ((low, high), (low2, high2))):
        assert (a - 1e-12 <= d).all() and (d <= b + 1e-12).all(), (a, d, b)'
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 11: launches and sectors are what note 11 says, fewer in step 2" {
    local step row
    for step in "1 layer_by_layer" "2 fused"; do
        counters "$BATS_TEST_TMPDIR/json" $CHAPTER "${step#* }" tiny_bf16
        row=$(plain_python 'import json, sys
kernels = json.load(open(sys.argv[1]))
launches = sum(k["launches"] for k in kernels)
sectors = sum(line["global_sectors"] for k in kernels for line in k["lines"])
print(f"| {launches:,} | {sectors:,} |")' "$BATS_TEST_TMPDIR/json")
        grep -qF "| $step $row" notes/$CHAPTER.md || fail "note 11 does not say: | $step $row"
    done
}

# --- Broken steps ---------------------------------------------------------------------------------------------------

@test "chapter 11: without the gradient that comes back through the branches all before the last layer is wrong" {
    edited $CHAPTER step2_fused.cu 's/activation\(m, D_RESIDUAL, 0\), gradient/activation(m, D_NORM, 0), gradient/'
    wrong $CHAPTER fused ragged
    noted $CHAPTER 'loss[1]: got 3.6996…, expected 3.67773651, tolerance 2.85e-06; 2 of 3 elements are wrong'
}

@test "chapter 11: a weight decay that takes hold of biases too is wrong" {
    edited $CHAPTER step2_fused.cu 's/m->parameters, 0, stream/m->parameters, c.weight_decay, stream/'
    wrong $CHAPTER fused ragged
    noted $CHAPTER 'loss[1]: got 3.67766237, expected 3.67773651, tolerance 2.85e-06; 2 of 3 elements are wrong'
}

@test "chapter 11: gradients that are not put to 0 are those of the step before too" {
    edited $CHAPTER step2_fused.cu '/zero_gradients\(m, m->decayed/d'
    wrong $CHAPTER fused ragged
}
