#!/usr/bin/env python3
"""Builds the book, build/book/site, from README.md and the notes as they are: make book calls it.

A repository file that they link to or name becomes a page, with a place for each thing that it defines; a function, constant or file
in `code` becomes a link to its place, and one that is nowhere in the code stops the build. Each step's diff is folded in where a note
goes through its code. Links between pages are checked at the end."""

import functools
import glob
import html
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from definitions import definitions  # noqa: E402
from figures import FigureError, figures_of  # noqa: E402
from formulas import FormulaError, copy_style, formula  # noqa: E402
from links import check_links  # noqa: E402
from pygments import highlight  # noqa: E402
from pygments.formatters import HtmlFormatter  # noqa: E402
from pygments.lexers import get_lexer_for_filename  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402
from pygments.util import ClassNotFound  # noqa: E402
from steps import ROOT, HeaderError, chapters, step_of, steps_of  # noqa: E402

OUT = os.path.join(ROOT, "build", "book")
PAGES = os.path.join(OUT, "src")
SITE = os.path.join(OUT, "site")
# What the notes name that is other tools' and libraries': the profiler's stalls and metrics, an epilogue that no kernel here uses.
FOREIGN = {"short_scoreboard", "long_scoreboard", "mio_throttle", "math_pipe_throttle", "l1tex__data_pipe_lsu_wavefronts_mem_shared",
           "CUBLASLT_EPILOGUE_DGELU_BGRAD"}
SOURCES = r"\.(?:cu|cuh|c|h|py|sh|bats|mk)"


class BookError(Exception):
    """What stops the build: one line, with the file."""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def write(path, text):
    path = os.path.join(PAGES, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# --- Code -------------------------------------------------------------------------------------------------------------

defined_in = functools.cache(lambda path: definitions(read(path)))


def files_in(pattern):
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern), recursive=True) if re.search(SOURCES + "$", path))


@functools.cache
def words_of(chapter):
    """Every word of the code that a note may speak of: its chapter's, and what is outside the chapters. None: of every chapter."""
    patterns = [f"chapters/{chapter or '*'}/**", "common/**", "tools/**", "reference/**", "tests/**"]
    words = set()
    for path in [path for pattern in patterns for path in files_in(pattern)]:
        words.update(re.findall(r"\w+", read(path)), [os.path.basename(path)])
    return words


def places_of(chapter, name):
    """The files that define a name, as a chapter's note sees it: of its steps, else of its other files, else of common/."""
    steps = [step.path for step in steps_of(chapter)] if chapter else []
    others = [path for path in files_in(f"chapters/{chapter}/**") if path not in steps] if chapter else []
    for paths in steps, others, files_in("common/device/*"), files_in("common/harness/*"):
        found = [path for path in paths if name in defined_in(path)]
        if found:
            return found
    return []


def place_of(chapter, name, step):
    """Of several steps that define a name the one that the text speaks of, or that one grew from; else the first."""
    places = places_of(chapter, name)
    try:
        while step:
            if step.path in places:
                return step.path
            step = step.grows_from()
    except HeaderError as error:
        raise BookError(error) from error
    return places[0] if places else None


def file_named(chapter, name):
    """The file of this name that a chapter's note means, None if there is none or another one."""
    for pattern in f"chapters/{chapter}/**/{name}", f"common/*/{name}", f"tools/**/{name}", f"reference/{name}", f"chapters/**/{name}":
        if len(found := files_in(pattern)) == 1:
            return found[0]
    return None


