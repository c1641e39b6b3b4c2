"""The step of training with a gradient penalty: the same loss, differentiated in three ways."""

from functools import cache

import torch

from .autograd import forward_formula


def check_critic(x, W, a):
    """Refuses by name what the formulas below would broadcast or refuse in words of their own."""
    for name, tensor, rank in (("x", x, 2), ("W", W, 2), ("a", a, 1)):
        if tensor.dim() != rank:
            raise ValueError(f"{name}: expected {rank} dimension(s), got {tensor.dim()}")
        if tensor.dtype not in (torch.float32, torch.float64) or tensor.dtype != x.dtype:
            raise TypeError(f"{name}: expected one dtype, float32 or float64, got {tensor.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{name}: expected the device of x, {x.device}, got {tensor.device}")
    if W.shape[0] != x.shape[1]:
        raise ValueError(f"W: expected {x.shape[1]} rows, as x has columns, got {W.shape[0]}")
    if a.shape[0] != W.shape[1]:
        raise ValueError(f"a: expected {W.shape[1]} elements, as W has columns, got {a.shape[0]}")


def loss_of(score, gx):
    """High scores, and gradients of length 1."""
    return 10 * (gx.norm(dim=-1) - 1).square().mean() - score.mean()


def penalised(normalise, x, W, a, eps):
    """A critic's scores on inputs x (B, K), with a hidden layer of unit rows, W (K, D), a (D).

    Returns the loss and its gradients of W and a. gx, the gradients of the scores, is a part of the
    loss: autograd runs through what autograd has computed.
    """
    check_critic(x, W, a)
    with torch.enable_grad():
        x, W, a = (t.detach().requires_grad_() for t in (x, W, a))
        score = normalise(x @ W, eps) @ a
        (gx,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        loss = loss_of(score, gx)
        return loss.detach(), *torch.autograd.grad(loss, (W, a))


def explicit_loss(x, W, a, eps):
    """The same loss with gx written out: the backward operator is an operator as any other. So one
    differentiation is left, and that torch.compile can do."""
    h = x @ W
    score = torch.ops.day84.unit_rows_v3_twice(h, eps) @ a
    g = a.expand_as(h).contiguous()
    gx = torch.ops.day84.unit_rows_backward_twice(g, h, eps) @ W.T
    return loss_of(score, gx)


def explicitly(loss, x, W, a, eps):
    with torch.enable_grad():
        W, a = (t.detach().requires_grad_() for t in (W, a))
        value = loss(x, W, a, eps)
        return value.detach(), *torch.autograd.grad(value, (W, a))


def functional(x, W, a, eps):
    """The same of PyTorch's operators, in functions of functions, as torch.compile takes it."""

    def loss(W, a):
        def total(x):
            score = forward_formula(x @ W, eps) @ a
            return score.sum(), score

        gx, score = torch.func.grad(total, has_aux=True)(x)
        return loss_of(score, gx)

    gradients, value = torch.func.grad_and_value(loss, argnums=(0, 1))(W, a)
    return value, *gradients


@cache
def compiled_functional():
    return torch.compile(functional, dynamic=False)


def penalised_by_compile(*arguments):
    return compiled_functional()(*arguments)
