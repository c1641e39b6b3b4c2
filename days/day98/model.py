"""The model of day 98, its export and its compilation."""

import warnings

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


def compile_package(exported, path):
    """Writes the .pt2. Its metadata tells a program in C++ what it may pass."""
    settings = {
        "aot_inductor.metadata": {"width": str(WIDTH), "most": str(MOST)},
        # Of the code that calls the kernels; compiling it takes longest.
        "aot_inductor.compile_wrapper_opt_level": "O0",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's, about its own code
        warnings.filterwarnings("ignore", "TensorFloat32")  # the package computes in fp32
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(path), inductor_configs=settings
        )
