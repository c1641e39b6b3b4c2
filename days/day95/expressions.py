"""The day's expressions: of PyTorch's tensors and of lazy ones alike."""

import torch
import torch.nn.functional as F

from common.day import Cost


def gelu(x):
    return 0.5 * x * (1 + (x * 0.5**0.5).erf())


def chain(x, bias, scale, residual):
    return gelu(x + bias) * scale + residual


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred * (variance + 1e-5).rsqrt() * weight + bias


# ---------------------------------------------------------------- as PyTorch's users call them


def torch_chain(x, bias, scale, residual):
    return F.gelu(x + bias) * scale + residual


def torch_softmax(x):
    return F.softmax(x, -1)


def torch_layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def scale(x, factor):
    return x * factor


def launch(inputs, outputs, kernel):
    outputs.copy_(gelu(inputs))


# ---------------------------------------------------------------- inputs and their cost


def scale_inputs(case, draw):
    return draw(*case.shape), 0.75


def launch_inputs(case, draw):
    """Case.shape: rows, columns, and whether there is a kernel."""
    *shape, kernel = case.shape
    return draw(*shape), draw(*shape), bool(kernel)


def chain_inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(cols), draw(cols), draw(rows, cols)


def norm_inputs(case, draw):
    return draw(*case.shape), draw(case.shape[-1]), draw(case.shape[-1])


def cost(tensors, vectors, operations):
    """Of so many tensors of the case's shape and vectors of a row's length, each moved once."""

    def of(case):
        rows, cols = case.shape
        moved = tensors * rows * cols + vectors * cols
        return Cost(bytes=moved * case.itemsize, flops=operations * rows * cols)

    return of


def like(default):
    """A stand-in for a Draw: tensors without elements, for shapes and dtypes alone."""

    def draw(*shape, dtype=None):
        return torch.empty(shape, dtype=getattr(torch, dtype or default), device="meta")

    return draw
