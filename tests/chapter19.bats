#!/usr/bin/env bats
# Chapter 19: products of 8-bit numbers are what the tensor core makes of them, at every width, and fail when they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=19_fp8_gemm

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 19: every step is right on every case of every operation" {
    all_right 1 per_tensor
    all_right 4 gemm
    all_right 4 gemm_f32
    all_right 1 weight_gradient
}

@test "chapter 19: the order of warps and blocks does not matter" {
    any_order ragged odd_n several_tiles
}

@test "chapter 19: shapes of the user's own are right; a k that TMA cannot load is refused by name" {
    run -0 make chapter-19 DEVICE=sim PROFILE=0 OP=gemm SHAPE=m=129,n=127,k=1040 SEED=3
    assert_line "$CHAPTER: all 4 runs right"
    run -2 make --no-print-directory chapter-19 DEVICE=sim OP=gemm SHAPE=m=64,n=64,k=24
    assert_output --partial "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes"
}

# RANDOM_SHAPES=N: so many of each operation instead of 2.
@test "chapter 19: random shapes are right" {
    local op dir=$BATS_TEST_TMPDIR/random
    for op in per_tensor gemm gemm_f32 weight_gradient; do
        run -0 "$PYTHON" tests/random_shapes.py fp8_gemm $op e4m3 "${RANDOM_SHAPES:-2}" 1 "$dir/$op" m=200 n=200 k=336:16
    done
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$dir"
    assert_line "$CHAPTER: all $((${RANDOM_SHAPES:-2} * 10)) runs right"
}

# On a few SMs, a cluster for every two. 160 columns: tiles begin 0, 32, 64 and 96 behind a square.
@test "chapter 19: persistent_multicast is right with each of its tiles, round after round" {
    local sms m n tile dir=$BATS_TEST_TMPDIR/case op
    while read -r op sms m n tile; do
        run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op "$op" --out "$dir" --shape "m=$m,n=$n,k=272"
        run -0 "$SIMGPU" --sms "$sms" --json "$BATS_TEST_TMPDIR/tile.json" "$(chapter $CHAPTER)" --op "$op" --golden "$dir" --step persistent_multicast
        assert_line "$CHAPTER: all 1 runs right"
        grep -q "persistent_multicast_kernel<$tile, " "$BATS_TEST_TMPDIR/tile.json" || fail "m=$m,n=$n on $sms SMs did not take $tile"
        rm -rf "$dir"
    done <<'END'
gemm 6 70 256 2, 1, 96
gemm 2 70 256 2, 1, 128
gemm 2 70 640 2, 1, 160
gemm_f32 2 70 800 2, 1, 160
gemm 2 70 768 2, 1, 192
gemm_f32 2 700 384 2, 1, 192
gemm 2 300 250 3, 1, 128
gemm_f32 2 700 250 3, 1, 128
gemm 4 500 250 2, 2, 128
gemm_f32 2 250 480 2, 2, 128
END
}

@test "chapter 19: few_rows is right whatever its plan: one or two warpgroups, halves that share B, k whole or divided, tiles that come round" {
    local sms m n k halves parts tile dir=$BATS_TEST_TMPDIR/case seed
    while read -r sms m n k halves parts tile; do
        run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op gemm --out "$dir" --shape "m=$m,n=$n,k=$k"
        for seed in 1 2; do
            run -0 "$SIMGPU" --seed $seed --sms "$sms" --json "$BATS_TEST_TMPDIR/plan.json" "$(chapter $CHAPTER)" --op gemm --golden "$dir" --step few_rows
            assert_line "$CHAPTER: all 1 runs right"
        done
        grep -q "few_rows_kernel<__nv_bfloat16, $tile>" "$BATS_TEST_TMPDIR/plan.json" || fail "m=$m,n=$n,k=$k on $sms SMs: $(grep -o 'few_rows_kernel<[^>]*>' "$BATS_TEST_TMPDIR/plan.json")"
        assert_equal "$(grep -q 'multicast(stage.B_smem' "$BATS_TEST_TMPDIR/plan.json" && echo halves || echo all)" "$halves"
        assert_equal "$(grep -q 'st_async(sums_addr' "$BATS_TEST_TMPDIR/plan.json" && echo divided || echo whole)" "$parts"
        rm -rf "$dir"
    done <<'END'
132 64 400 2064 all divided 1, 64
132 100 267 784 halves whole 1, 64
8 128 400 1040 halves whole 1, 112
2 8 192 1040 all whole 1, 96
2 8 200 144 all whole 1, 112
8 40 1024 144 all whole 1, 128
8 100 64 9232 halves divided 1, 64
16 40 128 16400 all divided 1, 64
2 100 128 144 all whole 2, 64
2 128 272 8208 all whole 2, 96
8 100 896 144 all whole 2, 112
8 100 1024 144 all whole 2, 128
6 120 300 8336 all divided 2, 112
4 64 576 8336 all divided 1, 96
END
}

