"""The operators of day 45: formulas, cases, rungs, sizes."""

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Library, Problem, Rung, Target, grid, streamed
from common.references import rivals

from . import twin
from .module import AddLayerNorm, LayerNorm, load

aten = torch.ops.aten
# Around the lanes of a warp, the packs of a thread, the teams and threads of a block, the blocks of
# a cluster and the limits of each rung, with and without rows of whole packs.
SHORT = [(1, 1), (5, 31), (9, 136), (300, 8), (3, 1000), (7, 1025), (37, 264), (0, 8)]
LONG = [(2, 4104), (2, 16392), (5, 32776), (1, 65544), (2, 131080)]
UNALIGNED = [(2, 16383), (2, 16385), (1, 40001)]
# Four packs for each thread of 2, 4, 8 or 16 warps, and eight for each of 2 or 4 blocks.
EVEN = [(3, 2048), (2, 4096), (3, 8192), (3, 16384), (2, 32768)]
EPS = 1e-5


def normed(h, weight, bias, eps):
    """y, mean and rstd, with statistics in fp32 at least. A row with an infinity has no mean."""
    wide = torch.promote_types(h.dtype, torch.float32)
    mean = h.to(wide).mean(1, keepdim=True)
    d = h.to(wide) - mean
    rstd = (d.square().mean(1, keepdim=True) + eps).rsqrt()
    y = (d * rstd * weight.to(wide) + bias.to(wide)).to(h.dtype)
    return y, mean[:, 0].where(rstd[:, 0].isfinite(), rstd[:, 0]), rstd[:, 0]


def native(h, weight, bias, eps):
    """What F.layer_norm calls; for 16-bit inputs the CPU returns mean and rstd in 16 bits."""
    y, mean, rstd = aten.native_layer_norm(h, [h.shape[1]], weight, bias, eps)
    return y, mean[:, 0].float(), rstd[:, 0].float()


def added(norm):
    def reference(x, residual, weight, bias, eps):
        h = x + residual
        return h, *norm(h, weight, bias, eps)

    return reference


def inputs(case, draw):
    """Rows whose mean is as large as their deviation: a mean near 0 has the absolute error of its
    largest terms, which a comparison with its own size would refuse."""
    rows, cols = case.shape
    mean = 64 if case.values == "large" else 1
    return (
        draw(rows, cols).add_(mean),
        draw(cols, low=0.5, high=1.5),
        draw(cols, values="normal"),
        EPS,
    )


def added_inputs(case, draw):
    x, *parameters = inputs(case, draw)
    return x, draw(*case.shape, values="normal"), *parameters


def backward_inputs(with_gh, case, draw):
    """The formulas hold for any mean and rstd."""
    rows, cols = case.shape
    mean = draw(rows, dtype="float32", values="normal")
    rstd = draw(rows, dtype="float32", low=0.5, high=2.0)
    gh = draw(rows, cols, values="normal") if with_gh else None
    return draw(rows, cols), draw(rows, cols), mean, rstd, draw(cols, values="normal"), gh


def backward(gy, h, mean, rstd, weight, gh=None):
    """In fp32 at least, which the operators of PyTorch compute 16-bit inputs in, too."""
    wide = torch.promote_types(h.dtype, torch.float32)
    upstream, mean, rstd = gy.to(wide), mean[:, None], rstd[:, None]
    n = (h.to(wide) - mean) * rstd
    g = upstream * weight.to(wide)
    gx = rstd * (g - g.mean(1, keepdim=True) - n * (g * n).mean(1, keepdim=True))
    if gh is not None:
        gx = gx + gh.to(wide)
    return gx.to(h.dtype), (upstream * n).sum(0).to(h.dtype), upstream.sum(0).to(h.dtype)


def native_backward(gy, h, mean, rstd, weight, gh=None):
    """What autograd calls for F.layer_norm. The bias only says that its gradient is computed."""
    mean, rstd = mean[:, None], rstd[:, None]
    gx, gw, gb = aten.native_layer_norm_backward(
        gy, h, [h.shape[1]], mean, rstd, weight, weight, [True, True, True]
    )
    return (gx if gh is None else gx + gh), gw, gb


