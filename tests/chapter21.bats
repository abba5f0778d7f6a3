#!/usr/bin/env bats
# Chapter 21: attention of 8 bits is what the tensor core makes of it, rounded where the note says, and fails when it is broken.

# Bats sets stderr; broken reads HEAD_DIM.
# shellcheck disable=SC2034,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=21_fp8_attention

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 21: every step is right on every case of every operation" {
    local op
    for op in transposed_v per_head two_levels per_block rotation; do all_right 1 $op; done
}

@test "chapter 21: neither the order of warps and blocks nor the number of SMs matters" {
    local sms name
    any_order d256_causal rising_causal jump d128
    for sms in 1 3; do
        for name in shared_heads_causal jump; do
            SIMGPU_SMS=$sms run -0 "$SIMGPU" --seed $sms "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --case $name
        done
    done
}

@test "chapter 21: shapes of the user's own are right; a head dimension that a step has no registers for is refused by name" {
    run -0 make chapter-21 DEVICE=sim PROFILE=0 OP=transposed_v SHAPE=b=2,q=65,k=33,h=2,g=1,d=256 SEED=3
    assert_line "$CHAPTER: all 2 runs right"
    run -2 make --no-print-directory chapter-21 DEVICE=sim OP=per_block SHAPE=b=1,q=9,k=9,h=1,g=1,d=256
    assert_output --partial "d, the head dimension, must be 64 or 128"
    run -2 make --no-print-directory chapter-21 DEVICE=sim OP=per_head SHAPE=b=1,q=9,k=9,h=1,g=1,d=96
    assert_output --partial "d, the head dimension, must be 64, 128 or 256"
}

# RANDOM_SHAPES=N: so many of each operation instead of 2.
@test "chapter 21: random shapes are right" {
    local op dir=$BATS_TEST_TMPDIR/random
    for op in transposed_v per_head two_levels per_block; do
        run -0 "$PYTHON" tests/random_shapes.py fp8_attention $op e4m3 "${RANDOM_SHAPES:-2}" 1 "$dir/$op" b=2 q=200 k=300 h=4 g=2 d=256:64
    done
    run -0 "$PYTHON" tests/random_shapes.py fp8_attention rotation e4m3 "${RANDOM_SHAPES:-2}" 1 "$dir/rotation" b=2 s=300 h=3 d=256:64
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$dir"
    assert_line "$CHAPTER: all $((${RANDOM_SHAPES:-2} * 10)) runs right"
}

@test "chapter 21: a NaN in V is in its head's column of O, one in K in every query's row that sees it, one in x in its group" {
    one_case $CHAPTER/per_block few_queries_causal
    python 'd = sys.argv[1]; a = np.load(f"{d}/V.e4m3.npy"); a[0, 7, 0, 5] = 0x7f; np.save(f"{d}/V.e4m3.npy", a)' "$CASE_DIR"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op per_block --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 'import dtypes
nan = np.isnan(dtypes.decode(np.load(sys.argv[1] + "/per_block/./O.bf16.npy"), "bf16")); assert nan[..., 5].all() and nan.sum() == nan[..., 5].size' "$BATS_TEST_TMPDIR/out"
    one_case $CHAPTER/per_head few_queries_causal
    python 'd = sys.argv[1]; a = np.load(f"{d}/K.e4m3.npy"); a[0, 260, 0, 5] = 0x7f; np.save(f"{d}/K.e4m3.npy", a)' "$CASE_DIR"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op per_head --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 'import dtypes
nan = np.isnan(dtypes.decode(np.load(sys.argv[1] + "/transposed_inside/./O.bf16.npy"), "bf16"))[0, :, 0]
assert nan[30:].all() and not nan[:30].any()' "$BATS_TEST_TMPDIR/out"
    one_case $CHAPTER/rotation d128
    python 'd = sys.argv[1]; a = np.load(f"{d}/x.bf16.npy"); a[0, 200, 1, 5] = 0x7fc0; np.save(f"{d}/x.bf16.npy", a)' "$CASE_DIR"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op rotation --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
    run -0 python 'scale = np.load(sys.argv[1] + "/rotated/./scale.npy"); assert np.isnan(scale[0, 1, 1]) and np.isnan(scale).sum() == 1
out = np.load(sys.argv[1] + "/rotated/./out.e4m3.npy"); assert (out[0, 128:256, 1] & 0x7f == 0x7f).all() and (out & 0x7f == 0x7f).sum() == 128 * 128' "$BATS_TEST_TMPDIR/out"
}

