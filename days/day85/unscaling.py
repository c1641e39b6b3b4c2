"""Unscaled gradients, scales of the loss and of fp8 tensors: in PyTorch, and as problems."""

import math

import torch

from common.day import FLOATS, Case, Cost, Problem, Rung, Target, grid
from common.references.gpt2 import gpt2_shapes

FLT_MAX = torch.finfo(torch.float32).max


def inputs(case, draw):
    """found_inf is 0, or 1 from tensors before, for every third size."""
    grads = [draw(*shape) for shape in gpt2_shapes(*case.shape)]
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
    """case.shape: (found_inf, good steps, interval, exponent of the scale + 140, or 0 for half the
    largest number, which may still grow)."""
    found, steps, interval, exponent = case.shape
    numbers = [draw(1, dtype="float32", low=1, high=2) for _ in range(2)]
    scale = numbers[0].mul_(2.0 ** (exponent - 140)) if exponent else numbers[0].fill_(FLT_MAX / 2)
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


# ---------------------------------------------------------------- problems

# (layers, channels, words, positions): around a pack, a chunk, and the tensors of one launch
SHAPES = [(1, 3, 5, 7), (0, 1, 1, 1), (1, 16, 129, 8), (0, 1024, 5, 8), (1, 20, 103, 11)]
SHAPES += [(0, 4100, 4, 2), (1, 16, 512, 8), (1, 4, 0, 3)]
MANY = (22, 1, 2, 3)  # 268 tensors: more than one launch has
GPT2 = (12, 768, 50257, 1024)  # 148 tensors, 124.4 million gradients


def cost(case):
    count = sum(math.prod(shape) for shape in gpt2_shapes(*case.shape))
    return Cost(bytes=2 * case.itemsize * count, flops=count)


def problem(name, dtype, cases):
    return Problem(
        name=name,
        inputs=inputs,
        reference=unscale,
        rungs=(
            Rung("unscale_v1_scalar", "one launch per tensor"),
            Rung("unscale_v2_packs", "16 bytes per load, loads first"),
            Rung("unscale_v3_one_launch", "one for all tensors", target=Target(0.9, "copy")),
        ),
        cases=cases,
        bench=Case(GPT2, dtype),
        bench_cpu=Case((1, 64, 96, 32), dtype),
        cost=cost,
        pytorch=unscale_by_pytorch,
    )


def untimed(name, inputs, reference, rung, cases, refused):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(rung,),
        cases=cases,
        refused=refused,
        timed=False,
        outputs_exact=True,
    )


PROBLEMS = (
    problem(
        "unscale, fp32",
        "float32",
        (
            *grid(SHAPES, FLOATS),
            Case(MANY, "bfloat16"),
            *grid([(1, 7, 40, 9)], FLOATS, "nonfinite"),
        ),
    ),
    problem("unscale, fp16", "float16", grid([(1, 7, 40, 9)], FLOATS, "extreme")),
    untimed(
        "loss scale",
        loss_scale_inputs,
        update_loss_scale,
        Rung("update_loss_scale", "one thread"),
        grid(
            [
                (0, 0, 2, 150),
                (0, 1, 2, 150),
                (1, 1, 2, 150),
                (0, 6, 7, 267),
                (0, 0, 1, 0),
                (1, 0, 1, 1),
            ],
            ["float32"],
        ),
        (Case((0, 0, 0, 150)),),
    ),
    untimed(
        "fp8 scales",
        fp8_scale_inputs,
        update_fp8_scales,
        Rung("update_fp8_scales", "one block per tensor"),
        (
            *grid([(5, 33), (1, 1), (4, 16), (3, 1024), (0, 4)], ["float32"]),
            *(Case((9, n), values=v) for n, v in ((5, "nonfinite"), (16, "extreme"), (7, "tiny"))),
        ),
        (Case((2, 0)), Case((2, 1025))),
    ),
)
