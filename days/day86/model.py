"""The GPT in PyTorch: the reference, and the eager loop that the rungs are timed beside."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from common.references.philox import philox_words

HEAD = 64  # columns per head
BETAS, EPS, DECAY = (0.9, 0.99), 1e-8, 0.1  # nanoGPT's


@dataclass(frozen=True)
class Model:
    """Sizes of a GPT. words: of its vocabulary, a multiple of 8. positions: of a sequence."""

    layers: int
    heads: int
    words: int
    positions: int

    @property
    def width(self):
        return self.heads * HEAD

    @property
    def numbers(self):
        return self.layers, self.heads, self.words, self.positions

    def shapes(self):
        """Of all parameters by name, as they lie in a buffer: matrices, which get weight decay,
        then vectors."""
        C = self.width
        shapes = {"table": (self.words, C), "places": (self.positions, C)}
        matrices = {"qkv": (3 * C, C), "proj": (C, C), "up": (4 * C, C), "down": (C, 4 * C)}
        vectors = {"norm1": C, "shift1": C, "qkv_bias": 3 * C, "proj_bias": C}
        vectors |= {"norm2": C, "shift2": C, "up_bias": 4 * C, "down_bias": C}
        for layer in range(self.layers):
            shapes |= {f"{name}.{layer}": shape for name, shape in matrices.items()}
        for layer in range(self.layers):
            shapes |= {f"{name}.{layer}": (size,) for name, size in vectors.items()}
        return shapes | {"norm": (C,), "shift": (C,)}

    def parameters(self):
        """How many there are."""
        return sum(torch.Size(shape).numel() for shape in self.shapes().values())

    def views(self, buffer):
        """The parameters by name, of a buffer."""
        shapes = self.shapes()
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        parts = zip(shapes.items(), buffer.split(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}


def forward(model, p, tokens):
    """Logits (B, S, words) of tokens (B, S), by parameters p."""
    B, S = tokens.shape
    C = model.width
    h = F.embedding(tokens, p["table"]) + p["places"][:S]
    for i in range(model.layers):
        y = F.layer_norm(h, (C,), p[f"norm1.{i}"], p[f"shift1.{i}"])
        qkv = F.linear(y, p[f"qkv.{i}"], p[f"qkv_bias.{i}"]).view(B, S, 3, model.heads, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = h + F.linear(o, p[f"proj.{i}"], p[f"proj_bias.{i}"])
        y = F.layer_norm(h, (C,), p[f"norm2.{i}"], p[f"shift2.{i}"])
        y = F.gelu(F.linear(y, p[f"up.{i}"], p[f"up_bias.{i}"]), approximate="tanh")
        h = h + F.linear(y, p[f"down.{i}"], p[f"down_bias.{i}"])
    return F.linear(F.layer_norm(h, (C,), p["norm"], p["shift"]), p["table"])


def losses_of(model, p, tokens):
    """The loss at each position, (B, S), of tokens (B, S + 1)."""
    logits = forward(model, p, tokens[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


# ---------------------------------------------------------------- the reference


def step(
    weights, masters, grads, exp_avg, exp_avg_sq, step, schedule, tokens, *numbers
):  # fmt: skip
    """One step of training in the dtype of the weights. Writes all buffers."""
    model, (beta1, beta2, eps, decay) = Model(*numbers[:4]), numbers[4:]
    leaf = weights.detach().clone().requires_grad_()
    with torch.enable_grad():
        losses = losses_of(model, model.views(leaf), tokens)
        (gradient,) = torch.autograd.grad(
            losses.float().mean() if losses.dtype == torch.bfloat16 else losses.mean(), leaf
        )
    grads.copy_(gradient)
    step += 1
    t = int(step)
    lr = schedule[min(t, len(schedule)) - 1].double()
    exp_avg.lerp_(grads, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
    root = (exp_avg_sq / (1 - beta2**t)).sqrt_().add_(eps)
    change = exp_avg / root * (lr / (1 - beta1**t)).to(exp_avg.dtype)
    decayed = sum(torch.Size(s).numel() for s in model.shapes().values() if len(s) == 2)
    masters[:decayed].mul_((1 - lr * decay).to(masters.dtype))
    masters.sub_(change)
    weights.copy_(masters)
    return losses.detach().float() if losses.dtype == torch.bfloat16 else losses.detach()


# ---------------------------------------------------------------- what PyTorch's users write


def new_counters(count, device):
    """The optimiser's step, in a tensor per parameter, on the device."""
    return [torch.zeros((), device=device) for _ in range(count)]


counters = cache(new_counters)


def train_eagerly(losses_by, masters, exp_avg, exp_avg_sq, lr, tokens, model, optimise):
    """One step of the usual loop: autocast to bf16, backward, the fused AdamW in two groups."""
    leaves = {name: p.detach().requires_grad_() for name, p in model.views(masters).items()}
    with torch.enable_grad():
        with torch.autocast(masters.device.type, torch.bfloat16):
            losses = losses_by(model, leaves, tokens)
        gradients = torch.autograd.grad(losses.mean(), list(leaves.values()))
    with torch.no_grad():
        optimise(list(leaves.values()), gradients, model, exp_avg, exp_avg_sq, lr)
    return losses.detach()


