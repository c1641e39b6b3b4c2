"""Paths of the repository and its days."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DAYS = ROOT / "days"
