"""Day 78: the next token, drawn from the top-k and top-p logits of a language model."""

if __name__ == "__main__":  # python days/day78/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day78

from dataclasses import replace

from common.day import COMPILE, FLOATS, Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

from . import tokens

__all__ = ["PROBLEMS", "show"]

TITLE = "Sampling"
TEACHES = "Top-k, top-p and the drawn token are each one radix select; integer masses repeat"
TOPICS = ("sampling", "top-k", "top-p", "radix select", "inference", "fixed point", "cluster")
SOURCE = "sampling.cu"
EXTRA_SOURCES = ("tokens.py",)
INTRODUCES = ("top-k sampling", "top-p sampling", "temperature", "radix select")

ALL = 1 << 30  # as k: every token
WHY = "a mass is exp of a rounded difference, in fp32; it is compared with float64"


def cost(case):
    rows, columns = case.shape[:2]
    return Cost(bytes=rows * columns * case.itemsize + 24 * rows, flops=4 * rows * columns)


V1 = Rung("sampling_v1_bits", "one bit of the key per pass")
V2 = Rung("sampling_v2_radix", "10 bits per pass, histograms")
V3 = Rung("sampling_v3_cluster", "row as keys in a cluster's shared memory")
V4 = Rung("sampling_v4_bound", "a list of what is not below a bound")

TARGETS = (Target(3.0, "pytorch"), Target(1.0, "FlashInfer"))

# (rows, tokens, k, percent of top-p)
CASES = (
    *grid([(1, 1, 7, 80), (3, 2, 7, 80), (0, 8, 7, 80), (2, 31, 7, 80)], FLOATS),
    *grid([(2, 136, 50, 90), (5, 40, ALL, 100)], FLOATS),
    *grid([(2, 127, ALL, 100), (2, 1023, 7, 80)], ["bfloat16"]),
    # Many equal logits, at the last place of top-k too; numbers u that are not in [0, 1).
    *grid([(6, 300, 270, 70)], FLOATS, "uniform"),
    # Exactly half of the mass.
    *grid([(2, 300, 64, 50)], FLOATS, "constant"),
    *grid([(2, 400, 100, 90)], FLOATS, "large"),
    *grid([(9, 130, 100, 90)], FLOATS, "nonfinite"),
    *grid([(2, 200, 100, 90)], FLOATS, "extreme"),
)
# Clusters of 2, 4 and 8 blocks, with single elements and with whole chunks.
LONG = (
    *grid([(1, 8200, 7, 80)], ["bfloat16"]),
    *grid([(1, 4099, 7, 80), (1, 8195, ALL, 100), (1, 16387, 7, 80)], ["float32"]),
    # A cluster of four blocks. The list of the first is too short, those of the others are not; the
    # tokens come from all four.
    *grid([(1, 16384, 3000, 97)], ["float32"], "offset"),
    *grid([(1, 128256, 50, 90)], ["bfloat16"]),
)

top_k_and_p = Problem(
    name="top-k 50, then top-p 0.9",
    inputs=tokens.inputs,
    reference=tokens.sample,
    rungs=(V1, V2, V3, replace(V4, target=TARGETS)),
    cases=CASES,
    refused=(Case((2, 0, 7, 80), "bfloat16"), Case((1, (1 << 22) + 1, 7, 80), "bfloat16")),
    bench=Case((64, 128256, 50, 90), "bfloat16"),
    bench_cpu=Case((2, 4096, 50, 90), "bfloat16"),
    cost=cost,
    pytorch=tokens.by_pytorch,
    libraries=(COMPILE,),
    rivals=(Library("FlashInfer", tokens.flashinfer),),
    tolerance=Tolerance(ulps=32, why=WHY),
)
PROBLEMS = (
    top_k_and_p,
    replace(
        top_k_and_p,
        name="top-p 0.9 of all tokens",
        rungs=(V1, V2, replace(V3, target=TARGETS)),
        cases=grid([(2, 136, ALL, 90)], FLOATS),
        refused=(),
        bench=Case((64, 128256, ALL, 90), "bfloat16"),
        bench_cpu=Case((2, 4096, ALL, 90), "bfloat16"),
    ),
    # Without v1, whose 66 passes over such rows take long on the CPU.
    replace(
        top_k_and_p,
        name="a whole vocabulary",
        rungs=(V2, V3, V4),
        cases=LONG,
        refused=(),
        timed=False,
    ),
)


def show(operators, device):
    """Compares how often tokens are drawn with their exact probabilities, by chi-square."""
    tokens.print_chi_square(operators, device)