@functools.cache
def code_page(path):
    """Writes the page of a repository file: its lines, numbered, and each definition as a whole under its name."""
    text = read(path)
    try:
        lexer = get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    lines = [f'<span class="line" id="L{n}"><a href="#L{n}">{n}</a>{line}\n</span>' for n, line in enumerate(lines, 1)]
    if re.search(r"\.(cu|cuh|c|h)$", path):
        for name, (first, last) in defined_in(path).items():
            lines[first - 1] = f'<span class="definition" id="{name}">' + lines[first - 1]
            lines[last - 1] += "</span>"
    top = relative("index.html", path)
    write(path + ".html", f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{path}</title><link rel="stylesheet" href="{relative('book/code.css', path)}"><link rel="icon" href="data:,">
<script src="{relative('book/code.js', path)}"></script></head>
<body><header><a href="{top}" target="_top">Kernel Cookbook</a> <b>{path}</b> {siblings(path)}</header>
<pre><code>{''.join(lines)}</code></pre></body></html>
""")


def siblings(path):
    """Links to the same place in the other steps of the chapter; code.js adds the place."""
    match = re.match(r"chapters/(\w+)/step", path)
    if not match:
        return ""
    links = [f'<a href="{os.path.basename(step.path)}.html" title="{step.name}"{" class=here" if step.path == path else ""}>{step.number}</a>'
             for step in steps_of(match[1])]
    return f'<nav aria-label="The same in step">step {" ".join(links)}</nav>'


# --- Steps ------------------------------------------------------------------------------------------------------------

@functools.cache
def diffs_of(chapter):
    """The steps of a chapter: [(step, Markdown of what it changes, folded)], as make diff-N prints it."""
    command = [sys.executable, os.path.join(ROOT, "tools", "diff.py"), chapter]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise BookError(run.stderr.strip())
    folded = []
    for step, part in zip(steps_of(chapter), re.split(r"^=== .*\n", run.stdout, flags=re.M)[1:]):
        lines = [line for line in part.rstrip("\n").split("\n") if line and not line.startswith(("---", "+++"))]
        marks = [line[0] for line in lines]
        kinds = {"+": "gi", "-": "gd", "@": "gu"}
        body = "".join(f'<span class="{kinds.get(line[0], "same")}">{html.escape(line)}\n</span>' for line in lines)
        count = f"+{marks.count('+')} −{marks.count('-')} lines" if lines else "written anew"
        head = f"<b>step {step.number}, {step.name}</b>: {html.escape(step.what())} <i>{count}</i>"
        if lines:
            folded.append((step, f'<details class="diff" data-search-exclude><summary>{head}</summary><pre><code>{body}</code></pre></details>'))
        else:
            folded.append((step, f'<p class="diff">{head}</p>'))
    return folded


def folder_page(path):
    """Writes the page of a folder: its files, and of a chapter what each step changes."""
    lines = [f"---\nsearch: {{exclude: true}}\n---\n# {path}\n"]
    name = os.path.basename(path)
    if name in chapters():
        lines += [f"[The note](../../notes/{name}.md) · `make chapter-{int(name[:2])}` runs it, `make diff-{int(name[:2])}` prints what is folded here.\n"]
        lines += [diff + "\n" for _, diff in diffs_of(name)] + ["## Files\n"]
    for file in sorted(os.listdir(os.path.join(ROOT, path))):
        if re.search(SOURCES + r"$|\.csv$", file):
            code_page(f"{path}/{file}")
            lines.append(f"- [{file}]({file}.html)")
        elif os.path.isfile(os.path.join(ROOT, path, file)):
            lines.append(f"- {file}")
    write(path + "/index.md", "\n".join(lines) + "\n")


# --- Notes ------------------------------------------------------------------------------------------------------------

def relative(target, page):
    return os.path.relpath(target, os.path.dirname(page) or ".")


class Note:
    """One page: `text` of the file `path`, with its links led to the book's pages. `wanted` gathers the files and folders linked to."""

    def __init__(self, path, wanted):
        self.path, self.wanted = path, wanted
        name = os.path.basename(path)[:-3]
        self.chapter = name if name in chapters() else None
        self.steps = steps_of(self.chapter) if self.chapter else []
        self.step = None  # the one that the text speaks of at this point
        self.section = ""
        self.drawn = figures_of(self.chapter) if path == f"notes/{self.chapter}.md" else {}
        self.figures = set()  # shown so far

    def page(self):
        text = re.sub(r"^<!-- explorer: (\w+) -->$", self.explorer, read(self.path), flags=re.M)
        # A picture right above a figure is what GitHub shows in its place.
        text = re.sub(r"^!\[[^\]]*\]\([^)\s]+\)\n\n(?=<!-- figure: )", "", text, flags=re.M)
        parts = re.split(r"(^```.*?^```$|^#+ [^\n]*$|<!--.*?-->)", text, flags=re.M | re.S)
        pages = []
        for part in parts:
            if part.startswith("#"):
                pages += [self.diffs(), part]
                self.step, self.section = None, part.lstrip("# ")
            elif part.startswith("```math\n"):
                pages.append(self.formula(part[len("```math\n"):-len("```")], True))
            else:
                pages.append(part if part.startswith(("```", "<!--")) else self.prose(part))
        page = re.sub(r"^<!-- figure: (\w+) -->$", self.figure, "".join(pages + [self.diffs()]), flags=re.M)
        if missing := sorted(set(self.drawn) - self.figures):
            raise BookError(f"{self.path}: the figure {missing[0]} of this chapter is shown nowhere; <!-- figure: {missing[0]} --> shows it")
        return page

    def figure(self, match):
        name = match[1]
        if name not in self.drawn or name in self.figures:
            problem = "is shown twice" if name in self.figures else f"is none of this note's, which are {', '.join(self.drawn) or 'none'}"
            raise BookError(f"{self.path}: the figure {name} {problem}")
        self.figures.add(name)
        return self.drawn[name]()

    def formula(self, tex, display):
        try:
            return formula(tex, display)
        except FormulaError as error:
            raise BookError(f"{self.path}: {error}") from error

    def explorer(self, match):
        if not os.path.exists(os.path.join(HERE, "explorers", match[1] + ".js")):
            raise BookError(f"{self.path}: there is no explorer {match[1]}")
        return f'<div class="explorer" id="explorer-{match[1]}" data-search-exclude>Here something moves, with JavaScript.</div>'

    def diffs(self):
        """The diffs, at the end of the section that goes through the code."""
        if not self.chapter or not re.match(r"\d+ The code", self.section):
            return ""
        return "\n" + "\n\n".join(diff for _, diff in diffs_of(self.chapter)) + "\n\n"

    def prose(self, text):
        """Text outside of code blocks, with its links, its `code` and the steps that it names."""
        token = re.compile(r"(?P<link>\]\([^)\s]+\))|\$`(?P<tex>[^`\n]+)`\$|`(?P<code>[^`\n]+)`|[Ss]teps? (?P<number>\d+)|^(?P<item>\d+)\. \*\*|\*\*(?P<bold>\w+)\.\*\*", re.M)
        return token.sub(self.rewritten, text)

    def rewritten(self, match):
        kind, found = match.lastgroup, match[match.lastgroup]
        if kind == "link":
            return f"]({self.target(found[2:-1])})"
        if kind == "tex":
            return self.formula(found, False)
        if kind == "code":
            in_link = match.string[:match.start()].endswith("[")
            return match[0] if in_link else self.code(found)
        named = [step for step in self.steps if found in (str(step.number), step.name)]
        self.step = named[0] if named else self.step
        return match[0]

    def target(self, link):
        """A link to a file of the repository as one to its page."""
        path, _, place = link.partition("#")
        if link.startswith(("http", "#")):
            return link
        path = os.path.normpath(os.path.join(os.path.dirname(self.path), path))
        if not os.path.exists(os.path.join(ROOT, path)):
            raise BookError(f"{self.path}: links to {link}, which is not there")
        if os.path.isdir(os.path.join(ROOT, path)):
            page = "index.md" if path == "notes" else path + "/index.md"
        elif path.endswith(".md"):
            page = "index.md" if path == "README.md" else path.replace("README.md", "index.md")
        elif path.endswith(".svg"):
            page = path
        else:
            page = path + ".html"
            self.step = step_of(path) if re.match(r"chapters/\w+/step", path) else self.step
            if place and place not in defined_in(path):
                raise BookError(f"{self.path}: links to {link}, and {path} does not define {place}")
        if path != "notes":
            self.wanted.add(path)
        return relative(page, self.path) + (f"#{place}" if place else "")

    def code(self, text):
        """`text`, as a link if it names something that the code has."""
        is_quote = self.section.endswith("Sources")
        if re.fullmatch(rf"[\w/.]+{SOURCES}", text):
            beside = os.path.normpath(os.path.join(os.path.dirname(self.path), text))
            path = next((path for path in (beside, text) if os.path.isfile(os.path.join(ROOT, path))), None) or \
                file_named(self.chapter, os.path.basename(text))
            if path:
                return f"[`{text}`]({self.target(relative(path, self.path))})"
            if not is_quote:
                raise BookError(f"{self.path}: `{text}` is no file of the repository; a foreign one is named under Sources")
            return f"`{text}`"
        match = re.fullmatch(r"([A-Za-z_]\w+)(?:<[^>]*>)?(\(.*\))?", text)
        if not match:
            return f"`{text}`"
        name = match[1]
        step = next((step for step in self.steps if step.name == name), None)
        path = step.path if step else place_of(self.chapter, name, self.step)
        if path:
            self.wanted.add(path)
            return f'<a class="code-ref" href="{relative(path, self.path)}.html#{name}"><code>{html.escape(text)}</code></a>'
        if "_" in name.strip("_") and not is_quote and name not in FOREIGN | words_of(self.chapter):
            raise BookError(f"{self.path}: `{text}` is nowhere in the code that this note speaks of")
        return f"`{text}`"


def write_pages():
    """Writes README's page, the notes', those of what they link to, and so on."""
    wanted, done = {"README.md"}, set()
    wanted.update(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "notes", "*.md")))
    wanted.update(f"chapters/{chapter}" for chapter in chapters())
    while todo := wanted - done:
        for path in sorted(todo, key=lambda path: not path.endswith(".md")):  # a mistake of a note is found at once
            done.add(path)
            if path.endswith("README.md"):
                write(path.replace("README.md", "index.md"), Note(path, wanted).page())
            elif path.endswith(".md"):
                write(path, Note(path, wanted).page())
            elif path.endswith(".svg"):
                write(path, read(path))
            elif not os.path.isdir(os.path.join(ROOT, path)):
                code_page(path)
            elif os.path.exists(os.path.join(ROOT, path, "README.md")):
                wanted.add(path + "/README.md")
            else:
                folder_page(path)


