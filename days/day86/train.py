"""Trains a GPT: python -m days.day86.train --save gpt.checkpoint --sample

Every few steps, and on Ctrl-C, the training is saved, and --resume goes on: to the same last bit as
without a break. The model with the lowest loss on the part of the text that is held back has a file
of its own, gpt.best.checkpoint, and writes the sample.
"""

import argparse
import fcntl
import math
import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from common.base.argument_types import value, whole
from common.base.cache import cache_directory, digest
from common.base.compiling import BuildError
from common.base.signals import noted_signals
from common.base.toolchain import ToolchainError
from common.build.library import operators_of
from common.report.files import ResultsError, check_writable, write_atomically
from common.report.terminal import Report

from .training import (
    CheckpointError,
    Plan,
    Training,
    read_checkpoint,
    read_tokens,
    text_of,
    tokens_of,
)

PROGRAM = "python -m days.day86.train"
PLANNED = ("steps", "layers", "heads", "positions", "batch", "rate", "decay", "seed", "words")
GPT2_WORDS = 50257
MOST_STEPS = 10**7  # the rate of each is computed before the first
LIVE = 0.25  # seconds between two states of the live line, and until a signal is noticed
BYTES = 14  # in a checkpoint, per parameter: the weight in bf16; master copy, m and v in fp32


# ---------------------------------------------------------------- arguments

RATE = value(float, "a number between 0 and 1", lambda r: 0 < r < 1)
DECAY = value(float, "a number from 0 to 100", lambda d: 0 <= d <= 100)


