"""Day 12, the setuptools way: `python -m pip install --no-build-isolation .` builds a package."""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

namespace = os.environ.get("NAMESPACE", "fused_gelu")
kernel = os.environ.get("KERNEL", "fused_gelu.cu")  # a .cpp where there is no nvcc

# CUDAExtension sends .cu files to nvcc and links with CUDA; CppExtension knows C++ alone.
extension = CUDAExtension if kernel.endswith(".cu") else CppExtension

setup(
    name=namespace,
    version="1.0",
    py_modules=[],  # nothing but the library
    ext_modules=[
        extension(namespace, ["binding.cpp", kernel], define_macros=[("NAMESPACE", namespace)])
    ],
    cmdclass={"build_ext": BuildExtension},  # knows nvcc and PyTorch's flags, and uses ninja
)
