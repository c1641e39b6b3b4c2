"""Find out if a wrong output is the right result of a misread input.

A loop that ends too early, or begins too late, gives the sum of fewer elements; swapped indices
read a matrix by columns. Both are found by evaluating the reference on the input as misread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from common.base.declaration import Problem
from common.check.expected import RAISED, Expected, Signature, truths
from common.cpu.backend import Launch

MOST = 1 << 20  # elements of all arguments: the reference is computed many times
SECONDS = 0.5
STEPS = (2, 4, 8, 16, 32, 64, 128, 256)  # sizes of tiles and packs whose remainder may be left out
EPS = torch.finfo(torch.float32).eps
FEWEST = 8  # elements of an output in a shorter dtype
NEARER = 8  # times nearer to the wrong result than the expected one, to explain it


def misread(
    problem: Problem,
    expected: Expected,
    outputs: Sequence[Tensor],
    signature: Signature,
    launches: Sequence[Launch] = (),
) -> str:
    """Return how wrong outputs read their input, as a sentence that ends in a question, or "".

    expected: results of the call with these outputs. launches: of its kernels, as far as known.
    """
    tensors = [argument for argument in expected.args if isinstance(argument, Tensor)]
    pairs = expected.pairs(len(outputs))
    comparable = pairs is not None and all(
        _tells(got) and got.shape == truth.shape
        for got, (truth, _) in zip(outputs, pairs, strict=True)
    )
    if not comparable or sum(tensor.numel() for tensor in tensors) > MOST:
        return ""
    assert pairs is not None
    distances = [_distance(got, truth) for got, (truth, _) in zip(outputs, pairs, strict=True)]
    until = time.monotonic() + SECONDS
    blocks = {launch.block[0] * launch.block[1] * launch.block[2] for launch in launches}
    for place, argument in enumerate(expected.args):
        if not isinstance(argument, Tensor) or not argument.is_floating_point():
            continue
        for read, words in _readings(argument, signature.names[place], blocks):
            if time.monotonic() > until:
                return ""
            args = (*expected.args[:place], read, *expected.args[place + 1 :])
            if _gives(problem, args, signature, outputs, distances):
                return f"got is what comes out {words}"
    return ""


def _readings(argument: Tensor, name: str, blocks: set[int]) -> Iterator[tuple[Tensor, str]]:
    """Yield a misread argument and its description, which ends in a question."""
    for value in (1, 0):
        words = f"if every element of {name} is {value}: is {name} left out?"
        yield torch.full_like(argument, value), words
    if argument.dim() == 2 and min(argument.shape) > 1:
        rows, columns = argument.shape
        by_columns = argument.contiguous().view(columns, rows).t()
        yield by_columns, f"if {name} is read by columns: are its row and column swapped?"
    if argument.dim() == 1 and len(argument) > 1:
        yield argument.flip(0), f"if {name} is read from its end: does an index run backwards?"
    for dim, size in enumerate(argument.shape):
        for first, last in _kept(size, blocks):
            without = argument.clone()
            without.narrow(dim, 0, first).zero_()
            without.narrow(dim, last, size - last).zero_()
            where = f"{size} elements along dimension {dim} of {name}"
            yield without, _in_words(first, last, size, where, blocks)


def _kept(size: int, blocks: set[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last + 1) of ranges of elements that a kernel may have read, likely ones
    first."""
    ends = [size - 1, *(size - size % step for step in STEPS)]
    ends += [block * each for block in sorted(blocks) for each in (1, 2, 4, 8)]
    for end in dict.fromkeys(ends):
        if 0 < end < size:
            yield 0, end
    if size > 1:
        yield 1, size


def _in_words(first: int, last: int, size: int, where: str, blocks: set[int]) -> str:
    if first:
        return f"without the first of the {where}: where does the loop begin?"
    if last in blocks and last <= size // 2:
        return (
            f"of the first {last} alone of the {where}, as many as a block has threads: does each "
            "thread go on to its next element?"
        )
    number = "the last" if size - last == 1 else f"the last {size - last}"
    them = "it" if size - last == 1 else "them"
    return (
        f"without {number} of the {where}: does a loop end before {them}, as one over whole tiles "
        "or packs does?"
    )


def _tells(got: Tensor) -> bool:
    """Return True if an output is unlikely to equal another one by chance, as a few numbers of a
    short dtype may."""
    if not got.is_floating_point() or not bool(got.isfinite().all()):
        return False
    return got.numel() >= FEWEST or torch.finfo(got.dtype).eps <= EPS


def _distance(got: Tensor, truth: Tensor) -> float:
    return float((got.double() - truth.double()).norm())


def _gives(
    problem: Problem,
    args: tuple[object, ...],
    signature: Signature,
    outputs: Sequence[Tensor],
    distances: Sequence[float],
) -> bool:
    """Return True if these arguments give the outputs, except for rounding. distances: of the
    outputs from the expected ones."""
    try:
        found = truths(problem, args, signature.writes)
    except RAISED:
        return False
    if len(found) != len(outputs):
        return False
    for got, truth, distance in zip(outputs, found, distances, strict=True):
        if got.shape != truth.shape or not bool(truth.isfinite().all()) or not bool(truth.any()):
            return False
        relative = max(torch.finfo(got.dtype).eps, 64 * EPS)
        near = 16 * EPS * float(truth.abs().max())
        if not torch.allclose(got.double(), truth.double(), rtol=relative, atol=near):
            return False
        if distance and _distance(got, truth) * NEARER > distance:
            return False
    return True
