"""Day 68: dequantisation and the activations behind it, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day68/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day68

from common.day import COMPILE, Case, Problem, Rung, Target, grid

from .compiled import show
from .quantising import int4_cost, int4_inputs, int4_swiglu, int8_cost, int8_gelu, int8_inputs

__all__ = ["PROBLEMS", "show"]

TITLE = "Dequantisation and the activations"
TEACHES = "A budget of instructions per element: codes become fp32 without a conversion"
TOPICS = ("quantisation", "quantization", "int8", "int4", "GELU", "SwiGLU", "Triton", "fusion")
SOURCE = "dequantize.cu"
EXTRA_SOURCES = ("dequantize_triton.py", "quantising.py", "compiled.py")

TRITON = "dequantize_triton"
AT_COPY = Target(0.90, "copy")
LARGE, SMALL = (32768, 8192), (4, 1024)
KINDS = ("nonfinite", "large", "tiny", "extreme")


def gelu(name, approximate):
    return Problem(
        name=name,
        inputs=int8_inputs(approximate),
        reference=int8_gelu,
        rungs=(
            Rung("gelu_v1_scalar", "CUDA, one element per thread"),
            Rung("gelu_v2_vectors", "CUDA, 16-byte stores, a conversion per code"),
            Rung("gelu_v3_fast", "CUDA, permuted bytes, fast functions", target=AT_COPY),
            Rung("gelu_v4_triton", "Triton, the same arithmetic", triton=TRITON, target=AT_COPY),
        ),
        # Around a chunk, a block of v1, and a block of v2, which has the size of a Triton program.
        cases=(
            *grid([(1, 1), (5, 31), (3, 264), (2, 4104), (2, 8191), (1, 8200)], ["int8"]),
            *grid([(0, 8), (3, 0), (64, 256)], ["int8"]),
            *(case for values in KINDS for case in grid([(40, 264)], ["int8"], values)),
        ),
        bench=Case(LARGE, "int8"),
        bench_cpu=Case(SMALL, "int8"),
        cost=int8_cost,
        pytorch=int8_gelu,
        libraries=(COMPILE,),
    )


PROBLEMS = (
    gelu("int8 and GELU", "none"),
    gelu("int8 and GELU with tanh", "tanh"),
    Problem(
        name="int4 and SwiGLU",
        inputs=int4_inputs,
        reference=int4_swiglu,
        rungs=(
            Rung("swiglu_v1_scalar", "CUDA, one element per thread"),
            Rung("swiglu_v2_vectors", "CUDA, 16-byte stores, a conversion per code"),
            Rung("swiglu_v3_fast", "CUDA, permuted bytes, fast functions", target=AT_COPY),
            Rung("swiglu_v4_triton", "Triton, the same arithmetic", triton=TRITON, target=AT_COPY),
        ),
        # One group per half; a block of v2, which has the size of a Triton program, and more.
        cases=(
            *grid([(1, 128), (5, 384), (2, 2176), (3, 8192), (1, 8320)], ["uint8"]),
            *grid([(0, 128), (3, 0)], ["uint8"]),
            *(case for values in KINDS[:3] for case in grid([(9, 384)], ["uint8"], values)),
        ),
        refused=(Case((2, 64), "uint8"), Case((2, 200), "uint8")),
        bench=Case(LARGE, "uint8"),
        bench_cpu=Case(SMALL, "uint8"),
        cost=int4_cost,
        pytorch=int4_swiglu,
        libraries=(COMPILE,),
    ),
)
