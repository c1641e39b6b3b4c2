"""Deploys day 86's GPT of characters: python -m days.day98.build --out dist/

Writes into the folder: gpt.pt2 and operators.so; write, a C++ program that writes text with these
two; and a wheel, which needs PyTorch alone. The files are for this kind of device; gpt.pt2 and
write are also for this version of PyTorch. A file is built again only after a change.
"""

import argparse
import fcntl
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch

from common.base.argument_types import value
from common.base.cache import keep_compilers_caches
from common.base.compiling import BuildError
from common.base.signals import noted_signals
from common.base.toolchain import ToolchainError
from common.build.library import operators_of, use_compilers
from common.report.files import ResultsError, check_writable
from days.day86.training import CheckpointError, characters, default_model, read_checkpoint

from . import gpt
from .made import missing_tool, operators_without_python, package_of, program_of, wheel_of

PROGRAM = "python -m days.day98.build"
PACKAGE = "hundred_days_gpt"
RUNS_PACKAGE = b"from . import main\n\nmain()\n"  # __main__.py
MOST = 64  # sequences of a batch
OUT = value(str, "the name of a folder", bool)


# ---------------------------------------------------------------- arguments


def arguments(words):
    """Return the options and the checkpoint. Exits with code 2, naming the argument, before
    anything is compiled."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--out", required=True, metavar="FOLDER", type=OUT, help="where the files are written")
    add("--model", metavar="FILE", help="a file of day 86 (default: gpt.best.checkpoint here, else "
        "the small model of this repository)")  # fmt: skip
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where the model runs")
    options = parser.parse_args(words)
    options.out = Path(options.out)

    def refuse(name, why):
        parser.error(f"argument --{name}: {why}")

    path = options.model or default_model()
    try:
        plan, parts = read_checkpoint(path, ("weights",))
    except CheckpointError as error:
        refuse("model", error)
    except OSError as error:
        refuse("model", f"{path}: {error.strerror}")
    if plan.text:
        refuse("model", f"{path}: expected a model of characters, got one of tokens")
    if plan.positions < 2:
        refuse("model", f"{path}: expected 2 or more positions, got {plan.positions}")
    if os.path.exists(options.out) and not os.path.isdir(options.out):
        refuse("out", f"expected a folder, got {options.out}, which is none")
    try:
        for name in ("gpt.pt2", "operators.so", "write"):
            check_writable(options.out / name, 4 * len(parts["weights"]))
    except ResultsError as error:
        refuse("out", error)
    return options, plan, parts["weights"]


# ---------------------------------------------------------------- what is built


def export(model):
    """Return a graph of the GPT for 1 to MOST sequences of 1 to `positions` tokens."""
    example = torch.zeros(2, 2, dtype=torch.int64, device=model.weights.device)
    batch = torch.export.Dim("batch", min=1, max=MOST)
    length = torch.export.Dim("length", min=1, max=model.numbers[-1])
    return torch.export.export(model, (example,), dynamic_shapes={"tokens": {0: batch, 1: length}})


def built(plan, weights, device):
    """Return the files for the folder, all of them in the cache."""
    sizes, vocabulary = plan.model(), characters()[1]
    buffer = torch.frombuffer(bytearray(weights), dtype=torch.bfloat16)
    model = gpt.GPT(buffer, sizes.numbers).to(device)
    gpt.register()
    metadata = {"positions": plan.positions, "words": sizes.words, "characters": vocabulary}
    metadata = {name: str(value) for name, value in metadata.items()}
    parts = [str(sizes), str(torch.ops.day86.gpt_logits.default._schema), weights]
    files = ["build.py", "gpt.py"]
    package = package_of("gpt", lambda: export(model), device, metadata, files, *parts)
    library = operators_without_python(86, device)
    program = program_of("write", device)
    saved = io.BytesIO()
    gpt.save(saved, buffer, sizes.numbers, vocabulary, device.type)
    extra = {"weights.pt": saved.getvalue(), "__main__.py": RUNS_PACKAGE}
    wheel = wheel_of(PACKAGE, "gpt.py", library, device, extra)
    return [package, *sorted(library.parent.glob("*.so"), reverse=True), program, wheel]


@contextmanager
def locked(folder):
    """Lock the folder for this process: two models must not be mixed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def publish(files, folder):
    """Copy the files into the folder, none or all of them. Raise ResultsError."""
    for file in files:
        check_writable(folder / file.name, file.stat().st_size)
    try:
        with (
            locked(folder),
            tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as name,
        ):
            copies = [Path(shutil.copy(file, name)) for file in files]
            with noted_signals():
                for copy in copies:
                    os.replace(copy, folder / copy.name)
    except OSError as error:
        raise ResultsError(f"cannot write into {folder}: {error.strerror}") from None


def print_commands(files, folder):
    """Print each file with its size, and the commands that use it."""
    for file in files:
        path = folder / file.name
        print(f"{path}: {path.stat().st_size / 1024:,.0f} KiB")
    package, library, program, wheel = (
        folder / next(f.name for f in files if f.name.endswith(end))
        for end in (".pt2", "operators.so", "write", ".whl")
    )
    print("without Python:")
    print(f"  {shlex.join(['env', '-i', *map(str, (program, package, library)), 'ROMEO:', '200'])}")
    print("in a Python that has PyTorch:")
    print(f"  {shlex.join(['pip', 'install', str(wheel)])}")
    print(f"  python -m {PACKAGE} ROMEO: --tokens 200")


# ---------------------------------------------------------------- the program


def run(options, plan, weights):
    if tool := missing_tool():
        sys.exit(f"the wheel needs {tool}, which this Python does not have: pip install {tool}")
    keep_compilers_caches()
    use_compilers(options.device)
    print("building the operators of day 86", flush=True)
    _, device = operators_of(86, options.device)
    files = built(plan, weights, torch.device(device))
    publish(files, options.out)
    print_commands(files, options.out)


def main(words=None):
    options, plan, weights = arguments(words)
    try:
        run(options, plan, weights)
    except (ToolchainError, BuildError, ResultsError) as error:
        sys.exit(str(error))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # a compiler that fails
        sys.exit(str(error).split("\n")[0])
    except KeyboardInterrupt:
        print(f"interrupted: nothing was written to {options.out}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
