"""Day 57: matrix products of fp8, with scales per row and per block of 128."""

if __name__ == "__main__":  # python days/day57/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day57

from . import accuracy, products

TITLE = "FP8 with block scales"
TEACHES = "e4m3 on wgmma, scales per row and per 128 of K, sums promoted to fp32"
TOPICS = ("GEMM", "fp8", "wgmma", "quantisation", "accuracy", "tensor cores")
SOURCE = "gemm_fp8.cu"
INTRODUCES = ("block scale", "promoted accumulation")

PROBLEMS = products.problems


def show(operators, device):
    """The errors with and without promotion, as tables, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
