"""A program for a process of its own: a bad index in PyTorch. Arguments: the device, and the day's
library, or "" for PyTorch's own index_select. Prints what each step said."""

import sys

import torch


def step(name, call):
    try:
        call()
        print(f"{name}: no error")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")


def main(device, library):
    x = torch.ones(1000, 64, device=device)
    index = torch.arange(1000, device=device)
    index[9] = 2**33
    if library:
        torch.ops.load_library(library)
        step("v1", lambda: torch.ops.day89.gather_v1_trusting(x, index))
    else:
        step("index_select", lambda: x.index_select(0, index))
    step("x + 1", lambda: (x + 1).cpu())
    step("again", lambda: torch.ones(3, device=device).cpu())


if __name__ == "__main__":
    main(*sys.argv[1:])
