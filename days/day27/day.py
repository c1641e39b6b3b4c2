"""Day 27: the backward pass of attention on tensor cores."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.day import (
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    peak_memory,
    print_table,
)

TITLE = "Attention backward on tensor cores"
TEACHES = "Five products per tile on tensor cores; equal bits in every run, and what they cost"
TOPICS = ("attention", "FlashAttention", "tensor cores", "backward", "autograd", "determinism")
SOURCE = "flash_attention_backward.cu"
EXTRA_SOURCES = ("two_passes.cu",)
INTRODUCES = ("deterministic", "transposed product")

EXERCISE = Exercise(
    function="attention_rows_stay_kernel",
    source="two_passes.cu",
    first="float p[BM / 8][4], gp[BM / 8][4];",
    last="multiply_add<D>(gq_sum, of_gs, stage.k);",
    task=(
        "Add one tile of keys to gq_sum: p = exp(s - lse) and gp = go · vᵀ for the warp's 16 rows "
        "and the tile's BM keys, gs = p · (gp - δ), and gq += gs · k. q and go are fragments."
    ),
    hints=(
        "Two calls of multiply_rows, one loop over the BM / 8 fragments and their 4 elements, one "
        "call of multiply_add. Element e of fragment j has key 8j + 2t + e % 2 and row "
        "16 * warp + g + e / 2 * 8.",
        "p = 2^(s · scale · log2 e - lse): mine[e / 2].lse has the factor log2 e already. gs is 0 "
        "where the key is beyond the end of k or later than the row may see.",
        "multiply_rows<D>(p, [&](auto& a, int d) { memcpy(a, q[d / 16], sizeof a); }, stage.k); "
        "the same with go and stage.v; tiles::to_a<T>(of_gs[m], gp[2 * m], gp[2 * m + 1]); "
        "multiply_add<D>(gq_sum, of_gs, stage.k).",
    ),
)

HALVES = ["float16", "bfloat16"]
aten = torch.ops.aten
# (B, H, Sq, Sk, D): one row, several tiles, tails of 1 and 63, fewer and more keys than rows.
SHAPES = [
    (1, 1, 1, 1, 64),
    (1, 2, 33, 130, 64),
    (2, 1, 65, 127, 128),
    (1, 1, 193, 7, 128),
    (1, 2, 64, 64, 64),
]
EMPTY = [(0, 2, 4, 4, 64), (2, 2, 0, 3, 64), (2, 2, 3, 0, 128)]
CASES = (*grid(SHAPES, HALVES), *grid(EMPTY, ["bfloat16"]))
BENCH_CPU = Case((1, 1, 128, 128, 64), "bfloat16")
SMALL = grid([(1, 2, 33, 130, 64)], ["bfloat16"])
UNUSUAL = grid([(1, 1, 70, 66, 64)], HALVES, values="nonfinite")
WIDE = torch.float32


def scores(q, k, causal):
    """q · kᵀ / sqrt(D), and -inf where row i must not see key j > i + Sk - Sq."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        ones = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device)
        hidden = ones.triu(1 + k.shape[2] - q.shape[2])
        s = s.masked_fill(hidden, -torch.inf)
    return s


def probabilities(s, lse):
    """exp(s - lse), and 0 in a row that sees no key: its lse is -inf."""
    return (s - lse[..., None]).exp().masked_fill((lse == -torch.inf)[..., None], 0)


def attention(q, k, v, causal=False):
    """o, and lse in fp32 or wider, with whole matrices."""
    wide = torch.promote_types(q.dtype, torch.float32)
    s = scores(q.to(wide), k.to(wide), causal)
    lse = s.logsumexp(-1)
    return (probabilities(s, lse) @ v.to(wide)).to(q.dtype), lse


def reference(go, glse, q, k, v, o, lse, causal=False):
    """The formulas with whole matrices. As in every kernel on tensor cores, p and gs are rounded
    to the dtype of q before they are multiplied."""
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    go, q, k, v, o = (tensor.to(wide) for tensor in (go, q, k, v, o))
    p = probabilities(scores(q, k, causal), lse)
    gs = p * (go @ v.mT - ((o * go).sum(-1) - glse)[..., None])
    p, gs = (matrix.to(dtype).to(wide) for matrix in (p, gs))
    scale = q.shape[-1] ** -0.5
    return tuple(g.to(dtype) for g in (gs @ k * scale, gs.mT @ q * scale, p.mT @ go))


