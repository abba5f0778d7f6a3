"""The book's figures, as SVG in the page: layouts and orders as the kernels themselves have them (build/figures/layouts.json, which
layouts.cu writes), and what was measured (results/). Colours are book.css's, which knows dark from light; text has the page's.

A figure belongs to a chapter, whose note shows it with <!-- figure: NAME -->. Each says in words what it shows, for who does not see it."""

import functools
import html
import json
import math
import os
import re
import subprocess

from report import groups_of as groups_of_results, load_results, share
from steps import ROOT, chapters, steps_of

LAYOUTS = os.path.join(ROOT, "build", "figures", "layouts.json")
WORK = os.path.join(ROOT, "build", "figures", "work")
WIDTH = 356  # of a whole figure: a phone shows it as it is, a desk somewhat larger


class FigureError(Exception):
    """What keeps a figure from being drawn: one line."""


class Picture:
    """One SVG of so many units: what is added, in order. `says` is read to who does not see it."""

    def __init__(self, width, height, says):
        self.width, self.height, self.says, self.parts = width, height, says, []

    def add(self, tag, text=None, tip=None, **attributes):
        """An element; text goes into it, tip shows when a pointer rests on it. class_ and data_x become class and data-x."""
        attrs = "".join(f' {name.rstrip("_").replace("_", "-")}="{round(value, 2) if isinstance(value, float) else html.escape(str(value))}"'
                        for name, value in attributes.items())
        inside = (f"<title>{html.escape(tip)}</title>" if tip else "") + (html.escape(str(text)) if text is not None else "")
        self.parts.append(f"<{tag}{attrs}>{inside}</{tag}>")

    def cell(self, x, y, width, height, text, kind, **attributes):
        """A box with text in its middle; kind is its class, k0 to k7 are colours."""
        self.add("rect", x=x, y=y, width=width, height=height, class_=kind, **attributes)
        if text != "":
            self.add("text", text, x=x + width / 2, y=y + height / 2, class_="mid")

    def label(self, x, y, text, kind="mid"):
        """Text around (x, y): "mid" in its middle, "end" left of it, "begin" right of it."""
        self.add("text", text, x=x, y=y, class_=kind)

    def svg(self):
        share = self.width / WIDTH
        return (f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{html.escape(self.says)}" '
                f'style="max-width: {30 * share:.1f}rem; flex: {share:.2f} 1 {17.9 * share:.1f}rem">{"".join(self.parts)}</svg>')


def figure(name, pictures, caption, layout="row"):
    """Pictures and a line about them. Layouts: "row", beside each other as far as the page is wide; "columns", the same, and none
    grows; "stack", below each other."""
    inside = "".join(picture.svg() for picture in pictures)
    return (f'<figure class="figure {layout}" id="figure-{name}" data-search-exclude><div>{inside}</div>'
            f"<figcaption>{caption}</figcaption></figure>")


results = functools.cache(load_results)


def groups_of(chapter):
    """What a chapter's ladder shows."""
    return groups_of_results(results(), chapter)


