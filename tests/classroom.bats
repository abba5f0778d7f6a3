#!/usr/bin/env bats
# The exercises: each solution has all points, each stub fails as it says; a student's tree builds and grades; what a submission
# tries besides solving them gets no point and does no harm.

# shellcheck disable=SC2154 # Bats sets status and output
load test_helper/common

grade() { "$PYTHON" tools/classroom/grade.py "$@"; }

# solutions DIR: every exercise's own file, right.
solutions() {
    "$PYTHON" -c 'import sys; sys.path.insert(0, "tools/classroom")
import exercises, pathlib
for exercise in exercises.load().values():
    path = pathlib.Path(sys.argv[1]) / exercise.own_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(exercise.solution())' "$1"
}

# published RESULTS JUNIT: they are what Gradescope documents, and what Ant and Jenkins publish.
published() {
    run -0 "$PYTHON" -c 'import json, jsonschema, sys
jsonschema.validate(json.load(open(sys.argv[1])), json.load(open("tests/classroom/results.schema.json")))' "$1"
    run -0 xmllint --noout --schema tests/classroom/junit.xsd "$2"
}

@test "classroom: the solutions have all points, and the results say so in every form" {
    local dir=$BATS_TEST_TMPDIR
    solutions "$dir/solved"
    run -0 grade --submission "$dir/solved" --orders 1 --tap "$dir/tap" --junit "$dir/junit.xml" --json "$dir/results.json"
    assert_line --regexp '^([0-9]+) of \1 points$'
    run ! grep "^not ok" "$dir/tap"
    published "$dir/results.json" "$dir/junit.xml"
    run -0 plain_python 'import json, sys, xml.etree.ElementTree as xml
folder = sys.argv[1]
tests = json.load(open(folder + "/results.json"))["tests"]
tap = open(folder + "/tap").read().splitlines()
suite = xml.parse(folder + "/junit.xml").getroot()
assert len(tests) >= 105 and tap[0] == f"1..{len(tests)}" and len(suite.findall("testcase")) == len(tests) == int(suite.get("tests")) and suite.get("failures") == "0"
assert all(0 < t["score"] == t["max_score"] and t["status"] == "passed" for t in tests)' "$dir"
}

@test "classroom: every stub fails, with the message meant" {
    local dir=$BATS_TEST_TMPDIR
    run -0 make student OUT="$dir/student"
    run -1 grade --submission "$dir/student" --orders 1 --json "$dir/results.json" --junit "$dir/junit.xml"
    assert_line --regexp '^0 of [0-9]+ points$'
    published "$dir/results.json" "$dir/junit.xml"
    run -0 plain_python 'import json, re, sys
sys.path.insert(0, "tools/classroom")
import exercises
results = {test["number"]: test for test in json.load(open(sys.argv[1]))["tests"]}
for name, exercise in exercises.load().items():
    says = "predictions.json is missing" if exercise.kind == "predict" else exercise.says
    assert results[name]["score"] == 0 and re.search(says, results[name]["output"]), (name, says, results[name]["output"])' "$dir/results.json"
}

