"""Grey: cases, formulas, rungs."""

from functools import cache

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid

SIZES = [(1, 1), (1, 3), (5, 3), (3, 5), (16, 16), (31, 33), (64, 65), (7, 1031), (0, 4), (4, 0)]


def image_of(case, draw):
    white = {"low": 255, "high": 256} if case.values == "constant" else {}  # finds overflow
    return draw(*case.shape[:2], 3, **white)


def grey_reference(image):
    r, g, b = image.to(torch.int32).unbind(-1)
    return ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16).to(torch.uint8)


def grey_in_place(image):
    """Exact, with one int32 image: each addition reads bytes and widens them itself."""
    r, g, b = image.unbind(-1)
    y = torch.full(r.shape, 32768, dtype=torch.int32, device=image.device)
    y.add_(r, alpha=19595).add_(g, alpha=38470).add_(b, alpha=7471)
    return y.bitwise_right_shift_(16).to(torch.uint8)


@cache
def grey_compiled():
    """The formula in one expression, which the compiler fuses; the image in place stops it."""
    return torch.compile(grey_reference, dynamic=False)


def grey_cost(case):
    pixels = case.shape[0] * case.shape[1]
    return Cost(bytes=4 * pixels, flops=6 * pixels, unit="int32")


GREY = Problem(
    name="grey",
    inputs=lambda case, draw: (image_of(case, draw),),
    reference=grey_reference,
    pytorch=grey_in_place,
    libraries=(Library("compile", lambda image: grey_compiled()(image)),),
    rungs=(
        Rung("grey_v1_thread_per_pixel", "one thread per pixel"),
        Rung("grey_v2_four_pixels", "three words in, one word out"),
        Rung("grey_v3_sixteen_pixels", "16-byte loads", target=Target(0.85, "copy")),
    ),
    cases=(*grid(SIZES, ["uint8"]), Case((9, 13), "uint8", "constant")),
    bench=Case((16384, 16384), "uint8"),
    bench_cpu=Case((1024, 1024), "uint8"),
    cost=grey_cost,
)
