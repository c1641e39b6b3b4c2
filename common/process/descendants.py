"""Find, signal and end the processes that a process has started, and their descendants."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

KILL_WAIT = 10.0  # seconds that a killed process may take to end (a driver call can delay it)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def members(*leaders: int) -> list[int]:
    """Return the running processes (no zombies) that are, or descend from, one of `leaders`, or
    belong to its session, without this process. [] without /proc."""
    parents: dict[int, int] = {}
    found = set(leaders)
    running = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        state, parent, _group, session = text.rpartition(")")[2].split()[:4]
        pid = int(entry.parent.name)
        parents[pid] = int(parent)
        if int(session) in leaders:
            found.add(pid)
        if state not in "ZX":
            running.add(pid)
    # A parent's id may be larger than its child's, since ids are reused.
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found & running - {os.getpid()})


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended by itself


def die_with(parent: int, number: int) -> None:
    """Make the kernel send a signal to this process when its parent, `parent`, dies; exit
    immediately if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


def adopt() -> None:
    """Become the parent of every orphaned descendant, so that `members` finds it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_members(leader: int) -> None:
    """Kill the processes that `members` finds for a leader, except the leader."""
    deadline = time.monotonic() + KILL_WAIT
    while left := set(members(leader)) - {leader}:
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
