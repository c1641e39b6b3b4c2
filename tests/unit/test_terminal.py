"""What a terminal shows of a rung: all on a wide one, what a learner needs on a narrow one."""

from __future__ import annotations

import io

from common.base.outcome import FAIL, PASS, RungOutcome
from common.report.terminal import Report

LONG = "a row that is too long for the registers, or a row whose packs are not aligned in memory"


def lines(*outcomes: RungOutcome, narrow: bool = True) -> list[str]:
    stream = io.StringIO()
    report = Report(stream, narrow=narrow)
    for outcome in outcomes:
        report.rung(5, outcome, remarks=True)
    return stream.getvalue().splitlines()


def failed(problem: str, name: str) -> RungOutcome:
    return RungOutcome(problem, name, "", FAIL, "wrong", details=[f"at {name}.cu:7"])


def test_of_rungs_that_fail_alike_one_is_explained() -> None:
    shown = "\n".join(lines(failed("p", "v1"), failed("p", "v2")))
    assert "at v1.cu:7" in shown and "at v2.cu:7" not in shown


def test_each_tool_of_the_sanitizer_explains_what_it_found() -> None:
    shown = "\n".join(lines(failed("sanitize", "orders"), failed("sanitize", "addresses")))
    assert "at orders.cu:7" in shown and "at addresses.cu:7" in shown


def test_a_narrow_terminal_holds_every_sentence() -> None:
    passed = RungOutcome("p", "v1", LONG, PASS, remarks=[f"falls back: {LONG}"])
    shown = lines(passed)
    assert all(len(line) <= 80 for line in shown), shown
    assert LONG in " ".join(" ".join(shown).split())
    assert any(len(line) > 80 for line in lines(passed, narrow=False))


def test_what_is_left_out_can_be_had_where_the_remark_says_so() -> None:
    long = RungOutcome("p", "v1", "", FAIL, "wrong", details=[f"line {i}" for i in range(99)])
    assert "--json has all" in "\n".join(lines(long, narrow=False))
    assert "--json" not in "\n".join(lines(long)), "--practice takes no --json"
