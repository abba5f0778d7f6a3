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
