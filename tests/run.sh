#!/usr/bin/env bash
# Runs Bats files, each test's line as it ends, and closes with "N passed, M failed" alone on a line.
# A run without tests, or one that stops before its plan is done, fails.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

[[ $# -gt 0 ]] || { echo "tests/run.sh: no test files" >&2; exit 1; }
bats --formatter tap "$@" | awk '
    { print; fflush() }
    /^1\.\.[0-9]+/ { planned = substr($0, 4) + 0 }
    /^ok [0-9]+.*# skip/ { skipped++; next }
    /^ok [0-9]+/ { passed++ }
    /^not ok [0-9]+/ { failed++ }
    END {
        missing = planned - passed - skipped - failed
        if (missing > 0) { print "# " missing " planned tests never ran"; failed += missing }
        printf "%d passed, %d failed", passed, failed
        if (skipped) printf ", %d skipped", skipped
        print ""
        exit (failed > 0 || passed == 0)
    }'
status=("${PIPESTATUS[@]}")
[[ ${status[0]} -eq 0 && ${status[1]} -eq 0 ]]
