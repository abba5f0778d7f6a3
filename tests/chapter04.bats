#!/usr/bin/env bats
# Chapter 4: padded and swizzled tiles are right on the simulated GPU and free of bank conflicts, and a broken one fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=04_swizzled_smem

@test "chapter 4: every step is right on every case" {
    all_right 2
}

@test "chapter 4: the warps' order does not matter" {
    any_order ragged_bias
}

# --- Counters -------------------------------------------------------------------------------------------------------

# conflicts PROGRAM STEP: the wavefronts of a step's ldmatrix on one_tile, and how few they could be.
conflicts() {
    local json=$BATS_TEST_TMPDIR/counters.json
    run -0 "$SIMGPU" --json "$json" "$1" --golden "build/golden/$CHAPTER" --step "$2" --case one_tile
    [[ $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync') -gt 0 ]]
    output="$(total "$json" shared_wavefronts '^ldmatrix_|ldmatrix\.sync') of $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync')"
}

@test "chapter 4: no ldmatrix takes a wavefront more than is ideal" {
    local step
    for step in 1 2; do
        conflicts "$(chapter $CHAPTER)" $step
        assert_output --regexp '^([0-9]+) of \1$'
    done
}

@test "chapter 4: 32 bytes of padding, or too few bits swizzled, take two wavefronts for one" {
    broken $CHAPTER step1_padded.cu 's/PADDING = CHUNK;/PADDING = 2 * CHUNK;/'
    conflicts "$BROKEN" 1
    assert_output "1024 of 512"
    broken $CHAPTER step2_swizzled.cu 's/BLOCK_K = 64;/BLOCK_K = 32;/; s/SWIZZLE_BITS = 3;/SWIZZLE_BITS = 1;/; /^static_assert\(CHUNKS_PER_ROW == 1/d'
    conflicts "$BROKEN" 2
    assert_output "512 of 256"
    broken $CHAPTER step2_swizzled.cu 's/BLOCK_K = 64;/BLOCK_K = 32;/; s/SWIZZLE_BITS = 3;/SWIZZLE_BITS = 2;/'
    conflicts "$BROKEN" 2
    assert_output "256 of 256"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 4: without a barrier, the race is named" {
    local file
    for file in step1_padded.cu step2_swizzled.cu; do
        broken $CHAPTER $file '/The tiles are complete before anyone reads them/d'
        races $CHAPTER "${file:4:1}" deep
        broken $CHAPTER $file '/Everyone has read the tiles before anyone overwrites them/d'
        races $CHAPTER "${file:4:1}" deep
    done
}

@test "chapter 4: a padding that leaves rows between multiples of 16 bytes is a fault" {
    broken $CHAPTER step1_padded.cu 's/PADDING = CHUNK;/PADDING = CHUNK \/ 2;/'
    faults $CHAPTER 1 ragged
    assert_output --partial "cudaErrorMisalignedAddress"
}

@test "chapter 4: a swizzle that the reader and the writer do not share is wrong" {
    broken $CHAPTER step2_swizzled.cu 's/swizzle\(row \* ROW_BYTES \+ col/(row * ROW_BYTES + col/; s/sizeof\(__nv_bfloat16\), SWIZZLE_BITS\);/sizeof(__nv_bfloat16));/'
    wrong $CHAPTER 2 one_tile
}

@test "chapter 4: a swizzle of more bits than a row has chunks is wrong, and adding instead of XOR walks out of the tile" {
    broken $CHAPTER step2_swizzled.cu 's/BLOCK_K = 64;/BLOCK_K = 32;/; /^static_assert\(CHUNKS_PER_ROW == 1/d'
    wrong $CHAPTER 2 one_tile
    broken $CHAPTER step2_swizzled.cu 's/\(B_addr \^ k_bytes\)/(B_addr + k_bytes)/'
    faults $CHAPTER 2 ragged
    assert_output --partial "out of bounds: read of 16 bytes at shared offset 32784"
}
