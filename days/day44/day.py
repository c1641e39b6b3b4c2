"""Day 44: norms of rows, and dynamic tanh."""

if __name__ == "__main__":  # python days/day44/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day44

from . import dyt, rows

TITLE = "RMSNorm, L1, L2 and dynamic tanh"
TEACHES = "One kernel for all norms of a row, rows of 1k to 64k columns, gradients in one pass"
TOPICS = ("RMSNorm", "L1 norm", "L2 norm", "DyT", "backward", "bf16", "cluster")
SOURCE = "norms.cu"
EXTRA_SOURCES = ("norms_backward.cu", "dyt.cu")
INTRODUCES = ("RMSNorm", "dynamic tanh")

PROBLEMS = (*rows.problems, *dyt.problems)
