#!/usr/bin/env bats
# Chapter 7: layernorm and RMSNorm, forward and backward, are right, read their rows as often as they say, give the same bits where
# they promise to, and fail when they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=07_layernorm

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 7: every step is right on every case of every operation" {
    all_right 2 layernorm_forward
    all_right 1 fused_residual_forward
    all_right 1 rmsnorm_forward
    all_right 4 layernorm_backward
    all_right 1 fused_residual_backward
    all_right 1 rmsnorm_backward
}

@test "chapter 7: the order of warps and blocks does not matter" {
    any_order {ragged_block,longer_ragged,many_rows}{,_bf16} aligned_bf16
}

@test "chapter 7: shapes of the user's own are right: one column, and rows longer than any block holds" {
    local op shape
    for op in layernorm_forward fused_residual_forward rmsnorm_forward layernorm_backward fused_residual_backward rmsnorm_backward; do
        for shape in rows=40,c=1 rows=2,c=100003 rows=3,c=65536; do
            run -0 make chapter-7 DEVICE=sim PROFILE=0 OP=$op SHAPE=$shape
            assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
        done
    done
}

@test "chapter 7: one or two rows under way are right over many turns, and fewer have the same bits" {
    local step op file program
    for step in 8:layernorm_backward:gradient_ahead 9:fused_residual_backward:gradient_residual 10:rmsnorm_backward:rmsnorm_gradient; do
        IFS=: read -r file op step <<<"$step"
        run -0 make chapter-7 DEVICE=sim PROFILE=0 OP="$op" STEP="$step" SHAPE=rows=2201,c=1200 # 4 groups, 5 turns
        assert_line "$CHAPTER: all 2 runs right"
        run -0 make chapter-7 DEVICE=sim PROFILE=0 OP="$op" STEP="$step" SHAPE=rows=9601,c=40 # more groups: one row ahead
        assert_line "$CHAPTER: all 2 runs right"
        HEADER=gradient.cuh edited $CHAPTER "step${file}_$step.cu" 's/ > most_bytes\)/ > 60000)/'
        run -0 "$SIMGPU" "$BROKEN" --op "$op" --step "$step"
        assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
        for program in "$BROKEN" "$(chapter $CHAPTER)"; do
            run -0 "$SIMGPU" "$program" --op "$op" --step "$step" --case longer_than_a_block --out "$BATS_TEST_TMPDIR/out/$(basename "$program")"
            run -0 "$SIMGPU" "$program" --op "$op" --step "$step" --case block --out "$BATS_TEST_TMPDIR/out/$(basename "$program")"
        done
        run -0 diff -r "$BATS_TEST_TMPDIR/out/broken" "$BATS_TEST_TMPDIR/out/$CHAPTER"
    done
}

# --- Gradients ------------------------------------------------------------------------------------------------------

@test "chapter 7: every expected gradient is what central differences of the float64 forward say" {
    run -0 python 'import layernorm
rng = np.random.default_rng(7)
def differences(f, x, dout, h=1e-5):
    "d(sum dout f(x)) / dx, element by element"
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h; down[i] -= h
        g[i] = ((f(up) - f(down)) * dout).sum() / (2 * h)
    return g
op = layernorm.OPERATIONS
for name, centered in ("layernorm", True), ("rmsnorm", False):
    x, dout = rng.standard_normal((2, 4, 9)); weight, bias, dweight, dbias = rng.standard_normal((4, 9))
    def forward(x=x, weight=weight, bias=bias):
        arrays = {"inp": x, "weight": weight} | ({"bias": bias} if centered else {})
        return op[name + "_forward"].outputs(arrays, "f32")
    outputs = forward()
    arrays = {"inp": x, "dout": dout, "weight": weight, "rstd": outputs["rstd"][0], "dweight": dweight}
    if centered: arrays |= {"mean": outputs["mean"][0], "dbias": dbias}
    after = op[name + "_backward"].outputs(arrays, "f32")
    np.testing.assert_allclose(after["dinp"][0], differences(lambda x: forward(x=x)["out"][0], x, dout), atol=1e-8)
    np.testing.assert_allclose(after["dweight.after"][0] - dweight, differences(lambda w: forward(weight=w)["out"][0], weight, dout), atol=1e-8)
    if centered: np.testing.assert_allclose(after["dbias.after"][0] - dbias, differences(lambda b: forward(bias=b)["out"][0], bias, dout), atol=1e-8)'
}