@test "classroom: the counters to be predicted are what the simulated GPU counts" {
    run -0 plain_python 'import json, re, subprocess, sys
sys.path.insert(0, "tools/classroom")
import exercises
for e in exercises.load().values():
    if e.kind != "predict": continue
    counted = sys.argv[1] + "/counts.json"
    subprocess.run([sys.argv[2], "--json", counted, f"build/chapters/{e.chapter}", "--golden", f"build/golden/{e.chapter}", "--step", e.step, "--case", e.case, *e.op_flags()],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [line for kernel in json.load(open(counted)) for line in kernel["lines"]]
    for q in e.questions:
        count = sum(line[q["field"]] for line in lines if re.search(q.get("line", ""), line["text"]))
        assert count == q["count"], (e.id, q["ask"], count)
    assert len(e.questions) == 5' "$BATS_TEST_TMPDIR" "$SIMGPU"
}

@test "classroom: a student's tree has no solution, builds, runs README's first command and grades" {
    local dir=$BATS_TEST_TMPDIR/student
    run -0 make student OUT="$dir" CHAPTERS=1
    assert_line --partial "5 exercises of chapters 1,"
    run ! grep -rq "j_col \* K\|for (int mask = 16" "$dir/chapters"
    run ! grep -q "^edits" "$dir/exercises/01.toml"
    run -2 make student OUT="$dir"
    assert_line --partial "expected a new or an empty folder"
    # What it would install and build again is as it is here.
    mkdir "$dir/build"
    cp -a build/config.mk build/simgpu "$dir/build"
    ln -s "$ROOT/.venv" "$dir/.venv"
    run -2 make -C "$dir" chapter-1 DEVICE=sim PROFILE=0
    assert_output --partial "1 uncoalesced"
    assert_output --partial "WRONG"
    run -2 make --no-print-directory -C "$dir" book
    assert_line "make book: a student's tree has only some of the notes; whoever made it has the book"
    # What GitHub runs at a push, as it is written.
    local commands=()
    mapfile -t commands < <(sed -n 's/^ *- run: //p' "$dir/.github/workflows/grade.yml")
    assert_equal "${#commands[@]}" 2
    run -0 env -C "$dir" bash -ec "${commands[0]}"
    run -2 env -C "$dir" bash -ec "${commands[1]}"
    assert_line --regexp "^0 of [0-9]+ points$"
    published "$dir/build/results.json" "$dir/build/grade.xml"
    # A solved exercise.
    cp chapters/01_naive_matmul/step2_coalesced.cu "$dir/chapters/01_naive_matmul"
    run make -C "$dir" grade EXERCISE=1.2
    assert_line "6 of 6 points"
    local named="$BATS_TEST_TMPDIR/Ada; touch mark" # as a folder of submissions may be called
    mkdir -p "$named/chapters"
    cp -r "$dir/chapters/01_naive_matmul" "$named/chapters"
    run make -C "$dir" grade EXERCISE=1.2 SUBMISSION="$named"
    assert_line "6 of 6 points"
    assert [ ! -e "$dir/mark" ]
    run bats -f '^1\.[34] ' "$dir/tests/exercises.bats"
    assert_line --regexp "^ok 1 1.3 "
    assert_line --regexp "^not ok 2 1.4 "
    # Handed in, and graded as Gradescope does it: unpacked, built, a results.json for each submission.
    run -0 make --no-print-directory -C "$dir" submission OUT="$BATS_TEST_TMPDIR/submission.zip"
    assert_line --partial "submission.zip: 3 files"
    assert_line "  without exercises/1.1/predictions.json"
    export AUTOGRADER=$BATS_TEST_TMPDIR/autograder
    echo '"1.3" = ["m=3,n=40,k=50"]' >"$BATS_TEST_TMPDIR/hidden.toml"
    run -0 make --no-print-directory gradescope OUT="$BATS_TEST_TMPDIR/autograder.zip" CHAPTERS=1 SEED=7 HIDDEN="$BATS_TEST_TMPDIR/hidden.toml"
    plain_python 'import os, sys, zipfile
for name, folder in ("autograder", "source"), ("submission", "submission"): # as unzip does it: times and modes too
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}.zip") as archive:
        for entry in archive.infolist():
            path = archive.extract(entry, f"{sys.argv[1]}/autograder/{folder}")
            os.chmod(path, entry.external_attr >> 16)
            os.utime(path, (315532800, 315532800))' "$BATS_TEST_TMPDIR"
    mv "$dir/build" "$dir/.venv" "$AUTOGRADER/source/tree"
    run -0 bash "$AUTOGRADER/source/run_autograder"
    plain_python 'import json, sys
results = json.load(open(sys.argv[1]))
assert results["score"] == 9 and [t["score"] for t in results["tests"]] == [0, 6, 3, 0, 0], results' "$AUTOGRADER/results/results.json"
}

