#!/usr/bin/env bats
# Chapter 8: softmax, its backward and the classifier are right, read their rows as often as they say, and fail when
# they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=08_online_softmax

@test "chapter 8: every step is right on every case of every operation" {
    local cases forward
    cases=$(find "build/golden/$CHAPTER" -mindepth 2 -maxdepth 2 -type d | wc -l)
    forward=$(find "build/golden/$CHAPTER/forward" -mindepth 1 -maxdepth 1 -type d | wc -l)
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER"
    assert_line "$CHAPTER: all $((cases + 3 * forward)) runs right"
    refute_output --partial WRONG
}

@test "chapter 8: the warps' order does not matter" {
    local seed name
    for name in {ragged,several_blocks,many_blocks,minus_infinity}{,_bf16}; do
        for seed in 1 2; do
            run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --case $name
        done
    done
}

@test "chapter 8: more parts of rows than one launch takes are right, whatever their order" {
    local file op step seed
    for file in step4_split.cu:forward:split step6_backward.cu:backward:backward step7_classifier.cu:classifier:classifier; do
        IFS=: read -r file op step <<<"$file"
        broken $CHAPTER "$file" 's/MAX_PARTS = 1 << 16;/MAX_PARTS = 20;/'
        for seed in 0 1 2; do
            run -0 "$SIMGPU" --seed $seed "$BROKEN" --op "$op" --step "$step"
        done
    done
}

@test "chapter 8: the longest ragged rows are right" {
    local op
    for op in forward backward; do
        run -0 make chapter-8 DEVICE=sim PROFILE=0 OP=$op SHAPE=rows=2,cols=131071
        assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
    done
    run -0 make chapter-8 DEVICE=sim PROFILE=0 OP=classifier SHAPE=rows=2,v=128001,vp=131071
    assert_line "$CHAPTER: all 4 runs right"
}

@test "chapter 8: three passes read a row three times, two passes twice, registers once" {
    local json=$BATS_TEST_TMPDIR/counters.json op=forward once
    counters "$json" $CHAPTER registers aligned --op $op
    assert_equal "$(total "$json" global_sectors)" "$(total "$json" global_sectors_ideal)"
    once=$(($(total "$json" global_sectors) / 2)) # of the row: read, and written
    assert_equal "$once" $((5 * 128 * 4 / 32))
    counters "$json" $CHAPTER online aligned --op $op
    assert_equal "$(total "$json" global_sectors)" $((3 * once))
    counters "$json" $CHAPTER three_pass aligned --op $op
    assert_equal "$(total "$json" global_sectors)" $((4 * once))
}

@test "chapter 8: several blocks of a row, the backward and the classifier read it once" {
    local json=$BATS_TEST_TMPDIR/counters.json row=$((131072 * 4 / 32))
    counters "$json" $CHAPTER split longest --op forward
    assert_equal "$(total "$json" global_sectors 'fetch_part')" $row
    assert_equal "$(total "$json" global_sectors 'store_pack')" $row
    counters "$json" $CHAPTER backward longest --op backward
    assert_equal "$(total "$json" global_sectors 'fetch_part|load_packs')" $((2 * row))
    counters "$json" $CHAPTER classifier gpt2_bf16 --op classifier
    [[ $(total "$json" global_sectors 'fetch_part') -le $((50304 * 2 / 32 + 1)) ]]
}

@test "chapter 8: causal rows are not read above the diagonal" {
    local json=$BATS_TEST_TMPDIR/counters.json
    counters "$json" $CHAPTER causal aligned --op causal
    # 3 matrices of 64 rows of 8 sectors. Row i has i + 1 columns, in i / 8 + 1 sectors.
    [[ $(total "$json" global_sectors 'load_packs') -le $((3 * 64 * 8 * 3 / 4)) ]]
    assert_equal "$(total "$json" global_sectors 'store_packs')" $((3 * 64 * 8))
}

@test "chapter 8: states that merge without rescaling are wrong" {
    broken $CHAPTER step2_online.cu 's/a\.sum \* exp_below\(a\.max, max\) \+ b\.sum \* exp_below\(b\.max, max\)/a.sum + b.sum/'
    wrong $CHAPTER online ragged --op forward
}

@test "chapter 8: without the guard, a row of nothing but -infinity is NaN" {
    broken $CHAPTER step3_registers.cu 's/\(max == -INFINITY \? 0\.0f : max\)/max/'
    wrong $CHAPTER registers minus_infinity --op forward
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 8: without a barrier the answer is wrong" {
    broken $CHAPTER step1_three_pass.cu '/__syncthreads.*Every warp.s value is there/d'
    wrong $CHAPTER three_pass ragged --op forward
    broken $CHAPTER step3_registers.cu '/__syncthreads.*Every warp.s state is there/d'
    wrong $CHAPTER registers block --op forward
    broken $CHAPTER step4_split.cu '/__syncthreads.*Every warp.s state is there/d'
    wrong $CHAPTER split many_blocks --op forward
}

