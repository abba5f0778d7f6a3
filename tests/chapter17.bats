#!/usr/bin/env bats
# Chapter 17: the gradients of attention are right on the simulated GPU, its counters show what each step claims, and a kernel that
# breaks one of the rules is stopped or wrong, every time.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters
load test_helper/torch

CHAPTER=17_sm90_attention_backward

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 17: every step is right on every case" {
    all_right 7 attention
}

@test "chapter 17: windows, softcap and sequences of any lengths are right on every case" {
    local operation
    for operation in window softcap varlen; do all_right 1 $operation; done
}

@test "chapter 17: the warps' order does not matter" {
    any_order d256_shared_heads_causal shared_heads_causal len250
}

@test "chapter 17: variants are right in any order of the warps and on any number of SMs" {
    local seed
    for seed in 1 2 3; do
        SIMGPU_SMS=$seed run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --golden "build/golden/$CHAPTER/varlen" --op varlen
    done
}

@test "chapter 17: a shape of the user's own, causal and not; other head dimensions are refused in one line" {
    run -0 make chapter-17 DEVICE=sim OP=attention SHAPE=b=1,q=77,k=190,h=2,g=1,d=256 SEED=3 PROFILE=0
    assert_line --regexp '^ +5 in_registers +causal +b=1,q=77,k=190,h=2,g=1,d=256,causal=1 right'
    assert_line --regexp '^ +7 deterministic +full +b=1,q=77,k=190,h=2,g=1,d=256,causal=0 right'
    run -0 make chapter-17 DEVICE=sim OP=varlen SHAPE=b=3,q=77,k=190,h=2,g=1,d=128 PROFILE=0
    assert_line --partial "all 4 runs right"
    # Tiles of four heads come in turn.
    run -0 make chapter-17 DEVICE=sim OP=attention SHAPE=b=2,q=70,k=150,h=4,g=4,d=64 PROFILE=0
    assert_line --partial "all 28 runs right"
    run -0 make chapter-17 DEVICE=sim OP=varlen SHAPE=b=3,q=77,k=190,h=8,g=4,d=128 PROFILE=0
    assert_line --partial "all 4 runs right"
    run -2 make --no-print-directory chapter-17 OP=attention SHAPE=b=1,q=9,k=9,h=2,g=1,d=96
    assert_line --partial "d, the head dimension, must be 64, 128 or 256"
}

@test "chapter 17: at D = 256 clusters whose second 64 keys are past the sequence's end, and sequences of 1 to 65 keys, are right" {
    local k
    for k in 1 64 65 190; do
        run -0 make chapter-17 DEVICE=sim OP=softcap SHAPE=b=1,q=70,k=$k,h=2,g=1,d=256 SEED=$k PROFILE=0
        assert_line --partial "all 4 runs right"
        run -0 make chapter-17 DEVICE=sim OP=attention STEP=deterministic SHAPE=b=2,q=70,k=$k,h=2,g=2,d=256 PROFILE=0
        assert_line --partial "all 4 runs right"
    done
    run -0 make chapter-17 DEVICE=sim OP=varlen SHAPE=b=11,q=70,k=65,h=2,g=1,d=256 PROFILE=0 # 65, 43, 28, ..., 3, 2, 1 keys
    assert_line --partial "all 4 runs right"
    run -0 make chapter-17 DEVICE=sim OP=varlen SHAPE=b=11,q=3,k=65,h=1,g=1,d=256 PROFILE=0
    assert_line --partial "all 4 runs right"
}

# RANDOM_SHAPES=N: so many of each operation and type instead of 2.
@test "chapter 17: random shapes of D = 256 are right, with softcap too" {
    local op type dir=$BATS_TEST_TMPDIR/random
    for op in attention window softcap varlen; do
        for type in bf16 f16; do
            run -0 "$PYTHON" tests/random_shapes.py attention_backward $op $type "${RANDOM_SHAPES:-2}" 1 "$dir/$op/$type" b=2 q=200 k=300 h=4 g=2 d=256:256
            run -0 "$SIMGPU" "$(chapter $CHAPTER)" --golden "$dir/$op/$type" --op $op
            assert_line --regexp "^$CHAPTER: all [0-9]+ runs right"
        done
    done
}

