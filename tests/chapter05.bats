#!/usr/bin/env bats
# Chapter 5: the cp.async pipelines are right on the simulated GPU, each step saves what its header says, and a broken one
# fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=05_cp_async_pipeline

@test "chapter 5: every step is right on every case" {
    all_right 9
}

@test "chapter 5: the warps' order does not matter" {
    any_order ragged_bias deep
}

@test "chapter 5: shapes of the user's own: odd rows of C, one row, one column, the smallest k, a long k" {
    local shape
    for shape in m=77,n=301,k=72 m=1,n=129,k=200 m=65,n=1,k=8 m=130,n=257,k=1096; do
        run -0 make chapter-5 DEVICE=sim SHAPE=$shape SEED=4 PROFILE=0
        assert_line "$CHAPTER: all 18 runs right"
    done
}

@test "chapter 5: the last step is right where a block has more than one tile of C" {
    run -0 make chapter-5 DEVICE=sim STEP=persistent SHAPE=m=1505,n=3401,k=8 PROFILE=0
    assert_line "$CHAPTER: all 2 runs right"
}

@test "chapter 5: rows that are no multiple of 16 bytes are refused in one line that names k" {
    run -2 make --no-print-directory chapter-5 SHAPE=m=8,n=8,k=12
    assert_line --partial "k must be a multiple of 8"
}

# compiles FILE SED: whether a step compiles with one edit.
compiles() {
    local dir=$BATS_TEST_TMPDIR/tree
    mkdir -p "$dir/chapters/$CHAPTER"
    ln -sfn "$ROOT/common" "$dir/common"
    find "$ROOT/chapters/$CHAPTER" -name '*.h' -exec ln -sf -t "$dir/chapters/$CHAPTER" {} +
    sed -E "$2" "chapters/$CHAPTER/$1" >"$dir/chapters/$CHAPTER/$1"
    run ! cmp -s "chapters/$CHAPTER/$1" "$dir/chapters/$CHAPTER/$1"
    run "$(sed -n 's/^NVCC *:= *//p' build/config.mk)" -std=c++17 -arch=compute_80 -ptx -o /dev/null "$dir/chapters/$CHAPTER/$1"
}

@test "chapter 5: stages that overlap nothing or leave nothing to wait for do not compile" {
    compiles step1_two_stage.cu 's/NUM_STAGES = 2/NUM_STAGES = 1/'
    assert_failure
    assert_output --partial "one tile is copied while one is multiplied"
    compiles step2_multi_stage.cu 's/NUM_STAGES = 3/NUM_STAGES = 2/'
    assert_failure
    assert_output --partial "with two stages no copy is in flight while a tile is multiplied"
    compiles step3_fragments_ahead.cu 's/NUM_STAGES = 3/NUM_STAGES = 1/'
    assert_failure
    assert_output --partial "a tile is multiplied while the next one is copied"
    compiles step9_persistent.cu 's/MAX_STAGES = 3/MAX_STAGES = 1/'
    assert_failure
    assert_output --partial "a tile is multiplied while the next one is copied"
    compiles step2_multi_stage.cu 's/NUM_STAGES = 3/NUM_STAGES = 4/'
    assert_success
}

@test "chapter 5: rings of four stages are right: their number is one constant" {
    broken $CHAPTER step2_multi_stage.cu 's/NUM_STAGES = 3/NUM_STAGES = 4/'
    run -0 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step 2
    broken $CHAPTER step9_persistent.cu 's/MAX_STAGES = 3/MAX_STAGES = 4/'
    run -0 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step 9
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 5: no ldmatrix and no copy takes a wavefront more than is ideal" {
    local step
    for step in 1 2 3 4 5 6 7 8 9; do
        [[ $(count $step several_tiles shared_wavefronts_ideal '^ldmatrix_') -gt 0 ]]
        assert_equal "$(count $step several_tiles shared_wavefronts)" "$(count $step several_tiles shared_wavefronts_ideal)"
    done
}

@test "chapter 5: step 4's wide loads bring B's fragments in as many wavefronts and half the instructions" {
    local two='^ldmatrix_x2\(B_frag' four='^ldmatrix_x4\(pair'
    assert_equal "$(count 3 several_tiles shared_wavefronts "$two")" "$(count 4 several_tiles shared_wavefronts "$four")"
    echo "$(count 3 several_tiles warp_instructions "$two"), $(count 4 several_tiles warp_instructions "$four")"
    [[ $(count 3 several_tiles warp_instructions "$two") -ge $((2 * $(count 4 several_tiles warp_instructions "$four"))) ]]
}

@test "chapter 5: step 6's wide block fetches three quarters of step 5's bytes" {
    local cases=build/golden/shapes/$CHAPTER/m=256,n=256,k=128,seed=1 five=$BATS_TEST_TMPDIR/five.json six=$BATS_TEST_TMPDIR/six.json
    run -0 make chapter-5 DEVICE=sim SHAPE=m=256,n=256,k=128 PROFILE=0 STEP=wide_block
    counters "$five" $CHAPTER 5 plain --golden "$cases"
    counters "$six" $CHAPTER 6 plain --golden "$cases"
    assert_equal "$(total "$five" global_sectors '^cp_async_cg_16')" $((4 * (128 + 128) * 128 * 2 / 32))
    assert_equal "$(total "$six" global_sectors '^cp_async_cg_16')" $((2 * (128 + 256) * 128 * 2 / 32))
}

