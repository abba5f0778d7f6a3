#!/usr/bin/env bats
# Chapter 14: warp-specialised matmul is right on the simulated GPU, whatever the shape and the order of the warps; its
# counters show what each step claims; and a kernel that breaks one of the rules is stopped, every time.

# Each test sets GOLDEN anew.
# shellcheck disable=SC2030,SC2031
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=14_warp_specialized_matmul

# golden SHAPE: sets GOLDEN to golden files of matmul for a shape; made once for this file.
golden() {
    GOLDEN=$BATS_FILE_TMPDIR/$1
    [[ -d "$GOLDEN" ]] || "$PYTHON" reference/golden.py matmul_16bit --types bf16,f16 --op matmul --out "$GOLDEN" --shape "$1" --seed 2
}

# Fewer SMs make a small matrix a large one: several tiles for every block that stays.
several_rounds() { SIMGPU_SMS=4 && export SIMGPU_SMS && golden m=700,n=500,k=520; }
# 3 tiles for 4 clusters, 100 steps each: cut along k.
stream_k() { SIMGPU_SMS=8 && export SIMGPU_SMS && golden m=200,n=384,k=6400; }
# 5 tiles of 160 columns, 65 steps each: two and a half times what a warp stores at a time.
stream_k_wide() { SIMGPU_SMS=8 && export SIMGPU_SMS && golden m=200,n=784,k=4104; }
# Few rows: clusters of two halves of the rows times two parts of k; three tiles for each cluster.
split_k() { SIMGPU_SMS=8 && export SIMGPU_SMS && golden m=128,n=800,k=4104; }
# A tile for each of four SMs, with more steps than stages.
few_tiles() { SIMGPU_SMS=4 && export SIMGPU_SMS && golden m=250,n=250,k=2040; }
# A tile of three warpgroups, 192 x 96, for each of four SMs in pairs, with more steps than stages.
three_warpgroups() { SIMGPU_SMS=4 && export SIMGPU_SMS && golden m=380,n=190,k=1000; }

# 48 pairs of tiles of 64 x 96, side by side, and 15 clusters of eight of 128 x 112, all of them cut off at C's edges.
pairs_abreast() { golden m=757,n=760,k=776; }
eights() { golden m=1270,n=1261,k=776; }

@test "chapter 14: every step is right on every case of both operations" {
    all_right 8
}

@test "chapter 14: the warps' order does not matter" {
    any_order several_tiles_bias ragged_f16
}

# every_order STEP...: these steps are right on GOLDEN's cases, whatever the order of the warps.
every_order() {
    local step seed
    for step in "$@"; do
        run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op matmul --golden "$GOLDEN" --step "$step"
        assert_line "$CHAPTER: all 4 runs right"
        for seed in 1 2 3; do
            run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --op matmul --golden "$GOLDEN" --step "$step" --case bias
            assert_line "$CHAPTER: all 1 runs right"
        done
    done
}

@test "chapter 14: several tiles for every block, and more steps of k than stages, are right" {
    several_rounds
    every_order 3 4 5 6 8
}

@test "chapter 14: tiles that are cut along k and handed over are right" {
    local json=$BATS_TEST_TMPDIR/counters.json
    stream_k
    every_order 6
    counters "$json" $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
    [[ $(total "$json" global_sectors 'red_release_gpu_add') -gt 0 ]]
}

@test "chapter 14: wide tiles, cut or not, are right" {
    stream_k_wide
    every_order 5 6
    shapes matmul m=300,n=571,k=72 m=300,n=568,k=72
    shapes matmul_f32 m=300,n=568,k=72
}

# The simulated GPU's memory is an H100's.
@test "chapter 14: where k is deep and the memory slow, step 6 has step 4's tiles of 256 columns, and is right" {
    local json=$BATS_TEST_TMPDIR/counters.json rows_of_A='^cp_async_bulk_tensor_2d\(smem.A'
    export SIMGPU_SMS=4 # two clusters
    golden m=256,n=512,k=8192
    every_order 6
    counters "$json" $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors "$rows_of_A")" $((2 * 256 * 8192 * 2 / 32))
    golden m=256,n=512,k=8128
    counters "$json" $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors "$rows_of_A")" $((4 * 256 * 8128 * 2 / 32))
    golden m=256,n=640,k=8192 # three tiles of 256 columns would take two rounds
    counters "$json" $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
    [[ $(total "$json" global_sectors "$rows_of_A") -gt $((3 * 256 * 8192 * 2 / 32)) ]]
}

