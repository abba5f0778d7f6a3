#!/usr/bin/env bash
# Puts every chapter to the test on this machine's GPU, beyond what make chapter-N runs:
#
#   tools/check_gpu.sh [CHAPTER...]     (make check-gpu builds first; numbers, all that this GPU can run if there are none)
#
# golden     every step on every case of the chapter
# random     every step on SHAPES (20) random shapes of each operation and type, against NumPy in float64 (tests/random_shapes.py; SEED=1), 200 at
#            a time, which are deleted once they were right: the next 200 have the next seed; JOBS (1) of these side by side
# memcheck, racecheck, synccheck, initcheck   compute-sanitizer's tools, every step on each operation's case of middle size
#
# On an H200 racecheck reports hazards in chapters 17 and 20: readers of a place, and its refill, where one lane arrives at the empty barrier for
# its warp, behind __syncwarp, or one thread for its warpgroup, behind a named barrier. With every lane arriving for itself, and nothing else
# changed, their runs are silent, as chapter 21's was, whose lanes do so since: the tool does not follow an arrival for others.
# initcheck does not follow what bulk copies write from shared memory, not even a kernel's that does nothing else: on an H200 it reports what chapter
# 17 reads of dQ's sum where the first part is stored, and there and on an H100 what step 6 of chapter 20 reads. The simulated GPU follows those, and
# finds nothing.
#
# PARTS="golden random": only these. What runs longer than LIMIT (300) seconds, of random shapes each 200, is stopped and named, and the next begins. What each printed
# lies in build/check_gpu. START: a program that the chapters are started by, such as a simulated GPU; SANITIZER: another compute-sanitizer.
# Exits with 1 if anything was wrong or stopped, 2 if there is nothing to run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

refuse() { printf 'check_gpu.sh: %s\n' "$*" >&2; exit 2; }
setting() { sed -n "s/^$1 *:= *//p" "$2"; }

