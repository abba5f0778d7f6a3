#!/usr/bin/env bats
# Chapter 6: residual, GELU and encoder, forward and backward, are right, hand NaN on, move no more than they must, and fail
# when they are broken.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken
load test_helper/counters

CHAPTER=06_elementwise_layers

setup() { export PYTHONPATH=$ROOT/reference; }

@test "chapter 6: every step is right on every case of every operation" {
    all_right 3 residual_forward
    all_right 1 residual_backward
    all_right 2 gelu_forward
    all_right 1 gelu_backward
    all_right 2 encoder_forward
    all_right 6 encoder_backward
}

@test "chapter 6: the order of warps and blocks does not matter" {
    any_order {odd,long,one_token}{,_bf16} ragged_bf16
}

@test "chapter 6: shapes of the user's own are right, odd and even" {
    local shape
    for shape in b=3,t=50,c=1,v=9 b=1,t=1,c=4099,v=2 b=2,t=130,c=1600,v=50 b=2,t=130,c=20,v=50304; do
        for op in encoder_forward encoder_backward; do
            run -0 make chapter-6 DEVICE=sim PROFILE=0 OP=$op SHAPE=$shape
            assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
        done
    done
    run -0 make chapter-6 DEVICE=sim PROFILE=0 OP=gelu_backward SHAPE=n=131075
    run -0 make chapter-6 DEVICE=sim PROFILE=0 OP=encoder_forward STEP=encoder_rows SHAPE=b=3,t=700,c=4096,v=9 # position by position
}

# --- Gradients ------------------------------------------------------------------------------------------------------

@test "chapter 6: every expected gradient is what central differences of the float64 forward say" {
    run -0 python 'import elementwise
rng = np.random.default_rng(6)
def differences(f, x, dout, h=1e-5):
    "d(sum dout f(x)) / dx, element by element"
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h; down[i] -= h
        g[i] = ((f(up) - f(down)) * dout).sum() / (2 * h)
    return g
op = elementwise.OPERATIONS
forward = lambda name, **arrays: op[name].outputs(arrays, "f32")["out"][0]
x, dout = np.linspace(-7, 7, 141), rng.standard_normal(141)
expected = op["gelu_backward"].outputs({"inp": x, "dout": dout}, "f32")["dinp"][0]
np.testing.assert_allclose(expected, differences(lambda x: forward("gelu_forward", inp=x), x, dout), atol=1e-9)
a, b, da, db = rng.standard_normal((4, 20)); dout = dout[:20]
after = op["residual_backward"].outputs({"dout": dout, "dinp1": da, "dinp2": db}, "f32")
np.testing.assert_allclose(after["dinp1.after"][0] - da, differences(lambda a: forward("residual_forward", inp1=a, inp2=b), a, dout), atol=1e-9)
np.testing.assert_allclose(after["dinp2.after"][0] - db, differences(lambda b: forward("residual_forward", inp1=a, inp2=b), b, dout), atol=1e-9)
inp = np.array([[2, 0, 2], [2, 4, 0]], np.int32)
wte, dwte, wpe, dwpe, dout = (rng.standard_normal(s) for s in ((5, 4), (5, 4), (3, 4), (3, 4), (2, 3, 4)))
after = op["encoder_backward"].outputs({"inp": inp, "dout": dout, "dwte": dwte, "dwpe": dwpe}, "f32")
np.testing.assert_allclose(after["dwte.after"][0] - dwte, differences(lambda w: forward("encoder_forward", inp=inp, wte=w, wpe=wpe), wte, dout), atol=1e-9)
np.testing.assert_allclose(after["dwpe.after"][0] - dwpe, differences(lambda w: forward("encoder_forward", inp=inp, wte=wte, wpe=w), wpe, dout), atol=1e-9)'
}

@test "chapter 6: the reference of GELU is the tanh form" {
    run -0 python 'import elementwise
x = np.linspace(-8, 8, 1001)
tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
np.testing.assert_allclose(elementwise.gelu(x), tanh, atol=1e-15)'
}

