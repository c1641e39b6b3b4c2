"""Writes text: python -m days.day100.generate --prompt "ROMEO:" --tokens 200 --temperature 0.8

The model is a GPT-2 from a folder of Hugging Face's, or one of characters that day 86 has trained:
without --model gpt.best.checkpoint where there is one, else a small one of this repository. A text
may be longer than the model's positions: when they are full, the last half of the tokens stays, is
prefilled again, and the text goes on.
"""

import argparse
import codecs
import sys
import time
from collections import deque
from io import TextIOWrapper
from pathlib import Path

import torch

from common.base.argument_types import value, whole
from common.base.ceilings import ceilings_of
from common.base.compiling import BuildError
from common.base.toolchain import ToolchainError, detect
from common.build.library import operators_of
from common.day import Case
from common.report.files import ResultsError
from days.day86 import training
from days.day96.model import cost

from .folder import existing_file, read_config, read_weights, vocabulary_of, weight_files
from .weights import RefusedError, character_vocabulary, from_checkpoint

CHUNK = 8  # tokens per launch
IN_FLIGHT = 2  # launches: while one's tokens are printed, the next one computes


# ---------------------------------------------------------------- tokens


def windows(length, count, positions):
    """Yield (tokens that are kept, tokens that are written after them) until `count` are written
    after the first `length`. Where they exceed the positions, the last half is kept."""
    while count > 0:
        if length > positions:
            length = max(1, positions // 2)
        steps = min(count, positions - length + 1)  # the last one drawn needs no position
        yield length, steps
        length, count = length + steps, count - steps


def stream(operators, weights, prompt, count, way=(0.0, 0, 1.0), seed=0, chunk=CHUNK, stop=None):
    """Yield `count` tokens after the prompt's, or fewer: `stop` is the last one.

    prompt: tokens. way: temperature, top_k, top_p. The tokens do not depend on `chunk`, nor, until
    the model's positions are full, on their number. Then the window slides: the last half of the
    tokens is prefilled from position 0. Positions come again then, so the noise is that of the next
    seed. Raises ValueError for a prompt without tokens, or a count below 0.
    """
    if not prompt:
        raise ValueError("prompt: expected at least one token")
    if count < 0:
        raise ValueError(f"tokens: expected 0 or more, got {count}")
    text, cache = list(prompt), weights.new_cache()
    for number, (kept, steps) in enumerate(windows(len(text), count, weights.positions)):
        text = text[-kept:]
        decoding = decode(
            operators, weights, cache, list(text), steps, (*way, seed + number), chunk
        )
        for token in decoding:
            yield token
            if token == stop:
                return
            text.append(token)


def decode(operators, weights, cache, prompt, count, way, chunk):
    """Yield `count` tokens after the prompt's, for which the cache has room. way: temperature,
    top_k, top_p, seed. Heads that are not 64 or 128 columns wide are prefilled token by token."""
    device = cache.device
    given = torch.tensor(prompt, device=device)
    if len(prompt) > 1:
        at_once = cache.shape[-1] in (64, 128)
        name = "prefill_v4_by_size" if at_once else "prefill_v1_tokens"
        getattr(operators, name)(*weights.tensors, cache, given[:-1])
    token, launched, in_flight = given[-1:], 0, deque()

    def launch(steps):
        tokens, _ = operators.decode_v2_inside(
            *weights.tensors, cache, token, len(prompt) - 1 + launched, steps, *way
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
        yield from copy.tolist()


def rate_of(weights, length, count, seconds):
    """Return the line that reports `count` tokens after `length`, written in so many seconds,
    prefill included. On a GPU with known ceilings, it says the bytes of weights and cache that
    these tokens read per second, as a share of a copy's."""
    said = f"{count} tokens in {seconds:.2f} s: {count / seconds:,.1f} per second"
    device = weights.tensors[0].device
    known = ceilings_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if known:
        parts = windows(length, count, weights.positions)
        read = sum(cost(Case((*weights.shape, n - 1, k), "bfloat16")).bytes for n, k in parts)
        copy = known.rates["copy"]
        said += f", {read / seconds / 1e9 / copy:.0%} of a copy's {copy:,.0f} GB/s"
    return said


# ---------------------------------------------------------------- models


def model_at(path, tokenizer=None):
    """Return the Vocabulary and a function from a device to the Weights.

    path: a folder, or a file of day 86. tokenizer: the folder with the tokeniser of a file that was
    trained on tokens. Raise RefusedError for another path, for a model that the kernels do not
    compute, and for a tokeniser too few or too many; CheckpointError for a damaged file.
    """
    if Path(path).is_dir():
        if tokenizer is not None:
            raise RefusedError(f"{path} has a tokeniser of its own, without --tokenizer")
        config = read_config(path)
        vocabulary, size = vocabulary_of(path, config)
        weight_files(path)
        return vocabulary, lambda device: read_weights(path, config, size).to(device)
    if not existing_file(Path(path)):
        raise RefusedError(f"expected a GPT-2's folder or a file of day 86, {path} does not exist")
    with open(path, "rb") as file:
        if file.read(len(training.MAGIC)) != training.MAGIC:
            raise RefusedError(
                f"expected a GPT-2's folder, or a file that day 86 has saved, got {path}"
            )
    plan, parts = training.read_checkpoint(path, ("weights",))
    if bool(plan.text) != (tokenizer is not None):
        trained = "tokens, and needs their" if plan.text else "characters, and takes no"
        raise RefusedError(f"{path} was trained on {trained} --tokenizer FOLDER")
    vocabulary, words = character_vocabulary(), plan.words
    if tokenizer is not None:
        vocabulary, words = vocabulary_of(tokenizer, {"vocab_size": plan.words})
    return vocabulary, lambda device: from_checkpoint(plan, parts, words).to(device)


# ---------------------------------------------------------------- the program


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n".replace("argument --", "--"))


COUNT, CHUNKS = whole(0), whole(1)
SEED = value(int, "0 to 2^62", lambda n: 0 <= n <= 1 << 62)
TEXT = value(str, "at least one character", bool)
# As final_project.cu has them.
TEMPERATURE = value(float, "0, or 0.001 to 1000", lambda t: t == 0 or 1e-3 <= t <= 1e3)
TOP_K = value(int, "1 to 2^24, or 0 for all", lambda k: 0 <= k <= 1 << 24)
TOP_P = value(float, "a share from 1e-6 to 1", lambda p: 1e-6 <= p <= 1)


def parser_of():
    parser = Parser(prog="python -m days.day100.generate", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", metavar="PATH", help="a GPT-2's folder, or a file of day 86's --save")
    add("--tokenizer", metavar="FOLDER", help="of a file that day 86 has trained on tokens")
    add("--prompt", type=TEXT, help="the text to go on from (default: a line break)")
    add("--chat", action="store_true", help="go on from each line that you type; Ctrl-D ends")
    add("--tokens", type=COUNT, default=200, help="how many to write (default: 200)")
    add("--temperature", type=TEMPERATURE, default=0.8, help="0: the most likely (default: 0.8)")
    add("--top-k", type=TOP_K, default=0, metavar="K", help="draw among the K most likely")
    add("--top-p", type=TOP_P, default=1.0, metavar="P", help="draw among those with this share")
    add("--seed", type=SEED, default=1)
    add("--stop", type=TEXT, help="a text of one token, after which to end")
    add("--chunk", type=CHUNKS, default=CHUNK, help=f"tokens per launch (default: {CHUNK})")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    return parser


def encoded(vocabulary, name, text):
    """Return tokens. Raises RefusedError, which names the argument."""
    try:
        tokens = vocabulary.encode(text)
    except RefusedError as error:
        raise RefusedError(f"{name}: {error}") from None
    if text and not tokens:
        raise RefusedError(f"{name}: {text!r} has no token")
    return tokens


def texts(tokens, vocabulary):
    """Yield the text of each token as soon as its characters are complete; the first bytes of a
    character that does not end are never shown, and bytes that are no UTF-8 are U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        yield "" if token == vocabulary.end else decoder.decode(vocabulary.decode(token))


def answer(operators, weights, vocabulary, tokens, options, stop):
    """Print what follows the tokens, and how fast that was; append it to them."""
    way = options.temperature, options.top_k, options.top_p
    length, began = len(tokens), time.monotonic()
    made = stream(
        operators, weights, list(tokens), options.tokens, way, options.seed, options.chunk, stop
    )

    def kept():
        for token in made:
            tokens.append(token)
            yield token

    try:
        for text in texts(kept(), vocabulary):
            print(text, end="", flush=True)
    finally:
        seconds = time.monotonic() - began
        print(flush=True)
    if count := len(tokens) - length:
        print(f"[{rate_of(weights, length, count, seconds)}]", file=sys.stderr)


def line_typed():
    """Return a line of the terminal, "" at the end of the input."""
    try:
        return input("> ")
    except EOFError:
        print()
        return ""


def chat(operators, weights, vocabulary, tokens, options, stop):
    """Go on from each line of the terminal, and from all before it. Ctrl-C ends an answer; an empty
    line or the end of the input ends the chat."""
    while line := line_typed():
        try:
            tokens += encoded(vocabulary, "line", f"\n{line}" if tokens else line)
        except RefusedError as error:
            print(error, file=sys.stderr)
            continue
        try:
            answer(operators, weights, vocabulary, tokens, options, stop)
        except KeyboardInterrupt:
            print("[stopped]", file=sys.stderr)


def run(options):
    try:
        model = options.model or training.default_model()
        vocabulary, load = model_at(model, options.tokenizer)
    except RefusedError as error:
        raise RefusedError(f"--model: {error}") from None
    prompt = options.prompt or ("" if options.chat else "\n")
    tokens = encoded(vocabulary, "--prompt", prompt)
    stop = vocabulary.end
    if options.stop:
        stops = encoded(vocabulary, "--stop", options.stop)
        if len(stops) != 1:
            raise RefusedError(f"--stop: expected a text of one token, got {len(stops)} tokens")
        (stop,) = stops
    weights = load(detect(options.device).device)
    operators, _ = operators_of(100, options.device)
    given = operators, weights, vocabulary, tokens, options, stop
    if options.chat:
        return chat(*given)
    print(prompt, end="", flush=True)
    answer(*given)


def main(words=None):
    parser = parser_of()
    options = parser.parse_args(words)
    try:
        run(options)
    except (RefusedError, training.CheckpointError) as error:
        parser.error(str(error).split("\n")[0])
    except (BuildError, ResultsError, ToolchainError, OSError, RuntimeError) as error:
        sys.exit(str(error).split("\n")[0])
    except KeyboardInterrupt:
        print()
        sys.exit(130)


if __name__ == "__main__":
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stdin, TextIOWrapper):  # what is no text is refused by name
        sys.stdin.reconfigure(errors="surrogateescape")
    main()
