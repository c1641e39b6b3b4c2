"""A rung on a terminal: complete on a wide one, the part that a learner needs on a narrow one."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Timing
from common.base.paths import ROOT
from common.report.columns import TERMINAL
from common.report.terminal import (
    COLOURS,
    NO_TIMES,
    STYLES,
    Report,
    example_line,
    legend,
    rung_line,
    summary_lines,
)

LONG = "a row that is too long for the registers, or a row whose packs are not aligned in memory"


def lines(*outcomes: RungOutcome, narrow: bool = True) -> list[str]:
    stream = io.StringIO()
    report = Report(stream, narrow=narrow)
    for outcome in outcomes:
        report.rung(5, outcome, remarks=True)
    return stream.getvalue().splitlines()


def failed(problem: str, name: str) -> RungOutcome:
    return RungOutcome(problem, name, "", FAIL, "wrong", details=[f"at {name}.cu:7"])


def test_the_summary_says_where_the_time_went() -> None:
    days = [
        DayOutcome(1, "day01", "t", PASS, build_s=2.0, run_s=4.0,
                   spent={"checking": 3.0, "timing": 1.0, "waiting": 9.0}),
        DayOutcome(2, "day02", "t", PASS, run_s=8.0,
                   spent={"checking": 7.5, "loading": 0.5, "waiting": 1.0}),
    ]  # fmt: skip
    _, summed, slowest = ("".join(text for text, _ in line) for line in summary_lines(days, 14.0))
    assert summed == (
        "14.0 s in all; summed over days: checking 10.5 s, waiting 10.0 s, building 2.00 s, "
        "timing 1.00 s"
    )
    assert slowest == "slowest: day 2 8.00 s, day 1 6.00 s"
    _, alone = ("".join(text for text, _ in line) for line in summary_lines(days[:1], 6.0))
    assert alone == "6.00 s in all, 2.00 s building"


def test_of_rungs_that_fail_alike_one_is_explained() -> None:
    shown = "\n".join(lines(failed("p", "v1"), failed("p", "v2")))
    assert "at v1.cu:7" in shown and "at v2.cu:7" not in shown


def test_of_a_long_reason_that_comes_again_one_line_is_shown() -> None:
    one = RungOutcome("p", "v1", "", FAIL, f"it raised: {LONG}", details=["  in kernel k"])
    shown = lines(one, replace(one, rung="v2"))
    assert "in memory" in shown[3] and shown[-1].endswith(" …"), shown
    assert len(shown) == 6 and len(shown[-1]) <= 80
    needs = "a GPU is needed, because the library that this rung calls runs on nothing else"
    shown = lines(one, RungOutcome("p", "v2", "", SKIP, needs))
    assert needs in " ".join(" ".join(shown).split())


def test_a_rung_that_comes_to_the_same_in_several_problems_is_shown_once() -> None:
    """Twenty lines of known facts would push the explanation off the screen."""
    stream = io.StringIO()
    report = Report(stream, narrow=True)
    for problem in ("p", "q", "r"):
        states = {"v1": PASS, "v2": FAIL, "v3": FAIL if problem == "r" else PASS}
        for name, status in states.items():
            report.rung(5, RungOutcome(problem, name, "", status, "wrong"), problem)
    shown = [" ".join(line.split()) for line in stream.getvalue().splitlines()[1:]]
    assert [line for line in shown if line.startswith("5 ")] == [
        *("5 p:", "5 v1 PASS", "5 v2 FAIL", "5 v3 PASS", "5 r:", "5 v3 FAIL")
    ], shown


def test_each_tool_of_the_sanitizer_explains_what_it_found() -> None:
    shown = "\n".join(lines(failed("sanitize", "orders"), failed("sanitize", "addresses")))
    assert "at orders.cu:7" in shown and "at addresses.cu:7" in shown


def test_a_narrow_terminal_holds_every_sentence() -> None:
    passed = RungOutcome("p", "v1", LONG, PASS, remarks=[f"falls back: {LONG}"])
    shown = lines(passed)
    assert all(len(line) <= 80 for line in shown), shown
    assert LONG in " ".join(" ".join(shown).split())
    assert any(len(line) > 80 for line in lines(passed, narrow=False))


def test_a_remark_is_made_once() -> None:
    one = RungOutcome("p", "v1", "", PASS, remarks=["falls back on some cases"])
    two = replace(one, rung="v2", remarks=[*one.remarks, "built in 3 s"])
    shown = "\n".join(lines(one, two, two))
    assert shown.count("falls back") == shown.count("built in") == 1
    assert "\n".join(lines(one, two, narrow=False)).count("falls back") == 2


def test_what_is_left_out_can_be_had_where_the_remark_says_so() -> None:
    long = RungOutcome("p", "v1", "", FAIL, "wrong", details=[f"line {i}" for i in range(99)])
    assert "--json has all" in "\n".join(lines(long, narrow=False))
    assert "--json" not in "\n".join(lines(long)), "--practice takes no --json"


def test_how_a_rung_was_checked_is_shown_on_request() -> None:
    """A newcomer's first run does not need it."""
    outcome = RungOutcome("p", "v1", "", PASS, remarks=["not timed: it is short"])
    outcome.asides = ["falls back on 25 of 50 cases"]
    for verbose in (False, True):
        stream = io.StringIO()
        Report(stream, verbose=verbose).rung(5, outcome, remarks=True)
        assert "not timed: it is short" in stream.getvalue()
        assert ("falls back" in stream.getvalue()) == verbose


