"""Products of fp8 with scales: cases, rungs, formulas."""

from functools import lru_cache

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid
from common.references.rivals import use_nvcc

BLOCK = 128
# (M, N, K): less than a tile; whole tiles; odd sizes; several tiles per block; empty.
SHAPES = [(1, 1, 16), (5, 3, 48), (128, 256, 128), (256, 128, 256), (130, 259, 144)]
SHAPES += [(257, 130, 272), (64, 40, 1040), (520, 300, 160), (1030, 514, 128)]
EMPTY = [(0, 16, 16), (16, 0, 16)]
# (M, N, K of A, K of B)
REFUSED = grid([(5, 3, 48, 32), (5, 3, 48, 64)], ["float8_e4m3fn"])


def blocks(size):
    return -(-size // BLOCK)


def operands(case, draw):
    """e4m3: whole numbers up to 4, times a power of two per row. Their sums are exact even with the
    few digits of the tensor cores, so what a kernel gets wrong is seen. accuracy.py has others."""

    def rows_of(rows, K):
        x = (2 * draw(rows, K, dtype="float32")).round().clamp(-4, 4)
        power = draw(rows, 1, dtype="int32", low=-6, high=6)
        return (x * power.float().exp2()).to(torch.float8_e4m3fn)

    M, N, *terms = case.shape
    return rows_of(M, terms[0]), rows_of(N, terms[-1])


def with_row_scales(case, draw):
    M, N = case.shape[:2]
    return *operands(case, draw), *(draw(n, dtype="float32", low=0.001, high=0.1) for n in (M, N))


def with_block_scales(case, draw):
    M, N, K = case.shape[:3]
    shapes = (blocks(K), M), (blocks(K), blocks(N))
    return *operands(case, draw), *(draw(*s, dtype="float32", low=0.001, high=0.1) for s in shapes)


def rounded(product, like):
    """To bf16, but where all is float64."""
    return product if like.dtype == torch.float64 else product.bfloat16()


def wide(x, scale):
    return x.double() if scale.dtype == torch.float64 else x.float()


def row_formula(a, b, a_scale, b_scale):
    product = wide(a, a_scale) @ wide(b, b_scale).T
    return rounded(product * a_scale[:, None] * b_scale, a_scale)


def block_formula(a, b, a_scale, b_scale):
    K, N = a.shape[1], b.shape[0]
    left = wide(a, a_scale) * a_scale.T.repeat_interleave(BLOCK, 1)[:, :K]
    of_b = b_scale.T.repeat_interleave(BLOCK, 0)[:N].repeat_interleave(BLOCK, 1)[:, :K]
    return rounded(left @ (wide(b, b_scale) * of_b).T, a_scale)


def scaled_mm(a, b, a_scale, b_scale, fast=False):
    """fast: sums stay in the tensor cores; else cuBLASLt promotes them as v2 does."""
    scales = {"scale_a": a_scale[:, None], "scale_b": b_scale[None]}
    return torch._scaled_mm(a, b.T, **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


def fast_scaled_mm(a, b, a_scale, b_scale):
    return scaled_mm(a, b, a_scale, b_scale, fast=True)


@lru_cache(maxsize=1)
def by_columns(scale):
    return scale.T.contiguous().T


def scaled_mm_blocks(a, b, a_scale, b_scale):
    """cuBLASLt takes scales of a as (M, K / 128) and of b as (K / 128, N / 128), by columns; those
    of b are copied before the timing. On the CPU PyTorch has no such product."""
    if a.device.type == "cpu":
        return block_formula(a, b, a_scale, b_scale)
    scales = {"scale_a": a_scale.T, "scale_b": by_columns(b_scale)}
    return torch._scaled_mm(a, b.T, **scales, out_dtype=torch.bfloat16)


def deep_gemm_blocks(a, b, a_scale, b_scale):
    """DeepGEMM takes scales of b as (N / 128, K / 128), by rows: they are copied before the
    timing."""
    use_nvcc()
    from deep_gemm import fp8_gemm_nt

    c = a.new_empty(len(a), len(b), dtype=torch.bfloat16)
    fp8_gemm_nt((a, a_scale.T), (b, by_columns(b_scale).T), c)
    return c


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=(M + N) * K + 2 * M * N, flops=2 * M * N * K, unit="fp8")


problems = (
    Problem(
        name="A · Bᵀ, a scale per row",
        inputs=with_row_scales,
        reference=row_formula,
        rungs=(
            Rung("gemm_rows_v1_scaled_at_end", "scales at the end", target=Target(1.0, "pytorch")),
        ),
        cases=grid([*SHAPES, *EMPTY], ["float8_e4m3fn"]),
        refused=REFUSED,
        bench=Case((8192, 8192, 8192), "float8_e4m3fn"),
        bench_cpu=Case((256, 256, 256), "float8_e4m3fn"),
        cost=cost,
        pytorch=fast_scaled_mm,
        libraries=(Library("without use_fast_accum", scaled_mm),),
    ),
    Problem(
        name="A · Bᵀ, a scale per 128 of K",
        inputs=with_block_scales,
        reference=block_formula,
        rungs=(
            Rung(
                "gemm_blocks_v2_promoted",
                "promoted every 128",
                target=(Target(1.0, "pytorch"), Target(1.0, "DeepGEMM")),
            ),
        ),
        cases=grid([*SHAPES, *EMPTY], ["float8_e4m3fn"]),
        refused=REFUSED,
        bench=Case((8192, 8192, 8192), "float8_e4m3fn"),
        bench_cpu=Case((256, 256, 256), "float8_e4m3fn"),
        cost=cost,
        pytorch=scaled_mm_blocks,
        rivals=(Library("DeepGEMM", deep_gemm_blocks),),
    ),
)
