"""Run the kernels of cpu_kernels/sanitize.cu in a process with the address sanitizer.

    python -m tests.sanitize_worker '{"read_beyond": 61, …}'

takes kernels with the number of elements of their tensors, and prints as JSON, for each kernel and
each order, its message and result, planted and fixed. The environment comes from `environment`.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from common.base import toolchain
from common.cpu import backend, libraries
from tests import kernel_files
from tests.kernel_files import ORDERS


def environment() -> dict[str, str]:
    """Return the variables of this process, plus those for a build that watches addresses.

    Raise FileNotFoundError if the compiler has no address sanitizer.
    """
    compiler = toolchain.find_compiler().path
    variant = {toolchain.VARIANT_VARIABLE: "address"}
    return {**os.environ, **variant, **backend.preloaded(compiler)}


def inputs(elements: int, more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, whose elements all differ and have both signs, and zeros for out, `more` than of
    x."""
    numbers = torch.arange(1.0, elements + 1)
    return torch.where(numbers % 3 == 0, -numbers, numbers), torch.zeros(elements + more)


def attempt(runtime: backend.Runtime, name: str, elements: int, fixed: bool) -> dict[str, object]:
    """Return a kernel's message (of its error, or "") and its result."""
    x, out = inputs(elements)
    runtime.forget_names()
    for tensor, title in ((x, "argument x"), (out, "argument out")):
        runtime.name_memory(tensor.data_ptr(), 4 * tensor.numel(), 4, title)
    said = ""
    try:
        torch.ops.test_sanitize.run(x, out, name, elements, fixed)
    except RuntimeError as error:
        said = str(error)
    return {"said": said, "out": out.tolist()}


def main() -> None:
    toolchain.leave_preload()
    platform = toolchain.detect("cpu")
    runtime = backend.Runtime(libraries.build_runtime(platform))
    runtime.set_threads(1)  # so that the first bad access of an order is always the same
    torch.ops.load_library(str(kernel_files.library("sanitize", "cpu")))
    found = {}
    for name, elements in json.loads(sys.argv[1]).items():
        for order, seed in ORDERS:
            runtime.set_schedule(order, seed)
            found[f"{name} {order} {seed}"] = {
                "planted": attempt(runtime, name, elements, False),
                "fixed": attempt(runtime, name, elements, True),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
