#!/usr/bin/env bats
# What Hopper added: clusters, bulk and tensor copies, wgmma. The programs check themselves against plain C on the host; the `broken_` ones hold kernels
# that break a rule, and each must be caught, every time and with a message that says which rule.
load ../test_helper/common

PROGRAMS=$ROOT/build/tests/simgpu/hopper

# checks NAME [ARGS]: its program runs without a mismatch and says how much it checked.
checks() {
    run -0 "$SIMGPU" "$PROGRAMS/$1" "${@:2}"
    assert_line --regexp "^$1: [0-9]+ checks$"
}

# shuffled NAME [ARGS]: the same with warps in other orders.
shuffled() {
    local seed
    for seed in 1 2 3; do run -0 "$SIMGPU" --seed "$seed" "$PROGRAMS/$1" "${@:2}"; done
}

# broken PROGRAM NAME LINE...: the kernel fails, what is said names the line marked with its name, and every LINE, a part of
# one, is in it.
broken() {
    local part line
    line=$(grep -n "// fault: $2\$" "$BATS_TEST_DIRNAME/hopper/$1.cu" | cut -d: -f1)
    run -1 timeout 60 "$SIMGPU" --seed "${SEED:-0}" "$PROGRAMS/$1" "$2"
    assert_output --regexp "$1\.cu:${line}[^0-9]"
    for part in "${@:3}"; do assert_output --partial "$part"; done
}

# reported PROGRAM NAME LINE...: with --faults=report the same is said, once, and the kernel runs to its end.
reported() {
    local part line
    line=$(grep -n "// fault: $2\$" "$BATS_TEST_DIRNAME/hopper/$1.cu" | cut -d: -f1)
    run timeout 60 "$SIMGPU" --faults=report "$PROGRAMS/$1" "$2"
    assert_equal "$(grep -cE "^  at .*$1\.cu:${line}[^0-9]" <<<"$output")" 1
    for part in "${@:3}"; do assert_output --partial "$part"; done
    refute_output --partial cudaError
}

# broken_in_any_order NAME LINE...: the same of broken_order, whatever order its warps run in.
broken_in_any_order() {
    local SEED
    for SEED in 0 1 2 3 4 5; do broken broken_order "$@"; done
}

# right_in_any_order NAME...: these kernels of it do what the broken ones forget, and are right.
right_in_any_order() {
    local name seed
    for name in "$@"; do
        for seed in 0 1 2 3 4 5; do run -0 timeout 60 "$SIMGPU" --seed "$seed" "$PROGRAMS/broken_order" "right_$name"; done
    done
}

@test "simgpu: clusters: ranks, barrier.cluster, distributed shared memory, remote mbarriers, st.async, red.async, occupancy" {
    checks clusters
    shuffled clusters
}

@test "simgpu: bulk and tensor copies of every rank, swizzle and box; stores, reductions, multicast; tensor maps" {
    checks tma
    run -0 "$SIMGPU" --seed 5 "$PROGRAMS/tma"
}

@test "simgpu: tensor maps that a kernel edits or makes" {
    checks tensormap
}

@test "simgpu: wgmma multiplies every type, major, swizzle and base offset, bit for bit" { checks wgmma; }

@test "simgpu: a specialised, multicast, pipelined matmul is right and breaks no rule, in any order of its warps" {
    checks matmul
    shuffled matmul
    run -0 "$SIMGPU" "$PROGRAMS/matmul" 64 128 16
}

# sums FILE PATTERN FIELD...: the sums of counters over the lines whose text matches.
sums() {
    run -0 "$PYTHON" -c '
import json, re, sys
lines = [l for k in json.load(open(sys.argv[1])) for l in k["lines"] if re.search(sys.argv[2], l["text"])]
print(*[sum(l[field] for l in lines) for field in sys.argv[3:]])' "$@"
}

@test "simgpu: a matmul counts its FLOPs, the bytes it copies, their sectors, and operands without bank conflicts" {
    local json=$BATS_TEST_TMPDIR/counters.json seed
    for seed in 0 1 2; do
        # 2 blocks share B by multicast; the second has no row of A or C inside
        run -0 "$SIMGPU" --seed "$seed" --json "$json" "$PROGRAMS/matmul" 64 128 64
        sums "$json" '' tensor_flops copied_bytes global_sectors global_sectors_ideal
        assert_output "$((2 * 2 * 64 * 128 * 64)) $((2 * (64 * 64 * 2 + 128 * 64 * 2 + 64 * 128 * 4))) $((64 * 4 + 128 * 4 + 64 * 16)) $((64 * 4 + 128 * 4 + 64 * 16))"
        sums "$json" '"l".a., "l".b.' shared_wavefronts shared_wavefronts_ideal
        assert_output "$((2 * 4 * (64 + 128) / 4)) $((2 * 4 * (64 + 128) / 4))" # 4 rows of 32 bytes a pass
    done
}

