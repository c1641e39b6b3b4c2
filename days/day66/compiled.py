"""What nvcc and Triton make of the day's kernels: registers, widths, shuffles, barriers."""

from pathlib import Path

from common.day import TritonKernel, print_machine_code

FOLDER = Path(__file__).parent
BEFORE = {"q": "*bf16"}
AFTER = {"o": "*bf16", "lse": "*fp32", "slopes": "*fp32"}
NUMBERS = {
    "window": "i32",
    "scale_log2": "fp32",
    "heads": "i32",
    "H": "i32",
    "S": "i32",
    "T": "i32",
}


def attention(split, alibi):
    """attention_kernel as the launchers call it: by TMA where the loops are split."""
    keys = "tensordesc<bf16[64, 128]>" if split else "*bf16"
    return TritonKernel(
        "attention_kernel",
        {**BEFORE, "k": keys, "v": keys, **AFTER, **NUMBERS},
        {"SPLIT": split, "ALIBI": alibi, "TMA": split, "BM": 64, "BN": 64, "D": 128},
        (*BEFORE, *AFTER) if split else (*BEFORE, "k", "v", *AFTER),
        4,
        3,
    )


KERNELS = (  # a title; for CUDA the name with its template arguments as nvcc writes them
    ("v1, CUDA", "fused_attention_kernelI13__nv_bfloat16Li128ELb0ELb0E"),
    ("v2, CUDA", "fused_attention_kernelI13__nv_bfloat16Li128ELb0ELb1E"),
    ("v2, ALiBi", "fused_attention_kernelI13__nv_bfloat16Li128ELb1ELb1E"),
    ("v3, Triton", attention(False, False)),
    ("v4, Triton", attention(True, False)),
    ("v4, ALiBi", attention(True, True)),
)


def show(operators, device):
    print_machine_code(
        FOLDER / "fused_attention.cu", FOLDER / "fused_attention_triton.py", KERNELS, "bf16"
    )
