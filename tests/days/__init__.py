"""Tests of the days. A day's modules may import those of another day, by this package's name."""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "days"))
