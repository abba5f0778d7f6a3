#!/usr/bin/env python3
"""Writes a student's tree: student.py --out DIR [--chapters 1-5]; make student OUT=DIR CHAPTERS=1-5 calls it.

It is this tree with the chosen chapters, their notes and exercises; the marked solutions are cut out of the kernels, and
exercises/ID has the kernels of the others. Its tests are the exercises: make test grades them, one Bats test each, and a workflow
of GitHub's does so at every push.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import exercises as book
from exercises import ROOT, BadInput

# Of the whole book, what only its authors need; of a folder of chapters, what is not chosen goes too.
AUTHORS = re.compile(r"^(tests/(?!run\.sh|test_helper/)|results/|tools/report\.py|tools/timeline|\.ci/|notes/figures/|notes/answers/|notes/(results|course)\.md|tools/classroom/workflow\.yml)")
CHAPTERS = re.compile(r"^(?:chapters|notes|exercises)/(\d\d)[_.]")


def sources():
    """The files of the tree: git's, or, where it is no checkout, all but what is generated."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    return [path.relative_to(ROOT) for path in ROOT.rglob("*")
            if path.is_file() and path.relative_to(ROOT).parts[0] not in ("build", ".venv", ".git")]


def used_by(chapter):
    """The numbers of the chapters whose steps a chapter calls: their code comes too."""
    folder = next((ROOT / "chapters").glob(f"{chapter:02}_*"))
    return {used[:2] for used in book.uses(ROOT, folder.name)}


def student_text(path, text, chosen):
    """`chosen`: whether the file belongs to a chapter whose exercises come too, and not only to one that it uses."""
    if path.suffix in (".c", ".cu"):
        return book.cut(text) if chosen else text
    if path.parts[0] == "notes":
        return re.sub(r"^\[Answers\].*\n\n", "", text, flags=re.M)
    if path.parts[0] == "exercises":
        return re.sub(r"^edits = \[\n(?:.*\n)*?\]\n", "", text, flags=re.M)
    return text


BATS = """#!/usr/bin/env bats
# The exercises: a test each, right when it has all of its points.
load test_helper/common
"""
TEST = """
@test "%s %s (%s)" { "$PYTHON" tools/classroom/grade.py --exercise %s; }
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chapters", type=book.numbers, default=None)
    arguments = parser.parse_args()
    out = arguments.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"OUT={out} is there already, expected a new or an empty folder")
    exercises = book.load(ROOT, arguments.chapters)
    if not exercises:
        raise BadInput("none of these chapters has exercises")
    chapters = {int(exercise.chapter[:2]) for exercise in exercises.values()}
    code = chapters | {int(used) for chapter in chapters for used in used_by(chapter)}
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for path in sources():
        number = CHAPTERS.match(path.as_posix())
        if AUTHORS.match(path.as_posix()) or (number and int(number[1]) not in (code if path.parts[0] == "chapters" else chapters)):
            continue
        target = partial / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".c", ".cu", ".md", ".toml"):
            text = (ROOT / path).read_text(encoding="utf-8")
            target.write_text(student_text(path, text, not number or int(number[1]) in chapters), encoding="utf-8")
            shutil.copymode(ROOT / path, target)
        else:
            shutil.copy2(ROOT / path, target, follow_symlinks=False)
    for exercise in exercises.values():
        if exercise.kind in ("bug", "further"):
            text = (ROOT / exercise.step_file()).read_text(encoding="utf-8")
            target = partial / exercise.own_file()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(book.cut(exercise.edited(text) if exercise.kind == "bug" else text), encoding="utf-8")
    tests = "".join(TEST % (e.id, e.title, e.own_file(), e.id) for e in exercises.values())
    workflows = partial / ".github/workflows"
    workflows.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / "tools/classroom/workflow.yml", workflows / "grade.yml")
    (partial / "tests/exercises.bats").write_text(BATS + tests, encoding="utf-8")
    if out.exists():
        out.rmdir()
    os.replace(partial, out)
    print(f"{out}: {len(exercises)} exercises of chapters {', '.join(map(str, sorted(chapters)))}, "
          f"{sum(e.all_points() for e in exercises.values())} points; there: make grade")


if __name__ == "__main__":
    try:
        main()
    except BadInput as problem:
        print(f"student: {problem}", file=sys.stderr)
        sys.exit(2)
