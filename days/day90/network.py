"""The transformer block in PyTorch: its formula, inputs and cost."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from common.day import Cost
from common.references.attention import attention

from .module import EPS, PARAMETERS, eager, with_gradients


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


def reference(
    x,
    heads,
    gain1,
    shift1,
    qkv_w,
    qkv_b,
    proj_w,
    proj_b,
    gain2,
    shift2,
    up_w,
    up_b,
    down_w,
    down_b,
    eps,
):
    first = gain1, shift1, qkv_w, qkv_b, proj_w, proj_b
    return formula(x, heads, *first, gain2, shift2, up_w, up_b, down_w, down_b, eps=eps)


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


# ---------------------------------------------------------------- the parts alone


def norm_inputs(case, draw):
    """Shape (rows, C): x and a branch to add to it."""
    rows, C = case.shape
    x, branch = draw(rows, C).add_(1), draw(rows, C, values="normal")
    return x, branch, draw(C, low=0.5, high=1.5), draw(C, values="normal")


def norm(x, branch, gain, shift):
    h = x + branch
    return h, F.layer_norm(h, (h.shape[1],), gain, shift, EPS)


def norm_backward_inputs(case, draw):
    x, top, gain, shift = norm_inputs(case, draw)
    return draw(*case.shape, values="normal"), top, x, gain, shift


def norm_backward(g, top, x, gain, shift):
    """In fp32 at least, as PyTorch's own operator computes 16-bit inputs."""
    wide = torch.promote_types(x.dtype, torch.float32)
    up, h, weight = g.to(wide), x.to(wide), gain.to(wide)
    d = h - h.mean(1, keepdim=True)
    rstd = (d.square().mean(1, keepdim=True) + EPS).rsqrt()
    n, a = d * rstd, up * weight
    gh = rstd * (a - a.mean(1, keepdim=True) - n * (a * n).mean(1, keepdim=True)) + top.to(wide)
    y = n * weight + shift.to(wide)
    sums = (up * n).sum(0), up.sum(0), gh.sum(0), top.to(wide).sum(0)
    ggain, gshift, sum_gh, sum_top = (each.to(x.dtype) for each in sums)
    return gh.to(x.dtype), ggain, gshift, y.to(x.dtype), sum_gh, sum_top


def packed_inputs(case, draw):
    """Shape (B, S, heads, D)."""
    B, S, heads, D = case.shape
    return draw(B, S, 3 * heads * D), heads


def heads_of(rows, heads):
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def packed_attention(qkv, heads):
    o, lse = attention(*(heads_of(part, heads) for part in qkv.chunk(3, -1)), causal=True)
    return o.transpose(1, 2).flatten(2), lse


def packed_backward_inputs(case, draw):
    """lse is that of the formula. o is any: with the formula's own, the gradient of each first
    query is a difference of two equal sums, of which nothing but rounding is left."""
    B, S, heads, D = case.shape
    qkv = draw(B, S, 3 * heads * D)
    _, lse = packed_attention(qkv.float(), heads)
    up, o = (draw(B, S, heads * D, values="normal") for _ in range(2))
    return up, qkv, o, lse


def packed_backward(go, qkv, o, lse):
    """The formula with whole matrices, which are rounded where a kernel rounds them."""
    dtype, heads = qkv.dtype, lse.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v = (heads_of(part.to(wide), heads) for part in qkv.chunk(3, -1))
    up, out = heads_of(go.to(wide), heads), heads_of(o.to(wide), heads)
    scale = q.shape[-1] ** -0.5
    p = (q @ k.mT * scale - lse.to(wide)[..., None]).exp().tril()
    gs = p * (up @ v.mT - (up * out).sum(-1, keepdim=True))
    p, gs = p.to(dtype).to(wide), gs.to(dtype).to(wide)
    gradients = gs @ k * scale, gs.mT @ q * scale, p.mT @ up
    gqkv = torch.cat([g.transpose(1, 2).flatten(2) for g in gradients], -1)
    return gqkv.flatten(0, 1).to(dtype), gqkv.flatten(0, 1).sum(0).to(dtype)


def statistics_of(rows):
    """Mean and inverse deviation, in fp32."""
    wide = rows.float()
    rstd = (wide.var(1, correction=0) + EPS).rsqrt()
    return torch.stack([wide.mean(1), rstd], 1)


def backward_inputs(case, draw):
    """Shape (B, S, heads, D, F). What the forward pass has kept is any, too, but for what follows
    from other arguments."""
    *sizes, hidden = case.shape
    gy, qkv, o, lse = packed_backward_inputs(replace(case, shape=tuple(sizes)), draw)
    x, heads, *both = step_inputs(case, draw)
    weights = [p for name, p in zip(PARAMETERS, both, strict=True) if "bias" not in name]
    rows = x.flatten(0, 1)
    h, pre = draw(*rows.shape), draw(len(rows), hidden)
    kept = qkv.flatten(0, 1), o.flatten(0, 1), lse, h, pre, statistics_of(rows), statistics_of(h)
    return gy, x, heads, *weights, *kept


def backward(
    gy, x, heads, gain1, shift1, qkv_w, proj_w, gain2, shift2, up_w, down_w, qkv, o, lse, h, pre,
    statistics1, statistics2,
):  # fmt: skip
    up, rows = gy.flatten(0, 1), x.flatten(0, 1)
    with torch.enable_grad():
        at = pre.detach().requires_grad_()
        (slope,) = torch.autograd.grad(gelu(at).sum(), at)
    g1 = up @ down_w * slope
    gh, *norm2, y2, sum_gh, sum_top = norm_backward(g1 @ up_w, up, h, gain2, shift2)
    packed = (each.view(*x.shape[:2], -1) for each in (gh @ proj_w, qkv, o))
    gqkv, qkv_bias = packed_backward(*(*packed, lse))
    gx, *norm1, y1, _, _ = norm_backward(gqkv @ qkv_w, gh, rows, gain1, shift1)
    first = *norm1, gqkv.T @ y1, qkv_bias, gh.T @ o, sum_gh
    return gx.view_as(x), *first, *norm2, g1.T @ y2, g1.sum(0), up.T @ gelu(pre), sum_top
