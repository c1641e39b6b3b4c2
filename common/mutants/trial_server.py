"""Run trials in a process that imports PyTorch once and forks one child per trial.

It reads a line of JSON per trial from its standard input and answers with one on its standard
output. It never calls an operator itself, so no thread is missing in its children.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

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


def serve() -> None:
    """Run trials until standard input ends."""
    leave_preload()
    platform = detect("cpu")
    torch.set_num_threads(1)  # trials run side by side
    answers = os.dup(1)
    os.dup2(2, 1)
    running: list[_Running] = []
    text, open_ = b"", True
    while open_ or running:
        descriptors = [fd for each in running for fd in each.child.readers]
        ready, _, _ = select.select([*descriptors, *([0] if open_ else [])], [], [], POLL)
        if 0 in ready:
            data = os.read(0, 65536)
            open_ = bool(data)
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                words = json.loads(line)
                number = words.pop("number")
                words["rungs"] = tuple((problem, rung) for problem, rung in words["rungs"])
                running.append(_Running(number, Trial(**words), platform))
        if not open_:
            for each in running:
                each.child.kill()
            return
        for each in list(running):
            result = each.take()
            if result is not None:
                running.remove(each)
                answer = json.dumps({"number": each.number, **result.to_json()}) + "\n"
                _write(answers, answer.encode())


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    serve()
