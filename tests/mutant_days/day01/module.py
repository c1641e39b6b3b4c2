"""The code that the rung runs."""

import torch


def reference(x):
    return torch.where(x < 0, x - 1, x).clamp(max=1.5)
