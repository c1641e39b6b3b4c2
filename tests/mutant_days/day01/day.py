"""A day whose cases miss what happens below zero."""

from common.day import Case, Problem, Rung

from .module import reference

TITLE = "Misses a case"
TEACHES = "What a day looks like whose checks let a bug pass"
TOPICS = ("mutants",)
SOURCE = "limit.cu"
EXTRA_SOURCES = ("module.py",)  # nothing that is built: builds that watch memory are tried too
EQUIVALENT = {
    "limited: comparison: `low > limit` -> `low >= limit`": "equal numbers are the same number",
    "limited: comparison: `v < 0` -> `v >= 0`": "there is no such mutant",
    "limit_kernel: comparison: `i < n` -> `i <= n`": "it is killed: it writes beyond the end",
}


def inputs(case, draw):
    return (draw(*case.shape).abs(),)


PROBLEMS = (
    Problem(
        name="limit",
        inputs=inputs,
        reference=reference,
        rungs=(Rung("limit", "one thread per element"),),
        cases=(Case((1,)), Case((64,)), Case((100,))),
        timed=False,
    ),
)
