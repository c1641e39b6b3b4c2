"""Have trials run by a process that has imported PyTorch once (trial_server.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import asdict

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
        self._programs = programs
        self._waiting: dict[int, Future[Result]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._process = programs.start(
            [sys.executable, "-m", "common.mutants.trial_server"],
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
            line = json.dumps({"number": number, **asdict(trial)}) + "\n"
            assert self._process.stdin
            try:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                raise Stopped from None
        return future.result()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            assert self._process.stdin
            self._process.stdin.close()
        self._process.wait()
        self._programs.ended(self._process)

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            data = json.loads(line)
            number = data.pop("number")
            with self._lock:
                future = self._waiting.pop(number)
            future.set_result(Result.from_json(data))
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(Stopped())
