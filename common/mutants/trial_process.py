"""Have trials run by a process that has imported PyTorch once (trial_server.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe

from common.base.paths import ROOT
from common.base.toolchain import VARIANT_VARIABLE, Platform, Variant
from common.check.random_case import SEED_VARIABLE
from common.cpu.backend import preloaded
from common.mutants.partial_builds import Programs, Stopped
from common.mutants.trial import Result, Trial


class TrialProcess:
    """A process that runs trials in one variant of the CPU backend."""

    def __init__(self, platform: Platform, variant: Variant, programs: Programs):
        """Raise FileNotFoundError, naming the package, if the compiler lacks the variant."""
        # With one seed, so that a verdict does not depend on when the mutant was tried.
        variables = {VARIANT_VARIABLE: variant, "CXX": platform.compiler, SEED_VARIABLE: "0"}
        if variant == "address":
            variables |= preloaded(platform.compiler)
        self._waiting: dict[int, Future[Result]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._connection, theirs = Pipe()
        with theirs:
            programs.start(
                [sys.executable, "-m", "common.mutants.trial_server", str(theirs.fileno())],
                env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, trial: Trial) -> Result:
        """Return the trial's result. Raise Stopped if the process was ended."""
        future: Future[Result] = Future()
        with self._lock:
            number = self._next
            self._next += 1
            self._waiting[number] = future
            try:
                self._connection.send((number, trial))
            except OSError:
                raise Stopped from None
        return future.result()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):  # the process has ended
            while True:
                number, result = self._connection.recv()
                with self._lock:
                    future = self._waiting.pop(number)
                future.set_result(result)
        with self._lock:
            left, self._waiting = self._waiting, {}
            self._connection.close()
        for future in left.values():
            future.set_exception(Stopped())
