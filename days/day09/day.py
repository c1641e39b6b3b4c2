"""Day 9: layer normalisation."""

if __name__ == "__main__":  # python days/day09/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day09

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid, print_table

TITLE = "Layer normalisation"
TEACHES = "Mean and variance in parallel: two passes, Welford, a row in one warp's registers"
TOPICS = ("layer norm", "normalisation", "reduction", "Welford", "numerics", "registers")
SOURCE = "layer_norm.cu"
INTRODUCES = (
    "Welford's algorithm",
    "warp shuffle",
    "occupancy",
    "spill",
    "fused multiply-add",
)

EPS = 1e-5


def inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(cols, values="normal"), draw(cols, values="normal"), EPS


def reference(x, weight, bias, eps=EPS):
    return F.layer_norm(x, (x.shape[1],), weight, bias, eps)


def cost(case):
    rows, cols = case.shape
    # read x, weight and bias, write y; about 8 operations per element
    return Cost(bytes=2 * (rows + 1) * cols * case.itemsize, flops=8 * rows * cols)


def problem(dtype, rungs, cases):
    return Problem(
        name=f"layer_norm, {dtype}",
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=cases,
        bench=Case((65536, 4096), dtype),
        bench_cpu=Case((64, 4096), dtype),  # a row that is too long for one warp of v4
        cost=cost,
        pytorch=reference,  # one kernel of PyTorch's own
        libraries=(COMPILE,),
    )


V3 = Rung("layer_norm_v3_warp_a_row", "row in one warp's registers")
V4 = Rung("layer_norm_v4_team_a_row", "several warps per row", target=Target(0.9, "copy"))

PROBLEMS = (
    problem(
        "float32",
        (
            Rung("layer_norm_v1_two_passes", "one block per row, mean then variance"),
            Rung("layer_norm_v2_welford", "mean and variance in one pass"),
            V3,
            V4,
        ),
        (
            *grid([(1, 1), (3, 1023), (2, 1024), (3, 1025), (5, 257), (7, 4099)], FLOATS),
            *grid([(0, 8), (4, 0), (129, 3), (5, 512), (2, 2048), (3, 4096), (1, 8192)], FLOATS),
            *grid([(2, 12_288), (1, 33_000)], ["float32", "bfloat16"]),
            # One pack more than lanes hold.
            *grid([(2, 520), (2, 1028), (2, 2052), (2, 4100), (2, 8196)], ["float32"]),
            *grid([(4, 1000), (3, 4096)], FLOATS, values="offset"),
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(4, 520)], ["float16"], values="extreme"),
            *grid([(8, 304)], FLOATS, values="nonfinite"),
            *grid([(3, 104)], FLOATS, values="constant"),
        ),
    ),
    problem("bfloat16", (V3, V4), grid([(6, 4096), (2, 96)], ["bfloat16"])),
)


def textbook(x, weight, bias, eps=EPS):
    """The one-pass formula of many textbooks, E[x²] - E[x]², in the dtype of x."""
    mean = x.mean(1, keepdim=True)
    variance = (x * x).mean(1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp(min=0) + eps) * weight + bias


def show(ops, device):
    """Prints how far each version is from float64, for rows further and further from 0."""
    versions = {
        "E[x²] - E[x]²": textbook,
        "PyTorch": reference,
        "v1 two passes": ops.layer_norm_v1_two_passes,
        "v2 Welford": ops.layer_norm_v2_welford,
        "v3 one warp": ops.layer_norm_v3_warp_a_row,
        "v4 warp team": ops.layer_norm_v4_team_a_row,
    }
    generator = torch.Generator().manual_seed(9)
    noise = torch.randn(64, 4096, generator=generator, dtype=torch.float64)
    one, zero = torch.ones(4096, device=device), torch.zeros(4096, device=device)
    means = (0, 100, 10_000, 1_000_000)
    rows = []
    for name, version in versions.items():
        errors = []
        for mean in means:
            x = (noise + mean).float().to(device)
            truth = reference(x.double(), one.double(), zero.double())
            errors.append(float((version(x, one, zero, EPS).double() - truth).abs().max()))
        rows.append([name, *(f"{error:.1e}" for error in errors)])
    print("largest error of a row's output, deviation 1, fp32, by the mean of the row")
    print_table(["mean", *(f"{mean:,}" for mean in means)], rows)
