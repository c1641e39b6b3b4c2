"""Build the files that leave Python: a .pt2, a program in C++, a library of operators, a wheel.

Each is built once and kept in the cache of builds; show of this day and build.py take them there.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import torch

from common.base.cache import Entry, cached, digest
from common.base.toolchain import detect
from common.build.library import with_compilers

HERE = Path(__file__).parent
LIMIT = 120.0  # seconds that a process may take
OFFLINE = ("--no-index", "--no-deps", "--quiet")  # pip looks up nothing


def run(*command):
    """Return output, lines of the errors, exit code and seconds of a process."""
    started = time.monotonic()
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd="/")
    errors = [line for line in done.stderr.splitlines() if line.strip()] or [""]
    return done.stdout, errors, done.returncode, time.monotonic() - started


def succeed(*command):
    """Return output and seconds of a process. Raise RuntimeError if it fails."""
    text, errors, code, seconds = run(*command)
    if code != 0:
        raise RuntimeError(f"{command[0]} failed: {' '.join(errors[-5:])}")
    return text, seconds


def torch_libraries():
    """Return the folders of PyTorch's libraries."""
    from torch.utils import cpp_extension  # it imports setuptools, which changes sys.path

    return cpp_extension.library_paths()


def entry(kind, device, product, files, *parts):
    """Return a place in the cache, of this PyTorch in this place: a program looks for its libraries
    where they were when it was linked, and a new virtual environment is in another place."""
    card = torch.cuda.get_device_name() if device.type == "cuda" else ""
    words = [torch.__version__, *torch_libraries(), device.type, card, *parts]
    key = digest(words, [HERE / name for name in files])
    return Entry(f"day98-{kind}-{device.type}", key, product)


def loaded(name):
    """Return the file of a shared library of this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = [Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line]
    return next(path for path in paths if path.name.startswith(f"{name}.so"))


# ---------------------------------------------------------------- the model


def link_with_driver(directory):
    """Let AOTInductor link with -lcuda, where a machine that only runs programs has a libcuda.so.1.
    The compiler also looks in the folders of LIBRARY_PATH."""
    (directory / "libcuda.so").symlink_to(loaded("libcuda"))
    others = os.environ.get("LIBRARY_PATH", "")
    os.environ["LIBRARY_PATH"] = f"{directory}{os.pathsep}{others}".rstrip(os.pathsep)


def compile_package(exported, path, metadata):
    """Write the .pt2. metadata: what a program in C++ must know, words by name."""
    settings = {
        "aot_inductor.metadata": metadata,
        # Of the code that calls the kernels; compiling it takes longest.
        "aot_inductor.compile_wrapper_opt_level": "O0",
        "aot_inductor.precompile_headers": False,  # which takes longer than they save one file
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's, about its own code
        warnings.filterwarnings("ignore", "TensorFloat32")  # the package computes in fp32
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(path), inductor_configs=settings
        )


def package_of(name, export, device, metadata, files, *parts):
    """Return the .pt2, after compiling what `export` returns if it is missing. files, parts: all
    that it depends on."""
    words = [word for item in metadata.items() for word in item]
    made = entry(name, device, f"{name}.pt2", ["made.py", *files], *words, *parts)

    def make(directory):
        if device.type == "cuda":
            link_with_driver(directory)
        compile_package(export(), directory / made.product, metadata)

    cached(made, make)
    with zipfile.ZipFile(made.path) as package:
        sizes = Counter()
        for info in package.infolist():
            sizes[Path(info.filename).suffix or "other"] += info.file_size
    listed = ", ".join(f"{kind} {size / 1024:.0f} KiB" for kind, size in sizes.most_common(4))
    print(f"{made.product}: compiled in {made.seconds:.1f} s; {listed}", flush=True)
    return made.path


# ---------------------------------------------------------------- the program and the operators


def program_of(name, device):
    """Return the program of name.cpp, compiled and linked with PyTorch's C++ libraries."""
    flags = ["-Wl,--no-as-needed", "-ldl"]
    if device.type == "cuda":  # nothing of it is called by name; it brings the GPU's operators
        flags += ["-ltorch_cuda", "-lc10_cuda", "-Wl,--allow-shlib-undefined"]
    made = entry(name, device, name, [f"{name}.cpp", "program.h"], *flags)

    def make(directory):
        with_compilers(
            detect(device.type),
            lambda load: load(
                name,
                [str(HERE / f"{name}.cpp")],
                build_directory=str(directory),
                is_python_module=False,
                is_standalone=True,
                extra_cflags=["-O1"],
                extra_ldflags=flags,
            ),
        )

    program = cached(made, make)
    print(f"{name}: built in {made.seconds:.1f} s", flush=True)
    return program


def operators_without_python(number, device):
    """Return a day's library as any program can load it, from any folder.

    cpp_extension links a library for a GPU with libtorch_python, whose symbols only Python has, and
    one for the CPU backend with a runtime in the cache. So its objects are linked again: without
    the one, and with a copy of the other in the same folder.
    """
    name = f"day{number:02d}.so"
    library = next(p for p in map(Path, torch.ops.loaded_libraries) if p.name == name)
    objects = sorted(library.parent.glob("*.o"))
    on_gpu = device.type == "cuda"
    runtime = loaded("libcudart" if on_gpu else "libcudacpu")
    made = entry("operators", device, "operators.so", ["made.py"], str(library), str(runtime))

    def make(directory):
        words = [f"-L{path}" for path in torch_libraries()]
        words += ["-lc10", "-ltorch_cpu", "-ltorch"]
        if on_gpu:
            words += ["-lc10_cuda", "-ltorch_cuda", runtime]
        else:
            shutil.copy(runtime, directory)
            words += [f"-L{directory}", f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN"]
        succeed(os.environ["CXX"], "-shared", *objects, *words, "-o", directory / made.product)
        if b"libtorch_python" in (directory / made.product).read_bytes():
            raise RuntimeError(f"{made.product} still needs Python")

    return cached(made, make)


# ---------------------------------------------------------------- the wheel


def missing_tool():
    """Return the package that a wheel is built with and this Python lacks, "" if there is none."""
    for tool in ("pip", "setuptools"):
        try:
            importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            return tool
    return ""


def wheel_of(package, module, library, device, extra=None):
    """Return the wheel of a package whose __init__.py is `module`, a file of this folder. library:
    of operators_without_python. extra: contents of further files by name."""
    extra = extra or {}
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    product = f"{package}-1.0-py3-none-{platform}.whl"
    files = ["made.py", "setup.py", module, *sorted(library.parent.glob("*.so"))]
    made = entry(package, device, product, files, sys.version, *extra, *extra.values())

    def make(directory):
        source = directory / "source"
        (source / package).mkdir(parents=True)
        shutil.copy(HERE / "setup.py", source)
        shutil.copy(HERE / module, source / package / "__init__.py")
        for file in library.parent.glob("*.so"):
            shutil.copy(file, source / package)
        for name, content in extra.items():
            (source / package / name).write_bytes(content)
        words = (*OFFLINE, "--no-build-isolation", "--wheel-dir", directory)
        succeed(sys.executable, "-m", "pip", "wheel", *words, source)
        found = [path.name for path in directory.glob("*.whl")]
        if found != [product]:
            raise RuntimeError(f"expected {product}, a wheel for any Python 3, got {found}")

    return cached(made, make)
