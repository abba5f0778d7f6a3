#!/usr/bin/env python3
"""figures.py SITE WHAT DESCRIPTOR: holds the figures of the built book against what they should show, worked out anew: from the
formulas of the PTX manual and of the notes, from results/, and from what the program of tools/descriptor.c prints. WHAT: the name of
a function below."""

import collections
import glob
import html
import json
import math
import os
import re
import subprocess
import sys

SITE, WHAT, DESCRIPTOR = sys.argv[1:4]
# What was measured on GPUs.
RESULTS = [r for path in sorted(glob.glob("results/*.json")) for r in json.load(open(path, encoding="utf-8")) if "gpu" in r]
CHAPTERS = list(dict.fromkeys(r["chapter"] for r in RESULTS))


def figure(chapter, name):
    """A figure's SVGs in its page: [[(tag, attributes, the text of a text)]]."""
    with open(os.path.join(SITE, "notes", chapter + ".html"), encoding="utf-8") as file:
        found = re.findall(rf'<figure class="figure \w+" id="figure-{name}".*?</figure>', file.read(), re.S)
    assert len(found) == 1, f"{chapter}: {len(found)} figures {name}"
    pictures = []
    for svg in re.findall(r"<svg.*?</svg>", found[0], re.S):
        assert re.search(r'role="img" aria-label="[^"]{40,}"', svg), f"{chapter}: {name} says nothing to who does not see it"
        elements = re.findall(r"<(rect|text|line|circle|polyline)([^>]*)>(?:<title>[^<]*</title>)?([^<]*)<", svg)
        pictures.append([(tag, {k: html.unescape(v) for k, v in re.findall(r'([\w-]+)="([^"]*)"', attrs)}, html.unescape(text))
                         for tag, attrs, text in elements])
    return pictures


def cells(picture, key):
    """The attributes of the boxes that have data-KEY, each with the text that follows it."""
    return [(attrs, picture[n + 1][2]) for n, (tag, attrs, _) in enumerate(picture) if tag == "rect" and "data-" + key in attrs]


def number(attrs, *names):
    return tuple(int(attrs["data-" + name]) for name in names)


def banks():
    expected = [lambda row, chunk: chunk, lambda row, chunk: (chunk + row) % 8, lambda row, chunk: chunk ^ row]
    pictures = figure("04_swizzled_smem", "banks")
    for picture, group_of, wavefronts in zip(pictures, expected, (8, 1, 1), strict=True):
        shown = {}
        for attrs, text in cells(picture, "group"):
            row, chunk, group = number(attrs, "row", "chunk", "group")
            assert attrs["class"] == f"k{group}" and text == str(4 * group), (attrs, text)
            shown[row, chunk] = group
        assert shown == {(row, chunk): group_of(row, chunk) for row in range(8) for chunk in range(8)}, shown
        assert any(text.startswith(f"chunk 0 of 8 rows: {wavefronts} wavefront") for _, _, text in picture)


def held(picture):
    """(row, column) -> (lane, register) of a fragment's boxes, each of the colour of its register, with its lane as text."""
    shown = {}
    for attrs, text in cells(picture, "lane"):
        row, col, lane, register = number(attrs, "row", "col", "lane", "register")
        assert text == str(lane), (attrs, text)
        shown[row, col] = lane, register, attrs["class"]
    return shown


