"""GELU with bias, and the MLP around it: cases, formulas, rungs."""

import torch
from torch.nn.functional import gelu, linear

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import (
    COMPILE,
    FLOATS,
    Case,
    Cost,
    Problem,
    Rung,
    Skip,
    Target,
    Tolerance,
    grid,
    print_table,
    seconds,
)


def matrix_and_bias(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(cols, values="normal")


def bias_gelu(x, bias):
    if bias.shape != x.shape[1:]:
        raise ValueError(f"bias: expected {x.shape[1]} elements, got {tuple(bias.shape)}")
    v = x + bias
    if v.dtype == torch.float64:
        # The truth: for large negative v, 1 + tanh(u) has no digits left, 2 · sigmoid(2u) has all.
        return v * torch.sigmoid((8 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))
    return gelu(v, approximate="tanh")


def bias_gelu_cost(case):
    rows, cols = case.shape  # forward 2 matrices, backward 3
    return Cost(bytes=5 * rows * cols * case.itemsize, flops=40 * rows * cols)


def rung(name, idea, target=None):
    def backward(saved, gy):
        return getattr(torch.ops.day30, name.replace("gelu", "gelu_backward"))(gy, *saved)

    return Rung(name, idea, target=target, backward=backward, saves=lambda inputs, output: inputs)


activation = Problem(
    name="bias and GELU, with gradients",
    inputs=matrix_and_bias,
    reference=bias_gelu,
    rungs=(
        rung("bias_gelu_v1_two_passes", "bias gradient from a second pass"),
        rung("bias_gelu_v2_one_pass", "bias gradient in registers", Target(1.2, "pytorch")),
    ),
    cases=(
        *grid([(1, 1), (3, 255), (2, 256), (5, 264), (37, 3072), (9, 8)], FLOATS),
        *grid([(0, 8), (4, 0)], FLOATS),
        *grid([(2100, 24)], ["bfloat16"]),  # more rows than one pass of the grid takes
        *grid([(8, 304)], FLOATS, values="large"),
        *grid([(8, 304)], FLOATS, values="nonfinite"),
    ),
    bench=Case((65536, 3072), "bfloat16"),
    bench_cpu=Case((64, 3072), "bfloat16"),
    cost=bias_gelu_cost,
    pytorch=bias_gelu,
    libraries=(COMPILE,),
    gradients=True,
)


def gradient_inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols, values="normal"), *matrix_and_bias(case, draw)


def bias_gelu_backward(gy, x, bias):
    """The gradients of x and of bias."""
    gx = torch.ops.aten.gelu_backward(gy, x + bias, approximate="tanh")
    return gx, gx.sum(0)


gradient = Problem(
    name="the gradient of bias and GELU, alone",
    inputs=gradient_inputs,
    reference=bias_gelu_backward,
    rungs=(
        Rung("bias_gelu_backward_v1_two_passes", "bias gradient from a second pass"),
        Rung("bias_gelu_backward_v2_one_pass", "bias gradient in registers"),
    ),
    cases=grid([(3, 41), (1, 8), (9, 264)], ["float32", "bfloat16"]),
    timed=False,
)


def layer(case, draw):
    rows, width = case.shape
    w1 = draw(4 * width, width).mul_(width**-0.5)
    w2 = draw(width, 4 * width).mul_((4 * width) ** -0.5)
    return draw(rows, width), w1, draw(4 * width), w2, draw(width)


def mlp(x, w1, b1, w2, b2):
    return linear(gelu(linear(x, w1, b1), approximate="tanh"), w2, b2)


def mlp_cost(case):
    rows, width = case.shape  # per product 8 · rows · width² operations; 2 forward, 4 backward
    moved = 2 * rows * width + 2 * 8 * width * width
    return Cost(bytes=2 * moved * case.itemsize, flops=48 * rows * width**2, unit="tensor")


def check_layer(x, aligned=False, **others):
    """Refuses what the products and our operators would refuse in words that name no argument."""
    width = x.shape[-1] if x.dim() else 0
    shapes = ((*x.shape[:1], width), (4 * width, width), (4 * width,), (width, 4 * width), (width,))
    for (name, tensor), shape in zip({"x": x, **others}.items(), shapes, strict=True):
        if (tensor.dtype, tensor.device) != (x.dtype, x.device) or not x.is_floating_point():
            raise ValueError(f"{name}: expected {x.dtype}, floating, on {x.device}, as x is")
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
        if aligned and (tensor.data_ptr() % 16 or tensor.numel() == 0 or width % 8):
            raise ValueError(f"{name}: expected aligned rows of a multiple of 8 elements, not none")