@test "chapter 14: few rows, with k split within a cluster, are right" {
    split_k
    every_order 7 8
}

@test "chapter 14: few tiles of one or two warpgroups, alone or in pairs, are right" {
    few_tiles
    every_order 8
    SIMGPU_SMS=132 shapes matmul m=300,n=700,k=520 m=250,n=1500,k=2072
}

@test "chapter 14: few tiles of three warpgroups, in pairs that share B, are right" {
    three_warpgroups
    every_order 8
    shapes matmul m=380,n=185,k=456
    shapes matmul_f32 m=380,n=186,k=456
}

@test "chapter 14: few tiles side by side that share A, in pairs or as eight that share B, too, are right" {
    pairs_abreast
    every_order 8
    eights
    every_order 8
    for shape in m=757,n=759,k=776 m=1270,n=1261,k=776; do
        run -0 make chapter-14 DEVICE=sim OP=matmul_f32 STEP=8 SHAPE=$shape PROFILE=0
        assert_line "$CHAPTER: all 4 runs right"
    done
}

# No plan of a small GPU shares A, so these are made to: pairs, with pairs that share B and parts of k; and eights.
@test "chapter 14: few tiles side by side that share A are right in several rounds, and with k split within a cluster" {
    local abreast
    split_k
    for abreast in 'abreast == 2' 'abreast == 4 \&\& halves == 2'; do
        broken $CHAPTER step8_few_tiles.cu "s/if \\(tile\\.warpgroups == 3\\) return tried;/return $abreast;/"
        for seed in 1 2 3; do
            run -0 "$SIMGPU" --seed $seed "$BROKEN" --op matmul --type bf16 --golden "$GOLDEN" --step 8
        done
    done
}

@test "chapter 14: step 6 needs no order of its blocks where all of them fit the GPU" {
    stream_k
    TILE_COLS=128 broken $CHAPTER step6_stream_k.cu 's/schedule\.clusters - 1 - //'
    run -0 "$SIMGPU" "$BROKEN" --op matmul --type bf16 --step 6 --golden "$GOLDEN"
}

# shapes OP SHAPE...: every step is right on shapes of the user's own.
shapes() {
    local shape
    for shape in "${@:2}"; do
        run -0 make chapter-14 DEVICE=sim OP="$1" SHAPE="$shape" SEED=4 PROFILE=0
        assert_line "$CHAPTER: all 32 runs right"
    done
}

@test "chapter 14: shapes of the user's own: odd rows of C, one row, one column, the smallest k" {
    shapes matmul m=77,n=301,k=72 m=1,n=129,k=200 m=65,n=1,k=8 m=131,n=130,k=456 m=100,n=136,k=2056
    shapes matmul_f32 m=77,n=301,k=72 m=200,n=2,k=72
}

@test "chapter 14: shapes of the user's own on a small GPU: odd rows of C in several rounds, few rows and a long k" {
    export SIMGPU_SMS=4
    shapes matmul m=390,n=403,k=456 m=100,n=300,k=1032
    shapes matmul_f32 m=390,n=404,k=200
}

@test "chapter 14: steps 5 and 6 are right in two rounds on a GPU of full size" {
    run -0 make chapter-14 DEVICE=sim OP=matmul STEP=5 CASE=plain SHAPE=m=2500,n=2300,k=520 PROFILE=0
    run -0 make chapter-14 DEVICE=sim OP=matmul STEP=6 CASE=plain SHAPE=m=2500,n=2300,k=520 PROFILE=0
}