def with_gh(case, draw):
    return backward_inputs(True, case, draw)


def without_gh(case, draw):
    return backward_inputs(False, case, draw)


REREAD = Rung("layer_norm_v1_reread", "row read twice")
REGISTERS = Rung("layer_norm_v2_registers", "row in a block's registers")
CLUSTER = Rung("layer_norm_v3_cluster", "fixed columns, clusters")
CHOSEN = Rung("layer_norm_v4_chosen", "the best for the shape", target=Target(0.95, "copy"))
EMPTY_ROWS = grid([(4, 0)], ["float32"])
ODD = (
    *grid([(4, 1000), (3, 4104)], FLOATS, values="offset"),
    *grid([(2, 16392), (8, 33)], ["float32"], values="offset"),  # 33: one lane of a warp has some
    *grid([(3, 104), (2, 2100)], FLOATS, values="constant"),
    *grid([(4, 1000)], FLOATS, values="large"),
    *grid([(8, 304), (8, 301), (8, 2048)], FLOATS, values="nonfinite"),
    *grid([(2, 4096)], FLOATS, values="constant"),
    *grid([(2, 16384)], FLOATS, values="offset"),
    *grid([(2, 4096)], FLOATS, values="large"),
)

any_shape = Problem(
    name="layer norm, any shape",
    inputs=inputs,
    reference=normed,
    rungs=(REREAD, REGISTERS, CLUSTER, CHOSEN),
    cases=(*grid([*SHORT, *EVEN], FLOATS), *grid([*LONG, *UNALIGNED], ["bfloat16"]), *ODD,
           *grid([(2, 65536)], ["bfloat16"]), *grid([(2, 1024), (2, 65536)], ["float32"]),
           *grid([(3, 4100), (1, 16388)], ["float32"])),
    refused=EMPTY_ROWS,
    timed=False,
)  # fmt: skip


def timed(rows, cols, *rungs, dtype="bfloat16"):
    return Problem(
        name=f"layer norm, {cols} columns" + ("" if dtype == "bfloat16" else f", {dtype}"),
        inputs=inputs,
        reference=normed,
        rungs=(*rungs, CHOSEN),
        cases=(Case((3, 520), dtype),),  # this size is compared after it was timed
        bench=Case((rows, cols), dtype),
        bench_cpu=Case((1, cols), dtype),
        cost=streamed(2, 10),
        pytorch=native,
        libraries=(COMPILE, Library("Triton", twin.forward)),
        rivals=(rivals.quack_layer_norm,),
    )


residual = Problem(
    name="residual and layer norm",
    inputs=added_inputs,
    reference=added(normed),
    rungs=(
        Rung("add_layer_norm_v1_separate", "an addition, then v4"),
        Rung("add_layer_norm_v2_fused", "one kernel", target=Target(0.95, "copy")),
    ),
    cases=(
        *grid([(1, 1), (5, 31), (9, 136), (70, 264), (0, 8)], FLOATS),
        *grid([(2, 4104), (3, 16392), (2, 65544), (2, 16385)], ["bfloat16"]),
        *grid([(3, 2048), (2, 4096), (3, 8192), (2, 16384)], FLOATS),
        # Three rows for some of the 16 clusters of 16 blocks. Rows for 8 blocks.
        *grid([(35, 32772), (2, 65536)], ["float32"]),
        *grid([(8, 304), (8, 2048), (2, 32768)], FLOATS, values="nonfinite"),
    ),
    refused=EMPTY_ROWS,
    bench=Case((1 << 16, 1 << 12), "bfloat16"),
    bench_cpu=Case((4, 1 << 12), "bfloat16"),
    cost=streamed(4, 11),
    pytorch=added(native),
    libraries=(COMPILE,),
)

