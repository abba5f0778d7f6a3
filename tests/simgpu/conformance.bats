#!/usr/bin/env bats
# The simulated GPU computes what an H200 computed: the recordings of conformance/h200.tar.gz, bit for bit, and for the
# approximations within twice the error that PTX allows (`conformance --list` says which).
load ../test_helper/common

PROGRAM=$ROOT/build/tests/simgpu/conformance/conformance

setup_file() {
    mkdir "$BATS_FILE_TMPDIR/h200"
    tar -xzf "$BATS_TEST_DIRNAME/conformance/h200.tar.gz" -C "$BATS_FILE_TMPDIR/h200"
}

@test "conformance: every instruction variant gives the bits that an H200 gave" {
    run "$SIMGPU" "$PROGRAM" --check "$BATS_FILE_TMPDIR/h200"
    # The ones that differ are all there is to see.
    output=$(grep -v ': ok, ' <<<"$output")
    assert_output --regexp '^conformance: [0-9]+ variants ok, 0 differ$'
    assert_success
}

@test "conformance: every variant is recorded, and nothing else is" {
    run -0 "$PROGRAM" --list
    diff <(cut -d: -f1 <<<"$output" | sort) <(cd "$BATS_FILE_TMPDIR/h200" && printf '%s\n' *.bin | sed 's/\.bin$//' | sort)
}

@test "conformance: one wrong bit is found and located" {
    cp -r "$BATS_FILE_TMPDIR/h200" "$BATS_TEST_TMPDIR/"
    # Eight bytes of hash come first; element 5 of 1024 f32 follows.
    printf '\x01' | dd of="$BATS_TEST_TMPDIR/h200/add_rn_f32.bin" bs=1 seek=28 conv=notrunc status=none
    run -1 "$SIMGPU" "$PROGRAM" --check "$BATS_TEST_TMPDIR/h200" add_rn_f32
    assert_line --regexp '^add_rn_f32: 1 of 1024 differ; first 5: got 0x[0-9a-f]{8}, recorded 0x[0-9a-f]{6}01, a='
}

@test "conformance: a truncated recording and one for other inputs are refused" {
    cp -r "$BATS_FILE_TMPDIR/h200" "$BATS_TEST_TMPDIR/"
    cd "$BATS_TEST_TMPDIR/h200" || return
    truncate -s 100 add_rn_f32.bin
    run -1 "$SIMGPU" "$PROGRAM" --check . add_rn_f32
    assert_line --partial "is truncated"
    cp sub_rn_f32.bin add_rn_f32.bin
    run -1 "$SIMGPU" "$PROGRAM" --check . add_rn_f32
    assert_line --partial "recorded for other inputs"
}
