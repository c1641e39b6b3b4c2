"""The names that most days import to declare their problems.

Days import rarer names from the modules that define them. Listing days reads day.py without running
it. A process that runs day.py has imported PyTorch already.
"""

from common.base.declaration import (
    COMPILE,
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    one_tensor,
    streamed,
)
from common.base.outcome import Skip
from common.bench.showing import peak_memory, print_table, rows_as_json, seconds
from common.bench.two_compilers import print_machine_code
from common.build.machine_code import TritonKernel
from common.check.arguments import aligned, require
from common.report.svg import figure_as_svg

FLOATS = ["float32", "float16", "bfloat16"]
HALVES = ["float16", "bfloat16"]

__all__ = [
    "COMPILE",
    "FLOATS",
    "HALVES",
    "Case",
    "Cost",
    "Library",
    "Problem",
    "Rung",
    "Skip",
    "Target",
    "Tolerance",
    "TritonKernel",
    "aligned",
    "figure_as_svg",
    "grid",
    "one_tensor",
    "peak_memory",
    "print_machine_code",
    "print_table",
    "require",
    "rows_as_json",
    "seconds",
    "streamed",
]
