"""Formulas of the notes, TeX, as HTML that needs only KaTeX's style and fonts: KaTeX sets them when the book is made."""

import functools
import html
import os
import re
import shutil

import dukpy

KATEX = "/usr/share/javascript/katex"  # where Debian's libjs-katex is, with its fonts


class FormulaError(Exception):
    """What stops the build: one line."""


@functools.cache
def engine():
    """A JavaScript engine that knows set(TEX, DISPLAY): [HTML, what is wrong]."""
    interpreter = dukpy.JSInterpreter()
    with open(f"{KATEX}/katex.min.js", encoding="utf-8") as file:
        interpreter.evaljs(file.read())
    interpreter.evaljs("""function set(tex, display) {
        try { return [katex.renderToString(tex, {displayMode: display, strict: "error"}), ""]; }
        catch (error) { return ["", error.message]; }
    }""")
    return interpreter


def formula(tex, display):
    """The HTML of a formula, of which Markdown takes no sign for one of its own. FormulaError if KaTeX cannot set it."""
    text, wrong = engine().evaljs("set(dukpy.tex, dukpy.display)", tex=" ".join(tex.split()), display=display)
    if wrong:
        raise FormulaError(wrong)
    text = re.sub(r">([^<]+)<", lambda words: ">" + "".join(c if c.isalnum() else f"&#{ord(c)};" for c in html.unescape(words[1])) + "<", text)
    tag = "div" if display else "span"
    return f'<{tag} class="formula" data-search-exclude>{text}</{tag}>'.replace("\n", " ")


def copy_style(folder):
    """KaTeX's style and fonts."""
    os.makedirs(f"{folder}/fonts", exist_ok=True)
    try:
        shutil.copy(f"{KATEX}/katex.min.css", folder)
        for name in os.listdir(f"{KATEX}/fonts"):
            if name.endswith(".woff2"):
                shutil.copy(f"{KATEX}/fonts/{name}", f"{folder}/fonts")
    except OSError as error:
        raise FormulaError(f"{error.filename}: {error.strerror}; tools/setup.sh book installs KaTeX") from error
