"""Day 39: quantisation."""

if __name__ == "__main__":  # python days/day39/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day39

import torch

from common.day import (
    COMPILE,
    FLOATS,
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    print_table,
    seconds,
)

from . import quantising

TITLE = "Quantisation"
TEACHES = "int8 on dp4a and tensor cores, int4 weights; scales, zero points, packing"
TOPICS = ("quantisation", "quantization", "int8", "int4", "matmul", "GEMV", "tensor cores", "dp4a")
SOURCE = "quantization_ops.cu"
EXTRA_SOURCES = ("int8_matmul.cu", "int4_matmul.cu")
INTRODUCES = (
    "quantisation",
    "zero point",
    "per-channel scale",
    "weight-only quantisation",
    "dp4a",
)

UNUSUAL = [
    case
    for values in ("tiny", "offset", "uniform")
    for case in grid([(5, 256)], FLOATS, values=values)
]


def one_matrix(case, draw):
    """Every fifth row is 0, which no scale fits, and the one before it is negated."""
    x = draw(*case.shape)
    x[3::5] *= -1
    x[4::5] = 0
    return (x,)


def int8_operands(case, draw):
    M, N, K = case.shape
    return tuple(draw(rows, K, dtype="int8") for rows in (M, N))


def int8_with_scales(case, draw):
    """One scale for each operand in cases of "uniform" values, and else one per row."""
    M, N, _ = case.shape
    rows = (1, 1) if case.values == "uniform" else (M, N)
    scales = (draw(n, dtype="float32", low=0.001, high=0.1) for n in rows)
    return (*int8_operands(case, draw), *scales)


