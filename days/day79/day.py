"""Day 79: decoding over a latent cache, with absorbed weights."""

from common.day import COMPILE, Case, Exercise, Library, Problem, Rung, Target, Tolerance, grid

from . import latent
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Multi-head latent attention"
TEACHES = "A cache row for all heads, absorbed weights, and two limits that meet at 128 heads"
TOPICS = ("attention", "MLA", "KV cache", "wgmma", "TMA", "roofline", "load balancing", "inference")
SOURCE = "mla_decode.cu"
EXTRA_SOURCES = ("latent.py", "proof.py")
INTRODUCES = ("multi-head latent attention", "absorbed weights")

EQUIVALENT = {  # mutants that compute the same, and why
    "Roles::attend: bounds check dropped: `t + BN > r.end` -> `true`": (
        "clear_rows stores nothing where a tile is full, it only waits for all boxes earlier"
    ),
    'mla_v2_mma: validation dropped: `require_capability(8, 0, "mma.sync of 16×8×16")` -> ``': (
        "cards of 7.5 have 64 KB: the next line refuses them"
    ),
    "latent_mma.cuh: mla_mma_kernel: 64-bit index in 32 bits: `int64_t{range.b} * n.H` -> "
    "`range.b * n.H`": ("2^31 rows of q are more than the memory of any GPU"),
    "latent_mma.cuh: mla_mma_kernel: initial value: `int d = 0` -> `int d = 1`, 2nd": (
        "a column is used as d / 8, which is the same"
    ),
    "latent_wgmma.cuh: of_warp: shuffle: `__shfl_sync(FULL_WARP, x, 0)` -> "
    "`__shfl_sync(FULL_WARP, x, (0) + 1)`": ("x is the same in all lanes"),
    "latent_wgmma.cuh: Boxes::release: constant off by one: `threadIdx.x % 32` -> "
    "`threadIdx.x % 33`": ("thread 33 · w is in warp w, as thread 32 · w"),
    "latent_wgmma.cuh: softmax_step: bounds check dropped: `tokens < BN` -> `true`": (
        "where all tokens are there, none is masked; the check saves time"
    ),
    "latent_wgmma.cuh: softmax_step: initial value: `bool grown = false` -> `bool grown = true`": (
        "a rescaling too many changes only the rounding"
    ),
}

EXERCISE = Exercise(
    function="Roles::add_values",
    first="uint32_t p[BN / 16][4];",
    last="release_values(i + 5);",
    task=(
        "One tile of the second warpgroup: wait for the first one's exponentials and the factors "
        "of o's rows, take both, and say that they have been read. Rescale o where a factor of the "
        "warp is not 1, add the products with boxes 5 to 8 of the tile, whose first box is the "
        "i-th, and release these boxes."
    ),
    hints=(
        "Two named barriers pass the buffer to and fro: one says that it is full, the other that "
        "it is empty. Which of the two does this warpgroup wait for, and where may it arrive at "
        "the other one?",
        "exponentials(thread, j) points at the four words of p[j] that the first warpgroup's "
        "thread of the same place has stored; at.factors has one factor per row. The boxes came "
        "by TMA: wait_full(i + box) for each of them, before multiply_values.",
        "barrier_sync(P_FULL, CONSUMERS); p[j] = the x, y, z, w of *exponentials(thread, j), and "
        "factor = at.factors[row] and [row + 8]; barrier_arrive(P_EMPTY, CONSUMERS). multiply_rows "
        "if __any_sync finds a factor that is not 1. wait_full, multiply_values(o, p, i + 5), "
        "wgmma_wait<0>(o), release_values(i + 5).",
    ),
)

TYPES = ["bfloat16", "float16"]
# (B, H, T): around the 64 heads of a block, tiles of 32 and 64 tokens
SHAPES = [(1, 1, 1), (3, 16, 70), (2, 65, 130), (1, 129, 70), (1, 3, 321), (5, 7, 64)]
EMPTY = [(0, 2, 8), (2, 0, 8), (2, 3, 0)]

RUNGS = (
    Rung("mla_v1_warp_per_head", "CUDA cores, one warp per head"),
    Rung("mla_v2_mma", "64 heads per tile, mma.sync"),
    Rung("mla_v3_wgmma", "TMA, wgmma, halves of the values"),
)


def problem(name, bench, cases, target):
    return Problem(
        name=name,
        inputs=latent.inputs,
        reference=latent.reference,
        rungs=(*RUNGS, Rung("mla_v4_even", "equal shares of all tokens", target=target)),
        cases=cases,
        refused=(),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, min(bench[1], 64), 64), "bfloat16"),
        cost=latent.cost,
        pytorch=latent.products,
        libraries=(
            COMPILE,
            Library("SDPA", latent.sdpa),
            Library("FLASH", latent.flash),
            Library("cuDNN", latent.cudnn),
        ),
        tolerance=Tolerance(
            factor=8, why="sums over tokens are merged in another order than PyTorch's, in fp32"
        ),
    )


PROBLEMS = (
    problem(
        "128 heads",
        (96, 128, 8192),
        (
            *grid([*SHAPES, *EMPTY], TYPES),
            *grid([(5, 4, 100)], TYPES, values="nonfinite"),
            *grid([(2, 65, 150), (2, 3, 1)], TYPES, values="large"),
            *grid([(40, 1, 2)], TYPES[:1]),  # v4 looks at 32 sequences at a time
        ),
        Target(0.6, "tensor"),
    ),
    problem("16 heads", (96, 16, 8192), grid(SHAPES[:1], TYPES), Target(0.85, "read")),
)
