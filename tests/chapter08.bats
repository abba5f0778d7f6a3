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
    all_right 8 forward
    all_right 3 causal
    all_right 5 backward
    all_right 1 causal_backward
    all_right 4 classifier
}

@test "chapter 8: the warps' order does not matter" {
    any_order {ragged,several_blocks,many_blocks,minus_infinity}{,_bf16}
}

@test "chapter 8: more parts of rows than one launch takes are right, whatever their order" {
    local file op step seed
    for file in step6_split.cu:forward:split step7_split_shared.cu:forward:split_shared \
        step13_backward_split.cu:backward:backward_split step14_backward_shared.cu:backward:backward_shared \
        step18_classifier_split.cu:classifier:classifier_split; do
        IFS=: read -r file op step <<<"$file"
        broken $CHAPTER "$file" 's/MAX_PARTS = 1 << 16;/MAX_PARTS = 20;/'
        for seed in 0 1 2; do
            run -0 "$SIMGPU" --seed $seed "$BROKEN" --op "$op" --step "$step" --type f32
            assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
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
    assert_line "$CHAPTER: all 16 runs right"
}

@test "chapter 8: ragged rows of clusters of 2 and 4 blocks are right" {
    local op
    for op in forward backward; do # forward: f32 4, bf16 2; backward: bf16 4
        run -0 make chapter-8 DEVICE=sim PROFILE=0 OP=$op STEP="$([[ $op == forward ]] || echo backward_)cluster" SHAPE=rows=2,cols=33001
        assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
    done
    run -0 make chapter-8 DEVICE=sim PROFILE=0 OP=classifier STEP=classifier_cluster SHAPE=rows=2,v=20000,vp=20001 # f32: 2, bf16: 1
    assert_line "$CHAPTER: all 4 runs right"
}

@test "chapter 8: where a GPU has fewer SMs than a row has parts, a block has the whole row" {
    local step
    for step in split split_shared cluster; do
        run -0 "$SIMGPU" --sms 4 "$(chapter $CHAPTER)" --op forward --step $step --case longest
        assert_line "$CHAPTER: all 1 runs right"
    done
}

@test "chapter 8: a causal row that begins inside a pack and has one more than 8 a thread is right" {
    # As 16383 floats have of 512 threads; here 131 packs of at most 128.
    broken $CHAPTER step15_causal_backward.cu 's/packs <= FEW_PACKS \* 256/packs <= 64/; s/packs <= MANY_PACKS \* MAX_THREADS/packs <= 128/'
    run -0 "$SIMGPU" "$BROKEN" --op causal_backward --case block
    assert_line "$CHAPTER: all 1 runs right"
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 8: three passes read a row three times, two passes twice, registers once" {
    local step once=$((5 * 128 * 4 / 32)) # of the rows, read or written
    assert_equal "$(count three_pass aligned global_sectors)" $((4 * once))
    for step in online vectorized; do
        assert_equal "$(count $step aligned global_sectors)" $((3 * once))
    done
    for step in registers short_rows split split_shared cluster; do
        assert_equal "$(count $step aligned global_sectors)" $((2 * once))
        assert_equal "$(count $step aligned global_sectors_ideal)" $((2 * once))
    done
}

@test "chapter 8: a pack costs one rescaling, an element none of its own" {
    [[ $(count vectorized longest active_lanes ex2_approx) -lt $((3 * $(count online longest active_lanes ex2_approx) / 4)) ]]
}

@test "chapter 8: warps with a row each execute less than a block with one" {
    [[ $(count short_rows warp warp_instructions) -lt $((3 * $(count registers warp warp_instructions) / 4)) ]]
    assert_equal "$(count short_rows warp shared_wavefronts)" 0
}

@test "chapter 8: a classifier's short row is a warp's and needs no shared memory, one of a block needs no cluster" {
    assert_equal "$(count classifier_cluster ragged shared_wavefronts)" 0
    [[ $(count classifier_cluster block shared_wavefronts 'row_merge|warp_state') -gt 0 ]]
    assert_equal "$(count classifier_cluster block warp_instructions 'states\.(begin|tell)')" 0
    [[ $(count classifier_cluster two_blocks warp_instructions 'states\.(begin|tell)') -gt 0 ]]
}

