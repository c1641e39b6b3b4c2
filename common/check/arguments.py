"""Check arguments of launchers in Python as common/cuda/tensor.cuh checks those of C++."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from common.check.draw import dtype_name

# "1" in one of these: kernels in Python run on the CPU, by Triton's interpreter or by Numba's
# simulator.
INTERPRETERS = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM")


def require(
    tensor: object,
    name: str,
    *,
    like: torch.Tensor | None = None,
    dtypes: Sequence[torch.dtype] = (),
    rank: int | None = None,
    shape: tuple[int, ...] | None = None,
    device: torch.device | None = None,
) -> None:
    """Raise unless `tensor` is a contiguous tensor on the GPU, or on the CPU if an interpreter runs
    the kernels, and meets the other requirements.

    like: the tensor must have the dtype, shape and device of this one. dtypes: allowed dtypes.
    rank: number of dimensions. shape, device: exact values. Raise TypeError if it is not a tensor
    or has another dtype, ValueError otherwise; the message names the argument.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if like is not None:
        dtypes, shape, device = (like.dtype,), tuple(like.shape), like.device
    if dtypes and tensor.dtype not in dtypes:
        names = " or ".join(dtype_name(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: expected {names}, got {dtype_name(tensor.dtype)}")
    if rank is not None and tensor.dim() != rank:
        raise ValueError(f"{name}: expected {rank} dimensions, got {tensor.dim()}")
    if shape is not None and tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {tuple(tensor.shape)}")
    interpreted = any(os.environ.get(name) == "1" for name in INTERPRETERS)
    kind = "cpu" if interpreted else "cuda"
    expected = device or torch.device(kind)
    if tensor.device.type != kind or (device is not None and tensor.device != device):
        raise ValueError(f"{name}: expected a tensor on {expected}, got one on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")


def aligned(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors, with a copy of each one that does not start at a multiple of 16 bytes.

    Triton compiles a kernel for each combination of aligned and unaligned pointers, and uses narrow
    loads for unaligned ones. Unaligned slices, like x[1:], are rare and copied instead, as
    torch.compile does.
    """
    return tuple(t if t.data_ptr() % 16 == 0 else t.clone() for t in tensors)


def require_float(value: float, name: str) -> None:
    """Raise ValueError for a finite number that would be infinite in fp32."""
    if math.isfinite(value) and abs(value) > torch.finfo(torch.float32).max:
        raise ValueError(f"{name}: expected a number of fp32, got {value:g}")
