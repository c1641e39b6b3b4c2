"""The debugger of whole programs: lines of output that count. Shell scripts replace programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.outcome import FAIL, PASS
from common.base.toolchain import Platform
from common.cpu import backend, program, program_debugger

PLATFORM = Platform("cpu", "g++", "13", Path("include"), "2.13")


def _rows(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Return the rows of a shell script; in it, $runs is the number of this run, from 1."""
    built = folder / "program.sh"
    counter = folder / "runs"
    built.write_text(
        f"#!/bin/sh\necho >> {counter}; runs=$(grep -c '' {counter})\n{script}\n", encoding="utf-8"
    )
    built.chmod(0o755)
    monkeypatch.setattr(program, "executable", lambda *_: built)
    monkeypatch.setattr(program, "narrowed", lambda *_: [])
    monkeypatch.setattr(program, "unset_locals", lambda *_: [])
    monkeypatch.setattr(backend, "preloaded", lambda _: {})
    rows = program_debugger.report([folder / "program.cu"], PLATFORM, [], [], 10)
    return {row.rung: (row.status, "\n".join(row.details)) for row in rows}


def test_a_line_that_two_runs_print_alike_by_chance_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows('echo "took $((runs < 3 ? 4 : runs)) ms"', tmp_path, monkeypatch)
    assert rows["orders"] == rows["streams"] == (PASS, "")


@pytest.mark.parametrize(
    ("condition", "row"),
    [('"$CUDACPU_ORDER" = reverse', "orders"), ('"$CUDACPU_STREAMS" = late', "streams")],
)
def test_a_line_that_depends_on_the_order_counts(
    condition: str, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
echo "took $((runs < 3 ? 4 : runs)) ms"
if [ {condition} ]; then echo 1; else echo 2; fi"""
    rows = _rows(script, tmp_path, monkeypatch)
    status, details = rows[row]
    assert status == FAIL and details == "forward: 2\nnow:     1"
    other = {"orders": "streams", "streams": "orders"}[row]
    assert rows[other] == (PASS, "")


def test_a_program_that_ends_with_an_error_of_its_own_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows("echo CUDA error invalid argument; exit 3", tmp_path, monkeypatch)
    assert [name for name, (status, _) in rows.items() if status == FAIL] == ["orders"]
