"""Day 20: the backward pass of FlashAttention-2, and cross-entropy with its gradient in place."""

from dataclasses import replace
from functools import cache, partial

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, grid

TITLE = "FlashAttention-2 backward and fused cross-entropy"
TEACHES = "Two backward passes without their large matrices: compute again, or write over the input"
TOPICS = ("attention", "FlashAttention", "cross-entropy", "backward", "autograd", "fusion")
SOURCE = "fa2_backward.cu"
EXTRA_SOURCES = ("fused_ce_loss.cu",)

HALVES = ["float16", "bfloat16"]
FLOATS = ["float32", *HALVES]
IGNORED = -100


# ---------------------------------------------------------------- attention

# (B, H, S, D)
HEADS = [(1, 1, 1, 1), (2, 1, 70, 64), (1, 1, 66, 80), (1, 1, 31, 128), (1, 1, 7, 5)]
NO_HEADS = [(0, 2, 4, 8), (2, 2, 0, 8)]
LARGE = (1, 16, 4096, 64)


def scores(q, k, causal):
    """q · kᵀ / sqrt(D), -inf where the mask hides a key."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        s = s.masked_fill(hidden, -torch.inf)
    return s


def attention(q, k, v, causal=False):
    """o, and lse in fp32 at least, by way of whole matrices."""
    s = scores(q, k, causal)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    if s.numel() == 0:
        return torch.softmax(s, -1) @ v, wide.sum(-1)
    return torch.softmax(s, -1) @ v, wide.logsumexp(-1)


def attention_gradients(go, glse, q, k, v, o, lse, causal=False):
    """Of q, k and v, by the formulas, with p and gs as whole matrices."""
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    go, q, k, v, o = (tensor.to(wide) for tensor in (go, q, k, v, o))
    p = (scores(q, k, causal) - lse[..., None]).exp()
    delta = (o * go).sum(-1)
    gs = p * (go @ v.mT - delta[..., None] + glse[..., None]) / q.shape[-1] ** 0.5
    return tuple(g.to(dtype) for g in (gs @ k, gs.mT @ q, p.mT @ go))


def attention_inputs(causal):
    def of_case(case, draw):
        q = draw(*case.shape)
        k, v = (draw(*case.shape, values="normal") for _ in range(2))
        return q, k, v, causal

    return of_case


def backward_inputs(causal):
    """The same with o and lse of these q, k and v, and a gradient of each."""

    def of_case(case, draw):
        q, k, v, _ = attention_inputs(causal)(case, draw)
        o, lse = (tensor.contiguous() for tensor in attention(q, k, v, causal))
        go = draw(*case.shape, values="normal")
        glse = draw(*case.shape[:3], dtype="float32", values="normal")
        return go, glse, q, k, v, o, lse, causal

    return of_case


def attention_cost(products, tensors, share=1.0):
    """products: of an S×S matrix with one (S, D). share: of that matrix that the mask leaves."""

    def of_case(case):
        B, H, S, D = case.shape
        n = B * H * S
        size = getattr(torch, case.dtype).itemsize
        return Cost(
            bytes=tensors * n * D * size + 8 * n, flops=int(2 * products * n * S * D * share)
        )

    return of_case


@cache
def attention_with_backward():
    """Registers the attention's backward, so that loss.backward() works through it."""

    def setup_context(ctx, inputs, output):
        *qkv, ctx.causal = inputs
        ctx.save_for_backward(*qkv, *output)

    def backward(ctx, go, glse):
        operator = torch.ops.day20.attention_backward_v2_two_walks
        gradients = operator(
            go.contiguous(), glse.contiguous(), *ctx.saved_tensors, causal=ctx.causal
        )
        return *gradients, None

    torch.library.register_autograd("day20::attention", backward, setup_context=setup_context)


def load_attention(builder):
    attention_with_backward()
    return torch.ops.day20.attention


BACKWARD_RUNGS = (
    Rung("attention_backward_v1_naive", "p and gs whole in memory"),
    Rung("attention_backward_v2_two_walks", "tiles; p computed twice"),
    Rung(
        "attention_backward_v3_one_walk",
        "tiles; gq by atomicAdd",
        not_repeatable="blocks add to gq in whatever order they run",
    ),
)