@functools.cache
def layouts():
    try:
        with open(LAYOUTS, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise FigureError(f"{os.path.relpath(LAYOUTS, ROOT)}: {error}; make book writes it") from error


def legend(picture, y, entries, x=0, step=None):
    """Squares with their meaning, [(class, text)], in a line."""
    step = step or (picture.width - x) / len(entries)
    for n, (kind, text) in enumerate(entries):
        picture.add("rect", x=x + n * step, y=y - 5, width=10, height=10, class_=kind)
        picture.label(x + n * step + 14, y, text, "begin")


# --- Layouts ----------------------------------------------------------------------------------------------------------

def bank_group(offset):
    """Which four of the 32 banks have the 16 bytes at this offset."""
    return offset // 16 % 8


def banks():
    """Chapter 4: the chunks of a tile's first 8 rows, coloured by the banks that they lie in."""
    pictures = []
    for name, title in ("plain", "chapter 3: plain"), ("padded", "step 1: padded"), ("swizzled", "step 2: swizzled"):
        groups = [bank_group(offset) for offset in layouts()["banks"][name]]
        column = groups[::8]
        wavefronts = max(column.count(group) for group in column)
        said = f"{wavefronts} wavefront" + "s" * (wavefronts > 1)
        rows = "; ".join(f"row {row}: {', '.join(map(str, groups[8 * row:8 * row + 8]))}" for row in range(8))
        picture = Picture(212, 214, f"{title}. Groups of four banks of chunks 0 to 7, {rows}. Chunk 0 of the eight rows takes {said}.")
        picture.label(112, 8, title)
        for chunk in range(8):
            picture.label(32 + 22 * chunk + 11, 24, chunk)
        for n, group in enumerate(groups):
            row, chunk = divmod(n, 8)
            picture.cell(32 + 22 * chunk, 32 + 20 * row, 22, 20, 4 * group, f"k{group}", data_row=row, data_chunk=chunk, data_group=group)
        for row in range(8):
            picture.label(28, 42 + 20 * row, f"row {row}", "end")
        picture.add("rect", x=32, y=32, width=22, height=160, class_="read")
        picture.label(112, 204, f"chunk 0 of 8 rows: {said}")
        pictures.append(picture)
    return figure("banks", pictures, "The 16-byte chunks of a tile's first 8 rows, as each step's own <code>load_tile</code> left them: the colour "
                  "and the number are the first of the four banks that a chunk lies in. An <code>ldmatrix</code> reads the framed column. One "
                  "colour there is a bank conflict, eight colours are none.")


def fragment(title, names, held, rows, columns, axis):
    """A matrix of an mma: which lane, and which register, has each pair of neighbours. held[lane][register] are its elements."""
    places = {}
    for lane, registers in enumerate(held):
        for register, (first, second) in enumerate(registers):
            if second != first + 1 or first % 2 or first in places:
                raise FigureError(f"{title}: lane {lane} has elements {first} and {second}, and no pair of neighbours of its own")
            places[first] = lane, register
    if len(places) != rows * columns // 2:
        raise FigureError(f"{title}: {len(places)} pairs of {rows * columns // 2} are in registers")
    pairs, size = columns // 2, 25
    has = "; ".join(f"{names[r]}: row {held[5][r][0] // columns}, {axis} {held[5][r][0] % columns} and {held[5][r][0] % columns + 1}"
                    for r in range(len(names)))
    picture = Picture(34 + size * pairs, 46 + 13 * rows, f"{title}: a lane for each pair of neighbours. Lane 5 holds {has}.")
    picture.label(30 + size * pairs / 2, 7, title)
    picture.label(28, 20, axis, "end")
    for pair in range(pairs):
        picture.label(30 + size * pair + size / 2, 20, 2 * pair)
    for row in range(rows):
        picture.label(26, 34 + 13 * row, row, "end")
        for pair in range(pairs):
            lane, register = places[row * columns + 2 * pair]
            picture.cell(30 + size * pair, 28 + 13 * row, size, 13, lane, f"k{register}", data_row=row, data_col=2 * pair, data_lane=lane,
                         data_register=register)
    legend(picture, 38 + 13 * rows, [(f"k{r}", name) for r, name in enumerate(names)], 4 if len(names) > 2 and pairs == 4 else 30)
    return picture


def fragments():
    """Chapter 3: the operands of mma.m16n8k16."""
    data = layouts()
    pictures = [fragment("A, 16 rows × 16 k", ["a0", "a1", "a2", "a3"], data["mma_A"], 16, 16, "k"),
                fragment("B, 8 rows n × 16 k", ["b0", "b1"], data["mma_B"], 8, 16, "k"),
                fragment("C, 16 rows × 8 n", ["c0 c1", "c2 c3"], [[lane[:2], lane[2:]] for lane in data["mma_C"]], 16, 8, "n")]
    return figure("fragments", pictures, "What the first <code>ldmatrix</code> of A and of B and the first <code>mma</code> of step 1 leave in the "
                  "registers of its first warp, read from there on the simulated GPU: the number is the lane, the colour its register; a box is "
                  "two neighbours.")


def accumulators():
    """Chapter 13: the accumulators of a wgmma, of which the first warp's first 16 columns are drawn."""
    held = layouts()["wgmma"]
    columns = 128
    for thread, registers in enumerate(held):
        for register, element in enumerate(registers):
            same = held[thread % 32][register % 8] + thread // 32 * 16 * columns + register // 8 * 16
            if element != same:
                raise FigureError(f"wgmma: thread {thread} has element {element} in acc[{register}]; the figure shows a pattern that would have {same}")
    places = {held[lane][register]: (lane, register) for lane in range(32) for register in range(8)}
    picture = Picture(WIDTH, 328, "The accumulators of a wgmma, 64 rows. Thread 5 has in acc[0] to acc[7] "
                      + "; ".join(f"row {e // columns}, column {e % columns}" for e in held[5][:8])
                      + ". Each further warp has 16 rows more, and every 16 columns take 8 registers more.")
    picture.label(34 + 160, 7, "column")
    for pair in range(8):
        picture.label(34 + 40 * pair + 20, 20, 2 * pair)
    for row in range(16):
        picture.label(30, 35 + 14 * row, row, "end")
        for pair in range(8):
            lane, register = places[row * columns + 2 * pair]
            picture.cell(34 + 40 * pair, 28 + 14 * row, 40, 14, lane, f"k{register // 2}", data_row=row, data_col=2 * pair, data_lane=lane,
                         data_register=register)
    for warp in range(1, 4):
        picture.cell(34, 252 + 18 * (warp - 1), 320, 18, f"rows {16 * warp} to {16 * warp + 15}: the same, threads {32 * warp} to {32 * warp + 31}", "plain")
    legend(picture, 318, [(f"k{n}", f"acc[{2 * n}], [{2 * n + 1}]") for n in range(4)], 0, 90)
    return figure("accumulators", [picture], "The accumulators of one <code>wgmma</code>, read from the registers: the number is the thread, the colour "
                  "its registers, a box two neighbours of a row. The next 16 columns are in <code>acc[8]</code> to <code>acc[15]</code>, and so on.")


# PTX ISA, Asynchronous warpgroup level matrix shared memory layout, matrix descriptor: the lowest bit, how many, what they are.
FIELDS = ((62, 2, "swizzle"), (49, 3, "base offset"), (32, 14, "SBO / 16"), (16, 14, "LBO / 16"), (0, 14, "start / 16"))


def descriptor():
    """Chapter 13: the bits of a tile's matrix descriptor."""
    data = layouts()["descriptor"]
    bits = data["bits"][::-1]  # bits[n] is bit n
    value = {name: int(bits[low:low + count][::-1], 2) for low, count, name in FIELDS}
    kinds = {bit: n for n, (low, count, _) in enumerate(FIELDS) for bit in range(low, low + count)}
    meant = {"SBO / 16": f": {value['SBO / 16'] * 16} bytes from eight rows to the next eight", "LBO / 16": ": not used with this swizzle",
             "start / 16": f": address {value['start / 16'] * 16:#x}", "swizzle": ": 128 bytes"}
    said = "; ".join(f"bits {low + count - 1} to {low}: {name} = {value[name]}{meant.get(name, '')}" for low, count, name in FIELDS)
    picture = Picture(WIDTH, 270, f"The 64 bits of the descriptor of a tile at shared address {data['tile']:#x}. {said}.")
    for bit in range(64):
        row, column = divmod(63 - bit, 16)
        picture.cell(2 + 22 * column, 14 + 36 * row, 22, 20, bits[bit], f"k{kinds[bit]}" if bit in kinds else "plain", data_bit=bit)
        picture.label(2 + 22 * column + 11, 8 + 36 * row, bit, "mid small")
    for n, (low, count, name) in enumerate(FIELDS):
        picture.add("rect", x=2, y=161 + 22 * n, width=12, height=12, class_=f"k{n}")
        picture.label(20, 167 + 22 * n, f"{low + count - 1} to {low}: {name} = {value[name]}{meant.get(name, '')}", "begin")
    return figure("descriptor", [picture], f"What <code>wgmma_descriptor_bits({data['tile']:#x})</code> returns; bits without a colour are 0.")


# --- Orders -----------------------------------------------------------------------------------------------------------

SLICES = 4  # of a tile of 64 k


def spans_of(order):
    """What a kernel did, as a picture in slices of its products: [(stage, tile, start, wait)] of the copies, from where their group is
    committed to where the kernel has waited for it, and [(stage, tile, begin, end)] of the products."""
    stages, notes = order["stages"], order["notes"]
    a_slice = sum(kind == "multiply" for kind, _ in notes) // (order["k_tiles"] * SLICES)
    groups, copies, multiplied, copied_to = [], [], 0, None
    for kind, value in notes:
        now = multiplied / a_slice
        if kind == "copy" and value // order["stage_bytes"] < stages:  # of A; B's stages lie behind
            copied_to = value // order["stage_bytes"]
        elif kind == "commit":
            groups.append((copied_to, now))
            copied_to = None
        elif kind == "wait":
            for tile in range(len(copies), len(groups) - value):
                stage, start = groups[tile]
                copies.append((stage, tile, start, now))
        elif kind == "multiply":
            multiplied += 1
    copies = [copy for copy in copies if copy[0] is not None]
    products = [(stage, tile, SLICES * tile, SLICES * tile + SLICES) for stage, tile, _, _ in copies]
    return copies, products


def in_flight(copies, at):
    """How many tiles have been started and not been waited for while the slice that begins at `at` is multiplied."""
    return sum(start <= at and at < wait for _, _, start, wait in copies)


def pipeline():
    """Chapter 5: what each stage of shared memory holds, as thread 0 goes through the kernel."""
    pictures, said = [], []
    for number, name in enumerate(("two_stage", "multi_stage", "fragments_ahead"), 1):
        order = layouts()["orders"][name]
        copies, products = spans_of(order)
        tile = order["k_tiles"] // 2  # of the middle: neither the prologue nor the end
        flight = [in_flight(copies, SLICES * tile + n) for n in range(SLICES)]
        said.append(f"step {number}: {', '.join(map(str, flight))}")
        slices, stages = SLICES * order["k_tiles"], order["stages"]
        prologue, left = 2, 22
        unit = (WIDTH - left - 2) / (slices + prologue)

        def x(at, left=left, prologue=prologue, unit=unit):
            return left + (at + prologue) * unit
        picture = Picture(WIDTH, (46 if name == "fragments_ahead" else 26) + 22 * stages, f"Step {number}, {name}, {stages} stages. While the {SLICES} slices of tile {tile} are multiplied, "
                          f"{', '.join(map(str, flight))} tiles are in flight.")
        picture.label(0, 8, f"step {number}, {name}", "begin")
        for stage in range(stages):
            picture.label(left - 4, 30 + 22 * stage, f"s{stage}", "end")
        for stage, n, start, wait in copies:
            begin = start if start > 0 or n == 0 else 0
            begin = -prologue if start == 0 and n < stages - 1 else begin  # started before the loop
            picture.cell(x(begin), 20 + 22 * stage, (wait - begin) * unit, 20, n, "flight", data_tile=n, data_stage=stage, data_start=start,
                         data_wait=wait)
        for stage, n, begin, end in products:
            picture.cell(x(begin), 20 + 22 * stage, (end - begin) * unit, 20, n, "k0", data_tile=n, data_stage=stage)
        bottom = 20 + 22 * stages
        for n in range(order["k_tiles"] + 1):
            picture.add("line", x1=x(SLICES * n), x2=x(SLICES * n), y1=16, y2=bottom + 2, class_="grid")
        if name == "fragments_ahead":
            legend(picture, bottom + 14, [("flight", "copy of tile n in flight"), ("k0", "tile n multiplied")], left)
        pictures.append(picture)
    return figure("pipeline", pictures, "What each stage of shared memory holds, in the order of the code, noted while the kernels ran: not in time, but in "
                  f"products, {SLICES} slices a tile. A copy is in flight from its commit to the wait that asks for it. Tiles in flight during the "
                  f"slices of one tile: {'; '.join(said)}.", "stack")


# --- Results ----------------------------------------------------------------------------------------------------------

def wrapped(text, width):
    """Lines of at most about `width` signs, broken at spaces."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def ladder(chapter):
    """A bar for each step: its share of what it was timed beside."""
    pictures = []
    several = len({gpu for gpu, _ in groups_of(chapter)}) > 1
    for gpu, group in groups_of(chapter):
        first = group[0]
        rival = first["baseline"] if first["ratio"] is not None else f"the limit, {first['limit']['name']}"
        operation = f"{first['operation']}, " if first.get("operation") else ""
        head = wrapped(f"{operation}{first['dtype']}, {first['case'].replace(',', ', ')}" + several * f", {gpu}", 60)
        limit = first["limit"]["value"] / first["baseline_value"] if first["ratio"] is not None and first["limit"] and first["metric"] != "tokens/s" else None
        most = max([1.0] + [share(r) for r in group])
        if limit and limit <= 2.5 * most:
            most = max(most, limit)
        left, right = 118, WIDTH - 30
        says = f"{operation}{first['dtype']}, {first['case']}, on {gpu}, as a share of {rival}: " + ", ".join(f"{r['step']} {share(r):.3f}" for r in group) + "."
        picture = Picture(WIDTH, 13 * len(head) + 19 * len(group) + 36, says)
        for n, line in enumerate(head):
            picture.label(0, 8 + 13 * n, line, "begin")
        top = 13 * len(head) + 6

        def x(value, left=left, right=right, most=most):
            return left + (right - left) * value / most
        for n, r in enumerate(group):
            picture.label(left - 5, top + 9 + 19 * n, r["step"], "end")
            picture.add("rect", x=left, y=top + 2 + 19 * n, width=x(share(r)) - left, height=15, class_="k0", data_step=r["step"], data_share=share(r),
                        tip=f"{r['value']} {r['metric']}")
            picture.label(left + 4 if x(share(r)) - left > 36 else x(share(r)) + 4, top + 9 + 19 * n, f"{share(r):.3f}", "begin")
        bottom = top + 19 * len(group)
        picture.add("line", x1=x(1), x2=x(1), y1=top - 2, y2=bottom + 4, class_="mark")
        picture.label(min(x(1), WIDTH - 3.1 * len(rival)), bottom + 12, rival)
        if limit and limit <= most:
            picture.add("line", x1=x(limit), x2=x(limit), y1=top - 2, y2=bottom + 4, class_="mark dashed")
            if abs(x(limit) - x(1)) > 60:
                picture.label(min(x(limit), WIDTH - 28), bottom + 12, "limit")
        picture.label(left, bottom + 12, "0")
        pictures.append(picture)
    gpus = " and ".join(dict.fromkeys(gpu for gpu, _ in groups_of(chapter)))
    has_baseline = any(r["ratio"] is not None for _, group in groups_of(chapter) for r in group)
    return figure("ladder", pictures, f"The steps on {gpus}, each as a share of {'what it was timed beside' if has_baseline else 'the limit'}, the full line; "
                  "a dashed line is the limit of the GPU where it is near. From <code>results/</code>.", "columns" if len(pictures) > 1 else "row")


@functools.cache
def work_of(chapter):
    """(operation or -, type, shape) -> (FLOP, bytes of every tensor once), of a chapter's records in TFLOP/s that have a limit."""
    records = [r for own in results().values() for r in own if r["chapter"] == chapter and r["metric"] == "TFLOP/s" and r["limit"]]
    keys = list(dict.fromkeys((r.get("operation") or "-", r["dtype"], r["case"]) for r in records))
    if not keys:
        return {}
    program = os.path.join(WORK, chapter)
    try:
        run = subprocess.run([program, *(part for key in keys for part in key)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise FigureError(f"{os.path.relpath(program, ROOT)}: {error}; make book makes it") from error
    if run.returncode:
        raise FigureError(f"{chapter}: {run.stderr.strip()}")
    return {key: tuple(map(int, line.split())) for key, line in zip(keys, run.stdout.splitlines(), strict=True)}


def intensity(record):
    flop, moved = work_of(record["chapter"])[record.get("operation") or "-", record["dtype"], record["case"]]
    return flop / moved


def roofline(chapter):
    """Steps where their arithmetic intensity and their rate put them, below what the GPU's memory and its arithmetic allow."""
    pictures = []
    several = len({gpu for gpu, _ in groups_of(chapter)}) > 1
    for gpu, records in results().items():
        own = [r for r in records if r["chapter"] == chapter and r["metric"] == "TFLOP/s" and r["limit"]]
        memory = {r["limit"]["value"] for r in records if r["limit"] and r["limit"]["name"] == "memory"}
        if not own or len(memory) != 1:
            continue
        bandwidth = memory.pop() / 1000  # TB/s: times FLOP a byte it is TFLOP/s
        shown = {id(r) for g, group in groups_of(chapter) for r in group if g == gpu}
        roofs = {r["limit"]["name"]: r["limit"]["value"] for r in own}
        xs = [intensity(r) for r in own]
        ridge = max(roofs.values()) / bandwidth
        x_low, x_high = math.log2(min(xs + [min(roofs.values()) / bandwidth])) - 1, math.log2(max(xs + [ridge])) + 1
        y_low, y_high = math.log2(min(r["value"] for r in own)) - 0.7, math.log2(max(roofs.values())) + 0.9
        left, right, top, bottom = 40, WIDTH - 8, 8, 214

        def x(value, left=left, right=right, x_low=x_low, x_high=x_high):
            return left + (math.log2(value) - x_low) / (x_high - x_low) * (right - left)

        def y(value, top=top, bottom=bottom, y_low=y_low, y_high=y_high):
            return bottom - (math.log2(value) - y_low) / (y_high - y_low) * (bottom - top)
        best = max(own, key=lambda r: r["value"])
        says = (f"Roofline of {gpu}. Memory allows {bandwidth:g} TFLOP/s for each FLOP a byte; " +
                ", ".join(f"{name} {value:g} TFLOP/s" for name, value in roofs.items()) + ". " +
                "; ".join(f"{r['step']} at {intensity(r):.0f} FLOP a byte {r['value']:g} TFLOP/s" for r in own if id(r) in shown) +
                f". The fastest of all shapes: {best['step']}, {best['value']:g}.")
        picture = Picture(WIDTH, 250, says)
        for power in range(math.ceil(x_low), math.floor(x_high) + 1, 1 if x_high - x_low < 8 else 2):
            picture.add("line", x1=x(2.0 ** power), x2=x(2.0 ** power), y1=top, y2=bottom, class_="grid")
            picture.label(x(2.0 ** power), bottom + 10, f"{2.0 ** power:g}")
        for power in range(math.ceil(y_low), math.floor(y_high) + 1, 1 if y_high - y_low < 7 else 2):
            picture.add("line", x1=left, x2=right, y1=y(2.0 ** power), y2=y(2.0 ** power), class_="grid")
            picture.label(left - 4, y(2.0 ** power), f"{2.0 ** power:g}", "end")
        for name, value in roofs.items():
            at = max(2 ** x_low, 2 ** y_low / bandwidth)
            picture.add("polyline", points=f"{x(at):.1f},{y(at * bandwidth):.1f} {x(value / bandwidth):.1f},{y(value):.1f} {right},{y(value):.1f}",
                        class_="roof", tip=f"{name}: {value:g} TFLOP/s; memory: {1000 * bandwidth:g} GB/s")
            picture.label(right, y(value) - 7, f"{name}, {value:g}", "end")
        for r in sorted(own, key=lambda r: id(r) in shown):
            picture.add("circle", cx=x(intensity(r)), cy=y(r["value"]), r=3.5 if id(r) in shown else 2, class_="k0 point" if id(r) in shown else "other",
                        tip=f"{r['step']}, {r['case']}: {r['value']:g} TFLOP/s", data_step=r["step"], data_case=r["case"])
        picture.label((left + right) / 2, 240, "FLOP a byte, if every tensor moves once" + several * f"; {gpu}")
        picture.add("text", "TFLOP/s", x=8, y=(top + bottom) / 2, class_="mid", transform=f"rotate(-90 8 {(top + bottom) / 2})")
        pictures.append(picture)
    return figure("roofline", pictures, "Below what memory (the slope) and arithmetic (the flat roof) allow: the steps on the shapes above, large, and on all "
                  "others, small. The abscissa is the work's, not a step's: what it reads twice shows as a lower rate. From <code>results/</code>.")


# --- Which there are --------------------------------------------------------------------------------------------------

DRAWN = {"03_tensor_core_matmul": {"fragments": fragments}, "04_swizzled_smem": {"banks": banks}, "05_cp_async_pipeline": {"pipeline": pipeline},
         "13_tma_wgmma_matmul": {"descriptor": descriptor, "accumulators": accumulators}}


@functools.cache
def figures_of(chapter):
    """name -> the function that draws it, of the figures that a chapter's note has to show. A roofline needs steps whose FLOP are counted."""
    figures = dict(DRAWN.get(chapter, {}))
    if groups_of(chapter):
        figures["ladder"] = functools.partial(ladder, chapter)
    if any(r["chapter"] == chapter and r["metric"] == "TFLOP/s" and r["limit"] for records in results().values() for r in records):
        figures["roofline"] = functools.partial(roofline, chapter)
    return figures
