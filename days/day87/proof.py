"""What the day's `show` proves: several processes agree, and train as one process does."""

from .measure import FILES
from .peers import measured_files, prove
from .train import print_losses


def show(operators, device):
    """Prints the proofs, of as many processes as there are GPUs, or of two on the CPU backend."""
    world, found = prove("days.day87.ranks", device, "error of a sum, × eps")
    if found is not None:
        print_losses(world, *found["losses"])
        print(f"a rank that never comes: {found['absent']}")


def show_times(operators, device):
    """With several GPUs, times all rungs beside NCCL, and returns the figures and their plot."""
    return measured_files("days.day87.measure", device, FILES)
