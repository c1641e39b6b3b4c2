"""The checker on operators in C++, of the stable ABI, that are right or wrong in one way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.base.declaration import grid
from tests.unit.test_check import check, rejected, softmax_problem

OPERATORS = r"""
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;

static float* data(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

static Tensor add_one(const Tensor& x, int64_t first, int64_t last) {
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = first; i < x.numel() + last; ++i) data(y)[i] = data(x)[i] + 1;
  return y;
}
Tensor right(const Tensor& x) { return add_one(x, 0, 0); }
Tensor past_end(const Tensor& x) { return add_one(x, 0, 1); }
Tensor before_start(const Tensor& x) { return add_one(x, -1, 0); }
Tensor lost_tail(const Tensor& x) { return add_one(x, 0, x.numel() > 3 ? -3 : 0); }
Tensor workspace(const Tensor& x) {
  Tensor zeros = torch::stable::new_zeros(x, {1});
  Tensor fresh = torch::stable::new_empty(x, {x.numel() + 1});
  data(fresh)[x.numel() + 1] = 0;
  return add_one(x, static_cast<int64_t>(data(zeros)[0]), 0);
}
void add_one_(Tensor x) { for (int64_t i = 0; i < x.numel(); ++i) data(x)[i] += 1; }

STABLE_TORCH_LIBRARY(check_test, m) {
  m.def("right(Tensor x) -> Tensor");
  m.def("past_end(Tensor x) -> Tensor");
  m.def("before_start(Tensor x) -> Tensor");
  m.def("lost_tail(Tensor x) -> Tensor");
  m.def("workspace(Tensor x) -> Tensor");
  m.def("add_one_(Tensor(a!) x) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(check_test, CPU, m) {
  m.impl("right", TORCH_BOX(&right));
  m.impl("past_end", TORCH_BOX(&past_end));
  m.impl("before_start", TORCH_BOX(&before_start));
  m.impl("lost_tail", TORCH_BOX(&lost_tail));
  m.impl("workspace", TORCH_BOX(&workspace));
  m.impl("add_one_", TORCH_BOX(&add_one_));
}
"""


@pytest.fixture(scope="session")
def operators(tmp_path_factory: pytest.TempPathFactory) -> object:
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    from torch.utils.cpp_extension import load

    folder: Path = tmp_path_factory.mktemp("operators")
    source = folder / "operators.cpp"
    source.write_text(OPERATORS)
    load(
        name="check_test_operators",
        sources=[str(source)],
        build_directory=str(folder),
        extra_cflags=["-std=c++20", "-DTORCH_TARGET_VERSION=0x020a000000000000"],
        is_python_module=False,
    )
    return torch.ops.check_test


def test_operators_of_the_stable_abi(operators: Any) -> None:
    problem = softmax_problem(
        reference=lambda x: x + 1, cases=grid([(1,), (33,), (5, 7), (0,)], ["float32"])
    )
    assert check(operators.right, problem).failure is None
    rejected(operators.past_end, "the output", "1 element past its end", problem=problem)
    rejected(operators.before_start, "the output", "1 element before its start", problem=problem)
    rejected(operators.lost_tail, "never written", "tail", "(3)", problem=problem)
    rejected(operators.workspace, "tensor 2 that the operator allocates", problem=problem)
    assert check(operators.add_one_, problem).failure is None
    twice = replace(problem, reference=lambda x: x + 2)
    rejected(operators.add_one_, "argument x", "wrong", problem=twice)
