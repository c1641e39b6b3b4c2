"""The parts of the course, each a range of days."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A range of days. first, last: their numbers."""

    number: int
    name: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"Part {self.number}. {self.name}"


PARTS = (
    Part(1, "First kernels", 1, 14),
    Part(2, "Attention and training primitives", 15, 30),
    Part(3, "Vision, diffusion, sparse, sorting, experts", 31, 40),
    Part(4, "Memory, occupancy, measurement", 41, 50),
    Part(5, "GEMM, from tiles to the top", 51, 60),
    Part(6, "Triton beside CUDA", 61, 70),
    Part(7, "Quantisation and LLM inference", 71, 80),
    Part(8, "Training", 81, 90),
    Part(9, "Other worlds, and the finale", 91, 100),
)
OTHERS = Part(10, "Days of your own", 101, 1 << 30)


def part_of(number: int) -> Part:
    """Return the part that a day belongs to."""
    return next((part for part in PARTS if part.first <= number <= part.last), OTHERS)
