"""Measure the GPU's maximum rates, keep them by GPU, and compare every rung's rate with them.

Day 50's kernels measure them, and a run of that day on a GPU stores the results (`raise_ceilings`).
Until then PyTorch's operators measure them, since a first run of another day should not wait for
the build of day 50.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from common.bench.showing import gpu_times, wake_gpu

GIB = 1 << 30


@dataclass(frozen=True)
class Ceilings:
    """Measured maxima of one GPU.

    copy: GB/s of a device-to-device copy, bytes read plus bytes written. read: GB/s of a sum. fp32,
    int32: TFLOP/s of independent multiply-adds in that type. tensor: TFLOP/s of a large bf16
    product, int8 and fp8 of one in those types (fp8: 0 if the GPU does not support it). l2_bytes:
    size of the second-level cache.
    """

    copy: float
    read: float
    fp32: float
    int32: float
    tensor: float
    int8: float
    fp8: float
    l2_bytes: int


def ceilings(cache: Path) -> Ceilings:
    """Return the current GPU's ceilings, from `cache` (a directory) if they are stored there."""
    file = _file(cache)
    if file.is_file():
        return Ceilings(**json.loads(file.read_text()))
    measured = measure()
    _keep(file, measured)
    return measured


def raise_ceilings(found: Mapping[str, float], cache: Path) -> None:
    """Store the rates of day 50's kernels as the current GPU's ceilings.

    found: rates by field of Ceilings, in its units. If PyTorch's operator reached more, its rate
    stays the ceiling, since a maximum is the highest observed rate. Raise KeyError for a name that
    is not a field of Ceilings.
    """
    known = asdict(ceilings(cache))
    _keep(_file(cache), Ceilings(**known | {k: max(known[k], v) for k, v in found.items()}))


def _file(cache: Path) -> Path:
    slug = re.sub(r"\W+", "-", torch.cuda.get_device_properties(0).name.lower())
    return cache / f"ceilings-6-{slug}-torch{torch.__version__.split('+')[0]}.json"


def _keep(file: Path, measured: Ceilings) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(measured)))
    os.replace(unfinished, file)


def measure() -> Ceilings:
    """Measure the current GPU; takes about a second and 8 GiB at most."""
    properties = torch.cuda.get_device_properties(0)
    wake_gpu()
    count = min(GIB, properties.total_memory // 16) // 4
    x = torch.randn(count, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.nbytes / _best_seconds(partial(y.copy_, x)) / 1e9
    read = x.nbytes / _best_seconds(x.sum) / 1e9
    del x, y

    fp32 = _multiply_adds(torch.float32)
    int32 = _multiply_adds(torch.int32)

    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tensor = 2 * n**3 / _best_seconds(lambda: a @ b) / 1e12
    # Random like the others, since a product of equal numbers needs less power.
    a, b = (torch.randint(-128, 128, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
    int8 = 2 * n**3 / _best_seconds(lambda: torch._int_mm(a, b.T)) / 1e12
    fp8 = 0.0
    if torch.cuda.get_device_capability(0) >= (8, 9):
        a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device="cuda")
        fast = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
        fp8 = 2 * n**3 / _best_seconds(lambda: fast(a, b.T, one, one)) / 1e12
    return Ceilings(copy, read, fp32, int32, tensor, int8, fp8, properties.L2_cache_size)


def _multiply_adds(dtype: torch.dtype) -> float:
    """Return TFLOP/s of multiply-adds, two operations each, in independent chains."""
    steps, chains = 2048, 8  # eight per thread hide the latency of one
    factor = "T(0.999)" if dtype.is_floating_point else "T(3)"
    names = [f"c{i}" for i in range(chains)]
    code = (
        "template <typename T> T multiply_adds(T x) {"
        + "".join(f"T {name} = x + T({i});" for i, name in enumerate(names))
        + f"for (int i = 0; i < {steps}; ++i) {{"
        + "".join(f"{name} = {name} * {factor} + x;" for name in names)
        + "} return "
        + " + ".join(names)
        + "; }"
    )
    chained = torch.cuda.jiterator._create_jit_fn(code)
    count = torch.cuda.get_device_properties(0).multi_processor_count * 2048 * 16
    lanes = torch.randint(1, 100, (count,), device="cuda").to(dtype)
    return 2 * steps * chains * count / _best_seconds(lambda: chained(lanes)) / 1e12


def _best_seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Return the shortest time of several calls."""
    for _ in range(3):
        call()
    return min(gpu_times(call, repeats))
