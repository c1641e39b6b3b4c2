"""The kernels that measure, as problems: each has to compute what it says before it is timed."""

import torch

from common.day import Case, Problem, Rung, Target, grid, one_tensor, streamed

M, N, ROW_BYTES = 64, 256, 128  # of a tile of products; a row has K elements


def sum_inputs(case, draw):
    return draw(case.shape[0]), case.shape[1]


def repeated_sum(x, times):
    """Of 32-bit words, which wrap around."""
    total = int(x.sum(dtype=torch.int64)) * times % (1 << 32)
    return torch.tensor([total - (1 << 32) * (total >> 31)], dtype=x.dtype, device=x.device)


def repeated_adds(x, steps):
    whole = not x.dtype.is_floating_point
    total = torch.zeros_like(x)
    for start in range(8):
        c = x + start
        for _ in range(steps):
            c = c * 3 + x if whole else c * 0.5 + x
        total = total + c
    return total


def repeated_exponentials(x, steps):
    """Near 0.64, where 2^-c is c, each step halves the distance: errors do not add up."""
    total = torch.zeros_like(x)
    for start in range(8):
        c = x + start
        for _ in range(steps):
            c = torch.exp2(-c)
        total = total + c
    return total


def product_inputs(case, draw):
    count, repeats = case.shape
    K = ROW_BYTES // case.itemsize
    if case.itemsize == 2:
        return draw(count, M, K), draw(N, K), repeats
    # fp8: whole numbers, whose sums are exact even with the few digits of the tensor cores.
    a, b = (draw(*shape, dtype="float32") for shape in ((count, M, K), (N, K)))
    return *(x.round().clamp(-2, 2).to(torch.float8_e4m3fn) for x in (a, b)), repeats


def repeated_products(a, b, repeats):
    if repeats > 64:
        raise ValueError(f"a sum of {repeats} equal terms in fp32 rounds to one side")
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    return repeats * (a.to(wide) @ b.to(wide).T)


def chain(n, generator=None, device="cpu"):
    """A permutation of n indices that is one cycle, as the index that follows each; int32."""
    order = torch.randperm(n, generator=generator)
    following = torch.empty(n, dtype=torch.int32)
    following[order] = order.roll(-1).int()
    return following.to(device)


def chain_inputs(case, draw):
    n, steps = case.shape
    following = draw(n)
    following.copy_(chain(n, torch.Generator().manual_seed(n)))
    return following, n // 2, steps


def last_of_chain(following, start, steps):
    n = len(following)
    if not 0 <= start < n:
        raise IndexError(f"start: {start} is no index")
    if not 0 <= steps <= 1 << 24:
        raise ValueError(f"steps: {steps} is too many or less than 0")
    if bool(((following < 0) | (following >= n)).any()):
        return torch.full((1,), -1, dtype=following.dtype, device=following.device)
    for _ in range(steps):
        start = int(following[start])
    return torch.tensor([start], dtype=following.dtype, device=following.device)


def checked(name, rungs, inputs, reference, cases, exact=True):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=cases,
        timed=False,
        outputs_exact=exact,
    )


COPY = Problem(
    name="copy",
    inputs=one_tensor,
    reference=torch.clone,
    rungs=(
        Rung("copy_v1_one_pack", "16 bytes per thread"),
        Rung("copy_v2_four_packs", "64 bytes in flight per thread", target=Target(0.97, "pytorch")),
    ),
    cases=(
        *grid([(1,), (3,), (4,), (1023,), (1024,), (1025,), (4096,), (4103,), (0,)], ["float32"]),
        Case((4099,), values="nonfinite"),
    ),
    bench=Case((1 << 28,)),
    bench_cpu=Case((1 << 12,)),
    cost=streamed(2, 0),
    pytorch=torch.clone,
    outputs_exact=True,
)

problems = (
    COPY,
    checked(
        "read",
        (Rung("read_global", "from memory or L2"),),
        sum_inputs,
        repeated_sum,
        grid([(4, 1), (1020, 3), (1024, 1), (9000, 2), (40000, 9), (8, 0), (0, 2)], ["int32"]),
    ),
    checked(
        "read from shared memory",
        (Rung("read_shared", "one pack per lane and load"),),
        sum_inputs,
        repeated_sum,
        grid([(1024, 1), (1024, 7), (4096, 8), (2048, 33), (1024, 0), (0, 2)], ["int32"]),
    ),
    checked(
        "multiply-adds",
        (Rung("multiply_adds", "eight chains per thread"),),
        sum_inputs,
        repeated_adds,
        grid([(1, 1), (255, 2), (257, 9), (600, 20), (5, 0), (0, 3)], ["float32", "float16"]),
        exact=False,
    ),
    checked(
        "multiply-adds of integers",
        (Rung("multiply_adds", "eight chains per thread"),),
        sum_inputs,
        repeated_adds,
        grid([(1, 1), (255, 2), (257, 9), (600, 20), (5, 0), (0, 3)], ["int32"]),
        exact=False,  # integers are; the runner also tries floats, which round
    ),
    checked(
        "exponentials",
        (Rung("exponentials", "eight chains per thread"),),
        sum_inputs,
        repeated_exponentials,
        grid([(1, 1), (255, 2), (257, 9), (600, 20), (5, 0), (0, 3)], ["float32"]),
        exact=False,
    ),
    checked(
        "products",
        (Rung("products", "wgmma from shared memory"),),
        product_inputs,
        repeated_products,
        grid([(1, 1), (2, 2), (3, 5), (5, 1), (1, 0), (0, 1)], ["bfloat16"]),
        exact=False,
    ),
    checked(
        "products in fp8",
        (Rung("products", "wgmma from shared memory"),),
        product_inputs,
        repeated_products,
        grid([(1, 1), (2, 2), (3, 5), (5, 1), (1, 0), (0, 1)], ["float8_e4m3fn"]),
        exact=False,
    ),
    checked(
        "pointer chase",
        (
            Rung("chase", "one load in flight"),
            Rung("chase_shared", "the same, in shared memory"),
        ),
        chain_inputs,
        last_of_chain,
        grid([(2, 2), (3, 5), (1000, 300), (8192, 50), (33, 0)], ["int32"]),
    ),
)