[[ -e build/config.mk ]] || refuse "build/config.mk is missing: run make build first"
python=$(setting PYTHON build/config.mk)
gpu=$(setting GPU_NAME build/config.mk) gpu_arch=$(setting GPU_ARCH build/config.mk)
sanitizer=${SANITIZER:-$(dirname "$(setting NVCC build/config.mk)")/compute-sanitizer}
[[ -x "$sanitizer" ]] || sanitizer=$(type -P compute-sanitizer)
parts=${PARTS:-golden random memcheck racecheck synccheck initcheck}
shapes=${SHAPES:-20} seed=${SEED:-1} limit=${LIMIT:-300} parallel=${JOBS:-1}
read -ra start <<<"${START:-}"
out=build/check_gpu
BATCH=200 # random shapes of an operation and type at a time
[[ -n "$gpu" || ${#start[@]} -gt 0 ]] || refuse "this machine has no GPU; on the simulated one: make test"
for part in $parts; do
    [[ " golden random memcheck racecheck synccheck initcheck " == *" $part "* ]] ||
        refuse "PARTS: found '$part', expected some of golden, random, memcheck, racecheck, synccheck, initcheck"
done
for number in "$shapes" "$seed" "$limit" "$parallel"; do
    [[ "$number" =~ ^[1-9][0-9]*$ ]] || refuse "SHAPES, SEED, LIMIT, JOBS: found '$number', expected a whole number from 1"
done

chapters=()
for number in "${@:-[0-9][0-9]}"; do
    [[ "$number" =~ ^[0-9]$ ]] && number=0$number
    mapfile -t found < <(compgen -G "chapters/${number}_*/chapter.mk" | sort)
    [[ ${#found[@]} -gt 0 ]] || refuse "found chapter '$number', expected some of $(cd chapters && echo [0-9][0-9]_* | sed 's/_[a-z0-9_]*//g')"
    chapters+=("${found[@]}")
done

# random_batch CHAPTER MODULE FOLDER OP TYPE COUNT SEED [FLAG...]: makes so many cases, runs them, and says how that went. They stay if it went wrong.
random_batch() {
    local cases="$3/$4_$5_$7" printed status=0
    printed=$({ WORKERS=$((parallel > 1 ? 1 : 0)) "$python" tests/random_shapes.py "$2" "$4" "$5" "$6" "$7" "$cases" &&
        timeout -k 10 "$limit" "${start[@]}" "build/chapters/$1" "${@:8}" --golden "$cases"; } 2>&1) || status=$?
    if [[ $status -eq 0 ]]; then
        echo "$4 $5, seed $7: ${printed##*: }"
        rm -rf "$cases"
    else
        printf '%s\nwrong: %s %s, seed %s, status %s; the cases: %s\n' "$printed" "$4" "$5" "$7" "$status" "$cases"
    fi
}

# random_shapes CHAPTER FOLDER: all of them, and at last how many runs were right.
random_shapes() {
    local log=$2.log module types op type operations begun flags
    read -r module _ types <<<"$(setting GOLDEN "chapters/$1/chapter.mk")"
    mapfile -t operations < <(PYTHONPATH=reference "$python" -c "import $module; print(*$module.OPERATIONS, sep='\n')")
    [[ ${#operations[@]} -gt 0 ]] || return
    for ((begun = 0; begun < shapes; begun += BATCH)); do
        for op in "${operations[@]}"; do
            flags=(--op "$op")
            [[ ${#operations[@]} -gt 1 ]] || flags=()
            for type in ${types//,/ }; do
                while [[ $(jobs -rp | wc -l) -ge $parallel ]]; do wait -n; done
                random_batch "$1" "$module" "$2" "$op" "$type" $((shapes - begun < BATCH ? shapes - begun : BATCH)) $((seed + begun / BATCH)) \
                    "${flags[@]}" >>"$log" &
            done
        done
    done
    wait
    if grep -q '^wrong: ' "$log"; then return 1; fi
    echo "all $(awk '/ runs right$/ { sum += $(NF - 2) } END { print sum }' "$log") runs right" >>"$log"
}

# middle_cases CHAPTER FOLDER: of each operation's golden cases a link to the one of middle size.
middle_cases() {
    local parent cases
    find "build/golden/$1" -name '*.npy' -printf '%h\n' | xargs -n 1 dirname | sort -u | while read -r parent; do
        mapfile -t cases < <(du -s "$parent"/*/ | sort -n | cut -f2)
        mkdir -p "$2${parent#"build/golden/$1"}"
        ln -s "$PWD/${cases[${#cases[@]} / 2]%/}" "$2${parent#"build/golden/$1"}"
    done
}

wrong=0 ran=0
for file in "${chapters[@]}"; do
    chapter=$(basename "$(dirname "$file")")
    read -r arch _ <<<"$(setting ARCH "$file")"
    if [[ ${#start[@]} -eq 0 ]] && { [[ "$gpu_arch" -lt "${arch%a}" ]] || [[ "$arch" == *a && "$gpu_arch" != "${arch%a}" ]]; }; then
        echo "$chapter: left out, $gpu is sm_$gpu_arch and it needs sm_$arch"
        continue
    fi
    [[ -x build/chapters/$chapter && -d build/golden/$chapter ]] || refuse "build/chapters/$chapter is missing: run make build first"
    mkdir -p "$out/$chapter"
    for part in $parts; do
        log=$out/$chapter/$part.log folder=$out/$chapter/$part began=$SECONDS status=0
        rm -rf "$folder"
        command=("${start[@]}")
        case $part in
        golden) folder=build/golden/$chapter ;;
        random) ;;
        *)
            if [[ -z "$sanitizer" ]]; then
                echo "$chapter: $part left out, there is no compute-sanitizer"
                continue
            fi
            middle_cases "$chapter" "$folder"
            command=("$sanitizer" --tool "$part" --error-exitcode 9 "${start[@]}")
            ;;
        esac
        command+=("build/chapters/$chapter" --golden "$folder")
        [[ "$part" != *check ]] || command+=(--no-guards)
        if [[ "$part" == random ]]; then
            mkdir -p "$folder" && : >"$log" && random_shapes "$chapter" "$folder" || status=$?
        else
            timeout -k 10 "$limit" "${command[@]}" >"$log" 2>&1 || status=$?
        fi
        ran=$((ran + 1))
        case $status in
        0) said=$(grep -v '^=' "$log" | tail -n 1) ;;
        124 | 137) said="STOPPED after $limit s: $log" ;;
        *) said="FAILED with status $status: $log" ;;
        esac
        printf '%-28s %-9s %4d s  %s\n' "$chapter" "$part" $((SECONDS - began)) "${said#"$chapter": }"
        if [[ $status -eq 0 ]]; then
            [[ "$part" == golden ]] || rm -rf "${out:?}/$chapter/$part"
        else
            wrong=$((wrong + 1))
            grep -E ' (WRONG|wrong)|Error|error:|hazard' "$log" | head -n 5
        fi
    done
done
[[ $ran -gt 0 ]] || refuse "nothing of this runs here"
echo "$ran parts ran, $wrong of them failed"
[[ $wrong -eq 0 ]]