@test "classroom: a container has what the cookbook runs with, and its last command sets it up" {
    plain_python 'import json
container = json.load(open(".devcontainer/devcontainer.json"))
command = container["postCreateCommand"].split()
assert container["build"] == {"dockerfile": "Dockerfile"} and command == ["make", "build/config.mk"], container'
    local package packages
    packages=$(sed -n 's/^RUN apt-get install -y --no-install-recommends //p' .devcontainer/Dockerfile)
    for package in $(sed -n '/^RUN=/,/^LINT=/p' tools/setup.sh | sed '/^LINT=/d' | grep -oE ':[a-z0-9+-]+' | tr -d :); do
        [[ " $packages " == *" $package "* ]] || fail "the container lacks $package, which tools/setup.sh installs"
    done
    run -0 make "$(sed -n 's/.*"postCreateCommand": "make \(.*\)".*/\1/p' .devcontainer/devcontainer.json)"
    compgen -G "/var/lib/apt/lists/*Packages*" >/dev/null || skip "apt knows no packages here"
    echo 'APT::Get::Simulate "true";' >"$BATS_TEST_TMPDIR/apt.conf"
    APT_CONFIG=$BATS_TEST_TMPDIR/apt.conf run -0 bash -ec "$(sed -n 's/^RUN \(apt-get install\)/\1/p' .devcontainer/Dockerfile)"
}

@test "classroom: predictions are asked for once, before the run, and graded" {
    local dir=$BATS_TEST_TMPDIR/student
    run -0 make student OUT="$dir" CHAPTERS=4
    cd "$dir"
    run -2 "$PYTHON" tools/classroom/predict.py 4 <<<$'256\n256'
    assert_line --partial "nothing was kept"
    run -0 "$PYTHON" tools/classroom/predict.py 4 <<<$'256\nmany\n256\n256\n1,024\n2048'
    assert_line --regexp "^right  wavefronts of ldmatrix_x4"
    assert_line --regexp "^not so sectors that the copies fetch: you said 1,024, it is 512"
    run -0 "$PYTHON" tools/classroom/predict.py 4 </dev/null
    assert_line --partial "has been predicted before"
    run -1 "$PYTHON" tools/classroom/grade.py --exercise 4.1
    assert_line "4 of 5 points"
    echo '[]' >exercises/4.1/predictions.json
    run -2 "$PYTHON" tools/classroom/predict.py 4
    assert_line --partial "does not have a number for each question"
}

@test "classroom: a grader whose own limits are lower than those that it sets keeps them" {
    solutions "$BATS_TEST_TMPDIR"
    ulimit -v $((80 << 20)) -f 32768
    run -0 grade --submission "$BATS_TEST_TMPDIR" --exercise 1.3
    assert_line "3 of 3 points"
}

@test "classroom: a barrier counts, whatever hides it: a macro, #line, or PTX that says it is elsewhere" {
    local own=exercises/5.5/step1_two_stage.cu dir=$BATS_TEST_TMPDIR hidden
    mkdir -p "$dir/${own%/*}"
    for hidden in '#define WAIT() __syncthreads()' '#define WAIT() asm volatile(".loc 1 1 0;\\n\\tbar.sync 0;" ::: "memory")' \
        '#line 1 "else.cu"\n__device__ static void WAIT() { __syncthreads(); }\n#line 40 "else.cu"'; do
        # The step as it is, with the first of its two barriers hidden.
        sed -e '0,/__syncthreads()/s//WAIT()/' -e "s|^constexpr int BLOCK_M = .*|$hidden\n&|" chapters/05_cp_async_pipeline/step1_two_stage.cu >"$dir/$own"
        run -1 grade --submission "$dir" --exercise 5.5 --orders 1
        assert_output --partial "barriers of a block, by warp: 128, expected at most 64"
        assert_line "0 of 6 points"
    done
}

# --- Hostile submissions --------------------------------------------------------------------------------------------

FILE=chapters/01_naive_matmul/step2_coalesced.cu

# submitted SED...: a submission whose step 2 is the stub, edited.
submitted() {
    SUBMISSION=$BATS_TEST_TMPDIR/submission
    rm -rf "$SUBMISSION"
    mkdir -p "$SUBMISSION/${FILE%/*}"
    plain_python 'import sys; sys.path.insert(0, "tools/classroom")
import exercises; print(exercises.cut(open(sys.argv[1]).read()), end="")' "$FILE" | sed -E "$@" >"$SUBMISSION/$FILE"
}

