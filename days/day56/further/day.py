"""Day 56, further: fp16, both layouts of B, bias and activation; wide tiles, clusters, split-K."""

from .ladder import show_ladder as show_times
from .products import PROBLEMS

__all__ = ["PROBLEMS", "show_times"]

SOURCE = "gemm_chosen.cu"
EXTRA_SOURCES = ("gemm_clusters.cu",)