@test "chapter 8: one block reads most of a long row twice, several blocks read it once" {
    local row=$((131072 * 4 / 32))
    # A quarter of it fits. The line that reads the rest again writes as much.
    assert_equal "$(count registers longest global_sectors 'load_pack')" $((row + 2 * 3 * row / 4))
    assert_equal "$(count split longest global_sectors 'load_packs')" $row
    assert_equal "$(count split longest global_sectors 'store_packs')" $row
    assert_equal "$(count split_shared longest global_sectors 'fetch_part')" $row
    assert_equal "$(count split_shared longest global_sectors 'store_pack')" $row
    assert_equal "$(count cluster longest global_sectors 'load_packs')" $row
    assert_equal "$(count cluster longest global_sectors)" $((2 * row)) # no tickets, no words
}

@test "chapter 8: a step's counters are its own: no step runs another's kernel" {
    local json=$BATS_TEST_TMPDIR/counters.json op
    for op in forward causal backward causal_backward classifier; do
        run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --op $op
        run -0 python 'import json, re
for kernel in json.load(open(sys.argv[1])):
    name = re.match(r"(?:void )?(\w+?)(?:_parts)?_kernel<", kernel["kernel"])[1]
    files = {re.search(r"step\d+_(\w+)\.cu", line["file"])[1] for line in kernel["lines"] if "/step" in line["file"]}
    assert files == {name}, (kernel["kernel"], files)' "$json"
    done
}

@test "chapter 8: the backward reads y and dy twice, from registers once, and of long rows in several blocks once" {
    local step row=$((131072 * 4 / 32))
    assert_equal "$(count backward aligned global_sectors)" $((5 * 80))
    for step in backward_registers backward_split backward_shared backward_cluster; do
        assert_equal "$(count $step aligned global_sectors)" $((3 * 80))
    done
    for step in backward_split backward_shared backward_cluster; do
        assert_equal "$(count $step longest global_sectors 'fetch_part|load_packs')" $((2 * row))
    done
}

@test "chapter 8: the classifier reads the logits twice, from shared memory once, and of long rows in several blocks once" {
    local once step
    once=$(count classifier gpt2 global_sectors 'merge\(state, pack_state')
    [[ $once -le $((50304 * 4 / 32 + 1)) ]]
    assert_equal "$(count classifier gpt2 global_sectors 'scaled_softmax<T>\(load_pack')" "$once"
    assert_equal "$(count classifier_shared gpt2 global_sectors 'fetch_part')" $((104 * 1024 / 32))
    for step in classifier_split classifier_cluster; do
        [[ $(count $step gpt2 global_sectors 'fetch_part') -le $((50304 * 4 / 32 + 1)) ]]
    done
    for step in classifier_shared classifier_split classifier_cluster; do
        [[ $(count $step gpt2_bf16 global_sectors 'fetch_part') -le $((50304 * 2 / 32 + 1)) ]]
        assert_equal "$(count $step gpt2_bf16 global_sectors 'scaled_softmax<T>\(load_pack')" 0
    done
}

@test "chapter 8: causal rows are not read above the diagonal, and their exponentials are half of the square's" {
    local step
    for step in causal causal_skip causal_reverse; do
        # 3 matrices of 64 rows of 8 sectors. Row i has i + 1 columns, in i / 8 + 1 sectors.
        [[ $(count $step aligned global_sectors 'load_packs') -le $((3 * 64 * 8 * 3 / 4)) ]]
        assert_equal "$(count $step aligned global_sectors 'store_packs')" $((3 * 64 * 8))
    done
    [[ $(count causal_skip block active_lanes ex2_approx) -lt $((3 * $(count causal block active_lanes ex2_approx) / 5)) ]]
    [[ $(count causal_backward aligned global_sectors 'load_packs') -le $((2 * 3 * 64 * 8 * 3 / 4)) ]]
}

