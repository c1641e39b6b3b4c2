"""`--mutants`: the mutants that a day's checks reject or accept, and the results that a run
keeps."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.base.days import read_day
from common.base.paths import ROOT
from common.base.toolchain import detect
from common.base.verdict import Verdict
from common.mutants.campaign import Campaign, Choice, DayReport, _DayCampaign
from common.mutants.known_verdicts import KnownVerdicts
from tests.command_line import CommandLine
from tests.progress import finish, wait_for

DAYS = ROOT / "tests" / "mutant_days"
MISSED = "limited: arithmetic operator: `v - 1` -> `v + 1`"
EQUAL = "limited: comparison: `low > limit` -> `low >= limit`"
CAUGHT = "limit_kernel: comparison: `i < n` -> `i <= n`"
UNREFUSED = (
    'limit: validation dropped: `require_capability(8, 0, "sums of a warp in one instruction")` '
    "-> ``"
)
REFUSED_TOO = (
    'limit: constant off by one: `require_capability(8, 0, "sums of a warp in one instruction")` '
    '-> `require_capability(9, 0, "sums of a warp in one instruction")`'
)
READS_BEYOND = "limit_kernel: bounds check dropped: `i < n ? x[i]` -> `true ? x[i]`"


def tried(run: CommandLine, report: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the day's report, and the output."""
    done = run("1", "--mutants", "-j", "2", "--json", str(report), *options)
    assert report.is_file(), done.stdout
    return done.returncode, json.loads(report.read_text())["mutants"][0], done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """Return the results of a run over all standard mutants of the day."""
    return tried(CommandLine(DAYS), tmp_path_factory.mktemp("mutants") / "report.json", "--fresh")


def verdicts(day: dict[str, Any]) -> dict[str, Any]:
    return {verdict["identity"]: verdict for verdict in day["verdicts"]}


def test_a_missing_case_lets_a_mutant_survive(whole: tuple[int, dict[str, Any], str]) -> None:
    code, day, output = whole
    found = verdicts(day)
    assert not day["error"]
    assert found[MISSED]["status"] == "survived"
    assert MISSED in output
    assert code == 1  # a mutant listed as equivalent is not


def test_what_is_killed_says_by_what(whole: tuple[int, dict[str, Any], str]) -> None:
    found = verdicts(whole[1])
    caught = found[CAUGHT]
    assert caught["status"] == "killed" and caught["rung"] == "limit" and caught["reason"]
    killers = {v["by"] for v in found.values() if v["status"] == "killed"}
    assert {"result", "bad input"} <= killers
    assert not any("not_reached" in identity for identity in found)


def test_a_read_beyond_a_tensor_is_seen_where_no_result_depends_on_it(
    whole: tuple[int, dict[str, Any], str],
) -> None:
    found = verdicts(whole[1])[READS_BEYOND]
    assert (found["status"], found["by"]) == ("killed", "sanitizer: addresses")


def test_a_card_that_is_no_longer_refused_is_seen(whole: tuple[int, dict[str, Any], str]) -> None:
    found = verdicts(whole[1])[UNREFUSED]
    assert (found["status"], found["by"]) == ("killed", "another card")


def test_a_card_that_is_refused_without_a_reason_is_seen(
    whole: tuple[int, dict[str, Any], str],
) -> None:
    found = verdicts(whole[1])[REFUSED_TOO]
    assert (found["status"], found["by"]) == ("killed", "another card")
    assert "on a card of compute capability 8.0" in found["reason"]


def test_the_list_of_equivalent_mutants_must_hold(whole: tuple[int, dict[str, Any], str]) -> None:
    _, day, output = whole
    assert verdicts(day)[EQUAL]["status"] == "equivalent"
    problems = "\n".join(day["problems"])
    assert "no such mutant: limited: comparison: `v < 0` -> `v >= 0`" in problems
    assert f"but killed ({verdicts(day)[CAUGHT]['by']}): {CAUGHT}" in problems
    assert EQUAL not in problems
    assert all(problem in output for problem in day["problems"])


def test_a_choice_that_survives_is_equivalent(whole: tuple[int, dict[str, Any], str]) -> None:
    """A mutant that breaks the kernel is killed in a heuristic too."""
    _, day, _ = whole
    found = {
        v["identity"].removeprefix("threads_for: "): v
        for v in day["verdicts"]
        if v["identity"].startswith("threads_for: ")
    }
    later = found["comparison: `n < 80` -> `n <= 80`"]
    assert (later["status"], later["by"]) == ("equivalent", "declared")
    assert later["reason"] == "either number of threads gives the same result"
    assert found["constant off by one: `64` -> `65`"]["status"] == "killed"
    problems = "\n".join(day["problems"])
    assert "there is no mutant of it: blocks_for" in problems and "threads_for" not in problems


