"""Day 1: hello, GPU."""

if __name__ == "__main__":  # python days/day01/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day01

from dataclasses import replace

import torch

from common.day import Case, Problem, Rung

from .facts import (
    FACTS,
    always_in_range,
    expected_facts,
    expected_lines,
    expected_name,
    in_words,
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


def checked(name, inputs, reference, rung, shapes=((),), refused=(), words=lambda case: "this GPU"):
    cases, refused = (tuple(Case(shape) for shape in each) for each in (shapes, refused))
    problem = Problem(name, inputs, reference, (rung,), cases, refused, timed=False)
    return replace(problem, outputs_exact=True, case_words=words)


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
        words=in_words,
    ),
    checked(
        "printed lines",
        launch,
        expected_lines,
        Rung("global_indices", "printf", load=printed, not_captured="it waits for the output"),
        [(2, 4), (3, 5)],
        words=in_words,
    ),
    checked(
        "multiprocessor",
        launch,
        always_in_range,
        Rung("sm_ids", "PTX register %smid", not_captured=COPIES_FROM_HOST, load=sm_ids_in_range),
        [(1,), (1001,), (65535,)],
        refused=[(0,), (65536,)],
        words=in_words,
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
    where = "multiprocessors" if len(set(ids)) > 1 else "multiprocessor"
    print(f"264 blocks ran on {len(set(ids))} {where}; the first ten on {ids[:10]}")
