#!/usr/bin/env bats
# Every instruction family against values computed on the host. The programs find every mismatch themselves: they print the
# first one of each instruction, and exit with 1. On a GPU they pass as well.
load ../test_helper/common

# family NAME: its program runs on the simulated GPU without a mismatch and says how much it checked.
family() {
    run -0 "$SIMGPU" "$ROOT/build/tests/simgpu/instructions/$1"
    assert_line --regexp "^$1: [0-9]+ checks$"
}

@test "simgpu: integer arithmetic gives what C does" { family integer; }

@test "simgpu: logic, shifts, bit fields, prmt and carry chains" { family bits; }

@test "simgpu: setp, set, selp and slct for every type" { family compare; }

@test "simgpu: f32 arithmetic in every rounding mode" { family float32; }

@test "simgpu: f64 arithmetic in every rounding mode" { family float64; }

@test "simgpu: f16 and bf16 arithmetic, single and packed" { family half; }

@test "simgpu: cvt between all types" { family convert; }

@test "simgpu: approximations stay within PTX's bounds" { family special; }

@test "simgpu: loads and stores of every space and width" { family memory; }

@test "simgpu: atom and red, one by one and contended" { family atomic; }

@test "simgpu: shfl, vote, match and redux" { family warp; }

@test "simgpu: barriers, fences and messages between blocks" { family barrier; }

@test "simgpu: cp.async and mbarrier, apart and in a ring" { family async; }

@test "simgpu: SIMD-in-a-word, integer, f16, bf16 and FP8 functions of the headers" { family intrinsics; }

@test "simgpu: control flow, calls and special registers" { family control; }

@test "simgpu: a register that is still read loses its place to no other" {
    ASAN_OPTIONS=detect_leaks=0 run -0 "$ROOT/build/tests/simgpu/model/verify" # What has been read is kept to the end.
}

# The families whose warps talk to one another, in other orders, on one host thread and on several, and while counting.
@test "simgpu: any order of warps, any number of host threads and --profile give the same results" {
    local program options
    for program in barrier warp async atomic; do
        for options in "--seed 7 --threads 1" "--seed 8 --threads 4" "--profile"; do
            # shellcheck disable=SC2086 # words
            run -0 "$SIMGPU" $options "$ROOT/build/tests/simgpu/instructions/$program"
            assert_line --regexp "^$program: [0-9]+ checks$"
        done
    done
}

@test "simgpu: device printf formats as C does" {
    run -0 "$SIMGPU" "$ROOT/build/tests/simgpu/instructions/control"
    assert_line "integers -7    42 0xff -5000000000 k%"
    assert_line "floats 1.500 -2.500000e-04 1e+100"
    assert_line "text one|     two|three   |"
    assert_line "thread 33 of block 0"
}
