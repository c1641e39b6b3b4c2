"""Builds all of a day: its library, and what rungs build in a way of their own."""

from __future__ import annotations

from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import BuildError
from common.base.days import Day, load_lesson
from common.base.toolchain import Platform
from common.build.library import Build, build_library, kind, plan, used
from common.build.own_way import Builder


def extras(todo: Build) -> Entry | None:
    """The entry that says that the day's rungs have built what they build in a way of their own;
    None for a day without such a rung."""
    if not todo.day.other_sources:
        return None
    files = [todo.day.folder / "day.py", *todo.day.other_sources]
    key = digest([todo.entry.key, *todo.day.only], files)
    return Entry(f"{kind(todo.day.kind, todo.platform)}-extras", key, "built")


def ready(day: Day, platform: Platform) -> bool:
    """True where there is nothing to build. Raises OSError if a source cannot be read."""
    try:
        todo = plan(day, platform)
        own = [todo.entry, *(other.entry for other in used(todo))]
    except BuildError:
        return False  # building says it
    others = extras(todo)
    return all(entry.ready for entry in own) and (others is None or others.ready)


def build(day: Day, platform: Platform) -> Path:
    """Builds what of the day is not there yet and returns its library.

    Loads the library into this process as a side effect, so call it in a process of its own.
    Raises BuildError with the compiler's message, OSError if the disk is full.
    """
    todo = plan(day, platform)
    for other in used(todo):
        build_library(other)
    library = build_library(todo)
    others = extras(todo)
    if others is not None:

        def make(directory: Path) -> None:
            for problem in load_lesson(day).problems:
                for rung in problem.rungs:
                    if rung.load is not None and (not day.only or rung.name in day.only):
                        rung.load(Builder(todo))
            (directory / others.product).touch()

        cached(others, make)
    return library