def write_assets():
    """Style, fonts and scripts, and the layouts that the explorers show, which a C program prints."""
    for folder in "assets", "explorers":
        shutil.copytree(os.path.join(HERE, folder), os.path.join(PAGES, "book"), dirs_exist_ok=True)
    copy_style(os.path.join(PAGES, "book", "katex"))
    program = os.path.join(OUT, "layouts")
    try:
        subprocess.run(["cc", "-o", program, os.path.join(HERE, "layouts.c")], check=True)
        write("book/layouts.js", subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BookError(f"tools/book/layouts.c: {error}") from error


def title_of(path):
    return re.match(r"# (.*)", read(path))[1].split(":")[0]


def build_site():
    """Runs mkdocs over the pages, in the book's order."""
    notes = sorted(f"notes/{name}" for name in os.listdir(os.path.join(ROOT, "notes")) if name.endswith(".md"))
    numbered = [path for path in notes if path[len("notes/"):-len(".md")] in chapters()]
    order = ["index.md", {"Chapters": [{title_of(path): path} for path in numbered]},
             {"Beside them": [{title_of(path): path} for path in notes if path not in numbered] + ["tools/simgpu/index.md"]}]
    config = os.path.join(OUT, "mkdocs.yml")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"INHERIT": os.path.join(HERE, "mkdocs.yml"), "docs_dir": PAGES, "site_dir": SITE, "nav": order}, file)  # JSON is YAML
    run = subprocess.run([sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "-f", config], check=False,
                         env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if run.returncode:
        raise BookError("mkdocs stopped")
    os.remove(os.path.join(SITE, "404.html"))  # a server's, with links from its root


def main():
    try:
        shutil.rmtree(OUT, ignore_errors=True)
        write_assets()
        write_pages()
        build_site()
        check_links(SITE)
    except (BookError, FigureError, FormulaError, HeaderError) as error:
        sys.exit(f"book: {error}")
    print(os.path.relpath(SITE, ROOT) + "/index.html")


if __name__ == "__main__":
    main()
