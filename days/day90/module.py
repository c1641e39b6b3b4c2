"""A block of GPT-2 as a module that trains, on the operators of a rung of day 90."""

import torch
from torch import nn
from torch.nn import functional as F

EPS = 1e-5
# The order in which the operators take and return them: of the two norms a gain and a shift, of the
# four products a weight, (columns out, columns in), and a bias.
FIRST = ("gain1", "shift1", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias")
SECOND = ("gain2", "shift2", "up_weight", "up_bias", "down_weight", "down_bias")
PARAMETERS = (*FIRST, *SECOND)


class Transform(torch.autograd.Function):
    """The block as one function. Kept beside x and the parameters: qkv, o, h and pre, of 6, 2, 2
    and 8 bytes per element of x in 16 bits, the log-sum-exps and the norms' statistics."""

    @staticmethod
    def forward(ctx, ways, x, heads, *parameters):
        ahead, ctx.back = ways  # biases are needed ahead only
        y, *kept = ahead(x, heads, *parameters, EPS)
        needed = [p for name, p in zip(PARAMETERS, parameters, strict=True) if "bias" not in name]
        ctx.save_for_backward(x, *needed, *kept)
        ctx.heads = heads
        return y

    @staticmethod
    def backward(ctx, gy):
        x, *others = ctx.saved_tensors
        gx, *gradients = ctx.back(gy.contiguous(), x, ctx.heads, *others)
        return None, gx, None, *gradients


def with_gradients(operators, version):
    """The block by the operators of a version that has a backward pass, such as "v4_hopper"."""
    ways = (
        getattr(operators, f"block_saving_{version}"),
        getattr(operators, f"block_backward_{version}"),
    )

    def block(
        x,
        heads,
        gain1,
        shift1,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        gain2,
        shift2,
        up_weight,
        up_bias,
        down_weight,
        down_bias,
    ):
        first = gain1, shift1, qkv_weight, qkv_bias, proj_weight, proj_bias
        second = gain2, shift2, up_weight, up_bias, down_weight, down_bias
        return Transform.apply(ways, x, heads, *first, *second)

    return block


class Block(nn.Module):
    """x + proj(attention(qkv(norm1(x)))), and to that + down(gelu(up(norm2(…)))), causal.

    x: (B, S, width) in bf16 or fp16, contiguous; width is 64 or 128 per head, at most 4096. Its
    parameters are drawn as GPT-2 draws them, and cast to x's dtype, so that they may be fp32.
    """

    def __init__(self, operators, version, width, heads, device=None, dtype=None):
        super().__init__()
        made = {"device": device, "dtype": dtype}
        self.heads, self.call = heads, with_gradients(operators, version)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=EPS, **made) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, **made)
        self.proj = nn.Linear(width, width, **made)
        self.up = nn.Linear(width, 4 * width, **made)
        self.down = nn.Linear(4 * width, width, **made)
        for layer in (self.qkv, self.proj, self.up, self.down):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        layers = (self.norm1, self.qkv, self.proj, self.norm2, self.up, self.down)
        parameters = [p.to(x.dtype) for layer in layers for p in (layer.weight, layer.bias)]
        return self.call(x.contiguous(), self.heads, *parameters)


def eager(x, heads, *parameters):
    """The same by PyTorch's fused operators, and what torch.compile is given."""
    gain1, shift1, qkv_w, qkv_b, proj_w, proj_b, gain2, shift2, up_w, up_b, down_w, down_b = (
        parameters
    )
    width = x.shape[-1]
    qkv = F.linear(F.layer_norm(x, (width,), gain1, shift1, EPS), qkv_w, qkv_b)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = x + F.linear(o.transpose(1, 2).flatten(2), proj_w, proj_b)
    up = F.linear(F.layer_norm(h, (width,), gain2, shift2, EPS), up_w, up_b)
    return h + F.linear(F.gelu(up, approximate="tanh"), down_w, down_b)


class Twin(Block):
    """The same block by PyTorch, with the same parameters."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.call = eager
