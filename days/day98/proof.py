"""From the operators of day 98 to a program in C++ and a wheel, each step checked."""

import sys
import tempfile
from collections import Counter
from functools import cache, partial
from pathlib import Path

import torch
from torch.library import opcheck

from common.bench.showing import seconds_in_turn
from common.build.library import use_compilers
from common.day import print_table

from .made import (
    OFFLINE,
    missing_tool,
    operators_without_python,
    package_of,
    program_of,
    run,
    succeed,
    wheel_of,
)
from .model import HIDDEN, MOST, WIDTH, batch, export, layer
from .package import NAMES, register

PACKAGE = "hundred_days_day98"
START = 7  # rows of the batch with which processes are timed from their start
ROWS = (1, 2, START, 300, MOST)
WIDE = 118  # characters of a line


def require_close(found, expected, name):
    try:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    except AssertionError as error:
        raise RuntimeError(f"{name}: {error}") from None


# ---------------------------------------------------------------- export


def print_checks(operators, device):
    """opcheck: schema, fake implementation, and both of them with sizes left open."""
    x, z = (torch.randn(5, 24, device=device) for _ in range(2))
    weight = torch.ones(24, device=device)
    for name in NAMES:
        results = opcheck(getattr(operators, name).default, (x, z, weight, 1e-6))
        passed = sum(result == "SUCCESS" for result in results.values())
        print(f"{name}: opcheck {passed} of {len(results)}")


def print_graph(exported):
    calls = Counter(str(n.target) for n in exported.graph.nodes if n.op == "call_function")
    print("exported: " + ", ".join(f"{count} {name}" for name, count in calls.items()))
    ranges = [f"{s.lower} to {s.upper}" for s in exported.range_constraints.values()]
    if ranges != [f"1 to {MOST}"]:
        raise RuntimeError(f"rows of a batch: expected 1 to {MOST}, got {ranges}")
    print(f"rows of a batch: {ranges[0]}")


def print_wrong_fakes(device):
    """Two operators that cannot be exported for any batch, and what the export says."""
    library = torch.library.Library("day98_wrong", "DEF")
    for name in ("no_fake", "fixed"):
        library.define(f"{name}(Tensor x, Tensor z, Tensor weight, float eps) -> Tensor")
        library.impl(name, lambda x, z, weight, eps: x * z, device.type.upper())
    fixed = torch.library.register_fake("day98_wrong::fixed", lib=library)
    fixed(lambda x, z, weight, eps: x.new_empty(int(x.shape[0]), HIDDEN))
    phrases = {"no_fake": "UnsupportedOperator", "fixed": "onstraint"}
    for name, phrase in phrases.items():
        try:
            export(layer(getattr(torch.ops.day98_wrong, name), device), device)
        except Exception as error:  # each version of PyTorch has classes of its own
            lines = f"{type(error).__name__}: {error}".splitlines()
            said = next((line for line in lines if phrase in line), "")
            if not said:
                raise
            print(f"{name}: {said.strip()[:100]}")
        else:
            raise RuntimeError(f"{name}: was exported")


# ---------------------------------------------------------------- who runs it


@cache
def loaded(package):
    """The package in this process, loaded once."""
    return torch._inductor.aoti_load_package(str(package))


def check_python(package, model, device):
    """Raises RuntimeError where the package differs from the model that it was made of."""
    for count in ROWS:
        u = batch(count, device)
        require_close(loaded(package)(u), model(u), f"the package in Python, {count} rows")
    print(f"the package in Python: {', '.join(map(str, ROWS))} rows, equal within rounding")


def print_python(package, model, device):
    rows = []
    for count in ROWS:
        u = batch(count, device)
        calls = {"eager": partial(model, u), "package": partial(loaded(package), u)}
        times = seconds_in_turn(calls, turn=0.01, rounds=5)
        rows.append([count, *(f"{times[name] * 1e6:.0f} µs" for name in ("eager", "package"))])
    print_table(["in Python, rows", "eager", "package"], rows)


def print_program(program, package, library, model, device, folder):
    """The same in C++: results, then the time of a call from and to the host."""
    rows = []
    for count in ROWS:
        source, target = folder / "u.pt", folder / "y.pt"
        torch.save(batch(count), source)
        calls = 20 if device.type == "cuda" else 4
        text, seconds = succeed(program, package, library, source, target, calls)
        found = torch.load(target, weights_only=True)
        expected = model(batch(count, device)).cpu()
        require_close(found, expected, f"serve, {count} rows")
        if count == START:
            whole = seconds
        said = dict(line.split() for line in text.splitlines())
        rows.append([count, *(f"{float(said[k]):.2f} ms" for k in ("load", "first", "call"))])
    print("in C++, equal within rounding:")
    print_table(["rows", "load", "first call", "each after it"], rows)
    print(f"a process, from start to result: {whole:.2f} s without Python")


