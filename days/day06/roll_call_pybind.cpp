// Day 6, the pybind11 way: a Python module whose function takes and returns tensors.
//
// torch/extension.h includes all of PyTorch's C++ interface and pybind11, which is convenient and
// slow to compile. The kernel is in roll_call.cu, which includes none of it.

#include <cuda_runtime.h>
#include <torch/extension.h>
#ifndef CUDA_ON_CPU
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

cudaError_t launch_roll_call(const float* x, float* y, int64_t n, cudaStream_t stream);

torch::Tensor roll_call(const torch::Tensor& x) {
  TORCH_CHECK(x.dim() == 1, "x: expected 1 dimension, got ", x.dim());
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x: expected float32, got ", x.scalar_type());
  TORCH_CHECK(x.is_contiguous(), "x: expected a contiguous tensor; call .contiguous()");
#ifdef CUDA_ON_CPU
  TORCH_CHECK(x.is_cpu(), "x: expected a CPU tensor, got one on ", x.device());
  const cudacpu::DeviceGuard guard;
  const cudaStream_t stream = cudacpu::current_stream();
#else
  TORCH_CHECK(x.is_cuda(), "x: expected a tensor on the GPU, got one on ", x.device());
  const c10::cuda::CUDAGuard guard(x.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
#endif
  torch::Tensor y = torch::empty_like(x);
  const cudaError_t code =
      launch_roll_call(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel(), stream);
  TORCH_CHECK(code == cudaSuccess, "roll_call: ", cudaGetErrorString(code));
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("roll_call", &roll_call, "y[i] = x[i] + i", pybind11::arg("x"));
}
