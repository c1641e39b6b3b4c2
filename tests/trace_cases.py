"""Run cases of `cpu_kernels/trace.cu` under the tracer, in a separate process.

    python -m tests.trace_cases RUNTIME LIBRARY MODE ORDER,SEED:CASE,FIXED …

For each case, prints a line of JSON: {"findings": […], "counts": […]}. A process can have only one
runtime library, and the process of the tests has the plain one.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from common.cpu.backend import Runtime
from common.cpu.findings import take


def main(runtime_path: str, library_path: str, mode: str, *cases: str) -> None:
    runtime = Runtime(Path(runtime_path))
    library = ctypes.CDLL(library_path)
    library.run_case.argtypes = [ctypes.c_char_p, ctypes.c_bool]
    library.run_case.restype = ctypes.c_bool
    runtime.set_trace(mode)
    for case in cases:
        schedule, what = case.split(":")
        order, seed = schedule.split(",")
        name, fixed = what.split(",")
        runtime.set_schedule(order, int(seed))
        if not library.run_case(name.encode(), fixed == "1"):
            sys.exit(f"no case {name!r}")
        found = take(runtime)
        findings = [
            {**finding.to_json(), "summary": finding.summary(), "details": finding.details()}
            for finding in found.findings
        ]
        counts = [sums.to_json() for sums in found.counts]
        print(json.dumps({"findings": findings, "counts": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
