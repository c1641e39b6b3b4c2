"""Numba with a NumPy that no longer has the name that numba-cuda registers."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

from common.base.outcome import Skip
from common.base.paths import ROOT
from common.build.custom_build import Builder

pytest.importorskip("numba_cuda", reason="python -m pip install -r requirements.txt")

# numba-cuda compiles for an architecture without a GPU. NumPy 2.5 has no row_stack.
COMPILES = """
import numpy
vars(numpy).pop("row_stack", None)
numpy.__version__ = "2.5.2"
from common.build.custom_build import numpy_as_numba_expects
from numba import cuda

def nothing(): pass

try:
    cuda.compile_ptx(nothing, (), cc=(9, 0))
except AttributeError as error:
    print(error)
else:
    print("numba-cuda has done without: numpy_as_numba_expects is needed no longer")
with numpy_as_numba_expects():
    print(".entry" in cuda.compile_ptx(nothing, (), cc=(9, 0))[0], hasattr(numpy, "row_stack"))
print(hasattr(numpy, "row_stack"))
"""


def test_numba_compiles_with_numpy_2_5() -> None:
    try:
        importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("NVRTC is missing: python -m pip install -r .ci/requirements.txt")
    done = subprocess.run(
        [sys.executable, "-c", COMPILES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lacking, compiled, after = done.stdout.splitlines()
    assert lacking == "module 'numpy' has no attribute 'row_stack'"
    assert (compiled, after) == ("True True", "False")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            AttributeError("numpy has no old"),
            "numba-cuda .* does not work with NumPy .*: numpy has",
        ),
        (ImportError("needs an old NumPy"), "numba-cuda .* does not work with NumPy .*: needs an"),
        (ModuleNotFoundError("no numba"), r"Numba is missing: .*\(no numba\)"),
    ],
)
def test_what_does_not_work_is_skipped_with_what_does(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> None:
        raise error

    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    monkeypatch.setattr(importlib, "import_module", import_module)
    todo = SimpleNamespace(platform=SimpleNamespace(device="cuda", model=""))
    with pytest.raises(Skip, match=message) as skipped:
        Builder(todo).numba("patterns_numba")  # type: ignore[arg-type]
    assert "pip install 'numba-cuda[cu13]==" in str(skipped.value)
