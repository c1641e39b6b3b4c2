"""Debug exercises: a planted change reads as if a programmer had written it, and is found when
undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.days import Day, discover
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, DayOutcome, RungOutcome, Status
from common.base.toolchain import Platform
from common.base.verdict import Score
from common.mutants.derive import headers_of, mutants
from common.mutants.outline import outline
from common.practice import debug
from common.practice.debug import BY_CHANCE, UNSEEN_ON_CPU, candidates, debug_challenge
from common.practice.journal import Journal
from common.practice.planted_text import planted_text
from common.report.terminal import Report
from common.run.tutor import Tutor

DAYS, _ = discover()

HEAD = "template <typename T>\n__global__ void k(const T* x, T* y, int n, float* sum) {\n"


def planted(body: str, kind: str, which: int = 0) -> str | None:
    """Return the body of a kernel, with a mutant of that kind as a learner sees it."""
    text = f"{HEAD}{body}}}\n"
    found = [m for m in mutants(Path("x.cu"), outline(text)) if m.kind.name == kind]
    changed = planted_text(found[which])
    return None if changed is None else changed.removeprefix(HEAD).removesuffix("}\n")


@pytest.mark.parametrize(
    ("body", "kind", "which", "expected"),
    [
        (
            "  if (t < n) y[t] = x[t];  // beyond the end\n",
            "bounds check dropped",
            0,
            "  y[t] = x[t];\n",
        ),
        (
            "  // beyond the end\n  if (t >= n) return;\n\n  y[t] = x[t];\n",
            "bounds check dropped",
            0,
            "  y[t] = x[t];\n",
        ),
        (
            "  if (t < n) {  // inside\n    y[t] = x[t];\n"
            "    y[t] += f(x,\n              n);\n  }\n",
            "bounds check dropped",
            0,
            "  y[t] = x[t];\n  y[t] += f(x,\n            n);\n",
        ),
        (
            "  if (t < n && s < n) y[t] = x[t];\n",
            "bounds check dropped",
            1,
            "  if (s < n) y[t] = x[t];\n",
        ),
        (
            "  if (t < n && s < n) y[t] = x[t];\n",
            "bounds check dropped",
            2,
            "  if (t < n) y[t] = x[t];\n",
        ),
        ("  y[t] = t < n ? x[t] : T{0};\n", "bounds check dropped", 0, "  y[t] = x[t];\n"),
        (
            "  y[t] = 1;\n  __syncthreads();  // y is complete\n  y[t] += x[t];\n",
            "barrier removed",
            0,
            "  y[t] = 1;\n  y[t] += x[t];\n",
        ),
        (
            "  for (int i = 0; i < n; ++i) {\n    y[t] = x[i];\n\n    __syncthreads();\n  }\n",
            "barrier removed",
            0,
            "  for (int i = 0; i < n; ++i) {\n    y[t] = x[i];\n  }\n",
        ),
        ("  if (n) __syncthreads();\n  f();\n", "barrier removed", 0, "  f();\n"),
        ("  atomicAdd(&sum[n], x[t]);\n", "atomic made plain", 0, "  sum[n] += x[t];\n"),
        ("  atomicAdd(sum + n, x[t]);\n", "atomic made plain", 0, "  sum[n] += x[t];\n"),
        ("  atomicMax(sum, x[t]);\n", "atomic made plain", 0, "  *sum = max(*sum, x[t]);\n"),
        ("  y[t] = atomicAdd(sum, 1);\n", "atomic made plain", 0, "  y[t] = (*sum)++;\n"),
        (
            "  __shared__ float a[BLOCK + 1];  // one\n  __shared__ int b[1];     // two\n",
            "shared memory too small",
            0,
            "  __shared__ float a[BLOCK];  // one\n  __shared__ int b[1];        // two\n",
        ),
        ("  y[t] = (x[t] * scale);\n", "factor dropped", 0, "  y[t] = x[t];\n"),
        ("  return (a - b) * scale;\n", "factor dropped", 0, "  return a - b;\n"),
        ("  f((n + SIZE - 1) / SIZE);\n", "rounded down", 0, "  f(n / SIZE);\n"),
        ("  f(ceil_div(n - 1, 32));\n", "rounded down", 0, "  f((n - 1) / 32);\n"),
        (
            "  f(__shfl_up_sync(M, x, half));\n",
            "shuffle",
            1,
            "  f(__shfl_up_sync(M, x, half + 1));\n",
        ),
        (
            "  for (int i = 0; i < 32; i += 4) f(i);\n",
            "loop bound off by one",
            0,
            "  for (int i = 0; i < 31; i += 4) f(i);\n",
        ),
        (
            "  for (int i = 0; i < W + 2 * R; ++i) f(i);\n",
            "loop bound off by one",
            0,
            "  for (int i = 0; i < W + 2 * R - 1; ++i) f(i);\n",
        ),
        (
            "  for (int i = 0; i < 32; i += 4) f(i);\n",
            "loop stride",
            0,
            "  for (int i = 0; i < 32; i += 8) f(i);\n",
        ),
    ],
)
def test_a_change_leaves_no_trace(body: str, kind: str, which: int, expected: str) -> None:
    assert planted(body, kind, which) == expected


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("  y[t] = t < n ? n : t;\n", "bounds check dropped"),  # a choice of one word
        ("  y[t] = atomicCAS(sum, 0, 1);\n", "atomic made plain"),
        ("  for (;;) __syncthreads();\n", "barrier removed"),
    ],
)
def test_what_would_give_itself_away_is_not_planted(body: str, kind: str) -> None:
    assert planted(body, kind) is None


def test_the_first_changes_are_of_several_functions() -> None:
    """On a day with several: a learner would otherwise know the place."""
    day = next(day for day in DAYS if day.number == 8)
    assert len({mutant.function for mutant in candidates(day)[:3]}) == 3


def day_to_debug(tmp_path: Path) -> tuple[Day, Path]:
    """Return day 2 with the learner's files in tmp_path."""
    return next(day for day in DAYS if day.number == 2), tmp_path / "days"


