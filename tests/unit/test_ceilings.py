"""Ceilings of a GPU: read, kept, compared with rates and targets; what is shown follows them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.base import ceilings
from common.base.ceilings import Ceilings, ceilings_of, share_of
from common.base.declaration import Target
from common.base.decoding import PlainError
from common.base.options import RunOptions
from common.base.outcome import PASS, DayOutcome, Timing
from common.base.paths import ROOT
from common.base.targets import all_met
from common.report import stored
from common.report.files import ResultsError
from common.run import command
from tests.unit.test_results import H200, LADDER, declare, passed, run, store_ceilings
from tests.unit.test_results import root as root  # the fixture

KNOWN = Ceilings(
    "NVIDIA Test", "2026-01-31", {"copy": 4000.0, "read": 4400.0, "fp32": 60.0, "tensor": 800.0}
)


def timing(ms: float = 1.0, **fields: Any) -> Timing:
    return Timing("case", ms, 0.01, 10, **fields)


def test_ceilings_survive_their_file() -> None:
    assert Ceilings.from_text(KNOWN.to_text(), "a file") == KNOWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        KNOWN.to_text().replace("800.0", "0"),
        KNOWN.to_text().replace("fp32", "fp31"),
        KNOWN.to_text() + "}",
    ],
)
def test_an_invalid_file_is_named(text: str) -> None:
    with pytest.raises(PlainError, match=r"^a\.json holds no ceilings: "):
        Ceilings.from_text(text, "a.json")


def test_stored_ceilings_come_before_kept_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "cache_directory", lambda: tmp_path / "cache")
    assert ceilings_of("NVIDIA H200", tmp_path) is None
    ceilings.keep(Ceilings("NVIDIA H200", "2026-01-31", {"copy": 1.0}))
    kept = ceilings_of("NVIDIA H200", tmp_path)
    assert kept and kept.rates == {"copy": 1.0}
    assert ceilings_of("NVIDIA H100", tmp_path) is None
    store_ceilings(tmp_path, copy=2.0)
    found = ceilings_of("NVIDIA H200", tmp_path / "days")
    assert found and found.rates == {"copy": 2.0}


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"gbs": 3000.0, "tflops": 1.0, "bound": "copy"}, 0.75),
        ({"gbs": 1.0, "tflops": 600.0, "bound": "tensor"}, 0.75),
        ({"tflops": 600.0, "bound": "fp8"}, None),  # not measured
        ({"gbs": 3000.0}, None),  # in L2
        ({"gbs": 3000.0, "bound": "copy", "note": "host clock"}, None),
        ({"bound": "copy"}, None),
    ],
)
def test_the_share_of_a_ceiling(fields: dict[str, Any], share: float | None) -> None:
    assert share_of(timing(**fields), KNOWN) == share
    assert share_of(timing(**fields), None) is None


@pytest.mark.parametrize(
    ("of", "reached"),
    [
        *(("copy", 0.9), ("read", 0.818), ("tensor", 0.5), ("fp32", 400 / 60)),
        *(("pytorch", 2.0), ("compile", 3.0), ("slow", 4.0)),
    ],
)
def test_targets(of: str, reached: float) -> None:
    mine = timing(gbs=3600.0, tflops=400.0, pytorch_ms=2.0, libraries={"compile": 3.0})
    others = {"fast": mine, "slow": timing(4.0)}
    for at_least, met in ((reached * 0.99, True), (reached * 1.01, False)):
        one = Target(at_least, of)
        assert all_met([one], mine, others, KNOWN) is met
        assert all_met([one, Target(0.001, "copy")], mine, others, KNOWN) is met
        assert all_met([one, Target(2.0, "copy")], mine, others, KNOWN) is False


def test_a_target_without_a_ceiling_has_no_verdict() -> None:
    mine = timing(gbs=3600.0, tflops=400.0)
    assert all_met([Target(0.1, "copy")], mine, {}, None) is None
    assert all_met([], mine, {}, KNOWN) is None
    assert all_met([Target(0.1, "compile")], mine, {}, None) is False, "it was not timed"
    assert all_met([Target(0.1, "tensor")], timing(gbs=3600.0), {}, KNOWN) is False


def test_targets_are_read_from_their_text() -> None:
    given = (Target(1.5, "compile"), Target(0.7, "copy"))
    assert Target.of_text(" and ".join(map(str, given))) == given
    assert Target.of_text("") == ()


def test_shares_and_verdicts_are_not_stored(root: Path) -> None:
    store_ceilings(root, 5000.0)
    stored.store(run(H200, passed(1)), root)
    text = (root / "days/day01/results/nvidia-h200.json").read_text()
    assert "share" not in text and "target_met" not in text
    best = stored.read_stored(root)[1][0].best
    assert best.timing and best.timing.share == 0.8 and best.target_met is False


def test_new_ceilings_change_what_is_shown(root: Path) -> None:
    """The run of day 50 that measures them regenerates the READMEs of the others."""
    store_ceilings(root, 5000.0)
    stored.store(run(H200, passed(1)), root)
    readme = root / "days/day01/README.md"
    assert "| 80% copy | 2.00× | ≥ 0.9 × copy ✗ |" in readme.read_text()
    (root / "days/day02").rename(root / "days/day50b")
    measured = DayOutcome(50, "day50", "t", PASS, rungs=passed(50).rungs)
    known = Ceilings("NVIDIA H200", "2026-01-02", {"copy": 4100.0})
    measured.files = {known.file_name: known.to_text()}
    day = root / "days/day50"
    for file in (root / "days/day01").glob("*.*"):
        (day / file.name).write_text(file.read_text())
    readme_50 = day / "README.md"
    readme_50.write_text(readme_50.read_text() + "<!-- ceilings:begin -->\n<!-- ceilings:end -->\n")
    stored.store(run(H200, measured), root)
    assert "| copy | 4100 GB/s |  |" in readme_50.read_text()
    assert "| 98% copy | 2.00× | ≥ 0.9 × copy ✓ |" in readme.read_text()
    assert stored.check(root) == []


def test_a_gpu_without_ceilings_has_no_share(root: Path) -> None:
    declare(root, add=LADDER)
    stored.store(run(H200, passed(1)), root)
    row = "| `add_v2` | fast | 0.250 ms | 4000 GB/s | 2.00× | ≥ 0.9 × copy |"
    assert row in (root / "days/day01/README.md").read_text()


def test_invalid_ceilings_are_an_error(root: Path) -> None:
    store_ceilings(root, 5000.0)
    file = next(root.rglob("ceilings-*.json"))
    file.write_text("{}")
    with pytest.raises(ResultsError, match=f"{file.name} holds no ceilings"):
        stored.read_stored(root)


def test_no_kernel_of_arithmetic_is_above_its_ceiling() -> None:
    """A share above 100 % would mean that the ceiling is none; only reading passes a copy."""
    seen = 0
    for results in stored.read_stored().values():
        for rung in (rung for one in results for rung in one.rungs):
            if rung.timing and rung.timing.share:
                most = 1.07 if rung.timing.bound == "copy" else 1.0
                assert rung.timing.share <= most, (rung.rung, rung.timing)
                seen += 1
    assert seen > 500


def test_stored_files_hold_no_share() -> None:
    files = [*(ROOT / "days").glob("day*/results/nvidia-*.json")]
    assert len(files) >= 100
    for file in files:
        assert stored.to_text(stored.from_text(file)) == file.read_text(encoding="utf-8"), file


def test_the_stored_ceilings_are_valid() -> None:
    files = ceilings.ceilings_files(ROOT / "days")
    assert files
    for path, text in files.items():
        found = Ceilings.from_text(text, path)
        assert path.name == found.file_name
        assert {"copy", "read", "fp32", "tensor"} <= {*found.rates}


def test_a_run_names_how_to_measure_missing_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    report = SimpleNamespace(
        status=lambda text: None, text=lambda text, style="": said.append(text), times=False
    )
    platform = SimpleNamespace(device="cuda", gpu="NVIDIA Test", note="", model="")
    monkeypatch.setattr(command, "detect", lambda device: platform)
    monkeypatch.setattr(command, "replace", lambda platform, **_: platform)
    monkeypatch.setattr(command, "_Import", lambda: SimpleNamespace(wait=lambda attend: None))
    monkeypatch.setattr(command, "_obstacles", lambda *_: [])
    monkeypatch.setattr(command, "keep_compilers_caches", lambda: None)
    options = RunOptions(device="cuda")
    selection: Any = SimpleNamespace(notes=[])
    for known, notes in ((None, 1), (KNOWN, 0)):
        said.clear()
        monkeypatch.setattr(command, "ceilings_of", lambda gpu, known=known: known)
        command.prepare(options, selection, report)  # type: ignore[arg-type]
        assert len(said) == notes and all("run_day.py 50" in text for text in said)
