"""Measure the speed of the CPU backend: `python -m tests.cpu_benchmark [--numba PYTHON] [--write]`.

Prints a table of its figures with their limits, and the measured machine. With --numba, an
interpreter that has Numba runs the same tiled matmul on Numba's CUDA simulator. --write writes the
table to common/cpu/README.md, between its markers, but not on a busy machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common.base import toolchain
from common.base.paths import DAYS, ROOT
from common.base.where import processor
from common.cpu import backend
from common.cpu import libraries as shared
from common.report.files import write_atomically
from tests.compilations import Compilations
from tests.kernel_files import Libraries

README = ROOT / "common" / "cpu" / "README.md"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"
FILES = ("features", "wmma", "ptx", "wgmma")
SIMULATED = (32, 64)  # sizes that Numba's simulator finishes


def _seconds(function: Callable[[], object], budget: float = 3.0) -> float:
    """Return the least of the measurements that fit into `budget` seconds, after a warm-up: other
    programs can only increase a time."""
    function()
    least = float("inf")
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - start)
    return least


def _build_seconds() -> tuple[float, float]:
    """Return the seconds of building a day's file, from its source to the library, and those of the
    parts built once before: the runtime and the headers."""
    code = (
        "import sys, time, torch.utils.cpp_extension; from pathlib import Path\n"
        "from common.base import toolchain; from common.base.days import read_day\n"
        "from common.build import day_build; from common.cpu import libraries\n"
        "platform = toolchain.detect('cpu'); start = time.monotonic()\n"
        "libraries.build_runtime(platform); libraries.prelude(platform)\n"
        "libraries.prelude(platform); ready = time.monotonic()\n"  # built for the second file
        "day_build.build(read_day(Path(sys.argv[1])), platform)\n"
        "print(time.monotonic() - ready, ready - start)\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HUNDRED_DAYS_CACHE": cache}
        words = [sys.executable, "-c", code, str(DAYS / "day05")]
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
    day, before = map(float, done.stdout.split())
    return day, before


def figures(runtime: backend.Runtime, libraries: Libraries) -> list[tuple[str, str, str]]:
    """Return (subject, figure, limit that the backend must keep on two cores) of each
    measurement."""
    features, wmma, ptx, wgmma = (libraries.operators(name) for name in FILES)
    a, x, half = torch.randn(512, 512), torch.randn(4096, 4096), torch.randn(512, 512).half()
    bf16 = half.bfloat16()
    rows = [
        ("512³ matmul, 32×32 tiles", _seconds(lambda: features.matmul(a, a)), "0.11 s"),
        ("512³ matmul, WMMA, fp16", _seconds(lambda: wmma.matmul(half, half)), ""),
        ("512³ matmul, cp.async and mma, bf16", _seconds(lambda: ptx.matmul(bf16, bf16)), ""),
        ("512³ matmul, cp.async and wgmma, bf16", _seconds(lambda: wgmma.matmul(bf16, bf16)), ""),
        ("softmax of 4096×4096", _seconds(lambda: features.softmax(x)), "0.24 s"),
    ]  # fmt: skip
    table = [(name, f"{seconds:.3f} s", limit) for name, seconds, limit in rows]
    launch = _seconds(lambda: features.launch_many(10_000)) / 10_000
    table.append(("launch of one block", f"{1e6 * launch:.2f} µs", "1 µs"))
    runtime.set_threads(1)
    empty = _seconds(lambda: features.launch_empty(4096, 1024)) / (4096 * 1024)
    barrier = _seconds(lambda: features.launch_barriers(4, 256, 1000)) / (4 * 256 * 1000)
    runtime.set_threads(os.cpu_count() or 1)
    table.append(("empty kernel, one core, per thread", f"{1e9 * empty:.1f} ns", ""))
    table.append(("`__syncthreads`, one core, per thread", f"{1e9 * barrier:.1f} ns", "15 ns"))
    day, before = _build_seconds()
    table.append(("day 5 compiled and linked", f"{day:.1f} s", "2 s"))
    table.append(("once before: the runtime and the headers", f"{before:.1f} s", ""))
    return table


def simulated(python: str, libraries: Libraries) -> list[tuple[str, str, str]]:
    """Return the tiled matmul on Numba's simulator and here: name, Numba's figure, ours."""
    features = libraries.operators("features")
    script = Path(__file__).with_name("numba_simulator.py")
    table = []
    for n in SIMULATED:
        done = subprocess.run(
            [python, str(script), str(n)], capture_output=True, text=True, check=True
        )
        a = torch.randn(n, n)
        ours = _seconds(lambda a=a: features.matmul(a, a))
        table.append((f"{n}³ matmul", f"{float(done.stdout):.2f} s", f"{1e3 * ours:.2f} ms"))
    return table


def main() -> None:
    """Measure, print, and write if requested."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpu_benchmark", description=__doc__)
    parser.add_argument("--numba", metavar="PYTHON", help="an interpreter that has Numba")
    parser.add_argument("--write", action="store_true", help="into common/cpu/README.md")
    args = parser.parse_args()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if args.write and load > cores / 2:
        parser.error(f"--write: the machine is busy (load {load:.1f} on {cores} cores)")
    platform = toolchain.detect("cpu")
    runtime = backend.Runtime(shared.build_runtime(platform))
    libraries = Libraries(Compilations(), ["cpu"])
    for name in FILES:
        libraries.operators(name)  # built before the clock starts
    lines = ["| what | figure | limit |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in figures(runtime, libraries)]
    if args.numba:
        lines += ["", "| kernel | Numba's CUDA simulator | here |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in simulated(args.numba, libraries)]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines += [
        "",
        f"{processor()}, {platform.compiler_version}, {today}; load {load:.1f} before.",
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        before, rest = README.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        write_atomically(README, f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
