"""A twin of nn.MultiheadAttention: the same parameters, by this day's kernels."""

import torch
from torch import nn

WIDE = torch.float32
TILE = 256  # keys that the formula of the backward pass processes at once


def heads_of(rows, heads):
    """(B, S, H · D) as (B, H, S, D), without a copy."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def by_formula(go, q, k, v, o, lse, padding):
    """Gradients of q, k and v, (B, H, S, D) each, by day 20's formulas, tile by tile of keys."""
    go, q, k, v, o = (tensor.to(WIDE) for tensor in (go, q, k, v, o))
    delta = (o * go).sum(-1, keepdim=True)
    seen = lse[..., None] > -torch.inf  # rows that see a key at all
    gq, gk, gv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for j in range(0, k.shape[2], TILE):
        tile = slice(j, j + TILE)
        p = torch.where(seen, (q @ k[:, :, tile].mT / q.shape[-1] ** 0.5 - lse[..., None]).exp(), 0)
        if padding is not None:
            p = p.masked_fill(padding[:, None, None, tile], 0)
        gs = p * (go @ v[:, :, tile].mT - delta) / q.shape[-1] ** 0.5
        gq += gs @ k[:, :, tile]
        gk[:, :, tile] = gs.mT @ q
        gv[:, :, tile] = p.mT @ go
    return gq, gk, gv


def by_flash(go, q, k, v, o, lse):
    """The same by PyTorch's FLASH backend, from our o and lse."""
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout; unused
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        go, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, False, seed, seed[0]
    )


class Attend(torch.autograd.Function):
    """The whole layer. qkv, o and lse are kept for the backward pass, and nothing of size S²."""

    @staticmethod
    def forward(ctx, x, in_weight, in_bias, out_weight, out_bias, heads, padding):
        y, qkv, o, lse = torch.ops.day28.multi_head_attention_saving(
            x, in_weight, in_bias, out_weight, out_bias, heads, padding
        )
        ctx.save_for_backward(x, in_weight, out_weight, qkv, o, lse, padding)
        ctx.heads = heads
        return y

    @staticmethod
    def backward(ctx, gy):
        x, in_weight, out_weight, qkv, o, lse, padding = ctx.saved_tensors
        go = gy @ out_weight
        rows = (go, *qkv.chunk(3, -1), o)
        go_per_head, q, k, v, o_per_head = (heads_of(t, ctx.heads) for t in rows)
        if x.is_cuda and padding is None and x.numel():
            gradients = by_flash(go_per_head, q, k, v, o_per_head, lse)
        else:
            gradients = by_formula(go_per_head, q, k, v, o_per_head, lse, padding)
        gqkv = torch.cat([g.transpose(1, 2).flatten(2) for g in gradients], -1).to(x.dtype)
        flat_gy, flat_gqkv = gy.flatten(0, 1), gqkv.flatten(0, 1)
        return (
            gqkv @ in_weight,
            flat_gqkv.mT @ x.flatten(0, 1),
            flat_gqkv.sum(0),
            flat_gy.mT @ o.flatten(0, 1),
            flat_gy.sum(0),
            None,
            None,
        )


class MultiheadAttention(nn.Module):
    """Self-attention of rows x (B, S, embed_dim), fp16 or bf16, embed_dim / num_heads 64 or 128.

    Parameters have the names and shapes of nn.MultiheadAttention(batch_first=True), so its
    state_dict loads. key_padding_mask: (B, S) bool, True for keys to ignore.
    """

    def __init__(self, embed_dim, num_heads, device=None, dtype=None):
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **made))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim, **made))
        self.out_proj = nn.Linear(embed_dim, embed_dim, **made)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x, key_padding_mask=None):
        out = self.out_proj
        return Attend.apply(
            x,
            self.in_proj_weight,
            self.in_proj_bias,
            out.weight,
            out.bias,
            self.num_heads,
            key_padding_mask,
        )
