#!/usr/bin/env bats
# Chapter 20: products of many groups are right whatever their sizes, rows that are nobody's stay, and broken kernels fail.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=20_grouped_gemm

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 20: every step is right on every case of every operation" {
    local op
    for op in aligned ragged masked k_groups moe moe_gradient; do all_right 1 $op; done
}

@test "chapter 20: the order of warps and blocks does not matter, nor that there are more tiles and groups than blocks" {
    SIMGPU_SMS=4 any_order ragged many_groups
}

# random OP DIM=MOST[:STEP]...: cases of random shapes, with counts that are drawn.
random() { run -0 "$PYTHON" tests/random_shapes.py mixture_of_experts "$1" e4m3 "${RANDOM_SHAPES:-2}" 1 "$BATS_TEST_TMPDIR/random/$1" "${@:2}"; }

# RANDOM_SHAPES=N: so many of each operation instead of 2.
@test "chapter 20: random shapes are right; a k that TMA cannot load is refused by name" {
    random aligned m=400 n=200 k=272:16 g=5
    random ragged m=300 n=200 k=272:16 g=9
    random masked g=9 c=90 n=200 k=272:16 e=90
    random k_groups m=150 n=200 k=768:128 g=6
    random moe t=30 h=96:16 f=64:16 e=9 k=4
    random moe_gradient t=30 h=96:16 f=64:16 e=9 k=4
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$BATS_TEST_TMPDIR/random"
    assert_line "$CHAPTER: all $((${RANDOM_SHAPES:-2} * 6)) runs right"
    run -0 make chapter-20 DEVICE=sim PROFILE=0 OP=ragged SHAPE=m=33,n=30,k=16,g=3 SEED=2
    assert_line "$CHAPTER: all 1 runs right"
    run -2 make --no-print-directory chapter-20 DEVICE=sim OP=ragged SHAPE=m=64,n=64,k=24,g=2
    assert_output --partial "k must be a multiple of 16, so that every row of A and B begins at a multiple of 16 bytes"
    run -2 make --no-print-directory chapter-20 DEVICE=sim OP=k_groups SHAPE=m=64,n=64,k=144,g=2
    assert_output --partial "k must be a multiple of 128, since every group begins at one"
}

