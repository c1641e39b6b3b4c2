"""Day 28: multi-head attention."""

if __name__ == "__main__":  # python days/day28/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day28

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import (
    HALVES,
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    peak_memory,
    print_table,
    seconds,
)
from common.references.attention import attention_by

from .module import MultiheadAttention, heads_of

TITLE = "Multi-head attention"
TEACHES = "A whole layer: projections, heads found by strides, padding, and a module that trains"
TOPICS = ("attention", "multi-head attention", "GEMM", "strides", "autograd", "nn.Module")
SOURCE = "multi_head_attention.cu"
EXTRA_SOURCES = ("module.py",)
INTRODUCES = ("multi-head attention", "projection", "padding mask")

# (B, S, E, heads, padded): rows around the 64 keys of a tile and the 128 rows of a block
SHAPES = [(2, 33, 128, 2, 0), (1, 70, 256, 2, 0), (3, 65, 64, 1, 1), (2, 130, 128, 1, 1)]
EMPTY = [(0, 4, 64, 1, 0), (2, 0, 128, 2, 0)]
UNWATCHED = f"{CUBLAS_UNWATCHED}; 'packed attention' is watched"


def drawn_padding(case, draw):
    """Row b keeps about half of its keys, and always its first; None where nothing is padded."""
    B, S, *_, padded = case.shape
    if not padded:
        return None
    padding = draw(B, S, dtype="bool")
    padding[:, :1] = False
    return padding


def inputs(case, draw):
    """Weights as nn.MultiheadAttention draws them: outputs stay of size 1."""
    B, S, E, heads, _ = case.shape
    x = draw(B, S, E)
    in_weight, out_weight = (draw(rows, E, values="normal").mul_(E**-0.5) for rows in (3 * E, E))
    in_bias, out_bias = draw(3 * E, values="normal"), draw(E, values="normal")
    return x, in_weight, in_bias, out_weight, out_bias, heads, drawn_padding(case, draw)


def attention(q, k, v, padding):
    """o and lse of (B, H, S, D); a row that sees no key gets o = 0."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if padding is not None:
        s = s.masked_fill(padding[:, None, None], -torch.inf)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    p = torch.softmax(s, -1)
    if padding is not None:
        p = p.masked_fill(padding.all(-1)[:, None, None, None], 0)
    return p @ v, wide.logsumexp(-1)


def packed_reference(qkv, heads, padding=None):
    q, k, v = (heads_of(rows, heads) for rows in qkv.chunk(3, -1))
    o, lse = attention(q, k, v, padding)
    return o.transpose(1, 2).flatten(2), lse


def reference(x, in_weight, in_bias, out_weight, out_bias, heads, padding=None):
    o, _ = packed_reference(F.linear(x, in_weight, in_bias), heads, padding)
    return F.linear(o, out_weight, out_bias)


def packed_inputs(case, draw):
    """In the last batch every key is padded."""
    B, S, E, heads, _ = case.shape
    padding = drawn_padding(case, draw)
    if padding is not None:
        padding[-1:] = True
    return draw(B, S, 3 * E), heads, padding


@cache
def empty_module(kind, E, heads, training):
    """A module without memory of its own: functional_call gives it the parameters."""
    if kind is MultiheadAttention:
        return kind(E, heads, device="meta")
    return kind(E, heads, batch_first=True, device="meta").train(training)


def parameters(in_weight, in_bias, out_weight, out_bias):
    return {
        "in_proj_weight": in_weight,
        "in_proj_bias": in_bias,
        "out_proj.weight": out_weight,
        "out_proj.bias": out_bias,
    }


def torch_module(training, x, in_weight, in_bias, out_weight, out_bias, heads, padding=None):
    """nn.MultiheadAttention with these weights; outside of training it has a faster path."""
    weights = parameters(in_weight, in_bias, out_weight, out_bias)
    options = {"key_padding_mask": padding, "need_weights": False}
    try:
        module = empty_module(nn.MultiheadAttention, x.shape[2], heads, training)
        return functional_call(module, weights, (x, x, x), options)[0].contiguous()
    except AssertionError as error:  # how the module refuses shapes
        raise ValueError(str(error)) from error


def by_torch(x, *arguments):
    """nn.MultiheadAttention, which refuses a batch of nothing; there the formulas say the rest."""
    return torch_module(True, x, *arguments) if x.numel() else reference(x, *arguments)


def load_module(builder):
    builder.operators()

    def call(x, in_weight, in_bias, out_weight, out_bias, heads, padding=None):
        if x.dim() != 3 or x.shape[2] not in (64 * heads, 128 * heads):
            raise ValueError(f"x, heads: expected (B, S, heads · 64 or 128), got {tuple(x.shape)}")
        module = empty_module(MultiheadAttention, x.shape[2], heads, True)
        weights = parameters(in_weight, in_bias, out_weight, out_bias)
        return functional_call(module, weights, (x, padding))

    return call


def by_sdpa(backend, x, in_weight, in_bias, out_weight, out_bias, heads, padding=None):
    """The same layer of F.linear and PyTorch's attention, the heads as views."""
    q, k, v = (heads_of(rows, heads) for rows in F.linear(x, in_weight, in_bias).chunk(3, -1))
    o = attention_by(backend, q, k, v)
    return F.linear(o.transpose(1, 2).flatten(2), out_weight, out_bias)


