#!/usr/bin/env bats
# What README and notes say is so.

load test_helper/common
shopt -s extglob

setup() {
    DOCS=(README.md)
    local note
    for note in notes/*.md; do [[ ! -e "$note" ]] || DOCS+=("$note"); done
}

@test "docs: every make command of README and the notes is a target of the Makefile" {
    local target rules
    rules=$(make -pn doctor | sed -nE 's/^([a-z][A-Za-z0-9_%-]*):.*/\1/p')
    while read -r target; do
        grep -qxF -e "$target" -e "${target%-*}-%" <<<"$rules" || fail "make $target: no such target"
    done < <(grep -ohE '(^|`)make [a-z][A-Za-z0-9-]*' "${DOCS[@]}" | awk '$2 !~ /-N$/ { print $2 }' | sort -u)
}

@test "docs: README has a line for every chapter, and each names its oldest GPU" {
    local folder arch
    for folder in chapters/*/; do
        arch=$(sed -n 's/^ARCH *:= *//p' "$folder/chapter.mk")
        run grep -F "(${folder%/})" README.md
        assert_success
        assert_output --regexp "from sm_$arch;"
    done
}

@test "docs: README's and the notes' tables are what results/ and the headers of the kernels say" {
    run -0 "$PYTHON" tools/report.py --check
}

