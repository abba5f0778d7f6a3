#!/usr/bin/env bats
# Chapter 9: attention and the layers' products by cuBLAS, forward and backward, are right, move what they say, give the same bits where
# they promise to, and fail when they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=09_cublas_attention

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 9: every step is right on every case of every operation" {
    all_right 2 permute
    all_right 1 unpermute
    all_right 3 attention_forward
    all_right 2 attention_backward
    all_right 2 bias_backward
    all_right 1 matmul_backward
    all_right 2 matmul_gelu
    all_right 2 matmul_gelu_backward
}

@test "chapter 9: the order of warps and blocks does not matter" {
    any_order odd{,_bf16} many_rows
}

@test "chapter 9: shapes of the user's own are right: one position, one head, heads of any size" {
    local op shape
    for op in attention_forward attention_backward; do
        for shape in b=1,t=1,h=1,d=1 b=2,t=131,h=3,d=24; do
            run -0 make chapter-9 DEVICE=sim PROFILE=0 OP=$op SHAPE=$shape
            assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
        done
    done
    run -0 make chapter-9 DEVICE=sim PROFILE=0 OP=bias_backward SHAPE=rows=20011,oc=9
    run -0 make chapter-9 DEVICE=sim PROFILE=0 OP=matmul_backward SHAPE=rows=130,oc=50,c=31
    run -0 make chapter-9 DEVICE=sim PROFILE=0 OP=matmul_gelu_backward SHAPE=rows=130,oc=40,c=31
    run -2 --separate-stderr "$(chapter $CHAPTER)" --bench --op matmul_gelu --shape rows=4,oc=12,c=4
    assert_equal "$stderr" "--shape 'rows=4,oc=12,c=4': oc must be a multiple of 8"
}

# --- The reference --------------------------------------------------------------------------------------------------

@test "chapter 9: the expected forward is what the definition of chapter 12 says" {
    run -0 python 'import attention, cublas_attention
qkv = np.random.default_rng(9).standard_normal((2, 23, 3, 4, 8))
Q, K, V = qkv.transpose(2, 0, 3, 1, 4)
out = cublas_attention.OPERATIONS["attention_forward"].outputs({"qkv": qkv}, "f32")["out"][0]
np.testing.assert_allclose(out, attention.direct(Q, K, V, True)[0].swapaxes(1, 2), atol=1e-7)  # 1 / sqrt(8) is an fp32 number here'
}

@test "chapter 9: every expected gradient is what central differences of the float64 forward say" {
    run -0 python 'import cublas_attention
rng = np.random.default_rng(90)
def differences(f, x, dout, h=1e-5):
    "d(sum dout f(x)) / dx, element by element"
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h; down[i] -= h
        g[i] = ((f(up) - f(down)) * dout).sum() / (2 * h)
    return g
op = cublas_attention.OPERATIONS
qkv, dout = rng.standard_normal((2, 5, 3, 2, 3)), rng.standard_normal((2, 5, 2, 3))
forward = lambda qkv: op["attention_forward"].outputs({"qkv": qkv}, "f32")
after = op["attention_backward"].outputs({"qkv": qkv, "att": forward(qkv)["att"][0], "dout": dout}, "f32")
np.testing.assert_allclose(after["dqkv"][0], differences(lambda x: forward(x)["out"][0], qkv, dout), atol=1e-8)
inp, weight, bias, dout = (rng.standard_normal(s) for s in ((4, 3), (5, 3), (5,), (4, 5)))
dweight, dbias = rng.standard_normal((5, 3)), rng.standard_normal(5)
out = lambda inp=inp, weight=weight, bias=bias: op["matmul_gelu"].outputs({"inp": inp, "weight": weight, "bias": bias}, "f32")["pre"][0]
after = op["matmul_backward"].outputs({"inp": inp, "weight": weight, "dout": dout, "dweight": dweight, "dbias": dbias}, "f32")
np.testing.assert_allclose(after["dinp"][0], differences(lambda x: out(inp=x), inp, dout), atol=1e-8)
np.testing.assert_allclose(after["dweight.after"][0] - dweight, differences(lambda x: out(weight=x), weight, dout), atol=1e-8)
np.testing.assert_allclose(after["dbias.after"][0] - dbias, differences(lambda x: out(bias=x), bias, dout), atol=1e-8)
import elementwise
pre, weight, dout = (rng.standard_normal(s) for s in ((4, 5), (3, 5), (4, 3)))
behind = op["matmul_gelu_backward"].outputs({"dout": dout, "weight": weight, "pre": pre}, "f32")["dpre"][0]
np.testing.assert_allclose(behind, differences(lambda x: elementwise.gelu(x) @ weight.T, pre, dout), atol=1e-8)'
}

