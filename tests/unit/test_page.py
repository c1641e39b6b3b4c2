"""Two reports compared, and the page of --html."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import run_day
from common.base.days import discover
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Status, Timing
from common.base.verdict import Score
from common.report.comparison import Change, compare
from common.report.page import page
from common.report.roofline import NUMBER, apart, roofline
from common.report.runs import describe, outcomes_of, write_json
from common.report.stored import as_runs, read_scores, read_stored
from common.report.terminal import NO_TIMES
from tests.progress import run

WHERE = {
    **dict.fromkeys(("driver_cuda", "torch_cuda", "compiler", "python", "processor"), ""),
    **{"device": "cuda", "gpu": "NVIDIA X", "arch": "9.0", "driver": "1", "nvcc": "13.0"},
    **{"torch": "2.11.0", "date": "2026-01-31"},
}


def rung(
    name: str, ms: float | None = None, status: Status = PASS, spread: float = 0.0
) -> RungOutcome:
    timing = None
    if ms is not None:
        timing = Timing("1024", ms, spread, 9, gbs=100 / ms, tflops=1 / ms, bound="copy", share=0.5)
    return RungOutcome("p", name, "an <idea>", status, timing=timing)


def day(number: int, *rungs: RungOutcome) -> DayOutcome:
    return DayOutcome(number, f"day{number:02d}", "T", PASS, rungs=list(rungs))


def changes(old: RungOutcome | None, new: RungOutcome | None) -> list[str]:
    both = [[day(1, *filter(None, [each])) for each in (one,)] for one in (old, new)]
    return [c.what for c in compare(both[0], both[1], 0.05) if c.rung != "the whole day"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (rung("a", 1.0), rung("a", 1.04), "same"),
        (rung("a", 1.0), rung("a", 1.06), "slower"),
        (rung("a", 1.06), rung("a", 1.0), "faster"),
        (rung("a", 1.0, spread=0.02), rung("a", 1.04, spread=0.02), "same"),
        (rung("a", 1.0, spread=0.02), rung("a", 1.06, spread=0.02), "unclear"),
        (rung("a", 1.06, spread=0.02), rung("a", 1.0, spread=0.02), "unclear"),
        (rung("a", 1.0, spread=0.02), rung("a", 1.09, spread=0.02), "slower"),
        (rung("a", 1.0), rung("a", status=FAIL), "fails now"),
        (rung("a", status=FAIL), rung("a", 1.0), "passes now"),
        (rung("a"), rung("a"), "same"),
        (rung("a", 1.0), rung("a", status=SKIP), "skipped now"),
        (rung("a", 1.0), rung("a"), "not timed"),
        (rung("a", status=SKIP), rung("a", status=SKIP), "same"),
        (rung("a", 1.0), None, "gone"),
        (None, rung("a", 1.0), "new"),
    ],
)
def test_a_change_is_named(old: RungOutcome | None, new: RungOutcome | None, what: str) -> None:
    assert changes(old, new) == [what]


def test_what_is_unclear_is_said_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (
        report(tmp_path / f"{ms}.json", ms, spread) for ms, spread in ((1.0, 0.2), (1.4, 0.1))
    )
    assert run_day.main(["--compare", old, new]) == 0
    out = capsys.readouterr().out
    assert "1 a  unclear" in out and "+40.0 %" in out and "measure again" in out
    assert "2 rungs compared: 1 unclear, 1 same" in out


def test_rungs_of_one_name_are_distinguished() -> None:
    both = [day(1, rung("a", ms), replace(rung("a", 1.0), problem="q")) for ms in (1.0, 2.0)]
    found = compare(both[:1], both[1:], 0.05)
    assert [change.rung for change in found] == ["a (p)", "a (q)"]


def test_a_day_that_does_not_build_any_more_is_worse() -> None:
    broken = replace(day(1), status=FAIL, reason="does not build")
    found = compare([day(1, rung("a", 1.0))], [broken], 0.05)
    assert any(change.worse for change in found)


def test_days_of_one_report_only_are_left_out() -> None:
    assert compare([day(1, rung("a", 1.0))], [day(2, rung("b", 1.0))], 0.05) == []


def report(path: Path, ms: float, spread: float = 0.0) -> str:
    outcome = day(1, rung("a", ms, spread=spread), rung("b", 1.0))
    write_json(path, [describe(WHERE, [outcome], True)])
    return str(path)


def test_compare_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, slow = report(tmp_path / "old.json", 1.0), report(tmp_path / "slow.json", 1.2)
    assert run_day.main(["--compare", old, old]) == 0
    assert "2 rungs compared: 2 same" in capsys.readouterr().out
    assert run_day.main(["--compare", old, slow, "--html", str(tmp_path / "p.html")]) == 1
    out = capsys.readouterr().out
    assert re.search(r"1 a  slower +1.00 s|1 a  slower", out) and "+20.0 %" in out
    assert ">slower<" in (tmp_path / "p.html").read_text()
    assert run_day.main(["--compare", old, slow, "--threshold", "25"]) == 0
    assert run_day.main(["--compare", slow, old]) == 0
    capsys.readouterr()
    assert run_day.main(["--compare", old, str(tmp_path / "none.json")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_times_of_the_cpu_backend_are_neither_compared_nor_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They do not predict a GPU's."""
    files = []
    for ms in (1.0, 9.0):
        files.append(str(tmp_path / f"{ms}.json"))
        where = {**WHERE, "device": "cpu", "processor": "a CPU"}
        write_json(Path(files[-1]), [describe(where, [day(1, rung("a", ms))], True)])
        assert f'"ms": {ms}' in Path(files[-1]).read_text()
    html = tmp_path / "p.html"
    assert run_day.main(["--compare", *files, "--html", str(html)]) == 0
    out = capsys.readouterr().out
    assert "1 rungs compared: 1 same" in out and "they are not compared" in out
    assert NO_TIMES in html.read_text() and "GB/s" not in html.read_text()
    assert run_day.main(["--merge", files[0]]) == 0
    assert "GB/s" not in capsys.readouterr().out


