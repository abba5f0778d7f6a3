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

# broken PROGRAM NAME LINE...: the kernel fails, and every LINE, a part of one, is in what is said.
broken() {
    run -1 timeout 60 "$SIMGPU" "$PROGRAMS/$1" "$2"
    local part
    for part in "$1.cu:" "${@:3}"; do assert_output --partial "$part"; done
}

@test "simgpu: clusters: ranks, barrier.cluster, distributed shared memory, remote mbarriers, occupancy" {
    checks clusters
    shuffled clusters
}

@test "simgpu: bulk and tensor copies of every rank, swizzle and box; stores, reductions, multicast; tensor maps" {
    checks tma
    run -0 "$SIMGPU" --seed 5 "$PROGRAMS/tma"
}

@test "simgpu: wgmma multiplies every type, major, swizzle and base offset, bit for bit" { checks wgmma; }

@test "simgpu: a specialised, multicast, pipelined matmul is right and breaks no rule, in any order of its warps" {
    checks matmul
    shuffled matmul
    run -0 "$SIMGPU" "$PROGRAMS/matmul" 64 128 16
}

@test "simgpu: --exact-mma: wgmma's exact sums stay" {
    run -0 "$SIMGPU" --exact-mma "$PROGRAMS/wgmma" exact
}

@test "simgpu: shared memory of a block that has not started or has left is out of reach" {
    broken broken_clusters peer_not_started "before any barrier.cluster: it may not have started"
    broken broken_clusters peer_has_left "block 1 of the cluster, (1,0,0), has exited"
    broken broken_clusters peer_leaves "the block leaves, but block 1 of its cluster has read its shared memory"
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

@test "simgpu: what a bulk copy brings is poison until its mbarrier has been waited for" {
    run -1 "$SIMGPU" "$PROGRAMS/broken_async" read_before_wait
    assert_line "read_before_wait: read 0xffffffff"
    broken broken_async never_waited "the block leaves, and nobody has waited for the mbarrier" "cp.async.bulk"
    broken broken_async tile_overwritten "the destination was written while the copy was on its way"
}

@test "simgpu: bytes that do not match what the mbarrier expects end in a deadlock report" {
    broken broken_async bytes_mismatch "64 bytes expected, but the copies on their way bring 128"
}

@test "simgpu: an mbarrier whose init is not visible yet is named" {
    broken broken_async init_not_visible "is used before its mbarrier.init is visible here: no barrier since"
    broken broken_async init_not_fenced "no fence.mbarrier_init or fence.proxy.async since"
}

@test "simgpu: a missing fence.proxy.async is named, and one that only one thread executes too early" {
    broken broken_async store_not_fenced "fence.proxy.async is missing: warp 0 wrote shared offset 0"
    broken broken_async fenced_by_one "fence.proxy.async is missing: warp 1 wrote shared offset 32"
    broken broken_async operand_not_fenced "fence.proxy.async is missing" "wgmma.mma_async"
}

@test "simgpu: shared memory that an asynchronous operation still reads must stay" {
    broken broken_async store_source_changes "shared memory that a bulk store still reads was written"
    broken broken_async store_not_waited "without cp.async.bulk.wait_group.read"
    broken broken_async operand_changes "shared memory of operand B was written before the wgmma at line"
}

@test "simgpu: registers of a wgmma are out of bounds until wait_group" {
    broken broken_async result_read_early "is read before the wgmma at line" "whose result it holds" "cvt.rzi.u32.f32"
    broken broken_async commit_missing "whose result it holds"
    broken broken_async a_written_early "which reads A from it" "add.u32"
}

@test "simgpu: a missing wgmma.fence is named" {
    broken broken_async no_fence "wgmma.fence is missing: a way leads here without any"
    broken broken_async no_second_fence "was accessed since the last one"
}

@test "simgpu: a wgmma needs all four warps" {
    broken broken_async three_warps "all four execute each"
}

@test "simgpu: setmaxnreg waits for the block's pool, and a pool too small is a deadlock" {
    broken broken_async too_few_registers "waits for 240 registers a thread, where it has 168; the block's pool has 56"
    broken broken_async wrong_direction "setmaxnreg.dec to 200 registers, but the warp has 168"
}
