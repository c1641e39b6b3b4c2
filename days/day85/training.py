"""A model of letters, trained in fp32, 16 bits and fp8: what `show` proves and stores."""

import json
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

from common.day import figure_as_svg, print_table, seconds

from .casting import LARGEST

FILES = ("training.json", "training.svg")
LETTERS, CONTEXT, EMBEDDED, LAYERS = 32, 4, 32, 2
# Letters per step. A GPU has one micro-batch of them, but its loss is divided by all, so that the
# gradients of all micro-batches only have to be added.
ALL = 1 << 22
WINDOW = 16  # steps of an amax history
FIRST_SCALE, GROWTH, BACKOFF, INTERVAL = 2.0**36, 2.0, 0.5, 25  # the first one is too large
# By how much the mean loss of the last quarter may differ from that of fp32, as a share of it.
TOLERANCES = {"fp16, scaled loss": 0.01, "bf16": 0.01, "fp8": 0.02}


@dataclass(frozen=True)
class Size:
    """width: of the layers. batch: letters of a micro-batch. rate: of learning. every: steps of a
    number that is stored."""

    width: int
    batch: int
    steps: int
    rate: float
    every: int = 20


ON_GPU, ON_CPU = Size(512, 4096, 600, 1e-3), Size(64, 128, 120, 5e-3)
TIMED = Size(8192, 8192, 1, 1e-4)


# ---------------------------------------------------------------- the text


def texts(steps, count, device):
    """(steps, count, CONTEXT + 1) letters, and the entropy of the last one, given those before it:
    no model has a lower loss. The two letters before a letter decide about its probability."""
    generator = torch.Generator().manual_seed(85)
    first, second = 2 * torch.randn(2, LETTERS, LETTERS, generator=generator).to(device)
    table = (first[:, None] + second).softmax(2)
    letters = list(torch.randint(LETTERS, (2, steps * count), generator=generator).to(device))
    for _ in range(CONTEXT + 5):
        chance = torch.rand(steps * count, 1, generator=generator).to(device)
        sums = table[letters[-2], letters[-1]].cumsum(1)
        letters.append((sums < chance).sum(1).clamp(max=LETTERS - 1))
    rows = table[letters[-3], letters[-2]]
    entropy = float(-(rows * rows.log()).sum(1).mean())
    return torch.stack(letters[-CONTEXT - 1 :], 1).view(steps, count, CONTEXT + 1), entropy


# ---------------------------------------------------------------- products in fp8


class Scales:
    """Of fp8 tensors of one type, each with the amax of its last steps."""

    def __init__(self, operators, count, mantissa, device):
        self.operators, self.mantissa = operators, mantissa
        self.history = torch.zeros(count, WINDOW, device=device)
        self.scale, self.inv_scale = (torch.ones(count, device=device) for _ in range(2))

    def cast(self, i, x):
        """x in fp8, its transposed copy, and the factor that undoes the scale."""
        scale, amax = self.scale[i : i + 1], self.history[i, :1]
        y, y_t = self.operators.cast_transpose_v3_one_pass(x, scale, amax, self.mantissa)
        return y, y_t, self.inv_scale[i : i + 1]

    def update(self):
        largest = LARGEST[self.mantissa]
        self.operators.update_fp8_scales(self.history, self.scale, self.inv_scale, largest)