def test_a_run_goes_on_where_one_was_ended(
    whole: tuple[int, dict[str, Any], str], tmp_path: Path
) -> None:
    _, again, output = tried(CommandLine(DAYS), tmp_path / "again.json")
    assert all(verdict["stored"] for verdict in again["verdicts"])
    assert "known from before" in output
    assert {k: v["status"] for k, v in verdicts(again).items()} == {
        k: v["status"] for k, v in verdicts(whole[1]).items()
    }


def test_a_sample_is_replayable(whole: tuple[int, dict[str, Any], str], tmp_path: Path) -> None:
    options = ("--sample", "2", "--seed", "7")
    _, one, output = tried(CommandLine(DAYS), tmp_path / "one.json", *options)
    _, two, _ = tried(CommandLine(DAYS), tmp_path / "two.json", *options)
    assert len(one["verdicts"]) == 2 and list(verdicts(one)) == list(verdicts(two))
    assert "--sample 2 --seed 7" in output


def test_interrupted_it_tells_what_is_known(
    whole: tuple[int, dict[str, Any], str], tmp_path: Path
) -> None:
    run = CommandLine(DAYS)
    report = tmp_path / "report.json"
    process = run.start("1", "--mutants", "--fresh", "-j", "1", "--json", str(report))
    ledger = Path(run.environment["HUNDRED_DAYS_CACHE"]) / "mutants" / "day01.jsonl"
    before = ledger.stat().st_size
    wait_for(lambda: ledger.stat().st_size != before, process)
    process.send_signal(signal.SIGINT)
    output, _ = finish(process)
    assert process.returncode == 130
    assert "interrupted" in output
    assert report.is_file()
    assert run.alive() == []


# Headers ------------------------------------------------------------------------------------------


def of_the_header(
    folder: Path, choice: Choice, tell: Callable[[DayReport], None] = lambda report: None
) -> DayReport:
    """Return the report of the day that has a header, and of two kinds of this header's mutants."""
    campaign = Campaign(detect("cpu"), 1, choice, tell)
    try:
        day = _DayCampaign(campaign, read_day(DAYS / "day02"), folder)
        chosen = day._choose
        day._choose = lambda found: [  # type: ignore[method-assign]
            m
            for m in chosen(found)
            if m.source.suffix == ".cuh" and m.kind.name in ("arithmetic operator", "comparison")
        ]
        return day.run()
    finally:
        campaign.close()


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> DayReport:
    return of_the_header(tmp_path_factory.mktemp("header"), Choice(fresh=True))


def test_a_header_is_changed_in_every_source_that_includes_it(header: DayReport) -> None:
    found = {
        verdict.identity.removeprefix("part.cuh: part: "): verdict for verdict in header.verdicts
    }
    for change, rung in (("`v + 1` -> `v - 1`", "whole"), ("`v / n` -> `v * n`", "halved")):
        killed = found[f"arithmetic operator: {change}"]
        assert (killed.status, killed.by, killed.rung) == ("killed", "result", rung)
        assert (killed.source, killed.line) == ("part.cuh", 6)
    assert found["arithmetic operator: `v - 1` -> `v + 1`"].status == "survived"
    assert found["comparison: `v < 0` -> `v <= 0`"].status == "equivalent"
    assert header.problems == []


def test_what_is_known_of_a_header_is_kept(header: DayReport, tmp_path: Path) -> None:
    again = of_the_header(tmp_path, Choice())
    assert all(verdict.stored for verdict in again.verdicts)
    assert [v.status for v in again.verdicts] == [v.status for v in header.verdicts]


def test_what_is_known_is_reported_before_others_are_tried(
    header: DayReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an interrupted run would not report it."""
    forgotten = header.verdicts[0]
    known = KnownVerdicts.verdict
    reported: list[list[str]] = []

    def verdict(ledger: KnownVerdicts, key: str) -> Verdict | None:
        found = known(ledger, key)
        return None if found and found.identity == forgotten.identity else found

    monkeypatch.setattr(KnownVerdicts, "verdict", verdict)
    monkeypatch.setattr(_DayCampaign, "_try_with_enough", lambda *_: replace(forgotten))
    of_the_header(tmp_path, Choice(), lambda r: reported.append([v.identity for v in r.verdicts]))
    assert reported[-1] == [v.identity for v in header.verdicts]
    assert reported[-2] == reported[-1][1:]
