"""Choose the tool that watches a day, by purpose and device; no other module chooses."""

from __future__ import annotations

from common.process.events import Step
from common.tools import access_profile, compute_sanitizer, debugger, launch_drawing, nsight

TOOLS: dict[tuple[str, str], Step] = {
    ("sanitize", "cuda"): compute_sanitizer.run_day,
    ("sanitize", "cpu"): debugger.run_day,
    ("profile", "cuda"): nsight.run_day,
    ("profile", "cpu"): access_profile.run_day,
    ("profiled", "cuda"): nsight.run_rungs,
    ("draw", "cpu"): launch_drawing.run_day,  # on every machine
}
