#!/usr/bin/env python3
"""Grades a student's tree: points an exercise, by values, faults and counts of the simulated GPU, never by time.

    grade.py [--submission DIR] [--exercise 4.2] [--chapters 1-5] [--seed N] [--hidden FILE] [--orders N] [--json|--junit|--tap FILE]

Of what was handed in, only the exercises' own files are taken, and of these only what runs on the GPU: nvcc makes PTX of the
student's kernel, and the launcher, the program around it and the simulated GPU are this tree's. No other line of host code that a
student wrote is executed, unless this tree is his own, and a kernel can neither open a file nor end a process. What it includes besides its own headers
is refused. Where a step is host code itself, of the chapters that train, the lines between its marks are taken, and only if they are
calls of what the exercises name (host_lines of exercises.py). Compiler and program run one exercise at a time, in a session of their own, with limits of time, memory, processes and output;
the program's exit status and counters are what counts, not what it prints.

An exercise of `points` is right when every shape is, with --seed's data and warps in several orders, without a fault; then its
counters have points of their own. --hidden FILE is TOML: "4.2" = ["m=129,n=257,k=96"], shapes in addition to the exercise's own.

Exit status: 0 all points, 1 some are missing, 2 bad usage. Files are written whole, at the end.
"""

import argparse
import functools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import exercises as book
from exercises import ROOT, BadInput

SECONDS = 300  # for a compilation or a run
COMPILER_MEMORY = 8 << 30
RUN_MEMORY = 96 << 30  # addresses, of which the simulated GPU reserves 64 GiB; the device itself has DEVICE_MEMORY
DEVICE_MEMORY = "2G"
INSTRUCTIONS = 200_000_000  # of a launch; the exercises need a thousandth of it
FILE_BYTES = 64 << 20
PROCESSES = 4096  # of the grading user, other than root, with all that he runs besides
SOURCE_BYTES = 256 << 10
ORDERS = 3  # of warps, in which each shape is tried


class Failed(Exception):
    """Why an exercise gets no points: one line for the student."""


def setting(name, file="build/config.mk"):
    """A variable of a file of make's; "" where it has none."""
    match = re.search(rf"^{name} *:= *(.*)$", (ROOT / file).read_text().replace("\\\n", " "), re.M)
    return match[1].strip() if match else ""


def limited(command, folder, memory):
    """Runs a command whose input is the student's; returns its exit status (negative: a signal, None: too late) and its output."""

    def limits():
        os.setsid()
        for kind, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_NPROC, PROCESSES),
                            (resource.RLIMIT_CORE, 0)):
            hard = resource.getrlimit(kind)[1]  # which nobody but root may raise
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))

    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "HOME": str(folder), "LC_ALL": "C.UTF-8",
                   "LD_LIBRARY_PATH": ":".join(filter(None, (setting("CUDA_LIB"), os.environ.get("LD_LIBRARY_PATH"))))}
    with tempfile.TemporaryFile(dir=folder) as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, preexec_fn=limits)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        try:
            os.killpg(process.pid, signal.SIGKILL)  # and whoever it left behind
        except (ProcessLookupError, PermissionError):  # nobody is left
            pass
        process.wait()
        output.seek(0)
        return status, output.read(1 << 20).decode(errors="replace")


def taken(submission, path):
    """What the submission has at `path`: an ordinary file of its own, of no more than SOURCE_BYTES."""
    full = submission / path
    if not full.exists() and not full.is_symlink():
        raise Failed(f"{path} is missing")
    if full.is_symlink() or not full.is_file() or not full.resolve().is_relative_to(submission.resolve()):
        raise Failed(f"{path} is no ordinary file of the submission")
    if full.stat().st_size > SOURCE_BYTES:
        raise Failed(f"{path} has {full.stat().st_size} bytes, expected at most {SOURCE_BYTES}")
    return full.read_bytes()


def first_error(output, fallback):
    """What was wrong: the simulated GPU's first fault with its place in the code, a compiler's error, or the last line."""
    fault = re.search(r"simgpu: ((?!.*warp instructions).*)", output)
    if fault:
        place = re.search(r"^  at \S*/(\S+\.cuh?:\d+)", output[fault.end():], re.M)
        return fault[1] + (f" (at {place[1]})" if place else "")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\b", line)), lines[-1] if lines else fallback)


