"""What nvcc and Triton make of the day's kernels: lines, registers, instructions, widths."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent


def triton(dtype, multiples=("x", "state", "y", "n")):
    tensors = {"x": f"*{dtype}", "state": "*i64", "y": f"*{dtype}"}
    numbers = {"n": "i32", "below": "i32", "scale": "fp32"}
    return TritonKernel("dropout_kernel", {**tensors, **numbers}, {"BLOCK": "BLOCK"}, multiples)


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("v1, CUDA: mask", "dropout_v1_mask_kernelPK5State"),
    ("v1, CUDA", "dropout_v1_stored_kernelI13__nv_bfloat16E"),
    ("v2, CUDA", "dropout_v2_in_registers_kernelI13__nv_bfloat16E"),
    ("v3, CUDA", "dropout_v3_packs_kernelI13__nv_bfloat16E"),
    ("v3, CUDA, fp32", "dropout_v3_packs_kernelIfE"),
    ("v4, Triton", triton("bf16")),
    ("v4, Triton, any n", triton("bf16", ("x", "state", "y"))),
    ("v4, Triton, fp32", triton("fp32")),
)


def print_compiled():
    print_machine_code(FOLDER / "dropout.cu", FOLDER / "dropout_triton.py", KERNELS, note="bf16")
