"""Day 55: copies by the tensor memory accelerator, and a transpose between two of them."""

if __name__ == "__main__":  # python days/day55/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day55

from . import problems

TITLE = "The tensor memory accelerator"
TEACHES = "Copies that no thread touches: bulk copies, mbarrier phases, tensor maps, the swizzle"
TOPICS = ("TMA", "mbarrier", "tensor map", "pipeline", "swizzle", "multicast", "transpose", "copy")
SOURCE = "tma.cu"
EXTRA_SOURCES = ("tma_transpose.cu", "tma_multicast.cu")
INTRODUCES = ("tensor memory accelerator", "bulk copy", "tensor map", "multicast")

PROBLEMS = problems.problems
