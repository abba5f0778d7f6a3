#!/usr/bin/env bats
# Chapter 22: several GPUs train as one would, say so when one of them is gone, and go on from what it left.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common
load test_helper/broken

CHAPTER=22_data_parallel_training

setup() {
    export PYTHONPATH=$ROOT/reference
    TEXT=$BATS_FILE_TMPDIR/text
    cat notes/1*.md >"$TEXT"
    SMALL=(--layers 2 --heads 1 --channels 24 --length 8 --batch 6 --sample 0 --validate-every 4)
}

# ranks N PROGRAM [ARGUMENT...]: so many processes, each on a simulated GPU.
ranks() { "$ROOT/tools/ranks.sh" "$1" "$SIMGPU" "${@:2}"; }

# train N [FLAG...]: the trainer on so many GPUs.
train() { ranks "$1" "$ROOT/build/gpt2_parallel" "${SMALL[@]}" "${@:2}" "$TEXT"; }

# losses LOG: a step a line, to the last bit.
losses() { plain_python 'import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    print(*(value if key == "step" else value.hex() for key, value in sorted(record.items()) if key in ("step", "loss", "norm", "validation_loss")))' "$1"; }

# close_to LOG LOG…: their losses and validation losses differ by sums in another order.
close_to() { run -0 python 'import json
first, *others = [[r.get("loss", r.get("validation_loss")) for r in map(json.loads, open(path))] for path in sys.argv[1:]]
for other in others: np.testing.assert_allclose(other, first, rtol=2e-6)' "$@"; }

@test "chapter 22: on 1, 2 and 3 GPUs every step follows NumPy's training on one" {
    run -0 ranks 1 "$(chapter $CHAPTER)" --case ragged
    run -0 ranks 2 "$(chapter $CHAPTER)" --type f32
    assert_line "$CHAPTER: all 8 runs right"
    run -0 ranks 3 "$(chapter $CHAPTER)" --type bf16
    assert_line "$CHAPTER: all 8 runs right"
}

@test "chapter 22: make chapter-22 GPUS=N starts N, whose batch must be divisible" {
    run -0 make chapter-22 DEVICE=sim GPUS=5 STEP=one_graph TYPE=bf16 SHAPE=steps=3,b=5,t=9,l=1,h=1,c=40,v=11,attention=9
    assert_line --partial "on the simulated GPU, 5 of them:"
    assert_line "$CHAPTER: all 1 runs right"
    run -2 make --no-print-directory chapter-22 DEVICE=sim GPUS=3 SHAPE=steps=1,b=4,t=8,l=1,h=1,c=8,v=9,attention=9
    assert_line --partial "b must be a multiple of the 3 ranks"
}

@test "chapter 22: twice, recorded or not, in one piece or in buckets, and however late streams are, the bits are the same" {
    local seed out=$BATS_TEST_TMPDIR
    for seed in 1 2; do
        run -0 "$ROOT/tools/ranks.sh" 3 "$SIMGPU" --seed $seed "$(chapter $CHAPTER)" --case ragged_bf16 --out "$out/$seed"
    done
    run -0 diff -r "$out/1" "$out/2"
    run -0 diff -r "$out/1/replicate" "$out/1/buckets"
    run -0 diff -r "$out/1/sharded" "$out/1/one_graph"
}

# --- The trainer ------------------------------------------------------------------------------------------------------

@test "chapter 22: the trainer on 2 and 3 GPUs, with its state whole or sharded, has the losses of one" {
    local step
    cd "$BATS_TEST_TMPDIR"
    "$SIMGPU" "$ROOT/build/gpt2" "${SMALL[@]}" --steps 5 --json one.log "$TEXT"
    train 2 --steps 5 --json two.log
    train 3 --steps 5 --json three.log
    for step in replicate buckets; do train 3 --steps 5 --json $step.log --step $step; done
    close_to ./*.log
}

@test "chapter 22: a share of the optimizer's state is a share of its bytes, and a step exchanges what note 22 says" {
    local P=20832 step type expected_whole expected_own expected_bytes
    while read -r step type expected_whole expected_own expected_bytes; do
        run -0 train 3 --steps 2 --profile 1 --validation 0 --step "$step" --type "$type"
        # 16 positions have a loss, which is exchanged as well; sharded, 3 norms. What is printed has three decimals.
        run -0 python 'import re
output, P, whole, own, exchanged = sys.argv[1], *map(eval, sys.argv[2:])
weights, state = map(float, re.search(r"on each ([0-9.]+) MB of weights and gradients, ([0-9.]+) MB of the optim", output).groups())
megabytes = float(re.search(r"exchanged in a step: ([0-9.]+) MB", output)[1])
assert f"{P} parameters" in output, output
assert abs(weights - whole * P / 1e6) < 0.006 and abs(state - own * P / 1e6) < 0.006, output
assert abs(megabytes - exchanged * P / 1e6) < 6e-4, output' "$output" "$P" "$expected_whole" "$expected_own" "$expected_bytes"
    done <<'END'
replicate f32 4 12 4
buckets bf16 6 12 4
sharded f32 8 16/3 4+4
sharded bf16 6 18/3 4+2
END
}

# --- The end of one ---------------------------------------------------------------------------------------------------

free_port() { plain_python 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# start N [FLAG...]: the trainer on so many GPUs, in the background; PIDS are the ranks', RANK.err what they say. MISSING of them do not
# come. Each is on a machine of its own if network() made some.
start() {
    local ranks=$1 rank
    shift
    PIDS=()
    MASTER_PORT=$(free_port)
    export MASTER_PORT
    for ((rank = 0; rank < ranks - ${MISSING:-0}; rank++)); do
        (RANK=$rank WORLD_SIZE=$ranks exec ${MACHINE:+ip netns exec $MACHINE.$rank} "$SIMGPU" "$ROOT/build/gpt2_parallel" "${SMALL[@]}" "$@" "$TEXT") >$rank.out 2>$rank.err 3>&- &
        PIDS+=($!)
    done
}

# all_end_but RANK WHAT: the others end by themselves in less than 10 s, each with 3 and a line that names the rank and says what
# became of it.
all_end_but() {
    local rank status began=$SECONDS
    for rank in "${!PIDS[@]}"; do
        [[ $rank -ne $1 ]] || continue
        status=0
        wait "${PIDS[rank]}" || status=$?
        assert_equal "$rank: $status" "$rank: 3"
        grep -qE "^rank $1 \(process ${PIDS[$1]} on [^ ]+\) $2: rank $rank of ${#PIDS[@]} ends too$" "$rank.err" || fail "$rank: $(cat "$rank.err")"
    done
    assert [ $((SECONDS - began)) -lt 10 ]
}

@test "chapter 22: each rank in turn killed at any step, the others end, and resume gives the losses of a training that was not disturbed, on other numbers of GPUs but for the order of sums" {
    local rank steps n
    cd "$BATS_TEST_TMPDIR"
    train 3 --steps 12 --json whole
    for rank in 0 1 2; do
        rm -f checkpoint
        start 3 --steps 12 --save checkpoint --save-every 3 --json killed
        steps=$((RANDOM % 7 + 4))
        until [[ -e checkpoint && "$(grep -cs '^step' 0.out)" -ge $steps ]]; do sleep 0.005; done
        kill -KILL "${PIDS[rank]}"
        all_end_but $rank "has ended"
        run -0 "$ROOT/build/gpt2" --check checkpoint
        assert_output --regexp "^checkpoint: 20832 parameters after [0-9]+ of 12 steps$"
        cp checkpoint resumed
        train 3 --resume resumed --save resumed --json killed
        tail -n "$(wc -l <killed)" whole >rest
        run -0 diff <(losses rest) <(losses killed)
    done
    for n in 1 2; do train $n --resume checkpoint --json resumed.$n; done
    "$SIMGPU" "$ROOT/build/gpt2" --resume checkpoint --sample 0 --validate-every 4 --json resumed.alone "$TEXT"
    close_to rest resumed.*
}

@test "chapter 22: a rank that is there and says nothing is missed, too, and one that ends before all have come" {
    cd "$BATS_TEST_TMPDIR"
    start 2 --steps 100000
    until [[ -s 0.out ]]; do sleep 0.05; done
    kill -STOP "${PIDS[1]}"
    all_end_but 1 "has been silent for 6 s"
    kill -KILL "${PIDS[1]}"
    MISSING=1 start 3 --steps 1
    until grep -qi ":$(printf %04x "$MASTER_PORT") [0-9a-f:]* 01 " /proc/net/tcp; do sleep 0.02; done
    sleep 1 # Rank 1 is there, and has said so.
    kill -KILL "${PIDS[1]}"
    wait "${PIDS[0]}" && fail "rank 0 did not fail"
    grep -qE "^rank 1 \(process ${PIDS[1]} on .*\) has ended before all were there$" 0.err || fail "$(cat 0.err)"
}

# network N: so many network namespaces beside each other, as machines at a switch; number R is called MACHINE.R, at 10.213.0.(R + 1). False
# where this is not allowed.
network() {
    local r
    MACHINE=kc$$ # an interface's name has at most 15 characters
    ip link add $MACHINE type bridge 2>/dev/null || return 1
    ip link set $MACHINE up
    for ((r = 0; r < $1; r++)); do
        ip netns add $MACHINE.$r || return 1
        ip link add $MACHINE.$r type veth peer name eth0 netns $MACHINE.$r
        ip link set $MACHINE.$r master $MACHINE up
        ip -n $MACHINE.$r addr add 10.213.0.$((r + 1))/24 dev eth0
        ip -n $MACHINE.$r link set eth0 up
    done
}

teardown() {
    local r
    [[ ${MACHINE:-} ]] || return 0
    for r in $(ip netns list | grep -o "^$MACHINE\.[0-9]*"); do
        ip link del "$r" || true # a connection that was cut off would keep it for minutes
        ip netns del "$r"
    done
    ip link del $MACHINE 2>/dev/null || true
}

@test "chapter 22: three machines train as one does, and one that is cut off from the network is missed" {
    network 3 || skip "network namespaces are not allowed here"
    # What the simulated GPUs exchange goes through the memory of this machine; how the ranks meet, and miss each other, does not.
    export MASTER_ADDR=10.213.0.1
    cd "$BATS_TEST_TMPDIR"
    start 3 --steps 5 --json machines
    wait "${PIDS[@]}"
    MASTER_ADDR=127.0.0.1 train 3 --steps 5 --json one
    run -0 diff <(losses one) <(losses machines)
    rm 0.out
    start 3 --steps 100000
    until [[ -s 0.out ]]; do sleep 0.05; done
    ip link set $MACHINE.2 down
    all_end_but 2 "has been silent for 6 s"
    wait "${PIDS[2]}" && fail "rank 2 did not end"
    grep -q "^rank 0 .* has been silent for 6 s: rank 2 of 3 ends too$" 2.err || fail "$(cat 2.err)"
}

# --- The beginning ----------------------------------------------------------------------------------------------------

# pair A B [PROGRAM...]: two processes, or the program's, with the environments A and B; prints what both say.
pair() {
    # shellcheck disable=SC2086
    env $1 "${@:3}" &
    # shellcheck disable=SC2086
    env $2 "${@:3}" || true
    wait $!
}

@test "chapter 22: torchrun's, mpirun's and srun's variables, and the port beside torchrun's own, make a group" {
    local program=("$SIMGPU" "$ROOT/build/gpt2_parallel" "${SMALL[@]}" --steps 1 "$TEXT") here port
    port=$(free_port)
    here="MASTER_PORT=$port"
    run -0 pair "$here RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost" "$here RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=localhost" "${program[@]}"
    assert_line --partial "2 GPUs, on each"
    run -0 pair "$here OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2" \
        "$here OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2" "${program[@]}"
    assert_line --partial "2 GPUs, on each"
    run -0 pair "$here PMI_RANK=0 PMI_SIZE=2" "$here PMI_RANK=1 PMI_SIZE=2" "${program[@]}"
    assert_line --partial "2 GPUs, on each"
    run -0 pair "$here SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_NNODES=1" "$here SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NNODES=1" "${program[@]}"
    assert_line --partial "2 GPUs, on each"
    plain_python 'import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", int(__import__("sys").argv[1]))); s.listen(); time.sleep(20)' "$port" 3>&- &
    run -0 pair "$here RANK=0 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True" "$here RANK=1 WORLD_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True" "${program[@]}"
    assert_line --partial "2 GPUs, on each"
    run -2 env MASTER_PORT="$port" RANK=0 WORLD_SIZE=2 "${program[@]}"
    assert_output "rank 0 cannot listen at port $port (MASTER_PORT): Address already in use"
    kill %%
}

@test "chapter 22: a group that does not come together ends in one line a rank, which says why" {
    local program=("$SIMGPU" "$ROOT/build/gpt2_parallel" "${SMALL[@]}" --steps 1 "$TEXT") port
    port=$(free_port)
    export MASTER_PORT=$port COOKBOOK_TIMEOUT=1
    run -2 env RANK=0 WORLD_SIZE=3 "${program[@]}"
    assert_output "rank 0 waited at 127.0.0.1:$port for 1 s (COOKBOOK_TIMEOUT): 2 of 3 ranks have not come, the first is rank 1"
    run -2 env RANK=2 WORLD_SIZE=3 "${program[@]}"
    assert_output "rank 2 waited for rank 0 at 127.0.0.1:$port for 1 s (COOKBOOK_TIMEOUT): Connection refused"
    export COOKBOOK_TIMEOUT=20
    run -2 pair "RANK=0 WORLD_SIZE=2" "RANK=1 WORLD_SIZE=3" "${program[@]}"
    assert_line "rank 1 says that there are 3 ranks, and rank 0 that there are 2"
    assert_line "rank 1 is sent away: rank 1 says that there are 3 ranks, and rank 0 that there are 2"
    # Someone else, who says nothing that rank 0 knows, keeps nobody out.
    env RANK=0 WORLD_SIZE=2 "${program[@]}" 3>&- &
    run -0 timeout 20 "$PYTHON" -S -E -B -c 'import socket, sys, time
while True:
    try: socket.create_connection(("127.0.0.1", int(sys.argv[1]))).send(b"GET / HTTP/1.0\r\n\r\n"); break
    except OSError: time.sleep(0.01)' "$port"
    run -0 env RANK=1 WORLD_SIZE=2 "${program[@]}"
    wait $!
    run -2 env RANK=1 "${program[@]}"
    assert_output "RANK is set, and WORLD_SIZE is not"
    run -2 env RANK=2 WORLD_SIZE=2 "${program[@]}"
    assert_output "RANK: found '2', expected a whole number from 0 to 1"
    run -2 env SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=2 "${program[@]}"
    assert_output "MASTER_ADDR is not set, expected the machine of rank 0, such as the first of: scontrol show hostnames"
}

@test "chapter 22: without a GPU, or with one and no NCCL, one line says what to do" {
    local sim=$BATS_TEST_TMPDIR/sim
    run -3 "$ROOT/build/gpt2_parallel" "$TEXT"
    assert_output --partial "no GPU that this program can use; the simulated GPU runs it: build/simgpu/simgpu PROGRAM"
    mkdir -p "$sim/lib" "$sim/none" # a simulated GPU without its NCCL, and in place of the machine's, if it has one, a file that is none
    cp "$SIMGPU" "$sim/simgpu"
    ln -s "$(dirname "$SIMGPU")"/lib/libcu* "$sim/lib"
    touch "$sim/none/libnccl.so.2"
    run -2 env LD_LIBRARY_PATH="$sim/none:$LD_LIBRARY_PATH" "$sim/simgpu" "$ROOT/build/gpt2_parallel" "$TEXT"
    assert_output --regexp "^NCCL: .*libnccl.so.2.*; install it with: .*nvidia-nccl-cu13, or Debian's libnccl2, or name the folder of a libnccl.so.2 in NCCL_LIB$"
}

@test "chapter 22: a batch that the GPUs cannot share, and a step that is none, are refused" {
    run -2 train 2 --batch 5
    assert_line "--batch 5: expected a multiple of the 2 GPUs"
    run -2 train 1 --step fused
    assert_line "--step: found 'fused', expected one of replicate, buckets, sharded, one_graph"
}

@test "chapter 22: tools/bench_ddp.sh times 1 and 2 GPUs, says what is hidden and what of linear, and records what results/ has" {
    local objects cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    # A driver that takes the simulated GPU for an H200.
    sed 's/device\.simulated = .*/strcpy(device.name, "NVIDIA H200");/' common/harness/bench.c >"$BATS_TEST_TMPDIR/bench.c"
    gcc -std=gnu11 -O1 -Icommon/harness -isystem "$cuda_include" -c -o "$BATS_TEST_TMPDIR/bench.o" "$BATS_TEST_TMPDIR/bench.c"
    mapfile -t objects < <(objects 11_gpt2_training main | grep -v /bench.o; printf '%s\n' build/obj/chapters/11_gpt2_training/trainer/*.o)
    g++ -o "$BATS_TEST_TMPDIR/alone" "$BATS_TEST_TMPDIR/bench.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    mapfile -t objects < <(objects $CHAPTER main | grep -v /bench.o; printf '%s\n' build/obj/chapters/{11_gpt2_training,$CHAPTER}/trainer/*.o | grep -v /alone.o)
    g++ -o "$BATS_TEST_TMPDIR/together" "$BATS_TEST_TMPDIR/bench.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    export RESULTS=$BATS_TEST_TMPDIR/results.json COOKBOOK_BASELINE="1 of another run"
    run -0 env GPUS="1 2" MODEL="--layers 1 --heads 1 --channels 8 --length 2" TOKENS="$TEXT" START="$SIMGPU" ALONE="$BATS_TEST_TMPDIR/alone" PROGRAM="$BATS_TEST_TMPDIR/together" tools/bench_ddp.sh 20
    assert_line --regexp '^exchanged in a step: [0-9.]+ MB at 4 times, in [0-9.]+ ms; [0-9.]+ ms of them waited for, -?[0-9]+% hidden$'
    assert_line --regexp '^2 GPUs: [0-9]+ tokens/s = [0-9.]+ of linear *$'
    run -0 python 'import json
records = json.load(open(sys.argv[1]))
assert [(r["step"], "gpus=2" in r["case"]) for r in records] == [("recorded", False), ("replicate", True), ("buckets", True), ("sharded", True), ("one_graph", True)], records
for r in records:
    assert set(r) == set("chapter step case dtype metric value spread baseline baseline_value ratio fraction_of_limit limit gpu driver cuda commit date command".split()), r
    assert r["chapter"] == ("22_data_parallel_training" if "gpus=2" in r["case"] else "11_gpt2_training") and r["spread"][0] <= r["value"] <= r["spread"][1] and r["baseline"] is None' "$RESULTS"
}

# shellcheck disable=SC2154 # Bats sets stderr
@test "chapter 22: a recorded step that is still there when the communicator goes, for which NCCL waits for ever, is told" {
    local objects cuda_include cuda_lib chapter=chapters/$CHAPTER/trainer
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    sed "/model_forget_recording/d; s|\"\.\./|\"$ROOT/$chapter/../|" $chapter/parallel.c >"$BATS_TEST_TMPDIR/parallel.c"
    gcc -std=gnu11 -O1 -isystem "$cuda_include" -c -o "$BATS_TEST_TMPDIR/parallel.o" "$BATS_TEST_TMPDIR/parallel.c"
    mapfile -t objects < <(objects $CHAPTER main; printf '%s\n' build/obj/chapters/11_gpt2_training/trainer/*.o | grep -v /alone.o)
    g++ -o "$BATS_TEST_TMPDIR/trainer" "$BATS_TEST_TMPDIR/parallel.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    run -3 --separate-stderr ranks 1 "$BATS_TEST_TMPDIR/trainer" "${SMALL[@]}" --steps 3 "$TEXT"
    assert_line --partial "step 3/3"
    assert_regex "$stderr" "ncclCommDestroy: a graph still has [0-9]+ collectives of this communicator: on a GPU the call waits until"
}

# --- Broken steps -----------------------------------------------------------------------------------------------------

# broken_step RANKS SEED STEP FILE SED: with that edit the step is wrong on so many GPUs, whose streams do what they are asked for at once
# (seed 0) or as late as CUDA allows.
broken_step() {
    edited $CHAPTER "$4" "${@:5}"
    run -1 "$ROOT/tools/ranks.sh" "$1" "$SIMGPU" --seed "$2" "$BROKEN" --golden build/golden/$CHAPTER --step "$3" --case ragged
}

# unordered_step SED: with that edit step 2 has a race between the stream of the gradients and NCCL's, which is named when streams are late.
unordered_step() {
    edited $CHAPTER step2_buckets.cu "$1"
    run -3 "$ROOT/tools/ranks.sh" 2 "$SIMGPU" --seed 1 "$BROKEN" --golden build/golden/$CHAPTER --step buckets --case ragged
    assert_output --regexp "race between streams on memory at .*ncclAllReduce in stream [0-9]+.*, and nothing orders these two"
}

@test "chapter 22: gradients that are summed up, and not divided, are wrong" {
    broken_step 2 1 replicate step1_replicate.cu 's/m->parameters, ncclFloat32, ncclAvg/m->parameters, ncclFloat32, ncclSum/'
}

@test "chapter 22: a bucket that is forgotten leaves the ranks different parameters" {
    broken_step 2 0 buckets step2_buckets.cu 's/( +)NCCL_CHECK\(g, AllReduce\(grad/\1if (x->sent > 10 \&\& x->sent < 20) continue;\n&/'
}

@test "chapter 22: a bucket that is sent before its last gradient is there is wrong, or right by luck and named" {
    broken_step 2 0 buckets step2_buckets.cu 's/exchange_ready\(m, layer\)/exchange_ready(m, layer > 0 ? layer - 1 : layer)/'
    unordered_step 's/exchange_ready\(m, layer\)/exchange_ready(m, layer > 0 ? layer - 1 : layer)/'
}

@test "chapter 22: an update that does not wait for the last bucket is named" {
    unordered_step '/exchange_join/d'
}

@test "chapter 22: shares that begin one number too early, and what is left over and given to nobody, are wrong" {
    broken_step 2 0 sharded step3_sharded.cu 's/m->grad \+ piece->first,/m->grad + piece->first - (piece->first > 0),/'
    broken_step 3 0 sharded step3_sharded.cu 's/rest > 0/rest > 1/'
}
