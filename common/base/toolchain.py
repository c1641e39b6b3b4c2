"""Find the GPU, compilers and CUDA toolkit of this machine, without installing anything.

Neither torch nor CUDA is initialised here: a process that has touched CUDA cannot fork workers, so
the GPU is queried in a separate process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from common.base.cache import Entry, cache_directory, cached, digest
from common.base.machine_faults import INSTALL, INSTALL_COMPILER, obstacle
from common.base.paths import ROOT
from common.base.refusal import CommandError

# A build variant of the CPU backend's runtime and its programs. "plain" is for running and
# timing, "debug" for a debugger, without optimisation. The others watch memory: "address" by
# the compiler's address sanitizer, with local variables that begin with a pattern; "zeroed" is the
# same with zeros; "trace" calls the runtime at every access.
Variant = Literal["plain", "debug", "address", "zeroed", "trace"]

# Asks the driver, not torch: 0.2 s instead of 2 s. Attributes 75 and 76 are the compute capability.
_PROBE = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0)
assert code == 0, f"cuInit returned {code}"
count, driver = ctypes.c_int(), ctypes.c_int()
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDriverGetVersion(ctypes.byref(driver))
gpus = []
for i in range(count.value):
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, 256, i)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, i)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, i)
    gpus.append([name.value.decode(), major.value, minor.value])
print(json.dumps({"gpus": gpus, "driver": driver.value}))
"""

_PROCESS = Path("/proc/self")

# Architectures whose newest instructions require the "a" variant of the target.
_ARCH_SPECIFIC = {"9.0", "10.0", "10.3", "12.0"}


class ToolchainError(CommandError):
    """Something needed is missing or unsuitable; the message names it and its fix."""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: home (with bin/nvcc), its version ("13.0"), and its origin."""

    home: Path
    version: str
    origin: str

    @property
    def nvcc(self) -> Path:
        return self.home / "bin" / "nvcc"

    @property
    def include(self) -> Path:
        return self.home / "include"


@dataclass(frozen=True)
class Gpus:
    """The GPUs that the driver shows: names, architectures ("9.0a"), the CUDA it supports."""

    names: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    driver: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Platform:
    """The platform that days are built for and run on.

    device: "cuda" or "cpu". gpu, arch, driver: "" on the CPU. gpus: number of GPUs. compiler: path
    of the host C++ compiler. toolkit: None on a CPU without nvcc. cuda_include: directory of the
    CUDA headers, which the CPU backend needs too. torch: version of the installed torch, e.g.
    "2.13.0+cpu". variant: build variant of the CPU backend. model: the card that the CPU backend
    simulates ("8.6"), "" for its default. note: for the user, on the choice of compiler, or "".
    """

    device: str
    compiler: str
    compiler_version: str
    cuda_include: Path
    torch: str
    toolkit: Toolkit | None = None
    gpu: str = ""
    gpus: int = 0
    arch: str = ""
    driver: str = ""
    variant: Variant = "plain"
    model: str = ""
    note: str = ""

    def label(self) -> str:
        """Return one line for a report."""
        if self.device == "cpu":
            model = f" (model {self.model})" if self.model else ""
            return f"CPU backend{model}, {self.compiler_version}, torch {self.torch}"
        nvcc = self.toolkit.version if self.toolkit else "none"
        return f"{self.gpu}, sm_{sm(self.arch)}, nvcc {nvcc}, torch {self.torch}"


def sm(arch: str) -> str:
    """Return "9.0a" as "90a". Raise ToolchainError for an invalid architecture."""
    match = re.fullmatch(r"(\d+)\.(\d)([af]?)", arch)
    if not match:
        raise ToolchainError(
            f"--arch: {arch!r} is no architecture; write major.minor, e.g. 8.0 or 9.0a"
        )
    return "".join(match.groups())


@cache
def find_gpus() -> Gpus:
    """Return the GPUs, queried in a separate process. `problem` is the reason if there are none."""
    try:
        probe = subprocess.run(
            [sys.executable, "-S", "-c", _PROBE], capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return Gpus(problem="the CUDA driver did not answer within 60 s")
    if probe.returncode != 0:
        last = probe.stderr.strip().splitlines()[-1:] or ["no output"]
        if "libcuda.so.1" in last[0]:
            return Gpus(problem="no NVIDIA driver (libcuda.so.1) on this machine")
        return Gpus(problem=last[0])
    found = json.loads(probe.stdout)
    archs = []
    for _, major, minor in found["gpus"]:
        arch = f"{major}.{minor}"
        archs.append(arch + "a" if arch in _ARCH_SPECIFIC else arch)
    driver = f"{found['driver'] // 1000}.{found['driver'] % 1000 // 10}"
    names = tuple(name for name, _, _ in found["gpus"])
    problem = "" if names else "the CUDA driver shows no GPU"
    return Gpus(names, tuple(archs), driver, problem)


def _wheel_home() -> Path | None:
    """Return CUDA_HOME inside site-packages, as the cuda-toolkit wheels unpack it."""
    spec = importlib.util.find_spec("nvidia")
    for base in spec.submodule_search_locations or [] if spec else []:
        for home in sorted(Path(base).glob("cu[0-9]*"), reverse=True):
            if (home / "include" / "cuda_runtime_api.h").is_file():
                return home
    return None


def _toolkit(home: Path, origin: str) -> Toolkit | None:
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return None
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"release (\d+\.\d+)", output)
    return Toolkit(home, match.group(1), origin) if match else None


def _home_of_path_nvcc() -> Path | None:
    """Return the toolkit of the nvcc on PATH. It may be a link or a script, so nvcc itself is
    queried."""
    nvcc = shutil.which("nvcc")
    if not nvcc:
        return None
    dry = subprocess.run(
        [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    match = re.search(r"^#\$ TOP=(.+)$", dry.stderr, re.MULTILINE)
    return Path(match.group(1).strip()).resolve() if match else None


@cache
def find_toolkit() -> Toolkit | None:
    """Return CUDA_HOME (or CUDA_PATH), else the toolkit of the nvcc on PATH, else the wheels', else
    None.

    Raise ToolchainError if CUDA_HOME is set, but is not a toolkit.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            toolkit = _toolkit(Path(home), variable)
            if toolkit is None:
                raise ToolchainError(
                    f"{variable}={home} holds no working bin/nvcc; unset it or correct it"
                )
            return toolkit
    if (home_on_path := _home_of_path_nvcc()) and (
        toolkit := _toolkit(home_on_path, "nvcc on PATH")
    ):
        return toolkit
    wheel = _wheel_home()
    return _toolkit(wheel, "the cuda-toolkit wheels") if wheel else None


