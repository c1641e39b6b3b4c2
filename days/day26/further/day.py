"""Day 26, further: other head dimensions and dtypes, long rows, a softmax that rescales rarely."""

from dataclasses import replace
from functools import partial
from itertools import product

from common.day import HALVES, Problem, Rung, Target, grid
from common.references.attention import attention

from ..day import CASES, UNUSUAL, inputs, timed

SOURCE = "every_head.cu"

# (B, H, S, D): around the 128 rows of a block, its warps' 32, and the 64 keys of a tile
SHAPES = [(1, 1, 1, 64), (2, 1, 33, 64), (1, 2, 130, 64), (1, 1, 31, 128), (1, 1, 129, 128)]
EMPTY = [(0, 2, 4, 64), (2, 2, 0, 128)]
# (B, H, S, T, D): S rows of q and T keys
LENGTHS = [(1, 2, 5, 70, 64), (2, 1, 131, 20, 64), (1, 1, 1, 129, 128), (1, 1, 40, 33, 128)]
NO_KEYS = [(1, 2, 3, 0, 64), (0, 1, 3, 4, 64), (1, 1, 0, 4, 128)]
EVERY = (*grid([*SHAPES, *EMPTY], HALVES), *grid([(1, 1, 70, 64)], HALVES, values="large"))
EVERY_UNUSUAL = grid([(1, 1, 66, 128)], HALVES, values="nonfinite")

SCALAR = Rung("attention_v1_scalar", "fused multiply-adds in fp32, day 15")
LAZY = Rung("attention_v5_lazy_rescale", "o is rescaled rarely", target=Target(0.85, "pytorch"))
EVERY_HEAD = (Rung("every_head_v4_pipelined", "both dtypes, D = 64 and 128"), LAZY)
LONG = (Rung("attention_v4_pipelined", "the main line's last rung"), LAZY)


def lengths(name, causal):
    return Problem(
        name,
        partial(inputs, causal),
        attention,
        EVERY_HEAD,
        cases=grid([*LENGTHS, *NO_KEYS], HALVES),
        timed=False,
    )


def every_head(D, dtype, causal):
    """The main line's rows and columns in heads of D columns; day 15's kernel is timed once."""
    cases = EVERY if causal else (*EVERY, *EVERY_UNUSUAL)
    return timed(
        f"{'causal' if causal else 'attention'}, heads of {D}, {dtype}",
        causal,
        (4, 2048 // D, 4096, D),
        (replace(SCALAR, timed=(D, dtype) == (128, "bfloat16")), *EVERY_HEAD),
        tuple(case for case in cases if case.shape[-1] == D and case.dtype == dtype),
        dtype,
    )


PROBLEMS = (
    lengths("other lengths", False),
    lengths("other lengths, causal", True),
    timed("causal, 16384", True, (1, 16, 16384, 128), LONG, CASES),
    timed("attention, 16384", False, (1, 16, 16384, 128), LONG, (*CASES, *UNUSUAL)),
    *(every_head(*each) for each in product((64, 128), HALVES, (True, False))),
)