class Program:
    """A chapter's program with a student's kernel in place of a step's, or with his host code if there are words for it; `folder` is its own."""

    def __init__(self, chapter, step, source, words, folder):
        self.chapter, self.folder = chapter, folder
        built = ROOT / "build/chapters" / chapter
        own = ROOT / step
        if built.exists() and source == own.read_bytes() and built.stat().st_mtime > own.stat().st_mtime:  # make has built it
            self.path = built
            return
        if words:
            self.compile_host(step, source.decode(errors="replace"), words.split())
            self.link(step)
            return
        tree = folder / "tree"
        for used in {chapter, *(name.partition("/")[0] for name in book.uses(ROOT, chapter))}:
            copies = tree / "chapters" / used
            copies.mkdir(parents=True)
            for header in (ROOT / "chapters" / used).glob("*.*h"):
                if header.suffix in (".h", ".cuh"):
                    shutil.copy(header, copies)
        shutil.copytree(ROOT / "common/device", tree / "common/device")
        shutil.copytree(ROOT / "common/harness", tree / "common/harness", ignore=shutil.ignore_patterns("*.c", "*.cu"))
        kernel = tree / "chapters" / chapter / step.name
        kernel.write_bytes(source)
        self.compile(kernel)
        original = self.original(step)
        subprocess.run(["objcopy", "--update-section", f".nv_fatbin={folder}/kernel.fatbin", original, folder / "step.o"], check=True)
        self.link(step)

    def compile_host(self, step, source, words):
        """The object of this tree's file with the student's marked lines."""
        file = self.folder / step.name
        try:
            file.write_text(book.with_host_lines((ROOT / step).read_text(encoding="utf-8"), source, words, self.chapter), encoding="utf-8")
        except BadInput as problem:
            raise Failed(f"{step.name}: {problem}") from None
        compiler = ["g++", "-std=c++17", "-x", "c++"] if step.suffix == ".cu" else ["gcc", "-std=gnu11"]
        status, output = limited([*compiler, "-O1", "-iquote", str(ROOT / step.parent), "-isystem", setting("CUDA_INCLUDE"),
                                  "-c", "-o", str(self.folder / "step.o"), str(file)], self.folder, COMPILER_MEMORY)
        if status != 0:
            raise Failed("it does not compile: " + first_error(output, f"stopped after {SECONDS} s").replace(f"{self.folder}/", ""))

    def compile(self, kernel):
        """PTX of the kernel, which may include what the step does and nothing else."""
        arch = setting("ARCH", f"chapters/{self.chapter}/chapter.mk").split()[0]
        fatbin, depends = self.folder / "kernel.fatbin", self.folder / "kernel.d"
        status, output = limited(
            [setting("NVCC"), "-std=c++17", "-O3", "-lineinfo", "-Werror", "all-warnings", "-gencode", f"arch=compute_{arch},code=compute_{arch}",
             "-fatbin", "-MD", "-MF", str(depends), "-o", str(fatbin), str(kernel)], self.folder, COMPILER_MEMORY)
        if status is None:
            raise Failed(f"nvcc was stopped after {SECONDS} s")
        if status != 0:
            raise Failed("it does not compile: " + first_error(output, "nvcc ended without a word").replace(f"{kernel.parent}/", ""))
        included = [(self.folder / name.replace("\\ ", " ")).resolve()
                    for name in re.findall(r"(?:\\ |\S)+", depends.read_text().partition(":")[2].replace("\\\n", " "))]
        # nvcc reads its own cuda_runtime.h before the kernel's first line, from where its other headers are, links followed
        toolkit = next(path.parent for path in included if path.name == "cuda_runtime.h")
        places = [toolkit, self.folder.resolve(), *map(Path, ("/usr/include", "/usr/lib", "/usr/local/include"))]
        for path in included:
            if not any(path.is_relative_to(place) for place in places):
                raise Failed(f"it includes {path}, which is none of its headers")

    def original(self, step):
        path = ROOT / "build/obj" / step.with_suffix(".o")
        if not path.exists():
            raise BadInput(f"{path.relative_to(ROOT)} is missing, expected the chapter to be built: make build-{int(self.chapter[:2])}")
        return path

    def link(self, step):
        """step.o in place of the step's own object, and everything else as it was built."""
        objects = [ROOT / "build/obj" / path.relative_to(ROOT).with_suffix(".o")
                   for folder in ("common/harness", "common/device", f"chapters/{self.chapter}")
                   for path in (ROOT / folder).iterdir() if path.suffix in (".c", ".cu")]
        objects += [ROOT / "build/obj/chapters" / f"{used}.o" for used in book.uses(ROOT, self.chapter)]
        original = self.original(step)
        self.path = self.folder / "program"
        subprocess.run(["g++", "-o", self.path, self.folder / "step.o", *(o for o in objects if o != original), f"-L{setting('CUDA_LIB')}",
                        "-l:libcudart.so.13", "-pthread", "-ldl", "-lm"], check=True)

    def run(self, exercise, golden, order=0):
        """Runs the exercise's step on a case; returns what was counted, kernel by kernel."""
        counts = self.folder / "counters.json"
        together = [str(ROOT / "tools/ranks.sh"), str(exercise.ranks)] if exercise.ranks else []
        counted = [] if exercise.ranks else ["--json", str(counts)]
        status, output = limited(
            [*together, str(ROOT / "build/simgpu/simgpu"), "--memory", DEVICE_MEMORY, "--max-instructions", str(INSTRUCTIONS), "--seed", str(order),
             *counted, str(self.path), "--golden", str(golden), "--step", exercise.step, *exercise.op_flags()],
            self.folder, RUN_MEMORY)
        shape = golden.name
        if status is None or status < 0:
            raise Failed(f"{shape}: stopped after {SECONDS} s" if status is None else f"{shape}: ended by {signal.Signals(-status).name}")
        if status == 1:
            raise Failed(f"{shape}: WRONG: " + first_wrong(output))
        if status != 0:
            raise Failed(f"{shape}: " + first_error(output, f"exit status {status}"))
        return json.loads(counts.read_text()) if counted else []


