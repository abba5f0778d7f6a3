#!/usr/bin/env bats
# The simulated GPU computes what an H200 computed: the recordings of conformance/h200.tar.gz, bit for bit, and for the
# approximations within twice the error that PTX allows (`conformance --list` says which).
load ../test_helper/common

PROGRAM=$ROOT/build/tests/simgpu/conformance/conformance

setup_file() {
    mkdir "$BATS_FILE_TMPDIR/h200"
    tar -xzf "$BATS_TEST_DIRNAME/conformance/h200.tar.gz" -C "$BATS_FILE_TMPDIR/h200"
}

# same KIND COUNT: all variants of a kind, so many, agree with their recordings.
same() {
    run "$SIMGPU" "$PROGRAM" --check "$BATS_FILE_TMPDIR/h200" "$1"
    # The ones that differ are all there is to see; cuTensorMapEncodeTiled says what it minds.
    output=$(grep -v -e ': ok, ' -e '^simgpu: cuTensorMapEncodeTiled: ' <<<"$output")
    assert_output "$1: $2 variants
conformance: $2 variants ok, 0 differ"
    assert_success
}

@test "conformance: 457 variants of arithmetic, conversion and comparison give the bits that an H200 gave" {
    same scalar 457
}

@test "conformance: 83 variants of mma.sync, wmma, ldmatrix, stmatrix, movmatrix and cp.async do too" { same tensor 83; }

@test "conformance: 292 variants of wgmma do too: every type, N, major and source of A" { same wgmma 292; }

@test "conformance: 9 variants of mbarrier do too: scripts of every operation, many threads, copies" {
    same mbarrier 9
}

@test "conformance: 292 variants of tensor copies do too: loads, stores and reductions of every rank, swizzle and type" {
    same tma 292
}

@test "conformance: 104 variants of edited tensor maps do too: every field, from zeros, of other warps and blocks" {
    same tensormap 104
}

@test "conformance: 61 variants of bulk copies do too: loads, stores, sends, reductions, multicast" { same bulk 61; }

@test "conformance: 42 variants of clusters and st.async do too, and of elect.sync, setmaxnreg, fences, griddepcontrol" {
    same cluster 42
}

@test "conformance: cuTensorMapEncodeTiled returns what an H200's driver returned, for 16 sweeps over its arguments" {
    same encode 16
}

@test "conformance: every variant is recorded, and nothing else is" {
    run -0 "$PROGRAM" --list
    assert_equal "${#lines[@]}" 1356
    diff <(cut -d: -f1 <<<"$output" | sort) <(cd "$BATS_FILE_TMPDIR/h200" && printf '%s\n' *.bin | sed 's/\.bin$//' | sort)
}

@test "conformance: a recording that is missing and one too many are found" {
    cp -r "$BATS_FILE_TMPDIR/h200" "$BATS_TEST_TMPDIR/"
    cd "$BATS_TEST_TMPDIR/h200" || return
    mv mbarrier_threads.bin mbarrier_thread.bin
    run -1 "$SIMGPU" "$PROGRAM" --check .
    assert_line "mbarrier_threads: cannot open ./mbarrier_threads.bin"
    assert_line "mbarrier_thread.bin: there is no such variant"
    assert_line "conformance: 1355 variants ok, 2 differ"
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
