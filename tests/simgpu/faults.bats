#!/usr/bin/env bats
# Broken kernels end with a named fault every time: what went wrong, kernel, source line, block and thread, and the CUDA error
# that the real call would return, which then stays.

# Bats sets stderr.
# shellcheck disable=SC2154
load ../test_helper/common

FAULTS=$BATS_TEST_DIRNAME/faults/faults.cu

# broken NAME ERROR: the kernel is stopped on its marked line, and the calls that follow return the error.
broken() {
    run -1 --separate-stderr "$SIMGPU" --max-instructions 300000 --max-idle 0 "$ROOT/build/tests/simgpu/faults/faults" "$1"
    assert_line --index 0 "$2"
    assert_line --index 1 "then $2"
    assert_regex "$stderr" "kernel $1"
    assert_regex "$stderr" "faults\.cu:$(line_of "$1")[^0-9]"
}

# line_of NAME: the line that is marked with the fault.
line_of() { grep -n "// fault: $1\$" "$FAULTS" | cut -d: -f1; }

# says REGEX...: the message has all of these.
says() {
    local regex
    for regex in "$@"; do assert_regex "$stderr" "$regex"; done
}

@test "faults: a read past the end names the allocation, block and thread" {
    broken read_beyond cudaErrorIllegalAddress
    says "out of bounds: read of 4 bytes" " 0 bytes past the end of allocation [0-9]+ of 400 bytes"
    says "block \(1,0,0\), thread \(36,0,0\)" "ld\.global"
}

@test "faults: a write past the end, by one thread in a branch" {
    broken write_beyond cudaErrorIllegalAddress
    says "out of bounds: write of 4 bytes" "of 400 bytes" "block \(1,0,0\), thread \(36,0,0\)"
}

@test "faults: a write before the start" {
    broken write_before cudaErrorIllegalAddress
    says "write of 4 bytes" "8 bytes before allocation [0-9]+ of 400 bytes" "thread \(0,0,0\)"
}

@test "faults: a 16-byte store whose address is inside no more by its last bytes" {
    broken vector_across_the_end cudaErrorIllegalAddress
    says "write of 16 bytes" "thread \(25,0,0\)"
}

@test "faults: past a __device__ variable, which is named" {
    broken beyond_a_variable cudaErrorIllegalAddress
    says "past the end of variable variable of 16 bytes" "thread \(4,0,0\)"
}

@test "faults: a misaligned vector store" {
    broken misaligned_vector cudaErrorMisalignedAddress
    says "must be a multiple of 8" "st\.global\.v2"
}

@test "faults: use after free" {
    broken after_free cudaErrorIllegalAddress
    says "use after free" "freed allocation [0-9]+ of 400 bytes"
}

@test "faults: a null pointer" {
    broken null_pointer cudaErrorIllegalAddress
    says "null pointer" "0xc" "thread \(7,0,0\)"
}

@test "faults: just before address 0, where addresses wrap around" {
    broken before_null cudaErrorIllegalAddress
    says "write of 8 bytes at 0xfffffffffffffff8, which is no device address"$'\n' "thread \(0,0,0\)"
}

@test "faults: memory that this very instruction used before it was freed" {
    broken freed_here cudaErrorIllegalAddress
    says "use after free: write of 4 bytes"
}

@test "faults: free in a kernel of what cudaMalloc allocated" {
    broken free_of_the_host cudaErrorIllegalAddress
    says "not an address that malloc returned" "thread \(2,0,0\)"
}

@test "faults: an indirect call through a type with a wider argument" {
    broken wider_argument cudaErrorLaunchFailure
    says "an indirect call reaches sum\(int, int\), which has another type: its parameter 0 has 4 bytes, the call's 8"
}

@test "faults: an indirect call through a type with fewer arguments" {
    broken argument_missing cudaErrorLaunchFailure
    says "1 results and 2 parameters, where the call has 1 and 1"
}

@test "faults: printf with fewer arguments than its format asks for, or none" {
    broken printf_without cudaErrorIllegalAddress
    says "printf: its format asks for more arguments than it has"
    broken printf_with_too_few cudaErrorIllegalAddress
    says "printf: its format asks for more arguments than it has" "thread \(1,0,0\)"
}

