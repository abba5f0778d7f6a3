#!/usr/bin/env bats
# The command line that every chapter's program has.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common

setup() {
    PROGRAM=$(chapter 01_naive_matmul)
    GOLDEN=build/golden/01_naive_matmul
}

# on_sim ARGS: the program on the simulated GPU.
on_sim() { "$SIMGPU" "$PROGRAM" "$@"; }

@test "cli: --help shows every flag, the tensors' files and the exit statuses, without a device" {
    local flag
    run -0 "$PROGRAM" --help
    for flag in --list --type --step --case --golden --out --bench --shape --json --no-guards --help; do
        assert_line --regexp "^  $flag "
    done
    assert_line --regexp 'A\.npy +f32 \(m,k\), input$'
    assert_line --regexp 'bias\.npy .*may be left out'
    assert_line "Exit status: 0 right, 1 a step is wrong, 2 bad usage or input, 3 CUDA or device trouble."
}

@test "cli: --list shows the baseline, the steps in order and the cases, without a device" {
    run -0 "$PROGRAM" --list --golden "$GOLDEN"
    assert_line "  0 cuBLAS SGEMM (baseline)"
    assert_line "  1 uncoalesced"
    assert_line "  2 coalesced"
    assert_line "  ragged_bias"
}

@test "cli: an unknown flag or argument is named" {
    local argument
    for argument in --gold -h stray; do
        run -2 --separate-stderr "$PROGRAM" "$argument"
        assert_equal "$stderr" "$argument: unknown argument; --help lists the flags"
    done
}

@test "cli: a flag without its value says what it expects" {
    run -2 --separate-stderr "$PROGRAM" --step
    assert_equal "$stderr" "--step: no value, expected a step's number or name"
    run -2 --separate-stderr "$PROGRAM" --golden --list
    assert_equal "$stderr" "--golden: no value, expected a folder of cases"
}

@test "cli: a switch with a value is refused" {
    run -2 --separate-stderr "$PROGRAM" --list=yes
    assert_equal "$stderr" "--list=yes: this flag takes no value"
}

@test "cli: an unknown step is named beside the known ones" {
    local step
    for step in 3 -1 coalesce ''; do
        run -2 --separate-stderr "$PROGRAM" --step "$step"
        assert_equal "$stderr" "--step $step: no such step; 01_naive_matmul has 0 cuBLAS SGEMM, 1 uncoalesced, 2 coalesced"
    done
}

@test "cli: an unknown case is named beside the known ones" {
    run -2 --separate-stderr "$PROGRAM" --golden "$GOLDEN" --case raged
    assert_regex "$stderr" "^--case raged: no such case in $GOLDEN, which has deep, k_smallest, "
}

@test "cli: --shape without --bench points to make" {
    run -2 --separate-stderr "$PROGRAM" --shape m=1,n=1,k=1
    assert_equal "$stderr" "--shape: only with --bench or --trace; make chapter-N SHAPE=m=1,n=1,k=1 checks a shape"
}

@test "cli: a bad --shape is refused with the size that is wrong" {
    local shape message
    while IFS='|' read -r shape message; do
        run -2 --separate-stderr "$PROGRAM" --bench --shape "$shape"
        assert_equal "$stderr" "--shape '$shape': $message"
    done <<'EOF'
m=0,n=1,k=1|m is 0, expected 1 to 2147483647
m=1,n=-7,k=1|n is -7, expected 1 to 2147483647
m=1,n=1,k=2147483648|k is 2147483648, expected 1 to 2147483647
m=1,n=1,k=99999999999999999999|k is 99999999999999999999, expected 1 to 2147483647
m=1,n=1|k is missing
m=1,n=1,k=1,m=2|m comes twice
m=1,n=1,k=1x|k is '1x', expected a whole number
m=1,n=1,q=1|found 'q=1', expected NAME=SIZE of this chapter
EOF
}

@test "cli: a bf16 --shape whose k is no multiple of 8 is refused" {
    run -2 --separate-stderr "$(chapter 03_tensor_core_matmul)" --bench --shape m=8,n=8,k=12
    assert_equal "$stderr" "--shape 'm=8,n=8,k=12': k must be a multiple of 8, so that every row of A and B begins at a multiple of 16 bytes"
}

@test "cli: without any device the program says how to run it, with exit status 3" {
    [[ -z "$(compgen -G '/dev/nvidia[0-9]*')" ]] || skip "this machine has a GPU"
    run -3 --separate-stderr "$PROGRAM" --golden "$GOLDEN"
    assert_regex "$stderr" "no GPU that this program can use; the simulated GPU runs it: build/simgpu/simgpu PROGRAM$"
}

