"""Day 32: the forward pass of a vision transformer."""

if __name__ == "__main__":  # python days/day32/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day32

from functools import partial
from inspect import Parameter, Signature

import torch
import torch.nn.functional as F

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import COMPILE, HALVES, Case, Cost, Library, Problem, Rung, Target, grid

from .model import PARAMETERS, forward, fused, separate, shapes_of, twin
from .show import show_trained

TITLE = "Vision transformer, forward"
TEACHES = "Patches loaded from the image as tiles of a product, and a whole model of earlier days"
TOPICS = ("vision", "ViT", "transformer", "patch embedding", "implicit GEMM", "tensor cores")
SOURCE = "vit_forward.cu"
EXTRA_SOURCES = ("model.py", "twin.py")
USES = (9, 28, 30)
INTRODUCES = ("vision transformer", "patch embedding", "class token")

CLASSES = 5
# (B, C, H, W, P, E): patches around the 128 of a block, columns around 64 and 192
CHUNKED = [
    (2, 3, 32, 48, 16, 192), (1, 1, 8, 8, 8, 64), (3, 2, 16, 40, 8, 200), (2, 1, 64, 72, 8, 66),
    (1, 2, 32, 64, 32, 40), (1, 1, 24, 344, 8, 8), (3, 1, 8, 8, 8, 2),
]  # fmt: skip
# Larger than the last one: a quick run takes the smallest, and that one reaches the kernel of v2.
OTHERS = [(1, 3, 28, 42, 14, 64), (2, 1, 14, 14, 2, 9), (2, 3, 8, 16, 8, 33), (3, 2, 15, 7, 1, 6)]
EMPTY = [(0, 3, 16, 16, 16, 64), (2, 3, 0, 16, 16, 64), (2, 0, 16, 16, 8, 16)]


