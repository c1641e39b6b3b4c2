"""The hybrid format in PyTorch: its width, its COO part, and cuSPARSE on the same matrix."""

from dataclasses import replace
from functools import lru_cache

import torch

from common.references.sparse_matrices import (
    coo_product,
    csr_product,
    csr_to_ell,
    cusparse_product,
    ell_product,
    row_lengths,
    sparse_matrix,
)

PRICE = 1.5  # of an entry in COO, in places of ELL


def best_width(length):
    """The largest width that 1 / PRICE of the rows fill: a further column costs more than COO."""
    return int(length.sort(descending=True).values[int(len(length) / PRICE)]) if len(length) else 0


def rest_pointers(row_ptr, width):
    """How many entries of the rows before each one lie beyond `width`, like row_ptr."""
    rest = (row_ptr.diff() - width).clamp(min=0)
    return torch.cat([rest.new_zeros(1), rest.cumsum(0, dtype=rest.dtype)])


def csr_to_rest(row_ptr, col, value, rest_ptr, width, rest):
    """row, col and value, (rest,), of the entries beyond `width`; -1, -1, 0 where there is none."""
    if bool((rest_ptr[1:] < rest_ptr[:-1]).any()):
        raise ValueError("rest_ptr: it decreases")
    place = torch.arange(rest, device=col.device)
    row = torch.searchsorted(rest_ptr.long(), place, right=True) - 1
    there = (row >= 0) & (row < len(row_ptr) - 1)
    start = row_ptr.long().clamp(0, len(col))
    at = row.clamp(min=0)
    entry = torch.where(there, start[at] + width + place - rest_ptr[at], -1)
    there &= (entry >= 0) & (entry < len(col))
    places = place[there]
    rest_row, rest_col = col.new_full((2, rest), -1)
    rest_value = value.new_zeros(rest)
    rest_row[places] = row[there].to(col.dtype)
    rest_col[places] = col[entry[there]]
    rest_value[places] = value[entry[there]]
    return rest_row, rest_col, rest_value


def hybrid_parts(csr, width):
    """The ELL part and the COO part of a matrix in CSR, five tensors."""
    row_ptr, col, value = csr
    rest_ptr = rest_pointers(row_ptr, width)
    return (
        *csr_to_ell(row_ptr, col, value, width),
        *csr_to_rest(row_ptr, col, value, rest_ptr, width, int(rest_ptr[-1])),
    )


def hybrid_matrix(case, draw):
    *csr, x = sparse_matrix(case, draw)
    return (*hybrid_parts(csr, best_width(row_lengths(case))), x)


def rest_inputs(case, draw):
    """Case.shape: as of a sparse matrix and, where it is not the best, the width."""
    *shape, width = (*case.shape, None)[:4]
    case = replace(case, shape=tuple(shape))
    row_ptr, col, value, _ = sparse_matrix(case, draw)
    width = best_width(row_lengths(case)) if width is None else width
    rest_ptr = rest_pointers(row_ptr, width)
    return row_ptr, col, value, rest_ptr, width, int(rest_ptr[-1])


def hybrid_product(ell_col, ell_value, row, col, value, x):
    return ell_product(ell_col, ell_value, x) + coo_product(row, col, value, x, ell_col.shape[1])


def valid_csr_product(row_ptr, col, value, x):
    """The product, for row pointers that merge may be called with."""
    if row_ptr[0] != 0 or bool((row_ptr.diff() < 0).any()):
        raise ValueError("row_ptr: expected to begin with 0, and not to decrease")
    return csr_product(row_ptr, col, value, x)


@lru_cache(maxsize=1)
def csr_of(ell_col, ell_value, row, col, value):
    ell_row = torch.arange(ell_col.shape[1], device=col.device).expand(ell_col.shape)
    there = ell_col >= 0
    rows, order = torch.cat([ell_row[there], row.long()]).sort(stable=True)
    start = torch.arange(ell_col.shape[1] + 1, device=col.device)
    row_ptr = torch.searchsorted(rows, start).to(col.dtype)
    cols = torch.cat([ell_col[there], col])[order]
    return row_ptr, cols, torch.cat([ell_value[there], value])[order]


def cusparse_for_hybrid(ell_col, ell_value, row, col, value, x):
    """PyTorch has no hybrid format: cuSPARSE on the same matrix, converted before the timing."""
    row_ptr, col, value = csr_of(ell_col, ell_value, row, col, value)
    return cusparse_product(row_ptr, col, value, x)
