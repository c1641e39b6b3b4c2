"""Implement `--doctor`: examine this machine, and print each finding with its fix.

No package is assumed to work: torch may be missing or broken.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.base import toolchain
from common.base.cache import cache_directory
from common.base.compiling import BuildError
from common.base.days import discover
from common.base.figures import counted, numbers
from common.base.machine_faults import full_disk, obstacle, temporary_folder
from common.base.paths import DAYS, ROOT
from common.cpu import libraries
from common.report.terminal import Line, Report

OK, WARN, BAD = "ok", "warn", "bad"
STYLES = {OK: "green", WARN: "yellow", BAD: "bold red"}
INSTALL = "python -m pip install -r requirements.txt"

LOW_DISK = 2e9  # bytes; all days built for one GPU take far less, a full disk breaks everything
FULL_CACHE = 150e6  # bytes; the precompiled headers take 105 MB, a day's build at most 20
FULL_TEMPORARY = 50e6  # bytes; a compiler's files between its steps
TRY_LIMIT = 120  # seconds for importing torch, and for building one kernel


@dataclass(frozen=True)
class Finding:
    """A finding. state: "ok", "warn" (something works less well) or "bad" (days cannot run).
    subject: the examined part. text: the observation. fix: the remedy."""

    state: str
    subject: str
    text: str
    fix: str = ""


def main(colour: bool = True, root: Path = DAYS) -> int:
    """Print all findings as they are made; return 1 if any is bad, else 0."""
    report = Report(colour=colour)
    worst = {OK: 0, WARN: 0, BAD: 0}
    for look in LOOKS:
        report.status(f"looking at {look.__name__.replace('_', ' ')}")
        for finding in found(look, root):
            worst[finding.state] += 1
            for line in lines(finding):
                report.line(line)
    report.close()
    counts = f"{worst[OK]} ok, {counted(worst[WARN], 'warning')}, {worst[BAD]} bad"
    verdict = "days cannot run until the bad ones are fixed" if worst[BAD] else "days can run"
    report.line([(f"{counts}: {verdict}", "bold")])
    return 1 if worst[BAD] else 0


def lines(finding: Finding) -> list[Line]:
    """Return the printed lines of a finding."""
    shown: list[Line] = [
        [
            (f"{finding.state:<4}", STYLES[finding.state]),
            (f"  {finding.subject:<11} {finding.text}", ""),
        ]
    ]
    if finding.fix:
        shown.append([(f"      {'':<11} fix: {finding.fix}", "cyan")])
    return shown


def found(look: Callable[[Path], Iterator[Finding]], root: Path) -> Iterator[Finding]:
    """Yield the findings of one look. An unexpected error is a finding, too."""
    try:
        yield from look(root)
    except toolchain.ToolchainError as error:
        yield Finding(BAD, look.__name__, str(error))
    except Exception as error:
        yield Finding(BAD, look.__name__, f"{type(error).__name__}: {error}", INSTALL)


def python(_root: Path) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036  (this very program may run on an older one)
        yield Finding(BAD, "Python", f"{version} is too old", "install Python 3.11 or later")
    else:
        yield Finding(OK, "Python", f"{version}, {sys.executable}")
    include = Path(__import__("sysconfig").get_path("include")) / "Python.h"
    if not include.is_file():
        yield Finding(
            WARN,
            "Python.h",
            "missing; the days that bind with pybind11 need it",
            "on Debian or Ubuntu: sudo apt-get install python3-dev",
        )


def torch(_root: Path) -> Iterator[Finding]:
    version = toolchain.torch_version()
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TRY_LIMIT
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(
            BAD,
            "torch",
            f"{version} is installed but cannot be imported: {last}",
            "python -m pip install --force-reinstall -r requirements.txt",
        )
        return
    cuda = toolchain.torch_cuda()
    built = f"built for CUDA {cuda}" if cuda else "built for the CPU alone"
    yield Finding(OK, "torch", f"{version}, {built}")
    tested = requirements()["torch"]
    if _release(version) < _release(tested.oldest):
        yield Finding(BAD, "torch", f"{version} is older than {tested.oldest}", INSTALL)
    elif _release(version) > _release(tested.newest):
        yield Finding(WARN, "torch", f"{version} is newer than the tested {tested.newest}")


@dataclass(frozen=True)
class Requirement:
    """The versions of a package that requirements.txt admits; the newest one is tested."""

    oldest: str
    newest: str

    def admits(self, version: str) -> bool:
        """Return True for a version in the range."""
        return _release(self.oldest) <= _release(version) <= _release(self.newest)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare: (2, 13) for "2.13.0+cpu"."""
    numbers = re.match(r"[\d.]*", version)
    assert numbers
    parts = [int(part) for part in numbers.group().split(".") if part]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def requirements() -> dict[str, Requirement]:
    """Return the requirements in requirements.txt, by package."""
    found = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if match := _REQUIREMENT.match(line):
            name, oldest, newest = match.groups()
            found[name] = Requirement(oldest or newest, newest)
    return found


# name==1.2 or name[extra]>=1.1,<=1.2
_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[^]]*\])?(?:==|>=([^,]+),<=)([\w.]+)")


def packages(_root: Path) -> Iterator[Finding]:
    missing, other = [], []
    for name, tested in requirements().items():
        if name == "torch":
            continue
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
        else:
            if not tested.admits(have):
                other.append(f"{name} {have} (tested: {tested.newest})")
    if missing:
        yield Finding(WARN, "packages", f"missing: {', '.join(missing)}", INSTALL)
    if other:
        yield Finding(WARN, "packages", f"other versions: {', '.join(other)}", INSTALL)
    if not missing and not other:
        yield Finding(OK, "packages", "all as in requirements.txt")


