"""Name the libraries that --rivals times together with the rungs, and how each is installed.

Their versions are pinned in .ci/rivals.txt. This module imports none of them.
"""

from __future__ import annotations

import shlex
from importlib.metadata import PackageNotFoundError, version

# By the name that days declare: what pip is given. CUB needs nothing, its headers come with nvcc.
# cu13: for CUDA 13, which PyTorch is built with.
PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "CUB": "",
    "cuDNN graph": "nvidia-cudnn-frontend",
    "DeepGEMM": "sgl-deep-gemm",
    "FlashAttention-4": "flash-attn-4[cu13]",
    "FlashInfer": "flashinfer-python[cu13]",
    "gsplat": "gsplat",
    "Humming": "humming-kernels",
    "Liger": "liger-kernel",
    "mamba-ssm": "--no-build-isolation mamba-ssm",
    "quack": "quack-kernels[cu13]",
}
COMMAND = "python -m pip install -c .ci/rivals.txt"


def not_installed(name: str) -> str:
    """Return the command that installs a rival; "" if it is installed, or no rival has the name."""
    given = PACKAGES.get(name, "")
    if not given or _version(name):
        return ""
    return f"not installed: {COMMAND} {shlex.join(given.split())}"


def installed() -> str:
    """Return the rivals on this machine with the versions of their packages, in a line."""
    found = {name: _version(name) for name in PACKAGES}
    return ", ".join(f"{name} {found[name]}" for name in PACKAGES if found[name])


def package(name: str) -> str:
    """Return the package of a rival, e.g. "quack-kernels"; "" if it needs none."""
    return PACKAGES[name].rpartition(" ")[2].partition("[")[0]


def _version(name: str) -> str:
    try:
        return version(package(name)) if package(name) else ""
    except PackageNotFoundError:
        return ""
