"""The table of a day's kernels as compiled by two compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.bench import two_compilers
from common.build.machine_code import MachineCode, TritonKernel

TWIN = TritonKernel("add_kernel", {"x": "*fp32"}, {})


def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: dict[str, MachineCode]) -> None:
    """Print the table of two kernels in CUDA around one in Triton, whose code is `codes`."""
    cuda, triton = tmp_path / "add.cu", tmp_path / "add_triton.py"
    cuda.write_text(
        "void a_kernel(int n) {\n  f(n);\n}\n\nvoid b_kernel(int n) {\n  f(n);\n  g(n);\n}\n"
    )
    triton.write_text("def add_kernel(x):\n    f(x)\n")
    monkeypatch.setattr(two_compilers, "architecture", lambda: "9.0a")
    monkeypatch.setattr(two_compilers, "cuda_code", lambda source, arch: source)
    monkeypatch.setattr(two_compilers, "triton_code", lambda *given: [triton])
    monkeypatch.setattr(two_compilers, "read_code", lambda cubin, name: codes[name])
    kernels: list[tuple[str, str | TritonKernel]]
    kernels = [("a", "a_kernelIfE"), ("twin", TWIN), ("b", "b_kernelIfE")]
    two_compilers.print_machine_code(cuda, triton, kernels, note="fp32")


def test_each_kernel_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = MachineCode(12, 0, 30, {4: 2}, {16: 1})
    codes = {"a_kernelIfE": plain, "add_kernel": plain, "b_kernelIfE": MachineCode(8, 16, 9)}
    table(tmp_path, monkeypatch, codes)
    note, header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert note == ["fp32,", "compiled", "for", "9.0a"]
    assert header == two_compilers.HEADER[1:]
    assert " ".join(rows[0]) == "a 3 12 0 30 2 × 4 B 1 × 16 B"
    assert " ".join(rows[1]) == "twin 2 12 0 30 2 × 4 B 1 × 16 B"
    assert " ".join(rows[2]) == "b 4 8 16 9"


def test_what_threads_exchange_is_shown_where_some_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = dict.fromkeys(("a_kernelIfE", "b_kernelIfE"), MachineCode(8, 0, 9))
    table(tmp_path, monkeypatch, {**codes, "add_kernel": MachineCode(8, 0, 9, barriers=3)})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-1] == "barriers" and "shuffles" not in lines[1]
    assert [line.split()[-1] for line in lines[2:]] == ["0", "3", "0"]
