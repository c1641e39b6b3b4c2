"""Test what a launcher caches about its kernels, with a stand-in for CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common.base.paths import ROOT
from common.base.toolchain import find_compiler

# What kernel_queries.cuh needs of CUDA and of tensor.cuh.
STAND_IN = """
#pragma once
#include <cstddef>
#include <cstdint>
enum cudaFuncAttribute { MAXIMUM = 8 };
struct cudaLaunchConfig_t {
  struct { unsigned x; } blockDim;
  size_t dynamicSmemBytes;
};
int cudaGetDevice(int*);
int cudaFuncSetAttribute(void (*)(), cudaFuncAttribute, int);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, void (*)(), int, size_t);
int cudaOccupancyMaxActiveClusters(int*, void (*)(), const cudaLaunchConfig_t*);
inline void check_cuda(int, const char*) {}
"""


def test_a_second_thread_does_not_lower_an_attribute(tmp_path: Path) -> None:
    """autograd calls a backward kernel from another thread, maybe with less shared memory."""
    cuda = tmp_path / "common" / "cuda"
    cuda.mkdir(parents=True)
    header = ROOT / "common" / "cuda" / "kernel_queries.cuh"
    (cuda / header.name).write_text(header.read_text())
    (cuda / "tensor.cuh").write_text(STAND_IN)
    source, program = ROOT / "tests" / "programs" / "raised_attribute.cpp", tmp_path / "program"
    compiler = [find_compiler().path, "-std=c++17", "-pthread", f"-I{tmp_path}", str(source)]
    subprocess.run([*compiler, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "98304 after 1 call\n"
