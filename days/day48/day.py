"""Day 48: batch normalisation."""

if __name__ == "__main__":  # python days/day48/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day48

from .problems import problems

TITLE = "Batch normalisation"
TEACHES = "Statistics across a batch, in two layouts, kept on the chip from one pass to the next"
TOPICS = ("batch norm", "normalisation", "Welford", "channels_last", "cluster", "backward")
SOURCE = "batch_norm.cu"
EXTRA_SOURCES = ("batch_norm_fused.cu", "module.py")
INTRODUCES = ("batch normalisation", "running statistics", "channels last")

PROBLEMS = problems
