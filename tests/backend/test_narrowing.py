"""64-bit sizes and indices that are stored in 32 bits are found, and none in right code."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base import toolchain
from common.base.days import discover
from common.build.narrowing import narrowed

DAY = """
from common.day import Case, Problem, Rung
TITLE = "Narrowed"
TEACHES = "nothing"
TOPICS = ("indices",)
SOURCE = "narrowed.cu"
PROBLEMS = (
    Problem("p", lambda case, draw: (), lambda: None, (Rung("r", "i"),), (Case(()),), timed=False),
)
"""
RIGHT = """
#include "common/cuda/binding.cuh"
#include "common/cuda/tensor.cuh"

template <typename T>
__global__ void copy_kernel(const T* x, T* y, int64_t rows, int64_t cols) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int lane = static_cast<int>(row % 32);
  const int small = blockIdx.x * blockDim.x + threadIdx.x;
  if (small == abs(static_cast<int>(lane + blockIdx.x * blockDim.x))) __syncwarp();
  const unsigned block = static_cast<unsigned>(blockIdx.x * blockDim.x);
  if (block < cols && lane < int(blockDim.x) && small < 4) __syncwarp();
  if (lane == 32) printf("%d of %u\\n", small, gridDim.x * blockDim.x);
  const T* there = x + blockIdx.x * cols + cols * gridDim.y;
  for (int64_t c = 0; c < cols; ++c) y[row * cols + c] = *(there - blockIdx.x * cols);
  for (int i = 0; i < 4; ++i) __syncwarp();
  for (int i = lane; i < warpSize; i += 32) __syncwarp();
}
Tensor copied(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const unsigned grid = grid_size(ceil_div<int64_t>(rows, 256), "x");
  copy_kernel<float><<<grid, 256>>>(data<float>(x), mutable_data<float>(y), rows, cols);
  return y;
}
RUNG(day01, copied, "(Tensor x) -> Tensor");
"""
WRONG = {
    "index": ("const int64_t row =", "const int row =", "kept in int"),
    "product": ("int64_t{blockIdx.x} * blockDim.x", "blockIdx.x * blockDim.x", "in 32 bits"),
    "product, parenthesised": (
        "int64_t{blockIdx.x} * blockDim.x",
        "blockIdx.x * (1 + blockDim.x)",
        "in 32 bits",
    ),
    "product of a part": (
        "int64_t{blockIdx.x} * blockDim.x",
        "(blockIdx.x / warpSize) * blockDim.x",
        "in 32 bits",
    ),
    "parameter": ("T* y, int64_t rows, int64_t cols", "T* y, int rows, int64_t cols", "kept in"),
    "compared": (
        "const int small = blockIdx.x * blockDim.x + threadIdx.x;",
        "const int small = blockIdx.x * blockDim.x + threadIdx.x; if (small >= rows) return;",
        "compared with a 64-bit bound",
    ),
    "cast": (
        "abs(static_cast<int>(lane +",
        "abs((int)rows + static_cast<int>(lane +",
        "cast to 32",
    ),
    "called": ("static_cast<int>(row % 32)", "int(row % 32)", "cast to 32"),
    "counter": ("for (int64_t c = 0;", "for (int c = 0;", "counter is shorter than its bound"),
    "unsigned counter": ("for (int64_t c = 0;", "for (unsigned c = 0;", "counter is shorter"),
    "size": ("const int64_t rows = x.size(0), cols", "const int rows = x.size(0), cols", "kept in"),
    "grid": (
        'const unsigned grid = grid_size(ceil_div<int64_t>(rows, 256), "x");',
        "const unsigned grid = ceil_div<int64_t>(rows, 256);",
        "kept in unsigned int",
    ),
}


def _found(folder: Path, text: str) -> list[str]:
    day = folder / "day01"
    day.mkdir()
    (day / "day.py").write_text(DAY)
    (day / "narrowed.cu").write_text(text)
    days, errors = discover(folder)
    assert not errors
    try:
        platform = toolchain.detect("cpu")
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    return narrowed(days[0], platform)


def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    assert _found(tmp_path, RIGHT) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_cut_short_is_found(tmp_path: Path, name: str) -> None:
    before, after, words = WRONG[name]
    assert RIGHT.count(before) == 1
    text = RIGHT.replace(before, after)
    found = _found(tmp_path, text)
    line = text[: text.index(after)].count("\n") + 1
    assert found, "nothing was found"
    assert all(words in each for each in found), found
    # A parameter is found where an argument is passed to it.
    if name != "parameter":
        assert {each.split(": ")[0].rsplit(":", 1)[1] for each in found} == {str(line)}, found
