"""The steps of the chapters: what the header of each kernel file says of it.

A header is the block of // lines that a file begins with. Its first line is `// Chapter 13, step 2: WHAT CHANGED.`, one of the
others `// Grows from: step 1 (NAME).` or `// Grows from: chapter 5, step 3 (NAME).`, or `// Grows from: nothing.`
"""

import dataclasses
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class HeaderError(Exception):
    """A header that does not say what a header says: one line, with the file."""


@dataclasses.dataclass
class Step:
    chapter: str  # the chapter's folder, such as 13_tma_wgmma_matmul
    number: int
    name: str
    path: str  # from the repository's root

    def text(self):
        with open(os.path.join(ROOT, self.path), encoding="utf-8") as file:
            return file.read()

    def header(self):
        """The lines of the header, without their slashes."""
        lines = []
        for line in self.text().splitlines():
            if not line.startswith("//"):
                break
            lines.append(line[2:].strip())
        return lines

    def code(self):
        """The lines below the header, without the marks of exercises (tools/classroom/exercises.py)."""
        lines = self.text().splitlines()[len(self.header()):]
        return [line for line in lines if not re.match(r" *// ((EXERCISE|GRADED) \d+\.\d+:|STUB |END$)", line)]

    def what(self):
        """What the step changes, in a sentence."""
        expected = f"Chapter {int(self.chapter[:2])}, step {self.number}: "
        first = (self.header() or [""])[0]
        if not first.startswith(expected) or not first.endswith("."):
            raise HeaderError(f"{self.path}: the first line is '{first}', expected '{expected}' and a sentence")
        return first[len(expected):]

    def grows_from(self):
        """The step that this one is a changed copy of, None for one that is written anew."""
        lines = [line for line in self.header() if line.startswith("Grows from:")]
        if len(lines) != 1:
            raise HeaderError(f"{self.path}: {len(lines)} lines of the header begin with 'Grows from:', expected one")
        if lines[0] == "Grows from: nothing.":
            return None
        match = re.fullmatch(r"Grows from: (?:chapter (\d+), )?step (\d+) \((\w+)\)\.", lines[0])
        if not match:
            raise HeaderError(f"{self.path}: found '{lines[0]}', expected 'Grows from: [chapter N, ]step K (NAME).' or 'Grows from: nothing.'")
        chapter = f"{int(match[1]):02}_*" if match[1] else self.chapter
        paths = kernel_files(f"chapters/{chapter}/step{match[2]}_{match[3]}.cu")
        if len(paths) != 1 or paths[0] == self.path:
            raise HeaderError(f"{self.path}: '{lines[0]}' names a step that is not there")
        return step_of(paths[0])


def kernel_files(pattern):
    """The files that match, from the repository's root."""
    return [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern))]


def step_of(path):
    """The step that a kernel file is, by its name."""
    match = re.fullmatch(r"chapters/(\w+)/step(\d+)_(\w+)\.cu", path)
    return Step(match[1], int(match[2]), match[3], path)


def steps_of(chapter):
    """A chapter's steps in order, by its folder."""
    steps = [step_of(path) for path in kernel_files(f"chapters/{chapter}/step*.cu")]
    return sorted(steps, key=lambda step: step.number)


def chapters():
    """The chapters' folders in order."""
    return sorted({path.split("/")[1] for path in kernel_files("chapters/*/step1_*.cu")})
