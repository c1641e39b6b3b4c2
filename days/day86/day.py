"""Day 86: a GPT of characters, trained by one launcher per step."""

from common.day import Case, Cost, Exercise, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Train a GPT"
TEACHES = "A whole training step on one buffer of activations, captured in a CUDA graph"
TOPICS = ("GPT", "transformer", "training", "language model", "CUDA graph", "checkpoint")
SOURCE = "train_gpt.cu"
EXTRA_SOURCES = ("attention.cu", "products.cu", "model.py", "proof.py")
INTRODUCES = ("training checkpoint",)
EQUIVALENT = {  # mutants that compute the same, and why
    "norms.cuh: each_chunk: comparison: `k < CHUNKS` -> `k <= CHUNKS`": (
        "CHUNKS of them have all columns of a row"
    ),
    "train_gpt.cu: Step::by_chunks: rounded down: `ceil_div<int64_t>(s.C(), 32 * EIGHT)` -> "
    "`((s.C()) / (32 * EIGHT))`": "more chunks per lane than a row has",
    "train_gpt.cu: Step::add_parts: rounded down: `ceil_div<int64_t>(sums, 32)` -> "
    "`((sums) / (32))`": "a head has 64 columns, so nothing is rounded",
    "train_gpt.cu: Step::norm_backward: comparison: `bias < 0` -> `bias <= 0`": (
        "the buffer of parameters begins with a matrix"
    ),
    "attention.cu: attention_forward: constant off by one: `flash::BM + 4` -> `flash::BM + 5`": (
        "more shared memory than is used"
    ),
    "attention.cu: attention_forward: constant off by one: `8 / n.scale_log2` -> "
    "`9 / n.scale_log2`": "sums are rescaled later, which changes no result",
    "attention.cu: row_numbers_kernel: comparison: `i < packs` -> `i <= packs`": (
        "one chunk more of the same buffer is read, and not stored"
    ),
    "adamw.cuh: coefficients_kernel: comparison: `t <= length` -> `t < length`": (
        "at t = length both are length - 1"
    ),
    "adamw.cuh: adamw_kernel: constant off by one: `g[4]` -> `g[5]`": "more than is used",
    "norms.cuh: norm_kernel: constant off by one: `32 == 0` -> `32 == 1`": (
        "all lanes have the row's mean and rstd"
    ),
    "norms.cuh: norm_kernel: constant off by one: `threadIdx.x % 32` -> `threadIdx.x % 33`": (
        "that is one lane of each warp, too, and all have the row's mean and rstd"
    ),
    "passes.cuh: pass_kernel: bounds check dropped: `mine < WIDE * EIGHT && to < cols` -> "
    "`mine < WIDE * EIGHT`": "sums are of 64 columns per head, so none lies beyond the last",
}

EXERCISE = Exercise(
    function="cross_entropy_kernel",
    first="const float scale",
    last="if (lane == 0) losses",
    task=(
        "`mine` has this lane's logits, `most` the row's maximum, `sum` the sum of exp(logit - "
        "most), `at_target` the target's logit. Store the gradient of the mean loss over all rows "
        "in the place of each logit, and the row's loss; both are NaN unless `valid`."
    ),
    hints=(
        "The loss is log of the sum of exponentials, minus the target's logit. Its derivative by a "
        "logit is that logit's softmax, minus 1 at the target.",
        "Of a mean over `rows` losses, each gradient is divided by `rows`. A factor of NaN makes "
        "all gradients of a row NaN.",
        "For k of mine: i = 32 * k + lane, and if i < words, x[i] becomes (expf(mine[k] - most) / "
        "sum - (i == target)) * scale. Lane 0 stores logf(sum) + (most - at_target).",
    ),
)

# (B, S, layers, heads, words, positions)
SHAPES = [
    (1, 3, 1, 1, 8, 4),
    (1, 1, 1, 1, 8, 1),
    (2, 5, 1, 1, 16, 8),
    (3, 37, 2, 1, 72, 40),
    (1, 70, 1, 3, 136, 70),
    (2, 130, 1, 1, 8, 131),  # two tiles of keys and more than one of rows
    (1, 2, 1, 4, 8, 2),  # a chunk of a row for each lane
    (1, 2, 1, 5, 8, 2),  # two chunks
]
NANO = (64, 256, 6, 6, 72, 256)  # nanoGPT's for Shakespeare: 10.8 million parameters
SMALL = (2, 16, 1, 1, 72, 16)


def cost(case):
    B, S, layers, heads, words, _ = case.shape
    rows, C = B * S, 64 * heads
    products = 6 * rows * (12 * layers * C * C + words * C)
    attention = 7 * layers * rows * (S + 1) * C
    return Cost(flops=products + attention, unit="tensor")


PROBLEMS = (
    Problem(
        name="training step",
        rungs=(
            Rung("train_step_v1_separate", "one pass per operation"),
            Rung("train_step_v2_fused", "passes that meet are one"),
            Rung(
                "train_step_v3_epilogues",
                "GELU and sums in the products",
                target=Target(1, "pytorch"),
            ),
        ),
        cases=tuple(Case(shape, "bfloat16") for shape in SHAPES),
        bench=Case(NANO, "bfloat16"),
        bench_cpu=Case(SMALL, "bfloat16"),
        cost=cost,
        inputs=model.inputs,
        reference=model.step,
        pytorch=model.eager,
        pytorch_not_captured="the eager loop is what the target names",
        libraries=(Library("captured", model.eager), Library("compile", model.compiled)),
        tolerance=Tolerance(
            ulps=8,
            factor=8,
            at_zero=1e-8,
            why="a weight and its step may cancel, and what is left is rounding; so do the terms "
            "of the gradient of q and k where a sequence has one token",
        ),
    ),
    Problem(
        name="logits",
        timed=False,
        rungs=(Rung("gpt_logits", "the forward pass alone"),),
        cases=tuple(Case(shape, "bfloat16") for shape in SHAPES[1:]),
        inputs=model.logits_inputs,
        reference=model.logits,
        tolerance=Tolerance(ulps=4, factor=8, why="rounded once more per layer than PyTorch is"),
    ),
    Problem(
        name="batches",
        timed=False,
        rungs=(Rung("draw_batch", "Philox by step and sequence"),),
        cases=tuple(
            Case(shape, "uint8") for shape in [(1, 1, 1), (3, 9, 9), (70, 33, 300), (2, 300, 1000)]
        ),
        inputs=model.batch_inputs,
        reference=model.draw_batch,
        outputs_exact=True,
    ),
)
