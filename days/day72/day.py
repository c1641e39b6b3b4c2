"""Day 72: double quantisation, and products with NF4 weights."""

if __name__ == "__main__":  # python days/day72/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day72

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

from . import quantising
from .quantising import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Double quantisation"
TEACHES = "Scales of scales, a table per lane, and tensor cores that add up for each lane alone"
TOPICS = ("quantisation", "quantization", "NF4", "QLoRA", "GEMV", "tensor cores", "look-up table")
SOURCE = "nf4_double_quant.cu"
EXTRA_SOURCES = ("nf4_gemv.cu", "nf4_tensor_cores.cu")
INTRODUCES = ("double quantisation",)

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
            *grid([*SHAPES, (3, 16576), (0, 64), (3, 0)], ["bfloat16"]),
            *grid([(70, 192)], ["bfloat16"], values="nonfinite"),
            *grid([(40, 1088)], ["bfloat16"], values="offset"),
        ),
        refused=(Case((4, 32), "bfloat16"), Case((4, 96), "bfloat16")),
        bench=Case((16384, 16384), "bfloat16"),
        bench_cpu=Case((64, 1024), "bfloat16"),
        cost=product_cost,
        pytorch=quantising.product_bf16,
        libraries=(Library("mm", quantising.product_mm),),
        rivals=(Library("bitsandbytes", quantising.product_bitsandbytes),),
        tolerance=Tolerance(factor=16, why=WHY),
    ),
)