# --- NaN and infinity -----------------------------------------------------------------------------------------------

# special OPERATION STEP: what the step makes of NaN, infinity, -infinity and two large numbers, each in every input, and in a pack
# as well as behind the last one: prints them.
special() {
    local dir=$BATS_TEST_TMPDIR/special
    rm -rf "$dir"
    mkdir -p "$dir"
    python 'import elementwise
op, d = elementwise.OPERATIONS[sys.argv[1]], sys.argv[2]
x = np.array([np.nan, np.inf, -np.inf, 1e15, -1e15] * 3, np.float32)
arrays = {name: np.ones_like(x) for name in op.INPUTS} | {op.INPUTS[0]: x}
for name, array in arrays.items(): np.save(f"{d}/{name}.npy", array)
for name in op.outputs(arrays, "f32"):
    np.save(f"{d}/{name}.npy", np.zeros_like(x)); np.save(f"{d}/{name}.tol.npy", np.zeros_like(x))' "$1" "$dir"
    run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op "$1" --step "$2" --golden "$dir" --out "$dir/out"
    run -0 python 'import glob
for file in sorted(glob.glob(sys.argv[1] + "/out/**/*.npy", recursive=True)):
    out = np.load(file).reshape(3, 5)
    assert all(np.array_equal(out[0], row, equal_nan=True) for row in out), out
    print(*("%g" % value for value in out[0]))' "$dir"
}

@test "chapter 6: NaN and infinity come out as of PyTorch" {
    local step
    for step in residual residual_packs residual_stream; do
        special residual_forward $step
        assert_output "nan inf -inf 1e+15 -1e+15"
    done
    special residual_backward residual_gradient
    assert_output $'nan inf -inf 1e+15 -1e+15\nnan inf -inf 1e+15 -1e+15'
    for step in gelu gelu_exp2; do
        special gelu_forward $step
        assert_output "nan inf nan 1e+15 -0"
    done
    special gelu_backward gelu_gradient
    assert_output --regexp '^nan nan nan 1 -?0$'
}

@test "chapter 6: a NaN in dout reaches the two rows it belongs to, and no other" {
    local step
    for step in encoder_atomics encoder_positions encoder_buckets encoder_sorted encoder_chunks encoder_ahead; do
        one_case $CHAPTER/encoder_backward odd
        python 'd = sys.argv[1]; a = np.load(d + "/dout.npy"); a[1, 2, 3] = np.nan; np.save(d + "/dout.npy", a)' "$CASE_DIR"
        run -1 "$SIMGPU" "$(chapter $CHAPTER)" --op encoder_backward --step $step --golden "$CASE_DIR" --out "$BATS_TEST_TMPDIR/out"
        run -0 python 'd, out = sys.argv[1:]
inp = np.load(d + "/inp.npy")
for name, row in ("dwte", inp[1, 2]), ("dwpe", 2):
    assert np.argwhere(np.isnan(np.load(f"{out}/{name}.npy"))).tolist() == [[row, 3]]' "$CASE_DIR" "$BATS_TEST_TMPDIR/out/$step/."
    done
}

@test "chapter 6: a text of more strips than the buckets' blocks look through at a time" {
    local strips shape step
    strips=$(sed -n 's/^constexpr int MAX_STRIPS = \([0-9]*\);.*/\1/p' chapters/$CHAPTER/step1[2345]_*.cu | sort -u)
    shape=b=3,t=$((strips * 11 + 40)),c=3,v=5000
    for step in encoder_buckets encoder_sorted encoder_chunks encoder_ahead; do
        run -0 make --no-print-directory chapter-6 DEVICE=sim OP=encoder_backward STEP=$step SHAPE=$shape SEED=2 PROFILE=0
        assert_line "$CHAPTER: all 2 runs right"
    done
    rm -r "build/golden/shapes/$CHAPTER/encoder_backward/$shape,seed=2"
}

