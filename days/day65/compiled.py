"""What nvcc and Triton make of the day's kernels: registers, widths, shuffles, barriers."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
ROW = {"x": "*bf16", "weight": "*bf16", "bias": "*bf16", "y": "*bf16", "cols": "i32"}
SLICES = {"rows": "i32", "cols": "i32", "strips": "i32", "length": "i32"}
PARTS = {"x": "*bf16", "means": "*fp32", "m2s": "*fp32"}
APPLIED = {"x": "*bf16", "weight": "*bf16", "bias": "*bf16", "scales": "*fp32", "y": "*bf16"}
TILE: dict[str, int | str] = {"ROWS": "ROWS", "COLS": 256}
ALIGNED = ("rows", "cols", "length")


def reduction(kernel, rows):
    constants = {"ROWS": rows, "COLS": 256}
    return TritonKernel(kernel, {**PARTS, **SLICES}, constants, (*PARTS, *ALIGNED))


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("layer norm v2, CUDA", "layer_norm_v2_row_kernelI13__nv_bfloat16Li8E"),
    (
        "layer norm v3, Triton",
        TritonKernel(
            "row_kernel",
            {**ROW, "eps": "fp32"},
            {"BLOCK": 8192},
            tuple(ROW),
            warps=8,
            maxnreg="MOST_REGISTERS",
        ),
    ),
    ("batch norm v2, CUDA, reduce", "batch_norm_reduce_kernelI13__nv_bfloat16Li8E"),
    ("batch norm v3, Triton, reduce", reduction("reduce_tiles_kernel", "ROWS")),
    ("batch norm v4, Triton, reduce", reduction("reduce_places_kernel", "PLACES")),
    ("batch norm v2, CUDA, apply", "batch_norm_apply_kernelI13__nv_bfloat16Li8E"),
    (
        "batch norm v4, Triton, apply",
        TritonKernel("apply_kernel", {**APPLIED, **SLICES}, TILE, (*APPLIED, *ALIGNED)),
    ),
)


def show(operators, device):
    print_machine_code(
        FOLDER / "norm_twins.cu", FOLDER / "norm_twins_triton.py", KERNELS, note="bf16"
    )