@functools.cache
def program(chapter, step, source, words, folder):
    """Compiled once for the exercises that share a kernel; what it failed with is remembered too."""
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        return Program(chapter, step, source, words, own), None
    except Failed as reason:
        return None, reason


def first_wrong(output):
    """Where the program says that the first wrong element is."""
    for line in output.splitlines():
        if found := re.search(r"rank \d+ of \d+: the weights.*|.*\bexpected\b.*", line):
            return found[0].strip()
    return "its output is not what NumPy says"


@functools.cache
def golden_case(chapter, op, shape, seed, folder):
    """Inputs and expected outputs of a shape, made once; returns their folder, which has the shape's name."""
    sys.path.append(str(ROOT / "reference"))
    import golden  # takes a third of a second, which predictions and whoever is refused need not wait for
    case = folder / chapter / op / shape
    arguments = setting("GOLDEN", f"chapters/{chapter}/chapter.mk").split() + (["--op", op] if op else [])
    try:
        golden.main([*arguments, "--out", str(case), "--shape", shape, "--seed", str(seed)])
    except golden.BadInput as problem:
        raise BadInput(f"a shape of chapter {chapter}: {problem}") from None
    return case


def total(kernels, counter, field):
    """The warp instructions whose names in PTX match the counter's `op`, some of which must be there; else the sum of a field over the source
    lines, or over those whose text matches its `line`."""
    if "op" in counter:
        found = [count for kernel in kernels for name, count in kernel["ops"].items() if re.search(counter["op"], name)]
        if not found:
            raise Failed(f"no instruction that was executed is one of '{counter['op']}'")
        return sum(found)
    return sum(line[field] for kernel in kernels for line in kernel["lines"] if re.search(counter.get("line", ""), line["text"]))


def grade_kernel(exercise, submission, seed, hidden, orders, folders):
    """(points, what to say) of an exercise that is a kernel. The folders are of programs and of goldens, apart from each other."""
    programs, goldens = folders
    built, reason = program(exercise.chapter, exercise.step_file(), taken(submission, exercise.own_file()), exercise.words, programs)
    if reason:
        raise reason

    def counts(shape, order=0):
        return built.run(exercise, golden_case(exercise.chapter, exercise.op, shape, seed, goldens), order)

    for shape in [*exercise.shapes, *hidden]:
        for order in range(orders):
            counts(shape, order)
    points, says = exercise.points, ["right"]
    for counter in exercise.counters:
        kernels = counts(counter["shape"])
        count, most = total(kernels, counter, counter.get("field")), counter["at_most"]
        if isinstance(most, str):
            most = total(kernels, counter, most)
        points += counter["points"] if count <= most else 0
        says.append(f"{counter['ask']}: {count:,}, {'expected at most' if count > most else 'within'} {most:,}")
    return points, "; ".join(says)


