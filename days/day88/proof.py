"""What the day's `show` proves: several processes compute one network, and agree in all bits."""

FILE = "tensor_parallel.json"


def show(operators, device):
    """Prints the proofs, of as many processes as there are GPUs, or of two on the CPU backend."""
    # Not where day 88 is practised without the others.
    from days.day87.peers import prove

    _, found = prove("days.day88.ranks", device, "error, × PyTorch's")
    if found is not None:
        print(f"a rank that never comes: {found['absent']}")


def show_times(operators, device):
    """With several GPUs, times all versions beside one GPU and NCCL, and returns the figures."""
    from days.day87.peers import measured_files  # not where day 88 is practised without the others

    return measured_files("days.day88.measure", device, [FILE])
