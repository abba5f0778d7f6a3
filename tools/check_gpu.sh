#!/usr/bin/env bash
# Puts every chapter to the test on this machine's GPU, beyond what make chapter-N runs:
#
#   tools/check_gpu.sh [CHAPTER...]     (make check-gpu builds first; numbers, all that this GPU can run if there are none)
#
# golden     every step on every case of the chapter
# random     every step on SHAPES (20) random shapes of each operation and type, against NumPy in float64 (tests/random_shapes.py; SEED=1)
# memcheck, racecheck, synccheck, initcheck   compute-sanitizer's tools, every step on each operation's case of middle size
#
# On an H200 racecheck reports hazards in chapters 17 and 20: readers of a place, and its refill, where one lane arrives at the empty barrier for
# its warp, behind __syncwarp, or one thread for its warpgroup, behind a named barrier. With every lane arriving for itself, and nothing else
# changed, their runs are silent, as chapter 21's was, where they do so since: the tool does not follow an arrival for others.
# initcheck does not follow what bulk copies write from shared memory, not even a kernel's that does nothing else: on an H200 it reports what chapter
# 17 reads of dQ's sum where the first part is stored, and there and on an H100 what step 6 of chapter 20 reads. The simulated GPU follows those, and
# finds nothing.
#
# PARTS="golden random": only these. What runs longer than LIMIT (300) seconds is stopped and named, and the next begins. What each printed
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
shapes=${SHAPES:-20} seed=${SEED:-1} limit=${LIMIT:-300}
read -ra start <<<"${START:-}"
out=build/check_gpu
[[ -n "$gpu" || ${#start[@]} -gt 0 ]] || refuse "this machine has no GPU; on the simulated one: make test"
for part in $parts; do
    [[ " golden random memcheck racecheck synccheck initcheck " == *" $part "* ]] ||
        refuse "PARTS: found '$part', expected some of golden, random, memcheck, racecheck, synccheck, initcheck"
done
for number in "$shapes" "$seed" "$limit"; do
    [[ "$number" =~ ^[1-9][0-9]*$ ]] || refuse "SHAPES, SEED, LIMIT: found '$number', expected a whole number from 1"
done

chapters=()
for number in "${@:-[0-9][0-9]}"; do
    [[ "$number" =~ ^[0-9]$ ]] && number=0$number
    mapfile -t found < <(compgen -G "chapters/${number}_*/chapter.mk" | sort)
    [[ ${#found[@]} -gt 0 ]] || refuse "found chapter '$number', expected some of $(cd chapters && echo [0-9][0-9]_* | sed 's/_[a-z0-9_]*//g')"
    chapters+=("${found[@]}")
done

# random_cases CHAPTER FOLDER: cases of every operation and type, in folders as the chapter's own are.
random_cases() {
    local module types op type operations case
    read -r module _ types <<<"$(setting GOLDEN "chapters/$1/chapter.mk")"
    mapfile -t operations < <(PYTHONPATH=reference "$python" -c "import $module; print(*$module.OPERATIONS, sep='\n')")
    for op in "${operations[@]}"; do
        for type in ${types//,/ }; do
            "$python" tests/random_shapes.py "$module" "$op" "$type" "$shapes" "$seed" "$2/$type" || return
            mkdir -p "$2/cases/$([[ ${#operations[@]} -eq 1 ]] || echo "$op")"
            for case in "$2/$type"/*; do
                mv "$case" "$2/cases/$([[ ${#operations[@]} -eq 1 ]] || echo "$op/")${case##*/}_$type" || return
            done
        done
    done
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
        random)
            random_cases "$chapter" "$folder" >"$log" 2>&1 || status=$?
            folder=$folder/cases
            ;;
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
        [[ $status -ne 0 ]] || timeout -k 10 "$limit" "${command[@]}" >"$log" 2>&1 || status=$?
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
