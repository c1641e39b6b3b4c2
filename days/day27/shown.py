"""What day 27 prints: operators under torch.compile, errors, peak memory."""

from functools import partial

import torch

from common.day import peak_memory, print_table

from .attention import attention, by_cudnn, by_flash, reference

RUNGS = {"v2": "attention_backward_v2_pipelined", "v3": "attention_backward_v3_one_pass"}


def show_compiled(operators, device):
    """opcheck, then torch.compile over a step of training: no graph break, the same gradients."""
    made = torch.ops.day27

    def like_inputs(go, glse, q, k, v, *others):
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    for name in RUNGS.values():
        torch.library.register_fake(f"day27::{name}", like_inputs, allow_override=True)
    torch.library.register_fake(
        "day27::attention",
        lambda q, k, v, causal=False: (
            torch.empty_like(q),
            q.new_empty(q.shape[:3], dtype=torch.float32),
        ),
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


def show(operators, device):
    """Prints how exact the gradients are and the peak memory, beside PyTorch's."""
    show_compiled(operators, device)
    if device.type != "cuda":
        return
    calls = {name: getattr(operators, rung) for name, rung in RUNGS.items()}
    calls |= {"FLASH": by_flash, "cuDNN": by_cudnn}
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
