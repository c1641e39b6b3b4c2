"""RMSNorm of any row, L1 and L2, forward and backward: cases, rungs, sizes."""

from dataclasses import replace

import torch
from torch.nn.functional import normalize

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid, streamed
from common.references import rivals

from ..day import CHUNKS, EVEN, ODD, SHAPES, WIDE, checked, timed

LONGER = [(1, 40008), (2, 65536), (1, 70000), (1, 262152)]

ANY_ROW = Rung("rms_norm_any_row", "row in registers, the rest read again")
BULK = Rung("rms_norm_v5_bulk", "bulk copies, clusters above 64 KB")
TARGETS = (Target(0.96, "copy"), Target(1.0, "quack"))
CHOSEN = Rung("rms_norm_v6_chosen", "the best for the shape", target=TARGETS)


def unit(p):
    """x divided by the p-norm of its rows, and the factors."""

    def reference(x, eps):
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = 1 / x.to(wide).norm(p, dim=1).clamp_min(eps)
        return (x.to(wide) * scale[:, None]).to(x.dtype), scale

    return reference


def by_normalize(p):
    """The factors come from a second pass; PyTorch has no operator that returns both."""
    return lambda x, eps: (
        normalize(x, p=p, dim=1, eps=eps),
        1 / torch.linalg.vector_norm(x, p, 1, dtype=torch.float32).clamp_min(eps),
    )


def unit_inputs(case, draw):
    return draw(*case.shape), 1e-12


def backward_inputs(case, draw):
    """The formulas hold for any factor."""
    rows, cols = case.shape
    scale = draw(rows, dtype="float32", low=0.5, high=2.0)
    return draw(rows, cols), draw(rows, cols), scale, draw(cols, low=0.5, high=1.5)


def rms_backward(gy, x, scale, weight):
    wide = torch.promote_types(x.dtype, torch.float32)
    s, n = scale[:, None], x.to(wide) * scale[:, None]
    g = gy.to(wide) * weight.to(wide)
    gx = s * (g - n * (g * n).mean(1, keepdim=True))
    return gx.to(x.dtype), (gy.to(wide) * n).sum(0).to(x.dtype)


def fused_rms_backward(gy, x, scale, weight):
    """What autograd calls for F.rms_norm on a GPU; the CPU has no such operator."""
    if x.device.type == "cpu":
        return rms_backward(gy, x, scale, weight)
    shape = [x.shape[1]]
    return torch.ops.aten._fused_rms_norm_backward(
        gy, x, shape, scale[:, None], weight, [True, True]
    )


CLAMP = 7e-3  # times its reciprocal, it rounds to less than 1 in fp32


def unit_backward_inputs(p):
    """x with the factors that belong to it, and one row below eps."""

    def inputs(case, draw):
        gy, x = draw(*case.shape), draw(*case.shape)
        if case.shape[0] > 1:
            x[0] = 0
        scale = draw(case.shape[0], dtype="float32")
        scale.copy_(1 / x.float().norm(p, dim=1).clamp_min(CLAMP))
        return gy, x, scale, CLAMP

    return inputs


def clamped(s, eps):
    """Where the norm was below eps: s is 1 / eps, which times eps may round to less than 1."""
    return s >= float(1 / torch.tensor(eps, dtype=torch.float32))


def unit_backward(p):
    def reference(gy, x, scale, eps):
        wide = torch.promote_types(x.dtype, torch.float32)
        s, v, g = scale[:, None], x.to(wide), gy.to(wide)
        direction = v * s if p == 2 else v.sign()
        pull = (g * v).sum(1, keepdim=True) * s
        pull = torch.where(clamped(s, eps), torch.zeros_like(pull), pull)
        return (s * (g - direction * pull)).to(x.dtype)

    return reference


def by_operators(p):
    """As one writes it for an autograd.Function."""

    def backward(gy, x, scale, eps):
        s = scale[:, None]
        y = x * s
        pull = (gy * y).sum(1, keepdim=True) * ~clamped(s, eps)
        return (s * (gy - (y if p == 2 else x.sign()) * pull)).to(x.dtype)

    return backward