TIMED = Timing("1024", 0.5, 0.0, 9, gbs=100.0, share=0.9, bound="copy", pytorch_ms=1.0)


@pytest.mark.parametrize("times", [False, True])
def test_times_of_the_cpu_backend_are_not_shown(times: bool) -> None:
    rung = RungOutcome("p", "v1", "", PASS, checked=3, bad_inputs=7, timing=TIMED)
    stream = io.StringIO()
    report = Report(stream)
    report.times = times
    report.rung(5, rung)
    report.legend([DayOutcome(5, "day05", "t", PASS, rungs=[rung])])
    text = " ".join(stream.getvalue().split())
    for figure in ("GB/s", "2.00×", "0.500 ms", "peak", "×torch"):
        assert (figure in text) == times, figure
    assert ("3 cases, 7 bad inputs" in text) != times
    assert (f"{NO_TIMES}; see days/day05/README.md" in text) != times
    assert "×lib." in text.partition("PASS")[0] or not times
    assert "best library" not in text, "what no line shows is not explained"


def test_a_legend_explains_every_column() -> None:
    rung = RungOutcome("p", "v1", "", PASS, timing=replace(TIMED, libraries={"compile": 1.0}))
    shown = " ".join(legend([DayOutcome(5, "day05", "t", PASS, rungs=[rung])], True))
    for column in TERMINAL[2:]:
        assert f"{column.short}: " in shown
    assert legend([DayOutcome(5, "day05", "t", FAIL)], True) == []


def test_a_narrow_terminal_leaves_tables_and_code_as_they_are() -> None:
    table = "(0, 0)  " + "1.5  " * 30 + "end"
    code = "   12 | " + "x + " * 30 + "end"
    message = f"days/day02/write.cu:64:15: error: {LONG}"
    shown = lines(RungOutcome("p", "v1", "", FAIL, "wrong", details=[message, table, code]))
    assert f"      {table}" in shown and f"      {code}" in shown
    assert message in " ".join(" ".join(shown).split())
    assert sum(len(line) > 80 for line in shown) == 2


def test_a_heading_is_not_shown_alone() -> None:
    details = [*(f"line {i}" for i in range(4)), "around it", "  1  2", "  1  3"]

    def shown(how_many: int) -> list[str]:
        stream = io.StringIO()
        report = Report(stream, shown_details=how_many, narrow=True)
        report.details(details)
        return [line.strip() for line in stream.getvalue().splitlines()]

    assert shown(5) == [*details[:4], "… 3 more lines"]
    assert shown(6) == [*details[:5], "1  2", "… 1 more line"]
    assert len(shown(7)) == 7


# ---------------------------------------------------------------- colours


class Terminal(io.StringIO):
    """A stream that is a terminal's."""

    def isatty(self) -> bool:
        return True


