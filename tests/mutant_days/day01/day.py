"""A day without cases below zero."""

from common.day import Case, Problem, Rung

from .module import reference

TITLE = "Misses a case"
TEACHES = "What a day looks like whose checks let a bug pass"
TOPICS = ("mutants",)
SOURCE = "limit.cu"
EXTRA_SOURCES = ("module.py",)  # not a custom build: builds that watch memory are tried too


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
