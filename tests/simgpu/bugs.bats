#!/usr/bin/env bats
# Seeded bugs (tests/simgpu/bugs): each is stopped by a report with the words that help, whatever the order of the warps, and
# the lines that it marks are named; its right twin runs without a word.
load ../test_helper/common

PROGRAMS=$ROOT/build/tests/simgpu/bugs

SEEDS=(0 1 2 3 4)

# caught FILE NAME: on several seeds, the report has the words of "// bug NAME: WORDS", or one of "WORDS | WORDS" where it depends on
# who came first, and names the lines marked "// NAME". On one thread of the host, which makes a seed repeat exactly: two that look
# at a byte in the same instant may, rarely, not see each other.
caught() {
    local words line seed source=$BATS_TEST_DIRNAME/bugs/$1.cu
    words=$(sed -n "s,^// bug $2: ,,p" "$source")
    [[ $words ]] || fail "$2: no words are expected"
    for seed in "${SEEDS[@]}"; do
        run timeout 60 "$SIMGPU" --threads 1 --seed "$seed" "$PROGRAMS/$1" "$2"
        [[ $status -eq 1 ]] || fail "$2, seed $seed: exit status $status, expected 1: $output"
        grep -qF "${words// | /$'\n'}" <<<"$output" || fail "$2, seed $seed: expected '$words': $output"
        while IFS=: read -r line _; do
            assert_output --regexp "$1\.cu:${line}[^0-9]"
        done < <(grep -n "// $2\$" "$source")
    done
}

# silent FILE NAME: its right twin is let alone.
silent() {
    local seed
    for seed in "${SEEDS[@]}"; do
        run timeout 60 "$SIMGPU" --seed "$seed" "$PROGRAMS/$1" "$2" right
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
@test "bugs: warps: shuffles, votes, instructions and barriers that some lanes or warps do not take part in" { family warp; }
@test "bugs: bulk copies: bytes, arrivals, parity, initialisation, tensor maps, fences, buffers used again" { family tma; }
@test "bugs: cp.async: pipelines that wait for too little or the wrong stage, ragged rows, sources that change" { family async; }
@test "bugs: wgmma: fences, groups, operands, descriptors, stages refilled, setmaxnreg" { family wgmma; }
@test "bugs: clusters: blocks that have not started or have left, arrivals in flight, multicast" { family cluster; }
@test "bugs: what nobody has written: shared, local and global memory, parts of words, tails, atomics" { family undefined; }
@test "bugs: memory: bounds, overflow, alignment, null, freed, constant, shared and local memory" { family memory; }

@test "bugs: streams and graphs, with a seed: events, edges and waits left out, buffers filled again, memory freed; patterns that are right" {
    local name SEEDS=(1 2 3 4 5)
    family streams
    SEEDS=(0 1 2 3 4)
    for name in $("$SIMGPU" "$PROGRAMS/streams" patterns); do silent streams "$name"; done
}

@test "bugs: streams that write the same value are remarked on; with --faults=report a race is said and the program goes on" {
    run -0 "$SIMGPU" --seed 1 "$PROGRAMS/streams" same_value
    assert_output --partial "the same value is written to memory at"
    run -0 "$SIMGPU" --seed 1 --faults=report "$PROGRAMS/streams" kernel_after_copy
    assert_output --partial "nothing orders these two"
}

# by_luck NAME WORDS: without a seed it is right all the same; with one it is misaligned, and the report has the words.
by_luck() {
    local seed
    run -0 "$SIMGPU" "$PROGRAMS/luck" "$1"
    for seed in 1 2 3; do
        run -1 "$SIMGPU" --seed $seed "$PROGRAMS/luck" "$1"
        assert_output --partial "misaligned shared address"
        assert_output --partial "with a seed, no better aligned than $2"
        run -0 "$SIMGPU" --seed $seed "$PROGRAMS/luck" "$1" right
    done
}

@test "bugs: with a seed, dynamic shared memory is only as aligned as the kernel declares it" {
    by_luck aligned_by_luck "the kernel declares" # the first KiB is the system's: by luck, a multiple of 1024
}

@test "bugs: with a seed, static shared memory is only as aligned as its variables are" {
    by_luck vectors_by_luck "its variables are"
}

@test "bugs: with a seed, a volatile load may find what was there before a store that no fence orders" {
    local name seed line
    for name in seen_in_order_by_luck neither_sees_the_other counts_back; do
        line=$(grep -n "// $name\$" "$BATS_TEST_DIRNAME/bugs/luck.cu" | cut -d: -f1)
        run -0 timeout 60 "$SIMGPU" --threads 1 "$PROGRAMS/luck" $name
        for seed in 1 2 3; do
            run -1 timeout 60 "$SIMGPU" --threads 1 --seed $seed "$PROGRAMS/luck" $name
            assert_output --regexp "luck\.cu:$line: .*Assertion"
            run -0 timeout 60 "$SIMGPU" --seed $seed "$PROGRAMS/luck" $name right
        done
    done
}

@test "bugs: with a seed, a try_wait may find its time up, and must come round again" {
    local seed line
    line=$(grep -n '// tried_once$' "$BATS_TEST_DIRNAME/bugs/luck.cu" | cut -d: -f1)
    run -0 timeout 60 "$SIMGPU" "$PROGRAMS/luck" tried_once
    for seed in 1 2 3; do
        run -1 timeout 60 "$SIMGPU" --seed $seed "$PROGRAMS/luck" tried_once
        assert_output --partial "the last mbarrier.try_wait answered false, as it may: repeat it until it is true"
        assert_output --regexp "luck\.cu:${line}[^0-9]"
        run -0 timeout 60 "$SIMGPU" --seed $seed "$PROGRAMS/luck" tried_once right
    done
}

@test "bugs: blocks that wait for more blocks than the device holds are told so" {
    run -0 timeout 60 "$SIMGPU" --sms 2 "$PROGRAMS/luck" barrier_of_the_grid
    run -1 timeout 60 "$SIMGPU" --sms 1 "$PROGRAMS/luck" barrier_of_the_grid
    assert_output --regexp " [0-9]+ blocks have not started"
    assert_output --partial "If they wait for all of the grid, it must be no larger"
    assert_output --regexp "luck\.cu:$(grep -n '// barrier_of_the_grid$' "$BATS_TEST_DIRNAME/bugs/luck.cu" | cut -d: -f1)[^0-9]"
}
