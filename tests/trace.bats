#!/usr/bin/env bats
# Timelines: a program with marks writes what each role did when; the program that is timed has none of it.

# Bats sets status and output, in each test anew.
# shellcheck disable=SC2030,SC2031,SC2154
load test_helper/common

MATMUL=14_warp_specialized_matmul
ATTENTION=15_sm90_attention_forward
BACKWARD=17_sm90_attention_backward

setup_file() {
    make -s -j2 "build/trace/$MATMUL/step5_ping_pong" "build/trace/$ATTENTION/step10_tma_store" "build/trace/$BACKWARD/step6_tiles" build/trace/13_tma_wgmma_matmul/step1_tma_wgmma{,.o}
    # Two SMs: one cluster, which takes tile after tile.
    SIMGPU_SMS=2 "$SIMGPU" "build/trace/$MATMUL/step5_ping_pong" --op matmul --step ping_pong --shape m=512,n=256,k=512 \
        --trace "$BATS_FILE_TMPDIR/matmul.json" >"$BATS_FILE_TMPDIR/matmul.txt"
    SIMGPU_SMS=2 "$SIMGPU" "build/trace/$ATTENTION/step10_tma_store" --step tma_store --shape b=1,q=512,k=512,h=1,g=1,d=128,causal=0 \
        --trace "$BATS_FILE_TMPDIR/attention.json" >"$BATS_FILE_TMPDIR/attention.txt"
    SIMGPU_SMS=2 "$SIMGPU" "build/trace/$BACKWARD/step6_tiles" --op attention --step tiles --shape b=1,q=256,k=256,h=1,g=1,d=128,causal=0 \
        --trace "$BATS_FILE_TMPDIR/backward.json" >"$BATS_FILE_TMPDIR/backward.txt"
}

