#!/usr/bin/env bats
# What the driver does on a real GPU only (guard zones, timing), run on the simulated GPU by a driver that is told that
# it is real. The times are meaningless; what is checked before them, printed and recorded is not.

# Bats sets stderr; PROGRAM is set for the test that runs.
# shellcheck disable=SC2154,SC2030,SC2031
load test_helper/common

# real_gpu [STEP.cu SED [MAIN.c]]: chapter 1, or $CHAPTER, with that driver, one step edited, and with another main.c; DRIVER is another edit
# of the driver.
real_gpu() {
    local chapter=${CHAPTER:-01_naive_matmul} dir=$BATS_TEST_TMPDIR/tree objects nvcc cuda_include cuda_lib
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mkdir -p "$dir"
    sed "s/device\.simulated = .*/device.simulated = false;/; ${DRIVER:-}" common/harness/bench.c >"$dir/bench.c"
    run ! cmp -s common/harness/bench.c "$dir/bench.c"
    gcc -std=gnu11 -O1 -Icommon/harness -isystem "$cuda_include" -c -o "$dir/bench.o" "$dir/bench.c"
    mapfile -t objects < <(objects "$chapter" "${1%.cu}" | grep -v /bench.o)
    if [[ $# -gt 0 ]]; then
        sed -E "$2" "chapters/$chapter/$1" >"$dir/$1"
        run ! cmp -s "chapters/$chapter/$1" "$dir/$1"
        "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_75,code=compute_75 -I"chapters/$chapter" -c -o "$dir/step.o" "$dir/$1"
        objects+=("$dir/step.o")
    fi
    if [[ $# -gt 2 ]]; then
        gcc -std=gnu11 -O1 -I"chapters/$chapter" -isystem "$cuda_include" -c -o "$dir/main.o" "$3"
        mapfile -t objects < <(printf '%s\n' "${objects[@]}" | sed "s|.*/$chapter/main\.o|$dir/main.o|")
    fi
    PROGRAM=$BATS_TEST_TMPDIR/program
    g++ -o "$PROGRAM" "$dir/bench.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
}

@test "real GPU: a store past the end of C lands in its guard zone, and is found" {
    # One float past the end, where a GPU would say nothing.
    real_gpu step2_coalesced.cu 's/^    float sum = 0\.0f;/&\n    if (row == 0 \&\& lane == 0) C[(size_t)M * N] = 7.0f;/'
    run -1 "$SIMGPU" "$PROGRAM" --golden build/golden/01_naive_matmul --step 2 --case one_element
    assert_line "      C: byte 0 past its end was overwritten"
    run -3 "$SIMGPU" "$PROGRAM" --golden build/golden/01_naive_matmul --step 2 --case one_element --no-guards
}

@test "real GPU: steps are timed beside the baseline, and recorded with every field" {
    real_gpu
    run -0 "$SIMGPU" "$PROGRAM" --bench --shape m=64,n=48,k=40 --json "$BATS_TEST_TMPDIR/gpu.json"
    assert_line --regexp '^  cuBLAS SGEMM +f32 +m=64,n=48,k=40 .* 1\.000'
    assert_line --regexp '^  uncoalesced +f32 +m=64,n=48,k=40 '
    assert_line --regexp '^  coalesced +f32 +m=64,n=48,k=40 '
    assert_line --regexp '^  [0-9]+ interleaved rounds of about 4 ms each'
    run -0 python 'import json
for r in json.load(open(sys.argv[1])):
    assert set(r) == set("chapter step case dtype metric value spread baseline baseline_value ratio fraction_of_limit limit gpu driver cuda commit date command".split()), r
    assert r["metric"] == "TFLOP/s" and r["baseline"] == "cuBLAS SGEMM" and r["case"] == "m=64,n=48,k=40" and r["limit"]["name"] == "fp32"
    assert r["spread"][0] <= r["value"] <= r["spread"][1] and "--bench --shape m=64,n=48,k=40" in r["command"]
    print(r["step"])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "$(printf 'uncoalesced\ncoalesced')"
}

@test "real GPU: of a library's candidates the fastest that is right takes part, and the records have it" {
    CHAPTER=14_warp_specialized_matmul real_gpu
    run -0 "$SIMGPU" "$PROGRAM" --bench --op matmul --type bf16 --step 8 --shape m=64,n=48,k=40 --json "$BATS_TEST_TMPDIR/gpu.json"
    assert_line --regexp '^  cuBLASLt best: candidate [1-3] of 3, 3 of them right$'
    assert_line --regexp ' TFLOP/s x baseline     x best$'
    assert_line --regexp '^  cuBLAS +bf16 +m=64,n=48,k=40 .* 1\.000 +[0-9.]+$'
    assert_line --regexp '^  cuBLASLt best +bf16 +m=64,n=48,k=40 .* 1\.000$'
    run -0 python 'import json
[r] = json.load(open(sys.argv[1]))
assert r["step"] == "few_tiles" and r["baseline"] == "cuBLAS" and r["best"]["name"] == "cuBLASLt best", r
assert set(r["best"]) == {"name", "value", "ratio"} and r["best"]["value"] > 0 and r["best"]["ratio"] > 0, r' "$BATS_TEST_TMPDIR/gpu.json"
    # One that overwrites a number, and one that its library refuses after all, are not timed.
    DRIVER='s/^    CUDA_CHECK(contender_launch(contender, run, stream));/&\n    if (contender->candidate == 1) cudaMemsetAsync(run->data[3], 0x7e, 2, stream);/
            s/launched = op->best.launch(.*);/launched = i == 2 ? cudaErrorNotSupported : op->best.launch(\&sets[0], i, stream);/' \
        CHAPTER=14_warp_specialized_matmul real_gpu
    run -0 "$SIMGPU" "$PROGRAM" --bench --op matmul --type bf16 --step 8 --shape m=64,n=48,k=40
    assert_line "  cuBLASLt best: candidate 1 of 3, 1 of them right"
}

@test "real GPU: a step whose output is not the baseline's is not timed" {
    real_gpu step2_coalesced.cu 's/k < K; k \+= 32/k < K - 1; k += 32/'
    run -1 "$SIMGPU" "$PROGRAM" --bench --shape m=64,n=48,k=40 --json "$BATS_TEST_TMPDIR/gpu.json"
    assert_line --regexp '^  coalesced: WRONG, so not timed: C\[row 0, col [0-9]+\]: got .*, baseline .*, allowed difference '
    refute_line --regexp '^  coalesced +f32'
    run -0 python 'import json; print([r["step"] for r in json.load(open(sys.argv[1]))])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "['uncoalesced']"
}

@test "real GPU: a step that is wrong in one operation hides none of the others" {
    # Chapter 1's operation twice, on a small shape.
    awk '/operations\[\] = \{\{/ { print "static const struct operation operations[] = {"; inside = 1; next }
         inside && /^\}\};/ { printf "{ .name = \"first\",\n%s},\n{ .name = \"second\",\n%s},\n};\n", body, body; inside = 0; next }
         inside { sub("m=4096,n=4096,k=4096", "m=64,n=48,k=40"); body = body $0 "\n"; next }
         { print }' chapters/01_naive_matmul/main.c >"$BATS_TEST_TMPDIR/main.c"
    real_gpu step2_coalesced.cu 's/k < K; k \+= 32/k < K - 1; k += 32/' "$BATS_TEST_TMPDIR/main.c"
    run -1 "$SIMGPU" "$PROGRAM" --bench --json "$BATS_TEST_TMPDIR/gpu.json"
    [[ $(grep -c '^  coalesced: WRONG, so not timed: ' <<<"$output") -eq 2 ]]
    run -0 python 'import json; print([(r["operation"], r["step"]) for r in json.load(open(sys.argv[1]))])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "[('first', 'uncoalesced'), ('second', 'uncoalesced')]"
}

@test "real GPU: a NaN is not what the baseline has" {
    real_gpu step2_coalesced.cu 's/= sum \+ \(bias/= (row == M - 1 ? nanf("") : sum) + (bias/'
    run -1 "$SIMGPU" "$PROGRAM" --bench --shape m=64,n=48,k=40
    assert_line --regexp '^  coalesced: WRONG, so not timed: C\[row 63, col 0\]: got -?nan, baseline '
}

@test "real GPU: arrays are compared in every type, row by row, and the first difference is found" {
    local cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    cat >"$BATS_TEST_TMPDIR/compare.c" <<'END'
#include "compare.h"
#include <math.h>

enum { ROWS = 3, COLS = 5000, COUNT = ROWS * COLS };

static double one = 1; // what is written for it, and for all others as many times as much

// The first element that differs when elements `at` and `at + 1` are `got` and all are expected to be 1, in row 2: 16.
static int64_t first_difference(enum dtype dtype, int64_t at, double got, int64_t row, double share, double share_of_all)
{
    static double data[2][COUNT]; // room for any type
    void *device[2];
    struct difference first;
    for (int i = 0; i < 2 * COUNT; i++) dtype_set(dtype, data[i / COUNT], i % COUNT, one * (i % COUNT < 2 * COLS ? 1 : 16));
    if (at >= 0) dtype_set(dtype, data[0], at, one * got);
    if (at >= 0) dtype_set(dtype, data[0], at + 1, one * got);
    for (int a = 0; a < 2; a++) {
        CUDA_CHECK(cudaMalloc(&device[a], sizeof data[a]));
        CUDA_CHECK(cudaMemcpy(device[a], data[a], sizeof data[a], cudaMemcpyHostToDevice));
    }
    CUDA_CHECK(compare_arrays(dtype, device[0], device[1], COUNT, row, share, share_of_all, &first));
    if (first.index >= 0 && first.value != one * got && !isnan(got)) printf("found %g, not %g\n", first.value, got);
    for (int a = 0; a < 2; a++) CUDA_CHECK(cudaFree(device[a]));
    return first.index;
}

int main(void)
{
    const enum dtype types[] = {F32, F64, F16, BF16, E4M3, E5M2, I32, I64, U8};
    for (int i = 0; i < 9; i++)
        printf("%s: %d %d\n", dtype_name(types[i]), (int)first_difference(types[i], -1, 0, COLS, 1e-4, 0),
               (int)first_difference(types[i], COLS + 4321, 2, COLS, 1e-4, 0));
    printf("NaN: %d\n", (int)first_difference(F32, 7, NAN, COUNT, 100, 0));
    printf("an epsilon: %d, two: %d\n", (int)first_difference(BF16, 7, 1 + 0x1p-7, COLS, 1e-4, 0),
           (int)first_difference(BF16, 7, 1 + 0x1p-6, COLS, 1e-4, 0));
    printf("a tenth of a row's RMS: %d, of all rows': %d\n", (int)first_difference(F32, 7, 1.125, COLS, 0.1, 0),
           (int)first_difference(F32, 7, 1.125, COUNT, 0.1, 0));
    printf("a tenth of all rows' RMS besides: %d, a hundredth: %d\n", (int)first_difference(F32, 7, 1.125, COLS, 0, 0.1),
           (int)first_difference(F32, 7, 1.125, COLS, 0, 0.01));
    const int exponents[] = {-149, -1074, -24, -133, -9, -16}; // of the types' least numbers
    for (int i = 0; i < 6; i++) {
        one = ldexp(2, exponents[i]);
        printf("%s, subnormal: one number further: %d, two: %d\n", dtype_name(types[i]), (int)first_difference(types[i], 7, 0.5, COLS, 1e-4, 0),
               (int)first_difference(types[i], 7, 0, COLS, 1e-4, 0));
    }
}
END
    gcc -std=gnu11 -Wall -Werror -Icommon/harness -isystem "$cuda_include" -o "$BATS_TEST_TMPDIR/compare" "$BATS_TEST_TMPDIR/compare.c" \
        build/obj/common/harness/{compare,npy}.o -L"$cuda_lib" -l:libcudart.so.13 -lstdc++ -lm
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/compare"
    assert_output "$(printf '%s: -1 9321\n' f32 f64 f16 bf16 e4m3 e5m2 i32 i64 u8; printf '%s\n' "NaN: 7" \
        "an epsilon: -1, two: 7" "a tenth of a row's RMS: 7, of all rows': -1" "a tenth of all rows' RMS besides: -1, a hundredth: 7"
        printf '%s, subnormal: one number further: -1, two: 7\n' f32 f64 f16 bf16 e4m3 e5m2)"
}

@test "real GPU: check-gpu runs cases, random shapes and compute-sanitizer, and names what is wrong or does not end" {
    local tools=$BATS_TEST_TMPDIR log=build/check_gpu/01_naive_matmul
    # shellcheck disable=SC2016 # it is the script's own $1
    printf '#!/bin/bash\n[[ "$1 $3" == "--tool --error-exitcode" ]] || exit 8\nshift 4\n"$@"; echo "========= ERROR SUMMARY: 0 errors"\n' >"$tools/sanitizer"
    printf '#!/bin/bash\necho "  1 uncoalesced  tile  WRONG"; exit 1\n' >"$tools/wrong"
    printf '#!/bin/bash\nexec sleep 60\n' >"$tools/hangs"
    chmod +x "$tools"/*

    run -0 env START="$SIMGPU" SHAPES=2 JOBS=2 PARTS="golden random memcheck" SANITIZER="$tools/sanitizer" tools/check_gpu.sh 1
    assert_line --regexp '^01_naive_matmul +golden +[0-9]+ s  all 22 runs right$'
    assert_line --regexp '^01_naive_matmul +random +[0-9]+ s  all 8 runs right$' # two steps, two shapes, with a bias and without
    assert_line --regexp '^01_naive_matmul +memcheck +[0-9]+ s  all 2 runs right$'
    assert_line "3 parts ran, 0 of them failed"
    run -0 cat $log/memcheck.log
    assert_line "========= ERROR SUMMARY: 0 errors"

    run -1 env START="$tools/wrong" PARTS=golden tools/check_gpu.sh 1 02
    assert_line --regexp "^01_naive_matmul +golden +[0-9]+ s  FAILED with status 1: $log/golden.log$"
    assert_line "  1 uncoalesced  tile  WRONG"
    assert_line "2 parts ran, 2 of them failed"
    run -1 env START="$tools/wrong" SHAPES=201 PARTS=random tools/check_gpu.sh 01
    assert_line --regexp "^01_naive_matmul +random +[0-9]+ s  FAILED with status 1: $log/random.log$"
    run -0 grep wrong: $log/random.log
    assert_output "$(printf 'wrong: matmul f32, seed %s, status 1; the cases: %s/random/matmul_f32_%s\n' 1 $log 1 2 $log 2)"
    run -1 env START="$tools/hangs" PARTS=golden LIMIT=1 tools/check_gpu.sh 1
    assert_line --regexp "^01_naive_matmul +golden +[0-9]+ s  STOPPED after 1 s: $log/golden.log$"

    run -2 env START="$SIMGPU" tools/check_gpu.sh 99
    assert_output --regexp "^check_gpu.sh: found chapter '99', expected some of 01 02 .* 22$"
    run -2 env START="$SIMGPU" PARTS=all tools/check_gpu.sh 1
    assert_output "check_gpu.sh: PARTS: found 'all', expected some of golden, random, memcheck, racecheck, synccheck, initcheck"
}
