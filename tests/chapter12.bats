#!/usr/bin/env bats
# Chapter 12: attention is right on the simulated GPU, its counters show what each step claims, and a broken one fails.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=12_flash_attention
GOLDEN=build/golden/$CHAPTER

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 12: every step is right on every case" {
    local cases
    cases=$(find "$GOLDEN" -mindepth 1 -maxdepth 1 -type d | wc -l)
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$GOLDEN"
    assert_line "$CHAPTER: all $((cases * 7)) runs right"
}

@test "chapter 12: the warps' order does not matter" {
    local seed name
    for seed in 1 2 3; do
        for name in few_queries_causal shared_heads; do
            run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --golden "$GOLDEN/$name"
        done
    done
}

@test "chapter 12: a shape of the user's own, causal and not" {
    run -0 make chapter-12 DEVICE=sim SHAPE=b=1,q=77,k=190,h=2,g=1,d=64 SEED=3 PROFILE=0
    assert_line --regexp '^  7 one_barrier +causal +b=1,q=77,k=190,h=2,g=1,d=64,causal=1 right'
    assert_line --regexp '^  7 one_barrier +full +b=1,q=77,k=190,h=2,g=1,d=64,causal=0 right'
}

@test "chapter 12: a head dimension of 96, or heads that do not divide, is refused in one line" {
    run -2 make --no-print-directory chapter-12 SHAPE=b=1,q=9,k=9,h=2,g=1,d=96
    assert_line --partial "d, the head dimension, must be 64 or 128"
    run -2 make --no-print-directory chapter-12 SHAPE=b=1,q=9,k=9,h=3,g=2,d=64
    assert_line --partial "h must be a multiple of g"
}

@test "chapter 12: a benchmark shape says causal=0 or 1, and no other size may be 0" {
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --shape b=1,q=64,k=64,h=1,g=1,d=64,causal=0
    assert_output --partial "has no speed to measure"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --shape b=1,q=0,k=64,h=1,g=1,d=64,causal=0
    assert_output --partial "q is 0, expected 1 to 2147483647"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --shape b=1,q=64,k=64,h=1,g=1,d=64
    assert_output --partial "causal is missing"
}

@test "chapter 12: the baseline is skipped where PyTorch computes something else, and missed where it is not here" {
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --step 0 --case few_queries_causal
    assert_output --partial "skipped: the baseline does not have it"
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --step 0 --case shared_heads
    assert_output --partial "skipped: the baseline does not have it"
    export TORCH_LIB=$BATS_TEST_TMPDIR
    run -3 "$SIMGPU" "$(chapter $CHAPTER)" --step 0 --case len17
    assert_output --partial "PyTorch: no baseline: $TORCH_LIB/libtorch_cuda.so: cannot open shared object file"
}

# torch_stub: makes TORCH_LIB a folder with a stand-in for PyTorch.
torch_stub() {
    local cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    export TORCH_LIB=$BATS_TEST_TMPDIR/torch
    mkdir -p "$TORCH_LIB"
    gcc -O2 -Wall -Wextra -Werror -shared -fPIC -isystem "$cuda_include" -o "$TORCH_LIB/libtorch_cuda.so" \
        tests/test_helper/torch_stub.c -L"$cuda_lib" -l:libcudart.so.13 -lm
}

@test "chapter 12: the baseline is handed the layout that PyTorch wants, and its outputs come back in ours" {
    torch_stub
    local name
    for name in len17 len64_causal len65_causal; do
        run -0 "$SIMGPU" "$(chapter $CHAPTER)" --step 0 --case $name
        assert_line --regexp "^  0 SDPA FLASH +$name .* right"
    done
}

