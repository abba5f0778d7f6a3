#!/usr/bin/env bats
# Broken kernels must fail, every time. Each is a chapter's own step with one edit, made here so that it cannot drift;
# an edit that changes nothing fails the test.

load test_helper/common
load test_helper/broken

@test "chapter 1: a store outside C is a fault" {
    broken 01_naive_matmul step2_coalesced.cu 's/if \(col < N\) C\[/C[/'
    faults 01_naive_matmul 2 ragged
}

@test "chapter 1: an output that nobody writes is NaN, and NaN is never right" {
    broken 01_naive_matmul step2_coalesced.cu 's/if \(col < N\) C\[/if (col < N - 1) C[/'
    wrong 01_naive_matmul 2 ragged
    assert_line --regexp '^      C\[row 0, col 138\]: got -?nan, expected '
}

@test "chapter 1: a NaN that the kernel computes is never right" {
    broken 01_naive_matmul step2_coalesced.cu 's/= sum \+ \(bias/= sum \/ 0.0f * 0.0f + (bias/'
    wrong 01_naive_matmul 2 one_element
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 1: a step that writes an input is wrong" {
    broken 01_naive_matmul step2_coalesced.cu 's/^    float sum = 0\.0f;/&\n    if (row == 0 \&\& lane == 0) const_cast<float *>(A)[0] = 7.0f;/'
    wrong 01_naive_matmul 2 one_element
    assert_line --regexp 'A\[row 0, col 0\] was overwritten: an input must stay as it was|C\[row 0, col 0\]: got '
}

@test "chapter 1: a step that forgets the bias is wrong where there is one" {
    broken 01_naive_matmul step2_coalesced.cu 's/\(bias \? bias\[col\] : 0\.0f\)/0.0f/'
    wrong 01_naive_matmul 2 ragged_bias
}

@test "chapter 3: without a barrier, the answer is wrong" {
    broken 03_tensor_core_matmul step1_mma.cu '/The tiles are complete before anyone reads them/d'
    wrong 03_tensor_core_matmul 1 deep
    broken 03_tensor_core_matmul step1_mma.cu '/Everyone has read the tiles before anyone overwrites them/d'
    wrong 03_tensor_core_matmul 1 deep
}

@test "chapter 4: a swizzle that the reader and the writer do not share is wrong" {
    broken 04_swizzled_smem step2_swizzled.cu 's/swizzle\(row \* ROW_BYTES \+ col/(row * ROW_BYTES + col/; s/sizeof\(__nv_bfloat16\), SWIZZLE_BITS\);/sizeof(__nv_bfloat16));/'
    wrong 04_swizzled_smem 2 one_tile
}
