"""D = α · op(A) · op(B) + β · C in fp32: reference, cuBLAS, cost and inputs for the days of SGEMM.

A case has the shape (M, N, K). Arguments are those of the rungs: (a, b, c=None, a_transposed=False,
b_transposed=False, alpha=1.0, beta=0.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common.base.declaration import Case, Cost, Problem, Rung, grid

Third = Callable[[Any, int, int], Tensor]  # (draw, M, N) -> C


def sgemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    a_transposed: bool = False,
    b_transposed: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Tensor:
    """Return d, (M, N). C is ignored if β is 0, even if it holds NaN."""
    product = alpha * ((a.t() if a_transposed else a) @ (b.t() if b_transposed else b))
    return product if c is None or beta == 0 else product + beta * c


def sgemm_by_cublas(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    a_transposed: bool = False,
    b_transposed: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Tensor:
    """Return d by cuBLAS in fp32. Raise RuntimeError if PyTorch is set to compute with TF32."""
    if torch.get_float32_matmul_precision() != "highest":
        raise RuntimeError("TF32 is on: torch.set_float32_matmul_precision('highest') is needed")
    a, b = a.t() if a_transposed else a, b.t() if b_transposed else b
    return torch.mm(a, b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)


def sgemm_cost(case: Case) -> Cost:
    """Return the cost: each of A, B and D moved once; 2 M N K operations."""
    M, N, K = case.shape
    return Cost(bytes=4 * (M * K + K * N + M * N), flops=2 * M * N * K)


def sgemm_inputs(
    a_transposed: bool = False,
    b_transposed: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Third | None = None,
) -> Callable[[Case, Any], tuple[Any, ...]]:
    """Return the `inputs` of a problem. c: returns C, None for no C."""

    def inputs(case: Case, draw: Any) -> tuple[Any, ...]:
        M, N, K = case.shape
        a = draw(K, M) if a_transposed else draw(M, K)
        b = draw(N, K) if b_transposed else draw(K, N)
        third = c(draw, M, N) if c else None
        return a, b, third, a_transposed, b_transposed, alpha, beta

    return inputs


def not_a_number(draw: Any, M: int, N: int) -> Tensor:
    """Return a C that must not be read."""
    result: Tensor = draw(M, N).fill_(float("nan"))
    return result


def any_numbers(draw: Any, M: int, N: int) -> Tensor:
    """Return a C drawn like A and B."""
    result: Tensor = draw(M, N)
    return result


def sgemm_problems(
    rungs: tuple[Rung, ...], cases: tuple[Case, ...], few: tuple[Case, ...]
) -> tuple[Problem, ...]:
    """Return the problems that are checked, not timed: Aᵀ · B and A · Bᵀ on `few` cases, all
    options together on `cases`; and one where β is 0 and C must not be read."""

    def problem(name: str, checked: tuple[Case, ...], **layout: Any) -> Problem:
        inputs = sgemm_inputs(**layout)
        return Problem(
            name=name, inputs=inputs, reference=sgemm, rungs=rungs, cases=checked, timed=False
        )

    everything = dict(a_transposed=True, b_transposed=True, alpha=-0.5, beta=2.0, c=any_numbers)
    unread = grid([(8, 12, 4), (5, 7, 3)], ["float32"])
    return (
        problem("Aᵀ · B", few, a_transposed=True),
        problem("A · Bᵀ", few, b_transposed=True),
        problem("α · Aᵀ · Bᵀ + β · C", cases, **everything),
        problem("C unread where β = 0", unread, c=not_a_number),
    )
