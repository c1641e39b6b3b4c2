"""What the day's `show` proves: several processes compute one network, and agree in all bits."""

FILE = "tensor_parallel.json"


def show(operators, device):
    """Prints the proofs, of as many processes as there are GPUs, or of two on the CPU backend.

    With several GPUs, also times all versions beside one GPU and NCCL, and returns the figures.
    """
    # Not where day 88 is practised without the others.
    from days.day87.peers import measured_files, prove

    world, found = prove("days.day88.ranks", device, "error, × PyTorch's")
    if found is None:
        return None
    print(f"a rank that never comes: {found['absent']}")
    return measured_files("days.day88.measure", device, world, [FILE])