@test "chapter 6: tokens that share a slot are told from each other" {
    broken $CHAPTER step13_encoder_sorted.cu 's/% NUM_SLOTS;/% 1;/'
    run -0 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_sorted --type f32
    assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
    broken $CHAPTER step13_encoder_sorted.cu 's/% NUM_SLOTS;/% 1;/; s/entry\[i\].token != token \|\| //'
    wrong $CHAPTER encoder_sorted many_tokens --op encoder_backward
    broken $CHAPTER step14_encoder_chunks.cu 's/% NUM_SLOTS;/% 1;/'
    run -0 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_chunks --type f32
    assert_line --regexp "^$CHAPTER: all [0-9]+ runs right$"
    broken $CHAPTER step14_encoder_chunks.cu 's/% NUM_SLOTS;/% 1;/; s/smem.lowest\[slot\] != smem.highest\[slot\]/false/'
    wrong $CHAPTER encoder_chunks many_tokens --op encoder_backward
}

# --- Counters -------------------------------------------------------------------------------------------------------

@test "chapter 6: every step of residual and GELU moves each sector once" {
    local step once=$((8192 * 4 / 32)) # of one array
    for step in residual residual_packs residual_stream; do
        assert_equal "$(count $step aligned global_sectors)" $((3 * once))
    done
    assert_equal "$(count gelu aligned global_sectors)" $((2 * once))
    assert_equal "$(count gelu_exp2 aligned global_sectors)" $((2 * once))
}

@test "chapter 6: a pack takes a third of the instructions, and ex2 and rcp seven elevenths of those of expf and /" {
    [[ $(count residual_packs aligned_bf16 warp_instructions) -lt $(($(count residual aligned_bf16 warp_instructions) * 2 / 5)) ]]
    [[ $(count gelu_exp2 aligned_bf16 warp_instructions) -lt $(($(count gelu aligned_bf16 warp_instructions) * 7 / 11)) ]]
}

@test "chapter 6: the encoder's rows are read once, and a warp divides once" {
    local row=$((768 * 4 / 32))
    [[ $(count encoder_rows aligned warp_instructions) -lt $(($(count encoder aligned warp_instructions) / 3)) ]]
    assert_equal "$(count encoder_rows aligned global_sectors 'load_piece(_kept)?<N>\((wte|wpe)_row')" $(((64 + 64) * row)) # a token's and a position's for each
    assert_equal "$(count encoder_rows aligned global_sectors 'store_piece_once')" $((64 * row))
}

@test "chapter 6: two atomics an element, one, none" {
    assert_equal "$(count encoder_atomics aligned active_lanes 'atomicAdd')" "$(count encoder_atomics aligned active_lanes 'atomicAdd\(&dw[tp]e')"
    local source
    for source in 10_encoder_atomics:2 11_encoder_positions:1 12_encoder_buckets:0 13_encoder_sorted:0 14_encoder_chunks:0 15_encoder_ahead:0; do
        assert_equal "$source $(grep -c 'atomicAdd(&dw' "chapters/$CHAPTER/step${source%:*}.cu")" "$source ${source#*:}"
    done
}

@test "chapter 6: buckets give the same bits whatever the order of blocks, atomics do not" {
    local step seed
    for step in encoder_atomics encoder_buckets encoder_sorted encoder_chunks encoder_ahead; do
        for seed in 1 2 3; do
            run -0 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --op encoder_backward --step $step --case long --out "$BATS_TEST_TMPDIR/$seed"
        done
        run diff -rq "$BATS_TEST_TMPDIR/1/$step" "$BATS_TEST_TMPDIR/2/$step"
        local first=$status
        run diff -rq "$BATS_TEST_TMPDIR/1/$step" "$BATS_TEST_TMPDIR/3/$step"
        assert_equal "$step: $first $status" "$step: $([[ $step == encoder_atomics ]] && echo 1 1 || echo 0 0)"
    done
}

