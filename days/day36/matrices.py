"""Sparse matrices to multiply with: five kinds, in three formats, and what each format computes."""

from functools import lru_cache

import torch

POWER = 1.5  # of the power law: rows longer than n are n^-POWER of all


def lengths(case):
    """Entries per row, int64 on the CPU, in an order that the draw changes unless banded.

    A case's shape is (rows, cols, entries per row on average). Its values name the kind: "banded",
    "power law", "empty rows", "full row"; others are uniform: every place is as likely as any.
    """
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


def csr(case, draw):
    """row_ptr (rows + 1,), col (nnz,), value (nnz,) and x (cols,); the case's dtype is that of the
    indices, the other two are fp32. Columns are sorted in each row, and may be there twice."""
    rows, cols, mean = case.shape
    numbers = case.values if case.values == "nonfinite" else "normal"
    x = draw(cols, dtype="float32", values=numbers)
    length = lengths(case).to(x.device)
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


def draw_on(device):
    """A draw for `csr` whose numbers come from PyTorch's generator of the device."""

    def draw(*shape, dtype, values="normal", low=None, high=None):
        if low is None:
            return torch.randn(shape, device=device)
        return torch.randint(low, high, shape, device=device)

    return draw


def rows_of(row_ptr, nnz):
    """(row, entry) of all that row_ptr names: entries beyond [0, nnz) are left out."""
    start, end = row_ptr.long().clamp(0, nnz)[:-1], row_ptr.long().clamp(0, nnz)[1:]
    length = (end - start).clamp(min=0)
    row = torch.repeat_interleave(torch.arange(len(start), device=row_ptr.device), length)
    place = torch.arange(len(row), device=row.device) - (length.cumsum(0) - length)[row]
    return row, start[row] + place


def coo_product(row, col, value, x, rows):
    """y, without the entries whose row or column does not exist."""
    there = (row >= 0) & (row < rows) & (col >= 0) & (col < len(x))
    row, col, value = row[there].long(), col[there].long(), value[there]
    return value.new_zeros(rows).index_add_(0, row, value * x[col])


def csr_product(row_ptr, col, value, x):
    row, entry = rows_of(row_ptr, len(col))
    return coo_product(row, col[entry], value[entry], x, len(row_ptr) - 1)


def cusparse(row_ptr, col, value, x):
    """cuSPARSE's product for CSR, without a copy of the matrix."""
    size = (len(row_ptr) - 1, len(x))
    return torch.sparse_csr_tensor(row_ptr, col, value, size, check_invariants=False) @ x


def csr_to_coo(row_ptr, col):
    """The row of each entry."""
    in_order(row_ptr)
    entry = torch.arange(len(col), device=col.device)
    return (torch.searchsorted(row_ptr.long(), entry, right=True) - 1).to(col.dtype)


def coo_to_csr(row, rows):
    """Where each row begins, and the end of the last."""
    in_order(row)
    start = torch.arange(rows + 1, device=row.device)
    return torch.searchsorted(row.long(), start).to(row.dtype)


def in_order(indices):
    if bool((indices[1:] < indices[:-1]).any()):
        raise ValueError("the indices decrease")


def csr_to_ell(row_ptr, col, value, width):
    """The first `width` entries of each row, as columns: col and value, (width, rows)."""
    if width < 0:
        raise ValueError("width is negative")
    rows = len(row_ptr) - 1
    row, entry = rows_of(row_ptr, len(col))
    start = row_ptr.long().clamp(0, len(col))
    place = entry - start[row]
    row, entry, place = (t[place < width] for t in (row, entry, place))
    ell_col, ell_value = col.new_full((width, rows), -1), value.new_zeros(width, rows)
    ell_col[place, row] = col[entry]
    ell_value[place, row] = value[entry]
    return ell_col, ell_value


def ell_product(ell_col, ell_value, x):
    padding = ell_col < 0
    if bool((padding[:-1] & ~padding[1:]).any()):
        raise ValueError("an entry follows padding")
    there = (ell_col >= 0) & (ell_col < len(x))
    products = torch.zeros_like(ell_value)
    products[there] = ell_value[there] * x[ell_col[there].long()]
    return products.sum(0)


@lru_cache(maxsize=1)
def ell_to_csr(ell_col, ell_value):
    entries = (ell_col >= 0).T
    row_ptr = torch.cat([ell_col.new_zeros(1), entries.sum(1).cumsum(0)]).to(ell_col.dtype)
    return row_ptr, ell_col.T[entries], ell_value.T[entries]


def cusparse_for_ell(ell_col, ell_value, x):
    """PyTorch has no ELL: cuSPARSE on the same matrix, converted before the timing."""
    return cusparse(*ell_to_csr(ell_col, ell_value), x)


@lru_cache(maxsize=1)
def row_pointers(row, rows):
    return coo_to_csr(row, rows)


def cusparse_for_coo(row, col, value, x, rows):
    """PyTorch multiplies COO through CSR: cuSPARSE, converted before the timing."""
    return cusparse(row_pointers(row, rows), col, value, x)
