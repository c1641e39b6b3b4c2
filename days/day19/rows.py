"""What the problems of this day share: cases, and how rows are timed."""

from common.day import COMPILE, FLOATS, Case, Problem, grid, streamed

SHAPES = [(1, 1), (3, 127), (2, 128), (3, 1023), (2, 1024), (3, 1025), (7, 40), (2, 4096), (0, 8)]


LONG = [(1, 8200), (2, 6000)]  # do not fit into registers, in some or all dtypes


CASES = (
    *grid(SHAPES + LONG, FLOATS),
    *grid([(4, 1000)], FLOATS, values="large"),
    *grid([(8, 300)], FLOATS, values="nonfinite"),
)


def problem(name, inputs, reference, rungs, work, cases=CASES, pytorch=None, **options):
    """work: tensors of the size of x that are read or written, and operations per element of x."""
    return Problem(
        name,
        inputs,
        reference,
        rungs,
        cases,
        bench=Case((32768, 4096)),
        bench_cpu=Case((256, 1024)),
        cost=streamed(*work),
        pytorch=pytorch or reference,
        libraries=(COMPILE,),
        **options,
    )
