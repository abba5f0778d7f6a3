#!/usr/bin/env python3
"""Draws timelines that programs wrote with --trace: what each role of a block did when, as an SVG.

    timeline.py FILE.json... [-o FILE.svg] [--sm N] [--from T] [--to T]

A row is a role, the thin one below it its products in flight. Shown are the blocks of one SM, the first traced one if --sm does not
say otherwise, between the times T: microseconds, or on the simulated GPU executed warp instructions. Several files are drawn one
below the other, on one scale. A file may be compressed, FILE.json.gz.
"""

import argparse
import gzip
import json
import re
import sys

COLORS = {"wait full": "#d9d9d9", "wait empty": "#eeeeee", "wait turn": "#b3b3b3", "load": "#55a868", "multiply": "#4c72b0", "softmax": "#dd8452",
          "exchange": "#8172b3", "store": "#c44e52", "in flight": "#a6bddb"}


def read(path):
    """The file's head, and its blocks: process number -> (SM, thread number -> (role, spans)); a span is (begin, length, event)."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    blocks = {}
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            blocks[event["pid"]] = (int(re.search(r"on SM (\d+)", event["args"]["name"])[1]), {})
        elif event["name"] == "thread_name":
            blocks[event["pid"]][1][event["tid"]] = (event["args"]["name"], [])
        elif event["ph"] == "X":
            blocks[event["pid"]][1][event["tid"]][1].append((event["ts"], event["dur"], event["name"]))
    return trace["otherData"], blocks


def rows_of(blocks, sm):
    """Rows of the picture: [(role, spans)]. Blocks that run one after the other on the SM share them; those beside them have their own."""
    rows, ends = {}, {}
    for own_sm, threads in blocks.values():
        spans = [span for _, own in threads.values() for span in own]
        if own_sm != sm or not spans:
            continue
        begin, end = min(s[0] for s in spans), max(s[0] + s[1] for s in spans)
        slot = next(n for n in range(len(ends) + 1) if ends.get(n, begin) <= begin)
        ends[slot] = end
        for role, own in threads.values():
            rows.setdefault((slot, role), []).extend(own)
    return [(role if slot == 0 else f"{role} ({slot + 1}. block)", spans) for (slot, role), spans in sorted(rows.items(), key=lambda row: row[0][0])]


def draw_one(axis, head, rows, begin, end, sm):
    """Draws the rows of one file; returns the events that are seen."""
    top, ticks, seen = 0.0, [], set()
    for role, spans in rows:
        is_thin = ": products in flight" in role
        height = 0.35 if is_thin else 0.8
        shown = [s for s in spans if s[0] + s[1] >= begin and s[0] <= end]
        axis.broken_barh([(s[0], s[1]) for s in shown], (top, height), facecolors=[COLORS[s[2]] for s in shown], linewidth=0)
        seen.update(s[2] for s in shown)
        ticks.append((top + height / 2, "in flight" if is_thin else role))
        top += height + (0.35 if is_thin else 0.05)
    axis.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.set_ylim(top, -0.1)
    axis.set_xlim(begin, end)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(f"{head['chapter']}, {head['step']}, {head['shape']}, {head['type']}; {head['device']}, SM {sm}", fontsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    return seen


def draw(pictures, begin, end, path):
    """Writes the SVG of [(head, rows, sm)]."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cookbook"  # the same data gives the same file
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    heights = [0.27 * len(rows) + 0.25 for _, rows, _ in pictures]
    figure, axes = pyplot.subplots(len(pictures), 1, figsize=(11, sum(heights) + 0.45 * len(pictures) + 0.5), squeeze=False,
                                   gridspec_kw={"height_ratios": heights}, layout="constrained")
    seen = set()
    for axis, (head, rows, sm) in zip(axes.flat, pictures):
        seen |= draw_one(axis, head, rows, begin, end, sm)
    axes.flat[-1].set_xlabel("µs" if head["unit"] == "us" else head["unit"], fontsize=8)
    names = [name for name in COLORS if name in seen]
    figure.legend([Patch(color=COLORS[name]) for name in names], ["products in flight" if n == "in flight" else n for n in names], fontsize=7,
                  ncols=len(names), loc="outside lower center", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="what --trace wrote")
    parser.add_argument("-o", "--out", help="the SVG; by default the first file's name with .svg")
    parser.add_argument("--sm", type=int, help="whose blocks to draw")
    parser.add_argument("--from", type=float, dest="begin", help="where the picture begins")
    parser.add_argument("--to", type=float, dest="end", help="where it ends")
    options = parser.parse_args()
    pictures = []
    for path in options.files:
        try:
            head, blocks = read(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"timeline: {path}: {error}; expected a file that --trace wrote")
        sms = sorted({sm for sm, _ in blocks.values()})
        sm = sms[0] if options.sm is None else options.sm
        pictures.append((head, rows_of(blocks, sm), sm))
        if not pictures[-1][1]:
            sys.exit(f"timeline: --sm {sm}: no block of it is in {path}, which has SMs {', '.join(map(str, sms))}")
    if len({head["unit"] for head, _, _ in pictures}) > 1:
        sys.exit("timeline: these files have different units, and no common scale")
    times = [t for _, rows, _ in pictures for _, spans in rows for s in spans for t in (s[0], s[0] + s[1])]
    begin = min(times) if options.begin is None else options.begin
    end = max(times) if options.end is None else options.end
    if not begin < end:
        sys.exit(f"timeline: nothing between {begin:g} and {end:g}, expected times from {min(times):g} to {max(times):g}")
    out = options.out or re.sub(r"\.json(\.gz)?$", "", options.files[0]) + ".svg"
    draw(pictures, begin, end, out)
    print(out)


if __name__ == "__main__":
    main()
