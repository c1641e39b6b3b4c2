"""A training program: it can be interrupted and continued, keeps its best model, and refuses bad
input."""

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from common.base.paths import ROOT
from common.build.library import operators_of
from common.report import files
from tests import progress

train = importlib.import_module("days.day86.train")
training = importlib.import_module("days.day86.training")

TINY = [
    *("--layers", "1", "--heads", "1", "--positions", "8", "--batch", "2"),
    *("--steps", "12", "--save-every", "4", "--device", "cpu"),
]


def run(*words: object) -> object:
    """Return the exit code of the program, or its last message."""
    with pytest.raises(SystemExit) as ended:
        train.main([str(word) for word in words])
    return ended.value.code


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of a training without a break."""
    path = tmp_path_factory.mktemp("whole") / "gpt.checkpoint"
    assert run(*TINY, "--save", path) == 0
    return path


def after(step: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, when the training has done this step."""
    run_steps = training.Training.run

    def run_and_act(self: Any, steps: int, every: int) -> object:
        found = run_steps(self, steps, every)
        if found[-1][0] >= step:
            monkeypatch.setattr(training.Training, "run", run_steps)
            act()
        return found

    monkeypatch.setattr(training.Training, "run", run_and_act)


def same_files(one: Path, other: Path) -> bool:
    return all(
        a.read_bytes() == b.read_bytes()
        for a, b in ((one, other), (train.best_beside(one), train.best_beside(other)))
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [1, 8, 9])
def test_an_interrupted_training_goes_on_to_the_same_bits(
    number: signal.Signals,
    step: int,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "gpt.checkpoint"
    after(step, lambda: os.kill(os.getpid(), number), monkeypatch)
    before = signal.getsignal(number)
    assert run(*TINY, "--save", path) == 128 + number
    assert signal.getsignal(number) == before
    *_, saved, last = capsys.readouterr().out.splitlines()
    assert saved.startswith(f"saved {path} after step ") and saved.endswith(" of 12")
    command = f"{train.PROGRAM} --resume {path} --save-every 4 --device cpu"
    assert last == f"interrupted; to go on: {command}"
    assert run(*command.split()[3:]) == 0
    assert same_files(path, whole)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_process_is_interrupted_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "gpt.checkpoint"
    words = [*TINY, "--save", path, "--steps", 10**6]
    process = subprocess.Popen(
        [sys.executable, "-m", "days.day86.train", *map(str, words)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first, _step = process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = progress.finish(process)
    assert (process.returncode, errors) == (130, "")
    assert f"Ctrl-C saves {path}" in first and "to go on: python -m" in output and path.exists()


def test_until_ends_and_another_file_goes_on(whole: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(*TINY, "--save", first, "--until", 6) == 0
    assert run("--resume", first, "--save", second, "--save-every", 4, "--device", "cpu") == 0
    assert same_files(second, whole)
    assert training.read_checkpoint(first)[1]["step"][0] == 6


def test_the_best_model_is_kept_and_writes_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {4: 3.0, 8: 2.0, 12: 2.5}
    sampled = []

    def sample(self: Any, *_: object) -> str:
        sampled.append(self.steps_done)
        return "text"

    monkeypatch.setattr(
        training.Training, "held_back_loss", lambda self, _batches: losses[self.steps_done]
    )
    monkeypatch.setattr(training.Training, "sample", sample)
    path = tmp_path / "gpt.checkpoint"
    assert run(*TINY, "--save", path, "--sample") == 0
    best = tmp_path / "gpt.best.checkpoint"
    steps = [training.read_checkpoint(file)[1]["step"][0] for file in (path, best)]
    assert (steps, sampled) == ([12, 8], [8])
    assert f"best: held-back loss 2.0000 after step 8, in {best}" in capsys.readouterr().out


def test_a_full_disk_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpt.checkpoint"
    full: list[bool] = []

    def save(self: Any, file: Path) -> None:
        if full or self.steps_done == 8:
            raise files.ResultsError(f"cannot write {file}: No space left on device")
        write(self, file)

    write = training.Training.save
    monkeypatch.setattr(training.Training, "save", save)
    assert run(*TINY, "--save", path) == 0
    output = capsys.readouterr().out
    assert output.count("step 8: cannot write") == 2 and "after step 12 of 12" in output
    full.append(True)
    assert run(*TINY, "--save", tmp_path / "other") == (
        f"cannot write {tmp_path / 'other.best'}: No space left on device"
    )


def test_a_file_belongs_to_one_training_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "gpt.checkpoint"
    for taken in (path, train.best_beside(path)):
        with train.locked([taken]):
            words = [sys.executable, "-m", "days.day86.train", *TINY, "--save", path]
            second = progress.run([str(word) for word in words], cwd=ROOT)
        assert second.returncode == 1
        assert second.stderr == f"{taken}: another process trains into this file\n"
    assert not list(tmp_path.iterdir())
    with train.locked([path]), train.locked([tmp_path / "another"]):
        pass


def test_what_is_not_finite_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpt.checkpoint"
    monkeypatch.setattr(training.Training, "run", lambda *_: [(1, float("nan"))])
    assert "the loss of step 1 is nan" in str(run(*TINY, "--save", path))
    assert not path.exists()


def changed(path: Path, to: Path, plan: Mapping[str, object], first: bytes = b"") -> Path:
    """Return `to`, a copy of a file of weights with another plan and other first bytes."""
    magic, _, header, payload = path.read_bytes().split(b"\n", 3)
    described = json.loads(header)
    described["plan"] |= plan
    content = json.dumps(described).encode() + b"\n" + first + payload[len(first) :]
    checksum = hashlib.sha256(content).hexdigest().encode()
    to.write_bytes(b"\n".join((magic, checksum, content)))
    return to


def test_weights_that_do_not_fit_are_refused(whole: Path, tmp_path: Path) -> None:
    training.Training.resume(whole, operators_of(86, "cpu")[0], torch.device("cpu")).save(
        tmp_path / "good", ("weights",)
    )
    infinite = torch.tensor([torch.inf]).bfloat16().view(torch.uint8).numpy().tobytes()
    for plan, first, text in (
        ({}, infinite, "its weights are not finite numbers"),
        ({"layers": 2}, b"", "its plan does not belong to its weights"),
        ({"layers": "two"}, b"", "is no checkpoint of day 86"),
        ({"heads": 0}, b"", "is no checkpoint of day 86|does not belong"),
        ({"colour": 1}, b"", "is no checkpoint of day 86"),
    ):
        bad = changed(tmp_path / "good", tmp_path / "bad", plan, first)
        with pytest.raises(training.CheckpointError, match=text):
            training.read_checkpoint(bad, ("weights",))


def test_bad_arguments_are_named_before_anything_is_built(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(train, "operators_of", None)
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(whole)
    for words, text in (
        ("--steps 0", "--steps: expected 1 to 10000000, got '0'"),
        ("--heads 17", "--heads: expected 1 to 16, got '17'"),
        ("--rate nan", "--rate: expected a number between 0 and 1, got 'nan'"),
        ("--steps 5 --until 6", "--until: expected a step from 1 to --steps, 5, got 6"),
        ("--prompt a", "--prompt: does nothing without --sample"),
        ("--rate 0.5 --decay 2", "--decay: times --rate, expected a number below 1, got 2.0"),
        ("--weights ./gpt.checkpoint", "--weights: the training itself has gpt.checkpoint"),
        (f"--weights {tmp_path}/gpt.best.checkpoint", "--weights: the training itself has"),
        (f"--resume {whole} --weights link", "--weights: the training itself has link"),
        ("--sample --prompt é", "--prompt: 'é' is no character of the text"),
        ("--save-every 0", "--save-every: expected 1 or more, got '0'"),
        ("--save file/x", "--save: cannot write file/x: File exists"),
        ("--save .", "--save: expected the name of a file, got '.'"),
        (f"--save {whole}", f"--save: {whole} is there already"),
        (f"--save {'x' * 300}", "File name too long"),
        (f"--resume {whole} --save file", "--save: file is there already"),
        (f"--resume {train.best_beside(whole)}", "is the best model so far, and stays"),
        ("--resume .", "--resume: expected a checkpoint, got ., which is no file"),
        ("--resume pipe", "--resume: expected a checkpoint, got pipe, which is no file"),
        (f"--resume {'x' * 300}", "File name too long"),
        ("--resume none", "--resume: none: No such file or directory"),
        ("--resume file", "--resume: file: is no checkpoint of day 86"),
        (f"--resume {whole} --rate 0.5", "--rate: the checkpoint was trained with 0.001, got 0.5"),
        (f"--resume {whole} --steps 20", "--steps: the checkpoint was trained with 12, got 20"),
        (f"--resume {whole} --until 4", "--until: expected a step from 12 to --steps, 12, got 4"),
    ):
        monkeypatch.chdir(tmp_path)
        assert run(*words.split()) == 2
        said = capsys.readouterr().err
        assert "error: argument --" in said and text in said
