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

# quotes NOTE FILE: the counters that sections 2 and 6 of a note quote are those in FILE, which simgpu --json wrote: every line of
# section 2's block by its file and line, every row of section 6's table of steps by its totals.
quotes() {
    python 'import json, os, re
note, path = sys.argv[1:]
kernels, text = json.load(open(path)), open(note, encoding="utf-8").read()
ratio = lambda c, what: "%d/%d" % (c[what], c[what + "_ideal"])
lines = {(os.path.basename(c["file"]), c["line"]): c for k in kernels for c in k["lines"]}
quoted = re.findall(r"^(step\w+\.cu):(\d+) +(\d+) +([\d.]+) (.*)$", text, re.M)
for file, line, count, lanes, rest in quoted:
    c = lines.get((file, int(line))) or sys.exit(f"{note} quotes {file}:{line}, where nothing is counted")
    says = [count, lanes] + re.findall(r"\d+/\d+", rest)
    counted = [str(c["warp_instructions"]), "%.1f" % (c["active_lanes"] / c["warp_instructions"])]
    counted += [ratio(c, what) for what in ("global_sectors", "shared_wavefronts") if c[what + "_ideal"]]
    if says != counted:
        sys.exit(f"{note} quotes {file}:{line} with {says}, counted are {counted}")
total = lambda k, what: sum(c[what] for c in k["lines"])
rows = re.findall(r"^\| \d+ (\w+) \| (.*) \|$", text[text.index("## 6"):text.index("<!-- results")], re.M)
for k, (name, cells) in zip(kernels, rows, strict=True):
    says = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= (?:\||$))", cells + " |")]
    counted = [k["instructions"], total(k, "shared_wavefronts"), total(k, "global_sectors")]
    if says != counted:
        sys.exit(f"{note} quotes {name} with {says}, counted are {counted}")
if not quoted or not rows:
    sys.exit(f"{note} quotes nothing")' "$@"
}
