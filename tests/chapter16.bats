#!/usr/bin/env bats
# Chapter 16: attention's variants are right on the simulated GPU, alone and together; what is not served is refused by name; the
# counters show what each variant saves; and a kernel that breaks one of the rules is stopped, every time.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken

CHAPTER=16_sm90_attention_variants

setup() { export PYTHONPATH=$ROOT/reference; }

# run_case OPERATION STEP CASE [FLAG...]: simgpu's flags come first.
run_case() { "$SIMGPU" "${@:4}" "${BROKEN:-$(chapter $CHAPTER)}" --golden "build/golden/$CHAPTER" --op "$1" --step "$2" --case "$3"; }

@test "chapter 16: windows, softcap, sinks and head dimensions are right on every case" {
    local operation
    for operation in window softcap sinks head_dims; do all_right 1 $operation; done
}

@test "chapter 16: sequences of any lengths are right, by the step that brings them and by the last" {
    all_right 2 varlen
}

@test "chapter 16: packed heads and parts of the keys are right, with and without" {
    all_right 2 pack_gqa
    all_right 2 split_kv
}

@test "chapter 16: pages of 1 to 256 keys and a cache that grows are right" {
    all_right 1 paged_kv
    all_right 1 append_kv
}

@test "chapter 16: the warps' order and the number of SMs do not matter" {
    local seed
    for seed in 1 2 3; do
        SIMGPU_SMS=$seed run -0 run_case varlen append_kv causal --seed $seed
        SIMGPU_SMS=$seed run -0 run_case varlen varlen many --seed $seed
        SIMGPU_SMS=$seed run -0 run_case paged_kv paged_kv page10 --seed $seed
        SIMGPU_SMS=$((20 * seed)) run -0 run_case paged_kv paged_kv splits --seed $seed
    done
}

@test "chapter 16: shares of the keys that begin and end within tiles are right" {
    # 16 tiles (mla) on 3 to 13 SMs: some are whole in a share, others in two. 2 (one_query) on 3: each in two.
    local sms case
    for sms in 3 5 7 11 13; do
        for case in mla one_query few_blocks used; do
            SIMGPU_SMS=$sms run -0 run_case split_kv split_kv $case --seed $sms
        done
        SIMGPU_SMS=$sms run -0 run_case paged_kv paged_kv splits --seed $sms
        SIMGPU_SMS=$sms run -0 run_case varlen append_kv causal --seed $sms
    done
}

@test "chapter 16: shapes of the user's own; what is not served is refused in one line" {
    run -0 make chapter-16 DEVICE=sim OP=paged_kv SHAPE=b=2,q=1,k=300,h=8,g=2,d=128,v=128,s=16 PROFILE=0
    assert_line --partial "all 4 runs right"
    run -0 make chapter-16 DEVICE=sim OP=varlen SHAPE=b=3,q=90,k=70,h=2,g=1,d=64,v=64 PROFILE=0
    assert_line --partial "all 8 runs right"
    run -2 make --no-print-directory chapter-16 OP=sinks SHAPE=b=1,q=9,k=9,h=2,g=1,d=64,v=256
    assert_line --partial "d and v must be the same; others are what step head_dims brings"
    run -2 "$SIMGPU" "$(chapter $CHAPTER)" --bench --op window --shape b=1,q=9,k=9,h=2,g=1,d=64,v=256,left=9,right=9
    assert_output --partial "d and v must be the same; others are what step head_dims brings"
    run -2 make --no-print-directory chapter-16 OP=head_dims SHAPE=b=1,q=9,k=9,h=2,g=1,d=64,v=128
    assert_line --partial "d and v must be 64, 128 or 256, or d=192 with v=128, or d=64 with v=256"
    run -2 make --no-print-directory chapter-16 OP=window SHAPE=b=1,q=9,k=9,h=3,g=2,d=64,v=64
    assert_line --partial "h must be a multiple of g"
}

