#!/usr/bin/env bash
# Prints what each kernel file changes from the one before it: tools/diff.sh STEP1.cu STEP2.cu ...
set -euo pipefail

previous=''
for step in "$@"; do
    if [[ -n "$previous" ]]; then
        printf '\n=== %s -> %s\n' "$previous" "$step"
        diff -u --color=auto "$previous" "$step" || [[ $? -eq 1 ]]
    fi
    previous=$step
done
[[ $# -gt 1 ]] || echo "nothing to compare: one step, and it grows from no other chapter"
