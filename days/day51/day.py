"""Day 51: SGEMM with register tiles."""

if __name__ == "__main__":  # python days/day51/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day51

from . import products, sizes

TITLE = "SGEMM with register tiles"
TEACHES = "Thread coarsening, 1D and 2D register tiles, packs of 16 bytes; loads per multiply-add"
TOPICS = ("GEMM", "SGEMM", "register tile", "thread coarsening", "bank conflicts", "float4")
SOURCE = "sgemm_register_tiling.cu"
INTRODUCES = ("thread coarsening", "K-major", "TF32")

PROBLEMS = products.problems


def show_times(operators, device):
    """Wavefronts of shared memory per multiply-add; on a GPU, the rates for many sizes."""
    return sizes.print_wavefronts(device) | sizes.print_rates(operators, device)
