"""The program that measures the speed of the CPU backend."""

from __future__ import annotations

import sys

import pytest

from tests import cpu_benchmark


def test_the_figures_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cpu_benchmark"])
    monkeypatch.setattr(cpu_benchmark, "FILES", ())
    monkeypatch.setattr(cpu_benchmark, "figures", lambda *_: [("a launch", "1 µs", "2 µs")])
    cpu_benchmark.main()
    head, _, row, *_ = capsys.readouterr().out.splitlines()
    assert (head, row) == ("| what | figure | limit |", "| a launch | 1 µs | 2 µs |")