@test "simgpu: fp8 products are cut as Hopper cuts them, and with --exact-mma they are not" {
    run -0 "$SIMGPU" "$PROGRAMS/wgmma" small
    assert_output "1 + 31 x 2^-15 = 1 + 0 x 2^-15"
    run -0 "$SIMGPU" --exact-mma "$PROGRAMS/wgmma" small
    assert_output "1 + 31 x 2^-15 = 1 + 31 x 2^-15"
}

@test "simgpu: --exact-mma: wgmma's exact sums stay" {
    run -0 "$SIMGPU" --exact-mma "$PROGRAMS/wgmma" exact
}

@test "simgpu: shared memory of a block that has not started or has left is out of reach" {
    broken broken_clusters peer_not_started "before any barrier.cluster: it may not have started"
    broken broken_clusters peer_has_left "block 1 of the cluster, (1,0,0), has exited"
    broken broken_clusters peer_leaves "the block leaves, but block 1 of its cluster has read its shared memory"
    broken broken_clusters copy_to_the_departed "block 1 of the cluster, (1,0,0), has exited" "cp.async.bulk"
}

@test "simgpu: an address names a block of the cluster, and .shared::cta only the own one" {
    broken broken_clusters no_such_rank "block 2 of a cluster of 2"
    broken broken_clusters not_own_memory ".shared::cta reaches only the block's own (1)"
    broken broken_clusters remote_state "but not wait, initialise or be told the state" cudaErrorInvalidAddressSpace
}

@test "simgpu: barrier.cluster is arrived at once a phase, and a deadlock is told of the whole cluster" {
    broken broken_clusters arrive_twice "a second barrier.cluster.arrive"
    broken broken_clusters wait_unarrived "without a barrier.cluster.arrive"
    broken broken_clusters cluster_deadlock "no warp of the cluster that begins with block (0,0,0) can go on" \
        "waits at barrier.cluster, where 32 of the cluster's 64 threads have arrived" "block 1 of the cluster, (1,0,0):" \
        "1 of 1 arrivals missing"
}

@test "simgpu: what a bulk copy brings is out of bounds until its mbarrier has been waited for" {
    broken broken_async read_before_wait "shared offset 0 is read before the copy that brings it has been waited for" "ld.shared"
    broken broken_async parity_forgotten "shared offset 0 is read before the copy that brings it has been waited for"
    broken broken_tensor read_too_early "shared offset 128 is read before the copy that brings it has been waited for"
    broken broken_tensor sent_on_too_early "shared offset 0 is read before the copy" "cp.async.bulk.tensor.2d.global"
    broken broken_async never_waited "the block leaves, and nobody has waited for the mbarrier" "cp.async.bulk"
    broken broken_async tile_overwritten "the destination was written while the copy was in flight"
    broken broken_tensor source_of_load_changes "the source was changed while the copy was in flight"
}

@test "simgpu: bytes that do not match what the mbarrier expects end in a deadlock report" {
    broken broken_async bytes_mismatch "64 bytes expected, but the copies in flight bring 128"
    broken broken_async bytes_missing "256 bytes expected, but the copies in flight bring 128"
    broken broken_tensor bytes_of_what_is_inside "512 bytes expected, but the copies in flight bring 1024"
}

@test "simgpu: a parity that never flips ends in a deadlock report" {
    broken broken_async parity_never_flips "waits for the phase of parity 1 of the mbarrier" "which is in phase 1: 1 of 1 arrivals missing"
}

@test "simgpu: an mbarrier is not arrived at more often than expected, from here or from another block" {
    broken broken_async over_arrival "over-arrival: 1 arrivals" "phase 0 lacks only 0 of 1 (and 128 bytes)" cudaErrorLaunchFailure
    broken broken_clusters remote_over_arrival "over-arrival: 1 arrivals" "block (1,0,0)" cudaErrorLaunchFailure
}

