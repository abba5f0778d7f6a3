#!/usr/bin/env python3
"""check.py SITE CHECK [SCREENSHOTS]: opens the book in Chromium, as a reader does, and fails if a page complains or does not do what it should."""

import glob
import os
import sys

from browser import Browser

SITE = sys.argv[1]
SCREENSHOTS = sys.argv[3] if len(sys.argv) > 3 else None


def page(name):
    return os.path.join(SITE, name)


def pages(browser):
    """Every page of text, and a page of code of each folder, at desk and phone width: no complaint, and nothing wider than a phone."""
    everything = sorted(glob.glob(page("**/*.html"), recursive=True))
    is_code = [path for path in everything if "mkdocs" not in open(path, encoding="utf-8").read(3000)]
    one_a_folder = {os.path.dirname(path): path for path in is_code}
    texts = sorted(set(everything) - set(is_code))
    assert len(texts) > 20 and len(one_a_folder) > 10
    for width, some in (1280, texts + sorted(one_a_folder.values())), (390, texts[::4]):
        browser.size(width, 900)
        for path in some:
            browser.open(path)
            if path in texts:
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


def printed(browser):
    """Printed are text and pictures, without what is pressed or slides in."""
    browser.open(page("notes/04_swizzled_smem.html"))
    browser.click("a.code-ref")
    browser.call("Emulation.setEmulatedMedia", media="print")
    for what in "#code-panel", ".md-header", ".md-sidebar":
        assert browser.ask(f"getComputedStyle(document.querySelector('{what}')).display") == "none", what
    browser.call("Emulation.setEmulatedMedia", media="")


with Browser() as chromium:
    for name in sys.argv[2].split(","):
        chromium.size(1280, 900)
        globals()[name](chromium)
        if SCREENSHOTS:
            chromium.screenshot(os.path.join(SCREENSHOTS, name + ".png"))
    if chromium.complaints:
        sys.exit("\n".join(chromium.complaints))
