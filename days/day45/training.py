"""A small transformer that trains with nn.LayerNorm and with this day's modules."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from common.day import print_table

from .module import AddLayerNorm, LayerNorm, register


class AddThenNorm(nn.LayerNorm):
    """What AddLayerNorm fuses, by PyTorch's operators."""

    def forward(self, x, residual):  # type: ignore[override]  # one more input
        h = x + residual
        return h, super().forward(h)


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm. h: the sum of all parts before, x: the
    last one, not yet added."""

    def __init__(self, width, heads, add_norm):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(add_norm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, h):
        h, y = self.norms[0](x, h)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(y).chunk(3, -1))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h, y = self.norms[1](self.out(o.transpose(1, 2).flatten(2)), h)
        return self.down(F.gelu(self.up(y))), h


class Transformer(nn.Module):
    """Tokens (B, S) to logits (B, S, tokens)."""

    def __init__(self, tokens, length, width, heads, layers, norm, add_norm):
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.first = norm(width)
        self.layers = nn.ModuleList(Layer(width, heads, add_norm) for _ in range(layers))
        self.last = add_norm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, ids):
        x = self.token(ids)
        h = self.first(self.position(torch.arange(ids.shape[1], device=ids.device))).expand_as(x)
        for layer in self.layers:
            x, h = layer(x, h)
        return self.head(self.last(x, h)[1])


@dataclass(frozen=True)
class Size:
    """Of a training: sizes of the model, sequences per step, steps."""

    width: int
    heads: int
    layers: int
    length: int
    batch: int
    steps: int


TOKENS = 17
ON_GPU = Size(width=256, heads=4, layers=4, length=128, batch=16, steps=200)
ON_CPU = Size(width=32, heads=2, layers=1, length=8, batch=2, steps=4)


def sequences(size, step):
    """Each token is the sum of the two before it, modulo TOKENS: learnt in a few steps."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(TOKENS, (size.batch, size.length + 1), generator=generator)
    for i in range(2, size.length + 1):
        ids[:, i] = (ids[:, i - 1] + ids[:, i - 2]) % TOKENS
    return ids


def train(size, norm, add_norm, dtype, device):
    """The losses of all steps, from weights and data that depend on `size` alone."""
    torch.manual_seed(45)
    model = Transformer(
        TOKENS, size.length, size.width, size.heads, size.layers, norm, add_norm
    ).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(size.steps):
        ids = sequences(size, step).to(device)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


def show_training(size, device):
    """Trains with both kinds of modules, and in float64. Raises RuntimeError where the losses with
    ours are further from those in float64 than 4 times what those with nn.LayerNorm are."""
    register()
    kinds = {"nn.LayerNorm": (nn.LayerNorm, AddThenNorm), "ours": (LayerNorm, AddLayerNorm)}
    exact = train(size, nn.LayerNorm, AddThenNorm, torch.float64, device)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        away = {}
        for name, modules in kinds.items():
            losses = train(size, *modules, dtype, device)
            away[name] = float((losses - exact).abs().max())
            kind = f"{name}, {str(dtype).removeprefix('torch.')}"
            rows.append([kind, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", f"{away[name]:.1e}"])
        if not away["ours"] <= 4 * away["nn.LayerNorm"] + 1e-6:
            raise RuntimeError(f"losses of {size.steps} steps in {dtype} differ: {away}")
    print(f"a transformer of {size.layers} layer(s), {size.width} columns, {size.steps} steps")
    print_table(["norms", "first loss", "last loss", "from float64"], rows)


def show_compiled(device):
    """opcheck, then torch.compile over both modules: no graph break, the same gradients."""
    register()
    operators = torch.ops.day45
    x, residual = (torch.randn(33, 64, device=device, requires_grad=True) for _ in range(2))
    norm, add_norm = LayerNorm(64, device=device), AddLayerNorm(64, device=device)
    parameters = norm.weight, norm.bias, norm.eps
    for operator, arguments in (
        (operators.layer_norm_v4_chosen, (x, *parameters)),
        (operators.add_layer_norm_v2_fused, (x, residual, *parameters)),
    ):
        results = torch.library.opcheck(operator.default, arguments)
        passed = sum(result == "SUCCESS" for result in results.values())
        print(f"opcheck of {operator._qualified_op_name}: {passed} of {len(results)} passed")

    def loss(x, residual):
        h, y = add_norm(norm(x), residual)
        return (h * y).square().sum()

    # inductor generates code for real GPUs only; on the CPU backend, tracing alone is tested.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    leaves = x, residual, *norm.parameters(), *add_norm.parameters()
    actual = torch.autograd.grad(compiled(x, residual), leaves)
    expected = torch.autograd.grad(loss(x, residual), leaves)
    torch.testing.assert_close(actual, expected)
    print(f"torch.compile ({backend}) of both modules: no graph break, equal gradients")


def show(operators, device):
    """Checks both modules under torch.compile, and trains with them."""
    show_compiled(device)
    show_training(ON_GPU if device.type == "cuda" else ON_CPU, device)
