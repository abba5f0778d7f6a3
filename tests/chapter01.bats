#!/usr/bin/env bats
# Chapter 1: the naive kernels are right on the simulated GPU, step 2's loads are coalesced and step 1's are not, and a broken one
# fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=01_naive_matmul

@test "chapter 1: every step is right on every case" {
    all_right 2
}

@test "chapter 1: the warps' order does not matter" {
    any_order ragged_bias
}

@test "chapter 1: cuBLAS agrees with the golden files" {
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --step 0
}

@test "chapter 1: make says where it runs and shows step 1's uncoalesced loads" {
    run -0 make chapter-1 DEVICE=sim
    assert_line "chapter 1 on the simulated GPU: DEVICE=sim"
    assert_line --regexp '^01_naive_matmul: all [0-9]+ runs right$'
    assert_line --regexp 'step1_uncoalesced.cu:[0-9]+ '
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 1: the global sectors of step 2 are at most a quarter of step 1's" {
    local one=$BATS_TEST_TMPDIR/one.json two=$BATS_TEST_TMPDIR/two.json
    counters "$one" $CHAPTER 1 one_tile
    counters "$two" $CHAPTER 2 one_tile
    echo "step 1: $(total "$one" global_sectors), step 2: $(total "$two" global_sectors)"
    [[ $(total "$two" global_sectors) -gt 0 ]]
    [[ $(total "$one" global_sectors) -ge $((4 * $(total "$two" global_sectors))) ]]
}

@test "chapter 1: step 2's loads are ideal, step 1's are not" {
    local one=$BATS_TEST_TMPDIR/one.json two=$BATS_TEST_TMPDIR/two.json
    counters "$one" $CHAPTER 1 one_tile
    counters "$two" $CHAPTER 2 one_tile
    [[ $(total "$one" global_sectors) -ge $((4 * $(total "$one" global_sectors_ideal))) ]]
    assert_equal "$(total "$two" global_sectors)" "$(total "$two" global_sectors_ideal)"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 1: a load outside B or a store outside C is a fault" {
    broken $CHAPTER step1_uncoalesced.cu 's/if \(row >= M \|\| col >= N\) return;/if (row >= M) return;/'
    faults $CHAPTER 1 ragged
    assert_output --partial "past the end of allocation"
    broken $CHAPTER step2_coalesced.cu 's/if \(col < N\) C\[/C[/'
    faults $CHAPTER 2 ragged
}

@test "chapter 1: lanes that leave before the shuffles, which then read from them, are a fault" {
    broken $CHAPTER step2_coalesced.cu 's/if \(row >= M\) return;/if (row >= M || col >= N) return;/'
    faults $CHAPTER 2 ragged
    noted $CHAPTER 'lane 0 reads lane 16, which has exited (or never was): the value is undefined'
}

@test "chapter 1: an output that nobody writes is NaN, and NaN is never right" {
    broken $CHAPTER step2_coalesced.cu 's/if \(col < N\) C\[/if (col < N - 1) C[/'
    wrong $CHAPTER 2 ragged
    assert_line --regexp '^      C\[row 0, col 138\]: got -?nan, expected '
}

@test "chapter 1: a NaN that the kernel computes is never right" {
    broken $CHAPTER step2_coalesced.cu 's/= sum \+ \(bias/= sum \/ 0.0f * 0.0f + (bias/'
    wrong $CHAPTER 2 one_element
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 1: a step that writes an input is wrong" {
    broken $CHAPTER step2_coalesced.cu 's/^    float sum = 0\.0f;/&\n    if (row == 0 \&\& lane == 0) const_cast<float *>(A)[0] = 7.0f;/'
    wrong $CHAPTER 2 one_element
    assert_line --regexp 'A\[row 0, col 0\] was overwritten: an input must stay as it was|C\[row 0, col 0\]: got '
}

@test "chapter 1: a step that forgets the bias is wrong where there is one" {
    broken $CHAPTER step2_coalesced.cu 's/\(bias \? bias\[col\] : 0\.0f\)/0.0f/'
    wrong $CHAPTER 2 ragged_bias
}
