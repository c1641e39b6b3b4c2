"""Day 2: vector addition, from host arrays and from tensors."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid

TITLE = "Vector addition"
TEACHES = "Threads and their indices, copies to and from the GPU, pinned memory, 16-byte loads"
TOPICS = ("vector addition", "indexing", "memory", "pinned memory", "bandwidth")
SOURCE = "vec_add.cu"

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
                not_captured="it allocates memory and waits for copies",
            ),
        ),
        cases=grid(SIZES, ["float32"]),
        bench=Case((1 << 26,)),
        bench_cpu=Case((1 << 20,)),
        cost=cost,
    )


PROBLEMS = (
    host_problem("from pageable host arrays", "cudaMalloc, cudaMemcpy, kernel", pinned=False),
    host_problem("from pinned host arrays", "the same, arrays pinned", pinned=True),
    Problem(
        name="from tensors",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("vec_add_v1_thread_per_element", "one thread an element"),
            Rung("vec_add_v2_grid_stride", "a grid of the GPU's size, striding"),
            Rung("vec_add_v3_float4", "16 bytes a load", target=Target(0.97, "copy")),
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
