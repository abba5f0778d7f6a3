#!/usr/bin/env bats
# Chapter 15: attention on TMA and wgmma is right on the simulated GPU, its counters show what each step claims, and a kernel
# that breaks one of the rules is stopped, every time.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters
load test_helper/torch

CHAPTER=15_sm90_attention_forward

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 15: every step is right on every case" {
    all_right 10
}

@test "chapter 15: the warps' order does not matter" {
    any_order d256_causal rising_causal shared_heads
}

@test "chapter 15: blocks that stay take tile after tile, launch after launch, on any number of SMs" {
    local sms step
    for sms in 1 3 132; do
        for step in persistent tma_store; do
            SIMGPU_SMS=$sms run -0 "$SIMGPU" --seed $sms "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER" --step $step
            refute_output --partial WRONG
        done
    done
}

@test "chapter 15: a shape of the user's own, causal and not; other head dimensions are refused in one line" {
    run -0 make chapter-15 DEVICE=sim SHAPE=b=1,q=77,k=190,h=2,g=1,d=256 SEED=3 PROFILE=0
    assert_line --regexp '^ +10 tma_store +causal +b=1,q=77,k=190,h=2,g=1,d=256,causal=1 right'
    assert_line --regexp '^ +10 tma_store +full +b=1,q=77,k=190,h=2,g=1,d=256,causal=0 right'
    run -2 make --no-print-directory chapter-15 SHAPE=b=1,q=9,k=9,h=2,g=1,d=96
    assert_line --partial "d, the head dimension, must be 64, 128 or 256"
    run -2 make --no-print-directory chapter-15 SHAPE=b=1,q=9,k=9,h=3,g=2,d=64
    assert_line --partial "h must be a multiple of g"
}

