"""Day 2: vector addition, from host arrays and from tensors."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid

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

FLOATS = ["float32", "float16", "bfloat16"]
SIZES = [(1,), (255,), (256,), (257,), (1023,), (1024,), (1025,), (10007,), (0,)]


def inputs(case, draw):
    (n,) = case.shape
    return draw(n), draw(n)


def host_inputs(pinned):
    def arrays(case, draw):
        (n,) = case.shape
        return tuple(draw(n, device="cpu", pinned=pinned) for _ in range(3))

    return arrays


def reference(x, y):
    return x + y


def host_reference(x, y, z):
    z.copy_(x + y)


def cost(case):
    (n,) = case.shape
    return Cost(bytes=3 * n * getattr(torch, case.dtype).itemsize, flops=n)


def host_problem(name, idea, pinned):
    return Problem(
        name=name,
        inputs=host_inputs(pinned),
        reference=host_reference,
        rungs=(
            Rung(
                "vec_add_host_arrays",
                idea,
                host_timed=True,
                not_captured="it allocates memory and its copies wait",
            ),
        ),
        cases=grid(SIZES, ["float32"]),
        bench=Case((1 << 26,)),
        bench_cpu=Case((1 << 20,)),
        cost=cost,
    )


PROBLEMS = (
    host_problem("from pageable host arrays", "cudaMalloc, cudaMemcpy, kernel", pinned=False),
    host_problem("from pinned host arrays", "the same with pinned arrays", pinned=True),
    Problem(
        name="from tensors",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("vec_add_v1_thread_per_element", "one thread per element"),
            Rung("vec_add_v2_grid_stride", "grid-stride loop, grid of the GPU's size"),
            Rung("vec_add_v3_float4", "16 bytes per load", target=Target(0.97, "copy")),
        ),
        cases=(
            *grid(SIZES, FLOATS),
            *grid([(100_003,)], FLOATS, values="extreme"),
            *grid([(1000,)], FLOATS, values="nonfinite"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 20,)),
        cost=cost,
    ),
)
