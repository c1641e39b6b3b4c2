"""Dequantisation and the activations in PyTorch, and codes to begin with."""

import torch
import torch.nn.functional as F

from common.day import Cost

GROUP = 128  # codes of int4 that share a scale
FORMS = ("none", "tanh")  # of GELU
ROOT = (2 / torch.pi) ** 0.5


def exact_gelu(x, approximate):
    """By formulas that keep the digits of small results (day 47)."""
    if approximate == "tanh":
        return x * torch.sigmoid(2 * ROOT * (x + 0.044715 * x**3))
    return x * torch.erfc(-x / 2**0.5) / 2


def int8_gelu(codes, scales, approximate):
    """codes: (rows, cols) int8; scales: (rows,). The product is fp32; y is bf16, or float64 where
    the scales are."""
    if approximate not in FORMS:
        raise ValueError(f"approximate: expected one of {', '.join(FORMS)}, got {approximate!r}")
    x = codes * scales[:, None]
    if x.dtype == torch.float64:
        return exact_gelu(x, approximate)
    return F.gelu(x, approximate=approximate).bfloat16()


def int4_numbers(codes):
    """(rows, bytes) uint8 -> (rows, 2 · bytes) int8, from -8 to 7; the high half comes first."""
    return torch.stack([codes >> 4, codes & 15], 2).flatten(1).view(torch.int8) - 8


def int4_swiglu(codes, scales):
    """codes: (rows, cols) uint8, scales: (rows, cols / 64). y: (rows, cols), as above."""
    if codes.shape[1] % GROUP:
        raise ValueError(f"codes: expected a multiple of {GROUP} columns, got {codes.shape[1]}")
    groups = int4_numbers(codes).view(len(codes), 2 * codes.shape[1] // GROUP, GROUP)
    a, b = (groups * scales[..., None]).flatten(1).chunk(2, 1)
    y = F.silu(a) * b
    return y if y.dtype == torch.float64 else y.bfloat16()


def usual(case, low, high):
    """Scales that make numbers of ordinary size, where the case's values are ordinary."""
    return {"dtype": "float32", **({"low": low, "high": high} if case.values == "normal" else {})}


def int8_inputs(approximate):
    def drawn(case, draw):
        rows, cols = case.shape
        codes = draw(rows, cols, dtype="int8")
        return codes, draw(rows, **usual(case, 0.01, 0.06)), approximate

    return drawn


def int4_inputs(case, draw):
    """A scale is finite, or NaN for a group that has none (day 71)."""
    rows, cols = case.shape
    codes = draw(rows, cols, dtype="uint8")
    scales = draw(rows, 2 * cols // GROUP, **usual(case, 0.1, 0.6))
    return codes, scales.masked_fill_(scales.isinf(), torch.nan)


def int8_cost(case):
    rows, cols = case.shape
    return Cost(bytes=rows * (3 * cols + 4), flops=20 * rows * cols)


def int4_cost(case):
    rows, cols = case.shape
    return Cost(bytes=rows * (3 * cols + 4 * (2 * cols // GROUP)), flops=16 * rows * cols)
