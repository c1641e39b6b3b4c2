"""Writes text: python -m days.day100.generate --prompt "ROMEO:" --tokens 200 --temperature 0.8

The model is a checkpoint of day 86, or a GPT-2 in safetensors format. Without either, a small model
of characters is trained first.
"""

import argparse
import codecs
import sys
from collections import deque

import torch

from common.build.library import operators_of
from days.day86.training import CheckpointError, Plan, Training

from .weights import from_characters, from_checkpoint, from_gpt2

CHUNK = 8  # tokens per launch
IN_FLIGHT = 2  # launches: while one's tokens are printed, the next one computes


def stream(operators, weights, prompt, count, way=(0.0, 0, 1.0), seed=0, chunk=CHUNK, stop=None):
    """Yields `count` tokens after the prompt's, or fewer: `stop` is the last one.

    prompt: tokens. way: temperature, top_k, top_p. The tokens do not depend on `chunk`. Raises
    ValueError where the model has too few positions.
    """
    if not prompt:
        raise ValueError("prompt: expected at least one token")
    if count < 0:
        raise ValueError(f"tokens: expected 0 or more, got {count}")
    if len(prompt) + count - 1 > weights.positions:
        raise ValueError(
            f"tokens: {count} after a prompt of {len(prompt)} exceed the context of "
            f"{weights.positions} positions"
        )
    cache = weights.new_cache()
    device = cache.device
    given = torch.tensor(prompt, device=device)
    if len(prompt) > 1:
        at_once = cache.shape[-1] in (64, 128)
        name = "prefill_v4_by_size" if at_once else "prefill_v1_tokens"
        getattr(operators, name)(*weights.tensors, cache, given[:-1])
    token, launched, in_flight = given[-1:], 0, deque()

    def launch(steps):
        tokens, _ = operators.decode_v2_inside(
            *weights.tensors, cache, token, len(prompt) - 1 + launched, steps, *way, seed
        )
        on_gpu = device.type == "cuda"
        copy = torch.empty(steps, dtype=torch.int64, pin_memory=on_gpu)
        copy.copy_(tokens, non_blocking=True)
        done = torch.cuda.Event() if on_gpu else None
        if done:
            done.record()
        in_flight.append((copy, done))
        return tokens[-1:]

    while launched < count or in_flight:
        while launched < count and len(in_flight) < IN_FLIGHT:
            steps = min(chunk, count - launched)
            token = launch(steps)  # it stays on the GPU
            launched += steps
        copy, done = in_flight.popleft()
        if done:
            done.synchronize()
        for number in copy.tolist():
            yield number
            if number == stop:
                return


def trained(device):
    """A small model of characters, trained as day 86 does: seconds on the CPU backend."""
    operators, name = operators_of(86, device)
    small = Plan(layers=1, heads=1, positions=256, batch=2, steps=20, rate=4e-3, warmup=3)
    plan = Plan(steps=1000) if name == "cuda" else small
    training = Training(operators, plan, torch.device(name))
    ((_, loss),) = training.run(plan.steps, plan.steps)
    print(f"trained {plan.steps} steps: loss {loss:.3f}", file=sys.stderr)
    return from_characters(training.model, training.weights)


def arguments(words):
    parser = argparse.ArgumentParser(prog="python -m days.day100.generate", description=__doc__)
    add = parser.add_argument
    add("--prompt", default="\n")
    add("--tokens", type=int, default=200, help="how many to write (default: 200)")
    add("--temperature", type=float, default=0.8, help="0: always the most likely (default: 0.8)")
    add("--top-k", type=int, default=0, metavar="K", help="draw among the K most likely")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw among those with this share")
    add("--seed", type=int, default=1)
    add("--stop", help="a text of one token, after which to end")
    add("--chunk", type=int, default=CHUNK, help=f"tokens per launch (default: {CHUNK})")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--checkpoint", metavar="FILE", help="a training checkpoint of day 86")
    model.add_argument("--gpt2", metavar="FILE", help="a GPT-2 in safetensors format")
    found = parser.parse_args(words)
    if found.chunk < 1:
        parser.error(f"argument --chunk: expected 1 or more, got {found.chunk}")
    return found


def run(options):
    if options.checkpoint:
        weights = from_checkpoint(options.checkpoint)
    elif options.gpt2:
        weights = from_gpt2(options.gpt2)
    else:
        weights = trained(options.device)
    operators, name = operators_of(100, options.device)
    weights = weights.to(name)
    prompt, stop = weights.encode(options.prompt), None
    if options.stop is not None:
        stops = weights.encode(options.stop)
        if len(stops) != 1:
            raise ValueError(f"stop: expected a text of one token, got {len(stops)}")
        (stop,) = stops
    way = options.temperature, options.top_k, options.top_p
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tokens = stream(
        operators, weights, prompt, options.tokens, way, options.seed, options.chunk, stop
    )
    print(options.prompt, end="", flush=True)
    for token in tokens:
        print(text.decode(weights.decode(token)), end="", flush=True)
    print(text.decode(b"", final=True))


def main(words=None):
    options = arguments(words)
    try:
        run(options)
    except (CheckpointError, OSError, ValueError, RuntimeError) as error:
        sys.exit(str(error).split("\n")[0])
    except KeyboardInterrupt:
        print()
        sys.exit(130)


if __name__ == "__main__":
    main()
