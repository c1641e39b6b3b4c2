"""Day 66: attention with a pattern, fused, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day66/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day66

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from common.day import HALVES, Case, Cost, Library, Problem, Rung, Target, grid
from common.references import rivals
from common.references.attention import attention_by

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Attention patterns"
TEACHES = (
    "Causal, sliding window and ALiBi in one kernel: which tiles are skipped, which are masked"
)
TOPICS = ("attention", "FlashAttention", "Triton", "sliding window", "ALiBi", "TMA")
SOURCE = "fused_attention.cu"
EXTRA_SOURCES = ("fused_attention_triton.py", "compiled.py")

TRITON = "fused_attention_triton"
# (B, H, S, T, D, window): around the 128 rows of a block, its warps' 32, and the 64 keys of a tile
WHOLE = [(1, 2, 1, 1, 64, 0), (2, 1, 33, 33, 64, 0), (1, 1, 129, 129, 128, 0)]
WINDOWS = [(1, 2, 130, 130, 64, 2), (1, 1, 200, 200, 64, 33), (1, 1, 192, 256, 128, 64)]
LENGTHS = [(1, 2, 5, 70, 64, 1), (2, 1, 131, 20, 64, 7), (1, 1, 1, 129, 128, 65)]
LONG = [(1, 1, 260, 320, 64, 123), (1, 1, 128, 192, 64, 10**9), (1, 1, 34, 96, 64, 0)]
NO_KEYS = [(1, 2, 3, 0, 64, 0), (0, 1, 3, 4, 64, 0), (1, 1, 0, 4, 128, 2)]


def inputs(alibi, case, draw):
    """q has the case's values, k and v normal ones: one NaN in a key makes every output NaN."""
    B, H, S, T, D, window = case.shape
    q = draw(B, H, S, D)
    k, v = (draw(B, H, T, D, values="normal") for _ in range(2))
    slopes = draw(H if alibi else 0, dtype="float32", values="normal")
    # The slopes of the paper, of heads 1 to H: 2^(-8 h / H).
    slopes[:] = torch.exp2(-8 * torch.arange(1, len(slopes) + 1) / H)
    return q, k, v, slopes, window


def distances(S, T, device):
    """(S, T): from row i, which stands at key i + T - S, to key j."""
    return torch.arange(T - S, T, device=device)[:, None] - torch.arange(T, device=device)


def hidden_by(S, T, window, device):
    distance = distances(S, T, device)
    return (distance < 0) | (distance >= (window or S + T))


def of_heads(q, k, v, slopes, window):
    S, T = q.shape[2], k.shape[2]
    hidden = hidden_by(S, T, window, q.device)
    s = q @ k.mT / q.shape[-1] ** 0.5
    if len(slopes):
        s -= slopes[:, None, None].to(s.dtype) * distances(S, T, q.device).to(s.dtype)
    s.masked_fill_(hidden, -torch.inf)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    p = torch.softmax(s, -1).masked_fill_(hidden.all(-1, keepdim=True), 0)  # rows without a key
    return p @ v, wide.logsumexp(-1)


def reference(q, k, v, slopes, window=0):
    """Four heads at a time: all scores of 16 heads of 16384 rows would take 32 GiB in float64."""
    parts = [
        of_heads(q[:, some], k[:, some], v[:, some], slopes[some], window)
        for some in (slice(h, h + 4) for h in range(0, max(q.shape[1], 1), 4))
    ]
    return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))


def by(backend, q, k, v, slopes, window):
    """PyTorch's call for a causal mask."""
    return attention_by(backend, q, k, v, is_causal=True)


flash = partial(by, SDPBackend.FLASH_ATTENTION)
cudnn = partial(by, SDPBackend.CUDNN_ATTENTION)


@cache
def flex():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


@cache
def blocks(S, window, device):
    """The pattern of S rows and keys, as FlexAttention skips its tiles."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b, h, i, j):
        return (i >= j) & (i - j < (window or 2 * S))

    return create_block_mask(seen, None, None, S, S, device=device)


@cache
def bias(slopes):
    return lambda score, b, h, i, j: score - slopes[h] * (i - j)


def by_flex(q, k, v, slopes, window):
    """FlexAttention, compiled; on the CPU attention with a mask."""
    S = q.shape[2]
    if q.is_cpu:
        mask = torch.zeros(S, S).masked_fill(hidden_by(S, S, window, q.device), -torch.inf)
        if len(slopes):
            mask = mask - slopes[:, None, None] * distances(S, S, q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
    score = bias(slopes) if len(slopes) else None
    return flex()(q, k, v, score_mod=score, block_mask=blocks(S, window, q.device))


def cost(case):
    B, H, S, _, D, window = case.shape
    window = min(window or S, S)
    pairs = window * (window + 1) // 2 + (S - window) * window  # of a row and a key that it sees
    n = B * H * S
    return Cost(bytes=4 * n * D * case.itemsize + 4 * n, flops=4 * B * H * pairs * D, unit="tensor")


def rungs(target=None):
    return (
        Rung("fused_attention_v1_masked", "CUDA, mma.sync, every tile masked"),
        Rung("fused_attention_v2_tiles", "CUDA, tiles skipped"),
        Rung(
            "fused_attention_v3_triton", "Triton, tiles skipped, the others masked", triton=TRITON
        ),
        Rung(
            "fused_attention_v4_triton_split",
            "Triton, TMA, a loop without masks",
            triton=TRITON,
            target=target,
        ),
    )


def timed(name, alibi, bench, pytorch, libraries=(), target=None):
    return Problem(
        name=name,
        inputs=partial(inputs, alibi),
        reference=reference,
        rungs=rungs(target),
        cases=grid([(1, 2, S, S, 64, bench[-1] and 40) for S in (128, 71)], HALVES),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, 1, 128, 128, 64, bench[-1] and 40), "float16"),
        cost=cost,
        pytorch=pytorch,
        libraries=libraries,
        rivals=() if alibi else (rivals.fa4_window,),
    )


def checked(name, alibi):
    shapes = (*WHOLE, *WINDOWS, *LENGTHS, *LONG, *NO_KEYS)
    large = grid([(1, 1, 70, 70, 64, 9)], HALVES, values="large")
    return Problem(
        name=name,
        inputs=partial(inputs, alibi),
        reference=reference,
        rungs=rungs(),
        cases=(*grid(shapes, HALVES), *large),
        timed=False,
    )


PROBLEMS = (
    checked("any shape and window", False),
    checked("any shape and window, ALiBi", True),
    timed(
        "causal",
        False,
        (4, 16, 4096, 4096, 128, 0),
        flash,
        (Library("cuDNN", cudnn),),
        Target(0.85, "cuDNN"),
    ),
    timed("window of 1024", False, (1, 16, 16384, 16384, 128, 1024), by_flex),
    timed("ALiBi", True, (4, 16, 4096, 4096, 128, 0), by_flex),
)
