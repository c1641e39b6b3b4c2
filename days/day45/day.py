"""Day 45: layer norm for training."""

if __name__ == "__main__":  # python days/day45/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day45

from . import norms
from .training import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Layer norm for training"
TEACHES = "Layer norm as an operator that trains: any row by clusters, all gradients in one pass"
TOPICS = ("layer norm", "backward", "cluster", "autograd", "nn.Module", "Triton", "residual")
SOURCE = "layer_norm_train.cu"
EXTRA_SOURCES = ("layer_norm_backward.cu", "module.py", "twin.py")

PROBLEMS = norms.problems