def test_a_change_is_found_in_whatever_way_it_is_fixed(tmp_path: Path) -> None:
    day, root = day_to_debug(tmp_path)
    identity = next(m.identity for m in candidates(day) if "`i < n` -> `true`" in m.identity)
    challenge = debug_challenge(day, root, identity, ())
    challenge.begin()
    assert "if (i < n)" not in challenge.start.split("vec_add_v2")[0]
    assert challenge.state().open
    for same in ("  // a remark\n  z[i] = x[i] + y[i];", "  z[i] =\n      x[i] + y[i];"):
        challenge.file.write_text(challenge.start.replace("  z[i] = x[i] + y[i];", same, 1))
        assert challenge.state().open, "the code is the same"
    for fixed in ("if (i < n) z[i] = x[i] + y[i];", "if (i >= n) return;\n  z[i] = x[i] + y[i];"):
        text = challenge.start.replace("z[i] = x[i] + y[i];", fixed, 1)
        challenge.file.write_text(text)
        assert not challenge.state().open
    assert challenge.explanation()[1:3] == [
        "  planted  z[i] = x[i] + y[i];",
        "  right    if (i < n) z[i] = x[i] + y[i];  // bounds check: the last block has threads "
        "beyond the end",
    ]


def outcome_of(*states: Status, reason: str = "wrong") -> DayOutcome:
    """Return the outcome of a run whose rungs have these states."""
    rungs = [RungOutcome("p", f"v{i}", "", state, reason) for i, state in enumerate(states)]
    return DayOutcome(1, "day01", "", FAIL if FAIL in states else PASS, rungs=rungs)


