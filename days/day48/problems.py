"""Batch norm in two layouts: cases, references, rungs."""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, Tolerance, grid

from .module import BatchNorm

MOMENTUM, EPS = 0.1, 1e-5
# Whole chunks and single elements; one slice and several; more channels than blocks, more slices
# than are merged at once; (N, C); M = 2; nothing.
PLANES = [
    *((2, 3, 5, 7), (4, 5, 8, 8), (3, 2, 33, 33), (2, 2, 64, 72)),
    *((7, 3, 24), (2, 600, 1, 2), (1, 3, 1, 2)),
]
ROWS = [
    *((2, 3, 5, 7), (3, 8, 4, 5), (2, 72, 3, 3), (2, 136, 18, 18)),
    *((3, 3, 20, 20), (2, 8, 50, 50)),
]
EMPTY = [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)]
RESNET = (128, 64, 56, 56)


def drawn(last, case, draw, add=0):
    x = draw(*case.shape).add_(add)
    return x.contiguous(memory_format=torch.channels_last) if last and x.numel() else x


def per_channel(case, draw):
    """weight, bias, mean, variance: fp32 also where x is not."""
    C = case.shape[1]
    weight, bias, mean = (draw(C, dtype="float32", values="normal") for _ in range(3))
    return weight, bias, mean, draw(C, dtype="float32", low=0.5, high=2.0)


def inputs(last, case, draw):
    """Means near 2: of a mean near 0, sums in fp32 have few digits, PyTorch's in float64 more."""
    return drawn(last, case, draw, 2), *per_channel(case, draw), MOMENTUM, EPS


def untracked_inputs(last, case, draw):
    weight, bias, *_ = per_channel(case, draw)
    return drawn(last, case, draw, 2), weight, bias, None, None, 0.0, EPS


def require_eps(eps):
    if not eps >= 0:
        raise ValueError(f"eps: expected 0 or more, got {eps}")


def require_momentum(momentum):
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum: expected 0 to 1, got {momentum}")


def require_several(x):
    if x.dim() < 2:
        raise ValueError("x: expected (N, C, …)")
    if 0 < x.numel() == x.shape[1]:
        raise ValueError("x: one value per channel")


def reference(x, weight, bias, running_mean, running_var, momentum, eps):
    require_several(x)
    require_momentum(momentum)
    require_eps(eps)
    if x.numel() == 0:
        return x.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
    return torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)


def pytorch(x, weight, bias, running_mean, running_var, momentum, eps):
    """What F.batch_norm calls, cuDNN where it can, with the statistics that it saves."""
    return torch.ops.aten._batch_norm_impl_index(
        x, weight, bias, running_mean, running_var, True, momentum, eps, True
    )[:3]


def inference_inputs(last, case, draw):
    return drawn(last, case, draw), *per_channel(case, draw), EPS


def inference(x, weight, bias, running_mean, running_var, eps):
    """Also for eps = 0, which some versions of F.batch_norm refuse."""
    require_eps(eps)
    if x.numel() == 0:
        return x.clone()
    return torch.native_batch_norm(x, weight, bias, running_mean, running_var, False, 0.0, eps)[0]


def pytorch_inference(x, weight, bias, running_mean, running_var, eps):
    return F.batch_norm(x, running_mean, running_var, weight, bias, False, 0.0, eps)


def backward_inputs(last, training, case, draw):
    """The formulas hold for any mean and rstd, so these are drawn too."""
    weight, _, mean, rstd = per_channel(case, draw)
    x = drawn(last, case, draw)
    return drawn(last, case, draw), x, mean, rstd, weight, training


