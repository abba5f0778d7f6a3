#!/usr/bin/env bats
# Every chapter's steps are right on the simulated GPU, and its counters show what the chapter claims.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/counters

# all_right CHAPTER: every step is right on every case.
all_right() {
    local program cases steps
    program=$(chapter "$1")
    cases=$(find "build/golden/$1" -mindepth 1 -maxdepth 1 -type d | wc -l)
    steps=$(find "chapters/$1" -name 'step*.cu' | wc -l)
    run -0 "$SIMGPU" "$program" --golden "build/golden/$1"
    assert_line "$1: all $((cases * steps)) runs right"
    refute_output --partial WRONG
}

@test "chapter 1: every step is right on every case" { all_right 01_naive_matmul; }
@test "chapter 3: every step is right on every case" { all_right 03_tensor_core_matmul; }
@test "chapter 4: every step is right on every case" { all_right 04_swizzled_smem; }

@test "chapters 1, 3 and 4: the warps' order does not matter" {
    local seed folder
    for folder in chapters/0[134]_*; do
        for seed in 1 2; do
            run -0 "$SIMGPU" --seed $seed "$(chapter "$(basename "$folder")")" --golden "build/golden/$(basename "$folder")/ragged_bias"
        done
    done
}

@test "chapters 1 and 3: cuBLAS agrees with the golden files" {
    run -0 "$SIMGPU" "$(chapter 01_naive_matmul)" --golden build/golden/01_naive_matmul --step 0
    run -0 "$SIMGPU" "$(chapter 03_tensor_core_matmul)" --golden build/golden/03_tensor_core_matmul --step 0
}

@test "make chapter-1 says where it runs and shows step 1's uncoalesced loads" {
    run -0 make chapter-1 DEVICE=sim
    assert_line "chapter 1 on the simulated GPU: DEVICE=sim"
    assert_line --regexp '^01_naive_matmul: all [0-9]+ runs right$'
    assert_line --regexp 'step1_uncoalesced.cu:[0-9]+ '
}

@test "make chapter-2 SHAPE SEED runs a shape of the user's own, with and without bias" {
    run -0 make chapter-2 DEVICE=sim SHAPE=m=333,n=77,k=129 SEED=5 PROFILE=0
    assert_line --regexp '^  7 large_tile +bias +m=333,n=77,k=129 +right'
    assert_line --regexp '^  7 large_tile +plain +m=333,n=77,k=129 +right'
    assert_line "02_tiled_matmul: all 14 runs right"
}

@test "make chapter-2 with a bad SHAPE fails in one line that names the size" {
    run -2 make --no-print-directory chapter-2 SHAPE=m=0,n=77,k=129
    assert_line --partial "SHAPE 'm=0,n=77,k=129': m is 0, expected 1 to 2147483647"
    assert_equal "$(find build/golden/shapes -name 'm=0*')" ""
}

@test "make chapter-2 does not write a damaged golden file anew: it fails" {
    local golden='build/golden/shapes/02_tiled_matmul/m=21,n=22,k=23,seed=9'
    rm -rf "$golden"
    run -0 make chapter-2 DEVICE=sim SHAPE=m=21,n=22,k=23 SEED=9 PROFILE=0
    python 'a = np.load(sys.argv[1]); a[20, 21] *= 1.001; np.save(sys.argv[1], a)' "$golden/plain/C.npy"
    run -2 make chapter-2 DEVICE=sim SHAPE=m=21,n=22,k=23 SEED=9 PROFILE=0
    assert_line --regexp '^      C\[row 20, col 21\]: got .*, expected .*, tolerance .*; 1 of 462 elements are wrong$'
    assert_line "02_tiled_matmul: WRONG in 7 of 14 runs"
    rm -rf "$golden"
}

# damaged CHAPTER STEP CODE: golden case `ragged` after CODE changed the float64 array C, inputs A and B at hand; the
# step must be wrong there.
damaged() {
    one_case "$1" ragged
    python 'import ml_dtypes
d = sys.argv[1]; C = np.load(d + "/C.npy")
load = lambda n: np.load(f"{d}/{n}.npy") if "01" in sys.argv[2] or "02" in sys.argv[2] else np.load(f"{d}/{n}.bf16.npy").view(ml_dtypes.bfloat16)
A, B = (load(n).astype(float) for n in "AB")
'"$3"'
np.save(d + "/C.npy", C)' "$CASE_DIR" "$1"
    run -1 "$SIMGPU" "$(chapter "$1")" --golden "$CASE_DIR" --step "$2"
}

@test "a golden element without its last product is found, and named by row and column" {
    damaged 01_naive_matmul 1 'C[130, 138] -= A[130, -1] * B[138, -1]'
    assert_line --regexp '^      C\[row 130, col 138\]: got .*; 1 of 18209 elements are wrong$'
    damaged 03_tensor_core_matmul 1 'C[0, 1] -= A[0, -2:] @ B[1, -2:]'
    assert_line --regexp '^      C\[row 0, col 1\]: got .*; 1 of 18209 elements are wrong$'
}

@test "a golden element two bf16 units off is found" {
    damaged 05_cp_async_pipeline 1 'C[77, 5] += 2 * np.ldexp(1.0, np.frexp(C[77, 5])[1] - 8)'
    assert_line --regexp '^      C\[row 77, col 5\]: got .*; 1 of 18209 elements are wrong$'
}

@test "chapter 1: the global sectors of step 2 are at most a quarter of step 1's" {
    local one=$BATS_TEST_TMPDIR/one.json two=$BATS_TEST_TMPDIR/two.json
    counters "$one" 01_naive_matmul 1 one_tile
    counters "$two" 01_naive_matmul 2 one_tile
    echo "step 1: $(total "$one" global_sectors), step 2: $(total "$two" global_sectors)"
    [[ $(total "$one" global_sectors) -ge $((4 * $(total "$two" global_sectors))) ]]
}

@test "chapter 1: step 2's loads are ideal, step 1's are not" {
    local one=$BATS_TEST_TMPDIR/one.json two=$BATS_TEST_TMPDIR/two.json
    counters "$one" 01_naive_matmul 1 one_tile
    counters "$two" 01_naive_matmul 2 one_tile
    [[ $(total "$one" global_sectors) -ge $((4 * $(total "$one" global_sectors_ideal))) ]]
    assert_equal "$(total "$two" global_sectors)" "$(total "$two" global_sectors_ideal)"
}

@test "chapter 3: an ldmatrix takes 8 wavefronts where 1 is ideal" {
    local json=$BATS_TEST_TMPDIR/counters.json
    counters "$json" 03_tensor_core_matmul 1 one_tile
    [[ $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync') -gt 0 ]]
    assert_equal "$(total "$json" shared_wavefronts '^ldmatrix_|ldmatrix\.sync')" \
        "$((8 * $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync')))"
}

@test "chapter 4: no ldmatrix takes a wavefront more than is ideal" {
    local json=$BATS_TEST_TMPDIR/counters.json chapter
    for chapter in 04_swizzled_smem:1 04_swizzled_smem:2; do
        counters "$json" "${chapter%:*}" "${chapter#*:}" one_tile
        [[ $(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync') -gt 0 ]]
        assert_equal "$(total "$json" shared_wavefronts '^ldmatrix_|ldmatrix\.sync')" \
            "$(total "$json" shared_wavefronts_ideal '^ldmatrix_|ldmatrix\.sync')"
    done
}
