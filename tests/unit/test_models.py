"""Models of cards: their table, the value of conditions on `__CUDA_ARCH__`, and a rung for which a
card lacks something."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import run_day
from common.base.outcome import Skip
from common.base.paths import ROOT
from common.check.bad_input import check_bad_input
from common.check.lacks import PHRASE, lacking
from common.check.rungs import check_rung
from common.cpu import models
from common.cpu.rewrite import RewriteError, rewrite
from tests.unit.test_check import FakeBackend, softmax_problem


def test_the_table() -> None:
    cards = models.cards()
    assert list(cards) == ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]
    assert models.default() == "9.0"
    for name, card in cards.items():
        assert card.capability == round(10 * float(name))
        assert 48 * 1024 < card.shared_opt_in == card.shared - card.shared_reserved
        assert card.threads % 1024 % 512 == 0 and card.blocks * 32 <= card.threads
        assert (card.max_cluster > 1) == (card.capability >= 90)
    described = run_day.parser().format_help()
    assert all(name in described for name in cards)


def test_names_of_models() -> None:
    assert models.chosen("") == models.chosen("9.0a") == "9.0"
    assert [models.architecture(name) for name in ("", "7.5", "10.0", "12.0a")] == [
        *(900, 750, 1000, 1200)
    ]
    with pytest.raises(models.ModelError, match=r"'86' is no model; did you mean 8\.6\? there are"):
        models.chosen("86")
    with pytest.raises(models.ModelError, match=r"8\.9 \(RTX 4090\), 9\.0 \(H200\), 10\.0"):
        models.chosen("turing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model 8.6 --device cuda", "it goes with --device cpu"),
        ("--model 8.6 --compile-only", "it goes with --device cpu"),
        ("--model 8.6 --device cpu --write", "not with --model"),
        ("--model 8.7 --device cpu", "'8.7' is no model; did you mean"),
    ],
)
def test_the_command_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = run_day.main(["1", *words.split()])
    except SystemExit as end:
        assert isinstance(end.code, int)
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- conditions


def branches(text: str, model: str = "8.6") -> list[str]:
    """Return the lines of code that the compiler gets, for text without other macros."""
    out, stack = [], [True]
    for line in rewrite(text, "day.cu", model).splitlines()[1:]:
        if line.startswith("#if"):
            stack.append(line.split()[1] == "1")
            assert line.split()[1] in "01", f"not decided: {line}"
        elif line.startswith("#elif"):
            stack[-1] = not stack[-1] and line.split()[1] == "1"
        elif line.startswith("#else"):
            stack[-1] = not stack[-1]
        elif line.startswith("#endif"):
            stack.pop()
        elif all(stack) and line.strip():
            out.append(line.strip())
    return [line for line in out if line.endswith(";") and line[0].isalpha()]


DEVICE = "__device__ void f() {{\n{}\n}}"
BOTH = "__host__ __device__ void f() {{\n{}\n}}"
HOST = "void f() {{\n{}\n}}"
GUARDED = "#if __CUDA_ARCH__ >= 800\nnew;\n#else\nold;\n#endif"
PASS = "#ifdef __CUDA_ARCH__\ndevice;\n#else\nhost;\n#endif"


@pytest.mark.parametrize(
    ("text", "model", "compiled"),
    [
        (DEVICE.format(GUARDED), "8.6", ["new;"]),
        (DEVICE.format(GUARDED), "7.5", ["old;"]),
        (BOTH.format(PASS), "7.5", ["device;"]),
        (HOST.format(PASS), "9.0", ["host;"]),
        (HOST.format(GUARDED), "9.0", ["old;"]),  # as nvcc: 0 >= 800
        (PASS, "9.0", ["device;"]),
        ("struct S {\n" + BOTH.format(PASS) + "\n};", "9.0", ["device;"]),
        ("#define MINE __device__ inline\nMINE void f() {\n" + PASS + "\n}", "9.0", ["device;"]),
        ("void f() {\ng([=] __device__(int i) {\n" + PASS + "\n});\n}", "9.0", ["device;"]),
        ("#ifndef __CUDA_ARCH__\nhost;\n#endif", "9.0", ["host;"]),
        ("#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900\nboth;\n#endif", "7.5", ["both;"]),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800\nold;\n#endif", "7.5", ["old;"]),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800\nold;\n#endif", "8.0", []),
        ("#if __CUDA_ARCH__ < 600\nint fallback;\n#endif", "9.0", []),
        ("#if __CUDA_ARCH__ >= 900\nh;\n#elif __CUDA_ARCH__ >= 800\na;\n#endif", "8.9", ["a;"]),
        ("#ifdef __CUDACC__\nyes;\n#endif\n#ifndef __NVCC__\nno;\n#endif", "7.5", ["yes;"]),
        ("#ifdef __CUDA_ARCH_FEAT_SM90_ALL\nwgmma;\n#endif", "9.0", ["wgmma;"]),
        ("#ifdef __CUDA_ARCH_FEAT_SM90_ALL\nwgmma;\n#endif", "10.0", []),
        ("#ifdef CUDA_ON_CPU\ncpu;\n#elif __CUDA_ARCH__ >= 900\nptx;\n#endif", "9.0", None),
    ],
)
def test_conditions(text: str, model: str, compiled: list[str] | None) -> None:
    if compiled is None:  # nothing depends on the model: unchanged
        assert rewrite(text, "day.cu", model).split("\n", 1)[1] == text
    else:
        assert branches(text, model) == compiled


def test_what_only_the_compiler_knows_is_left_to_it() -> None:
    text = "__device__ void f() {\n#if defined(X) && (__CUDA_ARCH__ >= 800 || Y)\na;\n#endif\n}"
    assert "#if defined(X) && (860 >= 800 || Y)\n" in rewrite(text, "day.cu", "8.6")
    text = "#if defined(__CUDA_ARCH__) && LIMIT > 3\na;\n#endif"
    assert "#if (1) && LIMIT > 3\n" in rewrite(text, "day.cu", "8.6")
    text = "__device__ int f() { return __CUDA_ARCH__; }\n#define ARCH __CUDA_ARCH__\n"
    assert rewrite(text, "day.cu", "12.0").count("1200") == 2


def test_only_live_branches_are_edited_and_refused() -> None:
    text = '__device__ void f() {\n#if __CUDA_ARCH__ >= 800\nasm("ret;");\n#else\ng();\n#endif\n}'
    rewrite(text, "day.cu", "7.5")
    with pytest.raises(RewriteError, match="inline PTX"):
        rewrite(text, "day.cu", "8.0")


# ---------------------------------------------------------------- cards that lack something


def lacks_from(columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a softmax for rows shorter than that; for others it reports that the card lacks
    memory."""

    def softmax(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] >= columns:
            raise RuntimeError(f"{PHRASE}shared memory for a row: it needs 9 bytes\nand more")
        return torch.softmax(x, -1)

    return softmax


