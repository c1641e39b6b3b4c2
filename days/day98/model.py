"""The model of day 98 and its export."""

import torch
from torch import nn

WIDTH, HIDDEN = 64, 160
MOST = 4096  # rows of a batch
DTYPE = torch.float32  # also where the default is another: else the random numbers are others
EXAMPLE = 6  # rows of the batch that is traced; the export leaves their number open


class GatedLayer(nn.Module):
    """u + W3 gated_norm(W1 u, W2 u): PyTorch's products around an operator of ours."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.values = nn.Linear(WIDTH, HIDDEN, bias=False, dtype=DTYPE)
        self.gates = nn.Linear(WIDTH, HIDDEN, bias=False, dtype=DTYPE)
        self.back = nn.Linear(HIDDEN, WIDTH, bias=False, dtype=DTYPE)
        self.weight = nn.Parameter(torch.rand(HIDDEN, dtype=DTYPE) + 0.5)

    def forward(self, u):
        return u + self.back(self.operator(self.values(u), self.gates(u), self.weight, 1e-6))


def layer(operator, device):
    """The same numbers in each process."""
    torch.manual_seed(98)
    return GatedLayer(operator).to(device).eval().requires_grad_(False)


def batch(rows, device="cpu"):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, WIDTH, generator=generator).to(device)


def export(model, device):
    """A graph of operators, for any batch of 1 to MOST rows."""
    rows = torch.export.Dim("rows", min=1, max=MOST)
    return torch.export.export(model, (batch(EXAMPLE, device),), dynamic_shapes={"u": {0: rows}})