@test "chapter 20: the script that times DeepGEMM says what it misses" {
    run -2 "$PYTHON" -B tools/bench_deep_gemm.py grouped
    assert_output "bench_deep_gemm: 'grouped': expected one of gemm, aligned, masked, k_groups"
    mkdir "$BATS_TEST_TMPDIR/tools"
    cp tools/*deep_gemm* "$BATS_TEST_TMPDIR/tools"
    run -2 env -u DEEP_GEMM "$PYTHON" -B "$BATS_TEST_TMPDIR/tools/bench_deep_gemm.py" --build
    assert_output "bench_deep_gemm: build/libdeep_gemm.so is missing, or made of other sources: say DEEP_GEMM=FOLDER and CUTLASS=FOLDER to make it"
}

# Each line: the product, and what DeepGEMM's own choice (sm90.hpp, compiled) printed for it: tile, cluster, stages, bytes of shared memory.
@test "chapter 20: the script that times DeepGEMM chooses as DeepGEMM does" {
    run -0 env PYTHONPATH=tools "$PYTHON" -B - <<'END'
import dataclasses
from deep_gemm_kernels import Product, best_tiling
for given, expected in [
    (("gemm", 1, 64, 64, 2112, 7168), (64, 16, 1, 1, 16, 170464)),
    (("gemm", 1, 128, 128, 32768, 512), (128, 128, 1, 2, 5, 199440)),
    (("gemm", 1, 4096, 4096, 7168, 16384), (256, 128, 1, 2, 3, 216832)),
    (("gemm", 1, 16, 16, 7168, 2048), (16, 64, 1, 1, 16, 168256)),
    (("aligned", 4, 32768, 32768, 4096, 4096), (128, 192, 2, 1, 4, 215552)),
    (("masked", 6, 4096, 20, 6144, 7168), (64, 96, 2, 1, 10, 220352)),
    (("k_groups", 4, 4096, 4096, 7168, 8192), (128, 152, 2, 1, 4, 226560)),
    (("k_groups", 8, 4096, 4096, 7168, 4096), (128, 152, 1, 1, 4, 226560)),
]:
    product = Product(*given)
    tiling = best_tiling(product)
    assert (*dataclasses.astuple(tiling), *tiling.pipeline(product)) == expected, (given, tiling)
END
}

# On two SMs, one cluster, the tile is that of the fewest rounds of a pair. Tiles of 160 columns begin 0, 32, 64 and 96 behind a square. Of
# three parts the last is some groups' only one, or nobody's.
@test "chapter 20: tiles are right in each of their shapes, with a pair that goes beyond the right edge" {
    local op shape tile dir=$BATS_TEST_TMPDIR/case
    while read -r op shape tile; do
        run -0 "$PYTHON" reference/golden.py grouped_gemm --types e4m3 --op "$op" --out "$dir" --shape "$shape"
        run -0 "$SIMGPU" --sms 2 --json "$BATS_TEST_TMPDIR/shape.json" "$(chapter $CHAPTER)" --op "$op" --golden "$dir"
        assert_line "$CHAPTER: all 1 runs right"
        grep -q "kernel<Shape<$tile" "$BATS_TEST_TMPDIR/shape.json" || fail "$op $shape did not take $tile"
        rm -rf "$dir"
    done <<'END'
ragged m=60,n=90,k=144,g=3 2, 96
ragged m=60,n=190,k=144,g=3 2, 192
ragged m=60,n=250,k=144,g=3 2, 128
ragged m=60,n=640,k=144,g=3 2, 160
ragged m=60,n=760,k=144,g=3 2, 192
masked g=7,c=400,n=250,k=144,e=192 3, 128
masked g=3,c=192,n=256,k=144,e=192 3, 128
END
}

# Of 150 rows two tiles of 128 are expected, and for one cluster tiles of 192 columns take the fewest rounds. What is asked of the L2 is
# forgotten, for no small shape fills one. The groups have 192, 24 and 179 rows: two, one and two tiles; the other case's has 58.
@test "chapter 20: pairs of masked that stand one above the other are right, where the L2 cannot keep what a round fetches" {
    local shape dir=$BATS_TEST_TMPDIR/case counted=$BATS_TEST_TMPDIR/shape.json forget='s/fetched <= L2_bytes/fetched < 0/'
    edited $CHAPTER step3_masked.cu "$forget"
    for shape in g=1,c=300,n=700,k=144,e=150 g=3,c=300,n=370,k=144,e=150; do
        rm -rf "$dir"
        run -0 "$PYTHON" reference/golden.py grouped_gemm --types e4m3 --op masked --out "$dir" --shape $shape
        run -0 "$SIMGPU" --sms 2 --json "$counted" "$BROKEN" --op masked --golden "$dir"
        grep -q "kernel<Shape<2, 192, true" "$counted"
    done
    assert_equal "$(python 'print(np.load(sys.argv[1] + "/counts.npy").tolist())' "$(dirname "$(find "$dir" -name counts.npy)")")" "[192, 24, 179]"
    edited $CHAPTER step3_masked.cu "$forget; s/parts, place\.stacked\}/parts, true}/" # two that stand side by side share no B
    run "$SIMGPU" --sms 2 "$BROKEN" --op masked --golden "$dir"
    [[ $status -eq 1 || $status -eq 3 ]]
}

# --- Counts, which only the device knows ---------------------------------------------------------------------------------

# refused OP CASE CODE: the case with its `counts` (or row_group) as CODE makes them of `a` stops the kernel.
refused() {
    one_case "$CHAPTER/$1" "$2"
    python 'import glob
d, code = sys.argv[1:]; f = (glob.glob(d + "/counts.npy") + glob.glob(d + "/row_group.npy"))[0]; a = np.load(f); exec(code); np.save(f, a)' "$CASE_DIR" "$3"
    run -3 "$SIMGPU" "$(chapter $CHAPTER)" --op "$1" --golden "$CASE_DIR"
    assert_output --regexp "trap"
    assert_line --regexp "at .*/chapters/$CHAPTER/step[0-9]_[a-z_]+\.cu:[0-9]+( \(in .*row_groups\.cuh:[0-9]+\))?: trap$"
}

