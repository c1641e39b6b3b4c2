"""Whole programs on the CPU backend: `python -m common.cpu prog.cu -- arguments`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.base.cache import cache_directory
from common.base.paths import ROOT

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


def _run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "common.cpu", *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def _line_of(program: str, marker: str) -> int:
    text = (PROGRAMS / f"{program}.cu").read_text().splitlines()
    return next(i for i, row in enumerate(text, 1) if marker in row)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(
    ("program", "arguments", "output"),
    [
        ("vector_add", [], "0 of 10000 wrong\n"),
        ("reduce", ["100000", "256"], "5000050000\n"),
        ("managed", [], "8, in a measured time\n"),
    ],
)
def test_a_program_runs(program: str, arguments: list[str], output: str, order: str) -> None:
    done = _run(PROGRAMS / f"{program}.cu", "--order", order, "--", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_exit_codes_and_messages_are_the_program_s() -> None:
    done = _run(PROGRAMS / "reduce.cu")
    assert (done.returncode, done.stderr) == (4, "usage: reduce N THREADS\n")
    done = _run(PROGRAMS / "vector_add.cu", "--", "0")
    assert done.returncode == 3
    line = _line_of("vector_add", "// the launch")
    assert f"vector_add.cu:{line}: invalid configuration argument" in done.stderr
    done = _run(PROGRAMS / "reduce.cu", "--", "100", "2000")
    assert done.returncode == 3 and "invalid configuration argument" in done.stderr


def test_threads_run_in_the_requested_order() -> None:
    source = PROGRAMS / "order.cu"
    assert _run(source).stdout == "0123\n"
    assert _run(source, "--order", "reverse").stdout == "3210\n"
    shuffled = {_run(source, "--order", "random", "--seed", str(n)).stdout for n in range(3)}
    assert all(sorted(text) == sorted("0123\n") for text in shuffled) and shuffled != {"0123\n"}
    assert _run(source, CUDACPU_ORDER="reverse").stdout == "3210\n"
    done = _run(source, CUDACPU_ORDER="sideways")
    assert done.returncode == 2
    assert done.stderr == "CUDACPU_ORDER=sideways: must be forward, reverse or random\n"
    done = _run(source, "--threads", "-3")
    assert done.returncode == 2 and "CUDACPU_THREADS=-3: must be a positive number" in done.stderr


def test_a_fault_in_a_kernel_is_explained() -> None:
    done = _run(PROGRAMS / "order.cu", "--", "crash")
    assert done.returncode == 1 and done.stdout == "0123\n"
    assert (
        f"order.cu:{_line_of('order', '// here')}" in done.stderr and "null pointer" in done.stderr
    )
    assert "in kernel crash" in done.stderr and "terminate called" not in done.stderr
    done = _run(PROGRAMS / "order.cu", "--time-limit", "0.3", "--", "spin")
    assert done.returncode == 1 and "did not finish within 0.3 s" in done.stderr


def test_ctrl_c_ends_a_program() -> None:
    _run(PROGRAMS / "order.cu")  # built
    command = [sys.executable, "-m", "common.cpu", str(PROGRAMS / "order.cu"), "--", "spin"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "0123\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGINT


def test_a_built_program_runs_by_itself(tmp_path: Path) -> None:
    out = tmp_path / "sum"
    done = _run(PROGRAMS / "reduce.cu", "-o", out)
    assert (done.returncode, done.stdout) == (0, "")
    alone = subprocess.run([out, "1000", "128"], capture_output=True, text=True)
    assert (alone.returncode, alone.stdout) == (0, "500500\n")


HELLO = '#include <cstdio>\n#include "part.cuh"\nint main() { return printf("%d\\n", PART) < 0; }\n'


def _built(program: str) -> dict[Path, int]:
    """The programs of this name in the cache, and when each was written."""
    found = cache_directory().glob(f"program-{program}*/**/{program}")
    written = {path: path.stat().st_mtime_ns for path in found}
    assert written
    return written


def test_it_is_built_again_when_a_header_changes_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "part.cuh"
    source = tmp_path / "hello.cu"
    source.write_text(HELLO)
    environment = {"HUNDRED_DAYS_CACHE": os.environ.get("HUNDRED_DAYS_CACHE", "")}
    words = [source, "-I", tmp_path / "include", "-D", "MORE=40"]
    for part in (1, 2):
        header.write_text(f"#pragma once\nconstexpr int PART = MORE + {part};\n")
        done = _run(*words, **environment)
        assert done.stdout == f"{40 + part}\n", done.stderr
    built = _built("hello")
    assert _run(*words, CXX=os.environ.get("CXX", "")).stdout == "42\n"
    assert _built("hello") == built


def test_a_compile_error_shows_the_user_s_line(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void k() {}\n\nint main() {\n  k<<<1, 1>>>(undeclared);\n}\n")
    done = _run(source)
    assert done.returncode == 2 and done.stdout == ""
    assert "broken.cu:4:" in done.stderr and "undeclared" in done.stderr


LIBRARIES = {
    "cublas_v2.h": "cuBLAS",
    "curand_kernel.h": "cuRAND",
    "cub/cub.cuh": "CUB",
    "thrust/device_vector.h": "Thrust",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_refused_by_header_and_line(tmp_path: Path, name: str) -> None:
    source = tmp_path / "uses.cu"
    source.write_text(f"#include <cstdio>\n#include <{name}>\nint main() {{}}\n")
    done = _run(source)
    assert done.returncode == 2
    expected = f"uses.cu:2: #include <{name}>: {LIBRARIES[name]} is not available on the CPU"
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_usage_is_explained() -> None:
    done = _run("nowhere.cu")
    assert done.returncode == 2 and "source: nowhere.cu is not a file" in done.stderr
    done = _run(PROGRAMS / "order.cu", "extra")
    assert done.returncode == 2 and "unrecognized arguments: extra" in done.stderr
