"""Day 2: vector addition, from host arrays and from tensors."""

if __name__ == "__main__":  # python days/day02/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day02

import torch

from common.day import COMPILE, FLOATS, Case, Library, Problem, Rung, Target, grid, streamed

TITLE = "Vector addition"
TEACHES = (
    "One thread per element, coalesced and 16-byte loads, pinned memory, bandwidth as the limit"
)
TOPICS = ("vector addition", "indexing", "memory", "pinned memory", "bandwidth")
SOURCE = "vec_add.cu"
INTRODUCES = (
    "global memory",
    "bandwidth",
    "latency",
    "throughput",
    "in flight",
    "memory-bound",
    "coalesced",
    "sector",
    "bounds check",
    "stream",
    "grid-stride loop",
    "vectorised load",
    "alignment",
    "pageable memory",
    "pinned memory",
)

NOT_CAPTURED = "it allocates memory and its copies wait"
SIZES = [(1,), (256,), (257,), (1023,), (1024,), (1025,), (10007,), (0,)]
BEYOND_A_GRID = 400_003  # more elements than threads fit on a GPU at the same time


def inputs(case, draw):
    (n,) = case.shape
    return draw(n), draw(n)


def add_on_host(x, y, z):
    torch.add(x, y, out=z)


def add_on_gpu(x, y, z):
    """The rung's way with PyTorch's kernel, and with memory that PyTorch keeps allocated."""
    z.copy_(x.cuda(non_blocking=True) + y.cuda(non_blocking=True))


def host_problem(name, idea, pinned):
    return Problem(
        name=name,
        inputs=lambda case, draw: tuple(
            draw(*case.shape, device="cpu", pinned=pinned) for _ in range(3)
        ),
        reference=add_on_host,
        rungs=(Rung("vec_add_host_arrays", idea, host_timed=True, not_captured=NOT_CAPTURED),),
        cases=grid(SIZES, ["float32"]),
        bench=Case((1 << 26,)),
        bench_cpu=Case((1 << 20,)),
        cost=streamed(3),
        pytorch=add_on_host,  # on the CPU, where the arrays are
        libraries=(Library("PyTorch on the GPU", add_on_gpu, not_captured=NOT_CAPTURED),),
    )


PROBLEMS = (
    host_problem("from pageable host arrays", "cudaMalloc, cudaMemcpy, kernel", pinned=False),
    host_problem("from pinned host arrays", "the same with pinned arrays", pinned=True),
    Problem(
        name="from tensors",
        inputs=inputs,
        reference=torch.add,
        rungs=(
            Rung("vec_add_v1_thread_per_element", "one thread per element"),
            Rung("vec_add_v2_grid_stride", "grid-stride loop, grid of the GPU's size"),
            Rung("vec_add_v3_float4", "16 bytes per load", target=Target(0.97, "copy")),
        ),
        cases=(
            *grid(SIZES, FLOATS),
            *grid([(BEYOND_A_GRID,)], ["float32"]),
            *grid([(100_003,)], FLOATS, values="extreme"),
            *grid([(1000,)], FLOATS, values="nonfinite"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 20,)),
        cost=streamed(3),
        pytorch=torch.add,
        libraries=(COMPILE,),
    ),
)
