"""ELL and COO in PyTorch: conversions, and cuSPARSE's product on the same matrix."""

from functools import lru_cache

import torch

from common.references.sparse_matrices import cusparse_product


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


@lru_cache(maxsize=1)
def ell_to_csr(ell_col, ell_value):
    entries = (ell_col >= 0).T
    row_ptr = torch.cat([ell_col.new_zeros(1), entries.sum(1).cumsum(0)]).to(ell_col.dtype)
    return row_ptr, ell_col.T[entries], ell_value.T[entries]


def cusparse_for_ell(ell_col, ell_value, x):
    """PyTorch has no ELL: cuSPARSE on the same matrix, converted before the timing."""
    row_ptr, col, value = ell_to_csr(ell_col, ell_value)
    return cusparse_product(row_ptr, col, value, x)


@lru_cache(maxsize=1)
def row_pointers(row, rows):
    return coo_to_csr(row, rows)


def cusparse_for_coo(row, col, value, x, rows):
    """PyTorch multiplies COO through CSR: cuSPARSE, converted before the timing."""
    return cusparse_product(row_pointers(row, rows), col, value, x)