@test "simgpu: an mbarrier whose init is not visible yet is named" {
    broken broken_async init_not_visible "is used before its mbarrier.init is visible here: no barrier since"
    broken broken_async init_not_fenced "no fence.mbarrier_init or fence.proxy.async since"
    broken broken_clusters remote_init_not_visible "before its mbarrier.init is visible here: no barrier.cluster since"
    broken broken_clusters remote_init_not_fenced "no fence.mbarrier_init since, and a relaxed barrier.cluster.arrive"
}

@test "simgpu: a missing fence.proxy.async is named, and one that only one thread executes too early" {
    broken broken_async store_not_fenced "fence.proxy.async is missing: warp 0 wrote shared offset 0"
    broken broken_async fenced_by_one "fence.proxy.async is missing: warp 1 wrote shared offset 32"
    broken broken_tensor reduction_not_fenced "fence.proxy.async is missing: warp 0 wrote shared offset 288"
    broken broken_async operand_not_fenced "fence.proxy.async is missing" "wgmma.mma_async"
}

@test "simgpu: shared memory that an asynchronous operation still reads must stay" {
    broken broken_async store_source_changes "shared memory that a bulk store still reads was written"
    broken broken_async store_not_waited "without cp.async.bulk.wait_group.read"
    broken broken_async operand_changes "shared memory of operand B was written before the wgmma at line"
}

@test "simgpu: a stage that is released before its wgmma was waited for is named at the next copy, in any order" {
    broken_in_any_order released_early "this copy writes shared offset 0 of block (0,0,0) where the wgmma at line" \
        "(warps 0 to 3) may still read" "only an arrival after its wgmma.wait_group"
    right_in_any_order released_late
}

@test "simgpu: an ordinary store where another warpgroup's wgmma may still read is named, in any order" {
    broken_in_any_order store_over_wgmma "this store writes shared offset 0 of block (0,0,0) where the wgmma at line" \
        "(warps 0 to 3) may still read"
    right_in_any_order store_after_wgmma
}

@test "simgpu: a multicast into a stage that another block may still read is named, in any order" {
    broken_in_any_order multicast_over_wgmma "this copy writes shared offset" "nothing that this thread has waited for says"
    broken_in_any_order multicast_over_loads "this copy writes shared offset" "nothing that this thread has waited for says"
    right_in_any_order multicast
}

@test "simgpu: what one thread has waited for, or a flag says, orders nothing for the others" {
    broken_in_any_order waited_by_one "shared offset 0 is read"
    broken_in_any_order flag_is_no_barrier "which warp 1 has written"
}

@test "simgpu: a bulk store of what other lanes or warps wrote needs __syncwarp or a barrier" {
    broken_in_any_order no_syncwarp "__syncwarp() is missing: lane 1 of this warp wrote shared offset 0"
    broken_in_any_order no_barrier "a barrier is missing: warp 1 wrote shared offset 0"
    right_in_any_order store
}

@test "simgpu: a block that leaves while an arrival or a store is in flight to it is named at the arrival; of a copy, where it leaves" {
    broken_in_any_order arrival_on_its_way "this arrival at block (" "may still be in flight when that block leaves" \
        "barrier.cluster.arrive.relaxed does not"
    broken_in_any_order store_on_its_way "this store to shared memory of block ("
    broken_in_any_order addition_on_its_way "this store to shared memory of block ("
    broken_in_any_order multicast_on_its_way "the block leaves, and nobody has waited for the mbarrier" "'cp.async.bulk"
    broken_in_any_order async_store_on_its_way "the block leaves, and nobody has waited for the mbarrier" "'st.async"
    right_in_any_order arrival_released arrival_awaited store_then_arrival
}

@test "simgpu: registers of a wgmma are out of bounds until wait_group" {
    broken broken_async result_read_early "is read before the wgmma at line" "whose result it holds" "cvt.rzi.u32.f32"
    broken broken_async commit_missing "whose result it holds"
    broken broken_async a_written_early "which reads A from it" "add.u32"
}

@test "simgpu: a missing wgmma.fence is named" {
    broken broken_async no_fence "wgmma.fence is missing: this warp has executed none before its first wgmma"
    broken broken_async no_second_fence "a register of the accumulator was accessed at line" "since the last one"
    broken broken_async scaled_after_the_fence "a register of the accumulator was accessed at line" "since the last one"
    broken broken_async fence_on_the_second "wgmma.fence is missing: this warp has executed none"
    broken broken_async another_shape "has another shape (m64n8k16) and writes the same accumulator"
    run -0 "$SIMGPU" "$PROGRAMS/broken_async" right_fence_first
}