def fragments():
    # PTX ISA, Matrix Fragments for mma.m16n8k16: groupID = lane / 4, threadID_in_group = lane % 4.
    A, B, C = map(held, figure("03_tensor_core_matmul", "fragments"))

    def expected(registers, place):
        return {place(lane // 4, 2 * (lane % 4), r): (lane, r, f"k{r}") for lane in range(32) for r in range(registers)}
    assert A == expected(4, lambda group, pair, r: (group + 8 * (r % 2), pair + 8 * (r // 2))), A
    assert B == expected(2, lambda group, pair, r: (group, pair + 8 * r)), B
    assert C == expected(2, lambda group, pair, r: (group + 8 * r, pair)), C


def accumulators():
    # PTX ISA, Register Fragments and Shared Memory Matrix Layouts: D of wgmma.m64nNk16; of warp 0.
    picture, = figure("13_tma_wgmma_matmul", "accumulators")
    expected = {(lane // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (lane % 4)): (lane, r, f"k{r // 2}") for lane in range(32) for r in range(0, 8, 2)}
    assert held(picture) == expected, held(picture)


def descriptor():
    printed = subprocess.run([DESCRIPTOR], check=True, capture_output=True, text=True).stdout
    bits = int(re.search(r"descriptor (0x\w+)", printed)[1], 16)
    picture, = figure("13_tma_wgmma_matmul", "descriptor")
    shown = {number(attrs, "bit")[0]: (text, attrs["class"]) for attrs, text in cells(picture, "bit")}
    kinds = dict.fromkeys(range(64), "plain")
    for kind, (low, high) in enumerate(((62, 63), (49, 51), (32, 45), (16, 29), (0, 13))):
        kinds |= {bit: f"k{kind}" for bit in range(low, high + 1)}
    assert shown == {bit: (str(bits >> bit & 1), kinds[bit]) for bit in range(64)}, shown
    for low, high, value in re.findall(r"^  (\d+)-(\d+) .*?(\d+)  ", re.sub(r"^  (\d+)-(\d+) ", r"  \2-\1 ", printed, flags=re.M), re.M):
        assert any(re.match(rf"{high} to {low}: .* = {value}\b", text) for _, _, text in picture), (high, low, value)


def pipeline():
    # Copies start and are waited for in the order of the table of note 5; a slice is a quarter of a tile.
    starts = [(2, lambda t: 4 * (t - 1), lambda t: 4 * t), (3, lambda t: 4 * (t - 1), lambda t: 4 * t), (3, lambda t: 4 * (t - 2), lambda t: 4 * t - 1)]
    pictures = figure("05_cp_async_pipeline", "pipeline")
    for picture, (stages, start, wait), flight in zip(pictures, starts, ([1] * 4, [1] * 4, [2, 2, 2, 1]), strict=True):
        copies = [attrs for attrs, _ in cells(picture, "start")]
        products = [attrs for attrs, _ in cells(picture, "tile") if "data-start" not in attrs]
        assert len(copies) == len(products) == 7
        lines = [float(attrs["x1"]) for tag, attrs, _ in picture if tag == "line"]
        slice_width = (lines[-1] - lines[0]) / 28
        for attrs in copies:
            tile, stage = number(attrs, "tile", "stage")
            began, waited = float(attrs["data-start"]), float(attrs["data-wait"])
            assert stage == tile % stages, attrs
            end = (float(attrs["x"]) + float(attrs["width"]) - lines[0]) / slice_width
            assert abs(end - waited) < 0.1, (attrs, end)
            if tile >= stages:  # those before are of the prologue
                assert (began, waited) == (start(tile), wait(tile)), attrs
                assert abs((float(attrs["x"]) - lines[0]) / slice_width - began) < 0.1, attrs
        for attrs in products:
            tile, stage = number(attrs, "tile", "stage")
            assert stage == tile % stages and abs((float(attrs["x"]) - lines[0]) / slice_width - 4 * tile) < 0.1, attrs
        shown = [sum(float(a["data-start"]) <= 4 * 3 + n < float(a["data-wait"]) for a in copies) for n in range(4)]
        assert shown == flight, shown


def ladder():
    for chapter in CHAPTERS:
        own = [r for r in RESULTS if r["chapter"] == chapter]
        several = len({r["gpu"] for r in own}) > 1
        seen = set()
        for picture in figure(chapter, "ladder"):
            head = " ".join(text for tag, attrs, text in picture if tag == "text" and attrs["x"] == "0")
            bars = [attrs for tag, attrs, _ in picture if tag == "rect"]
            line = next(float(attrs["x1"]) for tag, attrs, _ in picture if tag == "line" and attrs["class"] == "mark")
            assert bars
            for attrs in bars:
                step, left, width = attrs["data-step"], float(attrs["x"]), float(attrs["width"])
                alike = [r for r in own if head == ", ".join(
                    ([r["operation"]] if r.get("operation") else []) + [r["dtype"], r["case"].replace(",", ", ")] + several * [r["gpu"]])]
                records = [r for r in alike if r["step"] == step]
                assert len(records) == 1, (chapter, head, step)
                shown = [r for r in alike if r["step"] in {attrs["data-step"] for attrs in bars}]
                share = records[0]["fraction_of_limit"] if any(r["ratio"] is None for r in shown) else records[0]["ratio"]
                assert abs(width / (line - left) - share) < 2e-4 * max(1, share) + 0.02 / (line - left), (chapter, head, step, width / (line - left), share)
                assert f"{share:.3f}" in [text for _, _, text in picture], (chapter, step)
                seen.add((records[0].get("operation"), step))
        # Every step that has a share of something is on a bar.
        measured = {(r.get("operation"), r["step"]) for r in own if r["ratio"] is not None or r["fraction_of_limit"] is not None}
        assert seen == measured, (chapter, measured - seen)


def roofs_of(chapter):
    """(picture, the records that it should show) for each GPU; a picture names its GPU where there are several."""
    own = [r for r in RESULTS if r["chapter"] == chapter and r["metric"] == "TFLOP/s" and r["limit"]]
    gpus = list(dict.fromkeys(r["gpu"] for r in own))
    pictures = figure(chapter, "roofline") if own else []
    assert len(pictures) == len(gpus), (chapter, gpus)
    for gpu, picture in zip(gpus, pictures):
        assert len(gpus) == 1 or any(gpu in text for tag, _, text in picture if tag == "text"), (chapter, gpu)
    return [(picture, [r for r in own if r["gpu"] == gpu]) for gpu, picture in zip(gpus, pictures)]


def picture_of_roofline(chapter, picture, own):
    """How many of its points were held against their work."""
    drawn = 0
    bandwidth, = {r["limit"]["value"] / 1000 for r in RESULTS if r["gpu"] == own[0]["gpu"] and r["limit"] and r["limit"]["name"] == "memory"}
    texts = [(attrs, text) for tag, attrs, text in picture if tag == "text" and re.fullmatch(r"[\d.]+", text)]
    x_ticks = sorted((math.log2(float(text)), float(attrs["x"])) for attrs, text in texts if attrs["class"] == "mid")
    y_ticks = sorted((math.log2(float(text)), float(attrs["y"])) for attrs, text in texts if attrs["class"] == "end")

    def at(value, ticks):
        (a, at_a), (b, at_b) = ticks[0], ticks[-1]
        return at_a + (math.log2(value) - a) / (b - a) * (at_b - at_a)
    points = collections.Counter((attrs["data-step"], attrs["data-case"]) for tag, attrs, _ in picture if tag == "circle")
    assert points == collections.Counter((r["step"], r["case"]) for r in own), chapter
    for tag, attrs, _ in picture:
        if tag == "circle":
            rates = [r["value"] for r in own if (r["step"], r["case"]) == (attrs["data-step"], attrs["data-case"])]
            assert min(abs(at(rate, y_ticks) - float(attrs["cy"])) for rate in rates) < 0.1, (chapter, attrs, rates)
            dims = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", attrs["data-case"])}
            if set(dims) == {"m", "n", "k"} and chapter != "19_fp8_gemm":
                m, n, k = dims["m"], dims["n"], dims["k"]
                size = 4 if own[0]["dtype"] == "f32" else 2
                flop_a_byte = 2 * m * n * k / (size * (m * k + n * k + m * n))
            elif set(dims) == {"b", "q", "k", "h", "g", "d", "causal"} and chapter != "17_sm90_attention_backward":
                b, q, k, h, g, d, causal = (dims[name] for name in ("b", "q", "k", "h", "g", "d", "causal"))
                size = 1 if chapter == "21_fp8_attention" else 2  # of Q, K and V; O has 2, and chapter 21's scales are too few to be seen
                flop_a_byte = 4 * b * h * q * k * d / (1 + causal) / (b * d * (size * (q * h + 2 * k * g) + 2 * q * h) + 4 * b * h * q)
            else:
                continue
            assert abs(at(flop_a_byte, x_ticks) - float(attrs["cx"])) < 0.2, (chapter, attrs, flop_a_byte)
            drawn += 1
    for tag, attrs, _ in picture:
        if tag == "polyline":
            (x0, y0), (x1, y1), (_, y2) = (map(float, point.split(",")) for point in attrs["points"].split())
            limits = [r["limit"]["value"] for r in own]
            assert any(abs(at(limit, y_ticks) - y1) < 0.1 and abs(at(limit / bandwidth, x_ticks) - x1) < 0.1 for limit in limits) and y1 == y2, (chapter, attrs)
            slope = ((x_ticks[-1][1] - x_ticks[0][1]) / (x_ticks[-1][0] - x_ticks[0][0])) / ((y_ticks[-1][1] - y_ticks[0][1]) / (y_ticks[-1][0] - y_ticks[0][0]))
            assert abs((x1 - x0) / (y1 - y0) - slope) < 0.02 * abs(slope), (chapter, attrs)
    return drawn


def roofline():
    drawn = sum(picture_of_roofline(chapter, *pair) for chapter in CHAPTERS for pair in roofs_of(chapter))
    assert drawn > 500, drawn


globals()[WHAT]()
