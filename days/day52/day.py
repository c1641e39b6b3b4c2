"""Day 52: SGEMM with warp tiles."""

if __name__ == "__main__":  # python days/day52/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day52

from . import products, sizes

TITLE = "SGEMM with warp tiles"
TEACHES = "Warp tiles, double buffering of tiles and fragments, a swizzle, tilings chosen by timing"
TOPICS = ("GEMM", "SGEMM", "warp tile", "double buffering", "cp.async", "swizzle", "autotuner")
SOURCE = "sgemm_warp_tiling.cu"
INTRODUCES = ("warp tile", "autotuner")

PROBLEMS = products.problems


def show_times(operators, device):
    """Wavefronts of shared memory per multiply-add; on a GPU, tunes, and prints the rates of many
    sizes."""
    return sizes.print_wavefronts(device) | sizes.print_rates(operators, device)
