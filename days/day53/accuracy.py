"""Errors of each type against float64: by the number of terms, by sign, and by range."""

import json

import torch

from common.day import figure_as_svg, print_table

from . import products

SIDE = 64  # rows of A, columns of B
TERMS = (16, 64, 256, 1024, 4096)
FILES = ("accuracy.json", "accuracy.svg")
INPUTS = {"normal": torch.randn, "uniform in [0, 1)": torch.rand}
SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6)


def int8_product(operators, a, b):
    """Through int8, one scale per row of a and per column of b; the products are exact."""
    row, column = a.abs().amax(1, keepdim=True) / 127, b.abs().amax(0, keepdim=True) / 127
    left, right = (a / row).round().to(torch.int8), (b / column).round().to(torch.int8)
    whole = operators.gemm_v3_padded(left, right)
    if not torch.equal(whole, products.product(left, right)):
        raise RuntimeError("the sums of int8 are not exact")
    return whole.double() * row * column


def through(operator, dtype):
    return lambda operators, a, b: getattr(operators, operator)(a.to(dtype), b.to(dtype))


WAYS = {  # how float32 matrices are multiplied: (operators, a, b) -> product
    "fp32, torch.mm": lambda operators, a, b: torch.mm(a, b),
    "tf32": through("gemm_v3_padded", torch.float32),
    "tf32, truncated": through("gemm_tf32_truncated", torch.float32),
    "fp16": through("gemm_v3_padded", torch.float16),
    "fp16, sums in fp16": through("gemm_fp16_sums", torch.float16),
    "bf16": through("gemm_v3_padded", torch.bfloat16),
    "int8, scaled": int8_product,
}


def matrices(draw, terms, device):
    """float32 (SIDE, terms) and (terms, SIDE), the same on each device."""
    generator = torch.Generator().manual_seed(53)
    return [
        draw(*shape, generator=generator).to(device) for shape in ((SIDE, terms), (terms, SIDE))
    ]


def norm_of_error(got, truth):
    """|got - truth| / |truth|, Frobenius norms."""
    return float((got.double() - truth).norm() / truth.norm())


def measured(operators, device):
    """By kind of inputs and way, the errors for TERMS."""
    found = {}
    for title, draw in INPUTS.items():
        found[title] = {way: [] for way in WAYS}
        for terms in TERMS:
            a, b = matrices(draw, terms, device)
            truth = a.double() @ b.double()
            for way, multiply in WAYS.items():
                error = norm_of_error(multiply(operators, a, b), truth)
                found[title][way].append(float(f"{error:.3g}"))
    return found


def print_by_terms(found):
    for title, errors in found.items():
        print(f"error against float64, relative to the norm of C; inputs {title}, K =")
        rows = [[way, *(f"{e:.2g}" for e in row)] for way, row in errors.items()]
        print_table(["", *map(str, TERMS)], rows)


def print_by_range(operators, device):
    """The errors where A is scaled, which changes nothing but the exponents."""
    a, b = matrices(torch.randn, 256, device)
    rows = []
    for way, multiply in WAYS.items():
        errors = []
        for scale in SCALES:
            scaled = a * scale
            truth = scaled.double() @ b.double()
            errors.append(f"{norm_of_error(multiply(operators, scaled, b), truth):.2g}")
        rows.append([way, *errors])
    print("inputs normal, K = 256, A multiplied by")
    print_table(["", *(f"{scale:g}" for scale in SCALES)], rows)


def print_parts(operators, device):
    """For tf32 and 4096 terms: what rounding A and B costs, what the sums cost, and the bias."""
    rows = []
    for title, draw in INPUTS.items():
        a, b = matrices(draw, TERMS[-1], device)
        truth = a.double() @ b.double()
        for way, added in (("tf32", products.ROUNDED), ("tf32, truncated", products.TRUNCATED)):
            left, right = (products.as_tf32(x, added).double() for x in (a, b))
            got = WAYS[way](operators, a, b).double()
            parts = norm_of_error(left @ right, truth), float((got - left @ right).norm())
            bias = float((got - truth).sum() / truth.sum())
            shown = [f"{parts[0]:.2g}", f"{parts[1] / float(truth.norm()):.2g}"]
            rows.append([f"{way}, {title}", *shown, f"{bias:+.1e}" if draw is torch.rand else ""])
    print(f"K = {TERMS[-1]}: what the error consists of")
    print_table(["", "A and B", "sums", "mean error of C, with its sign"], rows)


def svg(found, device):
    """A panel per kind of inputs: the errors over the number of terms, a line per way."""

    def draw(figure):
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (title, errors) in zip(axes, found.items(), strict=True):
            for way, row in errors.items():
                axis.plot(TERMS, row, marker="o", markersize=3, label=way)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(TERMS, [str(terms) for terms in TERMS])
            axis.minorticks_off()
            axis.set_xlabel(f"K, inputs {title}")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("error / norm of C")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        figure.suptitle(device)

    return figure_as_svg((8.6, 3.8), draw)


def show_errors(operators, device):
    """Prints the tables; returns that by K as data and as a plot. Raises RuntimeError where sums of
    int8 are not exact."""
    found = measured(operators, device)
    print_by_terms(found)
    print_parts(operators, device)
    print_by_range(operators, device)
    name = "CPU backend" if device.type == "cpu" else torch.cuda.get_device_name(device)
    lines = [
        f'  "{title}": {{\n'
        + ",\n".join(f"   {json.dumps(way)}: {json.dumps(row)}" for way, row in errors.items())
        + "\n  }"
        for title, errors in found.items()
    ]
    text = f'{{\n "K": {json.dumps(TERMS)},\n {json.dumps(name)}: {{\n' + ",\n".join(lines)
    return dict(zip(FILES, (text + "\n }\n}\n", svg(found, name)), strict=True))
