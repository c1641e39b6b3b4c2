"""Choose the tool that watches a day, by purpose and device; no other module chooses."""

from __future__ import annotations

from collections.abc import Callable

from common.base.days import Day
from common.base.options import RunOptions
from common.base.toolchain import Platform
from common.process.events import Channel
from common.tools import access_profile, compute_sanitizer, debugger, launch_drawing, nsight

Step = Callable[[Day, Platform, RunOptions, Channel], None]  # see common.process.worker.run_day

TOOLS: dict[tuple[str, str], Step] = {
    ("sanitize", "cuda"): compute_sanitizer.run_day,
    ("sanitize", "cpu"): debugger.run_day,
    ("profile", "cuda"): nsight.run_day,
    ("profile", "cpu"): access_profile.run_day,
    ("profiled", "cuda"): nsight.run_rungs,
    ("draw", "cpu"): launch_drawing.run_day,  # on every machine
}
