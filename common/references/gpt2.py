"""Shapes of the parameters of a GPT-2."""

from __future__ import annotations


def gpt2_shapes(layers: int, C: int, words: int, positions: int) -> list[tuple[int, ...]]:
    """Return the shapes of all parameters of a GPT-2 with C channels: 12 per layer, and both
    embeddings."""
    layer = [(C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,)]
    layer += [(C,), (C,), (4 * C, C), (4 * C,), (C, 4 * C), (C,)]
    return [(words, C), (positions, C), *(layer * layers), (C,), (C,)]