@test "chapter 20: counts over capacity, below 0 or beyond the rows, and a group that is not there, stop the kernel before it follows them" {
    refused masked decode 'a[2] = 22'
    refused masked decode 'a[3] = -1'
    refused ragged ragged 'a[4] = 69'
    refused ragged ragged 'a[0], a[2] = -1, 210'
    refused k_groups ragged 'a[3] = 257'
    refused aligned ragged 'a[0] = 3'
    noted $CHAPTER 'simgpu: trap'
}

@test "chapter 20: masked recorded in a CUDA graph is right with other counts, which are on the device, launch after launch" {
    local include lib
    include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -isystem "$include" -c -o "$BATS_TEST_TMPDIR/graph.o" tests/test_helper/masked_graph.c
    g++ -o "$BATS_TEST_TMPDIR/graph" "$BATS_TEST_TMPDIR/graph.o" build/obj/chapters/$CHAPTER/step3_masked.o build/obj/common/device/tensor_map.o \
        -L"$lib" -l:libcudart.so.13 -lm -ldl
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/graph"
    assert_output --partial "0 of 151200 elements wrong"
}

# --- The layer ------------------------------------------------------------------------------------------------------------

@test "chapter 20: the reference's gradients of the layer are those of its definition without e4m3, to what e4m3 costs" {
    run -0 python 'import mixture_of_experts as m
rng = np.random.default_rng(0); op = m.OPERATIONS["moe_gradient"]
a = op.inputs(rng, dict(t=9, h=32, f=16, e=4, k=2)); got = op.outputs({n: np.asarray(v) for n, v in a.items()}, "e4m3")
wide = lambda x, s: x * np.repeat(np.repeat(s.astype(float), 128, 1), 128, 2)[:, : x.shape[1], : x.shape[2]]
W = {n: wide(a[n + "_t"], a["scale_" + n + "_t"]).swapaxes(1, 2).astype(complex) for n in ("W1", "W2")}
e = a["expert"].astype(int); logits = np.full((9, 4), -30.0, complex); np.put_along_axis(logits, e, np.log(a["weight"]), 1)
at = dict(x=a["x"].astype(complex), logits=logits, dW1=W["W1"], dW2=W["W2"])
def loss(x, logits, dW1, dW2):
    w = np.exp(np.take_along_axis(logits, e, 1)); w = w / w.sum(1, keepdims=True); y = 0
    for c in range(2):
        g, u = np.split(np.einsum("tfh,th->tf", dW1[e[:, c]], x), 2, 1)
        y = y + w[:, c : c + 1] * np.einsum("thf,tf->th", dW2[e[:, c]], g / (1 + np.exp(-g)) * u)
    return (y * a["dy"]).sum()
for name, what in ("x", "dx"), ("logits", "dlogits"), ("dW1", "dW1.after"), ("dW2", "dW2.after"):
    value = got[what][0] - (a[name] if what.endswith("after") else 0)
    true, mine = [], []
    for i in rng.choice(value.size, min(value.size, 120), replace=False):
        at[name].flat[i] += 1e-30j; true.append(loss(**at).imag / 1e-30); at[name].flat[i] -= 1e-30j; mine.append(value.flat[i])
    error = np.sqrt(np.mean(np.subtract(true, mine)**2) / np.mean(np.square(true)))
    print(name, error); assert error < 0.08, name'
}

