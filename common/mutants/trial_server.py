"""Run trials in a process that imports PyTorch once and forks one child per trial.

It takes trials from a connection, whose descriptor is its argument, and answers with results. It
never calls an operator itself, so no thread is missing in its children.
"""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection, wait

import torch

from common.base.outcome import FAIL, PASS, DayOutcome
from common.base.toolchain import Platform, detect, leave_preload
from common.mutants.run_trial import CALL_LIMIT, run_trial
from common.mutants.trial import Result, Trial, status_of
from common.process.child import Child, describe_exit, fork
from common.process.events import Progress, Ran

KEPT_DETAILS = 12  # lines that explain a failure
POLL = 0.05  # seconds between checks of the time limits


class _Running:
    """A running trial."""

    def __init__(self, number: int, trial: Trial, platform: Platform):
        self.number, self.trial = number, trial
        self.progress = Progress(DayOutcome(0, "", "", PASS))
        self.ran: dict[tuple[str, str], Ran] = {}
        self.began = time.monotonic()
        self.child = fork(lambda channel: run_trial(trial, platform, channel))

    def take(self) -> Result | None:
        """Take the child's events; return the result once it has ended or its time is over."""
        over = self.child.finished()
        late = not over and time.monotonic() - self.began > self.trial.limit
        if late:
            self.child.kill()
        for event in self.child.read():
            self.progress.take(event)
            if isinstance(event, Ran):
                self.ran[event.problem, event.rung] = event
        if not (over or late):
            return None
        result = self._result(late)
        result.seconds = time.monotonic() - self.began
        self.child.close()
        return result

    def _result(self, late: bool) -> Result:
        progress, ran = self.progress, list(self.ran.values())
        failed = [rung for rung in progress.outcome.rungs if rung.status == FAIL]
        if failed:
            one = failed[0]
            findings = [finding["what"] for finding in one.findings]
            details = one.details[:KEPT_DETAILS]
            return Result("failed", one.rung, one.reason, details, findings, ran=ran)
        if progress.over:
            statuses = [rung.status for rung in progress.outcome.rungs]
            planned = [(problem, rung) for problem, rung, _ in progress.planned]
            return Result(status_of(statuses), planned=planned, ran=ran)
        if late or self.child.exit_code == -signal.SIGALRM:
            limit = self.trial.limit if late else CALL_LIMIT
            reason = f"no end after {limit:.0f} s, while {progress.doing()}"
            return Result("late", progress.rung, reason)
        lines = self.child.output().strip().splitlines()
        return Result("died", progress.rung, _ending(self.child, progress), lines[-KEPT_DETAILS:])


def _ending(child: Child, progress: Progress) -> str:
    assert child.exit_code is not None
    return f"the process died: {describe_exit(child.exit_code)}, while {progress.doing()}"


def serve(connection: Connection) -> None:
    """Run the trials that arrive, as (number, Trial), until the other end is closed."""
    leave_preload()
    platform = detect("cpu")
    torch.set_num_threads(1)  # trials run side by side
    running: list[_Running] = []
    while True:
        descriptors = [fd for each in running for fd in each.child.readers]
        if connection in wait([connection, *descriptors], POLL):
            try:
                number, trial = connection.recv()
            except EOFError:
                for each in running:
                    each.child.kill()
                return
            running.append(_Running(number, trial, platform))
        for each in list(running):
            result = each.take()
            if result is not None:
                running.remove(each)
                connection.send((each.number, result))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
