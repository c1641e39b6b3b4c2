"""From the operators of day 98 to a program in C++ and a wheel, each step checked."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch.library import opcheck
from torch.utils import cpp_extension

from common.base.cache import Entry, cached, digest
from common.bench.showing import seconds_in_turn
from common.build.library import use_compilers
from common.day import print_table

from .model import HIDDEN, MOST, WIDTH, batch, compile_package, export, layer
from .package import NAMES, register

HERE = Path(__file__).parent
PACKAGE = "hundred_days_day98"
START = 7  # rows of the batch with which processes are timed from their start
ROWS = (1, 2, START, 300, MOST)
LIMIT = 120.0  # seconds that a process may take
WIDE = 118  # characters of a line


def run(*command):
    """Output, last line of the errors, exit code and seconds of a process."""
    started = time.monotonic()
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd="/")
    errors = [line for line in done.stderr.splitlines() if line.strip()] or [""]
    return done.stdout, errors, done.returncode, time.monotonic() - started


def succeed(*command):
    """The same of a process that must succeed: output and seconds."""
    text, errors, code, seconds = run(*command)
    if code != 0:
        raise RuntimeError(f"{command[0]} failed: {' '.join(errors[-5:])}")
    return text, seconds


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


# ---------------------------------------------------------------- what is built


def entry(kind, device, product, files, *parts):
    """Of this PyTorch in this place: a program looks for its libraries where they were when it was
    linked, and a new virtual environment is in another place."""
    card = torch.cuda.get_device_name() if device.type == "cuda" else ""
    words = [torch.__version__, *cpp_extension.library_paths(), device.type, card, *parts]
    key = digest(words, [HERE / name for name in files])
    return Entry(f"day98-{kind}-{device.type}", key, product)


def loaded(name):
    """The file of a shared library of this process."""
    words = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    return next(word for word in words if f"/{name}.so" in word)


def link_with_driver(directory):
    """AOTInductor links with -lcuda, and a machine that only runs programs has a libcuda.so.1. The
    compiler also looks in the folders of LIBRARY_PATH."""
    (directory / "libcuda.so").symlink_to(loaded("libcuda"))
    others = os.environ.get("LIBRARY_PATH", "")
    os.environ["LIBRARY_PATH"] = f"{directory}{os.pathsep}{others}".rstrip(os.pathsep)


def package_of(exported, device):
    """The .pt2, compiled once and kept."""
    made = entry("model", device, "layer.pt2", ["model.py", "package.py", "deploy.cu"])

    def make(directory):
        if device.type == "cuda":
            link_with_driver(directory)
        compile_package(exported, directory / made.product)

    cached(made, make)
    with zipfile.ZipFile(made.path) as package:
        sizes = Counter()
        for info in package.infolist():
            sizes[Path(info.filename).suffix or "other"] += info.file_size
    listed = ", ".join(f"{kind} {size / 1024:.0f} KiB" for kind, size in sizes.most_common(4))
    print(f"{made.product}: compiled in {made.seconds:.1f} s; {listed}")
    return made.path


def program_of(device):
    """serve.cpp, compiled and linked with PyTorch's C++ libraries."""
    flags = ["-Wl,--no-as-needed", "-ldl"]
    if device.type == "cuda":  # nothing of it is called by name; it brings the GPU's operators
        flags += ["-ltorch_cuda", "-lc10_cuda", "-Wl,--allow-shlib-undefined"]
    made = entry("serve", device, "serve", ["serve.cpp"], *flags)

    def make(directory):
        cpp_extension.load(
            "serve",
            [str(HERE / "serve.cpp")],
            build_directory=str(directory),
            is_python_module=False,
            is_standalone=True,
            extra_cflags=["-O1"],
            extra_ldflags=flags,
        )

    program = cached(made, make)
    print(f"serve: built in {made.seconds:.1f} s")
    return program


def needs_python(library):
    return b"libtorch_python" in library.read_bytes()


