#!/usr/bin/env python3
"""The exercises: what exercises/NN.toml says, one file a chapter, and what is marked in the kernels.

    exercises.py list            a line each
    exercises.py hint 4.2 [2]    the exercise's first hint, or the one of that level; make hint-4.2 calls it

A kernel has the solution of a `write` exercise between marks, with the stub that a student finds instead:

    // EXERCISE 4.2: store the chunk so that ldmatrix meets no bank conflict (about 2 lines)
    ... the solution ...
    // STUB char *dst = reinterpret_cast<char *>(tile);
    // END

exercises/NN.toml has a table [[exercise]] for each: `id`; `kind`; `title`; `step`, by which the kernel's file is found; `file`, where it is
another of the chapter; `op`, where the chapter has several operations; `ranks`, where it runs as so many processes; `points`;
`hints`, three, the last just short of the answer; `shapes`, what it is checked on; `says`, the pattern of the line that the
untouched exercise fails with; `counters`, what the simulated GPU may count at most, each with its own points: the instructions of a name in PTX
(`op`), or a `field` of all lines; of some lines by their text (`line`) only where no student writes them. Kinds:

    predict   `questions`: counters that the student says before the run, each with the `answer`'s reason
    write     the marked lines of a kernel in chapters/
    bug       `edits`, [old, new] pairs, break the step; the student mends exercises/ID/stepK_name.cu
    further   the student makes exercises/ID/stepK_name.cu, a copy of the step, better; `edits` are one way to do it

Of a kernel's file nothing runs but its device code. Where the step itself is host code, as those that train, the file of the chapter
begins with `words`: then only the lines between marks are the student's, and of these each name is one of the words, and nothing is assigned
(host_lines). Lines that count there and are not cut out, for a bug to hide in, begin with // GRADED 11.5: … instead.
"""

import json
import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit("exercises: Python is older than 3.11, which the exercises need")

ROOT = Path(__file__).resolve().parents[2]
KINDS = "predict", "write", "bug", "further"
MARKED = re.compile(r"^ *// (EXERCISE|GRADED) (\d+\.\d+): [^\n]*\n(.*?)^ *// END\n", re.M | re.S)
# Names, numbers, plain texts; operators without assignments, addresses, brackets, sums (of pointers), and what a preprocessor or a
# literal begins with.
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?f?\b|\"[\w ,]*\"|->|&&|\|\||[<>!=]=|[*/<>!?:;,.(){}]", re.ASCII)
BLANK = re.compile(r"(?:\s|//[^\n]*\n)+")


class BadInput(Exception):
    """One line for the user: what was found and what was expected."""