def test_what_fails_by_chance_is_planted_only_if_it_always_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner without a failing report has no place to start."""
    day = next(day for day in DAYS if day.number == 36)  # it adds atomically
    found = {mutant.kind.name: mutant for mutant in candidates(day)}
    for kind in ("bounds check dropped", "atomic made plain"):
        mutant, root = found[kind], tmp_path / kind / "days"
        tutor = Tutor(RunOptions((str(day.number),), days=root), [day], Journal(root.parent))
        tutor._platform = Platform("cuda", "", "", Path(), "")
        challenge = debug_challenge(day, root, mutant.identity, ())
        for outcomes, rejected in (
            ([FAIL] * 3, True),
            ([FAIL, PASS, FAIL], kind not in BY_CHANCE),
            ([PASS] * 3, False),
        ):
            left = iter(outcomes)
            monkeypatch.setattr(Tutor, "_run", lambda *_, **__: outcome_of(PASS, next(left)))  # noqa: B023
            assert tutor._rejected(challenge, Report(colour=False)) == rejected, (kind, outcomes)
        # On the CPU backend, a lost update would be noticed by luck, after a check of all cases.
        tutor._platform = Platform("cpu", "", "", Path(), "")
        monkeypatch.setattr(Tutor, "_run", lambda *_, **__: outcome_of(FAIL))
        seen = tutor._rejected(challenge, Report(colour=False))
        assert seen == (kind not in UNSEEN_ON_CPU)


def test_a_change_that_ends_the_process_is_not_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, root = day_to_debug(tmp_path)
    tutor = Tutor(RunOptions(("2",), days=root), [day], Journal(tmp_path / "practice"))
    challenge = debug_challenge(day, root, "", ())
    died = outcome_of(FAIL, reason="the process died: killed by SIGABRT")
    died.rungs = [*outcome_of(FAIL).rungs, *died.rungs]
    monkeypatch.setattr(Tutor, "_run", lambda *_, **__: died)
    assert not tutor._rejected(challenge, Report(colour=False))


def test_a_change_that_is_not_noticed_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day, root = day_to_debug(tmp_path)
    tutor = Tutor(RunOptions(("2",), days=root), [day], Journal(tmp_path / "practice"))
    challenge = debug_challenge(day, root, "", ())
    challenge.begin()
    monkeypatch.setattr(Tutor, "_run", lambda *_, **__: outcome_of(PASS))
    assert tutor.check(challenge, Report(colour=False)) == 1
    said = capsys.readouterr().out
    assert "depends on chance" in said and "--sanitize" in said


def test_an_interruption_plants_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does it leave another change in the file than the journal knows."""
    day, root = day_to_debug(tmp_path)
    journal = Journal(tmp_path / "practice")
    report = Report(colour=False)
    tutor = Tutor(RunOptions(selected=("2",), days=root), [day], journal)
    monkeypatch.setattr(Tutor, "_rejected", lambda *_: True)
    first, began = tutor.begin(tutor.challenge(day, "debug"), report)
    assert began and first.file.exists()
    mine = first.file.read_text() + "// mine\n"
    first.file.write_text(mine)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tutor, "_rejected", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tutor.begin(tutor.challenge(day, "debug", another=True), report, another=True)
    assert not first.file.exists()
    assert first.file.with_name("debug.1.cu").read_text() == mine
    assert Journal(tmp_path / "practice").entry(2, "debug").planted == ""
    monkeypatch.setattr(Tutor, "_rejected", lambda *_: True)
    second, began = tutor.begin(tutor.challenge(day, "debug"), report)
    assert began and second.file.read_text() == second.start != first.start


def test_headers_are_not_planted() -> None:
    """The learner is given one file."""
    day = next(day for day in DAYS if headers_of(day))
    found = candidates(day)
    assert found and {mutant.source for mutant in found} <= set(day.library_sources)


def test_a_change_that_is_known_to_survive_is_not_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    day = next(day for day in DAYS if day.number == 5)
    monkeypatch.setattr(debug, "read_scores", dict)
    first = candidates(day)[0].identity
    scores = {5: Score(5, made=1, killed={}, equivalent=0, survived=[first])}
    monkeypatch.setattr(debug, "read_scores", lambda days: scores)
    assert first not in [mutant.identity for mutant in candidates(day)]