@test "chapter 9: the bounds hold for fp32 in NumPy, and catch a key that is not seen and a scale left out" {
    run -0 python 'import cublas_attention
f = np.float32; rng = np.random.default_rng(91)
qkv = rng.standard_normal((1, 60, 3, 2, 16)).astype(f)
expected = cublas_attention.OPERATIONS["attention_forward"].outputs({"qkv": qkv}, "f32")
Q, K, V = qkv.transpose(2, 0, 3, 1, 4)
def forward(below, scale=f(0.25)):
    S = np.where(below, Q @ K.swapaxes(-1, -2) * scale, f(-np.inf))
    P = np.exp(S - S.max(-1, keepdims=True)); P /= P.sum(-1, keepdims=True)
    return {"att": P, "out": (P @ V).swapaxes(1, 2)}
below = np.tri(60, dtype=bool)
for name, (x, tolerance) in expected.items(): assert np.all(np.abs(forward(below)[name] - x) <= tolerance), name
late = below.copy(); late[2:, 1] = False
for wrong in forward(late), forward(below, f(0.2501)):
    out, tolerance = expected["out"]; caught = np.mean(np.abs(wrong["out"] - out)[:, 2:] > tolerance[:, 2:]); print(caught); assert caught > 0.65'
}

# --- NaN, and the same bits -----------------------------------------------------------------------------------------

@test "chapter 9: a NaN in a value spoils every row of its head, the earlier ones too: cuBLAS multiplies by the zeros" {
    local step
    one_case $CHAPTER/attention_forward odd
    python 'd = sys.argv[1]; a = np.load(d + "/qkv.npy"); a[1, 20, 2, 1, 3] = np.nan; np.save(d + "/qkv.npy", a)' "$CASE_DIR"
    for step in attention_permuted attention_in_place attention_reverse; do
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op attention_forward --step $step --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'd = sys.argv[1]
out, att = np.isnan(np.load(d + "/out.npy")), np.isnan(np.load(d + "/att.npy"))
assert not att.any() and out[1, :, 1, 3].all() and out.sum() == 33' "$BATS_TEST_TMPDIR/out/$step/."
    done
}

@test "chapter 9: partial sums of a bias give the same bits whatever the order of blocks, atomics do not" {
    local step seed differ
    for step in bias_atomics:1 bias_partials:0; do
        differ=0
        for seed in 1 2 3; do
            run -0 "$SIMGPU" --seed $seed --sms $((seed * 40)) "$(chapter $CHAPTER)" --op bias_backward --step ${step%:*} --case many_rows --out "$BATS_TEST_TMPDIR/$seed"
            diff -rq "$BATS_TEST_TMPDIR/1/${step%:*}" "$BATS_TEST_TMPDIR/$seed/${step%:*}" >&2 || differ=1
        done
        assert_equal "$step $differ" "$step ${step#*:}"
    done
}

@test "chapter 9: attention forward and backward can be recorded in a CUDA graph after a first launch, and replayed with the same bits" {
    local include lib steps
    include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mapfile -t steps < <(objects $CHAPTER main)
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -isystem "$include" -c -o "$BATS_TEST_TMPDIR/graph.o" tests/test_helper/attention_graph.c
    g++ -o "$BATS_TEST_TMPDIR/graph" "$BATS_TEST_TMPDIR/graph.o" "${steps[@]}" -L"$lib" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/graph"
    assert_output --regexp $'^0 of 144 differ, the first is -?0\\.[0-9]+\n0 of 144 differ, the first is -?0\\.[0-9]+$'
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 9: a permutation moves each sector once, and packs take less than a fifth of the instructions" {
    local once=$((2 * 64 * 3 * 4 * 64 * 4 / 32)) # of one array
    assert_equal "$(count permute aligned global_sectors)" $((2 * once))
    assert_equal "$(count permute_packs aligned global_sectors)" $((2 * once))
    assert_equal "$(count unpermute_packs aligned global_sectors)" $((2 * once))
    [[ $(count permute_packs aligned warp_instructions) -lt $(($(count permute aligned warp_instructions) / 5)) ]]
}

