"""Fixtures: the command line on the fixture days."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line import FIXTURE_DAYS, CommandLine


@pytest.fixture
def run_day() -> CommandLine:
    """The command line on the fixture days."""
    return CommandLine(FIXTURE_DAYS)


@pytest.fixture
def run_copy(tmp_path: Path) -> CommandLine:
    """The command line on a copy of the fixture days, which a test may change, and beside which
    results are stored."""
    shutil.copytree(FIXTURE_DAYS, tmp_path / "days", ignore=shutil.ignore_patterns("__pycache__"))
    return CommandLine(tmp_path / "days")
