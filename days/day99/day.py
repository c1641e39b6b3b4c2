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
        "piece begins at position word.start, the next ones PIECE positions apart."
    ),
    hints=(
        "How many pieces have word.count rows, the last piece included, which may be shorter? And "
        "where does piece p begin?",
        "sum_of_all<N>(0, pieces, load) adds what load(piece) returns, several in flight. "
        "Positions go up to 2^31, so compute them in int64_t.",
        "k = int64_t{word.start} + piece * PIECE; return load_raw of parts.at + "
        "slot_of(k, piece == 0) * chunks + c.",
    ),
)

PROBLEMS = problems
