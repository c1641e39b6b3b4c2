"""What nvcc and Triton make of the day's kernels: registers, widths, shuffles, barriers."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
POINTERS = {
    "x": "*bf16",
    "dx": "*bf16",
    "target": "*i64",
    "losses": "*fp32",
    "weight": "*fp32",
}
NUMBERS = {"rows": "i32", "cols": "i32", "ignore_index": "i64", "smoothing": "fp32"}


def in_triton(kernel, **parts):
    constants = {"SMOOTHED": False, **parts, "BLOCK": "CHUNK"}
    aligned = ("x", "dx", "target", "losses", "cols")
    return TritonKernel(
        kernel, {**POINTERS, **NUMBERS}, constants, aligned, warps=16, maxnreg="MOST_REGISTERS"
    )


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("v1, CUDA", "chunked_ce_v1_two_reads_kernelILb0E13__nv_bfloat16Li8E"),
    ("v2, CUDA", "row_in_shared_kernelI4RoomILi704ELi9ELi2EELb0ELb0E13__nv_bfloat16"),
    ("v3, CUDA", "row_in_shared_kernelI4RoomILi512ELi8ELi3EELb1ELb0E13__nv_bfloat16"),
    ("v4, Triton", in_triton("online_kernel")),
    ("v5, Triton", in_triton("lazy_kernel", PARTS=2)),
)


def show(operators, device):
    print_machine_code(
        FOLDER / "chunked_ce.cu", FOLDER / "chunked_ce_triton.py", KERNELS, note="bf16"
    )