@test "chapter 8: the counters that note 8 quotes are what its commands count" {
    local quoted count op step case field pattern
    while read -r quoted op step case field pattern; do
        count=$(count "$step" "$case" "$field" "$pattern" | sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta')
        assert_equal "$op $step $case $field $pattern: $count" "$op $step $case $field $pattern: $quoted"
        grep -qF "$quoted" notes/08_online_softmax.md || fail "note 8 does not say $quoted"
    done <<'END'
12,018 forward three_pass warp warp_instructions ^
16,092 forward online warp warp_instructions ^
15,066 forward vectorized warp warp_instructions ^
4,782 forward registers warp warp_instructions ^
3,232 forward short_rows warp warp_instructions ^
16,384 forward split longest global_sectors load_packs
2,670,516 causal causal block active_lanes ex2_approx
1,487,976 causal causal_skip block active_lanes ex2_approx
1,487,976 causal causal_reverse block active_lanes ex2_approx
6,284 classifier classifier gpt2_bf16 global_sectors load_pack\(
3,142 classifier classifier_shared gpt2_bf16 global_sectors fetch_part|load_pack\(
3,142 classifier classifier_split gpt2_bf16 global_sectors fetch_part
3,142 classifier classifier_cluster gpt2_bf16 global_sectors load_packs
12,566 classifier classifier gpt2 global_sectors load_pack\(
9,238 classifier classifier_shared gpt2 global_sectors fetch_part|load_pack\(
6,284 classifier classifier_split gpt2 global_sectors fetch_part
END
}

@test "chapter 8: make diff-8 compares every step, and every header ends with the command that runs it" {
    ladders "forward three_pass online vectorized registers short_rows split split_shared cluster" \
        "causal causal causal_skip causal_reverse" "backward backward backward_registers backward_split backward_shared backward_cluster" \
        "causal_backward causal_backward" "classifier classifier classifier_shared classifier_split classifier_cluster"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------

@test "chapter 8: states that merge without rescaling are wrong" {
    broken $CHAPTER step2_online.cu 's/a\.sum \* exp_below\(a\.max, max\) \+ b\.sum \* exp_below\(b\.max, max\)/a.sum + b.sum/'
    wrong $CHAPTER online ragged --op forward
    noted $CHAPTER 'y[row 0, col 0]: got 0.000168977276, expected 0.00280495249, tolerance 1.36e-07; 9189 of 9189 elements are wrong'
}

@test "chapter 8: a neighbour's element that counts as 0 instead of -infinity is wrong" {
    broken $CHAPTER step3_vectorized.cu 's/pack_state<T>\(load_pack\(x_row, p, -INFINITY\)\)/pack_state<T>(load_pack(x_row, p, 0.0f))/'
    wrong $CHAPTER vectorized ragged --op forward
}

@test "chapter 8: without the guard, a row of nothing but -infinity is NaN" {
    broken $CHAPTER step4_registers.cu 's/\(max == -INFINITY \? 0\.0f : max\)/max/'
    wrong $CHAPTER registers minus_infinity --op forward
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 8: without a barrier the race is named" {
    local file op step case
    for file in step1_three_pass.cu:forward:three_pass:ragged step4_registers.cu:forward:registers:block \
        step7_split_shared.cu:forward:split_shared:many_blocks step11_backward.cu:backward:backward:ragged \
        step12_backward_registers.cu:backward:backward_registers:ragged_block \
        step21_classifier_cluster.cu:classifier:classifier_cluster:block; do
        IFS=: read -r file op step case <<<"$file"
        broken $CHAPTER "$file" "/__syncthreads.*Every warp.s (value|state|sum) is there/d"
        races $CHAPTER "$step" "$case" --op "$op"
    done
}

@test "chapter 8: a pack that reaches past the end of the matrix is a fault" {
    broken $CHAPTER step4_registers.cu 's/load_packs\(frag, x_row, first, min\(rest, x_row\.count\)/load_packs(frag, make_row(x + (size_t)blockIdx.x * cols, cols + 8), first, min(rest, x_row.count)/'
    run -3 "$SIMGPU" "$BROKEN" --op forward --step registers --case one_row
    assert_output --partial "step4_registers.cu"
}

@test "chapter 8: a warp without a row that goes on is a fault" {
    broken $CHAPTER step5_short_rows.cu '/if \(row >= rows\) return;/d'
    run -3 "$SIMGPU" "$BROKEN" --op forward --step short_rows --case ragged
    assert_output --partial "step5_short_rows.cu"
    broken $CHAPTER step21_classifier_cluster.cu '/if \(i >= rows\) return;/d'
    run -3 "$SIMGPU" "$BROKEN" --op classifier --step classifier_cluster --case ragged
    assert_output --partial "step21_classifier_cluster.cu"
}

@test "chapter 8: a block that takes the row for a warp's is wrong, and warps that take theirs for one are a race" {
    broken $CHAPTER step21_classifier_cluster.cu 's/if \(blockDim\.x == 32\) return state;/return state;/'
    wrong $CHAPTER classifier_cluster block --op classifier
    broken $CHAPTER step21_classifier_cluster.cu '/if \(blockDim\.x == 32\) return state;/d'
    races $CHAPTER classifier_cluster ragged --op classifier
}

@test "chapter 8: blocks that do not wait for each other fail" {
    local file op step
    for file in step6_split.cu:forward:split step13_backward_split.cu:backward:backward_split; do
        IFS=: read -r file op step <<<"$file"
        broken $CHAPTER "$file" 's/while \(__any_sync\(0xffffffff, word == 0\)\)/if (word == 0)/'
        fails $CHAPTER "$step" many_blocks --op "$op"
    done
}

# cluster_broken SED REGEXP: every step of clusters, with exchange.cuh edited so, is stopped on every seed by such a report. The last run is
# the forward's.
cluster_broken() {
    local file op step case seed
    for file in step21_classifier_cluster.cu:classifier:classifier_cluster:two_blocks \
        step20_backward_cluster.cu:backward:backward_cluster:many_blocks step19_cluster.cu:forward:cluster:many_blocks; do
        IFS=: read -r file op step case <<<"$file"
        HEADER=../../common/device/exchange.cuh broken $CHAPTER "$file" "$1"
        for seed in 0 1 2; do
            run -3 "$SIMGPU" --seed $seed "$BROKEN" --op "$op" --step "$step" --case "$case"
            assert_output --regexp "$2"
        done
    done
}

@test "chapter 8: blocks of a cluster that do not wait for what they are told, or not for all of it, are found" {
    local early="is read before the copy that brings it has been waited for: 'st\.async"
    cluster_broken '/mbarrier_wait\(&full, 0\)/d' "$early"
    noted $CHAPTER "is read before the copy that brings it has been waited for: 'st.async"
    cluster_broken 's/count\(\) \* sizeof\(T\)/(count() - 1) * sizeof(T)/' "$early|bytes expected, but the copies in flight bring"
}

@test "chapter 8: a block that writes to one that may not have started is a fault" {
    cluster_broken '/cluster_wait\(\);.*Every block has started/d; /cluster_arrive_relaxed/d' \
        "it may not have started|no mbarrier has been initialised|is used before its mbarrier\.init is visible here"
    local said
    for said in "it may not have started" "no mbarrier has been initialised" "is used before its mbarrier.init is visible here"; do
        [[ $output != *"$said"* ]] || break
    done
    noted $CHAPTER "$said"
}

@test "chapter 8: a part of a row that nobody waits for is named" {
    local file op step case
    for file in step7_split_shared.cu:forward:split_shared:many_blocks \
        step14_backward_shared.cu:backward:backward_shared:many_blocks \
        step20_backward_cluster.cu:backward:backward_cluster:many_blocks \
        step17_classifier_shared.cu:classifier:classifier_shared:ragged; do
        IFS=: read -r file op step case <<<"$file"
        broken $CHAPTER "$file" '/^    wait_part/d'
        races $CHAPTER "$step" "$case" --op "$op"
        noted $CHAPTER 'shared offset … is read before the cp.async at line … that brings it has been waited for'
    done
}

@test "chapter 8: a causal row that is not cut at the diagonal is NaN" {
    broken $CHAPTER step8_causal.cu 's/first_cols\(whole, row % t \+ 1\)/whole/'
    wrong $CHAPTER causal ragged --op causal
    broken $CHAPTER step15_causal_backward.cu 's/= same_row\(y_row, dy,/= same_row(dx_row, dy,/'
    wrong $CHAPTER causal_backward ragged --op causal_backward
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 8: a loop that ends one pack before the diagonal is wrong" {
    broken $CHAPTER step9_causal_skip.cu 's/first \+ 32 \* i >= end/first + 32 * i + 1 >= end/'
    wrong $CHAPTER causal_skip ragged --op causal
}

@test "chapter 8: rows counted from one past the last are a fault" {
    broken $CHAPTER step10_causal_reverse.cu 's/rows - 1 - \(int\)/rows - (int)/'
    run -3 "$SIMGPU" "$BROKEN" --op causal --step causal_reverse --case ragged
    assert_output --partial "step10_causal_reverse.cu"
}

@test "chapter 8: a classifier that reads the padding is wrong" {
    broken $CHAPTER step16_classifier.cu 's/first_cols\(out, v\)/first_cols(out, vp)/'
    wrong $CHAPTER classifier small --op classifier
    noted $CHAPTER 'got nan, expected …; 120 of 120 elements are wrong'
}

@test "chapter 8: a classifier whose parts all take themselves for the row's first is a race between blocks" {
    broken $CHAPTER step18_classifier_split.cu 's/const int begin = part_of_row \* share;/const int begin = 0;/'
    races $CHAPTER classifier_split two_blocks --op classifier
}

@test "chapter 8: golden probabilities two bf16 units off are found" {
    one_case $CHAPTER/forward ragged_bf16
    python 'd = sys.argv[1]; y = np.load(d + "/y.npy"); y[8, 1020] += 2 * np.ldexp(1.0, np.frexp(y[8, 1020])[1] - 8); np.save(d + "/y.npy", y)' "$CASE_DIR"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op forward --golden "$CASE_DIR" --step split_shared
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
    assert_equal "$stderr" "--step sideways: no such step; $CHAPTER has 0 device copy, 8 causal, 9 causal_skip, 10 causal_reverse"
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

@test "chapter 8: a step that needs a newer GPU is left out by name, and refused when it is asked for" {
    local newer=$BATS_TEST_TMPDIR/newer main=$BATS_TEST_TMPDIR/chapters/$CHAPTER/main objects # named by its folder
    mkdir -p "$(dirname "$main")"
    sed 's/[.]needs = 90/.needs = 100/' chapters/$CHAPTER/main.c >"$main.c"
    mapfile -t objects < <(objects $CHAPTER main)
    gcc -std=gnu11 -iquote chapters/$CHAPTER -isystem "$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)" -c -o "$main.o" "$main.c"
    g++ -o "$newer" "$main.o" "${objects[@]}" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" "$newer" --golden build/golden/$CHAPTER --op forward --case aligned
    assert_line "left out: 19 cluster needs sm_100"
    assert_line "$CHAPTER: all 7 runs right"
    run -2 --separate-stderr "$SIMGPU" "$newer" --golden build/golden/$CHAPTER --op forward --step cluster
    assert_equal "$stderr" "--step cluster: needs sm_100, and Simulated GPU (SM90) is sm_90"
}

@test "chapter 8: the device copy is only a baseline" {
    run -2 --separate-stderr "$SIMGPU" "$(chapter $CHAPTER)" --op forward --step 0
    assert_equal "$stderr" "--step device copy: it does other work, so that its outputs say nothing; expected a step"
}