@test "chapter 17: the baseline is handed what it needs, and a PyTorch without it is named" {
    torch_stub
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op attention --step 0 --case len128_causal
    assert_output --partial "skipped: the baseline does not have it" # fewer heads of K and V
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op attention --step 0 --case len129_causal
    assert_line --regexp '^  0 SDPA CUDNN +len129_causal .* right'
    gcc -shared -o "$TORCH_LIB/libtorch_cuda.so" -x c /dev/null
    run "$SIMGPU" "$(chapter $CHAPTER)" --op attention --step 0 --case len129_causal
    assert_output --regexp 'aoti_torch_[a-z_]+'
}

@test "chapter 17: the script that times FlashAttention says what it misses" {
    run -2 "$PYTHON" -B tools/bench_attention.py decode
    assert_output "bench_attention: 'decode': expected one of forward, backward, fp8"
    run -2 "$PYTHON" -B tools/bench_attention.py forward many
    assert_output "bench_attention: 'many': expected how many rounds"
    mkdir "$BATS_TEST_TMPDIR/tools"
    cp tools/*deep_gemm* tools/bench_attention.py tools/flash_attention_3.cu "$BATS_TEST_TMPDIR/tools"
    run -2 env -u FLASH_ATTENTION "$PYTHON" -B "$BATS_TEST_TMPDIR/tools/bench_attention.py" --build
    assert_output "bench_attention: build/libflash_attention_3.so is missing, or made of other sources: say FLASH_ATTENTION=FOLDER and CUTLASS=FOLDER to make it"
}

@test "chapter 17: the headers end with the commands that run their steps" {
    ladders "attention five_products producer bulk_reduction in_flight in_registers tiles deterministic" \
        "window window" "softcap softcap" "varlen varlen"
}

# dQ_bits PROGRAM STEP SEED SMS: a checksum of dQ of many_keys_f16, whose rounding to 11 bits shows in which order 11 blocks added.
dQ_bits() {
    SIMGPU_SMS=$4 "$SIMGPU" --seed "$3" "$1" --golden "build/golden/$CHAPTER" --step "$2" --case many_keys_f16 --out "$BATS_TEST_TMPDIR/out" >/dev/null
    sha256sum <"$BATS_TEST_TMPDIR/out/$2/many_keys_f16/dQ.npy"
}

# other_bits PROGRAM STEP BITS: in one of the first 32 orders of the blocks dQ has other bits. On one thread of the host, which makes an
# order repeat: in which one the blocks add that do not wait for each other is luck, and may be the right one.
other_bits() {
    local seed
    for seed in {1..32}; do
        [[ "$(SIMGPU_THREADS=1 dQ_bits "$1" "$2" "$seed" 132)" == "$3" ]] || return 0
    done
    false
}

@test "chapter 17: the deterministic step gives the same bits in any order of the warps, on any number of SMs; the one before it does not" {
    local seed bits
    bits=$(dQ_bits "$(chapter $CHAPTER)" deterministic 0 132)
    for seed in 1 2 3; do
        assert_equal "$(dQ_bits "$(chapter $CHAPTER)" deterministic $seed $seed)" "$bits"
        assert_equal "$(dQ_bits "$(chapter $CHAPTER)" deterministic $seed 132)" "$bits"
    done
    other_bits "$(chapter $CHAPTER)" tiles "$bits"
}

@test "chapter 17: what a step does not serve is refused, and attention_backward_refused says what cannot be" {
    cat >"$BATS_TEST_TMPDIR/main.c" <<'EOF'
#include <stdio.h>
#include "launchers.h"
#define P (void *)16
static const struct attention_variant_backward plain = {.forward = {.dtype = BF16, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64,
    .v_head_dim = 64, .q_len = 1, .k_len = 1, .Q = P, .K = P, .V = P, .O = P, .LSE = P, .left = ATTENTION_UNBOUNDED,
    .right = ATTENTION_UNBOUNDED}, .dO = P, .dQ = P, .dK = P, .dV = P, .workspace = P};
#define REFUSED(step, ...) do { struct attention_variant_backward b = plain; __VA_ARGS__; \
    const char *why = attention_backward_refused(&b); printf("%s: %d %s\n", #step, step(&b, 0), why ? why : "-"); } while (0)
int main(void)
{
    REFUSED(window, b.forward.softcap = 1);
    REFUSED(softcap, (b.forward.cu_q = b.forward.cu_k = P, b.forward.q_total = b.forward.k_total = 1));
    REFUSED(varlen, b.workspace = NULL);
    REFUSED(varlen, b.forward.cu_q = P);
    REFUSED(varlen, b.forward.v_head_dim = 128);
    REFUSED(varlen, b.forward.kv_heads = 3);
    REFUSED(varlen, b.forward.right = -1);
    REFUSED(varlen, b.forward.softcap = -1);
    REFUSED(varlen, b.forward.sinks = P);
    REFUSED(varlen, b.forward.k_len = 0);
    REFUSED(varlen, b.forward.q_len = 1 << 30);
    REFUSED(varlen, b.dQ = (void *)8);
    REFUSED(varlen, b.forward.dtype = F32);
}
EOF
    mapfile -t objects < <(objects $CHAPTER main | grep -v '/main\.o$')
    gcc -c -o "$BATS_TEST_TMPDIR/main.o" -I"chapters/$CHAPTER" -isystem "$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)" "$BATS_TEST_TMPDIR/main.c"
    g++ -o "$BATS_TEST_TMPDIR/refused" "$BATS_TEST_TMPDIR/main.o" "${objects[@]}" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/refused"
    assert_output "window: 1 -
softcap: 1 -
varlen: 1 -
varlen: 1 cu_q and cu_k come together
varlen: 1 head dimensions must be 64, 128 or 256, and V's that of Q and K
varlen: 1 heads must be a multiple of kv_heads: every K/V head serves as many query heads
varlen: 1 left and right must be at least 0
varlen: 1 softcap must be at least 0 and finite
varlen: 1 there is no backward pass of sinks, used_k, page_table, K_new or rotary_cos
varlen: 1 batch and heads must be from 1 to 65535, kv_heads, q_len and k_len at least 1
varlen: 1 lengths must be at most 2^29, rows in all from 1 to 2^30
varlen: 1 Q, K, V, O, LSE, dO, dQ, dK and dV must be given, and begin at multiples of 16 bytes
varlen: 1 dtype must be BF16 or F16"
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

@test "chapter 17: from step 6 on dK and dV leave in whole sectors, once, and without a bank conflict before" {
    # dK and dV of 250 keys at D = 64, 128 bytes a row. In step 5 an instruction writes half of each sector that it touches.
    assert_equal "$(count 6 len250 global_sectors 'cp_async_bulk_tensor_5d_store')" $((2 * 250 * 128 / 32))
    assert_equal "$(count 5 len250 global_sectors 'store_pair')" $((2 * 2 * 250 * 128 / 32))
    assert_equal "$(count 6 len250 shared_wavefronts 'stmatrix_x4\(')" "$(count 6 len250 shared_wavefronts_ideal 'stmatrix_x4\(')"
}

@test "chapter 17: at D = 256 dQ is added up once for 128 keys, and nothing in shared memory has a bank conflict" {
    # Of 250 queries and keys, causal, as above; two heads.
    assert_equal "$(count 6 d256_causal global_sectors 'add_dQ\(')" $((2 * 6 * 64 * 256 * 4 / 32))
    assert_equal "$(count 6 d256_causal shared_wavefronts)" "$(count 6 d256_causal shared_wavefronts_ideal)"
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

@test "chapter 17: dPsum of another row, a head of the group left out, dQ that is not cleared before, or read where no block had keys are wrong" {
    broken $CHAPTER step1_five_products.cu 's/row_dPsum\[2\] = \{dPsum\[0\], dPsum\[8\]\}/row_dPsum[2] = {dPsum[8], dPsum[0]}/'
    wrong $CHAPTER 1 len17
    broken $CHAPTER step1_five_products.cu 's/head < work.last_head;/head < work.last_head - 1;/'
    wrong $CHAPTER 1 shared_heads
    edited $CHAPTER preprocess.cu 's/dQ_sum\[k\] = make_float4/if (k % 2) &/'
    run "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --case len250
    [[ $status -eq 1 || $status -eq 3 ]]
    edited $CHAPTER postprocess.cu 's/const bool none = .*/const bool none = false;/'
    run "$SIMGPU" "$BROKEN" --golden "build/golden/$CHAPTER" --step tiles --case empty_rows_causal
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

# --- Broken kernels: kernel.cuh or kernel_256.cuh with one edit, and one kernel of the table ----------------------------

# kernel bf16|f16 ROW SED...: builds the chapter with an edited kernel.cuh, or HEADER, for one type and one row of the table, by its
# beginning; of its two kernels the one that stores the first part of dQ, which is right where dQ has been cleared, too. Sets BROKEN.
kernel() {
    local dir=$BATS_TEST_TMPDIR/tree type=$1 row=$2 header=${HEADER:-kernel.cuh} objects nvcc
    shift 2
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    mkdir -p "$dir/chapters/$CHAPTER"
    ln -sfn "$ROOT/common" "$dir/common"
    cp "chapters/$CHAPTER"/*.h "chapters/$CHAPTER"/*.cuh "chapters/$CHAPTER/kernel_$type.cu" "$dir/chapters/$CHAPTER"
    sed -E "$@" "chapters/$CHAPTER/$header" >"$dir/chapters/$CHAPTER/$header"
    run ! cmp -s "chapters/$CHAPTER/$header" "$dir/chapters/$CHAPTER/$header"
    sed -E -i -e "/^ *\\{$row,/!{/launch_(tile<T, Tile|cluster<T, ClusterTile)</d}" \
        -e 's/plan\.first_stores \? (launch_blocks<T, FirstStores>) : launch_blocks<T, C>/\1/' "$dir/chapters/$CHAPTER/kernel.cuh"
    compiled "$BATS_TEST_TMPDIR/kernel.o" "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_90a,code=compute_90a -c \
        "$dir/chapters/$CHAPTER/kernel_$type.cu"
    mapfile -t objects < <(objects $CHAPTER "kernel_$type")
    BROKEN=$BATS_TEST_TMPDIR/broken
    g++ -o "$BROKEN" "$BATS_TEST_TMPDIR/kernel.o" "${objects[@]}" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" -l:libcudart.so.13 -ldl -lm
}

@test "chapter 17: a counter that is not waited for gives other bits, works in the wrong order wait for one that nobody has taken" {
    local seed bits
    bits=$(dQ_bits "$(chapter $CHAPTER)" deterministic 0 132)
    kernel f16 '64, TILE_Q_64' '/while \(ld_acquire_gpu/,/^    \}/d'
    other_bits "$BROKEN" deterministic "$bits"
    kernel f16 '64, TILE_Q_64' 's/b\.deterministic && tile < tiles \? tiles - 1 - tile : tile/tile/'
    for seed in 0 1 2 3; do
        SIMGPU_SMS=3 run -3 "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$CHAPTER" --step deterministic --case many_keys_f16
        assert_line --regexp "at .*/chapters/$CHAPTER/kernel.cuh:[0-9]+"
        noted $CHAPTER 'livelock: warps run on, but have long changed no memory'
    done
}

# races_at_dQ SEED...: the last kernel's step 6 is stopped by a race between blocks.
races_at_dQ() {
    local seed
    for seed in "$@"; do
        SIMGPU_THREADS=1 run -3 "$SIMGPU" --seed "$seed" "$BROKEN" --golden "build/golden/$CHAPTER" --step tiles --case len600_causal
        assert_line --regexp "at .*/chapters/$CHAPTER/kernel.cuh:[0-9]+"
        noted $CHAPTER 'race on global memory at … this write is not ordered after the write by warp … of block'
    done
}

@test "chapter 17: a part of dQ told of before it is there, every part stored, and one added before the first is there, are races" {
    kernel bf16 '64, TILE_Q_64' '/cp_async_bulk_wait_group<0>\(\); \/\/ It is there/d'
    races_at_dQ 0 1 2 3
    kernel bf16 '64, TILE_Q_64' 's/ld_acquire_gpu\(arrived\) & STORED/false/; s/: is_first\(arrived\)/: true/'
    races_at_dQ 0 1 2 3
    kernel bf16 '64, TILE_Q_64' '/while \(!\(before & STORED\)\)/d'
    races_at_dQ 1 3 # the seeds in which a block counts while the first is storing
}

@test "chapter 17: a window whose sides are not exchanged, or not masked at its end, is wrong" {
    kernel bf16 '128, TILE_Q_128_BOUNDED' 's/column - v\.right/column - v.left/'
    wrong $CHAPTER window left
    kernel bf16 '128, TILE_Q_128_BOUNDED' 's/last_row < work\.q_len - 1 \? last_row \+ 1 - C::Q : INT_MAX/INT_MAX/'
    wrong $CHAPTER window left
}

@test "chapter 17: softcap without its derivative, and the statistics of another sequence, are wrong" {
    kernel bf16 '128, TILE_Q_SOFTCAP' 's/S\[j\] = x \* \(1 - t \* t\)/S[j] = x/'
    wrong $CHAPTER softcap outliers
    kernel bf16 '256, TILE_Q_SOFTCAP' 's/S\[j\] = x \* \(1 - t \* t\)/S[j] = x/'
    wrong $CHAPTER softcap d256_window
    HEADER=kernel_256.cuh kernel bf16 '256, TILE_Q_SOFTCAP' 's/if \(!C::SOFTCAP\) round_tile/round_tile/' # dV of what is for dS
    wrong $CHAPTER softcap d256_window
    kernel bf16 '64, TILE_Q_64' 's/work\.q_tile = first_tile\(v\.cu_q, i,/work.q_tile = first_tile(v.cu_q, i > 0 ? i - 1 : 0,/'
    wrong $CHAPTER varlen full
}

# in_consumer NAME EDIT: a sed program for the function NAME of the header.
in_consumer() {
    printf '/^static __device__ void %s\\(/,/^\\}/{%s}' "$1" "$2"
}

# kernel_faults CASE: step 6 of the broken kernel is stopped in every order of the warps.
kernel_faults() {
    local seed
    for seed in 0 1 2 3; do
        run -3 "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$CHAPTER" --step tiles --case "$1"
        assert_line --regexp "at .*/chapters/$CHAPTER/${HEADER:-kernel.cuh}:[0-9]+"
    done
}

@test "chapter 17: dS of a tile before that is not waited for, or dQ where the copy engine still reads, is a fault" {
    kernel bf16 '128, TILE_Q_128_BOUNDED' "$(in_consumer multiply_ahead '/mbarrier_wait\(&smem\.dS_full/d')"
    kernel_faults len250_causal
    kernel bf16 '128, TILE_Q_128_BOUNDED' "$(in_consumer multiply_ahead '/mbarrier_wait\(&smem\.handed_empty/d')"
    kernel_faults len250_causal
}

@test "chapter 17: dK where the copy engine still reads dQ, or stored before it is there, is a fault" {
    kernel bf16 '64, TILE_Q_64' "$(in_consumer store_gradients '/mbarrier_wait/d')"
    kernel_faults len250
    local HEADER=kernel_256.cuh
    kernel bf16 '256, TILE_Q_256' "$(in_consumer store_columns '/fence_proxy_async/d')"
    kernel_faults d256_causal
    kernel bf16 '256, TILE_Q_256' "$(in_consumer consume_scores '/named_barrier_sync\(CONSUMERS_ONLY/d')"
    kernel_faults d256_causal
}

@test "chapter 17: at D = 64 a work's place that is taken again before all are done with it, or used before the work is there, is a fault" {
    local edit
    for edit in produce:'mbarrier_wait\(&smem\.KV_empty' consume:'cp_async_bulk_wait_group_read' \
        consume:'mbarrier_wait\(&smem\.KV_full' store_dQ:'mbarrier_wait\(&smem\.KV_full'; do
        kernel bf16 '64, TILE_Q_64' "$(in_consumer "${edit%%:*}" "/${edit#*:}/d")"
        SIMGPU_SMS=1 kernel_faults shared_heads
    done
}

@test "chapter 17: statistics shuffled from another lane are wrong" {
    kernel bf16 '64, TILE_Q_64' 's/i \/ 4 % 8 \* 4 \+ column;/i \/ 4 % 8 * 4 + (column ^ 1);/'
    wrong $CHAPTER tiles len250
}

@test "chapter 17: P and dS that one consumer hands the other, and one block the other, or the places for them, not waited for are a fault" {
    local edit HEADER=kernel_256.cuh
    for edit in consume_gradients:handed_full consume_scores:handed_empty consume_scores:dS_full \
        consume_scores:P_full consume_scores:P_empty consume_gradients:dS_empty consume_gradients:dS_full; do
        kernel bf16 '256, TILE_Q_256' "$(in_consumer "${edit%:*}" "/mbarrier_wait\\(&smem\\.${edit#*:}/d")"
        kernel_faults d256_causal
    done
    kernel bf16 '256, TILE_Q_256' "$(in_consumer multiply_scores '/mbarrier_wait\(&other_full/d')"
    kernel_faults d256_causal
    kernel bf16 '256, TILE_Q_256' '/cluster_arrive\(\); \/\/ The other/,/cluster_wait/d' # A block ends while the other arrives there.
    kernel_faults d256_causal
}

@test "chapter 17: tiles of 80 queries, whose dQ is computed transposed, are right" {
    local dir=$BATS_TEST_TMPDIR/tree name objects
    kernel bf16 '128, TILE_Q_128' 's/^#include "plan.h"/#define TILE_Q_128 80\n#define TILE_Q_128_BOUNDED 80\n&/'
    cp "chapters/$CHAPTER/plan.cu" "$dir/chapters/$CHAPTER"
    compiled "$BATS_TEST_TMPDIR/plan.o" "$(sed -n 's/^NVCC *:= *//p' build/config.mk)" -std=c++17 -O3 -DTILE_Q_128=80 -DTILE_Q_128_BOUNDED=80 \
        -gencode arch=compute_90a,code=compute_90a -c "$dir/chapters/$CHAPTER/plan.cu"
    mapfile -t objects < <(objects $CHAPTER kernel_bf16 | grep -v "$CHAPTER/plan\.o$")
    g++ -o "$BROKEN" "$BATS_TEST_TMPDIR/kernel.o" "$BATS_TEST_TMPDIR/plan.o" "${objects[@]}" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" \
        -l:libcudart.so.13 -ldl -lm
    for name in len250_causal few_keys shared_heads_causal; do
        run -0 "$SIMGPU" --seed 1 "$BROKEN" --golden "build/golden/$CHAPTER" --step deterministic --case $name
    done
    run -0 "$SIMGPU" --seed 1 "$BROKEN" --golden "build/golden/$CHAPTER" --op window --step window --case ahead
}

# --- tools/backward_orders.cu ------------------------------------------------------------------------------------------

# orders SED...: builds it, edited, and sets ORDERS.
orders() {
    local dir=$BATS_TEST_TMPDIR/tree nvcc
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    ORDERS=$BATS_TEST_TMPDIR/orders
    mkdir -p "$dir/chapters/$CHAPTER" "$dir/tools"
    ln -sfn "$ROOT/common" "$dir/common"
    cp "chapters/$CHAPTER"/*.h "chapters/$CHAPTER"/*.cuh "$dir/chapters/$CHAPTER"
    sed -E "$@" tools/backward_orders.cu >"$dir/tools/backward_orders.cu"
    compiled "$ORDERS.o" "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_90a,code=compute_90a -c "$dir/tools/backward_orders.cu"
    g++ -o "$ORDERS" "$ORDERS.o" -L"$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)" -l:libcudart.so.13
}

@test "chapter 17: the orders that tools/backward_orders.cu times compute the same; one with the wrong tile, or that does not wait for dS, is found" {
    orders ''
    SIMGPU_SMS=2 run -0 "$SIMGPU" --seed 1 "$ORDERS"
    assert_output --regexp '^# Simulated GPU .*: 28 orders compute the same$'
    orders 's/c\.multiply_S\(i \+ 1\);/c.multiply_S(i);/'
    run -1 "$SIMGPU" "$ORDERS"
    assert_line "D=128, 64 queries, ahead, bulk: WRONG, not what the first order computes"
    refute_line --regexp ', (waited|together|dQ_last), .*WRONG'
    orders '/mbarrier_wait\(&smem\.dS_full/d'
    run -3 "$SIMGPU" "$ORDERS"
    assert_line --partial "simgpu: a barrier is missing: "
}