@test "chapter 7: the bounds hold for fp32 in NumPy, and catch a row without its last element" {
    run -0 python 'import layernorm
rng = np.random.default_rng(70)
f32 = np.float32
for c in 3, 300:
    x = (rng.standard_normal((20, c)) * 5 + 3).astype(f32); weight, bias = rng.standard_normal((2, c)).astype(f32)
    out, tolerance = layernorm.OPERATIONS["layernorm_forward"].outputs({"inp": x, "weight": weight, "bias": bias}, "f32")["out"]
    def normalize(part):
        mean = part.mean(-1, keepdims=True, dtype=f32); d = part - mean
        return (x - mean) / np.sqrt((d * d).mean(-1, keepdims=True, dtype=f32) + f32(1e-5)) * weight + bias
    assert np.all(np.abs(normalize(x) - out) <= tolerance)
    assert np.mean(np.abs(normalize(x[:, :-1]) - out) > tolerance) > 0.8, c'
}

# --- NaN, infinity, and the same bits -------------------------------------------------------------------------------

@test "chapter 7: NaN and infinity spoil their row and no other, as in PyTorch" {
    local op step case
    for step in layernorm_forward:layernorm layernorm_forward:layernorm_registers rmsnorm_forward:rmsnorm \
        layernorm_backward:gradient_atomics layernorm_backward:gradient_registers layernorm_backward:gradient_partials layernorm_backward:gradient_ahead rmsnorm_backward:rmsnorm_gradient \
        fused_residual_backward:gradient_residual; do
        IFS=: read -r op step case <<<"$step"
        one_case "$CHAPTER/$op" "${case:-ragged}"
        python 'd = sys.argv[1]; a = np.load(d + "/inp.npy"); a[2, 3] = np.nan; a[5, -1] = np.inf; np.save(d + "/inp.npy", a)' "$CASE_DIR"
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op "$op" --step "$step" --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'd, op = sys.argv[1:]
out = np.load(d + {"forward": "/out.npy", "backward": "/dresidual.npy" if "fused" in op else "/dinp.npy"}[op.split("_")[-1]])
last = out.shape[1] - 1
assert np.isfinite(np.delete(out, [2, 5], 0)).all()
assert np.isnan(out[2]).all(), out[2]
if op == "layernorm_forward": assert np.isnan(out[5]).all(), out[5]
elif op == "rmsnorm_forward": assert np.isnan(out[5]).nonzero()[0].tolist() == [last] and not out[5, :last].any()  # infinity * 0, and x * 0
else: assert not np.isfinite(out[5]).any(), out[5]  # with the saved rstd, which is finite
if "backward" in op: assert np.isnan(np.load(d + "/dweight.npy")).nonzero()[0].tolist() == [3] and np.isinf(np.load(d + "/dweight.npy")).nonzero()[0].tolist() == [last]' \
            "$BATS_TEST_TMPDIR/out/$step/." "$op"
    done
}

@test "chapter 7: partial sums give the same bits whatever the order of blocks, atomics do not" {
    local step seed op
    for step in layernorm_backward:gradient_atomics:1 layernorm_backward:gradient_registers:1 layernorm_backward:gradient_partials:0 layernorm_backward:gradient_ahead:0 fused_residual_backward:gradient_residual:0 rmsnorm_backward:rmsnorm_gradient:0; do
        IFS=: read -r op step expected <<<"$step"
        for seed in 1 2; do
            run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --op "$op" --step "$step" --case many_rows --out "$BATS_TEST_TMPDIR/$seed"
        done
        run diff -rq "$BATS_TEST_TMPDIR/1/$step" "$BATS_TEST_TMPDIR/2/$step"
        assert_equal "$step $status" "$step $expected"
    done
}

