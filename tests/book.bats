#!/usr/bin/env bats
# The book: what it is made of, what stops it, and, where there is a Chromium (tools/setup.sh browser), what a reader sees.
# SCREENSHOTS=DIR keeps a picture of each.

# The notes' backquotes are no commands.
# shellcheck disable=SC2016,SC2154
load test_helper/common

setup_file() {
    cc -o "$BATS_FILE_TMPDIR/banks" tools/banks.c
    cc -o "$BATS_FILE_TMPDIR/descriptor" tools/descriptor.c
    SECONDS=0
    make --no-print-directory book >"$BATS_FILE_TMPDIR/made" 2>&1 || { cat "$BATS_FILE_TMPDIR/made"; return 1; }
    echo "$SECONDS" >"$BATS_FILE_TMPDIR/seconds"
}

# reads CHECK…: what tests/book/check.py holds of the book in a browser.
reads() {
    command -v chromium >/dev/null || skip "no chromium; tools/setup.sh browser installs it"
    "$PYTHON" tests/book/check.py build/book/site "$1" "${SCREENSHOTS:-}" "$BATS_FILE_TMPDIR/banks"
}

# figure NAME…: what tests/book/figures.py holds of these figures.
figure() {
    local name
    for name; do "$PYTHON" tests/book/figures.py build/book/site "$name" "$BATS_FILE_TMPDIR/descriptor" || return 1; done
}

# small_book TEXT [FIGURES]: builds a book of chapters 1 to 4, where the note of chapter 4 has this text, and its figure or others.
small_book() {
    local tree=$BATS_TEST_TMPDIR/tree chapter
    if [[ ! -d "$tree" ]]; then
        mkdir -p "$tree/chapters" "$tree/notes"
        cp -r tools common "$tree"
        cp -r chapters/0[1-4]_* "$tree/chapters"
        mkdir "$tree/build"
        cp -r build/figures "$tree/build"
        printf '# Small\n\n[tools/simgpu](tools/simgpu)\n' >"$tree/README.md"
        echo '# Small' >"$tree/tools/simgpu/README.md"
        for chapter in "$tree"/chapters/*; do echo '# Small' >"$tree/notes/${chapter##*/}.md"; done
        printf '\n<!-- figure: fragments -->\n' >>"$tree/notes/03_tensor_core_matmul.md"
    fi
    printf '# 4 Small\n\n%s\n\n## 5 The code\n\n%s\n' "${2-<!-- figure: banks -->}" "$1" >"$tree/notes/04_swizzled_smem.md"
    "$PYTHON" "$tree/tools/book/book.py"
}

@test "book: make book takes less than two minutes and prints where the book is" {
    run -0 tail -n 1 "$BATS_FILE_TMPDIR/made"
    assert_output "build/book/site/index.html"
    assert [ "$(<"$BATS_FILE_TMPDIR/seconds")" -lt 120 ]
}

@test "book: a note's function is a link to where the step that the text speaks of defines it" {
    run -0 small_book 'Step 1 has a `load_tile`, step 2 another `load_tile()`, and all a `swizzle(offset, 2)`.'
    run -0 cat "$BATS_TEST_TMPDIR/tree/build/book/src/notes/04_swizzled_smem.md"
    assert_output --partial 'Step 1 has a <a class="code-ref" href="../chapters/04_swizzled_smem/step1_padded.cu.html#load_tile"><code>load_tile</code></a>'
    assert_output --partial 'step 2 another <a class="code-ref" href="../chapters/04_swizzled_smem/step2_swizzled.cu.html#load_tile"><code>load_tile()</code></a>'
    assert_output --partial '<a class="code-ref" href="../common/device/swizzle.cuh.html#swizzle"><code>swizzle(offset, 2)</code></a>'
}

