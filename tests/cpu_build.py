"""Builds files of test kernels for the CPU backend into a folder, by g++ alone."""

import subprocess
from pathlib import Path

import pytest
import torch

from common import toolchain
from common.cpu import backend, rewrite
from tests.kernel_files import ORDERS  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
KERNELS = Path(__file__).resolve().parent / "cpu_kernels"
TORCH = Path(torch.__file__).parent


def cuda_include() -> Path:
    """The folder of NVIDIA's headers; skips the test if there are none."""
    try:
        return toolchain.cuda_headers()
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))


def build_kernels(name: str, folder: Path, runtime: Path) -> Path:
    """The library of `cpu_kernels/<name>.cu`, built into `folder`."""
    cpp = rewrite.rewrite_tree(KERNELS / f"{name}.cu", folder / name, [ROOT])
    library = folder / f"{name}.so"
    command = ["g++", "-shared", *backend.cflags(cuda_include())]
    command += ["-isystem", str(TORCH / "include"), "-DTORCH_TARGET_VERSION=0x020b000000000000"]
    command += [str(cpp), "-o", str(library), *backend.ldflags(runtime)]
    command += [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:4000]
    return library
