#!/usr/bin/env python3
"""Asks for counters of a run before it is made, and compares: predict.py CHAPTER-NUMBER; make predict-N calls it.

The predictions are kept in exercises/ID/predictions.json, where the grader reads them: what was said once stays. What the
simulated GPU counts is in exercises/NN.toml, so that a step that is an exercise itself can be asked about; a test holds it.
"""

import json
import os
import re
import sys

import exercises as book
from exercises import ROOT, BadInput


def ask(exercise):
    """One number a question, from the terminal."""
    said = {}
    for number, question in enumerate(exercise.questions, 1):
        print(f"{number}. {question['ask']} (step {exercise.step}, {exercise.shape})")
        while question["ask"] not in said:
            try:
                line = input("   your prediction: ").replace(",", "").strip()
            except EOFError:
                print()
                raise BadInput("the input ended before the last question; nothing was kept")
            if re.fullmatch(r"\d+", line):
                said[question["ask"]] = int(line)
            else:
                print("   a whole number, please")
    return said


def predicted(path, exercise):
    """What was said before."""
    try:
        said = json.loads(path.read_bytes())
        return {question["ask"]: int(said[question["ask"]]) for question in exercise.questions}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise BadInput(f"{exercise.own_file()} does not have a number for each question; without that file they are asked again") from None


def main(chapter):
    found = [e for e in book.load(ROOT, book.numbers(chapter)).values() if e.kind == "predict"]
    if not found:
        raise BadInput(f"chapter {chapter} has no counters to predict")
    for exercise in found:
        path = ROOT / exercise.own_file()
        if path.exists():
            print(f"exercise {exercise.id} has been predicted before: {exercise.own_file()}")
            said = predicted(path, exercise)
        else:
            said = ask(exercise)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(said, indent=1) + "\n")
            os.replace(partial, path)
        print()
        for question in exercise.questions:
            said_one, count = said[question["ask"]], question["count"]
            print(f"{'right ' if said_one == count else 'not so'} {question['ask']}: you said {said_one:,}, it is {count:,}. {question['why']}")
        print(f"See it: make chapter-{chapter} STEP={exercise.step} CASE={exercise.case}{f' OP={exercise.op}' if exercise.op else ''} DEVICE=sim")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BadInput as problem:
        print(f"predict: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("\npredict: stopped; nothing was kept")
