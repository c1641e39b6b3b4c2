"""Arithmetic of device code, to the last bit: `cpu_kernels/arithmetic.cu`."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.kernel_files import Call

KERNELS = "arithmetic"


def _down(estimate: float, dtype: type, at_most: Callable[[Fraction], bool]) -> np.floating:
    """Return the largest value that is `at_most` the exact one, found from near it."""
    r = dtype(estimate)
    while not at_most(Fraction(float(r))):
        r = np.nextafter(r, dtype(-np.inf))
    while at_most(Fraction(float(np.nextafter(r, dtype(np.inf))))):
        r = np.nextafter(r, dtype(np.inf))
    return r


def _roundings(
    estimate: float,
    dtype: type,
    at_most: Callable[[Fraction], bool],
    exact: Callable[[Fraction], bool],
) -> list[np.floating]:
    """Return the exact value towards zero, down and up; `exact(r)`: r is the value itself."""
    down = _down(estimate, dtype, at_most)
    up = down if exact(Fraction(float(down))) else np.nextafter(down, dtype(np.inf))
    return [down if down >= 0 else up, down, up]


def _expected(value: Fraction, dtype: type) -> list[np.floating]:
    return _roundings(float(value), dtype, lambda r: r <= value, lambda r: r == value)


def _square_root(value: Fraction, dtype: type) -> list[np.floating]:
    return _roundings(
        float(value) ** 0.5, dtype, lambda r: r <= 0 or r * r <= value, lambda r: r * r == value
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rounding_is_exact(call: Call, dtype: torch.dtype) -> None:
    kind = np.float32 if dtype == torch.float32 else np.float64
    generator = torch.Generator().manual_seed(4)
    a, b, c = (torch.randn(60, generator=generator, dtype=dtype) for _ in range(3))
    b[:10] *= 2.0**-40
    b[10], a[10] = 2.0, 0.25  # exact in every mode, its root too
    got = call("rounding", a, b, c).numpy()
    for i in range(60):
        x, y, z = (Fraction(t[i].item()) for t in (a, b, c))
        if dtype == torch.float32:
            whole = int(kind(a[i].item()) * kind(1e15))
            converted: list[int | Fraction] = [
                (whole + 2**31) % 2**32 - 2**31, whole % 2**32, whole, whole % 2**64,
                Fraction(float(x) * float(y)),
            ]  # fmt: skip
        else:
            whole = int(a[i].item() * 1e18)
            converted = [whole, whole % 2**64]
        want = [_expected(v, kind) for v in (x + y, x - y, x * y, x / y, x * y + z, 1 / x)]
        want.append(_square_root(abs(x), kind))
        want += [_expected(Fraction(v), kind) for v in converted]
        for row, modes in enumerate(want):
            for mode, value in enumerate(modes):
                assert got[mode + 1, row, i] == value, (row, mode, a[i], b[i], c[i])
            assert got[0, row, i] in modes


def test_atomics_of_vectors(call: Call) -> None:
    halves = torch.zeros(4, 2, dtype=torch.half)
    bfloats = torch.zeros(4, 2, dtype=torch.bfloat16)
    twos, fours = torch.zeros(6, 2), torch.zeros(6, 4)
    call("vector_atomics", halves, bfloats, twos, fours)
    assert halves.tolist() == bfloats.tolist() == [[32, 64]] * 4
    assert twos[:4].tolist() == [[32, 64]] * 4
    assert fours[:4].tolist() == [[32, 64, 96, 128]] * 4
    # The results of 32 additions to each of 4 vectors: 0, d, 2d, … 31d once each, split by block.
    found = 4 * sum(range(32))
    assert twos[4:].sum(0).tolist() == [found, 2 * found]
    assert fours[4:].sum(0).tolist() == [found, 2 * found, 3 * found, 4 * found]
