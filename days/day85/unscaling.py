"""Gradients that are unscaled, and the scales of loss and fp8 tensors, in PyTorch."""

import torch

FLT_MAX = torch.finfo(torch.float32).max
GPT2 = (12, 768, 50257, 1024)  # 148 tensors, 124.4 million gradients


def shapes_of(case):
    """Of the parameters of a GPT-2 with so many layers, channels, words and positions."""
    layers, C, words, positions = case.shape
    layer = [(C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,)]
    layer += [(C,), (C,), (4 * C, C), (4 * C,), (C, 4 * C), (C,)]
    return [(words, C), (positions, C), *(layer * layers), (C,), (C,)]


def inputs(case, draw):
    """found_inf is 0, or 1 from tensors before, for every third size."""
    grads = [draw(*shape) for shape in shapes_of(case)]
    found_inf = draw(1, dtype="float32", values="normal").zero_()
    if case.shape[1] % 3 == 0:
        found_inf += 1
    return grads, found_inf, draw(1, dtype="float32", low=2.0**-16, high=2.0**-4)


def unscale(grads, found_inf, inv_scale):
    """Writes grads and found_inf."""
    for g in grads:
        if not bool(g.isfinite().all()):
            found_inf.fill_(1)
        g.copy_(g.to(inv_scale.dtype) * inv_scale[0])


def unscale_by_pytorch(grads, found_inf, inv_scale):
    """What torch.amp.GradScaler calls."""
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)


# ---------------------------------------------------------------- the loss scale


def loss_scale_inputs(case, draw):
    """case.shape: (found_inf, good steps, interval, exponent of the scale)."""
    found, steps, interval, exponent = case.shape
    numbers = [draw(1, dtype="float32", low=1, high=2) for _ in range(2)]
    scale = numbers[0].mul_(2.0 ** (exponent - 140))
    good_steps = draw(1, dtype="int32").fill_(steps)
    found_inf = draw(1, dtype="float32").fill_(float(found))
    return scale, numbers[1], good_steps, found_inf, 2.0, 0.5, interval


def update_loss_scale(scale, inv_scale, good_steps, found_inf, growth, backoff, interval):
    """In fp32 in any dtype of the arguments."""
    if scale.dtype == torch.float64:
        single = scale.float(), inv_scale.float(), good_steps, found_inf.float()
        update_loss_scale(*single, growth, backoff, interval)
        for wide, narrow in zip((scale, inv_scale, good_steps, found_inf), single, strict=True):
            wide.copy_(narrow)
        return
    torch._amp_update_scale_(scale, good_steps, found_inf, growth, backoff, interval)
    inv_scale.copy_(1 / scale)
    found_inf.zero_()


# ---------------------------------------------------------------- the scales of fp8 tensors


def fp8_scale_inputs(case, draw):
    """case.shape: (tensors, length). Scales are positive; a history has no sign."""
    tensors, length = case.shape
    history = draw(tensors, length, dtype="float32").abs_()
    history[1::3] = 0
    scale, inv_scale = (draw(tensors, dtype="float32", low=0.5, high=4) for _ in range(2))
    return history, scale, inv_scale, 448.0 if length % 2 else 57344.0


def update_fp8_scales(history, scale, inv_scale, largest):
    """In fp32 in any dtype of the arguments."""
    most = torch.where(history.isfinite(), history, 0).float().amax(1)
    next_scale = (torch.full_like(most, largest) / most).clamp(max=FLT_MAX)
    scale.copy_(torch.where(most > 0, next_scale, scale.float()))
    inv_scale.copy_(torch.where(most > 0, 1 / next_scale, inv_scale.float()))
    history.copy_(history.roll(1, 1))
    history[:, 0] = 0
