#!/usr/bin/env bats
# Chapter 2: tiles in shared memory and in registers are right on the simulated GPU, each step saves what its header says,
# and a broken one fails.

load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=02_tiled_matmul

@test "chapter 2: every step is right on every case" {
    all_right 7
}

@test "chapter 2: the warps' order does not matter" {
    any_order ragged_bias several_tiles
}

@test "chapter 2: shapes of the user's own: aligned rows of A and B but not of C, of C alone, of neither, one row, one column" {
    local shape
    for shape in m=77,n=301,k=20 m=300,n=140,k=21 m=1,n=129,k=9 m=257,n=1,k=8; do
        run -0 make chapter-2 DEVICE=sim SHAPE=$shape SEED=4 PROFILE=0
        assert_line "$CHAPTER: all 14 runs right"
    done
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 2: each step reads less from global memory than chapter 1's last" {
    local before=$BATS_TEST_TMPDIR/before.json step
    counters "$before" 01_naive_matmul 2 several_tiles
    for step in 1 2 3 4 5 6 7; do
        echo "step $step: $(count $step several_tiles global_sectors) of $(total "$before" global_sectors)"
        [[ $((4 * $(count $step several_tiles global_sectors))) -lt $(total "$before" global_sectors) ]]
    done
}

@test "chapter 2: no step has a bank conflict" {
    local step
    for step in 1 2 3 4 5 6 7; do
        [[ $(count $step several_tiles shared_wavefronts_ideal) -gt 0 ]]
        assert_equal "$(count $step several_tiles shared_wavefronts)" "$(count $step several_tiles shared_wavefronts_ideal)"
    done
}

@test "chapter 2: each step executes fewer instructions than the one before" {
    local step
    for step in 2 3 4 5 6 7; do
        echo "step $step: $(count $step several_tiles warp_instructions), before: $(count $((step - 1)) several_tiles warp_instructions)"
        [[ $(count $step several_tiles warp_instructions) -lt $(count $((step - 1)) several_tiles warp_instructions) ]]
    done
}

@test "chapter 2: a float from global memory serves 16 multiply-adds in step 1, 64 in step 2" {
    # A and B, 8 floats a sector, without the bias and the stores of C.
    local multiply_adds=$((256 * 384 * 192))
    assert_equal "$(count 1 several_tiles global_sectors 'k_inside \?')" $((multiply_adds / 16 / 8))
    assert_equal "$(count 2 several_tiles global_sectors 'inside \?')" $((multiply_adds / 64 / 8))
}

@test "chapter 2: step 2 reads shared memory 8 times less than step 1" {
    local one two
    one=$(count 1 several_tiles shared_wavefronts 'acc \+=')
    two=$(count 2 several_tiles shared_wavefronts '_frag\[[ij]\] =')
    echo "step 1: $one, step 2: $two"
    assert_equal "$one" $((8 * two))
}

@test "chapter 2: step 4's wide loads take the wavefronts of step 3's, with half the instructions or fewer" {
    local pattern='_frag\[[ij]\] = |const float4 \*>\(&smem_row'
    assert_equal "$(count 3 several_tiles shared_wavefronts "$pattern")" "$(count 4 several_tiles shared_wavefronts "$pattern")"
    echo "$(count 3 several_tiles warp_instructions "$pattern"), $(count 4 several_tiles warp_instructions "$pattern")"
    [[ $(count 3 several_tiles warp_instructions "$pattern") -ge $((2 * $(count 4 several_tiles warp_instructions "$pattern"))) ]]
}

@test "chapter 2: step 7's larger tile reads three quarters of step 6's floats, from global and from shared memory" {
    local global='quad = \*reinterpret_cast<const float4 \*>\(src\)' shared='const float4 \*>\(&smem_row'
    assert_equal $((4 * $(count 7 several_tiles global_sectors "$global"))) $((3 * $(count 6 several_tiles global_sectors "$global")))
    # The prologue reads one k more in every block: 2 x 3 of 8 warps and 16 wavefronts, 1 x 3 of 8 warps and 24.
    assert_equal $((4 * ($(count 7 several_tiles shared_wavefronts "$shared") - 3 * 8 * 24))) $((3 * ($(count 6 several_tiles shared_wavefronts "$shared") - 6 * 8 * 16)))
}

@test "chapter 2: the table of counters in its note is what the note's command counts" {
    local json=$BATS_TEST_TMPDIR/note.json
    run -0 make chapter-2 DEVICE=sim SHAPE=m=256,n=256,k=256 PROFILE=0
    run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "build/golden/shapes/$CHAPTER/m=256,n=256,k=256,seed=1"
    run -0 tabled notes/$CHAPTER.md "$json"
}

