"""What the day's `show` prints."""

import torch


def show(operators, device):
    print(torch.__version__)
