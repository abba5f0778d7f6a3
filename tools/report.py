#!/usr/bin/env python3
"""Turns results/*.json into the tables of README.md and of the notes, and notes/figures/*.svg. What a step changes is read from the
first line of its kernel file.

    report.py           rewrite them
    report.py --check   exit 1 if a table is not what results/ and the headers say

notes/results.md has every shape. A chapter's note has them too, or those that its marker names: <!-- results of SHAPE; SHAPE: written ... -->
"""

import argparse
import glob
import json
import os
import re
import sys

from steps import ROOT, HeaderError, chapters, steps_of

BEGIN, END = re.compile("<!-- results(?: of (.+))?: written by make report -->\n"), "<!-- end of results -->\n"


def load_results():
    """GPU name -> its records, in the order of the file; each file holds one GPU's, simulator.json none."""
    results = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "results", "*.json"))):
        with open(path, encoding="utf-8") as file:
            for record in json.load(file):
                if "gpu" in record:
                    results.setdefault(record["gpu"], []).append(record)
    return results


def percent(value):
    return "" if value is None else f"{100 * value:.1f} %"


def of_second_shapes(records):
    """The records of one shape for each step of a chapter in a type, an overview: the second that it was measured on, if there are two."""
    shapes = {}
    for r in records:
        shapes.setdefault((r["chapter"], r["step"], r["dtype"]), {})[r["case"]] = True
    return [r for r in records if r["case"] == list(shapes[r["chapter"], r["step"], r["dtype"]])[:2][-1]]


def one_shape_a_step(records):
    """The same; of the operation that has the step's name, if one has."""
    own = {(r["chapter"], r["step"]) for r in records if r.get("operation") == r["step"]}
    return of_second_shapes([r for r in records if (r["chapter"], r["step"]) not in own or r["operation"] == r["step"]])


def mine(records, step, dtype):
    """The records of one step of the ladder in one type."""
    return [r for r in records if (r["chapter"], r["step"], r["dtype"]) == (step.chapter, step.name, dtype)]


def gain(records, record, step):
    """How many times as fast a step is as the one it grows from, both as a share of the same baseline; "" if not measured alike."""
    before = step.grows_from()
    for r in mine(records, before, record["dtype"]) if before else []:
        alike = all(r.get(key) == record.get(key) for key in ("operation", "case", "baseline"))
        if alike and record["ratio"] is not None:
            return f"{record['ratio'] / r['ratio']:.2f}"
    return ""


def beside(record, named):
    """A record's share of its baseline, with its name where a chapter has several; its value where there is none."""
    if record["ratio"] is None:
        return f"{record['value']:.0f} {record['metric']}"
    return f"{record['ratio']:.3f}" + (f" ({record['baseline']})" if named else "")


def ladder(results):
    """Markdown: for each chapter its steps, a line each: what it changes, and what it gains on each GPU, on one shape."""
    lines = []
    for chapter in chapters():
        number, name = chapter.split("_", 1)
        with open(os.path.join(ROOT, "chapters", chapter, "chapter.mk"), encoding="utf-8") as file:
            arch = re.search(r"^ARCH *:= *(.*)", file.read(), re.M)[1]
        steps = steps_of(chapter)
        table = [[f"| {step.number} | [{step.name}]({step.path}) | {step.what()} |" for step in steps]]
        head, rule, measured = "| step | | what changed |", "| ---: | --- | --- |", []
        here = [gpu for gpu, records in results.items() if any(r["chapter"] == chapter and r["baseline"] for r in records)]
        for gpu, records in results.items():
            dtype = min((r["dtype"] for r in records if r["chapter"] == chapter), default=None)
            shown = [next(iter(mine(one_shape_a_step(records), step, dtype)), None) for step in steps]
            baselines = list(dict.fromkeys(r["baseline"] for r in shown if r and r["baseline"]))
            if not baselines:
                continue
            cases = [r["case"].replace(",", ", ") if r else "" for r in shown]
            several = len(set(cases) - {""}) > 1  # then they have a column, where each is named once
            on = f"{gpu.split()[1]}: " if len(here) > 1 else ""
            head += several * f" {on}shape |" + f" {on}× the step before | {on}× {baselines[0] if len(baselines) == 1 else 'a baseline'} |"
            rule += several * " --- |" + " ---: | ---: |"
            if several:
                table.append([" |" if case == before else f" {case} |" for case, before in zip(cases, ["", *cases])])
            table.append([f" {gain(records, r, step)} | {beside(r, len(baselines) > 1)} |" if r else " | |" for r, step in zip(shown, steps)])
            measured.append(f"{gpu}, {dtype}" + ("" if several else f", {next(filter(None, cases))}"))
        lines += [f"**{int(number)} [{name}](chapters/{chapter})**, from sm_{arch}; [note](notes/{chapter}.md)" +
                  "".join(f"; {text}" for text in measured) + "\n", head, rule, *map("".join, zip(*table)), ""]
    return "\n".join(lines) + "\n"


