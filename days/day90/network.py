"""The transformer block in PyTorch: its formula, inputs and cost."""

import torch
from torch.nn import functional as F

from common.day import Cost, attention

from .module import EPS, eager, with_gradients


def gelu(v):
    if v.dtype != torch.float64:
        return F.gelu(v, approximate="tanh")
    # The truth: for large negative v, 1 + tanh(u) has no digits left, 2 · sigmoid(2u) has all.
    return v * torch.sigmoid((8 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))


def formula(x, heads, *parameters, eps=EPS):
    """The block with whole matrices of scores."""
    gain1, shift1, qkv_w, qkv_b, proj_w, proj_b, gain2, shift2, up_w, up_b, down_w, down_b = (
        parameters
    )
    width = x.shape[-1]
    qkv = F.linear(F.layer_norm(x, (width,), gain1, shift1, eps), qkv_w, qkv_b)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    o, _ = attention(q, k, v, causal=True)
    h = x + F.linear(o.transpose(1, 2).flatten(2), proj_w, proj_b)
    hidden = gelu(F.linear(F.layer_norm(h, (width,), gain2, shift2, eps), up_w, up_b))
    return h + F.linear(hidden, down_w, down_b)


def reference(*arguments):
    *tensors, eps = arguments
    return formula(*tensors, eps=eps)


def by_pytorch(*arguments):
    return eager(*arguments[:-1])


def parameters(case, draw):
    """Shape (B, S, heads, D, F). Products keep the size of what they get."""
    _, _, heads, D, hidden = case.shape
    C = heads * D
    made = []
    for columns_out, columns_in in ((3 * C, C), (C, C), (hidden, C), (C, hidden)):
        if columns_out in (3 * C, hidden) and columns_in == C and len(made) in (0, 6):
            made += [draw(C, low=0.5, high=1.5), draw(C, values="normal").mul_(0.2)]
        weight = draw(columns_out, columns_in, values="normal").mul_(columns_in**-0.5)
        made += [weight, draw(columns_out, values="normal").mul_(0.5)]
    return made


def step_inputs(case, draw):
    B, S, heads, D, _ = case.shape
    return draw(B, S, heads * D), heads, *parameters(case, draw)


def inputs(case, draw):
    return *step_inputs(case, draw), EPS


def operations(case):
    """Of the four products, and of the scores that a causal mask leaves."""
    B, S, heads, D, hidden = case.shape
    C = heads * D
    return B * S * (8 * C * C + 4 * C * hidden), 2 * B * S * S * C


def cost(training, case):
    """x and the parameters are read once, y is written. A training step reads x and the gradient of
    y, and the parameters twice, and writes y and 13 gradients. Its products cost three times as
    much as those forward, and attention 3.5 times."""
    B, S, heads, D, hidden = case.shape
    C = heads * D
    products, scores = operations(case)
    x, weights = B * S * C, 4 * C * C + 2 * C * hidden
    if training:
        elements, flops = 4 * x + 3 * weights, 3 * products + 7 * scores // 2
    else:
        elements, flops = 2 * x + weights, products + scores
    return Cost(bytes=elements * case.itemsize, flops=flops, unit="tensor")


def loader(version):
    """For a rung: the block with its gradients."""
    return lambda builder: with_gradients(builder.operators(), version)