@test "faults: an mbarrier and asynchronous copies at shared address 0, which is the system's" {
    local kernel
    for kernel in mbarrier_at_0 bulk_to_0 bulk_from_0; do
        broken "$kernel" cudaErrorIllegalAddress
        says "shared address 0x0: a block's shared memory begins at 0x400"
    done
    broken cp_async_to_0 cudaErrorIllegalAddress
    says "the destination is not in the block's own shared memory"
}

@test "faults: a host pointer given to a kernel" {
    broken host_pointer cudaErrorIllegalAddress
    says "host pointer"
}

@test "faults: an atomic out of bounds" {
    broken atomic_beyond cudaErrorIllegalAddress
    says "out of bounds" "atom\.global\.add"
}

@test "faults: a store to __constant__ memory" {
    broken write_constant cudaErrorIllegalAddress
    says "constant variable constant_table of 32 bytes"
}

@test "faults: past static shared memory" {
    broken shared_beyond cudaErrorIllegalAddress
    says "shared offset 384" "256 static" "thread \(32,0,0\)"
}

@test "faults: past dynamic shared memory" {
    broken dynamic_shared_beyond cudaErrorIllegalAddress
    says "shared offset 128" "128 dynamic" "thread \(32,0,0\)"
}

@test "faults: a misaligned shared access" {
    broken shared_misaligned cudaErrorMisalignedAddress
    says "misaligned shared address" "must be a multiple of 8"
}

@test "faults: past a local array" {
    broken local_beyond cudaErrorIllegalAddress
    says "local offset 4194304" "thread \(5,0,0\)"
}

@test "faults: endless recursion overflows the device stack" {
    broken endless_recursion cudaErrorIllegalAddress
    says "device stack overflow" "cudaLimitStackSize"
}

@test "faults: warps that wait for one that never comes are listed, each with its barrier" {
    broken absent_warp cudaErrorLaunchTimeout
    says "deadlock" "warp 0, .*waits at barrier 3, where 64 of 128 threads have arrived"
    says "warp 2, .*waits at barrier 4, where 32 of 64" "warp 3: has exited"
}

@test "faults: __syncthreads in one branch of a warp" {
    broken divergent_barrier cudaErrorLaunchTimeout
    says "deadlock" "lanes 0xaaaaaaaa: waits for lanes 0x55555555"
}

@test "faults: a predicated barrier that some lanes skip" {
    broken predicated_barrier cudaErrorLaunchFailure
    says "divergent barrier: lanes 0x000000ff .* lanes 0xffffff00 skip it"
}

@test "faults: a barrier used with two thread counts" {
    broken uneven_barrier cudaErrorLaunchFailure
    says "96 threads here, but with 64"
}

@test "faults: a shuffle whose mask names lanes that are elsewhere" {
    broken absent_lanes cudaErrorLaunchTimeout
    says "deadlock" "lanes 0x0000ffff: waits for lanes 0xffff0000" "shfl\.sync"
}

@test "faults: a loop that never ends is stopped, and where it was is said" {
    broken endless_loop cudaErrorLaunchTimeout
    says "stopped after 300000 warp instructions"
}

@test "faults: trap" {
    broken trapped cudaErrorLaunchFailure
    says "trap" "thread \(3,0,0\)"
}

@test "faults: a failed assert gives expression, line and thread" {
    broken asserted cudaErrorAssert
    says "Assertion .threadIdx\.x != 9 \|\| x\[0\] == 1. failed" "thread \(9,0,0\)"
}

@test "faults: an unsupported instruction is refused by name before anything runs" {
    run -1 --separate-stderr "$SIMGPU" "$ROOT/build/tests/simgpu/faults/faults" texture
    assert_line --index 0 cudaErrorNotSupported
    assert_line --index 1 "then cudaSuccess"
    says "kernel texture" "tex\.1d\.v4\.f32\.s32" "not supported" "faults\.cu:[0-9]+"
}

@test "faults: what cp.async brings is read before it is waited for" {
    broken unwaited_copy cudaErrorLaunchFailure
    says "shared offset 0 is read before the cp\.async at line [0-9]+ that brings it has been waited for" "cp\.async\.ca"
}

@test "faults: the source of cp.async changes while it is in flight" {
    broken source_changed cudaErrorLaunchFailure
    says "the source was changed" "cp\.async\.ca\.shared\.global"
}

@test "faults: more arrivals than an mbarrier expects" {
    broken over_arrival cudaErrorLaunchFailure
    says "over-arrival: 3 arrivals" "2 of 2"
}
