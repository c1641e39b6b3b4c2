"""Keep a parent process that ends everything that a command has started, however it ends."""

from __future__ import annotations

import os
import resource
import signal
import sys

from common.process.descendants import adopt, die_with, end_members

_SI_KERNEL = 0x80  # on Linux: the kernel sent the signal
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def go_on_supervised() -> None:
    """Continue in a forked process. The original process, known to the user, forwards signals to
    it, waits for it, kills its leftover processes in any session, and exits with its status.

    If the original is killed itself, the other gets SIGTERM. Do nothing except on Linux.
    """
    if sys.platform != "linux":
        return
    supervisor = os.getpid()
    waited = {*_HANDED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    adopt()
    pid = os.fork()
    if pid == 0:
        die_with(supervisor, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = _wait(pid, waited)
    end_members(supervisor)
    _end_as(os.waitstatus_to_exitcode(status))


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    """Return the exit status of the process."""
    while True:
        found = signal.sigwaitinfo(waited)
        if found.si_signo != signal.SIGCHLD:
            if found.si_code != _SI_KERNEL:  # the terminal's own signals reach both processes
                os.kill(pid, found.si_signo)
            continue
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                return status
            if not ended:
                break


def _end_as(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other one has left a core, if any
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
        code = 128 - code  # the first process of a container ignores its own signals
    os._exit(code)