# timeline FILE CODE: runs CODE with trace, the file's content, and spans[block][role], lists of (begin, end, event) in order.
timeline() {
    plain_python 'import json, sys
trace = json.load(open(sys.argv[1]))
names, spans = {}, {}
for e in trace["traceEvents"]:
    if e["name"] == "thread_name":
        names[e["pid"], e["tid"]] = e["args"]["name"]
        spans.setdefault(e["pid"], {})[e["args"]["name"]] = []
    if e["ph"] == "X": spans[e["pid"]][names[e["pid"], e["tid"]]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
def begins(block, role, event): return [s[0] for s in spans[block][role] if s[2] == event]
'"$2" "$BATS_FILE_TMPDIR/$1.json"
}

# --- The program that is timed --------------------------------------------------------------------------------------

@test "trace: no object of the timed programs knows of it, and the same PTX comes of kernels without the marks" {
    local object dir=$BATS_TEST_TMPDIR/unmarked step=chapters/13_tma_wgmma_matmul/step1_tma_wgmma.cu nvcc
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    for object in build/obj/chapters/{1[3-9],2}*/{step,kernel}*.o; do
        [[ ! -e $object ]] || nm -C "$object" | run ! grep -E 'trace_(log|register)'
    done
    nm -C "build/trace/$MATMUL/step5_ping_pong" | grep -q trace_log # so it would be found
    mkdir -p "$dir/chapters/13_tma_wgmma_matmul" "$dir/common"
    cp -r common/device "$dir/common"
    cp chapters/13_tma_wgmma_matmul/*.h "$dir/chapters/13_tma_wgmma_matmul"
    sed '/^ *trace(/d' "$step" >"$dir/$step"
    sed -i '/^ *trace(/d; /trace\.cuh/d' "$dir/common/device/wgmma.cuh"
    [[ $(diff "$step" "$dir/$step" | grep -c '^<') -eq 4 ]]
    "$nvcc" -std=c++17 -O3 -arch=compute_90a -ptx -o "$BATS_TEST_TMPDIR/marked.ptx" "$step" &
    "$nvcc" -std=c++17 -O3 -arch=compute_90a -ptx -o "$BATS_TEST_TMPDIR/unmarked.ptx" "$dir/$step"
    wait
    cmp "$BATS_TEST_TMPDIR/marked.ptx" "$BATS_TEST_TMPDIR/unmarked.ptx"
}

@test "trace: a program without marks refuses, and says which has them" {
    run -2 "$SIMGPU" "$(chapter $ATTENTION)" --step tma_store --case len17 --trace "$BATS_TEST_TMPDIR/t.json"
    assert_output "--trace $BATS_TEST_TMPDIR/t.json: the kernels of this program make no marks; make trace-15 STEP=NAME builds one that does"
}

# --- The file -------------------------------------------------------------------------------------------------------

@test "trace: every role of every block is there, its spans follow each other, and the axis is no time" {
    local file
    for file in matmul attention; do
        run -0 timeline $file '
assert trace["otherData"]["unit"] == "executed warp instructions, not time", trace["otherData"]
assert sorted(spans) == [0, 1], sorted(spans)
for block, roles in spans.items():
    working = [r for r in roles if not r.endswith("in flight")]
    assert working == ["producer", "consumer 0", "consumer 1"], roles
    for role in working:
        own = roles[role]
        assert len(own) > 10 and own[-1][1] > own[0][0], (role, own)
        for this, next in zip(own, own[1:]): assert this[0] <= this[1] == next[0], (role, this, next)
    for role in roles:
        if role not in working: assert roles[role] and all(a[1] <= b[0] for a, b in zip(roles[role], roles[role][1:])), role'
    done
}

@test "trace: the same launch has the same timeline; whatever the order of its warps, to 1 %" {
    local seed
    for seed in 0 1 2; do
        SIMGPU_SMS=2 run -0 "$SIMGPU" --seed $seed "build/trace/$MATMUL/step5_ping_pong" --op matmul --step ping_pong --shape m=512,n=256,k=512 \
            --trace "$BATS_FILE_TMPDIR/seed$seed.json"
        if [[ $seed == 0 ]]; then cmp "$BATS_FILE_TMPDIR/seed0.json" "$BATS_FILE_TMPDIR/matmul.json"; fi
    done
    run -0 plain_python 'import json, sys
one, *others = ([e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X"] for path in sys.argv[1:])
for other in others:
    assert [(e["pid"], e["tid"], e["name"]) for e in one] == [(e["pid"], e["tid"], e["name"]) for e in other]
    worst = max(abs(a["ts"] - b["ts"]) for a, b in zip(one, other))
    assert worst < max(e["ts"] for e in one) / 100, worst' "$BATS_FILE_TMPDIR"/seed?.json
}

@test "trace: a stage's load comes before its products, and its products before the next load into it" {
    run -0 timeline matmul '
STAGES, K_TILES = 6, 8 # of step 5; k = 512
for block in spans:
    loads = begins(block, "producer", "load")
    products = [begins(block, f"consumer {c}", "multiply") for c in (0, 1)]
    assert len(loads) == 32 and [len(p) for p in products] == [16, 16], (len(loads), products)
    for n, load in enumerate(loads):
        tile, k = divmod(n, K_TILES)
        multiplied = products[tile % 2][tile // 2 * K_TILES + k]
        assert load <= multiplied, (n, load, multiplied)
        if n + STAGES < len(loads): assert multiplied <= loads[n + STAGES], (n, multiplied, loads[n + STAGES])'
}

@test "trace: ping-pong is seen: one consumer has products in flight while the other stores, and never both" {
    run -0 timeline matmul '
for block in spans:
    flights = [spans[block][f"consumer {c}: products in flight"] for c in (0, 1)]
    assert [len(f) for f in flights] == [2, 2], flights
    stores = [[s for s in spans[block][f"consumer {c}"] if s[2] == "store"] for c in (0, 1)]
    assert any(a[0] < b[0] and b[1] < a[1] or a[0] < b[1] and b[0] < a[1] for a in flights[1] for b in stores[0])
    assert all(a[1] <= b[0] + 40 or b[1] <= a[0] + 40 for a in flights[0] for b in flights[1]), flights'
}

@test "trace: the overlap of chapter 15 is seen: a softmax under products that are in flight" {
    run -0 timeline attention '
tiles = 0
for block in spans:
    for c in (0, 1):
        softmax = [s for s in spans[block][f"consumer {c}"] if s[2] == "softmax"]
        flights = spans[block][f"consumer {c}: products in flight"]
        under = [s for s in softmax if any(f[0] < s[0] and s[1] < f[1] for f in flights)]
        tiles += len(softmax) // 4 # a tile of queries has 4 of keys; which block takes how many is a matter of luck
        assert len(softmax) % 4 == 0 and len(under) == len(softmax) // 4 * 3, (len(softmax), len(under)) # not the first of each tile
assert tiles == 2 * 4, tiles'
}

@test "trace: kernels that several steps share have marks, too; chapter 17's dS and exponentials are under products in flight" {
    run -0 timeline backward '
for block in spans:
    roles = sorted(r for r in spans[block] if "in flight" not in r)
    # Of the two warps that store dQ the second has a row if only one of them waited for the first part.
    assert roles in (["consumer 0", "consumer 1", "producer", "producer, warp 1", *second] for second in ([], ["producer, warp 2"])), spans[block]
    assert len(begins(block, "producer, warp 1", "store")) == 4 # of dQ: a tile of queries each
    for c in (0, 1):
        first, *softmax = [s for s in spans[block][f"consumer {c}"] if s[2] == "softmax"]
        flights = spans[block][f"consumer {c}: products in flight"]
        assert len(softmax) == 2 * 4 and all(any(f[0] < s[0] and s[1] < f[1] for f in flights) for s in softmax), (softmax, flights)
        assert not any(f[0] < first[0] < f[1] for f in flights)
assert len(spans) == 2, spans'
}

@test "trace: what the marks themselves execute is not counted" {
    run -0 timeline matmul '
waits = [s[1] - s[0] for s in spans[0]["consumer 0"] if s[2] == "wait full"]
assert min(waits) < 20, waits' # a try_wait and its loop: a mark alone is more than that
}

# --- The program with marks -----------------------------------------------------------------------------------------

@test "trace: the summary has each role's shares of the events" {
    run -0 cat "$BATS_FILE_TMPDIR/attention.txt"
    assert_line --regexp '^  trace: .*/attention.json, in executed warp instructions, not time:$'
    assert_line --regexp '^    producer +wait empty [0-9.]+ %, load [0-9.]+ %,$'
    assert_line --regexp '^    consumer 1 +wait full [0-9.]+ %, wait turn [0-9.]+ %, multiply [0-9.]+ %, softmax [0-9.]+ %, store [0-9.]+ %, products in flight [0-9.]+ %$'
    run -0 plain_python 'import re, sys
for line in open(sys.argv[1]):
    shares = [float(s) for s in re.findall(r"([0-9.]+) %", line.split("products")[0])]
    assert not shares or abs(sum(shares) - 100) < 0.5, line' "$BATS_FILE_TMPDIR/attention.txt"
}

@test "trace: the shares that notes/reading_a_profile.md shows are those that are printed" {
    local line
    run -0 grep -cE '^    (producer|consumer [01]) +wait ' notes/reading_a_profile.md
    assert_output 3
    while IFS= read -r line; do
        run -0 grep -xF -- "$line" "$BATS_FILE_TMPDIR/matmul.txt"
    done < <(grep -E '^    (producer|consumer [01]) +wait ' notes/reading_a_profile.md)
}

@test "trace: results are right with marks" {
    local case
    for case in len65_causal d256_causal ragged_f16; do
        run -0 "$SIMGPU" "build/trace/$ATTENTION/step10_tma_store" --step tma_store --case $case --trace "$BATS_TEST_TMPDIR/t.json"
        assert_line --regexp "^  10 tma_store +$case .* right "
    done
}

@test "trace: marks that do not fit are counted and said" {
    run -0 "$SIMGPU" build/trace/13_tma_wgmma_matmul/step1_tma_wgmma --op matmul --step tma_wgmma --shape m=8,n=8,k=163840 --trace "$BATS_TEST_TMPDIR/t.json"
    assert_line --regexp '^  trace: [0-9]+ marks did not fit and are missing: 8192 of each warp are kept, the first$'
}

@test "trace: what it cannot do is refused in one line, and leaves no file" {
    local program=build/trace/$ATTENTION/step10_tma_store file=$BATS_TEST_TMPDIR/t.json
    run -2 "$SIMGPU" "$program" --step tma_store --case len17 --trace "$BATS_TEST_TMPDIR/none/t.json"
    assert_line "--trace $BATS_TEST_TMPDIR/none/t.json: cannot write: No such file or directory"
    run -2 "$SIMGPU" "$program" --case len17 --trace "$file"
    assert_line "--trace $file: 10 steps are selected, expected one: --step"
    run -2 "$SIMGPU" "$program" --step tma_store --trace "$file"
    assert_line --regexp "^--trace $file: [0-9]+ cases are selected, expected one: --case$"
    run -2 "$SIMGPU" "$program" --step overlapped --case len17 --trace "$file"
    assert_line "--trace $file: step overlapped makes no marks on this shape, or was not compiled with them"
    run -2 "$SIMGPU" "$program" --step tma_store --bench --trace "$file"
    assert_line "--trace $file: not with --bench; on one --case or on one --shape"
    run -2 make --no-print-directory trace-15
    assert_line --regexp '^make trace-15: no step, expected STEP= and one of .*10_tma_store'
    run -2 make --no-print-directory trace-15 STEP=none
    assert_line --partial 'make trace-15: STEP=none: no such step, expected'
    run ! compgen -G "$BATS_TEST_TMPDIR/*"
}

# A driver that is told that it is on a real GPU; the times are those of this machine.
@test "trace: on a GPU times are microseconds of one clock, and what the marks cost is said" {
    local chapter=13_tma_wgmma_matmul dir=$BATS_TEST_TMPDIR/tree objects cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mkdir "$dir"
    sed 's/device\.simulated = .*/device.simulated = false;/' common/harness/bench.c >"$dir/bench.c"
    gcc -std=gnu11 -O1 -Icommon/harness -isystem "$cuda_include" -c -o "$dir/bench.o" "$dir/bench.c"
    mapfile -t objects < <(objects $chapter step1_tma_wgmma | grep -v /bench.o)
    g++ -o "$dir/program" build/trace/$chapter/step1_tma_wgmma.o "$dir/bench.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
    run -0 "$SIMGPU" "$dir/program" --op matmul --step tma_wgmma --shape m=256,n=256,k=512 --trace "$BATS_FILE_TMPDIR/gpu.json"
    assert_line --regexp '^  trace: .*/gpu.json, in shares of time:$'
    assert_line --regexp '^  trace: the least of 5 launches took [0-9.]+ ms with marks, [0-9.]+ ms with marks switched off$'
    run -0 timeline gpu '
assert trace["otherData"]["unit"] == "us" and sorted(spans) == [0, 1], (trace["otherData"], sorted(spans))
times = [t for block in spans for role in spans[block] for s in spans[block][role] for t in s[:2]]
assert -0.01 < min(times) < max(times) < 60e6, (min(times), max(times))
for block in spans:
    for role in spans[block]:
        own = spans[block][role]
        assert len(own) >= 8, (role, own)
        for this, next in zip(own, own[1:]): assert this[0] < this[1] <= next[0] * 1.001 + 0.01, (role, this, next)'
}

# --- The picture ----------------------------------------------------------------------------------------------------

@test "trace: make trace-N writes the file and draws it" {
    run -0 make trace-14 STEP=ping_pong SHAPE=m=256,n=256,k=128 OP=matmul DEVICE=sim TRACE="$BATS_TEST_TMPDIR/folder/t.json"
    assert_line "$BATS_TEST_TMPDIR/folder/t.svg"
    run -0 grep -c '<svg' "$BATS_TEST_TMPDIR/folder/t.svg"
    run -0 .venv/bin/python3 tools/timeline.py "$BATS_FILE_TMPDIR/attention.json" -o "$BATS_TEST_TMPDIR/b.svg" --sm 1 --from 100 --to 900
    gzip -c "$BATS_FILE_TMPDIR/attention.json" >"$BATS_TEST_TMPDIR/c.json.gz"
    run -0 .venv/bin/python3 tools/timeline.py "$BATS_TEST_TMPDIR/c.json.gz" "$BATS_FILE_TMPDIR/matmul.json"
    assert_output "$BATS_TEST_TMPDIR/c.svg"
    run -1 .venv/bin/python3 tools/timeline.py "$BATS_FILE_TMPDIR/attention.json" --sm 7
    assert_output --partial "--sm 7: no block of it is in"
    echo '[]' >"$BATS_TEST_TMPDIR/other.json"
    run -1 .venv/bin/python3 tools/timeline.py "$BATS_TEST_TMPDIR/other.json"
    assert_output --partial "expected a file that --trace wrote"
}
