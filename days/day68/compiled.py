"""What nvcc and Triton make of the day's kernels."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
TENSORS = {"codes": "*u8", "scales": "*fp32", "y": "*bf16"}


def gelu(tanh):
    names = {**TENSORS, "cols": "i32"}
    return TritonKernel("gelu_kernel", names, {"TANH": tanh, "COLS": "COLS"}, tuple(names), "WARPS")


SWIGLU = TritonKernel(
    "swiglu_kernel",
    {**TENSORS, "groups": "i32"},
    {"GROUPS": "GROUPS"},
    tuple(TENSORS),
    "WARPS",
)

KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("GELU v1, CUDA", "gelu_v1_scalar_kernelI4GeluILb0EEE"),
    ("GELU v2, CUDA", "gelu_vectors_kernelI4GeluILb0EELb0EE"),
    ("GELU v3, CUDA", "gelu_vectors_kernelI4GeluILb1EELb1EE"),
    ("GELU v4, Triton", gelu(False)),
    ("GELU with tanh, v3, CUDA", "gelu_vectors_kernelI8GeluTanhILb1EELb1EE"),
    ("GELU with tanh, v4, Triton", gelu(True)),
    ("SwiGLU v2, CUDA", "swiglu_vectors_kernelI6SwiGluILb0EELb0EE"),
    ("SwiGLU v3, CUDA", "swiglu_vectors_kernelI6SwiGluILb1EELb1EE"),
    ("SwiGLU v4, Triton", SWIGLU),
)


def show(operators, device):
    """Registers, widths of loads and stores, and instructions of all kernels."""
    print_machine_code(
        FOLDER / "dequantize.cu", FOLDER / "dequantize_triton.py", KERNELS, "y in bf16"
    )
