"""Errors of fp8 products against float64, with and without promotion, by the number of terms."""

import json

import torch

from common.day import figure_as_svg, print_table

SIDE = 128  # rows of A and of B
TERMS = (128, 512, 2048, 8192)
FILES = ("accuracy.json", "accuracy.svg")
INPUTS = {"normal": torch.randn, "uniform in [0, 1)": torch.rand}


def quantised(x, block):
    """e4m3 and the scales of 1 × block of x: (rows, K / block)."""
    pieces = x.unflatten(1, (-1, block))
    scale = pieces.abs().amax(2) / 448
    return (pieces / scale[..., None]).flatten(1).to(torch.float8_e4m3fn), scale


def restored(x, scale):
    """What e4m3 and scales stand for, in float64."""
    return x.double() * scale.double().repeat_interleave(x.shape[1] // scale.shape[1], 1)


def products_of(operators, a, b):
    """By way: (result, what the product of the same e4m3 numbers is in float64)."""
    K = a.shape[1]
    rows = quantised(a, K), quantised(b, K)
    at_end = operators.gemm_rows_v1_scaled_at_end(
        rows[0][0], rows[1][0], rows[0][1].flatten(), rows[1][1].flatten()
    )
    left, of_a = quantised(a, 128)
    of_b = b.unflatten(1, (-1, 128)).abs().amax((0, 2))[:, None] / 448  # (K / 128, 1): 128 × 128
    right = (b / of_b.T.repeat_interleave(128, 1)).to(torch.float8_e4m3fn)
    promoted = operators.gemm_blocks_v2_promoted(left, right, of_a.T.contiguous(), of_b)
    exact = restored(left, of_a) @ restored(right, of_b.T.expand(SIDE, -1)).T
    return {
        "v1, scales per row, not promoted": (at_end, restored(*rows[0]) @ restored(*rows[1]).T),
        "v2, block scales, promoted": (promoted, exact),
        "bf16 nearest to the exact sums": (exact.bfloat16(), exact),
    }


def norm_of_error(got, truth):
    """|got - truth| / |truth|, Frobenius norms."""
    return float((got.double() - truth).norm() / truth.norm())


def show_errors(operators, device):
    """Prints the tables: the error of the sums, and that with e4m3's own rounding. Returns the
    errors of the sums as data and as a plot."""
    found = {}
    for title, draw in INPUTS.items():
        found[title], whole = {}, {}
        for terms in TERMS:
            generator = torch.Generator().manual_seed(57)
            a, b = (draw(SIDE, terms, generator=generator).to(device) for _ in range(2))
            truth = a.double() @ b.double().T
            for way, (got, exact) in products_of(operators, a, b).items():
                error = float(f"{norm_of_error(got, exact):.3g}")
                found[title].setdefault(way, []).append(error)
                whole.setdefault(way, []).append(norm_of_error(got, truth))
        for what, errors in (("sums", found[title]), ("sums and e4m3", whole)):
            print(f"error of {what} against float64, relative to the norm of C; {title}, K =")
            rows = [[way, *(f"{e:.2g}" for e in row)] for way, row in errors.items()]
            print_table(["", *map(str, TERMS)], rows)
    name = "CPU backend" if device.type == "cpu" else torch.cuda.get_device_name(device)
    text = json.dumps({"K": TERMS, name: found}, indent=1, ensure_ascii=False) + "\n"
    return dict(zip(FILES, (text, svg(found, name)), strict=True))


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
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center")
        figure.suptitle(device)

    return figure_as_svg((8.6, 3.8), draw)
