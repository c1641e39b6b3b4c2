"""Day 99: all days on one roofline, and a kernel of your choice, improved and compared."""

from common.day import Exercise

from .gradient import problems
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "The portfolio"
TEACHES = "All days on one roofline; how to find what holds a kernel back, and to improve it"
TOPICS = ("roofline", "portfolio", "embedding", "backward", "optimisation", "load balancing")
SOURCE = "portfolio.cu"
EXTRA_SOURCES = ("gradient.py", "proof.py", "roofline.py")

EXERCISE = Exercise(
    function="sum_of_parts",
    task=(
        "Column c of a frequent word: the sum of its parts, in the order of its pieces. Its first "
        "piece begins at position word.start, the next ones PIECE positions apart: slot_of says "
        "where their parts lie."
    ),
    hints=(
        "How many pieces have word.count rows, the last piece included, which may be shorter? And "
        "where does piece p begin?",
        "sum_of_all<N>(0, pieces, load) adds what load(piece) returns. From piece to piece the "
        "position grows by a tile, so the slot by two; the first piece alone has the odd one.",
        "at = parts.at + slot_of(word.start, false) * chunks + c; load_raw of at + slots * chunks, "
        "with 2 * piece + (piece == 0) slots.",
    ),
)

PROBLEMS = problems