def test_a_day_in_one_report_only_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    days = [day(number, rung("a", 1.0)) for number in (1, 2, 3, 5)]
    write_json(old, [describe(WHERE, [each], True) for each in days])
    write_json(new, [describe(WHERE, days[:1], True)])
    assert run_day.main(["--compare", str(old), str(new)]) == 0
    out = capsys.readouterr().out
    assert f"only {old} has day 2-3, 5, not compared" in out and f"only {new}" not in out
    assert out.count("NVIDIA X") == 2, "each machine once"


def test_what_is_skipped_now_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write_json(old, [describe(WHERE, [day(1, rung("a", 1.0), rung("b", 1.0))], True)])
    write_json(new, [describe(WHERE, [day(1, rung("a", status=SKIP), rung("b"))], True)])
    assert run_day.main(["--compare", str(old), str(new)]) == 1
    assert "2 rungs compared: 1 skipped now, 1 not timed" in capsys.readouterr().out


BROKEN = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "list": lambda text: "[]",
    "text": lambda text: "no report",
    "format": lambda text: text.replace('"format": 2', '"format": 1'),
    "no runs": lambda text: text.replace('"runs"', '"walks"'),
    "no such run": lambda text: text.replace('"run": 0', '"run": 7'),
    "no rungs": lambda text: text.replace('"rungs"', '"steps"'),
    "no machine": lambda text: text.replace('"gpu"', '"cpu"'),
    "no time": lambda text: text.replace('"ms": 1.0', '"ms": "?"'),
    "no time at all": lambda text: text.replace('"ms": 1.0', '"ms": 0.0'),
    "mutants": lambda text: '{"format": 2, "date": "2026-01-31", "mutants": []}',
}


