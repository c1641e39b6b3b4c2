"""Distinguish a launcher's refusal, which names the argument, from a failure during the call."""

from __future__ import annotations

import re

# Words of a device, a kernel or an allocator that failed: never a refusal.
GAVE_UP = re.compile(
    r"CUDA error|illegal (memory|address|instruction)|out of memory|out of bounds"
    r"|misaligned (address|access)|misaligned: this thread"
    r"|can't allocate memory|segmentation fault|block \(\d+,\d+,\d+\)"
    r"|on the wrong (stream|device)|too many blocks in cooperative launch",
    re.IGNORECASE,
)


# The text added to CUDA's error of a refused launch, by the CPU backend (runtime/launch.cpp)
# or by common/cuda/tensor.cuh: it mentions threads, blocks and x, but not an argument.
_OF_A_LAUNCH = re.compile(
    r"(?:: |, )(?:a grid (?:of|has) |\d+ threads per block|dynamic shared memory of |"
    r"shared memory is at most |in \S+<<<)[^\n]*"
)


def names_one_of(message: str, names: tuple[str, ...]) -> bool:
    """Return True if a message contains the name of one of the arguments as a word.

    "a" and "A" are also words of English: they count only in quotes or before a colon, "must",
    "has", "is" or "expected".
    """
    message = _OF_A_LAUNCH.sub("", message)
    for name in names:
        word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
        if name in ("a", "A"):
            word = rf"['\"`]{name}['\"`]|{word}(?=\s*(:|=|must\b|has\b|is\b|expected\b))"
        if re.search(word, message):
            return True
    return False