@test "chapter 14: rows that are no multiple of 16 bytes are refused in one line that names k" {
    run -2 make --no-print-directory chapter-14 OP=matmul SHAPE=m=8,n=8,k=12
    assert_line --partial "k must be a multiple of 8"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --op matmul_f32 --shape m=8,n=8,k=12
    assert_one_line
    assert_output --partial "k must be a multiple of 8"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --op matmul_f32 --shape m=2147483647,n=8,k=8
    assert_one_line
    assert_output --partial "m, n and k must be at most 2147483136"
}

@test "make diff-14 begins with chapter 13's last step" {
    run -0 make diff-14
    assert_line "=== chapters/13_tma_wgmma_matmul/step3_large_tile.cu -> chapters/14_warp_specialized_matmul/step1_producer_consumer.cu"
    assert_line "=== chapters/14_warp_specialized_matmul/step5_ping_pong.cu -> chapters/14_warp_specialized_matmul/step6_stream_k.cu"
}

@test "chapter 14: a golden element two bf16 or f16 units off is found, and named by row and column" {
    local name digits
    for name in ragged_bias:8 ragged_f16:11; do
        digits=${name#*:} GOLDEN=$BATS_TEST_TMPDIR/${name%:*}
        cp -r "build/golden/$CHAPTER/matmul/${name%:*}" "$GOLDEN"
        python 'C = np.load(sys.argv[1]); C[30, 138] += 2 * np.ldexp(1.0, np.frexp(C[30, 138])[1] - int(sys.argv[2])); np.save(sys.argv[1], C)' "$GOLDEN/C.npy" "$digits"
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$GOLDEN" --op matmul --step 6
        assert_line --regexp '^      C\[row 30, col 138\]: got .*; 1 of [0-9]+ elements are wrong$'
    done
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 14: wgmma reads its operands without a bank conflict" {
    local json=$BATS_TEST_TMPDIR/counters.json step
    for step in 1 2 3 4 5 6 7 8; do
        counters "$json" $CHAPTER $step deep --op matmul # 24 rows: step 7's own kernel
        [[ $(total "$json" shared_wavefronts_ideal '^wgmma<') -gt 0 ]]
        assert_equal "$(total "$json" shared_wavefronts '^wgmma<')" "$(total "$json" shared_wavefronts_ideal '^wgmma<')"
    done
}

@test "chapter 14: step 2 fetches 32,768 bytes a block and stage, step 1 49,152" {
    local json=$BATS_TEST_TMPDIR/counters.json
    golden m=256,n=256,k=256 # two blocks, one above the other, of four stages
    counters "$json" $CHAPTER 1 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '^cp_async_bulk_tensor')" $((2 * 4 * 49152 / 32))
    counters "$json" $CHAPTER 2 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '^cp_async_bulk_tensor')" $((2 * 4 * 32768 / 32))
}

@test "chapter 14: pairs side by side fetch every row of A once, where tiles alone would do so twice" {
    local json=$BATS_TEST_TMPDIR/counters.json
    golden m=768,n=768,k=768 # 12 rows of tiles of 64 x 96, 4 columns of pairs
    counters "$json" $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '^cp_async_bulk_tensor_2d_multicast\(stage.A')" $((4 * 768 * 768 * 2 / 32))
    assert_equal "$(total "$json" global_sectors '^cp_async_bulk_tensor_2d\(stage.B')" $((12 * 768 * 768 * 2 / 32))
}

@test "chapter 14: few tiles store whole sectors through shared memory, one or several a block" {
    local json=$BATS_TEST_TMPDIR/counters.json
    golden m=128,n=2048,k=128
    SIMGPU_SMS=4 counters "$json" $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '= eight;$')" $((128 * 2048 * 2 / 32))
    golden m=768,n=768,k=768
    counters "$json" $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '= eight;$')" $((768 * 768 * 2 / 32))
    assert_equal "$(total "$json" shared_wavefronts '^stmatrix_x4')" "$(total "$json" shared_wavefronts_ideal '^stmatrix_x4')"
}

