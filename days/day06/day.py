"""Day 6: Python meets CUDA, through three bindings."""

if __name__ == "__main__":  # python days/day06/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day06

from functools import partial

import torch

from common.bench.host_time import host_times
from common.day import Case, Problem, Rung, grid, one_tensor, print_table, streamed

TITLE = "Python meets CUDA"
TEACHES = "From a Python call to a kernel: pybind11, load_inline, the stable ABI, and their cost"
TOPICS = ("bindings", "pybind11", "load_inline", "stable ABI", "build time")
SOURCE = "roll_call.cu"
EXTRA_SOURCES = ("roll_call_pybind.cpp",)
INTRODUCES = ("stable ABI", "pybind11", "dispatcher")

# The whole source for load_inline: PyTorch adds its headers in front and generates the binding.
INLINE = """
__global__ void roll_call_kernel(const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + static_cast<float>(i);
}

torch::Tensor roll_call(const torch::Tensor& x) {
  TORCH_CHECK(x.device().type() == ROLL_CALL_DEVICE, "x: wrong device, got ", x.device());
  TORCH_CHECK(x.dim() == 1, "x: expected 1 dimension, got ", x.dim());
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x: expected float32, got ", x.scalar_type());
  TORCH_CHECK(x.is_contiguous(), "x: expected a contiguous tensor; call .contiguous()");
  const ROLL_CALL_GUARD;
  torch::Tensor y = torch::empty_like(x);
  const int64_t blocks = (x.numel() + 255) / 256;
  TORCH_CHECK(blocks <= 2147483647, "x: too long for one grid, ", x.numel());
  if (blocks == 0) return y;
  roll_call_kernel<<<static_cast<unsigned>(blocks), 256, 0, ROLL_CALL_STREAM>>>(
      x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel());
  TORCH_CHECK(cudaGetLastError() == cudaSuccess, "roll_call: the launch failed");
  return y;
}
"""
ON_GPU = """
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#define ROLL_CALL_DEVICE torch::kCUDA
#define ROLL_CALL_GUARD c10::cuda::CUDAGuard guard(x.device())
#define ROLL_CALL_STREAM c10::cuda::getCurrentCUDAStream()
"""
ON_CPU = """
#define ROLL_CALL_DEVICE torch::kCPU
#define ROLL_CALL_GUARD cudacpu::DeviceGuard guard
#define ROLL_CALL_STREAM cudacpu::current_stream()
"""


MODULES = {}  # the modules that were built, by the name of their binding


def pybind(builder):
    MODULES["pybind11"] = builder.module(
        "roll_call_pybind",
        ["roll_call_pybind.cpp", "roll_call.cu"],
        defines=["ROLL_CALL_WITHOUT_BINDING"],
    )
    return MODULES["pybind11"].roll_call


def inline(builder):
    head = ON_GPU if builder.device == "cuda" else ON_CPU
    declaration = "torch::Tensor roll_call(const torch::Tensor& x);"
    MODULES["load_inline"] = builder.inline(
        "roll_call_inline", declaration, head + INLINE, ["roll_call"]
    )
    return MODULES["load_inline"].roll_call


def stable(builder):
    return builder.operators().roll_call_stable


def reference(x):
    return x + torch.arange(x.numel(), device=x.device, dtype=x.dtype)


def show_times(operators, device):
    """Prints the host's time per call by each binding, beside one of PyTorch's own operators."""
    if device.type != "cuda":
        return  # there the kernel runs inside the call
    x = torch.zeros(1024, device=device)
    calls = {name: partial(module.roll_call, x) for name, module in MODULES.items()}
    calls["torch.ops.day06.roll_call_stable"] = partial(operators.roll_call_stable, x)
    calls["the same .default"] = partial(operators.roll_call_stable.default, x)
    calls["x + 1, by PyTorch"] = partial(torch.add, x, 1)
    times = host_times(calls)
    print_table(("a call", "host µs"), [(name, f"{us:.1f}") for name, us in times.items()])


PROBLEMS = (
    Problem(
        name="roll_call",
        inputs=one_tensor,
        reference=reference,
        rungs=(
            Rung("pybind", "torch/extension.h, a Python module", host_timed=True, load=pybind),
            Rung("load_inline", "source text in Python", host_timed=True, load=inline),
            Rung("stable_abi", "an operator in torch.ops", host_timed=True, load=stable),
        ),
        cases=grid([(1,), (256,), (257,), (1023,), (1025,), (0,)], ["float32"]),
        bench=Case((1024,)),
        bench_cpu=Case((1024,)),
        cost=streamed(2),
        # An addition and an arange. What torch.compile makes of them is not timed beside: here the
        # host's clock times whole calls, and libraries are timed on the GPU alone.
        pytorch=reference,
    ),
)
