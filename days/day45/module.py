"""nn.LayerNorm by this day's kernels, alone and fused with the addition before it."""

from functools import cache

import torch
from torch import nn
from torch.func import functional_call


def check_devices(**tensors):
    if len({tensor.device for tensor in tensors.values()}) > 1:
        devices = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"expected one device, got {devices}")


@cache
def register():
    """Tells PyTorch the operators' shapes and gradients; once, after they were built.

    Sources: torch.library.register_fake and register_autograd.
    """
    operators = torch.ops.day45

    def rows_of(x):
        return x.new_empty(x.shape[0], dtype=torch.float32)

    def fake_norm(x, weight, bias, eps):
        check_devices(x=x, weight=weight, bias=bias)
        return torch.empty_like(x), rows_of(x), rows_of(x)

    def fake_add_norm(x, residual, weight, bias, eps):
        check_devices(x=x, residual=residual)
        return torch.empty_like(x), *fake_norm(x, weight, bias, eps)

    def fake_backward(gy, h, mean, rstd, weight, gh=None):
        check_devices(gy=gy, h=h, mean=mean, rstd=rstd, weight=weight)
        if gh is not None:
            check_devices(gy=gy, gh=gh)
        return torch.empty_like(gy), torch.empty_like(weight), torch.empty_like(weight)

    def keep(ctx, h, weight, mean, rstd):
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(h, mean, rstd, weight)

    def keep_of_norm(ctx, inputs, output):
        keep(ctx, inputs[0], inputs[1], *output[1:])

    def keep_of_add_norm(ctx, inputs, output):
        keep(ctx, output[0], inputs[2], *output[2:])

    def backward(ctx, gy, *statistics):
        gradients = operators.layer_norm_backward_v2_fused(gy.contiguous(), *ctx.saved_tensors)
        return *gradients, None

    def add_backward(ctx, gh, gy, *statistics):
        saved = ctx.saved_tensors
        gx, *others = operators.layer_norm_backward_v2_fused(
            gy.contiguous(), *saved, gh.contiguous()
        )
        return gx, gx, *others, None

    for name, fake, gradient, saves in (
        ("layer_norm_v4_chosen", fake_norm, backward, keep_of_norm),
        ("add_layer_norm_v2_fused", fake_add_norm, add_backward, keep_of_add_norm),
        ("layer_norm_backward_v2_fused", fake_backward, None, None),
    ):
        torch.library.register_fake(f"day45::{name}", fake, allow_override=True)
        if gradient:
            torch.library.register_autograd(f"day45::{name}", gradient, setup_context=saves)


class LayerNorm(nn.LayerNorm):
    """Normalises the last dimension of x, of fp32, fp16 or bf16, the dtype of the parameters.

    Takes the arguments of nn.LayerNorm, and its state_dict. Raises ValueError for several
    dimensions or a missing weight or bias.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if len(self.normalized_shape) != 1:
            raise ValueError(f"normalized_shape: expected one size, got {self.normalized_shape}")
        if self.weight is None or self.bias is None:
            raise ValueError("elementwise_affine, bias: expected a weight and a bias")

    def rows(self, x, name):
        """x as a contiguous matrix of rows."""
        if x.dim() == 0 or x.shape[-1] != self.normalized_shape[0] or x.shape[-1] == 0:
            shape = tuple(x.shape)
            raise ValueError(f"{name}: expected (…, {self.normalized_shape[0]}), got {shape}")
        return x.reshape(-1, x.shape[-1]).contiguous()

    def forward(self, x):
        rows = self.rows(x, "x")
        y, *_ = torch.ops.day45.layer_norm_v4_chosen(rows, self.weight, self.bias, self.eps)
        return y.view(x.shape)


class AddLayerNorm(LayerNorm):
    """h = x + residual and its layer norm y, as (h, y): one kernel, for what a transformer does
    between two of its parts."""

    def forward(self, x, residual):  # type: ignore[override]  # one more input
        if x.shape != residual.shape:
            raise ValueError(
                f"residual: expected shape {tuple(x.shape)}, got {tuple(residual.shape)}"
            )
        rows = self.rows(x, "x"), self.rows(residual, "residual")
        h, y, *_ = torch.ops.day45.add_layer_norm_v2_fused(*rows, self.weight, self.bias, self.eps)
        return h.view(x.shape), y.view(x.shape)


@cache
def empty_module(kind, columns, eps):
    """A module without memory of its own: functional_call gives it the parameters."""
    return kind(columns, eps=eps, device="meta")


def load(kind):
    """For a rung: a call of the module with the arguments of the formula that it computes."""

    def call(*arguments):
        *tensors, weight, bias, eps = arguments
        if not eps >= 0:
            raise ValueError(f"eps: expected a number from 0, got {eps}")
        if weight.dim() != 1:
            raise ValueError(f"weight: expected one dimension, got shape {tuple(weight.shape)}")
        module = empty_module(kind, weight.shape[-1], eps)
        return functional_call(module, {"weight": weight, "bias": bias}, tuple(tensors))

    def norm(x, weight, bias, eps):
        return call(x, weight, bias, eps)

    def add_norm(x, residual, weight, bias, eps):
        return call(x, residual, weight, bias, eps)

    def loaded(builder):
        builder.operators()
        register()
        return add_norm if kind is AddLayerNorm else norm

    return loaded
