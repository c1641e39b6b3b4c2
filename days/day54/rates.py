"""Rates of other tiles and numbers of stages, and of stream-K where the last wave is short."""

from functools import partial

import torch

from common.day import print_table, rows_as_json, seconds

FILE = "rates.json"  # what --write stores of a GPU
SIZES = (2048, 4096, 8192)
# Columns of a tile, depth of a step, stages: what gemm_variant has.
TILES = (
    *((256, 64, 3), (256, 64, 4), (256, 32, 3), (256, 32, 4), (256, 32, 5)),
    (128, 64, 3),
)
BM, BN = 128, 256


def short_waves(blocks):
    """(M, N, K), four tiles beside each other, whose tiles are four more than one, two and four
    waves of so many blocks, and four less than two; fewer tiles than blocks; large squares."""
    rows = [blocks * waves // 4 for waves in (1, 2, 4)]
    shapes = [(BM * (count + 1), 4 * BN, 4096) for count in rows]
    shapes += [(BM * rows[1] - BM, 4 * BN, 4096), (512, 1024, 16384), (1024, 1024, 4096)]
    return [*shapes, *((size, size, size) for size in SIZES)]


def operands(M, N, K, device):
    return [torch.randn(shape, device=device).bfloat16() for shape in ((M, K), (K, N))]


def rate(call, a, b):
    """TFLOP/s."""
    flops = 2 * a.shape[0] * b.shape[1] * a.shape[1]
    return float(f"{flops / seconds(partial(call, a, b)) / 1e12:.4g}")


def by_tile(operators, device):
    """[tile, stages, rates for SIZES], persistent and without stream-K; cuBLAS last."""
    pairs = [operands(size, size, size, device) for size in SIZES]
    rows = []
    for columns, depth, stages in TILES:
        call = partial(
            operators.gemm_variant, columns=columns, depth=depth, stages=stages, stream=False
        )
        tile = f"{BM} × {columns} × {depth}"
        rows.append([tile, stages, *(rate(call, a, b) for a, b in pairs)])
    return [*rows, ["cuBLAS", "", *(rate(torch.mm, a, b) for a, b in pairs)]]


def by_schedule(operators, device):
    """[shape, tiles, waves, rates of v2, v3, all last tiles split, v4, cuBLAS]."""
    blocks = torch.cuda.get_device_properties(device).multi_processor_count
    calls = (
        operators.gemm_v2_pipelined,
        operators.gemm_v3_persistent,
        partial(operators.gemm_variant, stream=True),
        operators.gemm_v4_stream_k,
        torch.mm,
    )
    rows = []
    for M, N, K in short_waves(blocks):
        a, b = operands(M, N, K, device)
        tiles = -(-M // BM) * -(-N // BN)
        rates = [rate(call, a, b) for call in calls]
        rows.append([f"{M} × {N} × {K}", tiles, f"{tiles / blocks:.2f}", *rates])
    return rows


def print_rates(operators, device):
    """On a GPU prints both tables, and returns them as a file."""
    if device.type != "cuda":
        return None
    found = {"tiles": by_tile(operators, device), "schedules": by_schedule(operators, device)}
    print("TFLOP/s by tile and stages, persistent, bf16")
    print_table(["tile", "stages", *(f"{size}³" for size in SIZES)], found["tiles"])
    print("TFLOP/s by schedule, bf16; always: stream-K also where v4 does without")
    print_table(
        ["M × N × K", "tiles", "waves", "v2", "v3", "always", "v4", "cuBLAS"], found["schedules"]
    )
    return {FILE: rows_as_json(found)}
