"""AdamW in PyTorch: the references, and the calls that the rungs are timed beside."""

import math
from functools import cache

import torch

from common.references.gpt2 import gpt2_shapes
from common.references.philox import philox_words

LIMITS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
NUMBERS = tuple(LIMITS.values())


def moments(shapes, draw):
    """m, and v, which is not negative."""
    m = [draw(*shape, dtype="float32") for shape in shapes]
    return m, [draw(*shape, dtype="float32").square() for shape in shapes]


def inputs(case, draw):
    shapes = gpt2_shapes(*case.shape)
    params, grads = ([draw(*shape) for shape in shapes] for _ in range(2))
    return params, grads, *moments(shapes, draw), *NUMBERS


def inputs_rounded(case, draw):
    return *inputs(case, draw), 81 + sum(case.shape)


def inputs_master(case, draw):
    shapes = gpt2_shapes(*case.shape)
    weights, grads = ([draw(*shape) for shape in shapes] for _ in range(2))
    masters = [draw(*shape, dtype="float32") for shape in shapes]
    return weights, masters, grads, *moments(shapes, draw), *NUMBERS


# ---------------------------------------------------------------- references


def adamw(params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step):
    """Writes params, exp_avgs and exp_avg_sqs, in their own dtype."""
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = v.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
        p.mul_(1 - lr * weight_decay).addcdiv_(m, root, value=-lr / (1 - beta1**step))


def adamw_master(weights, masters, grads, *others):
    adamw(masters, [g.to(p.dtype) for g, p in zip(grads, masters, strict=True)], *others)
    for weight, p in zip(weights, masters, strict=True):
        weight.copy_(p)


def fma(a, b, c):
    """round(a · b + c) in fp32; the product of two fp32 numbers is exact in float64."""
    return (a.double() * b + c.double()).float()


def rounded(x, random16):
    """fp32 to the values of bf16, up where the lower half and the random number carry."""
    up = ((x.view(torch.int32) + random16.to(torch.int32)) & -65536).view(torch.float32)
    return torch.where(x.isfinite(), up, x)


def random16(like, number, step, seed):
    """16 bits per element of tensor `number` of the list."""
    group = torch.arange((like.numel() + 3) // 4, device=like.device)
    key, high = torch.full_like(group, seed), torch.full_like(group, number + (step << 32))
    return (philox_words(key, group, high) >> 16).flatten()[: like.numel()].view(like.shape)


def adamw_rounded(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step, seed
):
    """In fp32 operation by operation as the kernel does, in any dtype of the arguments: where a
    random number decides, the last bit of p counts."""

    def single(value):
        return torch.tensor(value, dtype=torch.float32).item()

    rate, scale = lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
    lists = zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)
    for number, (p, g, m, v) in enumerate(lists):
        wide = g.float()
        new_m = fma(m.float(), single(beta1), single(1 - beta1) * wide)
        new_v = fma(v.float(), single(beta2), single(1 - beta2) * wide * wide)
        root = fma(new_v.double().sqrt().float(), single(scale), torch.full_like(new_v, eps))
        ratio = (new_m.double() / root.double()).float()
        new_p = fma(p.float(), single(1 - lr * weight_decay), -(single(rate) * ratio))
        p.copy_(rounded(new_p, random16(p, number, step, seed)))
        m.copy_(new_m)
        v.copy_(new_v)


# ---------------------------------------------------------------- what PyTorch's users call


@cache
def counters(tensors, step, device):
    """PyTorch has the number of the step on the device, in a tensor per parameter."""
    return [torch.full((), float(step), device=device) for _ in range(tensors)]


def fused(params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step):
    """The kernels of torch.optim.AdamW(fused=True), without the Python code around them."""
    torch._fused_adamw_(
        params, grads, exp_avgs, exp_avg_sqs, [], counters(len(params), step, params[0].device),
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=eps,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def widened(tensors):
    wide = [torch.empty_like(t, dtype=torch.float32) for t in tensors]
    torch._foreach_copy_(wide, tensors)
    return wide


def fused_master(weights, masters, grads, *others):
    """40 bytes per parameter: the gradients are widened before, the weights narrowed after."""
    fused(masters, widened(grads), *others)
    torch._foreach_copy_(weights, masters)


def fused_rounded(params, grads, exp_avgs, exp_avg_sqs, *numbers):
    """The fused step in fp32, and PyTorch's own random numbers for the rounding."""
    wide = widened(params)
    fused(wide, widened(grads), exp_avgs, exp_avg_sqs, *numbers[:-1])
    for p, x in zip(params, wide, strict=True):
        p.copy_(rounded(x, torch.randint_like(x, 65536, dtype=torch.int32)))


def foreach(params, grads, exp_avgs, exp_avg_sqs, *numbers, weights=(), stochastic=False):
    """AdamW in operators on lists, of which torch.compile makes few kernels."""
    lr, beta1, beta2, eps, weight_decay, step = numbers
    wide = [g.float() for g in grads]
    torch._foreach_lerp_(exp_avgs, wide, 1 - beta1)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, wide, wide, 1 - beta2)
    roots = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_div_(roots, math.sqrt(1 - beta2**step))
    torch._foreach_add_(roots, eps)
    new = torch._foreach_mul([p.float() for p in params], 1 - lr * weight_decay)
    torch._foreach_addcdiv_(new, exp_avgs, roots, -lr / (1 - beta1**step))
    if stochastic:
        new = tuple(rounded(x, torch.randint_like(x, 65536, dtype=torch.int32)) for x in new)
    for targets in (params, weights):
        for target, x in zip(targets, new, strict=False):
            target.copy_(x)


@cache
def compiled_foreach():
    return torch.compile(foreach, dynamic=False)


def compiled(*arguments):
    compiled_foreach()(*arguments)


def compiled_master(weights, masters, *others):
    compiled_foreach()(masters, *others, weights=weights)


def compiled_rounded(*arguments):
    compiled_foreach()(*arguments[:-1], stochastic=True)