@test "chapter 19: with an H200's memory few_rows leaves wide D with more than 64 rows to step 4" {
    local m n kernel
    edited $CHAPTER step6_few_rows.cu 's/gigabytes > SLOW_MEMORY/gigabytes > 0/'
    while read -r m n kernel; do
        run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op gemm --out "$BATS_TEST_TMPDIR/case" --shape "m=$m,n=$n,k=144"
        run -0 "$SIMGPU" --sms 2 --json "$BATS_TEST_TMPDIR/plan.json" "$BROKEN" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step few_rows
        assert_line "$CHAPTER: all 1 runs right"
        run -0 grep -q "${kernel}_kernel<" "$BATS_TEST_TMPDIR/plan.json"
        rm -rf "$BATS_TEST_TMPDIR/case"
    done <<'END'
100 264 persistent_multicast
64 264 few_rows
100 248 few_rows
END
}

# --- The reference, and what note 19 says of errors ---------------------------------------------------------------------

@test "chapter 19: by hand: what is below 13 bits is cut, zeros leave no trace, and the sum is cut again" {
    run -0 python 'import fp8_gemm as g
def dot(*pairs, acc=0.0):
    a, b = (np.pad(np.array(x, float), (0, 32 - len(x)))[None] for x in zip(*pairs))
    return g.multiply_add(g.with_exponents(a), g.with_exponents(b), np.array([[acc]]))[0, 0]
assert dot((1, 1), (2.0**-6, 2.0**-7)) == 1 + 2.0**-13
assert dot((1, 1), (2.0**-6, 2.0**-8)) == 1            # 2^-14 of the largest is cut
assert dot((1, 1), (-(2.0**-6), 2.0**-8)) == 1         # towards 0, from below as well
assert dot((1.875, 1.875), acc=0.0) == 3.515625        # a product is not normalised: its power of two is 1
assert dot((1, 1), acc=2.0**14) == 2.0**14
assert dot((2.0**-9, 2.0**-9)) == 2.0**-18             # subnormal numbers count
assert dot((448, 0), (2.0**-9, 2.0**-9)) == 2.0**-18   # a zero has no power of two
assert dot((1, 1), (1, -1)) == 0 and not np.signbit(dot((1, 1), (1, -1)))
assert dot(*[(1, 1)] * 32, acc=2.0**13 - 1) == 2.0**13 + 31 - (2.0**13 + 31) % 1 - 0'
}

