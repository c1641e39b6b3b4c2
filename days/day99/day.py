"""Day 99: all days on one roofline, and a kernel of your choice, improved and compared."""

if __name__ == "__main__":  # python days/day99/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day99

from .gradient import problems
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "The portfolio"
TEACHES = "All days on one roofline; how to find what holds a kernel back, and to improve it"
TOPICS = ("roofline", "portfolio", "embedding", "backward", "optimisation", "load balancing")
SOURCE = "portfolio.cu"
EXTRA_SOURCES = ("gradient.py", "proof.py", "roofline.py")

PROBLEMS = problems
