"""Build files of test kernels (`cpu_kernels/*.cu`) for the CPU backend and for a GPU.

The operators of `<name>.cu` are torch.ops.test_<name>. The build for the CPU defines them, the one
for a GPU adds its functions to the same operators, so that the tensors' device chooses. A library
stays in the cache of builds until its source, the backend or a compiler changes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compilations import Compilations, library, source

ORDERS = [("forward", 0), ("reverse", 0), ("random", 1), ("random", 2)]


def names_line(message: str, name: str, marker: str) -> bool:
    """Return True if the message names the line of `<name>.cu` that ends in "// line: <marker>"."""
    lines = source(name).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if f"// line: {marker}" in text)
    return re.search(rf"\b{name}\.cu:{line}\b", message) is not None


def best_of_three(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three calls, after one that does not count."""
    call()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


class Libraries:
    """Build files of kernels in the background, and load each when it is first needed."""

    def __init__(self, compilations: Compilations, devices: Iterable[str]) -> None:
        self._compilations = compilations
        self._devices = tuple(devices)
        self._loaded: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, names: Iterable[str]) -> None:
        """Start building these files."""
        for name in names:
            for device in self._devices:
                self._begin(name, device)

    def _begin(self, name: str, device: str) -> Future[Path]:
        return self._compilations.begin(library, name, device)

    def path(self, name: str, device: str) -> Path:
        """Return the library of that file, built."""
        return self._begin(name, device).result()

    def operators(self, name: str) -> Any:
        """Return torch.ops.test_<name>, for tensors of every available device."""
        with self._lock:
            if name not in self._loaded:
                for device in self._devices:  # the CPU first: it defines the operators
                    torch.ops.load_library(str(self.path(name, device)))
                self._loaded.add(name)
        return getattr(torch.ops, f"test_{name}")


def _check_same(what: str, gpu: Any, cpu: Any) -> None:
    """Raise AssertionError, with the first difference, unless both are equal bit for bit."""
    if not isinstance(gpu, torch.Tensor):
        assert gpu == cpu, f"{what}: {gpu} on the GPU, {cpu} on the CPU"
        return
    assert (gpu.shape, gpu.dtype) == (cpu.shape, cpu.dtype), what
    size = gpu.element_size()
    a, b = (x.contiguous().reshape(-1).view(torch.uint8).reshape(-1, size) for x in (gpu, cpu))
    different = (a != b).any(1).nonzero().flatten()
    if len(different):
        first = int(different[0])
        index = tuple(int(i) for i in torch.unravel_index(different[0], gpu.shape))
        on_gpu, on_cpu = (x.reshape(-1)[first].item() for x in (gpu, cpu))
        raise AssertionError(
            f"{what}: {len(different)} of {gpu.numel()} elements differ; the first, {index}, is "
            f"{on_gpu} on the GPU, {on_cpu} on the CPU"
        )


class Call:
    """Call operators of a file by name with CPU tensors: call("matmul", a, b).

    device: "cpu", or "cuda": there, arguments are copied to the GPU, and results, including changed
    arguments, are copied back. With `exact`, results on the GPU are also compared with those on the
    CPU backend, bit for bit; without, only with those that the test expects.
    """

    def __init__(self, operators: Any, device: str) -> None:
        self.device = device
        self._operators = operators

    def __call__(self, name: str, *args: Any, exact: bool = True) -> Any:
        """Return the operator's result, on the CPU."""
        operator: Callable[..., Any] = getattr(self._operators, name)
        if self.device == "cpu":
            return operator(*args)
        emulated = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        moved = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
        result = operator(*moved)
        try:
            torch.cuda.synchronize()
        except torch.AcceleratorError as error:
            # All later calls to the GPU from this process fail, too.
            pytest.exit(f"{name} has left the GPU unusable: {error}", returncode=1)
        if isinstance(result, torch.Tensor):
            result = result.cpu()
        for given, changed in zip(args, moved, strict=True):
            if isinstance(given, torch.Tensor):
                given.copy_(changed)
        if exact:
            _check_same(name, result, operator(*emulated))
            for i, (given, changed) in enumerate(zip(args, emulated, strict=True)):
                _check_same(f"{name}, argument {i}", given, changed)
        return result
