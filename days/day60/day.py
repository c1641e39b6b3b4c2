"""Day 60: convolution as a matrix product on tensor cores, forward and both gradients."""

if __name__ == "__main__":  # python days/day60/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day60

from . import convolutions, networks

TITLE = "Convolution as implicit GEMM"
TEACHES = "Implicit GEMM in NHWC: gathered rows, boxes of pixels by TMA; both gradients as products"
TOPICS = ("convolution", "conv2d", "implicit GEMM", "NHWC", "TMA", "wgmma", "backward", "cuDNN")
SOURCE = "conv2d_implicit_gemm.cu"
EXTRA_SOURCES = ("conv2d_boxes.cu", "conv2d_split.cu", "conv2d_weight_gradient.cu")
INTRODUCES = ("data gradient", "im2col")

PROBLEMS = convolutions.problems


def show(operators, device):
    """On a GPU: every layer of ResNet-50, all rungs and gradients beside cuDNN."""
    return networks.print_layers(operators, device)
