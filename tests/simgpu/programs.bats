#!/usr/bin/env bats
# Ordinary CUDA programs, which check themselves, run unmodified: what they print last is "right", and they exit with 0.
load ../test_helper/common

# program NAME [ARGS]: runs it on the simulated GPU.
program() {
    run -0 --separate-stderr "$SIMGPU" "$ROOT/build/tests/simgpu/programs/$1" "${@:2}"
    assert_equal "${lines[-1]}" right
}

# stores_of NAME [OPTIONS]: for each kernel, how many lanes executed its line marked "stores" together, and the sectors.
stores_of() {
    run -0 "$SIMGPU" "${@:2}" --json "$BATS_TEST_TMPDIR/counters.json" "$ROOT/build/tests/simgpu/programs/$1"
    run -0 "$PYTHON" -c '
import json, sys
for kernel in json.load(open(sys.argv[1])):
    for line in kernel["lines"]:
        if line["text"].endswith("// stores"):
            print(line["active_lanes"] / line["warp_instructions"], line["global_sectors"])' "$BATS_TEST_TMPDIR/counters.json"
}

# blocks_in_order [OPTIONS]: the order in which the blocks of a grid of 100 start.
blocks_in_order() {
    run -0 "$SIMGPU" "$@" "$ROOT/build/tests/simgpu/programs/block_order"
    assert_equal "${lines[1]}" right
}

@test "simgpu: lanes that were let go alone during a long wait are one again after a barrier, whatever the order" {
    local threads seed
    for threads in 1 2 5; do
        for seed in 0 1 2 3; do
            stores_of spin --threads "$threads" --seed "$seed"
            assert_equal "${lines[*]}" "32.0 64 32.0 64 32.0 64 32.0 64" # 16 warps of 32 lanes, 4 bytes each
        done
    done
}

@test "simgpu: blocks start in order; with --seed in another one, the same again on one thread" {
    local order seed
    blocks_in_order --threads 1
    assert_equal "${lines[0]}" "$(echo {0..99})"
    for seed in 1 2; do
        blocks_in_order --threads 1 --seed "$seed"
        order=${lines[0]}
        refute [ "$order" = "$(echo {0..99})" ]
        blocks_in_order --threads 1 --seed "$seed"
        assert_equal "${lines[0]}" "$order"
        blocks_in_order --threads 4 --sms 1 --seed "$seed" # more blocks than the device holds at once
    done
}

@test "simgpu: the last block of many may reset what the others have counted with, on as many host threads as one likes" {
    program last_block
    run -0 "$SIMGPU" --threads 8 "$ROOT/build/tests/simgpu/programs/last_block"
    assert_output right
}

@test "simgpu: of random accesses none is told as a race that is not one; of those that race, most are" {
    local memory seed told
    for memory in shared global blocks; do program random_accesses $memory 1 1000; done
    for seed in 1 2 3; do
        run -0 "$SIMGPU" --seed "$seed" --threads 3 "$ROOT/build/tests/simgpu/programs/random_accesses" blocks 1 300
        assert_output right
    done
    for memory in shared blocks; do
        told=0
        for seed in {1..60}; do
            run "$SIMGPU" --threads 1 "$ROOT/build/tests/simgpu/programs/random_accesses" $memory "$seed" 1 racy
            assert_line --regexp '^operation .* races$'
            [[ ! $output =~ "simgpu: " ]] || told=$((told + 1))
        done
        echo "told: $told of 60"
        [[ $told -ge $([[ $memory == shared ]] && echo 51 || echo 40) ]]
    done
}

@test "simgpu: streams, events, async copies and host functions keep their order" { program streams; }

@test "simgpu: managed, page-locked, registered memory and __managed__ variables are host's and kernels' alike" {
    program shared_with_host
    run -0 "$SIMGPU" --seed 3 "$ROOT/build/tests/simgpu/programs/shared_with_host"
    assert_output --partial right
}

@test "simgpu: CUDA graphs: captured, forked, built, updated, allocating; forbidden captures are refused by name" {
    local seed
    for seed in 0 1 2 3; do
        run -0 --separate-stderr "$SIMGPU" --seed "$seed" "$ROOT/build/tests/simgpu/programs/graphs"
        assert_equal "${lines[-1]}" right
    done
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'cudaMalloc while a stream is being captured .*; the capture is invalid now'
    assert_regex "$stderr" 'cudaStreamEndCapture: work in another captured stream was never joined'
    assert_regex "$stderr" "cudaGraphInstantiate: the graph's dependencies form a cycle"
}

