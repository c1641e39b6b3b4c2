"""Day 12, the setuptools build: `python -m pip install --no-build-isolation .` makes a package."""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

namespace = os.environ.get("NAMESPACE", "fused_gelu")
kernel = os.environ.get("KERNEL", "fused_gelu.cu")  # a .cpp on machines without nvcc

# CUDAExtension compiles .cu files with nvcc and links with CUDA; CppExtension compiles C++ only.
extension = CUDAExtension if kernel.endswith(".cu") else CppExtension

setup(
    name=namespace,
    version="1.0",
    py_modules=[],  # the package holds the library only
    ext_modules=[
        extension(namespace, ["binding.cpp", kernel], define_macros=[("NAMESPACE", namespace)])
    ],
    cmdclass={"build_ext": BuildExtension},  # knows nvcc and PyTorch's flags, runs ninja
)