@test "chapter 14: steps 4 to 6 store whole sectors through shared memory, without a bank conflict" {
    local json=$BATS_TEST_TMPDIR/counters.json step
    golden m=256,n=256,k=256
    counters "$json" $CHAPTER 3 plain --op matmul --golden "$GOLDEN"
    assert_equal "$(total "$json" global_sectors '^store_pair')" $((2 * 256 * 256 * 2 / 32))
    for step in 4 5 6; do
        counters "$json" $CHAPTER $step plain --op matmul --golden "$GOLDEN"
        assert_equal "$(total "$json" global_sectors '^cp_async_bulk_tensor_2d_store')" $((256 * 256 * 2 / 32))
        [[ $(total "$json" shared_wavefronts_ideal '^stmatrix_x4') -gt 0 ]]
        assert_equal "$(total "$json" shared_wavefronts '^stmatrix_x4')" "$(total "$json" shared_wavefronts_ideal '^stmatrix_x4')"
    done
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 14: a producer that waits for the wrong parity ends with who waits for what, not with a hang" {
    local producer consumer source=$CHAPTER/step1_producer_consumer.cu
    producer=$(grep -n 'mbarrier_wait(&smem.empty' "chapters/$source" | cut -d: -f1)
    consumer=$(grep -n 'mbarrier_wait(&smem.full' "chapters/$source" | cut -d: -f1)
    broken $CHAPTER step1_producer_consumer.cu 's/state\.parity \^ 1\)/state.parity)/'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_line --regexp "^  warp 0, lanes 0x00000001: waits for the phase of parity 0 of the mbarrier at shared offset [0-9]+, which is in phase 0: 2 of 2 arrivals missing"
    assert_line --regexp "at .*/$source:$producer .*mbarrier\.try_wait\.parity"
    assert_line --regexp "^  warp 11, lanes 0xffffffff: waits for the phase of parity 0 of the mbarrier at shared offset [0-9]+, which is in phase 0: 1 of 1 arrivals missing"
    assert_line --regexp "at .*/$source:$consumer .*mbarrier\.try_wait\.parity"
    noted $CHAPTER 'warp 0, lanes 0x00000001: waits for the phase of parity 0 of the mbarrier at shared offset …, which is in phase 0: 2 of 2 arrivals missing'
}

@test "chapter 14: a consumer that waits for the wrong parity, or not at all, is stopped" {
    # The copy and the wgmma race: who is there second is told, and that is the warps' order.
    local either="before the copy that brings it has been waited for|this copy writes shared offset [0-9]+ .* where the wgmma at line [0-9]+ .* may still read"
    broken $CHAPTER step1_producer_consumer.cu 's/(full\[state\.stage\], state\.parity)\)/\1 ^ 1)/'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --regexp "$either"
    broken $CHAPTER step1_producer_consumer.cu '/mbarrier_wait\(&smem\.full/d'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --regexp "$either"
}

@test "chapter 14: a producer that does not wait for empty stages is stopped" {
    local file
    for file in step1_producer_consumer.cu step2_cluster_multicast.cu; do
        broken $CHAPTER $file '/mbarrier_wait\(&smem\.empty/d'
        faults $CHAPTER "${file:4:1}" deep --op matmul
    done
}

@test "chapter 14: a stage that is given back before its products are done is a fault" {
    broken $CHAPTER step1_producer_consumer.cu '/wgmma_wait_group<1>/d'
    faults $CHAPTER 1 deep --op matmul
    broken $CHAPTER step1_producer_consumer.cu 's/wgmma_wait_group<1>/wgmma_wait_group<2>/'
    faults $CHAPTER 1 deep --op matmul
    # The stage whose products have just begun.
    broken $CHAPTER step1_producer_consumer.cu 's/if \(k > 0 && tid == 0\) (.*)last_stage/if (tid == 0) \1state.stage/'
    faults $CHAPTER 1 deep --op matmul
    assert_output --partial "(only an arrival after its wgmma.wait_group does)"
}

