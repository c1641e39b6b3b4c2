"""A module for models that train: tables in fp32, rotation forward and backward."""

import torch
from torch import nn


class Rotate(torch.autograd.Function):
    """The gradient of a rotation is the rotation back. Nothing but the tables is kept for it."""

    @staticmethod
    def forward(ctx, q, k, cos, sin, offset, interleaved):
        ctx.save_for_backward(cos, sin)
        ctx.options = offset, interleaved
        return torch.ops.day46.rotary(q, k, cos, sin, offset, interleaved)

    @staticmethod
    def backward(ctx, gq, gk):
        upstream = gq.contiguous(), gk.contiguous()
        back = torch.ops.day46.rotary(*upstream, *ctx.saved_tensors, *ctx.options, True)
        return *back, None, None, None, None


class RotaryEmbedding(nn.Module):
    """Rotates q (B, S, HQ, D) and k (B, S, HK, D), which begin at position `offset`.

    rotary_dim: how many elements of a head are rotated, even. positions: rows of the tables. The
    tables stay in fp32 when the module is converted to another dtype.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, rotary_dim, positions, base=10000.0, interleaved=False, device=None):
        super().__init__()
        self.interleaved = interleaved
        rows = torch.arange(positions, device=device)
        cos, sin = torch.ops.day46.rope_table_v2_double(rows, rotary_dim, base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _apply(self, fn, recurse=True):
        tables = self.cos, self.sin
        super()._apply(fn, recurse)
        self.cos, self.sin = (table.to(self.cos.device) for table in tables)
        return self

    def forward(self, q, k, offset=0):
        return Rotate.apply(q, k, self.cos, self.sin, offset, self.interleaved)
