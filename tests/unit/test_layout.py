"""The layout of common/: packages by concern, imports downward only."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from common.base.paths import ROOT

COMMON = ROOT / "common"
# From the top: a package imports the ones below it, and itself.
ORDER = [
    *("run", "practice", "mutants", "tools", "process", "references", "bench", "check", "build"),
    *("cpu", "report", "base"),
]
FACADE = "day"  # imported by most days

MODULES = sorted(path for path in COMMON.rglob("*.py") if path.name != "__init__.py")


def package(path: Path) -> str:
    """Return "run" for common/run/doctor.py, "day" for common/day.py."""
    return path.relative_to(COMMON).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return our modules that a file names in any import, with their dots."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in MODULES}
    return found & files


def test_every_package_has_its_place() -> None:
    packages = {package(path) for path in MODULES}
    assert packages <= {*ORDER, FACADE}, packages - {*ORDER, FACADE}
    assert len(MODULES) > 50, "the modules were not found"


def test_imports_go_downward() -> None:
    wrong = []
    for path in MODULES:
        if package(path) == FACADE:
            continue
        for name in imported(path):
            target = name.split(".")[1]
            if target == FACADE or ORDER.index(target) < ORDER.index(package(path)):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_modules_import_no_circle() -> None:
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): imported(p) for p in MODULES}
    while free := {name for name, needs in names.items() if not needs & set(names)}:
        for name in free:
            del names[name]
    assert not names, f"these import each other: {sorted(names)}"


def test_the_script_calls_only_the_top() -> None:
    packages = {name.split(".")[1] for name in imported(ROOT / "run_day.py")}
    assert packages <= {"run", "mutants", "base"}


# Packages that no day needs: those that run it, and those that check it.
NOT_FOR_DAYS = ("run", "practice", "mutants", "process")


def test_days_import_their_vocabulary_from_one_place() -> None:
    """Names that most days need, from common.day; names that few need, from their own modules; and,
    for a day run as a file, the driver."""
    vocabulary = set(importlib.import_module("common.day").__all__)
    assert len(vocabulary) <= 25
    for path in sorted((ROOT / "days").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        guarded = [n for n in tree.body if isinstance(n, ast.If) and path.name == "day.py"]
        driver = {id(node) for block in guarded for node in block.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("common"):
                where = f"{path}:{node.lineno}: {node.module}"
                if id(node) in driver:
                    assert node.module == "common.run.driver", where
                elif node.module != "common.day":
                    assert (node.module or "").split(".")[1] not in NOT_FOR_DAYS, where
                    assert not vocabulary & {alias.name for alias in node.names}, where
