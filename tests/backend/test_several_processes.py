"""A program of a day that runs as several processes, whose kernels wait for each other."""

import sys
from collections.abc import Callable

import pytest
import torch

from common.base.days import load_lesson, read_day
from common.base.paths import DAYS
from common.build.library import operators_of


@pytest.fixture
def run_ranks() -> Callable[..., str]:
    load_lesson(read_day(DAYS / "day87"))
    return sys.modules["days.day87.peers"].run_ranks


def test_training_with_two_processes(run_ranks: Callable[..., str]) -> None:
    lines = run_ranks(2, "days.day87.train", "--device", "cpu").splitlines()
    assert lines[1].startswith("2 processes") and lines[2].startswith("one process")
    assert lines[1].split()[2:] == lines[2].split()[2:]


def test_a_ring_of_three_processes(run_ranks: Callable[..., str]) -> None:
    lines = run_ranks(3, "days.day87.ranks", "cpu").splitlines()
    assert any("did not arrive in time" in line for line in lines)


def test_a_rank_that_fails_is_named(run_ranks: Callable[..., str]) -> None:
    with pytest.raises(RuntimeError, match="rank 0 ended with 2"):
        run_ranks(1, "days.day87.train", "--device", "abacus")


def test_arguments_of_one_rank_are_checked() -> None:
    operators, _ = operators_of(87, "cpu")
    memory = operators.peer_memory_allocate(torch.empty(0), 20_000)
    here = torch.tensor([memory.data_ptr()])
    inside, before = memory[10_000:10_040].view(torch.float32), memory[:40].view(torch.float32)
    inside.fill_(3)
    operators.all_reduce_of_rank(inside, memory, here, 4, 0, 1, 1000)
    assert inside.tolist() == [3.0] * 10
    for name, arguments in {
        "buffer": (before, memory, here, 4, 0, 1, 1000),
        "memories": (inside, memory, here + 8, 4, 0, 1, 1000),
        "version": (inside, memory, here, 5, 0, 1, 1000),
        "rank": (inside, memory, here, 4, 1, 1, 1000),
        "blocks": (inside, memory, here, 4, 0, 129, 1000),
        "timeout_ms": (inside, memory, here, 4, 0, 1, 0),
    }.items():
        with pytest.raises(RuntimeError, match=f"{name}: expected"):
            operators.all_reduce_of_rank(*arguments)
