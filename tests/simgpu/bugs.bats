#!/usr/bin/env bats
# Seeded bugs (tests/simgpu/bugs): each is stopped by a report with the words that help, whatever the order of the warps, and
# the lines that it marks are named; its right twin runs without a word.
load ../test_helper/common

PROGRAMS=$ROOT/build/tests/simgpu/bugs

# caught FILE NAME: on several seeds, the report has the words of "// bug NAME: WORDS" and names the lines marked "// NAME".
caught() {
    local words line seed source=$BATS_TEST_DIRNAME/bugs/$1.cu
    words=$(sed -n "s,^// bug $2: ,,p" "$source")
    [[ $words ]] || fail "$2: no words are expected"
    for seed in 0 1 2 3 4; do
        run timeout 60 "$SIMGPU" --seed $seed "$PROGRAMS/$1" "$2"
        [[ $status -eq 1 ]] || fail "$2, seed $seed: exit status $status, expected 1: $output"
        assert_output --partial "$words"
        while IFS=: read -r line _; do
            assert_output --regexp "$1\.cu:${line}[^0-9]"
        done < <(grep -n "// $2\$" "$source")
    done
}

# silent FILE NAME: its right twin is let alone.
silent() {
    local seed
    for seed in 0 1 2 3 4; do
        run timeout 60 "$SIMGPU" --seed $seed "$PROGRAMS/$1" "$2" right
        [[ $status -eq 0 && ! $output ]] || fail "$2 right, seed $seed: exit status $status: $output"
    done
}

# family FILE: all of its bugs.
family() {
    local name
    for name in $("$SIMGPU" "$PROGRAMS/$1"); do
        caught "$1" "$name"
        silent "$1" "$name"
    done
}

@test "bugs: shared memory: barriers left out, too early, or of others; lanes; copies not waited for" { family shared; }

@test "bugs: global memory: flags, fences and scopes between blocks; clusters; launches that begin early" { family global; }