@test "simgpu: a kernel of a graph that uses memory after the graph's own node has freed it is told so" {
    program graphs freed_too_soon
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'use after free: read of 4 bytes at .*in kernel add\(int\*, int, int\)'
}

@test "simgpu: with --seed streams are late: a forgotten synchronisation is told, or gives wrong numbers, every time, its right twin never" {
    local late=$ROOT/build/tests/simgpu/programs/late name seed
    run -2 "$SIMGPU" "$late"
    assert_equal "${#lines[@]}" 10
    for name in "${lines[@]}"; do
        run -0 "$SIMGPU" "$late" "$name" # in order, as on most days
        for seed in 1 2 3 4 5; do
            run ! "$SIMGPU" --seed "$seed" "$late" "$name"
            case "$name" in
            copy_not_awaited | query_*) assert_line --index -1 wrong ;; # what the host reads is not seen
            buffer_reused) assert_output --partial "the host has written at" ;;
            *) assert_output --partial "nothing orders these two" ;;
            esac
            run -0 "$SIMGPU" --seed "$seed" "$late" "$name" right
        done
    done
}

@test "simgpu: __device__ and __constant__ variables, copied to and from" { program symbols; }

@test "simgpu: PTX that a program loads with cudaLibraryLoadData" { program library; }

@test "simgpu: files compiled apart and linked: functions, variables, shared memory and lines across them" {
    program linked
    program linked astray
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'at [^ ]*linked/functions\.cu:[0-9]+: st\..*called  at [^ ]*linked/main\.cu:[0-9]+: call'
}

@test "simgpu: --profile counts a function that several kernels call for the one that called it" {
    run -0 "$SIMGPU" --json "$BATS_TEST_TMPDIR/counters.json" "$ROOT/build/tests/simgpu/programs/linked"
    run -0 "$PYTHON" -c '
import json, sys
for kernel in json.load(open(sys.argv[1])):
    lines = sum(line["warp_instructions"] for line in kernel["lines"])
    print(kernel["kernel"], lines, kernel["instructions"], lines == kernel["instructions"])' "$BATS_TEST_TMPDIR/counters.json"
    assert_equal "${#lines[@]}" 3
    refute_output --partial False
}

@test "simgpu: files linked from a static library, with every architecture's machine code beside the PTX" {
    local nvcc name
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    for name in functions variables; do
        "$nvcc" -std=c++17 -arch=sm_90a -dc -o "$BATS_TEST_TMPDIR/$name.o" "tests/simgpu/programs/linked/$name.cu"
    done
    ar rcs "$BATS_TEST_TMPDIR/libparts.a" "$BATS_TEST_TMPDIR"/*.o
    "$nvcc" -std=c++17 -arch=sm_90a -rdc=true -cudart shared -o "$BATS_TEST_TMPDIR/linked" tests/simgpu/programs/linked/main.cu \
        -L"$BATS_TEST_TMPDIR" -lparts
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/linked"
    assert_output right
}

@test "simgpu: dynamic shared memory, beyond 48 KiB too" { program dynamic_shared; }

@test "simgpu: an address that strays into another allocation is told, with the one that it was made of; what leads there on purpose is let alone" {
    local name by whose source=$BATS_TEST_DIRNAME/programs/neighbours.cu
    while read -r name; do
        by=", where parameter 0 points: there lies allocation 2 of 4096 bytes" whose="allocation 1"
        [[ $name != of_a_variable ]] || by=": there lies variable bias of 4096 bytes" whose="variable weights"
        run -1 "$SIMGPU" "$ROOT/build/tests/simgpu/programs/neighbours" "$name"
        assert_line --regexp "out of bounds: (read|write) of (4|16) bytes at 0x[0-9a-f]+, 512 bytes past the end of $whose of 4096 bytes \(at 0x[0-9a-f]+\)$by\$"
        assert_line --regexp "neighbours\.cu:$(grep -n "// fault: $name\$" "$source" | cut -d: -f1)[^0-9]"
        run -0 "$SIMGPU" --faults=report "$ROOT/build/tests/simgpu/programs/neighbours" "$name"
        assert_line --partial "there lies"
    done < <(sed -n 's,.*// fault: ,,p' "$source")
    program neighbours
}

