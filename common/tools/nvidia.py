"""Find NVIDIA's tools: compute-sanitizer, ncu."""

from __future__ import annotations

import os
import shutil

from common.base.toolchain import Platform


def find_tool(name: str, platform: Platform) -> str | None:
    """Return a tool's path: in the folder of the nvcc in use, else on PATH, else None."""
    if platform.toolkit:
        for beside in (platform.toolkit.home / "bin" / name, platform.toolkit.home / name / name):
            if beside.is_file() and os.access(beside, os.X_OK):
                return str(beside)
    return shutil.which(name)
