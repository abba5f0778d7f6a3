# A chapter's own step with one edit, made when the test runs so that it cannot drift. Load after common.
# shellcheck disable=SC2154 # common sets ROOT and SIMGPU

# device_code OLD NEW: says yes if all that differs is in the bodies of kernels and device functions: indented lines below a line
# that names one. Then the host's half of the object stays as it is, and need not be compiled again, which takes half the time.
device_code() {
    diff "$1" "$2" | awk '
        NR == FNR {
            if (/^[A-Za-z_]/) device = /__device__|__global__/ && !/__host__/
            body[FNR] = device && /^ /
            next
        }
        /^[0-9]/ {
            split($0, change, /[acd]/)
            last = split(change[1], line, ",")
            for (i = line[1]; i <= line[last]; i++) host += !body[i]
        }
        END { if (!host) print "yes" }' "$1" -
}

# compiled OUT COMMAND...: COMMAND -o OUT, which compiles files of the edited tree, $BATS_TEST_TMPDIR/tree. Half of the suite's time
# is the compiler's: what it has made of the same command and the same files before is in build/tests/edited, and with it the tree,
# since counters and reports look lines up in the file that was compiled.
compiled() {
    local out=$1 tree=$BATS_TEST_TMPDIR/tree kept
    shift
    kept=$ROOT/build/tests/edited/$({
        grep '^NVCC' build/config.mk
        printf '%s\n' "${@//"$tree"/}"
        (cd "$tree" && find -L . -type f -exec sha256sum {} + | sort)
    } | sha256sum | cut -d ' ' -f 1)
    if [[ ! -e $kept/made ]]; then # both get their names at once: the same may be made beside this
        mkdir -p "$kept"
        cp -rP "$tree" "$kept/$BASHPID.tree"
        mv -nT "$kept/$BASHPID.tree" "$kept/tree"
        "${@//"$tree"/"$kept/tree"}" -o "$kept/$BASHPID.made"
        mv "$kept/$BASHPID.made" "$kept/made"
    fi
    cp "$kept/made" "$out"
}