def cell(record):
    """A step's speed, and in brackets what it is of the baseline, of the best and of the limit, as far as there are any."""
    shares = [f"{record['ratio']:.3f}"] if record["ratio"] is not None else []
    shares += [f"{record['best']['ratio']:.3f}"] if "best" in record else []
    shares += [percent(record["fraction_of_limit"]).replace(" ", "")] if record["limit"] else []
    return f"{record['value']:.1f}" + (f" ({', '.join(shares)})" if shares else "")


def rivals_of(record):
    """Names and values of what a step was timed beside: the baseline and the best that its library has, as far as there are any."""
    rivals = [(record["baseline"], record["baseline_value"])] if record["baseline"] else []
    return rivals + ([(record["best"]["name"], record["best"]["value"])] if "best" in record else [])


def names_of_rivals(records):
    """Of all the records, baselines first."""
    return list(dict.fromkeys(name for i in (0, 1) for r in records for name, _ in rivals_of(r)[i:i + 1]))


def operation_rows(records):
    """Markdown: a line for each shape and type, a column for each step of one operation."""
    steps, dtypes = (list(dict.fromkeys(r[key] for r in records)) for key in ("step", "dtype"))
    rivals = names_of_rivals(records)
    rows = [["shape"] + ["type"] * (len(dtypes) > 1) + rivals + steps]
    rows.append(["---"] * (1 + (len(dtypes) > 1)) + ["---:"] * (len(steps) + len(rivals)))
    for case, dtype in dict.fromkeys((r["case"], r["dtype"]) for r in records):
        row = {r["step"]: r for r in records if (r["case"], r["dtype"]) == (case, dtype)}
        cells = [case] + [dtype] * (len(dtypes) > 1)
        for rival in rivals:
            values = sorted({value for r in row.values() for name, value in rivals_of(r) if name == rival})
            cells += ["–".join(dict.fromkeys(f"{value:.1f}" for value in (values[0], values[-1]))) if values else ""]
        rows.append(cells + [cell(row[s]) if s in row else "" for s in steps])
    return ["|" + "|".join(f" {c} " if c else "" for c in cells) + "|" for cells in rows] + [""]


def chapter_table(results, chapter, shapes=None):
    """Markdown: one chapter on every GPU, a table for each of its operations; of these shapes, or of all."""
    lines = []
    measured = {r["case"] for records in results.values() for r in records if r["chapter"] == chapter}
    for shape in shapes or []:
        if shape not in measured:
            sys.exit(f"notes/{chapter}.md: the marker of the results table names {shape}, which was not measured")
    for gpu, records in results.items():
        mine = [r for r in records if r["chapter"] == chapter and (not shapes or r["case"] in shapes)]
        if not mine:
            continue
        # What all have alike is named; else it stands in the table of each operation.
        baselines = list(dict.fromkeys(r["baseline"] for r in mine if r["baseline"]))
        limits = list(dict.fromkeys(f"{r['limit']['value']:g} ({r['limit']['name']})" for r in mine if r["limit"]))
        metrics = " or ".join(dict.fromkeys(r["metric"] for r in mine))
        shares = ([f"of {baselines[0] if len(baselines) == 1 else 'the baseline, if there is one,'}"] if baselines else [])
        shares += [f"of {best}" for best in dict.fromkeys(r["best"]["name"] for r in mine if "best" in r)]
        shares += [f"of {' or '.join(limits)}"] if limits else []
        commits = ", ".join(dict.fromkeys(r["commit"] for r in mine))
        dtypes = list(dict.fromkeys(r["dtype"] for r in mine))
        programs = dict.fromkeys(r["command"].split()[0] for r in mine)
        by = ", ".join(dict.fromkeys(f"make bench-{int(chapter[:2])}" if p.startswith("build/chapters/") else p for p in programs))
        lines += [f"{gpu}, commit {commits}, `{by}`: {metrics}{', ' + dtypes[0] if len(dtypes) == 1 else ''}" +
                  (f"; in brackets the share {' and '.join(shares)}" if shares else "") + ".\n"]
        operations = list(dict.fromkeys(r.get("operation") for r in mine))
        for operation in operations:
            lines += [f"{operation}:\n"] if len(operations) > 1 else []
            lines += operation_rows([r for r in mine if r.get("operation") == operation])
    return "\n".join(lines) + "\n" if lines else "Not measured yet.\n"


def results_table(results):
    """Markdown: what each GPU's results were measured with, and every chapter's tables of all shapes."""
    lines = []
    for gpu, records in results.items():
        driver, cuda = (", ".join(sorted({r[key] for r in records})) for key in ("driver", "cuda"))
        lines.append(f"{gpu}: driver {driver}, CUDA {cuda}.\n")
    return "\n".join(lines) + "\n" + "".join(f"## {chapter}\n\n{chapter_table(results, chapter)}" for chapter in chapters())


