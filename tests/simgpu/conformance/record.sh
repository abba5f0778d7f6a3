#!/usr/bin/env bash
# Records what this machine's GPU computes: runs every conformance variant on it and writes GPU.tar.gz beside this script,
# which is what the tests hold the simulated GPU to. record.sh [FILE] writes FILE instead.
set -euo pipefail
cd "$(dirname "$0")/../../.."

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0) || { echo "record.sh: no NVIDIA GPU here" >&2; exit 3; }
name=$(tr 'A-Z ' 'a-z_' <<<"${gpu#NVIDIA }" | tr -dc 'a-z0-9_')
file=${1:-tests/simgpu/conformance/$name.tar.gz}

# PTX for the simulated GPU, machine code for this one, whatever was built before.
rm -f build/tests/simgpu/conformance/conformance
make --no-print-directory build/tests/simgpu/conformance/conformance \
    SIMGPU_TEST_ARCH='-gencode arch=compute_90a,code=[compute_90a,sm_90a]'
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
build/tests/simgpu/conformance/conformance --record "$outputs"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$outputs" -cf - . | gzip -9n >"$file"
echo "recorded $gpu in $file"