def three_tensors(case):
    rows, cols = case.shape
    return Cost(bytes=3 * rows * cols * case.itemsize, flops=9 * rows * cols)


def unit_problem(name, p):
    return Problem(
        name=f"{name} norm",
        inputs=unit_inputs,
        reference=unit(p),
        rungs=(Rung(f"{name.lower()}_norm", "as RMSNorm's v6", target=Target(0.96, "copy")),),
        cases=(
            *grid([*SHAPES, *CHUNKS], FLOATS),
            *grid([(2, 4104)], ["float32"]),
            *grid([(1, 16392), (1, 65536)], ["bfloat16"]),
            *grid([(8, 304)], FLOATS, values="nonfinite"),
        ),
        bench=Case((1 << 17, 1 << 12), "bfloat16"),
        bench_cpu=Case((4, 4096), "bfloat16"),
        cost=streamed(2, 4),
        pytorch=by_normalize(p),
        libraries=(COMPILE,),
    )


UNIT_BACKWARD = (Target(0.93, "copy"), Target(1.0, "compile"))


def unit_backward_problem(name, p, timed):
    return Problem(
        name=f"{name} norm backward",
        inputs=unit_backward_inputs(p),
        reference=unit_backward(p),
        rungs=(Rung(f"{name.lower()}_norm_backward", "one block per row", target=UNIT_BACKWARD),),
        cases=(
            *grid([(1, 1), (5, 31), (9, 136), (3, 4104), (0, 8), (4, 0)], FLOATS),
            *grid([(8, 304)], FLOATS, values="nonfinite"),
        ),
        timed=timed,
        bench=Case((1 << 16, 1 << 12), "bfloat16"),
        bench_cpu=Case((4, 4096), "bfloat16"),
        cost=three_tensors,
        pytorch=by_operators(p),
        libraries=(COMPILE,),
    )


backward = Problem(
    name="RMSNorm backward",
    inputs=backward_inputs,
    reference=rms_backward,
    rungs=(
        Rung("rms_norm_backward_v1_two_kernels", "rows, then columns"),
        Rung("rms_norm_backward_v2_one_pass", "column sums in registers"),
        Rung(
            "rms_norm_backward_v3_pipelined",
            "the next rows in flight",
            target=(Target(0.93, "copy"), Target(1.0, "quack")),
        ),
    ),
    cases=(
        *grid([(1, 1), (3, 255), (2, 8), (37, 264), (5, 1032), (3, 4096), (0, 8), (4, 0)], FLOATS),
        *grid([(2, 8200), (300, 40), (9, 8192)], ["bfloat16"]),
        *grid([(8, 304)], FLOATS, values="nonfinite"),
    ),
    bench=Case((1 << 16, 1 << 12), "bfloat16"),
    bench_cpu=Case((32, 1024), "bfloat16"),
    cost=three_tensors,
    pytorch=fused_rms_backward,
    libraries=(COMPILE,),
    rivals=(rivals.quack_rms_norm_backward,),
)


def beside_quack(*arguments):
    return replace(timed(*arguments), rivals=(rivals.quack_rms_norm,))


problems = (
    checked(
        "RMSNorm, every row",
        (ANY_ROW, BULK, CHOSEN),
        *(*grid(SHAPES, FLOATS), *EVEN, *ODD, *WIDE),
        *grid(LONGER, ["bfloat16"]),
    ),
    beside_quack(1 << 19, 1 << 10, CHOSEN),
    beside_quack(1 << 17, 1 << 12, BULK, CHOSEN),
    beside_quack(1 << 15, 1 << 14, BULK, CHOSEN),
    beside_quack(1 << 14, 1 << 15, BULK, CHOSEN),
    beside_quack(1 << 13, 1 << 16, ANY_ROW, BULK, CHOSEN),
    unit_problem("L1", 1),
    unit_problem("L2", 2),
    backward,
    unit_backward_problem("L1", 1, timed=False),
    unit_backward_problem("L2", 2, timed=True),
)
