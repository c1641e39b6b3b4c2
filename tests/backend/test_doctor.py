"""The doctor's findings, the sanitizer's reports and the profiler's tables, without their tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.base import toolchain
from common.base.options import RunOptions
from common.base.paths import DAYS, ROOT
from common.mutants.campaign import Choice
from common.run import direct_run, doctor, mutate
from common.run.doctor import BAD, OK, WARN, Finding
from tests.command_line import FIXTURE_DAYS, CommandLine


def of(findings: Iterator[Finding], subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.subject == subject]
    return finding


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Clear the toolchain's caches, before and after."""
    remembering = (toolchain.find_compiler, toolchain.find_toolkit, toolchain.find_gpus)
    for each in remembering:
        each.cache_clear()
    yield
    for each in remembering:
        each.cache_clear()


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.main(root=FIXTURE_DAYS)
    text = capsys.readouterr().out
    assert code == 1, "the fixture days hold a broken one"
    assert "day08/day.py: TEACHES is missing" in text
    for subject in ("Python", "torch", "compiler", "ninja", "GPU", "nvcc", "cache", "disk"):
        assert subject in text
    assert "\x1b" not in text


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    finding = of(doctor.found(doctor.compiler, DAYS), "compiler")
    assert finding.state == BAD
    assert "apt-get install" in finding.text


def test_a_missing_assembler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    (tmp_path / "c++").symlink_to(compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    finding = of(doctor.found(doctor.compiler, DAYS), "compiler")
    assert finding.state == BAD and "the assembler (as) is missing" in finding.text
    assert finding.text.count("apt-get install") == 1


def wrapper(path: Path, script: str) -> Path:
    """Return a compiler that is this script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a compiler that does not support C++20."""
    return wrapper(tmp_path / "old-c++", "echo 'unrecognized option -std=c++20' >&2; exit 1")


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """Return a compiler that links its C++ runtime into every library."""
    usual = shutil.which("g++")
    if usual is None:
        pytest.skip("no g++")
    return wrapper(tmp_path / "static-c++", f'exec {usual} -static-libstdc++ "$@"')


def test_an_unfit_compiler_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, old: Path, static: Path
) -> None:
    for unfit, reason in ((old, "-std=c++20"), (static, "a C++ runtime of its own")):
        monkeypatch.setenv("CXX", str(unfit))
        toolchain.find_compiler.cache_clear()
        finding = of(doctor.found(doctor.compiler, DAYS), "compiler")
        assert finding.state == WARN and finding.fix.startswith("export CXX=/")
        assert f"CXX={unfit}" in finding.text and reason in finding.text
        assert Path(toolchain.find_compiler().path).name in ("c++", "g++")


def test_no_fit_compiler_ends_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch, static: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(static))
    monkeypatch.setattr(
        toolchain, "compiler_unfit", lambda path, version: "links a C++ runtime of its own"
    )
    with pytest.raises(toolchain.ToolchainError, match="no usable C\\+\\+ compiler: CXX="):
        toolchain.find_compiler()
    finding = of(doctor.found(doctor.compiler, DAYS), "compiler")
    assert finding.state == BAD and "apt-get install g++" in finding.text


def test_a_run_with_an_unfit_compiler_says_which_it_takes(static: Path) -> None:
    """Such a CXX used to end every day by SIGSEGV."""
    run = CommandLine(FIXTURE_DAYS)
    run.environment["CXX"] = str(static)
    done = run("1", "--no-bench")
    assert done.returncode == 0, done.stdout
    assert f"note: CXX={static} links a C++ runtime of its own" in done.stdout
    assert " is used" in done.stdout


