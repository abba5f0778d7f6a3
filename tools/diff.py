#!/usr/bin/env python3
"""Prints what each step of a chapter changes: diff.py CHAPTER (its folder under chapters/); make diff-N calls it.

A step is compared with the one that its header's "Grows from" names, without the headers, without the step's own name, which
is also its launcher's, and without line breaks that moved because a name is longer."""

import difflib
import re
import subprocess
import sys
import tempfile

from steps import HeaderError, steps_of


def statements(lines):
    """The lines in groups, each up to the end of a statement or of a comment."""
    groups = [[]]
    for line in lines:
        groups[-1].append(line)
        code = re.sub(r"\s*//.*", "", line)
        if not code or code[-1] in ";{}:" or code.lstrip().startswith("#"):
            groups.append([])
    return groups


def launcher(code):
    """The name of a step's launcher, the last function of its file."""
    return re.findall(r'extern "C" cudaError_t\s+(\w+)\(', code)[-1]


def renamed(old, new):
    """The code of `old` with the names of `new`, and with its line breaks where the two differ in nothing else."""
    old, new = ("\n".join(step.code()) for step in (old, new))
    was, now = launcher(old), launcher(new)
    old = re.sub(rf"\b{was}(_kernel\b|(?=\())", rf"{now}\1", old)
    old, new = statements(old.split("\n")), statements(new.split("\n"))
    keys = [["".join("".join(group).split()) for group in groups] for groups in (old, new)]
    lines = []
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        lines += sum(new[j:j_end] if tag == "equal" else old[i:i_end], [])
    return lines


def show(old, new):
    print(f"\n=== {old.path} -> {new.path}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".cu") as before, tempfile.NamedTemporaryFile("w", suffix=".cu") as after:
        for file, lines in (before, renamed(old, new)), (after, new.code()):
            file.write("\n".join(lines) + "\n")
            file.flush()
        labels = ["--label", old.path, "--label", new.path]
        subprocess.run(["diff", "-u", "--color=auto", *labels, before.name, after.name], check=False)


def main():
    try:
        for step in steps_of(sys.argv[1]):
            old = step.grows_from()
            if old:
                show(old, step)
            else:
                print(f"\n=== {step.path} grows from nothing")
    except HeaderError as error:
        sys.exit(f"diff: {error}")


if __name__ == "__main__":
    main()
