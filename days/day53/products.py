"""What the kernels multiply, and PyTorch's own products of the same types."""

from contextlib import contextmanager

import torch

from common.day import Case, Cost, Problem, Rung, Tolerance, grid

ROUNDED, TRUNCATED = 0x1000, 0  # what is added before the last 13 bits of a float are dropped


def as_tf32(x, added=ROUNDED):
    """x with 10 bits of mantissa, in its own dtype: to the nearest, ties away from zero, or
    truncated. Infinities and NaN stay. x: float64 numbers have to be those of a float32."""
    bits = x.float().view(torch.int32)
    return torch.where(x.isfinite(), ((bits + added) & ~0x1FFF).view(torch.float32), x).to(x.dtype)


def product(a, b):
    """In the type of a and b; int8 gives int32, which wraps around."""
    if a.dtype == torch.int8:
        return (a.double() @ b.double()).long().to(torch.int32)
    return a @ b


def tf32_product(a, b):
    return as_tf32(a) @ as_tf32(b)


def truncated_product(a, b):
    return as_tf32(a, TRUNCATED) @ as_tf32(b, TRUNCATED)


def fp16_sums_product(a, b):
    """Of float16, with sums rounded to fp16 after each 16 products, as they are in fragments."""
    if a.dtype != torch.float16:
        return a @ b
    c = torch.zeros(len(a), b.shape[1], dtype=torch.float16, device=a.device)
    for k in range(0, a.shape[1], 16):
        c = (c.float() + a[:, k : k + 16].float() @ b[k : k + 16].float()).half()
    return c


@contextmanager
def tf32_allowed():
    """cuBLAS may take tf32 for products of float32; elsewhere in the course it may not."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def mm_tf32(a, b):
    with tf32_allowed():
        return torch.mm(a, b)


def int_mm(a, b):
    """cuBLASLt on a GPU; on the CPU, _int_mm wants other sizes than there are."""
    return torch._int_mm(a, b) if a.is_cuda else product(a, b)


def operands(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N)


def cost(case):
    M, N, K = case.shape
    is_int8 = case.dtype == "int8"
    moved = (M * K + K * N) * case.itemsize + M * N * (4 if is_int8 else case.itemsize)
    return Cost(bytes=moved, flops=2 * M * N * K, unit="int8" if is_int8 else "tensor")


LADDER = (
    Rung("gemm_v1_naive", "a warp per 16×16 of C, from global memory"),
    Rung("gemm_v2_shared", "128×128 per block, tiles in shared memory"),
    Rung("gemm_v3_padded", "rows of the tiles in different banks"),
    Rung("gemm_v4_pipelined", "cp.async, double buffering"),
)

# Around fragments of 16, the warps' 64, the blocks' 128, and steps of 16, 32 or 64 along K. Rows of
# A and B that are not all multiples of 16 bytes are copied element by element.
SIZES = [(1, 1, 1), (16, 16, 16), (17, 33, 15), (128, 128, 64), (129, 65, 70), (15, 144, 33)]
SIZES += [(144, 48, 80), (130, 272, 16), (3, 16, 160), (0, 4, 8), (3, 0, 5), (5, 8, 0)]
UNUSUAL = [(20, 32, 48), (9, 21, 30)]


SUMS = Tolerance(
    factor=16,
    why="tensor cores add in fp32 with truncation, PyTorch's products of fp32 round",
)


def problem(name, dtype, *, reference=product, pytorch=torch.mm, **more):
    unusual = () if dtype == "int8" else ("nonfinite", "large")
    return Problem(
        name=name,
        inputs=operands,
        reference=reference,
        rungs=LADDER,
        cases=(
            *grid(SIZES, [dtype]),
            *(case for values in unusual for case in grid(UNUSUAL, [dtype], values=values)),
        ),
        bench=Case((4096, 4096, 4096), dtype),
        bench_cpu=Case((128, 128, 128), dtype),
        cost=cost,
        pytorch=pytorch,
        **more,
    )


def checked(rung, idea, dtype, reference, **more):
    """A rung for the table of errors, which is not timed."""
    return Problem(
        name=idea,
        inputs=operands,
        reference=reference,
        rungs=(Rung(rung, idea),),
        cases=grid([*SIZES[2:6], (0, 4, 8)], [dtype]),
        timed=False,
        **more,
    )


problems = (
    # Of float32 operands too, whose numbers fit in tf32: the runner tries them.
    problem("fp16", "float16", tolerance=SUMS),
    problem("bf16", "bfloat16", tolerance=SUMS),
    problem("tf32", "float32", reference=tf32_product, pytorch=mm_tf32, tolerance=SUMS),
    problem("int8", "int8", pytorch=int_mm),
    checked("gemm_fp16_sums", "fp16, sums in fp16", "float16", fp16_sums_product),
    checked(
        "gemm_tf32_truncated",
        "tf32, not rounded",
        "float32",
        truncated_product,
        tolerance=SUMS,
    ),
)
