"""Convolutions of NHWC images: cases, rungs, formulas."""

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, Target, grid


def channels_first(t):
    """The same memory, as PyTorch counts dimensions: (N, C, H, W), channels last."""
    return t.permute(0, 3, 1, 2)


def channels_last(t):
    return t.permute(0, 2, 3, 1)


def conv2d(x, w, stride=1, padding=0, dilation=1):
    """x: (N, H, W, C), w: (K, R, S, C). Returns (N, P, Q, K)."""
    y = F.conv2d(channels_first(x), channels_first(w), None, stride, padding, dilation)
    return channels_last(y)


def sizes(case):
    """Case.shape: N, H, W, C, K, R, S, stride, padding, dilation. Returns it with P, Q."""
    N, H, W, C, K, R, S, stride, padding, dilation = case.shape
    P = (H + 2 * padding - (R - 1) * dilation - 1) // stride + 1
    Q = (W + 2 * padding - (S - 1) * dilation - 1) // stride + 1
    return N, H, W, C, K, R, S, P, Q


def inputs(case, draw):
    N, H, W, C, K, R, S, *_ = sizes(case)
    return draw(N, H, W, C), draw(K, R, S, C), *case.shape[7:]


def data_gradient_inputs(case, draw):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    return draw(N, P, Q, K), draw(K, R, S, C), H, W, *case.shape[7:]


def weight_gradient_inputs(case, draw):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    return draw(N, P, Q, K), draw(N, H, W, C), R, S, *case.shape[7:]


def gradients(dy, x, w, options, mask):
    stride, padding, dilation = ([n, n] for n in options)
    arguments = (None, stride, padding, dilation, False, [0, 0], 1, [*mask, False])
    return torch.ops.aten.convolution_backward(
        channels_first(dy), channels_first(x), channels_first(w), *arguments
    )


def data_gradient(dy, w, height, width, stride=1, padding=0, dilation=1):
    x = dy.new_empty(len(dy), height, width, w.shape[3])
    return channels_last(gradients(dy, x, w, (stride, padding, dilation), (True, False))[0])


def weight_gradient(dy, x, height, width, stride=1, padding=0, dilation=1):
    w = dy.new_empty(dy.shape[3], height, width, x.shape[3])
    return channels_last(gradients(dy, x, w, (stride, padding, dilation), (False, True))[1])


def by_cudnn(function):
    """cuDNN with the fastest of its algorithms, which it finds by trying."""

    def call(*arguments):
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            return function(*arguments)

    return call


def cost(case):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    filters, pixels = K * R * S * C, N * P * Q
    return Cost(
        bytes=2 * (N * H * W * C + filters + pixels * K), flops=2 * pixels * filters, unit="tensor"
    )


def forward_rung(version, idea, gradient, **options):
    """A differentiable rung, whose gradients are those of version `gradient`."""

    def backward(saved, dy):
        x, w, *numbers = saved
        ops = torch.ops.day60
        of_data = getattr(ops, f"conv2d_data_gradient_{gradient}")
        of_weight = getattr(ops, f"conv2d_weight_gradient_{gradient}")
        return (
            of_data(dy, w, *x.shape[1:3], *numbers),
            of_weight(dy, x, *w.shape[1:3], *numbers),
            *[None] * len(numbers),
        )

    return Rung(
        f"conv2d_{version}",
        idea,
        saves=lambda inputs, output: inputs,
        backward=backward,
        **options,
    )


TARGET = Target(0.9, "pytorch")
GATHERED, BOXES = "an address per 16 bytes, mma.sync", "boxes of pixels by TMA, wgmma"
FORWARD = (
    forward_rung("v1_gathered", GATHERED, "v1"),
    forward_rung("v2_boxes", BOXES, "v2", target=TARGET),
    forward_rung("v3_clusters", "two blocks share the filter", "v2"),
)
SPLIT = forward_rung("v4_split", "two or four blocks share a sum", "v2", target=TARGET)
DATA = tuple(
    Rung(f"conv2d_data_gradient_{version}", idea, target=target)
    for version, idea, target in (("v1", GATHERED, None), ("v2", BOXES, TARGET))
)
WEIGHT = tuple(
    Rung(f"conv2d_weight_gradient_{version}", idea, target=target)
    for version, idea, target in (("v1", GATHERED, None), ("v2", BOXES, TARGET))
)

# N, H, W, C, K, R, S, stride, padding, dilation
SHAPES = [
    (1, 1, 1, 8, 8, 1, 1, 1, 0, 1),
    (2, 9, 7, 72, 136, 3, 3, 1, 1, 1),
    (1, 13, 11, 8, 264, 1, 1, 1, 0, 1),
    (3, 17, 6, 40, 64, 3, 3, 2, 1, 1),
    (1, 12, 10, 16, 24, 2, 5, 1, 2, 2),
    (1, 7, 20, 136, 8, 1, 1, 2, 0, 1),
    (2, 16, 3, 8, 16, 3, 2, 3, 2, 4),
    (1, 30, 29, 8, 72, 7, 7, 2, 3, 1),
    (1, 19, 40, 8, 8, 2, 2, 9, 0, 1),
    # A stride, and: more boxes than one along a row, of the widest that TMA takes; single pixels;
    # as many outputs as half the rows.
    (1, 1, 600, 8, 8, 1, 1, 4, 0, 1),
    (3, 1, 1, 8, 8, 1, 1, 2, 0, 1),
    (1, 8, 6, 8, 16, 1, 1, 2, 0, 1),
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
    (1, 83, 81, 8, 8, 1, 1, 1, 0, 1),
    (1, 21, 20, 8, 72, 1, 3, 1, 1, 1),
    (13, 10, 5, 8, 72, 7, 1, 1, 3, 1),
]
EMPTY = [(0, 5, 5, 8, 16, 3, 3, 1, 1, 1)]
SMALL = [(1, 6, 5, 8, 16, 3, 3, 1, 1, 1), (2, 5, 4, 16, 8, 2, 1, 2, 1, 1)]
# Two blocks per tile, and four.
SPLIT_SHAPES = [(1, 6, 9, 24, 264, 1, 1, 1, 0, 1), (1, 12, 13, 16, 264, 7, 8, 1, 3, 1)]
FEW = (32, 7, 7, 512, 512, 3, 3, 1, 1, 1)
LARGE = (32, 56, 56, 128, 128, 3, 3, 1, 1, 1)


def problem(name, inputs, function, rungs, cases, bench=LARGE, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=function,
        rungs=rungs,
        cases=grid(cases, ["bfloat16"]),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((2, 8, 8, 64, 128, 3, 3, 1, 1, 1), "bfloat16"),
        cost=cost,
        pytorch=by_cudnn(function),
        **options,
    )


problems = (
    problem("convolution", inputs, conv2d, FORWARD, [*SHAPES, *TILES, *EMPTY]),
    problem(
        "few pixels",
        inputs,
        conv2d,
        (Rung("conv2d_v2_boxes", BOXES), SPLIT),  # v2 has 56 tiles there: the target is v4's
        [*SHAPES, *SPLIT_SHAPES, *EMPTY],
        bench=FEW,
    ),
    problem(
        "data gradient", data_gradient_inputs, data_gradient, DATA, [*SHAPES, *SWAPPED, *EMPTY]
    ),
    problem(
        "weight gradient",
        weight_gradient_inputs,
        weight_gradient,
        WEIGHT,
        [*SHAPES, *PARTS, *EMPTY],
    ),
    problem("training", inputs, conv2d, FORWARD[:2], SMALL, gradients=True, timed=False),
)