def test_mutants_and_a_driver_with_an_unfit_compiler_say_so_too(
    static: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(static))
    toolchain.detect.cache_clear()
    monkeypatch.setattr(mutate._Run, "run", lambda *_: [])
    mutate.run(RunOptions(("1",), days=FIXTURE_DAYS), Choice())
    monkeypatch.setattr(direct_run.library, "plan", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        direct_run.run(FIXTURE_DAYS / "day01", "cpu")
    toolchain.detect.cache_clear()
    assert capsys.readouterr().out.count(f"note: CXX={static} links a C++ runtime") == 2


def test_what_no_build_gets_past_ends_the_run_at_once(
    run_copy: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    run_copy.environment["HUNDRED_DAYS_CACHE"] = str(tmp_path / "file" / "cache")
    done = run_copy("all", "--no-bench")
    assert done.returncode == 1
    assert "cannot be written" in done.stdout and "HUNDRED_DAYS_CACHE" in done.stdout
    assert "day01" not in done.stdout and done.stdout.count("\n") <= 2, done.stdout


def test_a_broken_torch_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: gone')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = of(doctor.found(doctor.torch, DAYS), "torch")
    assert finding.state == BAD and "libcudart.so.13: gone" in finding.text and finding.fix


def test_the_whole_program_survives_without_torch(tmp_path: Path) -> None:
    """torch is hidden from the program itself: the doctor still works, a run reports the fix."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no torch here')")
    run = CommandLine(FIXTURE_DAYS)
    run.environment["PYTHONPATH"] = str(tmp_path)
    for arguments, expected in (
        (["--doctor"], "cannot be imported: ImportError: no torch here"),
        (["1"], "python run_day.py --doctor says more"),
    ):
        command = [sys.executable, "-c", SHADOW, str(tmp_path), *run.command(*arguments)[2:]]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env={**run.environment, **PATH}
        )
        assert done.returncode == 1
        assert expected in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr


PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())}
# The broken torch must shadow the installed one.
SHADOW = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.path.insert(1, '.'); "
    "import run_day; sys.exit(run_day.main(sys.argv[1:]))"
)


def test_torch_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise toolchain.ToolchainError("torch is not installed; pip install -r requirements.txt")

    monkeypatch.setattr(toolchain, "torch_version", absent)
    finding = of(doctor.found(doctor.torch, DAYS), "torch")
    assert finding.state == BAD and "requirements.txt" in finding.text


def test_an_unforeseen_error_is_a_finding() -> None:
    def look(_root: Path) -> Iterator[Finding]:
        yield Finding(OK, "before", "")
        raise ZeroDivisionError("unforeseen")

    before, after = doctor.found(look, DAYS)
    assert before.state == OK
    assert after.state == BAD and "unforeseen" in after.text


def test_a_gpu_with_a_cpu_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = toolchain.Gpus(("NVIDIA H200",), ("9.0a",), "13.0")
    monkeypatch.setattr(toolchain, "find_gpus", lambda: found)
    monkeypatch.setattr(toolchain, "torch_cuda", lambda: "")
    assert of(doctor.found(doctor.gpu, DAYS), "GPU").text == "NVIDIA H200, sm_90a"
    assert of(doctor.found(doctor.gpu, DAYS), "torch").state == WARN


def test_a_driver_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    found = toolchain.Gpus(("NVIDIA A100",), ("8.0",), "12.4")
    monkeypatch.setattr(toolchain, "find_gpus", lambda: found)
    monkeypatch.setattr(toolchain, "torch_cuda", lambda: "13.0")
    findings = list(doctor.found(doctor.gpu, DAYS))
    (bad,) = [finding for finding in findings if finding.state == BAD]
    assert bad.subject == "driver" and "12.4" in bad.text and "update" in bad.fix


def test_a_build_removes_files_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path))
    (tmp_path / "kept").write_bytes(bytes(3_000_000))
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "x.o").touch()
    walk = os.walk

    def walk_and_remove(top: Path) -> Iterator[Any]:
        for at, folders, names in walk(top):
            shutil.rmtree(tmp_path / "day", ignore_errors=True)
            yield at, folders, [*names, "x.o"]

    monkeypatch.setattr(os, "walk", walk_and_remove)
    cache, disk = doctor.found(doctor.cache, DAYS)
    assert (cache.state, cache.text) == (OK, f"{tmp_path}, 3.0 MB")
    assert disk.subject == "disk"


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path / "file" / "cache"))
    finding = of(doctor.found(doctor.cache, DAYS), "cache")
    assert finding.state == BAD and "HUNDRED_DAYS_CACHE" in finding.fix


def test_a_machine_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_PROCESS", tmp_path / "self")
    with pytest.raises(toolchain.ToolchainError, match=r"no /proc, .*; mount -t proc proc /proc"):
        toolchain.detect.__wrapped__("cpu")


@pytest.mark.parametrize("name", ["a$HOME", "a\nb", "caf\udce9"])
def test_a_path_that_nothing_can_be_built_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(toolchain, "ROOT", Path("/") / name)
    with pytest.raises(toolchain.ToolchainError, match=r"in this path; move the checkout"):
        toolchain.detect.__wrapped__("cpu")
    monkeypatch.setattr(toolchain, "ROOT", Path("/usual, place"))
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", "/other,place")
    with pytest.raises(toolchain.ToolchainError, match=r"with ',' in this path; set HUNDRED_DAYS"):
        toolchain.detect.__wrapped__("cpu")