@test "chapter 16: a launcher refuses what a later step brings, and attention_refused says what cannot be" {
    local nvcc
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cat >"$BATS_TEST_TMPDIR/main.c" <<'EOF'
#include <stdio.h>
#include <string.h>
#include "launchers.h"
static const struct attention_variant plain = {.dtype = BF16, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64, .v_head_dim = 64,
    .q_len = 1, .k_len = 1, .Q = (void *)16, .K = (void *)16, .V = (void *)16, .O = (void *)16, .LSE = (void *)16,
    .left = ATTENTION_UNBOUNDED, .right = ATTENTION_UNBOUNDED};
#define REFUSED(step, ...) do { struct attention_variant v = plain; __VA_ARGS__; printf("%s: %d %s\n", #step, step(&v, 0), attention_refused(&v)); } while (0)
int main(void)
{
    int *p = (int *)16;
    REFUSED(window, v.softcap = 1);
    REFUSED(softcap, v.sinks = (float *)p);
    REFUSED(sinks, v.v_head_dim = 256);
    REFUSED(head_dims, v.used_k = p);
    REFUSED(split_kv, (v.page_table = p, v.pages = v.page_size = v.pages_per_sequence = 1));
    REFUSED(append_kv, v.head_dim = 96);
    REFUSED(append_kv, v.kv_heads = 3);
    REFUSED(append_kv, v.cu_k = p);
    REFUSED(append_kv, v.left = -1);
    REFUSED(append_kv, v.K_new = p);
    REFUSED(append_kv, v.K = (void *)8);
    REFUSED(append_kv, (v.page_table = p, v.pages = 4));
}
EOF
    mapfile -t objects < <(objects $CHAPTER main | grep -v '/main\.o$')
    gcc -c -o "$BATS_TEST_TMPDIR/main.o" -I"chapters/$CHAPTER" -isystem "$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)" "$BATS_TEST_TMPDIR/main.c"
    g++ -o "$BATS_TEST_TMPDIR/refused" "$BATS_TEST_TMPDIR/main.o" "${objects[@]}" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/refused"
    assert_line "window: 1 (null)"
    assert_line "softcap: 1 (null)"
    assert_line "sinks: 1 (null)"
    assert_line "head_dims: 1 (null)"
    assert_line "split_kv: 1 (null)"
    assert_line "append_kv: 1 head dimensions must be 64, 128 or 256, or 192 with V's 128, or 64 with V's 256"
    assert_line "append_kv: 1 heads must be a multiple of kv_heads: every K/V head serves as many query heads"
    assert_line "append_kv: 1 cu_k needs cu_q"
    assert_line "append_kv: 1 left and right must be at least 0"
    assert_line "append_kv: 1 K_new and V_new come together"
    assert_line "append_kv: 1 Q, K, V, O and the workspace must begin at multiples of 16 bytes"
    assert_line "append_kv: 1 page_table needs pages, page_size and pages_per_sequence"
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "reference: the variants tile by tile are the direct formula; without a variant they are chapter 12's" {
    run -0 python 'import attention, attention_variants as variants
rng = np.random.default_rng(1)
Q, K, V = (rng.standard_normal((3, rows, 16)) for rows in (30, 90, 90))
none = np.full(3, -np.inf)
for left, right, softcap, sinks in (99, 99, 0, none), (99, 0, 0, none), (20, 5, 3, none), (3, 0, 0, rng.standard_normal(3)), (0, 0, 2, 9 * np.ones(3)):
    visible = variants.seen(30, 90, left, right)
    O, LSE = variants.direct(Q, K, V, visible, softcap, sinks)
    for slack in 0, 8:
        error = np.abs(variants.tile_by_tile(Q, K, V, visible, softcap, sinks, "f16", slack, 16) - O)
        assert 0 < error.max() < 3e-3, error.max()
    if softcap == 0 and (sinks == none).all():
        right_O, right_LSE = attention.direct(Q, K, V, right == 0)
        np.testing.assert_allclose(O, right_O, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(LSE, right_LSE, rtol=1e-12)'
}

# --- Counters -------------------------------------------------------------------------------------------------------

# copied OPERATION STEP CASE PATTERN: bytes that the lines which match have copied to shared memory.
copied() {
    run -0 run_case "$1" "$2" "$3" --json "$BATS_TEST_TMPDIR/counters.json"
    plain_python 'import json, re, sys
print(sum(line["copied_bytes"] for k in json.load(open(sys.argv[1])) for line in k["lines"] if re.search(sys.argv[2], line["text"])))' \
        "$BATS_TEST_TMPDIR/counters.json" "$4"
}

@test "chapter 16: packed heads read K and V once, where every head of its own read them" {
    # 300 keys are 5 of the tiles of 64 that a block of few rows takes; 8 heads of one K/V head.
    assert_equal "$(copied pack_gqa varlen one_query 'RAGGED \+ first - end, column')" $((8 * 5 * 64 * 2 * 256))
    assert_equal "$(copied pack_gqa pack_gqa one_query 'RAGGED \+ first - end, column')" $((5 * 64 * 2 * 256))
}

@test "chapter 16: a window loads the tiles that it reaches" {
    # One query of 1000 keys and 2 heads that share K and V, 300 keys back: keys 699 to 999 are in tiles 10 to 15.
    assert_equal "$(copied window window one_query 'RAGGED \+ first - end, column')" $((2 * 6 * 64 * 2 * 256))
}

# --- Broken kernels: kernel.cuh with one edit, and one kernel of its table --------------------------------------------

# kernel DIM few|many SED...: builds the chapter with an edited kernel.cuh, for D = DV = DIM, one consumer or more, no softcap; sets BROKEN.
kernel() {
    local dir=$BATS_TEST_TMPDIR/tree dim=$1 others objects nvcc cuda_lib
    [[ $2 == few ]] && others='false, false' || others='true, false'
    shift 2
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mkdir -p "$dir/chapters/$CHAPTER"
    ln -sfn "$ROOT/common" "$dir/common"
    cp "chapters/$CHAPTER"/*.h "chapters/$CHAPTER/kernel_bf16.cu" "$dir/chapters/$CHAPTER"
    sed -E "$@" "chapters/$CHAPTER/kernel.cuh" >"$dir/chapters/$CHAPTER/kernel.cuh"
    run ! cmp -s "chapters/$CHAPTER/kernel.cuh" "$dir/chapters/$CHAPTER/kernel.cuh"
    sed -E -i "s/launch_tile<T, Tile<D, DV, ($others|false, true|true, true)>>/nullptr/g" "$dir/chapters/$CHAPTER/kernel.cuh"
    sed -E -i "s/^(#define ATTENTION_HEAD_DIMS\(PAIR\)).*/\1 PAIR($dim, $dim)/" "$dir/chapters/$CHAPTER/variants.h"
    compiled "$BATS_TEST_TMPDIR/kernel.o" "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_90a,code=compute_90a -c \
        "$dir/chapters/$CHAPTER/kernel_bf16.cu"
    mapfile -t objects < <(objects $CHAPTER kernel_bf16)
    BROKEN=$BATS_TEST_TMPDIR/broken
    g++ -o "$BROKEN" "$BATS_TEST_TMPDIR/kernel.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
}

# is_wrong, is_stopped OPERATION STEP CASE: whatever the order of the warps.
is_wrong() {
    local seed
    for seed in 0 1 2 3; do
        run -1 run_case "$@" --seed $seed
        assert_line "$CHAPTER: WRONG in 1 of 1 runs"
    done
}
is_stopped() {
    local seed
    for seed in 0 1 2 3; do
        run -3 run_case "$@" --seed $seed
        assert_line --regexp "at .*/chapters/$CHAPTER/[a-z0-9_]+\.cuh?:[0-9]+"
    done
}

@test "chapter 16: a timeline shows a share's two tiles, and the second one's keys asked for before the first one's O is there" {
    kernel 128 few 's/^#pragma once/&\n#define TRACE/'
    # 16 tiles of 10 tiles of keys on 11 SMs: 14 or 15 a share, of which the first block's begin with a whole tile.
    SIMGPU_SMS=11 run -0 "$SIMGPU" "$BROKEN" --op split_kv --step split_kv --shape b=8,q=1,k=600,h=4,g=2,d=128,v=128,left=599,right=0 \
        --trace "$BATS_TEST_TMPDIR/trace.json"
    plain_python 'import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
roles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
begins = lambda block, role, event: [e["ts"] for e in events if e["ph"] == "X" and e["name"] == event and e["pid"] == block and roles[block, e["tid"]] == role]
for block in 0, 1:
    loads, softmax, stores = begins(block, "producer", "load"), begins(block, "consumer 0", "softmax"), begins(block, "consumer 0", "store")
    assert len(loads) == len(softmax) in (14, 15) and len(stores) == 2, (loads, softmax, stores)
assert begins(0, "producer", "load")[10] < begins(0, "consumer 0", "store")[0]' "$BATS_TEST_TMPDIR/trace.json"
}

@test "chapter 16: copies of Q, K or V that do not wait for the kernels before are stopped" {
    local early="is read before griddepcontrol.wait (cudaGridDependencySynchronize), but the launch before writes it"
    kernel 128 few 's|griddepcontrol_wait\(\); // attention_kernel says why here.||'
    is_stopped split_kv split_kv one_query
    assert_output --partial "$early"
    kernel 128 many 's|griddepcontrol_wait\(\); // as load_tile||'
    is_stopped window window causal
    assert_output --partial "$early"
}

@test "chapter 16: a window that ends a key too early, or is not masked at its beginning, is wrong" {
    kernel 128 many 's/work\.shift \+ v\.right \+ 1, work\.seen/work.shift + v.right, work.seen/'
    is_wrong window window causal
    kernel 128 many 's/if \(kv < whole_begin \|\| /if (/'
    is_wrong window window left
}

@test "chapter 16: a box that reads a row behind the last key brings its NaN in" {
    kernel 128 few 's/end = work\.k_begin \+ work\.k_len, first/end = work.k_begin + work.k_len + 1, first/'
    is_wrong split_kv split_kv used
}

@test "chapter 16: V from pages of 8 that is read as if it came from pages of 16 is wrong" {
    kernel 128 many 's/V_eights = box == 8 \?/V_eights = box == 0 ?/'
    is_wrong paged_kv paged_kv page24
}

@test "chapter 16: a part without keys that weighs something is wrong" {
    kernel 64 few 's/work\.seen = part_begin < part_end \? k_len : 0/work.seen = k_len/'
    is_wrong split_kv split_kv parts_beyond
}

@test "chapter 16: a share that ends a unit early, and places of parts that are none and weigh something, are found" {
    kernel 128 few 's/end = min\(share_end, tile_end\) - tile_begin/end = min(share_end - 1, tile_end) - tile_begin/'
    SIMGPU_SMS=3 is_wrong split_kv split_kv one_query
    kernel 128 few 's/ dst\[place\[half\] \+ i\] = -INFINITY//'
    SIMGPU_SMS=3 is_stopped split_kv split_kv one_query
}

@test "chapter 16: pages handed over too late, with two stages, end with who waits for what" {
    kernel 256 few -e '/The tile before, now/,/if \(kv > begin\) finish_copies/{/finish_copies/d}' -e \
        's/^( *)if \(kv == end - 1\) finish_copies<0>/\1if (kv > begin) finish_copies<2>(\&smem.K_full[before], \&smem.V_full[before]);\n&/'
    is_stopped paged_kv paged_kv gather_d256
    noted $CHAPTER 'deadlock: no warp of block … can go on'
}

@test "chapter 16: pages handed over without a fence between the proxies are a fault" {
    kernel 128 few '/^ *fence_proxy_async\(\); \/\/ cp\.async writes/d'
    is_stopped paged_kv paged_kv page10
    noted $CHAPTER 'fence.proxy.async is missing'
}

@test "chapter 16: a work written over one that is in use is found" {
    local seed
    kernel 128 many 's/^constexpr int WORKS = 4;/constexpr int WORKS = 1;/'
    for seed in 0 1 2 3; do
        SIMGPU_SMS=2 run run_case varlen varlen causal --seed $seed
        [[ $status -eq 1 || $status -eq 3 ]]
    done
}

@test "chapter 16: parts put together before they are there, and keys appended at the wrong place, are found" {
    edited $CHAPTER step7_split_kv.cu '/wait_for_kernels_before\(\);/d'
    is_stopped split_kv split_kv one_query
    edited $CHAPTER step9_append_kv.cu 's/place = v\.used_k\[sequence\] \+ row;/place = row;/'
    is_wrong append_kv append_kv one
}