def drawn(colour: bool = True) -> str:
    stream = Terminal()
    report = Report(stream, colour=colour)
    report.status("checking")
    for status in (PASS, FAIL, SKIP):
        report.line(rung_line(5, RungOutcome("p", "v1", "", status, "a reason")))
    report.text("a remark", "dim")
    report.close()
    return stream.getvalue()


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def luminance(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance, 0 to 1 (W3C, Web Content Accessibility Guidelines 2.2)."""
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def of_number(number: int) -> tuple[int, int, int]:
    """Return a colour of xterm's 256: a cube of 6 levels from 16 on, and greys from 232 on."""
    if number >= 232:
        return (8 + 10 * (number - 232),) * 3
    levels = (0, 95, 135, 175, 215, 255)
    return levels[(number - 16) // 36], levels[(number - 16) // 6 % 6], levels[(number - 16) % 6]


BACKGROUNDS = {
    "white": (255, 255, 255),
    "Solarized light": (253, 246, 227),
    "black": (0, 0, 0),
    "GitHub dark": (13, 17, 23),
    "VS Code dark": (30, 30, 30),
    "Solarized dark": (0, 43, 54),
    "One Dark": (40, 44, 52),
}


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_every_colour_is_readable_on_light_and_dark(background: str) -> None:
    for name, number in COLOURS.items():
        assert contrast(of_number(number), BACKGROUNDS[background]) >= 3, name


@pytest.mark.usefixtures("coloured")
def test_all_that_is_drawn_is_in_our_colours() -> None:
    codes = re.findall(r"\x1b\[([0-9;]*)m", drawn())
    allowed = {f"38;5;{number}" for number in COLOURS.values()}
    used = {code.removeprefix("1;") for code in codes} - {"0", "1"}
    assert used == {f"38;5;{COLOURS[name]}" for name in ("green", "red", "yellow", "dim")}
    assert used <= allowed


# xterm's sixteen colours, which a terminal with no more may choose itself.
SIXTEEN = {
    "31": (205, 0, 0),
    "32": (0, 205, 0),
    "33": (205, 205, 0),
    "34": (0, 0, 238),
    "35": (205, 0, 205),
    "36": (0, 205, 205),
    "37": (229, 229, 229),
    "90": (127, 127, 127),
}
ATTRIBUTES = {"", "0", "1", "2", "39"}  # none, bold, dim, the terminal's own colour


@pytest.mark.usefixtures("coloured")
def test_a_terminal_of_sixteen_colours_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """tmux and screen report sixteen until they are configured."""
    monkeypatch.setenv("TERM", "screen")
    used = set(";".join(re.findall(r"\x1b\[([0-9;]*)m", drawn())).split(";")) - ATTRIBUTES
    assert used, "it is a terminal with colours"
    for code in used:
        for background in ("white", "black"):
            assert contrast(SIXTEEN[code], BACKGROUNDS[background]) >= 3, code


@pytest.mark.usefixtures("coloured")
def test_the_cursor_is_never_hidden_for_long() -> None:
    """A process that is killed in the middle of a check cannot show it again."""
    stream = Terminal()
    Report(stream).status("checking")
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")


def test_every_style_of_a_line_is_one_of_ours() -> None:
    known = {"", "bold", *COLOURS, *(f"bold {name}" for name in COLOURS)}
    assert set(STYLES.values()) <= known
    other = re.compile(r'"(?:bold |dim )?(?:magenta|blue|white|black|bright_\w+|italic|underline)"')
    sources = [
        *Path(ROOT, "common", "run").glob("*.py"),
        *Path(ROOT, "common", "report").glob("*.py"),
    ]
    assert not [path.name for path in sources if other.search(path.read_text())]


@pytest.mark.usefixtures("coloured")
def test_no_colour_is_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "38;5" not in drawn(colour=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "38;5" not in drawn() and "FAIL a reason" in re.sub(r"\x1b\[[0-9;]*m", "", drawn())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in drawn()


def test_the_first_failure_is_explained_with_a_whole_tiny_case_and_fits_a_terminal() -> None:
    example = ["a tiny case in full, 3 float32:", "  yours  1.0  2.0*  —*"]
    details = ["hint: " + "a hint in many words " * 8, *["a detail"] * 99]
    long = replace(failed("p", "v1"), reason="wrong " * 20, details=details, example=example)
    stream = io.StringIO()
    report = Report(stream, shown_details=8, narrow=True)
    report.rung(5, long)
    report.rung(5, replace(long, rung="v2"))
    text = stream.getvalue()
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines), text
    assert text.count("yours  1.0  2.0*  —*") == text.count("hint:") == 1
    (hint,), (more,) = ([i for i, t in enumerate(lines) if w in t] for w in ("hint:", "more lines"))
    assert more - hint == 8
    styles = [style for text, style in example_line(example[1]) if "*" in text]
    assert styles == ["red", "red"]
