"""Day 69: images blurred and transposed in one pass, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day69/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day69

from functools import cache

import torch
import torch.nn.functional as F

from common.day import FLOATS, Case, Library, Problem, Rung, Target, grid, streamed

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Blur and transpose"
TEACHES = "Neighbours of a tile in CUDA and in Triton; the scoreboard of days 61 to 70"
TOPICS = ("Triton", "blur", "transpose", "stencil", "images", "fusion", "scoreboard")
SOURCE = "blur_transpose.cu"
EXTRA_SOURCES = ("blur_transpose_triton.py", "compiled.py")

TAPS, R = 7, 3
# (N, H, W): a part of every tile; several tiles of v1 and v2, of v3 along a row, and of Triton;
# rows that are no whole chunks, of x alone and of y alone.
SHAPES = [(1, 1, 1), (1, 3, 5), (2, 8, 12), (1, 33, 35), (1, 4, 516), (1, 8, 131), (1, 5, 136)]
EMPTY = [(0, 4, 4), (2, 0, 8), (2, 8, 0)]
IMAGES = (2, 68, 132)  # several tiles along both sides of several images
TRITON = "blur_transpose_triton"


def inputs(case, draw):
    """Weights whose sum is below 1, and which are no mirror image of themselves."""
    return draw(*case.shape), draw(TAPS, dtype="float32", low=0.02, high=0.14)


def along(v, dim, weights):
    """Weighted sums of neighbours along `dim`, with zeros beyond the edge."""
    padded = F.pad(v, (R, R) if dim == 2 else (0, 0, R, R))
    return sum(weights[i] * padded.narrow(dim, i, v.shape[dim]) for i in range(TAPS))


def by_shifts(x, weights):
    v = x if x.dtype == torch.float64 else x.float()
    return along(along(v, 2, weights), 1, weights).to(x.dtype).transpose(1, 2).contiguous()


def by_convolutions(x, weights):
    """Two depthwise convolutions, whose channels are the images, and a transpose."""
    N, H, W = x.shape
    if x.numel() == 0:
        return x.new_empty(N, W, H)
    k = weights.to(x.dtype)
    rows = F.conv2d(x[None], k.expand(N, 1, 1, TAPS), padding=(0, R), groups=N)
    both = F.conv2d(rows, k[:, None].expand(N, 1, TAPS, 1), padding=(R, 0), groups=N)
    return both[0].transpose(1, 2).contiguous()


@cache
def compiled():
    """The shifted sums: of convolutions, the compiler would call PyTorch's own."""
    return torch.compile(by_shifts, dynamic=False)


PROBLEMS = (
    Problem(
        name="blur and transpose",
        inputs=inputs,
        reference=by_shifts,
        rungs=(
            Rung("blur_transpose_v1_direct", "CUDA, 49 loads per output"),
            Rung("blur_transpose_v2_tile", "CUDA, halo, row sums, transpose in shared memory"),
            Rung("blur_transpose_v3_vectors", "CUDA, 4 elements per load and store"),
            Rung(
                "blur_transpose_v4_triton", "Triton, walks down, 7 loads per element", triton=TRITON
            ),
            Rung(
                "blur_transpose_v5_triton_chunks", "Triton, 3 loads per 4 elements", triton=TRITON
            ),
            Rung(
                "blur_transpose_v6_in_flight",
                "CUDA, v3 with all rows of a tile in flight",
                target=Target(0.90, "copy"),
            ),
        ),
        cases=(
            *grid([*SHAPES, *EMPTY], FLOATS),
            *grid([IMAGES], ["float32", "bfloat16"]),
            *grid([(1, 8, 12), (1, 7, 9)], FLOATS, values="nonfinite"),
            *grid([(1, 8, 12)], FLOATS, values="extreme"),
        ),
        bench=Case((16, 4096, 4096)),
        bench_cpu=Case((1, 16, 128)),
        cost=streamed(2, 4 * TAPS),
        pytorch=by_convolutions,
        libraries=(Library("compile", lambda *arguments: compiled()(*arguments)),),
    ),
)
