#!/usr/bin/env bats
# The trainer of chapter 11, build/gpt2: a training gives the same bits again, stopped or not; its checkpoints are whole or refused; it
# says where a loss was lost.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common

setup() {
    export PYTHONPATH=$ROOT/reference
    SMALL=(--layers 2 --heads 2 --channels 32 --length 16 --batch 2 --sample 0)
    TEXT=$BATS_FILE_TMPDIR/text
    cat notes/1*.md >"$TEXT"
    cd "$BATS_TEST_TMPDIR" || return 1
}

# gpt2 [FLAG...] FILE...: the trainer on the simulated GPU.
gpt2() { "$SIMGPU" "$ROOT/build/gpt2" "$@"; }

# losses LOG: the losses of its steps, a step a line, to the last bit.
losses() { plain_python 'import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    if "loss" in record: print(record["step"], record["loss"].hex(), record["norm"].hex())' "$1"; }

# parameters CHECKPOINT: what it holds behind its header.
parameters() { plain_python 'import struct, sys
data = open(sys.argv[1], "rb").read()
sys.stdout.buffer.write(data[struct.unpack_from("<I", data, 12)[0]:])' "$1"; }

# edit_checkpoint FILE CODE: CODE changes its masters, by name in p; its checksum is made right again.
edit_checkpoint() { python 'import struct, gpt2
path, code = sys.argv[1:]
data = bytearray(open(path, "rb").read())
size = struct.unpack_from("<I", data, 12)[0]
numbers = np.frombuffer(data, np.float32, offset=size).copy()
shapes = gpt2.parameter_shapes
gpt2.parameter_shapes = lambda dims: shapes(dims) | {"wte": (256, dims["c"])}
p = gpt2.split(numbers[:numbers.size // 3], dict(l=2, c=32, t=16, v=256))
exec(code)
numbers[:numbers.size // 3] = gpt2.join(p)
data[size:] = numbers.tobytes()
data[size - 8:size] = bytes(8)
h = 0xcbf29ce484222325
for i in range(0, size, 8): h = (h ^ int.from_bytes(data[i:i + 8], "little")) * 0x100000001b3 & (1 << 64) - 1
words = bytes(data[size:]) + bytes(-len(data[size:]) % 8)
for i in range(0, len(words), 8): h = (h ^ int.from_bytes(words[i:i + 8], "little")) * 0x100000001b3 & (1 << 64) - 1
data[size - 8:size] = h.to_bytes(8, "little")
open(path, "wb").write(data)' "$1" "$2"; }

@test "trainer: on the project's own text the loss falls, validation follows, and text is sampled" {
    cd "$ROOT"
    run -0 make train DEVICE=sim TRAIN="--steps 30 --lr 2e-3 --sample 40"
    assert_line --regexp '^120576 parameters, 3\.[0-9]+ MB of activations, [0-9]+ tokens of which [0-9]+ are trained on; Simulated GPU'
    assert_line --regexp '^step 1/30: loss 5\.[1-9]' # about 5.55, by the bytes that this batch of the project's text has
    assert_line --regexp '^step 30/30: loss [34]\.'
    assert_line --regexp '^step 30: validation loss ([34]|5\.[0-2])' # of other text; no knowledge at all is 5.55
    refute_output --partial "tokens/s"
}

@test "trainer: a training twice, recorded or launch by launch, with every activation kept or computed again, gives the same bits" {
    local run
    gpt2 "${SMALL[@]}" --steps 6 --save 1 --json 1.log "$TEXT" >1.out
    gpt2 "${SMALL[@]}" --steps 6 --save 2 --json 2.log "$TEXT" >2.out
    gpt2 "${SMALL[@]}" --steps 6 --save 3 --json 3.log --step fused "$TEXT" >3.out
    gpt2 "${SMALL[@]}" --steps 6 --save 4 --json 4.log --recompute "$TEXT" >4.out
    for run in 2 3 4; do
        run -0 cmp <(parameters 1) <(parameters $run)
        run -0 diff <(losses 1.log) <(losses $run.log)
    done
    gpt2 "${SMALL[@]}" --steps 6 --save 5 --seed 2 "$TEXT"
    run -1 cmp -s <(parameters 1) <(parameters 5)
    assert_equal "$(sed -n 's/.*parameters, \(.*\) MB.*/\1/p' 4.out)" 0.17
    assert_equal "$(sed -n 's/.*parameters, \(.*\) MB.*/\1/p' 1.out)" 0.23
}

@test "trainer: --algorithms times each kind of products once, takes from then on what the file names, and refuses another's" {
    gpt2 "${SMALL[@]}" --steps 2 --save 1 --algorithms algorithms "$TEXT"
    # 4 forward with a bias, logits, and two gradients of each of the 5.
    assert_equal "$(wc -l <algorithms)" 16
    assert_equal "$(head -n 1 algorithms)" "algorithms of cuBLASLt 130000, Simulated GPU (SM90)"
    assert_equal "$(cut -d ' ' -f 1-11 algorithms | tail -n 15 | sort -u | wc -l)" 15
    cp algorithms before
    gpt2 "${SMALL[@]}" --steps 2 --save 2 --algorithms algorithms "$TEXT"
    run -0 cmp before algorithms
    run -0 cmp <(parameters 1) <(parameters 2)
    sed '2,$s/6c74616c/6c74616d/' before >algorithms # one that cuBLASLt never named
    run -3 gpt2 "${SMALL[@]}" --steps 2 --algorithms algorithms "$TEXT"
    assert_output --partial "the algorithm does not come from cublasLtMatmulAlgoGetHeuristic"
    head -c -2 before >algorithms
    run -2 gpt2 "${SMALL[@]}" --algorithms algorithms "$TEXT"
    assert_output "--algorithms algorithms: line 16 is no algorithm"
    sed 1s/130000/120000/ before >algorithms
    run -2 gpt2 "${SMALL[@]}" --algorithms algorithms "$TEXT"
    assert_output "--algorithms algorithms: found 'algorithms of cuBLASLt 120000, Simulated GPU (SM90)', expected 'algorithms of cuBLASLt 130000, Simulated GPU (SM90)'"
    run -2 gpt2 "${SMALL[@]}" --algorithms nowhere/algorithms "$TEXT"
    assert_output "--algorithms nowhere/algorithms: No such file or directory"
}

@test "trainer: killed after step 10 and resumed, it gives to the bit the losses and parameters of a training that was not" {
    local pid
    gpt2 "${SMALL[@]}" --steps 20 --save whole --json whole.log "$TEXT"
    (exec "$SIMGPU" "$ROOT/build/gpt2" "${SMALL[@]}" --steps 20 --save killed --save-every 10 --json killed.log "$TEXT") &
    pid=$!
    until [[ -e killed ]]; do sleep 0.01; done
    kill -KILL $pid
    wait $pid || true
    run -0 "$ROOT/build/gpt2" --check killed
    assert_output "killed: 34176 parameters after 10 of 20 steps"
    run -0 gpt2 --resume killed --sample 0 --save killed --json killed.log "$TEXT"
    assert_equal "$(losses killed.log | wc -l)" 10
    run -0 diff <(losses whole.log | tail -n 10) <(losses killed.log)
    run -0 cmp <(parameters whole) <(parameters killed)
}

@test "trainer: killed fifty times, while it saves and anywhere else, the last checkpoint is whole" {
    local i pid saving=0 last=0 steps resume=()
    for i in {1..50}; do
        (exec "$SIMGPU" "$ROOT/build/gpt2" --layers 1 --heads 1 --channels 128 --length 2 --batch 1 --sample 0 --validation 0 \
            --steps 1000 --save-every 1 --save checkpoint "${resume[@]}" "$TEXT") >out 2>&1 &
        pid=$!
        steps=$((RANDOM % 4 + 1))
        until [[ -e checkpoint && "$(grep -cs '^step' out)" -ge $steps ]] || ! kill -0 $pid 2>/dev/null; do :; done
        if ((i % 2)); then until [[ -e checkpoint.partial ]] || ! kill -0 $pid 2>/dev/null; do :; done; fi
        kill -KILL $pid 2>/dev/null || fail "it had ended: $(cat out)"
        wait $pid || true
        [[ ! -e checkpoint.partial ]] || saving=$((saving + 1))
        rm -f checkpoint.partial
        run -0 "$ROOT/build/gpt2" --check checkpoint
        steps=$(sed -E 's/.* after ([0-9]+) of .*/\1/' <<<"$output")
        assert [ "$steps" -ge "$last" ]
        last=$steps resume=(--resume checkpoint)
    done
    assert [ $saving -ge 10 ]
    assert [ "$last" -ge 50 ]
}

@test "trainer: a checkpoint with one bit changed anywhere, a byte too few or too many, or of another kind is refused in one line" {
    local bytes at
    gpt2 "${SMALL[@]}" --steps 1 --save good "$TEXT"
    bytes=$(stat -c %s good)
    for at in 20 60 $((bytes / 2)) $((bytes - 1)); do
        python 'd = bytearray(open("good", "rb").read()); d[int(sys.argv[1])] ^= 4; open("bad", "wb").write(d)' $at
        run -2 "$ROOT/build/gpt2" --check bad
        assert_output "--check bad: damaged: its checksum is not that of what it holds"
    done
    run -2 gpt2 --resume bad "$TEXT"
    assert_output --partial "--resume bad: damaged"
    run -2 gpt2 --resume good --steps 0 "$TEXT"
    assert_line "--steps 0: the checkpoint has 1 steps already"
    head -c $((bytes - 1)) good >bad
    run -2 "$ROOT/build/gpt2" --check bad
    assert_output --regexp "^--check bad: [0-9]+ bytes behind the header, expected 410112 for 34176 parameters$"
    { cat good; echo; } >bad
    run -2 "$ROOT/build/gpt2" --check bad
    assert_output --partial "expected 410112 for 34176 parameters"
    run -2 "$ROOT/build/gpt2" --check "$TEXT"
    assert_output --partial "not a checkpoint of this trainer"
    python 'd = bytearray(open("good", "rb").read()); d[8] += 1; open("bad", "wb").write(d)'
    run -2 "$ROOT/build/gpt2" --check bad
    assert_output "--check bad: version 2, expected 1"
}

@test "trainer: a checkpoint that cannot be written leaves the one before as it was" {
    mkdir folder
    gpt2 "${SMALL[@]}" --steps 1 --save folder/c "$TEXT"
    cp folder/c before
    mkdir folder/c.partial # What cannot be opened for writing, by root either.
    run -2 gpt2 "${SMALL[@]}" --steps 2 --save folder/c "$TEXT"
    assert_line --partial "--save folder/c: cannot be written"
    cmp folder/c before
}

@test "trainer: a loss that is no number stops it with the step, the layer and the tensor" {
    gpt2 "${SMALL[@]}" --steps 3 --save-every 2 --save good "$TEXT"
    cp good bad
    edit_checkpoint bad 'p["fc_w"][1, 5, 7] = np.nan'
    run -1 gpt2 --resume bad --steps 5 --sample 0 "$TEXT"
    assert_line "step 4: loss nan, gradient norm inf: first in parameter fc_w of layer 1, element 167 of 4096"
    grep -qF "${lines[1]}" "$ROOT/notes/11_gpt2_training.md"
    cp good bad
    edit_checkpoint bad 'p["ln1_b"][1] = 3e38; p["qkv_w"][1] = 1'
    run -1 gpt2 --resume bad --steps 5 --sample 0 "$TEXT"
    assert_line --regexp "^step 4: loss -?nan, gradient norm inf: first in activation qkv of layer 1, element [0-9]+ of 3072$"
}

@test "trainer: in bf16 every attention and chapter 14's products give the same losses but for rounding" {
    local way=0 flags
    for flags in "--attention 9" "--attention 12" "--attention 17" "--attention 17 --products 14 --deterministic"; do
        way=$((way + 1))
        # shellcheck disable=SC2086
        gpt2 --layers 1 --heads 2 --channels 128 --length 48 --batch 1 --sample 0 --steps 4 --type bf16 $flags --json $way.log "$TEXT"
    done
    run -0 python 'import json
runs = [[r["loss"] for r in map(json.loads, open(f"{i}.log")) if "loss" in r] for i in range(1, 5)]
apart = np.abs(np.array(runs) - runs[0]).max(1); print(apart); assert len(runs[0]) == 4 and 0 < apart[1:].max() < 5e-3'
}

@test "trainer: llm.c's checkpoints, in fp32 and bf16, and its token files give the loss that NumPy computes" {
    local version
    python 'import gpt2, dtypes
case = dict(steps=1, b=1, t=12, l=2, h=2, c=16, v=256, attention=9, dtype="f32")
p = gpt2.split(gpt2.Gpt2().inputs(np.random.default_rng(4), case)["weights"], case)
p = {name: dtypes.rounded(array, "bf16") for name, array in p.items()}
order = ["wte", "wpe"] + [f"{n}_{k}" for n in ("ln1", "qkv", "proj", "ln2", "fc", "fc_proj", "lnf") for k in "wb"]
for version, dtype in (3, "f32"), (5, "bf16"):
    header = np.zeros(256, np.int32); header[:8] = 20240326, version, 12, 256, 2, 2, 16, 256
    with open(f"model{version}.bin", "wb") as file:
        file.write(header.tobytes() + b"".join(dtypes.encode(p[name].astype(np.float32), dtype).tobytes() for name in order))
text = bytes(np.random.default_rng(5).integers(0, 256, 13, np.uint8)); open("text", "wb").write(text)
tokens = np.frombuffer(text, np.uint8).astype(int)[None]
print(gpt2.forward(p, tokens[:, :-1], tokens[:, 1:], 2, 256)[0])' >loss
    for version in 3 5; do
        run gpt2 --init model$version.bin --length 12 --batch 1 --steps 1 --sample 0 --validation 0 --json log text
        assert_success
        run -0 python 'import json; a, b = float(open("loss").read()), json.loads(open("log").readline())["loss"]; assert abs(a - b) < 1e-5, (a, b)'
    done
    head -c 9000 model3.bin >short.bin
    run -2 gpt2 --init short.bin --length 12 --validation 0 text
    assert_output --partial "--init short.bin: shorter or longer than its header's"
    run -2 gpt2 --init text --length 12 --validation 0 text
    assert_output --partial "--init text: expected a checkpoint of llm.c, version 3 or 5"
}

@test "trainer: GPT-2's token files are read, and what is wrong with one is said" {
    python 'header = np.zeros(256, np.int32); header[:3] = 20240520, 1, 40
tokens = np.arange(40, dtype=np.uint16) * 1200
open("tokens.bin", "wb").write(header.tobytes() + tokens.tobytes())
tokens[7] = 50300; open("large.bin", "wb").write(header.tobytes() + tokens.tobytes())
header[2] = 41; open("short.bin", "wb").write(header.tobytes() + tokens.tobytes())'
    run -0 gpt2 --layers 1 --heads 1 --channels 8 --length 4 --batch 1 --steps 1 --sample 3 --validation 0.25 tokens.bin
    assert_line --regexp "^[0-9]+ parameters, .*, 40 tokens of which 30 are trained on"
    assert_line --regexp '^step 1/1: loss 10\.8'
    run -2 gpt2 large.bin
    assert_output "large.bin: token 7 is 50300, expected one below 50257"
    run -2 gpt2 short.bin
    assert_output "short.bin: version 1 and 1104 bytes, expected version 1 and 1106 bytes for its 41 tokens"
    run -2 gpt2 "$TEXT" tokens.bin
    assert_output "tokens.bin: a file of tokens, expected the same kind as the files before"
    run -2 gpt2 nowhere
    assert_output "nowhere: cannot be read: No such file or directory"
}

@test "trainer: the learning rate rises, falls along a cosine, and is what the log says" {
    gpt2 --layers 1 --heads 1 --channels 8 --length 4 --batch 1 --steps 14 --warmup 4 --lr 0.01 --final-lr 0.1 --sample 0 --json log "$TEXT"
    run -0 python 'import json
lr = [r["lr"] for r in map(json.loads, open("log")) if "lr" in r]
expected = [0.0025, 0.005, 0.0075, 0.01] + [0.01 * (0.1 + 0.9 * (1 + np.cos(np.pi * i / 10)) / 2) for i in range(10)]
np.testing.assert_allclose(lr, expected, rtol=1e-6)'
}

@test "trainer: what is sampled is printed as text, bytes that are none by their numbers" {
    local cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' "$ROOT/build/config.mk")
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' "$ROOT/build/config.mk")
    cat >"$BATS_TEST_TMPDIR/print.c" <<'END'
#include "text.h"

int main(void)
{
    // Characters of 1 to 4 bytes, no byte of UTF-8, a character cut off, a surrogate, ESC, the separator, a character cut off at the end.
    const unsigned char bytes[] = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80|\xff|\xc3x|\xed\xa0\x80|\x1b\0\xe2\x82";
    for (unsigned i = 0; i + 1 < sizeof bytes; i++) vocabulary_print(NULL, bytes[i]);
    print_rest();
    return 0;
}
END
    gcc -I"$ROOT/chapters/11_gpt2_training/trainer" -isystem "$cuda_include" -o "$BATS_TEST_TMPDIR/print" "$BATS_TEST_TMPDIR/print.c" \
        "$ROOT"/build/obj/chapters/11_gpt2_training/trainer/text.o "$ROOT"/build/obj/common/harness/npy.o -L"$cuda_lib" -l:libcudart.so.13 -Wl,-rpath,"$cuda_lib" -lm
    run -0 "$BATS_TEST_TMPDIR/print"
    assert_output 'aä€😀|\xff|\xc3x|\xed\xa0\x80|.
\xe2\x82'
}

@test "trainer: --profile counts every launch of a step, and the FLOPs that a step has" {
    run -0 gpt2 "${SMALL[@]}" --steps 2 --profile 1 "$TEXT"
    # 6 for each token and number of a matrix, 12 for each token, layer, channel and position: 32 tokens.
    assert_line --regexp "^all +59 +$(python 'print(f"{32 * (6 * (2 * 12 * 32**2 + 256 * 32) + 12 * 2 * 32 * 16) / 1e9:.3f}")')$"
    assert_line --regexp "^attention backward +2 "
    refute_output --partial "TFLOP/s"
}

@test "trainer: on a GPU a line has tokens/s and the share of the limit, --profile times, and --record what results/ has" {
    local objects cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' "$ROOT/build/config.mk")
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' "$ROOT/build/config.mk")
    # A driver that takes the simulated GPU for an H200.
    sed 's/device\.simulated = .*/strcpy(device.name, "NVIDIA H200");/' "$ROOT/common/harness/bench.c" >bench.c
    gcc -std=gnu11 -O1 -I"$ROOT/common/harness" -isystem "$cuda_include" -c -o bench.o bench.c
    mapfile -t objects < <(cd "$ROOT" && objects 11_gpt2_training main | grep -v /bench.o | sed "s|^|$ROOT/|")
    g++ -o on_gpu bench.o "${objects[@]}" "$ROOT"/build/obj/chapters/11_gpt2_training/trainer/*.o -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" ./on_gpu --layers 1 --heads 1 --channels 8 --length 4 --batch 1 --sample 0 --steps 20 --profile 2 --record results.json "$TEXT"
    assert_line --regexp '^step 1/20: loss 5\.[0-9]+  norm [0-9.]+  lr 1\.00e-04  [0-9]+ tokens/s  0\.0 TFLOP/s = 0\.0% of 67$'
    assert_line --regexp '^update +2 +0\.000 +[0-9.]+ +[0-9.]+% +0\.0$'
    run -0 python 'import json
r, = json.load(open("results.json"))
assert set(r) == set("chapter step case dtype metric value spread baseline baseline_value ratio fraction_of_limit limit gpu driver cuda commit date command".split()), r
assert r["spread"][0] <= r["value"] <= r["spread"][1] and r["metric"] == "tokens/s" and r["step"] == "recorded" and "--record results.json" in r["command"]'
}

@test "trainer: bad flags, a text that is too short and a model that cannot be are refused in one line" {
    local flags
    while IFS='|' read -r flags message; do
        # shellcheck disable=SC2086
        run -2 gpt2 $flags "$TEXT"
        assert_one_line
        assert_output "$message"
    done <<'END'
--depth|--depth: no such flag; --help lists them
--batch 0|--batch: found '0', expected a number from 1 to 2.14748e+09
--batch 1.5|--batch: found '1.5', expected a whole number
--type f16|--type: found 'f16', expected f32 or bf16
--attention 8|--attention: found '8', expected 9, 12 or 17
--step other|--step: found 'other', expected one of layer_by_layer, fused, recorded
--heads 3|the model: channels must be a multiple of 8 and of heads
--attention 17|the model: attention by chapter 12 or 17 needs bf16 and channels / heads = 64 or 128
END
    run -2 gpt2 --record results.json "$TEXT"
    assert_output --partial "has no speed to measure, expected a real GPU"
    run -2 gpt2
    assert_output "no text: expected FILE...; --help"
    echo abc >short
    run -2 gpt2 short
    assert_output "the text has 4 tokens to train on, expected more than --length 64"
    run -0 "$ROOT/build/gpt2" --help
    assert_line --partial "--attention 9|12|17"
}

@test "trainer: the curve of a log has its steps and its validation, and what is no log is refused" {
    gpt2 --layers 1 --heads 1 --channels 8 --length 4 --batch 1 --steps 6 --validate-every 3 --sample 0 --json log "$TEXT"
    run -0 "$PYTHON" "$ROOT/tools/loss_curve.py" log --out 1.svg
    run -0 "$PYTHON" "$ROOT/tools/loss_curve.py" log --out 2.svg
    cmp 1.svg 2.svg
    run -0 python 'sys.path.insert(0, sys.argv[1]); import loss_curve
(steps, losses), (validated, values) = loss_curve.read_log("log")
assert steps == [1, 2, 3, 4, 5, 6] and validated == [3, 6] and all(5 < x < 6 for x in losses + values)
assert loss_curve.averaged(range(1, 301), range(300))[0][:2] == [6, 12]' "$ROOT/tools"
    run -1 "$PYTHON" "$ROOT/tools/loss_curve.py" "$TEXT" --out 3.svg
    assert_output --partial "text:1: expected an object with a step"
}
