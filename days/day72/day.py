"""Day 72: double quantisation, and products with NF4 weights."""

import torch

from common.day import (
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    print_table,
)

from . import quantising

TITLE = "Double quantisation"
TEACHES = "Scales of scales, a table per lane, and tensor cores that add up for each lane alone"
TOPICS = ("quantisation", "quantization", "NF4", "QLoRA", "GEMV", "tensor cores", "look-up table")
SOURCE = "nf4_double_quant.cu"
EXTRA_SOURCES = ("nf4_gemv.cu",)
INTRODUCES = ("double quantisation",)

EXERCISE = Exercise(
    function="pair_of",
    source="nf4_gemv.cu",
    task=(
        "Return the lane's copy of the table's entry whose index is byte `at` of `word`. Entry e "
        "begins at byte 256 e of tables, and has 32 copies of type T, one per lane."
    ),
    hints=(
        "The offset in bytes is 256 times the index, plus sizeof(T) * lane, which is below 256. So "
        "its byte 0 is sizeof(T) * lane, its byte 1 is the index, and no sum is needed.",
        "__byte_perm(x, y, selector) takes any four bytes of x (0 to 3) and y (4 to 7). Digit i of "
        "the selector, hexadecimal and from the right, says which byte i of the result is.",
        "__byte_perm(word, sizeof(T) * lane, 0x5504 | at << 4) is the offset: 4 is the lowest byte "
        "of the second argument, and 5 a byte of zeros. Load a T from tables + offset.",
    ),
)

WHY = "sums of both signs; a few of many cancel to almost 0"


def product_cost(case):
    N, K = case.shape
    blocks = N * K // 64
    return Cost(bytes=N * K // 2 + blocks + blocks // 64 + 2 * (N + K), flops=2 * N * K)


SHAPES = [(1, 64), (3, 128), (64, 192), (65, 256), (70, 1088), (33, 832), (5, 2112), (130, 384)]

PROBLEMS = (
    Problem(
        name="quantise absmaxes",
        inputs=quantising.absmaxes_to_quantize,
        reference=quantising.quantized,
        rungs=(Rung("quantize_absmax", "a binary search of 8 steps"),),
        cases=(
            *grid([(1,), (255,), (256,), (257,), (1000,), (2049,), (0,)], ["float32"]),
            *(
                case
                for values in ("uniform", "nonfinite", "extreme", "tiny", "constant")
                for case in grid([(2048,)], ["float32"], values=values)
            ),
        ),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="NF4 weights · x",
        inputs=quantising.vector_and_weights,
        reference=quantising.product,
        rungs=(
            Rung("nf4_gemv_v1_two_steps", "W in bf16 first, then cuBLAS", calls=("matmul",)),
            Rung("nf4_gemv_v2_levels", "one kernel, a level per code"),
            Rung("nf4_gemv_v3_pairs", "two levels per byte, a table per lane"),
            Rung("nf4_gemv_v4_tensor_cores", "mma adds up", target=Target(2.5, "pytorch")),
        ),
        cases=(
            *grid([*SHAPES, (0, 64), (3, 0)], ["bfloat16"]),
            *grid([(70, 192)], ["bfloat16"], values="nonfinite"),
            *grid([(40, 1088)], ["bfloat16"], values="offset"),
        ),
        refused=(Case((4, 32), "bfloat16"), Case((4, 96), "bfloat16")),
        bench=Case((16384, 16384), "bfloat16"),
        bench_cpu=Case((64, 1024), "bfloat16"),
        cost=product_cost,
        pytorch=quantising.product_bf16,
        libraries=(Library("mm", quantising.product_mm),),
        tolerance=Tolerance(factor=16, why=WHY),
    ),
)


def show(operators, device):
    """Prints the error of 2^20 weights, with absmaxes in fp32 and quantised themselves."""
    rows = []
    for name, degrees in (("normal", None), ("Student's t, 5 degrees", 5)):
        torch.manual_seed(72)
        w = torch.randn(1 << 20)
        if degrees:
            w *= (degrees / torch.randn(degrees, 1 << 20).square().sum(0)).sqrt()
        once, twice = quantising.errors(operators, w.to(device))
        rows.append([name, f"{100 * once:.3f} %", f"{100 * twice:.3f} %"])
    print("error of NF4 weights, root mean square, relative to the weights")
    print_table(["weights", "fp32 absmax, 4.500 bits", "8-bit absmax, 4.127 bits"], rows)