@test "chapter 14: a multicast that waits only for its own block's consumers is a fault" {
    broken $CHAPTER step2_cluster_multicast.cu 's/, CLUSTER \* NUM_CONSUMERS\);/, NUM_CONSUMERS);/; s/tid < CLUSTER\) mbarrier_arrive_cluster\((.*), tid\);/tid == 0) mbarrier_arrive(\1);/'
    faults $CHAPTER 2 deep --op matmul
    assert_output --partial "nothing that this thread has waited for says"
}

@test "chapter 14: a copy of more bytes than are expected ends with both numbers" {
    broken $CHAPTER step1_producer_consumer.cu 's/sizeof smem\.A_smem\[stage\] \+ sizeof/sizeof/'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --partial "32768 bytes expected, but the copies in flight bring 49152"
}

@test "chapter 14: barriers that TMA or the other block may not yet see are a fault" {
    broken $CHAPTER step1_producer_consumer.cu '/fence_mbarrier_init/d'
    faults $CHAPTER 1 tile --op matmul
    broken $CHAPTER step2_cluster_multicast.cu '/fence_mbarrier_init/d'
    faults $CHAPTER 2 tile --op matmul
    broken $CHAPTER step2_cluster_multicast.cu '/^    cluster_sync_relaxed\(\);$/d'
    faults $CHAPTER 2 tile --op matmul
}

@test "chapter 14: accumulators stored before their products are done, or without wgmma.fence, are a fault" {
    broken $CHAPTER step1_producer_consumer.cu '/wgmma_wait_group<0>/d'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    broken $CHAPTER step1_producer_consumer.cu '/ wgmma_fence\(\);/d'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --partial "wgmma.fence"
}

@test "chapter 14: more registers than the block has end with who waits for them" {
    broken $CHAPTER step1_producer_consumer.cu 's/CONSUMER_REGS = 232/CONSUMER_REGS = 240/; /^static_assert\(PRODUCER_REGS/,/;$/d; /^constexpr int LAUNCH_REGS/d'
    faults $CHAPTER 1 several_tiles_bias --op matmul
    assert_output --partial "waits for 240 registers a thread, where it has 168"
}

@test "chapter 14: a block that leaves while its cluster can still reach it is a fault" {
    broken $CHAPTER step2_cluster_multicast.cu '/cluster_sync_relaxed.*have all come/d; /Every stage is empty again/,/^    \}/d'
    faults $CHAPTER 2 several_tiles_bias --op matmul
    # The relaxed barrier alone does not say that the last arrivals have come; on an H200 they nearly always have.
    broken $CHAPTER step2_cluster_multicast.cu '/Every stage is empty again/,/^    \}/d'
    faults $CHAPTER 2 several_tiles_bias --op matmul
    noted $CHAPTER 'this arrival at block … may still be in flight when that block leaves'
}

@test "chapter 14: a TMA store of what it may not see, or of what is overwritten or gone, is a fault" {
    broken $CHAPTER step4_tma_store.cu '/^        fence_proxy_async/d'
    faults $CHAPTER 4 tile --op matmul
    noted $CHAPTER 'fence.proxy.async is missing: …'
    broken $CHAPTER step4_tma_store.cu '/__syncwarp.*and what the others wrote/d'
    faults $CHAPTER 4 tile --op matmul
    assert_output --partial "__syncwarp() is missing"
    broken $CHAPTER step4_tma_store.cu '/wait_group_read<1>/d'
    faults $CHAPTER 4 tile --op matmul
    broken $CHAPTER step4_tma_store.cu '/wait_group_read<0>/d'
    faults $CHAPTER 4 tile --op matmul
}

@test "chapter 14: ping-pong without turns, or with a turn given too early, is stopped" {
    several_rounds
    broken $CHAPTER step5_ping_pong.cu '/mbarrier_wait\(&smem\.turn/d'
    faults $CHAPTER 5 plain --op matmul --golden "$GOLDEN"
    noted $CHAPTER 'this copy writes shared offset … where the wgmma at line … may still read'
    broken $CHAPTER step5_ping_pong.cu 's/^    if \(tid == 0\) mbarrier_arrive\(next_turn\);//; s/^    int last_stage = 0;/&\n    if (tid == 0) mbarrier_arrive(next_turn);/'
    faults $CHAPTER 5 plain --op matmul --golden "$GOLDEN"
}

