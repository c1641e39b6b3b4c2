"""Day 98 leaves a model, a program in C++ and a wheel in a folder: each writes the same text."""

import errno
import importlib
import importlib.metadata
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.base.paths import ROOT
from common.base.toolchain import ToolchainError
from common.build.library import operators_of
from tests import progress

build = importlib.import_module("days.day98.build")
made = importlib.import_module("days.day98.made")
training = importlib.import_module("days.day86.training")

PROMPT, COUNT = "ROMEO:", 12  # more than the positions: the window slides
PLAN = training.Plan(layers=1, heads=1, positions=8, batch=2, steps=2, warmup=1)
CLIENT = """
import sys, torch, hundred_days_gpt
torch.save(hundred_days_gpt.logits(torch.load(sys.argv[1])), sys.argv[2])
"""


@pytest.fixture(scope="module")
def trained() -> Any:
    try:
        operators, device = operators_of(86, "cpu")
    except ToolchainError as error:
        pytest.skip(str(error))
    return training.Training(operators, PLAN, torch.device(device))


@pytest.fixture(scope="module")
def model(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the weights of the model."""
    path = tmp_path_factory.mktemp("model") / "tiny.gpt"
    trained.save(path, ("weights",))
    return path


def output(command: list[object], folder: Path, **environment: str) -> str:
    """Return the output of a command that must succeed in this folder and environment."""
    words = [str(word) for word in command]
    return progress.run(words, cwd=folder, env=environment, check=True).stdout


def most_likely(trained: Any) -> str:
    """Return the prompt and COUNT characters after it, by the operator itself."""
    known = training.characters()[1]
    tokens = training.tokens_of(PROMPT).long().tolist()
    for _ in range(COUNT):
        logits = trained.logits(torch.tensor([tokens[-PLAN.positions :]]))
        tokens.append(int(logits[0, -1, : len(known)].float().argmax()))
    return "".join(known[token] for token in tokens)


def test_each_file_writes_the_same_text(trained: Any, model: Path, tmp_path: Path) -> None:
    if tool := made.missing_tool():
        pytest.skip(f"this Python has no {tool}")
    dist, site = tmp_path / "dist", tmp_path / "site"
    command = [sys.executable, "-m", "days.day98.build", "--device", "cpu"]
    command += ["--out", str(dist), "--model", str(model)]
    first = progress.run(command, cwd=ROOT, check=True).stdout
    assert progress.run(command, cwd=ROOT, check=True).stdout == first  # with the seconds of then
    (wheel,) = dist.glob("*.whl")
    assert {path.name for path in dist.iterdir()} == {
        *("gpt.pt2", "operators.so", "libcudacpu.so", "write", wheel.name)
    }
    assert wheel.name.startswith("hundred_days_gpt-1.0-py3-none-")

    files = [dist / name for name in ("write", "gpt.pt2", "operators.so")]
    expected = most_likely(trained) + "\n"
    assert output([*files, PROMPT, COUNT, 0], tmp_path) == expected
    drawn = [output([*files, PROMPT, COUNT, 1, seed], tmp_path) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]

    output([sys.executable, "-m", "pip", "install", *made.OFFLINE, "--target", site, wheel], ROOT)
    program = [sys.executable, "-m", "hundred_days_gpt"]
    words = [PROMPT, "--tokens", COUNT, "--temperature", 0]
    assert output([*program, *words], tmp_path, PYTHONPATH=str(site)) == expected
    refused = progress.run([*program, "é"], env={"PYTHONPATH": str(site)}, cwd=tmp_path)
    assert refused.returncode == 2 and "prompt: 'é' is no character of" in refused.stderr

    tokens = torch.randint(len(training.characters()[1]), (3, 5))
    torch.save(tokens, tmp_path / "tokens.pt")
    client = [sys.executable, "-c", CLIENT, tmp_path / "tokens.pt", tmp_path / "logits.pt"]
    output(client, tmp_path, PYTHONPATH=str(site))
    logits = trained.logits(tokens)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), logits)
    package = torch._inductor.aoti_load_package(str(dist / "gpt.pt2"))
    assert torch.equal(package(tokens), logits)

    (dist / "broken.pt2").write_bytes(files[1].read_bytes()[:1000])
    for given, text in (
        (files[1:], "usage: write MODEL"),
        ([*files[1:], ""], "PROMPT: expected at least one character"),
        ([*files[1:], "é"], "PROMPT: 'é' is no character of the model"),
        ([*files[1:], "a", "-1"], "COUNT: expected 0 to 1000000000, got -1"),
        ([*files[1:], "a", "2x"], "COUNT: expected 0 to 1000000000, got 2x"),
        ([*files[1:], "a", "2", "nan"], "TEMPERATURE: expected 0 to 1000, got nan"),
        ([*files[1:], "a", "2", "1", "-1"], "SEED: expected 0 to"),
        ([dist / "none", files[2], "a"], f"model: cannot read {dist / 'none'}"),
        ([dist / "broken.pt2", files[2], "a"], "failed"),
        ([files[1], dist / "none", "a"], "operators:"),
    ):
        refused = progress.run([files[0], *map(str, given)], env={}, cwd=tmp_path)
        assert refused.returncode == 1 and text in refused.stderr, (given, refused.stderr)


def test_bad_arguments_are_named_before_anything_is_built(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build, "operators_of", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "damaged").write_bytes(model.read_bytes()[:-1])
    (tmp_path / "busy" / "write").mkdir(parents=True)
    for words, text in (
        (f"--model {model}", "the following arguments are required: --out"),
        (f"--out= --model {model}", "--out: expected the name of a folder, got ''"),
        (f"--out text --model {model}", "--out: expected a folder, got text, which is none"),
        (
            f"--out text/dist --model {model}",
            "--out: cannot write text/dist/gpt.pt2: Not a directory",
        ),
        (f"--out busy --model {model}", "--out: cannot write busy/write: Is a directory"),
        ("--out dist --model none", "--model: none: No such file or directory"),
        ("--out dist --model .", "--model: expected a checkpoint, got ., which is no file"),
        ("--out dist --model pipe", "--model: expected a checkpoint, got pipe, which is no file"),
        (f"--model {model} --out {'x' * 300}", "File name too long"),
        ("--out dist --model text", "--model: text: is no checkpoint of day 86"),
        ("--out dist --model damaged", "--model: damaged: is damaged"),
        (f"--out dist --model {model} --device tpu", "--device: invalid choice: 'tpu'"),
    ):
        with pytest.raises(SystemExit) as ended:
            build.main(words.split())
        assert ended.value.code == 2
        assert text in capsys.readouterr().err.replace("argument ", ""), words
    assert not (tmp_path / "dist").exists()


def test_a_tool_that_is_missing_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "setuptools":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(build, "operators_of", None)
    with pytest.raises(SystemExit) as ended:
        build.main(["--out", str(tmp_path), "--model", str(model)])
    assert str(ended.value.code).startswith("the wheel needs setuptools")


def test_a_build_that_cannot_be_written_leaves_the_folder_as_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the place of the last file; a disk that is full at the second one."""
    out, new = tmp_path / "out", tmp_path / "new"
    out.mkdir()
    new.mkdir()
    files = [new / name for name in ("gpt.pt2", "a.whl")]
    for file in files:
        file.write_text("new")
    (out / "gpt.pt2").write_text("old")
    (out / "a.whl").mkdir()
    monkeypatch.setattr(build, "run", lambda options, *_: build.publish(files, options.out))
    copy = build.shutil.copy

    def full(source: Path, to: str) -> str:
        if source == files[1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return str(copy(source, to))

    def refusal() -> str:
        with pytest.raises(SystemExit) as ended:
            build.main(["--out", str(out), "--model", str(model)])
        assert (out / "gpt.pt2").read_text() == "old" and len(list(out.iterdir())) == 2
        return str(ended.value.code)

    assert refusal() == f"cannot write {out / 'a.whl'}: Is a directory"
    (out / "a.whl").rmdir()
    (out / "a.whl").write_text("old")
    monkeypatch.setattr(build.shutil, "copy", full)
    assert refusal() == f"cannot write into {out}: No space left on device"


def test_printed_commands_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "the größte folder's name"
    folder.mkdir()
    files = [folder / name for name in ("gpt.pt2", "operators.so", "write", "a.whl")]
    for file in files:
        file.write_text("")
    build.print_commands(files, folder)
    lines = capsys.readouterr().out.splitlines()
    command = next(shlex.split(line) for line in lines if "env -i" in line)
    assert command[:3] == ["env", "-i", str(folder / "write")]
    assert ["pip", "install", str(folder / "a.whl")] in map(shlex.split, lines[4:])


def test_an_interrupted_build_leaves_the_folder_as_it_was(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = tmp_path / "gpt.pt2", tmp_path / "new" / "gpt.pt2"
    old.write_text("old")
    new.parent.mkdir()
    new.write_text("new")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "run", lambda options, *_: build.publish([new, new], options.out))
    monkeypatch.setattr(build.shutil, "copy", interrupted)
    with pytest.raises(SystemExit) as ended:
        build.main(["--out", str(tmp_path), "--model", str(model)])
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err
    assert old.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
