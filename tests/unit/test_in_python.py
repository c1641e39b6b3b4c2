"""The first lines of a README: how a day's .cu files get into Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.days import Day
from common.report.in_python import first_call, python_block


def day(folder: Path, text: str, more: tuple[str, ...] = ()) -> Day:
    (folder / "x.cu").write_text(text)
    extra = tuple(folder / name for name in more)
    return Day(5, folder, "T", "t", ("x",), folder / "x.cu", extra)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            "Tensor f_v1(const Tensor& x, int64_t n) {\n}\nRUNG(day05, f_v1, S);\n",
            "y = torch.ops.{}.f_v1(x, n)",
        ),
        (
            "std::tuple<Tensor, Tensor> f_v1(const std::optional<Tensor>& x,\n"
            "                                std::map<int, int> m) {\n}\nHOST_RUNG(d, f_v1, S);",
            "y = torch.ops.{}.f_v1(x, m)",
        ),
        (
            "using Both = std::tuple<Tensor, Tensor>;  // y, scale\n"
            "Both f_v1(const Tensor& x) {\n}\nRUNG(day05, f_v1, S);\n",
            "y, scale = torch.ops.{}.f_v1(x)",
        ),
        (
            "using Both = std::tuple<Tensor, Tensor>;  // of x, w, b\n"
            "Both f_v1(const Tensor& x) {\n}\nRUNG(day05, f_v1, S);\n",
            "y = torch.ops.{}.f_v1(x)",
        ),
        ("void f_v1(Tensor& x) {\n}\nRUNG(day05, f_v1, S);\n", "torch.ops.{}.f_v1(x)"),
        ("Tensor f_v1(ARGUMENTS) {\n}\nRUNG(day05, f_v1, S);\n", "y = torch.ops.{}.f_v1(...)"),
        ("RUNG(day05, help, S);\nRUNG(day05, f_v1, S);\n", "y = torch.ops.{}.f_v1(...)"),
        ('  m.def("f(Tensor x) -> Tensor");\n', "y = torch.ops.{}.f(...)"),
        ("// nothing is bound here\n", ""),
    ],
)
def test_the_first_rung_is_called(tmp_path: Path, text: str, call: str) -> None:
    assert first_call(day(tmp_path, text)) == call.format(tmp_path.name)


def test_all_sources_are_loaded(tmp_path: Path) -> None:
    bound = "RUNG(day05, f_v1, S);\n"
    block = python_block(day(tmp_path, bound, ("y.cu", "y.py")))
    assert '["x.cu", "y.cu"], is_python_module=False)' in " ".join(block.split())
    assert f"# python days/{tmp_path.name}/day.py does this" in block
    assert all(len(line) <= 110 for line in block.splitlines())
    assert "cpp_extension" not in python_block(day(tmp_path, "// its rungs are built otherwise\n"))
