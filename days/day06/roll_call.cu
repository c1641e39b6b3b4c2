// Day 6: Python meets CUDA
//
//   y[i] = x[i] + i          x, y: (n,) float32: thread i answers by adding its own number
//
// The lesson is not the kernel but the path from a Python call to it. One kernel, three bindings:
//
//   pybind       roll_call_pybind.cpp: torch/extension.h and pybind11, a Python module
//   load_inline  source text inside day.py; PyTorch adds the headers and generates the binding
//   stable ABI   the end of this file: an operator in torch.ops, small headers, a short build
//
// Bytes: 8 · n. Operations: n. The timed call has few elements, so its time is the overhead.
//
// Run: python run_day.py 6

#include <cuda_runtime.h>

#include <cstdint>

constexpr int BLOCK = 256;

__global__ void roll_call_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + static_cast<float>(i);
}

// The interface without PyTorch: pointers, a length, a stream. No PyTorch header is included above
// this line, so nvcc compiles this part quickly. Returns the error of the launch.
cudaError_t launch_roll_call(const float* x, float* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;  // a grid of 0 blocks is a launch error
  const int64_t blocks = (n + BLOCK - 1) / BLOCK;
  if (blocks > 2147483647) return cudaErrorInvalidConfiguration;
  roll_call_kernel<<<static_cast<unsigned>(blocks), BLOCK, 0, stream>>>(x, y, n);
  return cudaGetLastError();
}

// ---------------------------------------------------------------------------------------------
// The stable ABI: tensors through a C interface that later versions of PyTorch keep. The two blocks
// at the end declare the operator torch.ops.day06.roll_call_stable and register its kernel for CUDA
// tensors. The other days write them as one line, which common/cuda/binding.cuh expands to both:
//
//   RUNG(day06, roll_call_stable, "(Tensor x) -> Tensor");
//
// RUNG writes STABLE_TORCH_LIBRARY_FRAGMENT for the first block. A namespace may have any number of
// fragments, but only one STABLE_TORCH_LIBRARY.

#ifndef ROLL_CALL_WITHOUT_BINDING
#include "common/cuda/tensor.cuh"

Tensor roll_call_stable(const Tensor& x) {
  check(x, "x").on_gpu().dtype({ScalarType::Float}).rank(1).contiguous();
  const DeviceGuard guard(x);
  Tensor y = allocate_like(x);
  check_cuda(launch_roll_call(data<float>(x), mutable_data<float>(y), x.numel(), current_stream(x)),
             "roll_call");
  return y;
}

STABLE_TORCH_LIBRARY(day06, m) {
  m.def("roll_call_stable(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(day06, CUDA, m) {
  m.impl("roll_call_stable", TORCH_BOX(&roll_call_stable));
}
#endif
