"""The selective scan in PyTorch: the reference, two baselines, and inputs."""

import functools
import math

import torch
from torch.nn.functional import silu, softplus

# ---------------------------------------------------------------- reference


def selective_scan(u, delta, A, B, C, D, z, bias):
    """Step by step, as the formula says; in fp32 at least."""
    wide = torch.promote_types(u.dtype, torch.float32)
    u, delta, B, C, gate = (x.to(wide) for x in (u, delta, B, C, z))
    delta = softplus(delta + bias[:, None])
    h = u.new_zeros(*u.shape[:2], A.shape[1])
    # Without a step, autograd would find arguments that nothing depends on.
    none = (x[..., :0] for x in (B, C))
    sums = [torch.einsum("bdt,dn,bnt,bnt->bdt", delta[..., :0], A, *none)]
    for t in range(u.shape[2]):
        d = delta[..., t, None]
        h = torch.exp(d * A) * h + d * u[..., t, None] * B[:, None, :, t]
        sums.append((h * C[:, None, :, t]).sum(-1, keepdim=True))
    y = torch.cat(sums, -1) + D[:, None] * u
    return (y * silu(gate)).to(z.dtype)


# ---------------------------------------------------------------- baselines


def _prepared(u, delta, B, C, bias):
    """In fp32, time first, so that a step's part is contiguous: delta, delta · u, B, C."""
    delta = softplus(delta.float() + bias[:, None])
    return [x.movedim(-1, 0).contiguous() for x in (delta, delta * u, B.float(), C.float())]


def _gated(sums, u, D, z):
    y = torch.stack(sums, -1) + D[:, None] * u
    return (y * silu(z.float())).to(u.dtype)


def by_steps(u, delta, A, B, C, D, z, bias):
    """The loop over time, of five operators per step: no tensor has length and states."""
    h, sums = None, []
    for d, push, b, c in zip(*_prepared(u, delta, B, C, bias), strict=True):
        if h is None:
            h = push[:, :, None] * b[:, None]
        else:
            h = torch.addcmul(torch.exp(d[:, :, None] * A) * h, push[:, :, None], b[:, None])
        sums.append(torch.bmm(h, c[:, :, None])[..., 0])
    return _gated(sums, u, D, z)


def _step(h, d, push, A, b, c):
    """One step of all segments: h (segments, batch, channels, N), the others likewise."""
    h = torch.exp(d[..., None] * A) * h + push[..., None] * b[..., None, :]
    return h, (h * c[..., None, :]).sum(-1)


@functools.cache
def _compiled_step():
    return torch.compile(_step, dynamic=False)


def by_segments(u, delta, A, B, C, D, z, bias):
    """√length segments side by side, twice: from zeros, to learn what each starts from, and then
    from there. Two times √length steps on large tensors, each compiled to one kernel. Exact for any
    A, where sums of logarithms (exp of a difference of cumulative sums) overflow."""
    step = _compiled_step()
    count = math.isqrt(u.shape[2])
    while u.shape[2] % count:
        count -= 1
    parts = [
        x.unflatten(0, (count, -1)).transpose(0, 1).contiguous()  # (step, segment, batch, …)
        for x in _prepared(u, delta, B, C, bias)
    ]
    zeros = u.new_zeros(count, *u.shape[:2], A.shape[1], dtype=torch.float32)

    def run(h):
        sums = []
        for d, push, b, c in zip(*parts, strict=True):
            h, sum_ = step(h, d, push, A, b, c)
            sums.append(sum_)
        return h, sums

    alone, _ = run(zeros)
    factors = torch.exp(parts[0].sum(0)[..., None] * A)
    starts = [zeros[0]]
    for factor, state in zip(factors[:-1], alone[:-1], strict=True):
        starts.append(factor * starts[-1] + state)
    _, sums = run(torch.stack(starts))
    y = torch.stack(sums, 1).flatten(0, 1)  # (time, batch, channels)
    return _gated(list(y), u, D, z)


def mamba(u, delta, A, B, C, D, z, bias):
    """The kernels of Mamba's authors."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(u, delta, A, B, C, D, z, bias, delta_softplus=True)


# ---------------------------------------------------------------- inputs


def inputs(case, draw):
    """Shape of a case: batch, channels, states, length and, to be refused, other states of B and C
    than A's. "large": delta of about ±50, so that softplus gives 0 for some steps and
    exp(delta · A) gives 0 for others. "nonfinite": one NaN each in u, delta, B and z."""
    batch, channels, states, length, *others = case.shape
    values = "normal" if case.values == "nonfinite" else case.values
    ordinary = functools.partial(draw, values="normal")
    u, z = ordinary(batch, channels, length), ordinary(batch, channels, length)
    delta = draw(batch, channels, length, values=values)
    A = draw(channels, states, dtype="float32", low=-states, high=-0.05)
    B, C = (ordinary(batch, *(others or [states]), length) for _ in range(2))
    D = ordinary(channels, dtype="float32")
    bias = draw(channels, dtype="float32", low=-4, high=0)
    if case.values == "nonfinite":
        for i, x in enumerate((u, delta, z, B)):
            x[i % batch, i % x.shape[1], (i + 1) * length // 5] = math.nan
    return u, delta, A, B, C, D, z, bias


def gradient_inputs(case, draw):
    """The gradient of y, and what `inputs` draws."""
    given = inputs(case, draw)
    return draw(*given[0].shape), *given


def gradients(gy, u, delta, A, B, C, D, z, bias):
    """The gradients of the other arguments, by autograd."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (u, delta, A, B, C, D, z, bias)]
        return torch.autograd.grad(selective_scan(*leaves), leaves, gy)
