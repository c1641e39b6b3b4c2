"""Day 85: mixed precision: loss scaling and fp8 with delayed scaling, kernels and trainings."""

from common.day import Exercise

from . import casting, unscaling
from .training import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Mixed precision"
TEACHES = "Training in fp16, bf16 and fp8: scales that keep gradients inside a narrow range"
TOPICS = ("mixed precision", "loss scaling", "fp8", "fp16", "training", "multi-tensor", "transpose")
SOURCE = "mixed_precision.cu"
EXTRA_SOURCES = ("fp8_cast.cu", "training.py", "casting.py", "unscaling.py")
INTRODUCES = ("mixed precision", "loss scaling", "delayed scaling", "amax history")

EQUIVALENT = {  # mutants that compute the same, and why
    "mixed_precision.cu: report: atomic made plain: `atomicExch(found_inf, 1.0f)` -> `[&] { auto* "
    "at_ = (found_inf); const auto old_ = *at_; *at_ = (1.0f); return old_; }()`": (
        "all warps that store it store 1, and none uses what was there"
    ),
    "fp8_cast.cu: join_amax: constant off by one: `32 == 0` -> `32 == 1`": (
        "every lane holds its warp's maximum"
    ),
}

EXERCISE = Exercise(
    function="transpose4",
    source="fp8_cast.cu",
    task=(
        "Transpose 4 × 4 bytes with eight __byte_perm: byte r of columns[j] becomes byte j of "
        "rows[r]."
    ),
    hints=(
        "__byte_perm(a, b, s) picks four of the eight bytes of a (0 to 3) and b (4 to 7): digit i "
        "of s, in hexadecimal and from the right, says which becomes byte i.",
        "Two steps: first pairs of bytes from two neighbouring rows, then pairs of these pairs.",
        "0x5140 of rows 0 and 1 gives their bytes 0, then their bytes 1; 0x7362 their bytes 2 and "
        "3. The same of rows 2 and 3. Then 0x5410 joins the lower halves of two words, 0x7632 "
        "the upper ones.",
    ),
)

PROBLEMS = (*unscaling.PROBLEMS, *casting.PROBLEMS)