class Exercise:
    """One exercise of a chapter of the tree `root`."""

    def __init__(self, root, chapter, table):
        self.__dict__ = {"counters": [], "op": "", "file": "", "ranks": 0, "words": "", **table, "root": root, "chapter": chapter}
        for name in ("id", "kind", "title", "points"):
            if name not in table:
                raise BadInput(f"exercises/{chapter[:2]}.toml: exercise {table.get('id', '?')} has no {name}")
        if self.kind not in KINDS:
            raise BadInput(f"exercise {self.id}: kind is '{self.kind}', expected one of {', '.join(KINDS)}")

    def all_points(self):
        if self.kind == "predict":
            return self.points * len(self.questions)
        return self.points + sum(counter["points"] for counter in self.counters)

    def step_file(self):
        """The kernel's file in chapters/, relative to the root."""
        if self.file:
            return Path("chapters") / self.chapter / self.file
        found = [p for p in (self.root / "chapters" / self.chapter).glob("step*.cu") if p.stem.partition("_")[2] == self.step]
        if len(found) != 1:
            raise BadInput(f"exercise {self.id}: chapters/{self.chapter} has no step '{self.step}'")
        return found[0].relative_to(self.root)

    def op_flags(self):
        """How the chapter's program is told the operation, where it has several."""
        return ["--op", self.op] if self.op else []

    def own_file(self):
        """What the student writes, relative to the root."""
        if self.kind == "predict":
            return Path("exercises") / self.id / "predictions.json"
        return self.step_file() if self.kind == "write" else Path("exercises") / self.id / self.step_file().name

    def edited(self, text):
        """The kernel `text` with the exercise's edits."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise BadInput(f"exercise {self.id}: {self.step_file()} has '{old}' {text.count(old)} times, expected once")
            text = text.replace(old, new)
        return text

    def solution(self):
        """What own_file() says when everything is right."""
        if self.kind == "predict":
            return json.dumps({question["ask"]: question["count"] for question in self.questions})
        text = (self.root / self.step_file()).read_text(encoding="utf-8")
        return self.edited(text) if self.kind == "further" else text


def load(root=ROOT, chapters=None):
    """The exercises of a tree, by id; of `chapters` (numbers) only, if given."""
    exercises = {}
    for path in sorted(root.glob("exercises/[0-9][0-9].toml")):
        if chapters and int(path.stem) not in chapters:
            continue
        folder = [p.name for p in (root / "chapters").glob(path.stem + "_*")]
        with path.open("rb") as file:
            listed = tomllib.load(file)
            for table in listed["exercise"]:
                exercise = Exercise(root, folder[0], {"words": listed.get("words", ""), **table})
                if exercise.id in exercises or int(exercise.id.split(".")[0]) != int(path.stem):
                    raise BadInput(f"{path.name}: exercise {exercise.id} is not its chapter's, or is there twice")
                exercises[exercise.id] = exercise
    return exercises


def marked(text):
    """The exercises whose solutions are marked in a kernel."""
    return [match[2] for match in MARKED.finditer(text)]


def cut(text):
    """A kernel as a student finds it: the stubs in place of the marked lines."""

    def stub(match):
        if match[1] == "GRADED":
            return match[0]
        first, *lines, end = match[0].splitlines(keepends=True)
        return first + "".join(line.replace("// STUB ", "") for line in lines if "// STUB " in line) + end

    return MARKED.sub(stub, text)


def host_lines(text, words, chapter):
    """The lines `text`, token by token, so that they are what they were taken for; BadInput if they are more than calls of what the words name.

    Without assignment, address, index, sum or cast to a type that is no word, host code has no pointers but those that it is given, and writes
    nothing but by what it calls: to arrays of the device, and the simulated GPU checks that they are."""
    out, at, depth = [], 0, 0
    while at < len(text):
        if blank := BLANK.match(text, at):
            out.append("\n" * blank[0].count("\n"))
            at = blank.end()
            continue
        token = TOKEN.match(text, at)
        if not token:
            raise BadInput(f"found '{text[at:at + 12].splitlines()[0]}', expected calls alone, with names, numbers and their products")
        if re.match(r"[A-Za-z_]", token[0]) and token[0] not in words:
            raise BadInput(f"found '{token[0]}', expected names that are words of exercises/{chapter[:2]}.toml")
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            break
        out.append(token[0])
        at = token.end()
    if depth != 0:
        raise BadInput("found braces that do not match")
    return " ".join(out)


def with_host_lines(own, submitted, words, chapter):
    """The file `own` with the marked lines of `submitted` in place of its own; BadInput if they are not there, or too much."""
    theirs = {match[2]: match[3] for match in MARKED.finditer(submitted)}

    def lines(match):
        if match[2] not in theirs:
            raise BadInput(f"the marks of {match[2]} are missing, from its first line to // END")
        return host_lines(theirs[match[2]], words, chapter) + "\n"

    return MARKED.sub(lines, own)


def uses(root, chapter):
    """What of other chapters a chapter links, as its chapter.mk says it: folder/file without its ending."""
    mk = (root / "chapters" / chapter / "chapter.mk").read_text().replace("\\\n", " ")
    found = re.search(r"^USES *:= *(.*)$", mk, re.M)
    names = []
    for name in found[1].split() if found else []:
        other = re.fullmatch(r"\$\(USES_(\w+)\)", name)
        names += uses(root, other[1]) if other else [name]
    return list(dict.fromkeys(names))


def numbers(text):
    """'1-3,5' -> {1, 2, 3, 5}"""
    chosen = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise BadInput(f"chapters {text}: found '{part}', expected numbers such as 1-3,5")
        chosen |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return chosen


def hidden_shapes(path):
    """What a file of hidden shapes says, {"4.2": ["m=129,n=257,k=96"]}; {} for None."""
    try:
        shapes = tomllib.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path}: {problem}") from None
    for name, listed in shapes.items():
        find(load(), name)
        if not isinstance(listed, list) or not all(isinstance(shape, str) for shape in listed):
            raise BadInput(f'{path}: exercise {name}: expected a list of shapes, such as ["m=129,n=257,k=96"]')
    return shapes


def find(exercises, name):
    if name not in exercises:
        raise BadInput(f"there is no exercise {name}, expected one of {', '.join(exercises)}")
    return exercises[name]


def main(arguments):
    exercises = load()
    if arguments[:1] == ["list"]:
        for e in exercises.values():
            print(f"{e.id}  {e.kind:8} {e.all_points():2} points  {e.title}  ({e.own_file()})")
    elif arguments[:1] == ["hint"] and len(arguments) in (2, 3):
        hints = find(exercises, arguments[1]).hints
        level = arguments[2] if len(arguments) == 3 else "1"
        if level not in ("1", "2", "3"):
            raise BadInput(f"LEVEL={level}: expected 1, 2 or 3")
        print(f"{arguments[1]}, hint {level} of 3: {hints[int(level) - 1]}")
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        print(f"exercises: {problem}", file=sys.stderr)
        sys.exit(2)
