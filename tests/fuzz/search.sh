#!/usr/bin/env bash
# search.sh READER MINUTES: lets libFuzzer look for input that breaks a reader, on one core. What it finds lies in
# build/fuzz/found: once the reader is mended, the smallest form of it belongs into tests/fuzz/READER.
set -euo pipefail
cd "$(dirname "$0")/../.."
reader=$1 minutes=$2
corpus=build/fuzz/corpus/$reader found=build/fuzz/found words=build/fuzz/words
mkdir -p "$corpus" "$found"
nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)

# What to begin with: the kernels of the simulator's tests, each a module of its own, and files that are linked; fatbins; arrays.
seeds() {
    case $reader in
    ptx)
        for source in tests/simgpu/{instructions,hopper,tensor}/*.cu; do
            $nvcc -std=c++17 -lineinfo -arch=compute_90a -ptx -o "$corpus/all.ptx" "$source"
            awk -v out="$corpus/$(basename "$source" .cu)" '
                /^\.visible \.entry/ { body = 1; file = out "-" ++n; printf "%s", head >file }
                { if (body) print >file; else head = head $0 "\n" }
                /^}/ { if (body) { close(file); body = 0 } }' "$corpus/all.ptx"
            rm "$corpus/all.ptx"
        done
        for source in functions variables; do # two files to link: tests/fuzz/ptx.c
            $nvcc -std=c++17 -rdc=true -arch=compute_90a -ptx -o "$corpus/$source" "tests/simgpu/programs/linked/$source.cu"
        done
        { cat "$corpus/functions" && printf '\f' && cat "$corpus/variables"; } >"$corpus/linked" ;;
    fatbin)
        for source in tests/simgpu/programs/{copies,spin}.cu; do
            $nvcc -arch=compute_90a -fatbin -o "$corpus/$(basename "$source" .cu)" "$source"
            $nvcc -arch=compute_90a -fatbin -no-compress -o "$corpus/$(basename "$source" .cu)-plain" "$source"
        done ;;
    npy) cp build/golden/*/*/*.npy "$corpus" 2>/dev/null || true ;;
    esac
    find "$corpus" -type f -size +8k -delete
}
[[ -n $(ls "$corpus") ]] || seeds
grep -ohE '"[a-z_0-9:.]+"' tools/simgpu/{front,exec}/*.c common/harness/npy.c | sort -u >"$words"

# What a module is made of is kept until its process ends, so each process gets a number of inputs only.
end=$((SECONDS + minutes * 60)) runs=0
while left=$((end - SECONDS)) && [[ $left -gt 0 ]]; do
    status=0
    log=$(ASAN_OPTIONS=detect_leaks=0 "build/fuzz/search/$reader" "$corpus" "tests/fuzz/$reader" -max_total_time="$left" -runs=20000 -max_len=8192 \
        -timeout=20 -rss_limit_mb=3000 -detect_leaks=0 -dict="$words" -artifact_prefix="$found/$reader-" -close_fd_mask=3 \
        -print_final_stats=1 2>&1) || status=$?
    runs=$((runs + $(sed -n 's|^stat::number_of_executed_units: *||p' <<<"$log" | tail -1)))
    [[ $status -eq 0 ]] || { tail -60 <<<"$log"; exit 1; }
done
echo "$reader: $runs inputs in $minutes minutes, nothing found"