def print_mistakes(program, package, library, folder):
    """What serve says of bad arguments; each must be refused for its own reason."""
    good, target = folder / "u.pt", folder / "y.pt"
    torch.save(batch(3), good)
    bad = {
        "shape": torch.randn(3, WIDTH - 1),
        "rank": torch.randn(WIDTH),
        "rows": torch.randn(MOST + 1, WIDTH),
        "none": torch.randn(0, WIDTH),
        "dtype": batch(3).half(),
        "list": [1, 2],
    }
    for name, value in bad.items():
        torch.save(value, folder / f"{name}.pt")
    (folder / "text.pt").write_text("not a tensor", encoding="utf-8")
    (folder / "broken.pt2").write_bytes(package.read_bytes()[:1000])
    absent = folder / "absent"
    tries = (
        ("input: cannot read", package, library, absent, target),
        ("is no file of torch.save", package, library, folder / "text.pt", target),
        ("holds no tensor", package, library, folder / "list.pt", target),
        (f"expected shape (rows, {WIDTH})", package, library, folder / "shape.pt", target),
        (f"expected shape (rows, {WIDTH})", package, library, folder / "rank.pt", target),
        (f"expected 1 to {MOST} rows, got 0", package, library, folder / "none.pt", target),
        (f"expected 1 to {MOST} rows, got", package, library, folder / "rows.pt", target),
        ("expected float32, got Half", package, library, folder / "dtype.pt", target),
        ("output: cannot write", package, library, good, absent / "y.pt"),
        ("model: cannot read", absent, library, good, target),
        ("failed", folder / "broken.pt2", library, good, target),
        ("operators:", package, absent, good, target),
        ("Could not find schema for day98", package, "-", good, target),
    )
    for phrase, *arguments in tries:
        _, errors, code, _ = run(program, *arguments)
        said = next((line for line in errors if phrase in line), "")
        if code != 1 or not said:
            raise RuntimeError(f"serve: expected {phrase!r}, got exit code {code}, {errors}")
        print(f"  {said.replace(str(folder), '…')[:WIDE]}")


# ---------------------------------------------------------------- the wheel

CLIENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
marks = [time.monotonic()]
def mark(): marks.append(time.monotonic())
import torch; mark()
import hundred_days_day98; mark()
import torch._inductor; mark()
model = torch._inductor.aoti_load_package(sys.argv[2]); mark()
u = torch.load(sys.argv[3], weights_only=True).to(sys.argv[5])
torch.save(model(u).cpu(), sys.argv[4]); mark()
x = torch.randn(5, 24, device=sys.argv[5])
z, w = torch.randn_like(x), torch.ones(24, device=sys.argv[5])
expected = torch.nn.functional.rms_norm(x, w.shape, w, 1e-6) * torch.nn.functional.silu(z)
torch.testing.assert_close(hundred_days_day98.gated_norm(x, z, w), expected)
print(hundred_days_day98.__file__)
print(*(after - before for before, after in zip(marks, marks[1:])))
"""
PARTS = ("import torch", "the wheel", "torch._inductor", "load", "first call")


def print_wheel(package, library, model, device, folder):
    """Install the wheel into a folder, and use it in a fresh process."""
    if tool := missing_tool():
        print(f"wheel: not tried, this Python has no {tool}")
        return
    site = folder / "site"
    wheel = wheel_of(PACKAGE, "package.py", library, device)
    succeed(sys.executable, "-m", "pip", "install", *OFFLINE, "--target", site, wheel)
    torch.save(batch(START), folder / "u.pt")
    arguments = (site, package, folder / "u.pt", folder / "y.pt", device.type)
    rows = []
    for name in ("first", "again"):  # the second process finds its files in memory
        text, seconds = succeed(sys.executable, "-c", CLIENT, *arguments)
        place, times = text.splitlines()
        if str(site) not in place:
            raise RuntimeError(f"{PACKAGE} came from {place}")
        found = torch.load(folder / "y.pt", weights_only=True)
        require_close(found, model(batch(START, device)).cpu(), "the wheel in a fresh process")
        parts = [float(each) for each in times.split()]
        parts += [seconds - sum(parts), seconds]
        rows.append([name, *(f"{each:.2f} s" for each in parts)])
    print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
    print("a process, from start to result, with Python and the wheel:")
    print_table(["process", *PARTS, "the rest", "all"], rows)


def show(operators, device):
    use_compilers(device.type)
    register()
    print_checks(operators, device)
    model, exported = exported_layer(operators, device)
    print_graph(exported)
    print_wrong_fakes(device)
    check_python(package_made(operators, device), model, device)
    with tempfile.TemporaryDirectory() as name:
        print("serve refuses:")
        program, package, library = served(operators, device)
        print_mistakes(program, package, library, Path(name))


@cache
def exported_layer(operators, device):
    model = layer(operators.gated_norm_v3_chunks, device)
    return model, export(model, device)


@cache
def package_made(operators, device):
    """The package of the exported layer, built once."""
    metadata = {"width": str(WIDTH), "most": str(MOST)}
    files = ["model.py", "package.py", "deploy.cu"]
    exported = exported_layer(operators, device)[1]
    return package_of("layer", lambda: exported, device, metadata, files)


@cache
def served(operators, device):
    """The program that serves the package, the package, the library of operators."""
    program, library = program_of("serve", device), operators_without_python(98, device)
    return program, package_made(operators, device), library


def show_times(operators, device):
    model = exported_layer(operators, device)[0]
    program, package, library = served(operators, device)
    print_python(package, model, device)
    with tempfile.TemporaryDirectory() as name:
        print_program(program, package, library, model, device, Path(name))
        print_wheel(package, library, model, device, Path(name))