@test "chapter 2: the occupancy that its note counts by hand follows from what make sass finds" {
    local file steps=()
    for file in "chapters/$CHAPTER"/step*.cu; do
        steps+=("build/sass/$CHAPTER/$(basename "$file" .cu).ok")
    done
    run -0 make -s "${steps[@]}"
    run -0 python 'import glob, re
rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+), (\d+), (\d+) \| (\d+) \| ([\d.]+) % \|$", open(sys.argv[1]).read(), re.M)
for name, *cells in rows:
    says = [float(c.replace(",", "")) for c in cells]
    [path] = glob.glob(f"build/sass/02_tiled_matmul/step?_{name}.sm_90.log")
    log = open(path).read().split("Compiling entry function")[1:]
    [kernel] = [k for k in log if "Lb1E" in k] or log  # the variant for aligned rows, where there are two
    registers, shared, threads = int(re.search(r"Used (\d+) registers", kernel)[1]), int(re.search(r"(\d+) bytes smem", kernel)[1]), int(says[2])
    blocks = [65536 // (-(-registers // 8) * 8 * threads), 228 * 1024 // (shared + 1024), 2048 // threads]
    warps = min(blocks) * threads // 32
    found = [registers, shared, threads, *blocks, warps, 100 * warps / 64]
    if says != found: sys.exit(f"{name}: the note has {says}, make sass and the limits of an SM give {found}")
if len(rows) != 7: sys.exit(f"{len(rows)} rows")' notes/$CHAPTER.md
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 2: step 1 without the barrier before reading is a race that is named" {
    broken $CHAPTER step1_smem_tile.cu '/The tiles are complete before anyone reads them/d'
    races $CHAPTER 1 one_tile
}

@test "chapter 2: step 1 without the barrier before overwriting is a race that is named" {
    broken $CHAPTER step1_smem_tile.cu '/Everyone has read the tiles before anyone overwrites them/d'
    races $CHAPTER 1 several_tiles
    noted $CHAPTER 'race on shared offset …: this write is not ordered after the read …'
}

@test "chapter 2: step 1 without its padding is right, and its columns take 32 wavefronts" {
    local json=$BATS_TEST_TMPDIR/counters.json read='acc \+='
    broken $CHAPTER step1_smem_tile.cu 's/\[BLOCK_K \+ 1\]/[BLOCK_K]/'
    run -0 "$SIMGPU" --json "$json" "$BROKEN" --golden "build/golden/$CHAPTER" --step 1 --case one_tile
    # 33 for a column of B and the broadcast of A, where 2 are ideal.
    assert_equal $((2 * $(total "$json" shared_wavefronts "$read"))) $((33 * $(total "$json" shared_wavefronts_ideal "$read")))
}

@test "chapter 2: step 2 that adds the outputs of neighbours instead of those 16 apart gives a wrong answer" {
    broken $CHAPTER step2_register_tile.cu 's/A_smem\[k\]\[y \+ i \* THREADS_M\]/A_smem[k][y * THREAD_M + i]/'
    wrong $CHAPTER 2 one_tile
}

@test "chapter 2: step 3 that takes every row for a multiple of 16 bytes is stopped at a misaligned load" {
    broken $CHAPTER step3_wide_copies.cu 's/if \(K % 4 == 0 .*\)$/if (true)/'
    faults $CHAPTER 3 ragged
    noted $CHAPTER 'misaligned global address …: must be a multiple of 16'
}

@test "chapter 2: step 4 that takes every row of C for a multiple of 16 bytes is stopped at a misaligned store" {
    broken $CHAPTER step4_wide_fragments.cu 's/(const bool C_aligned =) .*/\1 true;/'
    faults $CHAPTER 4 ragged
    assert_output --partial "misaligned global address"
}

@test "chapter 2: step 5 that fills the stage which others still read is a race that is named" {
    broken $CHAPTER step5_prefetch.cu '/stage \^= 1/d'
    races $CHAPTER 5 several_tiles
}

@test "chapter 2: step 6 without its barrier is a race that is named" {
    broken $CHAPTER step6_fragments_ahead.cu '/The new stage is complete, and everyone has read the old one/d'
    races $CHAPTER 6 several_tiles
}

@test "chapter 2: step 7 whose tiles have half the rows that its block owns is stopped at a store outside them" {
    broken $CHAPTER step7_large_tile.cu 's/\[BLOCK_K\]\[BLOCK_M \+ PADDING\]/[BLOCK_K][BLOCK_M \/ 2 + PADDING]/; s/BLOCK_M>\(smem\.A_smem/BLOCK_M \/ 2>(smem.A_smem/'
    fails $CHAPTER 7 several_tiles
}
