"""Every file of test kernels compiles with nvcc, too: the CPU backend runs valid CUDA C++."""

from __future__ import annotations

import pytest

from common.base import toolchain
from tests.compilations import FOLDER, Compilations, source


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.cu")))
def test_compiles_for_gpus(name: str, compilations: Compilations) -> None:
    if toolchain.find_toolkit() is None:
        pytest.skip("no nvcc: python -m pip install -r requirements.txt")
    compilations.nvcc(f"test-{name}", source(name)).result()


def begin(compilations: Compilations, name: str) -> None:
    """Start the compilation that the test waits for."""
    if toolchain.find_toolkit() is not None:
        compilations.nvcc(f"test-{name}", source(name))


test_compiles_for_gpus.begin = begin  # type: ignore[attr-defined]
