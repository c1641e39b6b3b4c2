"""Compile with nvcc: flags, and compilations that need no GPU."""

from __future__ import annotations

from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import (
    STABLE_ABI,
    BuildError,
    compiler_message,
    run_compiler,
    sources_of,
    torch_includes,
)
from common.base.days import Day
from common.base.paths import ROOT
from common.base.toolchain import ToolchainError, Toolkit, find_compiler, find_toolkit, sm

# PyTorch disables the operators of half types for its own code; the course uses `a + b`.
HALF_OPERATORS = [
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
]
BINDING = [STABLE_ABI, "-DUSE_CUDA"]
# Lambdas marked __device__ can be passed to kernels, and device code calls constexpr functions.
CUDA_FLAGS = [
    *("-O3", "-std=c++20", "-lineinfo", "--extended-lambda", "--expt-relaxed-constexpr"),
    *HALF_OPERATORS,
]

# The message of ptxas if registers of a wgmma's sums are accessed between products: it makes
# each product wait for the one before.
WAITING_PRODUCTS = ("wgmma.mma_async instructions are serialized", "warpgroup.wait is injected")


def cuda_flags(archs: list[str]) -> list[str]:
    """Return nvcc's flags for these architectures, e.g. ["8.0", "9.0a"]."""
    codes = [f"-gencode=arch=compute_{sm(arch)},code=sm_{sm(arch)}" for arch in archs]
    return [*CUDA_FLAGS, *codes]


def compile_only(day: Day, archs: list[str], toolkit: Toolkit | None = None) -> None:
    """Compile the day's .cu files for every architecture: see `compile_source`."""
    for source in day.nvcc_sources:
        compile_source(day.kind, source, archs, toolkit)


def compile_source(
    name: str,
    source: Path,
    archs: list[str],
    toolkit: Toolkit | None = None,
    optimised: bool = True,
) -> None:
    """Compile a .cu for every architecture, without a GPU and without linking.

    name: of its cache entry: a success is recorded, so that the same content is not compiled again.
    archs: e.g. ["8.0", "9.0a"]. toolkit: default, the one that builds use. optimised: False omits
    most optimisations of device code, which take up to three quarters of the time and find no
    errors; it has no effect before CUDA 13. Raise BuildError with nvcc's message, also if optimised
    code has wgmma products that wait for each other, which nvcc does not report as an error. Raise
    ToolchainError without nvcc.
    """
    toolkit = toolkit or find_toolkit()
    if toolkit is None:
        raise ToolchainError("no nvcc: python -m pip install -r requirements.txt brings it")
    compiler = find_compiler()
    flags = [*cuda_flags(archs), *BINDING, "-ccbin", compiler.path]
    if not optimised and int(toolkit.version.split(".")[0]) >= 13:
        flags.append("-Ofc=max")
    refused = WAITING_PRODUCTS if optimised else ()
    words = [toolkit.version, str(toolkit.home), compiler.version, *flags, *refused]
    key = digest(words, sources_of(source))
    entry = Entry(f"{name}-{source.stem}-compiled", key, "compiled")
    command: list[str | Path] = [toolkit.nvcc, "-fatbin", source, *flags, f"-I{ROOT}"]
    command += [f"-I{path}" for path in torch_includes()]

    def make(directory: Path) -> None:
        code = directory / "code.fatbin"
        said = run_compiler([*command, "-o", code])
        if any(remark in said for remark in refused):
            raise BuildError(compiler_message(said))
        code.unlink()
        entry.path.touch()

    cached(entry, make)


def link_directory(toolkit: Toolkit) -> Path:
    """Return a directory with a libcudart.so to link against. The wheels contain only
    libcudart.so.13."""
    for place in ("lib64", "lib"):
        if (toolkit.home / place / "libcudart.so").exists():
            return toolkit.home / place
    versioned = sorted((toolkit.home / "lib").glob("libcudart.so.*"))
    if not versioned:
        raise BuildError(f"{toolkit.home}: neither lib64 nor lib holds libcudart.so")
    entry = Entry("link", digest([str(versioned[-1])]), "libcudart.so")
    return cached(entry, lambda _: entry.path.symlink_to(versioned[-1])).parent
