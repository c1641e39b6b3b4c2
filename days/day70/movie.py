"""A GIF of the patterns, whose last frame leads to its first."""

def show(operators, device):
    pass
