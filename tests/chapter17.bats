#!/usr/bin/env bats
# Chapter 17: the gradients of attention are right on the simulated GPU, its counters show what each step claims, and a kernel that
# breaks one of the rules is stopped or wrong, every time.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=17_sm90_attention_backward

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 17: every step is right on every case" {
    all_right 5
}

@test "chapter 17: the warps' order does not matter" {
    any_order d256_shared_heads_causal shared_heads_causal len250
}

@test "chapter 17: a shape of the user's own, causal and not; other head dimensions are refused in one line" {
    run -0 make chapter-17 DEVICE=sim SHAPE=b=1,q=77,k=190,h=2,g=1,d=256 SEED=3 PROFILE=0
    assert_line --regexp '^ +5 in_registers +causal +b=1,q=77,k=190,h=2,g=1,d=256,causal=1 right'
    assert_line --regexp '^ +5 in_registers +full +b=1,q=77,k=190,h=2,g=1,d=256,causal=0 right'
    run -2 make --no-print-directory chapter-17 SHAPE=b=1,q=9,k=9,h=2,g=1,d=96
    assert_line --partial "d, the head dimension, must be 64, 128 or 256"
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 17: wgmma reads its operands without a bank conflict, transposed or not" {
    local name
    for name in len250 len250_causal d256_causal; do # D = 256 is step 4's kernel
        [[ $(count 5 $name shared_wavefronts_ideal 'wgmma') -gt 0 ]]
        assert_equal "$(count 5 $name shared_wavefronts 'wgmma')" "$(count 5 $name shared_wavefronts_ideal 'wgmma')"
    done
}

@test "chapter 17: dQ is added up in whole sectors, once for each tile of keys that its queries see" {
    # 250 queries and keys at D = 128, causal: the first 2 of 4 tiles of queries see one tile of keys, the others two.
    assert_equal "$(count 2 len250_causal global_sectors 'red_add_v4')" $((6 * 64 * 128 * 4 / 32))
    assert_equal "$(count 3 len250_causal global_sectors 'cp_reduce_async_bulk_add')" $((6 * 64 * 128 * 4 / 32))
    assert_equal "$(count 3 len250_causal shared_wavefronts 'dQ_smem\[consumer\]\[i')" $((6 * 64 * 128 * 4 / 128))
}

@test "chapter 17: step 5 stores half of what step 4 stores for its products, without a bank conflict" {
    local four five
    four=$(count 4 len250_causal shared_wavefronts 'stmatrix') five=$(count 5 len250_causal shared_wavefronts 'stmatrix')
    assert_equal "$four" $((2 * five))
    assert_equal "$five" "$(count 5 len250_causal shared_wavefronts_ideal 'stmatrix')"
}

# --- Broken kernels, each a step with one edit ----------------------------------------------------------------------

@test "chapter 17: P or dS read by wgmma before they are there, or overwritten while they are read, are a fault" {
    broken $CHAPTER step1_five_products.cu '/fence_proxy_async\(\);/d'
    faults $CHAPTER 1 len250
    noted $CHAPTER 'fence.proxy.async is missing: …'
    broken $CHAPTER step1_five_products.cu '/and what the others wrote/d'
    fails $CHAPTER 1 len250
    broken $CHAPTER step1_five_products.cu '/Nobody reads Q, dO, P or dS any more/d'
    fails $CHAPTER 1 len250
}

@test "chapter 17: a mask left out, P not masked behind the last key, or queries that begin a tile late are wrong" {
    broken $CHAPTER step1_five_products.cu 's/> keys_seen\(a, first_row\)/> keys_seen(a, first_row + TILE_Q - 1)/'
    wrong $CHAPTER 1 len250_causal
    broken $CHAPTER step1_five_products.cu 's/> keys_seen\(a, first_row\)/> keys_seen(a, first_row) \&\& a.causal/'
    wrong $CHAPTER 1 low_scores
    broken $CHAPTER step1_five_products.cu 's/first_key \+ a.q_len - a.k_len, 0\)/first_key + a.q_len - a.k_len + TILE_Q, 0)/'
    wrong $CHAPTER 1 few_queries_causal
}

