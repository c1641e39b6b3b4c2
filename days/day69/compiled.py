"""What nvcc and Triton make of the day's kernels."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent


def in_triton(chunks, dtype="fp32"):
    names = {"x": f"*{dtype}", "weights": "*fp32", "y": f"*{dtype}", "H": "i32", "W": "i32"}
    constants = {"ROWS": "ROWS", "COLS": "COLS", "CHUNKS": chunks}
    return TritonKernel("blur_transpose_kernel", names, constants, tuple(names), "WARPS")


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("v1, CUDA", "blur_transpose_v1_direct_kernelIfE"),
    ("v2, CUDA", "blur_transpose_v2_tile_kernelIfE"),
    ("v3, CUDA", "blur_transpose_v3_vectors_kernelIfE"),
    ("v4, Triton", in_triton(False)),
    ("v5, Triton", in_triton(True)),
    ("v6, CUDA", "blur_transpose_v6_in_flight_kernelIfE"),
    ("v3 in bf16", "blur_transpose_v3_vectors_kernelI13__nv_bfloat16E"),
    ("v5 in bf16", in_triton(True, "bf16")),
)


def show(operators, device):
    """Registers, widths of loads and stores, and instructions of all kernels."""
    print_machine_code(
        FOLDER / "blur_transpose.cu", FOLDER / "blur_transpose_triton.py", KERNELS, note="fp32"
    )
