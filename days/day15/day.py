"""Day 15: FlashAttention-2 forward, first version."""

from functools import partial

import torch

from common.day import (
    Case,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    peak_memory,
    print_table,
)

from .formulas import attention, backward, cost, formula, inputs, reference, saves

TITLE = "FlashAttention-2 forward, first version"
TEACHES = "Attention by tiles and an online softmax, without the S×S matrix; register tiles"
TOPICS = ("attention", "FlashAttention", "softmax", "matmul", "tiling", "autograd")
SOURCE = "fa2_forward.cu"
EXTRA_SOURCES = ("naive_attention.cu", "register_tiles.cu")
INTRODUCES = ("attention", "FlashAttention", "log-sum-exp", "causal mask", "__launch_bounds__")

EQUIVALENT = {  # mutants that compute the same, and why
    "fa2_forward.cu: attend: barrier removed: `__syncwarp()` -> ``, 3rd": (
        "the shuffles of the next row make all lanes wait before p is overwritten"
    ),
    "fa2_forward.cu: finish: constant off by one: `lane == 0` -> `lane == 1`": (
        "all lanes hold the same row"
    ),
    "fa2_forward.cu: attention_v2_tiled_online: constant off by one: `{n.N, n.S, 2}` "
    "-> `{n.N, n.S, 3}`": ("more memory than is used"),
    "naive_attention.cu: tiled_product: constant off by one: `TILE + 1` -> `TILE + 2`": (
        "another padding: other bank conflicts, the same values"
    ),
    "naive_attention.cu: softmax_rows_kernel: 64-bit index in 32 bits: `int64_t j` "
    "-> `int j`, 2nd": ("S × S scores lie in memory, so S fits in 32 bits"),
    "naive_attention.cu: softmax_rows_kernel: constant off by one: `threadIdx.x == 0` "
    "-> `threadIdx.x == 1`": ("all threads hold the sum"),
    "register_tiles.cu: load_tile: 64-bit index in 32 bits: `int64_t{row} * D` -> `row * D`, 2nd": (
        "a row of a tile: the product is small"
    ),
    "register_tiles.cu: attention_v4_register_tiles: comparison: `sizes.D <= 32` "
    "-> `sizes.D < 32`": ("32 columns then take the tiles for 64: the same values"),
}

EXERCISE = Exercise(
    function="attend",
    first="// The first tile contains key 0",
    last="all lanes have read q and p before",
    task=(
        "The online softmax: from this lane's score s and the row's state, update row.max and "
        "row.sum, and rescale row.o before adding p · V of this tile, where p = exp(s - max)."
    ),
    hints=(
        "The maximum over this tile of keys and all tiles before. What was summed under the old "
        "maximum has to be expressed under the new one.",
        "exp(x - old) · exp(old - new) = exp(x - new). So row.sum and row.o are both multiplied "
        "by exp(old - new) before this tile's part is added. warp_max(s) and warp_sum(p) combine "
        "the 32 lanes, which have one key each.",
        "Lane l holds columns d = lane + 32 · c of row.o, c < COLUMNS and d < n.D. Put p into "
        "shared.p[lane], __syncwarp(), then add shared.p[k] * tile.v[k][d] for all KEYS keys. "
        "Another __syncwarp() at the end: the next row overwrites q and p.",
    ),
)

HALVES = ["float16", "bfloat16"]
# (B, H, S, D)
SHAPES = [
    (1, 1, 1, 1),
    (1, 2, 33, 32),
    (2, 1, 33, 64),
    (1, 1, 70, 80),
    (1, 1, 31, 128),
    (1, 1, 7, 5),
    (1, 1, 130, 36),  # two tiles of rows, three of keys
    (0, 2, 4, 8),
    (2, 2, 0, 8),
]
CASES = (*grid(SHAPES, ["float32"]), *grid([(1, 2, 33, 32), (1, 1, 34, 72)], HALVES))
UNUSUAL = (
    *grid([(1, 1, 24, 16)], ["float32", *HALVES], values="large"),
    *grid([(1, 1, 20, 8)], ["float32", *HALVES], values="nonfinite"),
    *grid([(1, 1, 300, 8)], ["float32"], values="large"),  # more keys than threads per row of v1
)
STEPS = (
    *grid([(1, 2, 33, 32), (1, 1, 7, 5), (2, 2, 0, 8)], ["float32"]),
    *grid([(1, 1, 259, 4)], ["float32"]),  # two tiles of the backward pass
    *grid([(1, 1, 34, 72)], HALVES),
)


rung = partial(Rung, backward=backward, saves=saves)
RUNGS = (
    rung("attention_v1_three_kernels", "product, softmax, product"),
    rung("attention_v2_tiled_online", "outer loop over keys, o in memory"),
    rung("attention_v3_fa2_order", "outer loop over rows, o in registers"),
    rung("attention_v4_register_tiles", "128 × 64 register tiles", target=Target(1.0, "formula")),
)


def timed(name, causal, rungs):
    """The forward pass alone: the backward pass is not the kernels' own."""
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        rungs,
        CASES,
        refused=(Case((1, 1, 4, 129)),),
        bench=Case((1, 16, 4096, 64)),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=attention,
        libraries=(Library("formula", formula),),
    )


checked = partial(Problem, reference=reference, timed=False)

PROBLEMS = (
    # Without gradients: p = exp(s - lse) is only as exact as lse, which is in the hundreds here.
    checked("unusual numbers", partial(inputs, False), rungs=RUNGS, cases=UNUSUAL),
    checked("gradients", partial(inputs, False), rungs=RUNGS, cases=STEPS, gradients=True),
    checked(
        "causal, gradients", partial(inputs, True), rungs=RUNGS[2:], cases=STEPS, gradients=True
    ),
    timed("causal", True, RUNGS[2:]),
    timed("attention", False, RUNGS),
)


def show(operators, device):
    """Prints the memory that attention allocates, arguments excluded, for growing S."""
    if device.type != "cuda":
        return
    contenders = {
        "formula": formula,
        "PyTorch": attention,
        "v1": operators.attention_v1_three_kernels,
        "v4": operators.attention_v4_register_tiles,
    }
    rows = []
    for S in (1024, 2048, 4096, 8192, 16384):
        qkv = [torch.randn(1, 1, S, 64, device=device) for _ in range(3)]
        peaks = [peak_memory(partial(call, *qkv, False)) for call in contenders.values()]
        rows.append((S, *(f"{peak / 1e6:.1f}" for peak in peaks)))
    print("peak memory for one head with D = 64, MB, output included")
    print_table(("S", *contenders), rows)
