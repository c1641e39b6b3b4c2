"""A result that is right by luck is not solved: practice mode also looks for races and bad
addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import CommandLine

DAY = """
import torch
from common.day import Case, Problem, Rung
TITLE = "Sums"
TEACHES = "nothing"
TOPICS = ("sums",)
SOURCE = "sum.cu"
PROBLEMS = (
    Problem(
        "sum", lambda case, draw: (draw(*case.shape, dtype="int32", low=0, high=9).float(),),
        lambda x: x.sum().reshape(1), (Rung("total", "one block"),), (Case((5,)), Case((100,))),
        timed=False, outputs_exact=True,
    ),
)
"""
STEP = """
[[step]]
function = "total_kernel"
task = "Add every element of x into total[0], which is 0 at first."
hints = ["What do two threads do that read the old value?", "atomicAdd."]
why = "An atomic update reads, adds and writes without another thread in between."
"""
SOURCE = """
#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

__global__ void total_kernel(const float* x, float* total, int64_t n) {
  const int64_t i = threadIdx.x;
  if (i < n) atomicAdd(total, x[i]);
}

Tensor total(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  STD_TORCH_CHECK(x.numel() <= 128, "x: at most 128 elements, got ", x.numel());
  const DeviceGuard guard(x);
  Tensor sum = torch::stable::new_zeros(x, {1});
  if (x.numel() == 0) return sum;
  total_kernel<<<1, 128, 0, current_stream(x)>>>(data<float>(x), mutable_data<float>(sum),
                                                 x.numel());
  check_launch("total");
  return sum;
}

RUNG(day01, total, "(Tensor x) -> Tensor");
"""
RIGHT = "if (i < n) atomicAdd(total, x[i]);"


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("practice") / "days" / "day01"
    folder.mkdir(parents=True)
    (folder / "day.py").write_text(DAY)
    (folder / "exercises.toml").write_text(STEP)
    (folder / "sum.cu").write_text(SOURCE)
    return folder.parent


def checked(days: Path, before: str, after: str) -> tuple[int, str]:
    """Return the exit code and the output of a check of the day's source with a change."""
    file = days.parent / "practice" / "day01" / "write.cu"
    file.parent.mkdir(parents=True, exist_ok=True)
    assert SOURCE.count(before) == 1
    file.write_text(SOURCE.replace(before, after))
    done = CommandLine(days)("1", "--practice", "write")
    return done.returncode, " ".join(done.stdout.split())


def test_a_stub_is_not_begun(days: Path) -> None:
    done = CommandLine(days)("1", "--practice", "write")
    assert done.returncode == 1 and "not begun" in done.stdout and "FAIL" not in done.stdout


def test_a_lost_update_that_no_order_shows_is_not_solved(days: Path) -> None:
    code, said = checked(days, RIGHT, "if (i < n) total[0] += x[i];")
    assert code == 1 and "right so far" in said and "solved" not in said
    assert "races FAIL" in said and "write.cu:7" in said


def test_what_is_right_is_solved_and_a_small_index_is_noted(days: Path) -> None:
    code, said = checked(days, "const int64_t i =", "const int i = blockIdx.x * blockDim.x +")
    assert code == 0 and "solved: " in said, said
    assert "note: right for every case, but not for arrays of any size" in said
    assert "without another thread in between" in said and "write.cu:6" in said


def test_what_is_wrong_in_each_order_is_called_a_race(days: Path) -> None:
    """Already by the first verdict, which tries a single order if the result is right."""
    code, said = checked(days, RIGHT, "if (i < n) total[0] = 2 * total[0] + x[i];")
    assert code == 1 and "right so far" not in said
    assert "depends on the order in which threads run: a race" in said, said
    assert "look deeper" in said and "--sanitize" in said


def test_who_writes_outside_is_drawn(days: Path) -> None:
    code, said = checked(days, RIGHT, "if (i <= n) total[i] = x[i];")
    assert code == 1
    assert "memory outside its tensors was written" in said
    assert "OUT OF BOUNDS:" in said and "by thread 1 of block 0" in said