def simulator_table():
    """Markdown: what `make bench-sim` measured."""
    with open(os.path.join(ROOT, "results", "simulator.json"), encoding="utf-8") as file:
        records = json.load(file)
    lines = [f"On {records[0]['processor']}, commit {records[0]['commit']}:\n", "| kernel | rate | |",
             "| --- | ---: | --- |", *(f"| {r['kernel']} | {r['value']} | {r['metric']} |" for r in records)]
    return "\n".join(lines) + "\n"


def marked(path):
    """A file's text before its table, marker included; the shapes that the marker names, None for all; the table; the text after it."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    begins = list(BEGIN.finditer(text))
    if len(begins) != 1 or text.count(END) != 1:
        sys.exit(f"{path}: the markers of the results table are missing")
    table, after = text[begins[0].end():].split(END)
    return text[:begins[0].end()], begins[0][1] and begins[0][1].split("; "), table, END + after


def share(record):
    """A record's share of its baseline; of its limit where it has none."""
    return record["ratio"] if record["ratio"] is not None else record["fraction_of_limit"]


def groups_of(results, chapter):
    """What a chapter's figure shows: [(GPU, its records of one operation, type and shape)], in the order of results/. The shapes are those
    of of_second_shapes(); the type is the first by name."""
    groups = []
    for gpu, records in results.items():
        own = [r for r in records if r["chapter"] == chapter]
        for operation in dict.fromkeys(r.get("operation") for r in own):
            some = [r for r in own if r.get("operation") == operation]
            some = [r for r in some if r["dtype"] == min(s["dtype"] for s in some)]
            shown = of_second_shapes(some)
            for case in dict.fromkeys(r["case"] for r in shown):
                group = [r for r in shown if r["case"] == case]
                if len({r["ratio"] is None for r in group}) > 1:  # all as a share of the same
                    group = [r | {"ratio": None} for r in group]
                if any(share(r) is not None for r in group):
                    groups.append((gpu, group))
    return groups


def draw(results):
    """One figure for each GPU and chapter, for who reads the notes without the book: for each operation a bar a step, its share of the
    baseline, on one shape. The same groups as the book's own figures, which tools/book/figures.py draws."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cookbook"  # the same data gives the same file
    from matplotlib import pyplot

    os.makedirs(os.path.join(ROOT, "notes", "figures"), exist_ok=True)
    for gpu in results:
        for chapter in chapters():
            groups = [group for on, group in groups_of(results, chapter) if on == gpu]
            if not groups:
                continue
            heights = [0.26 * len(group) + 1 for group in groups]  # inches
            figure, axes = pyplot.subplots(len(groups), 1, figsize=(8, sum(heights) + 0.4), squeeze=False, layout="constrained",
                                           height_ratios=heights)
            for axis, group in zip(axes.flat, groups):
                axis.barh([r["step"] for r in group], [share(r) for r in group], color="#4c72b0")
                for y, r in enumerate(group):  # in the bar, where the line does not cross it
                    axis.annotate(f"{share(r):.3f}", (0, y), (4, 0), textcoords="offset points", va="center", fontsize=8, color="white")
                axis.set_ylim(len(group) - 0.5, -0.5)
                axis.axvline(1, color="#c44e52")
                axis.set_xlim(0, 1.12 * max([1.0] + [share(r) for r in group]))
                first = group[0]
                operation = f"{first['operation']}, " if first.get("operation") else ""
                axis.set_title(f"{operation}{first['dtype']}, {first['case'].replace(',', ', ')}", fontsize=8, wrap=True)
                rival = first["baseline"] if first["ratio"] is not None else f"the limit, {first['limit']['name']}"
                axis.set_xlabel(f"share of {rival}", fontsize=8)
                axis.tick_params(labelsize=8)
            figure.suptitle(f"{chapter} on {gpu}", fontsize=10)
            name = f"{chapter}_{gpu.lower().replace(' ', '_')}.svg"
            figure.savefig(os.path.join(ROOT, "notes", "figures", name), metadata={"Date": None})
            pyplot.close(figure)
            print(f"notes/figures/{name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    results = load_results()
    try:
        tables = {"README.md": ladder(results), "notes/results.md": results_table(results), "notes/simulated_gpu.md": simulator_table()}
    except HeaderError as error:
        sys.exit(f"report: {error}")
    for path in sorted(glob.glob(os.path.join(ROOT, "notes", "[0-9]*.md"))):
        path = os.path.relpath(path, ROOT)
        tables[path] = chapter_table(results, os.path.basename(path)[:-3], marked(path)[1])
    for path, table in tables.items():
        before, _, old, after = marked(path)
        if check and old != "\n" + table:
            sys.exit(f"{path}: the table is not what results/ and the kernels' headers say; run make report")
        if not check:
            with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
                file.write(f"{before}\n{table}{after}")
            print(path)
    if not check:
        draw(results)


if __name__ == "__main__":
    main()
