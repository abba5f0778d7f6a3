#!/usr/bin/env bats
# Chapter 3: the tensor cores' operands are right on the simulated GPU, at 8 wavefronts for each ldmatrix, and a broken one fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=03_tensor_core_matmul

@test "chapter 3: the step is right on every case" {
    all_right 1
}

@test "chapter 3: the warps' order does not matter" {
    any_order ragged_bias
}

@test "chapter 3: cuBLAS agrees with the golden files" {
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --step 0
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 3: an ldmatrix takes 8 wavefronts where 1 is ideal" {
    local json=$BATS_TEST_TMPDIR/counters.json
    counters "$json" $CHAPTER 1 one_tile
    [[ $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync') -gt 0 ]]
    assert_equal "$(total "$json" shared_wavefronts '^ldmatrix_|ldmatrix\.sync')" \
        "$((8 * $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync')))"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 3: without a barrier, the race is named" {
    broken $CHAPTER step1_mma.cu '/The tiles are complete before anyone reads them/d'
    races $CHAPTER 1 deep
    broken $CHAPTER step1_mma.cu '/Everyone has read the tiles before anyone overwrites them/d'
    races $CHAPTER 1 deep
}

@test "chapter 3: an ldmatrix address between two chunks is a fault, the pieces of A in the wrong order are wrong" {
    broken $CHAPTER step1_mma.cu 's/lane \/ 16 \* 8/lane \/ 16 * 4/'
    faults $CHAPTER 1 ragged
    assert_output --partial "must be a multiple of 16"
    broken $CHAPTER step1_mma.cu 's/warp_row \+ lane % 16\]\[lane \/ 16 \* 8/warp_row + lane \/ 2][lane % 2 * 8/'
    wrong $CHAPTER 1 ragged
}