def embed_inputs(case, draw):
    """The image has the case's values, all else normal ones."""
    B, C, H, W, P, E = case.shape
    weight = draw(E, C, P, P, values="normal").mul_(max(C * P * P, 1) ** -0.5)
    others = (draw(*shape, values="normal") for shape in ((E,), (E,), (1 + H // P * (W // P), E)))
    return draw(B, C, H, W), weight, *others


def tokens_of(rows, class_token, positions):
    """The tokens (B, 1 + N, E) of embedded patches (B, N, E)."""
    first = class_token.expand(len(rows), 1, -1)
    return torch.cat([first, rows], 1) + positions


def patches_of(images, P):
    """The patches as rows, (B, N, C · P²): one copy."""
    B, C, H, W = images.shape
    cut = images.reshape(B, C, H // P, P, W // P, P).permute(0, 2, 4, 1, 3, 5)
    return cut.reshape(B, H // P * (W // P), C * P * P)


def by_matmul(images, weight, bias, class_token, positions):
    """The patches copied to rows, and one product."""
    if (images.shape[1], weight.shape[2]) != weight.shape[1::2]:
        raise ValueError("weight: expected square patches with the channels of the images")
    rows = F.linear(patches_of(images, weight.shape[3]), weight.flatten(1), bias)
    return tokens_of(rows, class_token, positions)


def by_conv(images, weight, bias, class_token, positions):
    """A convolution whose stride is the patch, as in torchvision and timm."""
    rows = F.conv2d(images, weight, bias, stride=weight.shape[3]).flatten(2).mT
    return tokens_of(rows, class_token, positions)


def embed_cost(case):
    B, C, H, W, P, E = case.shape
    pixels, patches = B * C * H * W, B * (H // P) * (W // P)
    moved = pixels + (patches + B) * E + E * C * P * P
    return Cost(bytes=moved * case.itemsize, flops=2 * pixels * E, unit="tensor")


def vit_inputs(case, draw):
    """Weights that keep every activation about 1."""
    B, C, H, W, P, L, E = case.shape
    weights = []
    for name, shape in shapes_of(C, P, (H // P) * (W // P), E, L, CLASSES).items():
        if name.startswith("norm") and name.endswith("weight"):
            weights.append(draw(*shape, low=0.5, high=1.5))
        elif name.endswith("weight"):
            inner = shape[-1] if len(shape) < 4 else C * P * P
            weights.append(draw(*shape).mul_(inner**-0.5))
        else:
            weights.append(draw(*shape).mul_(0.5))
    return draw(B, C, H, W), *weights


def named(function):
    """The same function with a name for each parameter, which a report can then name."""

    def call(images, *weights):
        return function(images, *weights)

    names = ("images", *PARAMETERS)
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(name, kind) for name in names])
    call.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return call


def load_forward(kernels, builder):
    builder.operators()
    return named(partial(forward, kernels()))


def vit_cost(case):
    B, C, H, W, P, L, E = case.shape
    tokens = 1 + (H // P) * (W // P)
    layer = 24 * tokens * E * E + 4 * tokens * tokens * E
    flops = B * (2 * (tokens - 1) * C * P * P * E + L * layer)
    moved = B * C * H * W + E * C * P * P + L * 12 * E * E
    return Cost(bytes=moved * case.itemsize, flops=flops, unit="tensor")


PROBLEMS = (
    Problem(
        name="patch embedding",
        inputs=embed_inputs,
        reference=by_matmul,
        rungs=(
            Rung("embed_v1_unfold", "patches through memory", calls=("linear",)),
            Rung("embed_v2_one_kernel", "tiles from the image, 64 columns", calls=("linear",)),
            Rung(
                "embed_v3_all_columns",
                "192 columns per block",
                calls=("linear",),
                target=Target(1.0, "matmul"),
            ),
        ),
        cases=(
            *grid([*CHUNKED, *OTHERS, *EMPTY], HALVES),
            *grid([(2, 1, 64, 72, 8, 66), (1, 1, 9, 6, 3, 5)], HALVES, values="nonfinite"),
            *grid([(2, 3, 32, 48, 16, 64)], ["bfloat16"], values="large"),
        ),
        refused=(Case((1, 3, 30, 32, 16, 8), "bfloat16"), Case((1, 3, 32, 40, 16, 8), "bfloat16")),
        bench=Case((256, 3, 224, 224, 16, 192), "bfloat16"),
        bench_cpu=Case((2, 3, 64, 64, 16, 192), "bfloat16"),
        cost=embed_cost,
        pytorch=by_conv,
        libraries=(Library("matmul", by_matmul), COMPILE),
        unwatched=CUBLAS_UNWATCHED,
    ),
    Problem(
        name="tiny ViT, 12 layers",
        inputs=vit_inputs,
        reference=named(twin),
        rungs=(
            Rung(
                "vit_v1_separate",
                "the first rung of each day",
                load=partial(load_forward, separate),
                calls=("linear",),
            ),
            Rung(
                "vit_v2_fused",
                "the last rung of each day",
                load=partial(load_forward, fused),
                calls=("linear",),
                target=Target(1.0, "compile"),
            ),
        ),
        cases=(
            *grid(
                [(2, 3, 16, 24, 8, 2, 128), (3, 1, 4, 6, 2, 1, 64), (1, 1, 8, 8, 8, 1, 64)], HALVES
            ),
            Case((1, 3, 32, 32, 8, 12, 192), "bfloat16"),
        ),
        bench=Case((256, 3, 224, 224, 16, 12, 192), "bfloat16"),
        bench_cpu=Case((1, 3, 16, 16, 8, 1, 64), "bfloat16"),
        cost=vit_cost,
        pytorch=named(twin),
        libraries=(COMPILE,),
        unwatched=CUBLAS_UNWATCHED,
    ),
)


def show(operators, device):
    """Classifies shapes that the model was not trained on, and saves pictures of what it sees."""
    show_trained(device)