@test "cli: --step and --case run only that one" {
    run -0 on_sim --golden "$GOLDEN" --step coalesced --case ragged
    assert_line --regexp '^  2 coalesced +ragged +m=131,n=139,k=67 +right'
    assert_line "01_naive_matmul: all 1 runs right"
    run -0 on_sim --golden "$GOLDEN" --step=1 --case=ragged
    assert_line --regexp '^  1 uncoalesced +ragged +m=131,n=139,k=67 +right'
    assert_line "01_naive_matmul: all 1 runs right"
}

@test "cli: --golden takes one case's folder too" {
    run -0 on_sim --golden "$GOLDEN/one_element" --step 1
    assert_line "01_naive_matmul: all 1 runs right"
}

@test "cli: --golden has a default" {
    run -0 on_sim --case one_element
    assert_line "01_naive_matmul: all 2 runs right"
}

@test "cli: --step 0 holds the baseline to the same golden files, and shows what it leaves out" {
    run -0 on_sim --golden "$GOLDEN" --step 0
    assert_line --regexp '^  0 cuBLAS SGEMM +ragged +.* right'
    assert_line --regexp '^  0 cuBLAS SGEMM +ragged_bias +.* skipped: the baseline does not have it$'
}

@test "cli: --out writes what NumPy finds within the tolerance" {
    run -0 on_sim --golden "$GOLDEN" --step 2 --case ragged_bias --out "$BATS_TEST_TMPDIR/out/deep"
    run -0 python 'out, golden = sys.argv[1:]
C = np.load(out + "/C.npy"); E = np.load(golden + "/C.npy"); T = np.load(golden + "/C.tol.npy")
assert C.dtype == np.float32 and C.shape == E.shape and np.all(np.abs(C - E) <= T)' \
        "$BATS_TEST_TMPDIR/out/deep/coalesced/ragged_bias" "$GOLDEN/ragged_bias"
}

@test "cli: --out to a place that cannot be is refused" {
    : >"$BATS_TEST_TMPDIR/file"
    run -2 --separate-stderr on_sim --golden "$GOLDEN" --case one_element --out "$BATS_TEST_TMPDIR/file/x"
    assert_regex "$stderr" "^--out $BATS_TEST_TMPDIR/file/x: cannot make the folder: Not a directory$"
}

@test "cli: --json writes a record for each run, and a second run replaces them" {
    local json=$BATS_TEST_TMPDIR/results.json
    run -0 on_sim --golden "$GOLDEN" --case one_element --json "$json"
    run -0 on_sim --golden "$GOLDEN" --case one_element --step 1 --json "$json"
    run -0 on_sim --golden "$GOLDEN" --case tall --step 1 --json "$json"
    run -0 python 'import json; r = json.load(open(sys.argv[1]))
print([(x["chapter"], x["step"], x["case"], x["right"]) for x in r])' "$json"
    assert_output "[('01_naive_matmul', 'uncoalesced', 'one_element', True), ('01_naive_matmul', 'coalesced', 'one_element', True), ('01_naive_matmul', 'uncoalesced', 'tall', True)]"
}

@test "cli: --json leaves a file that it did not write alone" {
    local json=$BATS_TEST_TMPDIR/results/mine.json
    mkdir "$BATS_TEST_TMPDIR/results"
    echo '{"a":' >"$json"
    run -2 --separate-stderr on_sim --golden "$GOLDEN" --case one_element --json "$json"
    assert_equal "$stderr" "--json $json: found '{\"a\":', expected a results file with one record a line"
    assert_equal "$(cat "$json")" '{"a":'
    assert_equal "$(ls "$BATS_TEST_TMPDIR/results")" mine.json
}

@test "cli: --bench on the simulated GPU is refused: it has no speed to measure" {
    run -2 --separate-stderr on_sim --bench
    assert_regex "$stderr" "^--bench: Simulated GPU.* has no speed to measure, expected a real GPU"
}

@test "cli: --type runs only the cases of that type" {
    local program
    program=$(chapter 13_tma_wgmma_matmul)
    run -0 "$SIMGPU" "$program" --op matmul --step 1 --type f16
    assert_line "13_tma_wgmma_matmul: all $(find build/golden/13_tma_wgmma_matmul/matmul -mindepth 1 -maxdepth 1 -name '*_f16' | wc -l) runs right"
    refute_output --partial "1 tma_wgmma          ragged_bias "
    run -2 --separate-stderr "$program" --type f32
    assert_equal "$stderr" "--type f32: no such type, expected one of bf16, f16"
    run -2 --separate-stderr "$program" --op matmul --type f16 --case tall
    assert_regex "$stderr" "^--case tall: no such case of type f16 in build/golden/13_tma_wgmma_matmul/matmul, which has "
}
