"""The layers of ResNet-50, timed beside cuDNN."""

import json
from functools import partial

import torch

from common.day import Case, figure_as_svg, print_table, seconds

from ..day import by_cudnn, conv2d, cost, inputs
from .day import data_gradient, data_gradient_inputs, weight_gradient, weight_gradient_inputs

IMAGES = 32
FILES = ("layers.json", "layers.svg")  # what --write stores of a GPU
# H = W, C, K, R = S, stride: each distinct layer but the first, which has three channels. The 3 × 3
# filters have the strides, as torchvision's do.
LAYERS = (
    *((56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1)),
    *((56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (56, 256, 512, 1, 2)),
    *((28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1)),
    *((28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2)),
    *((14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 256, 256, 3, 1)),
    *((14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (14, 1024, 2048, 1, 2)),
    *((7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1)),
    (56, 128, 128, 3, 1),  # not in ResNet-50: the layer that the days time
)
DIRECTIONS = {  # inputs, by cuDNN, operators
    "forward": (inputs, conv2d, ("v3_additions", "v4_boxes", "v5_clusters", "v6_split")),
    "data": (data_gradient_inputs, data_gradient, ("data_gradient_v3", "data_gradient_v4")),
    "weight": (
        weight_gradient_inputs,
        weight_gradient,
        ("weight_gradient_v3", "weight_gradient_v4"),
    ),
}


def case_of(layer):
    size, C, K, side, stride = layer
    return Case((IMAGES, size, size, C, K, side, side, stride, side // 2, 1), "bfloat16")


def label(layer):
    size, C, K, side, stride = layer
    return f"{size} × {size}, {C} → {K}, {side} × {side}" + (f" / {stride}" if stride > 1 else "")


def rates(operators, device, direction, layer):
    """TFLOP/s of each operator of this direction, and of cuDNN at the end."""
    make, library, names = DIRECTIONS[direction]
    case = case_of(layer)
    arguments = make(case, partial(torch.randn, dtype=torch.bfloat16, device=device))
    calls = [*(getattr(operators, f"conv2d_{name}") for name in names), partial(by_cudnn, library)]
    return [1e-12 * cost(case).flops / seconds(partial(call, *arguments)) for call in calls]


def print_layers(operators, device):
    """Prints TFLOP/s of all layers, and returns them as data and as a plot; nothing on the CPU."""
    if device.type != "cuda":
        return {}
    found = {}
    for direction, (_, _, names) in DIRECTIONS.items():
        measured = {label(layer): rates(operators, device, direction, layer) for layer in LAYERS}
        columns = [*names, "cuDNN"]
        print(f"{direction}, TFLOP/s, {IMAGES} images")
        table = [
            [name, *(f"{rate:.0f}" for rate in row), f"{max(row[:-1]) / row[-1]:.2f}×"]
            for name, row in measured.items()
        ]
        print_table(["", *columns, "best × cuDNN"], table)
        found[direction] = {"columns": columns} | {
            name: [float(f"{rate:.4g}") for rate in row] for name, row in measured.items()
        }
    text = ",\n".join(
        f' "{direction}": {{\n'
        + ",\n".join(
            f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(row)}"
            for name, row in rows.items()
        )
        + "\n }"
        for direction, rows in found.items()
    )
    return dict(zip(FILES, (f"{{\n{text}\n}}\n", svg(found["forward"])), strict=True))


def svg(forward):
    """The forward pass: a line per rung over the layers."""

    names = [name for name in forward if name != "columns"]

    def draw(figure):
        axis = figure.subplots()
        rows = zip(*(forward[name] for name in names), strict=True)
        for column, values in zip(forward["columns"], rows, strict=True):
            axis.plot(values, range(len(names)), "k|" if column == "cuDNN" else ".", label=column)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.set_xlabel("TFLOP/s, forward")
        axis.legend()

    return figure_as_svg((6.4, 5.2), draw)