@test "chapter 9: in place no kernel of ours is left but the softmax, and of the backward its own" {
    local step kernels
    for step in "attention_permuted 3" "attention_in_place 1" "attention_reverse 1"; do
        counters "$BATS_TEST_TMPDIR/${step% *}.json" $CHAPTER "${step% *}" long --op attention_forward
        kernels=$(plain_python 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$BATS_TEST_TMPDIR/${step% *}.json")
        assert_equal "$kernels" "${step#* }"
    done
    for step in "gradient_permuted 4" "gradient_in_place 1"; do
        counters "$BATS_TEST_TMPDIR/${step% *}.json" $CHAPTER "${step% *}" long --op attention_backward
        kernels=$(plain_python 'import json, sys; print(sum(k["launches"] for k in json.load(open(sys.argv[1]))))' "$BATS_TEST_TMPDIR/${step% *}.json")
        assert_equal "$kernels" "${step#* }"
    done
}

@test "chapter 9: the counters that note 9 quotes are what its commands count" {
    local quoted count step case field pattern
    while read -r quoted step case field pattern; do
        count=$(count "$step" "$case" "$field" "$pattern" | sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta')
        assert_equal "$step $case $field $pattern: $count" "$step $case $field $pattern: $quoted"
        grep -qF "$quoted" notes/$CHAPTER.md || fail "note 9 does not say $quoted"
    done <<'END'
264,192 permute aligned_bf16 warp_instructions ^
27,648 permute_packs aligned_bf16 warp_instructions ^
12,288 permute aligned_bf16 global_sectors ^
12,288 permute_packs aligned_bf16 global_sectors ^
148,097 attention_in_place long warp_instructions ^
137,679 attention_reverse long warp_instructions ^
17,658 attention_in_place long global_sectors ^
17,658 attention_reverse long global_sectors ^
END
}

@test "chapter 9: make diff-9 compares every step, and every header ends with the command that runs it" {
    ladders "permute permute permute_packs" "unpermute unpermute_packs" "attention_forward attention_permuted attention_in_place attention_reverse" \
        "attention_backward gradient_permuted gradient_in_place" "bias_backward bias_atomics bias_partials" "matmul_backward matmul_gradient" \
        "matmul_gelu matmul_gelu matmul_gelu_epilogue" "matmul_gelu_backward matmul_gelu_gradient matmul_gelu_gradient_epilogue"
}

# --- Broken kernels and calls ---------------------------------------------------------------------------------------

@test "chapter 9: a permutation that takes the last positions for granted is a fault" {
    broken $CHAPTER step2_permute_packs.cu 's/if \(t < positions\) (frag\[i\] = load)/\1/' # not the stores: those race, too
    run -3 "$SIMGPU" "$BROKEN" --op permute --step permute_packs --case ragged
    assert_output --regexp "step2_permute_packs\.cu:[0-9]+"
    noted $CHAPTER 'out of bounds: read of 16 bytes at …, … bytes past the end of allocation'
}

@test "chapter 9: heads and sequences exchanged are wrong" {
    broken $CHAPTER step1_permute.cu 's/head % H, b = head \/ H % batch/head \/ batch % H, b = head % batch/'
    wrong $CHAPTER permute odd --op permute
}

@test "chapter 9: rows of qkv that are taken for rows of one head are wrong" {
    broken $CHAPTER step5_attention_in_place.cu 's/(queries = \{Q, dtype, )3 \* width/\1D/'
    wrong $CHAPTER attention_in_place odd --op attention_forward
    noted $CHAPTER 'att[0][0][1][0]: got 0.199988201, expected 0.902464415, tolerance 3.56e-05; 3360 of 6534 elements are wrong'
}

@test "chapter 9: a distance from matrix to matrix that leads out of the array is named by cuBLAS" {
    broken $CHAPTER step6_attention_reverse.cu 's/values = \{V, dtype, 3 \* width, D, false\}/values = {V, dtype, 3 * width, D * 100, false}/'
    run -3 "$SIMGPU" "$BROKEN" --op attention_forward --step attention_reverse --case odd
    noted $CHAPTER 'A (13 x 33, ld 78, f32): reads 10036 bytes at …, but only 4888 are left there in allocation 1'
}

@test "chapter 9: a backward that forgets a transpose is wrong" {
    broken $CHAPTER step7_gradient_permuted.cu 's/blas_multiply\(transpose\(dS\), Q/blas_multiply(dS, Q/'
    wrong $CHAPTER gradient_permuted odd --op attention_backward
}

@test "chapter 9: without the barrier the sums of other warps are a race" {
    broken $CHAPTER step10_bias_partials.cu '/__syncthreads\(\); \/\/ Every warp/d'
    races $CHAPTER bias_partials many_rows --op bias_backward
    noted $CHAPTER 'race on shared offset …'
}

@test "chapter 9: a weight's gradient that begins anew is wrong" {
    broken $CHAPTER step11_matmul_gradient.cu 's/D_transposed, X, 1, 1,/D_transposed, X, 1, 0,/'
    wrong $CHAPTER matmul_gradient ragged --op matmul_backward
    noted $CHAPTER 'dweight[row 0, col 0]: got -25.4405…, expected -24.5102849, tolerance 0.00328; 2873 of 2880 elements are wrong'
}

@test "chapter 9: a slope that is taken at the product, and not at what was before GELU, is wrong" {
    broken $CHAPTER step14_matmul_gelu_gradient.cu 's/gelu_gradient\(dtype, pre, dpre, dpre/gelu_gradient(dtype, dpre, dpre, dpre/'
    wrong $CHAPTER matmul_gelu_gradient ragged --op matmul_gelu_backward
    noted $CHAPTER 'dpre[row 0, col 0]: got 8.6248…, expected 1.23355244, tolerance 0.0038; 21625 of 21672 elements are wrong'
}