@dataclass(frozen=True)
class Compiler:
    """A host C++ compiler. path, version (a line). note: why it replaces another one, or ""."""

    path: str
    version: str
    note: str = ""


@cache
def find_compiler() -> Compiler:
    """Return the host C++ compiler for builds: CXX, else the first usable one of c++, g++, clang++.

    A compiler that cannot build libraries for PyTorch is skipped, and `note` reports it. Raise
    ToolchainError if there is none.
    """
    requested = os.environ.get("CXX")
    if requested and not shutil.which(requested):
        raise ToolchainError(f"CXX={requested} names no program on PATH; unset it or correct it")
    refused: list[str] = []
    names = ["c++", "g++", "/usr/bin/g++", "clang++"]
    for name in dict.fromkeys([requested, *names] if requested else names):
        path = shutil.which(name)
        if not path:
            continue
        version = _compiler_version(path)
        reason = compiler_unfit(path, version)
        if not reason:
            return Compiler(path, version, f"{refused[0]}; {path} is used" if refused else "")
        refused.append(f"{'CXX=' if name == requested else ''}{path} {reason}")
    if refused:
        fix = "" if INSTALL in refused[0] else f"; {INSTALL_COMPILER}"
        raise ToolchainError(f"no usable C++ compiler: {refused[0]}{fix}")
    raise ToolchainError(
        f"no C++ compiler on PATH (looked for c++, g++, clang++); {INSTALL_COMPILER}"
    )


_TRIAL = "#include <concepts>\nint check(int n) { return n ? n : throw n; }\n"


def _compiler_version(path: str) -> str:
    out = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    return out.splitlines()[0].strip() if out else Path(path).name


def compiler_unfit(path: str, version: str) -> str:
    """Return why days cannot be built with this compiler; "" if they can.

    A tiny library is built once for each compiler and assembler, and its success is cached. After a
    failure it is tried again, since a missing part may have been installed.
    """
    parts = [path, version, str(os.stat(path).st_mtime), str(shutil.which("as"))]
    entry = Entry("compiler", digest(parts), "fit", 8)

    def make(_directory: Path) -> None:
        if reason := _try_compiler(path):
            raise _Unfit(reason)
        entry.path.touch()

    try:
        cached(entry, make)
    except _Unfit as unfit:
        return str(unfit)
    except OSError:
        return _try_compiler(path)  # a cache that cannot be written is reported by the build itself
    return ""


class _Unfit(Exception):
    """The compiler cannot build libraries for PyTorch; the message contains the reason."""


