#!/usr/bin/env bash
# Records what this machine's GPU computes: runs every conformance variant on it and writes GPU.tar.gz beside this script,
# which is what the tests hold the simulated GPU to. record.sh [--program PROGRAM] [FILE] writes FILE instead, and runs a
# PROGRAM built elsewhere.
#
# A variant that fails takes its process with it, and one that hangs is ended after LIMIT seconds; the next process goes on
# after it. The recording of the others is written all the same, and the exit status is 1.
set -euo pipefail
LIMIT=${LIMIT:-60}

program=
[[ ${1:-} != --program ]] || { program=$(realpath "$2"); shift 2; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0) || { echo "record.sh: no NVIDIA GPU here" >&2; exit 3; }
name=$(tr 'A-Z ' 'a-z_' <<<"${gpu#NVIDIA }" | tr -dc 'a-z0-9_')
file=$(realpath "${1:-$(dirname "$0")/$name.tar.gz}")

if [[ ! $program ]]; then
    # PTX for the simulated GPU, machine code for this one, whatever was built before.
    cd "$(dirname "$0")/../../.."
    program=$PWD/build/tests/simgpu/conformance/conformance
    rm -f "$program"
    make --no-print-directory "$program" SIMGPU_TEST_ARCH='-gencode arch=compute_90a,code=[compute_90a,sm_90a]'
fi
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
for ((failed = 0; failed < 100; failed++)); do
    timeout "$LIMIT" "$program" --record "$outputs" && break
    sleep 1
done
for part in "$outputs"/*.part; do
    [[ ! -e $part ]] || { echo "not recorded: $(basename "$part" .part)"; rm "$part"; }
done
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$outputs" -cf - . | gzip -9n >"$file"
echo "recorded $(find "$outputs" -name '*.bin' | wc -l) variants on $gpu in $file"
((failed == 0))
