"""Extract from a day's source the code of some rungs, for a learner's file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.cpu.lexer import Token
from common.mutants.outline import Outline, reached_together
from common.practice.steps import with_backward


def excerpt(outlines: Mapping[Path, Outline], source: Path, rungs: Sequence[str]) -> str:
    """Return a source with the code that these rungs use, and that other files need; only comments
    that belong to this code remain.

    outlines: of all files that are linked together, see `outlines_of`.
    """
    read = outlines[source]
    # Other sources are linked completely; of headers, only reached code counts.
    kept = set(with_backward(outlines, rungs))
    reached = reached_together(outlines, kept)
    others = {
        word
        for path, other in outlines.items()
        if path != source
        for declared in (other.declarations if path.suffix == ".cu" else reached.get(path, ()))
        for word in declared.uses
    }
    needed = {d.name for d in read.declarations if d.is_function and d.name in others}
    used = {d.start for d in read.used_by(read.launchers(kept) | needed)}
    gone = [
        d
        for d in read.declarations
        if d.start not in used and not kept & d.operators and (d.name or d.operators)
    ]
    tokens = read.code.tokens
    begins = {}
    offset = 0
    for i, token in enumerate(tokens):
        begins[offset] = i
        offset += len(token.text)
    dropped: set[int] = set()
    for declared in gone:
        first = begins[read.code.offset(declared.start)]
        last = begins[read.code.offset(declared.end - 1)]
        dropped.update(range(_comments_from(tokens, first), _line_to(tokens, last)))
    text = "".join("" if i in dropped else token.text for i, token in enumerate(tokens))
    return re.sub(r"\n{3,}", "\n\n", text)


def _comments_from(tokens: Sequence[Token], first: int) -> int:
    """Return the index where the comments above the token at `first` begin; one that follows other
    code on its line belongs to that code."""
    begin = first
    while begin > 0 and not tokens[begin - 1].is_code and not tokens[begin - 1].directive:
        begin -= 1
    while begin < first and tokens[begin].kind != "newline":
        begin += 1
    return begin


def _line_to(tokens: Sequence[Token], last: int) -> int:
    """Return the index after the token at `last`, and after a comment on its line."""
    end = last + 1
    while end < len(tokens) and tokens[end].kind in ("space", "comment"):
        end += 1
    return end
