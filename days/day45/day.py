"""Day 45: layer norm for training."""

from common.day import Exercise

from . import norms
from .training import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Layer norm for training"
TEACHES = "Layer norm as an operator that trains: any row by clusters, all gradients in one pass"
TOPICS = ("layer norm", "backward", "cluster", "autograd", "nn.Module", "Triton", "residual")
SOURCE = "layer_norm_train.cu"
EXTRA_SOURCES = ("layer_norm_backward.cu", "module.py", "twin.py")
INTRODUCES = ("mbarrier",)

EXERCISE = Exercise(
    function="merge_lanes",
    task=(
        "Each lane of a warp holds count, base, mean - base and m2 of some elements; a lane may "
        "have none. Return those of the union, in every lane, without losing digits where all "
        "bases are far from 0."
    ),
    hints=(
        "The mean of the union is a weighted mean of the lanes' means. Relative to which number "
        "are they all small?",
        "Relative to the base of lane 0, which __shfl_sync brings to all lanes. warp_sum (day 23) "
        "adds over lanes. What does each lane add to m2?",
        "from_base = mine.base - base + mine.mean; mean = warp_sum(count · from_base) / "
        "warp_sum(count), or 0 if there are no elements. A lane adds m2 + count · (from_base - "
        "mean)² to the new m2.",
    ),
)

PROBLEMS = norms.problems
