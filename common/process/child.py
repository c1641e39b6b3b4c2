"""Run work in a forked process: read its events, capture its output, and end all its processes.

The child leads a new session, so that Ctrl-C on the terminal reaches only the parent, which then
decides. Processes that the child starts end with it.

The child runs code of other people, which may write to any descriptor. So each event carries a
secret of its process, and the events come through a socket, which cannot be opened again in /proc
to take events away. A line without the secret fails the day. Nothing protects from code that reads
the secret from the memory of its process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import IO

from common.base.outcome import FAIL
from common.process.descendants import KILL_WAIT, adopt, die_with, end_members, members, send
from common.process.events import Channel, Ended, Event, from_line, to_line

FORGED = "the day's process wrote to the runner what is not one of its events"
KEPT_OUTPUT = 64 * 1024  # bytes from the start of a child's output, and as many from its end

_children: set[Child] = set()  # children of this process that have not ended


class Pipe:
    """The child's end of a `Channel` to the parent."""

    def __init__(self, events: int, control: int, secret: bytes):
        self._events = events
        self._control = control
        self._secret = secret

    def emit(self, event: Event) -> None:
        """Send one event."""
        data = self._secret + to_line(event)
        while data:
            data = data[os.write(self._events, data) :]

    def wait(self, event: Event) -> None:
        """Send `event` and block until the parent answers with `Child.go`."""
        self.emit(event)
        os.read(self._control, 1)


