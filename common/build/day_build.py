"""Build a whole day: its library, the custom builds of its rungs, and its Triton kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.base.cache import Entry, cached, digest
from common.base.compiling import BuildError
from common.base.days import Day, Lesson, load_lesson
from common.base.outcome import Skip
from common.base.toolchain import Platform, ToolchainError
from common.build.custom_build import Builder
from common.build.library import Build, build_library, kind, plan, used


def extras(todo: Build) -> Entry | None:
    """Return the cache entry that marks the custom builds of the day's rungs, and the compilation
    of their Triton kernels, as done; None for a day without such rungs."""
    if not todo.day.other_sources:
        return None
    declared = [folder / "day.py" for folder in todo.day.folders]
    files = [*declared, *todo.day.other_sources]
    parts = [todo.entry.key, *todo.day.only]
    if todo.platform.device == "cuda":
        parts += [_version("triton"), os.environ.get("TRITON_CACHE_DIR", "")]
    key = digest(parts, files)
    return Entry(f"{kind(todo.day.kind, todo.platform)}-extras", key, "built")


def ready(day: Day, platform: Platform) -> bool:
    """Return True if there is nothing to build. Raise OSError if a source cannot be read."""
    try:
        todo = plan(day, platform)
        own = [todo.entry, *(other.entry for other in used(todo))]
    except BuildError:
        return False  # the build reports it
    others = extras(todo)
    return all(entry.ready for entry in own) and (others is None or others.ready)


def build(day: Day, platform: Platform) -> Path:
    """Build the missing parts of the day and return its library.

    Loads the library into this process as a side effect, so call it in a separate process. Raise
    BuildError with the compiler's message, OSError if the disk is full.
    """
    todo = plan(day, platform)
    for other in used(todo):
        build_library(other)
    library = build_library(todo)
    others = extras(todo)
    if others is not None:

        def make(directory: Path) -> None:
            lesson = load_lesson(day)
            for problem in lesson.problems:
                for rung in problem.rungs:
                    if rung.load is not None and (not day.only or rung.name in day.only):
                        _load(rung.load, todo)
            if platform.device == "cuda":
                _compile_triton(lesson, todo)
            (directory / others.product).touch()

        cached(others, make)
    return library


def _load(load: Callable[[Builder], Any], todo: Build) -> None:
    """Run a rung's custom build. Ignore other errors than those of a build: the run meets them
    again and reports them with the rung."""
    try:
        load(Builder(todo))
    except (BuildError, ToolchainError, OSError, Skip):
        raise
    except Exception:
        return


def _compile_triton(lesson: Lesson, todo: Build) -> None:
    """Fill Triton's cache with the kernels that the day's rungs in Triton launch on their cases."""
    builder = Builder(todo)
    rungs = []
    for problem in lesson.problems:
        for rung in problem.rungs:
            if rung.triton and (not todo.day.only or rung.name in todo.day.only):
                with suppress(Exception):  # the run meets it again, and reports it with the rung
                    call = getattr(builder.triton(rung.triton), rung.name)
                    rungs.append((problem, rung, call))
    if rungs:
        from common.build.triton_kernels import compile_kernels

        compile_kernels(rungs, todo.platform.arch)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
