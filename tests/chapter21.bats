#!/usr/bin/env bats
# Chapter 21: attention of 8 bits is what the tensor core makes of it, rounded where the note says, and fails when it is broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=21_fp8_attention

setup() { export PYTHONPATH=$ROOT/reference; }

# caught STEP CASE [FLAG...]: the broken step gives a wrong answer, or is stopped by a report that names its file.
caught() {
    local seed
    for seed in 0 1 2 3; do
        run "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$CHAPTER" --step "$1" --case "$2" "${@:3}"
        [[ $status -eq 1 || $status -eq 3 ]] || fail "seed $seed: exit status $status, expected 1 or 3"
        assert_output --regexp "$CHAPTER: WRONG in 1 of 1 runs|at .*/chapters/$CHAPTER/step[0-9]_$1\.cu:[0-9]+"
    done
}

@test "chapter 21: every step is right on every case of every operation" {
    local op
    for op in transposed_v per_head two_levels per_block rotation; do all_right 1 $op; done
}

@test "chapter 21: neither the order of warps and blocks nor the number of SMs matters" {
    local sms
    any_order d256_causal rising_causal d128
    for sms in 1 3; do
        SIMGPU_SMS=$sms run -0 "$SIMGPU" --seed $sms "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --case many_tiles_causal
        SIMGPU_SMS=$sms run -0 "$SIMGPU" --seed $sms "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --case shared_heads_causal
    done
}

@test "chapter 21: shapes of the user's own are right; a head dimension that a step has no registers for is refused by name" {
    run -0 make chapter-21 DEVICE=sim PROFILE=0 OP=per_block SHAPE=b=1,q=77,k=290,h=4,g=2,d=128 SEED=3
    assert_line "$CHAPTER: all 2 runs right"
    run -0 make chapter-21 DEVICE=sim PROFILE=0 OP=transposed_v SHAPE=b=2,q=65,k=33,h=2,g=1,d=256 SEED=3
    assert_line "$CHAPTER: all 2 runs right"
    run -2 make --no-print-directory chapter-21 DEVICE=sim OP=per_block SHAPE=b=1,q=9,k=9,h=1,g=1,d=256
    assert_output --partial "d, the head dimension, must be 64 or 128"
    run -2 make --no-print-directory chapter-21 DEVICE=sim OP=per_head SHAPE=b=1,q=9,k=9,h=1,g=1,d=96
    assert_output --partial "d, the head dimension, must be 64, 128 or 256"
    run -2 make --no-print-directory chapter-21 DEVICE=sim OP=rotation SHAPE=b=1,s=9,h=1,d=96
    assert_output --partial "d, the head dimension, must be 64, 128 or 256"
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
