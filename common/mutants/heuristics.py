"""Recognise functions that only choose: a kernel, its tiles' size, the number of blocks or parts.

A mutants.toml lists them as [[heuristic]]. Every choice gives the same result, so a surviving
mutant of the choice is equivalent and needs no separate entry. Changes of arithmetic and
comparisons are covered, in the function's body and in the arguments of its calls; a dropped check
or a 32-bit index is a bug in such a function, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.base.days import Day
from common.mutants.derive import Mutant
from common.mutants.outline import outlines_of

CHOOSING = frozenset(
    {
        "arithmetic operator",
        "comparison",
        "constant off by one",
        "initial value",
        "loop bound off by one",
        "loop stride",
        "min for max",
        "rounded down",
    }
)


def covered(day: Day, mutant: Mutant) -> str:
    """Return why the mutant changes only a choice, "" if no heuristic of the day covers it."""
    if mutant.kind.name not in CHOOSING:
        return ""
    for function, why in day.heuristics.items():
        if _is_of(mutant, function) or _is_of_call(mutant, function.rpartition(": ")[2]):
            return why
    return ""


def unfit(day: Day, found: Sequence[Mutant]) -> list[str]:
    """Return the invalid heuristics of the day, each with the reason.

    found: all mutants of the day.
    """
    on_device = {
        function.name
        for read in outlines_of(day).values()
        for declared in read.declarations
        for function in declared.functions
        if function.on_device
    }
    problems = []
    for function in day.heuristics:
        if not any(_is_of(mutant, function) and mutant.kind.name in CHOOSING for mutant in found):
            problems.append(f"listed as a heuristic, but there is no mutant of it: {function}")
        elif function.rpartition(": ")[2] in on_device:
            problems.append(f"listed as a heuristic, but it is code of the GPU: {function}")
    return problems


def _is_of(mutant: Mutant, function: str) -> bool:
    return mutant.identity.startswith(f"{function}: ")


def _is_of_call(mutant: Mutant, called: str) -> bool:
    """Return True if the change is in an argument of this call, or combined with its result."""
    if mutant.original.startswith(f"{called}("):
        return True
    tokens, closed = mutant.code.code, 0
    for p in range(mutant.edit.start - 1, 0, -1):
        if tokens[p].is_op(")"):
            closed += 1
        elif tokens[p].is_op("("):
            if closed == 0 and tokens[p - 1].is_word(called):
                return True
            closed = max(closed - 1, 0)
        elif tokens[p].is_op(";", "{", "}"):
            break
    return False
