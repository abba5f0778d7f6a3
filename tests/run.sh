#!/usr/bin/env bash
# Runs Bats files, as many at a time as there are cores, and prints each test's line as it ends, its file's name in front, and
# how long each file took. Closes with what failed, once more where it is seen, and "N passed, M failed" alone on a line. A run
# without tests, or one that stops before its plan is done, fails.
#
# A file with the line "# Runs alone: WHY" runs before the others, by itself; these begin with the largest, which mostly take
# longest, so that no core idles at the end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

[[ $# -gt 0 ]] || { echo "tests/run.sh: no test files" >&2; exit 1; }
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT

# run_file FILE: prints its lines; leaves "PASSED FAILED SKIPPED" in a file of $counts, and the lines of what failed in another.
run_file() {
    local line name passed=0 failed=0 skipped=0 planned=0 missing to=/dev/null began=$SECONDS
    name=$(basename "$1" .bats)
    while IFS= read -r line; do
        case "$line" in
        1..*) planned=${line#1..} ; continue ;;
        "ok "*"# skip"*) skipped=$((skipped + 1)) to=/dev/null ;;
        "ok "*) passed=$((passed + 1)) to=/dev/null ;;
        "not ok "*) failed=$((failed + 1)) to=$counts/$name.failed ;;
        esac
        printf '%s: %s\n' "$name" "$line" | tee -a "$to"
    done < <(bats --print-output-on-failure --formatter tap "$1" 2>&1)
    missing=$((planned - passed - failed - skipped))
    [[ $planned -gt 0 ]] || missing=1
    [[ $missing -le 0 ]] || printf '%s: # %d planned tests never ran\n' "$name" "$missing" | tee -a "$counts/$name.failed"
    printf '%s: # %d tests in %d s\n' "$name" "$planned" $((SECONDS - began))
    echo "$passed $((failed + (missing > 0 ? missing : 0))) $skipped" >"$counts/${1//\//_}"
}

together=()
for file in "$@"; do
    if grep -qs '^# Runs alone: ' "$file"; then run_file "$file"; else together+=("$file"); fi
done
[[ ${#together[@]} -eq 0 ]] || mapfile -t together < <(stat -c '%s %n' "${together[@]}" | sort -rn | cut -d' ' -f2-)
for file in ${together[@]+"${together[@]}"}; do
    while [[ $(jobs -rp | wc -l) -ge $(nproc) ]]; do wait -n; done
    run_file "$file" &
done
wait

passed=0 failed=0 skipped=0
for file in "$@"; do
    read -r p f s <"$counts/${file//\//_}" || { p=0 f=1 s=0; }
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
cat "$counts"/*.failed 2>/dev/null
echo "$passed passed, $failed failed$([[ $skipped -eq 0 ]] || echo ", $skipped skipped")"
[[ $failed -eq 0 && $passed -gt 0 ]]
