"""Day 56: matrix products at Hopper's full rate: wgmma, TMA, roles, clusters."""

if __name__ == "__main__":  # python days/day56/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day56

from . import ladder, products

TITLE = "GEMM with wgmma"
TEACHES = "wgmma, a TMA pipeline, producer and consumers, persistent tiles, clusters and multicast"
TOPICS = ("GEMM", "wgmma", "TMA", "warp specialisation", "persistent kernel", "cluster", "epilogue")
SOURCE = "gemm_wgmma.cu"
EXTRA_SOURCES = ("gemm_persistent.cu", "gemm_chosen.cu")
INTRODUCES = ("warp specialisation", "ping-pong")

PROBLEMS = products.problems


def show(operators, device):
    """On a GPU: the ladder beside cuBLAS, many shapes, and what the data changes."""
    return ladder.show_ladder(operators, device)
