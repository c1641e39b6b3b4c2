"""List the cards that the CPU backend can simulate, by compute capability.

The limits of a card are in one table, `runtime/models.h`, which is read here.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).resolve().parent / "runtime" / "models.h"
_UNITS = {"kKiB": 2**10, "kMiB": 2**20}


class ModelError(Exception):
    """The model does not exist; the message lists the existing ones."""


@dataclass(frozen=True)
class Card:
    """A row of the table: see `Model` there."""

    name: str
    card: str
    capability: int
    multiprocessors: int
    threads: int
    blocks: int
    shared_opt_in: int
    shared: int
    shared_reserved: int
    max_cluster: int
    l2: int
    copy_engines: int


@cache
def cards() -> dict[str, Card]:
    """Return the rows of the table, by the model's name."""
    rows = re.findall(r"^ *\{(\"[\d.]+\",.*)\},$", TABLE.read_text("utf-8"), re.MULTILINE)
    assert rows, f"{TABLE} lists no model"
    found = (Card(*(_value(text) for text in row.split(","))) for row in rows)  # type: ignore[arg-type]
    return {card.name: card for card in found}


def _value(text: str) -> str | int:
    """Return a field of a row: a name in quotes, or a product of numbers and units."""
    text = text.strip()
    if text.startswith('"'):
        return text.strip('"')
    return math.prod(_UNITS.get(factor) or int(factor) for factor in text.split(" * "))


@cache
def default() -> str:
    """Return the default model."""
    found = re.search(r'kDefaultModel = "([\d.]+)"', TABLE.read_text("utf-8"))
    assert found and found.group(1) in cards(), f"{TABLE} names no default"
    return found.group(1)


def chosen(name: str) -> str:
    """Return the model for a user's choice: "" is the default, and "9.0" simulates "9.0a".

    Raise ModelError for an unknown one.
    """
    if not name:
        return default()
    plain = name.removesuffix("a")
    if plain in cards():
        return plain
    near = difflib.get_close_matches(name, cards(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ModelError(f"{name!r} is no model; {hint}there are {listing()}")


def listing() -> str:
    """Return all models as text: "7.5 (T4), 8.0 (A100), …"."""
    return ", ".join(f"{card.name} ({card.card})" for card in cards().values())


def architecture(name: str) -> int:
    """Return `__CUDA_ARCH__` for a model, or for the default: 860 for "8.6"."""
    return 10 * cards()[chosen(name)].capability


_played: list[str] = []


def play(name: str) -> str:
    """Record and return the model that this process simulates from now on. Raise ModelError."""
    _played[:] = [chosen(name)]
    return _played[0]


def played() -> Card:
    """Return the card that the CPU backend simulates in this process."""
    return cards()[_played[0] if _played else default()]
