"""Casts to fp8 with a given scale, in PyTorch."""

from functools import cache

import torch

FP8 = {3: torch.float8_e4m3fn, 2: torch.float8_e5m2}  # by bits of mantissa


def inputs(case, draw):
    """case.shape: (M, N, bits of mantissa). The scale brings some of x beyond the largest number;
    amax is that of x for some cases, for others an earlier one."""
    M, N, mantissa = case.shape
    x = draw(M, N)
    scale = draw(1, dtype="float32", low=50, high=250)
    amax = draw(1, dtype="float32", low=0, high=6)
    return x, scale if mantissa == 3 else 128 * scale, amax, mantissa


def codes(x, scale, mantissa):
    limit = torch.finfo(FP8[mantissa]).max
    return (x.float() * scale.float()).clamp(-limit, limit).to(FP8[mantissa])


def cast(x, scale, amax, mantissa):
    """Writes amax."""
    if x.numel():
        amax.copy_(amax.maximum(x.abs().amax()))
    return codes(x, scale, mantissa)


def cast_transposed(x, scale, amax, mantissa):
    """Writes amax; (M, N) and (N, M)."""
    y = cast(x, scale, amax, mantissa)
    return y, y.T.contiguous()


@cache
def compiled(function):
    return torch.compile(function, dynamic=False)


def cast_compiled(x, scale, amax, mantissa):
    return compiled(cast)(x, scale, amax, mantissa)


def cast_transposed_compiled(x, scale, amax, mantissa):
    return compiled(cast_transposed)(x, scale, amax, mantissa)