# no_point [PATTERN]: the submission gets none, the reason matches, and the grader's own file is whole.
no_point() {
    local results=$BATS_TEST_TMPDIR/results.json
    rm -f "$results"
    run -1 grade --submission "$SUBMISSION" --exercise 1.3 --json "$results" --seed 5
    assert_line "0 of 3 points"
    assert_output --regexp "${1:-WRONG}"
    run -0 plain_python 'import json, sys; assert json.load(open(sys.argv[1]))["score"] == 0' "$results"
}

# constructor CODE: host code that runs when the program is loaded.
constructor() { submitted "s|^#include <cuda_runtime.h>|&\n#include <cstdio>\n#include <cstdlib>\n#include <csignal>\n#include <unistd.h>\nstatic int attack = [] { $1; return 0; }();|"; }

@test "classroom: host code of a submission is not executed: results written, parents killed, forks, a full disk, an early exit" {
    local mark=$BATS_TEST_TMPDIR/mark
    constructor "FILE *f = fopen(\"$mark\", \"w\"); if (f) fclose(f); f = fopen(\"$BATS_TEST_TMPDIR/results.json\", \"w\"); if (f) fclose(f)"
    no_point
    constructor "kill(getppid(), SIGKILL); while (true) if (fork() < 0) abort()"
    no_point
    constructor "FILE *f = fopen(\"$mark\", \"w\"); while (f \&\& fputs(\"full\", f) >= 0) { }"
    no_point
    constructor "puts(\"01_naive_matmul: all 2 runs right\"); exit(0)"
    no_point
    [[ ! -e "$mark" ]]
}

@test "classroom: a kernel that says it is right, floods the output, loops or asks for memory gets no point" {
    submitted 's|^    const int lane = threadIdx.x;|&\n    if (row + col == 0) printf("01_naive_matmul: all 2 runs right\\n");|; s|^#include <cuda_runtime.h>|&\n#include <cstdio>|'
    no_point
    submitted 's|^    const int lane = threadIdx.x;|&\n    for (int i = 0; i < 100000; i++) printf("%d right right right right right right right right\\n", i);|; s|^#include <cuda_runtime.h>|&\n#include <cstdio>|'
    no_point "WRONG|ended by|warp instructions"
    submitted 's|^    const int lane = threadIdx.x;|&\n    while (true) atomicAdd(C, 1.0f);|'
    no_point "livelock|warp instructions"
    submitted 's|^constexpr int BLOCK_M = 8;|__device__ char large[8ull << 30];\n&|; s|^    const int lane = threadIdx.x;|&\n    large[M] = 1;|'
    no_point "memory|WRONG"
    submitted 's|^    const int lane = threadIdx.x;|&\n    C[1ull << 40] = 1;|'
    no_point "no device address"
}

@test "classroom: a kernel that includes what is not its own, is none, is a link or too long gets no point" {
    submitted "s|^#include <cuda_runtime.h>|&\n#include \"$ROOT/build/config.mk\"|"
    no_point "does not compile|includes"
    printf 'static int secret;\n' >"$BATS_TEST_TMPDIR/secret.h"
    submitted "s|^#include <cuda_runtime.h>|&\n#include \"$BATS_TEST_TMPDIR/secret.h\"|; s|static int secret|//|"
    no_point "includes .*secret.h|does not compile"
    printf '#include <cuda_runtime.h>\n' >"$BATS_TEST_TMPDIR/cuda_runtime.h" # the toolkit's is found by this name
    submitted "s|^#include <cuda_runtime.h>|#include \"$BATS_TEST_TMPDIR/cuda_runtime.h\"|"
    no_point "includes $BATS_TEST_TMPDIR/cuda_runtime.h"
    submitted 's|^extern "C"|template <int N> struct Bomb { Bomb<N + 1> a; }; Bomb<0> bomb;\n&|'
    no_point "does not compile"
    submitted 's/coalesced_kernel/other_kernel/g'
    no_point "kernel"
    ln -sf "$ROOT/$FILE" "$SUBMISSION/$FILE"
    no_point "no ordinary file"
    rm "$SUBMISSION/$FILE"
    no_point "is missing"
    mkfifo "$SUBMISSION/$FILE"
    no_point "no ordinary file"
    rm "$SUBMISSION/$FILE"
    head -c 300000 /dev/zero >"$SUBMISSION/$FILE"
    no_point "300000 bytes"
}

