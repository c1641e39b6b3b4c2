"""Compute Philox's random words in PyTorch, for the references of kernels that draw them."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def philox_words(key: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return Philox4x32-10 of int64 tensors of one shape, the words 0 to 2^32 - 1 in a new last
    dim.

    key: 64 bits. low, high: the two halves of the counter of 128 bits. Day 33 teaches it and
    compares it with results published by its authors: Salmon, Moraes, Dror, Shaw, "Parallel random
    numbers: as easy as 1, 2, 3", 2011.
    """
    counter = [low & _WORD, low >> 32 & _WORD, high & _WORD, high >> 32 & _WORD]
    for turn in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        k0 = (key & _WORD) + turn * 0x9E3779B9 & _WORD
        k1 = (key >> 32 & _WORD) + turn * 0xBB67AE85 & _WORD
        counter = [
            (b >> 32 & _WORD) ^ counter[1] ^ k0,
            b & _WORD,
            (a >> 32 & _WORD) ^ counter[3] ^ k1,
            a & _WORD,
        ]
    return torch.stack(counter, -1)