# --- What note 21 says of errors ----------------------------------------------------------------------------------------------

@test "chapter 21: what is expected is attention of these numbers to within the rounding of P, 3.1 % of its RMS, and LSE to 0.03" {
    run -0 python 'import attention, dtypes, fp8_attention as f, glob
folders = glob.glob("build/golden/21_fp8_attention/[tp]*/*/"); assert len(folders) > 30
for folder in folders:
    operation = f.OPERATIONS[folder.split("/")[-3]]
    load = lambda name: np.load(folder + name + ".npy")
    arrays = {name: dtypes.decode(load(name + ".e4m3"), "e4m3").astype(float) for name in "QKV"}
    arrays |= {name: load(name) for name in operation.OWN_TYPE}
    arrays["V"] = operation.values(arrays)
    for name in "QKV":
        rows, heads, scale = *arrays[name].shape[1:3], arrays[f"scale_{name}"]
        scale = scale.repeat(heads // scale.shape[1], 1)[..., None] if scale.ndim == 2 else scale.repeat(128, 2)[..., :rows]
        arrays[name] = arrays[name] * scale.swapaxes(1, 2)[..., None]
    O, LSE = attention.direct(*attention.by_head(arrays), bool(arrays["causal"]))
    assert np.sqrt(np.mean((load("O").swapaxes(1, 2) - O) ** 2) / np.mean(O**2)) < 0.031, folder
    some = np.isfinite(LSE)
    assert (np.isfinite(load("LSE")) == some).all() and np.abs(load("LSE")[some] - LSE[some]).max() < 0.03, folder'
}

@test "chapter 21: what note 21 says of sums in the tensor core and in two levels, and of rounding with and without a rotation, is so" {
    run -0 python 'import attention, dtypes, fp8_attention as f, fp8_gemm as g
def rms(x, exact): return 100 * np.sqrt(np.mean((x - exact) ** 2) / np.mean(exact**2))
def e4m3(x): return dtypes.rounded(x, "e4m3").astype(float)

for kind in "normal", "alike":
    for sums in "one sum", "two levels":
        row = []
        for k in 1024, 4096, 16384:
            rng = np.random.default_rng(k)
            S, V = rng.standard_normal((4, k)), rng.standard_normal((k, 16))
            if kind == "alike": S, V = S / 10, 1 + V / 10
            P, V = e4m3(2**f.TOP_LOG2 * np.exp(S - S.max(1, keepdims=True))), e4m3(V / np.abs(V).max() * 448)
            parts = [g.tensor_core(P[:, i:i + n], V[i:i + n].T) for n in [k if sums == "one sum" else 128] for i in range(0, k, n)]
            row.append(rms(sum(parts), P @ V))
        print(f"| {kind}, {sums} | " + " | ".join(f"{e:.3f} %" for e in row) + " |")

d, heads, blocks = 128, f.PerHead(), f.PerBlock()
def attend(Q, K, V):
    s = Q @ K.T / np.sqrt(d) * f.LOG2_E
    P = np.exp2(s - np.ceil(s.max(1, keepdims=True)) + f.TOP_LOG2)
    return e4m3(P) @ V / P.sum(1, keepdims=True)
def quantised(x, groups):
    scale = groups.scales(x[None, :, None], 1)[0][0, :, 0]
    return e4m3(x / scale) * scale
for kind in "normal", "outliers", "columns of Q and K", "columns of K":
    rng = np.random.default_rng(1)
    Q, K, V = (rng.standard_normal((rows, d)) for rows in (128, 512, 512))
    if kind == "outliers":
        for x in Q, K, V: x += 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 0.001)
    columns = rng.choice(d, 3, replace=False)
    if "K" in kind: K[:, columns] *= 10
    if "Q" in kind: Q[:, columns] *= 10; Q /= 3
    Q, K, V = (dtypes.rounded(x, "bf16").astype(float) for x in (Q, K, V))
    signs = rng.choice([-1.0, 1.0], d)
    rotated = [f.hadamard(x * signs) / np.sqrt(d) for x in (Q, K)] + [V]
    exact = attention.direct(Q, K, V, False)[0]
    row = [rms(attention.tile_by_tile(Q, K, V, False, 64, np.float32, "bf16")[0], exact), rms(attend(Q, K, V), exact)]
    row += [rms(attend(*(quantised(x, groups) for x in xs)), exact) for xs in ([Q, K, V], rotated) for groups in (heads, blocks)]
    print(f"| {kind} | " + " | ".join(f"{e:.1f} %" for e in row) + " |")'
    while read -r line; do grep -qF "$line" notes/$CHAPTER.md || fail "note 21 does not say $line"; done <<<"$output"
}