@test "simgpu: cooperative groups down to tiles, reductions, scans and labelled groups" { program cooperative_groups; }

@test "simgpu: recursion, function pointers, structs by value" { program recursion; }
@test "simgpu: lanes meet in a collective through different calls" { program two_calls; }

@test "simgpu: cudaLaunchKernelEx, cooperative and dependent launches, 3-D grids, large parameters" { program launches; }

@test "simgpu: copies and fills in one, two and three dimensions" { program copies; }

@test "simgpu: the device describes itself consistently" {
    program device
    assert_equal "${lines[0]}" "Simulated GPU (SM90), 132 multiprocessors, 16384 MiB"
}

@test "simgpu: elementwise kernels, reductions, histogram, layernorm, softmax, transpose and scan" { program deep_learning; }

@test "simgpu: cuda::memcpy_async, whose mbarrier's init the library does not fence, is let alone" { program library_copy; }

@test "simgpu: a tiled matmul with cooperative groups, and cuBLAS's SGEMM" { program matmul; }

@test "simgpu: cuBLAS's products in f32, f16, bf16 and f64, in batches, with scalars on the device; its copies" {
    program cublas
    run -0 "$SIMGPU" --seed 2 "$ROOT/build/tests/simgpu/programs/cublas"
}

@test "simgpu: cuBLASLt's matmul with its types, layouts, batches and epilogues, in a graph too" {
    program cublaslt
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'cublasLtMatmul: D is 16 x 16, but op\(A\) is 16 x 8, op\(B\) 8 x 24 and C 16 x 16'
    run -0 "$SIMGPU" --seed 2 "$ROOT/build/tests/simgpu/programs/cublaslt"
}

@test "simgpu: cuBLAS beyond the end of a matrix is an illegal address, with the matrix named" {
    program cublas beyond
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'cublasSgemmStridedBatched: B \(8 x 8, ld 8, f32\): reads 256 bytes at .*only 224 are left'
    program cublas beyond pointers
    assert_regex "$stderr" 'cublasSgemmBatched: B \(8 x 8, ld 8, f32\): reads 256 bytes at .*only 224 are left'
}

# nccl_ranks WHAT RANKS [OPTIONS]: so many processes, each with a simulated GPU.
nccl_ranks() {
    local program=$BATS_FILE_TMPDIR/nccl cuda_include
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    [[ -e $program ]] || gcc -std=gnu11 -O1 -Wall -Wextra -Werror -isystem "$cuda_include" -o "$program" tests/simgpu/programs/nccl.c \
        build/simgpu/lib/libnccl.so.2 build/simgpu/lib/libcudart.so.13 -lm -pthread
    run -0 --separate-stderr timeout 60 "$SIMGPU" "${@:3}" "$program" "$1" "$2"
    assert_output ""
}

@test "simgpu: NCCL's collectives of one, two and three processes, in every type and operation, in groups and in graphs" {
    local ranks
    for ranks in 1 2 3; do nccl_ranks values $ranks; done
    for ranks in 2 3; do nccl_ranks streams $ranks; done
    nccl_ranks streams 3 --seed 3
}

# shellcheck disable=SC2154 # Bats sets stderr
@test "simgpu: NCCL: a rank that ends, ranks that call different collectives, and buffers that are too small are named; so is a graph that NCCL would wait for; abort ends a wait" {
    nccl_ranks dead 3
    assert_regex "$stderr" "rank 2 of 3 has ended, and rank 0 waits for it in ncclAllReduce of 1024 float32, sum \(its collective number 2\)"
    nccl_ranks dead 3 --seed 2
    nccl_ranks aborted 2
    nccl_ranks different 3
    assert_regex "$stderr" "rank 1 calls ncclAllReduce of 1000 float32, sum where rank 0 calls ncclAllReduce of 1024 float32, sum"
    nccl_ranks beyond 2
    assert_regex "$stderr" "ncclAllGather: writes 8192 bytes at .*, but only 4096 are left there"
    nccl_ranks recorded 2
    assert_regex "$stderr" "ncclCommDestroy: a graph still has 1 collectives of this communicator: on a GPU the call waits until"
    nccl_ranks refused 1
    assert_regex "$stderr" "ncclCommInitRank: rank 1 says 2 ranks, another one 1"
}

