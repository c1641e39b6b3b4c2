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
        "A grid-stride loop inside a loop over `times`. To have LOADS loads in flight, load that "
        "many packs into an array of registers, then add them; a second loop takes what is left.",
        "i = blockIdx.x * BLOCK + threadIdx.x, stride = gridDim.x * BLOCK. While i + (LOADS - 1) * "
        "stride < packs: pack[k] = ptx::load_cg(x + i + k * stride) for all k, then sum += "
        "sum_of(pack[k]). At the end, by all lanes: add_warp(sum, total).",
    ),
)

PROBLEMS = problems.problems


def show(operators, device):
    """Prints what the kernels measure, and the five lies."""
    if device.type == "cuda":
        measured.tables(operators, device, measured.GPU)
