"""What nvcc and Triton make of the day's kernels; on a GPU, the timing that chooses the tiles."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code, rows_as_json

from .tuning import CONFIGS, GROUPED, STORED

FOLDER = Path(__file__).parent
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
        warps=config.warps,
        stages=config.stages,
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


def show(operators, device):
    """Prints the machine code of the kernels; on a GPU, compiles all configurations."""
    print_machine_code(
        FOLDER / "corner_turning_matmul.cu", FOLDER / "corner_turning_triton.py", KERNELS, "bf16"
    )
    if device.type == "cuda":
        from .rates import rates  # imports Triton, which may be missing where there is no GPU

        for by_k in (True, False):
            rates(512, 512, 512, by_k, device)


def show_times(operators, device):
    """On a GPU, times the configurations, and returns the best as a file."""
    if device.type != "cuda":
        return None
    from .rates import tune  # as above

    return {STORED: rows_as_json(tune(device))}