@test "chapter 14: ping-pong that forgets the other consumer's stages is stopped" {
    several_rounds
    broken $CHAPTER step5_ping_pong.cu '/the other consumer.s tile/d'
    fails $CHAPTER 5 plain --op matmul --golden "$GOLDEN"
}

@test "chapter 14: a wide tile's odd number of pieces that reuses the buffer just stored is stopped" {
    stream_k_wide
    TILE_COLS=160 broken $CHAPTER step6_stream_k.cu 's/\(piece \+ odd\) % 2/piece % 2/'
    faults $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
}

# The blocks in reverse order (a seed mixes it), on one host thread: those that wait start, and come to that, before those they
# wait for.
@test "chapter 14: stream-K that does not wait for the other clusters' sums fails" {
    export SIMGPU_THREADS=1
    stream_k
    TILE_COLS=128 broken $CHAPTER step6_stream_k.cu 's/schedule\.clusters - 1 - //; s/while \(!ld_acquire_gpu/if (false \&\& !ld_acquire_gpu/'
    fails $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
    TILE_COLS=128 broken $CHAPTER step6_stream_k.cu 's/schedule\.clusters - 1 - //; /They are there, for every thread/d'
    fails $CHAPTER 6 plain --op matmul --golden "$GOLDEN"
}

@test "chapter 14: stream-K that leaves its flags set races from the second launch on" {
    export SIMGPU_THREADS=1
    stream_k
    TILE_COLS=128 broken $CHAPTER step6_stream_k.cu 's/schedule\.clusters - 1 - //; /partial_ready\[block\] = 0/d'
    run -3 "$SIMGPU" "$BROKEN" --op matmul --type bf16 --step 6 --golden "$GOLDEN" # with a seed, who waits may come last
    assert_line --regexp '^  6 stream_k +bias .* right '
    assert_output --partial "race on global memory"
}

@test "chapter 14: a producer of few rows or few tiles that does not wait for empty stages is stopped" {
    split_k
    broken $CHAPTER step7_few_rows.cu '/^ {12}mbarrier_wait\(&bar\.empty/d'
    faults $CHAPTER 7 plain --op matmul --golden "$GOLDEN"
    few_tiles
    broken $CHAPTER step8_few_tiles.cu '/^ {12}mbarrier_wait\(&bar\.empty/d'
    faults $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
}

@test "chapter 14: few tiles whose stages one of two warpgroups, or two of three, may give back alone are stopped" {
    few_tiles
    broken $CHAPTER step8_few_tiles.cu 's/sharers\(plan\) \* WARPGROUPS\);/sharers(plan));/'
    fails $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
    three_warpgroups
    broken $CHAPTER step8_few_tiles.cu 's/sharers\(plan\) \* WARPGROUPS\);/sharers(plan) * min(2, WARPGROUPS));/'
    fails $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
}

@test "chapter 14: a multicast of A that waits only for the consumers of the blocks that share B is a fault" {
    pairs_abreast
    broken $CHAPTER step8_few_tiles.cu 's/return plan\.halves \+ plan\.abreast - 1;/return plan.halves;/'
    faults $CHAPTER 8 plain --op matmul --golden "$GOLDEN"
    assert_output --partial "nothing that this thread has waited for says"
}

@test "chapter 14: split k that does not wait for the other parts' sums or for room for them, or does not make room, fails" {
    split_k
    broken $CHAPTER step7_few_rows.cu '/mbarrier_wait\(&bar\.sums_full/d'
    fails $CHAPTER 7 plain --op matmul --golden "$GOLDEN"
    broken $CHAPTER step7_few_rows.cu '/mbarrier_wait\(&bar\.sums_empty/d'
    fails $CHAPTER 7 plain --op matmul --golden "$GOLDEN"
    broken $CHAPTER step7_few_rows.cu '/if \(tile \+ place.tile_step/d; /mbarrier_arrive_cluster\(&bar\.sums_empty/d'
    fails $CHAPTER 7 plain --op matmul --golden "$GOLDEN"
}
