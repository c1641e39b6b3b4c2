"""The cards that the CPU backend simulates: what each reports, refuses, lacks and compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.base import toolchain
from common.base.days import Day
from common.base.paths import ROOT
from common.build import library
from common.check import device
from common.cpu import models, program
from common.cpu.models import Card
from tests import progress
from tests.command_line import FIXTURE_DAYS, CommandLine

PROGRAM = Path(__file__).resolve().parent.parent / "programs" / "model.cu"
every_model = pytest.mark.parametrize("card", models.cards().values(), ids=models.cards())


def executable(model: str = "") -> Path:
    platform = replace(toolchain.detect("cpu"), model=model)
    return program.executable([PROGRAM], platform, [f"-I{ROOT}"])


def run(what: str, model: str, built: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program, built for the default, on a model ("" for the one that it was built for)."""
    command = [built or executable(), what]
    return progress.run(command, env={**os.environ, "CUDACPU_MODEL": model})


@every_model
def test_a_card_says_what_it_is(card: Card) -> None:
    resident = min(card.blocks, card.threads // 32)
    assert run("facts", card.name).stdout.strip().split("|") == [
        f"CPU backend (model {card.name})",
        *map(str, (card.capability, card.multiprocessors, card.threads, card.blocks)),
        *map(str, (card.shared_opt_in, card.shared, card.shared_reserved)),
        *map(str, (int(card.capability >= 90), card.l2, 65536, card.capability, resident)),
    ]


@every_model
def test_a_card_refuses_what_it_cannot_launch(card: Card) -> None:
    said = run("limits", card.name).stdout.splitlines()
    most = card.shared_opt_in
    too_much = (
        f"cudaErrorInvalidValue: invalid argument: {most + 4} bytes of shared memory, where a "
        f"block may have {most} on compute capability {card.name}"
    )
    too_much_dynamic = (
        f"cudaErrorInvalidValue: invalid argument: dynamic shared memory of {most + 4} bytes: "
        f"compute capability {card.name} allows {most} per block"
    )
    refused = (
        "cudaErrorNotSupported: operation not supported: clusters need compute capability 9.0; "
        f"CPU backend (model {card.name}) has {card.name}"
    )
    fine = "cudaSuccess: no error"
    # Messages about a launch end with the kernel and the place.
    assert [line.split(", in ")[0] for line in said] == [
        f"attribute: {too_much}",
        f"launch: {fine}",
        f"too much: {too_much_dynamic}",
        f"cluster: {fine if card.capability >= 90 else refused}",
        "cooperative: cudaErrorCooperativeLaunchTooLarge: too many blocks in cooperative launch",
    ]


@pytest.mark.parametrize(
    ("what", "named", "needed", "has_it", "lacks_it"),
    [
        ("cp.async", "cp.async", "8.0", ["8.0", "9.0"], ["7.5"]),
        ("mma", "mma.m16n8k16", "8.0", ["8.0"], ["7.5"]),
        ("fp8", "mma of fp8", "8.9", ["8.9", "12.0"], ["7.5", "8.6"]),
        ("redux", "__reduce_add_sync", "8.0", ["8.0"], ["7.5"]),
        ("mbarrier", "mbarrier.init", "8.0", ["8.6"], ["7.5"]),
        ("bulk", "mbarrier.arrive.expect_tx", "9.0", ["9.0", "10.0", "12.0"], ["8.0", "8.9"]),
        ("wgmma", "wgmma", "9.0a", ["9.0"], ["8.9", "10.0", "12.0"]),
    ],
)
def test_a_feature_that_a_card_lacks_is_named(
    what: str, named: str, needed: str, has_it: list[str], lacks_it: list[str]
) -> None:
    for model in has_it:
        done = run(what, model)
        assert (done.returncode, done.stderr) == (0, ""), model
    for model in lacks_it:
        done = run(what, model)
        assert done.returncode == 1
        assert f"{named} needs compute capability {needed}" in done.stderr
        assert f"CPU backend (model {model}) has {model}" in done.stderr
        assert "model.cu:" in done.stderr


@pytest.mark.parametrize(
    ("model", "compiled"),
    [("7.5", "0 0 750 0"), ("8.6", "1 1 860 0"), ("9.0", "1 1 900 1")],
)
def test_device_code_is_compiled_for_the_model(model: str, compiled: str) -> None:
    """And code of the host as nvcc compiles it for the host, on every model."""
    done = run("architecture", "", executable(model))
    assert done.stdout == f"{compiled} 0 1\n", done.stderr


def test_a_program_plays_what_it_was_built_for(tmp_path: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "common.cpu", str(PROGRAM), f"-I{ROOT}", *words]
        return progress.run(whole, cwd=ROOT)

    assert command("--model", "8.6", "--", "facts").stdout.startswith("CPU backend (model 8.6)|86|")
    assert command("--", "facts").stdout.startswith("CPU backend (model 9.0)|90|132|")
    assert command("--model", "9.0a", "--", "facts").stdout.startswith("CPU backend (model 9.0)|")
    built = tmp_path / "model"
    assert command("--model", "8.6", "-o", str(built)).returncode == 0
    assert run("facts", "", built).stdout.startswith("CPU backend (model 8.6)|")
    assert run("facts", "7.5", built).stdout.startswith("CPU backend (model 7.5)|")
    done = run("facts", "7.6", built)
    assert done.returncode == 2 and "CUDACPU_MODEL=7.6: must be a model" in done.stderr
    done = command("--model", "7.6", "--", "facts")
    assert done.returncode == 2 and "'7.6' is no model; did you mean 8.6?" in done.stderr


def test_models_share_a_build_unless_the_day_asks_for_the_architecture(tmp_path: Path) -> None:
    def key(day: Day, model: str) -> str:
        return library.plan(day, replace(toolchain.detect("cpu"), model=model)).entry.key

    from common.base.days import read_day

    day = read_day(FIXTURE_DAYS / "day01")
    assert key(day, "") == key(day, "7.5") == key(day, "9.0")
    folder = tmp_path / "day01"
    folder.mkdir()
    for file in (FIXTURE_DAYS / "day01").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    asks = read_day(folder)
    text = asks.source.read_text()
    asks.source.write_text(f"{text}\n#if __CUDA_ARCH__ >= 800\nint newer;\n#endif\n")
    assert key(asks, "") == key(asks, "9.0") == key(asks, "8.6")  # the same text for both
    assert key(asks, "7.5") != key(asks, "8.6")


def test_the_command_line_plays_a_model(run_day: CommandLine) -> None:
    done = run_day("1", "--no-bench", "--quick", "--model", "8.6")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("CPU backend (model 8.6), ")
    assert "bad inputs" not in done.stdout
    done = run_day("1", "--model", "8.7")
    assert done.returncode == 2
    assert "--model: '8.7' is no model; did you mean 8.9? there are 7.5 (T4)," in done.stdout


def test_this_process_plays_a_model() -> None:
    """In the process that runs a day, Python has the card, too."""
    platform = replace(toolchain.detect("cpu"), model="8.6")
    try:
        device.make(platform)
        assert models.played().card == "RTX 3090"
    finally:
        device.make(replace(platform, model=""))
    assert models.played().name == models.default()