@pytest.mark.parametrize("way", BROKEN)
def test_what_is_no_report_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    old, new = report(tmp_path / "old.json", 1.0), tmp_path / "new.json"
    text = Path(old).read_text()
    new.write_text(BROKEN[way](text))
    assert new.read_text() != text
    for arguments in ([old, str(new)], [str(new), old]):
        assert run_day.main(["--compare", *arguments]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"run_day.py: {new} is ") and said.count("\n") == 1, said


def test_nothing_in_common_is_no_success(tmp_path: Path) -> None:
    old = report(tmp_path / "old.json", 1.0)
    other = tmp_path / "other.json"
    write_json(other, [describe(WHERE, [day(2, rung("a", 1.0))], True)])
    assert run_day.main(["--compare", old, str(other)]) == 1


class Page(HTMLParser):
    """The parts of a page: ids, targets of links, and everything that is loaded from elsewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and tag in ("section", "details"):
                self.ids.append(value or "")
            if tag == "a" and name == "href":
                self.targets.append(value or "")
            if name in ("src", "srcset", "data") or (tag == "link" and name == "href"):
                self.loaded.append(value or "")


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run_day.main(["--html", str(file)]) == 0
    text = file.read_text()
    found = Page(text)
    assert not found.loaded and "@import" not in text and "url(http" not in text
    assert len(set(found.ids)) == len(found.ids)
    for target in found.targets:
        assert target.startswith("#") and target[1:] in found.ids
    for number in read_stored():
        assert f"day{number}" in found.ids


def test_the_page_shows_failures_and_escapes(tmp_path: Path) -> None:
    first = discover()[0][0].number
    failed = replace(day(first, rung("a", 1.0), rung("b", status=FAIL)), status=FAIL)
    failed.reason = "1 < 2 & 3"
    text = page(discover()[0], [failed], ["NVIDIA X"])
    assert "1 &lt; 2 &amp; 3" in text and "an &lt;idea&gt;" in text
    assert f'<details id="day{first}" open>' in text
    assert "not run" in text, "days that did not run are shown as such"


def test_the_page_has_mutants_and_exercises() -> None:
    days = discover()[0]
    number = days[0].number
    survivor = "f: barrier removed: `__syncthreads();` -> ``, in a <template>"
    score = Score(number, 21, {"result": 17, "bad input": 2}, 1, [survivor], True, "2026-01-31")
    shown = page(days, [day(number, rung("a", 1.0))], ["NVIDIA X"], None, {number: score})
    assert "95 % of 20, 2026-01-31" in shown and "planted bugs caught" in shown
    assert (
        "The checks catch 19 of 20 planted bugs: 17 by result, 2 by bad input; 1 more compute"
        in shown
    )
    assert "in a &lt;template&gt;" in shown
    assert "exercises</th>" not in shown, "the learner has begun none"
    solved = {each.number: {"write": each.number == number, "debug": False} for each in days}
    shown = page(days, [day(number, rung("a", 1.0))], ["NVIDIA X"], exercises=solved)
    assert f"1 of {2 * len(days)} exercises solved." in shown
    assert "1 of 2</td>" in shown and "write solved, debug open." in shown
    assert "planted bugs caught" not in shown


# Sends to the surrounding page the lowest contrast of a text against its background, and true if
# a link opens its day, also when it is followed again. Contrast: see test_terminal.py.
PROBE = """<script>
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (c) => c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function behind(element) {
  for (; element; element = element.parentElement) {
    const colour = numbers(getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
}
function contrast(element) {
  const style = getComputedStyle(element);
  const ink = numbers(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
  const [low, high] = [luminance(ink), luminance(behind(element))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
const wide = (element) => element.scrollWidth > element.clientWidth;
const texts = [...document.body.querySelectorAll(":not(script, style, metadata *)")].filter(
  (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
const link = document.querySelector("td a"), day = document.querySelector(link.hash);
const opened = [1, 2].map(() => { day.open = false; link.click(); return day.open; });
parent.postMessage(JSON.stringify({
  wide: document.documentElement.scrollWidth, seen: innerWidth, opened,
  days: document.querySelectorAll("details").length,
  cut: [...document.querySelectorAll(".wide")].filter(
    (box) => wide(box) && !box.querySelector("svg")).length,
  cued: [...document.querySelectorAll(".wide")].filter(wide).every(
    (box) => box.previousElementSibling.matches(".cue") && box.previousElementSibling.offsetHeight),
  contrast: Math.min(...texts.map(contrast)),
  letters: Math.min(...[...document.querySelectorAll("svg text")].map(
    (text) => text.getBoundingClientRect().height)),
  scrolled: [...document.querySelectorAll(".wide")].filter(wide).every(
    (element) => element.tabIndex >= 0 || element.querySelector("a")),
  dark: luminance(behind(document.body)) < 0.1,
}), "*");
</script></body>"""
FRAME = """<!doctype html><title></title>
<script>addEventListener("message", (event) => { document.title = event.data; });</script>
<iframe src="probed.html" style="border: 0; width: {width}px; height: 800px"></iframe>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
def test_a_browser_shows_the_page(tmp_path: Path, width: int, dark: bool) -> None:
    """On a phone and on a laptop, light and dark: nothing is cut off, all text is readable, and
    links open their targets."""
    file = tmp_path / "page.html"
    days, found = discover()[0], outcomes_of(as_runs(read_stored()))
    exercises = dict.fromkeys(("write", "debug", "speed"), False)
    begun = {day.number: exercises for day in days}  # a column more
    slower = [Change(1, rung.rung, "slower", "1 s", "2 s", 2.0) for rung in found[0].rungs]
    text = page(days, found, ["NVIDIA X"], slower, read_scores(), begun)
    # In a frame, which may be narrower than any window.
    (tmp_path / "probed.html").write_text(text.replace("</body>", PROBE))
    file.write_text(FRAME.replace("{width}", str(width)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"]
    options += ["--virtual-time-budget=5000"]  # milliseconds, for the message
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    shown = run(["chromium", *options, profile, "--dump-dom", str(file)], check=True).stdout
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title
    seen = json.loads(title.group(1).replace("&quot;", '"'))
    assert seen["days"] == len(read_stored())
    assert seen["seen"] == width
    assert seen["wide"] <= width
    assert not seen["cut"], "a table does not fit on the screen"
    assert seen["cued"], "a picture is cut, and no word says so"
    assert seen["dark"] == dark
    assert seen["contrast"] >= 4.5
    assert seen["opened"] == [True, True]
    assert seen["letters"] >= 9, "the roofline cannot be read"
    assert seen["scrolled"], "what does not fit cannot be scrolled by keys"


def test_the_numbers_of_days_cover_nothing() -> None:
    """Also where many kernels reach the same: 60 in a square of 200 points, and ten
    more on places of others."""
    draw = random.Random(1)
    dots = [(draw.uniform(0, 200), draw.uniform(0, 200)) for _ in range(60)]
    dots += dots[:10]
    numbers = [(x + dx, y + dy) for (x, y), (dx, dy) in zip(dots, apart(dots), strict=True)]
    wide, high = NUMBER
    for (x, y), (u, v) in itertools.combinations(numbers, 2):
        assert abs(x - u) >= wide or abs(y - v) >= high
    for (x, y), (u, v) in itertools.product(numbers, dots):
        assert abs(x - u) >= wide / 2 or abs(y - v) >= high / 2
    assert apart([(0.0, 0.0)]) == [(0.0, 8.0)], "alone, it stands above its dot"


def test_a_roofline_leads_from_the_first_rungs_to_the_last() -> None:
    first, last, other = (
        rung(name, ms).timing for name, ms in (("a", 4.0), ("b", 1.0), ("c", 2.0))
    )
    assert first and last and other
    alone = roofline([(1, last), (2, other)])
    both = roofline([(1, last), (2, other)], {1: first, 3: first})
    assert roofline([(1, last), (2, other)], {}) == alone
    assert both.count("<use") == alone.count("<use") + 1, "one hollow dot, that of day 1"
    assert "NaN" not in both and both.count("var(--faint)") > alone.count("var(--faint)")