# --- Counters -------------------------------------------------------------------------------------------------------------------

@test "chapter 21: the counters that note 21 quotes are what its command counts; no bank conflict, and no exchange from step 2 on" {
    local json=$BATS_TEST_TMPDIR/steps.json
    run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --case shared_heads_causal
    tabled notes/$CHAPTER.md "$json"
    plain_python 'import json, re, sys
steps = {k["step"]: k["lines"] for k in json.load(open(sys.argv[1]))}
total = lambda step, field, text="": sum(line[field] for line in steps[step] if re.search(text, line["text"]))
for step in steps: assert total(step, "shared_wavefronts") == total(step, "shared_wavefronts_ideal") > 0, step
assert total("transposed_v", "warp_instructions", "shfl_sync.*give") > 0 == total("transposed_inside", "warp_instructions", "shfl_sync.*give")
assert total("transposed_inside", "shared_wavefronts", "V_frag\[unit - first\],|V_addr \+ swizzle|stmatrix_x4..Vt_addr") == 3072
assert total("transposed_inside", "shared_wavefronts") - total("transposed_v", "shared_wavefronts") == 3168' "$json"
}

@test "chapter 21: make diff-21 compares every step, and every header ends with the command that runs it" {
    ladders "transposed_v transposed_v" "per_head transposed_inside" "two_levels two_levels" "per_block per_block" "rotation rotated"
}

# --- Broken kernels ---------------------------------------------------------------------------------------------------------

HEAD_DIM=128 # the only one that broken kernels are compiled for

@test "chapter 21: P in the order of S is wrong where V's keys have their own" {
    broken $CHAPTER step1_transposed_v.cu 's/^( *)exchange<KV>\(P, lane\);//'
    wrong $CHAPTER transposed_v len17 --op transposed_v
}

@test "chapter 21: P of which the largest is 1 loses what many small ones have together" {
    broken $CHAPTER step1_transposed_v.cu 's/TOP_LOG2 = 7/TOP_LOG2 = 0/'
    wrong $CHAPTER transposed_v sink --op transposed_v
    noted $CHAPTER 'O[0][0][0][0]: got …, expected …, tolerance …; … of 8960 elements are wrong'
}

@test "chapter 21: V with its keys in another order than P's, or its columns swapped, is wrong" {
    broken $CHAPTER step2_transposed_inside.cu 's/0x6420 : 0x7531/0x6240 : 0x7351/'
    wrong $CHAPTER transposed_inside len17 --op per_head
    broken $CHAPTER step2_transposed_inside.cu 's/lane < 16 \? 0x6420/lane < 32 ? 0x6420/'
    wrong $CHAPTER transposed_inside len17 --op per_head
}

@test "chapter 21: V transposed one tile late, before it has landed, or without the fence that shows it to wgmma, is caught" {
    broken $CHAPTER step2_transposed_inside.cu 's/Vt_smem\[Vt_stage\]\[box/Vt_smem[(Vt_stage + 1) % STAGES][box/'
    fails $CHAPTER transposed_inside few_queries_causal --op per_head
    broken $CHAPTER step2_transposed_inside.cu '/mbarrier_wait\(&smem.V_full\[V_stage\], box /d'
    fails $CHAPTER transposed_inside few_queries_causal --op per_head
    broken $CHAPTER step2_transposed_inside.cu '/^ *fence_proxy_async\(\); \/\/ What this thread wrote is there for wgmma/d'
    fails $CHAPTER transposed_inside few_queries_causal --op per_head
    noted $CHAPTER 'fence.proxy.async is missing: …'
}

