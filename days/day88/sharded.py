"""The network of one rank: its weights, and the memory through which it adds up its output."""

import torch

from days.day87.peers import TIMEOUT_MS, Peers, rounded_up

from .network import SIGNAL_WORDS, signal_words, slot_elements


class Sharded:
    """gelu(x · W1ᵀ) · W2ᵀ over all ranks of the process group, x: (rows, width).

    up: (H / N, width), down: (width, H / N), this rank's weights, of a dtype of 16 bits.
    operators: those of days 87 and 88.
    """

    def __init__(self, operators, rows, up, down, ranks):
        day87, self.operators = operators
        self.up, self.down = up, down
        width, size = up.shape[1], up.dtype.itemsize
        # The flags of the tiles are behind the signals of day 87.
        flags = rounded_up(4 * (signal_words(rows, width, ranks) - SIGNAL_WORDS))
        out, slots = rounded_up(rows * width * size), slot_elements(rows, width, ranks)
        self.peers = Peers(day87, up.device, flags + out + slots * size)
        self.out = self.peers.buffer(rows * width, up.dtype, flags).view(rows, width)
        self.slots = self.peers.buffer(slots, up.dtype, flags + out)

    def __call__(self, x, *, version=3, blocks=4, timeout_ms=TIMEOUT_MS):
        """The output, on the current stream; the next call overwrites it. All ranks call it with
        equal x, in the same order. blocks: multiprocessors for the sums of v2 and v3."""
        self.operators.tensor_parallel_of_rank(
            x,
            self.up,
            self.down,
            self.out,
            self.slots,
            self.peers.memory,
            self.peers.addresses,
            version,
            self.peers.rank,
            blocks,
            timeout_ms,
        )
        return self.out

    def flags(self):
        """All of them are 0 between two calls."""
        rows, width = self.out.shape
        words = signal_words(rows, width, self.peers.world)
        return self.peers.memory[: 4 * words].view(torch.int32)

    def close(self):
        self.out = self.slots = None
        self.peers.close()
