"""What the day's `show` proves: dropout's mask, both directions' agreement, and a training."""


def show(operators, device):
    pass