def plain(q, k, v, causal=False):
    """The forward pass in the dtype of q, as PyTorch differentiates it."""
    s = scores(q, k, causal)
    return torch.softmax(s, -1) @ v, s.to(torch.promote_types(s.dtype, torch.float32)).logsumexp(-1)


def drawn(case, draw):
    """go, q, k, v; of a case of "nonfinite" values, in about one row of q in eight."""
    B, H, Sq, Sk, D = case.shape
    go, q, k, v = (draw(B, H, S, D, values="normal") for S in (Sq, Sq, Sk, Sk))
    if case.values == "nonfinite":
        q[..., 0] = draw(B, H, Sq)
    return go, q, k, v


def inputs(causal, case, draw):
    go, q, k, v = drawn(case, draw)
    o, lse = attention(q, k, v, causal)
    glse = draw(*case.shape[:3], dtype="float32", values="normal")
    if case == BENCH_CPU or case.shape[2] >= 4096:  # PyTorch's operator has no gradient of lse
        glse.zero_()
    return go, glse, q, k, v, o, lse, causal


def blind(case, draw):
    """Every third row sees no key, as the mask of a longer sequence may have it."""
    go, glse, q, k, v, o, lse, causal = inputs(False, case, draw)
    o[..., ::3, :], lse[..., ::3] = 0, -torch.inf
    return go, glse, q, k, v, o, lse, causal


def sdpa(backend, q, k, v, causal=False):
    """PyTorch's forward and, by autograd, backward pass. The CPU has none of these backends."""
    if q.is_cpu:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def by_flash(go, glse, q, k, v, o, lse, causal=False):
    """PyTorch's FLASH backend, its backward pass alone. It has no glse to add."""
    if q.is_cpu:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            go, q, k, v, o, lse, 0.0, causal
        )
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout; unused
    return aten._scaled_dot_product_flash_attention_backward(
        go, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, seed[0]
    )


def by_cudnn(go, glse, q, k, v, o, lse, causal=False):
    """The same of cuDNN."""
    seed = torch.empty((), dtype=torch.int64, device=q.device)
    return aten._scaled_dot_product_cudnn_attention_backward(
        *(go, q, k, v, o, lse[..., None], seed, seed, None, None, None),
        *(q.shape[2], k.shape[2], 0.0, causal),
    )


def cost(share, case):
    """share: the part of the Sq×Sk matrix that the mask leaves."""
    B, H, Sq, Sk, D = case.shape
    moved = (4 * Sq + 4 * Sk) * D * case.itemsize + 8 * Sq
    return Cost(B * H * moved, int(10 * B * H * Sq * Sk * D * share), "tensor")


def gradient(saved, go, glse):
    """The backward pass of the operator `attention`, as PyTorch's setting says."""
    *tensors, causal = saved
    operators = torch.ops.day27
    fast = operators.attention_backward_v3_one_pass
    same_bits = operators.attention_backward_v2_pipelined
    backward = same_bits if torch.are_deterministic_algorithms_enabled() else fast
    return *backward(go, glse, *tensors, causal), None


RUNGS = (
    Rung("attention_backward_v1_two_passes", "two passes, seven products"),
    Rung("attention_backward_v2_pipelined", "loads in flight"),
    Rung(
        "attention_backward_v3_one_pass",
        "five products, gq by atomicAdd",
        not_repeatable="the order in which blocks add to gq varies",
        target=Target(0.8, "pytorch"),
    ),
)


def timed(name, causal, cases, bench, rungs):
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        rungs,
        cases or SMALL,
        bench=Case(bench, "bfloat16"),
        bench_cpu=BENCH_CPU,
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=by_flash,
        libraries=(Library("cuDNN", by_cudnn),),
    )


def qkv(case, draw):
    B, H, Sq, Sk, D = case.shape
    return draw(B, H, Sq, D), draw(B, H, Sk, D), draw(B, H, Sk, D), False


