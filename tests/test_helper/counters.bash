# The simulated GPU's counters. Load after common.
# shellcheck disable=SC2154 # common sets SIMGPU, a chapter's file CHAPTER

# counters FILE CHAPTER STEP CASE [FLAG...]: runs it and leaves simgpu's counters in FILE.
counters() { run -0 "$SIMGPU" --json "$1" "$(chapter "$2")" --golden "build/golden/$2" --step "$3" --case "$4" "${@:5}"; }

# total FILE FIELD [PATTERN]: the sum of a counter over the source lines whose text matches.
total() {
    plain_python 'import json, re, sys
f, field, pattern = sys.argv[1:]
print(sum(line[field] for k in json.load(open(f)) for line in k["lines"] if re.search(pattern, line["text"])))' "$1" "$2" "${3:-}"
}

# count STEP CASE FIELD [PATTERN]: such a sum for a step of $CHAPTER on one of its cases, which is run once for a test file.
count() {
    local json=$BATS_FILE_TMPDIR/$1.$2.json
    [[ -e "$json" ]] || counters "$json" "$CHAPTER" "$1" "$2"
    total "$json" "${@:3}"
}

# tabled NOTE FILE: the rows of the table of steps in section 6 of a note are the totals in FILE, which simgpu --json wrote.
tabled() {
    plain_python 'import json, re, sys
note, path = sys.argv[1:]
kernels, text = json.load(open(path)), open(note, encoding="utf-8").read()
rows = re.findall(r"^\| \d+ (\w+) \| (.*) \|$", text[text.index("## 6"):text.index("<!-- results")], re.M)
for k, (name, cells) in zip(kernels, rows, strict=True):
    says = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= (?:\||$))", cells + " |")]
    counted = [k["instructions"]] + [sum(c[what] for c in k["lines"]) for what in ("shared_wavefronts", "global_sectors")]
    if says != counted:
        sys.exit(f"{note} has {says} for {name}, counted are {counted}")' "$@"
}
