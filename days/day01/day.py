"""Day 1: hello, GPU."""

import torch

from common.day import Case, Exercise, Problem, Rung

from .facts import (
    FACTS,
    always_in_range,
    expected_facts,
    expected_lines,
    expected_name,
    indices,
    launch,
    like,
    printed,
    sm_ids_in_range,
)

TITLE = "Hello, GPU"
TEACHES = "What a GPU consists of, how a thread finds its index, and where it runs"
TOPICS = ("set-up", "device properties", "indexing", "PTX")
SOURCE = "hello_cuda.cu"
INTRODUCES = (
    "host",
    "device",
    "kernel",
    "launch",
    "thread",
    "block",
    "grid",
    "multiprocessor",
    "warp",
    "lane",
    "register",
    "L2 cache",
    "compute capability",
    "PTX",
)
EQUIVALENT = {  # mutants that compute the same, and why
    "sm_ids_kernel: constant off by one: `threadIdx.x == 0` -> `threadIdx.x == 1`": (
        "any one thread of the block can say where it runs"
    ),
    "sm_ids: grid or block size: `32` -> `(32) / 2`": (
        "one thread of the block writes, whatever the block's size"
    ),
    "sm_ids: constant off by one: `32` -> `33`": (
        "one thread of the block writes, whatever the block's size"
    ),
}

EXERCISE = Exercise(
    function="global_indices_kernel",
    task=(
        "Give each thread its global index i, write out[i] = i, and, where `print` is true, "
        "print it with threadIdx.x, blockIdx.x and the number of threads of the grid."
    ),
    hints=(
        "A thread knows its place in its block (threadIdx.x), its block's place in the grid "
        "(blockIdx.x) and how many threads a block has (blockDim.x).",
        "The blocks before this one have blockIdx.x * blockDim.x threads together. gridDim.x is "
        "the number of blocks.",
        "i is blockIdx.x * blockDim.x + threadIdx.x. Nothing reaches beyond `out`: it has one "
        "element for each thread. For printf, %u prints an unsigned number and %d an int.",
    ),
)


def checked(name, inputs, reference, rung, shapes=((),), refused=()):
    cases, refused = (tuple(Case(shape) for shape in each) for each in (shapes, refused))
    return Problem(
        name, inputs, reference, (rung,), cases, refused, timed=False, outputs_exact=True
    )


COPIES_FROM_HOST = "it copies facts from the host with a cudaMemcpy that waits"
PROBLEMS = (
    checked(
        "facts",
        like,
        expected_facts,
        Rung("properties", "cudaGetDeviceProperties", not_captured=COPIES_FROM_HOST),
    ),
    checked(
        "name",
        like,
        expected_name,
        Rung("device_name", "text as bytes", not_captured=COPIES_FROM_HOST),
    ),
    checked(
        "global index",
        launch,
        indices,
        Rung("global_indices", "blockIdx · blockDim + threadIdx"),
        [(1, 1), (3, 7), (2, 1024), (65535, 1), (131, 33)],
        refused=[(0, 1), (65536, 1), (1, 0), (1, 1025)],
    ),
    checked(
        "printed lines",
        launch,
        expected_lines,
        Rung("global_indices", "printf", load=printed, not_captured="it waits for the output"),
        [(2, 4), (3, 5)],
    ),
    checked(
        "multiprocessor",
        launch,
        always_in_range,
        Rung("sm_ids", "PTX register %smid", not_captured=COPIES_FROM_HOST, load=sm_ids_in_range),
        [(1,), (1000,), (65535,)],
        refused=[(0,), (65536,)],
    ),
)


def show(operators, device):
    """Prints the GPU's facts, eight hellos, and how the blocks were spread over it."""
    like = torch.empty(1, device=device)
    print(bytes(operators.device_name(like).tolist()).decode())
    for fact, value in zip(FACTS, operators.properties(like).tolist(), strict=True):
        print(f"  {fact:<42}{value:>16,}")
    operators.global_indices(like, 2, 4, True)
    if device.type == "cuda":
        torch.cuda.synchronize()  # the output of a kernel's printf appears when the host waits
    ids = operators.sm_ids(like, 264).tolist()
    print(f"264 blocks ran on {len(set(ids))} multiprocessors; the first ten on {ids[:10]}")
