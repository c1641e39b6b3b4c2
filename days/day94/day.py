"""Day 94: the heat equation on a 3D grid, two steps per pass; gravity between all pairs."""

if __name__ == "__main__":  # python days/day94/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day94

from .gravity import GRAVITY
from .proof import show
from .stencil import ONE_STEP, TWO_STEPS

__all__ = ["PROBLEMS", "show"]

TITLE = "A 3D stencil and N-body"
TEACHES = "Temporal blocking: two time steps per pass; pairs at the rate of the FMA units"
TOPICS = ("stencil", "heat equation", "temporal blocking", "N-body", "gravity", "HPC", "leapfrog")
SOURCE = "stencil_nbody.cu"
EXTRA_SOURCES = ("nbody.cu", "stencil.py", "gravity.py", "proof.py")
INTRODUCES = ("stencil", "temporal blocking", "N-body", "leapfrog")

PROBLEMS = (ONE_STEP, TWO_STEPS, GRAVITY)