@test "chapter 20: the layer gives the same bits, forward and backward, whatever the order of warps and blocks" {
    local seed op
    for seed in 1 2; do
        for op in moe moe_gradient; do
            run -0 "$SIMGPU" --seed $seed --sms 6 "$(chapter $CHAPTER)" --op $op --golden build/golden/$CHAPTER --case ragged --out "$BATS_TEST_TMPDIR/$seed"
        done
    done
    run -0 diff -r "$BATS_TEST_TMPDIR/1" "$BATS_TEST_TMPDIR/2"
    assert [ "$(find "$BATS_TEST_TMPDIR/1" -name '*.npy' | wc -l)" -eq 12 ]
}

# --- Counters ---------------------------------------------------------------------------------------------

@test "chapter 20: a tile of at most 64 rows takes half the products of one of 65, and half of A; an empty group nothing" {
    local counts json=$BATS_TEST_TMPDIR/masked.json
    for counts in 64,0 65,0 64,1; do
        one_case $CHAPTER/masked halves
        python 'd, c = sys.argv[1:]; np.save(d + "/counts.npy", np.array(list(map(int, c.split(","))) + [0, 0], np.int32))' "$CASE_DIR" $counts
        "$PYTHON" reference/golden.py grouped_gemm --types e4m3 --op masked --inputs "$CASE_DIR"
        run -0 "$SIMGPU" --json "$json" "$(chapter $CHAPTER)" --op masked --golden "$CASE_DIR"
        echo "$counts $(total "$json" tensor_flops) $(total "$json" copied_bytes produce)" >>"$BATS_TEST_TMPDIR/counted"
    done
    # shellcheck disable=SC2016 # awk's own $
    run -0 awk '{ flops[NR] = $2; bytes[NR] = $3 } END { print flops[2] / flops[1], bytes[2] - bytes[1], flops[3] / flops[1], bytes[3] / bytes[1] }' \
        "$BATS_TEST_TMPDIR/counted"
    assert_output "2 $((2 * 2 * 64 * 128)) 2 2" # A: two steps, to both blocks of the cluster
}

@test "chapter 20: what is quantised both ways goes through shared memory without a bank conflict" {
    local json=$BATS_TEST_TMPDIR/moe.json
    counters "$json" $CHAPTER moe_gradient several_tiles --op moe_gradient
    python 'import json
lines = [line for k in json.load(open(sys.argv[1])) if "both_ways" in k["kernel"] for line in k["lines"]]
actual, ideal = (sum(line[field] for line in lines) for field in ("shared_wavefronts", "shared_wavefronts_ideal"))
assert actual == ideal > 10000, (actual, ideal)' "$json"
}