# edited CHAPTER FILE.cu SED...: builds the chapter's program with one step edited, or, HEADER=FILE.cuh, that header of the step; sets BROKEN.
edited() {
    local chapter=$1 file=$2 dir=$BATS_TEST_TMPDIR/tree arch nvcc cuda_lib objects is_device_code used edit=${HEADER:-$2}
    shift 2
    arch=$(sed -nE "s/^NEEDS_$chapter\/${file%.cu} *:= *//p" "chapters/$chapter/chapter.mk")
    arch=${arch:-$(sed -n 's/^ARCH *:= *//p' "chapters/$chapter/chapter.mk")}
    arch=${arch##* } # of several the newest
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    mkdir -p "$dir/chapters/$chapter" "$dir/common/device"
    ln -sfn "$ROOT/common/harness" "$dir/common/harness"
    ln -sf -t "$dir/common/device" "$ROOT"/common/device/*
    find "$ROOT/chapters/$chapter" \( -name '*.h' -o -name '*.cuh' \) -exec ln -sf -t "$dir/chapters/$chapter" {} +
    for used in $(uses "$chapter"); do ln -sfn "$ROOT/${used%/*}" "$dir/${used%/*}"; done
    cp "chapters/$chapter/$file" "$dir/chapters/$chapter"
    rm "$dir/chapters/$chapter/$edit" # of a header a link
    sed -E "$@" "chapters/$chapter/$edit" >"$dir/chapters/$chapter/$edit"
    run ! cmp -s "chapters/$chapter/$edit" "$dir/chapters/$chapter/$edit"
    is_device_code=$(device_code "chapters/$chapter/$edit" "$dir/chapters/$chapter/$edit")
    [[ ! ${ONE_TYPE:-} ]] || sed -E -i "$ONE_TYPE" "$dir/chapters/$chapter/"*.cu* "$dir/common/device/"{matmul_types,sm90_attention}.cuh
    local compile=("$nvcc" -std=c++17 -O3 -lineinfo -gencode "arch=compute_$arch,code=compute_$arch" "$dir/chapters/$chapter/$file")
    if [[ $is_device_code ]]; then
        compiled "$BATS_TEST_TMPDIR/edited.fatbin" "${compile[@]}" -fatbin
        objcopy --update-section ".nv_fatbin=$BATS_TEST_TMPDIR/edited.fatbin" "build/obj/chapters/$chapter/${file%.cu}.o" \
            "$BATS_TEST_TMPDIR/edited.o"
    else
        compiled "$BATS_TEST_TMPDIR/edited.o" "${compile[@]}" -c
    fi
    mapfile -t objects < <(objects "$chapter" "${file%.cu}")
    BROKEN=$BATS_TEST_TMPDIR/broken
    g++ -o "$BROKEN" "$BATS_TEST_TMPDIR/edited.o" "${objects[@]}" -L"$cuda_lib" -l:libcudart.so.13 -ldl -lm
}

# broken CHAPTER FILE.cu SED...: the same, with kernels for one type only, which are compiled in half to a quarter of the time:
# fp32 where the chapter has it, else bf16; HEAD_DIM=64: and for that head dimension; TILE_COLS=128: and for tiles of so many columns,
# of chapter 14's step 6; and for the narrowest tile of chapter 20. The launcher refuses the others, with
# cudaErrorNotSupported or cudaErrorInvalidValue.
broken() {
    local ONE_TYPE='s/dtype == BF16 \? launch<__nv_bfloat16>\([^)]*\)/dtype == BF16 ? cudaErrorNotSupported/
        s/dtype == F16 \? with_type\(__half\(\)\)/dtype == F16 ? cudaErrorNotSupported/
        s/dtype == F16 \? launch<__half, [0-9]+>\([^)]*\)/dtype == F16 ? cudaErrorNotSupported/
        s/launch\((__half|__nv_bfloat16)\(\), float\(\)\)|launch\(__half\(\), __half\(\)\)/cudaErrorNotSupported/g
        s/Shape<[23], (128|160|192), (true|false), (true|false)>\(\),? ?//g'
    [[ ! ${HEAD_DIM:-} ]] || ONE_TYPE+="
        /case (64|128|256): return launch\(t/{/case $HEAD_DIM:/!d}
        s/launch<__nv_bfloat16, $HEAD_DIM>/launch<KEPT>/; s/launch<__nv_bfloat16, [0-9]+>\([^)]*\)/cudaErrorNotSupported/; s/launch<KEPT>/launch<__nv_bfloat16, $HEAD_DIM>/"
    [[ ! ${TILE_COLS:-} ]] || ONE_TYPE+="
        s/\{$TILE_COLS, launch</{KEPT, launch</; s/\{[0-9]+, launch<[0-9]+, T, TC>\},?//g; s/KEPT/$TILE_COLS/"
    edited "$@"
}

# wrong CHAPTER STEP CASE [FLAG...]: the step gives a wrong answer, whatever the order of the warps.
wrong() {
    local seed
    for seed in 0 1 2 3; do
        run -1 "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$1" --step "$2" --case "$3" "${@:4}"
        assert_line --regexp "^$1: WRONG in 1 of 1 runs$"
    done
}

# faults CHAPTER STEP CASE [FLAG...]: the launch is stopped by a report that names the source file.
faults() {
    local seed
    for seed in 0 1 2 3; do
        run -3 "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$1" --step "$2" --case "$3" "${@:4}"
        assert_line --regexp "at .*/chapters/$1/step$2_[a-z0-9_]+\.cu:[0-9]+"
    done
}

# races CHAPTER STEP CASE [FLAG...]: it is stopped by a report of a race that names both lines.
races() {
    local seed
    for seed in 0 1 2 3; do
        run -3 "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$1" --step "$2" --case "$3" "${@:4}"
        assert_output --regexp "this (read|write) is not ordered after the (read|write) by .* at line [0-9]+: |is read before the cp.async .* and then a barrier for the others"
        assert_line --regexp "^  at .*/chapters/$1/(step[a-z0-9_]+\.cu|${HEADER:-step}):[0-9]+"
        assert_line "  against:"
    done
}

# fails CHAPTER STEP CASE [FLAG...]: the one or the other, as the order of the warps has it; STEP is a number or a name.
fails() {
    local seed
    for seed in 0 1 2 3; do
        run "$SIMGPU" --seed $seed "$BROKEN" --golden "build/golden/$1" --step "$2" --case "$3" "${@:4}"
        [[ $status -eq 1 || $status -eq 3 ]] || fail "seed $seed: exit status $status, expected 1 or 3"
        assert_output --regexp "$1: WRONG in 1 of 1 runs|at .*/chapters/$1/step($2_[a-z0-9_]+|[0-9]+_$2)\.cu:[0-9]+"
    done
}

# noted CHAPTER TEXT: the chapter's note quotes TEXT, and the last run printed it, … standing for what is left out.
noted() {
    python 'import re
note, text, printed = sys.argv[1:]
if text not in " ".join(open(note, encoding="utf-8").read().split()): sys.exit(f"{note} does not quote: {text}")
if not re.search(".*".join(map(re.escape, text.split("…"))), printed): sys.exit(f"{note} quotes: {text}\nprinted: {printed}")' \
        "notes/$1.md" "$2" "$output"
}
