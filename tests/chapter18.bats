#!/usr/bin/env bats
# Chapter 18: numbers of 8 bits and their scales are right, NaN and infinity do what is said, and broken kernels fail.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=18_fp8_quantization

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 18: every step is right on every case of every operation" {
    local op
    for op in per_tensor delayed activations weights transposed swiglu gelu; do all_right 1 $op; done
}

@test "chapter 18: the order of warps and blocks does not matter" {
    any_order {ragged,extreme}{,_e5m2}
}

@test "chapter 18: shapes of the user's own are right: what no square divides, several rounds of blocks" {
    local op
    for op in activations transposed swiglu; do
        run -0 make chapter-18 DEVICE=sim PROFILE=0 OP=$op SHAPE=m=131,k=272
        assert_line "$CHAPTER: all 2 runs right"
    done
    SIMGPU_SMS=4 run -0 make chapter-18 DEVICE=sim PROFILE=0 OP=delayed TYPE=e4m3 SHAPE=n=200003,h=5 # several rounds on 4 SMs
    assert_line "$CHAPTER: all 1 runs right"
    run -2 make --no-print-directory chapter-18 DEVICE=sim OP=weights SHAPE=n=128,k=24
    assert_output --partial "k must be a multiple of 16, so that every row of out begins at a multiple of 16 bytes"
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "chapter 18: 8 bits of the reference are ml_dtypes' for every bf16, for every tie and beside it; beyond, they saturate" {
    run -0 python 'import dtypes, ml_dtypes
rng = np.random.default_rng(0)
x = np.concatenate([np.arange(1 << 16, dtype=np.uint32) << 16, rng.integers(0, 1 << 32, 100000).astype(np.uint32)]).view(np.float32)
for name, t, largest in ("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344):
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(t).astype(np.float32)
    assert np.array_equal(dtypes.decode(codes, name), values, equal_nan=True)
    finite = np.sort(values[np.isfinite(values)])
    ties = (finite[1:] + finite[:-1]) / 2
    y = np.concatenate([x, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    inside = np.abs(y) <= largest
    assert np.array_equal(dtypes.encode(y[inside], name), y[inside].astype(t).view(np.uint8))
    beyond = y[np.abs(y) > largest]
    assert np.array_equal(dtypes.rounded(beyond, name), np.copysign(np.float32(largest), beyond)) and np.isinf(beyond).any()
    assert np.isnan(dtypes.rounded(y[np.isnan(y)], name)).all()'
}

@test "chapter 18: the bound holds for fp32 in NumPy, is 0 for 99 of 100 numbers, and catches the next number of the format" {
    run -0 python 'import dtypes, fp8_quantization as q
f = np.float32; rng = np.random.default_rng(1)
x = dtypes.rounded(rng.standard_normal((64, 1024)).astype(f), "bf16")
for dtype in "e4m3", "e5m2":
    for pow2 in False, True:
        (out, bound), (scale, scale_bound) = q.by_groups(x.astype(float), np.zeros(x.shape), 1, 128, dtype, pow2)
        s = (np.abs(x).reshape(64, 8, 128).max(2) / f(q.MAX[dtype])).astype(f)
        if pow2: s = np.exp2(np.ceil(np.log2(s.astype(float)))).astype(f)
        assert np.all(np.abs(s - scale) <= scale_bound)
        y = dtypes.encode((x.reshape(64, 8, 128) * (f(1) / s)[..., None]).reshape(64, 1024), dtype)
        assert np.all(np.abs(dtypes.decode(y, dtype) - out) <= bound)
        assert np.mean(bound == 0) > 0.99
        next_one = dtypes.decode(np.where(y & 0x7f, y - 1, y + 1).astype(np.uint8), dtype)
        assert np.mean(np.abs(next_one - out) > bound) > 0.99'
}

@test "chapter 18: a scale that is a power of two is the next that is not below, exactly, also for 448 times one" {
    run -0 python 'import fp8_quantization as q
for amax, scale in (448, 1), (449, 2), (447, 1), (224, 0.5), (1, 2.0**-8), (0, 2.0**-108): assert q.scale_of(np.float64(amax), "e4m3", True) == scale, (amax, scale)
assert q.scale_of(np.float64(57344), "e5m2", True) == 1'
    one_case $CHAPTER/activations ties_pow2
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op activations --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 's = np.load(sys.argv[1]); assert np.all(s[:2, :70] == 1), s' "$BATS_TEST_TMPDIR/out/groups_of_128/./scale.npy"
}

# --- What note 18 says of errors --------------------------------------------------------------------------------------

@test "chapter 18: the errors that note 18 quotes are the reference's" {
    run -0 python 'import dtypes, fp8_quantization as q
rng = np.random.default_rng(18)
def data(kind):
    x = rng.standard_normal((128, 2048))
    if kind == "one token × 100,000": x[77] *= 1e5
    if kind == "one number in 10,000 × 100,000": x.reshape(-1)[rng.choice(x.size, x.size // 10000, replace=False)] *= 1e5
    if kind == "rows of 2⁻²⁴ to 1": x *= np.exp2(rng.uniform(-24, 0, (128, 1)))
    return dtypes.rounded(x, "bf16")
def per_tensor(x, dtype, old):
    s = q.scale_of(np.abs(old).max(), dtype)
    return q.quantised(x, 0.0, (s, s, s), dtype)[0] * s
def grouped(x, rows, pow2=False):
    out, scale = q.by_groups(x, np.zeros_like(x), rows, 128, "e4m3", pow2)
    return out[0] * np.repeat(np.repeat(scale[0], rows, 0), 128, 1)
for kind in "Gaussian", "one number in 10,000 × 100,000", "one token × 100,000", "rows of 2⁻²⁴ to 1":
    x = data(kind)
    ways = per_tensor(x, "e4m3", x), per_tensor(x, "e5m2", x), per_tensor(x, "e4m3", x / 2), grouped(x, 128), grouped(x, 1), grouped(x, 1, True)
    errors = [100 * np.mean(np.sqrt(np.mean((y - x)**2, 1) / np.mean(x**2, 1))) for y in ways]
    print(f"| {kind} | " + " | ".join(f"{e:.1f} %" for e in errors) + " |")'
    while read -r line; do grep -qF "$line" notes/$CHAPTER.md || fail "note 18 does not say $line"; done <<<"$output"
}

@test "chapter 18: what note 18 says a loss scale loses that scaling factors keep" {
    run -0 python 'import fp8_quantization as q
rng = np.random.default_rng(19)
layers = [rng.standard_normal(20000) * np.exp2(-6 - 3 * i + 2 * rng.standard_normal(20000)) for i in range(8)]
def cast(scale): return [q.quantised(g, 0.0, (s, s, s), "e5m2")[0] for g, s in zip(layers, scale)]
def saturates(scale): return any(np.abs(out).max() == q.MAX["e5m2"] for out in cast(scale))
exponent = max(e for e in range(60) if not saturates([2.0**-e] * 8))
for name, scale in (f"loss × 2^{exponent}", [2.0**-exponent] * 8), ("a scale a tensor", [q.scale_of(np.abs(g).max(), "e5m2") for g in layers]):
    print(f"| {name} | " + " | ".join(f"{100 * np.mean(out == 0):.1f} %" for out in cast(scale)) + " |")'
    while read -r line; do grep -qF "$line" notes/$CHAPTER.md || fail "note 18 does not say $line"; done <<<"$output"
}

# --- NaN, infinity, device memory -------------------------------------------------------------------------------------

@test "chapter 18: a NaN or an infinity makes its own group NaN when it is multiplied by the scale, and changes no other" {
    local op format
    for op in per_tensor activations weights transposed gelu; do
        for format in "" _e5m2; do
            one_case $CHAPTER/$op ragged$format
            run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op $op --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/before"
            python 'd = sys.argv[1]; x = np.load(d + "/x.bf16.npy"); x.reshape(-1)[[5, x.size - 3]] = 0x7fc0, 0x7f80; np.save(d + "/x.bf16.npy", x)' "$CASE_DIR"
            run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op $op --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/after"
            run -0 python 'import dtypes, glob, os
op, kind = sys.argv[3], sys.argv[4] or "_e4m3"
folder = [glob.glob(d + "/*/.")[0] for d in sys.argv[1:3]]
def load(name): return [np.load(f"{d}/{name}") for d in folder]
def check(suffix, rows, cols, spoilt):
    (a, b), (_, t) = load(f"out{suffix}.{kind[1:]}.npy"), load(f"scale{suffix}.npy")
    values = dtypes.decode(b, kind[1:])
    if op == "per_tensor": full = np.broadcast_to(t, b.shape); bad = np.ones(b.shape, bool)
    else:
        t = t if op == "weights" else t.T[: b.shape[0]]
        full = np.repeat(np.repeat(t, rows, 0), cols, 1)[: b.shape[0], : b.shape[1]]
        bad = np.zeros(b.shape, bool)
        for r, c in spoilt: bad[r // rows * rows:][:rows, c // cols * cols:][:, :cols] = True
    with np.errstate(invalid="ignore"): y = values * full
    assert np.isnan(y[bad]).all() and not np.isnan(y[~bad]).any(), suffix
    assert np.array_equal(a[~bad], b[~bad])
rows = 128 if op == "weights" else 1
check("", rows, 128, [(0, 5), (36, 205)])
if op == "transposed": check("_t", 1, 128, [(5, 0), (205, 36)])' "$BATS_TEST_TMPDIR"/{before,after} $op "$format"
            rm -rf "$BATS_TEST_TMPDIR"/{before,after}
        done
    done
}

@test "chapter 18: delayed, an infinity saturates, a NaN is NaN alone, and both leave the scale as it is" {
    local bits
    for bits in 0x7f80 0xff80 0x7fc0; do
        one_case $CHAPTER/delayed ragged
        python 'd, bits = sys.argv[1:]; x = np.load(d + "/x.bf16.npy"); x[5002] = int(bits, 0); np.save(d + "/x.bf16.npy", x)' "$CASE_DIR" $bits
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op delayed --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'd, case, bits = sys.argv[1], sys.argv[2], int(sys.argv[3], 0)
out, expected = np.load(d + "/out.e4m3.npy"), np.load(case + "/out.e4m3.npy")
assert np.array_equal(out[:-1], expected[:-1]) and out[-1] in {0x7f80: [0x7e], 0xff80: [0xfe], 0x7fc0: [0x7f, 0xff]}[bits], hex(out[-1])
assert np.array_equal(np.load(d + "/scale.npy"), np.load(case + "/scale.npy"))
assert not np.isfinite(np.load(d + "/history.npy")[3]) and np.load(d + "/position.npy") == 4' "$BATS_TEST_TMPDIR/out/delayed/." "$CASE_DIR" $bits
    done
}

@test "chapter 18: delayed scaling recorded in a CUDA graph has the scales of its definition, call after call" {
    local include lib
    include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -isystem "$include" -c -o "$BATS_TEST_TMPDIR/graph.o" tests/test_helper/delayed_graph.c
    g++ -o "$BATS_TEST_TMPDIR/graph" "$BATS_TEST_TMPDIR/graph.o" build/obj/chapters/$CHAPTER/step2_delayed.o -L"$lib" -l:libcudart.so.13 -lm -ldl
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/graph"
    assert_output "0 of 12 scales wrong, the last is 0.0178571"
}

@test "chapter 18: E5M2 arrays are read and written as every other type, and a case is known by its output's name" {
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden build/golden/$CHAPTER --op weights --case tiles_e5m2 --out "$BATS_TEST_TMPDIR/out"
    run -0 cmp build/golden/$CHAPTER/weights/tiles_e5m2/out.e5m2.npy "$BATS_TEST_TMPDIR/out/squares_of_128/tiles_e5m2/out.e5m2.npy"
    one_case $CHAPTER/weights tiles_e5m2
    mv "$CASE_DIR/out.e5m2.npy" "$CASE_DIR/out.e4m3.npy"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$CASE_DIR" --op weights
    assert_line --regexp 'out\[row 0, col 0\]: got .*, expected'
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 18: one pass reads and writes each sector once, two read x twice; the transposed square has no bank conflict" {
    local n=16384 square=32768 json=$BATS_TEST_TMPDIR/transposed.json
    assert_equal "$(count two_passes aligned global_sectors 'load_piece_streamed|__stcs')" $((5 * n / 32))
    assert_equal "$(count delayed aligned global_sectors '\)x\)\[p\]|\)out\)\[p\]')" $((3 * n / 32))
    assert_equal "$(count groups_of_128 tiles global_sectors)" $((3 * square / 32 + square / 256))
    assert_equal "$(count squares_of_128 tiles global_sectors)" $((3 * square / 32 + 2))
    counters "$json" $CHAPTER transposed tiles
    assert_equal "$(total "$json" global_sectors)" $((4 * square / 32 + 64))
    assert_equal "$(total "$json" shared_wavefronts)" "$(total "$json" shared_wavefronts_ideal)"
    counters "$json" $CHAPTER fused tiles --op swiglu
    assert_equal "$(total "$json" global_sectors)" $((5 * square / 32 + square / 256))
}

@test "chapter 18: the table of note 18 is what its commands count" {
    local row op step case n json=$BATS_TEST_TMPDIR/row.json
    while read -r op step case n; do
        counters "$json" $CHAPTER "$step" "$case" --op "$op"
        row=$(plain_python 'import json, sys
kernels, n = json.load(open(sys.argv[1])), int(sys.argv[2])
instructions, sectors = sum(k["instructions"] for k in kernels), sum(l["global_sectors"] for k in kernels for l in k["lines"])
print(f"| {instructions * 32 / n:.1f} | {sectors * 32 / n:.2f} |")' "$json" "$n")
        grep -qF "$op $row" notes/$CHAPTER.md || fail "note 18 does not say: $op $row"
    done <<'END'
per_tensor two_passes aligned 16384
delayed delayed aligned 16384
activations groups_of_128 tiles 32768
weights squares_of_128 tiles 32768
transposed transposed tiles 32768
swiglu fused tiles 32768
gelu fused tiles 32768
END
}

@test "chapter 18: make diff-18 compares every step, and every header ends with the command that runs it" {
    ladders "per_tensor two_passes" "delayed delayed" "activations groups_of_128" "weights squares_of_128" "transposed transposed" "swiglu fused"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------

@test "chapter 18: an amax without what is behind the last pack is too small" {
    broken $CHAPTER step1_two_passes.cu 's/if \(blockIdx.x == 0 \&\& threadIdx.x < n % PACK<__nv_bfloat16>\) \{/if (false) {/'
    wrong $CHAPTER two_passes below_a_pack --op per_tensor
}

@test "chapter 18: without the barrier of the block's maximum the race is named; an amax that is not put back to 0 is in the next scale" {
    broken $CHAPTER step2_delayed.cu "/__syncthreads\(\); \/\/ Every warp's is there/d"
    races $CHAPTER delayed blocks --op delayed
    noted $CHAPTER 'race on shared offset …: this read is not ordered after the write by lane 0 of the same warp'
    broken $CHAPTER step2_delayed.cu 's/amax_bits = blocks_done = 0/blocks_done = 0/'
    run -1 "$SIMGPU" "$BROKEN" --golden build/golden/$CHAPTER --op delayed
    assert_line --regexp "delayed +most_recent .* WRONG"
}

@test "chapter 18: a history that forgets is too short: the largest of the last call only" {
    broken $CHAPTER step2_delayed.cu 's/largest = max\(largest, __float_as_uint\(state.history\[i\]\)\)/largest = largest/'
    wrong $CHAPTER delayed ragged --op delayed
}

@test "chapter 18: an amax of half the group saturates the other half" {
    broken $CHAPTER step3_groups_of_128.cu 's/lanes_amax<GROUP_LANES>/lanes_amax<GROUP_LANES \/ 2>/'
    wrong $CHAPTER groups_of_128 one_group --op activations
    noted $CHAPTER 'out[row 0, col 0]: got …, expected …, tolerance 0; … of 128 elements are wrong'
}

@test "chapter 18: a turn that asks for its own packs again is wrong in the next turn's rows" {
    broken $CHAPTER step6_fused.cu 's/load_turn\(turn \+ 1\)/load_turn(turn)/'
    wrong $CHAPTER fused ragged --op gelu
}

@test "chapter 18: scales past the last row must be 0, for a product that reads them" {
    broken $CHAPTER step3_groups_of_128.cu 's/row < m \? s : 0.0f/s/'
    wrong $CHAPTER groups_of_128 ragged --op activations
}

@test "chapter 18: without the barriers of a square the races are named" {
    broken $CHAPTER step4_squares_of_128.cu "/__syncthreads\(\); \/\/ Every warp's is there/d"
    races $CHAPTER squares_of_128 tiles --op weights
    broken $CHAPTER step5_transposed.cu '/__syncthreads\(\); \/\/ The square is there/d'
    races $CHAPTER transposed tiles --op transposed
}

@test "chapter 18: a square that is not unswizzled is wrong from line 64 on" {
    broken $CHAPTER step5_transposed.cu 's/line < GROUP \/ 2 \? bytes/true ? bytes/'
    wrong $CHAPTER transposed tiles --op transposed
    noted $CHAPTER 'out_t[row 64, col 0]: got …, expected …, tolerance 0; … elements are wrong'
}

@test "chapter 18: a maximum that drops NaN hides it from its group" {
    broken $CHAPTER step6_fused.cu 's/larger\(amax, fabsf/fmaxf(amax, fabsf/'
    one_case $CHAPTER/gelu one_group
    python 'd = sys.argv[1]; x = np.load(d + "/x.bf16.npy"); x[0, 5] = 0x7fc0; np.save(d + "/x.bf16.npy", x)' "$CASE_DIR"
    run -1 "$SIMGPU" "$BROKEN" --op gelu --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 'assert np.isfinite(np.load(sys.argv[1])[0, 0])' "$BATS_TEST_TMPDIR/out/fused/./scale.npy"
}
