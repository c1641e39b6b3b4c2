"""Fake quantisation and its gradients in PyTorch, and inputs."""

import functools

import torch

LEVELS = [(-8, 7), (-4, 3), (0, 15), (-1, 1), (-128, 127), (0, 3), (-2, 1)]
REFUSED = [(1, 7), (-8, 0), (-32769, 7), (-8, 65536), (-8, 2**32 + 7), (-(2**32) - 8, 7)]
FIRST_REFUSED = 100
FACTOR = 0.375


def levels_of(number):
    """qmin and qmax: the last size of a case counts them from 1, the refused ones from 100."""
    if number >= FIRST_REFUSED:
        return REFUSED[number - FIRST_REFUSED]
    return LEVELS[(number - 1) % len(LEVELS)]


class StraightThrough(torch.autograd.Function):
    """The nearest whole numbers `rounded` of v, with the derivative of v itself."""

    @staticmethod
    def forward(ctx, v, rounded):
        return rounded.to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        return g, None


def quotients(x, s):
    """x / s as kernels and PyTorch compute it, in fp32, so that all agree about ties."""
    return x.detach().float() * (1 / s.detach().float())


def fake_quantized(x, s, qmin, qmax, factor=1.0):
    """Differentiable, by autograd; the gradient of s is multiplied by factor."""
    s = s[:, None]
    s = s * factor + (s * (1 - factor)).detach()
    v = x / s
    q = StraightThrough.apply(v, quotients(x, s).round())
    return (s * q.clamp(qmin, qmax)).to(x.dtype)


def gradients(g, x, s, qmin, qmax, factor):
    """Of x and of s, by the formula."""
    wide = torch.promote_types(x.dtype, torch.float32)
    v = quotients(x, s[:, None])
    q = v.round()
    inside = (q >= qmin) & (q <= qmax)
    slopes = torch.where(q < qmin, qmin, torch.where(q > qmax, qmax, q - v))
    terms = g.to(wide) * slopes.to(wide)
    gs = terms.sum().view(1) if len(s) == 1 else terms.sum(1)
    return torch.where(inside, g, 0), factor * gs


# ---------------------------------------------------------------- baselines


@functools.cache
def zero_points(count, dtype, device):
    """A CUDA graph need not fill them each time."""
    return torch.zeros(count, dtype=dtype, device=device)


def forward_by_pytorch(x, s, qmin, qmax):
    if len(s) == 1:
        zero = zero_points(1, torch.int32, x.device)
        return torch.fake_quantize_per_tensor_affine(x, s, zero, qmin, qmax)
    # Zero points that are integers would be compared with the levels on the host.
    zero = zero_points(len(s), torch.float32, x.device)
    return torch.fake_quantize_per_channel_affine(x, s, zero, 0, qmin, qmax)


def backward_by_pytorch(g, x, s, qmin, qmax, factor):
    """What autograd calls for torch._fake_quantize_learnable_per_channel_affine."""
    zero, levels = zero_points(len(s), s.dtype, x.device), (qmin, qmax, factor)
    if len(s) == 1:
        backward = torch.ops.aten._fake_quantize_learnable_per_tensor_affine_backward
        gx, gs, _ = backward(g, x, s, zero, *levels)
    else:
        backward = torch.ops.aten._fake_quantize_learnable_per_channel_affine_backward
        gx, gs, _ = backward(g, x, s, zero, 0, *levels)
    return gx.to(x.dtype), gs


def _forward(x, s, qmin, qmax):
    v = x.float() * (1 / s)[:, None]
    return (s[:, None] * v.round().clamp(qmin, qmax)).to(x.dtype)


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=False)


def forward_compiled(x, s, qmin, qmax):
    return _compiled(_forward)(x, s, qmin, qmax)


def backward_compiled(g, x, s, qmin, qmax, factor):
    return _compiled(gradients)(g, x, s, qmin, qmax, factor)


# ---------------------------------------------------------------- inputs


def special(x, s, qmin, qmax):
    """Overwrites the first elements of x, which has a step of 1/4: ties, the ends of the levels,
    half a step further, and their neighbours in the dtype of x."""
    k = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, qmin, qmin - 0.5, qmax, qmax + 0.5])
    values = (k * 0.25).to(x.dtype)
    one = torch.full_like(values, float("inf"))
    values = torch.cat([values, values.nextafter(one), values.nextafter(-one)])
    s[:1] = 0.25
    x[:1, : len(values)] = values[: x.shape[1]].to(x.device)


def inputs(whole, with_gradient, case, draw):
    """whole: one step for the whole tensor. Shape of a case: rows, columns, number of the levels.
    Only finite ordinary values are overwritten by special ones."""
    rows, cols, number = case.shape
    levels = levels_of(number)
    x = draw(rows, cols)
    s = draw(1 if whole else rows, dtype="float32", low=0.1, high=0.5)
    if case.values == "normal" and rows:
        special(x, s, *levels)
    if with_gradient:
        return draw(rows, cols), x, s, *levels, FACTOR
    return x, s, *levels
