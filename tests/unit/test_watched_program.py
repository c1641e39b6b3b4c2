"""Programs of a day that run under a tool: the findings read from a tool's report."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.base.days import read_day
from common.base.paths import ROOT
from common.tools.nvidia import FOUND
from common.tools.watched_program import PLAIN, Way, _of_sanitizer, run_program

REPORT = f"""========= COMPUTE-SANITIZER
own line
========= Invalid __global__ read of size 4 bytes
=========     at gather(const float *)+0x80 in {ROOT}/faults.cu:12
=========     by thread (9,0,0) in block (0,0,0)
=========     Host Frame: cudaLaunchKernel [0x1] in libcudart.so
=========
========= ERROR SUMMARY: 1 error
"""


def test_a_finding_is_its_first_two_lines() -> None:
    said = _of_sanitizer(FOUND, REPORT)
    assert said.code == FOUND and said.lines == ("own line",)
    assert said.findings == (
        "Invalid __global__ read of size 4 bytes at gather(const float *)+… in faults.cu:12",
    )


def test_a_clean_report_has_no_finding() -> None:
    said = _of_sanitizer(0, "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n")
    assert said.findings == () and said.lines == ()


def test_the_backend_s_words_and_the_program_s_are_apart() -> None:
    text = "CUDA on CPU: illegal memory access\\n  at a.cu:1\\nresult 0: 1"
    said = run_program(Way(PLAIN, (sys.executable, "-c", f"print('{text}')")), [], 20)
    assert (said.code, said.lines) == (0, ("result 0: 1",))
    assert said.findings == ("illegal memory access",)


def test_a_program_without_an_end_is_ended() -> None:
    said = run_program(Way(PLAIN, (sys.executable, "-c", "while True: pass")), [], 0.5)
    assert said.code is None and said.findings == ("no end after 0.5 s",)


def test_a_program_is_ended_with_an_interrupted_run(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[str]] = []
    communicate = subprocess.Popen.communicate

    def interrupted(child: subprocess.Popen[str], *args: Any, **options: Any) -> Any:
        if children:
            return communicate(child, *args, **options)
        children.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_program(Way(PLAIN, (sys.executable, "-c", "while True: pass")), [], 20)
    assert children[0].returncode == -signal.SIGKILL


def test_a_program_is_a_source_of_the_folder_that_the_library_has_not(tmp_path: Path) -> None:
    folder = tmp_path / "day01"
    folder.mkdir()
    for name in ("x.cu", "more.cu", "program.cu"):
        (folder / name).touch()
    (folder / "day.py").write_text(
        'TITLE = "T"\nTEACHES = "t"\nTOPICS = ("t",)\nSOURCE = "x.cu"\n'
        'EXTRA_SOURCES = ("more.cu",)\n'
    )
    day = read_day(folder)
    assert day.programs == (folder / "program.cu",)
    learners = day.with_source(folder / "x.cu", tmp_path / "write.cu")
    assert learners.programs == day.programs