@test "simgpu: a wgmma needs all four warps, with the same descriptors, and operands in shared memory" {
    broken broken_async descriptors_differ "the descriptor of A is 0x" "of this warpgroup has 0x"
    broken broken_async operand_out_of_bounds "the descriptor of A reaches shared offset" cudaErrorIllegalAddress
    broken broken_async three_warps "all four execute each"
}

@test "simgpu: setmaxnreg waits for the block's pool, and a pool too small is a deadlock" {
    broken broken_async too_few_registers "waits for 240 registers a thread, where it has 168; the block's pool has 56"
    broken broken_async over_budget "waits for 176 registers a thread, where it has 168; the block's pool has 0"
    broken broken_async wrong_direction "setmaxnreg.dec to 200 registers, but the warp has 168"
}

@test "simgpu: setmaxnreg in a kernel whose registers at entry ptxas chooses is ignored, as ptxas does, and that is said once" {
    local line
    line=$(grep -n "// fault: registers_unknown\$" "$BATS_TEST_DIRNAME/hopper/broken_async.cu" | cut -d: -f1)
    run "$SIMGPU" "$PROGRAMS/broken_async" registers_unknown
    assert_line --index 0 --partial "setmaxnreg is ignored, as ptxas ignores it (C7508)"
    assert_output --regexp "broken_async\.cu:${line}[^0-9]"
    assert_equal "$(grep -c C7508 <<<"$output")" 2 # one each for .inc and .dec
    assert_line --index -1 "registers_unknown: read 0x00000001"
}

@test "simgpu: --faults=report: what hardware lets pass is said once a line, and the launch goes on" {
    broken broken_async init_twice "mbarrier.init of a live mbarrier" cudaErrorLaunchFailure
    reported broken_async init_twice "mbarrier.init of a live mbarrier"
    reported broken_async init_not_fenced "no fence.mbarrier_init or fence.proxy.async since"
    reported broken_async store_not_fenced "fence.proxy.async is missing"
    reported broken_async store_not_waited "without cp.async.bulk.wait_group.read"
    reported broken_clusters remote_init_not_fenced "no fence.mbarrier_init since"
    run -1 "$SIMGPU" --faults=report "$PROGRAMS/broken_async" no_fence # hardware computes something else
    assert_output --partial cudaErrorLaunchFailure
    run -2 "$SIMGPU" --faults=ignore "$PROGRAMS/broken_async" no_fence
    assert_output "simgpu: --faults: 'ignore', expected stop or report"
}

@test "simgpu: coordinates and addresses of tensor copies that an H200 refuses" {
    broken broken_tensor negative_store "coordinate 1 of a store is -1" cudaErrorIllegalInstruction
    broken broken_tensor negative_reduction "coordinate 0 of a store is -8" cudaErrorIllegalInstruction
    broken broken_tensor load_between_pieces "coordinate 0 is 4 elements of 2 bytes" cudaErrorIllegalInstruction
    broken broken_tensor store_between_pieces "coordinate 0 is 4 elements of 2 bytes" cudaErrorIllegalInstruction
    broken broken_tensor misaligned_tile "0x440: must be a multiple of 128" cudaErrorMisalignedAddress
    broken broken_tensor misaligned_bulk "0x408: must be a multiple of 16" cudaErrorMisalignedAddress
    broken broken_tensor no_map "no tensor map lies at" cudaErrorIllegalInstruction
    broken broken_tensor beyond_the_tensor "crosses the end of allocation" cudaErrorIllegalAddress
    broken broken_tensor multicast_beyond_the_cluster "multicast to blocks 0x6 of a cluster of 1"
}

@test "simgpu: a tensor map that was edited must be released, acquired and complete" {
    broken broken_tensor edit_not_released "the tensor map was edited, and no fence.proxy.tensormap::generic.release"
    broken broken_tensor edit_not_acquired "the tensor map was edited, and no fence.proxy.tensormap::generic.acquire"
    broken broken_tensor map_not_complete "the tensor map is not complete"
}

@test "simgpu: elements that a map cannot fill with NaN, or round, are refused as an H200 does" {
    broken broken_tensor nan_for_integers "fills with NaN what is out of bounds, but its elements are UINT16" \
        cudaErrorIllegalInstruction
    broken broken_tensor load_of_former_tf32 "were tf32, which it still rounds them to: it cannot load UINT32" \
        cudaErrorIllegalInstruction
}

@test "simgpu: im2col copies are refused by name" {
    broken broken_tensor im2col "im2col" "not supported" cudaErrorNotSupported
}