@test "chapter 15: the baseline is PyTorch's cuDNN backend, and its outputs are compared" {
    torch_stub
    local name
    for name in len17 d256_causal; do
        run -0 "$SIMGPU" "$(chapter $CHAPTER)" --step 0 --case $name
        if [[ $name == len17 ]]; then assert_line --regexp "^  0 SDPA CUDNN +$name .* right"; fi
    done
    assert_output --partial "skipped: the baseline does not have it" # fewer heads of K and V
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "reference: attention tile by tile is the direct formula, however late the maximum follows" {
    run -0 python 'import attention
rng = np.random.default_rng(1)
Q, K, V = (rng.standard_normal((2, 3, rows, 16)) for rows in (30, 200, 200))
Q[..., 0] = 1; K[..., 0] = 0.48 * np.arange(200) # rising
for causal in False, True:
    O, LSE = attention.direct(Q, K, V, causal)
    for slack in 0, 1, 8, 40:
        tiles = attention.tile_by_tile(Q, K, V, causal, 32, slack=slack)
        np.testing.assert_allclose(tiles[0], O, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(tiles[1], LSE, rtol=1e-11)'
}

@test "chapter 15: in the rising cases the maximum outgrows 2^8 in every tile of keys" {
    run -0 python 'import sys
for name, d in ("rising", 64), ("rising_causal", 128), ("d256_rising", 256):
    Q, K = ((np.load(f"build/golden/15_sm90_attention_forward/{name}/{n}.bf16.npy").astype(np.uint32) << 16).view(np.float32)[0, :, 0] for n in "QK")
    S = Q[-1] @ K.T / np.sqrt(d) * np.log2(np.e)
    tops = [S[i:i + 128].max() for i in range(0, len(S) - 127, 128)]
    assert len(tops) >= 3 and (np.diff(tops) > 8).all(), (name, tops)'
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 15: wgmma reads its operands without a bank conflict" {
    local step
    for step in 1 4 10; do
        [[ $(count $step d256 shared_wavefronts_ideal '^ *wgmma') -gt 0 ]]
        assert_equal "$(count $step d256 shared_wavefronts '^ *wgmma')" "$(count $step d256 shared_wavefronts_ideal '^ *wgmma')"
    done
}

@test "chapter 15: step 2 fetches K and V for two warpgroups at once, at D = 64 for three" {
    # 1000 queries in 16, 8 (D = 128) or 6 (D = 64, 192 each) blocks.
    local one two
    one=$(count 1 len1000_causal copied_bytes 'kv \* Tile') two=$(count 2 len1000_causal copied_bytes 'kv \* Tile')
    [[ $((10 * two)) -le $((6 * one)) ]]
    one=$(count 1 len1000 copied_bytes 'kv \* Tile') two=$(count 2 len1000 copied_bytes 'kv \* Tile')
    assert_equal $((two * 16)) $((one * 6))
}

@test "chapter 15: step 5 exchanges maxima and rescales O in less than a sixth of step 4's instructions" {
    [[ $((6 * $(count 5 len1000 warp_instructions 'shfl_xor_sync\(0xffffffff, m'))) -lt $(count 4 len1000 warp_instructions 'shfl_xor_sync\(0xffffffff, m') ]]
    [[ $((6 * $(count 5 len1000 warp_instructions '\*= rows\.rescale\[i'))) -lt $(count 4 len1000 warp_instructions '\*= rows\.rescale\[i') ]]
}

@test "chapter 15: step 7 looks for maxima in the first tile alone, steps 5 and 6 in every tile" {
    local five six seven
    five=$(count 5 len1000 warp_instructions 'fmaxf\(maximum\[half\]') six=$(count 6 len1000 warp_instructions 'fmaxf\(maximum\[half\]')
    seven=$(count 7 len1000 warp_instructions 'fmaxf\(maximum\[half\]')
    [[ $((10 * six)) -gt $((9 * five)) && $((7 * seven)) -lt $six && $seven -gt 0 ]] # 8 tiles of 128 keys
}

@test "chapter 15: where scores rise, steps 6 and 7 compute tiles after the first twice, and none where they do not" {
    local step
    # 900 keys: 6 full tiles after the first; 13 warps have queries below 200; a tile has 32 pairs of scores a lane, two additions each.
    for step in 6 7; do
        assert_equal "$(($(count $step rising warp_instructions '\+= x \+ y;') - $(count 5 rising warp_instructions '\+= x \+ y;')))" $((6 * 13 * 32 * 2))
        assert_equal "$(count $step len1000 warp_instructions '\+= x \+ y;')" "$(count 5 len1000 warp_instructions '\+= x \+ y;')"
    done
}

@test "chapter 15: step 8's block 0 has the last queries, step 7's the first" {
    local file
    for file in step7_packed_growth.cu:7 step8_longest_first.cu:0; do
        broken $CHAPTER ${file%:*} 's/^    const int first_row = .*/&\n    if (work.row + Tile<D>::Q >= a.q_len) __trap();/'
        run -3 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step "$(basename "${file%:*}" .cu | sed 's/^step[0-9]*_//')" --case len1000_causal
        assert_output --partial "block (${file#*:},0,0)"
    done
}

@test "chapter 15: step 10 stores O in whole sectors, step 9 each of them twice" {
    local nine ten
    nine=$(count 9 len1000 global_sectors 'store_pair|pack_pair') ten=$(count 10 len1000 global_sectors 'cp_async_bulk_tensor_5d_store')
    assert_equal "$ten" $((1000 * 64 * 2 / 32))
    assert_equal "$nine" $((2 * ten))
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 15: a stage given back before its products are done is a fault" {
    HEAD_DIM=256 broken $CHAPTER step1_producer_consumer.cu '/wgmma_commit_group\(\);$/{n;s/wgmma_wait_group<0>\(\);//}'
    faults $CHAPTER 1 d256
    HEAD_DIM=256 broken $CHAPTER step4_overlapped.cu 's/wgmma_wait_group<1>\(\);/wgmma_wait_group<2>();/'
    faults $CHAPTER 4 d256
    noted $CHAPTER 'register … is read before the wgmma at line …, whose result it holds, has been waited for'
}

@test "chapter 15: V given back while P V still runs is a fault" {
    HEAD_DIM=256 broken $CHAPTER step4_overlapped.cu '/^        softmax_tile<T, KV>\(S, P_new/{n;n;s/.*//}'
    faults $CHAPTER 4 d256
}

@test "chapter 15: a turn that is not handed on ends with who waits for what" {
    HEAD_DIM=256 broken $CHAPTER step3_ping_pong.cu '/wgmma_commit_group/{n;s/named_barrier_arrive\(TURN \+ next_consumer, 256\);//}'
    faults $CHAPTER 3 d256
    noted $CHAPTER 'deadlock: no warp of block … can go on'
}

@test "chapter 15: a turn that nobody takes is stopped" {
    HEAD_DIM=128 broken $CHAPTER step3_ping_pong.cu 's/named_barrier_sync\(TURN \+ consumer, 256\);//'
    fails $CHAPTER 3 many_tiles_causal
}

@test "chapter 15: without a maximum that follows, or with O not rescaled, rising scores come out wrong" {
    HEAD_DIM=64 broken $CHAPTER step5_lazy_rescale.cu 's/RESCALE_LOG2 = 8;/RESCALE_LOG2 = 1e30;/'
    wrong $CHAPTER 5 rising
    edited $CHAPTER step7_packed_growth.cu 's/first \|\| any_above<T, KV>\(P\)/first/'
    wrong $CHAPTER 7 rising
    wrong $CHAPTER 7 rising_f16
    HEAD_DIM=256 broken $CHAPTER step7_packed_growth.cu 's/O\[i\] \*= rows.rescale\[i \/ 2 % 2\]/O[i] *= 1/'
    wrong $CHAPTER 7 d256_rising
}

@test "chapter 15: a mask aligned at the top left, or left out where only some rows need it, is wrong" {
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu 's/full_keys = keys_seen\(a, first_row\)/full_keys = keys_seen(a, first_row + WG_Q - 1)/'
    wrong $CHAPTER 10 few_queries_causal
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu 's/keys_seen\(a, row \+ half \* 8\)/(keys_seen(a, row + half * 8) - a.k_len + a.q_len)/'
    wrong $CHAPTER 10 few_queries_causal
}

@test "chapter 15: the next tile's queries, fetched over those in use, are a fault" {
    export SIMGPU_SMS=2
    HEAD_DIM=128 broken $CHAPTER step9_persistent.cu 's/if \(lane == 0 && kv == kv_tiles - 1\) mbarrier_arrive/if (lane == 0 \&\& kv == 0) mbarrier_arrive/'
    faults $CHAPTER 9 many_tiles_causal
}

@test "chapter 15: a counter that does not come back is found by the next launch" {
    edited $CHAPTER step9_persistent.cu 's/atomicInc\(&next_tile, num_tiles - 1\)/atomicAdd(\&next_tile, 1)/'
    SIMGPU_SMS=2 run -1 "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step 9
    assert_output --partial WRONG
}

@test "chapter 15: O stored before TMA may see it, or over what it still reads, is a fault" {
    export SIMGPU_SMS=2
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu '/^ *fence_proxy_async/d'
    faults $CHAPTER 10 many_tiles_causal
    noted $CHAPTER 'fence.proxy.async is missing: …'
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu '/and what the others wrote/d'
    faults $CHAPTER 10 many_tiles_causal
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu '/if \(tid == 0\) cp_async_bulk_wait_group_read<0>\(\);$/d'
    faults $CHAPTER 10 many_tiles_causal
    HEAD_DIM=128 broken $CHAPTER step10_tma_store.cu '/What was stored from here before has left/d'
    faults $CHAPTER 10 many_tiles_causal
}
