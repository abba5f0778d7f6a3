# What every Bats file of the cookbook loads. A chapter's file sets CHAPTER, its folder.
# shellcheck disable=SC2154 # CHAPTER
bats_require_minimum_version 1.5.0
bats_load_library bats-support
bats_load_library bats-assert

ROOT=$(cd "$BATS_TEST_DIRNAME" && while [[ ! -e Makefile ]]; do cd ..; done && pwd)
PYTHON=$ROOT/.venv/bin/python3
export SIMGPU=${SIMGPU_UNDER_TEST:-$ROOT/build/simgpu/simgpu}
export PYTHONPYCACHEPREFIX=$ROOT/build/pycache
unset PYTHONDONTWRITEBYTECODE # Without a cache, NumPy takes three times as long to load.
export OPENBLAS_NUM_THREADS=1 # NumPy's threads spin while they wait: the cores are for the tests that run beside each other.
# Programs that nvcc linked know nothing of a toolkit that the loader does not look in, such as the wheels'.
LD_LIBRARY_PATH=$(sed -n 's/^CUDA_LIB *:= *//p' "$ROOT/build/config.mk")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
# make must not take the outer make's flags, nor run.sh the caller's choices.
unset MAKEFLAGS MAKELEVEL DEVICE OP TYPE STEP CASE SHAPE SEED PROFILE TRACE

cd "$ROOT" || exit 1

# uses CHAPTER: the steps of other chapters that it calls; $(USES_OTHER) in its list stands for those of another chapter.
uses() {
    local word words
    read -ra words < <(sed -z 's/\\\n/ /g' "chapters/$1/chapter.mk" | sed -n 's/^USES *:= *//p') || return 0 # it calls none
    for word in "${words[@]}"; do
        if [[ $word == "\$(USES_"* ]]; then uses "${word:7:-1}"; else echo "chapters/$word.cu"; fi
    done
}

# objects CHAPTER [NAME]: the object files of a chapter's program, but for those called NAME.o. What an older tree left in build/
# is none of them.
objects() {
    local source name
    for source in "chapters/$1"/*.c "chapters/$1"/*.cu $(uses "$1") common/*/*.c common/*/*.cu; do
        name=${source##*/}
        [[ "$source" != chapters/* || "$source" == "chapters/$1/"* ]] && [[ "${name%.*}" == "${2:-}" ]] || echo "build/obj/${source%.*}.o"
    done
}

# chapter NAME: the program of a chapter, by its folder.
chapter() { echo "$ROOT/build/chapters/$1"; }

# all_right STEPS [OPERATION]: that many steps of $CHAPTER are right, each on every case (of one operation of several).
all_right() {
    local cases
    cases=$(find "build/golden/$CHAPTER/${2:-}" -name '*.npy' -printf '%h\n' | sort -u | wc -l)
    run -0 "$SIMGPU" "$(chapter "$CHAPTER")" --golden "build/golden/$CHAPTER" ${2:+--op "$2"}
    assert_line "$CHAPTER: all $((cases * $1)) runs right"
    refute_output --partial WRONG
}

# any_order CASE...: every step of $CHAPTER is right on these cases, whatever the order of the warps.
any_order() {
    local seed name
    for name in "$@"; do
        for seed in 1 2 3; do
            run -0 "$SIMGPU" --seed $seed "$(chapter "$CHAPTER")" --golden "build/golden/$CHAPTER" --case "$name"
        done
    done
}

# ladders "OPERATION STEP…"…: make diff-N compares each of these steps of $CHAPTER, and no other; a header has at most 25 lines, of which
# the last is the command that runs the step.
ladders() {
    local number=$((10#${CHAPTER%%_*})) op steps step file header
    run -0 make --no-print-directory "diff-$number"
    run -0 grep '^===' <<<"$output" # assert_line looks at every line
    for op in "$@"; do
        read -ra steps <<<"$op"
        for step in "${steps[@]:1}"; do
            file=$(find "chapters/$CHAPTER" -regex ".*/step[0-9]+_$step\.cu")
            assert_line --regexp "^=== (.* -> $file|$file grows from nothing)$"
            header=$(awk '!/^\/\// { exit } { print }' "$file")
            assert_equal "${header##*$'\n'}" "// Run: make chapter-$number OP=${steps[0]} STEP=$step"
            assert [ "$(wc -l <<<"$header")" -le 25 ]
        done
    done
    assert_equal "$(grep -c '^===' <<<"$output")" "$(find "chapters/$CHAPTER" -name 'step*.cu' | wc -l)"
}

# plain_python CODE [ARGS]: runs code that needs no more than Python has, at a tenth of the time.
plain_python() { "$PYTHON" -S -E -B -c "$@"; }

# python CODE [ARGS]: runs NumPy code with np imported; sys.argv[1:] are the arguments.
python() { "$PYTHON" -c "import sys, numpy as np; $1" "${@:2}"; }

# one_case CHAPTER CASE: a copy of one golden case in the test's own folder; sets CASE_DIR.
one_case() {
    CASE_DIR=$BATS_TEST_TMPDIR/$2
    rm -rf "$CASE_DIR"
    cp -r "$ROOT/build/golden/$1/$2" "$CASE_DIR"
}

# assert_one_line: what the command printed is a single line.
# shellcheck disable=SC2154 # Bats sets lines
assert_one_line() { assert_equal "${#lines[@]}" 1; }