@test "chapter 19: what note 19 says of the error as k grows is so, for sums in the tensor core and promoted ones" {
    run -0 python 'import fp8_gemm as g, fp8_quantization as q

def e4m3(x):
    s = q.scale_of(np.abs(x).max(), "e4m3")
    return q.quantised(x, 0.0, (s, s, s), "e4m3")[0]
for kind in "normal", "positive":
    for sums in "plain", "promoted":
        row = []
        for k in 128, 512, 2048, 8192:
            rng = np.random.default_rng(k)
            a, b = (e4m3(x if kind == "normal" else np.abs(x)) for x in rng.standard_normal((2, 32, k)))
            exact, ones = a @ b.T, np.ones((k // 128, 32))
            D = g.tensor_core(a, b) if sums == "plain" else g.promoted(a, b, ones, ones)[0]
            row.append(100 * np.sqrt(np.mean((D - exact)**2) / np.mean(exact**2)))
        assert (row[3] > 10 * row[0]) == (sums == "plain")
        print(f"| {kind}, {sums} | " + " | ".join(f"{e:.3f} %" for e in row) + " |")'
    while read -r line; do grep -qF "$line" notes/$CHAPTER.md || fail "note 19 does not say $line"; done <<<"$output"
}

@test "chapter 19: on the simulated GPU plain sums of 8192 positive numbers are short by more than a tenth, promoted ones are not" {
    local dir=$BATS_TEST_TMPDIR op
    for op in per_tensor gemm_f32; do
        mkdir -p "$dir/$op"
        python 'import dtypes
op, d = sys.argv[1:]; k = 8192
for i, name in enumerate("AB"):
    x = np.minimum(np.abs(np.random.default_rng(i).standard_normal((8, k))), 4) * 112
    np.save(f"{d}/{name}.e4m3.npy", dtypes.encode(x, "e4m3"))
shapes = ((1,), (1,)) if op == "per_tensor" else ((k // 128, 8), (1, k // 128))
for name, shape in zip("AB", shapes): np.save(f"{d}/scale_{name}.npy", np.ones(shape, np.float32))' $op "$dir/$op"
        run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op $op --inputs "$dir/$op"
        run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op $op --golden "$dir/$op" --out "$dir/out"
    done
    run -0 python 'import dtypes
d = sys.argv[1]
A, B = (dtypes.decode(np.load(f"{d}/per_tensor/{n}.e4m3.npy"), "e4m3").astype(float) for n in "AB")
exact = A @ B.T
plain, promoted = (np.load(f"{d}/out/{step}/./D.npy") / exact - 1 for step in ("plain_sums", "promoted"))
print(plain.max(), np.abs(promoted).max())
assert plain.max() < -0.1 and np.abs(promoted).max() < 0.001' "$dir"
}

@test "chapter 19: the baseline, cuBLASLt with one scale each, is right where no sum is cut, and refuses what it has not" {
    local dir=$BATS_TEST_TMPDIR/exact
    mkdir -p "$dir"
    python 'import dtypes
rng, d = np.random.default_rng(1), sys.argv[1]
for name, rows in ("A", 32), ("B", 48): np.save(f"{d}/{name}.e4m3.npy", dtypes.encode(rng.integers(-4, 5, (rows, 160)), "e4m3"))
for name, scale in ("A", 0.5), ("B", 3): np.save(f"{d}/scale_{name}.npy", np.array([scale], np.float32))' "$dir"
    run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op per_tensor --inputs "$dir"
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op per_tensor --golden "$dir" --step 0
    assert_line --regexp "0 cuBLASLt e4m3 .* right"
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op per_tensor --golden build/golden/$CHAPTER --case odd_n --step 0
    assert_line --regexp "0 cuBLASLt e4m3 .* skipped: the baseline does not have it"
}

# --- NaN ----------------------------------------------------------------------------------------------------------------

@test "chapter 19: a NaN in a row of A is in its row of D and in no other, and so is that of a scale" {
    local what
    for what in element scale; do
        one_case $CHAPTER/gemm ragged
        python 'd, what = sys.argv[1:]; name = "A.e4m3" if what == "element" else "scale_A"; a = np.load(f"{d}/{name}.npy")
if what == "element": a[77, 200] = 0x7f
else: a[1, 77] = np.nan
np.save(f"{d}/{name}.npy", a)' "$CASE_DIR" $what
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op gemm --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'import dtypes, glob
files = glob.glob(sys.argv[1] + "/*/./D.bf16.npy"); assert len(files) == 4
for file in files:
    nan = np.isnan(dtypes.decode(np.load(file), "bf16")); assert nan[77].all() and nan.sum() == nan.shape[1], file' "$BATS_TEST_TMPDIR/out"
    done
}

# --- Counters -------------------------------------------------------------------------------------------------------------

@test "chapter 19: the counters that note 19 quotes are what its command counts" {
    local json=$BATS_TEST_TMPDIR/steps.json
    run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op gemm --out "$BATS_TEST_TMPDIR/case" --shape m=512,n=384,k=512
    run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "$BATS_TEST_TMPDIR/case" --op gemm
    tabled notes/$CHAPTER.md "$json"
    plain_python 'import json, sys
steps = {k["step"]: k["lines"] for k in json.load(open(sys.argv[1]))}
total = lambda step, field: sum(line[field] for line in steps[step])
for step in steps: assert total(step, "shared_wavefronts") == total(step, "shared_wavefronts_ideal"), step
assert total("persistent_multicast", "global_sectors") < 0.8 * total("two_math_warpgroups", "global_sectors")' "$json"
}

@test "chapter 19: make diff-19 compares every step, and every header ends with the command that runs it" {
    ladders "per_tensor plain_sums" "gemm promoted two_math_warpgroups persistent_multicast few_rows" "weight_gradient weight_gradient"
}

# --- Broken kernels ---------------------------------------------------------------------------------------------------------

@test "chapter 19: a tile that begins its sum anew loses the ones before" {
    broken $CHAPTER step1_plain_sums.cu 's/accumulate \|\| slice > 0/slice > 0/'
    wrong $CHAPTER plain_sums ragged --op per_tensor
}

@test "chapter 19: a promotion one block late, and scales of the next k, are wrong" {
    broken $CHAPTER step2_promoted.cu 's/wgmma_wait_group<0>\(\);/wgmma_wait_group<1>();/'
    fails $CHAPTER promoted ragged --op gemm
    noted $CHAPTER 'is read before the wgmma at line …, whose result it holds, has been waited for'
    broken $CHAPTER step2_promoted.cu 's/scale_A \+ \(size_t\)tile \* scale_rows/scale_A + (size_t)((tile + 1) % k_tiles) * scale_rows/'
    wrong $CHAPTER promoted ragged --op gemm
    noted $CHAPTER 'D[row 0, col 0]: got …, expected …, tolerance …; … of 18209 elements are wrong'
}

@test "chapter 19: scales of the wrong stage are found" {
    broken $CHAPTER step3_two_math_warpgroups.cu 's/scale_smem\[state.stage\]\[row0\]/scale_smem[(state.stage + 1) % NUM_STAGES][row0]/'
    fails $CHAPTER two_math_warpgroups ragged --op gemm
}

@test "chapter 19: a stage that one warp of four gives back, while the others may still read its scales, is found" {
    broken $CHAPTER step3_two_math_warpgroups.cu 's/if \(tid % 32 == 0\) mbarrier_arrive/if (tid == 0) mbarrier_arrive/; s/NUM_CONSUMERS \* 4\)/NUM_CONSUMERS)/'
    fails $CHAPTER two_math_warpgroups deep --op gemm
}

@test "chapter 19: a tile that is written to shared memory while the one before still leaves is found" {
    HEADER=persistent.cuh broken $CHAPTER step4_persistent_multicast.cu '/What it sent from here before has left/d'
    SIMGPU_SMS=4 faults $CHAPTER 4 in_turn --op gemm
    noted $CHAPTER 'shared memory that a bulk store still reads was written while the copy was in flight'
}

@test "chapter 19: warpgroups that store their own rows, but meet at one barrier, are found" {
    HEADER=persistent.cuh broken $CHAPTER step4_persistent_multicast.cu 's/barrier = STORE \+ store_row \/ ROWS/barrier = STORE/'
    fails $CHAPTER persistent_multicast several_tiles --op gemm
}

@test "chapter 19: a tile that takes one scale for two squares is wrong in the second" {
    broken $CHAPTER step4_persistent_multicast.cu 's/GROUP - col % GROUP/GROUP/; /(consumers == 3|waves == 2)\) return/d; /case (128|160): return/d; s/launch<2, 1, 192,/launch<2, 1, 96,/'
    wrong $CHAPTER persistent_multicast several_tiles --op gemm
}

@test "chapter 19: behind a tile's 32nd and 64th step the lanes have the next steps' scales of B, and not the same again" {
    run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op gemm --out "$BATS_TEST_TMPDIR/case" --shape m=70,n=250,k=8336
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step persistent_multicast
    HEADER=gemm.cuh broken $CHAPTER step4_persistent_multicast.cu 's/load\(k \+ 1\)/load(k - 31)/'
    run -1 "$SIMGPU" "$BROKEN" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step persistent_multicast
}

@test "chapter 19: a consumer that frees its own block's stage only leaves the other waiting" {
    broken $CHAPTER step4_persistent_multicast.cu 's/consume<BLOCK_N, CLUSTER>/consume<BLOCK_N, 1>/; /(consumers == 3|waves == 2)\) return/d; /case (128|160): return/d; s/launch<2, 1, 192,/launch<2, 1, 96,/'
    fails $CHAPTER persistent_multicast deep --op gemm
    noted $CHAPTER 'deadlock: no warp of the cluster that begins with block (0,0,0) can go on'
}

# few_rows with an edit, and compiled for tiles of 64 columns and blocks of one warpgroup only.
few_rows_broken() {
    broken $CHAPTER step6_few_rows.cu "$1"'; /case (1096|1112|1128|2[0-9]+): return/d'
}

few_rows_case() {
    run -0 "$PYTHON" reference/golden.py fp8_gemm --types e4m3 --op gemm --out "$BATS_TEST_TMPDIR/case" --shape "$1"
}

@test "chapter 19: a part that takes the scale of the other part's group is wrong" {
    few_rows_broken 's/k_tiles \+ place\.first_k,/k_tiles,/'
    few_rows_case m=64,n=400,k=2064
    run -1 "$SIMGPU" "$BROKEN" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step few_rows
}

@test "chapter 19: sums that are promoted before their products are done are found" {
    few_rows_broken 's/wgmma_wait_group<1>\(\);/wgmma_wait_group<2>();/'
    fails $CHAPTER few_rows deep --op gemm
    noted $CHAPTER 'is read before the wgmma at line …, whose result it holds, has been waited for'
}

@test "chapter 19: the next 32 scales of B are those behind the ones in use" {
    few_rows_broken 's/next = load\(k \+ 32\)/next = load(k)/'
    few_rows_case m=40,n=64,k=8336
    run -0 "$SIMGPU" --sms 1 "$(chapter $CHAPTER)" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step few_rows
    run -1 "$SIMGPU" --sms 1 "$BROKEN" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step few_rows
}

@test "chapter 19: half of B that is sent before the other half's block is done with the stage is found" {
    local seed
    few_rows_broken 's/if \(lane < plan\.halves\)/if (lane == place.half)/; s/CONSUMERS \* 4 \* plan\.halves/CONSUMERS * 4/; s/place\.part \* plan\.halves \+ lane/place.part * plan.halves + place.half/'
    few_rows_case m=100,n=64,k=4112
    for seed in 1 2 3; do
        run -3 "$SIMGPU" --seed $seed --sms 2 "$BROKEN" --op gemm --golden "$BATS_TEST_TMPDIR/case" --step few_rows
        assert_output --partial "may still read: nothing that this thread has waited for says that it is done"
    done
}

@test "chapter 19: rows of D that a warp stores before all its lanes have written them are found" {
    few_rows_broken '/stmatrix_x4/,/for \(int i = 0/s/__syncwarp\(\);//'
    fails $CHAPTER few_rows deep --op gemm
}

@test "chapter 19: a column's scale for its neighbour is wrong" {
    broken $CHAPTER step5_weight_gradient.cu 's/scale_B\[r \/ 4 \* 2 \+ r % 2\]/scale_B[r \/ 4 * 2]/'
    wrong $CHAPTER weight_gradient ragged --op weight_gradient
}
