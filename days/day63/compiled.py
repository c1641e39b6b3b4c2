"""What nvcc and Triton make of the day's reductions: registers, widths, shuffles, barriers."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
PARTS = {"x": "*fp32", "maxima": "*fp32", "sums": "*fp32", "cols": "i32", "parts": "i32"}
ROW = {"x": "*bf16", "y": "*bf16", "cols": "i32"}


def parts(lanes, multiples=("x", "cols")):
    constants = {"LANES": lanes, "EACH": 4096 // lanes}
    return TritonKernel("parts_kernel", {**PARTS, "tiles": "i32"}, constants, multiples)


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("log-sum-exp v1, CUDA", "log_sum_exp_v1_atomics_kernelIfLi4E"),
    ("log-sum-exp v2, CUDA", "log_sum_exp_v2_parts_kernelIfLi4E"),
    ("log-sum-exp v3, Triton", parts(1)),
    ("log-sum-exp v4, Triton", parts(1024)),
    ("softmax v2, CUDA, bf16", "softmax_v2_row_kernelI13__nv_bfloat16Li8E"),
    ("softmax v3, Triton, bf16", TritonKernel("row_kernel", ROW, {"BLOCK": 8192}, tuple(ROW), 8)),
)


def show(operators, device):
    print_machine_code(
        FOLDER / "multi_stage_reduction.cu",
        FOLDER / "multi_stage_triton.py",
        KERNELS,
        note="fp32, but where bf16 is named",
    )