@test "chapter 7: on a GPU with fewer SMs the bits of the partial sums are the same" {
    local op step
    for step in layernorm_backward:gradient_partials layernorm_backward:gradient_ahead fused_residual_backward:gradient_residual; do
        IFS=: read -r op step <<<"$step"
        run -0 "$SIMGPU" --sms 4 "$(chapter $CHAPTER)" --op "$op" --step "$step" --case many_rows --out "$BATS_TEST_TMPDIR/few"
        run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op "$op" --step "$step" --case many_rows --out "$BATS_TEST_TMPDIR/many"
    done
    run -0 diff -r "$BATS_TEST_TMPDIR/few" "$BATS_TEST_TMPDIR/many"
}

@test "chapter 7: saved mean and rstd are what the backward is given" {
    local dir=$BATS_TEST_TMPDIR
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op layernorm_forward --step layernorm_registers --case ragged --out "$dir/forward"
    one_case $CHAPTER/layernorm_backward ragged
    cp "build/golden/$CHAPTER/layernorm_forward/ragged/inp.npy" "$dir/forward/layernorm_registers/ragged"/{mean,rstd}.npy "$CASE_DIR"
    run -0 "$PYTHON" reference/golden.py layernorm --types f32 --op layernorm_backward --inputs "$CASE_DIR"
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op layernorm_backward --golden "$CASE_DIR"
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 7: three passes read a row three times, registers once, and the fused residual is not read again" {
    local array=$((33 * 768 * 4 / 32))
    assert_equal "$(count layernorm aligned global_sectors)" $((6 * array + 2 * 33)) # weight and bias for every row, mean, rstd
    assert_equal "$(count layernorm_registers aligned global_sectors)" $((4 * array + 2 * 33))
    assert_equal "$(count layernorm_registers aligned global_sectors 'frag\[i\] = load_piece_streamed<N>\(x ')" $array
    assert_equal "$(count layernorm_registers aligned global_sectors 'store_piece\(')" $array
    assert_equal "$(count rmsnorm aligned global_sectors 'frag\[i\] = load_piece_streamed<N>\(x ')" $array
    assert_equal "$(count layernorm_residual aligned global_sectors 'frag2?\[i\] = load_piece_streamed<N>\(x')" $((2 * array))
    assert_equal "$(count layernorm_residual aligned global_sectors 'store_piece\(')" $((2 * array))
}