def compiler(_root: Path) -> Iterator[Finding]:
    found = toolchain.find_compiler()
    text = f"{found.version}, {found.path}"
    if found.note:
        fix = f"export CXX={found.path}, so that other programs use it too"
        yield Finding(WARN, "compiler", f"{found.note} ({found.version})", fix)
    else:
        yield Finding(OK, "compiler", text)


def ninja(_root: Path) -> Iterator[Finding]:
    path = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if path is None:
        yield Finding(BAD, "ninja", "missing; it runs every build", f"{INSTALL}")
        return
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TRY_LIMIT)
    if done.returncode == 0:
        yield Finding(OK, "ninja", f"{done.stdout.strip()}, {path}")
    else:
        yield Finding(BAD, "ninja", f"{path} does not run: {done.stderr.strip()}", INSTALL)


def gpu(_root: Path) -> Iterator[Finding]:
    gpus = toolchain.find_gpus()
    if gpus.problem:
        yield Finding(WARN, "GPU", f"{gpus.problem}; days run on the CPU backend")
        return
    for name, arch in zip(gpus.names, gpus.archs, strict=True):
        yield Finding(OK, "GPU", f"{name}, sm_{toolchain.sm(arch)}")
    yield Finding(OK, "driver", f"supports CUDA {gpus.driver}")
    cuda = toolchain.torch_cuda()
    if not cuda:
        yield Finding(
            WARN,
            "torch",
            "is a CPU build, so the GPU lies idle",
            f"python -m pip install --force-reinstall torch=={requirements()['torch'].newest}",
        )
    elif int(gpus.driver.split(".")[0]) < int(cuda.split(".")[0]):
        yield Finding(
            BAD,
            "driver",
            f"supports CUDA {gpus.driver}, torch needs {cuda}",
            "update the NVIDIA driver, or install a torch for the older CUDA",
        )


def nvcc(_root: Path) -> Iterator[Finding]:
    toolkit = toolchain.find_toolkit()
    cuda = toolchain.torch_cuda()
    if toolkit is None:
        yield Finding(WARN, "nvcc", "missing: --compile-only and days on a GPU need it", INSTALL)
    elif cuda and toolkit.version.split(".")[0] != cuda.split(".")[0]:
        yield Finding(
            WARN,
            "nvcc",
            f"{toolkit.version} ({toolkit.origin}), but torch is for CUDA {cuda}",
            "set CUDA_HOME to a toolkit of the same major version",
        )
    else:
        yield Finding(OK, "nvcc", f"{toolkit.version} ({toolkit.origin}), {toolkit.home}")
    headers = toolchain.cuda_headers()
    yield Finding(OK, "headers", f"of CUDA, for the CPU backend: {headers}")


def writable_cache(_root: Path) -> Iterator[Finding]:
    folder = cache_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding(
            BAD,
            "cache",
            f"{folder} cannot be written: {error.strerror}",
            "set HUNDRED_DAYS_CACHE to a folder that can",
        )
        return
    for place, least in ((folder, FULL_CACHE), (temporary_folder(), FULL_TEMPORARY)):
        if shutil.disk_usage(place).free < least:
            text = f"builds need {least / 1e6:.0f} MB of room in {place}"
            yield Finding(BAD, "disk", text, full_disk().fix)


def _size(file: str) -> int:
    """Return the bytes of a file; 0 if a running build has removed it since it was listed."""
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return 0


def cache(root: Path) -> Iterator[Finding]:
    unwritable = list(writable_cache(root))
    if unwritable:
        yield from unwritable
        return
    folder = cache_directory()
    files = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    size = sum(map(_size, files))
    yield Finding(OK, "cache", f"{folder}, {size / 1e6:.1f} MB")
    free = shutil.disk_usage(folder).free
    state = WARN if free < LOW_DISK else OK
    fix = "make room, or set HUNDRED_DAYS_CACHE to another disk" if state == WARN else ""
    yield Finding(state, "disk", f"{free / 1e9:.1f} GB free for builds", fix)


def days(root: Path) -> Iterator[Finding]:
    good, errors = discover(root)
    if good:
        yield Finding(OK, "days", f"{numbers(day.number for day in good)} in {root}")
    else:
        yield Finding(BAD, "days", f"none in {root}", "is the checkout whole? git status tells")
    for error in errors:
        yield Finding(BAD, "days", str(error))


def cpu_backend(_root: Path) -> Iterator[Finding]:
    platform = toolchain.detect("cpu")
    try:
        library = libraries.build_runtime(platform)
    except BuildError as error:
        first, *rest = error.text.splitlines()
        if wrong := obstacle(error.text):
            yield Finding(BAD, "CPU backend", f"{first}: {wrong.what}", wrong.fix)
        else:
            yield Finding(BAD, "CPU backend", first, "\n".join(rest[-5:]))
        return
    code = f"import ctypes; ctypes.CDLL({str(library)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TRY_LIMIT
    )
    if done.returncode == 0:
        yield Finding(OK, "CPU backend", "its runtime builds and loads")
    else:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(BAD, "CPU backend", f"its runtime does not load: {last}")


LOOKS = (python, torch, packages, compiler, ninja, gpu, nvcc, cache, days, cpu_backend)

# The fast looks whose bad findings make every build fail.
OBSTACLES = (compiler, ninja, writable_cache)


def obstacles() -> list[str]:
    """Return why no day can be built on this machine, one reason per line; [] if no reason is
    known."""
    findings = (finding for look in OBSTACLES for finding in found(look, DAYS))
    return [f"{one.subject}: {one.text}; {one.fix}" for one in findings if one.state == BAD]