def backward(gy, x, mean, rstd, weight, training):
    """In fp32 at least, which the operators of PyTorch compute 16-bit inputs in, too."""
    wide = torch.promote_types(x.dtype, torch.float32)
    per_channel = [1, x.shape[1], *(1 for _ in x.shape[2:])]
    mean, rstd, weight = (t.view(per_channel) for t in (mean, rstd, weight))
    upstream, n = gy.to(wide), (x.to(wide) - mean) * rstd
    dims = [d for d in range(x.dim()) if d != 1]
    gb, gw = upstream.sum(dims, keepdim=True), (upstream * n).sum(dims, keepdim=True)
    M = max(x.numel() // max(x.shape[1], 1), 1)
    g = upstream - (gb + n * gw) / M if training else upstream
    return (weight * rstd * g).to(x.dtype), gw.flatten(), gb.flatten()


def pytorch_backward(gy, x, mean, rstd, weight, training):
    """PyTorch's own kernels: cuDNN's gradient needs what its forward pass reserved. A step of
    training is timed with cuDNN's."""
    return torch.ops.aten.native_batch_norm_backward(
        gy, x, weight, None, None, mean, rstd, training, EPS, [True, True, True]
    )


def cost(passes, case):
    elements = torch.Size(case.shape).numel()
    return Cost(bytes=passes * elements * case.itemsize, flops=5 * passes * elements)


TOLERANCE = Tolerance(
    factor=8, why="sums are in fp32, PyTorch's in float64 on the CPU; and x - mean is rounded"
)
CUDNN = Target(1.0, "pytorch")
V1 = Rung("batch_norm_v1_naive", "one block per channel")
V2 = Rung("batch_norm_v2_welford", "Welford, many blocks")
V3 = Rung("batch_norm_v3_fused", "kept on the chip", target=CUDNN)
BACKWARD = (
    Rung("batch_norm_backward_v1_naive", "one block per channel"),
    Rung("batch_norm_backward_v2_split", "many blocks per channel"),
    Rung("batch_norm_backward_v3_fused", "kept on the chip", target=CUDNN),
)


def bench(shape=RESNET, dtype="float16", cpu=(4, 8, 14, 14)):
    return {"bench": Case(shape, dtype), "bench_cpu": Case(cpu, dtype)}


def layout(name, last):
    shapes = ROWS if last else [*PLANES, (5, 8), (700, 24)]
    odd = (
        *grid(shapes[1:3], FLOATS, "offset"),
        *grid(shapes[1:2], FLOATS, "constant"),
        *grid([(3, 8, 6, 6)], FLOATS, "nonfinite"),
    )
    large = grid([(1, 1, 460, 460)], ["float32"]) if not last else ()
    forward = partial(inputs, last)
    return (
        Problem(
            f"{name}, forward",
            forward,
            reference,
            rungs=(V1, V2, V3),
            cases=(*grid([*shapes, *EMPTY], FLOATS), *odd),
            refused=grid([(1, 3, 1, 1)], FLOATS),
            cost=partial(cost, 2),
            pytorch=pytorch,
            tolerance=TOLERANCE,
            **bench(),
        ),
        Problem(
            f"{name}, backward",
            partial(backward_inputs, last, True),
            backward,
            rungs=BACKWARD,
            cases=(*grid([*shapes, *EMPTY], FLOATS), *odd[:6], *large),
            cost=partial(cost, 3),
            pytorch=pytorch_backward,
            **bench(),
        ),
        Problem(
            f"{name}, inference",
            partial(inference_inputs, last),
            inference,
            rungs=(Rung("batch_norm_inference", "the second launch of v2"),),
            cases=(*grid([*shapes[:4], *EMPTY], FLOATS), *grid(shapes[:1], FLOATS, "nonfinite")),
            cost=partial(cost, 2),
            pytorch=pytorch_inference,
            **bench(),
        ),
    )


@cache
def empty_module(C, **options):
    """A module without memory of its own: functional_call gives it the parameters."""
    return BatchNorm(C, EPS, **options, device="meta")


def trained_inputs(last, case, draw):
    return drawn(last, case, draw), *per_channel(case, draw)[:2]


def trained(x, weight, bias):
    """A step of training without tracked statistics: those would be written."""
    require_several(x)
    if x.numel() == 0:
        return x.clone()
    return F.batch_norm(x, None, None, weight, bias, True, MOMENTUM, EPS)


def evaluated(x, weight, bias):
    """Autograd through the running statistics, which have no gradient themselves."""
    if x.dim() < 2:
        raise ValueError("x: expected (N, C, …)")
    if x.numel() == 0:
        return x.clone()
    running = torch.full_like(weight, 0.5), torch.full_like(weight, 2.0)
    return F.batch_norm(x, *running, weight, bias, False, MOMENTUM, EPS)


def load_module(training, builder):
    """The module: in training with track_running_stats=False, since a check may write nothing."""
    builder.operators()

    def call(x, weight, bias):
        if x.dim() < 2:
            raise ValueError(f"x: expected (N, C, …), got {tuple(x.shape)}")
        state = {"weight": weight, "bias": bias}
        if not training:
            state["running_mean"] = torch.full_like(weight, 0.5)
            state["running_var"] = torch.full_like(weight, 2.0)
        module = empty_module(x.shape[1], track_running_stats=not training)
        return functional_call(module.train(training), state, (x,))

    return call


def hundred_inputs(case, draw):
    """momentum: 0.1, or None for the cumulative average."""
    number, *shape = case.shape
    made = Case(tuple(shape), case.dtype)
    return drawn(number // 2, made, draw, 2), (MOMENTUM, None)[number % 2]


def hundred_steps(module, x):
    """The buffers after 100 batches with other means and deviations."""
    module.train()
    with torch.no_grad():
        for step in range(100):
            module(x * (1 + step % 7) + step % 11)
    return module.running_mean, module.running_var, module.num_batches_tracked


def hundred_by_pytorch(x, momentum):
    require_several(x)
    if x.numel() == 0 or x.dim() != 4:
        raise ValueError("x: expected (N, C, H, W) with elements")
    wide = torch.promote_types(x.dtype, torch.float32)
    module = nn.BatchNorm2d(x.shape[1], EPS, momentum, device=x.device, dtype=wide)
    return hundred_steps(module, x)


def load_hundred(builder):
    builder.operators()

    def call(x, momentum):
        if x.dim() != 4 or x.numel() == 0:
            raise ValueError(f"x: expected (N, C, H, W) with elements, got {tuple(x.shape)}")
        if x.device.type != torch.device(builder.device).type:
            raise ValueError(f"x: expected a tensor on {builder.device}, got one on {x.device}")
        return hundred_steps(BatchNorm(x.shape[1], EPS, momentum, device=x.device), x)

    return call


def module_problems():
    for name, last, shapes in (("NCHW", False, PLANES), ("channels last", True, ROWS)):
        made = partial(trained_inputs, last)
        cases = (*grid(shapes[:3], FLOATS), *grid(shapes[3:], ["float16"]))
        yield Problem(
            f"{name}, training step",
            made,
            trained,
            rungs=(Rung("BatchNorm", "the module", load=partial(load_module, True), target=CUDNN),),
            cases=cases,
            cost=partial(cost, 5),
            pytorch=trained,
            libraries=(COMPILE,),
            gradients=True,
            tolerance=TOLERANCE,
            **bench(),
        )
        yield Problem(
            f"{name}, gradients in evaluation",
            made,
            evaluated,
            rungs=(Rung("BatchNorm", "the module", load=partial(load_module, False)),),
            cases=cases,
            timed=False,
            gradients=True,
            tolerance=TOLERANCE,
        )
    yield Problem(
        "running statistics after 100 steps",
        hundred_inputs,
        hundred_by_pytorch,
        rungs=(
            Rung(
                "BatchNorm",
                "the module",
                load=load_hundred,
                not_captured="the cumulative average waits for the count of batches",
            ),
        ),
        cases=grid([(n, 3, 2, 3, 4) for n in range(4)], FLOATS),
        timed=False,
    )


problems = (*layout("NCHW", False), *layout("channels last", True), *module_problems())
