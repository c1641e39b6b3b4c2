"""The feed-forward network in PyTorch, and as a module on the operators of a rung."""

import torch
from torch.nn import functional as F

from common.references.philox import philox_words

STEPS = 65536  # values of 16 random bits, and steps of p


def kept(like, p, state):
    """Which elements of `like` dropout keeps, and the factor of those: day 62's mask."""
    below, n = round(p * STEPS), like.numel()
    group = torch.arange((n + 7) // 8, device=like.device)
    drawn = philox_words(state[0].expand_as(group), group, state[1].expand_as(group))
    halves = torch.stack([drawn & 0xFFFF, drawn >> 16], -1).flatten()[:n]
    return (halves >= below).view(like.shape), STEPS / (STEPS - below) if below < STEPS else 0.0


def gelu(v):
    if v.dtype != torch.float64:
        return F.gelu(v, approximate="tanh")
    # The truth: for large negative v, 1 + tanh(u) has no digits left, 2 · sigmoid(2u) has all.
    return v * torch.sigmoid((8 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))


def dropped(z, p, state):
    keep, scale = kept(z, p, state)
    return torch.where(keep, z * scale, 0)


def forward(x, w1, b1, w2, b2, p, state):
    """out, and what the backward pass needs: pre and hidden."""
    pre = F.linear(x, w1, b1)
    hidden = gelu(pre)
    return x + dropped(F.linear(hidden, w2, b2), p, state), pre, hidden


def out_alone(*arguments):
    return forward(*arguments)[0]


def gradients(gy, x, pre, hidden, w1, w2, p, state):
    """Of x, w1, b1, w2 and b2, from what the forward pass has left."""
    g2 = dropped(gy, p, state)
    with torch.enable_grad():
        at = pre.detach().requires_grad_()
        (slope,) = torch.autograd.grad(gelu(at).sum(), at)
    g1 = (g2 @ w2) * slope
    return gy + g1 @ w1, g1.T @ x, g1.sum(0), g2.T @ hidden, g2.sum(0)


def eager(x, w1, b1, w2, b2, p, state):
    """As nn.Sequential runs it; its numbers come from a generator of PyTorch's own."""
    hidden = F.gelu(F.linear(x, w1, b1), approximate="tanh")
    return x + F.dropout(F.linear(hidden, w2, b2), p)


def eager_with_all(x, w1, b1, w2, b2, p, state):
    pre = F.linear(x, w1, b1)
    hidden = F.gelu(pre, approximate="tanh")
    return x + F.dropout(F.linear(hidden, w2, b2), p), pre, hidden


def inputs(case, draw):
    """Shape (rows, C, H). p follows from the shape, and is 0.1 where time is measured.

    Of a non-finite case with one row, weights are infinite instead of x: the rows of a tile behind
    that row must add 0 to the gradient of b1, and 0 · inf is NaN. pre is 1 to 6 there: for other
    values, autograd's own terms are NaN."""
    rows, C, H = case.shape
    p = 0.1 if draw.fast else (0.1, 0.5, 0.0, 0.9, 1.0, 0.3333)[(rows + C + H) % 6]
    w1, w2 = draw(H, C, values="normal").mul_(0.5), draw(C, H, values="normal").mul_(0.5)
    w1.mul_(max(C, 1) ** -0.5), w2.mul_(max(H, 1) ** -0.5)
    b1, b2 = draw(H, values="normal"), draw(C, values="normal")
    infinite = case.values == "nonfinite" and rows == 1
    x = draw(rows, C, values="normal") if infinite else draw(rows, C)
    if infinite:
        b1, w2[0], p = b1.abs().clamp(max=1) + 3, torch.inf, 0.0
    return x, w1, b1, w2, b2, p, draw(2, dtype="int64")


def backward_inputs(case, draw):
    x, w1, b1, w2, _, p, state = inputs(case, draw)
    pre = F.linear(x, w1, b1)
    return draw(*x.shape), x, pre, gelu(pre), w1, w2, p, state


class Network(torch.autograd.Function):
    """A rung's two operators as one function. pre and hidden are kept, and no mask."""

    @staticmethod
    def forward(ctx, ways, x, w1, b1, w2, b2, p, state):
        ahead, ctx.back = ways
        out, pre, hidden = ahead(x, w1, b1, w2, b2, p, state)
        ctx.save_for_backward(x, pre, hidden, w1, w2, state)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx, gy):
        *saved, state = ctx.saved_tensors
        gradients = ctx.back(gy.contiguous(), *saved, ctx.p, state)
        return None, *gradients, None, None


def with_gradients(operators, version):
    """The network by the operators of a rung, such as "v3_epilogues"."""
    ways = getattr(operators, f"ffn_{version}"), getattr(operators, f"ffn_backward_{version}")

    def network(x, w1, b1, w2, b2, p, state):
        return Network.apply(ways, x, w1, b1, w2, b2, p, state)

    return network


class FeedForward(torch.nn.Module):
    """x + dropout(W2 · gelu(W1 · x + b1) + b2) by the operators of a rung, x: (rows, width).

    Parameters are fp32, and cast to x's dtype. state: seed and number of the next call, a buffer,
    so that a module that is loaded goes on where it was saved.
    """

    state: torch.Tensor

    def __init__(self, operators, version, width, p, seed=83):
        super().__init__()
        self.call, self.p = with_gradients(operators, version), p
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.register_buffer("state", torch.tensor([seed, 0]))

    def forward(self, x):
        weights = (self.up.weight, self.up.bias, self.down.weight, self.down.bias)
        state = self.state.clone()  # the backward pass draws from it once more
        if self.training:
            self.state[1] += 1
        p = self.p if self.training else 0.0
        return self.call(x, *(w.to(x.dtype) for w in weights), p, state)


class Twin(FeedForward):
    """The same by torch.nn, with the same parameters."""

    def forward(self, x):
        hidden = F.gelu(self.up(x), approximate="tanh")
        return x + F.dropout(self.down(hidden), self.p, self.training)
