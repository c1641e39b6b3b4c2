"""Memory of the runtime API: pools, 3D memory and copies between devices, as on a GPU
(`cpu_kernels/memory.cu`); and, on the CPU backend, memory that several processes share.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from common.base import toolchain
from common.base.paths import ROOT
from common.cpu import backend
from common.cpu import libraries as shared
from tests.kernel_files import Call, Libraries
from tests.progress import finish

KERNELS = "memory"
LIKE = torch.zeros(1)


def test_pools(call: Call) -> None:
    call("pools", LIKE)


def test_3d_copies(call: Call) -> None:
    x = torch.arange(4 * 5 * 6.0).reshape(4, 5, 6)
    want = torch.zeros_like(x)
    want[:3, 1:, :4] = x[1:, 1:, 1:5]
    assert call("box", x).equal(want)


def test_peers_and_profilers(call: Call) -> None:
    call("peers", LIKE)


# ---------------------------------------------------------------- between processes


def _handle() -> torch.Tensor:
    return torch.zeros(64, dtype=torch.uint8)


# One of two processes: it shares memory, gets the other's handle by a line of text, and
# they send each other numbers and add them up, three times.
_RANK = """
import sys, time, torch
from pathlib import Path
from common.cpu import backend
from common.cpu import libraries as shared
runtime = backend.Runtime(Path(sys.argv[1]))
torch.ops.load_library(sys.argv[2])
ops = torch.ops.test_memory
rank, wait = int(sys.argv[3]), float(sys.argv[4])
handle = torch.zeros(64, dtype=torch.uint8)
mine = ops.export_memory(handle)
print(bytes(handle.tolist()).hex(), flush=True)
theirs = ops.import_memory(torch.tensor(list(bytes.fromhex(input())), dtype=torch.uint8))
x = torch.full((64,), float(rank + 1))
runtime.set_spin_limit(0.2)
for round in range(1, 4):
    if rank:
        time.sleep(wait)
    ops.send(x, theirs, round)
    ops.receive(x, mine, round)
print(x.tolist() == [3.0 * 2**2] * 64, flush=True)
input()
ops.close_memory(x, theirs)
ops.free_memory(x, mine)
"""


def _start(libraries: Libraries, rank: int, wait: float) -> subprocess.Popen[str]:
    runtime = shared.build_runtime(toolchain.detect("cpu"))
    paths = [str(runtime), str(libraries.path(KERNELS, "cpu"))]
    command = [sys.executable, "-c", _RANK, *paths, str(rank), str(wait)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout and process.stderr
    line = process.stdout.readline().strip()
    assert line, process.stderr.read()
    return line


def test_processes_share_memory(operators: Any, libraries: Libraries) -> None:
    """Each waits in a kernel for the other, once for longer than threads may poll alone."""
    ranks = [_start(libraries, rank, wait=0.5) for rank in range(2)]
    try:
        handles = [_line(rank) for rank in ranks]
        for rank, handle in zip(ranks, reversed(handles), strict=True):
            _tell(rank, handle)
        assert [_line(rank) for rank in ranks] == ["True", "True"]
        for rank in ranks:
            _tell(rank, "")
            _, errors = finish(rank)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
    gone = torch.tensor(list(bytes.fromhex(handles[0])), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="has freed the memory, or has ended"):
        operators.import_memory(gone)


def test_handles_that_cannot_be_opened(operators: Any) -> None:
    handle = _handle()
    memory = operators.export_memory(handle)
    with pytest.raises(RuntimeError, match=r"cudaErrorDeviceUninitialized.*by this process"):
        operators.import_memory(handle)
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):
        operators.import_memory(_handle())
    operators.free_memory(LIKE, memory)


def test_a_wait_in_vain_is_found_once_nothing_is_shared(
    operators: Any, cpu_runtime: backend.Runtime
) -> None:
    cpu_runtime.set_spin_limit(0.2)
    cpu_runtime.set_time_limit(1)
    memory = operators.export_memory(_handle())
    flag = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="did not finish within 1 s"):
        operators.wait_in_vain(flag)
    operators.free_memory(LIKE, memory)
    with pytest.raises(RuntimeError, match="no thread makes progress"):
        operators.wait_in_vain(flag)


def test_memory_that_was_shared_can_be_freed_and_used_again(operators: Any) -> None:
    for _ in range(20):
        memory = operators.export_memory(_handle())
        x = torch.rand(64)
        operators.send(x, memory, 1)
        got = torch.zeros(64)
        operators.receive(got, memory, 1)
        assert got.equal(x)
        operators.free_memory(LIKE, memory)
    open_files = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not any("cuda-on-cpu" in str(name) for name in open_files)
