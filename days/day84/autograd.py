"""What connects the kernels of day 84 to autograd, torch.compile, autocast and vmap."""

from functools import cache

import torch
import torch.nn.functional as F
from torch.library import register_autocast, register_autograd, register_fake, register_vmap

RUNGS = ("v1_formula", "v2_kernel", "v3_twice")


def wide(*tensors):
    """In fp32 at least, as the kernels compute."""
    return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]


def dot(a, b):
    return (a * b).sum(-1, keepdim=True)


def forward_formula(x, eps):
    (t,) = wide(x)
    return (t * torch.rsqrt(dot(t, t) + eps)).to(x.dtype)


def normalised(x, eps):
    """PyTorch's call. It adds no ε, but divides by the larger of |x| and √ε: the same where a row
    is not nearly 0."""
    return F.normalize(x, dim=-1, eps=eps**0.5)


@cache
def weight_of(columns, dtype, device):
    return torch.full((columns,), columns**-0.5, dtype=dtype, device=device)


def rms_normalised(x, eps):
    """The same function by PyTorch's fused kernels: a length is the root of D times the root of
    the mean square."""
    D = x.shape[-1]
    return F.rms_norm(x, (D,), weight_of(D, x.dtype, x.device), eps / D)


@cache
def compiled_formula():
    return torch.compile(forward_formula, dynamic=False)


def by_compile(x, eps):
    return compiled_formula()(x, eps)


def backward_formula(g, x, eps):
    """Of operators that are differentiable themselves, and so is this, as often as it is called."""
    u, t = wide(g, x)
    r = torch.rsqrt(dot(t, t) + eps)
    y = r * t
    return (r * (u - y * dot(y, u))).to(x.dtype)


def double_backward_formula(h, g, x, eps):
    v, u, t = wide(h, g, x)
    r = torch.rsqrt(dot(t, t) + eps)
    y = r * t
    yg, yh = dot(y, u), dot(y, v)
    gg = r * (v - y * yh)
    gx = r * r * (y * (3 * yg * yh - dot(u, v)) - u * yh - v * yg)
    return gg.to(x.dtype), gx.to(x.dtype)


# ---------------------------------------------------------------- gradients


def keep(ctx, inputs, output):
    """Saves the tensors among an operator's inputs; its last input is eps."""
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def by_formula(ctx, g):
    (x,) = ctx.saved_tensors
    return backward_formula(g, x, ctx.eps), None


def by_kernel(operator):
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return operator(g.contiguous(), x, ctx.eps), None

    return backward


def twice_by_formula(ctx, h):
    g, x = ctx.saved_tensors
    return *double_backward_formula(h, g, x, ctx.eps), None


def twice_by_kernel(ctx, h):
    g, x = ctx.saved_tensors
    ops, h = torch.ops.day84, h.contiguous()
    if not ctx.needs_input_grad[1]:  # x is constant: 12 bytes per element instead of 20
        return ops.unit_rows_backward_twice(h, x, ctx.eps), None, None
    return *ops.unit_rows_double_backward(h, g, x, ctx.eps), None


def no_third(ctx, *upstream):
    raise NotImplementedError("unit_rows has no third derivative: v1 has all of them")


# ---------------------------------------------------------------- shapes, vmap, autocast


def like_x(*arguments):
    """A fake kernel: gets tensors without memory, returns such a tensor as the kernel returns. It
    refuses what the kernel refuses, as far as that shows without memory."""
    *others, x, _ = arguments
    for name, tensor in zip(("g", "h"), reversed(others), strict=False):
        if tensor.device != x.device:
            raise ValueError(f"{name}: expected the device of x, {x.device}, got {tensor.device}")
    return torch.empty_like(x)


def two_like_x(*arguments):
    return like_x(*arguments), like_x(*arguments)


def rows_of_batch(operator):
    """Rows do not depend on each other: a batch of calls is one call with more rows."""

    def rule(info, in_dims, *arguments):
        *tensors, eps = arguments
        batched = [
            t.expand(info.batch_size, *t.shape) if place is None else t.movedim(place, 0)
            for t, place in zip(tensors, in_dims, strict=False)
        ]
        result = operator(*(t.contiguous() for t in batched), eps)
        return result, (0, 0) if isinstance(result, tuple) else 0

    return rule


@cache
def register():
    """Once, after the operators were built."""
    ops = torch.ops.day84
    for name, fake, backward in (
        ("unit_rows_v1_formula", like_x, by_formula),
        ("unit_rows_v2_kernel", like_x, by_kernel(ops.unit_rows_backward)),
        ("unit_rows_backward", like_x, twice_by_formula),
        ("unit_rows_v3_twice", like_x, by_kernel(ops.unit_rows_backward_twice)),
        ("unit_rows_backward_twice", like_x, twice_by_kernel),
        ("unit_rows_double_backward", two_like_x, no_third),
    ):
        operator = f"day84::{name}"
        register_fake(operator, fake, allow_override=True)
        register_autograd(operator, backward, setup_context=keep)
        register_vmap(operator, rows_of_batch(getattr(ops, name)))
        for device in ("cuda", "cpu"):
            register_autocast(operator, device, torch.float32)


def load(name, make=lambda operator: operator):
    """For a rung: what `make` returns of the operator, when all are built and registered."""

    def loaded(builder):
        operators = builder.operators()
        register()
        return make(getattr(operators, name))

    return loaded
