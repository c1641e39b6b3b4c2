"""<cuda_fp8.h>: every code, and floats around every rounding boundary, against torch's fp8 types.

`cpu_kernels/fp8.cu` converts by each function of the header; products of fp8 are in test_cpu_ptx.py
(mma) and test_cpu_wgmma.py.
"""

import numpy as np
import pytest
import torch

from tests.kernel_files import Call

KERNELS = "fp8"
DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
ENCODINGS = {
    "float": 0,
    "float, not saturating": 1,
    "half": 2,
    "bfloat16": 3,
    "double": 4,
    "half, not saturating": 5,
    "float2": 6,
    "half2": 7,
    "float4": 8,
}
DECODINGS = {
    "float": 0,
    "half": 1,
    "bfloat16": 2,
    "double": 3,
    "float2": 4,
    "half2": 5,
    "float4": 6,
}
CODES = torch.arange(256).to(torch.uint8)


def _floats(dtype: torch.dtype) -> torch.Tensor:
    """Return random bits, every value of the type, their midpoints, and the neighbours of these."""
    generator = torch.Generator().manual_seed(11)
    any_bits = torch.randint(-(2**31), 2**31, (40000,), generator=generator).int()
    values = CODES.view(dtype).float()
    values = values[values.isfinite()].unique()
    middles = (values[1:] + values[:-1]) / 2
    top = values.max() * torch.tensor([1.0, 17 / 16, 9 / 8, 1.25, 2.0, 1e4])
    exact = torch.cat([values, middles, top, -top])
    up, down = (exact.nextafter(torch.tensor(x)) for x in (torch.inf, -torch.inf))
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-45, 3e38])
    x = torch.cat([any_bits.view(torch.float32), exact, up, down, special])
    return x[: x.numel() // 4 * 4].contiguous()


@pytest.mark.parametrize("how", DECODINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_is_the_number_that_torch_says(call: Call, dtype: torch.dtype, how: str) -> None:
    e4m3 = dtype == torch.float8_e4m3fn
    got = call("decode", CODES, e4m3, DECODINGS[how], exact=False)
    want = CODES.view(dtype).float()
    number = ~want.isnan()
    assert got[number].view(torch.int32).equal(want[number].view(torch.int32))
    assert got[~number].isnan().all()


@pytest.mark.parametrize("how", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_floats_round_as_torch_rounds_them(call: Call, dtype: torch.dtype, how: str) -> None:
    e4m3 = dtype == torch.float8_e4m3fn
    x = _floats(dtype)
    got = call("encode", x, e4m3, ENCODINGS[how])
    through = x.half() if how.startswith("half") else x.bfloat16() if how == "bfloat16" else x
    through = through.float()
    largest = torch.finfo(dtype).max
    # Clamped first: torch's result for larger numbers depends on its version.
    want = through.clamp(-largest, largest).to(dtype).view(torch.uint8)
    if "not saturating" in how:  # to the next number that there would be, or to NaN
        too_large = through.abs() > 464 if e4m3 else through.abs() >= 61440
        want[too_large] = 0x7F if e4m3 else 0x7C
        want[too_large & through.signbit()] |= 0x80
    is_nan = want.view(dtype).float().isnan()
    assert got.view(dtype).float().isnan().equal(is_nan)
    wrong = np.flatnonzero((got != want).numpy() & ~is_nan.numpy())
    assert not wrong.size, (x[wrong[:5]], got[wrong[:5]], want[wrong[:5]])
