"""Day 2: vector addition, from host arrays and from tensors."""

import torch

from common.day import COMPILE, Case, Exercise, Library, Problem, Rung, Target, grid, streamed

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
EQUIVALENT = {  # mutants that compute the same, and why
    "vec_add_v2_grid_stride_kernel: other dimension: `gridDim.x` -> `gridDim.y`": (
        "each sum is written several times: slower, not wrong"
    ),
    "resident_blocks: arithmetic operator: `threads / BLOCK` -> `threads * BLOCK`": (
        "the kernel strides over any n: any grid computes the same"
    ),
    "resident_blocks: comparison: `blocks_of_work < resident` -> `blocks_of_work <= resident`": (
        "where both are equal, either is chosen"
    ),
}

EXERCISE = Exercise(
    function="vec_add_v3_float4_kernel",
    task=(
        "Add x and y into z. Each thread loads a Pack<T> (16 bytes) of x and one of y, and stores "
        "one of z; up to N - 1 elements remain behind the last full pack, one thread adds each."
    ),
    hints=(
        "With N elements in a pack, how many full packs do n elements have, and which thread adds "
        "pack i? Then: which elements are left over, and how many threads do they need?",
        "reinterpret_cast<const Pack<T>*>(x)[i] is the i-th pack of x: copied into a variable, it "
        "is one 16-byte load. Add its elements a.at[k] in a loop, and store a pack likewise.",
        "i is the global index in int64_t, packs = n / N. Where i < packs: load two, add, store "
        "one. The rest starts at packs * N: thread i adds element packs * N + i if it is below n.",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]
NOT_CAPTURED = "it allocates memory and its copies wait"
SIZES = [(1,), (255,), (256,), (257,), (1023,), (1024,), (1025,), (10007,), (0,)]


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
