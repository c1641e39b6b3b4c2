"""Day 53: matrix products on tensor cores, through WMMA."""

if __name__ == "__main__":  # python days/day53/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day53

from . import accuracy, products

TITLE = "Tensor cores through WMMA"
TEACHES = "WMMA fragments in fp16, bf16, tf32 and int8, and what each type loses against float64"
TOPICS = ("WMMA", "GEMM", "tensor cores", "fp16", "bf16", "tf32", "int8", "accuracy", "matmul")
SOURCE = "gemm_wmma.cu"
INTRODUCES = ("WMMA",)

PROBLEMS = products.problems


def show(operators, device):
    """The errors of each type against float64, as a table, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
