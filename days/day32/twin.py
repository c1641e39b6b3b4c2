"""The twin: the vision transformer of torch.nn alone."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

HEAD = 64  # columns per head


class ViT(nn.Module):
    """Images (B, channels, H, W) to logits (B, classes).

    height, width: of the images in patches. embed: the width of a token, a multiple of 64.
    """

    def __init__(self, channels, patch, height, width, embed, layers, classes, **made):
        super().__init__()
        self.patches = nn.Conv2d(channels, embed, patch, patch, **made)
        self.class_token = nn.Parameter(torch.zeros(embed, **made))
        self.positions = nn.Parameter(torch.zeros(1 + height * width, embed, **made))
        layer = nn.TransformerEncoderLayer(
            embed, embed // HEAD, 4 * embed, 0.0, partial(F.gelu, approximate="tanh"),
            batch_first=True, norm_first=True, **made,
        )  # fmt: skip
        norm = nn.LayerNorm(embed, **made)
        self.encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(embed, classes, **made)

    def forward(self, images):
        rows = self.patches(images).flatten(2).mT
        first = self.class_token.expand(len(rows), 1, -1)
        return self.head(self.encoder(torch.cat([first, rows], 1) + self.positions)[:, 0])
