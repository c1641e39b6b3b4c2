"""Make sparse matrices for the days that multiply them, and compute the expected products.

A case of such a day has the shape (rows, cols, entries per row on average). Its dtype is that of
the indices, int32 or int64; values are fp32. Its `values` name the kind of matrix: "banded", "power
law", "empty rows", "full row"; others are uniform, where every position is equally likely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.base.declaration import Case

POWER = 1.5  # of the power law: rows longer than n are n^-POWER of all


def row_lengths(case: Case) -> Tensor:
    """Return the entries of each row, (rows,) int64 on the CPU; `sparse_matrix` shuffles most
    kinds."""
    rows, cols, mean = case.shape
    row = torch.arange(rows)
    if case.values == "banded":
        start = row * cols // max(rows, 1) - mean // 2
        return (start + mean).clamp(0, cols) - start.clamp(0, cols)
    if case.values == "full row":
        return torch.where(row == 0, cols, min(mean, cols))
    if case.values == "power law":
        length = mean * (POWER - 1) / POWER * ((row + 0.5) / max(rows, 1)) ** (-1 / POWER)
        return length.long().clamp(max=cols)
    poisson = torch.poisson(
        torch.full((rows,), float(mean)), generator=torch.Generator().manual_seed(36)
    ).long()
    if case.values == "empty rows":
        poisson = torch.where(row % 4 == 0, 4 * poisson, 0)
    return poisson.clamp(max=cols)


def sparse_matrix(case: Case, draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Return row_ptr (rows + 1,), col and value (nnz,), and a vector x (cols,).

    Columns are sorted in each row, and may occur twice. Draws of one case have equal shapes.
    """
    rows, cols, mean = case.shape
    numbers = case.values if case.values == "nonfinite" else "normal"
    x = draw(cols, dtype="float32", values=numbers)
    length = row_lengths(case).to(x.device)
    if case.values != "banded":
        length = length[draw(rows, dtype="float32", values="normal").argsort()]
    row_ptr = torch.cat([length.new_zeros(1), length.cumsum(0)])
    nnz = int(row_ptr[-1])
    value = draw(nnz, dtype="float32", values=numbers)
    row = torch.repeat_interleave(torch.arange(rows, device=x.device), length)
    place = torch.arange(nnz, device=x.device) - row_ptr[row]
    if case.values == "banded":
        col = (row * cols // max(rows, 1) - mean // 2).clamp(min=0) + place
    else:
        col = draw(nnz, dtype="int64", values="normal", low=0, high=max(cols, 1))
        col = torch.where(length[row] == cols, place, col)
        col = (row * cols + col).sort().values - row * cols
    index = getattr(torch, case.dtype)
    return row_ptr.to(index), col.to(index), value, x


def draw_on(device: torch.device) -> Callable[..., Tensor]:
    """Return a draw for `sparse_matrix` by PyTorch's generator of the device, for a day's
    `show`."""

    def draw(
        *shape: int,
        dtype: str,
        values: str = "normal",
        low: int | None = None,
        high: int | None = None,
    ) -> Tensor:
        if low is None or high is None:
            return torch.randn(shape, device=device, dtype=getattr(torch, dtype))
        return torch.randint(low, high, shape, device=device, dtype=getattr(torch, dtype))

    return draw


def rows_of(row_ptr: Tensor, nnz: int) -> tuple[Tensor, Tensor]:
    """Return the row and the number of each entry that row_ptr names, (at most nnz,) int64.

    Row pointers beyond [0, nnz] are clamped to it; a row that ends before it begins is empty.
    """
    start, end = row_ptr.long().clamp(0, nnz)[:-1], row_ptr.long().clamp(0, nnz)[1:]
    length = (end - start).clamp(min=0)
    row = torch.repeat_interleave(torch.arange(len(start), device=row_ptr.device), length)
    place = torch.arange(len(row), device=row.device) - (length.cumsum(0) - length)[row]
    return row, start[row] + place


def coo_product(row: Tensor, col: Tensor, value: Tensor, x: Tensor, rows: int) -> Tensor:
    """Return y (rows,) of value's dtype, ignoring entries whose row or column does not exist."""
    there = (row >= 0) & (row < rows) & (col >= 0) & (col < len(x))
    row, col, value = row[there].long(), col[there].long(), value[there]
    return value.new_zeros(rows).index_add_(0, row, value * x[col])


def csr_product(row_ptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """Return the product as `coo_product`, from row pointers."""
    row, entry = rows_of(row_ptr, len(col))
    return coo_product(row, col[entry], value[entry], x, len(row_ptr) - 1)


def csr_to_ell(row_ptr: Tensor, col: Tensor, value: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return col and value (width, rows) of the first `width` entries of each row; padding is -1
    and 0.

    Raise ValueError for a negative width.
    """
    if width < 0:
        raise ValueError(f"width: expected 0 or more, got {width}")
    rows = len(row_ptr) - 1
    row, entry = rows_of(row_ptr, len(col))
    start = row_ptr.long().clamp(0, len(col))
    place = entry - start[row]
    row, entry, place = (t[place < width] for t in (row, entry, place))
    ell_col, ell_value = col.new_full((width, rows), -1), value.new_zeros(width, rows)
    ell_col[place, row] = col[entry]
    ell_value[place, row] = value[entry]
    return ell_col, ell_value


def ell_product(ell_col: Tensor, ell_value: Tensor, x: Tensor) -> Tensor:
    """Return y (rows,) of ell_value's dtype. Raise ValueError for an entry after padding."""
    padding = ell_col < 0
    if bool((padding[:-1] & ~padding[1:]).any()):
        raise ValueError("ell_col: an entry follows padding")
    there = (ell_col >= 0) & (ell_col < len(x))
    products = torch.zeros_like(ell_value)
    products[there] = ell_value[there] * x[ell_col[there].long()]
    return products.sum(0)


def cusparse_product(row_ptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Any:
    """Return PyTorch's product of a CSR tensor: cuSPARSE on a GPU. The tensor copies nothing."""
    size = (len(row_ptr) - 1, len(x))
    return torch.sparse_csr_tensor(row_ptr, col, value, size, check_invariants=False) @ x
