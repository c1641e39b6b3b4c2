"""Wrong versions of day 84's operator, and what finds each: a check, PyTorch itself, or nothing."""

import warnings
from functools import cache

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.function import once_differentiable
from torch.library import Library, opcheck, register_autograd, register_fake

from .autograd import by_kernel, dot, forward_formula, keep, like_x
from .penalty import penalised

EPS = 1e-6
NO_FAKE = "unsupported operator"
UNSAID = "may lead to silently incorrect behavior"
IN_PLACE = "modified by an inplace operation"
MUTATED = "not defined as mutable but was mutated"
FORWARD = "(Tensor x, float eps) -> Tensor"
BACKWARD = "(Tensor g, Tensor x, float eps) -> Tensor"


@torch.no_grad()
def forward(x, eps):
    return torch.ops.day84.unit_rows_v3_twice(x, eps)


@torch.no_grad()
def backward(g, x, eps):
    return torch.ops.day84.unit_rows_backward_twice(g, x, eps)


@cache
def library():
    return Library("day84_wrong", "FRAGMENT")


def operator(name, schema=FORWARD, kernel=forward, fake=like_x, gradient=None, saves=keep):
    """Registers torch.ops.day84_wrong.<name>, each part by a call of its own, and returns it."""
    library().define(name + schema)
    for key in ("CPU", "CUDA"):
        library().impl(name, kernel, key)
    if fake:
        register_fake(f"day84_wrong::{name}", fake)
    if gradient:
        register_autograd(f"day84_wrong::{name}", gradient, setup_context=saves)
    return getattr(torch.ops.day84_wrong, name)


# ---------------------------------------------------------------- the wrong parts


def without_factor(ctx, g):
    """Misses the factor r."""
    (x,) = ctx.saved_tensors
    y = forward_formula(x, ctx.eps)
    return g - y * dot(y, g), None


def as_it_comes(ctx, g):
    """Hands on a g that may not be contiguous."""
    (x,) = ctx.saved_tensors
    return backward(g, x, ctx.eps), None


def keep_as_attribute(ctx, inputs, output):
    ctx.x, ctx.eps = inputs


def from_attribute(ctx, g):
    return backward(g.contiguous(), ctx.x, ctx.eps), None


def transposed_fake(x, eps):
    """Right shape, wrong strides."""
    return x.new_empty(x.shape[::-1]).mT


def in_place(x, eps):
    """Writes x, which the schema says is only read."""
    return x.copy_(forward(x, eps)).clone()


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        keep(ctx, (x, eps), None)
        return forward(x, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return by_kernel(backward)(ctx, g)


# ---------------------------------------------------------------- what finds them


def float64(device):
    generator = torch.Generator().manual_seed(84)
    return torch.randn(2, 3, generator=generator, dtype=torch.float64).to(device).requires_grad_()


def after_in_place(op, device):
    """How far the gradient is from the right one where x is changed after the forward pass."""
    start = float64(device)

    def gradient(op, change):
        x = start * 1
        loss = op(x, EPS).pow(3).sum()
        if change:
            x.mul_(2)
        return torch.autograd.grad(loss, start)[0]

    return off_by(gradient(op, True), gradient(forward_formula, False))


def off_by(found, right):
    return f"off by {float((found - right).norm() / right.norm()):.0%}"


def penalty_off_by(op, device):
    """How far the gradient of W is from that of the formula."""
    x, W, a = (torch.randn(n, generator=torch.Generator().manual_seed(84)).to(device)
               for n in ((6, 4), (4, 9), (9,)))  # fmt: skip
    found, right = (penalised(each, x, W, a, EPS)[1] for each in (op, forward_formula))
    return off_by(found, right)


def said(call):
    """What a call raises, or its warnings and its result, as text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            return str(error)
    return "; ".join([*(str(w.message) for w in caught), str(result)])


def wrong_versions(device):
    """(what is wrong, what is tried, the call, what it raises, warns of or returns)."""
    small = float64(device)
    plain = small.detach().float()
    leaf = plain.clone().requires_grad_()
    factor = operator("factor", gradient=without_factor)
    unregistered = operator("backward", BACKWARD, backward)
    once = operator("once", gradient=by_kernel(unregistered))
    attribute = operator("attribute", gradient=from_attribute, saves=keep_as_attribute)
    strided = operator("strided", gradient=as_it_comes)
    no_fake = operator("no_fake", fake=None)
    strides = operator("strides", fake=transposed_fake)
    written = operator("written", kernel=in_place)
    right = torch.ops.day84.unit_rows_v3_twice
    compiled = torch.compile(lambda x: no_fake(x, EPS), backend="aot_eager", fullgraph=True)

    def checked(check, op, x=small):
        return lambda: check(op, (x, EPS))

    def of_schema(op):
        return checked(opcheck, op.default, plain)

    def gradient_of_sum():
        return torch.autograd.grad(strided(leaf, EPS).sum(), leaf)

    def twice_to_leaves():
        (g,) = torch.autograd.grad(Once.apply(small, EPS).pow(3).sum(), small, create_graph=True)
        g.sum().backward()

    mismatch = "Jacobian mismatch"
    return (
        ("a missing factor", "gradcheck", checked(gradcheck, factor), mismatch),
        ("nothing, but x in fp32", "gradcheck", checked(gradcheck, right, leaf), mismatch),
        ("a backward without backward", "gradcheck", checked(gradcheck, once), "True"),
        ("", "penalty", lambda: penalty_off_by(once, device), "off by"),
        ("", "gradgradcheck", checked(gradgradcheck, once), mismatch),
        ("the same, once_differentiable", "backward()", twice_to_leaves, "differentiate twice"),
        ("", "penalty", lambda: penalty_off_by(Once.apply, device), "off by"),
        ("", "gradgradcheck", checked(gradgradcheck, Once.apply), mismatch),
        ("x changed before the backward", "saved", lambda: after_in_place(right, device), IN_PLACE),
        ("", "ctx.x = x", lambda: after_in_place(attribute, device), "off by"),
        ("g used as it comes", "gradcheck", checked(gradcheck, strided), "True"),
        ("", "y.sum()", gradient_of_sum, "g: expected a contiguous tensor"),
        ("no fake kernel", "compile", lambda: compiled(plain), NO_FAKE),
        ("a fake of other strides", "opcheck", of_schema(strides), "Stride mismatch"),
        ("a write that no schema tells", "opcheck", of_schema(written), MUTATED),
    )
