"""Day 77: attention of one token over a cache in pages."""

from functools import partial

from common.day import Case, Exercise, Library, Problem, Rung, Target, Tolerance, grid

from . import pages

TITLE = "PagedAttention"
TEACHES = "Block tables, sequences of mixed lengths in equal shares, and prefixes stored once"
TOPICS = ("attention", "PagedAttention", "KV cache", "block table", "load balancing", "inference")
SOURCE = "paged_attention.cu"
INTRODUCES = ("PagedAttention", "block table")
USES = (76,)

EQUIVALENT = {  # mutants that compute the same, and why
    "paged_by_pairs: constant off by one: `1` -> `2`": (
        "with more pairs than resident blocks, each pair then has two splits: the same values"
    ),
    "units_of: 64-bit index in 32 bits: `int64_t{length}` -> `length`": (
        "a length is at most MAX_TOKENS, two units below 2^31"
    ),
    "paged_even: grid or block size: `grid` -> `(grid) - 1`": (
        "the blocks share the line, however many there are"
    ),
}

EXERCISE = Exercise(
    function="paged_even_kernel",
    first="while (n.starts[b + 1] * n.H <= place) ++b;",
    last="reinterpret_cast<T*>(shared));",
    task=(
        "A block has places [place, end) of the line, and `place` belongs to sequence b or to a "
        "later one. A pair has OVERHEAD places at its beginning that hold no unit. Call "
        "attend_pages for the units of one pair from `place` on, if there are some, as part "
        "block + pair, and move `place` to the next pair."
    ),
    hints=(
        "Sequence b has n.H pairs of equally many places, one after the other, from n.starts[b] * "
        "n.H on. Which pair contains `place`, and where does that pair begin on the line?",
        "What the block has of the pair ends where the pair ends, or at `end`. The pair has one "
        "part from each block that has some of its units: share_of tells which blocks these are.",
        "h = (place - n.starts[b] * n.H) / places, and the pair begins at n.starts[b] * n.H + h * "
        "places. Its units are [place - begin - OVERHEAD, min(places, end - begin) - OVERHEAD), "
        "without those below 0. share_of its first and its last unit's places are its first and "
        "its last block: the first part is first_block + pair.",
    ),
)

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
