"""Weights for the decoder, and the characters of day 86. See folder.py for a GPT-2."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from days.day86.training import characters


class RefusedError(ValueError):
    """An input that this program does not take: the message says which, and what is allowed."""


@dataclass
class Vocabulary:
    """encode: text to tokens, raises RefusedError for what has no token. decode: a token to bytes,
    of UTF-8 in a row, so that a token may hold a part of a character. end: the token that ends a
    text, if there is one."""

    encode: Callable[[str], list[int]]
    decode: Callable[[int], bytes]
    end: int | None = None


@dataclass
class Weights:
    """tensors: the first eight arguments of a rung."""

    tensors: tuple[torch.Tensor, ...]
    heads: int

    @property
    def positions(self):
        return len(self.tensors[1])

    @property
    def shape(self):
        """Return (layers, heads, channels, words, positions), as day 96's cases begin."""
        words, channels = self.tensors[0].shape
        return len(self.tensors[4]), self.heads, channels, words, self.positions

    def to(self, device):
        return Weights(tuple(t.to(device) for t in self.tensors), self.heads)

    def new_cache(self):
        """Return one without tokens: (layers, keys and values, heads, positions, elements)."""
        layers, heads, channels, _, positions = self.shape
        shape = layers, 2, heads, positions, channels // heads
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.tensors[0].device)


def packed(table, places, norm, layers):
    """Return the arguments of a rung. norm: (weights, biases). layers: of each the vectors in the
    order of day 96, and its four matrices, (columns out, columns in)."""
    vectors = torch.stack([torch.cat(vectors) for vectors, _ in layers])
    matrices = [torch.stack(each) for each in zip(*(m for _, m in layers), strict=True)]
    tensors = table, places, vectors, torch.cat(norm), *matrices
    return tuple(t.bfloat16().contiguous() for t in tensors)


def from_checkpoint(plan, parts, words=None):
    """Return the weights of day 86's model, from what read_checkpoint returns. Its table has a
    multiple of 8 rows; those beyond the words (default: the plan's) have no token and are dropped,
    so that they are never drawn."""
    model = plan.model()
    p = model.views(torch.frombuffer(bytearray(parts["weights"]), dtype=torch.bfloat16))
    vectors = ("norm1", "shift1", "qkv_bias", "proj_bias", "norm2", "shift2", "up_bias")
    layers = [
        (
            [p[f"{name}.{i}"] for name in (*vectors, "down_bias")],
            [p[f"{name}.{i}"] for name in ("qkv", "proj", "up", "down")],
        )
        for i in range(model.layers)
    ]
    table = p["table"][: words or plan.words]
    norm = p["norm"], p["shift"]
    return Weights(packed(table, p["places"], norm, layers), model.heads)


def character_vocabulary():
    """Return day 86's: a token is a character of Shakespeare."""
    known = characters()[1]
    numbers = {c: i for i, c in enumerate(known)}

    def encode(text):
        for c in text:
            if c not in numbers:
                raise RefusedError(f"{c!r} is none of the {len(known)} characters of this model")
        return [numbers[c] for c in text]

    return Vocabulary(encode, lambda token: known[token].encode())