@test "chapter 5: step 8 writes whole sectors of C, step 7 each of them twice" {
    local cases=build/golden/shapes/$CHAPTER/m=256,n=256,k=128,seed=1 seven=$BATS_TEST_TMPDIR/seven.json eight=$BATS_TEST_TMPDIR/eight.json
    run -0 make chapter-5 DEVICE=sim SHAPE=m=256,n=256,k=128 PROFILE=0 STEP=wide_stores
    counters "$seven" $CHAPTER 7 plain --golden "$cases"
    counters "$eight" $CHAPTER 8 plain --golden "$cases"
    assert_equal "$(total "$eight" global_sectors 'uint4 \*>\(dst\) =')" $((256 * 256 * 2 / 32))
    assert_equal "$(total "$seven" global_sectors 'nv_bfloat162 \*>\(dst\) =')" $((2 * 256 * 256 * 2 / 32))
}

@test "chapter 5: step 9 fetches and writes what step 8 does" {
    assert_equal "$(count 9 several_tiles global_sectors)" "$(count 8 several_tiles global_sectors)"
}

@test "chapter 5: the table of counters in its note is what the note's command counts" {
    local json=$BATS_TEST_TMPDIR/note.json
    run -0 make chapter-5 DEVICE=sim SHAPE=m=256,n=256,k=256 PROFILE=0
    run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "build/golden/shapes/$CHAPTER/m=256,n=256,k=256,seed=1"
    run -0 tabled notes/$CHAPTER.md "$json"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 5: a wait_group that is off by one is caught" {
    broken $CHAPTER step1_two_stage.cu 's/cp_async_wait_group<1>/cp_async_wait_group<2>/'
    races $CHAPTER 1 deep
    broken $CHAPTER step2_multi_stage.cu 's/cp_async_wait_group<NUM_STAGES - 2>/cp_async_wait_group<NUM_STAGES - 1>/'
    races $CHAPTER 2 deep
    noted $CHAPTER 'shared offset … is read before the cp.async at line … that brings it has been waited for'
}

@test "chapter 5: without a __syncthreads the race is named" {
    broken $CHAPTER step1_two_stage.cu '/so has every other thread.s part of it/d'
    races $CHAPTER 1 deep
    broken $CHAPTER step1_two_stage.cu '/Everyone has read this stage before anyone starts to overwrite it/d'
    races $CHAPTER 1 deep
    noted $CHAPTER 'race on shared offset …: this write is not ordered after the read …'
    broken $CHAPTER step2_multi_stage.cu '/so has every other thread.s part of it/d'
    races $CHAPTER 2 deep
}

@test "chapter 5: step 3 that crosses into the next stage without waiting for its copies fails" {
    broken $CHAPTER step3_fragments_ahead.cu '/The next stage has arrived,/d'
    fails $CHAPTER 3 deep
}

@test "chapter 5: step 3 that reads the next slice over the one it multiplies gives a wrong answer" {
    broken $CHAPTER step3_fragments_ahead.cu 's/load_frags\(A_frag\[\(slice \+ 1\) % 2\]/load_frags(A_frag[slice % 2]/'
    wrong $CHAPTER 3 deep
}

@test "chapter 5: step 4 whose upper lanes name the rows of the lower ones gives a wrong answer" {
    broken $CHAPTER step4_wide_loads.cu 's/warp_col \+ lane \/ 16 \* 8 \+ lane % 8/warp_col + lane % 8/'
    wrong $CHAPTER 4 one_tile
    noted $CHAPTER 'C[row 0, col 8]: got -6.03125, expected 6.59825289, tolerance 0.0157; 8186 of 16384 elements are wrong'
}

@test "chapter 5: step 5 whose copies see the end of K too late fails" {
    broken $CHAPTER step5_lean_loop.cu 's/k_left -= BLOCK_K;/k_left -= BLOCK_K \/ 2;/'
    fails $CHAPTER 5 ragged
}

@test "chapter 5: step 6 whose blocks lie as close as the narrow ones gives a wrong answer" {
    broken $CHAPTER step6_wide_block.cu 's/block_col = blockIdx\.x \* BLOCK_N;/block_col = blockIdx.x * BLOCK_N \/ 2;/'
    fails $CHAPTER 6 wide
}

@test "chapter 5: step 7 whose last group is taken for a whole one gives a wrong answer" {
    broken $CHAPTER step7_grouped_tiles.cu 's/const int rows = min\(.*\);/const int rows = GROUP_M;/'
    fails $CHAPTER 7 several_tiles
}

@test "chapter 5: step 8 that copies B's rows in their own order gives a wrong answer" {
    broken $CHAPTER step8_wide_stores.cu 's/return n % 8 \/ 2 \* 8 .*;/return n;/'
    wrong $CHAPTER 8 one_tile
    noted $CHAPTER '12280 of 16384 elements are wrong'
}

@test "chapter 5: step 9 whose copies stay with the first tile of C gives a wrong answer" {
    run -0 make chapter-5 DEVICE=sim STEP=persistent SHAPE=m=1505,n=3401,k=8 PROFILE=0
    broken $CHAPTER step9_persistent.cu '/copy_tile \+= gridDim\.x;/d'
    wrong $CHAPTER 9 plain --golden "build/golden/shapes/$CHAPTER/m=1505,n=3401,k=8,seed=1"
}