@test "chapter 20: make diff-20 compares every step, and every header ends with the command that runs it" {
    ladders "aligned aligned_segments" "ragged ragged_segments" "masked masked" "k_groups k_groups" "moe moe" \
        "moe_gradient moe_gradient"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------------

@test "chapter 20: a tile that takes another group's scales, and one that asks its last row for the group, are found" {
    HEADER=row_groups.cuh broken $CHAPTER step1_aligned_segments.cu 's/\(size_t\)group \* squares/(size_t)(group \/ 2) * squares/'
    wrong $CHAPTER aligned_segments odd_n --op aligned
    broken $CHAPTER step1_aligned_segments.cu 's/group = row_group\[row\]/group = row_group[min(row + SHAPE::BLOCK_M, (tiles_m - 1) * SHAPE::BLOCK_M)]/'
    fails $CHAPTER aligned_segments two_groups --op aligned
}

@test "chapter 20: a pair of two groups that shares B all the same is wrong, and a stage that does not go round where a block has no group is found" {
    broken $CHAPTER step1_aligned_segments.cu 's/place\.stacked && group == other/place.stacked/'
    wrong $CHAPTER aligned_segments two_groups --op aligned
    broken $CHAPTER step1_aligned_segments.cu 's/if \(group < 0 && other < 0\) continue/if (group < 0) continue/'
    fails $CHAPTER aligned_segments ragged --op aligned
}

@test "chapter 20: a group's tail rows that are written are found, by TMA or one by one" {
    broken $CHAPTER step2_ragged_segments.cu 's/col, first_row \+ rows, group/col, M, group/'
    fails $CHAPTER ragged_segments ragged --op ragged
    run -3 "$SIMGPU" --threads 1 --seed 0 "$BROKEN" --golden build/golden/$CHAPTER --op ragged --case ragged
    noted $CHAPTER 'race on global memory …: this write is not ordered after the write by …'
    fails $CHAPTER ragged_segments odd_n --op ragged
    HEADER=row_groups.cuh broken $CHAPTER step2_ragged_segments.cu 's/\+ SHAPE::STORE_ROWS <= end/< end/'
    fails $CHAPTER ragged_segments tail --op ragged
}

@test "chapter 20: a sum of counts that is off by one, and scales that begin at the multiple of four, are wrong" {
    broken $CHAPTER step2_ragged_segments.cu 's/first_row \+= rows;/first_row += max(rows, 1);/'
    fails $CHAPTER ragged_segments ragged --op ragged
    HEADER=row_groups.cuh broken $CHAPTER step2_ragged_segments.cu 's/row % 4 \+ part_row, k_tiles/part_row, k_tiles/'
    wrong $CHAPTER ragged_segments ragged --op ragged
    noted $CHAPTER 'D[row 70, col 0]: got …, expected …, tolerance …; … of 37530 elements are wrong'
}

@test "chapter 20: half a tile whose other half is fetched all the same brings bytes that nobody expects" {
    HEADER=row_groups.cuh broken $CHAPTER step3_masked.cu 's/else if \(halves >> rank & 1\)/else/'
    fails $CHAPTER masked decode --op masked
    run -3 "$SIMGPU" --threads 1 --seed 0 "$BROKEN" --golden build/golden/$CHAPTER --op masked --case decode
    noted $CHAPTER 'bytes expected, but the copies in flight bring …'
}

@test "chapter 20: a tile that is named behind its stage's arrival, and one that is named beside another stage, are found" {
    HEADER=row_groups.cuh broken $CHAPTER step1_aligned_segments.cu '/for \(int k = 0/,/^        \}/{
        /if \(k == 0\)/d; s/state\.advance/if (k == 0) smem.tile[state.stage] = tile; &/}'
    fails $CHAPTER aligned_segments two_groups --op aligned
    HEADER=row_groups.cuh broken $CHAPTER step2_ragged_segments.cu 's/if \(k == 0\) smem\.tile\[state\.stage\] = tile/if (k == 0) smem.tile[0] = tile/'
    SIMGPU_SMS=2 fails $CHAPTER ragged_segments many_groups --op ragged
}

@test "chapter 20: a promotion one block late, and scales of the block before, are found" {
    broken $CHAPTER step4_k_groups.cu 's/wgmma_wait_group<0>\(\);/wgmma_wait_group<1>();/'
    fails $CHAPTER k_groups ragged --op k_groups
    broken $CHAPTER step4_k_groups.cu 's/first_k \+= group_k;/first_k += columns \/ BLOCK_K;/'
    wrong $CHAPTER k_groups ragged --op k_groups
}

@test "chapter 20: of equal logits the wrong one first, and rows counted without their barrier, are found" {
    broken $CHAPTER step5_moe.cu 's/expert < other_expert/expert > other_expert/'
    fails $CHAPTER moe ragged --op moe
    broken $CHAPTER step5_moe.cu '/__syncthreads\(\); \/\/ Everybody has read/d'
    races $CHAPTER moe several_tiles --op moe
}

@test "chapter 20: an expert's columns with the next expert's rows behind them, and a silu without its curve, are wrong" {
    broken $CHAPTER step6_moe_gradient.cu 's/row0 \+ i < end && col/row0 + i < rows \&\& col/'
    wrong $CHAPTER moe_gradient ragged --op moe_gradient
    noted $CHAPTER 'dW1[0][0][0]: got …, expected …, tolerance …; … of 115200 elements are wrong'
    broken $CHAPTER step6_moe_gradient.cu 's/ \* \(1\.0f \+ gate\[i\] \* \(1\.0f - s\)\)//'
    wrong $CHAPTER moe_gradient ragged --op moe_gradient
}
