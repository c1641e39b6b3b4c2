"""Three builds of the same sources, each into a library of its own."""

import shutil
import sys

import torch

from common.day import Rung, Skip

SOURCES = ["fused_gelu.cu", "binding.cpp", "setup.py", "CMakeLists.txt"]
OPERATORS = {}  # loaded into this process, by namespace


def jit(site):
    from torch.utils import cpp_extension

    cpp_extension.load(
        "day12_jit",
        [str(site.directory / "binding.cpp"), str(site.kernel)],
        build_directory=str(site.directory),
        is_python_module=False,
        **site.flags(["-DNAMESPACE=day12_jit"]),
    )
    return site.directory / "day12_jit.so"


def setup_py(site):
    # --no-build-isolation: compile against the installed torch, not one that pip would fetch.
    # --target: install into a folder of its own, not into the environment.
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    target = site.directory / "site-packages"
    site.run(
        [*pip, "--no-build-isolation", "--target", target, "."],
        NAMESPACE="day12_setup",
        KERNEL=site.kernel,
    )
    return next(target.glob("day12_setup*.so"))


def cmake(site):
    if shutil.which("cmake") is None:
        raise Skip("CMake is missing: python -m pip install cmake")
    if torch.version.cuda and not site.sm:
        raise Skip("the CMake files of a CUDA build of PyTorch ask for a GPU's toolkit, even here")
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path,
        "CMAKE_CUDA_ARCHITECTURES": site.sm,
        "NAMESPACE": "day12_cmake",
        "KERNEL": site.kernel,
    }
    build = site.directory / "build"
    site.run(["cmake", "-B", build, *(f"-D{name}={value}" for name, value in defines.items())])
    site.run(["cmake", "--build", build])
    return build / "day12_cmake.so"


def rung(name, idea, make, operator="fused_gelu"):
    def load(builder):
        if name not in OPERATORS:
            OPERATORS[name] = builder.library(name, SOURCES, make)
            register_backward(name)
        return getattr(OPERATORS[name], operator)

    return Rung(name, idea, load=load)


def register_backward(namespace):
    """Connects the two operators; elsewhere `Rung(backward=…, saves=…)` makes this call."""

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        x, bias = ctx.saved_tensors
        gx = OPERATORS[namespace].fused_gelu_backward(g.contiguous(), x, bias)
        return gx, gx.sum(dim=0)

    torch.library.register_autograd(f"{namespace}::fused_gelu", backward, setup_context=keep)
