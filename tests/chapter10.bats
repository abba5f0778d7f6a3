#!/usr/bin/env bats
# Chapter 10: AdamW, parameters in bf16, the gradient's norm and the scale of the loss are right, skip what has overflowed, wait for no
# host, and fail when they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=10_adamw_mixed_precision

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 10: every step is right on every case of every operation" {
    all_right 2 adamw
    all_right 1 adamw_master
    all_right 1 adamw_stochastic
    all_right 3 grad_norm
    all_right 1 scaled_norm
    all_right 1 mixed_update
    all_right 1 update
}

@test "chapter 10: the order of warps and blocks does not matter" {
    any_order {below_four,blocks}{,_bf16}
}

@test "chapter 10: shapes of the user's own are right: one element, what no block divides, blocks that come around" {
    local op
    for op in adamw_master adamw_stochastic mixed_update; do
        run -0 make chapter-10 DEVICE=sim PROFILE=0 OP=$op SHAPE=n=4098 SEED=3
    done
    for shape in n=1 n=3250005; do
        run -0 make chapter-10 DEVICE=sim PROFILE=0 OP=grad_norm TYPE=f32 SHAPE=$shape
        assert_line "$CHAPTER: all 3 runs right"
    done
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "chapter 10: the reference is AdamW as PyTorch's documentation has it, and its first step is lr, whatever the gradient" {
    run -0 python 'import adamw
rng = np.random.default_rng(10)
p, m, v = rng.standard_normal(50), np.zeros(50), np.zeros(50)
ours, a = (p, m, v), {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
for t in range(1, 30):
    g = rng.standard_normal(50)
    p = p - 0.01 * 0.1 * p
    m = m + (g - m) * 0.1; v = 0.99 * v + 0.01 * g * g
    p = p - 0.01 / (1 - 0.9**t) * m / (np.sqrt(v) / np.sqrt(1 - 0.99**t) + 1e-6)
    before = ours[0]
    ours = [x for x, _ in adamw.adamw(ours[0], g, 0.0, ours[1], ours[2], a, adamw.correction(0.9, t), adamw.correction(0.99, t))]
    if t == 1: np.testing.assert_allclose(ours[0], before * (1 - 0.001) - 0.01 * np.sign(g), rtol=1e-4)
    for x, y in zip(ours, (p, m, v)): np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)'
}

@test "chapter 10: the bounds hold for fp32 in NumPy, and catch a step counted twice and a decay of the gradient" {
    run -0 python 'import adamw
f = np.float32; rng = np.random.default_rng(11)
a = {"lr": f(3e-4), "beta1": f(0.9), "beta2": f(0.95), "epsilon": f(1e-8), "weight_decay": f(0.1)}
p, g, m, v = rng.standard_normal((4, 5000)).astype(f); v = v * v
(after, tolerance), (m_after, m_tolerance), (v_after, v_tolerance) = adamw.adamw(*(x.astype(float) for x in (p, g)), 0.0, m.astype(float), v.astype(float), a, adamw.correction(a["beta1"], 3), adamw.correction(a["beta2"], 3))
def step(t, decay=True):
    h = g if decay else g + a["weight_decay"] * p
    m1 = a["beta1"] * m + (f(1) - a["beta1"]) * h; v1 = a["beta2"] * v + (f(1) - a["beta2"]) * (h * h)
    d = m1 * f(adamw.correction(a["beta1"], t)) / (np.sqrt(v1 * f(adamw.correction(a["beta2"], t))) + a["epsilon"])
    return p - a["lr"] * (d + a["weight_decay"] * p if decay else d), m1, v1
for x, y, tol in zip(step(3), (after, m_after, v_after), (tolerance, m_tolerance, v_tolerance)): assert np.all(np.abs(x - y) <= tol)
for wrong in step(4)[0], step(3, False)[0]: assert np.mean(np.abs(wrong - after) > tolerance) > 0.9, np.mean(np.abs(wrong - after) > tolerance)'
}

@test "chapter 10: the norm's bound catches one element of fifty thousand that is missing" {
    run -0 python 'import adamw
grad = np.random.default_rng(12).standard_normal(50003).astype(np.float32)
norm, error = adamw.root_of(*adamw.norm_of(grad), grad.size)
assert abs(np.linalg.norm(grad) - norm) <= error
missing = np.sqrt(norm**2 - grad.astype(float)**2); caught = np.mean(norm - missing > error); print(caught); assert caught > 0.65'
}

# --- Rounding by chance ---------------------------------------------------------------------------------------------

@test "chapter 10: the random bits are uniform, and independent of their neighbours and of the next step's" {
    run -0 python 'import adamw
n = 1 << 18
for seed in range(8):
    r = adamw.random_bits(seed, 1, n)
    for byte in r >> 8, r & 255:
        z = ((np.bincount(byte, minlength=256) - n / 256)**2 / (n / 256)).sum(); assert abs(z - 255) < 4.5 * np.sqrt(510), z
    for other in np.roll(r, 1), np.roll(r, 4), adamw.random_bits(seed, 2, n), adamw.random_bits(seed + 1, 1, n):
        assert abs(np.corrcoef(r, other)[0, 1]) < 4.5 / np.sqrt(n)'
}

@test "chapter 10: of parameters that step a thirty-second of what bf16 has between numbers, that many move" {
    local dir=$BATS_TEST_TMPDIR/steps
    mkdir "$dir"
    python 'import adamw, dtypes
d, n = sys.argv[1], 65536
one = np.ones(n, np.float32)
arrays = {name: np.zeros(n, np.float32) for name in "mv"} | {"grad": -one}
arrays |= {name: np.array(value, np.float32) for name, value in dict(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0, lr=2**-12).items()}
arrays |= {"t": np.array(1, np.int32), "seed": np.array(5, np.int32)}
for name, array in arrays.items(): np.save(f"{d}/{name}.npy", array)
np.save(d + "/param.bf16.npy", dtypes.encode(one, "bf16"))' "$dir"
    run -0 "$PYTHON" reference/golden.py adamw --types f32,bf16 --op adamw_stochastic --inputs "$dir"
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op adamw_stochastic --golden "$dir" --out "$dir/out"
    run -0 python 'import dtypes
param = dtypes.decode(np.load(sys.argv[1]), "bf16")
moved = param[param != 1]
assert np.all(moved == 1 + 2**-7)
p, n = 1 / 32, param.size
assert abs(moved.size - p * n) < 4.5 * np.sqrt(n * p * (1 - p)), moved.size' "$dir/out/adamw_stochastic/./param.bf16.npy"
}

@test "chapter 10: a thousand small steps: what note 10 says becomes of a parameter in bf16" {
    run -0 python 'import adamw, dtypes
n, lr = 4096, np.float32(3e-4)
master = np.ones(n, np.float32); nearest, chance = master.copy(), master.copy()
for t in range(1, 1001):
    master -= lr
    nearest = dtypes.rounded(nearest - lr, "bf16")
    chance = adamw.round_by_chance(chance - lr, adamw.random_bits(7, t, n))
print(f"| {nearest.mean():.4f} | {master.mean():.4f} | {chance.mean():.4f} ± {chance.std():.4f} |")'
    grep -qF "$output" notes/$CHAPTER.md || fail "note 10 does not say $output"
}

# --- NaN, infinity, overflow ----------------------------------------------------------------------------------------

@test "chapter 10: a NaN in a gradient spoils its own parameter and no other" {
    local op step
    for step in adamw:adamw adamw:adamw_fours adamw_master:adamw_master adamw_stochastic:adamw_stochastic; do
        IFS=: read -r op step <<<"$step"
        one_case "$CHAPTER/$op" ragged
        python 'd = sys.argv[1]; a = np.load(d + "/grad.npy"); a[[7, 1020]] = np.nan; np.save(d + "/grad.npy", a)' "$CASE_DIR"
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op "$op" --step "$step" --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'import dtypes, glob
for file in glob.glob(sys.argv[1] + "/*.npy"):
    a = np.load(file); a = dtypes.decode(a, "bf16") if a.dtype == np.uint16 else a
    assert np.isnan(a).nonzero()[0].tolist() == [7, 1020], file' "$BATS_TEST_TMPDIR/out/$step/."
    done
}

@test "chapter 10: the norm of a NaN is NaN, and so is its factor" {
    local step
    one_case $CHAPTER/grad_norm ragged
    python 'd = sys.argv[1]; a = np.load(d + "/grad.npy"); a[500] = np.nan; np.save(d + "/grad.npy", a)' "$CASE_DIR"
    for step in norm_atomics norm_partials norm_last_block; do
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op grad_norm --step $step --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'assert all(np.isnan(np.load(f"{sys.argv[1]}/{name}.npy")).all() for name in ("norm", "factor"))' "$BATS_TEST_TMPDIR/out/$step/."
    done
}

@test "chapter 10: after an overflow every bit of the parameters, the masters and the means is what it was" {
    local dir=$BATS_TEST_TMPDIR/out name
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op mixed_update --case not_a_number_bf16 --out "$dir"
    for name in param.bf16 master m v steps; do
        cmp "build/golden/$CHAPTER/mixed_update/not_a_number_bf16/$name.npy" "$dir/update_in_one_pass/not_a_number_bf16/$name.npy" || fail "$name changed"
    done
}

@test "chapter 10: a training recorded in a CUDA graph grows and halves its scale, skips what overflows, and ends where AdamW does" {
    local include lib
    include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -isystem "$include" -c -o "$BATS_TEST_TMPDIR/graph.o" tests/test_helper/adamw_graph.c
    g++ -o "$BATS_TEST_TMPDIR/graph" "$BATS_TEST_TMPDIR/graph.o" build/obj/chapters/$CHAPTER/step{8_loss_scale,9_update_in_one_pass}.o -L"$lib" -l:libcudart.so.13 -lm -ldl
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/graph"
    assert_output $'steps 10 of 10, scale 8 of 8, good 1 of 1\nparameters right'
}

# --- The same bits --------------------------------------------------------------------------------------------------

@test "chapter 10: partial sums give the same bits whatever the order of blocks and the number of SMs, atomics do not" {
    local step seed differ dir=$BATS_TEST_TMPDIR/many
    run -0 "$PYTHON" reference/golden.py adamw --types f32 --op grad_norm --shape n=400003 --out "$dir"
    for step in norm_atomics:1 norm_partials:0 norm_last_block:0; do
        differ=0
        for seed in 1 2 3 4 5 6; do
            run -0 "$SIMGPU" --seed $seed --sms $((seed * 20)) "$(chapter $CHAPTER)" --op grad_norm --step ${step%:*} --golden "$dir" --out "$BATS_TEST_TMPDIR/$seed"
            diff -rq "$BATS_TEST_TMPDIR/1/${step%:*}" "$BATS_TEST_TMPDIR/$seed/${step%:*}" >&2 || differ=1
        done
        assert_equal "$step $differ" "$step ${step#*:}"
    done
    run -0 diff -r "$BATS_TEST_TMPDIR/1/norm_partials" "$BATS_TEST_TMPDIR/1/norm_last_block"
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 10: every step of AdamW moves each sector once, and the whole update reads the gradient twice" {
    local n=8192
    assert_equal "$(count adamw aligned global_sectors)" $((28 * n / 32))
    assert_equal "$(count adamw_fours aligned global_sectors)" $((28 * n / 32))
    assert_equal "$(count adamw_fours aligned_bf16 global_sectors)" $((26 * n / 32))
    assert_equal "$(count adamw_master aligned_bf16 global_sectors)" $((28 * n / 32))
    assert_equal "$(count adamw_stochastic aligned_bf16 global_sectors)" $((22 * n / 32))
    counters "$BATS_TEST_TMPDIR/whole.json" $CHAPTER update_in_one_pass aligned_bf16 --op mixed_update
    assert_equal "$(total "$BATS_TEST_TMPDIR/whole.json" global_sectors 'grad\)\[p\]|unpack|master_frag\[k\] = |store_four')" $((30 * n / 32))
}

@test "chapter 10: the counters that note 10 quotes are what its commands count" {
    local quoted count step case field pattern
    while read -r quoted step case field pattern; do
        count=$(count "$step" "$case" "$field" "$pattern" | sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta')
        assert_equal "$step $case $field $pattern: $count" "$step $case $field $pattern: $quoted"
        grep -qF "$quoted" notes/$CHAPTER.md || fail "note 10 does not say $quoted"
    done <<'END'
13,824 adamw aligned_bf16 warp_instructions ^
8,256 adamw_fours aligned_bf16 warp_instructions ^
8,584 adamw_master aligned_bf16 warp_instructions ^
17,808 adamw_stochastic aligned_bf16 warp_instructions ^
6,656 adamw_fours aligned_bf16 global_sectors ^
7,168 adamw_master aligned_bf16 global_sectors ^
5,632 adamw_stochastic aligned_bf16 global_sectors ^
END
}

@test "chapter 10: make diff-10 compares every step, and every header ends with the command that runs it" {
    ladders "adamw adamw adamw_fours" "adamw_master adamw_master" "adamw_stochastic adamw_stochastic" "grad_norm norm_atomics norm_partials norm_last_block" \
        "scaled_norm loss_scale" "mixed_update update_in_one_pass"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------

@test "chapter 10: without the bias correction the first step is too short" {
    broken $CHAPTER step1_adamw.cu 's/m \* correction1/m/'
    wrong $CHAPTER adamw first_step --op adamw
    noted $CHAPTER 'param[0]: got -0.188337252, expected -0.188607254, tolerance 1.16e-08; 2003 of 2003 elements are wrong'
}

@test "chapter 10: without what is left behind the last four, elements stay as they were" {
    broken $CHAPTER step2_adamw_fours.cu 's/else if \(four == fours\)/else if (false)/'
    wrong $CHAPTER adamw_fours ragged --op adamw
}

@test "chapter 10: a parameter that is rounded from the old master is wrong" {
    broken $CHAPTER step3_adamw_master.cu 's/store_four\(param \+ i, .*/store_four(param + i, uint2(make_pack(m_frag, __nv_bfloat16())));/'
    wrong $CHAPTER adamw_master ragged --op adamw_master
}

@test "chapter 10: rounded by chance without a look at NaN, a NaN becomes -0" {
    broken $CHAPTER step4_adamw_stochastic.cu 's/isnan\(x\) \? x : //'
    one_case $CHAPTER/adamw_stochastic ragged
    python 'd = sys.argv[1]; a = np.load(d + "/grad.npy"); a[:] = np.nan; np.save(d + "/grad.npy", a)' "$CASE_DIR"
    run -1 "$SIMGPU" "$BROKEN" --op adamw_stochastic --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 'bits = np.load(sys.argv[1]); print(np.mean(bits == 0x8000))' "$BATS_TEST_TMPDIR/out/adamw_stochastic/./param.bf16.npy"
    assert [ "$(echo "$output > 0.95" | bc)" -eq 1 ]
}

@test "chapter 10: random bits of the wrong element are wrong" {
    broken $CHAPTER step4_adamw_stochastic.cu 's/random_bits\(key, i \+ k\)/random_bits(key, i)/'
    wrong $CHAPTER adamw_stochastic ragged --op adamw_stochastic
}

@test "chapter 10: a sum that is not put back to 0 is in the next norm" {
    broken $CHAPTER step5_norm_atomics.cu '/sum_of_squares = 0.0f;/d'
    run -1 "$SIMGPU" "$BROKEN" --golden build/golden/$CHAPTER --op grad_norm --step norm_atomics --type f32
    assert_line --regexp "norm_atomics +ragged .* WRONG"
}

@test "chapter 10: without the fence or the barrier of the last block the race is named" {
    broken $CHAPTER step7_norm_last_block.cu '/__threadfence\(\); \/\/ What was written/d'
    races $CHAPTER norm_last_block blocks --op grad_norm
    noted $CHAPTER 'race on global memory …: this read is not ordered after the write by warp 0 of block …'
    broken $CHAPTER step7_norm_last_block.cu '/__syncthreads\(\); \/\/ last is there/d'
    races $CHAPTER norm_last_block blocks --op grad_norm
}

@test "chapter 10: an overflow that only infinity counts as lets a NaN through" {
    broken $CHAPTER step8_loss_scale.cu 's/!isfinite\(squares\)/isinf(squares)/'
    wrong $CHAPTER loss_scale not_a_number --op scaled_norm
}

@test "chapter 10: bias corrections computed in fp32 are wrong at the second step" {
    broken $CHAPTER step8_loss_scale.cu 's/double/float/g; s/1\.0 /1.0f /g'
    wrong $CHAPTER loss_scale second_step --op scaled_norm
    assert_output --partial "control[2]: got "
}

@test "chapter 10: an update that forgets the factor, or the overflow, is wrong" {
    broken $CHAPTER step9_update_in_one_pass.cu 's/factor \* grad_frag/grad_frag/'
    wrong $CHAPTER update_in_one_pass ragged --op update
    broken $CHAPTER step9_update_in_one_pass.cu 's/overflow = correction1 == 0.0f/overflow = false/'
    wrong $CHAPTER update_in_one_pass overflow --op update
    noted $CHAPTER 'master[0]: got -0.760375321, expected -0.760398149, tolerance 0; 2003 of 2003 elements are wrong'
}
