"""Weights for the decoder: from a training checkpoint of day 86, or from a GPT-2 in safetensors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from days.day86.training import characters, read_checkpoint

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass
class Weights:
    """tensors: the first eight arguments of a rung. encode: text to tokens, raises ValueError for
    what has no token. decode: a token to bytes."""

    tensors: tuple
    heads: int
    encode: Callable
    decode: Callable

    @property
    def positions(self):
        return len(self.tensors[1])

    def to(self, device):
        moved = tuple(t.to(device) for t in self.tensors)
        return Weights(moved, self.heads, self.encode, self.decode)

    def new_cache(self):
        """Without tokens: (layers, keys and values, heads, positions, elements)."""
        wte, qkv = self.tensors[0], self.tensors[4]
        shape = len(qkv), 2, self.heads, self.positions, wte.shape[1] // self.heads
        return torch.zeros(shape, dtype=torch.bfloat16, device=wte.device)


def packed(table, places, norm, layers):
    """Arguments of a rung. norm: (weights, biases). layers: of each the vectors in the order of day
    96, and its four matrices, (columns out, columns in)."""
    vectors = torch.stack([torch.cat(vectors) for vectors, _ in layers])
    matrices = [torch.stack(each) for each in zip(*(m for _, m in layers), strict=True)]
    tensors = table, places, vectors, torch.cat(norm), *matrices
    return tuple(t.bfloat16().contiguous() for t in tensors)


def from_characters(model, buffer):
    """Of day 86's model. Its table has a multiple of 8 rows; those without a character are dropped,
    so that they are never drawn."""
    known = characters()[1]
    p = model.views(buffer)
    vectors = ("norm1", "shift1", "qkv_bias", "proj_bias", "norm2", "shift2", "up_bias")
    layers = [
        (
            [p[f"{name}.{i}"] for name in (*vectors, "down_bias")],
            [p[f"{name}.{i}"] for name in ("qkv", "proj", "up", "down")],
        )
        for i in range(model.layers)
    ]
    tensors = packed(p["table"][: len(known)], p["places"], (p["norm"], p["shift"]), layers)

    def encode(text):
        for c in text:
            if c not in known:
                raise ValueError(f"prompt: {c!r} is no character of the model's text")
        return [known.index(c) for c in text]

    return Weights(tensors, model.heads, encode, lambda token: known[token].encode())


def from_checkpoint(path):
    """Raises CheckpointError (day 86), and OSError."""
    plan, parts = read_checkpoint(path)
    buffer = torch.frombuffer(bytearray(parts["weights"]), dtype=torch.bfloat16)
    return from_characters(plan.model(), buffer)


def read_safetensors(path):
    """Tensors by name: 8 bytes with the length of the header, a header in JSON, and the data."""
    whole = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    try:
        header = json.loads(whole[8:start])
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            if entry["dtype"] in DTYPES:
                begin, end = entry["data_offsets"]
                data = memoryview(whole)[start + begin : start + end]
                flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]])
                found[name.removeprefix("transformer.")] = flat.view(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: is no file in safetensors format: {error}") from None
    return found


def from_gpt2(path):
    """GPT-2's published names; its products store their weights as (columns in, columns out).

    Without its tokeniser, a prompt is encoded byte by byte, by the first 256 words of the
    vocabulary, and other words are printed by their number.
    """
    p = read_safetensors(path)
    if "wte.weight" not in p or "h.0.attn.c_attn.weight" not in p:
        raise ValueError(f"{path}: has no weights of a GPT-2")
    layers = []
    while f"h.{len(layers)}.ln_1.weight" in p:
        h = f"h.{len(layers)}."
        products = [h + name for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
        bias = [p[name + ".bias"] for name in products]
        first, second = (
            [p[f"{h}{norm}.{part}"] for part in ("weight", "bias")] for norm in ("ln_1", "ln_2")
        )
        vectors = [*first, bias[0], bias[1], *second, bias[2], bias[3]]
        layers.append((vectors, [p[name + ".weight"].T for name in products]))
    norm = p["ln_f.weight"], p["ln_f.bias"]
    tensors = packed(p["wte.weight"], p["wpe.weight"], norm, layers)
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = shown + [b for b in range(256) if b not in shown]  # the byte of each of the first words

    def decode(token):
        return bytes([order[token]]) if token < 256 else f"<{token}>".encode()

    heads = tensors[0].shape[1] // 64
    return Weights(tensors, heads, lambda text: [order.index(b) for b in text.encode()], decode)
