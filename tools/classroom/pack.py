#!/usr/bin/env python3
"""Zip files for handing in and for grading there.

    pack.py submission OUT.zip                                    a student's own files; make submission calls it
    pack.py gradescope OUT.zip [--chapters 1-5] [--seed N] [--hidden FILE]    Gradescope's autograder; make gradescope calls it

The autograder has a student's tree, built once by its setup.sh, and grades with this seed and these hidden shapes: keep it from
students, who would find them in it. Its run_autograder writes results/results.json.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import exercises as book
from exercises import ROOT, BadInput

SETUP = """#!/usr/bin/env bash
# Gradescope runs this once, as root, when the autograder is made: what the tree needs is installed, and it is built.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}/source/tree"
apt-get update -qq
apt-get install -y --no-install-recommends gcc g++ make python3 python3-venv python3-pip libopenblas0-pthread
if ! python3 -c 'import tomllib' 2>/dev/null; then # Ubuntu 22.04's Python is too old for the exercises, and it has a newer one
    apt-get install -y --no-install-recommends python3.11-venv
    python3.11 -m venv .venv
    .venv/bin/python3 -m pip install "$(grep '^numpy=' requirements.txt)"
fi
make build
"""

RUN = """#!/usr/bin/env bash
# Gradescope runs this for each submission. Missing points are no failure of the autograder: 1 is grade's status for them.
set -uo pipefail
autograder=${AUTOGRADER:-/autograder}
mkdir -p "$autograder/results"
make --no-print-directory -C "$autograder/source/tree" grade SUBMISSION="$autograder/submission" \\
    JSON="$autograder/results/results.json" SEED=%d HIDDEN="$autograder/source/hidden.toml"
[[ -e "$autograder/results/results.json" ]]
"""


def written(out, files):
    """Writes a zip file whole or not at all; files: (name in it, content or Path, whether it is executed)."""
    partial = out.with_name(out.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, executed in files:
            entry = zipfile.ZipInfo(str(name), (1980, 1, 1, 0, 0, 0))  # the same files are the same zip
            entry.external_attr = (0o100755 if executed else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content.read_bytes() if isinstance(content, Path) else content)
    os.replace(partial, out)


def pack_submission(out):
    paths = sorted({exercise.own_file() for exercise in book.load().values()})
    found = [path for path in paths if (ROOT / path).is_file()]
    if not found:
        raise BadInput("there is nothing to hand in: no exercise has a file here")
    written(out, [(path, ROOT / path, False) for path in found])
    print(f"{out}: {len(found)} files" + "".join(f"\n  without {path}" for path in paths if path not in found))


def pack_autograder(out, chapters, seed, hidden):
    book.hidden_shapes(hidden)  # refuses what is wrong with it
    shapes = hidden.read_text(encoding="utf-8") if hidden else ""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([sys.executable, ROOT / "tools/classroom/student.py", "--out", tree, *(["--chapters", chapters] if chapters else [])],
                       check=True, stdout=subprocess.DEVNULL)
        files = [("setup.sh", SETUP, True), ("run_autograder", RUN % seed, True), ("hidden.toml", shapes, False)]
        files += [(path.relative_to(folder), path, os.access(path, os.X_OK)) for path in sorted(tree.rglob("*")) if path.is_file()]
        written(out, files)
    print(f"{out}: upload it as the autograder; it grades with SEED={seed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("submission", "gradescope"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--chapters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "submission":
        pack_submission(arguments.out)
    else:
        if arguments.chapters:
            book.numbers(arguments.chapters)
        pack_autograder(arguments.out, arguments.chapters, arguments.seed, arguments.hidden)


if __name__ == "__main__":
    try:
        main()
    except (BadInput, OSError) as problem:
        print(f"pack: {problem}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError:
        sys.exit(2)  # which has said why
