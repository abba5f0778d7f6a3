#!/usr/bin/env bats
# Chapter 13: TMA and wgmma are right on the simulated GPU, their operands meet no bank conflict, and a broken one fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=13_tma_wgmma_matmul

@test "chapter 13: every step is right on every case of both operations" {
    all_right 3
}

@test "chapter 13: the warps' order does not matter" {
    any_order several_tiles_bias ragged_f16
}

@test "chapter 13: shapes of the user's own: odd rows of C, one row, one column, the smallest k, a long k" {
    local shape
    for shape in m=77,n=301,k=72 m=1,n=129,k=200 m=65,n=1,k=8 m=130,n=257,k=1096; do
        run -0 make chapter-13 DEVICE=sim OP=matmul SHAPE=$shape SEED=4 PROFILE=0
        assert_line "$CHAPTER: all 12 runs right"
    done
    run -0 make chapter-13 DEVICE=sim OP=matmul_f32 SHAPE=m=77,n=301,k=72 SEED=4 PROFILE=0
    assert_line "$CHAPTER: all 12 runs right"
}

@test "chapter 13: rows that are no multiple of 16 bytes are refused in one line that names k" {
    run -2 make --no-print-directory chapter-13 OP=matmul SHAPE=m=8,n=8,k=12
    assert_line --partial "k must be a multiple of 8"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --op matmul_f32 --shape m=8,n=8,k=12
    assert_one_line
    assert_output --partial "k must be a multiple of 8"
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 13: wgmma reads its operands without a bank conflict" {
    local json=$BATS_TEST_TMPDIR/counters.json step
    for step in 1 2 3; do
        counters "$json" $CHAPTER $step several_tiles_bias --op matmul
        [[ $(total "$json" shared_wavefronts_ideal '^wgmma<') -gt 0 ]]
        assert_equal "$(total "$json" shared_wavefronts '^wgmma<')" "$(total "$json" shared_wavefronts_ideal '^wgmma<')"
    done
}

@test "chapter 13: step 3's larger tile fetches three quarters of step 2's bytes" {
    local two=$BATS_TEST_TMPDIR/2.json three=$BATS_TEST_TMPDIR/3.json
    counters "$two" $CHAPTER 2 tile --op matmul
    counters "$three" $CHAPTER 3 tile --op matmul
    assert_equal "$(total "$two" copied_bytes)" $((2 * (128 + 128) * 64 * 2))
    assert_equal "$(total "$three" copied_bytes)" $(((128 + 256) * 64 * 2))
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 13: without waiting for the copies, or for the wrong parity of them, step 1 is stopped" {
    broken $CHAPTER step1_tma_wgmma.cu '/mbarrier_wait\(&smem\.full/d'
    local found="before the copy that brings it has been waited for|this copy writes shared offset .* may still read"
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --regexp "$found" # the read, where it comes after the copy, or the copy, where it comes after the read
    broken $CHAPTER step1_tma_wgmma.cu 's/(expect_tx\(&smem\.full, sizeof smem\.A_smem) \+ sizeof smem\.B_smem/\1/'
    faults $CHAPTER 1 tile --op matmul # Whoever waits long enough finds more bytes than were expected.
    run -3 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step 1 --case tile --op matmul
    noted $CHAPTER 'shared offset 16384 is read before the copy that brings it has been waited for'
    broken $CHAPTER step1_tma_wgmma.cu '/^        parity \^= 1;/d'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --regexp "$found"
}

@test "chapter 13: accumulators that are stored before their products are done are a fault" {
    broken $CHAPTER step1_tma_wgmma.cu '/wgmma_wait_group<0>/d'
    faults $CHAPTER 1 tile --op matmul
    broken $CHAPTER step2_multi_stage.cu '/wgmma_wait_group<0>/d'
    faults $CHAPTER 2 several_tiles_bias --op matmul
}

@test "chapter 13: without wgmma.fence step 3 is stopped" {
    broken $CHAPTER step3_large_tile.cu '/ wgmma_fence\(\);/d'
    faults $CHAPTER 3 several_tiles_bias --op matmul
    noted $CHAPTER 'wgmma.fence is missing: this warp has executed none before its first wgmma'
}

@test "chapter 13: a stage that is overwritten while wgmma reads it is a fault" {
    broken $CHAPTER step2_multi_stage.cu 's/wgmma_wait_group<1>/wgmma_wait_group<2>/'
    faults $CHAPTER 2 deep --op matmul
    noted $CHAPTER 'this copy writes shared offset 0 of block (0,0,0) where the wgmma at line … (warps 0 to 3) may still read'
    broken $CHAPTER step3_large_tile.cu '/in every warp: its stage may be overwritten/d'
    fails $CHAPTER 3 deep --op matmul
}

@test "chapter 13: a barrier that TMA may not yet see is a fault" {
    broken $CHAPTER step1_tma_wgmma.cu '/fence_mbarrier_init/d'
    faults $CHAPTER 1 one_element --op matmul
}

@test "chapter 13: a descriptor that knows nothing of the swizzle is wrong" {
    broken $CHAPTER step1_tma_wgmma.cu 's/= wgmma_descriptor\(A_smem\)/= wgmma_descriptor(A_smem) \& ~(3ull << 62)/'
    wrong $CHAPTER 1 tile --op matmul
}

# zeros SED: builds step 1 with sums that begin as zeros, which every product adds to, and one more edit.
zeros() {
    broken $CHAPTER step1_tma_wgmma.cu "0,/wgmma_touch\\(acc\\[0\\]\\);/s//for (int r = 0; r < BLOCK_N \\/ 2; r++) acc[0][r] = acc[1][r] = 0.0f;\\n        &/; s/smem\\.B_smem\\[0\\], tile > 0/smem.B_smem[0], true/; $1"
    run -0 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --op matmul --step 1 --case tile
}

@test "chapter 13: wgmma_touch keeps zeros that a loop wrote before the fence; without it ptxas makes the products wait for each other" {
    local nvcc
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    zeros ''
    run -0 tools/sass.sh "$nvcc" "$BATS_TEST_TMPDIR/tree/chapters/$CHAPTER/step1_tma_wgmma.cu" 90a "$BATS_TEST_TMPDIR/with.cubin" -std=c++17 -O3
    zeros 's/^constexpr int BLOCK_M/#define wgmma_touch(acc) (void)0\n&/'
    run -1 tools/sass.sh "$nvcc" "$BATS_TEST_TMPDIR/tree/chapters/$CHAPTER/step1_tma_wgmma.cu" 90a "$BATS_TEST_TMPDIR/without.cubin" -std=c++17 -O3
    assert_line --regexp "step1_tma_wgmma.cu: .*C7517.*warpgroup.wait is injected"
}