def product(a, b, inv_a, inv_b, fast=False):
    """a · bᵀ in bf16, of a (M, K) and b (N, K): no other layout is multiplied in fp8."""
    if a.device.type == "cpu":
        return (a.float() @ b.float().T * (inv_a * inv_b)).bfloat16()
    # cuBLASLt takes scales at multiples of 16 bytes: a copy is allocated at one, an element is not.
    scales = {"scale_a": inv_a.clone(), "scale_b": inv_b.clone()}
    return torch._scaled_mm(a, b.T, **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


class Fp8Linear(torch.autograd.Function):
    """x (M, K) · weightᵀ (K, N), both bf16. The forward pass has one product, the backward pass
    two, all of fp8 matrices."""

    @staticmethod
    def forward(ctx, x, weight, layer, forward, backward):
        x8, x8_t, inv_x = forward.cast(2 * layer, x)
        w8, w8_t, inv_w = forward.cast(2 * layer + 1, weight)
        ctx.save_for_backward(x8_t, w8_t, inv_x, inv_w)
        ctx.layer, ctx.scales = layer, backward
        return product(x8, w8, inv_x, inv_w, fast=True)

    @staticmethod
    def backward(ctx, g):
        x8_t, w8_t, inv_x, inv_w = ctx.saved_tensors
        g8, g8_t, inv_g = ctx.scales.cast(ctx.layer, g.contiguous())
        gx = product(g8, w8_t, inv_g, inv_w)
        gw = product(g8_t, x8_t, inv_g, inv_x)
        return gx, gw, None, None, None


# ---------------------------------------------------------------- a training

WAYS = {  # the type of the activations, and whether the loss is scaled
    "fp32": (torch.float32, False),
    "fp16": (torch.float16, False),
    "fp16, scaled loss": (torch.float16, True),
    "bf16": (torch.bfloat16, False),
    "fp8": (torch.bfloat16, False),
}


class Training:
    """A model, its optimiser and its scales. The weights of the optimiser are fp32.

    way: a key of WAYS. by_pytorch: the loss is scaled by torch.amp.GradScaler instead.
    """

    def __init__(self, operators, device, way, size, by_pytorch=False):
        self.operators, self.size, self.way = operators, size, way
        self.dtype, self.scaled = WAYS[way]
        generator = torch.Generator().manual_seed(85)
        widths = [EMBEDDED * CONTEXT, *[size.width] * (LAYERS + 1), LETTERS]
        self.weights = [torch.randn(LETTERS, EMBEDDED, generator=generator)]
        for a, b in pairwise(widths):
            self.weights.append(torch.randn(b, a, generator=generator) * a**-0.5)
        self.weights = [w.to(device).requires_grad_() for w in self.weights]
        self.optimiser = torch.optim.AdamW(
            self.weights, lr=size.rate, betas=(0.9, 0.98), eps=1e-12, weight_decay=0, fused=True
        )
        self.scale = torch.full((1,), FIRST_SCALE, device=device)
        self.inv_scale, self.found_inf = 1 / self.scale, torch.zeros_like(self.scale)
        self.good_steps = torch.zeros_like(self.scale, dtype=torch.int32)
        numbers = (FIRST_SCALE, GROWTH, BACKOFF, INTERVAL)
        self.scaler = torch.amp.GradScaler(device.type, *numbers) if by_pytorch else None
        self.forward = Scales(operators, 2 * LAYERS, 3, device)
        self.backward = Scales(operators, LAYERS, 2, device)

    def logits(self, letters):
        """(count, LETTERS) in the type of the activations."""
        embedding, first, *hidden, last = (w.to(self.dtype) for w in self.weights)
        x = F.gelu(F.linear(embedding[letters].flatten(1), first))
        for layer, weight in enumerate(hidden):
            if self.way == "fp8":
                y = Fp8Linear.apply(x, weight, layer, self.forward, self.backward)
            else:
                y = F.linear(x, weight)
            x = x + F.gelu(y)
        return F.linear(x, last)

    def loss(self, text):
        """The mean over the micro-batch `text` (count, CONTEXT + 1), in fp32."""
        return F.cross_entropy(self.logits(text[:, :-1]).float(), text[:, -1])

    def step(self, text):
        """One step; returns the loss. By the day's kernels the host waits for nothing."""
        self.optimiser.zero_grad()
        loss = self.loss(text)
        share = loss * (len(text) / ALL)
        if self.scaler is not None:
            self.scaler.scale(share).backward()
            self.scaler.unscale_(self.optimiser)
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.scale = self.scaler._scale.reshape(1)  # type: ignore[union-attr]  # made by scale()
            return loss.detach()
        (share * self.scale if self.scaled else share).backward()
        if self.scaled:
            grads = [w.grad for w in self.weights]
            self.operators.unscale_v3_one_launch(grads, self.found_inf, self.inv_scale)
            # The optimiser reads found_inf: if it is 1, nothing is changed.
            self.optimiser.found_inf = self.found_inf[0]  # type: ignore[attr-defined]
        self.optimiser.step()
        if self.scaled:
            numbers = self.scale, self.inv_scale, self.good_steps, self.found_inf
            self.operators.update_loss_scale(*numbers, GROWTH, BACKOFF, INTERVAL)
        if self.way == "fp8":
            self.forward.update()
            self.backward.update()
        return loss.detach()

    def run(self, text):
        """The losses and the scales of all steps, one of each per step, on the host."""
        losses, scales = [], []
        for batch in text:
            scales.append(self.scale.clone())
            losses.append(self.step(batch))
        return torch.stack(losses).tolist(), torch.cat(scales).tolist()


# ---------------------------------------------------------------- what is proven


def print_underflow(operators, device, size, text):
    """What is left of the gradient of the logits in a type. Raises RuntimeError where fp16 keeps
    most of it, or where a scale does not save it."""
    training = Training(operators, device, "fp32", size)
    logits = training.logits(text[:, :-1]).detach().requires_grad_()
    (F.cross_entropy(logits, text[:, -1]) * (len(text) / ALL)).backward()
    g = logits.grad
    types = {"fp16": torch.float16, "bf16": torch.bfloat16, "e5m2": torch.float8_e5m2}
    kept = {}
    for name, dtype in types.items():
        for scale in (1.0, float(2 ** math.floor(math.log2(2.0**14 / float(g.abs().max()))))):
            kept[name, scale > 1] = float(((g * scale).to(dtype).float() != 0).double().mean())
    rows = [[n, *(f"{100 * kept[n, scaled]:.1f} %" for scaled in (False, True))] for n in types]
    print_table(["gradients of the logits that are not 0", "as they are", "scaled"], rows)
    if kept["fp16", False] > 0.5 or min(kept["fp16", True], kept["bf16", False]) < 0.99:
        raise RuntimeError(f"gradients that are not 0, by type and scale: {kept}")


def print_scales(operators, device, size, text):
    """Raises RuntimeError where the scale of the loss differs from GradScaler's in any step."""
    ways = [Training(operators, device, "fp16, scaled loss", size, by) for by in (False, True)]
    (losses, scales), (their_losses, their_scales) = (way.run(text) for way in ways)
    if scales != their_scales:
        at = next(i for i, (a, b) in enumerate(zip(scales, their_scales, strict=True)) if a != b)
        raise RuntimeError(f"step {at}: the scale is {scales[at]}, GradScaler's {their_scales[at]}")
    largest = max(abs(a - b) for a, b in zip(losses, their_losses, strict=True))
    falls = sum(b < a for a, b in pairwise(scales))
    print(f"{len(scales)} scales as torch.amp.GradScaler's, {falls} times halved;", end=" ")
    print(f"losses differ by {largest:.2g} at most")


def means(losses, every):
    """Of each `every` losses; None for JSON where one is not finite."""
    parts = [sum(losses[i : i + every]) / every for i in range(0, len(losses), every)]
    return [round(part, 4) if math.isfinite(part) else None for part in parts]


def show_times(operators, device):
    """On a GPU, prints milliseconds per step of a model that is large enough to occupy it."""
    if device.type != "cuda":
        return
    text, _ = texts(1, TIMED.batch, device)
    rows = []
    for way, by_pytorch in [(way, False) for way in WAYS] + [("fp16, scaled loss", True)]:
        training = Training(operators, device, way, TIMED, by_pytorch)
        taken = seconds(lambda training=training: training.step(text[0]))
        rows.append([way + (", by GradScaler" if by_pytorch else ""), f"{1e3 * taken:.2f} ms"])
        del training
    print_table([f"a step, {TIMED.width} wide, {TIMED.batch} letters", "time"], rows)


def show(operators, device):
    """Prints the proofs; returns the trainings as data and as a plot. Raises RuntimeError where
    fp16 without a scale does not fail, or another way's loss is further from fp32's than its
    tolerance."""
    if device.type == "cuda":
        found = proven(operators, device, ON_GPU)
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the matrices are small: a second thread would only wait
        found = proven(operators, device, ON_CPU)
        torch.set_num_threads(threads)
    return dict(zip(FILES, (json.dumps(found) + "\n", svg(found)), strict=True))


def proven(operators, device, size):
    """All trainings, as data."""
    text, entropy = texts(size.steps, size.batch, device)
    print_underflow(operators, device, size, text[0])
    print_scales(operators, device, size, text[: size.steps // 2])
    losses, scales = {}, {}
    for way in WAYS:
        losses[way], scales[way] = Training(operators, device, way, size).run(text)
    last = {way: sum(one[-size.steps // 4 :]) / (size.steps // 4) for way, one in losses.items()}
    off = {way: last[way] / last["fp32"] - 1 for way in WAYS}
    rows = [
        [way, f"{losses[way][0]:.4f}", f"{last[way]:.4f}", f"{100 * off[way]:+.2f} %", ""]
        for way in WAYS
    ]
    for row in rows:
        if row[0] in TOLERANCES:
            row[-1] = f"{100 * TOLERANCES[row[0]]:.0f} %"
    header = ["first step", "last quarter", "from fp32", "tolerance"]
    print_table([f"loss, where entropy is {entropy:.4f}", *header], rows)
    if off["fp16"] < 0.1:
        raise RuntimeError(f"fp16 without a scale was to fail; its loss is {last['fp16']:.4f}")
    for way, tolerance in TOLERANCES.items():
        if not abs(off[way]) <= tolerance:
            raise RuntimeError(f"{way}: loss {last[way]:.4f}, fp32 has {last['fp32']:.4f}")
    scaled = scales["fp16, scaled loss"]
    return {
        "every": size.every,
        "entropy": round(entropy, 4),
        "loss": {way: means(one, size.every) for way, one in losses.items()},
        "log2 of the scale": [round(math.log2(s)) for s in scaled],
    }


def svg(found):
    """The losses of all ways, and below them the scale of the loss, over the steps."""

    def draw(figure):
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        styles = ("-", "-", "--", ":", "-.")
        for (way, losses), style in zip(found["loss"].items(), styles, strict=True):
            steps = [found["every"] * (i + 0.5) for i in range(len(losses))]
            values = [math.nan if loss is None else loss for loss in losses]
            upper.plot(steps, values, style, linewidth=2, label=way)
        upper.axhline(found["entropy"], color="grey", linewidth=1, label="entropy of the text")
        upper.set_ylim(found["entropy"] - 0.2, 5)
        upper.set_ylabel("loss")
        upper.legend()
        lower.step(range(len(found["log2 of the scale"])), found["log2 of the scale"], where="post")
        lower.set_ylabel("log2 of the scale")
        lower.set_xlabel("step")
        for axis in (upper, lower):
            axis.grid(alpha=0.3)

    return figure_as_svg((7.2, 4.6), draw)
