"""Day 77: attention of one token over a cache in pages."""

if __name__ == "__main__":  # python days/day77/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day77

from functools import partial

from common.day import Case, Library, Problem, Rung, Target, Tolerance, grid

from . import pages

TITLE = "PagedAttention"
TEACHES = "Block tables, sequences of mixed lengths in equal shares, and prefixes stored once"
TOPICS = ("attention", "PagedAttention", "KV cache", "block table", "load balancing", "inference")
SOURCE = "paged_attention.cu"
INTRODUCES = ("PagedAttention", "block table")
USES = (76,)

TYPES = ["bfloat16", "float16"]
# (B, H, G, M, S, D): M pages of S tokens
MIXED = [
    (1, 1, 1, 1, 16, 64),
    (3, 2, 4, 5, 16, 128),
    (5, 1, 8, 3, 64, 64),
    (2, 3, 5, 9, 64, 128),
    (40, 8, 1, 9, 16, 64),  # on a small card, pairs that begin and end within a block
    (2, 1, 2, 256, 64, 64),  # and many units per block
    (300, 1, 1, 1, 16, 64),  # more sequences than the plan scans at a time
]
SHARED = [(3, 2, 4, 9, 16, 64), (4, 1, 2, 3, 64, 128)]
EMPTY = [(0, 2, 4, 3, 16, 64), (2, 0, 1, 3, 16, 64), (2, 1, 3, 0, 64, 64), (2, 3, 0, 2, 16, 64)]

CONTIGUOUS = Library("contiguous", pages.day76)
MASKED = Library("masked", pages.masked)
VARLEN = Library("varlen", pages.varlen)


def problem(name, shared, cases, bench, target, libraries=(), refused=()):
    return Problem(
        name=name,
        inputs=partial(pages.inputs, shared),
        reference=pages.reference,
        rungs=(
            Rung("paged_v1_one_block", "one block per head of keys"),
            Rung("paged_v2_split", "as many splits for each sequence"),
            Rung("paged_v3_even", "equal shares of all tokens"),
            Rung("paged_v4_overhead", "beginnings counted too", target=target),
        ),
        cases=cases,
        refused=refused,
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((2, 2, 4, 16, 16, 64), "bfloat16"),
        cost=partial(pages.cost, shared),
        pytorch=pages.one_by_one,
        libraries=libraries,
        rivals=(Library("FlashInfer", pages.flashinfer),),
        tolerance=Tolerance(
            factor=8, why="sums over tokens are merged in another order than PyTorch's, in fp32"
        ),
    )


PROBLEMS = (
    problem(
        "mixed lengths",
        False,
        (
            *grid([*MIXED, *EMPTY], TYPES),
            *grid([(6, 2, 4, 40, 16, 64)], TYPES, values="nonfinite"),
            *grid([(2, 2, 3, 5, 64, 128)], TYPES, values="large"),
        ),
        (16, 8, 4, 4096, 16, 128),
        Target(0.85, "read"),
        (CONTIGUOUS, MASKED, VARLEN),
        (
            Case((1, 1, 2, 3, 32, 64), "bfloat16"),
            Case((1, 1, 17, 2, 16, 64), "bfloat16"),
            Case((1, 2, 1, 2, 16, 96), "bfloat16"),
        ),
    ),
    problem(
        "shared prefix",
        True,
        grid(SHARED, TYPES),
        (16, 8, 4, 512, 16, 128),
        None,
        (CONTIGUOUS, MASKED, VARLEN),
    ),
    problem(
        "one sequence",
        False,
        grid(MIXED[:1], TYPES),
        (1, 8, 4, 8192, 16, 128),
        Target(0.9, "contiguous"),
        (CONTIGUOUS, VARLEN),
    ),
)