LIBRARIES = (
    Library("FLASH", partial(by_sdpa, SDPBackend.FLASH_ATTENTION)),
    Library("cuDNN", partial(by_sdpa, SDPBackend.CUDNN_ATTENTION)),
)


def cost(passes, case):
    """passes: 1 forward; a training step costs 3 for the projections, 3.5 for attention."""
    B, S, E, *_ = case.shape
    projections, scores = 8 * B * S * E * E, 4 * B * S * S * E
    flops = projections + scores if passes == 1 else 3 * projections + 7 * scores // 2
    return Cost(
        bytes=passes * (2 * B * S * E + 4 * E * E) * case.itemsize, flops=flops, unit="tensor"
    )


CASES = grid([*SHAPES, *EMPTY], HALVES)
BENCH = Case((8, 1024, 1024, 16, 0), "bfloat16")
BENCH_CPU = Case((1, 64, 128, 2, 0), "bfloat16")

PROBLEMS = (
    Problem(
        "packed attention",
        packed_inputs,
        packed_reference,
        rungs=(Rung("packed_attention", "heads by strides, padded keys"),),
        cases=(*CASES, *grid([(1, 66, 64, 1, 0)], HALVES, values="large")),
        timed=False,
    ),
    Problem(
        "training step, beside nn.MultiheadAttention",
        inputs,
        by_torch,
        rungs=(
            Rung(
                "MultiheadAttention",
                "v3 in a module",
                load=load_module,
                calls=("linear",),
                target=Target(1.0, "pytorch"),
            ),
        ),
        cases=grid(SHAPES, HALVES),
        cost=partial(cost, 3),
        pytorch=partial(torch_module, True),
        libraries=LIBRARIES,
        gradients=True,
        unwatched=UNWATCHED,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
    ),
    Problem(
        "multi-head attention",
        inputs,
        reference,
        rungs=(
            Rung("multi_head_attention_v1_per_head", "a loop over the heads", calls=("linear",)),
            Rung(
                "multi_head_attention_v2_batched",
                "three projections, one attention",
                calls=("linear",),
            ),
            Rung(
                "multi_head_attention_v3_fused_qkv",
                "one projection",
                calls=("linear",),
                target=Target(1.0, "pytorch"),
            ),
        ),
        cases=(*CASES, *grid([(1, 66, 64, 1, 0)], HALVES, values="large")),
        cost=partial(cost, 1),
        pytorch=partial(torch_module, False),
        libraries=LIBRARIES,
        unwatched=UNWATCHED,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
    ),
)


def show_times(operators, device):
    """Prints what the parts of v3 cost, and the memory of a training step."""
    if device.type != "cuda":
        return
    B, S, E, heads, _ = BENCH.shape
    made = {"device": device, "dtype": torch.bfloat16}
    x, in_weight, in_bias = (torch.randn(n, **made) for n in ((B, S, E), (3 * E, E), 3 * E))
    out_weight, out_bias = torch.randn(E, E, **made), torch.randn(E, **made)
    qkv = F.linear(x, in_weight, in_bias)
    parts = {
        "projection to qkv": lambda: F.linear(x, in_weight, in_bias),
        "attention": lambda: operators.packed_attention(qkv, heads),
        "projection of o": lambda: F.linear(x, out_weight, out_bias),
        "three projections to E columns": lambda: [
            F.linear(x, w, b) for w, b in zip(in_weight.chunk(3), in_bias.chunk(3), strict=True)
        ],
    }
    print_table(("part of v3", "µs"), [(n, f"{seconds(f) * 1e6:.0f}") for n, f in parts.items()])

    def step(module, *arguments, **options):
        y = module(*arguments, **options)
        y = y if isinstance(y, torch.Tensor) else y[0]
        return torch.autograd.grad(y.sum(), [leaf, *module.parameters()])

    leaf = x.requires_grad_()
    theirs = nn.MultiheadAttention(E, heads, batch_first=True, **made)
    ours = MultiheadAttention(E, heads, **made)
    ours.load_state_dict(theirs.state_dict())
    rows = (
        ("nn.MultiheadAttention", peak_memory(partial(step, theirs, x, x, x, need_weights=False))),
        ("ours", peak_memory(partial(step, ours, x))),
    )
    print_table(("training step", "peak MB"), [(n, f"{peak / 1e6:.0f}") for n, peak in rows])
