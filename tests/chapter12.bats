#!/usr/bin/env bats
# Chapter 12: attention is right on the simulated GPU, its counters show what each step claims, and a broken one fails.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters
load test_helper/torch

CHAPTER=12_flash_attention
GOLDEN=build/golden/$CHAPTER

setup() { export PYTHONPATH=$ROOT/reference; }

# golden_groups: sets GROUPS_OF_HEADS to golden files of 3 heads; K and V of two take 15.4 of the 16 MB that a group may.
golden_groups() {
    GROUPS_OF_HEADS=$BATS_FILE_TMPDIR/groups
    [[ -d "$GROUPS_OF_HEADS" ]] || "$PYTHON" reference/golden.py attention --types bf16 --out "$GROUPS_OF_HEADS" \
        --shape b=1,q=130,k=30000,h=3,g=1,d=64 --seed 2
}

@test "chapter 12: every step is right on every case" {
    all_right 13
}

@test "chapter 12: the warps' order does not matter" {
    any_order few_queries_causal shared_heads
}

@test "chapter 12: a shape of the user's own, causal and not" {
    run -0 make chapter-12 DEVICE=sim SHAPE=b=1,q=77,k=190,h=2,g=1,d=64 SEED=3 PROFILE=0
    assert_line --regexp '^ +12 one_barrier +causal +b=1,q=77,k=190,h=2,g=1,d=64,causal=1 right'
    assert_line --regexp '^ +13 two_halves +full +b=1,q=77,k=190,h=2,g=1,d=64,causal=0 right'
}

@test "chapter 12: scores that rise in every half of a tile, and one key that takes all, are right" {
    local dtype special causal dir
    for dtype in bf16 f16; do
        for special in rising one; do
            for causal in 0 1; do
                dir=$BATS_TEST_TMPDIR/$dtype$special$causal
                mkdir "$dir"
                python 'import attention, ml_dtypes
d, dtype, special, causal = sys.argv[1:]
operation = attention.Attention()
arrays = operation.inputs(np.random.default_rng(5), dict(b=1, q=190, k=190, h=2, g=1, d=64, causal=int(causal)))
arrays["Q"][..., 0] = 1
arrays["K"][..., 0] = {"rising": 0.3 * 8 * np.arange(190), "one": 1000 * 8 * (np.arange(190) == 100)}[special][:, None]
for name in "QKV":
    x = arrays[name].astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float16)
    np.save(f"{d}/{name}.bf16.npy" if dtype == "bf16" else f"{d}/{name}.npy", x.view(np.uint16) if dtype == "bf16" else x)
np.save(f"{d}/causal.npy", arrays["causal"])' "$dir" $dtype $special $causal
                "$PYTHON" reference/golden.py attention --types bf16,f16 --inputs "$dir"
                run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$dir"
                assert_line "$CHAPTER: all 13 runs right"
            done
        done
    done
}