@test "book: a function, a file or a link that is gone stops the build in one line" {
    local line
    for line in '`store_tiles` writes.|`store_tiles` is nowhere in the code that this note speaks of' \
        'See `step3_gone.cu`.|`step3_gone.cu` is no file of the repository; a foreign one is named under Sources' \
        'See [it](../chapters/04_swizzled_smem/step3_gone.cu).|links to ../chapters/04_swizzled_smem/step3_gone.cu, which is not there' \
        'See [it](../common/device/swizzle.cuh#unswizzle).|links to ../common/device/swizzle.cuh#unswizzle, and common/device/swizzle.cuh does not define unswizzle'; do
        run -1 small_book "${line%%|*}"
        assert_output "book: notes/04_swizzled_smem.md: ${line##*|}"
    done
}

@test "book: a figure that is not there, that is shown nowhere or twice, or has nothing to be drawn from stops the build in one line" {
    run -1 small_book '' '<!-- figure: bank -->'
    assert_output 'book: notes/04_swizzled_smem.md: the figure bank is none of this note'"'"'s, which are banks'
    run -1 small_book '' ''
    assert_output 'book: notes/04_swizzled_smem.md: the figure banks of this chapter is shown nowhere; <!-- figure: banks --> shows it'
    run -1 small_book '' "$(printf '<!-- figure: banks -->\n\n<!-- figure: banks -->')"
    assert_output 'book: notes/04_swizzled_smem.md: the figure banks is shown twice'
    rm "$BATS_TEST_TMPDIR/tree/build/figures/layouts.json"
    run -1 small_book ''
    assert_output --regexp '^book: build/figures/layouts.json: .*No such file.*; make book writes it$'
}

@test "book: a formula is set by KaTeX when the book is made; one that it cannot set stops the build in one line" {
    run -0 small_book 'A part is worth $`s\,e^{m_1}`$, and

```math
\frac{a_*}{b_*}
```'
    run -0 grep -E '^A part is worth <span class="formula".*<annotation.*, and$' "$BATS_TEST_TMPDIR/tree/build/book/src/notes/04_swizzled_smem.md"
    assert [ -s "$BATS_TEST_TMPDIR/tree/build/book/site/book/katex/fonts/KaTeX_Math-Italic.woff2" ]
    run -0 python 'import html, re; page = open(sys.argv[1]).read(); print(page.count("class=\"katex-html\""), *map(html.unescape, re.findall(r"tex\">([^<]*)</annotation>", page)))
' "$BATS_TEST_TMPDIR/tree/build/book/site/notes/04_swizzled_smem.html"
    assert_output '2 s\,e^{m_1} \frac{a_*}{b_*}'
    run -1 small_book 'A part is worth $`\frac{1`$.'
    assert_output --regexp '^book: notes/04_swizzled_smem.md: KaTeX parse error: .*: \\frac\{1$'
    run -1 small_book "$(printf '```math\na_1 +\n\\sofmax(x)\n```')"
    assert_output --regexp '^book: notes/04_swizzled_smem.md: KaTeX parse error: Undefined control sequence: .*$'
}

@test "book: a picture right above a figure is GitHub's, and is left out" {
    run -0 small_book '' "$(printf '![a bank map](figures/gone.svg)\n\n<!-- figure: banks -->')"
    run -0 cat "$BATS_TEST_TMPDIR/tree/build/book/src/notes/04_swizzled_smem.md"
    assert_output --partial '<figure class="figure row" id="figure-banks"'
    refute_output --partial 'gone.svg'
}

@test "book: the bank map, the fragments, the accumulators and the descriptor are those of the formulas" {
    figure banks fragments accumulators descriptor
}

@test "book: the pipeline's stages are copied and multiplied in the order of note 5" { figure pipeline; }

@test "book: a ladder's bars and a roofline's points are those of results/" { figure ladder roofline; }

