#!/usr/bin/env bash
# Assembles one kernel file for one architecture and judges what ptxas says about it.
#
#   tools/sass.sh NVCC SOURCE.cu ARCH OUT.cubin [NVCC FLAGS]
#
# Prints a line for each kernel: registers, shared memory and spilled bytes. Fails on a ptxas warning or advisory
# (C7510: wgmma serialised, C7508: setmaxnreg ignored, ...) and on register spills, unless the file has the line
# "// spills: allowed" with the reason behind it.
set -euo pipefail

nvcc=$1 source=$2 arch=$3 out=$4
log=${out%.cubin}.log
mkdir -p "$(dirname "$out")"
if ! "$nvcc" "${@:5}" -cubin -arch="sm_$arch" -Xptxas -v -o "$out" "$source" 2>"$log"; then
    cat "$log" >&2
    exit 1
fi
allowed=0
grep -q '^// spills: allowed' "$source" && allowed=1
awk -v source="$source" -v arch="sm_$arch" -v allowed="$allowed" '
    /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2] }
    /bytes spill stores/ { match($0, /[0-9]+ bytes spill stores/); spilled = $0; sub(/ bytes spill stores.*/, "", spilled); sub(/.* /, "", spilled) }
    /Used [0-9]+ registers/ {
        registers = $0; sub(/.*Used /, "", registers); sub(/ registers.*/, "", registers)
        shared = 0
        if ($0 ~ /bytes smem/) { shared = $0; sub(/ bytes smem.*/, "", shared); sub(/.* /, "", shared) }
        printf "%-52s %-8s %4d registers %7d B shared %5d B spilled  %s\n", source, arch, registers, shared, spilled, kernel
        if (spilled > 0 && !allowed) { print source ": " kernel " spills " spilled " bytes of registers on " arch > "/dev/stderr"; bad = 1 }
    }
    /warning|\(C7[0-9]+\)/ { print source ": " $0 > "/dev/stderr"; bad = 1 }
    END { exit bad }' "$log" | c++filt -p
