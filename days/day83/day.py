"""Day 83: a feed-forward network with its residual addition and dropout, for training."""

if __name__ == "__main__":  # python days/day83/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day83

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import COMPILE, FLOATS, HALVES, Case, Cost, Problem, Rung, Target, Tolerance, grid

from . import network
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Feed-forward network, fused"
TEACHES = "Epilogues of an own product: GELU, dropout and residual, forward and backward"
TOPICS = ("MLP", "GELU", "dropout", "residual", "epilogue", "wgmma", "training", "fusion")
SOURCE = "ffn_residual.cu"
EXTRA_SOURCES = ("ffn_backward.cu", "network.py", "proof.py")
INTRODUCES = ("feed-forward network",)

# (rows, C, H): around the chunks of a row, the 128 × 192 of a tile, the 64 values of a step
SHAPES = [(1, 8, 8), (5, 16, 72), (130, 72, 200), (67, 200, 264)]
ODD = [(1, 1, 1), (3, 5, 9), (9, 12, 20)]  # for v3, rows that TMA does not take
EMPTY = [(0, 8, 16), (4, 0, 8), (4, 8, 0)]
MANY = [(300, 264, 520)]  # more tiles than the multiprocessors of a small card

WHY = "two products, with the rounding of the first in the second"
PRODUCTS = ("linear", "matmul")


def cost(passes):
    """passes: 1 forward, 3 with the backward pass."""

    def of(case):
        rows, C, H = case.shape
        moved = 2 * rows * C + (1 if passes == 1 else 2) * 2 * C * H
        return Cost(bytes=moved * case.itemsize, flops=passes * 4 * rows * C * H, unit="tensor")

    return of


def problem(name, passes, rungs, cases, **options):
    return Problem(
        name=name,
        inputs=network.inputs,
        rungs=rungs,
        cases=cases,
        bench=Case((16384, 1024, 4096), "bfloat16"),
        bench_cpu=Case((64, 64, 256), "bfloat16"),
        cost=cost(passes),
        libraries=(COMPILE,),
        own_numbers=True,
        tolerance=Tolerance(factor=8, why=WHY),
        **options,
    )


def step(version, idea, target=None, **options):
    return Rung(
        f"step_{version}",
        idea,
        load=lambda builder: network.with_gradients(builder.operators(), version),
        calls=PRODUCTS,
        target=target,
        **options,
    )


FORWARD = (
    *grid([*SHAPES, *ODD], FLOATS),
    *grid(EMPTY, ["float32", "bfloat16"]),
    *grid(MANY, ["bfloat16"]),
    *grid([(9, 24, 40)], FLOATS, values="large"),
    *grid([(130, 24, 40)], FLOATS, values="nonfinite"),
)
STEP = (
    *grid([(5, 16, 72), (3, 5, 9)], FLOATS),
    *grid([(1, 8, 8), (9, 12, 20), *EMPTY], ["float32", "bfloat16"]),
    *grid([(12, 16, 40), (130, 72, 200), *MANY], ["bfloat16"]),
    *grid([(1, 16, 72)], ["bfloat16"], values="nonfinite"),
)
SMALL = [(5, 16, 72)]


def alone(name, operator, inputs, reference):
    """An operator of 16 bits with arguments that the problems above do not give it."""
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(Rung(operator, "no tiles for fp32", calls=PRODUCTS),),
        cases=grid(SMALL, HALVES[:1]),
        refused=grid(SMALL, FLOATS[:1]),
        timed=False,
        tolerance=Tolerance(factor=8, why=WHY),
        unwatched=CUBLAS_UNWATCHED,
    )


PROBLEMS = (
    problem(
        "forward",
        1,
        (
            Rung("ffn_v1_separate", "one kernel per operation", calls=PRODUCTS),
            Rung("ffn_v2_fused", "dropout and addition in one pass", calls=PRODUCTS),
            Rung(
                "ffn_v3_epilogues",
                "all of it in the products",
                dtypes=("float16", "bfloat16"),
                calls=PRODUCTS,
            ),
            Rung(
                "ffn_v4_wide",
                "wide tiles for few columns",
                dtypes=("float16", "bfloat16"),
                calls=PRODUCTS,
                target=Target(1.2, "pytorch"),
            ),
        ),
        FORWARD,
        reference=network.forward,
        pytorch=network.eager_with_all,
        unwatched=CUBLAS_UNWATCHED,
    ),
    problem(
        "training step",
        3,
        (
            step("v1_separate", "one kernel per operation"),
            step("v2_fused", "sums in the passes"),
            step(
                "v3_epilogues",
                "GELU', its sum and the addition in products",
                dtypes=("float16", "bfloat16"),
            ),
            step(
                "v4_wide",
                "wide tiles for few columns",
                Target(1.2, "pytorch"),
                dtypes=("float16", "bfloat16"),
            ),
        ),
        STEP,
        reference=network.out_alone,
        pytorch=network.eager,
        gradients=True,
        unwatched=CUBLAS_UNWATCHED,
    ),
    alone("forward of 16 bits", "ffn_v3_epilogues", network.inputs, network.forward),
    alone(
        "backward of 16 bits",
        "ffn_backward_v3_epilogues",
        network.backward_inputs,
        network.gradients,
    ),
)
