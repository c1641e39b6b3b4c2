"""What a day.py imports: the vocabulary in which a day says what it is."""

from common.base.declaration import (
    Case,
    Cost,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
)
from common.base.outcome import Skip

__all__ = ["Case", "Cost", "Problem", "Rung", "Skip", "Target", "Tolerance", "grid"]