class Kernels(torch.autograd.Function):
    """Products by PyTorch, which calls cuBLAS; bias_gelu v2 between them."""

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        check_layer(x, w1=w1, b1=b1, w2=w2, b2=b2)
        product, b1 = x @ w1.T, b1.contiguous()
        hidden = torch.ops.day30.bias_gelu_v2_one_pass(product, b1)
        ctx.save_for_backward(x, w1, b1, w2, product, hidden)
        return linear(hidden, w2, b2)

    @staticmethod
    def backward(ctx, gy):
        x, w1, b1, w2, product, hidden = ctx.saved_tensors
        backward = torch.ops.day30.bias_gelu_backward_v2_one_pass
        g, gb1 = backward(gy @ w2, product, b1)
        return g @ w1, g.T @ x, gb1, gy.T @ hidden, gy.sum(0)


class Epilogues(torch.autograd.Function):
    """The same with the forward half of bias_gelu in the epilogue of the first product."""

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        check_layer(x, aligned=True, w1=w1, b1=b1, w2=w2, b2=b2)
        x, w1, b1 = x.contiguous(), w1.contiguous(), b1.contiguous()
        hidden, before = torch.ops.day30.linear_gelu(x, w1, b1)
        ctx.save_for_backward(x, w1, w2, before, hidden)
        return linear(hidden, w2, b2)

    @staticmethod
    def backward(ctx, gy):
        x, w1, w2, before, hidden = ctx.saved_tensors
        backward = torch.ops.day30.bias_gelu_backward_v2_one_pass
        g, gb1 = backward(
            gy @ w2, before, before.new_zeros(before.shape[1])
        )  # has the bias already
        return g @ w1, g.T @ x, gb1, gy.T @ hidden, gy.sum(0)


def by_kernels(builder):
    builder.operators()
    return lambda x, w1, b1, w2, b2: Kernels.apply(x, w1, b1, w2, b2)


def by_epilogues(builder):
    if builder.device == "cpu":
        raise Skip("cuBLAS needs an NVIDIA GPU; mlp_v1_kernels runs here")
    if not hasattr(builder.operators(), "linear_gelu"):
        raise Skip(
            "cuBLAS's headers are missing: python -m pip install nvidia-cublas, and remove the "
            "cached build"
        )
    return lambda x, w1, b1, w2, b2: Epilogues.apply(x, w1, b1, w2, b2)


whole = Problem(
    name="MLP, with gradients",
    inputs=layer,
    reference=mlp,
    rungs=(
        Rung("mlp_v1_kernels", "bias_gelu v2 between cuBLAS products", load=by_kernels),
        Rung(
            "mlp_v2_epilogue",
            "bias and GELU in cuBLASLt's epilogue",
            target=Target(1.0, "compile"),
            load=by_epilogues,
        ),
    ),
    cases=grid([(5, 16), (32, 32), (96, 64)], ["float16", "bfloat16"]),
    bench=Case((32768, 768), "bfloat16"),
    bench_cpu=Case((64, 64), "bfloat16"),
    cost=mlp_cost,
    pytorch=mlp,
    libraries=(COMPILE,),
    gradients=True,
    unwatched=f"{CUBLAS_UNWATCHED}; the kernels of this day that it calls are those of the problem "
    "before it",
    tolerance=Tolerance(factor=8, why="two products, with the rounding of the first in the second"),
)


def show_times(operators, device):
    """Prints what each half of the MLP's activation costs: in a kernel, in an epilogue."""
    if device.type != "cuda" or not hasattr(operators, "linear_gelu"):
        return
    rows, width = whole.bench.shape
    shapes = ((rows, width), (4 * width, width), (4 * width,), (width, 4 * width), (rows, width))
    x, w1, b1, w2, gy = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)
    product = x @ w1.T
    calls = {
        "forward": (
            lambda: x @ w1.T,
            lambda: operators.bias_gelu_v2_one_pass(x @ w1.T, b1),
            lambda: operators.linear_gelu(x, w1, b1),
        ),
        "backward": (
            lambda: gy @ w2,
            lambda: operators.bias_gelu_backward_v2_one_pass(gy @ w2, product, b1),
            lambda: operators.linear_gelu_backward(gy, w2, product),
        ),
    }
    print(f"{rows}×{width} bf16, ms")
    print_table(
        ["", "product alone", "and a kernel", "with an epilogue"],
        [[name, *(f"{seconds(c) * 1e3:.3f}" for c in three)] for name, three in calls.items()],
    )
