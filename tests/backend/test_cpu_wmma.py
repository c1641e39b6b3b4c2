"""nvcuda::wmma: `cpu_kernels/wmma.cu`, every type, shape and layout.

Small whole numbers make all sums exact, so that the CPU, a GPU and PyTorch agree bit for bit.
"""

import time
from typing import Any

import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call

KERNELS = "wmma"
SHAPES = {16: (16, 16, 16), 32: (32, 8, 16), 8: (8, 32, 16)}
HALF, BF16, INT, FLOAT = torch.half, torch.bfloat16, torch.int32, torch.float32
# Types of a and b, of c, of d, and the shapes.
CASES = [
    *[(HALF, HALF, HALF, m) for m in SHAPES],
    *[(HALF, FLOAT, FLOAT, m) for m in SHAPES],
    (HALF, HALF, FLOAT, 16),
    (HALF, FLOAT, HALF, 16),
    *[(BF16, FLOAT, FLOAT, m) for m in SHAPES],
    *[(torch.int8, INT, INT, m) for m in SHAPES],
    *[(torch.uint8, INT, INT, m) for m in SHAPES],
    (FLOAT, FLOAT, FLOAT, 16),  # tf32
    (torch.float64, torch.float64, torch.float64, 8),
]


def _numbers(shape: tuple[int, int], dtype: torch.dtype, most: int = 8) -> torch.Tensor:
    least = 0 if dtype == torch.uint8 else -most
    return torch.randint(least, most + 1, shape).to(dtype)


def _lies(x: torch.Tensor, by_column: bool) -> torch.Tensor:
    return x.t().contiguous() if by_column else x.contiguous()


def _product(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dtype: torch.dtype,
    layout: int = 0,
    by_row: bool = True,
    saturate: bool = False,
    exact: bool = True,
) -> torch.Tensor:
    out = torch.empty(tuple(c.shape) if by_row else tuple(c.shape[::-1]), dtype=dtype)
    columns = _lies(a, bool(layout & 2)), _lies(b, bool(layout & 1)), _lies(c, not by_row)
    call("product", *columns, out, a.shape[0], layout, by_row, saturate, exact=exact)
    return out if by_row else out.t()


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(x)[-8:] for x in c))
def test_products(call: Call, case: tuple[Any, ...]) -> None:
    dtype, c_type, d_type, shape = case
    m, n, k = SHAPES[shape]
    if dtype == FLOAT:
        k = 8
    if dtype == torch.float64:
        m, n, k = 8, 8, 4
    for layout in range(4):
        if dtype.itemsize == 1 and ((m == 8 and layout & 2) or (n == 8 and not layout & 1)):
            continue  # rows of 8 bytes: the hardware requires multiples of 16
        for by_row in (True, False):
            a, b, c = _numbers((m, k), dtype), _numbers((k, n), dtype), _numbers((m, n), c_type)
            got = _product(call, a, b, c, d_type, layout, by_row)
            want = a.double() @ b.double() + c.double()
            assert torch.equal(got, want.to(d_type)), (layout, by_row)


def _as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return a float as the hardware takes it: without the last 13 bits."""
    return (x.view(INT) & ~0x1FFF).view(FLOAT) if x.dtype == FLOAT else x


def test_rounded_products(call: Call) -> None:
    for dtype, k in ((HALF, 16), (BF16, 16), (FLOAT, 8)):
        a, b, c = torch.randn(16, k).to(dtype), torch.randn(k, 16).to(dtype), torch.randn(16, 16)
        want = _as_tf32(a).double() @ _as_tf32(b).double() + c.double()
        got = _product(call, a, b, c, FLOAT, exact=False)
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)


def test_sums_of_integers_wrap_or_saturate(call: Call) -> None:
    a = torch.full((16, 16), 100, dtype=torch.int8)
    b = torch.cat([a[:, :8], -a[:, 8:]], 1)
    c = torch.full((16, 16), 2**31 - 1, dtype=INT)
    c[:, 8:] = -(2**31)
    exact = a.long() @ b.long() + c.long()
    assert torch.equal(
        _product(call, a, b, c, INT, saturate=True).long(), exact.clamp(-(2**31), 2**31 - 1)
    )
    wrapped = (exact + 2**31) % 2**32 - 2**31
    assert torch.equal(_product(call, a, b, c, INT).long(), wrapped)


@pytest.mark.parametrize("dtype", [HALF, FLOAT, INT])
@pytest.mark.parametrize("m", SHAPES)
def test_accumulators_lie_as_those_of_mma(call: Call, dtype: torch.dtype, m: int) -> None:
    n = 256 // m
    lane, e = torch.arange(32)[:, None], torch.arange(8)
    group, pair = lane // 4 + e // 2 % 2 * 8, lane % 4 * 2 + e % 2
    row, column = {
        16: (group, pair + e // 4 * 8),
        32: (group + e // 4 * 16, pair),
        8: (pair, group + e // 4 * 16),
    }[m]
    got = call("places", torch.arange(256).to(dtype), m)
    assert torch.equal(got.reshape(32, 8).long(), row * n + column)


def test_elements_of_fragments(call: Call) -> None:
    a, b = _numbers((16, 8), FLOAT) + 2.0**-12, _numbers((16, 8), FLOAT)
    rounded = torch.round(2 * a * 2**10) / 2**10
    b[0, 0] = 1 + 2.0**-11  # a tie: away from zero
    want_b = b.clone()
    want_b[0, 0] = 1 + 2.0**-10
    want = torch.where(a.abs() < 1, 2 * a, rounded).double() @ want_b.double().t() + 3
    torch.testing.assert_close(
        call("elements", a, b, exact=False).double(), want, rtol=0, atol=0.07
    )


def test_matmul(call: Call) -> None:
    a, b = torch.randn(128, 128).half(), torch.randn(128, 128).half()
    torch.testing.assert_close(
        call("matmul", a, b, exact=False), a.float() @ b.float(), rtol=1e-4, atol=1e-4
    )


FAULTS = {
    "half_a_warp": (0, r"wmma::load_matrix_sync: all 32 lanes .* only lanes 0x0000ffff"),
    "in_a_branch": (1, "wmma::(load|store)_matrix_sync while lanes 0x"),
    "odd_stride": (2, r"misaligned address: .* \(leading dimension 17, 2 bytes each\)"),
    "own_addresses": (3, "must pass the same address"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(cpu_call: Call, name: str) -> None:
    which, message = FAULTS[name]
    x = torch.zeros(4096, dtype=HALF)
    with pytest.raises(RuntimeError, match=message) as caught:
        cpu_call("fault", x, torch.zeros_like(x), which)
    assert f"kernel {name}, launched at" in str(caught.value)
    assert "wmma.cu:" in str(caught.value)


def test_a_missing_syncwarp_shows_in_some_order(
    operators: Any, cpu_runtime: backend.Runtime
) -> None:
    x = torch.arange(256).half()
    right = []
    for order in ("forward", "reverse", "random"):
        cpu_runtime.set_schedule(order, 1)
        y = torch.zeros_like(x)
        operators.fault(x, y, 4)
        right.append(torch.equal(y, x.flip(0)))
    assert not all(right)


def test_speed_is_of_the_right_order(operators: Any) -> None:
    """A limit with room for a busy machine; `-s` prints the figure."""
    a = torch.randn(512, 512).half()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        operators.matmul(a, a)
        times.append(time.perf_counter() - start)
    print(f"512³ matmul by wmma: {1e3 * min(times):.1f} ms")
    assert min(times) < 1
