"""Day 50: the machine measured: ceilings, latencies, launches, and how benchmarks lie."""

from common.day import Exercise

from . import measured, problems

TITLE = "The machine measured"
TEACHES = "Five ceilings, the latency of each level, launches; five ways a benchmark lies"
TOPICS = ("roofline", "ceilings", "latency", "pointer chasing", "wgmma", "benchmarking")
SOURCE = "roofline.cu"
INTRODUCES = ("pointer chasing",)

EXERCISE = Exercise(
    function="read_kernel",
    task=(
        "Add up all words of `packs` packs of x, `times` over, and add the sum to *total. Consider "
        "how many loads a thread has in flight."
    ),
    hints=(
        "Adjacent threads read adjacent packs; how many threads has the grid, and which packs are "
        "left for each thread?",
        "A grid-stride loop inside a loop over `times`. `#pragma unroll LOADS` lets the compiler "
        "issue several loads before it needs the first result.",
        "for i = blockIdx.x * BLOCK + threadIdx.x; i < packs; i += gridDim.x * BLOCK: sum += "
        "sum_of(x[i]). At the end, by all lanes: add_warp(sum, total).",
    ),
)

PROBLEMS = problems.problems


def show(operators, device):
    """Prints what the kernels measure, and the five lies."""
    if device.type == "cuda":
        measured.tables(operators, device, measured.GPU)