class Child:
    """The parent's end of a forked process."""

    def __init__(self, pid: int, events: int, control: int, output: int, secret: bytes):
        self.pid = pid
        self.started = time.monotonic()
        self.exit_code: int | None = None  # as in subprocess: -11 for SIGSEGV
        self._events, self._control, self._output = events, control, output
        self._secret = secret
        self._partial = b""
        self._head = b""
        self._tail = b""
        self._dropped = 0

    @property
    def readers(self) -> list[int]:
        """Return the file descriptors to wait on; [] once the child has ended."""
        return [fd for fd in (self._events, self._output) if fd >= 0]

    def go(self) -> None:
        """Answer the child's `Pipe.wait`."""
        try:
            os.write(self._control, b"g")
        except BrokenPipeError:
            return  # it died meanwhile; `finished` reports it

    def read(self) -> list[Event]:
        """Return the events that have arrived, without blocking. Other text goes to the output, and
        adds an event that fails the day."""
        self._collect_output()
        data, self._events = _drain(self._events)
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        events: list[Event] = []
        for line in lines:
            other, sealed, data = line.partition(self._secret)
            event = from_line(data) if sealed else None
            if event is not None:
                events.append(event)
            else:
                other += data
            if other or event is None:
                self._keep(other + b"\n")
                events.append(Ended(FAIL, FORGED))
        return events

    def _collect_output(self) -> None:
        data, self._output = _drain(self._output)
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        room = KEPT_OUTPUT - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > KEPT_OUTPUT:
            self._dropped += len(self._tail) - KEPT_OUTPUT
            self._tail = self._tail[-KEPT_OUTPUT:]

    def output(self) -> str:
        """Return the child's output so far, without the middle part if it is long."""
        gap = f"\n… {self._dropped} bytes left out …\n" if self._dropped else ""
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return head + gap + tail

    def finished(self) -> bool:
        """Return True once the child has ended, after ending and reaping all processes that it
        started."""
        if self.exit_code is None:
            if self._runs():
                return False
            self._end(0.0)
        return True

    def kill(self, grace: float = 0.0) -> None:
        """End the child and all processes that it started.

        grace: seconds between SIGTERM and SIGKILL, in which a compiler driver ends its own children
        and removes half-written files.
        """
        if self.exit_code is None:
            self._end(grace)

    def _end(self, grace: float) -> None:
        # The child stays unreaped until the others are gone, so its id cannot be another's.
        if grace:
            send(members(self.pid) or [self.pid], signal.SIGTERM)
            _until(lambda: not members(self.pid), grace)
        if self._runs():
            send([self.pid], signal.SIGSTOP)  # it starts no more, but still adopts orphans
        end_members(self.pid)
        if self._runs():
            with suppress(ProcessLookupError):  # it leads no group yet
                os.killpg(self.pid, signal.SIGKILL)  # without /proc this ends more than the child
            send([self.pid], signal.SIGKILL)
            _until(lambda: not self._runs(), KILL_WAIT)
        self._reap()

    def _runs(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        _children.discard(self)
        self.exit_code = os.waitstatus_to_exitcode(status) if pid else -signal.SIGKILL

    def close(self) -> None:
        """Close the file descriptors; call it when events and output have been read."""
        for fd in (self._events, self._control, self._output):
            if fd >= 0:
                os.close(fd)
        self._events = self._control = self._output = -1


def end_all(children: Sequence[Child], grace: float = 0.0) -> None:
    """End children and all processes that they started, in parallel. grace: see `Child.kill`."""
    left = [child for child in children if child.exit_code is None]
    leaders = [child.pid for child in left]
    send({*members(*leaders), *leaders}, signal.SIGTERM if grace else signal.SIGKILL)
    _until(lambda: not members(*leaders), grace or KILL_WAIT)
    for child in left:
        child.kill()


def end_strays() -> None:
    """End the children that still run, including one whose `fork` a signal's exception
    interrupted."""
    end_all(list(_children))


def _drain(fd: int) -> tuple[bytes, int]:
    """Return the bytes that can be read without blocking, and the descriptor (-1 after its end)."""
    parts = []
    while fd >= 0:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            break
        if not data:
            os.close(fd)
            fd = -1
        parts.append(data)
    return b"".join(parts), fd


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def fork(work: Callable[[Channel], None], environment: dict[str, str] | None = None) -> Child:
    """Start `work` in a forked process with `environment` added to its variables.

    The child ends when `work` returns (exit code 0) or raises (1, with the traceback in its
    output), and is killed if this process dies. It starts working only after this process has
    registered it, since a signal may raise an exception right after the fork.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    control, output = os.pipe(), os.pipe()
    events = [end.detach() for end in socket.socketpair()]
    secret = os.urandom(16).hex().encode()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        theirs = events[0], control[1], output[0]
        pipe = Pipe(events[1], control[0], secret)
        _in_child(work, environment or {}, pipe, control[0], output[1], theirs, parent)
    for fd in (events[1], control[0], output[1]):
        os.close(fd)
    for fd in (events[0], output[0]):
        os.set_blocking(fd, False)
    child = Child(pid, events[0], control[1], output[0], secret)
    _children.add(child)
    child.go()
    return child


def _in_child(
    work: Callable[[Channel], None],
    environment: dict[str, str],
    pipe: Pipe,
    control: int,
    output: int,
    theirs: Iterable[int],
    parent: int,
) -> None:
    code = 1
    try:
        os.setsid()
        die_with(parent, signal.SIGKILL)
        adopt()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        # The parent's objects may be wrapped by a terminal display or hold unwritten text.
        sys.stdout, sys.stderr = _text(1), _text(2)
        faulthandler.enable(2)
        # Without a path of this machine, since a day's output is stored with its results.
        warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
        # PyTorch creates the context itself, but warns if a backward pass begins with cuBLAS.
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no")
        os.environ.update(environment)
        # With the parent's ends, the work could take events away, those of other children too.
        for child in _children:
            child.close()
        for fd in theirs:
            os.close(fd)
        _children.clear()
        if os.read(control, 1):
            work(pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            flush()
            end_members(os.getpid())
        finally:
            os._exit(code)  # the parent's clean-up must never run here


def _text(fd: int) -> IO[str]:
    return open(fd, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")


def flush() -> None:
    """Flush the output buffers of Python and of C, which a kernel's printf uses."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def describe_exit(code: int) -> str:
    """Return an exit code as text: "killed by SIGSEGV (segmentation fault)", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"killed by signal {-code}"
    text = signal.strsignal(-code) or ""
    return f"killed by {name} ({text.lower()})"