@test "chapter 17: dPsum of another row, a head of the group left out, or dQ that is not cleared before are wrong" {
    broken $CHAPTER step1_five_products.cu 's/row_dPsum\[2\] = \{dPsum\[0\], dPsum\[8\]\}/row_dPsum[2] = {dPsum[8], dPsum[0]}/'
    wrong $CHAPTER 1 len17
    broken $CHAPTER step1_five_products.cu 's/head < work.last_head;/head < work.last_head - 1;/'
    wrong $CHAPTER 1 shared_heads
    edited $CHAPTER preprocess.cu 's/dQ_sum\[0\] = dQ_sum\[LANES\] = make_float4/dQ_sum[0] = make_float4/'
    run "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --case len250
    [[ $status -eq 1 || $status -eq 3 ]]
}

@test "chapter 17: K, V, Q or dO used before they have landed, or given back while they are read, are faults" {
    broken $CHAPTER step2_producer.cu 's/^    mbarrier_wait\(&smem.KV_full, 0\);//'
    faults $CHAPTER 2 len250_causal
    broken $CHAPTER step2_producer.cu '/mbarrier_arrive\(&smem.dO_empty/d; s/^( *)multiply_transposed<T, WG_COLS>\(dV/\1if (tid == 0) mbarrier_arrive(\&smem.dO_empty[stage]);\n&/'
    faults $CHAPTER 2 len250_causal
    broken $CHAPTER step4_in_flight.cu '/wgmma_wait_group<0>\(\);/{N;/touch\(dK\)/s/.*//}'
    faults $CHAPTER 4 len250_causal
}

@test "chapter 17: dPsum of the wrong stage is found" {
    broken $CHAPTER step2_producer.cu 's/dPsum_smem\[stage\]\[wg_row\]/dPsum_smem[stage ^ 1][wg_row]/'
    fails $CHAPTER 2 len250_causal
}

@test "chapter 17: dQ handed over without one of its barriers is a fault" {
    broken $CHAPTER step3_bulk_reduction.cu 's/named_barrier_sync\(DQ_EMPTY/named_barrier_arrive(DQ_EMPTY/'
    faults $CHAPTER 3 len250_causal
    broken $CHAPTER step3_bulk_reduction.cu 's/named_barrier_sync\(DQ_FULL/named_barrier_arrive(DQ_FULL/'
    faults $CHAPTER 3 len250_causal
    broken $CHAPTER step3_bulk_reduction.cu '/if \(lane == 0\) cp_async_bulk_wait_group_read/d'
    faults $CHAPTER 3 len250_causal
    broken $CHAPTER step3_bulk_reduction.cu '/is there for the copy engine/d'
    faults $CHAPTER 3 len250_causal
    noted $CHAPTER 'fence.proxy.async is missing: …'
}

@test "chapter 17: step 5 with one place for dS, without the barrier behind it, or with dS of the wrong form is found" {
    broken $CHAPTER step5_in_registers.cu 's/dS_smem\[stage\]/dS_smem[0]/'
    faults $CHAPTER 5 len250_causal
    noted $CHAPTER 'this store writes shared offset … where the wgmma at line … may still read'
    broken $CHAPTER step5_in_registers.cu '/and what the others wrote/d'
    fails $CHAPTER 5 len250_causal
    broken $CHAPTER step5_in_registers.cu 's/stmatrix_x4_trans\(/stmatrix_x4(/'
    wrong $CHAPTER 5 len250_causal
}

@test "chapter 17: a second producer that is one tile late is wrong" {
    broken $CHAPTER step3_bulk_reduction.cu 's/cp_reduce_async_bulk_add\(dQ_sum,/cp_reduce_async_bulk_add(dQ_sum - (first_row > 0 ? 16 * D : 0),/'
    wrong $CHAPTER 3 len250
}

@test "chapter 17: a product whose result is used before it is waited for is a fault" {
    broken $CHAPTER step4_in_flight.cu '0,/wgmma_wait_group<1>\(\);/s/wgmma_wait_group<1>\(\);/wgmma_wait_group<2>();/'
    faults $CHAPTER 4 len250_causal
    noted $CHAPTER 'register … is read before the wgmma at line …, whose result it holds, has been waited for'
}
