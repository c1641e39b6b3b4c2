"""Day 54: matrix products by mma.sync, with a pipeline of copies and equal shares of the work."""

if __name__ == "__main__":  # python days/day54/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day54

from . import products, rates

TITLE = "GEMM with mma.sync"
TEACHES = "ldmatrix, swizzled tiles and a cp.async pipeline of several stages; persistent, stream-K"
TOPICS = ("GEMM", "mma", "ldmatrix", "cp.async", "pipeline", "swizzle", "stream-K", "persistent")
SOURCE = "gemm_mma_pipeline.cu"
EXTRA_SOURCES = ("gemm_mma_tma.cu",)
INTRODUCES = ("stream-K",)

PROBLEMS = products.problems


def show_times(operators, device):
    """On a GPU, the rates of other tiles, numbers of stages and schedules."""
    return rates.print_rates(operators, device)
