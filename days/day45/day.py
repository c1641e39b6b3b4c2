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
        "Each lane of a warp holds count, mean and m2 of some elements; a lane may have none. "
        "Return those of the union, in every lane, without losing digits where all means are far "
        "from 0."
    ),
    hints=(
        "The mean of the union is a weighted mean of the lanes' means. Which numbers of fp32 are "
        "small, so that their sum loses little?",
        "The distances of the means from that of lane 0, which __shfl_sync brings to all lanes. "
        "warp_sum (day 23) adds over lanes. What does each lane add to m2?",
        "offset = warp_sum(count · distance) / warp_sum(count), or 0 if there are no elements. A "
        "lane adds m2 + count · (distance - offset)² to the new m2.",
    ),
)

PROBLEMS = norms.problems
