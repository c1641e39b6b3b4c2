"""Day 60, further: the forward pass by TMA and wgmma, split sums, and both gradients."""

from dataclasses import replace
from functools import partial

import torch

from common.day import Case, Rung, Target

from ..day import EMPTY, SHAPES, V3, by_torch, conv2d, inputs, problem, sizes

SOURCE = "conv2d_boxes.cu"
EXTRA_SOURCES = ("conv2d_split.cu", "conv2d_data_gradient.cu", "conv2d_weight_gradient.cu")

# A stride, and: more boxes than one along a row, of the widest that TMA takes; single pixels; as
# many outputs as half the rows.
EVERY = [
    *SHAPES,
    (1, 1, 600, 8, 8, 1, 1, 4, 0, 1),
    (3, 1, 1, 8, 8, 1, 1, 2, 0, 1),
    (1, 8, 6, 8, 16, 1, 1, 2, 0, 1),
    *EMPTY,
]
# On an H200, whose number of multiprocessors the CPU backend has: tiles of 192 × 128, the same for
# a filter that moves pixels, 128 × 256, 256 × 128 and 256 × 64, where the shapes above take 128 ×
# 128. Clusters of two take 256 × 128 for the first. C and K change places for the data gradient.
TILES = [
    (1, 10, 40, 8, 4288, 1, 1, 1, 0, 1),
    (5, 3, 5, 8, 9792, 3, 3, 1, 1, 1),
    (1, 5, 8, 8, 17032, 1, 1, 1, 0, 1),
    (1, 5, 40, 8, 16640, 1, 1, 1, 0, 1),
    (7, 51, 50, 8, 64, 1, 1, 1, 0, 1),
]
SWAPPED = [(*shape[:3], shape[4], shape[3], *shape[5:]) for shape in TILES]
# Many pixels, so that a part has several boxes and a sum several parts: 3 and 14 on an H200, and 3
# that begin within images. There, four chunks of taps per tile cover 7.
PARTS = [
    (1, 41, 40, 8, 8, 1, 1, 1, 0, 1),
    (1, 85, 84, 8, 8, 1, 1, 1, 0, 1),
    (1, 21, 20, 8, 72, 1, 3, 1, 1, 1),
    (13, 10, 5, 8, 72, 7, 1, 1, 3, 1),
]
SMALL = [(1, 6, 5, 8, 16, 3, 3, 1, 1, 1), (2, 5, 4, 16, 8, 2, 1, 2, 1, 1)]
# Two blocks per tile, and four.
SPLIT = [(1, 6, 9, 24, 264, 1, 1, 1, 0, 1), (1, 12, 13, 16, 264, 7, 8, 1, 3, 1)]
FEW = Case((32, 7, 7, 512, 512, 3, 3, 1, 1, 1), "bfloat16")


def data_gradient_inputs(case, draw):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    return draw(N, P, Q, K), draw(K, R, S, C), H, W, *case.shape[7:]


def weight_gradient_inputs(case, draw):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    return draw(N, P, Q, K), draw(N, H, W, C), R, S, *case.shape[7:]


def gradient(which, options, dy, x, w):
    """Return gradient 0, with respect to x, or 1, to w."""
    stride, padding, dilation = ([n, n] for n in options)
    rest = (None, stride, padding, dilation, False, [0, 0], 1, [which == 0, which == 1, False])
    return by_torch(lambda *t: torch.ops.aten.convolution_backward(*t, *rest)[which], dy, x, w)


def data_gradient(dy, w, height, width, stride=1, padding=0, dilation=1):
    x = dy.new_empty(len(dy), height, width, w.shape[3])
    return gradient(0, (stride, padding, dilation), dy, x, w)


def weight_gradient(dy, x, height, width, stride=1, padding=0, dilation=1):
    w = dy.new_empty(dy.shape[3], height, width, x.shape[3])
    return gradient(1, (stride, padding, dilation), dy, x, w)


def backward(version, saved, dy):
    """Return the gradients of x and w by the rungs of this version."""
    x, w, *numbers = saved
    of_data = getattr(torch.ops.day60, f"conv2d_data_gradient_{version}")
    of_weight = getattr(torch.ops.day60, f"conv2d_weight_gradient_{version}")
    return (
        of_data(dy, w, *x.shape[1:3], *numbers),
        of_weight(dy, x, *w.shape[1:3], *numbers),
        *[None] * len(numbers),
    )


def trained(rung, version):
    return replace(
        rung, saves=lambda inputs, output: inputs, backward=partial(backward, version), target=None
    )


TARGET = Target(0.9, "pytorch")
GATHERED, BOXES = "an address per 16 bytes, mma.sync", "boxes of pixels by TMA, wgmma"
V4 = Rung("conv2d_v4_boxes", BOXES, target=TARGET)
V5 = Rung("conv2d_v5_clusters", "two blocks share the filter")
V6 = Rung("conv2d_v6_split", "two or four blocks share a sum", target=TARGET)


def gradients(name):
    return (
        Rung(f"conv2d_{name}_gradient_v3", GATHERED),
        Rung(f"conv2d_{name}_gradient_v4", BOXES, target=TARGET),
    )


PROBLEMS = (
    problem("convolution by TMA", inputs, conv2d, (V4, V5), [*EVERY, *TILES]),
    # v4 has 56 tiles there: the target is v6's
    problem(
        "few pixels", inputs, conv2d, (replace(V4, target=None), V6), [*EVERY, *SPLIT], bench=FEW
    ),
    problem(
        "data gradient",
        data_gradient_inputs,
        data_gradient,
        gradients("data"),
        [*EVERY, *SWAPPED],
    ),
    problem(
        "weight gradient",
        weight_gradient_inputs,
        weight_gradient,
        gradients("weight"),
        [*EVERY, *PARTS],
    ),
    problem(
        "training",
        inputs,
        conv2d,
        (trained(V3, "v3"), trained(V4, "v4")),
        SMALL,
        gradients=True,
        timed=False,
    ),
)


def show_times(operators, device):
    """On a GPU: every layer of ResNet-50, all rungs and gradients beside cuDNN."""
    from .networks import print_layers

    return print_layers(operators, device)
