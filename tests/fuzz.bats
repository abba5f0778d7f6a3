#!/usr/bin/env bats
# The readers of what others wrote (PTX, fatbins, .npy) refuse what is damaged and name the place. They are built with gcc's
# address and undefined-behaviour sanitizers, so that reading or writing what is not theirs fails here. tests/fuzz/READER has
# a small file for each way in which a reader once went wrong; `make fuzz` looks for more.
load test_helper/common

# replays READER [FILES]: these files, or all that are kept for the reader; none makes it fall.
replays() {
    local files=("${@:2}")
    [[ ${#files[@]} -gt 0 ]] || files=("$ROOT/tests/fuzz/$1"/*)
    ASAN_OPTIONS=detect_leaks=0 run -0 "$ROOT/build/fuzz/replay/$1" "${files[@]}"
    assert_equal "$(grep -c '^== ' <<<"$output")" "${#files[@]}"
}

# refuses FILE REGEX: the PTX reader says this of tests/fuzz/ptx/FILE.
refuses() {
    replays ptx "$ROOT/tests/fuzz/ptx/$1"
    assert_line --regexp "$2"
}

@test "fuzz: no kept file makes the PTX reader fall" { replays ptx; }

@test "fuzz: no kept file makes the fatbin reader fall" { replays fatbin; }

@test "fuzz: no kept file makes the .npy reader fall" { replays npy; }

@test "fuzz: the PTX reader takes any number of registers, and names of any length" {
    local name
    for name in registers-without-end long-names prototype-after; do
        replays ptx "$ROOT/tests/fuzz/ptx/$name.ptx"
        assert_equal "${#lines[@]}" 1
    done
}

@test "fuzz: PTX that says too much is refused with its line" {
    refuses file-number.ptx "PTX line 4: expected a file's number from 0 to 1048576, found '4294967295'"
    refuses b128-initial.ptx "PTX line 5: expected no initial value of an array without elements"
    refuses negations.ptx "PTX line 7: expected nothing nested more than 64 deep"
    refuses nested-values.ptx "PTX line 4: expected nothing nested more than 64 deep"
    refuses alignment-0.ptx "PTX line 4: expected an alignment from 1 to 1048576, found '0'"
    refuses array-overflows.ptx "PTX line 4: expected an array of at most 2\^44 bytes"
    refuses shared-overflows.ptx "PTX line 6: expected at most 16 MiB of variables in this state space"
    refuses threads-0.ptx "PTX line 4: expected a size from 1 to 1024, found '0'"
    refuses blocks-overflow.ptx "PTX line 4: expected a number of blocks from 0 to 1024, found '4194304'"
    refuses extern-initial.ptx "PTX line 4: expected ';', found '='"
    refuses two-bodies.ptx "PTX line 9: expected no second definition of f, which this text has before, found '\{'"
    refuses address-undeclared.ptx "PTX function k: 'nowhere' is not declared"
    refuses address-of-warp-size.ptx "PTX line 7: expected a register, a variable or a number as the address"
}

@test "fuzz: PTX whose operands do not fit is refused by instruction" {
    refuses narrow-destination.ptx "'activemask.b32 %s1': the destination %s1 has 2 bytes, the result 4"
    refuses wide-destination.ptx "'activemask.b32 %d1': the destination %d1 has 8 bytes, the result 4"
    refuses branch-to-variable.ptx "'bra x': a branch needs a label"
    refuses table-of-variables.ptx "'brx.idx %r1, t': target 0 is no label"
    refuses call-wider.ptx "'call f, \(p\)': f has another type: its parameter 0 has 8 bytes, the call's 4"
    refuses call-of-a-kernel.ptx "'call k, \(\)': k is a kernel"
    refuses operands-missing.ptx "'cvta.u64': 0 operands, not 2"
    refuses store-to-register.ptx "'st.global.u32 %r1, %r2': operand 1 is not an address in brackets"
    refuses group-in-register.ptx "'cp.async.wait_group %r1': operand 1 is not an immediate"
    refuses constant-written.ptx "'ld.global.u32 1, \\[%d1\\]': the destination is not a register"
}

@test "fuzz: a fatbin whose sizes wrap around or reach past its end is refused" {
    local name
    for name in sizes-wrap header-wraps; do
        replays fatbin "$ROOT/tests/fuzz/fatbin/$name"
        assert_line "its device code is damaged (an entry reaches past the end)"
    done
    for name in text-without-end compressed-past-the-end larger-than-it-can-hold; do
        replays fatbin "$ROOT/tests/fuzz/fatbin/$name"
        assert_line "its PTX is damaged (an entry says that it is larger than it can be)"
    done
}
