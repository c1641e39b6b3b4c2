"""Day 71: NF4."""

if __name__ == "__main__":  # python days/day71/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day71

from common.day import FLOATS, Case, Cost, Library, Problem, Rung, Target, grid

from .quantising import (
    codes_and_absmax,
    dequantized,
    dequantized_bitsandbytes,
    dequantized_compiled,
    dequantized_pytorch,
    numbers_and_block,
    quantized,
    quantized_bitsandbytes,
    quantized_compiled,
    quantized_pytorch,
)

TITLE = "NF4"
TEACHES = "Quantising to 16 uneven levels: absmax by shuffles, and a search of one comparison"
TOPICS = ("quantisation", "quantization", "NF4", "QLoRA", "int4", "look-up table", "shuffles")
SOURCE = "nf4.cu"
INTRODUCES = ("NF4", "absmax")


def cost(case):
    n, block = case.shape
    return Cost(bytes=2 * n + n // 2 + 4 * n // block)


SIZES = [(1, 64), (35, 32), (63, 64), (64, 64), (65, 64), (1001, 32), (1003, 64), (1024, 128)]
SIZES += [(4101, 64), (8227, 32), (2049, 128), (0, 64)]
SIZES += [(8261, 64), (8321, 128)]  # more than the 8192 elements of a thread block of v3
LARGE = Case((1 << 28, 64), "bfloat16")

PROBLEMS = (
    Problem(
        name="quantize",
        inputs=numbers_and_block,
        reference=quantized,
        rungs=(
            Rung("quantize_v1_block_per_thread", "one block per thread, 15 comparisons"),
            Rung("quantize_v2_shuffles", "16 bytes per thread, absmax by shuffles"),
            Rung("quantize_v3_cells", "one comparison", target=Target(0.85, "copy")),
        ),
        cases=(
            *grid(SIZES, FLOATS),
            *(
                case
                for values in ("nonfinite", "extreme", "tiny", "offset")
                for case in grid([(700, 64), (2600, 128), (8400, 64)], FLOATS, values=values)
            ),
        ),
        refused=(Case((100, 16)), Case((100, 96)), Case((100, 256)), Case((0, 0))),
        bench=LARGE,
        bench_cpu=Case((1 << 14, 64), "bfloat16"),
        cost=cost,
        pytorch=quantized_pytorch,
        libraries=(Library("compile", quantized_compiled),),
        rivals=(Library("bitsandbytes", quantized_bitsandbytes),),
        outputs_exact=True,
    ),
    Problem(
        name="dequantize",
        inputs=codes_and_absmax,
        reference=dequantized,
        rungs=(
            Rung("dequantize_v1_one_byte", "two elements per thread"),
            Rung("dequantize_v2_packs", "16-byte stores", target=Target(0.85, "copy")),
        ),
        cases=(
            *grid(SIZES, ["bfloat16"]),
            *grid([(700, 64), (2600, 128)], ["bfloat16"], values="nonfinite"),
        ),
        refused=(Case((100, 16)), Case((100, 96)), Case((100, 256))),
        bench=LARGE,
        bench_cpu=Case((1 << 14, 64), "bfloat16"),
        cost=cost,
        pytorch=dequantized_pytorch,
        libraries=(Library("compile", dequantized_compiled),),
        rivals=(Library("bitsandbytes", dequantized_bitsandbytes),),
    ),
)