def arguments(words):
    """Return the options, with `plan` and `done`, the steps that the checkpoint has. Exits with
    code 2, naming the argument, before anything is built."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options]; --help shows them",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=whole(1, MOST_STEPS), help=f"of the whole training (default: {Plan.steps})")
    add("--until", type=whole(1), metavar="STEP", help="end after this step, to go on later")
    add("--layers", type=whole(1, 48), help=f"(default: {Plan.layers})")
    add("--heads", type=whole(1, 16), help=f"of 64 columns each (default: {Plan.heads})")
    add("--positions", type=whole(1, 1024), help=f"per sequence (default: {Plan.positions})")
    add("--batch", type=whole(1, 65535), help=f"sequences per step (default: {Plan.batch})")
    add("--rate", type=RATE, help=f"the highest learning rate (default: {Plan.rate})")
    add("--decay", type=DECAY, help=f"of the weights, by AdamW (default: {Plan.decay})")
    add("--seed", type=whole(0, 2**63 - 1), help=f"(default: {Plan.seed})")
    add("--tokens", metavar="FILE", help="train on these in place of characters: numbers of 16 "
        "bits, as nanoGPT's prepare.py writes them")  # fmt: skip
    add("--words", type=whole(2, 1 << 16), help=f"of the tokens (default: {GPT2_WORDS})")
    add("--save", metavar="FILE", help="of a new training: gpt.checkpoint; of one that goes on: "
        "the file of --resume")  # fmt: skip
    add("--save-every", type=whole(1), metavar="N", help="save, and compute the held-back loss, "
        "every N steps (default: 20 times in all)")  # fmt: skip
    add("--resume", metavar="FILE", help="go on from a checkpoint, with its settings")
    add("--weights", metavar="FILE", help="in the end, also write the best model's weights alone")
    add("--sample", type=whole(1), nargs="?", const=500, metavar="N",
        help="in the end, write N characters (500)")  # fmt: skip
    add("--prompt", metavar="TEXT", help="what the sample goes on from (default: a new line)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    found = parser.parse_args(words)

    def refuse(name, why):
        parser.error(f"argument --{name}: {why}")

    if found.save is not None and not Path(found.save).name:
        refuse("save", f"expected the name of a file, got {found.save!r}")
    found.plan, found.done = planned(found, refuse)
    found.plan, found.text = with_text(found, refuse)
    if not found.plan.rate * found.plan.decay < 1:
        refuse("decay", f"times --rate, expected a number below 1, got {found.plan.decay}")
    if found.sample and found.plan.text:
        refuse("sample", "is of characters; days.day100.generate --tokenizer writes tokens")
    if found.prompt is not None:
        if not found.sample:
            refuse("prompt", "does nothing without --sample")
        if not found.prompt:
            refuse("prompt", "expected at least one character")
        try:
            tokens_of(found.prompt)
        except ValueError as error:
            parser.error(f"argument --{error}")
    if found.until is not None and not found.done <= found.until <= found.plan.steps:
        limits = f"from {max(1, found.done)} to --steps, {found.plan.steps}"
        refuse("until", f"expected a step {limits}, got {found.until}")
    written = saved_in(found)[0]
    if found.resume is not None and written == Path(found.resume) and is_best(written):
        refuse(
            "resume", f"{written} is the best model so far, and stays; --save names another file"
        )
    going_on = found.done < (found.until or found.plan.steps)
    if found.weights is not None:
        check_weights(found, refuse)
    if going_on or (found.resume is not None and written != Path(found.resume)):
        check_saving(found, refuse)
    return found


def check_saving(options, refuse):
    """Refuse files that another training has, and those that cannot be written: the disk must hold
    both, and one more while it is written."""
    files = saved_in(options)
    in_place = options.resume is not None and Path(options.resume) == files[0]
    try:
        for path in files:
            check_writable(path)
            if not in_place and path.exists():
                refuse("save", f"{path} is there already; --resume goes on with a training")
        size = BYTES * options.plan.model().parameters()
        check_writable(files[0], size * (1 + sum(not path.exists() for path in files)))
    except ResultsError as error:
        refuse("resume" if in_place else "save", error)


def check_weights(options, refuse):
    """Refuse a file that cannot be written, or that the training has."""
    path = Path(options.weights)
    others = [*saved_in(options), *(Path(o) for o in (options.resume, options.tokens) if o)]
    if os.path.realpath(path) in map(os.path.realpath, others):
        refuse("weights", f"the training itself has {path}")
    try:
        check_writable(path, 2 * options.plan.model().parameters())
    except ResultsError as error:
        refuse("weights", error)


def with_text(found, refuse):
    """Return the plan with the text to train on, and the tokens of --tokens."""
    plan, tokens = found.plan, None
    try:
        if found.tokens is not None:
            tokens = read_tokens(found.tokens, plan)
    except ValueError as error:
        refuse("tokens", error)
    except OSError as error:
        refuse("tokens", f"{found.tokens}: {error.strerror}")
    text = text_of(tokens)
    if found.resume is not None and plan.text != text:
        refuse("tokens", "expected those that the checkpoint was trained with")
    return replace(plan, text=text), tokens


def planned(found, refuse):
    """Return the plan, new or of the checkpoint, and the steps done."""
    given = {name: value for name in PLANNED if (value := getattr(found, name)) is not None}
    if found.resume is None:
        if found.tokens is not None:
            given.setdefault("words", GPT2_WORDS)
        elif "words" in given:
            refuse("words", "does nothing without --tokens")
        plan = replace(Plan(), **given)
        return replace(plan, warmup=max(1, min(100, plan.steps // 10))), 0
    try:
        plan, parts = read_checkpoint(found.resume)
    except CheckpointError as error:
        refuse("resume", error)
    except OSError as error:
        refuse("resume", f"{found.resume}: {error.strerror}")
    for name, value in given.items():
        if value != (before := getattr(plan, name)):
            refuse(name, f"the checkpoint was trained with {before}, got {value}")
    return plan, int.from_bytes(parts["step"], sys.byteorder)


def saved_in(options):
    """Return the files of the training: of its last state, and of its best model."""
    path = Path(options.save or options.resume or "gpt.checkpoint")
    return path, best_beside(path)


def best_beside(path):
    """Return gpt.best.checkpoint for gpt.checkpoint."""
    return path.with_name(f"{path.stem}.best{path.suffix}")


def is_best(path):
    return path.stem.endswith(".best")


@contextmanager
def locked(files):
    """Lock a training's files for this process, which releases them in whatever way it ends. Raise
    ResultsError where another one trains into one of them."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for path in files:
            name = f"training-{digest([str(path.resolve())])}.lock"
            lock = stack.enter_context(open(cache_directory() / name, "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ResultsError(f"{path}: another process trains into this file") from None
        yield


# ---------------------------------------------------------------- the training


def in_words(seconds):
    """Return a time to come: "12 s", "3 min 05 s", "2 h 10 min"."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


class Session:
    """One call of the program: it trains from the step where it begins to `end`, and saves."""

    def __init__(self, options, training, report):
        self.training, self.report, self.text = training, report, options.text
        self.begin, self.done = options.done, options.done
        self.end = options.until or options.plan.steps
        self.every = options.save_every or max(1, options.plan.steps // 20)
        self.last, self.best = saved_in(options)
        self.best_loss, self.best_step, self.held_back = math.inf, 0, math.nan
        self.failures = {}  # by file: of its latest save

    def go_on_from_best(self, path, operators):
        """Take over the best model of the training so far, where there is one. Raises
        CheckpointError for that of another training, and ResultsError."""
        if not path.exists():
            return
        best = Training.resume(path, operators, self.training.step.device, text=self.text)
        if best.plan != self.training.plan:
            raise CheckpointError(f"{path}: belongs to another training")
        self.best_loss, self.best_step = best.held_back_loss(2), best.steps_done
        if path != self.best:
            write_atomically(self.best, path.read_bytes())

    def train(self):
        """Train to the end, or until a signal comes. Returns the signals. Raises
        ResultsError where a file is not there or old, and ArithmeticError where the loss is not
        finite."""
        with noted_signals() as came:
            began = time.monotonic()
            try:
                while self.done < self.end and not came:
                    self.train_a_part(came, began)
            except OSError:  # nobody reads what is printed any more
                self.training.save(self.last)
                raise
        self.report.close()
        for failure in self.failures.values():
            raise failure
        return came

    def train_a_part(self, came, began):
        """Train to the next multiple of `every`, and save. The held-back loss is computed at these
        multiples and after the last step alone, so that a training with a break keeps the same
        best model."""
        goal = min(self.end, self.done + self.every - self.done % self.every)
        first, start, steps = self.done, time.monotonic(), 1
        while True:
            steps = min(steps, goal - self.done)
            ((self.done, loss),) = self.training.run(steps, steps)
            if not math.isfinite(loss):
                raise ArithmeticError(
                    f"the loss of step {self.done} is {loss}, and is not saved; try a lower --rate"
                )
            now = time.monotonic()
            a_step = (now - start) / (self.done - first)
            left = (now - began) / (self.done - self.begin) * (self.end - self.done)
            steps = max(1, int(LIVE / a_step))
            if self.done == goal or came:
                break
            self.report.status(self.line(loss, a_step, left))
        note = ""
        if self.done in (goal - goal % self.every, self.training.plan.steps):
            self.held_back = self.training.held_back_loss(2)
            note = self.save_if_best()
        self.save(self.last)
        self.report.text(self.line(loss, a_step, left) + note)

    def line(self, loss, a_step, left):
        plan = self.training.plan
        held_back = "" if math.isnan(self.held_back) else f"  held back {self.held_back:.4f}"
        return (
            f"step {self.done}/{plan.steps}  loss {loss:.4f}{held_back}  "
            f"{plan.batch * plan.positions / a_step:,.0f} tokens/s  {in_words(left)} left"
        )

    def save_if_best(self):
        if not self.held_back < self.best_loss or not self.save(self.best):
            return ""
        self.best_loss, self.best_step = self.held_back, self.done
        return "  (best)"

    def save(self, path):
        """Return whether the training was saved. A failure is told; the next save tries again."""
        try:
            self.training.save(path)
        except ResultsError as error:
            self.failures[path] = error
            self.report.text(f"step {self.done}: {error}")
            return False
        self.failures.pop(path, None)
        return True


def go_on(options):
    """Return the command that goes on with a training, with the options that it had."""
    words = ["--resume", str(saved_in(options)[0])]
    for name in ("tokens", "until", "save_every", "weights", "sample", "prompt", "device"):
        value = getattr(options, name)
        if value not in (None, "auto") and (name != "until" or value != options.done):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return f"{PROGRAM} {shlex.join(words)}"


def run(options, report):
    """Return the exit code."""
    report.status("building the kernels of day 86")
    operators, device = operators_of(86, options.device)
    plan = options.plan
    if options.resume:
        training = Training.resume(
            options.resume, operators, torch.device(device), text=options.text
        )
    else:
        training = Training(operators, plan, torch.device(device), text=options.text)
    session = Session(options, training, report)
    if options.resume:
        path = Path(options.resume)
        session.go_on_from_best(path if is_best(path) else best_beside(path), operators)
    if session.done < session.end:
        report.text(
            f"{training.model.parameters():,} parameters, {plan.steps} steps of "
            f"{plan.batch * plan.positions:,} tokens on {device}"
            f"{f', from step {session.done}' * bool(session.done)}; Ctrl-C saves {session.last}"
        )
    came = session.train()
    if session.done > options.done:
        options.done = session.done
        report.text(f"saved {session.last} after step {session.done} of {plan.steps}")
    if came:
        report.text(f"interrupted; to go on: {go_on(options)}")
        return 128 + came[0]
    if session.best_step:
        report.text(
            f"best: held-back loss {session.best_loss:.4f} after step {session.best_step}, "
            f"in {session.best}"
        )
        training = Training.resume(session.best, operators, torch.device(device), text=options.text)
    if options.weights:
        training.save(options.weights, ("weights",))
        report.text(f"wrote {options.weights}, weights alone")
    if session.done < plan.steps:
        report.text(f"to go on: {go_on(options)}")
    if options.sample:
        report.status("writing the sample")
        prompt = options.prompt or "\n"
        text = training.sample(options.sample, plan.seed, prompt)
        report.close()
        print(prompt + text)
    elif session.best_step:
        tokenizer = " --tokenizer FOLDER" if plan.text else ""
        report.text(f"to sample: python -m days.day100.generate --model {session.best}{tokenizer}")
    return 0


def main(words=None):
    options = arguments(words)
    report = Report()
    try:
        with locked(saved_in(options)):
            code = run(options, report)
    except KeyboardInterrupt:
        report.text("interrupted: no step was lost")
        code = 128 + signal.SIGINT
    except (ToolchainError, BuildError, CheckpointError, ResultsError, ArithmeticError) as error:
        code = str(error)
    except (OSError, RuntimeError) as error:  # the output is gone, or the GPU's memory is full
        code = str(error).split("\n")[0]
    finally:
        with suppress(OSError):
            report.close()
    sys.exit(code)


if __name__ == "__main__":
    main()
