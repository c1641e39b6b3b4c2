"""Day 86: a GPT of characters, trained by one launcher per step."""

if __name__ == "__main__":  # python days/day86/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day86

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Train a GPT"
TEACHES = "A whole training step on one buffer of activations, captured in a CUDA graph"
TOPICS = ("GPT", "transformer", "training", "language model", "CUDA graph", "checkpoint")
SOURCE = "train_gpt.cu"
EXTRA_SOURCES = (
    "attention.cu",
    "attention_long.cu",
    "products.cu",
    "many_words.cu",
    "model.py",
    "proof.py",
)
INTRODUCES = ("training checkpoint",)

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
    (2, 300, 1, 2, 8, 301),  # long: three blocks of keys, five tiles of rows
    (3, 37, 1, 1, 264, 40),  # many words, most of which have no token
    (2, 3, 1, 1, 50264, 4),  # GPT-2's
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
            Case(shape, dtype)
            for shape in [(1, 1, 1), (3, 9, 9), (70, 33, 300), (2, 300, 1000)]
            for dtype in ("uint8", "int32")
        ),
        inputs=model.batch_inputs,
        reference=model.draw_batch,
        outputs_exact=True,
    ),
)