@test "simgpu: CUB, compiled for compute_80, sums by key and scans: 16 bytes that blocks hand on are never torn" {
    local threads
    for threads in 2 4 8 16; do
        run -0 --separate-stderr "$SIMGPU" --threads "$threads" "$ROOT/build/tests/simgpu/programs/cub"
        assert_equal "${lines[-1]}" right
    done
}

@test "simgpu: blocks that look back at those before them end soon, in whatever order they start" {
    local threads seed
    for threads in 1 2; do
        for seed in 1 2 3; do
            run -0 timeout 30 "$SIMGPU" --threads $threads --seed $seed "$ROOT/build/tests/simgpu/programs/cub"
            assert_output right
        done
    done
}

@test "simgpu: several host threads use the device at once" { program threads; }

@test "simgpu: programs with per-thread default streams run" {
    local nvcc name
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    for name in threads streams copies symbols launches; do
        "$nvcc" -std=c++17 -cudart shared -gencode arch=compute_90a,code=compute_90a --default-stream per-thread \
            -o "$BATS_TEST_TMPDIR/$name" "tests/simgpu/programs/$name.cu"
        run -0 --separate-stderr "$SIMGPU" "$BATS_TEST_TMPDIR/$name"
        assert_equal "${lines[-1]}" right
    done
}

@test "simgpu: mathematical functions in f32, f64, f16 and bf16" { program mathematics; }

@test "simgpu: every program gives the same on one thread and with warps in another order" {
    local name
    for name in streams symbols dynamic_shared cooperative_groups recursion launches deep_learning matmul; do
        run -0 --separate-stderr "$SIMGPU" --threads 1 --seed 7 "$ROOT/build/tests/simgpu/programs/$name"
        assert_equal "${lines[-1]}" right
    done
}

@test "simgpu: printf in a kernel prints as C's does, one line a call" {
    program printf
    assert_equal "$(grep -v '^block' <<<"$output")" "plain
1 -2     3|4    |00005 +6
4000000000 beef BEEF 0xff 10 z %
1.500000 2.35 1.234568e+04 1e-10 0.0001      3.142|
-1234567890123 18446744073709551615 123456789abc 5 -7 200
string|   right|left    |tru
    42|42    |2.72
from cudaMalloc -inf nan
1 2 3
none
right"
    # Which block is first, the host's threads decide.
    assert_equal "$(grep '^block' <<<"$output" | sort --stable --key 2,2)" "block 0 thread  0
block 0 thread  8
block 0 thread 16
block 0 thread 24
block 1 thread  0
block 1 thread  8
block 1 thread 16
block 1 thread 24"
}

@test "simgpu: a grid barrier made by hand takes seconds at most: who polls leaves its turn to others" {
    local threads seed
    for threads in 1 2; do
        for seed in 0 1 2; do
            run -0 timeout 60 "$SIMGPU" --threads $threads --seed $seed "$ROOT/build/tests/simgpu/programs/grid_barrier"
            assert_output right
        done
    done
}

@test "simgpu: blocks that wait for more of them than the device holds at once are told so" {
    local threads seed
    for threads in 1 2; do
        for seed in 0 1; do
            run -3 timeout 60 "$SIMGPU" --sms 1 --threads $threads --seed $seed --max-idle 64M \
                "$ROOT/build/tests/simgpu/programs/grid_barrier"
            assert_output --partial "livelock"
            assert_output --regexp "3[12] blocks have not started: the device's 1 multiprocessors hold no more of them at once"
        done
    done
}

@test "simgpu: a kernel that several steps launch is counted for each step that says so" {
    local seed json=$BATS_TEST_TMPDIR/counters.json
    for seed in 0 1; do
        run -0 --separate-stderr "$SIMGPU" --seed "$seed" --json "$json" "$ROOT/build/tests/simgpu/programs/steps"
        # shellcheck disable=SC2154 # Bats sets stderr
        assert_regex "$stderr" "simgpu: second: kernel shared_by_steps\(int\*\): 2 launches"
        run -0 python 'import json
for k in json.load(open(sys.argv[1])):
    print(k.get("step"), k["launches"], k["instructions"] == sum(l["warp_instructions"] for l in k["lines"]) == sum(k["ops"].values()), k["instructions"] // 8)' "$json"
        assert_output $'first 2 True 2\nsecond 2 True 6\nNone 1 True 2'
    done
}