def test_the_phrase_is_that_of_the_launcher_s_helper() -> None:
    helpers = (ROOT / "common" / "cuda" / "capability.cuh").read_text(encoding="utf-8")
    found = re.findall(r'STD_TORCH_CHECK\([^"]*"([^"]*)"', helpers)
    assert len(found) == 3 and all(words.startswith(PHRASE) for words in found)
    assert lacking(f"f: {PHRASE}cp.async: it needs 8.0\nat x.cu:3") == (
        f"{PHRASE}cp.async: it needs 8.0"
    )
    assert lacking("cp.async needs compute capability 8.0") == ""


def test_a_rung_for_which_the_card_lacks_something_is_skipped() -> None:
    problem = softmax_problem()
    with pytest.raises(Skip, match=r"^this card lacks shared memory for a row: it needs 9 bytes$"):
        check_rung(problem, problem.rungs[0], lacks_from(0), FakeBackend())
    result = check_rung(problem, problem.rungs[0], lacks_from(64), FakeBackend())
    assert result.failure is None and 0 < result.checked < len(problem.cases)
    (remark,) = (text for text in result.remarks if "lacks" in text)
    assert remark == (
        "not checked on every case: 3×257 float32: this card lacks shared memory for a row: "
        "it needs 9 bytes"
    )


def test_other_cases_must_still_be_right() -> None:
    problem = softmax_problem()
    wrong = lacks_from(64)
    result = check_rung(problem, problem.rungs[0], lambda x: 2 * wrong(x), FakeBackend())
    assert result.failure is not None


def test_bad_input_is_not_tried_where_the_card_lacks_something() -> None:
    problem = replace(softmax_problem(), cases=softmax_problem().cases[:4])
    tried = check_bad_input(problem, problem.rungs[0], lacks_from(0), FakeBackend())
    assert tried.failure is None and tried.checked == 0
    assert tried.remarks[0].startswith("no bad input was tried: ")
