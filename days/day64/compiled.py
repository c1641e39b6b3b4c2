"""What nvcc and Triton make of the day's kernels; on a GPU, the timing that chooses the tiles."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from common.day import TritonKernel, print_machine_code, print_table, rows_as_json, seconds

from .tuning import CONFIGS, GROUPED, STORED, card, stored

FOLDER = Path(__file__).parent
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
MATRICES = {"a": "*bf16", "b": "*bf16", "c": "*bf16"}
COUNTS = {"M": "i32", "N": "i32", "K": "i32"}


def pointers(config):
    """product_kernel as the launchers of x · Wᵀ call it: k is contiguous."""
    return TritonKernel(
        "product_kernel",
        {**MATRICES, **COUNTS, "am": "i32", "bn": "i32"},
        {"ak": 1, "bk": 1, **tile_of(config)},
        (*MATRICES, *COUNTS, "am", "bn"),
        config.warps,
        config.stages,
    )


def by_descriptors(config, by_k):
    """descriptor_kernel for x · Wᵀ (by_k) or gᵀ · x."""
    BM, BN, BK = config[:3]
    boxes = ((BM, BK), (BN, BK), (BM, BN)) if by_k else ((BK, BM), (BK, BN), (BM, BN))
    matrices = {
        name: f"tensordesc<bf16[{rows}, {cols}]>"
        for name, (rows, cols) in zip("abc", boxes, strict=True)
    }
    return TritonKernel(
        "descriptor_kernel",
        {**matrices, **COUNTS},
        {"A_BY_K": by_k, "B_BY_K": by_k, **tile_of(config)},
        tuple(COUNTS),
        config.warps,
        config.stages,
    )


def tile_of(config):
    return {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": config.group}


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("x · Wᵀ v2, CUDA", "linear_v2_corner_turning_kernelI13__nv_bfloat16E"),
    ("x · Wᵀ v3, CUDA", "tensor_cores_kernelILb1ELb1ELb1E13__nv_bfloat16E"),
    ("gᵀ · x v1, CUDA", "tensor_cores_kernelILb0ELb0ELb1E13__nv_bfloat16E"),
    ("x · Wᵀ v5, Triton", pointers(GROUPED)),
    ("x · Wᵀ v6, Triton", by_descriptors(CONFIGS[0], True)),
    ("gᵀ · x v2, Triton", by_descriptors(CONFIGS[0], False)),
)


def rates(multiply, M, N, K, by_k, device):
    """TFLOP/s of every configuration that the card has room for, by its place in CONFIGS."""
    operation = 2e-12 * M * N * K
    a = torch.randn((M, K) if by_k else (K, M), device=device).bfloat16()
    b = torch.randn((N, K) if by_k else (K, N), device=device).bfloat16()
    found = {}
    for i, config in enumerate(CONFIGS):
        if config.descriptors and not card(device)[2]:
            continue
        with suppress(OutOfResources):
            call = partial(multiply, a, b, by_k, by_k, config)
            found[i] = operation / seconds(call)
    cublas = operation / seconds(lambda: a @ b.t() if by_k else a.t() @ b)
    return found, cublas


def tune(multiply, device):
    """Times all configurations for SIZES and both products, prints the rates, and returns what is
    stored: the fastest ones."""
    chosen, table = [], []
    for by_k in (True, False):
        for M, N, K in SIZES:
            found, cublas = rates(multiply, M, N, K, by_k, device)
            best = max(found, key=found.get)
            chosen.append([M, N, K, by_k, by_k, list(CONFIGS[best])])
            name = f"{'x · Wᵀ' if by_k else 'gᵀ · x'} {M} × {N} × {K}"
            shown = [f"{found[i]:.0f}" if i in found else "" for i in range(len(CONFIGS))]
            table.append([name, *shown, f"{cublas:.0f}", f"{found[best] / cublas:.2f}"])
    print("tiles: " + ", ".join(f"{i}: {tuple(config)}" for i, config in enumerate(CONFIGS)))
    print("TFLOP/s of each, bf16, and the best one's share of cuBLAS")
    print_table(["M × N × K", *map(str, range(len(CONFIGS))), "cuBLAS", "share"], table)
    return stored() | {torch.cuda.get_device_name(device): chosen}


def show(operators, device):
    """The machine code of the kernels; on a GPU, times the configurations and stores the best."""
    print_machine_code(
        FOLDER / "corner_turning_matmul.cu", FOLDER / "corner_turning_triton.py", KERNELS, "bf16"
    )
    if device.type != "cuda":
        return None
    from days.day64.corner_turning_triton import multiply  # Triton need not be there on the CPU

    return {STORED: rows_as_json(tune(multiply, device))}
