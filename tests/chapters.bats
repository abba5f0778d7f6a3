#!/usr/bin/env bats
# What is so for a chapter whatever it computes: shapes of the user's own, and golden files that say something else than the kernel.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken

@test "make chapter-2 SHAPE SEED runs a shape of the user's own, with and without bias" {
    run -0 make chapter-2 DEVICE=sim SHAPE=m=333,n=77,k=129 SEED=5 PROFILE=0
    assert_line --regexp '^  7 large_tile +bias +m=333,n=77,k=129 +right'
    assert_line --regexp '^  7 large_tile +plain +m=333,n=77,k=129 +right'
    assert_line "02_tiled_matmul: all 14 runs right"
}

@test "make chapter-2 with a bad SHAPE fails in one line that names the size" {
    run -2 make --no-print-directory chapter-2 SHAPE=m=0,n=77,k=129
    assert_line --partial "SHAPE 'm=0,n=77,k=129': m is 0, expected 1 to 2147483647"
    assert_equal "$(find build/golden/shapes -name 'm=0*')" ""
}

@test "make chapter-2 does not write a damaged golden file anew: it fails" {
    local golden='build/golden/shapes/02_tiled_matmul/m=21,n=22,k=23,seed=9'
    rm -rf "$golden"
    run -0 make chapter-2 DEVICE=sim SHAPE=m=21,n=22,k=23 SEED=9 PROFILE=0
    python 'a = np.load(sys.argv[1]); a[20, 21] *= 1.001; np.save(sys.argv[1], a)' "$golden/plain/C.npy"
    run -2 make chapter-2 DEVICE=sim SHAPE=m=21,n=22,k=23 SEED=9 PROFILE=0
    assert_line --regexp '^      C\[row 20, col 21\]: got .*, expected .*, tolerance .*; 1 of 462 elements are wrong$'
    assert_line "02_tiled_matmul: WRONG in 7 of 14 runs"
    rm -rf "$golden"
}

@test "a step's number on the command line is its file's, whichever operation it belongs to" {
    local folder name
    for folder in chapters/*/; do
        name=$(basename "$folder")
        make --no-print-directory "build/golden/$name/.stamp"
        run -0 diff <(basename -as .cu "$folder"step*.cu | sed 's/^step//; s/_/ /' | sort) \
            <("$(chapter "$name")" --list | sed -nE 's/^  ([1-9][0-9]* [a-z0-9_]+)$/\1/p' | sort -u)
    done
    run -0 "$SIMGPU" "$(chapter 08_online_softmax)" --step 19 --golden build/golden/08_online_softmax
    assert_line --regexp "^  19 cluster +aligned "
    assert_line --regexp "^08_online_softmax: all [0-9]+ runs right$"
}

@test "chapters whose blocks stay are right on few multiprocessors, in another order as well" {
    local file name few
    while IFS=: read -r file few; do
        name=$(basename "$(dirname "$file")")
        make --no-print-directory "build/golden/$name/.stamp"
        run -0 "$SIMGPU" --seed 1 --sms "$few" "$(chapter "$name")" --golden "build/golden/$name"
        assert_line --regexp "^$name: all [0-9]+ runs right$"
    done < <(sed -nE '/^FEW_SMS/{F; s/.*:= *//p}' chapters/*/chapter.mk | paste -d: - -)
    [[ -n "${name:-}" ]] # there was one
}

# damaged CHAPTER STEP CODE: golden case `ragged` after CODE changed the float64 array C, inputs A and B at hand; the
# step must be wrong there.
damaged() {
    one_case "$1" ragged
    python 'import ml_dtypes
d = sys.argv[1]; C = np.load(d + "/C.npy")
load = lambda n: np.load(f"{d}/{n}.npy") if "01" in sys.argv[2] or "02" in sys.argv[2] else np.load(f"{d}/{n}.bf16.npy").view(ml_dtypes.bfloat16)
A, B = (load(n).astype(float) for n in "AB")
'"$3"'
np.save(d + "/C.npy", C)' "$CASE_DIR" "$1"
    run -1 "$SIMGPU" "$(chapter "$1")" --golden "$CASE_DIR" --step "$2"
}

@test "a golden element without its last product is found, and named by row and column" {
    damaged 01_naive_matmul 1 'C[130, 138] -= A[130, -1] * B[138, -1]'
    assert_line --regexp '^      C\[row 130, col 138\]: got .*; 1 of 18209 elements are wrong$'
    damaged 03_tensor_core_matmul 1 'C[0, 1] -= A[0, -2:] @ B[1, -2:]'
    assert_line --regexp '^      C\[row 0, col 1\]: got .*; 1 of 18209 elements are wrong$'
}

@test "a golden element two bf16 units off is found" {
    damaged 05_cp_async_pipeline 1 'C[77, 5] += 2 * np.ldexp(1.0, np.frexp(C[77, 5])[1] - 8)'
    assert_line --regexp '^      C\[row 77, col 5\]: got .*; 1 of 18209 elements are wrong$'
}

@test "only an edit in the body of a kernel or device function leaves the host's half of an object as it is" {
    local old=$BATS_TEST_TMPDIR/old new=$BATS_TEST_TMPDIR/new edit
    cat >"$old" <<'END'
constexpr int N = 4;
__host__ __device__ inline int both(int x)
{
    return x;
}
template <int K>
__global__ void kernel(int *x,
                       int n)
{
    x[0] = n;
}
static void launch(int *x)
{
    kernel<1><<<N, 1>>>(x, N);
}
END
    for edit in 's/= n;/= n + 1;/' '/\] = n/d' 's/= n;/&\n    x[1] = n;/'; do
        sed "$edit" "$old" >"$new"
        assert_equal "$edit: $(device_code "$old" "$new")" "$edit: yes"
    done
    for edit in 's/N = 4/N = 5/' '/^constexpr/d' 's/return x/return -x/' 's/void kernel/void other/' 's/<<<N/<<<2 * N/' 's/(x, N);/&\n    x++;/' \
        's/= n;/= N;/; s/N = 4/N = 5/'; do
        sed "$edit" "$old" >"$new"
        assert_equal "$edit: $(device_code "$old" "$new")" "$edit: "
    done
}
