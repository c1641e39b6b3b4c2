"""Time a call again on inputs that it has never been given, so that a result kept from an earlier
call, by the address and content of its input, gets no time."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem
from common.check.device import Backend
from common.check.draw import Draw
from common.check.random_case import session_seed

TRIES = 5  # of a call that takes too long on fresh inputs: something else may have slowed it
# Times its median, above which a call on fresh inputs is too slow.
SLOWER = {"cuda": 2.0, "cpu": 4.0}
LEAST = 1e-3  # seconds on the CPU: a shorter call may take as long on a busy machine


def draw_into(
    problem: Problem, case: Case, backend: Backend, inputs: tuple[Any, ...], attempt: int = 0
) -> bool:
    """Fill the tensors of the timed inputs with other values of the problem, by the seed of the
    session. Return False, without a change, if inputs of another seed do not fit in their place or
    in the GPU's memory."""
    seed = random.Random(f"{problem.name} {session_seed()} {attempt}").randrange(1 << 31)
    draw = Draw(case, backend, seed=seed, fast=True)
    try:
        fresh = tree_leaves(problem.inputs(case, draw))
    except torch.OutOfMemoryError:
        return False
    places = tree_leaves(inputs)
    if len(fresh) != len(places) or not all(map(_fits, places, fresh)):
        return False
    for place, value in zip(places, fresh, strict=True):
        fill(place, value)
    return True


def _fits(place: Any, value: Any) -> bool:
    if isinstance(place, Tensor) and isinstance(value, Tensor):
        layout = (place.shape, place.stride(), place.dtype, place.device)
        return layout == (value.shape, value.stride(), value.dtype, value.device)
    return type(place) is type(value) and place == value


def fill(place: Any, value: Any) -> None:
    """Copy a tensor into another one of its layout, each repeated element once."""
    if isinstance(place, Tensor) and place is not value:
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in place.stride())
        place[once].copy_(value[once])


def too_slow(backend: Backend, median: float, seconds: float) -> bool:
    """Return True if a call on fresh inputs, in seconds, takes far longer than its median time."""
    least = LEAST if backend.name == "cpu" else 0.0
    return seconds > max(SLOWER[backend.name] * median, least)