@test "chapter 12: --bench times the steps beside the baseline, and without one where there is none" {
    local shape=b=2,q=70,k=70,h=2,g=2,d=64,causal=1 objects cuda_include cuda_lib program=$BATS_TEST_TMPDIR/program
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    # A driver that takes the simulated GPU for a real one.
    sed 's/device\.simulated = .*/device.simulated = false;/' common/harness/chapter.c >"$BATS_TEST_TMPDIR/chapter.c"
    gcc -std=gnu11 -O1 -Icommon/harness -isystem "$cuda_include" -c -o "$BATS_TEST_TMPDIR/chapter.o" "$BATS_TEST_TMPDIR/chapter.c"
    mapfile -t objects < <(find build/obj/chapters/$CHAPTER build/obj/common -name '*.o' ! -name chapter.o)
    g++ -o "$program" "$BATS_TEST_TMPDIR/chapter.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    torch_stub
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape $shape --step 7
    assert_line --regexp "^  SDPA FLASH +bf16 +$shape .* 1\.000"
    assert_line --regexp "^  one_barrier +bf16 +$shape "
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape b=1,q=70,k=90,h=2,g=2,d=64,causal=1 --step 7
    assert_line "  SDPA FLASH: it does not have this shape"
    assert_line --regexp "^  one_barrier "
    export TORCH_LIB=/nowhere
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape $shape --step 7 --json "$BATS_TEST_TMPDIR/gpu.json"
    assert_line --partial "PyTorch: no baseline: /nowhere/libtorch_cuda.so: cannot open shared object file"
    refute_line --regexp "^  SDPA FLASH"
    run -0 python 'import json; print([(r["step"], r["baseline"], r["ratio"]) for r in json.load(open(sys.argv[1]))])' "$BATS_TEST_TMPDIR/gpu.json"
    assert_output "[('one_barrier', None, None)]"
}

@test "chapter 12: a case of f16 may not hold a tensor of bf16" {
    one_case $CHAPTER ragged_f16
    mv "$CASE_DIR/K.npy" "$CASE_DIR/K.bf16.npy"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$CASE_DIR"
    assert_output --partial "K.bf16.npy: no tensor has this file in a case of f16"
}

