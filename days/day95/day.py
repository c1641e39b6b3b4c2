"""Day 95: a tensor library that fuses operations into generated CUDA."""

if __name__ == "__main__":  # python days/day95/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day95

from common.day import COMPILE, Case, Problem, Rung, Target, grid, one_tensor

from . import expressions as e
from .compile import Options
from .proof import fused, launched, show

__all__ = ["PROBLEMS", "show"]

TITLE = "A fusing just-in-time compiler"
TEACHES = "Lazy tensors, a scheduler and a printer of CUDA: any expression as few kernels"
TOPICS = ("compiler", "fusion", "code generation", "JIT", "lazy evaluation", "torch.compile")
SOURCE = "fusion_jit.cu"
EXTRA_SOURCES = (
    "lazy.py",
    "schedule.py",
    "plan.py",
    "codegen.py",
    "compile.py",
    "expressions.py",
    "proof.py",
)
INTRODUCES = ("lazy evaluation", "just-in-time compilation", "rematerialisation")

EAGER = Options("none", wide=False)
ELEMENTWISE = Options("elementwise", wide=False)
ROWS = Options("rows", wide=False)
WIDE = Options("rows", wide=True)
AT_COMPILE = Target(0.9, "compile")
BENCH = (16384, 4096)
# (rows, columns): a warp per row, a block per row, rows that do not fit into registers
SHAPES = [(5, 24), (3, 1000), (2, 1003), (1, 1), (33, 130), (0, 8)]
LONG = [(2, 36_000), (1, 80_000)]


def problem(name, expression, versions, cases, inputs=one_tensor, **options):
    """versions: (rung's suffix, idea, Options, Target or None)."""
    rungs = []
    dtype = options.pop("dtype")
    bench, bench_cpu = Case(BENCH, dtype), Case((64, 1000), dtype)
    for suffix, idea, how, target in versions:
        load = fused(expression, how, inputs, cases, {"cuda": bench, "cpu": bench_cpu})
        rungs.append(Rung(f"{name}_{suffix}", idea, load=load, target=target))
    return Problem(
        name=name.replace("_", " "),
        inputs=inputs,
        reference=expression,
        rungs=tuple(rungs),
        cases=cases,
        bench=bench,
        bench_cpu=bench_cpu,
        libraries=(COMPILE,),
        **options,
    )


V1 = ("v1_eager", "one kernel per operation", EAGER, None)
V2 = ("v2_elementwise", "element-wise chains fused", ELEMENTWISE, None)
V3 = ("v3_rows", "reductions too, row in registers", ROWS, None)
V4 = ("v4_wide", "16 bytes per load", WIDE, AT_COMPILE)
ALL = ["float32", "float16", "bfloat16"]
VALUES = tuple(
    Case((7, 40), dtype, values)
    for dtype in ("float32", "bfloat16")
    for values in ("nonfinite", "extreme", "constant")
)
ROW_CASES = (
    *grid(SHAPES, ["float32"]),
    *grid(SHAPES[:3], ["bfloat16"]),
    *grid(SHAPES[:1], ["float16"]),
    *grid(LONG, ["bfloat16"]),
    *VALUES,
)

BY_HAND = [(5, 24), (3, 1000), (2, 1003), (1, 1), (1, 33), (33, 128), (0, 8), (9, 66)]
LAUNCH = Case((5, 24))

PROBLEMS = (
    Problem(
        "scale by hand",
        e.scale_inputs,
        e.scale,
        rungs=(Rung("scale_by_hand", "element-wise skeleton"),),
        cases=(*grid(BY_HAND, ["float32"]), Case((7, 40), values="nonfinite")),
        timed=False,
    ),
    Problem(
        "softmax by hand",
        one_tensor,
        e.torch_softmax,
        rungs=(Rung("softmax_by_hand", "row skeleton"),),
        cases=(
            *grid(BY_HAND, ["float32"]),
            *(Case((7, columns), values="nonfinite") for columns in (40, 200, 201)),
        ),
        timed=False,
    ),
    Problem(
        "launch",
        e.launch_inputs,
        e.launch,
        rungs=(Rung("launch", "a kernel by its address", load=launched(e.gelu, LAUNCH)),),
        cases=(Case((*LAUNCH.shape, 1)),),
        refused=(Case((*LAUNCH.shape, 0)),),
        timed=False,
    ),
    problem(
        "chain",
        e.chain,
        (V1, V2, V4),
        (
            *grid([*SHAPES, (3, 0)], ["float32"]),
            *grid(SHAPES[:3], ["bfloat16"]),
            *grid(SHAPES[:1], ["float16"]),
            *VALUES,
        ),
        e.chain_inputs,
        dtype="bfloat16",
        pytorch=e.torch_chain,
        cost=e.cost(3, 2, 11),
    ),
    problem(
        "softmax",
        e.softmax,
        (V1, V2, V3, V4),
        ROW_CASES,
        dtype="float32",
        pytorch=e.torch_softmax,
        cost=e.cost(2, 0, 5),
    ),
    problem(
        "layer_norm",
        e.layer_norm,
        (V1, V2, V3, V4),
        ROW_CASES,
        e.norm_inputs,
        dtype="bfloat16",
        pytorch=e.torch_layer_norm,
        cost=e.cost(2, 2, 9),
    ),
)
