"""Day 50: the machine measured: ceilings, latencies, launches, and how benchmarks lie."""

if __name__ == "__main__":  # python days/day50/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day50

from . import measured, problems

TITLE = "The machine measured"
TEACHES = "A GPU's ceilings, the latency of each level, launches; five ways a benchmark lies"
TOPICS = ("roofline", "ceilings", "latency", "pointer chasing", "wgmma", "benchmarking")
SOURCE = "roofline.cu"
INTRODUCES = ("pointer chasing", "wgmma", "warpgroup")

PROBLEMS = problems.problems


def show_times(operators, device):
    """Prints what the kernels measure, and the five lies. Returns the GPU's ceilings as a file."""
    return measured.tables(operators, device) if device.type == "cuda" else None
