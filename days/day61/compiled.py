"""What nvcc and Triton make of the day's kernels: lines, registers, instructions, widths."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
VECTORS = {"x": "*fp32", "y": "*fp32", "z": "*fp32", "n": "i32", "slope": "fp32"}
MATRIX = {"x": "*fp32", "low": "*fp32", "high": "*fp32", "y": "*fp32", "rows": "i32", "cols": "i32"}
BLOCKS = {"ROWS": "ROWS", "COLS": "COLS"}  # as the module has them
BLOCK = {"BLOCK": "BLOCK"}
KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("add v1, CUDA", "leaky_add_v1_thread_kernelIfE"),
    ("add v2, CUDA", "leaky_add_v2_packs_kernelIfE"),
    ("add v3, Triton", TritonKernel("leaky_add_kernel", VECTORS, BLOCK, tuple("xyzn"))),
    ("the same, any n", TritonKernel("leaky_add_kernel", VECTORS, BLOCK, tuple("xyz"))),
    ("clamp v1, CUDA", "clamp_columns_v1_packs_kernelIfLi4E"),
    ("clamp v2, Triton", TritonKernel("clamp_columns_kernel", MATRIX, BLOCKS, tuple(MATRIX))),
    (
        "the same, any cols",
        TritonKernel("clamp_columns_kernel", MATRIX, BLOCKS, ("x", "low", "high", "y", "rows")),
    ),
)


def show(operators, device):
    print_machine_code(
        FOLDER / "vector_ops.cu", FOLDER / "vector_ops_triton.py", KERNELS, note="fp32"
    )
