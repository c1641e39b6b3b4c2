"""The scoreboard: of each problem of days 61 to 69, the fastest rung in CUDA and in Triton.

Times and shares are the stored results in common/results/. Lines are counted in the sources.
"""

import ast
import json
import re
from pathlib import Path
from statistics import geometric_mean

from common.day import print_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "common" / "results"
DAYS = range(61, 70)
LANGUAGES = ("CUDA", "Triton")  # a rung's idea begins with one of them
HEADER = [
    "day and problem",
    *(c for one in LANGUAGES for c in (one, "ms", "peak", "lines")),
    "speed",
]
BRACKETED = re.compile(
    r"\b(?:__launch_bounds__|alignas)\((?:[^()]|\([^()]*\))*\)|^template <.*>$", re.M
)


def cuda_parts(file):
    """(name, on the device, text) of each function, type and constant of a source and of the
    headers of its day, without comments."""
    parts, lines = [], []
    for line in file.read_text(encoding="utf-8").splitlines():
        if header := re.match(r'#include "(days/.*)"', line):
            parts += cuda_parts(ROOT / header[1])
        line = re.sub(r"\s*//.*", "", line)
        if not line or line[0] == "#" or (line[0] == " " and not lines):  # a macro's other lines
            continue
        lines.append(line)
        text = "\n".join(lines)
        if line[-1] in ";}" and text.count("{") == text.count("}"):
            plain = BRACKETED.sub("", text)
            name = re.search(r"\b(?:struct|class|using) (\w+)|(\w+)\s*(?:[(\[=]|{$)", plain)
            on_device = re.search("__(global|device|constant)__", text) is not None
            parts.append((name and (name[1] or name[2]), on_device, text))
            lines = []
    return parts


def triton_parts(file):
    """The same of a module, without docstrings."""
    source = file.read_text(encoding="utf-8")
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            lines = source.splitlines()[first - 1 : node.end_lineno]
            text = re.sub(r'""".*?"""', "", "\n".join(lines), flags=re.S)
            parts.append((node.name, ".jit" in text.partition("def ")[0], text))
    return parts


def lines_of_rung(parts, rung):
    """The lines of what a call of the rung may run on the device, as far as its day has it: the
    kernels, their helpers, and what they fall back on. No comments, no blank lines."""
    named, called, found = set(), {rung}, []
    while more := [
        part for part in parts if part[0] in (named if part[1] else called) and part not in found
    ]:
        found += more
        for _, _, text in more:
            named |= set(re.findall(r"\w+", text))
            called |= set(re.findall(r"(\w+)[(<]", text))
    texts = [text for _, on_device, text in found if on_device]
    return sum(bool(re.match(r"\s*[^\s#]", line)) for text in texts for line in text.splitlines())


def pairs(stored):
    """(problem, fastest of its rungs in CUDA, fastest in Triton) of a day's stored result."""
    timed = [rung for rung in stored["rungs"] if rung.get("timing")]
    for problem in dict.fromkeys(rung["problem"] for rung in timed):
        best = []
        for language in LANGUAGES:
            rungs = [r for r in timed if r["problem"] == problem and r["idea"].startswith(language)]
            best += sorted(rungs, key=lambda rung: rung["timing"]["ms"])[:1]
        if len(best) == len(LANGUAGES):
            yield problem, *best


def rows_of(day, stored):
    """The day's rows, and of each pair the speed of Triton's rung and both counts of lines."""
    folder = ROOT / "days" / f"day{day}"
    parts = [
        [part for file in folder.glob("*.cu") for part in cuda_parts(file)],
        [part for file in folder.glob("*_triton.py") for part in triton_parts(file)],
    ]
    for problem, *best in pairs(stored):
        row, lines = [f"{day} {problem}"], []
        for rung, known in zip(best, parts, strict=True):
            timing = rung["timing"]
            lines.append(lines_of_rung(known, rung["rung"]))
            share = f"{100 * timing['share']:.0f}% {timing['bound']}" if timing.get("share") else ""
            version = re.search(r"_(v\d+)", rung["rung"])
            row += [version[1] if version else "", f"{timing['ms']:.3f}", share, lines[-1]]
        speed = best[0]["timing"]["ms"] / best[1]["timing"]["ms"]
        yield [*row, f"{speed:.2f}×"], speed, lines


def print_scoreboard():
    """Prints the table of the first GPU that has results."""
    found = [file for file in sorted(RESULTS.glob("*/day*.json")) if file.parent.name != "mutants"]
    if not found:
        print("scoreboard: not measured")
        return
    table, speeds, lines, gpu = [], [], [], ""
    for day in DAYS:
        file = found[0].with_name(f"day{day}.json")
        if not file.is_file():
            table.append([f"{day} not measured", *[""] * (len(HEADER) - 1)])
            continue
        stored = json.loads(file.read_text(encoding="utf-8"))
        gpu = stored["where"]["gpu"]
        for row, speed, counts in rows_of(day, stored):
            table.append(row)
            speeds.append(speed)
            lines.append(counts)
    print(f"scoreboard of {gpu}, from the stored results")
    print_table(HEADER, table)
    ahead = sum(speed > 1 for speed in speeds)
    print(f"{len(speeds)} pairs: Triton's rung is the faster one in {ahead}")
    print(f"its speed, geometric mean: {geometric_mean(speeds):.2f}×")
    fewer = geometric_mean(triton / cuda for cuda, triton in lines)
    print(f"its lines, geometric mean: {fewer:.2f}×")
