"""What the day's `show` proves: two blocks that train beside PyTorch's, and what the parts cost."""

from functools import partial

import torch
from torch.nn import functional as F

from common.day import peak_memory, print_table, seconds

from .module import Block, Twin

STEPS = 30


def trained(kind, operators, dtype, device, shape):
    """The loss before each step of two blocks that learn the mean of the rows up to each."""
    B, S, heads, D = shape
    torch.manual_seed(90)
    net = torch.nn.Sequential(
        *(kind(operators, "v4_hopper", heads * D, heads) for _ in range(2))
    ).to(device)
    generator = torch.Generator().manual_seed(90)
    x = torch.randn(B, S, heads * D, generator=generator).to(device)
    target = x.cumsum(1) / torch.arange(1, S + 1, device=device)[:, None]
    optimiser = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0)
    losses = []
    for _ in range(STEPS + 1):
        loss = F.mse_loss(net(x.to(dtype)).float(), target)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses


def print_training(operators, device):
    """Raises RuntimeError where ours in bf16 is more than twice as far from fp32 as PyTorch's."""
    shape = (8, 512, 6, 64) if device.type == "cuda" else (1, 24, 1, 64)
    found = {
        "PyTorch, fp32": trained(Twin, operators, torch.float32, device, shape),
        "PyTorch, bf16": trained(Twin, operators, torch.bfloat16, device, shape),
        "v4, bf16": trained(Block, operators, torch.bfloat16, device, shape),
    }
    shown = (0, 10, 20, STEPS)
    print_table(
        ["loss of two blocks", *(f"step {i}" for i in shown)],
        [[way, *(f"{losses[i]:.4f}" for i in shown)] for way, losses in found.items()],
    )
    truth, theirs, ours = found.values()

    def distance(losses):
        return max(abs(a - b) / b for a, b in zip(losses, truth, strict=True))

    print(f"furthest from fp32: PyTorch {distance(theirs):.1e}, v4 {distance(ours):.1e}")
    if distance(ours) > max(2 * distance(theirs), 2e-3):
        raise RuntimeError("v4 is further from fp32 than PyTorch in bf16")
    if not ours[-1] < 0.9 * ours[0]:
        raise RuntimeError("v4 does not learn")


def print_memory(operators, device):
    """What a training step of one block needs at its peak, and what its forward pass keeps."""
    rows = []
    for name, kind in (("PyTorch", Twin), ("v4", Block)):
        module = kind(operators, "v4_hopper", 768, 12, device, torch.bfloat16)
        x = torch.randn(8, 1024, 768, device=device, dtype=torch.bfloat16, requires_grad=True)

        def step(module=module, x=x):
            return torch.autograd.grad(module(x).sum(), [x, *module.parameters()])

        before = torch.cuda.memory_allocated()
        y = module(x)
        kept = torch.cuda.memory_allocated() - before - y.numel() * 2
        del y
        rows.append((name, f"{kept / x.numel():.1f}", f"{peak_memory(partial(step)) / 1e6:.0f}"))
    print_table(("training step", "kept, bytes per element of x", "peak MB"), rows)


def show_times(operators, device):
    """On a GPU, prints the times of PyTorch's parts, for the shape that is timed."""
    if device.type != "cuda":
        return
    made = {"device": device, "dtype": torch.bfloat16}
    B, S, heads, D = 8, 1024, 12, 64
    C = heads * D
    x, up = torch.randn(B, S, C, **made), torch.randn(B, S, 4 * C, **made)
    q, k, v = torch.randn(B, S, 3 * C, **made).unflatten(-1, (3, heads, D)).permute(2, 0, 3, 1, 4)
    gain = torch.ones(C, **made)
    weights = {name: torch.randn(n, m, **made) for name, n, m in (
        ("qkv", 3 * C, C), ("proj", C, C), ("up", 4 * C, C), ("down", C, 4 * C))}  # fmt: skip
    parts = {
        "layer norm": lambda: F.layer_norm(x, (C,), gain, gain),
        "attention": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "gelu": lambda: F.gelu(up, approximate="tanh"),
        "addition": lambda: x + x,
    }
    for name, weight in weights.items():
        parts[f"product {name}"] = partial(F.linear, up if name == "down" else x, weight)
    rows = [(name, f"{seconds(call) * 1e6:.0f}") for name, call in parts.items()]
    print_table(("part of PyTorch's block", "µs"), rows)


def show(operators, device):
    """Prints both; raises RuntimeError where something is not as it has to be."""
    print_training(operators, device)
    if device.type == "cuda":
        print_memory(operators, device)
