"""What the day's `show` proves: a sentence comes out, by one launch or by one per token."""

from functools import partial

import torch

from common.day import Case, print_table, seconds

from .model import model

TEXT = "A token is one launch, and so is a sentence."
GPT2 = (12, 12, 768, 50257, 1024)  # layers, heads, channels, words, positions
TINY = (1, 4, 64, 257, 16)
BEGINNING = 7  # characters of TEXT that the CPU backend recites
RUNGS = ("decode_v1_kernels", "decode_v2_fused", "decode_v3_persistent", "decode_v4_stream")
WEIGHTS = 8  # arguments before the cache


class _Numbers:
    """Draws the tensors of a model: bf16, from a normal distribution."""

    def __init__(self, device):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(96)

    def __call__(self, *shape, dtype="bfloat16", low=0, high=1):
        options = {"generator": self.generator, "device": self.device}
        if dtype == "int64":
            return torch.randint(low, high, shape, **options)
        return torch.randn(shape, **options).to(torch.bfloat16)


def reciting_model(shape, text, device):
    """The weights, and a cache without tokens. The weights are random but for the positions'
    embeddings: that of position p is four times that of character p + 1, which wins."""
    arguments = model(Case((*shape, 0, 1), "bfloat16"), _Numbers(device))
    wte, wpe, *_ = arguments
    codes = torch.tensor([*text.encode()], device=device)
    wpe[: len(text) - 1] = 4 * wte[codes[1:]]
    return arguments[:WEIGHTS], arguments[WEIGHTS], codes


def recital(device):
    """A text, a model that recites it, its empty cache, the first code and the number of others."""
    shape, expected = (GPT2, TEXT) if device.type == "cuda" else (TINY, TEXT[:BEGINNING])
    weights, empty, codes = reciting_model(shape, expected, device)
    return expected, weights, empty, codes[:1], len(expected) - 1


def show(operators, device):
    """Raises RuntimeError where a rung says another text, or where one launch for all tokens and
    one launch per token differ in any bit."""
    expected, weights, empty, first, count = recital(device)
    for name in RUNGS:
        decode, cache = getattr(operators, name), empty.clone()
        tokens, logits = decode(*weights, cache, first, 0, count)
        text = bytes([*first.tolist(), *tokens.tolist()]).decode(errors="replace")
        if text != expected:
            raise RuntimeError(f"{name} says {text!r}")
        # Up to 64 positions, v4 splits them at the same places whatever is requested.
        step_cache, token, differs = empty.clone(), first, 0
        for position in range(count):
            token, row = decode(*weights, step_cache, token, position, 1)
            differs += int((row[0] != logits[position]).sum() + (token[0] != tokens[position]))
        filled = (cache[:, :, :, :count] != step_cache[:, :, :, :count]).sum()
        if differs + int(filled):
            raise RuntimeError(f"{name}: one launch per token gives other bits")
    print(f"{expected!r} by every rung, the same bits by one launch and by one per token")


def show_times(operators, device):
    _, weights, empty, first, count = recital(device)
    rows = []
    for name in RUNGS:
        call = partial(getattr(operators, name), *weights, empty.clone(), first, 0, count)
        each = seconds(call, 3 if device.type == "cuda" else 1) / count
        rows.append([name, f"{1 / each:,.0f}"])
    print_table(["rung", "tokens per second"], rows)