with_gradient = Problem(
    "attention with its gradient",
    qkv,
    plain,
    rungs=(
        Rung(
            "attention",
            "day 26's forward, backward is v3",
            not_repeatable="the order in which blocks add to gq varies",
            backward=gradient,
            saves=lambda inputs, output: (*inputs[:3], *output, inputs[3]),
        ),
    ),
    cases=grid([(1, 2, 33, 70, 64), (1, 1, 70, 33, 128)], HALVES),
    bench=Case((4, 16, 4096, 4096, 128), "bfloat16"),
    bench_cpu=BENCH_CPU,
    cost=partial(cost, 1.4),  # seven products: two more for the forward pass
    pytorch=partial(sdpa, SDPBackend.FLASH_ATTENTION),
    libraries=(Library("cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION)),),
    gradients=True,
)

PROBLEMS = (
    with_gradient,
    Problem("rows that see no key", blind, reference, RUNGS, CASES[:4], timed=False),
    timed("causal, 16384", True, (), (1, 16, 16384, 16384, 128), RUNGS[1:]),
    timed("backward, 16384", False, (), (1, 16, 16384, 16384, 128), RUNGS[1:]),
    timed("causal, 64 columns", True, (), (4, 32, 4096, 4096, 64), RUNGS[1:]),
    timed("causal, 4096", True, CASES, (4, 16, 4096, 4096, 128), RUNGS),
    timed("backward, 4096", False, (*CASES, *UNUSUAL), (4, 16, 4096, 4096, 128), RUNGS),
)


def show_compiled(operators, device):
    """opcheck, then torch.compile over a step of training: no graph break, the same gradients."""
    made = torch.ops.day27

    def like_inputs(go, glse, q, k, v, *others):
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    for name in ("attention_backward_v2_pipelined", "attention_backward_v3_one_pass"):
        torch.library.register_fake(f"day27::{name}", like_inputs, allow_override=True)
    torch.library.register_fake(
        "day27::attention",
        lambda q, k, v, causal=False: (torch.empty_like(q), q.new_empty(q.shape[:3], dtype=WIDE)),
        allow_override=True,
    )
    q, k, v = (
        torch.randn(1, 2, 70, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )

    def loss(q, k, v):
        return made.attention(q, k, v, True)[0].float().square().sum()

    results = torch.library.opcheck(made.attention.default, (q, k, v))
    passed = sum(result == "SUCCESS" for result in results.values())
    # inductor generates code for real GPUs only; on the CPU backend, tracing alone is tested.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    actual = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v))
    torch.testing.assert_close(actual, expected)
    print(f"opcheck: {passed} of {len(results)} passed; torch.compile ({backend}): gradients equal")


CONTENDERS = {
    "v2": "attention_backward_v2_pipelined",
    "v3": "attention_backward_v3_one_pass",
    "FLASH": by_flash,
    "cuDNN": by_cudnn,
}


def show(operators, device):
    """Prints how exact the gradients are and the peak memory, beside PyTorch's."""
    show_compiled(operators, device)
    if device.type != "cuda":
        return
    calls = {
        name: getattr(operators, call) if isinstance(call, str) else call
        for name, call in CONTENDERS.items()
    }
    rows, memory = [], []
    for dtype in (torch.float16, torch.bfloat16):
        go, q, k, v = (torch.randn(1, 4, 2048, 128, device=device, dtype=dtype) for _ in range(4))
        o, lse = attention(q, k, v)
        given = (go, torch.zeros_like(lse), q, k, v, o, lse)
        truth = reference(*(tensor.double() for tensor in given))
        for name, call in calls.items():
            errors = [
                float((ours.double() - exact).norm() / exact.norm())
                for ours, exact in zip(call(*given), truth, strict=True)
            ]
            rows.append((str(dtype).removeprefix("torch."), name, *(f"{e:.2e}" for e in errors)))
    print("error of gq, gk, gv as a share of the norm, against float64, 1×4×2048×128")
    print_table(("dtype", "", "gq", "gk", "gv"), rows)
    for S in (1024, 4096, 16384):
        go, q, k, v, o = (torch.randn(1, 16, S, 128, device=device).bfloat16() for _ in range(5))
        lse = torch.full((1, 16, S), 10.0, device=device)
        given = (go, torch.zeros_like(lse), q, k, v, o, lse)
        peaks = (peak_memory(partial(call, *given)) for call in calls.values())
        memory.append((S, *(f"{peak / 1e6:.0f}" for peak in peaks)))
    print("peak memory of the backward pass, gradients included, 1×16×S×128 bf16, MB")
    print_table(("S", *calls), memory)
