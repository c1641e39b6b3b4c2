"""What the day's `show` proves."""


def show(operators, device):
    pass