@test "chapter 6: the sum of steps 12 and 13 is dwte, then the rows in the order of the strips, to the bit" {
    local name=$BATS_TEST_TMPDIR/out
    run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op encoder_backward --case long --out "$name"
    run -0 python 'd, out = sys.argv[1:]
inp, dout, dwte, dwpe = (np.load(f"{d}/{name}.npy") for name in ("inp", "dout", "dwte", "dwpe"))
for rows in dout: dwpe += rows
for strip in range(0, inp.shape[1], 32):
    for tokens, rows in zip(inp[:, strip:strip + 32], dout[:, strip:strip + 32]):
        for token, row in zip(tokens, rows): dwte[token] += row
for step in "encoder_buckets", "encoder_sorted":
    np.testing.assert_array_equal(np.load(f"{out}/{step}/long/dwte.npy"), dwte)
    np.testing.assert_array_equal(np.load(f"{out}/{step}/long/dwpe.npy"), dwpe)' "build/golden/$CHAPTER/encoder_backward/long" "$name"
}

@test "chapter 6: the sum of steps 14 and 15 is the same for up to 63 rows; for more it is dwte, then the chunks' sums, to the bit" {
    local name=$BATS_TEST_TMPDIR/out case step
    for step in encoder_chunks encoder_ahead; do
        for case in long many_tokens many_sequences; do
            run -0 "$SIMGPU" "$(chapter $CHAPTER)" --op encoder_backward --step $step --case $case --out "$name"
            run -0 python 'd, out, step = sys.argv[1:]
inp, dout, dwte, dwpe = (np.load(f"{d}/{name}.npy") for name in ("inp", "dout", "dwte", "dwpe"))
rows_of = {}
for strip in range(0, inp.shape[1], 32):
    for tokens, rows in zip(inp[:, strip:strip + 32], dout[:, strip:strip + 32]):
        for token, row in zip(tokens, rows): rows_of.setdefault(token, []).append(row)
for token, rows in rows_of.items():
    if len(rows) < 64: addends = rows
    else:
        begins = range(0, len(rows) // 32 * 32, 32)
        chunks = [rows[i : i + 32] for i in begins[:-1]] + [rows[begins[-1] :]]
        addends = [np.add.accumulate(chunk)[-1] for chunk in chunks]
        if step == "encoder_ahead": addends[:1] = chunks[0]
    for addend in addends: dwte[token] += addend
np.testing.assert_array_equal(np.load(f"{out}/dwte.npy"), dwte)
counts, most = [len(rows) for rows in rows_of.values()], 8 if step == "encoder_ahead" else 4
print(f"1 to {most}:", sum(n <= most for n in counts), "up to 63:", sum(most < n < 64 for n in counts), "more:", sum(n >= 64 for n in counts))' \
                "build/golden/$CHAPTER/encoder_backward/$case" "$name/$step/$case" $step
            echo "$output" >>"$BATS_TEST_TMPDIR/counts"
        done
    done
    run -0 cat "$BATS_TEST_TMPDIR/counts"
    assert_output "1 to 4: 0 up to 63: 0 more: 1
1 to 4: 181 up to 63: 1 more: 2
1 to 4: 17 up to 63: 12 more: 0
1 to 8: 0 up to 63: 0 more: 1
1 to 8: 181 up to 63: 1 more: 2
1 to 8: 26 up to 63: 3 more: 0"
}

@test "chapter 6: the counters that note 6 quotes are what its commands count" {
    local quoted count step case field pattern
    while read -r quoted step case field pattern; do
        count=$(count "$step" "$case" "$field" "$pattern" | sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta')
        assert_equal "$step $case $field $pattern: $count" "$step $case $field $pattern: $quoted"
        grep -qF "$quoted" notes/$CHAPTER.md || fail "note 6 does not say $quoted"
    done <<'END'
6,656 residual aligned_bf16 warp_instructions ^
2,208 residual_packs aligned_bf16 warp_instructions ^
2,429 residual_stream aligned_bf16 warp_instructions ^
6,016 gelu aligned_bf16 warp_instructions ^
3,749 gelu_exp2 aligned_bf16 warp_instructions ^
95,232 encoder aligned warp_instructions ^
19,968 encoder_rows aligned warp_instructions ^
END
}

@test "chapter 6: make diff-6 compares every step, and every header ends with the command that runs it" {
    ladders "residual_forward residual residual_packs residual_stream" "residual_backward residual_gradient" "gelu_forward gelu gelu_exp2" \
        "gelu_backward gelu_gradient" "encoder_forward encoder encoder_rows" "encoder_backward encoder_atomics encoder_positions encoder_buckets encoder_sorted encoder_chunks"
}

# --- Broken kernels -------------------------------------------------------------------------------------------------

@test "chapter 6: a thread that does not stop at n is a fault" {
    broken $CHAPTER step1_residual.cu '/if \(i >= n\) return;/d'
    run -3 "$SIMGPU" "$BROKEN" --op residual_forward --step residual --case ragged
    assert_output --partial "step1_residual.cu:"
    noted $CHAPTER 'out of bounds: read of 4 bytes at … past the end of allocation 1'
}

@test "chapter 6: without what is left behind the last pack, elements are missing" {
    broken $CHAPTER step2_residual_packs.cu 's/else if \(p == packs\)/else if (false)/'
    wrong $CHAPTER residual_packs ragged --op residual_forward
    noted $CHAPTER 'out[1020]: got …; 1 of 1021 elements are wrong'
}

@test "chapter 6: a kernel that is launched early, and does not wait, reads what may not be there yet" {
    broken $CHAPTER step3_residual_stream.cu '/wait_for_kernels_before\(\);/d'
    run -3 "$SIMGPU" "$BROKEN" --op residual_forward --step residual_stream --case ragged
    assert_output --partial "step3_residual_stream.cu:"
    noted $CHAPTER 'is read before griddepcontrol.wait (cudaGridDependencySynchronize), but the launch before writes it'
}

@test "chapter 6: the tanh form in fp32 loses the tail" {
    broken $CHAPTER step5_gelu.cu 's|return x / \(1.0f \+ expf\(-2.0f \* u\)\);|return 0.5f * x * (1.0f + tanhf(u));|'
    wrong $CHAPTER gelu extreme --op gelu_forward
    noted $CHAPTER 'out[328]: got -0, expected -4.76637648e-30, …; 104 of 3001 elements are wrong'
}

@test "chapter 6: 1 - s where e s belongs is wrong, and an infinite e makes NaN" {
    broken $CHAPTER step7_gelu_gradient.cu 's/\(e \* s\)/(1.0f - s)/'
    wrong $CHAPTER gelu_gradient blocks --op gelu_backward
    broken $CHAPTER step7_gelu_gradient.cu 's/fminf\((ex2.*), FLT_MAX\)/\1/'
    wrong $CHAPTER gelu_gradient extreme --op gelu_backward
    assert_line --regexp 'got -?nan, expected '
}

@test "chapter 6: packs of rows that begin anywhere are misaligned, and named" {
    broken $CHAPTER step9_encoder_rows.cu 's/C % PACK<T> == 0 \?/true ?/'
    run -3 "$SIMGPU" "$BROKEN" --op encoder_forward --step encoder_rows --case odd
    assert_output --partial "must be a multiple of 16"
}

@test "chapter 6: an addition that is not atomic is a race between blocks" {
    broken $CHAPTER step10_encoder_atomics.cu 's/atomicAdd\(&(dwpe\[[^]]*\]), gradient\)/\1 += gradient/'
    races $CHAPTER encoder_atomics one_token --op encoder_backward
}

@test "chapter 6: two warps that both add a token's rows race" {
    broken $CHAPTER step12_encoder_buckets.cu '/if \(earlier\) return/d'
    races $CHAPTER encoder_buckets one_token --op encoder_backward
}

@test "chapter 6: without a barrier the list is read before it is there, or the counts" {
    local barrier
    broken $CHAPTER step12_encoder_buckets.cu "/__syncthreads\(\); \/\/ The list is there/d"
    faults $CHAPTER 12 long --op encoder_backward
    for barrier in 'Every warp.s count is there' 'Everyone is done with the list'; do
        broken $CHAPTER step12_encoder_buckets.cu "/__syncthreads\(\); \/\/ $barrier/d"
        races $CHAPTER encoder_buckets long --op encoder_backward
    done
    noted $CHAPTER 'race on shared offset …: this write is not ordered after the read'
}

@test "chapter 6: a list that grows past its end is a fault" {
    broken $CHAPTER step12_encoder_buckets.cu 's/if \(count > MAX_LIST\)/if (count > 2 * MAX_LIST)/'
    run -3 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_buckets --case long
    assert_output --partial "out of bounds: write of 4 bytes at shared offset"
    broken $CHAPTER step13_encoder_sorted.cu 's/fits = count <= MAX_LIST/fits = count <= 4 * MAX_LIST/'
    run -3 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_sorted --case long
    assert_output --partial "out of bounds: write of "
    broken $CHAPTER step14_encoder_chunks.cu 's/fits = count <= MAX_LIST/fits = count <= 4 * MAX_LIST/'
    run -3 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_chunks --case long
    assert_output --partial "out of bounds: write of "
}

@test "chapter 6: two rows that both add to their token's row of dwte race" {
    broken $CHAPTER step13_encoder_sorted.cu '/if \(entries\[i\] == 0\) continue;/d'
    races $CHAPTER encoder_sorted one_token --op encoder_backward
    noted $CHAPTER 'race on global memory'
}

@test "chapter 6: without one of its barriers the sort reads what is not there yet" {
    local barrier
    for barrier in 'Every warp.s counts are there' 'The list is there' 'Every warp.s sum of sizes is there' 'Every slot.s beginning is there' \
        'Every slot.s entries are there'; do
        broken $CHAPTER step13_encoder_sorted.cu "/__syncthreads\(\); \/\/ $barrier/d"
        faults $CHAPTER 13 long --op encoder_backward
    done
}

@test "chapter 6: without one of its barriers or fences step 14 reads what is not there yet" {
    local order
    for order in 'Every warp.s counts are there' 'The list is there' 'Every warp.s sum of sizes is there' 'Every slot.s beginning is there' \
        'Every slot.s entries are there' 'The rows are there' 'The chunk.s sum is there' 'Everyone knows who is the last' \
        'What was written is seen' 'What is read from here on'; do
        broken $CHAPTER step14_encoder_chunks.cu "/__(syncthreads|threadfence)\(\); \/\/ $order/d"
        faults $CHAPTER 14 long --op encoder_backward
    done
    broken $CHAPTER step14_encoder_chunks.cu '/What was written is seen/d'
    races $CHAPTER encoder_chunks one_token --op encoder_backward
    noted $CHAPTER 'nothing has released it'
}

@test "chapter 6: a token whose chunks nobody adds up, or its last rows, is wrong; what two add up races" {
    local edit
    for edit in 's/== run.chunks\(\) - 1;/== run.chunks();/' 's/chunk \+ 1 < run.chunks\(\) \? CHUNK/true ? CHUNK/'; do
        broken $CHAPTER step14_encoder_chunks.cu "$edit"
        wrong $CHAPTER encoder_chunks one_token --op encoder_backward
    done
    for edit in 's/leads && !run.is_common\(\)/leads/' 's/\+ \(size_t\)chunk \* C, true/, true/'; do
        broken $CHAPTER step14_encoder_chunks.cu "$edit"
        races $CHAPTER encoder_chunks one_token --op encoder_backward
    done
}

@test "chapter 6: without one of its barriers or fences step 15 reads what is not there yet, or overwrites what is still needed" {
    local order mixed=build/golden/shapes/$CHAPTER/encoder_backward/b=4,t=40,c=256,v=20,seed=1 # a block has tokens of 8 rows and of more
    for order in 'and those of rows that came' 'Every warp.s count is there' 'The chunk.s rows are there' 'The chunk.s sum is there' \
        'Everyone knows who is the last' 'It is known where' 'What was written is seen' 'What is read from here on'; do
        broken $CHAPTER step15_encoder_ahead.cu "/__(syncthreads|threadfence)\(\); \/\/ $order/d"
        faults $CHAPTER 15 long --op encoder_backward
    done
    run -0 make --no-print-directory chapter-6 DEVICE=sim OP=encoder_backward STEP=encoder_ahead SHAPE=b=4,t=40,c=256,v=20 PROFILE=0
    for order in 'Nothing is on its way' 'Everyone is done with what was found'; do
        broken $CHAPTER step15_encoder_ahead.cu "/__syncthreads\(\); \/\/ $order/d"
        run -3 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_ahead --type f32 --golden "$mixed"
        assert_output --partial "race on shared offset"
    done
}

@test "chapter 6: step 15's table is needed, and found as the last launch has to leave it" {
    local edit
    for edit in '/griddepcontrol_wait\(\); \/\/ From here on/d' '/table->launch\+\+;/d' '/in_strip\[strip\] = 0;/d' \
        's/token.common = token.chunks_done = 0/token.common = 0/' 's/cp_async_wait_group<DWTE_AHEAD - 1>/cp_async_wait_group<DWTE_AHEAD>/'; do
        broken $CHAPTER step15_encoder_ahead.cu "$edit"
        run -3 "$SIMGPU" "$BROKEN" --op encoder_backward --step encoder_ahead --type f32
    done
    noted $CHAPTER 'is read before the cp.async at line … that brings it has been waited for'
    broken $CHAPTER step15_encoder_ahead.cu 's/leads \? rows : 0/rows <= MOST_ROWS ? rows : 0/'
    races $CHAPTER encoder_ahead many_tokens --op encoder_backward
}

@test "chapter 6: without the batch's next 32 rows, rows are missing" {
    broken $CHAPTER step13_encoder_sorted.cu 's/first < end; first \+= 32/first < min(end, 32); first += 32/'
    wrong $CHAPTER encoder_sorted many_sequences --op encoder_backward
}

@test "chapter 6: an operation without its shape is named" {
    run -2 --separate-stderr "$(chapter $CHAPTER)" --bench --op encoder_forward --shape b=65536,t=65536,c=1,v=1
    assert_equal "$stderr" "--shape 'b=65536,t=65536,c=1,v=1': b * t must be below 2^31"
    run -2 make --no-print-directory chapter-6 SHAPE=n=4
    assert_line --partial "OP is missing: expected one of residual_forward, "
}

@test "chapter 6: the script that times the layers beside PyTorch's says what it misses, in a line" {
    local torch=$BATS_TEST_TMPDIR/torch
    mkdir "$torch"
    echo 'raise ModuleNotFoundError("No module named '"'torch'"'")' >"$torch/__init__.py"
    PYTHONPATH=$BATS_TEST_TMPDIR run -2 "$PYTHON" -B tools/bench_layers.py
    assert_output "bench_layers: No module named 'torch': it takes a Python with torch"
    printf '%s\n' 'class cuda:' '    def is_available(): return False' >"$torch/__init__.py"
    printf '%s\n' 'functional = None' >"$torch/nn.py"
    PYTHONPATH=$BATS_TEST_TMPDIR run -2 "$PYTHON" -B tools/bench_layers.py gelu_forward
    assert_output "bench_layers: PyTorch finds no GPU here, and the simulated GPU has no speed to measure"
    PYTHONPATH=$BATS_TEST_TMPDIR run -2 "$PYTHON" -B tools/bench_layers.py softmax
    assert_output --regexp "^bench_layers: 'softmax': expected one of residual_forward, .*, adamw$"
}
