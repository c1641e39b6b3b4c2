"""What further down in a day's file repeats an exercise, and so would be its solution.

A ladder's later rungs are often the exercise and one idea more. Their kernels are emptied in the
learner's file, where the checks do without them. What stands above stays: it is what the exercise
begins from.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

from common.base.declaration import Exercise
from common.cpu.lexer import tokenize
from common.practice.exercise import function_in, returns_value, solution
from common.practice.mutants.outline import outline

SAME = 0.6  # of the solution's tokens, in runs of at least RUN, is a repetition
RUN = 4


def repetitions(text: str, exercise: Exercise, needed: Collection[str]) -> list[str]:
    """The functions below the exercise that repeat it, without those of these names."""
    code, own = function_in(text, exercise.function)
    expected = [token.text for token in tokenize(solution(text, exercise)) if token.is_code]
    found = []
    for declared in outline(text).declarations:
        for function in declared.functions:
            if function.start <= own.start or function.name in needed:
                continue
            body = [token.text for token in code.code[function.body : function.end]]
            if share(expected, body) >= SAME:
                found.append(function.name)
    return found


def share(part: list[str], whole: list[str]) -> float:
    """How much of `part` stands in `whole`, in the same order."""
    matcher = difflib.SequenceMatcher(None, part, whole, autojunk=False)
    runs = (block.size for block in matcher.get_matching_blocks() if block.size >= RUN)
    return sum(runs) / max(len(part), 1)


def without(text: str, functions: Collection[str], where: str) -> str:
    """The file with a comment in place of what these functions do. where: the file that has it."""
    for name in functions:
        code, function = function_in(text, name)
        begin, end = code.offset(function.body) + 1, code.offset(function.end - 1)
        body = f"\n  // left out here, since it repeats your exercise; {where} has it\n"
        if returns_value(text, name):
            body += "  return {};\n"
        text = text[:begin] + body + text[end:]
    return text
