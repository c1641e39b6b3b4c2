"""Day 86's GPT of characters without the course: in the wheel this is hundred_days_gpt/__init__.py,
and its weights and the library of its operator lie beside it. Needs PyTorch alone.

    python -m hundred_days_gpt "ROMEO:" --tokens 200
"""

import argparse
from functools import cache
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent
LIBRARY, WEIGHTS = HERE / "operators.so", HERE / "weights.pt"


class GPT(nn.Module):
    """Logits (B, S, words) in bf16 of tokens (B, S) in int64. numbers: layers, heads, words,
    positions."""

    def __init__(self, weights, numbers):
        super().__init__()
        self.register_buffer("weights", weights)
        self.numbers = tuple(numbers)

    def forward(self, tokens):
        return torch.ops.day86.gpt_logits(self.weights, tokens, *self.numbers)


def fake_logits(weights, tokens, layers, heads, words, positions):
    """Return the result without its numbers, for any B and S."""
    return weights.new_empty(*tokens.shape, words)


def register():
    """Register the fake implementation, after the library was loaded."""
    torch.library.register_fake("day86::gpt_logits", fake_logits, allow_override=True)


def save(path, weights, numbers, characters, device):
    """Write the file that `model` reads. device: of the library's kernels, "cuda" or "cpu"."""
    saved = {"weights": weights.cpu(), "numbers": numbers}
    torch.save(saved | {"characters": characters, "device": device}, path)


@cache
def model():
    """Return the GPT and its characters in the order of their tokens."""
    saved = torch.load(WEIGHTS, weights_only=True)
    return GPT(saved["weights"], saved["numbers"]).to(saved["device"]), saved["characters"]


def logits(tokens):
    """Return the logits (B, S, words) of tokens (B, S)."""
    gpt, _ = model()
    return gpt(tokens.to(gpt.weights.device))


def stream(prompt, count, temperature, seed):
    """Yield `count` characters after the prompt. temperature: 0 takes the most likely one."""
    gpt, characters = model()
    tokens = [characters.index(c) for c in prompt]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        window = torch.tensor([tokens[-gpt.numbers[-1] :]])
        last = logits(window)[0, -1, : len(characters)].double().cpu()
        if temperature == 0:
            token = int(last.argmax())
        else:
            chances = (last / temperature).softmax(0)
            token = int(torch.multinomial(chances, 1, generator=generator))
        tokens.append(token)
        yield characters[token]


def main():
    parser = argparse.ArgumentParser(prog="python -m hundred_days_gpt", allow_abbrev=False)
    parser.add_argument("prompt", help="the text to go on from")
    parser.add_argument("--tokens", type=int, default=200, help="how many to write (default: 200)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the most likely")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if unknown := [c for c in options.prompt if c not in model()[1]]:
        parser.error(f"prompt: {unknown[0]!r} is no character of the model")
    if not options.prompt:
        parser.error("prompt: expected at least one character")
    if options.tokens < 0:
        parser.error(f"--tokens: expected 0 or more, got {options.tokens}")
    if not (options.temperature == 0 or 1e-3 <= options.temperature <= 1e3):
        parser.error(f"--temperature: expected 0, or 0.001 to 1000, got {options.temperature}")
    if not 0 <= options.seed < 2**63:
        parser.error(f"--seed: expected 0 to 2^63 - 1, got {options.seed}")
    print(options.prompt, end="", flush=True)
    for c in stream(options.prompt, options.tokens, options.temperature, options.seed):
        print(c, end="", flush=True)
    print()


if LIBRARY.exists():
    torch.ops.load_library(LIBRARY)
    register()
