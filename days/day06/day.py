"""Day 6: Python meets CUDA, through three bindings."""

import torch

from common.day import Case, Exercise, Problem, Rung, grid, one_tensor, streamed

TITLE = "Python meets CUDA"
TEACHES = "From a Python call to a kernel: pybind11, load_inline, the stable ABI, and their cost"
TOPICS = ("bindings", "pybind11", "load_inline", "stable ABI", "build time")
SOURCE = "roll_call.cu"
EXTRA_SOURCES = ("roll_call_pybind.cpp",)
INTRODUCES = ("stable ABI", "pybind11", "dispatcher")
EQUIVALENT = {  # mutants that compute the same, and why
    "launch_roll_call: arithmetic operator: `BLOCK - 1` -> `BLOCK + 1`": (
        "a block too many does nothing: its threads lie beyond the end"
    ),
    "launch_roll_call: arithmetic operator: "
    "`(n + BLOCK - 1) / BLOCK` -> `(n + BLOCK - 1) * BLOCK`": (
        "blocks too many do nothing: their threads lie beyond the end"
    ),
    "launch_roll_call: comparison: `blocks > 2147483647` -> `blocks >= 2147483647`": (
        "no memory holds a tensor so long: 2^39 elements"
    ),
    "launch_roll_call: constant off by one: `blocks > 2147483647` -> `blocks > 2147483648`": (
        "no memory holds a tensor so long: 2^39 elements"
    ),
}

EXERCISE = Exercise(
    function="roll_call_stable",
    task="Check the tensor, allocate the output, and call launch_roll_call on the current stream.",
    hints=(
        "Before a pointer is taken, four things have to be known of x: its device, dtype, rank, "
        "and whether its elements lie one after the other.",
        'check(x, "x") takes its conditions one after the other: .on_gpu(), .dtype({…}), '
        ".rank(1), .contiguous(). A DeviceGuard makes x's device the current one.",
        "torch::stable::empty_like(x) allocates. data<float>(x) and mutable_data<float>(y) are "
        'the pointers, current_stream(x) the stream. check_cuda(error, "roll_call") turns an '
        "error into an exception.",
    ),
    rungs=("stable_abi",),
)

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


def pybind(builder):
    return builder.module(
        "roll_call_pybind",
        ["roll_call_pybind.cpp", "roll_call.cu"],
        defines=["ROLL_CALL_WITHOUT_BINDING"],
    ).roll_call


def inline(builder):
    head = ON_GPU if builder.device == "cuda" else ON_CPU
    declaration = "torch::Tensor roll_call(const torch::Tensor& x);"
    return builder.inline("roll_call_inline", declaration, head + INLINE, ["roll_call"]).roll_call


def stable(builder):
    return builder.operators().roll_call_stable


def reference(x):
    return x + torch.arange(x.numel(), device=x.device, dtype=x.dtype)


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
        cases=grid([(1,), (255,), (256,), (257,), (1025,), (0,)], ["float32"]),
        bench=Case((1024,)),
        bench_cpu=Case((1024,)),
        cost=streamed(2),
        # An addition and an arange. What torch.compile makes of them is not timed beside: here the
        # host's clock times whole calls, and libraries are timed on the GPU alone.
        pytorch=reference,
    ),
)