@test "chapter 12: heads in several groups, the last of them incomplete, are right" {
    golden_groups
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$GROUPS_OF_HEADS" --step longest_first --case full
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$GROUPS_OF_HEADS" --step one_barrier --case causal
    assert_line "$CHAPTER: all 1 runs right"
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
    sed 's/device\.simulated = .*/device.simulated = false;/' common/harness/bench.c >"$BATS_TEST_TMPDIR/bench.c"
    gcc -std=gnu11 -O1 -Icommon/harness -isystem "$cuda_include" -c -o "$BATS_TEST_TMPDIR/bench.o" "$BATS_TEST_TMPDIR/bench.c"
    mapfile -t objects < <(objects $CHAPTER bench)
    g++ -o "$program" "$BATS_TEST_TMPDIR/bench.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    torch_stub
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape $shape --step one_barrier
    assert_line --regexp "^  SDPA FLASH +bf16 +$shape .* 1\.000"
    assert_line --regexp "^  one_barrier +bf16 +$shape "
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape b=1,q=70,k=90,h=2,g=2,d=64,causal=1 --step one_barrier
    assert_line "  SDPA FLASH: it does not have this shape"
    assert_line --regexp "^  one_barrier "
    export TORCH_LIB=/nowhere
    run -0 "$SIMGPU" "$program" --bench --type bf16 --shape $shape --step one_barrier --json "$BATS_TEST_TMPDIR/gpu.json"
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

@test "chapter 12: step 1 multiplies without tensor cores, without bank conflicts, and masks a whole causal square" {
    assert_equal "$(count tile_by_tile len64_causal tensor_flops)" 0
    assert_equal "$(count tile_by_tile len64_causal shared_wavefronts)" "$(count tile_by_tile len64_causal shared_wavefronts_ideal)"
    assert_equal "$(count tile_by_tile len64_causal warp_instructions 'S\[i\] \+=')" "$(count tile_by_tile len64 warp_instructions 'S\[i\] \+=')"
}

@test "chapter 12: step 2's ldmatrix take 8 wavefronts where 1 is ideal, the later steps' 1" {
    local step name times ideal
    for step in 2 3 4 5 6 7 8 9 10 11 12 13; do
        times=$((step == 2 ? 8 : 1))
        for name in len64 len64_causal; do
            ideal=$(count $step $name shared_wavefronts_ideal '^ldmatrix_')
            [[ $ideal -gt 0 ]]
            assert_equal "$(count $step $name shared_wavefronts '^ldmatrix_')" $((times * ideal))
        done
    done
}

@test "chapter 12: step 2 executes at most a tenth of step 1's instructions" {
    [[ $((10 * $(count basic len1000 warp_instructions))) -le $(count tile_by_tile len1000 warp_instructions) ]]
}

@test "chapter 12: step 4's groups of K and V are in flight while others are used: no more bytes than step 3 copies, barriers as many" {
    assert_equal "$(count two_stage len1000 copied_bytes)" "$(count swizzled len1000 copied_bytes)"
    assert_equal "$(count two_stage len1000 warp_instructions '^__syncthreads')" "$(count swizzled len1000 warp_instructions '^__syncthreads')"
}

@test "chapter 12: step 5's ldmatrix.x4 of K and V take fewer instructions, and the same wavefronts" {
    local pattern='^ldmatrix_.*[KV]_frag'
    assert_equal "$(count wide_loads len64 shared_wavefronts "$pattern")" "$(count two_stage len64 shared_wavefronts "$pattern")"
    [[ $(count wide_loads len64 warp_instructions "$pattern") -lt $(count two_stage len64 warp_instructions "$pattern") ]]
}

@test "chapter 12: step 6 multiplies at most 0.6 of a causal square, masks a seventh of it, and a full one as step 5" {
    [[ $((10 * $(count visible_tiles len1000_causal tensor_flops))) -le $((6 * $(count wide_loads len1000_causal tensor_flops))) ]]
    [[ $((7 * $(count visible_tiles len1000_causal warp_instructions INFINITY))) -le $(count wide_loads len1000_causal warp_instructions INFINITY) ]]
    assert_equal "$(count visible_tiles len1000 tensor_flops)" "$(count wide_loads len1000 tensor_flops)"
}

@test "chapter 12: step 7's larger tiles read less than 0.7 of step 6's bytes from shared memory" {
    [[ $((10 * $(count large_tile len1000 shared_wavefronts '^ldmatrix_'))) -lt $((7 * $(count visible_tiles len1000 shared_wavefronts '^ldmatrix_'))) ]]
}

@test "chapter 12: step 8 executes one instruction less for every score" {
    # 9 in 10 of 1024 x 1024 scores, 32 lanes
    [[ $(($(count large_tile len1000 warp_instructions 'S\[i\]\[j\]\[e\] = ') - $(count folded_scale len1000 warp_instructions 'S\[i\]\[j\]\[e\] = '))) -ge $((1024 * 1024 * 9 / 10 / 32)) ]]
}

@test "chapter 12: step 9 rescales O and exchanges maxima in less than an eighth of step 8's instructions" {
    [[ $((8 * $(count lazy_rescale len1000 warp_instructions '\*= rescale'))) -lt $(count folded_scale len1000 warp_instructions '\*= rescale') ]]
    [[ $((7 * $(count lazy_rescale len1000 warp_instructions 'shfl_xor'))) -lt $(count folded_scale len1000 warp_instructions 'shfl_xor') ]]
}

@test "chapter 12: step 10's block 0 has the last queries, step 9's the first" {
    local file
    for file in step9_lazy_rescale.cu:7 step10_longest_first.cu:0; do
        broken $CHAPTER ${file%:*} 's/^    const int kv_head = /    if (block_row + BLOCK_Q >= a.q_len) __trap();\n&/'
        run -3 "$SIMGPU" "$BROKEN" --golden "$GOLDEN" --step "$(basename "${file%:*}" .cu | sed 's/^step[0-9]*_//')" --case len1000_causal
        assert_output --partial "block (${file#*:},0,0)"
    done
}

@test "chapter 12: step 11 writes O in whole sectors, step 10 every sector twice" {
    local ten eleven
    ten=$(count longest_first len1000 global_sectors 'uint32_t \*>\(dst')
    eleven=$(count wide_stores len1000 global_sectors 'uint4 \*>\(O_gmem\)')
    assert_equal "$eleven" $((1000 * 64 * 2 / 32))
    assert_equal "$ten" $((2 * eleven))
}

@test "chapter 12: step 12 waits at one barrier a tile, where step 11 has two" {
    assert_equal "$(count wide_stores len1000 warp_instructions '^__syncthreads')" "$((2 * $(count one_barrier len1000 warp_instructions '^__syncthreads')))"
    assert_equal "$(count wide_stores len1000 tensor_flops)" "$(count one_barrier len1000 tensor_flops)"
}

@test "chapter 12: step 13 reads Q from shared memory once a block, where step 12 does for each of 16 tiles, and multiplies as much" {
    assert_equal "$(count one_barrier len1000 shared_wavefronts '^ldmatrix_.*Q_frag')" "$((16 * $(count two_halves len1000 shared_wavefronts '^ldmatrix_.*Q_frag')))"
    assert_equal "$(count one_barrier len1000 tensor_flops)" "$(count two_halves len1000 tensor_flops)"
    assert_equal "$(count one_barrier len1000 copied_bytes)" "$(count two_halves len1000 copied_bytes)"
}

@test "chapter 12: step 13 rescales O in less than an eighth of step 8's instructions, and at D = 128 is step 12" {
    [[ $((8 * $(count two_halves len1000 warp_instructions '\*= rescale'))) -lt $(count folded_scale len1000 warp_instructions '\*= rescale') ]]
    assert_equal "$(count two_halves len1000_causal warp_instructions)" "$(count one_barrier len1000_causal warp_instructions)"
}

@test "chapter 12: the table of counters in its note, and what it says of step 6, are what its commands count" {
    local json=$BATS_TEST_TMPDIR/note.json
    run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "$GOLDEN" --case len1000
    run -0 tabled notes/$CHAPTER.md "$json"
    python 'a, b, c, d = map(int, sys.argv[2:])
says = f"{a:,} instructions and {b / 1e6:.1f} MFLOP on tensor cores in step 5, {c:,} and {d / 1e6:.1f} in step 6"
assert says in " ".join(open(sys.argv[1], encoding="utf-8").read().split()), says' notes/$CHAPTER.md \
        "$(count 5 len1000_causal warp_instructions)" "$(count 5 len1000_causal tensor_flops)" \
        "$(count 6 len1000_causal warp_instructions)" "$(count 6 len1000_causal tensor_flops)"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 12: step 1 without a barrier, without a rescale, or with V past its end fails" {
    HEAD_DIM=128 broken $CHAPTER step1_tile_by_tile.cu '/and of Q, has arrived/d'
    fails $CHAPTER 1 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step1_tile_by_tile.cu '/Everyone has read the tiles before/d'
    fails $CHAPTER 1 few_queries_causal
    HEAD_DIM=64 broken $CHAPTER step1_tile_by_tile.cu 's/O\[i\]\[j\] \*= rescale;/;/'
    wrong $CHAPTER 1 outliers
    noted $CHAPTER 'O[0][0][0][0]: got 3.84375, expected -0.99609375, tolerance 0.0136; 12539 of 12800 elements are wrong'
    HEAD_DIM=64 broken $CHAPTER step1_tile_by_tile.cu 's/row < rows_left \? //; s/row_stride \+ col\] : 0;/row_stride + col];/'
    fails $CHAPTER 1 one_key
}

@test "chapter 12: step 2 without one of its barriers fails" {
    HEAD_DIM=128 broken $CHAPTER step2_basic.cu '/part of the tiles has arrived/d'
    fails $CHAPTER 2 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step2_basic.cu '/Everyone has read the tiles before/d'
    fails $CHAPTER 2 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step2_basic.cu '/Everyone has Q before anyone writes/d'
    fails $CHAPTER 2 few_queries_causal
}

@test "chapter 12: a swizzle that only the writer knows fails" {
    HEAD_DIM=128 broken $CHAPTER step3_swizzled.cu 's/addr \^ cols % 64 \* 2/addr + cols % 64 * 2/'
    fails $CHAPTER 3 len64
}

@test "chapter 12: step 4's waits, each off by one, fail" {
    HEAD_DIM=128 broken $CHAPTER step4_two_stage.cu "/part of K has arrived; V/{n;s/wait_group<2>/wait_group<3>/}"
    fails $CHAPTER 4 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step4_two_stage.cu "/part of V has arrived; the/{n;s/wait_group<2>/wait_group<3>/}"
    fails $CHAPTER 4 few_queries_causal
    noted $CHAPTER 'shared offset … is read before the cp.async at line … that brings it has been waited for'
}

@test "chapter 12: step 4 without one of its barriers fails" {
    HEAD_DIM=128 broken $CHAPTER step4_two_stage.cu "/Every thread's part of K has arrived/d"
    fails $CHAPTER 4 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step4_two_stage.cu "/Every thread's part of V has arrived/d"
    fails $CHAPTER 4 few_queries_causal
}

@test "chapter 12: step 5 with K's four matrices in the order of V's, or V's in that of K's, fails" {
    HEAD_DIM=128 broken $CHAPTER step5_wide_loads.cu 's,lane / 16 \* 8 \+ lane % 8\, lane / 8 % 2 \* 8,lane % 16\, lane / 16 * 8,'
    wrong $CHAPTER 5 len64
    HEAD_DIM=128 broken $CHAPTER step5_wide_loads.cu 's,V_smem \+ smem_offset<D>\(lane % 16\, lane / 16 \* 8,V_smem + smem_offset<D>(lane / 16 * 8 + lane % 8\, lane / 8 % 2 * 8,'
    wrong $CHAPTER 5 len64
}

@test "chapter 12: step 6 fails with a mask aligned at the top left, masks where only the warp's last row needs one, or a tile less" {
    HEAD_DIM=128 broken $CHAPTER step6_visible_tiles.cu 's/row \+ 1 \+ a\.k_len - a\.q_len/row + 1/'
    wrong $CHAPTER 6 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step6_visible_tiles.cu 's/keys_seen\(warp_row\);/warp_keys;/'
    wrong $CHAPTER 6 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step6_visible_tiles.cu 's/keys_seen\(block_row \+ BLOCK_Q - 1\)/keys_seen(block_row)/'
    wrong $CHAPTER 6 few_queries_causal
}

@test "chapter 12: step 7 with a wait off by one, or without a barrier, fails" {
    HEAD_DIM=128 broken $CHAPTER step7_large_tile.cu "/part of V has arrived; the next K/s/wait_group<1>/wait_group<2>/"
    fails $CHAPTER 7 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step7_large_tile.cu "/part of K has arrived/s/wait_group<0>/wait_group<1>/"
    fails $CHAPTER 7 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step7_large_tile.cu "/Every thread's part has/d"
    fails $CHAPTER 7 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step7_large_tile.cu "/Every thread's part of V has arrived/d"
    fails $CHAPTER 7 few_queries_causal
}

@test "chapter 12: step 8 without scale in LSE, or without log2(e) in c, fails" {
    HEAD_DIM=128 broken $CHAPTER step8_folded_scale.cu 's/m\[i\]\[half\] \* scale \+ logf/m[i][half] + logf/'
    wrong $CHAPTER 8 len64
    HEAD_DIM=128 broken $CHAPTER step8_folded_scale.cu 's/scale \* 1\.44269504f/scale/'
    wrong $CHAPTER 8 len64
}

@test "chapter 12: step 9 with an m that never follows, or without a rescale that is needed, fails" {
    HEAD_DIM=64 broken $CHAPTER step9_lazy_rescale.cu 's/RESCALE_LOG2 = 8;/RESCALE_LOG2 = 1e30;/'
    wrong $CHAPTER 9 outliers
    noted $CHAPTER 'got nan, …; 448 of 12800 elements are wrong'
    HEAD_DIM=64 broken $CHAPTER step9_lazy_rescale.cu 's/^( *)O\[i\]\[j\]\[half \* 2\] \*= rescale;/\1;/'
    wrong $CHAPTER 9 outliers
}

@test "chapter 12: step 10 with a last group as large as the others fails" {
    golden_groups
    broken $CHAPTER step10_longest_first.cu 's/min\(heads_in_group, a\.batch \* a\.heads - group \* heads_in_group\)/heads_in_group/'
    run "$SIMGPU" "$BROKEN" --golden "$GROUPS_OF_HEADS" --step longest_first --case causal
    [[ $status -eq 1 || $status -eq 3 ]]
    assert_output --regexp "WRONG in 1 of 1 runs|out of bounds|at .*/step10_longest_first\.cu:[0-9]+"
}

@test "chapter 12: step 11 with a swizzle that only the reader of O knows, or rows past the end, fails" {
    HEAD_DIM=128 broken $CHAPTER step11_wide_stores.cu 's/move_right\(offset, j \* MMA_N\)/offset + j * MMA_N * 2/'
    races $CHAPTER 11 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step11_wide_stores.cu 's/if \(row \+ i \* STORE_ROWS < a\.q_len\) //'
    fails $CHAPTER 11 few_queries_causal
}

@test "chapter 12: step 12 without its wait or its barrier fails" {
    HEAD_DIM=128 broken $CHAPTER step12_one_barrier.cu "/part of K and V has arrived/s/wait_group<0>/wait_group<1>/"
    fails $CHAPTER 12 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step12_one_barrier.cu "/Every thread's part has/d"
    fails $CHAPTER 12 few_queries_causal
}

@test "chapter 12: the last step with a mask aligned at the top left, or a skipped rescale that is needed, fails" {
    HEAD_DIM=128 broken $CHAPTER step12_one_barrier.cu 's/row \+ 1 \+ a\.k_len - a\.q_len/row + 1/'
    wrong $CHAPTER 12 few_queries_causal
    noted $CHAPTER '8381 of 8960 elements are wrong'
    HEAD_DIM=64 broken $CHAPTER step12_one_barrier.cu 's/^( *)O\[i\]\[j\]\[half \* 2\] \*= rescale;/\1;/'
    wrong $CHAPTER 12 outliers
}

@test "chapter 12: step 13 without its wait or its barrier fails" {
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu "/part of K and V has arrived/s/wait_group<0>/wait_group<1>/"
    fails $CHAPTER 13 shared_heads
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu "/part has. Everyone has read the tile before/d"
    fails $CHAPTER 13 shared_heads
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu "/Every thread's part has\.$/d"
    fails $CHAPTER 13 shared_heads
}

@test "chapter 12: step 13 that never looks whether the old maximum serves, or does not do a half again, fails" {
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu 's/if \(any_above<T>\(P\)\)/if (false)/'
    wrong $CHAPTER 13 len1000
    noted $CHAPTER 'got nan, …; 64000 of 64000 elements are wrong'
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu '/exponentials<T>\(P, sum, S, m, c, 0, 1\);/d'
    wrong $CHAPTER 13 outliers
    HEAD_DIM=64 broken $CHAPTER step13_two_halves.cu 's/^( *)O\[i\]\[j\]\[half \* 2\] \*= rescale;/\1;/'
    wrong $CHAPTER 13 outliers
}