def operators_without_python(device):
    """The day's library, as a program without Python can load it. cpp_extension links a library
    for a GPU with libtorch_python, whose symbols only Python has; then its objects are linked again
    without."""
    library = next(Path(path) for path in torch.ops.loaded_libraries if "day98" in path)
    if not needs_python(library):
        return library
    objects = sorted(library.parent.glob("*.o"))
    made = entry("operators", device, "operators.so", [], str(library))

    def make(directory):
        libs = [f"-L{path}" for path in cpp_extension.library_paths()]
        libs += [f"-l{name}" for name in ("c10", "torch_cpu", "torch", "c10_cuda", "torch_cuda")]
        words = ("-shared", *objects, *libs, loaded("libcudart"))
        succeed(os.environ["CXX"], *words, "-o", directory / made.product)

    built = cached(made, make)
    if needs_python(built):
        raise RuntimeError(f"{built} still needs Python")
    return built


# ---------------------------------------------------------------- who runs it


def print_python(package, model, device):
    """The package in this process, beside the model that it was made of."""
    loaded = torch._inductor.aoti_load_package(str(package))
    rows = []
    for count in ROWS:
        u = batch(count, device)
        require_close(loaded(u), model(u), f"the package in Python, {count} rows")
        calls = {"eager": partial(model, u), "package": partial(loaded, u)}
        times = seconds_in_turn(calls, turn=0.01, rounds=5)
        rows.append([count, *(f"{times[name] * 1e6:.0f} µs" for name in ("eager", "package"))])
    print("in Python, equal within rounding:")
    print_table(["rows", "eager", "package"], rows)


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
import sys
sys.path.insert(0, sys.argv[1])
import torch, hundred_days_day98
u = torch.load(sys.argv[3], weights_only=True).to(sys.argv[5])
y = torch._inductor.aoti_load_package(sys.argv[2])(u)
torch.save(y.cpu(), sys.argv[4])
x = torch.randn(5, 24, device=sys.argv[5])
z, w = torch.randn_like(x), torch.ones(24, device=sys.argv[5])
expected = torch.nn.functional.rms_norm(x, w.shape, w, 1e-6) * torch.nn.functional.silu(z)
torch.testing.assert_close(hundred_days_day98.gated_norm(x, z, w), expected)
print(hundred_days_day98.__file__)
"""


def print_wheel(package, library, model, device, folder):
    """Builds the wheel, installs it into a folder of its own, and uses it in a fresh process."""
    for tool in ("pip", "setuptools"):
        try:
            importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            print(f"wheel: not tried, this Python has no {tool}")
            return
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    (source / PACKAGE).mkdir(parents=True)
    shutil.copy(HERE / "setup.py", source)
    shutil.copy(HERE / "package.py", source / PACKAGE / "__init__.py")
    shutil.copy(library, source / PACKAGE / "operators.so")
    pip, offline = (sys.executable, "-m", "pip"), ("--no-index", "--no-deps", "--quiet")
    succeed(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", wheels, source)
    wheel = next(wheels.glob("*.whl"))
    if "-py3-none-" not in wheel.name:
        raise RuntimeError(f"{wheel.name}: expected a wheel for any Python 3")
    succeed(*pip, "install", *offline, "--target", site, wheel)
    torch.save(batch(START), folder / "u.pt")
    arguments = (site, package, folder / "u.pt", folder / "y.pt", device.type)
    text, seconds = succeed(sys.executable, "-c", CLIENT, *arguments)
    if str(site) not in text:
        raise RuntimeError(f"{PACKAGE} came from {text}")
    found = torch.load(folder / "y.pt", weights_only=True)
    require_close(found, model(batch(START, device)).cpu(), "the wheel in a fresh process")
    print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
    print(f"a process, from start to result: {seconds:.2f} s with Python and the wheel")


def show(operators, device):
    use_compilers(device.type)
    register()
    print_checks(operators, device)
    model = layer(operators.gated_norm_v3_chunks, device)
    exported = export(model, device)
    print_graph(exported)
    print_wrong_fakes(device)
    package = package_of(exported, device)
    print_python(package, model, device)
    program, library = program_of(device), operators_without_python(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_program(program, package, library, model, device, folder)
        print("serve refuses:")
        print_mistakes(program, package, library, folder)
        print_wheel(package, library, model, device, folder)
