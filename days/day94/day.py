"""Day 94: the heat equation on a 3D grid, two steps per pass; gravity between all pairs."""

from common.day import Exercise

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

EQUIVALENT = {  # mutants that compute the same, and why
    "stencil_nbody.cu: parts_of: loop stride: `++parts` -> `parts += 2`": (
        "another number of parts computes the same"
    ),
    "stencil_nbody.cu: parts_of: loop bound off by one: `parts <= nz` -> `parts <= nz - 1`": (
        "another number of parts computes the same"
    ),
    "stencil_nbody.cu: ring_pass: arithmetic operator: "
    "`int64_t{blocks.x} * blocks.y` -> `int64_t{blocks.x} / blocks.y`": (
        "another number of tiles gives another number of parts, which computes the same"
    ),
}

EXERCISE = Exercise(
    function="add_pull",
    source="nbody.cu",
    task=(
        "Add to `a` the acceleration that `other` (x, y, z and the mass w) causes at `own`. The "
        "squared distance is softened by eps2, and Root::of(x) is 1 / sqrt(x)."
    ),
    hints=(
        "The direction is other - own. By which one number, the same for x, y and z, is it scaled?",
        "The number is m / (r² + eps²)^(3/2). A power of -3/2 is the cube of the reciprocal root.",
        "Three differences, then inverse = Root::of of three nested fmaf that begin at eps2, then "
        "scale = other.w * inverse * (inverse * inverse), then one fmaf per component of `a`.",
    ),
)

PROBLEMS = (ONE_STEP, TWO_STEPS, GRAVITY)
