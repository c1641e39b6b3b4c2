"""A training step with GPT-2's positions and words, which are too many for the cases of its day."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from common.base import toolchain
from common.base.declaration import Case
from common.base.toolchain import ToolchainError
from common.build.library import operators_of
from common.check import device
from common.check.rungs import call_once
from days.day86 import train, training
from days.day100 import generate, model
from days.day100.weights import RefusedError
from tests.unit.test_gpt2_folder import byte_level_bpe

day = importlib.import_module("days.day86.day")

POSITIONS, WORDS = 1024, 50257  # GPT-2's


@pytest.fixture(scope="module")
def operators() -> Any:
    try:
        return operators_of(86, "cpu")[0]
    except ToolchainError as error:
        pytest.skip(str(error))


def test_a_step_of_gpt2s_positions_and_words_is_pytorchs(operators: Any) -> None:
    """Losses, gradients, and what AdamW writes, within the tolerance of the day's problem."""
    words = training.Plan(words=WORDS, positions=POSITIONS).model().words
    assert words == 50264  # a multiple of 8
    problem = day.PROBLEMS[0]
    rung = problem.rungs[-1]
    backend = device.make(toolchain.detect("cpu"))
    case = Case((1, POSITIONS, 1, 1, words, POSITIONS), "bfloat16")
    with backend.time_limit(600.0):  # a product with the table takes seconds
        once = call_once(problem, rung, getattr(operators, rung.name), case, backend)
    assert once.failure is None, str(once.failure)


def plan_of(tokens: torch.Tensor) -> Any:
    sizes = {"layers": 1, "heads": 1, "positions": 8, "batch": 2, "steps": 6, "warmup": 1}
    return training.Plan(**sizes, words=300, text=training.text_of(tokens))


def test_a_training_on_tokens_repeats_its_bits(operators: Any) -> None:
    """The gradients of frequent words, too: one word is two thirds of the text."""
    tokens = torch.randint(300, (4000,), generator=torch.Generator().manual_seed(1)).int()
    tokens[torch.arange(4000) % 3 > 0] = 7
    plan = plan_of(tokens)
    once, again = (
        training.Training(operators, plan, torch.device("cpu"), text=tokens) for _ in "12"
    )
    losses = once.run(6, 1)
    assert losses == again.run(6, 1) and losses[-1][1] < losses[0][1]
    for name in training.Training.KEPT:
        assert torch.equal(getattr(once, name), getattr(again, name)), name
    assert 0 < once.held_back_loss(2) < losses[0][1]
    with pytest.raises(ValueError, match="day 100, which has a tokeniser"):
        once.sample(1)
    with pytest.raises(ValueError, match="expected the one that the plan names"):
        training.Training(operators, plan, torch.device("cpu"))


def run(*words: object) -> object:
    """Return the exit code of the training program, or its last message."""
    with pytest.raises(SystemExit) as ended:
        train.main([str(word) for word in words])
    return ended.value.code


def written(path: Path, tokens: torch.Tensor) -> Path:
    path.write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    return path


TINY = ["--layers", 1, "--heads", 1, "--positions", 8, "--batch", 2, "--steps", 4]
TINY += ["--save-every", 2, "--device", "cpu"]


def test_the_program_trains_on_a_file_of_tokens(
    operators: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokens = torch.arange(3000) % 290
    file, other = written(tmp_path / "train.bin", tokens), written(tmp_path / "b.bin", tokens + 1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    on = ["--tokens", file, "--words", 300]
    assert run(*TINY, *on, "--save", whole) == 0
    assert "to sample: python -m days.day100.generate" in (said := capsys.readouterr().out)
    assert said.rstrip().endswith("--tokenizer FOLDER")
    assert run(*TINY, *on, "--save", parts, "--until", 2) == 0
    assert f"--tokens {file}" in capsys.readouterr().out
    monkeypatch.setattr(train, "operators_of", None)
    resumed = ["--resume", parts, "--device", "cpu"]
    for words, text in (
        ([*resumed], "--tokens: expected those that the checkpoint was trained with"),
        ([*resumed, "--tokens", other], "--tokens: expected those that the checkpoint was"),
        ([*resumed, "--tokens", file, "--words", 299], "was trained with 300, got 299"),
        ([*resumed, "--tokens", file, "--sample"], "--sample: is of characters"),
        ([*TINY, "--words", 300], "--words: does nothing without --tokens"),
        (
            [*TINY, "--tokens", file, "--words", 289],
            "expected tokens below 289, the words",
        ),
        ([*TINY, "--tokens", tmp_path], f"--tokens: expected a file, got {tmp_path}"),
        ([*TINY, "--tokens", tmp_path / "none"], "No such file or directory"),
        ([*TINY, "--tokens", written(tmp_path / "few", tokens[:89])], "expected at least 90"),
    ):
        assert run(*words) == 2
        assert text in capsys.readouterr().err
    monkeypatch.undo()
    assert run(*resumed, "--tokens", file) == 0
    assert parts.read_bytes() == whole.read_bytes()


def test_a_model_of_tokens_writes_by_its_tokeniser(operators: Any, tmp_path: Path) -> None:
    tokens = (torch.arange(6000) % 300).int()
    trained = training.Training(operators, plan_of(tokens), torch.device("cpu"), text=tokens)
    trained.save(tmp_path / "gpt", ("weights",))
    with pytest.raises(RefusedError, match="trained on tokens, and needs their"):
        generate.model_at(tmp_path / "gpt")
    with pytest.raises(RefusedError, match="trained on characters, and takes no"):
        generate.model_at(training.SMALL, tmp_path)
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    vocabulary, load = generate.model_at(tmp_path / "gpt", tmp_path)
    weights = load("cpu")
    size = len(weights.tensors[0])
    assert 256 < size < 300  # without words that have no token
    text = torch.tensor(vocabulary.encode("hello world")[:4])
    logits = trained.logits(text[None])[0, -1, :size]
    cache = weights.new_cache().double()
    wide = (each.double() for each in weights.tensors)
    expected = model.prefill(*wide, cache=cache, prompt=text)
    torch.testing.assert_close(logits.double(), expected, atol=0.02, rtol=0.02)
