#!/usr/bin/env bats
# Matrix fragments, tensor cores, asynchronous copies and mbarriers. The programs check themselves and pass on a GPU too;
# `broken` holds kernels that break a rule, and each must be caught, every time and with a message that says which rule.
load ../test_helper/common

PROGRAMS=$ROOT/build/tests/simgpu/tensor

# checks NAME [ARGS]: its program runs without a mismatch and says how much it checked.
checks() {
    run -0 "$SIMGPU" "$PROGRAMS/$1" "${@:2}"
    assert_line --regexp "^$1: [0-9]+ checks$"
}

# broken NAME LINE...: the kernel fails, and every LINE, a part of one, is in what is said, as is the line marked with its name
# if there is one.
broken() {
    local part line
    line=$(grep -n "// fault: $1\$" "$BATS_TEST_DIRNAME/tensor/broken.cu" | cut -d: -f1)
    run -1 timeout 60 "$SIMGPU" "$PROGRAMS/broken" "$1"
    [[ ! $line ]] || assert_output --regexp "broken\.cu:${line}[^0-9]"
    for part in "${@:2}"; do assert_output --partial "$part"; done
}

@test "simgpu: ldmatrix, stmatrix and movmatrix put every element where PTX says" { checks fragments; }

@test "simgpu: ldmatrix of rows 128 bytes apart takes 8 wavefronts a matrix, 16 bytes more and it takes 1" {
    for layout in conflicts:8 free:1; do
        run -0 "$SIMGPU" --profile=100 "$PROGRAMS/fragments" "${layout%:*}"
        assert_line --regexp " ${layout#*:}/1 .*LDMATRIX_X1\(\"\", \"\.shared\""
        assert_line --regexp " $((2 * ${layout#*:}))/2 .*LDMATRIX_X2\(\"\.trans\", \"\.shared\""
        assert_line --regexp " $((4 * ${layout#*:}))/4 .*LDMATRIX\(\"\", \"\.shared::cta\""
    done
}

@test "simgpu: tensor cores add up as the plain model does, bit for bit, whatever the numbers" {
    local seed
    for seed in 1 2 3; do
        run -0 "$ROOT/build/tests/simgpu/model/accumulate" 600 "$seed"
        assert_output "accumulate: 1228800 products, 0 wrong"
    done
}

@test "simgpu: mma.sync multiplies every shape and type" { checks mma; }
@test "simgpu: mma.sync on f64, every shape" { checks mma_f64; }

@test "simgpu: --exact-mma multiplies every shape and type too" {
    run -0 "$SIMGPU" --exact-mma "$PROGRAMS/mma"
    assert_line --regexp "^mma: [0-9]+ checks$"
}

@test "simgpu: mma.sync counts its FLOPs" {
    run -0 "$SIMGPU" --json "$BATS_TEST_TMPDIR/counters.json" "$PROGRAMS/mma"
    run -0 "$PYTHON" -c "
import json, sys
flops = {k['kernel'].split('_kernel')[0]: sum(l['tensor_flops'] for l in k['lines']) for k in json.load(open(sys.argv[1]))}
print(flops['bf16_k16'], flops['tf32_k4'], flops['s8_m8'])" "$BATS_TEST_TMPDIR/counters.json"
    # 4 launches of 2 * m * n * k
    assert_output "$((4 * 2 * 16 * 8 * 16)) $((4 * 2 * 16 * 8 * 4)) $((4 * 2 * 8 * 8 * 16))"
}

@test "simgpu: wmma loads, multiplies and stores every shape, type and layout" { checks wmma; }

@test "simgpu: cp.async copies, fills with zeros, and is there when its group has been waited for" {
    checks copies
    run -0 "$SIMGPU" --threads 1 --seed 7 "$PROGRAMS/copies"
}

@test "simgpu: mbarriers follow PTX's state machine, with an H200's words" {
    checks mbarriers
    run -0 "$SIMGPU" --threads 1 --seed 7 "$PROGRAMS/mbarriers"
}

@test "simgpu: the CUDA headers' pipelines, barriers and asynchronous copies" { checks library; }

@test "simgpu: reading what was copied before a wait is named" {
    broken missing_wait "shared offset 0 is read before the cp.async at line" "cp.async.ca.shared.global"
    broken missing_commit "shared offset 0 is read before the cp.async at line"
    broken wait_by_others "is read before the cp.async at line"
}

@test "simgpu: a wait_group off by one is named" { broken wait_one_short "shared offset 128 is read before the cp.async at line"; }

@test "simgpu: writing a copy's source or destination while it is in flight is named" {
    broken source_changes "the source was changed while the copy was in flight: 'cp.async.ca.shared.global" cudaErrorLaunchFailure
    broken destination_written "shared offset 0 is written before the cp.async at line"
}

@test "simgpu: cp.async checks its addresses and sizes" {
    broken source_out_of_bounds "out of bounds: read of 4 bytes" cudaErrorIllegalAddress
    broken source_size_too_large "a source size of 5 bytes in a copy of 4"
    broken misaligned_copy "misaligned shared address" cudaErrorMisalignedAddress
}

@test "simgpu: misuse of an mbarrier is named" {
    broken uninitialised "no mbarrier has been initialised at shared offset" "thread (3,0,0)" cudaErrorLaunchFailure
    broken over_arrival "over-arrival: 3 arrivals at the mbarrier at shared offset" "phase 0 lacks only 2 of 2" cudaErrorLaunchFailure
    broken overwritten "overwritten by an ordinary store (0x0000000000000000)"
    broken initialised_twice "mbarrier.init of a live mbarrier" "mbarrier.inval must come first"
    broken too_many_bytes "tx-count" "beyond 2^20 - 1"
    broken bad_parity "the phase parity is 2: it must be 0 or 1"
}

@test "simgpu: a try_wait that never completes ends in a deadlock report: barrier, phase, pending count, bytes" {
    broken try_wait_forever "deadlock: no warp of block (0,0,0) can go on" \
        "waits for the phase of parity 0 of the mbarrier at shared offset" \
        "which is in phase 0: 1 of 4 arrivals missing, 16 bytes outstanding" "broken.cu:"
    broken wrong_parity "warp 0, lanes 0x00000001: waits for the phase of parity 0" \
        "warp 1, lanes 0x00000001: waits for the phase of parity 0"
}

@test "simgpu: a test_wait that never completes does too" {
    broken test_wait_forever "warp 0, lanes 0xffffffff: waits for the phase of parity 0" "2 of 2 arrivals missing" "mbarrier.test_wait"
}

@test "simgpu: a matrix instruction needs the whole warp" {
    broken half_a_warp "waits for lanes 0xffff0000 to come to this instruction"
    broken predicated_off "lanes 0x0000ffff do, lanes 0xffff0000 skip it"
    broken exited_lanes "lanes 0x0000ffff do, lanes 0xffff0000 have exited"
}

@test "simgpu: ldmatrix checks its row addresses" {
    broken row_misaligned "misaligned shared address" "thread (1,0,0)"
    broken row_in_global "is not one of shared memory" cudaErrorInvalidAddressSpace
}

@test "simgpu: a tensor instruction it does not have is refused by name" {
    broken volta_shape_refused "broken.cu:" "mma.sync.aligned.m8n8k4" "the shape .m8n8k4 is not supported"
}