@test "docs: links to files in README and the notes lead somewhere" {
    local file link
    for file in "${DOCS[@]}"; do
        while read -r link; do
            [[ "$link" == http* || "$link" == \#* ]] || [[ -e "$(dirname "$file")/${link%%#*}" ]] ||
                fail "$file links to $link, which is not there"
        done < <(grep -oE '\]\([^) ]+\)' "$file" | sed 's/^](//; s/)$//')
    done
}

# quotes FILE: each line that the file shows of what a `make chapter-N` prints: the command, a tab, the line. The command is the
# section's last one that began a line before the block.
quotes() {
    awk '/^`make / { split($0, part, "`"); command = part[2] }
         /^#/ && !block { command = "" }
         /^```/ { block = block ? "" : $0; next }
         block == "```" && command ~ /^make chapter-/ && !/^ *(…)?$/ { print command "\t" $0 }' "$1"
}

@test "docs: what README and notes show of make chapter-N is what it prints, … standing for what is left out" {
    local file command line
    [[ -z "$(compgen -G '/dev/nvidia[0-9]*')" ]] || skip "this machine has a GPU, which prints something else"
    for file in README.md notes/01_*.md notes/02_*.md notes/03_*.md notes/04_*.md notes/05_*.md notes/06_*.md notes/07_*.md notes/08_*.md notes/09_*.md notes/10_*.md notes/11_*.md notes/12_*.md notes/13_*.md notes/14_*.md notes/18_*.md notes/19_*.md notes/20_*.md notes/21_*.md notes/22_*.md notes/reading_a_profile.md; do
        quotes "$file" >"$BATS_TEST_TMPDIR/quotes"
        assert [ "$(wc -l <"$BATS_TEST_TMPDIR/quotes")" -ge 3 ]
        while read -r command; do
            read -ra line <<<"$command"
            "${line[@]}" >"$BATS_TEST_TMPDIR/printed" 2>&1 || fail "$file: $command fails"
            run -0 python 'import re
printed = {" ".join(line.split()) for line in open(sys.argv[1])}
for shown in open(sys.argv[2]):
    command, line = shown.split("\t")
    pattern = re.compile(".*".join(map(re.escape, " ".join(line.split()).split("…"))))
    if command == sys.argv[3] and not any(map(pattern.fullmatch, printed)): print(line, end="")' \
                "$BATS_TEST_TMPDIR/printed" "$BATS_TEST_TMPDIR/quotes" "$command"
            [[ -z "$output" ]] || fail "$file: $command does not print: $output"
        done < <(cut -f1 "$BATS_TEST_TMPDIR/quotes" | sort -u)
    done
}

# What is drawn in the first block of the note's section 3, without the lines that stand for others.
drawing() {
    sed -n '/^## 3/,/^## 4/p' "$1" | awk '/^```/ { if (inside++) exit; next } inside && !/^ *…$/ { sub(/ +$/, ""); print }'
}

@test "docs: what notes 4 and 13 draw is what tools/banks.c and tools/descriptor.c print" {
    local line tool printed=$BATS_TEST_TMPDIR/printed drawn=$BATS_TEST_TMPDIR/drawn
    for tool in banks descriptor; do
        cc -o "$BATS_TEST_TMPDIR/$tool" "tools/$tool.c"
        "$BATS_TEST_TMPDIR/$tool" | sed 's/ *$//' > "$printed.$tool"
    done
    drawing notes/04_swizzled_smem.md > "$drawn"
    assert [ "$(wc -l < "$drawn")" -gt 10 ]
    while IFS= read -r line; do
        grep -qxF -- "$line" "$printed.banks" || fail "banks does not print: $line"
    done < "$drawn"
    drawing notes/13_tma_wgmma_matmul.md | diff - "$printed.descriptor"
}

@test "docs: a tile that is not at a multiple of 1024 has no descriptor to draw" {
    cc -o "$BATS_TEST_TMPDIR/descriptor" tools/descriptor.c
    run -2 "$BATS_TEST_TMPDIR/descriptor" 100
    assert_output --partial "a multiple of 1024"
}

@test "docs: nothing committed names a path of the machine it was written on" {
    run grep -rnsE '(^|[^a-z])/(work|farm|root)/' --include='*' README.md Makefile .ci notes chapters common library reference tests tools \
        --exclude=docs.bats
    assert_output ""
}

@test "docs: every question of a note has its answer, under the same number" {
    local note
    for note in notes/[0-9]*.md; do
        run -0 sed -nE '/^## [0-9]+ Exercises/,/^## [0-9]+ Sources/s/^([0-9]+)\. .*/\1/p' "$note"
        assert [ "${#lines[@]}" -ge 3 ]
        assert_equal "$(sed -nE 's/^([0-9]+)\. .*/\1/p' "notes/answers/${note##*/}")" "$output"
    done
}

@test "docs: make help lists every command of the Makefile" {
    local target
    run -0 make help
    for target in chapter-N chapters diff-N trace-N test build golden bench simgpu library report timelines book sass conformance-record lint format doctor clean help; do
        assert_line --regexp "^ +$target "
    done
}

@test "docs: make doctor finds what the Makefile uses" {
    run -0 make doctor
    assert_line --regexp '^  nvcc +13\.'
    assert_line --regexp '^  PTX +ISA [0-9]+\.[0-9]+ is what this nvcc emits$'
    assert_line --regexp '^  numpy +[0-9.]+ of .*python3$'
    assert_line --regexp '^  GPU +(none found|.*sm_)'
    assert_line 'to run chapters:'
    assert_line 'to test them:'
    assert_line --regexp '^  ml_dtypes +[0-9.]+ in \.venv$'
    assert_line 'to lint:'
}

@test "docs: every step's header says what it grows from, names a step that is there, and ends with the command that runs it" {
    local number folder file name header
    for number in 1 2 3 4 5 13 14; do
        run -0 make --no-print-directory diff-$number
        run -0 grep '^===' <<<"$output" # assert_line looks at every line
        folder=$(printf 'chapters/%02d_' "$number")
        for file in "$folder"*/step*.cu; do
            assert_line --regexp "^=== (.* -> $file|$file grows from nothing)$"
            name=${file##*/step*([0-9])_}
            header=$(awk '!/^\/\// { exit } { print }' "$file")
            assert_equal "${header##*$'\n'}" "// Run: make chapter-$number STEP=${name%.cu}"
            assert [ "$(wc -l <<<"$header")" -le 25 ]
        done
    done
}

# diff_of STEP1 STEP2: what tools/diff.py prints of two steps of a chapter made of these texts.
diff_of() {
    local dir=$BATS_TEST_TMPDIR/tree
    mkdir -p "$dir/tools" "$dir/chapters/01_x"
    cp tools/diff.py tools/steps.py "$dir/tools"
    printf '%s\n' "$1" >"$dir/chapters/01_x/step1_one.cu"
    printf '%s\n' "$2" >"$dir/chapters/01_x/step2_other.cu"
    "$PYTHON" "$dir/tools/diff.py" 01_x
}

@test "docs: make diff-N leaves out headers, the steps' own names and line breaks that moved with them" {
    local one other
    one='// Grows from: nothing.
__global__ void one_kernel(int *a, // (n)
                           int n)
{
    a[0] = n; // one
}
extern "C" cudaError_t one(int *a)
{
    one_kernel<<<1, 1>>>(a, 1);
}'
    other='// Grows from: step 1 (one).
__global__ void
    other_kernel(int *a, // (n)
                 int n)
{
    a[0] = n + 2; // one
}
extern "C" cudaError_t
other(int *a)
{
    other_kernel<<<1, 1>>>(a, 1);
}'
    run -0 diff_of "$one" "$other"
    assert_line "=== chapters/01_x/step1_one.cu -> chapters/01_x/step2_other.cu"
    assert_equal "$(grep -E '^[-+] ' <<<"$output")" "$(printf '%s\n' '-    a[0] = n; // one' '+    a[0] = n + 2; // one')"
}

@test "docs: a header that names a step which is not there, or none, is an error in one line" {
    local line
    for line in "step 1 (two)." "step 3 (one)." "step 2 (other)." "chapter 2, step 1 (one)."; do
        run -1 diff_of '// Grows from: nothing.' "// Grows from: $line"
        assert_line --partial "chapters/01_x/step2_other.cu: 'Grows from: $line' names a step that is not there"
    done
    run -1 diff_of '// Grows from: nothing.' '// Grows from: step 1'
    assert_line --partial "step2_other.cu: found 'Grows from: step 1', expected 'Grows from: [chapter N, ]step K (NAME).'"
    run -1 diff_of '// A step.' '// Grows from: step 1 (one).'
    assert_line --partial "step1_one.cu: 0 lines of the header begin with 'Grows from:', expected one"
}