def _try_compiler(path: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "try.cpp", Path(folder) / "try.so"
        source.write_text(_TRIAL)
        command = [path, "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library)]
        english = {**os.environ, "LC_ALL": "C"}  # for `obstacle`
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=english)
        if done.returncode != 0:
            if found := obstacle(done.stderr):
                return f"does not build C++20: {found.what}; {found.fix}"
            said = done.stderr.strip().splitlines() or ["no message"]
            errors = [line for line in said if "error" in line]
            return f"does not build C++20: {(errors or said)[-1]}"
        # The file contains the literal name of each library that the loader must find.
        if b"libstdc++.so" not in library.read_bytes():
            return (
                "links a C++ runtime of its own into every library; PyTorch uses libstdc++.so, and "
                "an exception from one to the other ends the process"
            )
    return ""


@cache
def torch_version() -> str:
    """Return the version of the installed torch without importing it. Raise ToolchainError without
    torch."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(
            "torch is not installed; python -m pip install -r requirements.txt"
        ) from None


@cache
def torch_cuda() -> str:
    """Return the CUDA version that the installed torch was built for, "" for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if not spec or not spec.origin:
        return ""
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else ""


def cuda_headers() -> Path:
    """Return the directory of the CUDA headers for the CPU backend: the wheels' (their version is
    pinned), else the toolkit's. Raise ToolchainError if there are none."""
    wheel = _wheel_home()
    if wheel and (wheel / "include" / "crt" / "host_config.h").is_file():  # from a separate wheel
        return wheel / "include"
    if toolkit := find_toolkit():
        return toolkit.include
    raise ToolchainError(
        "no CUDA headers: neither the cuda-toolkit wheels nor a toolkit is installed; "
        "python -m pip install -r requirements.txt"
    )


def _why_not_cuda() -> str:
    """Return why days cannot run on a GPU here, with the fix; "" if they can."""
    gpus = find_gpus()
    if gpus.problem:
        return gpus.problem
    if not torch_cuda():
        return (
            f"torch {torch_version()} is a CPU build; install one for CUDA: "
            "python -m pip install --force-reinstall torch==" + torch_version().split("+")[0]
        )
    toolkit = find_toolkit()
    if toolkit is None:
        return "no nvcc: python -m pip install -r requirements.txt brings it"
    if toolkit.version.split(".")[0] != torch_cuda().split(".")[0]:
        return (
            f"nvcc {toolkit.version} ({toolkit.origin}) does not match torch's CUDA "
            f"{torch_cuda()}: the major versions must be equal; set CUDA_HOME to a matching toolkit"
        )
    return ""


# Set by `--sanitize` for the processes that it starts, and by an editor for its debugger.
VARIANT_VARIABLE = "HUNDRED_DAYS_VARIANT"


def leave_preload() -> None:
    """Remove a preloaded library from the environment. Call this first in a process started by
    `--sanitize`, so that compilers and other programs that it starts do not get the library."""
    if VARIANT_VARIABLE in os.environ:
        os.environ.pop("LD_PRELOAD", None)


def _variant() -> Variant:
    requested = os.environ.get(VARIANT_VARIABLE, "plain")
    for variant in get_args(Variant):
        if variant == requested:
            return variant
    raise ToolchainError(
        f"{VARIANT_VARIABLE}: {requested!r} is unknown; choose {', '.join(get_args(Variant))}"
    )


def _check_path(path: Path, refused: str, fix: str) -> None:
    """Raise ToolchainError for a path that ninja's files, or the linker's -Wl and -rpath, would
    misinterpret."""
    wrong = [letter for letter in refused if letter in str(path)]
    if wrong or any("\udc80" <= letter <= "\udcff" for letter in str(path)):
        what = repr(wrong[0]) if wrong else "a byte that is no UTF-8"
        raise ToolchainError(f"{path}: nothing can be built with {what} in this path; {fix}")


@cache
def detect(device: str = "auto") -> Platform:
    """Return the platform for `device`: "cuda", "cpu", or "auto" (the GPU if there is one).

    Raise ToolchainError if something needed is missing. Does not initialise CUDA.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ToolchainError(f"--device: {device!r} is unknown; choose auto, cuda or cpu")
    if sys.platform == "linux" and not _PROCESS.exists():
        raise ToolchainError(
            "there is no /proc, where PyTorch reads what the processor can do; "
            "mount -t proc proc /proc"
        )
    _check_path(ROOT, "$\n", "move the checkout")
    _check_path(cache_directory(), "$\n:,", "set HUNDRED_DAYS_CACHE to another folder")
    compiler = find_compiler()
    reason = _why_not_cuda() if device != "cpu" else "the CPU was requested"
    if not reason:
        gpus, toolkit = find_gpus(), find_toolkit()
        assert toolkit
        return Platform(
            device="cuda",
            compiler=compiler.path,
            compiler_version=compiler.version,
            note=compiler.note,
            cuda_include=toolkit.include,
            torch=torch_version(),
            toolkit=toolkit,
            gpu=gpus.names[0],
            gpus=len(gpus.names),
            arch=gpus.archs[0],
            driver=gpus.driver,
        )
    if device == "cuda":
        raise ToolchainError(f"--device cuda: {reason}")
    return Platform(
        device="cpu",
        compiler=compiler.path,
        compiler_version=compiler.version,
        note=compiler.note,
        cuda_include=cuda_headers(),
        torch=torch_version(),
        toolkit=find_toolkit(),
        variant=_variant(),
    )