SEPARATE = Rung("layer_norm_backward_v1_separate", "rows, then columns")
FUSED = Rung("layer_norm_backward_v2_fused", "one pass", target=Target(1.1, "compile"))
BACKWARD_CASES = (
    *grid([(1, 1), (3, 255), (2, 8), (37, 264), (5, 1032), (0, 8)], FLOATS),
    *grid([(300, 40), (9, 4104), (2, 8200), (520, 36), (2, 65544)], ["bfloat16"]),
    *grid([(70, 1024), (3, 4100)], ["float32"]),
    *grid([(8, 520)], FLOATS, values="offset"),
    *grid([(8, 304)], FLOATS, values="nonfinite"),
)


def backward_cost(tensors, case):
    rows, cols = case.shape
    return Cost(bytes=tensors * rows * cols * case.itemsize, flops=14 * rows * cols)


def backward_timed(rows, cols, rungs, cases):
    return Problem(
        name=f"layer norm backward, {cols} columns",
        inputs=without_gh,
        reference=backward,
        rungs=rungs,
        cases=cases,
        refused=EMPTY_ROWS,
        bench=Case((rows, cols), "bfloat16"),
        # fp32: for 16-bit inputs the CPU's operator needs mean in 16 bits
        bench_cpu=Case((max(1, (1 << 15) // cols), cols), "float32"),
        cost=lambda case: backward_cost(3, case),
        pytorch=native_backward,
        libraries=(COMPILE, Library("Triton", twin.backward)),
        rivals=(rivals.quack_layer_norm_backward,),
    )


residual_backward = Problem(
    name="residual and layer norm backward",
    inputs=with_gh,
    reference=backward,
    rungs=(SEPARATE, FUSED),
    cases=(
        *grid([(5, 31), (37, 264), (5, 1032)], FLOATS),
        *grid([(9, 4104), (3, 16392)], ["bfloat16"]),
        # Two packs for each of 256 threads: some rows for each of 3 blocks, fewer than stages.
        *grid([(20, 4096), (2, 4096)], ["float16", "bfloat16"]),
        *grid([(20, 2048)], ["float32"]),
        Case((3, 4096), "bfloat16", "offset"),
        Case((3, 2048), "float32", "offset"),
        Case((3, 4096), "bfloat16", "nonfinite"),
    ),
    bench=Case((1 << 16, 1 << 12), "bfloat16"),
    bench_cpu=Case((8, 1 << 12), "float32"),
    cost=lambda case: backward_cost(4, case),
    pytorch=native_backward,
    libraries=(COMPILE,),
)


def layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def add_layer_norm(x, residual, weight, bias, eps):
    h = x + residual
    return h, layer_norm(h, weight, bias, eps)


def training_step(name, module, formula, make_inputs, tensors):
    return Problem(
        name=f"training step, {name}",
        inputs=make_inputs,
        reference=formula,
        rungs=(Rung(name, "v4 and v2 in a module", load=load(module), target=FUSED.target),),
        cases=(
            *grid([(5, 31), (37, 264), (3, 1032)], FLOATS),
            *grid([(2, 16392)], ["bfloat16"]),
        ),
        bench=Case((1 << 16, 1 << 12), "bfloat16"),
        bench_cpu=Case((4, 1 << 12), "bfloat16"),
        cost=lambda case: backward_cost(tensors, case),
        pytorch=formula,
        libraries=(COMPILE,),
        gradients=True,
    )


problems = (
    any_shape,
    timed(1 << 19, 1 << 10, REREAD, REGISTERS, CLUSTER),  # 1 GiB per tensor, as the copy
    timed(1 << 17, 1 << 12, REGISTERS, CLUSTER),
    timed(1 << 15, 1 << 14, REGISTERS, CLUSTER),
    timed(1 << 13, 1 << 16, REREAD, CLUSTER),
    timed(1 << 16, 1 << 12, REGISTERS, dtype="float32"),
    residual,
    backward_timed(1 << 12, 1 << 16, (FUSED,), (Case((3, 520), "bfloat16"),)),
    residual_backward,
    training_step("AddLayerNorm", AddLayerNorm, add_layer_norm, added_inputs, 8),
    training_step("LayerNorm", LayerNorm, layer_norm, inputs, 5),
    backward_timed(1 << 16, 1 << 12, (SEPARATE, FUSED), BACKWARD_CASES),
)