@test "chapter 8: blocks that do not wait for each other are wrong" {
    broken $CHAPTER step4_split.cu 's/while \(__any_sync\(0xffffffff, word == 0\)\)/if (word == 0)/'
    wrong $CHAPTER split many_blocks --op forward
}

@test "chapter 8: a part of a row that nobody waits for is wrong" {
    broken $CHAPTER step4_split.cu '/^    wait_part/d'
    wrong $CHAPTER split many_blocks --op forward
}

@test "chapter 8: a pack that reaches past the end of the matrix is a fault" {
    broken $CHAPTER step3_registers.cu 's/load_packs\(frag, x_row, first, min\(rest, x_row\.count\)/load_packs(frag, make_row(x + (size_t)row * cols, cols + 8), first, min(rest, x_row.count)/'
    run -3 "$SIMGPU" "$BROKEN" --op forward --step registers --case one_row
    assert_output --partial "step3_registers.cu"
}

@test "chapter 8: a classifier that reads the padding is wrong" {
    broken $CHAPTER step7_classifier.cu 's/first_cols\(out, v\)/first_cols(out, vp)/'
    wrong $CHAPTER classifier small --op classifier
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 8: golden probabilities two bf16 units off are found" {
    one_case $CHAPTER/forward ragged_bf16
    python 'd = sys.argv[1]; y = np.load(d + "/y.npy"); y[8, 1020] += 2 * np.ldexp(1.0, np.frexp(y[8, 1020])[1] - 8); np.save(d + "/y.npy", y)' "$CASE_DIR"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op forward --golden "$CASE_DIR" --step split
    assert_line --regexp '^      y\[row 8, col 1020\]: got .*; 1 of 9189 elements are wrong$'
}

@test "chapter 8: the bound holds for fp32 in NumPy, and catches a row without its largest element" {
    export PYTHONPATH=$ROOT/reference
    run -0 python 'import softmax
rng = np.random.default_rng(8)
for n in 3, 300, 20000:
    x = rng.standard_normal((20, n)).astype(np.float32) * np.float32(5)
    y, tolerance = softmax.OPERATIONS["forward"].outputs({"x": x}, "f32")["y"]
    e = np.exp(x - x.max(-1, keepdims=True))
    got = e * (1 / e.sum(-1, keepdims=True))
    assert np.all(np.abs(got - y) <= tolerance)
    without = np.where(e == 1, 0, e)
    wrong = e / without.sum(-1, keepdims=True)
    assert np.mean(np.abs(wrong - y) > tolerance) > 0.99, n'
}

@test "chapter 8: an operation, step, shape or folder that is not there is named" {
    local program
    program=$(chapter $CHAPTER)
    run -2 --separate-stderr "$program" --op sideways
    assert_equal "$stderr" "--op sideways: no such operation; $CHAPTER has forward, causal, backward, causal_backward, classifier"
    run -2 --separate-stderr "$program" --op causal --step sideways
    assert_equal "$stderr" "--step sideways: no such step; $CHAPTER has 0 device copy, 1 causal"
    run -2 --separate-stderr "$program" --op causal --type f16
    assert_equal "$stderr" "--type f16: no such type, expected one of f32, bf16"
    run -2 --separate-stderr "$program" --golden build/golden/01_naive_matmul
    assert_equal "$stderr" "--golden build/golden/01_naive_matmul: no folder named after an operation; --op says whose cases these are"
    run -2 --separate-stderr "$program" --bench --shape rows=1,cols=1
    assert_equal "$stderr" "--shape: needs --op, one of the operations that --list prints"
    run -2 --separate-stderr "$program" --bench --op forward --shape rows=1,cols=131073
    assert_equal "$stderr" "--shape 'rows=1,cols=131073': cols must be at most 131072"
    run -2 make --no-print-directory chapter-8 SHAPE=rows=1,cols=1
    assert_line --partial "OP is missing: expected one of forward, "
    run -2 make --no-print-directory chapter-8 OP=classifier SHAPE=rows=1,v=9,vp=8
    assert_line --partial "SHAPE 'rows=1,v=9,vp=8': vp must be at least v"
}

@test "chapter 8: the device copy is only a baseline" {
    run -2 --separate-stderr "$SIMGPU" "$(chapter $CHAPTER)" --op forward --step 0
    assert_equal "$stderr" "--step device copy: it moves bytes and computes nothing, expected a step"
}