@test "chapter 21: scales of the wrong head are wrong" {
    broken $CHAPTER step2_transposed_inside.cu 's/work.kv_head\(a\); \/\/ of Q/work.head % a.kv_heads; \/\/ of Q/'
    wrong $CHAPTER transposed_inside shared_heads_causal --op per_head
}

@test "chapter 21: a maximum that does not follow, and a P that is only seen above 448, are wrong" {
    broken $CHAPTER step2_transposed_inside.cu 's/again \|\| any_saturated<KV>\(P\)/again/'
    wrong $CHAPTER transposed_inside rising_causal --op per_head
    broken $CHAPTER step2_transposed_inside.cu 's/\+ 0x02020202/+ 0x01010101/'
    wrong $CHAPTER transposed_inside rising_causal --op per_head
}

@test "chapter 21: scores that were lost are wrong unless their queries come again, late enough for it to be known, and m is found first then" {
    broken $CHAPTER step2_transposed_inside.cu 's/again = smem.lost\[before\]/again = false/'
    wrong $CHAPTER transposed_inside jump --op per_head
    broken $CHAPTER step2_transposed_inside.cu 's/AGAIN_AFTER = 3/AGAIN_AFTER = 2/'
    fails $CHAPTER transposed_inside jump --op per_head
    broken $CHAPTER step2_transposed_inside.cu 's/if \(again\) raise_maximum/if (false) raise_maximum/'
    wrong $CHAPTER transposed_inside jump --op per_head
}

@test "chapter 21: one sum for all keys is off where they are alike; a part that does not begin anew is wrong" {
    broken $CHAPTER step3_two_levels.cu 's/V_desc \+ k \* 32 \/ 16, k > 0\)/V_desc + k * 32 \/ 16, true)/'
    fails $CHAPTER two_levels shared_heads_causal --op two_levels
    run -0 python 'import shutil, sys
shutil.copytree("build/golden/21_fp8_attention/two_levels/alike", sys.argv[1])' "$BATS_TEST_TMPDIR/alike"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op per_head --golden "$BATS_TEST_TMPDIR/alike"
    assert_line "$CHAPTER: WRONG in 1 of 1 runs"
    noted $CHAPTER 'tolerance 0.0104; 1280 of 1280 elements are wrong'
}

@test "chapter 21: V's scale of the next keys, and Q's of the first queries, are wrong" {
    broken $CHAPTER step4_per_block.cu 's/multiply_both\(kv, tile_c, V_scale_before\)/multiply_both(kv, tile_c, V_scale)/'
    wrong $CHAPTER per_block few_queries_causal --op per_block
    broken $CHAPTER step4_per_block.cu 's/q_group = min\(first_row \/ GROUP, q_groups - 1\)/q_group = 0/'
    wrong $CHAPTER per_block shared_heads_causal --op per_block
}

@test "chapter 21: a rotation without its last round, with a matrix whose b0 is forgotten, and a maximum that not every warp has added to, are caught" {
    broken $CHAPTER step5_rotated.cu 's/distance < D \/ 8/distance < D \/ 16/'
    wrong $CHAPTER rotated columns --op rotation
    broken $CHAPTER step5_rotated.cu 's/i % 2 \? 0x80000000/false ? 0x80000000/'
    wrong $CHAPTER rotated columns --op rotation
    HEADER=../../common/device/exchange.cuh
    broken $CHAPTER step5_rotated.cu '/mbarrier_wait\(&full, 0\)/d'
    fails $CHAPTER rotated d128 --op rotation
    HEAD_DIM=256 broken $CHAPTER step5_rotated.cu '/mbarrier_wait\(&full, 0\)/d'
    fails $CHAPTER rotated d256 --op rotation
}
