"""Day 44, further: RMSNorm of any row, L1 and L2, their gradients, dynamic tanh."""

from . import dyt, rows

SOURCE = "every_norm.cu"
EXTRA_SOURCES = ("norms_backward.cu", "dyt.cu")
PROBLEMS = (*rows.problems, *dyt.problems)
