"""What the day's `show` proves: sums of dW in fp32, rows beyond 2^31 elements, peak memory."""

from functools import cache, partial

import torch
import torch.nn.functional as F

from common.day import peak_memory, print_table, rows_as_json, seconds

from .head import by_pytorch, lm_head, tied_by_pytorch

FILES = ("memory.json",)  # what --write stores of a GPU
ROWS = 8192
SIZES = ((768, 50257), (768, 50304), (4096, 50304))  # hidden, words
TOGETHER = (512, 1024, 2048)
CHOSEN, GPT2, SHARE = 1024, SIZES[0], 8  # the curriculum's: 1/8 of the plain head's peak memory


# ---------------------------------------------------------------- why the sums are fp32


def in_bf16(hidden, weight, target, together):
    """dW by chunks as in v2, its sum rounded to bf16 after each."""
    _, slopes = lm_head_slopes(hidden, weight, target)
    sums = torch.zeros_like(weight)
    for g, h in zip(slopes.split(together), hidden.split(together), strict=True):
        sums.addmm_(g.mT, h)
    return sums


def lm_head_slopes(hidden, weight, target):
    logits = (hidden @ weight.mT).float().requires_grad_()
    with torch.enable_grad():
        loss = F.cross_entropy(logits, target)
    return loss, torch.autograd.grad(loss, logits)[0].to(hidden.dtype)


def drawn(device, rows, C, words, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(82)
    hidden, weight = (torch.randn(n, C, generator=generator) for n in (rows, words))
    target = torch.randint(words, (rows,), generator=generator)
    return hidden.to(device, dtype), (0.02 * weight).to(device, dtype), target.to(device)


def print_errors(operators, device, rows=512, C=32, words=64, together=8):
    """Raises RuntimeError where the chunks' dW is less exact than PyTorch's product of all rows, or
    where a sum in bf16 is as exact."""
    hidden, weight, target = drawn(device, rows, C, words)
    truth = lm_head(hidden.double(), weight.double(), target)[2]

    def error(to_weight):
        off = (to_weight.double() - truth).square().mean() / truth.square().mean()
        return float(off.sqrt())

    given = (hidden, weight, target, together)
    found = {
        "PyTorch, all rows": error(by_pytorch(*given)[2]),
        "v1, all rows": error(operators.lm_head_v1_plain(*given)[2]),
        f"v2, {rows // together} chunks, sums in fp32": error(
            operators.lm_head_v2_chunked(*given)[2]
        ),
        f"{rows // together} chunks, sums in bf16": error(in_bf16(*given)),
    }
    print_table(
        ["dW, bf16", "relative error"], [[name, f"{off:.2%}"] for name, off in found.items()]
    )
    theirs, _, ours, rounded = found.values()
    if not ours <= 1.1 * theirs:
        raise RuntimeError(f"v2's dW is off by {ours:.3g}, PyTorch's by {theirs:.3g}")
    if not rounded > 2 * ours:
        raise RuntimeError(f"sums in bf16 are off by {rounded:.3g} only, v2's by {ours:.3g}")


# ---------------------------------------------------------------- beyond 2^31 elements


def check_beyond(operators, device):
    """Outputs and logits of more than 2^31 elements; those of the runner have large inputs."""
    weight = torch.randn(1000, 4096, device=device).bfloat16()
    tokens = torch.randint(1000, ((1 << 31) // 4096 + 1000,), device=device)
    for name in ("embedding_v1_element", "embedding_v2_chunks"):
        last = getattr(operators, name)(weight, tokens)[-2000:].clone()
        if not torch.equal(last, weight[tokens[-2000:]]):
            raise RuntimeError(f"{name}: wrong beyond 2^31 elements")
    rows, words = 45056, 50304
    given = drawn(device, rows, 64, words)
    whole = operators.lm_head_v1_plain(*given, 1)
    chunked = operators.lm_head_v2_chunked(*given, CHOSEN)
    for name, a, b in zip(("loss", "dh", "dW"), whole, chunked, strict=True):
        off = (a.double() - b.double()).norm() / b.double().norm()
        if not off < 0.01:
            raise RuntimeError(f"{name} of {rows} × {words} logits: off by {float(off):.3g}")
    print(f"{tokens.numel() * 4096:,} elements of an embedding and {rows * words:,} logits: right")


# ---------------------------------------------------------------- peak memory and time


@cache
def compiled():
    """The head and the tied head, compiled once for each shape."""
    return [torch.compile(call, dynamic=False) for call in (by_pytorch, tied_by_pytorch)]


def contenders(operators, C, words):
    """Calls of the head, then of the head with tied weights, by name."""
    device = torch.device("cuda")
    hidden, weight, target = drawn(device, ROWS, C, words)
    grad = torch.zeros(words, C, device=device)
    tokens = torch.randint(words, (ROWS,), device=device)
    given = (hidden, weight, target)
    tied = (grad, *given, tokens, torch.randn_like(hidden))
    head_compiled, tied_compiled = compiled()
    head = {"PyTorch": partial(by_pytorch, *given), "torch.compile": partial(head_compiled, *given)}
    head["v1"] = partial(operators.lm_head_v1_plain, *given, 1)
    for n in TOGETHER:
        head[f"v2, {n} rows"] = partial(operators.lm_head_v2_chunked, *given, n)
    return head, {
        "tied, PyTorch": partial(tied_by_pytorch, *tied),
        "tied, torch.compile": partial(tied_compiled, *tied),
        "tied, v2": partial(operators.tied_v2_separate, *tied, CHOSEN),
        "tied, v3": partial(operators.tied_v3_one_gradient, *tied, CHOSEN),
    }


def measured(calls):
    """Rows of (name, milliseconds, peak MB without the arguments, share of the first one's)."""
    rows = []
    for name, call in calls.items():
        taken = seconds(call)
        peak = peak_memory(call)
        first = rows[0][2] if rows else peak / 1e6
        rows.append([name, taken * 1e3, peak / 1e6, peak / 1e6 / first])
    return rows


def show(operators, device):
    """Prints the proofs; on a GPU, compiles what is timed."""
    print_errors(operators, device)
    if device.type == "cuda":
        check_beyond(operators, device)
        for C, words in SIZES:
            for calls in contenders(operators, C, words):
                for call in calls.values():
                    call()
            torch.cuda.empty_cache()


def show_times(operators, device):
    """On a GPU, prints peak memory and times, which it returns as data."""
    if device.type != "cuda":
        return {}
    found, table = {}, []
    for C, words in SIZES:
        for calls in contenders(operators, C, words):
            rows = measured(calls)
            found.setdefault(f"{ROWS} × {C} × {words}", []).extend(
                [name, *(float(f"{figure:.4g}") for figure in figures)] for name, *figures in rows
            )
            table += [
                [f"{C}, {words}", name, f"{ms:.2f} ms", f"{peak:.0f} MB", f"{share:.3f}"]
                for name, ms, peak, share in rows
            ]
        torch.cuda.empty_cache()
    print_table(["hidden, words", "", "time", "peak memory", "of PyTorch's"], table)
    shares = {row[0]: row[3] for row in found["{} × {} × {}".format(ROWS, *GPT2)]}
    share = shares[f"v2, {CHOSEN} rows"]
    mark = "✓" if share <= 1 / SHARE else "✗"
    print(f"v2 must take at most 1/{SHARE} of the plain head's memory: it takes {share:.3f} {mark}")
    return {FILES[0]: rows_as_json(found)}
