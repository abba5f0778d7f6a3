#!/usr/bin/env python3
"""Draws the losses of trainings: loss_curve.py LOG... --out FILE.svg, with the logs that build/gpt2 --json wrote. A line a log: the
mean of every 2 % of its steps, and its validation losses as points."""

import argparse
import json
import os
import sys


def read_log(path):
    """(steps, losses), (steps, validation losses) of a log."""
    losses, validation = ([], []), ([], [])
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                step = record["step"]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{path}:{number}: expected an object with a step, as build/gpt2 --json writes it")
            for name, (steps, values) in ("loss", losses), ("validation_loss", validation):
                if name in record:
                    steps.append(step)
                    values.append(record[name])
    if not losses[0]:
        sys.exit(f"{path}: no losses")
    return losses, validation


def averaged(steps, values):
    """Means of neighbouring steps, at the last of each."""
    width = max(len(values) // 50, 1)
    ends = range(width, len(values) + 1, width)
    return [steps[end - 1] for end in ends], [sum(values[end - width:end]) / width for end in ends]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams["svg.hashsalt"] = "cookbook"  # the same file from the same logs
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for path in options.logs:
        losses, validation = read_log(path)
        line, = axes.plot(*averaged(*losses), label=os.path.basename(path))
        axes.plot(*validation, "o", color=line.get_color())
    axes.set_xlabel("step")
    axes.set_ylabel("loss (points: validation)")
    axes.legend()
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