@test "book: a figure shows the layout and the order that a kernel has, also one that was changed" {
    local tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree/chapters" "$tree/tools"
    cp -r common "$tree"
    cp -r tools/book "$tree/tools"
    cp -r chapters/0[345]_* "$tree/chapters"
    sed -i 's/swizzle(row \* ROW_BYTES + col \* sizeof(__nv_bfloat16), SWIZZLE_BITS)/(row * ROW_BYTES + col * 2)/' "$tree/chapters/04_swizzled_smem/step2_swizzled.cu"
    sed -i 's/cp_async_wait_group<NUM_STAGES - 2>()/cp_async_wait_group<0>()/' "$tree/chapters/05_cp_async_pipeline/step2_multi_stage.cu"
    "$(sed -n 's/^NVCC *:= //p' build/config.mk)" -std=c++17 -O1 -cudart shared -gencode arch=compute_90a,code=compute_90a -o "$tree/layouts" "$tree/tools/book/layouts.cu"
    build/simgpu/simgpu "$tree/layouts" >"$tree/layouts.json"
    run -0 python 'import json, sys
was, now = (json.load(open(path)) for path in sys.argv[1:])
print(was["banks"]["swizzled"] == was["banks"]["plain"], now["banks"]["swizzled"] == now["banks"]["plain"], now["banks"]["padded"] == was["banks"]["padded"])
print(*({value for kind, value in of["orders"]["multi_stage"]["notes"] if kind == "wait"} for of in (was, now)))' build/figures/layouts.json "$tree/layouts.json"
    assert_output "$(printf 'False True True\n{1} {0}')"
}

@test "book: a link to a place that a page does not have, to no page, or to what is fetched from outside is named" {
    local site=$BATS_TEST_TMPDIR/site
    mkdir "$site"
    printf '<h1 id="top">1</h1><a href="#top">a</a><a href="b.html#x">b</a><a href="https://example.org">c</a>' >"$site/a.html"
    printf '<p id="x">2</p><a href="a.html#bottom">a</a><a href="c.html">c</a><script src="https://example.org/x.js"></script>' >"$site/b.html"
    run -1 python 'import sys; sys.path.insert(0, "tools/book"); import links; links.check_links(sys.argv[1])' "$site"
    assert_output "$(printf '%s\n' 'book: b.html: a.html#bottom leads to a page without the place bottom' 'book: b.html: c.html leads nowhere' \
        'book: b.html: https://example.org/x.js is fetched from outside' 'book: 3 dead links')"
}

@test "book: what a file defines is found with its comment, whatever stands before its name" {
    run -0 python 'import sys; sys.path.insert(0, "tools/book"); from definitions import definitions
print(*definitions(sys.argv[1]).items(), sep="\n")' "$(printf '%s\n' '#define TWICE(x) (2 * (x))' 'constexpr int ROWS = 3, COLS = 4; // two' '' \
        '// Loads.' 'template <typename T, int N>' 'static __device__ void load_tile(T (&to)[N],' '                                 int n)' \
        '{' '    if (n) return;' '}' '' '__global__ void __launch_bounds__(128, min(1, 2)) __cluster_dims__(2)' '    some_kernel(int n)' '{' '}' \
        'static inline int one() { return 1; }' 'int declared(int n);' 'struct State {' '    int stage;' '};')"
    assert_output "('TWICE', (1, 1))
('ROWS', (2, 2))
('load_tile', (4, 10))
('some_kernel', (12, 15))
('one', (16, 16))
('State', (18, 20))"
}

@test "book: no page complains in its console, fetches anything, or is wider than its screen" { reads pages; }

@test "book: a function shows beside the text, its diff folded in, and the search finds" { reads code,diffs,search; }

@test "book: dark, light and printed" { reads dark,printed; }

@test "book: a figure's words can be read, dark and light, on a desk and on a phone" { reads figures; }

@test "book: formulas are set, in fonts of the book's own, and a wide one scrolls in its own box" { reads formulas; }

@test "book: the explorers turn: swizzle, mbarrier, online softmax" { reads swizzle,mbarrier,softmax; }