def grade_predictions(exercise, submission):
    """(points, what to say) of predictions that `make predict-N` has asked for."""
    try:
        said = json.loads(taken(submission, exercise.own_file()))
        right = sum(said[question["ask"]] == question["count"] for question in exercise.questions)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Failed(f"{exercise.own_file()} does not have a number for each question")
    return right * exercise.points, f"{right} of {len(exercise.questions)} counters predicted"


def grade(exercise, submission, *how):
    try:
        if exercise.kind == "predict":
            return grade_predictions(exercise, submission)
        return grade_kernel(exercise, submission, *how)
    except Failed as reason:
        return 0, str(reason)


def write(path, text):
    """Writes a file whole or not at all."""
    partial = f"{path}.partial"
    Path(partial).write_text(text, encoding="utf-8")
    os.replace(partial, path)


def as_tap(results):
    lines = [f"1..{len(results)}"]
    for number, (exercise, points, says) in enumerate(results, 1):
        most = exercise.all_points()
        lines += [f"{'ok' if points == most else 'not ok'} {number} {exercise.id} {exercise.title}: {points} of {most} points", f"# {says}"]
    return "\n".join(lines) + "\n"


def as_junit(results):
    """Ant's form, which is stricter than Jenkins': what passed has nothing to say but in the suite's output."""
    suite = xml.Element("testsuite", name="exercises", hostname="localhost", timestamp=time.strftime("%Y-%m-%dT%H:%M:%S"), time="0",
                        tests=str(len(results)), errors="0", failures=str(sum(points < e.all_points() for e, points, _ in results)))
    xml.SubElement(suite, "properties")
    for exercise, points, says in results:
        case = xml.SubElement(suite, "testcase", classname=exercise.chapter, name=f"{exercise.id} {exercise.title}", time="0")
        if points < exercise.all_points():
            xml.SubElement(case, "failure", type="points", message=f"{points} of {exercise.all_points()} points").text = printable(says)
    xml.SubElement(suite, "system-out").text = "\n".join(f"{exercise.id}: {printable(says)}" for exercise, _, says in results)
    xml.SubElement(suite, "system-err")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def as_gradescope(results):
    return json.dumps({"score": sum(points for _, points, _ in results), "tests": [
        {"number": e.id, "name": f"{e.id} {e.title}", "score": points, "max_score": e.all_points(),
         "status": "passed" if points == e.all_points() else "failed", "output": printable(says)}
        for e, points, says in results]}, indent=1) + "\n"


def printable(text):
    return "".join(c if c.isprintable() else "�" for c in text)[:2000]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--submission", type=Path, default=ROOT)
    parser.add_argument("--exercise", action="append", help="only this one; may come several times")
    parser.add_argument("--chapters", type=book.numbers, help="such as 1-3,5")
    parser.add_argument("--seed", type=int, default=1, help="of the data")
    parser.add_argument("--hidden", type=Path, help="more shapes")
    parser.add_argument("--orders", type=int, choices=range(1, 10), default=ORDERS, help="of warps, in which each shape is tried")
    for kind in ("tap", "junit", "json"):
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help="Gradescope's results.json" if kind == "json" else None)
    arguments = parser.parse_args()
    if not arguments.submission.is_dir():
        raise BadInput(f"{arguments.submission}: no such folder")
    hidden = book.hidden_shapes(arguments.hidden)
    chosen = book.load(ROOT, arguments.chapters)
    if arguments.exercise:
        chosen = {name: book.find(chosen, name) for name in arguments.exercise}
    if not chosen:
        raise BadInput("there is nothing to grade: no exercise was found")
    results = []
    with tempfile.TemporaryDirectory(prefix="grade-") as programs, tempfile.TemporaryDirectory() as goldens:
        for exercise in chosen.values():
            print(f"{exercise.id:5} {exercise.title} … ", end="", flush=True)
            points, says = grade(exercise, arguments.submission, arguments.seed, hidden.get(exercise.id, []), arguments.orders,
                                 (Path(programs), Path(goldens)))
            results.append((exercise, points, says))
            print(f"{points} of {exercise.all_points()} points\n      {printable(says)}", flush=True)
    points, most = sum(p for _, p, _ in results), sum(e.all_points() for e, _, _ in results)
    print(f"{points} of {most} points")
    for path, text in (arguments.tap, as_tap), (arguments.junit, as_junit), (arguments.json, as_gradescope):
        if path:
            write(path, text(results))
    return 0 if points == most else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BadInput, OSError, subprocess.SubprocessError) as problem:
        print(f"grade: {problem}", file=sys.stderr)
        sys.exit(2)