@test "classroom: an include, PTX or a print that pretends, state that is kept, memory that is searched get no point" {
    local include='^#include <cuda_runtime.h>' body='^    const int lane = threadIdx.x;'
    printf 'secret' >"$BATS_TEST_TMPDIR/secret.h"
    submitted "s|$include|&\n#line 1 \"/usr/include/stdio.h\"\n#define TEXT(path) #path\n#define PATH TEXT($BATS_TEST_TMPDIR/secret.h)\n#include PATH|"
    no_point "does not compile"
    submitted "s|$include|&\n#line 1 \"/usr/include/stdio.h\"\n#include \"$ROOT/common/harness/npy.h\"|"
    no_point "includes $ROOT/common/harness/npy.h"
    submitted "s|$body|&\n    asm volatile(\"ret; } .visible .entry other() { ret; } .func more() {\");|"
    no_point "expected"
    submitted "s|$body|&\n    asm volatile(\".extern .func (.param .b32 r) system(.param .b64 command);\");|"
    no_point "expected an instruction"
    submitted "s|$body|&\n    asm volatile(\"exit;\");|"
    no_point
    submitted "s|$body|&\n    __nanosleep(1u << 31);|"
    no_point
    # Right at the first launch that it sees, in the hope of a second.
    submitted "s|$include|&\n__device__ int launches;|; s|$body|&\n    if (atomicAdd(\&launches, 1) > 0) return;|"
    no_point
    submitted "s|$body|&\n    const_cast<float *>(A)[0] = 0, const_cast<float *>(B)[0] = 0, C[0] = 0;|"
    no_point
    submitted "s|$body|&\n    for (float *p = C - 4096; p < C; p++) C[0] = *p;|"
    no_point "out of bounds"
    submitted "s|$include|&\n#include <cstdio>|; s|$body|&\n    printf(\"\\\\033[2Jrank 0 of 1: the weights: 3 of 3 points\\\\n\");|"
    no_point
    refute_output --partial $'\033'
    rm -rf "$SUBMISSION"
    mkdir -p "$SUBMISSION/chapters" "$SUBMISSION/--exercise"
    ln -s "$ROOT/${FILE%/*}" "$SUBMISSION/${FILE%/*}"
    no_point "no ordinary file"
}

