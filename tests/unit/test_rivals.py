"""--rivals: other libraries, timed where they are installed, and never needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

import run_day
from common.base import rivals
from common.base.days import Lesson, discover, load_lesson
from common.base.declaration import COMPILE, Case, Cost, Library, Problem, Rung, Target
from common.base.options import RunOptions
from common.base.outcome import PASS, RungOutcome, Timing
from common.base.paths import ROOT
from common.base.targets import all_met
from common.base.toolchain import detect
from common.base.where import where
from common.bench import timing as bench
from common.check.device import Backend
from common.process.worker import chosen_problems
from common.report.columns import beside, untimed

PINS = [
    Requirement(text)
    for line in (ROOT / ".ci" / "rivals.txt").read_text().splitlines()
    if (text := line.partition("#")[0].strip())
]
DOUBLE = Problem(
    name="double",
    inputs=lambda case, draw: (draw(*case.shape),),
    reference=lambda x: x * 2,
    pytorch=lambda x: x * 2,
    rungs=(Rung("doubled", "", target=Target(1.0, "Fake")),),
    cases=(Case((8,)),),
    bench=Case((1 << 12,)),
    bench_cpu=Case((1 << 12,)),
    cost=lambda case: Cost(bytes=8 * case.shape[0]),
)


def by(module: str) -> Any:
    """Return a rival's call, which imports its module."""
    return lambda x: __import__(module).double(x)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of modules, with a package fake-rival 1.2 that holds fake_rival."""
    (tmp_path / "fake_rival.py").write_text("def double(x): return x + x\n")
    (tmp_path / "fake_broken.py").write_text("raise OSError('no libfake.so.3')\n")
    metadata = tmp_path / "fake_rival-1.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: fake-rival\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(rivals.PACKAGES, "Fake", "--some-option fake-rival[cu13]")
    monkeypatch.setitem(rivals.PACKAGES, "Absent", "absent-rival[cu13]")
    monkeypatch.setattr(bench, "_libraries", lambda problem, *_: problem.libraries)
    return tmp_path


def timed(*libraries: Library) -> Timing:
    calls = {"doubled": lambda x: x * 2}
    problem = replace(DOUBLE, libraries=libraries)
    bench.warm_up(problem, calls, Backend("cpu"))
    found = bench.time_problem(problem, calls, Backend("cpu"), None, quick=True)["doubled"]
    assert isinstance(found, Timing), found
    return found


def test_a_rival_is_timed_where_it_is_installed(installed: Path) -> None:
    found = timed(Library("Fake", by("fake_rival")))
    assert list(found.libraries) == ["Fake"] and found.libraries["Fake"] > 0
    assert not found.missing


def test_one_that_is_not_installed_is_named_with_the_command(installed: Path) -> None:
    found = timed(Library("Absent", by("absent_rival")), Library("Fake", by("fake_rival")))
    command = "python -m pip install -c .ci/rivals.txt 'absent-rival[cu13]'"
    assert found.missing == {"Absent": f"not installed: {command}"}
    assert list(found.libraries) == ["Fake"]


def test_one_that_cannot_be_imported_is_named_with_the_message(installed: Path) -> None:
    found = timed(Library("Fake", by("fake_broken")))
    assert found.missing == {"Fake": "OSError: no libfake.so.3"} and not found.libraries
    found = timed(Library("Fake", by("of_which_it_depends")))
    assert found.missing["Fake"] == "ModuleNotFoundError: No module named 'of_which_it_depends'"


def test_one_that_fails_is_named_with_its_message(installed: Path) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("expected sm_100\nand more")

    found = timed(Library("Fake", fails))
    assert found.missing == {"Fake": "RuntimeError: expected sm_100"} and not found.libraries


def test_one_that_breaks_the_device_is_named(installed: Path) -> None:
    broken: list[str] = []

    class Device(Backend):
        def synchronize(self) -> None:
            if broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

    problem = replace(
        DOUBLE, libraries=(Library("compile", torch.add), Library("Fake", broken.append))
    )
    assert bench.warm_up(problem, {"doubled": lambda x: x * 2}, Device("cpu")) == "Fake"


def test_one_that_computes_something_else_gets_no_time(installed: Path) -> None:
    found = timed(Library("Fake", lambda x: x * 3))
    assert "differs by 50%" in found.missing["Fake"] and not found.libraries


def test_one_that_overwrites_its_argument_gets_a_copy(installed: Path) -> None:
    seen = set()

    def doubles(x: torch.Tensor) -> torch.Tensor:
        seen.add(x.data_ptr())
        return x.mul_(2)

    found = timed(Library("Fake", doubles, writes=(0,)))
    assert list(found.libraries) == ["Fake"], "the first rung and the rival agree"
    assert len(seen) == 2, "one copy for the warm-up, one for the timing"


def test_rivals_join_the_libraries_only_where_they_are_requested() -> None:
    problem = replace(DOUBLE, libraries=(COMPILE,), rivals=(Library("Fake"),))
    lesson = Lesson((problem,))
    (usual,) = chosen_problems(lesson, RunOptions())
    assert usual.libraries == (COMPILE,)
    (more,) = chosen_problems(lesson, RunOptions(rivals=True))
    assert [each.name for each in more.libraries] == ["compile", "Fake"]


def test_a_target_of_a_rival_is_open_until_it_is_timed(installed: Path) -> None:
    mine = Timing("case", 1.0, 0.0, 9, pytorch_ms=2.0)
    faster, rival = Target(1.5, "pytorch"), Target(1.0, "Fake")
    assert all_met([faster, rival], mine, {}, None) is None
    assert all_met([Target(3.0, "pytorch"), rival], mine, {}, None) is False
    for ms, met in ((1.1, True), (0.9, False)):
        beaten = replace(mine, libraries={"Fake": ms})
        assert all_met([faster, rival], beaten, {}, None) is met


def test_the_table_has_the_fastest_first_and_what_is_missing() -> None:
    mine = Timing("case", 1.0, 0.0, 9, gbs=3000.0, bound="copy", pytorch_ms=2.0)
    mine.libraries, mine.missing = {"quack": 0.75, "compile": 1.5}, {"Liger": "not installed: …"}
    outcome = RungOutcome("p", "softmax_v6", "", PASS, timing=mine)
    header, rows = beside(outcome)
    assert header == ["", "time", "rate", "× softmax_v6"]
    assert rows == [
        ["quack", "0.750 ms", "4000 GB/s", "0.75×"],
        ["softmax_v6", "1.00 ms", "3000 GB/s", "1.00×"],
        ["torch.compile", "1.50 ms", "2000 GB/s", "1.50×"],
        ["PyTorch", "2.00 ms", "1500 GB/s", "2.00×"],
    ]
    assert untimed(outcome) == ["Liger: not installed: …"]
    assert RungOutcome.from_json(asdict(outcome)) == outcome


def test_a_report_names_the_versions(installed: Path) -> None:
    platform = detect("cpu")
    assert "rivals" not in where(platform)
    assert "Fake 1.2" in where(platform, rivals=True)["rivals"].split(", ")


@pytest.mark.parametrize("words", ["--device cpu", "--quick", "--no-bench", "--sanitize"])
def test_what_times_nothing_on_a_gpu_times_no_rivals(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = run_day.parser()
    with pytest.raises(SystemExit) as ended:
        run_day.check(parser, parser.parse_args(["5", "--rivals", *words.split()]))
    assert ended.value.code == 2 and "--rivals are timed" in capsys.readouterr().err


def test_every_rival_is_pinned() -> None:
    assert all({s.operator for s in pin.specifier} == {"=="} for pin in PINS)
    packages = {rivals.package(name) for name in rivals.PACKAGES} - {""}
    assert packages <= {pin.name for pin in PINS}


def test_days_declare_rivals_by_their_names() -> None:
    declared = set()
    for day in discover(ROOT / "days")[0]:
        for problem in load_lesson(day.with_further()).problems:
            names = {each.name for each in problem.rivals}
            assert names <= set(rivals.PACKAGES), f"{day.name}: {names}"
            assert not {each.name for each in problem.libraries} & set(rivals.PACKAGES), day.name
            declared |= names
    assert declared == set(rivals.PACKAGES), "each is timed somewhere"


def test_days_import_no_rival(tmp_path: Path) -> None:
    """In a separate process, in which every module of theirs fails."""
    modules = (
        *("bitsandbytes", "cudnn", "deep_gemm", "flash_attn", "flashinfer", "gsplat", "humming"),
        *("liger_kernel", "mamba_ssm", "quack"),
    )
    for name in modules:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} is imported')\n")
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from common.base.days import discover, load_lesson\n"
        "from common.base.paths import DAYS\n"
        "for day in discover(DAYS)[0]: load_lesson(day.with_further())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
