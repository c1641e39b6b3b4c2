"""A launcher's refusal of a call: does it name the argument, or did something break?"""

from __future__ import annotations

import re

# Words of a device, a kernel or an allocator that gave up: not a refusal, whatever else is said.
GAVE_UP = re.compile(
    r"CUDA error|illegal (memory|address|instruction)|out of memory|out of bounds"
    r"|misaligned (address|access)|misaligned: this thread"
    r"|can't allocate memory|segmentation fault|block \(\d+,\d+,\d+\)"
    r"|on the wrong (stream|device)|too many blocks in cooperative launch",
    re.IGNORECASE,
)


def names_one_of(message: str, names: tuple[str, ...]) -> bool:
    """Whether a message names one of the arguments, as a word.

    "a" and "A" are words of English too: they count only in quotes or before a colon, "must",
    "has", "is" or "expected".
    """
    for name in names:
        word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
        if name in ("a", "A"):
            word = rf"['\"`]{name}['\"`]|{word}(?=\s*(:|=|must\b|has\b|is\b|expected\b))"
        if re.search(word, message):
            return True
    return False
