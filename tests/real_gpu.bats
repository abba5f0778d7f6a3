#!/usr/bin/env bats
# What the driver does on a real GPU only (guard zones, timing), run on the simulated GPU by a driver that is told that
# it is real. The times are meaningless; what is checked before them, printed and recorded is not.

# Bats sets stderr; PROGRAM is set for the test that runs.
# shellcheck disable=SC2154,SC2030,SC2031
load test_helper/common

# real_gpu [STEP.cu SED]: chapter 1 with that driver, and one step edited.
real_gpu() {
    local chapter=01_naive_matmul dir=$BATS_TEST_TMPDIR/tree objects nvcc cuda_include cuda_lib
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mkdir -p "$dir"
    sed 's/device\.simulated = .*/device.simulated = false;/' common/chapter.c >"$dir/chapter.c"
    run ! cmp -s common/chapter.c "$dir/chapter.c"
    gcc -std=gnu11 -O1 -Icommon -isystem "$cuda_include" -c -o "$dir/chapter.o" "$dir/chapter.c"
    mapfile -t objects < <(find build/obj/chapters/$chapter build/obj/common -name '*.o' ! -name chapter.o ! -name "${1%.cu}.o")
    if [[ $# -gt 0 ]]; then
        sed -E "$2" "chapters/$chapter/$1" >"$dir/$1"
        run ! cmp -s "chapters/$chapter/$1" "$dir/$1"
        "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_75,code=compute_75 -c -o "$dir/step.o" "$dir/$1"
        objects+=("$dir/step.o")
    fi
    PROGRAM=$BATS_TEST_TMPDIR/program
    g++ -o "$PROGRAM" "$dir/chapter.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
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
    assert_line --regexp '^  cuBLAS SGEMM +m=64,n=48,k=40 .* 1\.000'
    assert_line --regexp '^  uncoalesced +m=64,n=48,k=40 '
    assert_line --regexp '^  coalesced +m=64,n=48,k=40 '
    assert_line --regexp '^  [0-9]+ interleaved rounds of about 4 ms each'
    run -0 python 'import json
for r in json.load(open(sys.argv[1])):
    assert set(r) == set("chapter step case dtype metric value spread baseline baseline_value ratio fraction_of_limit limit gpu driver cuda commit date command".split()), r
    assert r["metric"] == "TFLOP/s" and r["baseline"] == "cuBLAS SGEMM" and r["case"] == "m=64,n=48,k=40" and r["limit"]["name"] == "fp32"
    assert r["spread"][0] <= r["value"] <= r["spread"][1] and "--bench --shape m=64,n=48,k=40" in r["command"]
    print(r["step"])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "$(printf 'uncoalesced\ncoalesced')"
}

@test "real GPU: a step whose output is not the baseline's is not timed" {
    real_gpu step2_coalesced.cu 's/k < K; k \+= 32/k < K - 1; k += 32/'
    run -1 "$SIMGPU" "$PROGRAM" --bench --shape m=64,n=48,k=40 --json "$BATS_TEST_TMPDIR/gpu.json"
    assert_line --regexp '^  coalesced: WRONG, so not timed: C\[row 0, col [0-9]+\]: got .*, baseline .*, allowed difference '
    refute_line --regexp '^  coalesced +m='
    run -0 python 'import json; print([r["step"] for r in json.load(open(sys.argv[1]))])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "['uncoalesced']"
}