SMALL = [*grid([(1, 2, 33, 32)], ["float32"]), *grid([(1, 1, 34, 72)], HALVES)]
TILES = grid([(1, 1, 130, 36)], ["float32"])  # three tiles of rows and of keys


def backward_problem(name, causal, share, cases):
    return Problem(
        name=name,
        inputs=backward_inputs(causal),
        reference=attention_gradients,
        rungs=BACKWARD_RUNGS,
        cases=tuple(cases),
        bench=Case(LARGE),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=attention_cost(5, 8, share),
    )


ATTENTION = (
    Problem(
        name="attention with its gradient",
        inputs=attention_inputs(False),
        reference=attention,
        rungs=(Rung("attention", "forward; backward is v2", load=load_attention),),
        cases=(
            *grid([*HEADS, *NO_HEADS], ["float32"]),
            *grid([(1, 1, 34, 72)], HALVES),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=attention_cost(2, 4),
        gradients=True,
    ),
    backward_problem("causal backward", True, 0.5, [*SMALL, *TILES]),
    backward_problem(
        "attention backward",
        False,
        1.0,
        [
            *grid([*HEADS, *NO_HEADS], ["float32"]),
            *SMALL,
            *TILES,
            *grid([(1, 1, 20, 8)], ["float32", "bfloat16"], values="nonfinite"),
        ],
    ),
)


# ---------------------------------------------------------------- cross-entropy

LOGITS = [(1, 1), (3, 127), (2, 128), (4, 1023), (2, 1024), (5, 40)]
LONG = [(3, 9000), (2, 30000), (1, 60000)]  # rows of which two, one or none fit in shared memory


def ignore_some(target):
    target[2::3] = IGNORED


def ignore_all(target):
    target[:] = IGNORED


def mistake_some(target):
    """Targets that name no class, beside ignored ones."""
    ignore_some(target)
    target[1::4] = 10**9
    target[3::4] = -1


def loss_inputs(label_smoothing=0.0, reduction="mean", change=ignore_some):
    """change: (target) -> None, changes some targets."""

    def of_case(case, draw):
        rows, classes = case.shape
        logits, target = draw(rows, classes), draw(rows, dtype="int64", low=0, high=classes)
        change(target)
        return logits, target, IGNORED, label_smoothing, reduction

    return of_case


def losses_and_slopes(logits, target, ignore_index, label_smoothing):
    """Of each row: its loss, the gradient of that loss, and whether it counts."""
    classes = logits.shape[1]
    log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    ignored = target == ignore_index
    valid = (target >= 0) & (target < classes)
    hit = torch.arange(classes, device=logits.device) == target[:, None]
    losses = (1 - label_smoothing) * torch.where(hit, -log_p, 0).sum(-1)
    if label_smoothing:
        losses = losses - label_smoothing * log_p.mean(-1)
    slopes = log_p.exp() - (1 - label_smoothing) * hit.to(log_p.dtype) - label_smoothing / classes
    losses = torch.where(ignored, 0, torch.where(valid, losses, torch.nan))
    slopes = torch.where(valid[:, None], slopes, torch.nan)
    return losses, torch.where(ignored[:, None], 0, slopes), ~ignored


def loss_and_gradient(logits, target, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
    losses, slopes, counts = losses_and_slopes(logits, target, ignore_index, label_smoothing)
    if reduction == "none":
        return losses, slopes.to(logits.dtype)
    weight = 1 / counts.sum().to(losses.dtype) if reduction == "mean" else 1
    slopes = torch.where(counts[:, None], slopes * weight, 0)
    return losses.sum() * weight, slopes.to(logits.dtype)


def loss_alone(logits, target, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
    losses, _, counts = losses_and_slopes(logits, target, ignore_index, label_smoothing)
    if reduction == "none":
        return losses
    return losses.sum() / (counts.sum().to(losses.dtype) if reduction == "mean" else 1)


def loss_by_autograd(logits, target, ignore_index, label_smoothing, reduction):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(
            leaf,
            target,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )
    return loss, *torch.autograd.grad(loss, leaf)


def loss_cost(case):
    n = case.shape[0] * case.shape[1]
    return Cost(bytes=2 * n * getattr(torch, case.dtype).itemsize, flops=10 * n)


LOSS_RUNGS = (
    Rung("cross_entropy_v1_plain", "by way of log p in fp32"),
    Rung("cross_entropy_v2_in_place", "gradient over the logits, read twice"),
    Rung("cross_entropy_v3_row_in_shared", "the row waits in shared memory"),
    Rung("cross_entropy_v4_rows_ahead", "cp.async, two rows ahead", target=Target(2.2, "compile")),
)
loss = Problem(
    name="cross-entropy, forward and backward",
    inputs=loss_inputs(),
    reference=loss_and_gradient,
    rungs=LOSS_RUNGS,
    cases=(
        *grid([*LOGITS, (0, 8)], FLOATS),
        *grid(LONG, ["float32"]),
    ),
    bench=Case((8192, 50304), "bfloat16"),
    bench_cpu=Case((64, 4096), "bfloat16"),
    cost=loss_cost,
    pytorch=loss_by_autograd,
    libraries=(COMPILE,),
)


def untimed(name, inputs, cases):
    rungs = tuple(replace(rung, timed=False, target=None) for rung in LOSS_RUNGS)
    return replace(loss, name=name, inputs=inputs, cases=cases, rungs=rungs)


smoothed = untimed(
    "smoothed labels, summed",
    loss_inputs(0.1, "sum"),
    (*grid([(4, 127), (3, 1024)], FLOATS), *grid([(4, 1000)], ["float32", "bfloat16"], "large")),
)
row_by_row = untimed(
    "a loss for each row, unusual numbers and targets",
    loss_inputs(0.0, "none", mistake_some),
    (
        *grid([(9, 130), (6, 1024)], ["float32", "float16"]),
        *grid([(4, 1000)], FLOATS, "large"),
        *grid([(8, 304), (9, 127)], ["float32", "bfloat16"], "nonfinite"),
    ),
)
nothing = untimed(
    "no row that counts", loss_inputs(change=ignore_all), grid([(3, 40)], ["float32", "bfloat16"])
)


@cache
def cross_entropy_with_backward():
    """Registers the backward of cross_entropy, whose second output is the gradient itself."""

    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # or there would be zeros for the second output's
        ctx.save_for_backward(output[1])

    def backward(ctx, g, _):
        (gradient,) = ctx.saved_tensors
        torch.ops.day20.scale(gradient, g.contiguous())
        # Scaled where it lies, so that a second backward through here is an error of PyTorch's.
        torch.autograd.graph.increment_version(gradient)
        return gradient, None, None, None, None

    register = torch.library.register_autograd
    register("day20::cross_entropy", backward, setup_context=setup_context)


def load_cross_entropy(builder):
    cross_entropy_with_backward()

    def cross_entropy(logits, target, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        operator = torch.ops.day20.cross_entropy
        return operator(logits, target, ignore_index, label_smoothing, reduction)[0]

    return cross_entropy


def differentiable(name, inputs, cases):
    return replace(
        loss,
        name=name,
        inputs=inputs,
        reference=loss_alone,
        rungs=(Rung("cross_entropy", "v4; gradient kept for backward", load=load_cross_entropy),),
        cases=cases,
        gradients=True,
        libraries=(),
    )


mean_with_gradient = differentiable(
    "cross-entropy with its gradient",
    loss_inputs(0.1),
    (*grid([(1, 1), (4, 1023), (5, 40)], FLOATS), *grid([(4, 1000)], FLOATS, "large")),
)
rows_with_gradient = differentiable(
    "losses of rows with their gradient",
    loss_inputs(0.0, "none"),
    grid([(4, 127), (5, 1024)], ["float32", "bfloat16"]),
)
rows_with_gradient = replace(
    rows_with_gradient,
    rungs=tuple(replace(rung, timed=False) for rung in rows_with_gradient.rungs),
)


# ---------------------------------------------------------------- a linear layer in front


def linear_inputs(case, draw):
    rows, width, classes, together = case.shape
    target = draw(rows, dtype="int64", low=0, high=classes)
    ignore_some(target)
    return draw(rows, width), draw(classes, width), target, together


def linear_loss(hidden, weight, target, together=None):
    logits = hidden @ weight.mT
    return loss_alone(logits.to(torch.promote_types(logits.dtype, torch.float32)), target)


def linear_by_autograd(hidden, weight, target, together=None):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        logits = torch.nn.functional.linear(*leaves)
        loss = torch.nn.functional.cross_entropy(logits.float(), target)
    return loss, *torch.autograd.grad(loss, leaves)


def linear_cost(case):
    rows, width, classes, _ = case.shape
    size = getattr(torch, case.dtype).itemsize
    return Cost(
        bytes=2 * size * (rows + classes) * width, flops=6 * rows * width * classes, unit="tensor"
    )


def check_linear(hidden, weight, target, together):
    """Raises ValueError naming the argument that does not fit."""
    for name, tensor, dims in (("hidden", hidden, 2), ("weight", weight, 2), ("target", target, 1)):
        if tensor.dim() != dims:
            raise ValueError(f"{name}: expected {dims} dimension(s), got {tuple(tensor.shape)}")
        if tensor.device != hidden.device:
            raise ValueError(f"{name}: on {tensor.device}, but hidden is on {hidden.device}")
    if hidden.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"hidden: expected float32, float16 or bfloat16, got {hidden.dtype}")
    if weight.dtype != hidden.dtype or weight.shape[1] != hidden.shape[1] or not len(weight):
        raise ValueError(
            f"weight: expected (classes, {hidden.shape[1]}) of {hidden.dtype}, at least one class, "
            f"got {tuple(weight.shape)} of {weight.dtype}"
        )
    if target.dtype != torch.int64 or len(target) != len(hidden):
        raise ValueError(
            f"target: expected {len(hidden)} int64, got {len(target)} of {target.dtype}"
        )
    if together < 1:
        raise ValueError(f"together: expected at least 1, got {together}")


@cache
def linear_operator():
    """Defines day20::linear_cross_entropy: mean loss of hidden · weightᵀ, and both gradients."""

    # The devices are named, so that on another one PyTorch says that there is no kernel.
    @torch.library.custom_op(
        "day20::linear_cross_entropy", mutates_args=(), device_types=("cpu", "cuda")
    )
    def operator(
        hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, together: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """together: rows of hidden that are taken at a time; no more rows of logits exist."""
        loss = hidden.new_zeros((), dtype=torch.float32)
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for first in range(0, len(hidden), together):
            rows = slice(first, first + together)
            logits = hidden[rows] @ weight.mT
            loss += torch.ops.day20.cross_entropy_v4_rows_ahead(
                logits, target[rows].contiguous(), reduction="sum"
            )
            # From here on, logits are their own gradient.
            torch.mm(logits, weight, out=to_hidden[rows])
            to_weight += logits.mT @ hidden[rows]
        counted = (target != IGNORED).sum()
        share = 1 / counted.clamp(min=1)
        return loss / counted, to_hidden.mul_(share), to_weight.mul_(share).to(weight.dtype)

    @operator.register_fake
    def shapes(hidden, weight, target, together):
        loss = hidden.new_empty((), dtype=torch.float32)
        return loss, torch.empty_like(hidden), torch.empty_like(weight)

    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    def backward(ctx, g, *_):
        return *(g.to(saved.dtype) * saved for saved in ctx.saved_tensors), None, None

    operator.register_autograd(backward, setup_context=setup_context)
    return operator


def load_linear(builder):
    operator = linear_operator()

    def linear_cross_entropy(hidden, weight, target, together):
        check_linear(hidden, weight, target, together)
        return operator(hidden, weight, target, together)[0]

    return linear_cross_entropy


def load_whole(builder):
    chunked = load_linear(builder)

    def linear_cross_entropy(hidden, weight, target, together):
        check_linear(hidden, weight, target, together)
        return chunked(hidden, weight, target, max(1, len(hidden)))

    return linear_cross_entropy


linear = Problem(
    name="linear layer and cross-entropy, both ways",
    inputs=linear_inputs,
    reference=linear_loss,
    rungs=(
        Rung("linear_v1_whole", "all logits at once", load=load_whole),
        Rung("linear_v2_chunked", "2048 rows at a time", load=load_linear),
    ),
    cases=(
        *grid([(1, 1, 1, 1), (7, 24, 40, 3), (0, 4, 8, 2)], ["float32"]),
        *grid([(9, 40, 56, 4)], HALVES),
    ),
    bench=Case((8192, 2048, 50304, 2048), "bfloat16"),
    bench_cpu=Case((64, 64, 256, 16)),
    cost=linear_cost,
    pytorch=linear_by_autograd,
    gradients=True,
    unwatched="the tools fail on cuBLAS kernels for 16-bit products (nvjet), with no kernel of "
    "ours near; the other problems call every kernel that this one does",
)


# ---------------------------------------------------------------- what a run prints


def peak(call):
    """Memory that the call takes at its most, its results included, in MB."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def milliseconds(call):
    """The median of ten, between events."""
    times = []
    for _ in range(12):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return sorted(times[2:])[5]


def show_attention_memory(operators):
    def naive(q, k, v, go):
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        return torch.autograd.grad(attention(*leaves)[0], leaves, go)

    def ours(backward):
        def both(q, k, v, go):
            o, lse = operators.attention(q, k, v)
            return backward(go, torch.zeros_like(lse), q, k, v, o, lse)

        return both

    contenders = {
        "PyTorch": naive,
        "v1": ours(operators.attention_backward_v1_naive),
        "v2": ours(operators.attention_backward_v2_two_walks),
        "v3": ours(operators.attention_backward_v3_one_walk),
    }
    print("attention, forward and backward: memory for one head of 64 in fp32, MB")
    print("      S" + "".join(f"{name:>10}" for name in contenders))
    for S in (1024, 4096, 16384):
        args = [torch.randn(1, 1, S, 64, device="cuda") for _ in range(4)]
        used = [peak(partial(call, *args)) for call in contenders.values()]
        print(f"{S:>7}" + "".join(f"{megabytes:>10.1f}" for megabytes in used))


def show_attention_times(operators):
    sdpa = torch.nn.functional.scaled_dot_product_attention
    print("backward alone, 1×16×4096×64, ms")
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, go = (torch.randn(LARGE, device="cuda", dtype=dtype) for _ in range(4))
        o, lse = operators.attention(q, k, v)
        given = (go, torch.zeros_like(lse), q, k, v, o, lse)
        calls = {
            "v2": partial(operators.attention_backward_v2_two_walks, *given),
            "v3": partial(operators.attention_backward_v3_one_walk, *given),
        }
        leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
        for name, o in (("autograd", attention(q, k, v)[0]), ("sdpa", sdpa(q, k, v))):
            calls[name] = partial(torch.autograd.grad, o, leaves, go, retain_graph=True)
        times = ", ".join(f"{name} {milliseconds(call):.2f}" for name, call in calls.items())
        print(f"  {str(dtype).removeprefix('torch.')}: {times}")


def show_loss_memory(operators):
    rows, width, classes = 8192, 2048, 50304
    logits, hidden, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((rows, classes), (rows, width), (classes, width))
    )
    target = torch.randint(classes, (rows,), device="cuda")
    linear = linear_operator()
    print(f"memory beside the arguments, {rows}×{classes} bf16, MB")
    for title, calls in {
        "loss and gradient": {
            "PyTorch": partial(loss_by_autograd, logits, target, IGNORED, 0.0, "mean"),
            "in place": partial(operators.cross_entropy_v4_rows_ahead, logits, target),
        },
        f"with a linear layer of {width} in front": {
            "PyTorch": partial(linear_by_autograd, hidden, weight, target),
            "whole": partial(linear, hidden, weight, target, rows),
            "chunks of 2048": partial(linear, hidden, weight, target, 2048),
        },
    }.items():
        used = ", ".join(f"{name} {peak(call):.1f}" for name, call in calls.items())
        print(f"  {title}: {used}")


def show(operators, device):
    """Prints memory and, for attention, times beside PyTorch's own kernels."""
    if device.type != "cuda":
        return
    show_attention_memory(operators)
    show_attention_times(operators)
    show_loss_memory(operators)


PROBLEMS = (
    *ATTENTION,
    smoothed,
    row_by_row,
    nothing,
    mean_with_gradient,
    rows_with_gradient,
    loss,
    linear,
)
