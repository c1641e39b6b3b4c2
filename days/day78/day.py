"""Day 78: the next token, drawn from the top-k and top-p logits of a language model."""

from dataclasses import replace
from functools import partial

from common.day import COMPILE, Case, Cost, Exercise, Problem, Rung, Target, Tolerance, grid

from . import tokens

__all__ = ["PROBLEMS", "show"]

TITLE = "Sampling"
TEACHES = "Top-k, top-p and the drawn token are each one radix select; integer masses repeat"
TOPICS = ("sampling", "top-k", "top-p", "radix select", "inference", "fixed point", "cluster")
SOURCE = "sampling.cu"
EXTRA_SOURCES = ("tokens.py",)
INTRODUCES = ("top-k sampling", "top-p sampling", "temperature", "radix select")

EXERCISE = Exercise(
    function="step",
    task=(
        "Find the digit at which the running sum over all digits exceeds t. `before` is the sum of "
        "everything before this thread's first digit. The thread that has the digit stores it, "
        "shifted and added to found.number, with the sums before it."
    ),
    hints=(
        "Only one thread of the block has the digit. By which two comparisons does it know?",
        "Go through digits.at with a running sum. The digit is there if the sum before it is at "
        "most t and the sum after it is more than t, both by measure(…, by).",
        "next = before plus digits.at[i]; if measure(before, by) <= t && t < measure(next, by), "
        "shared.found = {found.number + ((threadIdx.x * PER_THREAD + i) << shift), before}; then "
        "before = next.",
    ),
    first="for (int i = 0; i < PER_THREAD; ++i) {",
    last="before = next;",
)

FLOATS = ["float32", "float16", "bfloat16"]
WHY = "a mass is exp of a rounded difference, in fp32; it is compared with float64"


def cost(case):
    rows, columns = case.shape
    return Cost(bytes=rows * columns * case.itemsize + 24 * rows, flops=4 * rows * columns)


V1 = Rung("sampling_v1_bits", "one bit of the key per pass")
V2 = Rung("sampling_v2_radix", "11 bits per pass, histograms")
V3 = Rung("sampling_v3_cluster", "row as keys in a cluster's shared memory")
V4 = Rung("sampling_v4_bound", "a list of what is not below a bound")
LADDER = (V1, V2, V3, replace(V4, target=Target(3.0, "pytorch")))

top_k_and_p = Problem(
    name="top-k 50, then top-p 0.9",
    inputs=partial(tokens.inputs, temperature=0.8, top_k=50, top_p=0.9),
    reference=tokens.sample,
    rungs=LADDER,
    cases=grid([(2, 136)], FLOATS),
    bench=Case((64, 128256), "bfloat16"),
    bench_cpu=Case((2, 4096), "bfloat16"),
    cost=cost,
    pytorch=tokens.by_pytorch,
    libraries=(COMPILE,),
    tolerance=Tolerance(ulps=32, why=WHY),
)
top_p_alone = replace(
    top_k_and_p,
    name="top-p 0.9 of all tokens",
    inputs=partial(tokens.inputs, temperature=0.8, top_k=1 << 30, top_p=0.9),
    rungs=(V1, V2, replace(V3, target=Target(3.0, "pytorch"))),
    cases=grid([(2, 136)], FLOATS),
)


def checked(name, cases, **options):
    inputs = partial(tokens.inputs, **options)
    return replace(top_k_and_p, name=name, inputs=inputs, cases=cases, rungs=ALL, timed=False)


ALL = (V1, V2, V3, V4)
PROBLEMS = (
    checked(
        "any shape",
        (
            *grid([(1, 1), (3, 2), (0, 8)], FLOATS),
            # As many blocks in a cluster: 1, 2, 4 and 8.
            *grid([(2, 127), (2, 1023), (1, 1025), (1, 2049), (1, 4099)], ["bfloat16"]),
            *grid([(2, 1028), (1, 8200)], ["float32", "float16"]),
        ),
        temperature=1.0,
        top_k=7,
        top_p=0.8,
    ),
    checked(
        "every token",
        (
            *grid([(5, 40), (1, 1025)], FLOATS),
            *grid([(70, 33), (1, 3001)], ["bfloat16"]),
        ),
        temperature=1.5,
        top_k=1 << 30,
        top_p=1.0,
    ),
    checked(
        "many equal logits",
        (*grid([(2, 300)], FLOATS), *grid([(1, 3001)], ["bfloat16", "float32"], "constant")),
        temperature=2.0,
        top_k=270,
        top_p=0.7,
        steps=2,
    ),
    # A cluster of four blocks. The list of the first is too short, those of the others are not; the
    # 3000 tokens come from all four.
    checked(
        "a list that is too short",
        grid([(1, 16384)], ["float32"]),
        temperature=1.0,
        top_k=3000,
        top_p=0.97,
        lifted=2500,
    ),
    checked(
        "unusual numbers",
        (
            *grid([(2, 400)], FLOATS, "large"),
            *grid([(9, 130)], FLOATS, "nonfinite"),
            *grid([(2, 200)], FLOATS, "extreme"),
        ),
        temperature=1.0,
        top_k=100,
        top_p=0.9,
    ),
    checked(
        "wrong u", grid([(6, 136)], FLOATS), temperature=1.0, top_k=20, top_p=1.0, wrong_u=True
    ),
    top_k_and_p,
    top_p_alone,
)


def show(operators, device):
    """Compares how often tokens are drawn with their exact probabilities, by chi-square."""
    tokens.print_chi_square(operators, device)
