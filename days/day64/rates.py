"""The autotuner: times every configuration of tuning.py, and stores the fastest ones."""

from contextlib import suppress
from functools import partial

import torch
from triton.runtime.errors import OutOfResources

from common.day import print_table, seconds

from .corner_turning_triton import multiply
from .tuning import CONFIGS, POINTERS, has_tma, stored

SIZES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 512),
    (16384, 1024, 4096),
    (4096, 11008, 4096),
    (512, 4096, 4096),
)


def rates(M, N, K, by_k, device):
    """TFLOP/s of every configuration that the card has room for, by its place in CONFIGS."""
    operation = 2e-12 * M * N * K
    a = torch.randn((M, K) if by_k else (K, M), device=device).bfloat16()
    b = torch.randn((N, K) if by_k else (K, N), device=device).bfloat16()
    found = {}
    for i, config in enumerate(CONFIGS):
        if config.loads != POINTERS and not has_tma(device):
            continue
        with suppress(OutOfResources):
            call = partial(multiply, a, b, by_k, by_k, config)
            found[i] = operation / seconds(call)
    cublas = operation / seconds(lambda: a @ b.t() if by_k else a.t() @ b)
    return found, cublas


def tune(device):
    """Times all configurations for SIZES and both products, prints the rates, and returns what is
    stored: the fastest ones."""
    chosen, table = [], []
    for by_k in (True, False):
        for M, N, K in SIZES:
            found, cublas = rates(M, N, K, by_k, device)
            best = max(found, key=found.get)
            chosen.append([M, N, K, by_k, by_k, list(CONFIGS[best])])
            name = f"{'x · Wᵀ' if by_k else 'gᵀ · x'} {M} × {N} × {K}"
            shown = [f"{found[i]:.0f}" if i in found else "" for i in range(len(CONFIGS))]
            table.append([name, *shown, f"{cublas:.0f}", f"{found[best] / cublas:.2f}"])
    print("tiles: " + ", ".join(f"{i}: {tuple(config)}" for i, config in enumerate(CONFIGS)))
    print("TFLOP/s of each, bf16, and the best one's share of cuBLAS")
    print_table(["M × N × K", *map(str, range(len(CONFIGS))), "cuBLAS", "share"], table)
    return stored() | {torch.cuda.get_device_name(device): chosen}
