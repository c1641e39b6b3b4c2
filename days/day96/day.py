"""Day 96: one persistent kernel decodes tokens through all layers of a GPT-2."""

if __name__ == "__main__":  # python days/day96/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day96

from common.day import Case, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "A decoding megakernel"
TEACHES = (
    "A whole model in one launch: numbers that carry their own flag, weights ahead of their use"
)
TOPICS = ("inference", "GPT-2", "decode", "persistent kernel", "megakernel", "KV cache", "cp.async")
SOURCE = "decode_megakernel.cu"
EXTRA_SOURCES = ("model.py", "proof.py")
INTRODUCES = ("megakernel", "tagged word")

# (layers, heads, channels, words, positions, position, steps)
ONE_STEP = [(2, 4, 64, 131, 65, position, 1) for position in (0, 1, 7, 63)]
ONE_STEP += [(1, 1, 8, 1, 5, 2, 1), (1, 1, 128, 33, 80, 79, 1), (0, 2, 32, 70, 3, 1, 1)]
ONE_STEP += [(1, 5, 40, 301, 500, 470, 1), (1, 9, 288, 50, 12, 11, 1), (1, 7, 896, 9, 3, 1, 1)]
SEVERAL = [(2, 4, 64, 131, 40, 14, 4), (1, 2, 64, 97, 9, 3, 6), (2, 4, 64, 131, 9, 0, 9)]
SEVERAL += [(1, 1, 32, 2, 12, 3, 8)]  # half of the tokens are the last word
# 12 elements per head; a position too many; no step; more channels, layers, words, positions than
# the kernels take
REFUSED = [(1, 3, 36, 20, 8, 1, 1), (1, 2, 32, 20, 8, 6, 3), (1, 2, 32, 20, 8, 6, 0)]
REFUSED += [(0, 17, 2176, 2, 2, 1, 1), (1025, 1, 8, 3, 2, 1, 1)]
REFUSED += [(0, 1, 8, (1 << 20) + 1, 2, 1, 1), (1, 1, 8, 3, (1 << 20) + 1, 1, 1)]

RUNGS = (
    Rung("decode_v1_kernels", "8 kernels per layer"),
    Rung("decode_v2_fused", "5 kernels per layer"),
    Rung("decode_v3_persistent", "one kernel, barriers of the grid"),
    # 0.130 ms per token on an H200
    Rung("decode_v4_stream", "tagged words, weights ahead", target=Target(0.48, "copy")),
)
SUMS = Tolerance(
    ulps=8,
    factor=16,
    why="a chain of layers, each of which adds hundreds of products in its order",
)

PROBLEMS = (
    Problem(
        name="decode",
        inputs=model.model,
        reference=model.decode,
        pytorch=model.by_pytorch,
        libraries=(Library("compile", model.compiled_pytorch),),
        rungs=RUNGS,
        cases=(
            *(Case(shape, "bfloat16") for shape in ONE_STEP + SEVERAL),
            Case((1, 2, 16, 20, 5, 1, 2), "bfloat16", "offset"),
        ),
        refused=tuple(Case(shape, "bfloat16") for shape in REFUSED),
        bench=Case((12, 12, 768, 50257, 1024, 512, 1), "bfloat16"),
        bench_cpu=Case((2, 4, 64, 300, 64, 32, 1), "bfloat16"),
        cost=model.cost,
        tolerance=SUMS,
    ),
)
