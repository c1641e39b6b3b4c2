"""The functions in PyTorch: how it is called, stable float64 formulas, and errors in ulps."""

import math

import torch
import torch.nn.functional as F

from common.day import print_table

TORCH = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
FUNCTIONS = tuple(TORCH)
CUBIC = 0.044715


def normal_cdf(x):
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))


def twice_u(x):
    """2u of gelu_tanh."""
    return 2 * math.sqrt(2 / math.pi) * (x + CUBIC * x**3)


def derivative_of_gelu_tanh(x):
    """1 and 0 far from 0, where the formula would be 0 · inf."""
    plus, minus = torch.sigmoid(twice_u(x)), torch.sigmoid(-twice_u(x))
    near = x.clamp(-100, 100)
    return plus + x * (plus * minus) * (2 * math.sqrt(2 / math.pi) * (1 + 3 * CUBIC * near**2))


# Without cancellation. PyTorch's formulas lose digits of small results in float64 too.
EXACT = {
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_tanh": lambda x: x * torch.sigmoid(twice_u(x)),
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
DERIVATIVES = {
    "gelu": lambda x: normal_cdf(x) + x * (torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    "gelu_tanh": derivative_of_gelu_tanh,
    "silu": lambda x: torch.sigmoid(x) + x * (torch.sigmoid(x) * torch.sigmoid(-x)),
    "tanh": lambda x: 4 * (torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)),
    "sigmoid": lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
}


def known(function, names=FUNCTIONS):
    if function not in names:
        raise ValueError(f"function: expected one of {', '.join(names)}, got {function!r}")
    return function


def value(x, function):
    """f(x): the truth in float64, else PyTorch's own operator."""
    return (EXACT if x.dtype == torch.float64 else TORCH)[known(function)](x)


def gradient(gy, x, function):
    """gy · f'(x): the truth in float64, else what PyTorch's autograd computes."""
    if gy.shape != x.shape or gy.dtype != x.dtype:
        raise ValueError("gy: expected the shape and dtype of x")
    if x.dtype == torch.float64:
        return gy * DERIVATIVES[known(function)](x)
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(TORCH[known(function)](leaf), leaf, gy)[0]


GATES = ("gelu", "silu")


def gated(gate, up, function):
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError("up: expected the shape and dtype of gate")
    return value(gate, known(function, GATES)) * up


def gated_gradients(gy, gate, up, function):
    known(function, GATES)
    return gradient(gy * up, gate, function), gy * value(gate, function)


def every_bf16(device):
    """All finite numbers of bf16, in order: 65,280 of 65,536 bit patterns."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = patterns.view(torch.bfloat16)
    return numbers[numbers.isfinite()].sort().values.to(device)


def ulps_off(got, truth):
    """Errors of bf16 numbers in ulps: |got - truth| over bf16's spacing at the truth, float64."""
    exponent = truth.abs().clamp(min=2.0**-126).log2().floor()
    return (got.double() - truth).abs() / torch.exp2(exponent - 7)


def errors(name, call, x, truth):
    """A row of the table: the largest error, where it is, and how many results are not nearest."""
    got = call(x)
    off = ulps_off(got, truth)
    worst = int(off.argmax())
    wrong = int((got != truth.to(torch.bfloat16)).sum())
    return name, f"{float(off[worst]):.3g}", f"{float(x[worst]):.4g}", f"{wrong:,}"


HEADER = ("formula", "largest error, ulps", "at x", "not the nearest")


def print_errors(operators, device):
    """Errors over every finite number of bf16; without a GPU, of accurate functions."""
    x = every_bf16(device)
    by = operators.formula
    for function, others in (
        ("tanh", ("tanh.approx", "tanh.approx.bf16", "tanh_by_exp")),
        ("sigmoid", ("sigmoid_by_tanh",)),
        ("gelu", ("gelu_by_erf", "gelu_by_normcdf", "gelu_by_hastings")),
        ("gelu_tanh", ("gelu_tanh_approx",)),
        ("silu", ()),
    ):
        truth = EXACT[function](x.double())
        calls = {
            "PyTorch": TORCH[function],
            "v2": lambda x, f=function: operators.activation_v2_vectorised(x, f),
            "v3": lambda x, f=function: operators.activation_v3_fast(x, f),
            **{name: lambda x, name=name: by(x, name) for name in others},
        }
        print_table((function, *HEADER[1:]), [errors(n, c, x, truth) for n, c in calls.items()])
