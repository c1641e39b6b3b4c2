"""Run `python days/day05/day.py`: build the day, call each rung, compare with PyTorch.

`python run_day.py 5` checks all cases, tries much more, and times.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path


def main(file: str, argv: list[str] | None = None) -> int:
    """Run the day of this day.py; return 0 if a rung is right and none is wrong, else 1."""
    parser = argparse.ArgumentParser(description="Builds this day, calls it, and checks it.")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    given = parser.parse_args(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
    # Ctrl-C during the imports, torch's among them, ends the process without a traceback.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from common.base.compiling import BuildError
    from common.base.day_files import DayError
    from common.base.outcome import Skip
    from common.base.toolchain import ToolchainError
    from common.run.direct_run import RIGHT, WRONG, run

    signal.signal(signal.SIGINT, before)
    try:
        found = run(Path(file).resolve().parent, given.device)
    except KeyboardInterrupt:
        return 130
    except (DayError, ToolchainError, BuildError, OSError, Skip) as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if RIGHT in found and WRONG not in found else 1
