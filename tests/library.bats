#!/usr/bin/env bats
# The library: its example runs on the simulated GPU, only its own names are seen outside, and errors come back by name.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common

setup_file() { make --no-print-directory -s library >&2; }

@test "library: the example's gradients have the sums that they must have" {
    run -0 "$SIMGPU" build/library/example
    plain_python 'import re, sys
numbers = [float(x) for x in re.findall(r"-?\d+\.\d+", sys.argv[1])]
assert len(numbers) == 4, numbers
assert abs(numbers[0]) > 5 and abs(numbers[0] - numbers[1]) < 1, numbers # sums of 204,800 numbers, and of 102,400 that were rounded
assert abs(numbers[2]) > 1 and abs(numbers[2] - numbers[3]) < 0.02 * abs(numbers[2]), numbers' "$output"
}

@test "library: README shows what the example prints" {
    run -0 "$SIMGPU" build/library/example
    grep -qFx "${lines[0]}" README.md
    grep -qFx "${lines[1]}" README.md
}

@test "library: it defines its three functions for others and no other name" {
    run -0 nm --defined-only --extern-only build/library/attention.o
    assert_equal "$(awk 'NF == 3 { print $3 }' <<<"$output" | sort | tr '\n' ' ')" \
        "cookbook_attention_backward cookbook_attention_forward cookbook_attention_workspace_bytes "
}

@test "library: every path of the forward pass and what is refused come back by name, and the program goes on" {
    local cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    cat >"$BATS_TEST_TMPDIR/main.c" <<'END'
#include <stdio.h>
#include "cookbook_attention.h"
static void *memory;
static void call(const char *what, struct cookbook_attention a)
{
    const size_t bytes = cookbook_attention_workspace_bytes(&a);
    const char *error = cookbook_attention_forward(&a, 0);
    printf("%s: %zu bytes, forward %s", what, bytes, error ? error : "ok");
    if (a.dO) error = cookbook_attention_backward(&a, 0), printf(", backward %s", error ? error : "ok");
    printf(", %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
#define CALL(what, ...) do { struct cookbook_attention a = plain; __VA_ARGS__; call(what, a); } while (0)
int main(void)
{
    cudaMalloc(&memory, 1 << 22);
    cudaMemset(memory, 0, 1 << 22);
    char *m = memory;
    const struct cookbook_attention plain = {.type = COOKBOOK_F16, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64, .q_len = 70,
        .k_len = 70, .Q = m, .K = m + 65536, .V = m + 2 * 65536, .O = m + 3 * 65536, .LSE = (float *)(m + 4 * 65536),
        .left = COOKBOOK_UNBOUNDED, .right = COOKBOOK_UNBOUNDED, .workspace = m + (1 << 21)};
    CALL("plain", (void)0);
    CALL("window", a.left = 3);
    CALL("gradients", (a.dO = m + 5 * 65536, a.dQ = m + 6 * 65536, a.dK = m + 7 * 65536, a.dV = m + 8 * 65536));
    CALL("deterministic", (a.dO = m + 5 * 65536, a.dQ = m + 6 * 65536, a.dK = m + 7 * 65536, a.dV = m + 8 * 65536, a.deterministic = 1, a.softcap = 5));
    CALL("no workspace", (a.dO = m + 5 * 65536, a.dQ = m + 6 * 65536, a.dK = m + 7 * 65536, a.dV = m + 8 * 65536, a.workspace = NULL));
    CALL("no V", a.V = NULL);
    CALL("heads", a.heads = 3, a.kv_heads = 2);
    CALL("head_dim", a.head_dim = 80);
    CALL("no dQ", a.dO = m);
    return 0;
}
END
    gcc -Wall -Wextra -Werror -o "$BATS_TEST_TMPDIR/program" -Ilibrary -isystem "$cuda_include" "$BATS_TEST_TMPDIR/main.c" \
        build/libcookbook_attention.a -L"$cuda_lib" -l:libcudart.so.13 -lstdc++ -lm
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/program"
    assert_line 'plain: 0 bytes, forward ok, cudaSuccess'
    assert_line 'window: 0 bytes, forward ok, cudaSuccess'
    assert_line --regexp '^gradients: [0-9]{5,} bytes, forward ok, backward ok, cudaSuccess$'
    assert_line --regexp '^deterministic: [0-9]{5,} bytes, forward ok, backward ok, cudaSuccess$'
    assert_line --regexp '^no workspace: [0-9]{5,} bytes, forward ok, backward workspace is missing, cudaSuccess$'
    assert_line --regexp '^no V: 0 bytes, forward .*V.*, cudaSuccess$'
    assert_line --regexp '^heads: 0 bytes, forward heads must be a multiple of kv_heads'
    assert_line --regexp '^head_dim: 0 bytes, forward head dimensions must be 64, 128 or 256'
    assert_line --regexp '^no dQ: 0 bytes, forward ok, backward Q, K, V, O, LSE, dO, dQ, dK and dV must be given'
}