@test "chapter 12: one key more or less is outside the tolerance in 9 of 10 rows" {
    one_case $CHAPTER len65_causal
    python 'import attention, ml_dtypes
d = sys.argv[1]
Q, K, V = (np.load(f"{d}/{n}.bf16.npy").view(ml_dtypes.bfloat16) for n in "QKV")
Q, K, V = attention.by_head({"Q": Q, "K": K, "V": V})
O, tolerance = (np.load(f"{d}/O{x}.npy") for x in ("", ".tol"))
for off in -1, 1:
    seen = np.arange(65) <= np.arange(65)[:, None] + off
    S = np.where(seen, Q @ K.swapaxes(-1, -2) / np.sqrt(128), -1e30)
    P = np.exp(S - S.max(-1, keepdims=True))
    wrong = (P / P.sum(-1, keepdims=True) @ V).swapaxes(1, 2)
    outside = (np.abs(wrong - O) > tolerance)[0, :64, 0].any(-1)
    print(off, outside.mean()); assert outside.mean() > 0.9' "$CASE_DIR"
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "reference: attention tile by tile is the direct formula, whatever the tile" {
    run -0 python 'import attention
rng = np.random.default_rng(1)
for q, k in (30, 200), (200, 30), (64, 64), (1, 65), (5, 1):
    for causal in False, True:
        Q, K, V = (rng.standard_normal((2, 3, rows, 16)) for rows in (q, k, k))
        K[..., k // 2, :] *= 100
        O, LSE = attention.direct(Q, K, V, causal)
        for block_kv in 1, 7, 64, 1000:
            tiles = attention.tile_by_tile(Q, K, V, causal, block_kv)
            np.testing.assert_allclose(tiles[0], O, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(tiles[1], LSE, rtol=1e-11)'
}

@test "reference: a query that sees no key has O = 0 and LSE = -inf" {
    run -0 python 'import attention
O, LSE = (np.load(f"build/golden/12_flash_attention/empty_rows_causal/{n}.npy") for n in ("O", "LSE"))
assert (O[0, :230] == 0).all() and (LSE[0, 0, :230] == -np.inf).all()
assert (O[0, 230:] != 0).all() and np.isfinite(LSE[0, 0, 230:]).all()'
}

@test "reference: attention states merge in any order, and the empty state changes nothing" {
    run -0 python 'import attention
rng = np.random.default_rng(2)
Q, K, V = rng.standard_normal((1, 8)), rng.standard_normal((90, 8)), rng.standard_normal((90, 8))
def merge(a, b):
    m = max(a[0], b[0])
    if m == -np.inf: return a
    x, y = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, a[1] * x + b[1] * y, a[2] * x + b[2] * y
def state(rows):
    S = (Q @ K[rows].T / np.sqrt(8))[0]; P = np.exp(S - S.max())
    return S.max(), P.sum(), P @ V[rows]
a, b, c = (state(slice(30 * i, 30 * i + 30)) for i in range(3))
empty = (-np.inf, 0.0, np.zeros(8))
O = attention.direct(Q, K, V, False)[0][0]
for m, l, o in merge(merge(a, b), c), merge(a, merge(b, c)), merge(c, merge(empty, merge(b, a))):
    np.testing.assert_allclose(o / l, O, rtol=1e-12)'
}

@test "reference: attention's tolerance is at most twice the largest error of the 16-bit pipeline" {
    run -0 python 'import attention, ml_dtypes
for name in "len1000", "len1000_causal", "shared_heads":
    d = f"build/golden/12_flash_attention/{name}"
    arrays = {n: np.load(f"{d}/{n}.bf16.npy").view(ml_dtypes.bfloat16) for n in "QKV"}
    causal = bool(np.load(f"{d}/causal.npy"))
    O, tolerance = (np.load(f"{d}/O{x}.npy") for x in ("", ".tol"))
    pipeline = attention.tile_by_tile(*attention.by_head(arrays), causal, 64, np.float32, "bf16")[0]
    error = np.abs(pipeline.swapaxes(1, 2).astype(float) - O)
    assert tolerance.max() <= 2 * error.max() * 1.000001 and tolerance.max() < 0.05 * np.abs(O).max()'
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 12: step 1's ldmatrix take 8 wavefronts where 1 is ideal, the later steps' 1" {
    local json=$BATS_TEST_TMPDIR/counters.json step name times
    for step in 1 2 3 4 5 6 7; do
        times=$((step == 1 ? 8 : 1))
        for name in len64 len64_causal; do
            counters "$json" $CHAPTER $step $name
            [[ $(total "$json" shared_wavefronts_ideal '^ldmatrix_') -gt 0 ]]
            assert_equal "$(total "$json" shared_wavefronts '^ldmatrix_')" \
                "$((times * $(total "$json" shared_wavefronts_ideal '^ldmatrix_')))"
        done
    done
}

@test "chapter 12: ldmatrix.x4 halves step 4's ldmatrix of K and V, at the same wavefronts" {
    local three=$BATS_TEST_TMPDIR/3.json four=$BATS_TEST_TMPDIR/4.json pattern='^ldmatrix_.*[KV]_frag'
    counters "$three" $CHAPTER 3 len64
    counters "$four" $CHAPTER 4 len64
    assert_equal "$(total "$four" shared_wavefronts "$pattern")" "$(total "$three" shared_wavefronts "$pattern")"
    [[ $(total "$four" warp_instructions "$pattern") -lt $(total "$three" warp_instructions "$pattern") ]]
}

@test "chapter 12: step 5's larger tiles read less than 0.7 of step 4's bytes from shared memory" {
    local four=$BATS_TEST_TMPDIR/4.json five=$BATS_TEST_TMPDIR/5.json
    counters "$five" $CHAPTER 5 len1000
    counters "$four" $CHAPTER 4 len1000
    [[ $((10 * $(total "$five" shared_wavefronts '^ldmatrix_'))) -lt $((7 * $(total "$four" shared_wavefronts '^ldmatrix_'))) ]]
}

@test "chapter 12: step 6 multiplies at most 0.6 of a causal square, and needs fewer instructions for a full one" {
    local five=$BATS_TEST_TMPDIR/5.json six=$BATS_TEST_TMPDIR/6.json
    counters "$five" $CHAPTER 5 len1000_causal
    counters "$six" $CHAPTER 6 len1000_causal
    [[ $((10 * $(total "$six" tensor_flops))) -le $((6 * $(total "$five" tensor_flops))) ]]
    counters "$five" $CHAPTER 5 len1000
    counters "$six" $CHAPTER 6 len1000
    echo "$(total "$five" warp_instructions) $(total "$six" warp_instructions)"
    assert_equal "$(total "$six" tensor_flops)" "$(total "$five" tensor_flops)"
    [[ $(total "$six" warp_instructions) -lt $(total "$five" warp_instructions) ]]
}

@test "chapter 12: step 7 waits at one barrier a tile, where step 6 has two" {
    local six=$BATS_TEST_TMPDIR/6.json seven=$BATS_TEST_TMPDIR/7.json
    counters "$six" $CHAPTER 6 len1000
    counters "$seven" $CHAPTER 7 len1000
    assert_equal "$(total "$six" warp_instructions '^__syncthreads')" "$((2 * $(total "$seven" warp_instructions '^__syncthreads')))"
    assert_equal "$(total "$six" tensor_flops)" "$(total "$seven" tensor_flops)"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 12: step 1 without one of its barriers fails" {
    broken $CHAPTER step1_basic.cu '/part of the tiles has arrived/d'
    fails $CHAPTER 1 few_queries_causal
    broken $CHAPTER step1_basic.cu '/Everyone has read the tiles before/d'
    fails $CHAPTER 1 few_queries_causal
    broken $CHAPTER step1_basic.cu '/Everyone has Q before anyone writes/d'
    fails $CHAPTER 1 few_queries_causal
}

@test "chapter 12: a swizzle that only the writer knows fails" {
    broken $CHAPTER step2_swizzled.cu 's/addr \^ cols % 64 \* 2/addr + cols % 64 * 2/'
    fails $CHAPTER 2 len64
}

@test "chapter 12: step 3's waits, each off by one, fail" {
    broken $CHAPTER step3_two_stage.cu "/part of K has arrived; V/{n;s/wait_group<2>/wait_group<3>/}"
    fails $CHAPTER 3 few_queries_causal
    broken $CHAPTER step3_two_stage.cu "/part of V has arrived; the/{n;s/wait_group<2>/wait_group<3>/}"
    fails $CHAPTER 3 few_queries_causal
}

@test "chapter 12: step 3 without one of its barriers fails" {
    broken $CHAPTER step3_two_stage.cu "/Every thread's part of K has arrived/d"
    fails $CHAPTER 3 few_queries_causal
    broken $CHAPTER step3_two_stage.cu "/Every thread's part of V has arrived/d"
    fails $CHAPTER 3 few_queries_causal
}

@test "chapter 12: steps 5 and 6 with a wait off by one, or without a barrier, fail" {
    local file
    for file in step5_large_tile.cu step6_less_softmax.cu; do
        broken $CHAPTER $file "/part of V has arrived; the next K/s/wait_group<1>/wait_group<2>/"
        fails $CHAPTER "${file:4:1}" few_queries_causal
        broken $CHAPTER $file "/part of K has arrived/s/wait_group<0>/wait_group<1>/"
        fails $CHAPTER "${file:4:1}" few_queries_causal
        broken $CHAPTER $file "/Every thread's part has/d"
        fails $CHAPTER "${file:4:1}" few_queries_causal
        broken $CHAPTER $file "/Every thread's part of V has arrived/d"
        fails $CHAPTER "${file:4:1}" few_queries_causal
    done
}

@test "chapter 12: step 7 without its wait or its barrier fails" {
    broken $CHAPTER step7_one_barrier.cu "/part of K and V has arrived/s/wait_group<0>/wait_group<1>/"
    fails $CHAPTER 7 few_queries_causal
    broken $CHAPTER step7_one_barrier.cu "/Every thread's part has/d"
    fails $CHAPTER 7 few_queries_causal
}

@test "chapter 12: a mask aligned at the top left, or a skipped rescale that is needed, fails" {
    local file
    for file in step6_less_softmax.cu step7_one_barrier.cu; do
        broken $CHAPTER $file 's/row \+ 1 \+ a\.k_len - a\.q_len/row + 1/'
        fails $CHAPTER "${file:4:1}" few_queries_causal
        broken $CHAPTER $file 's/^( *)O\[i\]\[j\]\[half \* 2\] \*= rescale;/\1;/'
        fails $CHAPTER "${file:4:1}" outliers
    done
}
