"""Every file of test kernels compiles with nvcc, too: what the CPU backend runs is CUDA C++."""

import pytest

from common import build, toolchain
from tests.kernel_files import FOLDER

ARCHITECTURES = ["8.0", "9.0a"]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.cu")))
def test_compiles_for_both_architectures(name: str) -> None:
    if toolchain.find_toolkit() is None:
        pytest.skip("no nvcc: python -m pip install -r requirements.txt")
    build.compile_source(f"test-{name}", FOLDER / f"{name}.cu", ARCHITECTURES)