def int4_operands(case, draw):
    M, N, K = case.shape
    words = draw(N, K // 8, dtype="int32")
    params = draw(K // 128, N, 2, low=0.01, high=0.1)
    params[..., 1] = draw(K // 128, N, dtype="int32", low=0, high=16)
    return draw(M, K), words, params


def quantiser(rung, idea, reference, cases):
    return Problem(
        name=rung.replace("_", " "),
        inputs=one_matrix,
        reference=reference,
        rungs=(Rung(rung, idea),),
        cases=(*cases, *UNUSUAL),
        timed=False,
        outputs_exact=True,
    )


def int8_cost(case, result_bytes=4):
    M, N, K = case.shape
    return Cost(bytes=(M + N) * K + result_bytes * M * N, flops=2 * M * N * K, unit="int8")


def int4_cost(case):
    M, N, K = case.shape
    return Cost(bytes=N * K // 128 * 68 + 2 * M * (K + N), flops=2 * M * N * K, unit="tensor")


V1 = Rung("int4_v1_one_by_one", "each weight converted by itself")
V2 = Rung("int4_v2_pairs", "two weights become bf16 by one instruction")


def int4_problem(name, batch, rungs, target, cases):
    return Problem(
        name=f"int4 weights, {name}",
        inputs=int4_operands,
        reference=quantising.linear,
        rungs=(*rungs, Rung("int4_v3_tensor_cores", "mma and a ring", target=target)),
        cases=cases,
        bench=Case((batch, 28672, 8192), "bfloat16"),
        bench_cpu=Case((batch, 256, 1024), "bfloat16"),
        cost=int4_cost,
        pytorch=quantising.linear_bf16,
        libraries=(Library("tinygemm", quantising.tinygemm),),
        rivals=(Library("Humming", quantising.humming),),
    )


SIZES = [(1, 1, 16), (5, 3, 48), (64, 64, 128), (65, 66, 144), (17, 130, 272), (130, 7, 528)]
SIZES += [(2, 2, 32), (0, 4, 16), (4, 0, 16), (4, 4, 0)]
BATCH_1 = [(1, 1, 128), (1, 5, 256), (1, 64, 1152), (1, 65, 512), (1, 131, 1920)]
BATCH_1 += [(0, 4, 128), (3, 0, 128), (2, 3, 0)]

PROBLEMS = (
    quantiser(
        "quantize_int8",
        "one scale per row",
        quantising.scaled_int8,
        grid([(1, 1), (9, 33), (3, 700), (6, 257), (2, 8192), (0, 8), (4, 0)], FLOATS),
    ),
    quantiser(
        "quantize_int4",
        "one scale and zero point per group",
        quantising.grouped_int4,
        grid([(1, 128), (5, 384), (13, 256), (0, 128), (4, 0)], FLOATS),
    ),
    Problem(
        name="int8, int32 result",
        inputs=int8_operands,
        reference=quantising.product,
        rungs=(
            Rung("int8_v1_dp4a", "four products per instruction"),
            Rung("int8_v2_tensor_cores", "mma of bytes on tiles filled by cp.async"),
        ),
        cases=grid(SIZES, ["int8"]),
        bench=Case((4096, 4096, 4096), "int8"),
        bench_cpu=Case((64, 64, 256), "int8"),
        cost=int8_cost,
        pytorch=quantising.int_mm,
    ),
    Problem(
        name="int8, scaled to bf16",
        inputs=int8_with_scales,
        reference=quantising.scaled_product,
        rungs=(Rung("int8_v3_scaled", "scales in the epilogue"),),
        cases=(
            *grid(SIZES, ["int8"]),
            *grid([(20, 130, 160)], ["int8"], values="uniform"),
        ),
        bench=Case((4096, 4096, 4096), "int8"),
        bench_cpu=Case((64, 64, 256), "int8"),
        cost=lambda case: int8_cost(case, 2),
        pytorch=quantising.int_mm_scaled,
        libraries=(COMPILE,),
    ),
    int4_problem(
        "batch 1",
        1,
        (V1, V2),
        (Target(2.5, "pytorch"), Target(1.0, "Humming")),
        (
            *grid(BATCH_1, ["bfloat16"]),
            *grid([(1, 40, 1152)], ["bfloat16"], values="offset"),  # sums beyond fp16
        ),
    ),
    int4_problem(
        "batch 16",
        16,
        (V2,),
        (Target(1.0, "pytorch"), Target(1.0, "Humming")),
        (
            *grid([(16, 65, 640), (7, 130, 512), (8, 33, 256), (9, 70, 1664), (37, 20, 384)],
                  ["bfloat16"]),
            *grid([(8, 20, 256), (18, 5, 128)], ["bfloat16"], values="nonfinite"),
        ),
    ),
)  # fmt: skip


def show(operators, device):
    """Prints the error that each choice of scales makes."""
    generator = torch.Generator().manual_seed(39)
    w = torch.randn(1024, 1024, generator=generator)
    loud = w * torch.where(torch.rand(1024, 1, generator=generator) < 0.01, 30.0, 1.0)
    spiky = w * torch.where(torch.rand(w.shape, generator=generator) < 0.001, 30.0, 1.0)
    rows = []
    for name, weights in (("normal", w), ("1 % of rows × 30", loud), ("0.1 % × 30", spiky)):
        weights = weights.to(device)
        errors = quantising.row_errors(operators, weights)
        rows.append([name, *(f"{100 * error:.2f} %" for error in errors)])
    print("error of a row of weights, root mean square, relative to the row; median of the rows")
    print_table(["weights", "int8, one scale", "int8 per row", "int4 per row", "int4 groups"], rows)


def show_times(operators, device):
    """On a GPU, prints int4 by batch size."""
    if device.type != "cuda":
        return
    N, K, table = 28672, 8192, []
    words = torch.randint(-(2**31), 2**31, (N, K // 8), device=device).int()
    params = torch.full((K // 128, N, 2), 8.0, device=device).bfloat16()
    params[..., 0] = 0.02
    dense = quantising.dequantized(words, params)
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        x = torch.randn(batch, K, device=device).bfloat16()
        ours = seconds(lambda x=x: operators.int4_v3_tensor_cores(x, words, params))
        theirs = seconds(lambda x=x: torch.nn.functional.linear(x, dense))
        both = (f"{1e6 * ours:.1f}", f"{1e6 * theirs:.1f}")
        table.append([str(batch), *both, f"{theirs / ours:.2f}"])
    print(f"{N}×{K} weights, µs")
    print_table(["batch", "int4 v3", "bf16 F.linear", "speed-up"], table)
