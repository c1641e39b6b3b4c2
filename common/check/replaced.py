"""Find the functions of the course and of Python's modules that a day's code has replaced.

A rung in Python, or a launcher that calls Python, could replace the clock, the comparison or the
check itself, and pass. So these are recorded before the day is loaded, and compared after each
rung's check. Code that controls its process can still deceive: it may restore what it replaced
before that, or write over memory. This is a course, not a contest.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from types import FunctionType, ModuleType
from typing import Any

import torch

# Packages of the course that judge and time a rung, or send its outcome.
PACKAGES = tuple(f"common.{name}." for name in ("base", "bench", "build", "check", "process"))
# Modules of others that they use.
# PyTorch's are left out, but for its clock: importing its compiler replaces some.
LIBRARIES = ("builtins", "json", "math", "os", "statistics", "time")
CLASSES = (torch.cuda.Event,)

_Owner = ModuleType | type


def record() -> Callable[[], list[str]]:
    """Record all functions, classes and properties of these modules and of their classes.

    Return a function that restores those replaced since, or hidden by a new name, and returns their
    names: ["time.perf_counter"].
    """
    kept = [
        (owner, vars(owner), _code(owner), _hidden(owner), len(vars(owner))) for owner in _owners()
    ]
    functions = {
        f for _, _, code, _, _ in kept for f in code.values() if isinstance(f, FunctionType)
    }
    bodies = [(function, function.__code__) for function in functions]

    def replaced() -> list[str]:
        found = []
        for owner, now, code, hidden, size in kept:
            for name, value in code.items():
                if now.get(name) is not value:
                    setattr(owner, name, value)
                    found.append(_title(owner, name))
            if len(now) != size:
                for name in (_code(owner).keys() - code.keys()) & hidden:
                    delattr(owner, name)
                    found.append(_title(owner, name))
        for function, body in bodies:
            if function.__code__ is not body:
                function.__code__ = body
                found.append(f"{function.__module__}.{function.__qualname__}")
        return sorted(found)

    return replaced


def _owners() -> list[_Owner]:
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGES)]
    values = [value for module in modules for value in vars(module).values()]
    classes = [v for v in values if isinstance(v, type) and v.__module__.startswith("common.")]
    libraries = [sys.modules[name] for name in LIBRARIES]
    return list(dict.fromkeys([*modules, *classes, *libraries, *CLASSES]))


def _code(owner: _Owner) -> dict[str, Any]:
    """Return an owner's values that are functions, classes, properties or modules, by name."""
    return {
        name: value
        for name, value in vars(owner).items()
        if callable(value) or hasattr(type(value), "__get__") or isinstance(value, ModuleType)
    }


def _hidden(owner: _Owner) -> AbstractSet[str]:
    """Return the names that a new name of this owner would hide from its code."""
    if isinstance(owner, ModuleType):
        return vars(builtins).keys()
    return {name for base in owner.__mro__[1:] for name in vars(base)}


def _title(owner: _Owner, name: str) -> str:
    module = "" if isinstance(owner, ModuleType) else f"{owner.__module__}."
    return f"{module}{owner.__name__}.{name}"