def fused_adamw(betas, eps, decay, steps):
    """The kernels of torch.optim.AdamW(fused=True), without the Python code around them. steps: of
    each parameter."""

    def optimise(params, gradients, model, exp_avg, exp_avg_sq, lr):
        lists = [params, gradients]
        lists += [list(model.views(each).values()) for each in (exp_avg, exp_avg_sq)]
        lists += [[], steps]
        torch._foreach_add_(steps, 1)
        matrices = 2 + 4 * model.layers
        for group, weight_decay in ((slice(matrices), decay), (slice(matrices, None), 0.0)):
            torch._fused_adamw_(
                *(each[group] for each in lists), lr=lr, beta1=betas[0], beta2=betas[1],
                weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip

    return optimise


def eager_by(losses_by):
    def step(
        weights, masters, grads, exp_avg, exp_avg_sq, step, schedule, tokens, *numbers
    ):  # fmt: skip
        beta1, beta2, eps, decay = numbers[4:]
        model = Model(*numbers[:4])
        steps = counters(len(model.shapes()), masters.device)
        optimise = fused_adamw((beta1, beta2), eps, decay, steps)
        return train_eagerly(
            losses_by, masters, exp_avg, exp_avg_sq, schedule[0], tokens, model, optimise
        )

    return step


eager = eager_by(losses_of)


@cache
def compiled_losses():
    return torch.compile(losses_of, dynamic=False)


def compiled(*arguments):
    """The same loop, with the model compiled forward and backward."""
    return eager_by(compiled_losses())(*arguments)


# ---------------------------------------------------------------- inputs


def first_weights(model, generator, device="cpu"):
    """As nanoGPT begins: normal, 0.02, and smaller before each addition; norms 1, biases 0."""
    buffer = torch.zeros(model.parameters())
    for name, p in model.views(buffer).items():
        if name.startswith("norm"):
            p.fill_(1)
        elif p.dim() == 2:
            std = 0.02 / (2 * model.layers) ** 0.5 if name.startswith(("proj", "down")) else 0.02
            p.normal_(std=std, generator=generator)
    return buffer.to(device)


def inputs(case, draw):
    """Shape (B, S, layers, heads, words, positions). Larger weights than at the beginning of a
    training, so that no part of the model is nearly linear."""
    B, S, *sizes = case.shape
    model = Model(*sizes)
    masters = draw(model.parameters(), dtype="float32").mul_(0.02)
    for name, p in model.views(masters).items():
        if name.startswith("norm"):
            p.mul_(5).add_(1)
        elif name not in ("table", "places"):
            p.mul_(3)
    weights = masters.bfloat16()
    masters.copy_(weights)
    exp_avg = draw(model.parameters(), dtype="float32").mul_(1e-2)
    exp_avg_sq = draw(model.parameters(), dtype="float32").square_().add_(0.1).mul_(1e-3)
    tokens = torch.randint(model.words, (B, S + 1), generator=torch.Generator().manual_seed(B + S))
    device = masters.device
    schedule = torch.tensor([1e-3, 2e-3, 1.5e-3], device=device)
    step = torch.tensor([(B + S) % 5], device=device)
    grads = torch.zeros_like(masters)
    numbers = *model.numbers, *BETAS, EPS, DECAY
    return weights, masters, grads, exp_avg, exp_avg_sq, step, schedule, tokens.to(device), *numbers


# ---------------------------------------------------------------- the other operators


def logits_inputs(case, draw):
    weights, *_, tokens, layers, heads, words, positions = inputs(case, draw)[:-4]
    return weights, tokens[:, 1:].contiguous(), layers, heads, words, positions


def logits(weights, tokens, layers, heads, words, positions):
    model = Model(layers, heads, words, positions)
    return forward(model, model.views(weights), tokens)


def batch_inputs(case, draw):
    """Shape (sequences, length, characters)."""
    sequences, length, characters = case.shape
    text = draw(characters)
    step = torch.tensor([7 * sequences], device=text.device)
    tokens = torch.zeros(sequences, length, dtype=torch.int64, device=text.device)
    return text, step, tokens, 86 + length


def draw_batch(text, step, tokens, seed):
    """Sequence b of step t begins where words 0 and 1 of Philox, of index b and offset t, say."""
    index = torch.arange(len(tokens), device=text.device)
    words = philox_words(torch.full_like(index, seed), index, step.expand_as(index)).tolist()
    starts = len(text) - tokens.shape[1] + 1
    for b, (high, low, *_) in enumerate(words):
        start = (high * 2**32 + low) % starts
        tokens[b] = text[start : start + tokens.shape[1]]
