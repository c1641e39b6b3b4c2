"""Day 35: softmax at the speed of light, and the backward pass of layer norm."""

if __name__ == "__main__":  # python days/day35/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day35

from . import norm, softmax

TITLE = "Softmax at the speed of light"
TEACHES = "Bytes in flight, clusters of blocks; layer norm's gradients in one kernel"
TOPICS = ("softmax", "cluster", "distributed shared memory", "layer norm", "backward", "bf16")
SOURCE = "softmax_optimized.cu"
EXTRA_SOURCES = ("fused_layer_norm_backward.cu",)
INTRODUCES = (
    "Little's law",
    "distributed shared memory",
    "cooperative launch",
    "mbarrier",
)

PROBLEMS = (*softmax.problems, norm.problem)
