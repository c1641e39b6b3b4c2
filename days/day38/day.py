"""Day 38: sorting, by comparisons and by digits."""

from functools import partial

import torch

from common.day import Case, Cost, Exercise, Problem, Rung, Target, grid, print_table, seconds

TITLE = "Merge sort and radix sort"
TEACHES = "Co-ranks cut a merge into equal parts; digits need no comparison, and one sweep per pass"
TOPICS = ("sorting", "merge path", "radix sort", "decoupled look-back", "stability")
SOURCE = "merge_sort.cu"
EXTRA_SOURCES = ("radix_sort.cu",)
INTRODUCES = ("stable sort", "odd-even transposition", "merge path", "co-rank", "radix sort")
EQUIVALENT = {  # mutants that compute the same, and why
    "one_sweep.cuh: OneSweep::words_bytes: 64-bit index in 32 bits: `int64_t{tiles_} * DIGITS` "
    "-> `tiles_ * DIGITS`": (
        "x has fewer than 2^32 elements, so that there are at most 2^28 words"
    ),
    "order.cuh: sort_by_passes: arithmetic operator: `1 - p` -> `1 + p`": (
        "an even number more, of which only the parity counts"
    ),
    "merge_sort.cu: merges_after: initial value: `int merges = 0` -> `int merges = 1`": (
        "one more pass merges everything with an empty run"
    ),
    "merge_sort.cu: MergeTile::put: bounds check dropped: `k >= count` -> `false`": (
        "a thread's own places of the tile: those behind the last element are not read"
    ),
    "merge_sort.cu: my_elements: bounds check dropped: `rest < PER_THREAD ? rest` -> "
    "`true ? rest`": "every loop over a thread's elements ends at PER_THREAD",
    "radix_sort.cu: sort_v3_radix_sums_kernel: comparison: `i - threadIdx.x < tiles` -> "
    "`i - threadIdx.x <= tiles`": "at most one more round, which adds nothing",
    "radix_sort.cu: sort_v3_radix_sums_kernel: constant off by one: `threadIdx.x == 0` -> "
    "`threadIdx.x == 1`": "every thread has the sum",
    "radix_sort.cu: sort_v3_radix: constant off by one: `1 + int64_t{tiles}` -> "
    "`2 + int64_t{tiles}`": "more scratch than is used",
    "one_sweep.cuh: sort_v4_one_sweep_totals_kernel: bounds check dropped: `count > 0` -> "
    "`true`": "it adds 0 where the check leaves the addition out",
    "one_sweep.cuh: look_back: comparison: `word >> 32 < counted(pass)` -> "
    "`word >> 32 <= counted(pass)`": (
        "it waits for the sum of a tile where its count would be enough"
    ),
    "order.cuh: sort_by_passes: comparison: `passes > 1` -> `passes >= 1`": (
        "a spare buffer that a single pass does not use"
    ),
    "order.cuh: sort_by_passes: constant off by one: `keys[2]` -> `keys[3]`": (
        "an array with a place that is not used"
    ),
    "order.cuh: sort_by_passes: constant off by one: `places[2]` -> `places[3]`": (
        "an array with a place that is not used"
    ),
    "order.cuh: sort_by_passes: arithmetic operator: `passes - 1` -> `passes + 1`, 2nd": (
        "two more, of which only the parity counts"
    ),
}

EXERCISE = Exercise(
    function="co_rank",
    task=(
        "Binary search for the number of elements of a among the first `count` of the merged run. "
        "If i of them come from a, the rest of `count` comes from b. Of equal keys, those of a "
        "come first."
    ),
    hints=(
        "Between which numbers must the result lie, if b has only nb elements to give, and a na?",
        "Look at a[i] and at b[count - 1 - i]. If a[i] comes first, more than i elements of a are "
        "among the first `count`. Compare by `ordered`.",
        "low = max(count - nb, 0), high = min(count, na). While low < high: i = (low + high) / 2; "
        "if ordered(b[count - 1 - i]) < ordered(a[i]), high = i, else low = i + 1. Return low.",
    ),
)

# (n, distinct): distinct > 0 leaves so many different keys, so that their order is tested
SIZES = [(1, 0), (2, 0), (7, 0), (1023, 0), (1025, 0), (2049, 3), (4096, 0), (5001, 40), (0, 0)]
LARGE = (12_289, 1000)
DTYPES = ["int32", "int64", "float32"]


def inputs(case, draw):
    n, distinct = case.shape
    x = draw(n)
    if distinct and x.is_floating_point():
        x.copy_((x * (distinct / 8)).round())  # zeros of both signs among them
    elif distinct:
        x.remainder_(distinct)
    return (x,)


def reference(x):
    return torch.sort(x, stable=True)


def cost(case):
    """Keys read once, keys and indices written once, as if that were enough."""
    n, _ = case.shape
    return Cost(bytes=n * (2 * case.itemsize + 8))


BENCH = (1 << 26, 0)
V4 = Rung("sort_v4_one_sweep", "offsets by look-back", target=Target(0.5, "pytorch"))


def sort(dtype, *rungs, cases=()):
    return Problem(
        f"sort, {dtype}",
        inputs,
        reference,
        rungs=rungs,
        cases=cases,
        bench=Case(BENCH, dtype),
        bench_cpu=Case((1 << 13, 0), dtype),
        cost=cost,
        pytorch=torch.sort,
        outputs_exact=True,
    )


LADDER = (
    Rung("sort_v1_odd_even", "tiles by neighbours, merges by rank"),
    Rung("sort_v2_merge_path", "merges cut by co-ranks"),
    Rung("sort_v3_radix", "count, sum, move, per digit"),
    V4,
)
FLOATS = tuple(
    Case((n, 0), "float32", values) for n in (33, 2049) for values in ("nonfinite", "extreme")
)


def many_tiles(name, rung, n):
    return Problem(
        name,
        inputs,
        reference,
        rungs=(rung,),
        cases=grid([(n, 0)], ["int32"]),
        outputs_exact=True,
        timed=False,
    )


PROBLEMS = (
    sort("int32", *LADDER, cases=(*grid([*SIZES, LARGE], ["int32"]),)),
    sort("int64", *LADDER[2:], cases=grid([(1, 0), (2047, 0), (2049, 3), (4097, 0)], ["int64"])),
    sort(
        "float32",
        *LADDER[1:],
        cases=(*grid([(2049, 40), (4097, 0)], ["float32"]), *FLOATS),
    ),
    # more tiles than one block of v2 has co-ranks for, and than one round of v3 adds
    many_tiles("sort of many tiles", LADDER[1], 270_001),
    many_tiles("sort of more tiles", LADDER[2], 4096 * 256 + 1),
)


def show(operators, device):
    """Prints v4 beside torch.sort for keys that are not random."""
    n = (1 << 26) if device.type == "cuda" else (1 << 12)
    random = torch.randint(-(2**31), 2**31, (n,), device=device, dtype=torch.int32)
    keys = {
        "random": random,
        "sorted": random.sort()[0],
        "16 distinct": random % 16,
        "all equal": torch.zeros_like(random),
    }
    rows = []
    for name, x in keys.items():
        times = [seconds(partial(f, x)) * 1e3 for f in (operators.sort_v4_one_sweep, torch.sort)]
        rows.append((name, *(f"{time:.2f}" for time in times)))
    print_table((f"{n} int32 keys", "v4, ms", "torch.sort, ms"), rows)
