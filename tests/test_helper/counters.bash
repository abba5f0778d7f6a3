# The simulated GPU's counters. Load after common.
# shellcheck disable=SC2154 # common sets SIMGPU

# counters FILE CHAPTER STEP CASE [FLAG...]: runs it and leaves simgpu's counters in FILE.
counters() { run -0 "$SIMGPU" --json "$1" "$(chapter "$2")" --golden "build/golden/$2" --step "$3" --case "$4" "${@:5}"; }

# total FILE FIELD [PATTERN]: the sum of a counter over the source lines whose text matches.
total() {
    python 'import json, re
f, field, pattern = sys.argv[1:]
print(sum(line[field] for k in json.load(open(f)) for line in k["lines"] if re.search(pattern, line["text"])))' "$1" "$2" "${3:-}"
}
