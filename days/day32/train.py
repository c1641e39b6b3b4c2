"""Trains the twin to name shapes, in about a minute on the CPU: python -m days.day32.train

The weights go to the cache: 22 MB are too large for the repository, and a check needs none.
"""

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from common.base.cache import Entry, cached, digest

from .shapes import NAMES, SIZE, draw_shapes
from .twin import ViT

PATCH, WIDTH, LAYERS = 8, 192, 12
STEPS, BATCH, RATE = 440, 16, 1e-3


def entry():
    """Where the weights are, or will be: another place when the model or the pictures change."""
    files = [Path(__file__).parent / name for name in ("twin.py", "shapes.py", "train.py")]
    return Entry("day32-weights", digest([torch.__version__], files), "weights.pt")


def first_weights(generator):
    """A twin with small random matrices, another one per layer: nn.TransformerEncoder begins with
    copies of one layer."""
    side = SIZE // PATCH
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(32)
        model = ViT(3, PATCH, side, side, WIDTH, LAYERS, len(NAMES))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("positions", "class_token"):
                parameter.normal_(std=0.1, generator=generator)
            elif name.startswith("encoder") and parameter.dim() > 1:
                parameter.normal_(std=0.04, generator=generator)
    return model


def trained():
    """A twin after STEPS batches of pictures, each of which it sees once."""
    generator = torch.Generator().manual_seed(32)
    model = first_weights(generator)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, total_steps=STEPS, pct_start=0.2, cycle_momentum=False
    )
    seen, right, began = 0, 0, time.monotonic()
    for step in range(1, STEPS + 1):
        images, labels = draw_shapes(BATCH, generator)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rates.step()
        seen, right = seen + BATCH, right + int((logits.argmax(1) == labels).sum())
        if step % 40 == 0:
            passed = time.monotonic() - began
            print(f"{step:4} of {STEPS} batches, {passed:4.0f} s: {right / seen:.0%}", flush=True)
            seen = right = 0
    return model


def store(directory):
    """Makes the entry: the twin's state_dict, fp32."""
    torch.save(trained().state_dict(), directory / "weights.pt")


if __name__ == "__main__":
    print(f"weights: {cached(entry(), store)}")
