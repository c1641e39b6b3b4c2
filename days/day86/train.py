"""Trains a GPT of characters, and samples text: python -m days.day86.train --steps 3000 --sample

Ended by --until, it goes on with --resume; the weights are the same to the last bit as without a
break. The checkpoint is written after the last step only.
"""

import argparse
import sys
import time

import torch

from common.build.library import operators_of

from .training import CheckpointError, Plan, Training, tokens_of


def number(least, most=None):
    """A type for argparse: an integer in this range."""

    def parse(text):
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if value < least or (most is not None and value > most):
            limits = f"{least} to {most}" if most is not None else f"{least} or more"
            raise argparse.ArgumentTypeError(f"expected {limits}, got {value}")
        return value

    return parse


def arguments(words):
    parser = argparse.ArgumentParser(prog="python -m days.day86.train", description=__doc__)
    add = parser.add_argument
    add("--steps", type=number(0), default=3000, help="of the whole training (default: 3000)")
    add("--until", type=number(0), help="stop after this step, to go on later")
    add("--layers", type=number(1, 48), default=6)
    add("--heads", type=number(1, 16), default=6, help="of 64 columns each")
    add("--positions", type=number(1, 256), default=256, help="characters per sequence")
    add("--batch", type=number(1), default=64, help="sequences per step")
    add("--rate", type=float, default=1e-3, help="the highest learning rate")
    add("--seed", type=number(0), default=86)
    add("--save", metavar="FILE", help="write a checkpoint after the last step")
    add("--resume", metavar="FILE", help="go on from a checkpoint, which has the plan")
    add("--sample", type=number(1), nargs="?", const=500, metavar="N", help="write N characters")
    add("--prompt", default="\n", help="what the sample goes on from")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    found = parser.parse_args(words)
    if not found.prompt:
        parser.error("argument --prompt: expected at least one character")
    if not 0 < found.rate < 1:
        parser.error(f"argument --rate: expected a number between 0 and 1, got {found.rate}")
    return found


def run(options):
    tokens_of(options.prompt)  # refused before the training, not after it
    operators, name = operators_of(86, options.device)
    device = torch.device(name)
    if options.resume:
        try:
            training = Training.resume(options.resume, operators, device)
        except (CheckpointError, OSError) as error:
            sys.exit(f"--resume: {error}")
        print(f"{options.resume}: step {training.steps_done} of {training.plan.steps}")
    else:
        names = ("layers", "heads", "positions", "batch", "rate", "seed")
        plan = Plan(
            **{name: getattr(options, name) for name in names},
            steps=max(1, options.steps),
            warmup=max(1, min(100, options.steps // 10)),
        )
        training = Training(operators, plan, device)
    plan = training.plan
    end = plan.steps if options.until is None else min(options.until, plan.steps)
    if not options.resume:
        end = min(end, options.steps)
    every = max(1, plan.steps // 20)
    while (done := training.steps_done) < end:
        began = time.monotonic()
        count = min(every - done % every, end - done)
        ((step, loss),) = training.run(count, count)
        rate = count * plan.batch * plan.positions / (time.monotonic() - began)
        held_back = training.held_back_loss(2)
        print(
            f"step {step:6}   loss {loss:.4f}   held back {held_back:.4f}   {rate:,.0f} tokens/s",
            flush=True,
        )
    if options.save:
        try:
            training.save(options.save)
        except OSError as error:
            sys.exit(f"--save: {error}")
        print(f"saved {options.save} after step {training.steps_done}")
    if options.sample:
        print(options.prompt + training.sample(options.sample, plan.seed, options.prompt))


def main(words=None):
    options = arguments(words)
    try:
        run(options)
    except ValueError as error:
        sys.exit(f"--{error}")


if __name__ == "__main__":
    main()