@test "classroom: other files of a submission do not count, and what is right for one seed or shape only is found" {
    submitted ''
    mkdir -p "$SUBMISSION/common" "$SUBMISSION/build" "$SUBMISSION/tools/classroom"
    cp -r common/harness "$SUBMISSION/common"
    sed -i 's/return false/return true/' "$SUBMISSION"/common/harness/*.c
    echo 'print("3 of 3 points")' >"$SUBMISSION/tools/classroom/grade.py"
    no_point
    # Right for the shapes that the exercise names, with their k.
    cp "$FILE" "$SUBMISSION/$FILE"
    sed -i -E 's|^    float sum = 0.0f;|&\n    if (K != 100 \&\& K != 31) return;|' "$SUBMISSION/$FILE"
    run -0 grade --submission "$SUBMISSION" --exercise 1.3
    echo '"1.3" = ["m=3,n=40,k=50"]' >"$BATS_TEST_TMPDIR/hidden.toml"
    run -1 grade --submission "$SUBMISSION" --exercise 1.3 --hidden "$BATS_TEST_TMPDIR/hidden.toml"
    assert_line "0 of 3 points"
    mkdir -p "$SUBMISSION/exercises/1.1"
    local predictions
    for predictions in '' '[]' '{"a": 1}' "$(printf '[%.0s' {1..100000})" 'null'; do
        echo "$predictions" >"$SUBMISSION/exercises/1.1/predictions.json"
        run -1 grade --submission "$SUBMISSION" --exercise 1.1
        assert_line "0 of 5 points"
    done
}

# host_lines LINE...: chapter 11's first step, these between the marks of 11.3, is the submission.
host_lines() {
    SUBMISSION=$BATS_TEST_TMPDIR/host
    local file=chapters/11_gpt2_training/step1_layer_by_layer.cu
    mkdir -p "$SUBMISSION/${file%/*}"
    printf '%s\n' "$@" >"$BATS_TEST_TMPDIR/lines"
    sed -e "/EXERCISE 11.3/r $BATS_TEST_TMPDIR/lines" -e '/EXERCISE 11.3/,/END/{/EXERCISE/b;/END/b;d}' "$file" >"$SUBMISSION/$file"
}

# no_point_for WHY LINE...: such lines get none.
no_point_for() {
    host_lines "${@:2}"
    run -1 grade --submission "$SUBMISSION" --exercise 11.3 --orders 1
    assert_line "0 of 3 points"
    assert_output --regexp "$1"
}

@test "classroom: of host code only marked lines run, and only calls of what the exercise names, with arrays of the device" {
    local line mark=$BATS_TEST_TMPDIR/mark step=chapters/11_gpt2_training/step1_layer_by_layer.cu
    for line in 'system("x");' 'm->rows = 0;' '*(float *)m += 1;' '#include "/etc/passwd"' 'ran(m, "%n", 0, 0, stream);' 'asm("nop");' \
        'forward_layer(m, l, stream);' 'R[m];' 'ran(&m);' 'attend_forward(m + 1, l, stream);' 'm->rows++;' '%: error' 'x ??= x;'; do
        no_point_for "step1_layer_by_layer.cu: found '.*', expected (names|calls)" "$line"
    done
    no_point_for "braces that do not match" '}' 'void f() {'
    no_point_for "does not compile" 'm->rows == R'
    # What host code calls writes to the device, or nowhere.
    no_point_for "no device address" 'gelu_exp2(T, x, m, 8, stream);'
    no_point_for "in no allocation" 'linear_forward(m, x, x, x, m, C, C, 1, stream);'
    no_point_for "out of bounds" 'residual_stream(T, x, branch, x2, (size_t)R * C * 1000000, stream);'
    # What is outside of the marks is this tree's.
    mkdir -p "$SUBMISSION/${step%/*}"
    { cat $step; echo "static __attribute__((constructor)) void first(void) { fclose(fopen(\"$mark\", \"w\")); }"; } >"$SUBMISSION/$step"
    sed -i 's/^    for (int l = 0; l < L; l++) forward_layer/    for (int l = 0; l < 0; l++) forward_layer/' "$SUBMISSION/$step"
    run -0 grade --submission "$SUBMISSION" --exercise 11.3 --orders 1
    assert_line "3 of 3 points"
    assert [ ! -e "$mark" ]
    sed -i '/EXERCISE 11.4/d' "$SUBMISSION/$step"
    run -1 grade --submission "$SUBMISSION" --exercise 11.3 --orders 1
    assert_output --partial "the marks of 11.4 are missing"
}

@test "classroom: what is asked for and is not there is refused in one line" {
    run -2 grade --exercise 9.9
    assert_output --partial "there is no exercise 9.9, expected one of 1.1,"
    run -2 grade --submission /nowhere
    assert_output --partial "no such folder"
    run -2 grade --chapters 99
    assert_output --partial "nothing to grade"
    run -2 grade --hidden /nowhere
    assert_line "grade: /nowhere: [Errno 2] No such file or directory: '/nowhere'"
    echo '"9.9" = []' >"$BATS_TEST_TMPDIR/hidden.toml"
    run -2 grade --hidden "$BATS_TEST_TMPDIR/hidden.toml"
    assert_output --partial "there is no exercise 9.9"
    run -2 make --no-print-directory student
    assert_line "make student: expected OUT=DIR, a new folder"
    run -2 make --no-print-directory hint-4.2 LEVEL=4
    assert_line "exercises: LEVEL=4: expected 1, 2 or 3"
    run -2 make --no-print-directory predict-22
    assert_line "predict: chapter 22 has no counters to predict"
    run -2 make --no-print-directory predict-x
    assert_line "predict: chapters x: found 'x', expected numbers such as 1-3,5"
}
