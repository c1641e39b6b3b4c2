"""Day 21: the transpose."""

if __name__ == "__main__":  # python days/day21/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day21

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, one_tensor, streamed

TITLE = "Transpose"
TEACHES = "Coalescing on both sides through a tile, bank conflicts, padding, and the swizzle"
TOPICS = ("transpose", "coalescing", "shared memory", "bank conflicts", "swizzle")
SOURCE = "transpose_matrix.cu"
INTRODUCES = ("swizzle",)

OTHERS = ["uint8", "bool", "int16", "int64", "float64"]
SHAPES = [(1, 1), (1, 33), (33, 1), (31, 33), (32, 32), (63, 65), (127, 257), (3, 1023)]
WIDE = [(16, 16), (64, 64), (128, 64), (48, 208), (80, 1040)]  # rows of whole packs


def reference(x):
    return x.t().contiguous()


PROBLEMS = (
    Problem(
        name="transpose",
        inputs=one_tensor,
        reference=reference,
        rungs=(
            Rung("transpose_v1_naive", "rows in, columns out"),
            Rung("transpose_v2_shared", "a tile in shared memory"),
            Rung("transpose_v3_padded", "rows of the tile 33 elements apart"),
            Rung("transpose_v4_vector_swizzle", "16 bytes per access, a swizzled tile"),
            Rung(
                "transpose_v5_streaming",
                "streaming stores, in the order of y",
                target=Target(0.93, "copy"),
            ),
        ),
        cases=(
            *grid([*SHAPES, *WIDE, (0, 5), (5, 0)], FLOATS),
            *grid([(37, 70), (144, 272)], OTHERS),
            *grid([(19, 101), (48, 80)], FLOATS, values="nonfinite"),
            *grid([(64, 96)], FLOATS, values="extreme"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((512, 512)),
        cost=streamed(2, 0),
        pytorch=reference,  # a copy with other strides; PyTorch calls no library for it
        libraries=(COMPILE,),
        outputs_exact=True,
    ),
)