@test "chapter 7: atomics an element, a group, none; x and dout are read once" {
    local array=$((33 * 768 * 4 / 32)) step
    for step in gradient_registers:2 gradient_partials:0; do
        assert_equal "$(count ${step%:*} aligned global_sectors '_frag\[i\] = load_piece(_once)?<N>\((inp|dout) ')" $((2 * array))
        assert_equal "$(count ${step%:*} aligned global_sectors 'store_piece_once')" $array
        assert_equal "$step" "${step%:*}:$(grep -c 'atomicAdd(' "chapters/$CHAPTER"/step*_${step%:*}.cu)"
    done
    for step in gradient_ahead:2 gradient_residual:3 rmsnorm_gradient:2; do
        assert_equal "$(count ${step%:*} aligned global_sectors 'ahead\.ask\(')" $((${step#*:} * array))
        assert_equal "$(count ${step%:*} aligned global_sectors 'make_pack\(d')" $array
    done
    run ! grep -q 'atomicAdd(' "chapters/$CHAPTER"/step{8,9,10}_*.cu "chapters/$CHAPTER/gradient.cuh"
}

@test "chapter 7: of n and d that were kept, dinp takes half of the instructions at most" {
    local again
    again=$(count gradient_partials aligned_bf16 warp_instructions 'x\[k\] = \(w\[k\]')
    assert [ "$again" -gt 0 ]
    assert [ "$(count gradient_ahead aligned_bf16 warp_instructions 'd\[i\]\[k\] = d\[i\]\[k\] \* r')" -le $((again / 2)) ]
}

@test "chapter 7: the counters that note 7 quotes are what its commands count" {
    local quoted count step case field pattern
    while read -r quoted step case field pattern; do
        count=$(count "$step" "$case" "$field" "$pattern" | sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta')
        assert_equal "$step $case $field $pattern: $count" "$step $case $field $pattern: $quoted"
        grep -qF "$quoted" notes/$CHAPTER.md || fail "note 7 does not say $quoted"
    done <<'END'
32,704 layernorm aligned warp_instructions ^
37,456 layernorm aligned_bf16 warp_instructions ^
14,817 layernorm_registers aligned warp_instructions ^
18,489 layernorm_registers aligned_bf16 warp_instructions ^
42,504 layernorm_residual aligned warp_instructions ^
26,586 layernorm_residual aligned_bf16 warp_instructions ^
8,982 rmsnorm aligned warp_instructions ^
10,671 rmsnorm aligned_bf16 warp_instructions ^
38,922 gradient_atomics aligned warp_instructions ^
45,258 gradient_atomics aligned_bf16 warp_instructions ^
19,074 layernorm aligned global_sectors ^
12,738 layernorm_registers aligned global_sectors ^
19,074 layernorm_residual aligned global_sectors ^
9,537 rmsnorm aligned global_sectors ^
END
}

@test "chapter 7: make diff-7 compares every step, and every header ends with the command that runs it" {
    ladders "layernorm_forward layernorm layernorm_registers" "fused_residual_forward layernorm_residual" "rmsnorm_forward rmsnorm" \
        "layernorm_backward gradient_atomics gradient_registers gradient_partials gradient_ahead" \
        "fused_residual_backward gradient_residual" "rmsnorm_backward rmsnorm_gradient"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------

@test "chapter 7: the variance as mean of x^2 - mean^2 is wrong far from 0" {
    broken $CHAPTER step1_layernorm.cu 's/const float difference = .*;/const float difference = to_float(x[c]);/; s/warp_sum\(squares\) \/ C/warp_sum(squares) \/ C - row_mean * row_mean/'
    wrong $CHAPTER layernorm offset --op layernorm_forward
    noted $CHAPTER 'out[row 0, col 1]: got 0.429589421, expected 0.429583195, tolerance 5.19e-06; 772 of 2700 elements are wrong'
}

@test "chapter 7: without EPSILON a row of equal elements is NaN" {
    broken $CHAPTER step2_layernorm_registers.cu 's/ \* one_by_C \+ EPSILON/ * one_by_C/'
    run -1 "$SIMGPU" "$BROKEN" --op layernorm_forward --step layernorm_registers --case one_element
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 7: without a barrier the race is named" {
    local file op step case header
    for file in step2_layernorm_registers.cu:layernorm_forward:layernorm_registers:block step3_layernorm_residual.cu:fused_residual_forward:layernorm_residual:block \
        step4_rmsnorm.cu:rmsnorm_forward:rmsnorm:block step6_gradient_registers.cu:layernorm_backward:gradient_registers:block step7_gradient_partials.cu:layernorm_backward:gradient_partials:block \
        step8_gradient_ahead.cu:layernorm_backward:gradient_ahead:block:gradient.cuh \
        step9_gradient_residual.cu:fused_residual_backward:gradient_residual:block:gradient.cuh step10_rmsnorm_gradient.cu:rmsnorm_backward:rmsnorm_gradient:block:gradient.cuh; do
        IFS=: read -r file op step case header <<<"$file"
        HEADER=$header broken $CHAPTER "$file" "/(__syncthreads|named_barrier_sync).*(Every warp.s value is there|The group.s sums are there)/d"
        HEADER=$header races $CHAPTER "$step" "$case" --op "$op"
        [[ $step != gradient_partials ]] || noted $CHAPTER 'race on shared offset …: this read is not ordered after the write'
    done
}

@test "chapter 7: one array for the sums of a row and of the next is a race" {
    broken $CHAPTER step7_gradient_partials.cu '/parity \^= 1;/d'
    races $CHAPTER gradient_partials many_ragged_rows --op layernorm_backward
    broken $CHAPTER step8_gradient_ahead.cu '/parity \^= 1;/d'
    races $CHAPTER gradient_ahead two_ragged_turns --op layernorm_backward
    broken $CHAPTER step10_rmsnorm_gradient.cu '/parity \^= 1;/d'
    races $CHAPTER rmsnorm_gradient two_ragged_turns --op rmsnorm_backward
}

@test "chapter 7: groups that do not wait for each other's sums race" {
    local barrier
    for barrier in 'Every group.s sums are there' 'They have been read'; do
        broken $CHAPTER step7_gradient_partials.cu "/__syncthreads\(\); \/\/ $barrier/d"
        races $CHAPTER gradient_partials aligned --op layernorm_backward
    done
    HEADER=gradient.cuh broken $CHAPTER step8_gradient_ahead.cu '/__syncthreads\(\); \/\/ Every group.s sums are there/d'
    HEADER=gradient.cuh races $CHAPTER gradient_ahead two_turns --op layernorm_backward
}

@test "chapter 7: a row in the slot of one that is still to be read, and one that is not waited for, are named" {
    local seed
    HEADER=gradient.cuh broken $CHAPTER step8_gradient_ahead.cu 's/next = next == rows \? 0/next = next + 1 >= rows ? 0/'
    for seed in 0 1 2 3; do
        run -3 "$SIMGPU" --seed $seed "$BROKEN" --op layernorm_backward --step gradient_ahead --case two_turns
        assert_output --partial "the destination was written while the copy was in flight"
    done
    HEADER=gradient.cuh broken $CHAPTER step8_gradient_ahead.cu 's/cp_async_wait_group<1>/cp_async_wait_group<2>/'
    races $CHAPTER gradient_ahead two_turns --op layernorm_backward
}

@test "chapter 7: sums in the place of rows that others still read race" {
    local seed
    broken $CHAPTER step8_gradient_ahead.cu '/__syncthreads\(\); \/\/ Nobody has rows ahead/d'
    for seed in 0 1 2 3; do
        run -3 "$SIMGPU" --seed $seed "$BROKEN" --op layernorm_backward --step gradient_ahead --case aligned
        assert_output --regexp "is written before the cp.async .* has been waited for|is not ordered after the (read|write) by"
    done
}

@test "chapter 7: a gradient that is not added to what comes beside it is wrong" {
    broken $CHAPTER step9_gradient_residual.cu 's/= beside\[k\] \+/=/'
    wrong $CHAPTER gradient_residual ragged --op fused_residual_backward
}

@test "chapter 7: a second sum that forgets the elements past the registers is wrong" {
    broken $CHAPTER step2_layernorm_registers.cu '/c \+= step\)$/{N;/squares/d}'
    wrong $CHAPTER layernorm_registers longer_than_a_block --op layernorm_forward
}

@test "chapter 7: packs of rows that begin anywhere are named" {
    broken $CHAPTER step4_rmsnorm.cu 's/C % PACK<T> == 0 \?/true ?/'
    run -3 "$SIMGPU" "$BROKEN" --op rmsnorm_forward --step rmsnorm --case ragged
    assert_output --regexp "must be a multiple of 16|crosses the end of allocation"
}

@test "chapter 7: a dinp without the mean of d n is wrong" {
    broken $CHAPTER step5_gradient_atomics.cu 's/ - n \* dn_mean//'
    wrong $CHAPTER gradient_atomics ragged --op layernorm_backward
    noted $CHAPTER 'dinp[row 0, col 0]: got 0.245843157, expected 0.162600726, tolerance 1.04e-05; 14647 of 14649 elements are wrong'
}
