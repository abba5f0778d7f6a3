#!/usr/bin/env python3
"""check.py SITE CHECK,… SCREENSHOTS BANKS: opens the book in Chromium, as a reader does, and fails if a page complains or does not
do what it should. SCREENSHOTS: a folder for a picture after each check, or ""; BANKS: the program of tools/banks.c."""

import glob
import math
import os
import re
import subprocess
import sys

from browser import Browser

SITE = sys.argv[1]
SCREENSHOTS = sys.argv[3]


def page(name):
    return os.path.join(SITE, name)


def pages(browser):
    """Pages of text, on a desk and as narrow as on a phone, and of every folder's pages of code the longest: no complaint, and no text wider than
    its screen. Pages of code have the same head, and nothing else that a browser would fetch or run, so that one is as good as another."""
    everything = sorted(glob.glob(page("**/*.html"), recursive=True))
    html = {path: open(path, encoding="utf-8").read() for path in everything}
    texts = [path for path in everything if "mkdocs" in html[path][:3000]]
    assert len(texts) > 70 and len(everything) > 400, (len(texts), len(everything))
    heads, longest = set(), {}
    for path in sorted(set(everything) - set(texts), key=lambda path: len(html[path])):
        head, body = html[path].split("</head>", 1)
        heads.add(re.sub(r"<title>.*?</title>|(\.\./)+", "", head))
        assert set(re.findall(r"<(\w+)", body)) <= {"body", "header", "nav", "pre", "code", "span", "a", "b"}, path
        longest[os.path.dirname(path)] = path
    assert len(heads) == 1, heads
    for path in longest.values():
        browser.open(path)
    for path in texts:
        browser.size(1280, 900)
        browser.open(path)
        for width in 1280, 390:
            browser.size(width, 900)
            wide = browser.ask("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} pixels wide on a screen of {width}"


def code(browser):
    """A name of the code shows its definition beside the text, in the step that the text speaks of; Escape closes it."""
    browser.open(page("notes/14_warp_specialized_matmul.html"))
    browser.click("a.code-ref[href$='step6_stream_k.cu.html#give_partial']")
    shown = browser.ask("document.querySelector('#code-panel iframe').src")
    assert shown.endswith("/step6_stream_k.cu.html?default#give_partial"), shown
    text, panel = (browser.ask(f"document.querySelector('{of}').getBoundingClientRect().toJSON()") for of in ("article", "#code-panel"))
    assert text["right"] <= panel["left"] and panel["width"] > 500, (text, panel)
    browser.key("Escape")
    assert browser.ask("document.querySelector('#code-panel').hidden && !document.querySelector('#code-panel iframe')")
    browser.size(390, 844)
    browser.click("a.code-ref[href$='step6_stream_k.cu.html#give_partial']")
    browser.wait_for("document.querySelector('[aria-expanded=true].code-ref').getBoundingClientRect().bottom <="
                     " document.querySelector('#code-panel').getBoundingClientRect().top")
    browser.size(1280, 900)
    browser.open(page("chapters/14_warp_specialized_matmul/step6_stream_k.cu.html"), "?default#give_partial")
    target = browser.ask("document.querySelector(':target').textContent")
    assert "give_partial(" in target and "take_partials(" not in target, target
    browser.click("header nav a[title=few_rows]")
    browser.wait_for("location.pathname.endsWith('step7_few_rows.cu.html') && location.search == '?default' && location.hash == '#give_partial'")


def diffs(browser):
    """A step's diff is folded into the section on the code."""
    browser.open(page("notes/04_swizzled_smem.html"))
    assert browser.ask("[...document.querySelectorAll('details.diff')].map(d => d.open).join()") == "false,false"
    browser.click("details.diff:last-of-type summary")
    opened = browser.ask("document.querySelector('details.diff[open]').innerText")
    assert "step 2, swizzled" in opened and "\n+" in opened and "swizzle(" in opened, opened


def search(browser):
    """The search finds a word on pages that were opened from disk."""
    browser.open(page("index.html"))
    field = "input[data-md-component=search-query]"
    browser.ask(f"document.querySelector('{field}').focus()")
    browser.call("Input.insertText", text="setmaxnreg")
    browser.key("g")
    found = browser.wait_for("[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join(' ')")
    assert "14_warp_specialized_matmul.html" in found, found


def dark(browser):
    """The button of the head makes text, and the code beside it, dark and light."""
    browser.open(page("notes/04_swizzled_smem.html"))
    colors = []
    for _ in range(2):
        browser.click("form[data-md-component=palette] label:not([hidden])")
        browser.click("a.code-ref")
        colors.append(browser.ask("[getComputedStyle(document.body).backgroundColor, document.querySelector('#code-panel iframe').src.match(/[?](\\w+)/)[1]].join()"))
        browser.key("Escape")
    assert colors[0] != colors[1] and {c.split(",")[-1] for c in colors} == {"slate", "default"}, colors


def luminance(rgb):
    """Of a color 0 to 255: WCAG 2, relative luminance."""
    r, g, b = (c / 3294.6 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def figures(browser):
    """Words have 4.5 times the luminance of what they stand on, or less than that share of it (WCAG 2, AA), in every color of a box; they are
    at least 7.5 pixels high, and no figure is wider than the text or cuts off a word."""
    shown = """(() => {
        const rgb = text => text.match(/[\\d.]+/g).map(Number).slice(0, 3), boxes = [], bad = [];
        const page = rgb(getComputedStyle(document.body).backgroundColor);
        for (const svg of document.querySelectorAll('.figure svg')) {
            const around = svg.getBoundingClientRect(), scale = around.width / svg.viewBox.baseVal.width;
            if (around.right > document.querySelector('article').getBoundingClientRect().right + 1) bad.push('wide: ' + svg.ariaLabel);
            for (const text of svg.querySelectorAll('text')) {
                const at = text.getBoundingClientRect(), style = getComputedStyle(text);
                if (at.left < around.left - 2 || at.right > around.right + 2 || at.top < around.top - 2 || at.bottom > around.bottom + 2)
                    bad.push('cut off: ' + text.textContent + ' of ' + svg.ariaLabel);
                if (parseFloat(style.fontSize) * scale < 7.5) bad.push('small: ' + text.textContent);
                const box = text.previousElementSibling, own = box && box.tagName == 'rect' ? getComputedStyle(box) : null;
                const under = own && own.fill != 'none' ? rgb(own.fill).map((c, i) => {
                    const opacity = own.fillOpacity * (own.fill.startsWith('rgba') ? own.fill.match(/[\\d.]+/g)[3] : 1);
                    return c * opacity + page[i] * (1 - opacity)}) : page;
                boxes.push(JSON.stringify([rgb(style.fill), under]));
            }
        }
        return [[...new Set(boxes)].map(b => JSON.parse(b)), bad];
    })()"""
    names = [path for path in sorted(glob.glob(page("notes/*.html"))) if 'class="figure ' in open(path, encoding="utf-8").read()]
    assert len(names) > 15, names
    for width in 1280, 390:
        browser.size(width, 900)
        for path in names:
            browser.open(path)
            for _ in range(2):
                colors, bad = browser.ask(shown)
                assert not bad, (path, width, bad)
                for text, under in colors:
                    light, dim = sorted((luminance(text), luminance(under)), reverse=True)
                    assert (light + 0.05) / (dim + 0.05) >= 4.5, (path, text, under)
                browser.ask("document.querySelector('form[data-md-component=palette] label:not([hidden])').click()")


def formulas(browser):
    """Each formula is set, from fonts beside the pages; on a phone none is wider than the text, and what is wider than that can be scrolled."""
    names = [path for path in sorted(glob.glob(page("notes/*.html"))) if 'class="formula"' in open(path, encoding="utf-8").read()]
    assert len(names) >= 15, names
    fonts, scrolled = set(), 0
    for path in names:
        browser.size(390, 844)
        browser.open(path)
        loaded, bad, wide = browser.ask("""document.fonts.ready.then(() => {
            const all = [...document.querySelectorAll('.formula')], article = document.querySelector('article').getBoundingClientRect();
            return [[...document.fonts].filter(f => f.status == 'loaded').map(f => f.family),
                    all.filter(f => !f.querySelector('.katex-html .base') || f.querySelector('.katex-html').getBoundingClientRect().height < 8 ||
                                    f.getBoundingClientRect().right > article.right + 1 || f.textContent.includes('`')).map(f => f.textContent),
                    all.filter(f => f.scrollWidth > f.clientWidth && getComputedStyle(f).overflowX == 'auto').length]
        })""")
        assert not bad, (path, bad)
        fonts |= set(loaded)
        scrolled += wide
    assert {"KaTeX_Main", "KaTeX_Math", "KaTeX_Size2"} <= fonts and scrolled > 0, (fonts, scrolled)


def printed(browser):
    """Printed are text and pictures, without what is pressed or slides in."""
    browser.open(page("notes/04_swizzled_smem.html"))
    browser.click("a.code-ref")
    browser.call("Emulation.setEmulatedMedia", media="print")
    for what in "#code-panel", ".md-header", ".md-sidebar":
        assert browser.ask(f"getComputedStyle(document.querySelector('{what}')).display") == "none", what
    browser.call("Emulation.setEmulatedMedia", media="")


def choose(browser, explorer, name, value):
    """Turns one of an explorer's choices, as a reader's choice does."""
    browser.ask(f"(() => {{ const e = document.querySelector('#explorer-{explorer} [name={name}]'); e.value = '{value}';"
                " e.dispatchEvent(new Event('change')) })()")


def said(browser, explorer):
    return browser.ask(f"document.querySelector('#explorer-{explorer} .said').textContent")


def swizzle(browser):
    """The wavefronts of each layout, and that each chunk lies in the banks where tools/banks.c draws it."""
    browser.open(page("notes/04_swizzled_smem.html"))
    for row_bytes, bits, pattern, wavefronts in ((128, 0, "column", 8), (128, 1, "column", 4), (128, 2, "column", 2), (128, 3, "column", 1),
                                                 (144, 0, "column", 1), (64, 0, "column", 4), (64, 2, "column", 1), (32, 1, "column", 1),
                                                 (128, 3, "row", 1), (144, 0, "row", 1), (64, 2, "row", 1)):
        for name, value in ("row_bytes", row_bytes), ("bits", bits), ("pattern", pattern):
            choose(browser, "swizzle", name, value)
        for start in range(8):
            choose(browser, "swizzle", "from", start)
            assert said(browser, "swizzle").startswith(f"{wavefronts} wavefront"), (row_bytes, bits, pattern, start, said(browser, "swizzle"))
    drawn = subprocess.run([sys.argv[4]], check=True, capture_output=True, text=True).stdout.split("\n\n")[:3]
    for text, (row_bytes, bits) in zip(drawn, ((128, 0), (144, 0), (128, 3))):
        choose(browser, "swizzle", "row_bytes", row_bytes)
        choose(browser, "swizzle", "bits", bits)
        chunks = row_bytes // 16
        for row, line in enumerate(line for line in text.split("\n") if line.startswith("  row ")):
            kept = [int(number.strip("[]")) for number in line.split()[2:]]
            shown = browser.ask(f"[...Array(8).keys()].map(c => +document.querySelector(`[data-chunk='${{{row * chunks} + c}}']`).dataset.group)")
            assert shown == [kept.index(chunk) for chunk in range(8)], (row_bytes, bits, row, kept, shown)


def mbarrier(browser):
    """A phase ends when its arrival and its bytes are there, whichever comes last; a parity tells a phase from the next."""
    browser.open(page("notes/13_tma_wgmma_matmul.html"))

    def state():
        return browser.ask("[...document.querySelectorAll('#explorer-mbarrier td')].map(e => e.textContent).join(' | ')")

    new = "0, parity 0 | 1 | 0 | waits | passes"
    assert state() == new, state()
    for name, expected in (("expect", "0, parity 0 | 0 | 49152 | waits | passes"),
                           ("arrive", "0, parity 0 | 0 | 49152 | waits | passes"), ("A", "0, parity 0 | 0 | 32768 | waits | passes"),
                           ("B", "1, parity 1 | 1 | 0 | passes | waits"), ("B", "1, parity 1 | 1 | -32768 | passes | waits"),
                           ("expect", "1, parity 1 | 0 | 16384 | passes | waits"), ("A", "2, parity 0 | 1 | 0 | waits | passes"),
                           ("arrive", "3, parity 1 | 1 | 0 | passes | waits"), ("restart", new)):
        browser.click(f"#explorer-mbarrier [name={name}]")
        assert state() == expected, (name, state())
        assert name != "arrive" or state().startswith("3") or "over-arrival" in said(browser, "mbarrier")


def softmax(browser):
    """Merged tile by tile, of any size, the sum is that in one go, also where the maximum comes last."""
    browser.open(page("notes/08_online_softmax.html"))
    for scores in [1, 3, 2, 4], [5, -3, 0.5, 7, 7, -20], [-1000, 1000, 999]:
        choose(browser, "softmax", "scores", ", ".join(map(str, scores)))
        total = f"{sum(math.exp(score - max(scores)) for score in scores):.4f}"
        for size in 1, 2, 3, 4:
            choose(browser, "softmax", "size", size)
            assert said(browser, "softmax").startswith(f"0 of {len(scores)} scores merged")
            browser.click("#explorer-softmax [name=merge]", math.ceil(len(scores) / size))
            assert said(browser, "softmax") == f"All merged: s = {total}; in one go, from the maximum {max(scores):.4f}: {total}.", said(browser, "softmax")
    choose(browser, "softmax", "scores", "1, 3, 2, 4")
    choose(browser, "softmax", "size", 2)
    browser.click("#explorer-softmax [name=merge]", 2)
    rows = browser.ask("[...document.querySelectorAll('#explorer-softmax tr:nth-child(n + 2)')].map(r => r.innerText).join('\\n')")
    assert rows.split() == "1, 3 (3.0000, 1.1353) 0.0000 (3.0000, 1.1353) 2, 4 (4.0000, 1.1353) 0.3679 (4.0000, 1.5530)".split(), rows


with Browser() as chromium:
    for name in sys.argv[2].split(","):
        chromium.size(1280, 900)
        globals()[name](chromium)
        if SCREENSHOTS:
            chromium.screenshot(os.path.join(SCREENSHOTS, name + ".png"))
    if chromium.complaints:
        sys.exit("\n".join(chromium.complaints))
